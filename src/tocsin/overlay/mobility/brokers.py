"""Store the recent events of some grid cells, and stream them to the operators of queries: a broker.

When the range of a query moves, the query sends a `Find` to the brokers. A broker answers after it has received all
events up to the time of the move, and reports the operators that the move affects. To each affected operator it sends a
Marker, then the history of the new range, then new events. To the other operators it continues to send new events
(MCEP, Section 5.1 and Fig. 5). The Find has the initialisation points, which are the times from which operators need
history. If these depend on a quiescent point, a time before which the region had no events, the broker waits for a
CollectCells message with the points.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tocsin.events.types import LABEL, Event, content_words
from tocsin.language.mcep.ast import Space
from tocsin.overlay.mobility.operator_node import CollectCells, LocatedEvent, Marker, Site, StreamedEvents
from tocsin.overlay.mobility.ranges import BusyInterval, busy_intervals, lemma_2
from tocsin.plans.moving import Cell, Coordinates, Grid, Region, coordinates_of


@dataclass(frozen=True, slots=True)
class Find:
    """Ask a broker which operators are affected when range `number` of a query starts at `start`."""

    query: str
    number: int
    start: int
    region: Region
    member: bool
    """Whether the broker holds cells of the new range."""
    points: Mapping[str, Mapping[str, int]]
    """The initialisation points, by the operator's key and by type."""
    operators: Mapping[str, tuple[Site, tuple[str, ...]]]
    """For each operator that uses primary events, its site and the types of these events."""
    exact: bool
    """Whether answers depend on the start of a range, so that each move affects all operators."""
    keeps: bool
    """Whether an operator keeps its events that lie in the new region, so that they are not sent again."""
    quiescent_us: int | None
    """The time without events that a quiescent point requires, or None if no quiescent point is needed."""
    asker: Site


@dataclass(frozen=True, slots=True)
class FindReply:
    """Answer the Find of range `number`."""

    query: str
    number: int
    site: Site
    affected: frozenset[str]
    """The keys of the operators that will get a Marker from this broker."""
    busy: tuple[BusyInterval, ...]
    """The intervals with events in the new region, if a quiescent point is needed."""
    retained_from: float
    """The time from which on the broker retains all events."""


@dataclass
class OperatorSubscription:
    """The subscription of an operator to events of some types in a region."""

    site: Site
    types: tuple[str, ...]
    region: Region | None
    """The current region, whose events the operator is sent; None before the first range."""
    next: Region | None = None
    """The region of the next range while the broker waits for a CollectCells, else None."""
    upto: float = -math.inf
    """The time up to which the operator has been sent events."""


@dataclass
class CellStore:
    """The stored events of a cell, in order of time."""

    times: list[int] = field(default_factory=list)
    events: list[tuple[Event, Coordinates]] = field(default_factory=list)

    def add(self, event: Event, location: Coordinates) -> None:
        at = bisect_right(self.times, event.ts)
        self.times.insert(at, event.ts)
        self.events.insert(at, (event, location))

    def after(self, ts: float) -> Sequence[tuple[Event, Coordinates]]:
        return self.events[bisect_right(self.times, ts) :]

    def prune(self, before: float) -> None:
        at = bisect_right(self.times, before)
        del self.times[:at], self.events[:at]


