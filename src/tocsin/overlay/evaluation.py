"""Evaluate the rules and partial rules of a tree node with the engine's detector.

A partial rule sends an event only when the event has become part of a match, so it may send older events after newer
ones. Rules over such events are evaluated again on all events within the horizon (the time that the rules look back),
and only matches of new anchors are returned. Rules whose events all come in order share one detector, which keeps its
state. A consuming rule has a detector of its own, because the state may move to another processor (`tree_changes`). A
rule whose aggregates are computed by several sites (`partial_aggregates`) also has a detector of its own.

A partial rule sends the events that take part in its matches (the *participants*). The anchor of such a match is called
the *head*. A partial rule with `each` has many more matches than there are events. If only type, attributes and time
decide (`is_plain`), two passes over sorted times find the participants without the matches:

1. From the leaves of the pattern tree to the anchor, find the *complete* events. An event is complete if each clause on
   it is met: for `each`, some complete event lies in the window; for `last`, the latest event in the window is
   complete.
2. From the heads to the leaves, find the participants. A complete event is a participant if it lies in the window of a
   participant (`each`), or if a participant selected it (`last`). The earliest head of each participant is stored with
   it, because the event is sent at the time of that head.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tocsin.engine.detector import Detector
from tocsin.engine.match_table import schema
from tocsin.events.columns import ARROW
from tocsin.events.reader import LABEL_COLUMN, Columns
from tocsin.events.types import EventType, Kind
from tocsin.language.syntax.ast import (
    Attribute,
    Comparison,
    Expression,
    Literal,
    Pattern,
    Policy,
    Rule,
    Selection,
    Within,
)
from tocsin.overlay.deployment import Item
from tocsin.overlay.messages import Rows
from tocsin.overlay.tree_parts import BEGINNING, Array
from tocsin.plans.bind.structure import PatternTree, parameters
from tocsin.plans.partial_aggregates import PartialAggregate
from tocsin.plans.plan import Plan, plan
from tocsin.plans.splitting import FOREVER_US, PARTIAL, Partial
from tocsin.plans.typing import Catalog

Types = Mapping[str, EventType]

NO_MATCHES = pa.table({"rule": pa.array([], pa.string()), "ts": pa.array([], pa.int64())})
_COMPARED = {
    "=": pc.equal,
    "!=": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}
EXACT_MAX = 2**53
"""The largest integer constant that is compared with doubles in Arrow: larger integers have no exact double."""
_PLAIN = (Kind.STRING, Kind.INT, Kind.LONG, Kind.DOUBLE, Kind.BOOL)


def passing(pattern: Pattern, batch: Rows, types: Types) -> Array:
    """Return a mask of the rows of `batch` that meet the constraints of `pattern`; all rows must have its type."""
    passed = np.ones(batch.num_rows, bool)
    odd = []
    for constraint in pattern.constraints:
        if _simple(constraint, types[pattern.type]) and batch.num_rows:
            assert isinstance(constraint, Comparison)
            assert isinstance(constraint.left, Attribute)
            assert isinstance(constraint.right, Literal)
            test = _COMPARED[constraint.operator](batch[constraint.left.name], constraint.right.value)
            passed &= test.combine_chunks().fill_null(False).to_numpy(zero_copy_only=False)
        else:
            odd.append(constraint)
    if odd and passed.any():
        retained = np.nonzero(passed)[0]
        rule = Rule("Partial", PARTIAL, Pattern(pattern.type, tuple(odd)))
        detector = Detector([rule], {pattern.type: types[pattern.type]}, columns=Columns(id="id"), times=False)
        order = np.argsort(batch.ts[retained], kind="stable")
        matches = [detector.push(batch.take(retained[order]).table), detector.finish()]
        ids = pa.concat_tables(matches)["parts"].combine_chunks().flatten().field("id")
        passed = pc.is_in(batch["id"], ids).combine_chunks().to_numpy(zero_copy_only=False)
    return passed


def meeting(pattern: Pattern, rows: Rows, types: Types) -> Array:
    """Return a mask of the rows that have the type of `pattern` and meet its constraints."""
    names, codes = rows.types
    own: Array = np.array([name == pattern.type for name in names], bool)[codes]
    if pattern.constraints and own.any():
        at = np.nonzero(own)[0]
        own = np.zeros(len(own), bool)
        own[at[passing(pattern, rows.take(at), types)]] = True
    return own


def _simple(constraint: Expression, type: EventType) -> bool:
    """Return whether Arrow can evaluate `constraint`, which must compare an attribute with a constant."""
    match constraint:
        case Comparison(_, Attribute(name), Literal(value, kind)):
            declared = type.kind(name)
            if declared == Kind.DOUBLE and kind.integral:
                return abs(int(value)) <= EXACT_MAX
            return declared in _PLAIN and (declared == kind or (declared.integral and kind.integral))
    return False


class Evaluator:
    """Evaluate some rules of a tree node together with one detector.

    If all events come in order of time (`ordered`), the detector keeps its state between calls. Otherwise each call
    evaluates the last `horizon_us` of the history again. `wanted` names the rules whose matches are sent up; the other
    rules are evaluated because wanted rules use their composite events, or because they are partial rules. `aggregates`
    are available to the rules as attributes of the anchor.
    """

    def __init__(
        self,
        rules: Iterable[Rule],
        types: Types,
        horizon_us: int,
        *,
        ordered: bool,
        wanted: frozenset[str],
        aggregates: tuple[PartialAggregate, ...] = (),
    ) -> None:
        self.rules, self.wanted = tuple(rules), wanted
        defined = {rule.emits.name for rule in self.rules}
        self.types = {type: types[type] for rule in self.rules for type in rule.uses if type not in defined}
        self.horizon_us, self.ordered, self.aggregates = horizon_us, ordered, aggregates
        self.consuming = any(rule.consuming for rule in self.rules)
        read = {name for columns in self._plan().columns.values() for name in columns}
        attributes = (pair for type in self.types.values() for pair in type.attributes)
        self._declared = dict(attributes)
        self._attributes = {name: kind for name, kind in self._declared.items() if name in read}
        for aggregate in aggregates:
            self._declared.pop(aggregate.column, None)
        self.others = frozenset(rule.name for rule in self.rules) - wanted
        """The names of the rules that are not wanted, such as partial rules, whose events are sent up instead."""
        self._anchors = {rule.anchor.type for rule in self.rules}
        self._detector = self._new() if ordered else None

    def _plan(self) -> Plan:
        return _planned(self.rules, tuple(self.types.values()))

    def _new(self) -> Detector:
        return self._with_output_columns(Detector(self._plan(), self.types, columns=Columns(id="id"), times=False))

    def _with_output_columns(self, detector: Detector) -> Detector:
        """Select the output columns of `detector`; wanted matches have `seq` because the root sorts by it."""
        detector.select = (*schema(detector.plan, times=False).names, "seq") if self.wanted else ("rule", "ts", "parts")
        return detector

    def detect(self, history: Rows, fresh: Rows, since: int, upto: int) -> pa.Table:
        """Return the matches with `since` <= ts < `upto`.

        `history` has all events, and `fresh` the events that have come since the last call. Both are sorted by time.
        """
        detector = self._detector or self._new()
        if self._detector is None:
            start, now, end = np.searchsorted(history.ts, [since - self.horizon_us, since, upto])
            fresh = history.slice(start, end - start)
            if not self._possible(history.slice(now, end - now)):
                return NO_MATCHES
        matches = pa.concat_tables([self._pushed(detector, fresh), detector.advance(upto)], promote_options="default")
        if self._detector is None:
            matches = matches.slice(int(np.searchsorted(matches["ts"].to_numpy(), since)))
        return matches

    def _pushed(self, detector: Detector, rows: Rows) -> pa.Table:
        """Push the rows whose types the rules use to `detector`; return the matches.

        Rows are pushed as a prepared batch if all columns have the declared kinds, else as a table.
        """
        names, codes = rows.types
        used = np.array([name in self.types for name in names], bool)[codes]
        rows = rows if used.all() else rows.take(used)
        schema = rows.base.table.schema
        read = {name: kind for name, kind in self._attributes.items() if name in schema.names}
        if any(schema.field(name).type != ARROW[kind] for name, kind in read.items()):
            return detector.push(rows.table)
        columns = {
            "type": pa.array(rows.types[1].astype(np.int32)),
            "ts": rows.ts,
            "seq": rows["seq"],
            LABEL_COLUMN: rows["id"],
        }
        columns["first"], columns["second"] = rows.contents(self._declared)
        batch = pa.table({**columns, **{f"{name}:{kind}": rows[name] for name, kind in read.items()}})
        return detector.push_batch(batch, names)

    def _possible(self, new: Rows) -> bool:
        """Return whether `new` has an event of a type that is the anchor of some rule."""
        names, codes = new.types
        return any((codes == code).any() for code, name in enumerate(names) if name in self._anchors)

    def snapshot(self) -> bytes | None:
        """Return the state of the detector, or None if no state is kept between calls."""
        return self._detector.snapshot() if self._detector else None

    def restore(self, data: bytes | None) -> None:
        """Restore the detector from the bytes that `snapshot` returned."""
        if data is not None:
            self._detector = self._with_output_columns(Detector.restore(data, self.rules, self.types))


@lru_cache(maxsize=4096)
def _planned(rules: tuple[Rule, ...], types: tuple[EventType, ...]) -> Plan:
    return plan(rules, Catalog(types={type.name: type for type in types}, closed=True))


Participants = tuple[Array, Array, Array]
"""The row numbers of participants in a history, the time of each row's earliest head, and the times of all heads."""
NO_PARTICIPANTS: Participants = (np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.int64))


