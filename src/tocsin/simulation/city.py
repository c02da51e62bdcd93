"""Simulate a city in virtual time, in which moving queries follow cars.

The area is a grid of *cells*. Each *broker* holds the events of a block of cells. A moving query (an *interest*)
follows one object, and its region of interest at one position of the object is a *range*. A *Marker* is the message
that ends a range in a stream.

Messages wait in a heap until they arrive. Messages on the same link stay in order. Events reach their broker in
*epochs*, which are stretches of event time, each with the message that it is complete. All random choices follow from
the seed.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

from tocsin.events.types import Event, EventType, text_words
from tocsin.language.mcep.ast import Interest, Space
from tocsin.overlay.mobility.brokers import CellBroker, Find, FindReply
from tocsin.overlay.mobility.consumer import Consumer, Delivery, LocationProgress, LocationUpdate
from tocsin.overlay.mobility.operator_node import (
    Collect,
    CollectCells,
    Marker,
    OperatorNode,
    Site,
    StreamedEvents,
    StreamMessages,
    group_streams,
)
from tocsin.overlay.mobility.ranges import FocalObject
from tocsin.plans.moving import Cell, Grid, coordinates_of, is_strong, shared, tree
from tocsin.reference.patterns import Fact, holds

CONTROL = (LocationUpdate, Find, FindReply, Collect, CollectCells, Marker)
"""The kinds of messages that are neither events nor progress. A Marker counts only if no event comes with it."""


@dataclass(frozen=True, slots=True)
class City:
    """The brokers of a city, and the delays of messages between brokers."""

    grid: Grid
    """The grid of cells."""
    columns: int = 1
    """The number of columns of brokers."""
    rows: int = 1
    """The number of rows of brokers."""
    history_us: int = 3_600_000_000
    slack_us: int = 3_600_000_000
    """The time for which brokers keep events longer than `history_us`, for requests under way."""
    delay_us: tuple[int, int] = (1_000, 10_000)
    """The least and the largest delay of a link. The delay is chosen at random."""
    epoch_us: tuple[int, int] = (1_000_000, 1_000_000)
    """The least and the largest length of an epoch. The length is chosen at random."""
    incremental: bool = True
    seed: int = 0

    def holder(self, cell: Cell) -> Site:
        """Return the broker that holds `cell`."""
        column = cell[0] * self.columns // self.grid.columns
        row = cell[1] * self.rows // self.grid.rows
        return f"b{column}.{row}"

    @property
    def sites(self) -> list[Site]:
        return [f"b{column}.{row}" for column in range(self.columns) for row in range(self.rows)]


@dataclass
class Traffic:
    """Counts of the messages that were sent, by kind."""

    messages: Counter[str] = field(default_factory=Counter)
    streamed: int = 0
    """The number of events in messages from brokers to operators, and between operators."""
    delivered: int = 0
    """The number of matches that consumers have delivered."""

    @property
    def control(self) -> int:
        """The number of messages that move ranges: location updates, Finds, FindReplies, Collects, Markers and logs."""
        return sum(self.messages[kind.__name__] for kind in CONTROL) + self.messages["log"]

    def count(self, message: object) -> None:
        kind = type(message).__name__
        if isinstance(message, StreamMessages):
            events = [part for part in message.parts if isinstance(part, StreamedEvents)]
            streamed = sum(len(part.rows) for part in events)
            self.streamed += streamed
            turns = len(events) < len(message.parts)
            logs = any(part.kept for part in events)
            kind = "Events" if streamed else "Marker" if turns else "log" if logs else "progress"
        elif isinstance(message, LocationProgress):
            kind = "progress"
        self.messages[kind] += 1


@dataclass
class Hosted:
    """A broker, with the operators and the consumers of queries that are placed at it."""

    cells: CellBroker
    processors: dict[str, OperatorNode] = field(default_factory=dict)
    consumers: dict[str, Consumer] = field(default_factory=dict)

    def receive(self, message: object, now: int) -> None:
        if isinstance(message, Find | CollectCells):
            self.cells.receive(message, now)
        elif isinstance(message, StreamMessages):
            for part in message.parts:
                machine = self.processors.get(message.operator) or self.consumers[part.query]
                machine.receive(part, now)
        elif isinstance(message, Collect):
            self.processors[message.operator].receive(message, now)
        elif isinstance(message, LocationUpdate | LocationProgress | FindReply):
            self.consumers[message.query].receive(message, now)
        else:
            raise TypeError(f"no receiver for {message}")

    def sent(self) -> list[tuple[Site, object]]:
        outbox: list[tuple[Site, object]] = []
        machines: list[CellBroker | OperatorNode | Consumer] = [
            self.cells,
            *self.processors.values(),
            *self.consumers.values(),
        ]
        for machine in machines:
            outbox += machine.outbox
            machine.outbox = []
        return group_streams(outbox)


class Simulation:
    """Runs moving queries in a city."""

    def __init__(self, city: City, interests: Sequence[Interest], types: Mapping[str, EventType], space: Space) -> None:
        self.city = city
        self.interests = interests
        self.space = space
        self.traffic = Traffic()
        self.rng = Random(city.seed)
        retained_us = city.history_us + city.slack_us
        self.sites = {site: Hosted(CellBroker(site, city.grid, space, retained_us)) for site in city.sites}
        self.homes: dict[str, Site] = {}
        self._heap: list[tuple[int, int, Site, object]] = []
        self._count = 0
        self._delays: dict[tuple[Site, Site], int] = {}
        for interest, others in shared(interests).items():
            self._place(interest, types, others)

    def _place(self, interest: Interest, types: Mapping[str, EventType], others: tuple[str, ...]) -> None:
        """Place the operators of `interest` on random brokers, as in MCEP.

        `others` are the names of queries that differ from `interest` only in their name, and share its operators.
        """
        root = tree(interest)
        names = sorted(self.sites)
        operator_sites = {operator.key: self.rng.choice(names) for operator in root.walk()}
        home = self.homes[interest.name] = operator_sites[root.key]
        city = self.city
        incremental = city.incremental and not is_strong(interest)
        self.sites[home].consumers[interest.name] = Consumer(
            interest, home, operator_sites, city.grid, city.holder, city.history_us, others, incremental=incremental
        )
        declared = {**types, **{rule.emits.name: rule.emits for rule in interest.parts}} if types else {}
        for operator in root.walk():
            for child in operator.children:
                used = {name: type for name, type in declared.items() if child.rule and name in child.rule.uses}
                self.sites[operator_sites[child.key]].processors[child.key] = OperatorNode(
                    interest.name, child, operator_sites[operator.key], operator.key, used, incremental
                )

    def run(self, events: Sequence[Event]) -> dict[str, list[Delivery]]:
        """Publish all events, carry messages until there are none, and return the deliveries of each query."""
        ordered = sorted(events, key=lambda event: (event.ts, event.seq, event.type, event.id or ""))
        last = ordered[-1].ts if ordered else 0
        plans: list[tuple[int, int, str, int, int]] = []
        names = [("site", name) for name in sorted(self.sites)]
        names += [("focal", name) for name in self.homes]
        for order, (_, name) in enumerate(names):
            for begin, end in self._epochs(ordered[0].ts - 1 if ordered else 0, last):
                arrives = end + self.rng.randint(*self.city.delay_us)
                plans.append((max(arrives, end), order, name, begin, end))
        plans.sort(key=lambda plan: (plan[1], plan[4]))
        floor: dict[int, int] = {}
        agenda = []
        for arrives, order, name, begin, end in plans:
            floor[order] = max(arrives, floor.get(order, arrives))
            agenda.append((floor[order], order, name, begin, end))
        agenda.sort()
        by_site = self._by_site(ordered)
        followed = [interest for interest in self.interests if interest.name in self.homes]
        focals = {interest.name: (FocalObject(interest), self._updates(interest, ordered)) for interest in followed}
        for now, order, name, begin, end in agenda:
            self._carry(now)
            if names[order][0] == "site":
                site = self.sites[name]
                times, mine = by_site.get(name, ([], []))
                site.cells.publish(mine[bisect_right(times, begin) : bisect_right(times, end)], end)
                self._send(name, now)
            else:
                self._move(name, *focals[name], begin, end, now)
        self._carry(None)
        delivered: dict[str, list[Delivery]] = {interest.name: [] for interest in self.interests}
        for name, home in self.homes.items():
            for delivery in self.sites[home].consumers[name].delivered:
                delivered[delivery.query].append(delivery)
        self.traffic.delivered = sum(delivery.match is not None for list in delivered.values() for delivery in list)
        return delivered

    def _epochs(self, begin: int, last: int) -> list[tuple[int, int]]:
        intervals = []
        while begin <= last:
            end = begin + self.rng.randint(*self.city.epoch_us)
            intervals.append((begin, end))
            begin = end
        # The last epoch ends long after the last event, so that all windows have passed.
        intervals.append((begin, last + 10 * self.city.epoch_us[1] + 10))
        return [(low, high) for low, high in intervals if low < high]

    def _by_site(self, events: Sequence[Event]) -> dict[Site, tuple[list[int], list[Event]]]:
        """Return the events in the cells of each broker, and the times of these events."""
        by_site: dict[Site, tuple[list[int], list[Event]]] = {}
        for event in events:
            location = coordinates_of(event.attributes, self.space)
            if location is not None:
                times, mine = by_site.setdefault(self.city.holder(self.city.grid.cell(location)), ([], []))
                times.append(event.ts)
                mine.append(event)
        return by_site

    def _updates(self, interest: Interest, events: Sequence[Event]) -> list[Event]:
        tests = interest.focal.constraints
        updates = []
        for event in events:
            if event.type == interest.focal.type:
                fact = Fact(event.type, event.ts, event.seq, event.id or "", text_words(""), event.attributes)
                if all(holds(test, {None: fact}, {}) for test in tests):
                    updates.append(event)
        return updates

    def _move(self, name: str, focal: FocalObject, events: Sequence[Event], begin: int, end: int, now: int) -> None:
        home = self.homes[name]
        for event in events:
            if begin < event.ts <= end and (moved := focal.moved(event)):
                self._post("device " + name, home, LocationUpdate(name, *moved), now)
        self._post("device " + name, home, LocationProgress(name, end), now)

    def _send(self, name: Site, now: int) -> None:
        for receiver, message in self.sites[name].sent():
            self._post(name, receiver, message, now)

    def _post(self, sender: Site, receiver: Site, message: object, now: int) -> None:
        self.traffic.count(message)
        link = (sender, receiver)
        if link not in self._delays:
            self._delays[link] = 0 if sender == receiver else self.rng.randint(*self.city.delay_us)
        self._count += 1
        heapq.heappush(self._heap, (now + self._delays[link], self._count, receiver, message))

    def _carry(self, until: int | None) -> None:
        while self._heap and (until is None or self._heap[0][0] <= until):
            now, _, receiver, message = heapq.heappop(self._heap)
            self.sites[receiver].receive(message, now)
            self._send(receiver, now)
