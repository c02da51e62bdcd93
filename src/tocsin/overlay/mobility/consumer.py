"""Who leads a query from range to range, and hands its matches to the consumer? The root of its operator tree.

A location update becomes a Find to the brokers of the old and the new range; their answers say which operators the move
concerns, and a Collect goes to them, down the tree. Matches come up, are held until the focal object is known not to
have moved before them, and are delivered range by range, in order, with a marker between ranges.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from tocsin.events.types import Words, fold, hexadecimal, text_words
from tocsin.language.mcep.ast import Interest
from tocsin.overlay.mobility.brokers import Find, Found
from tocsin.overlay.mobility.operator_node import Collect, Events, Marker, Row, Site, Slot, Streamed
from tocsin.overlay.mobility.ranges import lemma_1, points, quiet
from tocsin.plans.moving import Cell, Grid, Place, Region, is_exact, is_strong, tree
from tocsin.reference.patterns import Match

TOO_SHORT = "the history kept is shorter than the lifetime and the windows"
NOT_QUIET = "there is no quiet point within the history kept"
PRUNED = "a broker no longer holds the history that is needed"


@dataclass(frozen=True, slots=True)
class LocationUpdate:
    """The focal object is elsewhere, and that begins a range."""

    query: str
    number: int
    start: int
    place: Place


@dataclass(frozen=True, slots=True)
class Still:
    """There is no other location update up to this time."""

    query: str
    upto: int


@dataclass(frozen=True, slots=True)
class Delivery:
    """To the consumer: a match in a range, or the marker with which a range begins, perhaps with an error."""

    query: str
    number: int
    id: str | None = None
    match: Match | None = None
    start: int | None = None
    error: str | None = None


@dataclass
class _Asked:
    """A location update whose Finds are being answered."""

    number: int
    start: int
    region: Region
    sites: frozenset[Site]
    members: frozenset[Site]
    answers: dict[Site, Found]


class Consumer:
    """The root of a query: `receive` messages; the outbox holds what is to be sent, `delivered` what has gone out."""

    def __init__(
        self,
        interest: Interest,
        site: Site,
        places: Mapping[str, Site],
        grid: Grid,
        holder: Callable[[Cell], Site],
        history_us: int,
        sharing: tuple[str, ...] = (),
        *,
        incremental: bool = True,
    ) -> None:
        self.interest = interest
        self.names = (interest.name, *sharing)
        """The queries that are delivered to: one, or several whose rules and ranges coincide."""
        self.site = site
        self.root = tree(interest)
        self.places = dict(places)
        """The sites of the operators."""
        self.grid = grid
        self.holder = holder
        self.history_us = history_us
        self.incremental = incremental
        self.outbox: list[tuple[Site, object]] = []
        self.delivered: list[Delivery] = []
        self._updates: deque[tuple[int, int, Place]] = deque()
        self._asked: _Asked | None = None
        self._members: frozenset[Site] = frozenset()
        self._pending: deque[tuple[Collect, str | None]] = deque()
        self._current: tuple[Collect, str | None] | None = None
        self._inboxes: defaultdict[str, deque[Streamed]] = defaultdict(deque)
        self._slots = {child.key: Slot(self._inboxes[child.key]) for child in self.root.children}
        self._focal: float = -math.inf
        self._done: float = -math.inf

    def receive(self, message: LocationUpdate | Still | Found | Marker | Events, now: int) -> None:
        """Takes a message."""
        match message:
            case LocationUpdate():
                self._updates.append((message.number, message.start, message.place))
                self._focal = max(self._focal, message.start)
            case Still():
                self._focal = max(self._focal, message.upto)
            case Found():
                assert self._asked is not None
                self._asked.answers[message.site] = message
            case _:
                self._inboxes[message.source].append(message)
        self._lead()
        self._deliver()

    def _lead(self) -> None:
        """Answered questions become Collects, and the next update is asked about."""
        while True:
            if self._asked is not None:
                if self._asked.answers.keys() != self._asked.sites:
                    return
                self._collect(self._asked)
                self._asked = None
            if not self._updates:
                return
            self._ask(*self._updates.popleft())

    def _ask(self, number: int, start: int, place: Place) -> None:
        region = Region(self.interest.shape, place, self.interest.space)
        members = frozenset(self.holder(cell) for cell in self.grid.cells(region))
        sites = members | self._members
        self._asked = _Asked(number, start, region, sites, members, {})
        needed = self._points(start, None)
        operators = {
            operator.key: (self.places[operator.key], operator.sources)
            for operator in self.root.walk()
            if operator.sources
        }
        strong = is_strong(self.interest)
        for site in sorted(sites):
            find = Find(
                self.interest.name,
                number,
                start,
                region,
                site in members,
                {key: needed[key] for key in operators},
                operators,
                is_exact(self.interest),
                self.incremental,
                self.root.windows_us if strong else None,
                self.site,
            )
            self.outbox.append((site, find))

    def _points(self, start: int, quiet: int | None) -> dict[str, dict[str, int]]:
        exact = is_exact(self.interest)
        return points(self.root, start - self.interest.lifetime_us, exact=exact, quiet=quiet)

    def _collect(self, asked: _Asked) -> None:
        windows = self.root.windows_us
        latest = lemma_1(asked.start, self.interest.lifetime_us, [windows])
        error = None if latest >= asked.start - self.history_us else TOO_SHORT
        begin: int | None = None
        if is_strong(self.interest) and error is None:
            busy = [stretch for answer in asked.answers.values() for stretch in answer.busy]
            begin = quiet(busy, latest, windows)
            if begin - windows < asked.start - self.history_us:
                error, begin = NOT_QUIET, None
        oldest = latest if begin is None else begin - windows
        if error is None and any(answer.kept_from > oldest for answer in asked.answers.values()):
            error = PRUNED
        moved = asked.members != self._members
        affected: dict[str, frozenset[Site]] = {}

        def visit(key: str, told: bool) -> None:
            sites = frozenset(site for site in asked.members if key in asked.answers[site].affected)
            if told or sites:
                affected[key] = sites

        for operator in reversed(list(self.root.walk())):
            below = any(child.key in affected for child in operator.children)
            visit(operator.key, below or (moved and bool(operator.sources)) or is_exact(self.interest))
        affected.setdefault(self.root.key, frozenset())
        brokers = {
            operator.key: asked.members if operator.sources else frozenset[Site]() for operator in self.root.walk()
        }
        collect = Collect(
            self.interest.name,
            self.root.key,
            asked.number,
            asked.start,
            asked.region,
            self._points(asked.start, begin),
            brokers,
            affected,
            self.places,
            is_strong(self.interest),
        )
        for child in self.root.children:
            if child.key in affected:
                self.outbox.append((self.places[child.key], replace(collect, operator=child.key)))
        self._members = asked.members
        self._pending.append((collect, error))

    def _deliver(self) -> None:
        while True:
            number = self._current[0].number if self._current else 0
            for slot in self._slots.values():
                slot.take(number)
            ready = min(self._focal, *(slot.upto for slot in self._slots.values()))
            if self._current is not None:
                if any(slot.awaiting for slot in self._slots.values()):
                    return
                self._hand_over(min(ready, self._limit()))
            if not self._pending or (self._current is not None and ready < self._pending[0][0].start):
                return
            self._turn(*self._pending.popleft())

    def _limit(self) -> float:
        """When the range ends, as far as is known."""
        if self._pending:
            return self._pending[0][0].start
        if self._asked is not None:
            return self._asked.start
        return self._updates[0][1] if self._updates else math.inf

    def _turn(self, collect: Collect, error: str | None) -> None:
        self._current = (collect, error)
        for child in self.root.children:
            self._slots[child.key].awaiting = child.key in collect.affected
        self._done = -math.inf
        for name in self.names:
            self.delivered.append(Delivery(name, collect.number, start=collect.start, error=error))

    def _hand_over(self, upto: float) -> None:
        if upto <= self._done or upto == math.inf:
            return
        assert self._current is not None
        collect, error = self._current
        first = collect.start - self.interest.lifetime_us
        rows: list[Row] = []
        for slot in self._slots.values():
            for name in [name for name, row in slot.rows.items() if row.event.ts < first]:
                del slot.rows[name]
            rows += [row for row in slot.rows.values() if self._done < row.event.ts <= upto]
        self._done = upto
        if error is not None:
            return
        for row in sorted(rows, key=_order):
            assert row.match is not None
            for query in self.names:
                id = delivered_id(query, collect.number, row.words)
                self.delivered.append(Delivery(query, collect.number, id, row.match))


def delivered_id(query: str, number: int, words: Words) -> str:
    """The identity of a match in a range of a query: a hash of the three."""
    state = text_words(query)
    for word in (number, *words):
        state = fold(state, word)
    return hexadecimal(state)


def _order(row: Row) -> tuple[object, ...]:
    match = row.match
    assert match is not None
    return match.ts, match.seq, match.rule, [(part.ts, part.seq, part.type, part.id) for part in match.parts]