def is_plain(part: Partial) -> bool:
    """Return whether `fast_participants` applies: `each` and `last 1` selections in windows, and no parameters."""
    return all(
        isinstance(clause, Selection)
        and isinstance(clause.scope, Within)
        and (clause.policy is Policy.EACH or (clause.policy is Policy.LAST and clause.count <= 1))
        for clause in part.rule.clauses
    ) and not any(parameters(*pattern.constraints) for pattern in PatternTree(part.rule).patterns.values())


class Instants:
    """The rows of a history by type, with the rank of each row in the order of time and `seq`."""

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
        """Return the rows that meet the pattern of a node of a partial rule, in order of time."""
        pattern = PatternTree(part.rule).patterns[node]
        rows = self._rows.get(pattern.type, np.zeros(0, np.int64))
        if pattern.constraints and len(rows):
            rows = rows[passing(pattern, self.history.take(rows), self.types)]
        return rows


def fast_participants(part: Partial, instants: Instants, since: int, upto: int) -> Participants | None:
    """Return the participants of matches of a plain partial rule with `since` <= head < `upto`.

    Return None if `last` would have to choose between events of the same time.
    """
    shape, ts, rank = PatternTree(part.rule), instants.ts, instants.rank
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
    selected, when = (np.concatenate(columns) for columns in zip(*sent, strict=True))
    order = np.lexsort((when, selected))
    order = order[_changes(selected[order])]
    every = times[has_part[anchor]]
    return selected[order], when[order], every[_changes(every)]


