"""Where rules look back: the rows of each (buffer, key), in canonical order, one behind the other.

A list that is full moves to the end of a common pool with as much room again, so appending costs a constant on the
average and a list can be searched by halving.
"""

from __future__ import annotations

import numpy as np

from tocsin import kernels
from tocsin.engine.compile import Tables
from tocsin.engine.store import Store
from tocsin.kernels import Array, Lists


class Buffers:
    """All buffers of a detector."""

    def __init__(self) -> None:
        self.lists = _empty(64, 16, 64)
        self._count = 0
        self._used = 0
        self._added: Array = np.zeros(16, np.int64)
        self.fresh = 0
        """Entries appended since the last trim."""
        self.kept = 0
        """Entries that the last trim left."""
        self.counts: Array = np.zeros(0, np.int64)
        """How many entries each buffer has, those that are too old among them."""

    def trim(self, tables: Tables, store: Store, now: int, held: Array) -> tuple[Array, Array]:
        """Drops what no rule can reach from `now` on, and squeezes the store; rows that windows have `held` stay.

        Returns which rows stay, and their new numbers.
        """
        live = np.zeros(max(store.size, 1), np.uint8)
        live[held] = 1
        stay, entries = kernels.trim(self.lists, self._count, tables.horizons, now, live)
        number = store.squeeze(live)
        fresh = _empty(_power(2 * stay + 64), stay + 16, 2 * entries + 64)
        self._count, self._used = kernels.rebuild(self.lists, len(self.lists.hash_list), fresh, number)
        self.lists = fresh
        self._added = np.zeros(len(fresh.offset), np.int64)
        self.fresh, self.kept = 0, entries + len(held)
        self.counts = np.zeros(0, np.int64)
        self._count_entries(len(tables.buffer_ids), fresh.buffer[: self._count], fresh.length[: self._count])
        return live, number

    def _count_entries(self, buffers: int, which: Array, more: Array) -> None:
        if len(self.counts) < buffers:
            self.counts = _grown(self.counts, buffers)
        np.add.at(self.counts, which, more)

    def held(self, buffer: int) -> Array:
        """The rows of one buffer, in the order of the store."""
        lists = self.lists
        rows = [
            lists.pool_row[lists.offset[n] : lists.offset[n] + lists.length[n]]
            for n in np.nonzero(lists.buffer[: self._count] == buffer)[0]
        ]
        joined = np.concatenate(rows) if rows else np.zeros(0, np.int64)
        return np.sort(joined[joined >= 0])

    def retain(self, buffer: int, rows: Array) -> None:
        """Leaves in a buffer only these rows."""
        lists = self.lists
        stays = np.zeros(int(max(rows.max(initial=-1), lists.pool_row.max(initial=-1))) + 2, bool)
        stays[rows[rows >= 0]] = True
        for n in np.nonzero(lists.buffer[: self._count] == buffer)[0]:
            entries = lists.pool_row[lists.offset[n] : lists.offset[n] + lists.length[n]]
            gone = (entries >= 0) & ~stays[entries]
            entries[gone] = ~entries[gone]

    def add(self, tables: Tables, store: Store, pair_filter: Array, pair_row: Array) -> None:
        """Appends rows to the buffers of the filters they passed. Pairs come in canonical order."""
        fan_out, of_filter, following = tables.buffer_chains
        room = int(fan_out[pair_filter].sum()) if len(pair_filter) and len(fan_out) else 0
        if room == 0:
            return
        out_list, out_row = np.empty(room, np.int64), np.empty(room, np.int64)
        at = entries = 0
        while True:
            limit = min(len(self.lists.offset), len(self.lists.hash_list) // 2)
            at, entries, self._count = kernels.assign_lists(
                self.lists, self._count, limit, at, tables.code.data, store.words, store.present, pair_filter, pair_row,
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
        self.fresh += entries
        if tables.requests:
            self._count_entries(
                len(tables.buffer_ids), self.lists.buffer[out_list[:entries]], np.ones(entries, np.int64)
            )

    def _grow_tables(self, need: int) -> None:
        """Doubles the room for lists until there is enough."""
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
