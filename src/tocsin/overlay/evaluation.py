"""Which events meet a pattern, which matches are there? The engine's detector, run over what a processor has.

What partial rules send may be older than what was sent before: an event is sent when it has become part of something.
So rules over such events are run again over the events within their horizon, and only matches of new anchors count.
Rules whose events all come in order keep one detector.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tocsin.engine.detector import Detector
from tocsin.engine.output import schema
from tocsin.events.arrow import ARROW
from tocsin.events.batches import LABEL_COLUMN, Columns
from tocsin.events.types import EventType, Kind
from tocsin.language.rules import Attribute, Comparison, Expression, Literal, Pattern, Rule
from tocsin.overlay.rows import Rows
from tocsin.overlay.timing import Array
from tocsin.plans.catalog import Catalog
from tocsin.plans.plan import Plan, plan
from tocsin.plans.splitting import PARTIAL
from tocsin.plans.tallies import Tally

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
