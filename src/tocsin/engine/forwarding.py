"""Timers at work: events that time alone brings, or that come so long after something was found.

A timer's events wait where composite events do until their instant is closed (`Machine.pending`), so they are written
down and carried along as these are. A moment waits from the beginning on. Of a period, the next event waits; when its
turn comes, it leaves its successor behind.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tocsin import kernels
from tocsin.engine.compile import FOREVER
from tocsin.engine.match_columns import Composites
from tocsin.engine.predicates import Passed
from tocsin.errors import StateError
from tocsin.events.types import EventType
from tocsin.kernels import Array
from tocsin.language.eps.ast import After, Moment, Period, Timer
from tocsin.plans.rules import RulePlan

if TYPE_CHECKING:
    from tocsin.engine.pipeline import Machine

NEVER = 2**61
"""When a moment that has passed comes again."""

TICKS_MAX = 10_000_000
"""How many events of a period may be due at once."""


class Ticking(NamedTuple):
    """A moment or period: the filters of the events that start it, and from when on it is there (µs)."""

    timer: Timer
    own: Array
    since: int


class Clocks:
    """The timers of a machine, by the types of their events."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._ticking: dict[str, Ticking] = {}
        self._delays: dict[str, int] = {}

    def __contains__(self, type: str) -> bool:
        return type in self._ticking or type in self._delays

    def add(self, rule: RulePlan, since: int) -> None:
        """Takes the timers of a plan."""
        if rule.clock is not None:
            assert isinstance(rule.clock.timer, After)
            self._delays[rule.clock.type] = rule.clock.timer.delay_us
        for clock in rule.clocks:
            if clock.type in self._ticking:
                continue
            own = np.array([self._machine.tables.filter(filter) for filter in rule.own], np.int64)
            self._machine.emits[clock.type] = EventType(clock.type)
            ticking = self._ticking[clock.type] = Ticking(clock.timer, own, since)
            if isinstance(clock.timer, Moment):
                self._wait(clock.type, np.array([clock.timer.at_us]))
            elif not len(own):
                self._wait(clock.type, np.array([_first_tick(ticking, since)]))

    def start(self, type: str, ts: Array) -> bool:
        """Starts a timer for what was found at these times; False if events of that type come from no timer."""
        if type not in self._delays:
            return False
        self._wait(type, ts + self._delays[type])
        return True

    def tick(self, type: str, entered: Sequence[Passed], closed_ts: int) -> None:
        """Lets a moment or period come to the events that wait, up to that time."""
        ticking, held = self._ticking.get(type), self._machine.pending.get(type)
        if ticking is None:
            return
        if held is None:
            begin = self._begun(ticking, entered)
            if begin is None:
                return
            following = _first_tick(ticking, begin)
        elif (following := int(held.ts[0])) >= closed_ts:
            return
        else:
            del self._machine.pending[type]
        if isinstance(ticking.timer, Moment):
            self._wait(type, np.array([following, NEVER]))
            return
        assert isinstance(ticking.timer, Period)
        every_us = ticking.timer.every_us
        due = max(0, -(-(closed_ts - following) // every_us))
        if due > TICKS_MAX:
            raise StateError(f"{type} would tick {due:,} times at once, more than {TICKS_MAX:,}")
        self._wait(type, following + every_us * np.arange(due + 1))

    def _begun(self, ticking: Ticking, entered: Iterable[Passed]) -> int | None:
        """When the first event came that starts a period."""
        first: int | None = None
        for passed in entered:
            rows = passed.rows[np.isin(passed.filters, ticking.own)]
            ts = self._machine.store.ts[rows]
            ts = ts[ts >= ticking.since]
            if len(ts):
                first = int(ts.min()) if first is None else min(first, int(ts.min()))
        return first

    def _wait(self, type: str, ts: Array) -> None:
        ts = ts.astype(np.int64)
        unnamed, nothing = np.zeros(len(ts), np.uint64), np.zeros((0, len(ts)), np.int64)
        new = Composites(ts, np.zeros_like(ts), unnamed, unnamed, nothing, nothing.astype(np.uint8), np.zeros_like(ts))
        self._machine.keep(type, new)

    def identified(self, type: str, events: Composites) -> Composites:
        """A timer's events, in order, with the identities that events of their content have."""
        tables, count = self._machine.tables, len(events.ts)
        first, second = np.empty(count, np.uint64), np.empty(count, np.uint64)
        kernels.fold_start(first, second, tables.type_words, np.full(count, tables.types[type]), events.ts, events.seq)
        position = np.arange(count)
        begins = np.concatenate([[True], events.ts[1:] != events.ts[:-1]])
        number = (position - np.maximum.accumulate(np.where(begins, position, 0))).astype(np.uint64)
        numbered = second + number
        return events._replace(first=first + (numbered < second).astype(np.uint64), second=numbered)


def _first_tick(ticking: Ticking, begin: int) -> int:
    """The first event of a period at or after that time."""
    timer = ticking.timer
    assert isinstance(timer, Period)
    if timer.start_us is None:
        return -(-begin // timer.every_us) * timer.every_us
    if begin == FOREVER:
        return timer.start_us
    return timer.start_us + max(0, -(-(begin - timer.start_us) // timer.every_us)) * timer.every_us
