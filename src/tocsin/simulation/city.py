"""A city under virtual time: brokers in a grid, cars that publish where they are, queries that follow them.

Messages wait in a heap until they arrive; a link is first in, first out. Events reach their broker in *epochs*,
stretches of event time, each with the word that it is complete. Everything follows from the seed.
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
from tocsin.overlay.mobility.brokers import Cells, Find, Found
from tocsin.overlay.mobility.consumer import Consumer, Delivery, LocationUpdate, Still
from tocsin.overlay.mobility.operator_node import (
    Collect,
    CollectCells,
    Collector,
    Events,
    Marker,
    Site,
    Streams,
    together,
)
from tocsin.overlay.mobility.ranges import Focal
from tocsin.plans.moving import Cell, Grid, is_strong, place_of, shared, tree
from tocsin.reference.patterns import Fact, holds

CONTROL = (LocationUpdate, Find, Found, Collect, CollectCells, Marker)
"""Messages that are neither events nor word of progress: a Marker counts if no event comes with it."""


@dataclass(frozen=True, slots=True)
class City:
    """Where brokers are, and how messages travel between them."""

    grid: Grid
    """Cells; a broker holds a block of them."""
    columns: int = 1
    rows: int = 1
    """Of brokers."""
    history_us: int = 3_600_000_000
    slack_us: int = 3_600_000_000
    """How much longer than the history events are kept, for requests that are under way."""
    delay_us: tuple[int, int] = (1_000, 10_000)
    epoch_us: tuple[int, int] = (1_000_000, 1_000_000)
    """Between these, for each broker and epoch, by chance."""
    incremental: bool = True
    seed: int = 0

    def holder(self, cell: Cell) -> Site:
        """The broker of a cell."""
        column = cell[0] * self.columns // self.grid.columns
        row = cell[1] * self.rows // self.grid.rows
        return f"b{column}.{row}"

    @property
    def sites(self) -> list[Site]:
        return [f"b{column}.{row}" for column in range(self.columns) for row in range(self.rows)]


@dataclass
class Traffic:
    """What was sent."""

    messages: Counter[str] = field(default_factory=Counter)
    streamed: int = 0
    """Events in messages from brokers to operators and between these."""
    delivered: int = 0
    """Matches handed to consumers."""

    @property
    def control(self) -> int:
        """Messages that move ranges: updates, questions and answers, Collects, Markers, logs."""
        return sum(self.messages[kind.__name__] for kind in CONTROL) + self.messages["log"]

    def count(self, message: object) -> None:
        kind = type(message).__name__
        if isinstance(message, Streams):
            events = [part for part in message.parts if isinstance(part, Events)]
            streamed = sum(len(part.rows) for part in events)
            self.streamed += streamed
            turns = len(events) < len(message.parts)
            logs = any(part.kept for part in events)
            kind = "Events" if streamed else "Marker" if turns else "log" if logs else "progress"
        elif isinstance(message, Still):
            kind = "progress"
        self.messages[kind] += 1


@dataclass
class Hosted:
    """A broker with the operators and roots of queries that are placed there."""

    cells: Cells
    processors: dict[str, Collector] = field(default_factory=dict)
    consumers: dict[str, Consumer] = field(default_factory=dict)

    def receive(self, message: object, now: int) -> None:
        if isinstance(message, Find | CollectCells):
            self.cells.receive(message, now)
        elif isinstance(message, Streams):
            for part in message.parts:
                machine = self.processors.get(message.operator) or self.consumers[part.query]
                machine.receive(part, now)
        elif isinstance(message, Collect):
            self.processors[message.operator].receive(message, now)
        elif isinstance(message, LocationUpdate | Still | Found):
            self.consumers[message.query].receive(message, now)
        else:
            raise TypeError(f"nobody here takes {message}")

    def sent(self) -> list[tuple[Site, object]]:
        taken: list[tuple[Site, object]] = []
        machines: list[Cells | Collector | Consumer] = [self.cells, *self.processors.values(), *self.consumers.values()]
        for machine in machines:
            taken += machine.outbox
            machine.outbox = []
        return together(taken)


class Simulation:
    """Queries in a city."""

    def __init__(self, city: City, interests: Sequence[Interest], types: Mapping[str, EventType], space: Space) -> None:
        self.city = city
        self.interests = interests
        self.space = space
        self.traffic = Traffic()
        self.chance = Random(city.seed)
        kept_us = city.history_us + city.slack_us
        self.sites = {site: Hosted(Cells(site, city.grid, space, kept_us)) for site in city.sites}
        self.homes: dict[str, Site] = {}
        self._heap: list[tuple[int, int, Site, object]] = []
        self._count = 0
        self._delays: dict[tuple[Site, Site], int] = {}
        for interest, others in shared(interests).items():
            self._place(interest, types, others)

    def _place(self, interest: Interest, types: Mapping[str, EventType], others: tuple[str, ...]) -> None:
        """Puts the operators of a query, and of others that coincide, on brokers, by chance as in the paper."""
        root = tree(interest)
        names = sorted(self.sites)
        places = {operator.key: self.chance.choice(names) for operator in root.walk()}
        home = self.homes[interest.name] = places[root.key]
        city = self.city
        incremental = city.incremental and not is_strong(interest)
        self.sites[home].consumers[interest.name] = Consumer(
            interest, home, places, city.grid, city.holder, city.history_us, others, incremental=incremental
        )
        known = {**types, **{rule.emits.name: rule.emits for rule in interest.parts}} if types else {}
        for operator in root.walk():
            for child in operator.children:
                used = {name: type for name, type in known.items() if child.rule and name in child.rule.uses}
                self.sites[places[child.key]].processors[child.key] = Collector(
                    interest.name, child, places[operator.key], operator.key, used, incremental
                )

    def run(self, events: Sequence[Event]) -> dict[str, list[Delivery]]:
        """Publishes all events, carries messages until there are none, and gives what was delivered, by query."""
        ordered = sorted(events, key=lambda event: (event.ts, event.seq, event.type, event.id or ""))
        last = ordered[-1].ts if ordered else 0
        plans: list[tuple[int, int, str, int, int]] = []
        names = [("site", name) for name in sorted(self.sites)]
        names += [("focal", name) for name in self.homes]
        for order, (_, name) in enumerate(names):
            for begin, end in self._epochs(ordered[0].ts - 1 if ordered else 0, last):
                arrives = end + self.chance.randint(*self.city.delay_us)
                plans.append((max(arrives, end), order, name, begin, end))
        plans.sort(key=lambda plan: (plan[1], plan[4]))
        floor: dict[int, int] = {}
        agenda = []
        for arrives, order, name, begin, end in plans:
            floor[order] = max(arrives, floor.get(order, arrives))
            agenda.append((floor[order], order, name, begin, end))
        agenda.sort()
        held = self._by_site(ordered)
        followed = [interest for interest in self.interests if interest.name in self.homes]
        focals = {interest.name: (Focal(interest), self._updates(interest, ordered)) for interest in followed}
        for now, order, name, begin, end in agenda:
            self._carry(now)
            if names[order][0] == "site":
                site = self.sites[name]
                times, mine = held.get(name, ([], []))
                site.cells.publish(mine[bisect_right(times, begin) : bisect_right(times, end)], end)
                self._send(name, now)
            else:
                self._move(name, *focals[name], begin, end, now)
        self._carry(None)
        found: dict[str, list[Delivery]] = {interest.name: [] for interest in self.interests}
        for name, home in self.homes.items():
            for delivery in self.sites[home].consumers[name].delivered:
                found[delivery.query].append(delivery)
        self.traffic.delivered = sum(delivery.match is not None for list in found.values() for delivery in list)
        return found

    def _epochs(self, begin: int, last: int) -> list[tuple[int, int]]:
        found = []
        while begin <= last:
            end = begin + self.chance.randint(*self.city.epoch_us)
            found.append((begin, end))
            begin = end
        # A long way behind the last event, so that all windows have passed.
        found.append((begin, last + 10 * self.city.epoch_us[1] + 10))
        return [(low, high) for low, high in found if low < high]

    def _by_site(self, events: Sequence[Event]) -> dict[Site, tuple[list[int], list[Event]]]:
        """What each broker will get: times, and the events."""
        held: dict[Site, tuple[list[int], list[Event]]] = {}
        for event in events:
            place = place_of(event.attributes, self.space)
            if place is not None:
                times, mine = held.setdefault(self.city.holder(self.city.grid.cell(place)), ([], []))
                times.append(event.ts)
                mine.append(event)
        return held

    def _updates(self, interest: Interest, events: Sequence[Event]) -> list[Event]:
        tests = interest.focal.constraints
        found = []
        for event in events:
            if event.type == interest.focal.type:
                fact = Fact(event.type, event.ts, event.seq, event.id or "", text_words(""), event.attributes)
                if all(holds(test, {None: fact}, {}) for test in tests):
                    found.append(event)
        return found

    def _move(self, name: str, focal: Focal, events: Sequence[Event], begin: int, end: int, now: int) -> None:
        home = self.homes[name]
        for event in events:
            if begin < event.ts <= end and (moved := focal.moved(event)):
                self._post("device " + name, home, LocationUpdate(name, *moved), now)
        self._post("device " + name, home, Still(name, end), now)

    def _send(self, name: Site, now: int) -> None:
        for receiver, message in self.sites[name].sent():
            self._post(name, receiver, message, now)

    def _post(self, sender: Site, receiver: Site, message: object, now: int) -> None:
        self.traffic.count(message)
        link = (sender, receiver)
        if link not in self._delays:
            self._delays[link] = 0 if sender == receiver else self.chance.randint(*self.city.delay_us)
        self._count += 1
        heapq.heappush(self._heap, (now + self._delays[link], self._count, receiver, message))

    def _carry(self, until: int | None) -> None:
        while self._heap and (until is None or self._heap[0][0] <= until):
            now, _, receiver, message = heapq.heappop(self._heap)
            self.sites[receiver].receive(message, now)
            self._send(receiver, now)
