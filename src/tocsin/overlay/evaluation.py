"""Which events meet a pattern, which matches are there? The engine's detector, run over what a processor has.

What partial rules send may be older than what was sent before: an event is sent when it has become part of something.
So rules over such events are run again over the events within their horizon, and only matches of new anchors count.
Rules whose events all come in order keep one detector.

Which events are part of something that a partial rule finds? Without listing what it finds.

A partial rule with `each` finds every pair, and there are many more pairs than events; but what goes up is events.
Where all that is asked of an event is its type, its attributes and its time, two passes over sorted times are enough.
From the leaves up: an event is *complete* if for every clause that hangs on it some complete event is in the window
(`each`), or if the latest one in the window is complete (`last`, which gives no second try). From the heads down: it is
*part* if an event that is part has it in the window, or chose it. Along with it goes the earliest head that it is part
of, since that is when it is sent.

What do the items of a membership find, and which events are that?

Rules whose events come in order share a detector, the others share one too. Each rule that consumes has its own, as
what it remembers may move to another processor (`versions`), and each whose aggregates are worked out on the way.
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
from tocsin.plans.bind.structure import Shape, parameters
from tocsin.plans.partial_aggregates import Tally
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
EXACT = 2**53
"""Up to here whole numbers and doubles are compared alike everywhere; Arrow refuses others."""
_PLAIN = (Kind.STRING, Kind.INT, Kind.LONG, Kind.DOUBLE, Kind.BOOL)


def passing(pattern: Pattern, batch: Rows, types: Types) -> Array:
    """Which of the events of its type meet a pattern; all rows must be of that type."""
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
        kept = np.nonzero(passed)[0]
        rule = Rule("Partial", PARTIAL, Pattern(pattern.type, tuple(odd)))
        detector = Detector([rule], {pattern.type: types[pattern.type]}, columns=Columns(id="id"), times=False)
        order = np.argsort(batch.ts[kept], kind="stable")
        found = [detector.push(batch.take(kept[order]).table), detector.finish()]
        ids = pa.concat_tables(found)["parts"].combine_chunks().flatten().field("id")
        passed = pc.is_in(batch["id"], ids).combine_chunks().to_numpy(zero_copy_only=False)
    return passed


def meeting(pattern: Pattern, rows: Rows, types: Types) -> Array:
    """Which of some events meet a pattern."""
    names, codes = rows.types
    own: Array = np.array([name == pattern.type for name in names], bool)[codes]
    if pattern.constraints and own.any():
        at = np.nonzero(own)[0]
        own = np.zeros(len(own), bool)
        own[at[passing(pattern, rows.take(at), types)]] = True
    return own


def _simple(constraint: Expression, type: EventType) -> bool:
    """Whether it compares an attribute with a constant of a kind that columns can be compared in."""
    match constraint:
        case Comparison(_, Attribute(name), Literal(value, kind)):
            known = type.kind(name)
            if known == Kind.DOUBLE and kind.integral:
                return abs(int(value)) <= EXACT
            return known in _PLAIN and (known == kind or (known.integral and kind.integral))
    return False


class Evaluator:
    """Some rules of a membership, decided together.

    `ordered`: all events come in order. `horizon_us`: how far back the rules look. `wanted`: the rules whose matches
    matter by themselves, not only to others. `tallies`: aggregates that are attributes of anchors here.
    """

    def __init__(
        self,
        rules: Iterable[Rule],
        types: Types,
        horizon_us: int,
        *,
        ordered: bool,
        wanted: frozenset[str],
        tallies: tuple[Tally, ...] = (),
    ) -> None:
        self.rules, self.wanted = tuple(rules), wanted
        defined = {rule.emits.name for rule in self.rules}
        self.types = {type: types[type] for rule in self.rules for type in rule.uses if type not in defined}
        self.horizon_us, self.ordered, self.tallies = horizon_us, ordered, tallies
        self.consuming = any(rule.consuming for rule in self.rules)
        read = {name for columns in self._plan().columns.values() for name in columns}
        known = (pair for type in self.types.values() for pair in type.attributes)
        self._declared = dict(known)
        self._attributes = {name: kind for name, kind in self._declared.items() if name in read}
        for tally in tallies:
            self._declared.pop(tally.column, None)
        self.others = frozenset(rule.name for rule in self.rules) - wanted
        """The rules whose matches go to no sink."""
        self._anchors = {rule.anchor.type for rule in self.rules}
        self._detector = self._new() if ordered else None

    def _plan(self) -> Plan:
        return _planned(self.rules, tuple(self.types.values()))

    def _new(self) -> Detector:
        return self._telling(Detector(self._plan(), self.types, columns=Columns(id="id"), times=False))

    def _telling(self, detector: Detector) -> Detector:
        """Matches that go to sinks have a `seq` too, by which a root puts them in order."""
        detector.select = (*schema(detector.plan, times=False).names, "seq") if self.wanted else ("rule", "ts", "parts")
        return detector

    def detect(self, history: Rows, fresh: Rows, since: int, upto: int) -> pa.Table:
        """The matches with `since` <= ts < `upto`. Both are in order of time: all that is known, and what of it came in
        order since last time."""
        detector = self._detector or self._new()
        if self._detector is None:
            start, now, end = np.searchsorted(history.ts, [since - self.horizon_us, since, upto])
            fresh = history.slice(start, end - start)
            if not self._possible(history.slice(now, end - now)):
                return NO_MATCHES
        found = pa.concat_tables([self._pushed(detector, fresh), detector.advance(upto)], promote_options="default")
        if self._detector is None:
            found = found.slice(int(np.searchsorted(found["ts"].to_numpy(), since)))
        return found

    def _pushed(self, detector: Detector, rows: Rows) -> pa.Table:
        """Gives a detector the events that its rules use, as a batch if their columns are what they were declared."""
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
        """Whether some rule has an anchor among new events; if not, there is no need to look."""
        names, codes = new.types
        return any((codes == code).any() for code, name in enumerate(names) if name in self._anchors)

    def snapshot(self) -> bytes | None:
        """What is remembered besides the events."""
        return self._detector.snapshot() if self._detector else None

    def restore(self, data: bytes | None) -> None:
        """Goes on where the snapshot was taken."""
        if data is not None:
            self._detector = self._telling(Detector.restore(data, self.rules, self.types))


@lru_cache(maxsize=4096)
def _planned(rules: tuple[Rule, ...], types: tuple[EventType, ...]) -> Plan:
    return plan(rules, Catalog(types={type.name: type for type in types}, closed=True))


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


def fast_participants(part: Partial, instants: Instants, since: int, upto: int) -> Participants | None:
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


PART = "partial "
"""How names of partial rules begin in detectors; no rule's name has a space."""


