"""Store the events that rules may still need, in columns.

All types share one table. Each attribute of a type has a *slot*, the number of its column, and types share slots. Rows
of one type are in canonical order. Rows that no buffer holds are removed when they outnumber the remaining rows, so
that an event moves a constant number of times on average. For incremental checkpoints, buffered rows get *row ids*,
which do not change when rows move.

The ids that the source gives events are appended to one array of bytes. They are not deduplicated, because almost every
id is new.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from tocsin.kernels import NONE, Array


class SourceIds:
    """Holds the ids that sources gave to events, by position."""

    def __init__(self) -> None:
        self._bytes: Array = np.zeros(1024, np.uint8)
        self._ends: Array = np.zeros(65, np.int64)
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, column: pa.Array) -> Array:
        """Add a column of strings without nulls, and return their positions."""
        column = column.cast(pa.large_string())
        size = len(column)
        positions = np.arange(self._count, self._count + size)
        if size:
            _, offsets, data = column.buffers()
            ends = np.frombuffer(offsets, np.int64)[column.offset : column.offset + size + 1]
            used = int(self._ends[self._count])
            length = int(ends[-1] - ends[0])
            self._bytes = _with_room(self._bytes, used + length)
            self._ends = _with_room(self._ends, self._count + size + 1)
            if length:
                self._bytes[used : used + length] = np.frombuffer(data, np.uint8)[ends[0] : ends[-1]]
            self._ends[self._count + 1 : self._count + size + 1] = ends[1:] + (used - ends[0])
            self._count += size
        return positions

    def strings(self, positions: Array) -> pa.Array:
        """Return the strings at `positions`, with null for negative positions."""
        unknown = positions < 0
        mask = unknown if unknown.any() else None
        return self._all().take(pa.array(positions, pa.int64(), mask=mask)).cast(pa.string())

    def retain(self, positions: Array) -> Array:
        """Remove all strings except those at `positions`, and return their new positions."""
        used = np.nonzero(positions >= 0)[0]
        kept = self._all().take(pa.array(positions[used], pa.int64()))
        self._bytes, self._ends, self._count = np.zeros(1024, np.uint8), np.zeros(65, np.int64), 0
        moved = positions.copy()
        moved[used] = self.add(kept)
        return moved

    def _all(self) -> pa.Array:
        ends, data = pa.py_buffer(self._ends[: self._count + 1]), pa.py_buffer(self._bytes)
        return pa.LargeStringArray.from_buffers(self._count, ends, data)


def _with_room(array: Array, size: int) -> Array:
    """Return the array if it has `size` elements, otherwise a copy with room for half as many more."""
    if size <= len(array):
        return array
    grown = np.zeros(size + size // 2, array.dtype)
    grown[: len(array)] = array
    return grown


COLUMNS = ("ts", "seq", "type", "id_high", "id_low", "source_id", "row_ids")


class EventStore:
    """A table of events in the rows [0, size), with time, type, event id and one 64-bit value per slot."""

    def __init__(self) -> None:
        self.size = 0
        self.width = 0
        self._capacity = 0
        self._reserved = 0
        """The number of rows in the last call of `reserve`."""
        self.ts: Array = np.zeros(0, np.int64)
        self.seq: Array = np.zeros(0, np.int64)
        self.type: Array = np.zeros(0, np.int64)
        self.id_high: Array = np.zeros(0, np.uint64)
        self.id_low: Array = np.zeros(0, np.uint64)
        self.source_id: Array = np.zeros(0, np.int64)
        """The position in `source_ids` of each row's source id, or -1 if the row has no source id."""
        self.source_ids = SourceIds()
        self.row_ids: Array = np.zeros(0, np.int64)
        """The row id of each row, or -1 if the row has none."""
        self.next_row_id = 0
        """The number of row ids assigned so far."""
        self.unsaved_from = 0
        """The number of the first row that is not in an incremental checkpoint yet."""
        self.values: Array = np.zeros((0, 0), np.int64)
        self.valid: Array = np.zeros((0, 0), np.uint8)

    def reserve(self, count: int, width: int) -> int:
        """Reserve `count` rows with room for `width` slots and without valid values. Return the first row."""
        width, self._reserved = max(width, 1), count
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
            valid = np.zeros((width, capacity), np.uint8)
            words[: self.width, : self.size] = self.values[:, : self.size]
            valid[: self.width, : self.size] = self.valid[:, : self.size]
            self.values, self.valid = words, valid
            self.width, self._capacity = width, capacity
        self.valid[:, self.size : self.size + count] = 0
        self.row_ids[self.size : self.size + count] = NONE
        return self.size

    def retain(self, base: int, chosen: Array) -> None:
        """Remove the rows from `base` on, except those at the ascending positions `chosen` after `base`.

        The rows must not have row ids yet.
        """
        count = len(chosen)
        if base + count < self.size:
            origin, rows = base + chosen, slice(base, base + count)
            for column in (self.ts, self.seq, self.type, self.id_high, self.id_low, self.source_id):
                column[rows] = column[origin]
            self.values[:, rows] = self.values[:, origin]
            self.valid[:, rows] = self.valid[:, origin]
        self.size = base + count

    def permute(self, rows: Array, order: Array) -> None:
        """Move the row `rows[order[i]]` to `rows[i]`, for each i. The rows must not have row ids yet."""
        origin = rows[order]
        for column in (self.ts, self.seq, self.type, self.id_high, self.id_low, self.source_id):
            column[rows] = column[origin]
        self.values[:, rows] = self.values[:, origin]
        self.valid[:, rows] = self.valid[:, origin]

    def assign_row_ids(self, rows: Array) -> None:
        """Assign the next row ids to `rows`, which ascend and may repeat."""
        if len(rows):
            rows = rows[np.concatenate([[True], rows[1:] != rows[:-1]])]
            self.row_ids[rows] = np.arange(self.next_row_id, self.next_row_id + len(rows))
            self.next_row_id += len(rows)

    def compact(self, live: Array) -> Array:
        """Remove the rows that are not in the mask `live`, and return the new number of each row."""
        stay = np.nonzero(live[: self.size])[0]
        count = len(stay)
        number = np.cumsum(live[: self.size], dtype=np.int64) - 1
        self.unsaved_from = int(number[self.unsaved_from - 1]) + 1 if self.unsaved_from else 0
        for name in COLUMNS:
            column = getattr(self, name)
            column[:count] = column[stay]
        for slot in range(self.width):
            self.values[slot, :count] = self.values[slot, stay]
            self.valid[slot, :count] = self.valid[slot, stay]
        self.size = count
        self.source_id[:count] = self.source_ids.retain(self.source_id[:count])
        needed = count + self._reserved  # keep the capacity for the next batch
        if self._capacity > 4 * max(needed, 1 << 16):
            self._shrink(2 * max(needed, 1 << 15))
        return number

    def _shrink(self, capacity: int) -> None:
        for name in COLUMNS:
            setattr(self, name, getattr(self, name)[:capacity].copy())
        self.values = self.values[:, :capacity].copy()
        self.valid = self.valid[:, :capacity].copy()
        self._capacity = capacity
