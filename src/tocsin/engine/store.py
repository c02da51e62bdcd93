"""The events that some rule may still need, in columns.

One table for all types: an attribute of a type has a slot, and types share slots. Rows of one type stand in canonical
order. Rows that no buffer holds any more are squeezed out when they outnumber the others, so that an event is moved a
constant number of times on the average.

Where the state is written down piece by piece, rows that some buffer holds have numbers that stay when they move.

The ids that sources gave their events, one behind the other.

Ids are as many as events, so nobody looks whether one was there before: a name is its place in one run of bytes, and
taking in a column of them is a copy. What rows hold is moved together when rows are squeezed out of the store.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from tocsin.kernels import NONE, Array


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


COLUMNS = ("ts", "seq", "type", "first", "second", "given", "born")


class Store:
    """Rows [0, size): time, type, identity and one 64-bit word for each slot."""

    def __init__(self) -> None:
        self.size = 0
        self.width = 0
        self._capacity = 0
        self._added = 0
        """How many rows there was room made for the last time."""
        self.ts: Array = np.zeros(0, np.int64)
        self.seq: Array = np.zeros(0, np.int64)
        self.type: Array = np.zeros(0, np.int64)
        self.first: Array = np.zeros(0, np.uint64)
        self.second: Array = np.zeros(0, np.uint64)
        self.given: Array = np.zeros(0, np.int64)
        """The place in `names` of the id that the source gave, or -1."""
        self.names = Names()
        self.born: Array = np.zeros(0, np.int64)
        """The row's number among all rows ever numbered, or -1."""
        self.numbered = 0
        """How many numbers were given out."""
        self.recent = 0
        """The first row that is not written down yet."""
        self.words: Array = np.zeros((0, 0), np.int64)
        self.present: Array = np.zeros((0, 0), np.uint8)

    def reserve(self, count: int, width: int) -> int:
        """Makes room for that many rows more, with no values yet; returns the number of the first."""
        width, self._added = max(width, 1), count
        if self.size + count > self._capacity or width > self.width:
            capacity = self._capacity
            if self.size + count > capacity:
                capacity = max(1024, self.size + count + self.size // 2)
            for name in COLUMNS:
                old = getattr(self, name)
                grown = np.empty(capacity, old.dtype)
                grown[: self.size] = old[: self.size]
                setattr(self, name, grown)
            words = np.zeros((width, capacity), np.int64)
            present = np.zeros((width, capacity), np.uint8)
            words[: self.width, : self.size] = self.words[:, : self.size]
            present[: self.width, : self.size] = self.present[:, : self.size]
            self.words, self.present = words, present
            self.width, self._capacity = width, capacity
        self.present[:, self.size : self.size + count] = 0
        self.born[self.size : self.size + count] = NONE
        return self.size

    def keep(self, base: int, chosen: Array) -> None:
        """Of the rows from `base` on, which are not numbered yet, keeps those at these places, which ascend."""
        count = len(chosen)
        if base + count < self.size:
            origin, rows = base + chosen, slice(base, base + count)
            for column in (self.ts, self.seq, self.type, self.first, self.second, self.given):
                column[rows] = column[origin]
            self.words[:, rows] = self.words[:, origin]
            self.present[:, rows] = self.present[:, origin]
        self.size = base + count

    def permute(self, rows: Array, order: Array) -> None:
        """Puts row `rows[order[i]]` where row `rows[i]` was; none of them is numbered yet."""
        origin = rows[order]
        for column in (self.ts, self.seq, self.type, self.first, self.second, self.given):
            column[rows] = column[origin]
        self.words[:, rows] = self.words[:, origin]
        self.present[:, rows] = self.present[:, origin]

    def number(self, rows: Array) -> None:
        """Gives rows the next numbers. They ascend, and one may stand there several times."""
        if len(rows):
            rows = rows[np.concatenate([[True], rows[1:] != rows[:-1]])]
            self.born[rows] = np.arange(self.numbered, self.numbered + len(rows))
            self.numbered += len(rows)

    def squeeze(self, live: Array) -> Array:
        """Keeps only the rows marked live; returns the new number of each row."""
        stay = np.nonzero(live[: self.size])[0]
        count = len(stay)
        number = np.cumsum(live[: self.size], dtype=np.int64) - 1
        self.recent = int(number[self.recent - 1]) + 1 if self.recent else 0
        for name in COLUMNS:
            column = getattr(self, name)
            column[:count] = column[stay]
        for slot in range(self.width):
            self.words[slot, :count] = self.words[slot, stay]
            self.present[slot, :count] = self.present[slot, stay]
        self.size = count
        self.given[:count] = self.names.keep(self.given[:count])
        needed = count + self._added  # else the room for each batch would be given back and made again
        if self._capacity > 4 * max(needed, 1 << 16):
            self._shrink(2 * max(needed, 1 << 15))
        return number

    def _shrink(self, capacity: int) -> None:
        for name in COLUMNS:
            setattr(self, name, getattr(self, name)[:capacity].copy())
        self.words = self.words[:, :capacity].copy()
        self.present = self.present[:, :capacity].copy()
        self._capacity = capacity
