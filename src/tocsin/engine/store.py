"""The events that some rule may still need, in columns.

One table for all types: an attribute of a type has a slot, and types share slots. Rows of one type stand in canonical
order. Rows that no buffer holds any more are squeezed out when they outnumber the others, so that an event is moved a
constant number of times on the average.

Where the state is written down piece by piece, rows that some buffer holds have numbers that stay when they move.
"""

from __future__ import annotations

import numpy as np

from tocsin.engine.kernels import NONE, Array
from tocsin.engine.names import Names

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
