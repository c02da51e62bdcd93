"""How does one operator of a moving query go from range to range? It finishes the old one, then starts from history.

An operator has a slot for each broker and each operator that it hears of. A slot's messages come in order: events and
how far they are complete, then perhaps a Marker, after which they are those of a later range. A Collect says that the
range moves at some time: up to it the operator goes on as before, then it awaits the Markers of the slots that change,
keeps what it has from the others, and runs over the history and on into live events. What it found before and finds
again is not sent twice (MCEP, Sections 4.1, 5.1 and 5.2).

What does an operator of a moving query do with events? It runs its rule, or its windows, over those of a range.

Rows are events with their identity and with the places of all that they are made of. Within a range they come in the
order of time; each range begins with an operator that has seen nothing.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

import pyarrow as pa

from tocsin.engine.detector import Detector
from tocsin.events.types import Event, EventType, Words, hexadecimal, match_words
from tocsin.language.mcep.ast import WindowOperator
from tocsin.language.syntax.ast import Rule
from tocsin.plans.moving import Operator, Place, Region
from tocsin.plans.plan import Plan, plan
from tocsin.plans.typing import Catalog
from tocsin.reference.patterns import Match, Part
from tocsin.reference.ranges import Correlated, Evaluation, produced_words


@dataclass(frozen=True, slots=True)
class Row:
    """An event between operators: with its identity, and the places of the primary events that it is made of."""

    event: Event
    words: Words
    places: tuple[Place, ...]
    match: Match | None = None

    @property
    def name(self) -> tuple[str, str]:
        return self.event.type, self.event.id or ""


class Correlation(Protocol):
    """An operator at work in one range: rows in, composite rows out."""

    def found(self, rows: Sequence[Row], upto: int) -> list[Row]:
        """What the next rows, all up to a time, complete."""


def beginning(operator: Operator, types: Mapping[str, EventType]) -> Callable[[], Correlation]:
    """What an operator begins each of its ranges with."""
    rule = operator.rule
    if isinstance(rule, WindowOperator):
        return partial(Windowing, rule)
    assert rule is not None
    return partial(Detection, plan([rule], Catalog(types=types, closed=bool(types))), rule)


@dataclass
class Detection:
    """A rule at work."""

    plan: Plan
    rule: Rule
    detector: Detector | None = None
    known: dict[tuple[str, str], Row] = field(default_factory=dict)

    def found(self, rows: Sequence[Row], upto: int) -> list[Row]:
        """What the next rows, all up to a time, complete."""
        if not rows:
            return []
        if self.detector is None:
            self.detector = Detector(self.plan, {}, times=False)
        self.known.update((row.name, row) for row in rows)
        tables = [self.detector.push([row.event for row in rows]), self.detector.advance(upto + 1)]
        return [self._composite(found) for table in tables for found in _plain(table).to_pylist()]

    def _composite(self, found: Mapping[str, object]) -> Row:
        rule = self.rule
        parts = []
        for part in found["parts"]:  # type: ignore[attr-defined]
            row = self.known[part["type"], part["id"]]
            parts.append((Part(part["role"], part["type"], part["ts"], row.event.seq, part["id"]), row))
        anchor = parts[0][1].event
        words = match_words(rule.name, (row.words for _, row in parts))
        attributes = {name: found[name] for name, _ in rule.emits.attributes}
        id = hexadecimal(words)
        match = Match(
            rule.name,
            rule.emits.name,
            anchor.ts,
            anchor.seq,
            id,
            attributes,  # type: ignore[arg-type]
            tuple(part for part, _ in parts),
        )
        present = {name: value for name, value in match.attributes.items() if value is not None}
        places = tuple(dict.fromkeys(place for _, row in parts for place in row.places))
        return Row(Event(match.type, match.ts, present, match.seq, id), words, places, match)


@dataclass
class Windowing:
    """An operator of the window model at work."""

    operator: WindowOperator
    evaluation: Evaluation = field(init=False)
    known: dict[tuple[str, str], Row] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.evaluation = Evaluation(self.operator)

    def found(self, rows: Sequence[Row], upto: int) -> list[Row]:
        """What the next rows, all up to a time, complete."""
        self.known.update((row.name, row) for row in rows)
        return [self._composite(one) for one in self.evaluation.push([row.event for row in rows])]

    def _composite(self, one: Correlated) -> Row:
        rows = [self.known[event.type, event.id or ""] for event in one.parts]
        words = produced_words(self.operator.name, [row.words for row in rows], one.number)
        event = replace(one.event, id=hexadecimal(words))
        parts = tuple(Part(part.type, part.type, part.ts, part.seq, part.id or "") for part in one.parts)
        match = Match(event.type, event.type, event.ts, event.seq, event.id or "", event.attributes, parts)
        places = tuple(dict.fromkeys(place for row in rows for place in row.places))
        return Row(event, words, places, match)


def _plain(table: pa.Table) -> pa.Table:
    """A table of matches with times as integers."""
    for number, column in enumerate(table.schema):
        if pa.types.is_timestamp(column.type):
            table = table.set_column(number, column.name, table[column.name].cast(pa.int64()))
    return table


Site = str


@dataclass(frozen=True, slots=True)
class Collect:
    """The range moves: what an operator, and those below it, must know of the next one."""

    query: str
    operator: str
    """Whom it is for."""
    number: int
    start: int
    region: Region
    points: Mapping[str, Mapping[str, int]]
    """By operator and type."""
    brokers: Mapping[str, frozenset[Site]]
    """By operator: those that hold cells of the range, if it sees primary events."""
    affected: Mapping[str, frozenset[Site]]
    """By operator that is told: the brokers that will send a Marker."""
    sites: Mapping[str, Site]
    """Where operators are."""
    quiet: bool = False
    """Whether points follow from a quiet point, so that brokers have to be told."""


@dataclass(frozen=True, slots=True)
class CollectCells:
    """Asks a broker for the history of a range for one operator, from a quiet point on."""

    query: str
    operator: str
    number: int
    start: int
    points: Mapping[str, int]
    keeps: bool
    """Whether what the operator has of the region need not be sent again."""


@dataclass(frozen=True, slots=True)
class Marker:
    """In a stream to an operator: what follows belongs to a later range."""

    query: str
    operator: str
    source: str
    number: int
    region: Region
    keeps: bool
    """Whether the receiver keeps what it has in the region, so that only the rest follows."""
    logged: bool = False
    """Whether what is to be kept will be listed."""


@dataclass(frozen=True, slots=True)
class Events:
    """In a stream to an operator: events, and up to which time they are complete."""

    query: str
    operator: str
    source: str
    rows: tuple[Row, ...]
    upto: int
    kept: tuple[tuple[str, str], ...] = ()
    """Events that were sent before and belong to the new range too: the log of Section 5.2.1."""


Streamed = Marker | Events


@dataclass(frozen=True, slots=True)
class Streams:
    """A message to an operator: what one machine has for it at one time, a Marker with the events behind it."""

    operator: str
    parts: tuple[Streamed, ...]


def together(outbox: Iterable[tuple[Site, object]]) -> list[tuple[Site, object]]:
    """What is to be sent, with all that goes from one stream to one operator in one message."""
    found: list[tuple[Site, object]] = []
    places: dict[tuple[Site, str, str], int] = {}
    for receiver, message in outbox:
        if not isinstance(message, Marker | Events):
            found.append((receiver, message))
            continue
        key = receiver, message.operator, message.source
        if key not in places:
            places[key] = len(found)
            found.append((receiver, Streams(message.operator, ())))
        held = found[places[key]][1]
        assert isinstance(held, Streams)
        found[places[key]] = receiver, replace(held, parts=(*held.parts, message))
    return found


@dataclass
class Slot:
    """What has come from one broker or operator below."""

    inbox: deque[Streamed]
    rows: dict[tuple[str, str], Row] = field(default_factory=dict)
    aside: dict[tuple[str, str], Row] = field(default_factory=dict)
    """What the log can bring back."""
    upto: float = -math.inf
    awaiting: bool = False

    def take(self, number: int) -> None:
        """Takes messages up to a Marker of a later range, and that of this range if it is due."""
        while self.inbox:
            message = self.inbox[0]
            if isinstance(message, Marker):
                if not self.awaiting or message.number != number:
                    return
                self._turn(message)
            else:
                for name in message.kept:
                    self.rows[name] = self.aside[name]
                self.rows.update((row.name, row) for row in message.rows)
                self.upto = max(self.upto, message.upto)
            self.inbox.popleft()

    def _turn(self, marker: Marker) -> None:
        held, self.rows, self.aside = self.rows, {}, {}
        self.awaiting, self.upto = False, -math.inf
        if marker.logged:
            self.aside = held
        elif marker.keeps:
            self.rows = {name: row for name, row in held.items() if within(row, marker.region)}


def within(row: Row, region: Region) -> bool:
    """Whether all that an event is made of lies in a region."""
    return all(region.contains(place) for place in row.places)


class Collector:
    """One operator of a query: `receive` messages, then `work`; what is to be sent stands in the outbox."""

    def __init__(
        self,
        query: str,
        operator: Operator,
        parent: Site,
        above: str,
        types: Mapping[str, EventType],
        incremental: bool,
    ) -> None:
        self.query = query
        self.operator = operator
        self.parent, self.above = parent, above
        self.incremental = incremental
        self.outbox: list[tuple[Site, object]] = []
        self.inboxes: defaultdict[str, deque[Streamed]] = defaultdict(deque)
        """By source: also of those that are not in the range yet, or no longer."""
        self.slots: dict[str, Slot] = {}
        self.pending: deque[Collect] = deque()
        self.current: Collect | None = None
        self._begin = beginning(operator, types)
        self._correlation = self._begin()
        self._done: float = -math.inf
        """Up to which time the range has been evaluated."""
        self._marker: Marker | None = None
        """Of the present range, as long as nothing of it has been sent: it goes with the first events."""
        self._point = 0
        """Only what is later is of use above."""
        self._sent: dict[tuple[str, str], Row] = {}
        """What the operator above holds of this one."""
        self._before: dict[tuple[str, str], Row] = {}
        """What it held before the last Marker."""

    def receive(self, message: Collect | Streamed, now: int) -> None:
        """Takes a message."""
        if isinstance(message, Collect):
            self.pending.append(message)
            self._pass_on(message)
        else:
            self.inboxes[message.source].append(message)
        self._work()

    def _pass_on(self, collect: Collect) -> None:
        key = self.operator.key
        for site in sorted(collect.affected[key]) if collect.quiet else ():
            points = collect.points[key]
            cells = CollectCells(self.query, key, collect.number, collect.start, points, self.incremental)
            self.outbox.append((site, cells))
        for child in self.operator.children:
            if child.key in collect.affected:
                self.outbox.append((collect.sites[child.key], replace(collect, operator=child.key)))

    def _work(self) -> None:
        while True:
            number = self.current.number if self.current else 0
            for slot in self.slots.values():
                slot.take(number)
            limit = self.pending[0].start if self.pending else math.inf
            ready = min((slot.upto for slot in self.slots.values()), default=-math.inf)
            if self.current is not None:
                if any(slot.awaiting for slot in self.slots.values()):
                    return
                self._evaluate(min(ready, limit))
            if not self.pending or (self.current is not None and ready < limit):
                return
            self._turn(self.pending.popleft())

    def _turn(self, collect: Collect) -> None:
        """Begins the next range."""
        key = self.operator.key
        told = {child.key: child.key in collect.affected for child in self.operator.children}
        told |= {site: site in collect.affected[key] for site in collect.brokers[key]}
        self.slots = {source: self.slots.get(source) or Slot(self.inboxes[source]) for source in told}
        for source, awaiting in told.items():
            self.slots[source].awaiting = awaiting
        self.current = collect
        self._correlation = self._begin()
        self._done = -math.inf
        assert self.operator.rule is not None
        self._point = collect.points[self.above][self.operator.rule.emits.name]
        held = {name: row for name, row in self._sent.items() if self.incremental and row.event.ts > self._point}
        self._before, self._sent = held, {}
        logged = self.incremental and not self.operator.preserves_locality
        if self.incremental and not logged:
            self._sent = {name: row for name, row in self._before.items() if within(row, collect.region)}
            self._before = {}
        self._marker = Marker(self.query, self.above, key, collect.number, collect.region, self.incremental, logged)

    def _evaluate(self, upto: float) -> None:
        if upto <= self._done or upto == math.inf:
            return
        assert self.current is not None
        points = self.current.points[self.operator.key]
        rows = [
            row
            for slot in self.slots.values()
            for row in slot.rows.values()
            if max(self._done, points[row.event.type]) < row.event.ts <= upto
        ]
        self._forget(points)
        rows.sort(key=lambda row: (row.event.ts, row.event.seq, row.event.type, row.event.id))
        self._done = upto
        fresh: list[Row] = []
        kept: list[tuple[str, str]] = []
        for row in self._correlation.found(rows, int(upto)):
            if row.name in self._sent or row.event.ts <= self._point:
                continue
            # An aggregate can change what an event says without changing what it is made of.
            before = self._before.get(row.name)
            if before is not None and before.event == row.event:
                kept.append(row.name)
            else:
                fresh.append(row)
            self._sent[row.name] = row
        if self._marker is not None:
            self.outbox.append((self.parent, self._marker))
            self._marker = None
        message = Events(self.query, self.above, self.operator.key, tuple(fresh), int(upto), tuple(kept))
        self.outbox.append((self.parent, message))

    def _forget(self, points: Mapping[str, int]) -> None:
        """Drops what no later range can need, as points only grow."""
        for slot in self.slots.values():
            gone = [name for name, row in slot.rows.items() if row.event.ts <= points[row.event.type]]
            for name in gone:
                del slot.rows[name]
