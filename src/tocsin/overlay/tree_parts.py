"""When is a stream complete up to an event time? Times as a function, so that one batch can hold minutes of events.

Hosts that only want answers need none of this. The simulator hands over events in large batches and still measures
the delay of each: every row carries the time `at` which it was sent, and every stream a `Timing`: by which time all
events before `ts` have been sent. That is `ts` plus a lag, or later where something had to be waited for (a *stall*).
All times are in microseconds.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
BEGINNING = -(2**61)
"""Before all events."""


def no_times() -> Array:
    """No times at all."""
    return np.zeros(0, np.int64)


@dataclass(frozen=True)
class Timing:
    """Complete up to `ts` at max(ts + lag_us, the latest stall that began at or before ts)."""

    lag_us: int = 0
    stalls_ts: Array = field(default_factory=no_times)
    stalls_at: Array = field(default_factory=no_times)

    def at(self, ts: Array) -> Array:
        """The times at which the stream is complete up to these event times."""
        times = np.asarray(ts, np.int64) + self.lag_us
        if not len(self.stalls_ts):
            return times
        latest = np.maximum.accumulate(self.stalls_at)
        found = np.searchsorted(self.stalls_ts, ts, "right") - 1
        return np.where(found >= 0, np.maximum(times, latest[np.maximum(found, 0)]), times)

    def delayed(self, delay_us: int) -> Timing:
        """The same at the other end of a link."""
        return Timing(self.lag_us + delay_us, self.stalls_ts, self.stalls_at + delay_us)

    def stalled(self, ts: Array, at: Array) -> Timing:
        """With more stalls: what begins at `ts` takes until `at`."""
        return _sorted(self.lag_us, np.concatenate([self.stalls_ts, ts]), np.concatenate([self.stalls_at, at]))

    def since(self, ts: int) -> Timing:
        """Without the stalls that make no difference from `ts` on."""
        matter = self.stalls_at > ts + self.lag_us
        return self if matter.all() else Timing(self.lag_us, self.stalls_ts[matter], self.stalls_at[matter])


def together(timings: Iterable[Timing]) -> Timing:
    """Of several streams: complete when all are."""
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