def _changes(values: Array) -> Array:
    """Return a mask of the sorted values that differ from the previous value."""
    return np.concatenate([values[:1] == values[:1], values[1:] != values[:-1]])


def _each(shape: PatternTree, node: str) -> bool:
    clause = shape.clauses[node]
    return isinstance(clause, Selection) and clause.policy is Policy.EACH


PARTIAL_PREFIX = "partial "
"""The prefix of the names that detectors use for partial rules; a rule's name has no space, so names do not clash."""


def evaluators(items: Iterable[Item | None], declared: Types) -> list[Evaluator]:
    """Create the evaluators of items, which are the rules and partial rules that a node decides.

    An entry that is None is skipped. A partial rule is named after its index in `items`.
    """
    groups: dict[object, list[tuple[int, Item]]] = {True: [], False: []}
    for number, item in enumerate(items):
        if item is None:
            continue
        groups.setdefault(item.key if item.consuming or item.aggregates else item.ordered, []).append((number, item))
    result = []
    for group in groups.values():
        rules: dict[str, Rule] = {}
        for number, item in group:
            for rule in item.rules:
                name = f"{PARTIAL_PREFIX}{number}" if isinstance(item.key, Partial) else rule.name
                rules[name] = replace(rule, name=name)
        if rules:
            types = declared
            wanted = frozenset(item.key for _, item in group if isinstance(item.key, str))
            horizon_us = max(item.horizon_us for _, item in group)
            first = group[0][1]
            if first.aggregates:
                anchor = types[first.rules[-1].anchor.type]
                more = tuple((aggregate.column, aggregate.kind) for aggregate in first.aggregates)
                types = {**types, anchor.name: EventType(anchor.name, anchor.attributes + more)}
            result.append(
                Evaluator(
                    rules.values(), types, horizon_us, ordered=first.ordered, wanted=wanted, aggregates=first.aggregates
                )
            )
    return result


