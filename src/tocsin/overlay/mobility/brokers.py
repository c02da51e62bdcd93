"""Who holds events by place? A broker: the cells near it, with a bounded history, and what queries want of them.

A query asks with `Find` when its range moves. The broker answers once it has all events up to that time, whom the move
concerns; it goes on for those whom it does not concern, and sends the others a Marker, the history, and what comes
(MCEP, Section 5.1 and Fig. 5). From where on they need history stands in the Find already, unless it depends on a quiet
point: then the broker waits for a Collect.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tocsin.events.types import LABEL, Event, content_words
from tocsin.language.mcep.ast import Space
from tocsin.overlay.mobility.operator_node import CollectCells, Events, Marker, Row, Site
from tocsin.overlay.mobility.ranges import Stretch, lemma_2, stretches
from tocsin.plans.moving import Cell, Grid, Place, Region, place_of


@dataclass(frozen=True, slots=True)
class Find:
    """Whom does a move of a query's range concern?"""

    query: str
    number: int
    start: int
    region: Region
    member: bool
    """Whether the broker holds cells of the range still."""
    points: Mapping[str, Mapping[str, int]]
    operators: Mapping[str, tuple[Site, tuple[str, ...]]]
    """Where those are that see primary events, and of which types."""
    exact: bool
    """All are concerned."""
    keeps: bool
    """Whether what an operator has of the region need not be sent again."""
    quiet_us: int | None
    """If a quiet point is needed: how long it must be quiet."""
    asker: Site


@dataclass(frozen=True, slots=True)
class Found:
    """The answer to a Find."""

    query: str
    number: int
    site: Site
    affected: frozenset[str]
    """The operators that a Marker will be sent to."""
    busy: tuple[Stretch, ...]
    kept_from: float
    """Events from there on are kept."""


@dataclass
class Wanted:
    """What one operator of a query wants of a broker."""

    site: Site
    types: tuple[str, ...]
    region: Region | None
    """Of which region it has been sent events, up to what the broker has."""
    next: Region | None = None
    """With quiet points: the region of the range for which the Collect has not come yet."""
    upto: float = -math.inf
    """Up to which time it has been sent events."""


@dataclass
class Store:
    """The events of one cell, in the order of time."""

    times: list[int] = field(default_factory=list)
    events: list[tuple[Event, Place]] = field(default_factory=list)

    def add(self, event: Event, place: Place) -> None:
        at = bisect_right(self.times, event.ts)
        self.times.insert(at, event.ts)
        self.events.insert(at, (event, place))

    def after(self, ts: float) -> Sequence[tuple[Event, Place]]:
        return self.events[bisect_right(self.times, ts) :]

    def prune(self, before: float) -> None:
        at = bisect_right(self.times, before)
        del self.times[:at], self.events[:at]


