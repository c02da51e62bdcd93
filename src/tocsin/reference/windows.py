"""The reference semantics of SiddhiQL queries, as plain Python, to check against Siddhi.

The module has windows, joins and aggregates. Patterns and sequences are in `sequences`.

Events come in canonical order. The effects of one event or one timer are a few *chunks* of signed events. The sign of
an event that enters a window is CURRENT, and that of an event that leaves it is EXPIRED. RESET clears the aggregates at
the end of a batch. The selection adds and subtracts events by their signs and emits rows. If there is an aggregate, a
chunk emits only its last row, and with `group by` the last row of each group. A timer runs at its exact time, before
the events of that time.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from fractions import Fraction
from functools import cached_property
from typing import Protocol

from tocsin.errors import RuleError
from tocsin.events.types import Value, Words128, content_words, hexadecimal, match_words, occurrence_words, text_words
from tocsin.language.siddhi.ast import (
    Call,
    Chain,
    Extent,
    Join,
    Output,
    Query,
    Side,
    StreamSource,
    Summary,
    Window,
    indexed,
)
from tocsin.language.syntax.ast import Expression
from tocsin.reference.patterns import Fact, Match, converted, holds, normalized, value_of

TIMER_SEQ = -(2**63)
"""The `seq` of rows that a timer emits, which precede all events of the same time."""


class Sign(Enum):
    CURRENT = "current"
    EXPIRED = "expired"
    RESET = "reset"


class MissingFact(Fact):
    """A missing event, all of whose attributes are null."""

    def value(self, name: str) -> Value:
        return None


MISSING = MissingFact("", 0, 0, "", (0, 0), {})


class IndexedFacts(dict[str | None, Fact]):
    """The events of a combination by role, or by role and index if a role has several. A missing event is `MISSING`."""

    def __init__(
        self, roles: Mapping[str | None, Fact], indexed_events: Mapping[str, Sequence[Fact]] | None = None
    ) -> None:
        super().__init__(roles)
        self._indexed = indexed_events or {}

    def __missing__(self, role: str | None) -> Fact:
        name, index = indexed(role or "")
        events = self._indexed.get(name, ())
        if index is None or not -len(events) <= index < len(events):
            return MISSING
        return events[index]


Chunk = list[tuple[Sign, IndexedFacts]]


def meets(tests: Iterable[Expression], events: IndexedFacts) -> bool:
    """Return whether the events meet all tests."""
    return all(holds(test, events, {}) for test in tests)


@dataclass(frozen=True, slots=True)
class QueryRow:
    """A row of a query. Its values are in the order of the query's `select`."""

    query: str
    type: str
    ts: int
    seq: int
    id: str
    expired: bool
    values: tuple[Value, ...]


@dataclass(frozen=True, eq=False)
class RowFact(Fact):
    """A row as an event of the stream that it is inserted into. Rows of one query stay in their order."""

    query: str = ""
    number: int = 0

    @cached_property
    def key(self) -> tuple[int, int, str, str, Words128]:
        label = f"{self.query} {self.number:020}"
        return self.ts, self.seq, self.type, label, content_words(self.type, self.ts, self.seq, self.attributes)


class QueryEvaluator(Protocol):
    """Converts events and timers to chunks."""

    def due(self) -> int | None:
        """Return the time at which the next timer is due, or None."""

    def fire(self, ts: int) -> list[Chunk]:
        """Run the timers that are due at `ts`, and return their chunks."""

    def arrive(self, fact: Fact) -> list[Chunk]:
        """Process an event, and return its chunks."""


def composed(query: Query, facts: Sequence[Fact], last_ts: int) -> Iterator[tuple[Fact, Match]]:
    """Yield the rows of a query as events and as matches.

    `facts` are in canonical order, and timers run up to `last_ts`.
    """
    names = [name for name, _ in query.emits.attributes]
    for number, (row, words) in enumerate(_rows(query, facts, last_ts)):
        attributes = dict(zip(names, row.values, strict=True))
        fact = RowFact(row.type, row.ts, row.seq, row.id, words, attributes, query.name, number)
        yield fact, Match(row.query, row.type, row.ts, row.seq, row.id, attributes, (), row.expired)


def rows(query: Query, facts: Iterable[Fact], last_ts: int) -> list[QueryRow]:
    """Return the rows of a query. `facts` are in canonical order, and timers run up to `last_ts`."""
    return [row for row, _ in _rows(query, facts, last_ts)]


def _rows(query: Query, facts: Iterable[Fact], last_ts: int) -> Iterator[tuple[QueryRow, Words128]]:
    evaluator = _evaluator(query)
    selection = _Selection(query)

    def emit(ts: int, seq: int, trigger: Words128, chunks: list[Chunk]) -> Iterator[tuple[QueryRow, Words128]]:
        words = match_words(query.name, [trigger])
        chosen = [row for chunk in chunks for row in selection.rows(chunk)]
        for number, (expired, values) in enumerate(chosen):
            own = occurrence_words(words, number)
            yield QueryRow(query.name, query.emits.name, ts, seq, hexadecimal(own), expired, values), own

    def timers(until: int) -> Iterator[tuple[QueryRow, Words128]]:
        while (due := evaluator.due()) is not None and due <= until:
            yield from emit(due, TIMER_SEQ, text_words(f"timer {due}"), evaluator.fire(due))

    for fact in facts:
        if fact.type in query.uses:
            yield from timers(fact.ts)
            yield from emit(fact.ts, fact.seq, fact.words, evaluator.arrive(fact))
    yield from timers(last_ts)


