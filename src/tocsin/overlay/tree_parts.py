"""Compute when a stream is complete up to an event time.

Only the simulator needs this. It publishes events in large batches and still measures the delay of each event. For
that, each row has the time `at` which it was sent, and each stream has a `Timing`, which maps an event time `ts` to the
time by which all events before `ts` have been sent. This is `ts` plus a lag, or later if a processor waited for an
answer (a *stall*). All times are in microseconds.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
BEGINNING = -(2**61)
"""An event time before all events."""


def no_times() -> Array:
    """Return an empty array of times."""
    return np.zeros(0, np.int64)


@dataclass(frozen=True)
class Timing:
    """The times at which a stream is complete up to each event time.

    The stream is complete up to `ts` at `ts + lag_us`, or, if that is later, at the end of the longest stall that began
    at or before `ts`. Stalls begin at the event times `stalls_ts` and end at the times `stalls_at`.
    """

    lag_us: int = 0
    stalls_ts: Array = field(default_factory=no_times)
    stalls_at: Array = field(default_factory=no_times)

    def at(self, ts: Array) -> Array:
        """Return the times at which the stream is complete up to each event time in `ts`."""
        times = np.asarray(ts, np.int64) + self.lag_us
        if not len(self.stalls_ts):
            return times
        latest = np.maximum.accumulate(self.stalls_at)
        stall = np.searchsorted(self.stalls_ts, ts, "right") - 1
        return np.where(stall >= 0, np.maximum(times, latest[np.maximum(stall, 0)]), times)

    def delayed(self, delay_us: int) -> Timing:
        """Return the timing at the other end of a link with this delay."""
        return Timing(self.lag_us + delay_us, self.stalls_ts, self.stalls_at + delay_us)

    def stalled(self, ts: Array, at: Array) -> Timing:
        """Return the timing with further stalls, which begin at the event times `ts` and end at the times `at`."""
        return _sorted(self.lag_us, np.concatenate([self.stalls_ts, ts]), np.concatenate([self.stalls_at, at]))

    def since(self, ts: int) -> Timing:
        """Return the timing without the stalls that have no effect on event times from `ts` on."""
        matter = self.stalls_at > ts + self.lag_us
        return self if matter.all() else Timing(self.lag_us, self.stalls_ts[matter], self.stalls_at[matter])


def combine(timings: Iterable[Timing]) -> Timing:
    """Return the timing of several streams together, which are complete when each stream is complete."""
    timings = list(timings)
    if len(timings) == 1:
        return timings[0]
    lag_us = max((timing.lag_us for timing in timings), default=0)
    with_stalls = [timing for timing in timings if len(timing.stalls_ts)]
    if not with_stalls:
        return Timing(lag_us)
    ts = np.concatenate([timing.stalls_ts for timing in with_stalls])
    return _sorted(lag_us, ts, np.concatenate([timing.stalls_at for timing in with_stalls]))


def _sorted(lag_us: int, ts: Array, at: Array) -> Timing:
    order = np.argsort(ts, kind="stable")
    return Timing(lag_us, ts[order], at[order])
