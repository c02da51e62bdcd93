"""Keep the buffers of past events, in which rules look back.

A buffer has a list of rows for each key, in canonical order, which can be searched by bisection. All lists are in a
common pool. A list that is full moves to the end of the pool with twice the capacity, so that appending has amortised
constant cost. Rules that look for the same events share a buffer.
"""

from __future__ import annotations

import numpy as np

from tocsin import kernels
from tocsin.engine.compile import RuleTables
from tocsin.engine.store import EventStore
from tocsin.kernels import Array, Lists


class Buffers:
    """Holds all event buffers of a pipeline."""

    def __init__(self) -> None:
        self.lists = _empty(64, 16, 64)
        self._count = 0
        self._used = 0
        self._added: Array = np.zeros(16, np.int64)
        self.appended = 0
        """The number of entries that were appended since the last eviction."""
        self.retained = 0
        """The number of entries that the last eviction retained."""
        self.counts: Array = np.zeros(0, np.int64)
        """The number of entries of each buffer, including expired entries."""

    def evict(self, tables: RuleTables, store: EventStore, now: int, pinned: Array) -> tuple[Array, Array]:
        """Remove the entries that are expired when the watermark is `now` (µs), and compact the store.

        The rows in `pinned`, to which windows refer, stay in the store. Return a mask of the rows that stay, and the
        new number of each row.
        """
        live = np.zeros(max(store.size, 1), np.uint8)
        live[pinned] = 1
        stay, entries = kernels.evict(self.lists, self._count, tables.retentions, now, live)
        number = store.compact(live)
        fresh = _empty(_power(2 * stay + 64), stay + 16, 2 * entries + 64)
        self._count, self._used = kernels.rebuild(self.lists, len(self.lists.hash_list), fresh, number)
        self.lists = fresh
        self._added = np.zeros(len(fresh.offset), np.int64)
        self.appended, self.retained = 0, entries + len(pinned)
        self.counts = np.zeros(0, np.int64)
        self._count_entries(len(tables.buffer_ids), fresh.buffer[: self._count], fresh.length[: self._count])
        return live, number

    def _count_entries(self, buffers: int, which: Array, more: Array) -> None:
        if len(self.counts) < buffers:
            self.counts = _grown(self.counts, buffers)
        np.add.at(self.counts, which, more)

    def rows_of(self, buffer: int) -> Array:
        """Return the rows in the buffer with the number `buffer`, in store order."""
        lists = self.lists
        rows = [
            lists.pool_row[lists.offset[n] : lists.offset[n] + lists.length[n]]
            for n in np.nonzero(lists.buffer[: self._count] == buffer)[0]
        ]
        joined = np.concatenate(rows) if rows else np.zeros(0, np.int64)
        return np.sort(joined[joined >= 0])

    def retain(self, buffer: int, rows: Array) -> None:
        """Remove all rows except `rows` from the buffer with the number `buffer`."""
        lists = self.lists
        stays = np.zeros(int(max(rows.max(initial=-1), lists.pool_row.max(initial=-1))) + 2, bool)
        stays[rows[rows >= 0]] = True
        for n in np.nonzero(lists.buffer[: self._count] == buffer)[0]:
            entries = lists.pool_row[lists.offset[n] : lists.offset[n] + lists.length[n]]
            removed = (entries >= 0) & ~stays[entries]
            entries[removed] = ~entries[removed]

    def add(self, tables: RuleTables, store: EventStore, pair_filter: Array, pair_row: Array) -> None:
        """Append each row in `pair_row` to the buffers of its filter in `pair_filter`.

        These pairs (filter, row) must be in canonical order.
        """
        fan_out, of_filter, following = tables.buffer_chains
        room = int(fan_out[pair_filter].sum()) if len(pair_filter) and len(fan_out) else 0
        if room == 0:
            return
        out_list, out_row = np.empty(room, np.int64), np.empty(room, np.int64)
        at = entries = 0
        while True:
            limit = min(len(self.lists.offset), len(self.lists.hash_list) // 2)
            at, entries, self._count = kernels.assign_lists(
                self.lists, self._count, limit, at, tables.code.data, store.values, store.valid, pair_filter, pair_row,
                fan_out, of_filter, following, tables.buffer_keys, entries, out_list, out_row, self._added,
            )  # fmt: skip
            if at == len(pair_filter):
                break
            self._grow_tables(self._count + int(fan_out.max()))
        need = kernels.room_needed(self.lists, out_list, entries, self._added)
        if self._used + need > len(self.lists.pool_row):
            size = 2 * (self._used + need)
            self.lists = self.lists._replace(
                pool_row=_grown(self.lists.pool_row, size), pool_ts=_grown(self.lists.pool_ts, size)
            )
        self._used = kernels.append(self.lists, self._used, out_list, out_row, entries, self._added, store.ts)
        self.appended += entries
        if tables.requests:
            self._count_entries(
                len(tables.buffer_ids), self.lists.buffer[out_list[:entries]], np.ones(entries, np.int64)
            )

    def _grow_tables(self, need: int) -> None:
        """Double the capacity for lists until it is at least `need`."""
        lists, size = self.lists, 2 * len(self.lists.offset)
        while size < need:
            size *= 2
        names = ("offset", "capacity", "length", "buffer")
        grown = lists._replace(**{name: _grown(getattr(lists, name), size) for name in names})
        self._added = _grown(self._added, size)
        if 2 * size > len(lists.hash_list):
            hashes = _power(2 * size)
            grown = grown._replace(
                hash_buffer=np.zeros(hashes, np.int64),
                hash_key=np.zeros(hashes, np.int64),
                hash_list=np.full(hashes, kernels.NONE, np.int64),
            )
            kernels.rehash(lists, grown)
        self.lists = grown


def _empty(hash_size: int, lists: int, pool: int) -> Lists:
    return Lists(
        np.zeros(hash_size, np.int64),
        np.zeros(hash_size, np.int64),
        np.full(hash_size, kernels.NONE, np.int64),
        np.zeros(lists, np.int64),
        np.zeros(lists, np.int64),
        np.zeros(lists, np.int64),
        np.zeros(lists, np.int64),
        np.zeros(pool, np.int64),
        np.zeros(pool, np.int64),
    )


def _grown(array: Array, size: int) -> Array:
    grown = np.zeros(size, array.dtype)
    grown[: len(array)] = array
    return grown


def _power(size: int) -> int:
    return 1 << (size - 1).bit_length()