def _evaluator(query: Query) -> QueryEvaluator:
    for source in query.sources:
        if source.tables:
            raise RuleError("there are no tables: a query with 'in' cannot run", span=source.span, source=query.source)
    match query.input:
        case StreamSource():
            return _Single(query.input)
        case Join():
            return _Joined(query.input)
        case Chain():
            from tocsin.reference.sequences import ReferenceAutomaton

            return ReferenceAutomaton(query.input)


# ---- select


@dataclass(slots=True)
class _Aggregate:
    """The exact state of an aggregate."""

    rows: int = 0
    number: int = 0
    total: Fraction = Fraction(0)
    squares: Fraction = Fraction(0)
    integral: bool = True
    values: Counter[int | float] = field(default_factory=Counter)

    def add(self, value: Value, sign: int) -> None:
        self.rows += sign
        if value is None or isinstance(value, str):
            return
        self.integral = self.integral and isinstance(value, int)
        self.number += sign
        self.total += sign * Fraction(value)
        self.squares += sign * Fraction(value) ** 2
        self.values[value] += sign

    def result(self, call: Call) -> Value:
        """Return the value of the aggregate. Without values, a count is 0 and every other aggregate is null."""
        if call.function == Summary.COUNT:
            return self.rows
        present = [value for value, times in self.values.items() if times > 0]
        match call.function:
            case Summary.MIN:
                return min(present, default=None)
            case Summary.MAX:
                return max(present, default=None)
        if not self.number:
            return None
        if call.function == Summary.STD_DEV:
            variance = (self.squares - self.total**2 / self.number) / self.number
            return normalized(math.sqrt(max(0.0, _rounded(variance))))
        if call.function == Summary.SUM and self.integral:
            return normalized(int(self.total))
        total = _rounded(self.total)
        return normalized(total if call.function == Summary.SUM else total / self.number)


def _rounded(exact: Fraction) -> float:
    try:
        return float(exact)
    except OverflowError:
        return math.inf


class _Selection:
    """Converts chunks to rows."""

    def __init__(self, query: Query) -> None:
        self._query = query
        self._groups: dict[tuple[Value, ...], list[_Aggregate]] = {}
        self._signs = {
            Output.CURRENT: {Sign.CURRENT},
            Output.EXPIRED: {Sign.EXPIRED},
            Output.ALL: {Sign.CURRENT, Sign.EXPIRED},
        }[query.output]

    def rows(self, chunk: Chunk) -> list[tuple[bool, tuple[Value, ...]]]:
        """Return the rows of a chunk, each with a flag that says whether the row is expired."""
        query = self._query
        selected: list[tuple[tuple[Value, ...], tuple[bool, tuple[Value, ...]]]] = []
        for sign, events in chunk:
            if sign == Sign.RESET:
                self._groups.clear()
                continue
            group = tuple(value_of(attribute, events, {}) for attribute in query.group_by)
            values = self._values(group, sign, events)
            if sign in self._signs and self._passes(values):
                selected.append((group, (sign == Sign.EXPIRED, values)))
        if not query.group_by and not query.aggregates:
            return [row for _, row in selected]
        # The last row of each group, in the order in which the groups first came.
        return list(dict(selected).values())

    def _values(self, group: tuple[Value, ...], sign: Sign, events: IndexedFacts) -> tuple[Value, ...]:
        query = self._query
        states = self._groups.setdefault(group, [_Aggregate() for _ in query.aggregates])
        bound: dict[str, Value] = {}
        for call, state in zip(query.aggregates, states, strict=True):
            value = value_of(call.argument, events, {}) if call.argument is not None else None
            state.add(value, 1 if sign == Sign.CURRENT else -1)
            bound[call.name] = state.result(call)
        kinds = dict(query.emits.attributes)
        return tuple(converted(value_of(value, events, bound), kinds[name]) for name, value in query.select)

    def _passes(self, values: tuple[Value, ...]) -> bool:
        row = {name: value for (name, _), value in zip(self._query.select, values, strict=True)}
        return meets(self._query.having, IndexedFacts({None: Fact("", 0, 0, "", (0, 0), row)}))


# ---- windows