class Cells:
    """The broker of some cells. `publish` gives it events, `receive` messages; the outbox holds what is to be sent."""

    def __init__(self, site: Site, grid: Grid, space: Space, kept_us: float) -> None:
        self.site = site
        self.grid = grid
        self.space = space
        self.kept_us = kept_us
        self.outbox: list[tuple[Site, object]] = []
        self.progress: float = -math.inf
        """Up to this time all events have come."""
        self._stores: defaultdict[Cell, Store] = defaultdict(Store)
        self._wanted: dict[str, dict[str, Wanted]] = {}
        self._finds: defaultdict[str, deque[Find]] = defaultdict(deque)

    def publish(self, events: Sequence[Event], upto: int) -> None:
        """Takes the events of its cells up to a time, which must be later than any before."""
        before, self.progress = self.progress, upto
        for event in events:
            place = place_of(event.attributes, self.space)
            if place is not None:
                self._stores[self.grid.cell(place)].add(event, place)
        for query, operators in sorted(self._wanted.items()):
            for key, wanted in sorted(operators.items()):
                if wanted.next is None and wanted.region is not None:
                    self._stream(
                        query, key, wanted, self._rows(wanted, wanted.region, dict.fromkeys(wanted.types, before))
                    )
        for query in sorted(self._finds):
            self._answer(query)
        for store in self._stores.values():
            store.prune(upto - self.kept_us)

    def receive(self, message: Find | CollectCells, now: int) -> None:
        """Takes a message."""
        if isinstance(message, Find):
            self._finds[message.query].append(message)
        else:
            self._collect(message)
        self._answer(message.query)

    def _answer(self, query: str) -> None:
        """Answers Finds in turn: each after the Collects of the one before."""
        finds = self._finds[query]
        while finds and finds[0].start <= self.progress:
            if any(wanted.next is not None for wanted in self._wanted.get(query, {}).values()):
                return
            self._found(finds.popleft())

    def _found(self, find: Find) -> None:
        joining = find.query not in self._wanted
        affected: set[str] = set()
        if find.member:
            operators = self._wanted.setdefault(find.query, {})
            for key, (site, types) in find.operators.items():
                wanted = operators.setdefault(key, Wanted(site, types, None))
                if not (joining or find.exact or self._concerned(wanted, find.region, find.points[key])):
                    wanted.region = find.region
                    continue
                affected.add(key)
                wanted.next = find.region
                if find.quiet_us is None:
                    self._collect(CollectCells(find.query, key, find.number, find.start, find.points[key], find.keeps))
        else:
            self._wanted.pop(find.query, None)
        busy: tuple[Stretch, ...] = ()
        if find.quiet_us is not None and find.member:
            looked_at = {type for _, types in find.operators.values() for type in types}
            near = [event for event, place in self._events(find.region) if find.region.contains(place)]
            times = sorted(event.ts for event in near if event.type in looked_at)
            busy = stretches(times, find.quiet_us)
        kept_from = self.progress - self.kept_us
        self.outbox.append(
            (find.asker, Found(find.query, find.number, self.site, frozenset(affected), busy, kept_from))
        )

    def _concerned(self, wanted: Wanted, region: Region, points: Mapping[str, int]) -> bool:
        earliest = min(points[type] for type in wanted.types)
        events = (pair for of in (wanted.region, region) if of is not None for pair in self._events(of, earliest))
        return any(
            lemma_2([pair], wanted.types, wanted.region, region, points[pair[0].type])
            for pair in events
            if pair[0].type in wanted.types
        )

    def _collect(self, collect: CollectCells) -> None:
        wanted = self._wanted[collect.query][collect.operator]
        region, old = wanted.next, wanted.region
        assert region is not None
        keeps = collect.keeps and old is not None
        marker = Marker(collect.query, collect.operator, self.site, collect.number, region, keeps)
        self.outbox.append((wanted.site, marker))
        wanted.region, wanted.next = region, None
        rows = self._rows(wanted, region, collect.points)
        if keeps:
            assert old is not None
            # What came since the question was answered has not been sent.
            rows = tuple(row for row in rows if row.event.ts > wanted.upto or not old.contains(row.places[0]))
        self._stream(collect.query, collect.operator, wanted, rows)

    def _stream(self, query: str, key: str, wanted: Wanted, rows: tuple[Row, ...]) -> None:
        wanted.upto = self.progress
        self.outbox.append((wanted.site, Events(query, key, self.site, rows, int(self.progress))))

    def _rows(self, wanted: Wanted, region: Region, points: Mapping[str, float]) -> tuple[Row, ...]:
        """The events of a region that an operator needs, later than its points."""
        earliest = min(points[type] for type in wanted.types)
        return tuple(
            Row(event, content_words(event.type, event.ts, event.seq, {**event.attributes, LABEL: event.id}), (place,))
            for event, place in self._events(region, earliest)
            if event.type in wanted.types and event.ts > points[event.type] and region.contains(place)
        )

    def _events(self, region: Region, after: float = -math.inf) -> Iterator[tuple[Event, Place]]:
        """The events of the region's cells."""
        for cell in self.grid.cells(region):
            if cell in self._stores:
                yield from self._stores[cell].after(after)