def evaluators(items: Iterable[Item | None], declared: Types) -> list[Evaluator]:
    """Evaluators for items; a partial rule goes by its number in them, None is left out."""
    groups: dict[object, list[tuple[int, Item]]] = {True: [], False: []}
    for number, item in enumerate(items):
        if item is None:
            continue
        groups.setdefault(item.key if item.consuming or item.tallies else item.ordered, []).append((number, item))
    found = []
    for group in groups.values():
        rules: dict[str, Rule] = {}
        for number, item in group:
            for rule in item.rules:
                name = f"{PART}{number}" if isinstance(item.key, Partial) else rule.name
                rules[name] = replace(rule, name=name)
        if rules:
            types = declared
            wanted = frozenset(item.key for _, item in group if isinstance(item.key, str))
            horizon_us = max(item.horizon_us for _, item in group)
            first = group[0][1]
            if first.tallies:
                anchor = types[first.rules[-1].anchor.type]
                more = tuple((tally.column, tally.kind) for tally in first.tallies)
                types = {**types, anchor.name: EventType(anchor.name, anchor.attributes + more)}
            found.append(
                Evaluator(
                    rules.values(), types, horizon_us, ordered=first.ordered, wanted=wanted, tallies=first.tallies
                )
            )
    return found


def first_heads(rows: Array, heads: Array) -> tuple[Array, Array]:
    """Each row once, with its earliest head; heads are in order."""
    rows, firsts = np.unique(rows, return_index=True)
    return rows, heads[firsts]


def participants(part: Partial, found: pa.Table, history: Rows) -> Participants:
    """The events of the history that fill the roles which a partial rule sends, with the times of their heads, and the
    times of all heads."""
    parts = found["parts"].combine_chunks()
    flat = parts.flatten()
    heads = np.repeat(found["ts"].to_numpy(), np.diff(parts.offsets.to_numpy()))
    chosen = np.ones(len(flat), bool)
    if len(part.sends) < len(part.rule.roles):
        chosen = np.isin(flat.field("role").to_pylist(), part.sends)
    ids = flat.field("id").filter(pa.array(chosen))
    rows = pc.index_in(ids, value_set=history["id"].combine_chunks()).to_numpy(zero_copy_only=False)
    return rows.astype(np.int64), heads[chosen], np.unique(heads)


def quick(part: Partial, instants: Instants, since: int, upto: int) -> Participants:
    """As `participants`, for a plain partial rule with heads from `since` on, each row once with its earliest head."""
    known = fast_participants(part, instants, since, upto)
    if known is not None:
        return known
    history, types = instants.history, instants.types
    item = Item(part, (part.rule,), (), ordered=False, pullable=False)
    (evaluator,) = evaluators([item], types)
    found = evaluator.detect(history, history, since, upto)
    if not found.num_rows:
        return NOBODY
    rows, heads, every = participants(part, found, history)
    return *first_heads(rows, heads), every


def blockers(part: Partial, fresh: Rows, heads: Array, types: Types) -> Array:
    """The new events that stand in front of a head that was found: heads within the window after one."""
    rows: Array = np.nonzero(meeting(part.rule.anchor, fresh, types))[0]
    if part.blocks_us < FOREVER_US and len(rows):
        ts = fresh.ts[rows]
        known = np.concatenate([[BEGINNING], heads])
        rows = rows[ts - known[np.searchsorted(known, ts, "right") - 1] < part.blocks_us]
    return rows
