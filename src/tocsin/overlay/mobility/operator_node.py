"""Run an operator of a moving query, which finishes each range before it starts the next range from history.

An operator has an input *slot* for each broker and for each operator below it. The messages of a slot come in order:
events with the time up to which they are complete. A *Marker* in a slot says that the following events belong to a
later range. A *Collect* announces that the range moves at some time. Up to that time, the operator continues with the
old range. Then it waits for the Markers of the slots that change, and keeps the events of the other slots. It processes
the history of the new range and then new events. Results that the operator above already has are not sent again (MCEP,
Sections 4.1, 5.1 and 5.2).

Each range is evaluated by a new *correlation*, which starts without state and evaluates a rule or a window-model
operator. Its inputs are *located events* in order of time. These have an identity and the locations of all primary
events that they consist of.
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
from tocsin.events.types import Event, EventType, Words128, hexadecimal, match_words
from tocsin.language.mcep.ast import WindowOperator
from tocsin.language.syntax.ast import Rule
from tocsin.plans.moving import Coordinates, Operator, Region
from tocsin.plans.plan import Plan, plan
from tocsin.plans.typing import Catalog
from tocsin.reference.patterns import Match, MatchPart
from tocsin.reference.ranges import Correlated, Evaluation, produced_words


@dataclass(frozen=True, slots=True)
class LocatedEvent:
    """An event that is sent to operators.

    `words` is its identity, `locations` has the locations of the primary events that it consists of, and `match` is the
    match that it stands for, if it is a composite event.
    """

    event: Event
    words: Words128
    locations: tuple[Coordinates, ...]
    match: Match | None = None

    @property
    def name(self) -> tuple[str, str]:
        return self.event.type, self.event.id or ""


class Correlation(Protocol):
    """The evaluation of an operator in one range."""

    def found(self, rows: Sequence[LocatedEvent], upto: int) -> list[LocatedEvent]:
        """Return the composite events that the next `rows` complete; all events up to `upto` have come."""


def correlation_factory(operator: Operator, types: Mapping[str, EventType]) -> Callable[[], Correlation]:
    """Return a function that creates a new correlation of `operator`, for each range."""
    rule = operator.rule
    if isinstance(rule, WindowOperator):
        return partial(WindowCorrelation, rule)
    assert rule is not None
    return partial(RuleCorrelation, plan([rule], Catalog(types=types, closed=bool(types))), rule)


@dataclass
class RuleCorrelation:
    """The evaluation of a rule in one range, by a detector."""

    plan: Plan
    rule: Rule
    detector: Detector | None = None
    by_name: dict[tuple[str, str], LocatedEvent] = field(default_factory=dict)

    def found(self, rows: Sequence[LocatedEvent], upto: int) -> list[LocatedEvent]:
        """Return the composite events that the next `rows` complete; all events up to `upto` have come."""
        if not rows:
            return []
        if self.detector is None:
            self.detector = Detector(self.plan, {}, times=False)
        self.by_name.update((row.name, row) for row in rows)
        tables = [self.detector.push([row.event for row in rows]), self.detector.advance(upto + 1)]
        return [self._composite(found) for table in tables for found in _plain(table).to_pylist()]

    def _composite(self, found: Mapping[str, object]) -> LocatedEvent:
        rule = self.rule
        parts = []
        for part in found["parts"]:  # type: ignore[attr-defined]
            row = self.by_name[part["type"], part["id"]]
            parts.append((MatchPart(part["role"], part["type"], part["ts"], row.event.seq, part["id"]), row))
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
        locations = tuple(dict.fromkeys(location for _, row in parts for location in row.locations))
        return LocatedEvent(Event(match.type, match.ts, present, match.seq, id), words, locations, match)


@dataclass
class WindowCorrelation:
    """The evaluation of a window-model operator in one range, without a detector."""

    operator: WindowOperator
    evaluation: Evaluation = field(init=False)
    by_name: dict[tuple[str, str], LocatedEvent] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.evaluation = Evaluation(self.operator)

    def found(self, rows: Sequence[LocatedEvent], upto: int) -> list[LocatedEvent]:
        """Return the composite events that the next `rows` complete; all events up to `upto` have come."""
        self.by_name.update((row.name, row) for row in rows)
        return [self._composite(one) for one in self.evaluation.push([row.event for row in rows])]

    def _composite(self, one: Correlated) -> LocatedEvent:
        rows = [self.by_name[event.type, event.id or ""] for event in one.parts]
        words = produced_words(self.operator.name, [row.words for row in rows], one.number)
        event = replace(one.event, id=hexadecimal(words))
        parts = tuple(MatchPart(part.type, part.type, part.ts, part.seq, part.id or "") for part in one.parts)
        match = Match(event.type, event.type, event.ts, event.seq, event.id or "", event.attributes, parts)
        locations = tuple(dict.fromkeys(location for row in rows for location in row.locations))
        return LocatedEvent(event, words, locations, match)


def _plain(table: pa.Table) -> pa.Table:
    """Convert the timestamp columns of a table of matches to integers (µs)."""
    for number, column in enumerate(table.schema):
        if pa.types.is_timestamp(column.type):
            table = table.set_column(number, column.name, table[column.name].cast(pa.int64()))
    return table


Site = str


@dataclass(frozen=True, slots=True)
class Collect:
    """Announce range `number`, which starts at the time `start`, to an operator and the operators below it."""

    query: str
    operator: str
    """The key of the operator that receives the message."""
    number: int
    start: int
    region: Region
    points: Mapping[str, Mapping[str, int]]
    """The initialisation points (see `ranges`), by the operator's key and by type."""
    brokers: Mapping[str, frozenset[Site]]
    """For each operator that uses primary events, the brokers that hold cells of the range; empty for the others."""
    affected: Mapping[str, frozenset[Site]]
    """For each affected operator, the brokers that will send it a Marker."""
    sites: Mapping[str, Site]
    """The site of each operator."""
    quiet: bool = False
    """Whether the points follow from a quiescent point, so that operators must send a CollectCells to brokers."""