class _Window:
    """The events in the window of a source."""

    def __init__(self, window: Window | None) -> None:
        self._window = window
        self.contents: list[Fact] = []
        """The events that a join can pair. In a batching window they are the last complete batch."""
        self._batch: list[Fact] = []
        self._first_ts: int | None = None
        self._next_ts = 0
        """The time (µs) at which the next batch ends."""

    def due(self) -> int | None:
        window = self._window
        if window is None or not window.extent.timed:
            return None
        if window.extent == Extent.TIME:
            return self.contents[0].ts + window.size if self.contents else None
        if self._first_ts is None or not (self.contents or self._batch):
            return None
        return self._next_ts

    def arrive(self, fact: Fact) -> list[tuple[Sign, Fact]]:
        window = self._window
        if window is None:
            return [(Sign.CURRENT, fact)]
        match window.extent:
            case Extent.LENGTH:
                expired = [self.contents.pop(0)] if len(self.contents) == window.size else []
                self.contents.append(fact)
                return [*((Sign.EXPIRED, old) for old in expired), (Sign.CURRENT, fact)]
            case Extent.TIME:
                self.contents.append(fact)
                return [(Sign.CURRENT, fact)]
            case Extent.LENGTH_BATCH:
                self._batch.append(fact)
                return self._rotate() if len(self._batch) == window.size else []
            case Extent.TIME_BATCH:
                if self._first_ts is None:
                    self._first_ts = fact.ts
                if not self.contents and not self._batch:
                    # Batches end at multiples of the window's length after the first event.
                    self._next_ts = fact.ts + window.size - (fact.ts - self._first_ts) % window.size
                self._batch.append(fact)
                return []

    def fire(self, ts: int) -> list[tuple[Sign, Fact]]:
        window = self._window
        assert window
        if window.extent == Extent.TIME:
            expired = [fact for fact in self.contents if fact.ts + window.size <= ts]
            self.contents = [fact for fact in self.contents if fact.ts + window.size > ts]
            return [(Sign.EXPIRED, fact) for fact in expired]
        self._next_ts = ts + window.size
        return self._rotate()

    def _rotate(self) -> list[tuple[Sign, Fact]]:
        """Replace the current batch by the next batch, and return the events that leave and enter."""
        expired, self.contents, self._batch = self.contents, self._batch, []
        chunk = [(Sign.EXPIRED, fact) for fact in expired]
        if self.contents:
            chunk += [(Sign.RESET, self.contents[0])]
        return [*chunk, *((Sign.CURRENT, fact) for fact in self.contents)]


def _admits(source: StreamSource, fact: Fact) -> bool:
    pattern = source.pattern
    return fact.type == pattern.type and meets(pattern.constraints, IndexedFacts({None: fact}))


class _Single:
    """A query over one stream."""

    def __init__(self, source: StreamSource) -> None:
        self._source = source
        self._window = _Window(source.window)

    def due(self) -> int | None:
        return self._window.due()

    def fire(self, ts: int) -> list[Chunk]:
        return [self._after(self._window.fire(ts))]

    def arrive(self, fact: Fact) -> list[Chunk]:
        return [self._after(self._window.arrive(fact))] if _admits(self._source, fact) else []

    def _after(self, signed: list[tuple[Sign, Fact]]) -> Chunk:
        return [
            (sign, IndexedFacts({None: fact}))
            for sign, fact in signed
            if sign == Sign.RESET or meets(self._source.after, IndexedFacts({None: fact}))
        ]


class _Joined:
    """A query over two streams.

    An event that enters or leaves one window is paired with the events of the other window.
    """

    def __init__(self, join: Join) -> None:
        self._join = join
        self._sides = (join.left, join.right)
        self._windows = (_Window(join.left.window), _Window(join.right.window))

    def due(self) -> int | None:
        return min((due for window in self._windows if (due := window.due()) is not None), default=None)

    def fire(self, ts: int) -> list[Chunk]:
        chunks: list[Chunk] = []
        for side, window in enumerate(self._windows):
            if window.due() == ts:
                chunks += self._join_rows(side, window.fire(ts))
        return chunks

    def arrive(self, fact: Fact) -> list[Chunk]:
        chunks: list[Chunk] = []
        for side, source in enumerate(self._sides):
            if _admits(source, fact):
                signed = self._windows[side].arrive(fact)
                if source.window is None:
                    # Without a window the event enters and leaves at once.
                    signed = [*signed, (Sign.EXPIRED, fact), (Sign.RESET, fact)]
                chunks += self._join_rows(side, signed)
        return chunks

    def _join_rows(self, side: int, signed: list[tuple[Sign, Fact]]) -> list[Chunk]:
        """Return a chunk of pairs for each event in `signed`, if the events of this side look for partners."""
        join = self._join
        own = (Side.LEFT, Side.RIGHT)[side]
        if join.triggers not in (own, Side.BOTH):
            return []
        roles = (join.left.role, join.right.role)
        chunks: list[Chunk] = []
        for sign, fact in signed:
            if sign == Sign.RESET:
                chunks.append([(sign, IndexedFacts({}))])
                continue
            pairs = [
                IndexedFacts({roles[side]: fact, roles[1 - side]: other}) for other in self._windows[1 - side].contents
            ]
            pairs_found = [pair for pair in pairs if meets(join.on, pair)]
            if not pairs_found and join.outer in (own, Side.BOTH):
                pairs_found = [IndexedFacts({roles[side]: fact})]
            chunks.append([(sign, pair) for pair in pairs_found])
        return chunks