def first_heads(rows: Array, heads: Array) -> tuple[Array, Array]:
    """Remove duplicate rows; keep the earliest head of each row. `heads` must be sorted."""
    rows, firsts = np.unique(rows, return_index=True)
    return rows, heads[firsts]


def participants(part: Partial, matches: pa.Table, history: Rows) -> Participants:
    """Return the participants that fill the roles which a partial rule sends.

    A row appears once for each match that it is part of.
    """
    parts = matches["parts"].combine_chunks()
    flat = parts.flatten()
    heads = np.repeat(matches["ts"].to_numpy(), np.diff(parts.offsets.to_numpy()))
    chosen = np.ones(len(flat), bool)
    if len(part.sends) < len(part.rule.roles):
        chosen = np.isin(flat.field("role").to_pylist(), part.sends)
    ids = flat.field("id").filter(pa.array(chosen))
    rows = pc.index_in(ids, value_set=history["id"].combine_chunks()).to_numpy(zero_copy_only=False)
    return rows.astype(np.int64), heads[chosen], np.unique(heads)


def find_participants(part: Partial, instants: Instants, since: int, upto: int) -> Participants:
    """Return the participants of a plain partial rule with `since` <= head < `upto`, each row once."""
    fast = fast_participants(part, instants, since, upto)
    if fast is not None:
        return fast
    history, types = instants.history, instants.types
    item = Item(part, (part.rule,), (), ordered=False, pullable=False)
    (evaluator,) = evaluators([item], types)
    matches = evaluator.detect(history, history, since, upto)
    if not matches.num_rows:
        return NO_PARTICIPANTS
    rows, heads, every = participants(part, matches, history)
    return *first_heads(rows, heads), every


def blockers(part: Partial, fresh: Rows, heads: Array, types: Types) -> Array:
    """Return the rows of `fresh` that block an earlier head.

    A possible head blocks the latest earlier head if it comes less than `part.blocks_us` after it.
    """
    rows: Array = np.nonzero(meeting(part.rule.anchor, fresh, types))[0]
    if part.blocks_us < FOREVER_US and len(rows):
        ts = fresh.ts[rows]
        earlier = np.concatenate([[BEGINNING], heads])
        rows = rows[ts - earlier[np.searchsorted(earlier, ts, "right") - 1] < part.blocks_us]
    return rows