@dataclass(frozen=True, slots=True)
class CollectCells:
    """Request the history of range `number` for an operator from a broker, after the times in `points`."""

    query: str
    operator: str
    number: int
    start: int
    points: Mapping[str, int]
    keeps: bool
    """Whether the operator keeps its events that lie in the new region, so that they are not sent again."""


@dataclass(frozen=True, slots=True)
class Marker:
    """Announce in a stream to an operator that the following events belong to range `number`."""

    query: str
    operator: str
    source: str
    number: int
    region: Region
    keeps: bool
    """Whether the receiver keeps its events that lie in `region`, so that only further events follow."""
    logged: bool = False
    """Whether the events to keep will be listed in `StreamedEvents.kept`."""


@dataclass(frozen=True, slots=True)
class StreamedEvents:
    """Send an operator events of a stream, which is now complete up to the time `upto`."""

    query: str
    operator: str
    source: str
    rows: tuple[LocatedEvent, ...]
    upto: int
    kept: tuple[tuple[str, str], ...] = ()
    """The names of events that were sent for the previous range and belong to the new one, too (MCEP, 5.2.1)."""


StreamMessage = Marker | StreamedEvents


@dataclass(frozen=True, slots=True)
class StreamMessages:
    """Several messages of one stream to an operator, such as a Marker and the events that follow it."""

    operator: str
    parts: tuple[StreamMessage, ...]


def group_streams(outbox: Iterable[tuple[Site, object]]) -> list[tuple[Site, object]]:
    """Group the messages of each stream to an operator in an outbox into one `StreamMessages`."""
    found: list[tuple[Site, object]] = []
    locations: dict[tuple[Site, str, str], int] = {}
    for receiver, message in outbox:
        if not isinstance(message, Marker | StreamedEvents):
            found.append((receiver, message))
            continue
        key = receiver, message.operator, message.source
        if key not in locations:
            locations[key] = len(found)
            found.append((receiver, StreamMessages(message.operator, ())))
        held = found[locations[key]][1]
        assert isinstance(held, StreamMessages)
        found[locations[key]] = receiver, replace(held, parts=(*held.parts, message))
    return found


