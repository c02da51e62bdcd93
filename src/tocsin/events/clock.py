"""How far ahead of its host's clock may an event be?

Time in a stream is what the newest event says, so one sender whose clock is fast would make the events of all others
late. A host that has a clock rejects events that are further ahead of it than a bound. Times in the past are not
limited: old data can be replayed.
"""

from __future__ import annotations

from typing import NamedTuple

AHEAD_US = 60_000_000
"""How far ahead of the clock an event may be, unless the user says otherwise."""


class Clock(NamedTuple):
    """What a host's clock says, and how far ahead of it an event may be, in microseconds."""

    now_us: int
    ahead_us: int = AHEAD_US

    @property
    def latest_us(self) -> int:
        """The latest time that an event may have."""
        return self.now_us + self.ahead_us

    def reason(self, ts: int) -> str:
        """Why an event of a time is rejected.

        >>> Clock(0).reason(5_400_500_000)
        'ts is 90 min ahead of the clock; at most 1 min is accepted'
        """
        return f"ts is {_length(ts - self.now_us)} ahead of the clock; at most {_length(self.ahead_us)} is accepted"


_UNITS = (("d", 86_400_000_000), ("h", 3_600_000_000), ("min", 60_000_000), ("s", 1_000_000), ("ms", 1_000), ("us", 1))


def _length(us: int) -> str:
    """A length of time in the largest unit of which there are at least two, or exactly one."""
    unit, worth = next((one for one in _UNITS if us >= 2 * one[1] or us == one[1]), _UNITS[-1])
    return f"{us // worth} {unit}"
