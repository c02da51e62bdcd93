"""Which events went up before? A set of the identities of their ids, with the times of the events."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from tocsin.engine import kernels
from tocsin.overlay.timing import Array

LEAST = 64


def _words(size: int) -> Array:
    return np.zeros(size, np.uint64)


def _free(size: int) -> Array:
    return np.full(size, kernels.seen.FREE, np.int64)


@dataclass
class Sent:
    """At most half of the places are taken."""

    first: Array = field(default_factory=lambda: _words(LEAST))
    second: Array = field(default_factory=lambda: _words(LEAST))
    ts: Array = field(default_factory=lambda: _free(LEAST))
    count: int = 0

    def __post_init__(self) -> None:
        """What was read from bytes cannot be written to."""
        self.first, self.second, self.ts = (
            np.require(one, requirements="W") for one in (self.first, self.second, self.ts)
        )

    def __len__(self) -> int:
        return self.count

    def add(self, identities: tuple[Array, Array], ts: Array) -> Array:
        """Adds events; returns for each whether it was not there before."""
        if 2 * (self.count + len(ts)) > len(self.ts):
            self._lay_out(self.ts != kernels.seen.FREE, len(ts))
        unseen = np.zeros(len(ts), bool)
        self.count += kernels.seen.add_unseen(self.first, self.second, self.ts, *identities, ts, unseen)
        return unseen

    def forget(self, floor: int) -> None:
        """Drops events before a time."""
        self._lay_out(self.ts >= max(floor, kernels.seen.FREE + 1), 0)

    def _lay_out(self, stay: Array, more: int) -> None:
        """Keeps what stays, with room for more."""
        first, second, ts = self.first[stay], self.second[stay], self.ts[stay]
        size = 1 << max(2 * (len(ts) + more), LEAST - 1).bit_length()
        self.first, self.second, self.ts = _words(size), _words(size), _free(size)
        unseen = np.zeros(len(ts), bool)
        self.count = kernels.seen.add_unseen(self.first, self.second, self.ts, first, second, ts, unseen)