class CellBroker:
    """The broker of some cells.

    The host passes events to `publish` and messages to `receive`, and sends the messages in `outbox`. Events are stored
    for `retained_us`.
    """

    def __init__(self, site: Site, grid: Grid, space: Space, retained_us: float) -> None:
        self.site = site
        self.grid = grid
        self.space = space
        self.retained_us = retained_us
        self.outbox: list[tuple[Site, object]] = []
        self.progress: float = -math.inf
        """The time up to which all events have come."""
        self._stores: defaultdict[Cell, CellStore] = defaultdict(CellStore)
        self._subscriptions: dict[str, dict[str, OperatorSubscription]] = {}
        self._finds: defaultdict[str, deque[Find]] = defaultdict(deque)

    def publish(self, events: Sequence[Event], upto: int) -> None:
        """Store new events of the cells and stream them to subscribed operators.

        `events` are all events up to the time `upto` that were not published before. `upto` must grow with each call.
        """
        before, self.progress = self.progress, upto
        for event in events:
            location = coordinates_of(event.attributes, self.space)
            if location is not None:
                self._stores[self.grid.cell(location)].add(event, location)
        for query, operators in sorted(self._subscriptions.items()):
            for key, wanted in sorted(operators.items()):
                if wanted.next is None and wanted.region is not None:
                    self._stream(
                        query, key, wanted, self._rows(wanted, wanted.region, dict.fromkeys(wanted.types, before))
                    )
        for query in sorted(self._finds):
            self._answer(query)
        for store in self._stores.values():
            store.prune(upto - self.retained_us)

    def receive(self, message: Find | CollectCells, now: int) -> None:
        """Process a message of a query; messages are answered as soon as enough events have come."""
        if isinstance(message, Find):
            self._finds[message.query].append(message)
        else:
            self._collect(message)
        self._answer(message.query)

    def _answer(self, query: str) -> None:
        """Answer the waiting Finds of a query in order; each one waits for the CollectCells of the previous one."""
        finds = self._finds[query]
        while finds and finds[0].start <= self.progress:
            if any(wanted.next is not None for wanted in self._subscriptions.get(query, {}).values()):
                return
            self._found(finds.popleft())

    def _found(self, find: Find) -> None:
        joining = find.query not in self._subscriptions
        affected: set[str] = set()
        if find.member:
            operators = self._subscriptions.setdefault(find.query, {})
            for key, (site, types) in find.operators.items():
                wanted = operators.setdefault(key, OperatorSubscription(site, types, None))
                if not (joining or find.exact or self._concerned(wanted, find.region, find.points[key])):
                    wanted.region = find.region
                    continue
                affected.add(key)
                wanted.next = find.region
                if find.quiescent_us is None:
                    self._collect(CollectCells(find.query, key, find.number, find.start, find.points[key], find.keeps))
        else:
            self._subscriptions.pop(find.query, None)
        busy: tuple[BusyInterval, ...] = ()
        if find.quiescent_us is not None and find.member:
            looked_at = {type for _, types in find.operators.values() for type in types}
            near = [event for event, location in self._events(find.region) if find.region.contains(location)]
            times = sorted(event.ts for event in near if event.type in looked_at)
            busy = busy_intervals(times, find.quiescent_us)
        retained_from = self.progress - self.retained_us
        self.outbox.append(
            (find.asker, FindReply(find.query, find.number, self.site, frozenset(affected), busy, retained_from))
        )

    def _concerned(self, wanted: OperatorSubscription, region: Region, points: Mapping[str, int]) -> bool:
        earliest = min(points[type] for type in wanted.types)
        events = (pair for of in (wanted.region, region) if of is not None for pair in self._events(of, earliest))
        return any(
            lemma_2([pair], wanted.types, wanted.region, region, points[pair[0].type])
            for pair in events
            if pair[0].type in wanted.types
        )

    def _collect(self, collect: CollectCells) -> None:
        wanted = self._subscriptions[collect.query][collect.operator]
        region, old = wanted.next, wanted.region
        assert region is not None
        keeps = collect.keeps and old is not None
        marker = Marker(collect.query, collect.operator, self.site, collect.number, region, keeps)
        self.outbox.append((wanted.site, marker))
        wanted.region, wanted.next = region, None
        rows = self._rows(wanted, region, collect.points)
        if keeps:
            assert old is not None
            # Events that came after the answer to the Find have not been sent.
            rows = tuple(row for row in rows if row.event.ts > wanted.upto or not old.contains(row.locations[0]))
        self._stream(collect.query, collect.operator, wanted, rows)

    def _stream(self, query: str, key: str, wanted: OperatorSubscription, rows: tuple[LocatedEvent, ...]) -> None:
        wanted.upto = self.progress
        self.outbox.append((wanted.site, StreamedEvents(query, key, self.site, rows, int(self.progress))))

    def _rows(
        self, wanted: OperatorSubscription, region: Region, points: Mapping[str, float]
    ) -> tuple[LocatedEvent, ...]:
        """Return the events in `region` that the subscribed operator needs, which are later than `points`."""
        earliest = min(points[type] for type in wanted.types)
        return tuple(
            LocatedEvent(
                event,
                content_words(event.type, event.ts, event.seq, {**event.attributes, LABEL: event.id}),
                (location,),
            )
            for event, location in self._events(region, earliest)
            if event.type in wanted.types and event.ts > points[event.type] and region.contains(location)
        )

    def _events(self, region: Region, after: float = -math.inf) -> Iterator[tuple[Event, Coordinates]]:
        """Yield the events after the time `after` in all cells of a region."""
        for cell in self.grid.cells(region):
            if cell in self._stores:
                yield from self._stores[cell].after(after)
