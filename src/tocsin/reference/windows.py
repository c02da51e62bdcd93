"""What do queries of SiddhiQL mean? Windows, joins and aggregates as plain Python, to be held against Siddhi itself.

Events come in canonical order. What one event, or one moment of a timer, brings about is a few *chunks* of signed
events: one that arrives is CURRENT, one that leaves its window EXPIRED, and RESET empties the aggregates when a batch
is over. The selection adds and takes away as the signs say and puts out rows; a chunk under an aggregate has one row,
its last, and under `group by` one for each group.

A timer runs at its very moment, before the events of that moment. Patterns and sequences are in `reference_chains`.
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
from tocsin.events.types import Value, Words, content_words, hexadecimal, match_words, occurrence_words, text_words
from tocsin.language.siddhi.ast import Call, Chain, Extent, Join, Output, Query, Side, Source, Summary, Window, indexed
from tocsin.language.syntax.ast import Expression
from tocsin.reference.patterns import Fact, Match, fitted, holds, settled, value_of

TIMER_SEQ = -(2**63)
"""The `seq` of rows that a timer brings: they come before all events of their moment."""


class Sign(Enum):
    CURRENT = "current"
    EXPIRED = "expired"
    RESET = "reset"


class Nothing(Fact):
    """The event that is not there: all its attributes are null."""

    def value(self, name: str) -> Value:
        return None


NOTHING = Nothing("", 0, 0, "", (0, 0), {})


class Chosen(dict[str | None, Fact]):
    """Events by role; those of `several` by index too. A role without one has `NOTHING`."""

    def __init__(self, roles: Mapping[str | None, Fact], several: Mapping[str, Sequence[Fact]] | None = None) -> None:
        super().__init__(roles)
        self._several = several or {}

    def __missing__(self, role: str | None) -> Fact:
        name, index = indexed(role or "")
        events = self._several.get(name, ())
        if index is None or not -len(events) <= index < len(events):
            return NOTHING
        return events[index]


Chunk = list[tuple[Sign, Chosen]]


def meets(tests: Iterable[Expression], events: Chosen) -> bool:
    """Whether events meet all tests."""
    return all(holds(test, events, {}) for test in tests)


@dataclass(frozen=True, slots=True)
class Row:
    """What a query puts out, in the order of its `select`."""

    query: str
    type: str
    ts: int
    seq: int
    id: str
    expired: bool
    values: tuple[Value, ...]


@dataclass(frozen=True, eq=False)
class RowFact(Fact):
    """A row as an event of the stream that it goes into: rows of one query stay in their order."""

    query: str = ""
    number: int = 0

    @cached_property
    def key(self) -> tuple[int, int, str, str, Words]:
        place = f"{self.query} {self.number:020}"
        return self.ts, self.seq, self.type, place, content_words(self.type, self.ts, self.seq, self.attributes)


class Machine(Protocol):
    """What turns events and timers into chunks."""

    def due(self) -> int | None:
        """When the next timer is to run."""

    def fire(self, ts: int) -> list[Chunk]:
        """What the timers of a moment bring about."""

    def arrive(self, fact: Fact) -> list[Chunk]:
        """What an event brings about."""


def composed(query: Query, facts: Sequence[Fact], last_ts: int) -> Iterator[tuple[Fact, Match]]:
    """The rows of a query over events in canonical order, as events and as matches; timers run up to `last_ts`."""
    names = [name for name, _ in query.emits.attributes]
    for number, (row, words) in enumerate(_rows(query, facts, last_ts)):
        attributes = dict(zip(names, row.values, strict=True))
        fact = RowFact(row.type, row.ts, row.seq, row.id, words, attributes, query.name, number)
        yield fact, Match(row.query, row.type, row.ts, row.seq, row.id, attributes, (), row.expired)


def rows(query: Query, facts: Iterable[Fact], last_ts: int) -> list[Row]:
    """The rows of one query over events in canonical order; timers run up to `last_ts`."""
    return [row for row, _ in _rows(query, facts, last_ts)]


def _rows(query: Query, facts: Iterable[Fact], last_ts: int) -> Iterator[tuple[Row, Words]]:
    machine = _machine(query)
    selection = _Selection(query)

    def put_out(ts: int, seq: int, trigger: Words, chunks: list[Chunk]) -> Iterator[tuple[Row, Words]]:
        words = match_words(query.name, [trigger])
        chosen = [row for chunk in chunks for row in selection.rows(chunk)]
        for number, (expired, values) in enumerate(chosen):
            own = occurrence_words(words, number)
            yield Row(query.name, query.emits.name, ts, seq, hexadecimal(own), expired, values), own

    def timers(until: int) -> Iterator[tuple[Row, Words]]:
        while (due := machine.due()) is not None and due <= until:
            yield from put_out(due, TIMER_SEQ, text_words(f"timer {due}"), machine.fire(due))

    for fact in facts:
        if fact.type in query.uses:
            yield from timers(fact.ts)
            yield from put_out(fact.ts, fact.seq, fact.words, machine.arrive(fact))
    yield from timers(last_ts)


def _machine(query: Query) -> Machine:
    for source in query.sources:
        if source.tables:
            raise RuleError("there are no tables: a query with 'in' cannot run", span=source.span, source=query.source)
    match query.input:
        case Source():
            return _Single(query.input)
        case Join():
            return _Joined(query.input)
        case Chain():
            from tocsin.reference.sequences import Automaton

            return Automaton(query.input)


# ---- select


@dataclass(slots=True)
class _Tally:
    """The values that an aggregate holds, exactly."""

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
        """The value of an aggregate: of nothing it is null, but a count is 0."""
        if call.function == Summary.COUNT:
            return self.rows
        held = [value for value, times in self.values.items() if times > 0]
        match call.function:
            case Summary.MIN:
                return min(held, default=None)
            case Summary.MAX:
                return max(held, default=None)
        if not self.number:
            return None
        if call.function == Summary.STD_DEV:
            variance = (self.squares - self.total**2 / self.number) / self.number
            return settled(math.sqrt(max(0.0, _rounded(variance))))
        if call.function == Summary.SUM and self.integral:
            return settled(int(self.total))
        total = _rounded(self.total)
        return settled(total if call.function == Summary.SUM else total / self.number)


def _rounded(exact: Fraction) -> float:
    try:
        return float(exact)
    except OverflowError:
        return math.inf


class _Selection:
    """The rows that chunks become."""

    def __init__(self, query: Query) -> None:
        self._query = query
        self._tallies: dict[tuple[Value, ...], list[_Tally]] = {}
        self._kept = {
            Output.CURRENT: {Sign.CURRENT},
            Output.EXPIRED: {Sign.EXPIRED},
            Output.ALL: {Sign.CURRENT, Sign.EXPIRED},
        }[query.output]

    def rows(self, chunk: Chunk) -> list[tuple[bool, tuple[Value, ...]]]:
        """The rows of a chunk, each with whether it is expired."""
        query = self._query
        found: list[tuple[tuple[Value, ...], tuple[bool, tuple[Value, ...]]]] = []
        for sign, events in chunk:
            if sign == Sign.RESET:
                self._tallies.clear()
                continue
            group = tuple(value_of(attribute, events, {}) for attribute in query.group_by)
            values = self._values(group, sign, events)
            if sign in self._kept and self._passes(values):
                found.append((group, (sign == Sign.EXPIRED, values)))
        if not query.group_by and not query.aggregates:
            return [row for _, row in found]
        # The last row of each group, in the order in which the groups first came.
        return list(dict(found).values())

    def _values(self, group: tuple[Value, ...], sign: Sign, events: Chosen) -> tuple[Value, ...]:
        query = self._query
        tallies = self._tallies.setdefault(group, [_Tally() for _ in query.aggregates])
        bound: dict[str, Value] = {}
        for call, tally in zip(query.aggregates, tallies, strict=True):
            value = value_of(call.argument, events, {}) if call.argument is not None else None
            tally.add(value, 1 if sign == Sign.CURRENT else -1)
            bound[call.name] = tally.result(call)
        kinds = dict(query.emits.attributes)
        return tuple(fitted(value_of(value, events, bound), kinds[name]) for name, value in query.select)

    def _passes(self, values: tuple[Value, ...]) -> bool:
        row = {name: value for (name, _), value in zip(self._query.select, values, strict=True)}
        return meets(self._query.having, Chosen({None: Fact("", 0, 0, "", (0, 0), row)}))


# ---- windows


class _Window:
    """The events that a source holds, and what comes and goes."""

    def __init__(self, window: Window | None) -> None:
        self._window = window
        self.held: list[Fact] = []
        """What a partner in a join can find: of a batching window, its last batch."""
        self._coming: list[Fact] = []
        self._first_ts: int | None = None
        self._next_ts = 0
        """When the batch that is coming ends."""

    def due(self) -> int | None:
        window = self._window
        if window is None or not window.extent.timed:
            return None
        if window.extent == Extent.TIME:
            return self.held[0].ts + window.size if self.held else None
        if self._first_ts is None or not (self.held or self._coming):
            return None
        return self._next_ts

    def arrive(self, fact: Fact) -> list[tuple[Sign, Fact]]:
        window = self._window
        if window is None:
            return [(Sign.CURRENT, fact)]
        match window.extent:
            case Extent.LENGTH:
                gone = [self.held.pop(0)] if len(self.held) == window.size else []
                self.held.append(fact)
                return [*((Sign.EXPIRED, old) for old in gone), (Sign.CURRENT, fact)]
            case Extent.TIME:
                self.held.append(fact)
                return [(Sign.CURRENT, fact)]
            case Extent.LENGTH_BATCH:
                self._coming.append(fact)
                return self._turn() if len(self._coming) == window.size else []
            case Extent.TIME_BATCH:
                if self._first_ts is None:
                    self._first_ts = fact.ts
                if not self.held and not self._coming:
                    # The moments at which batches end are as far apart as the window is long, from the first event on.
                    self._next_ts = fact.ts + window.size - (fact.ts - self._first_ts) % window.size
                self._coming.append(fact)
                return []

    def fire(self, ts: int) -> list[tuple[Sign, Fact]]:
        window = self._window
        assert window
        if window.extent == Extent.TIME:
            gone = [fact for fact in self.held if fact.ts + window.size <= ts]
            self.held = [fact for fact in self.held if fact.ts + window.size > ts]
            return [(Sign.EXPIRED, fact) for fact in gone]
        self._next_ts = ts + window.size
        return self._turn()

    def _turn(self) -> list[tuple[Sign, Fact]]:
        """One batch goes, the next one comes."""
        gone, self.held, self._coming = self.held, self._coming, []
        chunk = [(Sign.EXPIRED, fact) for fact in gone]
        if self.held:
            chunk += [(Sign.RESET, self.held[0])]
        return [*chunk, *((Sign.CURRENT, fact) for fact in self.held)]


def _admits(source: Source, fact: Fact) -> bool:
    pattern = source.pattern
    return fact.type == pattern.type and meets(pattern.constraints, Chosen({None: fact}))


class _Single:
    """A query over one stream."""

    def __init__(self, source: Source) -> None:
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
            (sign, Chosen({None: fact}))
            for sign, fact in signed
            if sign == Sign.RESET or meets(self._source.after, Chosen({None: fact}))
        ]


class _Joined:
    """A query over two streams: what comes into one window, or leaves it, meets what the other one holds."""

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
                chunks += self._met(side, window.fire(ts))
        return chunks

    def arrive(self, fact: Fact) -> list[Chunk]:
        chunks: list[Chunk] = []
        for side, source in enumerate(self._sides):
            if _admits(source, fact):
                signed = self._windows[side].arrive(fact)
                if source.window is None:
                    # It has come and gone.
                    signed = [*signed, (Sign.EXPIRED, fact), (Sign.RESET, fact)]
                chunks += self._met(side, signed)
        return chunks

    def _met(self, side: int, signed: list[tuple[Sign, Fact]]) -> list[Chunk]:
        """A chunk for each event that looks for partners."""
        join = self._join
        own = (Side.LEFT, Side.RIGHT)[side]
        if join.triggers not in (own, Side.BOTH):
            return []
        roles = (join.left.role, join.right.role)
        chunks: list[Chunk] = []
        for sign, fact in signed:
            if sign == Sign.RESET:
                chunks.append([(sign, Chosen({}))])
                continue
            pairs = [Chosen({roles[side]: fact, roles[1 - side]: other}) for other in self._windows[1 - side].held]
            found = [pair for pair in pairs if meets(join.on, pair)]
            if not found and join.outer in (own, Side.BOTH):
                found = [Chosen({roles[side]: fact})]
            chunks.append([(sign, pair) for pair in found])
        return chunks
