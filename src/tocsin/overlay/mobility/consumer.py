"""Run the root of a moving query: move the range, and deliver the matches of each range in order.

When the followed (focal) object has moved, the consumer sends a Find to the brokers of the old and the new range. The
answers name the operators that the move affects. The consumer then sends a Collect down the operator tree to these. The
matches of operators wait until the object is known not to have moved before them. They are delivered range by range,
with a marker at the start of each range.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from tocsin.events.types import Words128, fold, hexadecimal, text_words
from tocsin.language.mcep.ast import Interest
from tocsin.overlay.mobility.brokers import Find, FindReply
from tocsin.overlay.mobility.operator_node import (
    Collect,
    InputSlot,
    LocatedEvent,
    Marker,
    Site,
    StreamedEvents,
    StreamMessage,
)
from tocsin.overlay.mobility.ranges import initialisation_points, lemma_1, quiescent_point
from tocsin.plans.moving import Cell, Coordinates, Grid, Region, is_exact, is_strong, tree
from tocsin.reference.patterns import Match

TOO_SHORT = "the history kept is shorter than the lifetime and the windows"
NOT_QUIET = "there is no quiescent point within the history kept"
PRUNED = "a broker no longer holds the history that is needed"


@dataclass(frozen=True, slots=True)
class LocationUpdate:
    """Announce that the focal object has moved, so that range `number` starts at the time `start`."""

    query: str
    number: int
    start: int
    location: Coordinates


@dataclass(frozen=True, slots=True)
class LocationProgress:
    """Promise that no further LocationUpdate up to the time `upto` will follow."""

    query: str
    upto: int


@dataclass(frozen=True, slots=True)
class Delivery:
    """A match in range `number` of a query, or, if `match` is None, the marker at the start of a range.

    A marker has the `start` of the range, and an `error` if the range cannot be evaluated.
    """

    query: str
    number: int
    id: str | None = None
    match: Match | None = None
    start: int | None = None
    error: str | None = None


@dataclass
class _PendingUpdate:
    """A location update that waits for the answers to its Finds.

    `members` are the brokers of the new range. `sites` are these and the brokers of the previous range.
    """

    number: int
    start: int
    region: Region
    sites: frozenset[Site]
    members: frozenset[Site]
    answers: dict[Site, FindReply]


class Consumer:
    """The root of a query.

    The host passes messages to `receive` and sends the messages in `outbox`. Matches and markers are appended to
    `delivered`. `holder` returns the site of the broker of a cell, and brokers retain events for `history_us`.
    """

    def __init__(
        self,
        interest: Interest,
        site: Site,
        operator_sites: Mapping[str, Site],
        grid: Grid,
        holder: Callable[[Cell], Site],
        history_us: int,
        sharing: tuple[str, ...] = (),
        *,
        incremental: bool = True,
    ) -> None:
        self.interest = interest
        self.names = (interest.name, *sharing)
        """The names of the queries that get the deliveries; several queries with equal rules and ranges share them."""
        self.site = site
        self.root = tree(interest)
        self.operator_sites = dict(operator_sites)
        """The site of each operator, by the operator's key."""
        self.grid = grid
        self.holder = holder
        self.history_us = history_us
        self.incremental = incremental
        self.outbox: list[tuple[Site, object]] = []
        self.delivered: list[Delivery] = []
        self._updates: deque[tuple[int, int, Coordinates]] = deque()
        self._update: _PendingUpdate | None = None
        self._members: frozenset[Site] = frozenset()
        self._pending: deque[tuple[Collect, str | None]] = deque()
        self._current: tuple[Collect, str | None] | None = None
        self._inboxes: defaultdict[str, deque[StreamMessage]] = defaultdict(deque)
        self._slots = {child.key: InputSlot(self._inboxes[child.key]) for child in self.root.children}
        self._focal: float = -math.inf
        self._done: float = -math.inf

    def receive(
        self, message: LocationUpdate | LocationProgress | FindReply | Marker | StreamedEvents, now: int
    ) -> None:
        """Process a message, then send the messages and deliver the matches that it makes possible."""
        match message:
            case LocationUpdate():
                self._updates.append((message.number, message.start, message.location))
                self._focal = max(self._focal, message.start)
            case LocationProgress():
                self._focal = max(self._focal, message.upto)
            case FindReply():
                assert self._update is not None
                self._update.answers[message.site] = message
            case _:
                self._inboxes[message.source].append(message)
        self._lead()
        self._deliver()

    def _lead(self) -> None:
        """Send the Collect of the current update when all brokers have answered, then the Finds of the next update."""
        while True:
            if self._update is not None:
                if self._update.answers.keys() != self._update.sites:
                    return
                self._collect(self._update)
                self._update = None
            if not self._updates:
                return
            self._ask(*self._updates.popleft())

    def _ask(self, number: int, start: int, location: Coordinates) -> None:
        region = Region(self.interest.shape, location, self.interest.space)
        members = frozenset(self.holder(cell) for cell in self.grid.cells(region))
        sites = members | self._members
        self._update = _PendingUpdate(number, start, region, sites, members, {})
        needed = self._points(start, None)
        operators = {
            operator.key: (self.operator_sites[operator.key], operator.sources)
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
        return initialisation_points(self.root, start - self.interest.lifetime_us, exact=exact, quiet=quiet)

    def _collect(self, update: _PendingUpdate) -> None:
        windows = self.root.windows_us
        latest = lemma_1(update.start, self.interest.lifetime_us, [windows])
        error = None if latest >= update.start - self.history_us else TOO_SHORT
        begin: int | None = None
        if is_strong(self.interest) and error is None:
            busy = [interval for answer in update.answers.values() for interval in answer.busy]
            begin = quiescent_point(busy, latest, windows)
            if begin - windows < update.start - self.history_us:
                error, begin = NOT_QUIET, None
        oldest = latest if begin is None else begin - windows
        if error is None and any(answer.retained_from > oldest for answer in update.answers.values()):
            error = PRUNED
        moved = update.members != self._members
        affected: dict[str, frozenset[Site]] = {}

        def visit(key: str, required: bool) -> None:
            sites = frozenset(site for site in update.members if key in update.answers[site].affected)
            if required or sites:
                affected[key] = sites

        for operator in reversed(list(self.root.walk())):
            below = any(child.key in affected for child in operator.children)
            visit(operator.key, below or (moved and bool(operator.sources)) or is_exact(self.interest))
        affected.setdefault(self.root.key, frozenset())
        brokers = {
            operator.key: update.members if operator.sources else frozenset[Site]() for operator in self.root.walk()
        }
        collect = Collect(
            self.interest.name,
            self.root.key,
            update.number,
            update.start,
            update.region,
            self._points(update.start, begin),
            brokers,
            affected,
            self.operator_sites,
            is_strong(self.interest),
        )
        for child in self.root.children:
            if child.key in affected:
                self.outbox.append((self.operator_sites[child.key], replace(collect, operator=child.key)))
        self._members = update.members
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
        """Return the end of the current range, or infinity if no next range is known."""
        if self._pending:
            return self._pending[0][0].start
        if self._update is not None:
            return self._update.start
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
        rows: list[LocatedEvent] = []
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


def delivered_id(query: str, number: int, words: Words128) -> str:
    """Return the id of a delivered match, which is a hash of query, range number and the match's `words`."""
    state = text_words(query)
    for word in (number, *words):
        state = fold(state, word)
    return hexadecimal(state)


def _order(row: LocatedEvent) -> tuple[object, ...]:
    match = row.match
    assert match is not None
    return match.ts, match.seq, match.rule, [(part.ts, part.seq, part.type, part.id) for part in match.parts]
