"""Schedule the events of timers, which occur at fixed times, periodically, or some time after a match.

Scheduled events wait in `Pipeline.buffered` until their instant is closed, and are saved there like composite events.
The event of a moment (a fixed time) waits from the start. For a period, only the next event waits. When it is due, the
following event is scheduled.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tocsin import kernels
from tocsin.engine.compile import BEFORE_ALL
from tocsin.engine.match_columns import Composites
from tocsin.engine.predicates import SelectedRows
from tocsin.errors import StateError
from tocsin.events.types import EventType
from tocsin.kernels import Array
from tocsin.language.eps.ast import After, Moment, Period, Timer
from tocsin.plans.rules import RulePlan

if TYPE_CHECKING:
    from tocsin.engine.pipeline import Pipeline

NEVER = 2**61
"""The time (µs) for which a moment is scheduled again after it has passed, so that it never recurs."""

FIRINGS_MAX = 10_000_000
"""The largest number of events of one period that may be due at the same time."""


class RunningTimer(NamedTuple):
    """A timer of a moment or period.

    `starts` are the filters of the events that start the timer, and `since` is the time (µs) at which it begins to run.
    """

    timer: Timer
    starts: Array
    since: int


class Timers:
    """Holds the timers of a pipeline, by the type of their events."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._running: dict[str, RunningTimer] = {}
        self._delays: dict[str, int] = {}

    def __contains__(self, type: str) -> bool:
        return type in self._running or type in self._delays

    def add(self, rule: RulePlan, since: int) -> None:
        """Add the timers of `rule`, which begin to run at the time `since` (µs)."""
        if rule.timer is not None:
            assert isinstance(rule.timer.timer, After)
            self._delays[rule.timer.type] = rule.timer.timer.delay_us
        for timed_event in rule.timers:
            if timed_event.type in self._running:
                continue
            starts = np.array([self._pipeline.tables.filter(filter) for filter in rule.own], np.int64)
            self._pipeline.emits[timed_event.type] = EventType(timed_event.type)
            running = self._running[timed_event.type] = RunningTimer(timed_event.timer, starts, since)
            if isinstance(timed_event.timer, Moment):
                self._wait(timed_event.type, np.array([timed_event.timer.at_us]))
            elif not len(starts):
                self._wait(timed_event.type, np.array([_first_firing(running, since)]))

    def start(self, type: str, ts: Array) -> bool:
        """Start the timer that emits events of `type`, once for each match at the times `ts` (µs).

        Return False if there is no such timer.
        """
        if type not in self._delays:
            return False
        self._wait(type, ts + self._delays[type])
        return True

    def schedule(self, type: str, selections: Sequence[SelectedRows], closed_ts: int) -> None:
        """Schedule the events of the moment or period `type` that are due before `closed_ts` (µs), and the next event.

        `selections` has the new events, which may start a period.
        """
        running, waiting = self._running.get(type), self._pipeline.buffered.get(type)
        if running is None:
            return
        if waiting is None:
            begin = self._start_ts(running, selections)
            if begin is None:
                return
            following = _first_firing(running, begin)
        elif (following := int(waiting.ts[0])) >= closed_ts:
            return
        else:
            del self._pipeline.buffered[type]
        if isinstance(running.timer, Moment):
            self._wait(type, np.array([following, NEVER]))
            return
        assert isinstance(running.timer, Period)
        every_us = running.timer.every_us
        due = max(0, -(-(closed_ts - following) // every_us))
        if due > FIRINGS_MAX:
            raise StateError(f"{type} would fire {due:,} times at once, more than {FIRINGS_MAX:,}")
        self._wait(type, following + every_us * np.arange(due + 1))

    def _start_ts(self, running: RunningTimer, selections: Iterable[SelectedRows]) -> int | None:
        """Return the time (µs) of the first selected event that starts a timer, or None if there is no such event."""
        first: int | None = None
        for selected in selections:
            rows = selected.rows[np.isin(selected.filters, running.starts)]
            ts = self._pipeline.store.ts[rows]
            ts = ts[ts >= running.since]
            if len(ts):
                first = int(ts.min()) if first is None else min(first, int(ts.min()))
        return first

    def _wait(self, type: str, ts: Array) -> None:
        ts = ts.astype(np.int64)
        no_ids, no_values = np.zeros(len(ts), np.uint64), np.zeros((0, len(ts)), np.int64)
        new = Composites(
            ts, np.zeros_like(ts), no_ids, no_ids, no_values, no_values.astype(np.uint8), np.zeros_like(ts)
        )
        self._pipeline.buffer(type, new)

    def with_ids(self, type: str, events: Composites) -> Composites:
        """Return the events of a timer with ids. Events at the same time are equal and get consecutive ids."""
        tables, count = self._pipeline.tables, len(events.ts)
        id_high, id_low = np.empty(count, np.uint64), np.empty(count, np.uint64)
        kernels.fold_start(
            id_high, id_low, tables.type_words, np.full(count, tables.types[type]), events.ts, events.seq
        )
        position = np.arange(count)
        begins = np.concatenate([[True], events.ts[1:] != events.ts[:-1]])
        number = (position - np.maximum.accumulate(np.where(begins, position, 0))).astype(np.uint64)
        low = id_low + number
        return events._replace(id_high=id_high + (low < id_low).astype(np.uint64), id_low=low)


def _first_firing(running: RunningTimer, begin: int) -> int:
    """Return the time (µs) of the first event of a period at or after `begin`."""
    timer = running.timer
    assert isinstance(timer, Period)
    if timer.start_us is None:
        return -(-begin // timer.every_us) * timer.every_us
    if begin == BEFORE_ALL:
        return timer.start_us
    return timer.start_us + max(0, -(-(begin - timer.start_us) // timer.every_us)) * timer.every_us
