# mypy: disable-error-code="no-untyped-def"
"""Lists of rows for each buffer and key.

A *buffer* keeps the events that pass a filter, by one set of key attributes. It has a list of rows for each key, and a
hash table maps (buffer, key) to the list. All lists are sections of one *pool*. The functions look up lists, append
rows to them, drop rows that are too old, and compact the pool. A *pair* is a filter and a row that passed it.
"""

from __future__ import annotations

import numpy as np

from tocsin.kernels.core import jit, small
from tocsin.kernels.identity import mix


@small
def key_of(code, at, count, values, valid, row):
    """Return the key of a row from its values in the slots at `at`, and whether all of these values are valid.

    The key of one slot is its value. The key of several slots is a hash of their values.
    """
    if count == 0:
        return np.int64(0), True
    if count == 1:
        slot = code[at]
        return values[slot, row], valid[slot, row] != 0
    key = np.uint64(0)
    for i in range(count):
        slot = code[at + i]
        if valid[slot, row] == 0:
            return np.int64(0), False
        key = mix(key ^ np.uint64(values[slot, row]))
    return np.int64(key), True


@small
def find_list(lists, buffer, key):
    """Return the list of a buffer and key. If there is none, return the complement of the free cell for it."""
    mask = len(lists.hash_list) - 1
    at = np.int64(mix(np.uint64(key) + np.uint64(buffer) * np.uint64(0x9E3779B97F4A7C15)) & np.uint64(mask))
    while lists.hash_list[at] >= 0:
        if lists.hash_key[at] == key and lists.hash_buffer[at] == buffer:
            return lists.hash_list[at]
        at = (at + 1) & mask
    return ~at


@jit
def rehash(old, new):
    """Copy the lists of the hash table `old` to `new`, which is empty."""
    for h in range(len(old.hash_list)):
        if old.hash_list[h] >= 0:
            at = ~find_list(new, old.hash_buffer[h], old.hash_key[h])
            new.hash_list[at] = old.hash_list[h]
            new.hash_key[at] = old.hash_key[h]
            new.hash_buffer[at] = old.hash_buffer[h]


@jit
def assign_lists(
    lists,
    count,
    limit,
    start,
    code,
    values,
    valid,
    pair_filter,
    pair_row,
    fan_out,
    buffers_of,
    buffer_next,
    buffer_keys,
    count_of_entries,
    out_list,
    out_row,
    added,
):
    """Find or create the list of each pair (filter, row) in each buffer of the filter.

    The new rows of each list are counted in `added`. The work begins at pair `start`, and stops when there might be
    more than `limit` lists. Returns the next pair, the number of entries and the number of lists.
    """
    for p in range(start, len(pair_filter)):
        if count + fan_out[pair_filter[p]] > limit:
            return p, count_of_entries, count
        buffer = buffers_of[pair_filter[p]]
        while buffer >= 0:
            keys = buffer_keys[buffer]
            key, has_key = key_of(code, keys + 1, code[keys], values, valid, pair_row[p])
            if has_key:
                target = find_list(lists, buffer, key)
                if target < 0:
                    at = ~target
                    target = count
                    count += 1
                    lists.hash_list[at] = target
                    lists.hash_key[at] = key
                    lists.hash_buffer[at] = buffer
                    lists.buffer[target] = buffer
                    lists.offset[target] = 0
                    lists.capacity[target] = 0
                    lists.length[target] = 0
                added[target] += 1
                out_list[count_of_entries] = target
                out_row[count_of_entries] = pair_row[p]
                count_of_entries += 1
            buffer = buffer_next[buffer]
    return len(pair_filter), count_of_entries, count


@jit
def room_needed(lists, out_list, count_of_entries, added):
    """Return how many cells of the pool are needed for the lists that must grow."""
    total = 0
    for e in range(count_of_entries):
        n = out_list[e]
        if added[n] > 0 and lists.length[n] + added[n] > lists.capacity[n]:
            total += 2 * (lists.length[n] + added[n])
            added[n] = -added[n]
    for e in range(count_of_entries):
        n = out_list[e]
        if added[n] < 0:
            added[n] = -added[n]
    return total


@jit
def append(lists, used, out_list, out_row, count_of_entries, added, ts):
    """Append the rows to their lists and clear `added`. Return how many cells of the pool are in use.

    A full list moves to the end of the pool and gets twice the capacity that it needs.
    """
    for e in range(count_of_entries):
        n = out_list[e]
        if added[n] > 0:
            need = lists.length[n] + added[n]
            if need > lists.capacity[n]:
                old = lists.offset[n]
                for i in range(lists.length[n]):
                    lists.pool_row[used + i] = lists.pool_row[old + i]
                    lists.pool_ts[used + i] = lists.pool_ts[old + i]
                lists.offset[n] = used
                lists.capacity[n] = 2 * need
                used += 2 * need
            added[n] = 0
        at = lists.offset[n] + lists.length[n]
        lists.pool_row[at] = out_row[e]
        lists.pool_ts[at] = ts[out_row[e]]
        lists.length[n] += 1
    return used


@jit
def evict(lists, count, horizon, now, live):
    """Drop rows that were consumed or are too old for their buffer at time `now`. Mark the remaining rows in `live`.

    Returns (remaining lists, remaining entries).
    """
    stay, total = 0, 0
    for n in range(count):
        at, end = lists.offset[n], lists.offset[n] + lists.length[n]
        limit = now - horizon[lists.buffer[n]]
        to = at
        for i in range(at, end):
            row = lists.pool_row[i]
            if row >= 0 and lists.pool_ts[i] > limit:
                lists.pool_row[to] = row
                lists.pool_ts[to] = lists.pool_ts[i]
                live[row] = 1
                to += 1
        lists.length[n] = to - at
        if to > at:
            stay += 1
            total += to - at
    return stay, total


@jit
def rebuild(old, hash_size, new, new_row):
    """Copy the lists of `old` that are not empty to the tables `new`, with the row ids replaced according to `new_row`.

    Returns (lists, used pool cells).
    """
    count, used = 0, 0
    for h in range(hash_size):
        n = old.hash_list[h]
        if n < 0 or old.length[n] == 0:
            continue
        length = old.length[n]
        at = ~find_list(new, old.hash_buffer[h], old.hash_key[h])
        new.hash_list[at] = count
        new.hash_key[at] = old.hash_key[h]
        new.hash_buffer[at] = old.hash_buffer[h]
        new.buffer[count] = old.buffer[n]
        new.offset[count] = used
        new.capacity[count] = 2 * length
        new.length[count] = length
        for i in range(length):
            new.pool_row[used + i] = new_row[old.pool_row[old.offset[n] + i]]
            new.pool_ts[used + i] = old.pool_ts[old.offset[n] + i]
        used += 2 * length
        count += 1
    return count, used
