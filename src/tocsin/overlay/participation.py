"""Which events are part of something that a partial rule finds? Without listing what it finds.

A partial rule with `each` finds every pair, and there are many more pairs than events; but what goes up is events.
Where all that is asked of an event is its type, its attributes and its time, two passes over sorted times are enough.
From the leaves up: an event is *complete* if for every clause that hangs on it some complete event is in the window
(`each`), or if the latest one in the window is complete (`last`, which gives no second try). From the heads down: it is
*part* if an event that is part has it in the window, or chose it. Along with it goes the earliest head that it is part
of, since that is when it is sent.
"""

from __future__ import annotations

import numpy as np

from tocsin.language.rules import Policy, Selection, Within
from tocsin.overlay.evaluation import Types, passing
from tocsin.overlay.rows import Rows
from tocsin.overlay.timing import Array
from tocsin.plans.shape import Shape, parameters
from tocsin.plans.splitting import Partial

Participants = tuple[Array, Array, Array]
"""Rows of a history, the time of the earliest head of each, and the times of all heads."""
NOBODY: Participants = (np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.int64))


def plain(part: Partial) -> bool:
    """Whether time and each event by itself decide."""
    return all(
        isinstance(clause, Selection)
        and isinstance(clause.scope, Within)
        and (clause.policy is Policy.EACH or (clause.policy is Policy.LAST and clause.count <= 1))
        for clause in part.rule.clauses
    ) and not any(parameters(*pattern.constraints) for pattern in Shape(part.rule).patterns.values())


class Instants:
    """The times of a history in order, and its rows by type."""

    def __init__(self, history: Rows, types: Types) -> None:
        self.history, self.types = history, types
        self.ts = history.ts
        names, codes = history.types
        self._names = {name: code for code, name in enumerate(names)}
        seq = history["seq"].to_numpy()
        order = np.arange(len(self.ts)) if not seq.any() else np.lexsort((seq, self.ts))
        steps = (np.diff(self.ts[order]) != 0) | (np.diff(seq[order]) != 0)
        self.rank = np.empty(len(self.ts), np.int64)
        self.rank[order] = np.concatenate([[0], np.cumsum(steps)]) if len(order) else order
        by_type = order[np.argsort(codes[order], kind="stable")]
        ends = np.searchsorted(codes[by_type], np.arange(len(self._names) + 1))
        self._rows = {name: by_type[ends[code] : ends[code + 1]] for name, code in self._names.items()}

    def rows(self, part: Partial, node: str) -> Array:
        """The candidates for a node, in order."""
        pattern = Shape(part.rule).patterns[node]
        rows = self._rows.get(pattern.type, np.zeros(0, np.int64))
        if pattern.constraints and len(rows):
            rows = rows[passing(pattern, self.history.take(rows), self.types)]
        return rows


def participants(part: Partial, instants: Instants, since: int, upto: int) -> Participants | None:
    """The events that have part in what a plain partial rule finds with heads from `since` on and before `upto`.

    None if candidates of one instant would have to be told apart.
    """
    shape, ts, rank = Shape(part.rule), instants.ts, instants.rank
    nodes = list(shape.patterns)
    rows = {node: instants.rows(part, node) for node in nodes}
    spans: dict[str, tuple[Array, Array]] = {}
    complete = {node: np.ones(len(rows[node]), bool) for node in nodes}
    for node in reversed(nodes[1:]):
        parent, window_us, mine = shape.parent(node), shape.window_us(node), rows[node]
        assert parent is not None
        low = np.searchsorted(ts[mine], ts[rows[parent]] - window_us, "right")
        high = np.searchsorted(rank[mine], rank[rows[parent]], "left")
        spans[node] = low, high
        if _each(shape, node):
            before = np.concatenate([[0], np.cumsum(complete[node])])
            complete[parent] &= before[np.maximum(high, low)] > before[low]
        else:
            if (np.diff(rank[mine]) == 0).any():
                return None
            some = high > low
            complete[parent][~some] = False
            complete[parent][some] &= complete[node][high[some] - 1]
    anchor = shape.anchor
    times = ts[rows[anchor]]
    has_part = {anchor: complete[anchor] & (times >= since) & (times < upto)}
    heads = {anchor: times}
    for node in nodes[1:]:
        parent, mine = shape.parent(node), rows[node]
        assert parent is not None
        above = np.nonzero(has_part[parent])[0]
        has_part[node] = np.zeros(len(mine), bool)
        heads[node] = np.zeros(len(mine), np.int64)
        if not len(above) or not len(mine):
            continue
        if _each(shape, node):
            first = np.searchsorted(rank[rows[parent][above]], rank[mine], "right")
            there = np.minimum(first, len(above) - 1)
            near = ts[rows[parent][above]][there] - ts[mine] < shape.window_us(node)
            has_part[node] = complete[node] & (first < len(above)) & near
            heads[node] = heads[parent][above][there]
        else:
            chosen, latest = spans[node][1][above] - 1, above[::-1]
            has_part[node][chosen] = True
            heads[node][chosen[::-1]] = heads[parent][latest]
    sent = [(rows[role][has_part[role]], heads[role][has_part[role]]) for role in part.sends]
    found, when = (np.concatenate(columns) for columns in zip(*sent, strict=True))
    order = np.lexsort((when, found))
    order = order[_changes(found[order])]
    every = times[has_part[anchor]]
    return found[order], when[order], every[_changes(every)]


def _changes(values: Array) -> Array:
    """Which of values in order are not the one before."""
    return np.concatenate([values[:1] == values[:1], values[1:] != values[:-1]])


def _each(shape: Shape, node: str) -> bool:
    clause = shape.clauses[node]
    return isinstance(clause, Selection) and clause.policy is Policy.EACH