@dataclass
class InputSlot:
    """The input of an operator from one broker, or from one operator below it."""

    inbox: deque[StreamMessage]
    rows: dict[tuple[str, str], LocatedEvent] = field(default_factory=dict)
    """The events of the current range, by name."""
    aside: dict[tuple[str, str], LocatedEvent] = field(default_factory=dict)
    """The events of the previous range that `StreamedEvents.kept` can bring back."""
    upto: float = -math.inf
    """The time up to which the events of the current range are complete."""
    awaiting: bool = False
    """Whether the slot waits for the Marker of the current range."""

    def take(self, number: int) -> None:
        """Process the messages of range `number` in the inbox, and stop before the Marker of a later range."""
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
            self.rows = {name: row for name, row in held.items() if lies_within(row, marker.region)}


def lies_within(row: LocatedEvent, region: Region) -> bool:
    """Return whether all locations of the event `row` lie in `region`."""
    return all(region.contains(location) for location in row.locations)


class OperatorNode:
    """An operator of a query at its site.

    The host passes messages to `receive` and sends the messages in `outbox`. `parent` is the site of the operator
    above, whose key is `above`. If `incremental`, events that the operator above already has are not sent again.
    """

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
        self.inboxes: defaultdict[str, deque[StreamMessage]] = defaultdict(deque)
        """The unprocessed messages of each source, including sources that are not in the current range."""
        self.slots: dict[str, InputSlot] = {}
        self.pending: deque[Collect] = deque()
        self.current: Collect | None = None
        self._begin = correlation_factory(operator, types)
        self._correlation = self._begin()
        self._done: float = -math.inf
        """The time up to which the current range has been evaluated."""
        self._marker: Marker | None = None
        """The Marker of the current range, until it is sent with the first events."""
        self._point = 0
        """The point of the operator above, which needs only later events."""
        self._sent: dict[tuple[str, str], LocatedEvent] = {}
        """The events of this operator that the operator above has for the current range."""
        self._before: dict[tuple[str, str], LocatedEvent] = {}
        """The events of this operator that the operator above had before the last Marker."""

    def receive(self, message: Collect | StreamMessage, now: int) -> None:
        """Process a message, then evaluate and send as much as possible."""
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
        """Start the range that `collect` announced."""
        key = self.operator.key
        awaited = {child.key: child.key in collect.affected for child in self.operator.children}
        awaited |= {site: site in collect.affected[key] for site in collect.brokers[key]}
        self.slots = {source: self.slots.get(source) or InputSlot(self.inboxes[source]) for source in awaited}
        for source, awaiting in awaited.items():
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
            self._sent = {name: row for name, row in self._before.items() if lies_within(row, collect.region)}
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
        fresh: list[LocatedEvent] = []
        kept: list[tuple[str, str]] = []
        for row in self._correlation.found(rows, int(upto)):
            if row.name in self._sent or row.event.ts <= self._point:
                continue
            # An aggregate can change the attributes of an event without changing its parts.
            before = self._before.get(row.name)
            if before is not None and before.event == row.event:
                kept.append(row.name)
            else:
                fresh.append(row)
            self._sent[row.name] = row
        if self._marker is not None:
            self.outbox.append((self.parent, self._marker))
            self._marker = None
        message = StreamedEvents(self.query, self.above, self.operator.key, tuple(fresh), int(upto), tuple(kept))
        self.outbox.append((self.parent, message))

    def _forget(self, points: Mapping[str, int]) -> None:
        """Drop the events up to `points`, which no later range can need because points only grow."""
        for slot in self.slots.values():
            gone = [name for name, row in slot.rows.items() if row.event.ts <= points[row.event.type]]
            for name in gone:
                del slot.rows[name]
