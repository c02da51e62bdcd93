"""The ids that sources gave their events, one behind the other.

Ids are as many as events, so nobody looks whether one was there before: a name is its place in one run of bytes, and
taking in a column of them is a copy. What rows hold is moved together when rows are squeezed out of the store.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from tocsin.engine.kernels import Array


class Names:
    """Strings by place."""

    def __init__(self) -> None:
        self._bytes: Array = np.zeros(1024, np.uint8)
        self._ends: Array = np.zeros(65, np.int64)
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, column: pa.Array) -> Array:
        """Takes in a column of strings without nulls; returns their places."""
        column = column.cast(pa.large_string())
        size = len(column)
        places = np.arange(self._count, self._count + size)
        if size:
            _, offsets, data = column.buffers()
            ends = np.frombuffer(offsets, np.int64)[column.offset : column.offset + size + 1]
            used = int(self._ends[self._count])
            length = int(ends[-1] - ends[0])
            self._bytes = _roomy(self._bytes, used + length)
            self._ends = _roomy(self._ends, self._count + size + 1)
            if length:
                self._bytes[used : used + length] = np.frombuffer(data, np.uint8)[ends[0] : ends[-1]]
            self._ends[self._count + 1 : self._count + size + 1] = ends[1:] + (used - ends[0])
            self._count += size
        return places

    def texts(self, places: Array) -> pa.Array:
        """The strings at places; null where the place is negative."""
        unknown = places < 0
        mask = unknown if unknown.any() else None
        return self._all().take(pa.array(places, pa.int64(), mask=mask)).cast(pa.string())

    def keep(self, places: Array) -> Array:
        """Forgets all but the strings at these places, which move; returns where to."""
        used = np.nonzero(places >= 0)[0]
        kept = self._all().take(pa.array(places[used], pa.int64()))
        self._bytes, self._ends, self._count = np.zeros(1024, np.uint8), np.zeros(65, np.int64), 0
        moved = places.copy()
        moved[used] = self.add(kept)
        return moved

    def _all(self) -> pa.Array:
        ends, data = pa.py_buffer(self._ends[: self._count + 1]), pa.py_buffer(self._bytes)
        return pa.LargeStringArray.from_buffers(self._count, ends, data)


def _roomy(array: Array, size: int) -> Array:
    """The same with room for so many, and half as many more if it has to grow."""
    if size <= len(array):
        return array
    grown = np.zeros(size + size // 2, array.dtype)
    grown[: len(array)] = array
    return grown
