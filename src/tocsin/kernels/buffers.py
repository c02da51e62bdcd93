# mypy: disable-error-code="no-untyped-def"
"""Lists of rows by buffer and key: found by hashing, appended to, trimmed, and moved when they are full."""

from __future__ import annotations

import numpy as np

from tocsin.kernels.core import jit, small
from tocsin.kernels.identity import mix


@small
def key_of(code, at, count, words, present, row):
    """The chain that a row belongs to, from the slots at `at`: the value itself if there is one, else a mixture.

    Returns (key, whether every part has a value).
    """
    if count == 0:
        return np.int64(0), True
    if count == 1:
        slot = code[at]
        return words[slot, row], present[slot, row] != 0
    key = np.uint64(0)
    for i in range(count):
        slot = code[at + i]
        if present[slot, row] == 0:
            return np.int64(0), False
        key = mix(key ^ np.uint64(words[slot, row]))
    return np.int64(key), True


@small
def find_list(lists, buffer, key):
    """The list of a (buffer, key), or the complement of the free place in the hash table."""
    mask = len(lists.hash_list) - 1
    at = np.int64(mix(np.uint64(key) + np.uint64(buffer) * np.uint64(0x9E3779B97F4A7C15)) & np.uint64(mask))
    while lists.hash_list[at] >= 0:
        if lists.hash_key[at] == key and lists.hash_buffer[at] == buffer:
            return lists.hash_list[at]
        at = (at + 1) & mask
    return ~at


@jit
def rehash(old, new):
    """Enters the lists of one hash table into another, empty one."""
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
    words,
    present,
    pair_filter,
    pair_row,
    fan_out,
    buffers_of,
    buffer_next,
    buffer_keys,
    entries,
    out_list,
    out_row,
    added,
):
    """For each pair and buffer of its filter, the list that the row goes to; new lists are made.

    Goes from pair `start` until there may be more than `limit` lists. Returns (next pair, entries, lists).
    `added[list]` counts what comes to each.
    """
    for p in range(start, len(pair_filter)):
        if count + fan_out[pair_filter[p]] > limit:
            return p, entries, count
        buffer = buffers_of[pair_filter[p]]
        while buffer >= 0:
            keys = buffer_keys[buffer]
            key, known = key_of(code, keys + 1, code[keys], words, present, pair_row[p])
            if known:
                found = find_list(lists, buffer, key)
                if found < 0:
                    at = ~found
                    found = count
                    count += 1
                    lists.hash_list[at] = found
                    lists.hash_key[at] = key
                    lists.hash_buffer[at] = buffer
                    lists.buffer[found] = buffer
                    lists.offset[found] = 0
                    lists.capacity[found] = 0
                    lists.length[found] = 0
                added[found] += 1
                out_list[entries] = found
                out_row[entries] = pair_row[p]
                entries += 1
            buffer = buffer_next[buffer]
    return len(pair_filter), entries, count


@jit
def room_needed(lists, out_list, entries, added):
    """How much of the pool the lists that must grow will take."""
    total = 0
    for e in range(entries):
        n = out_list[e]
        if added[n] > 0 and lists.length[n] + added[n] > lists.capacity[n]:
            total += 2 * (lists.length[n] + added[n])
            added[n] = -added[n]
    for e in range(entries):
        n = out_list[e]
        if added[n] < 0:
            added[n] = -added[n]
    return total


@jit
def append(lists, used, out_list, out_row, entries, added, ts):
    """Puts the rows at the ends of their lists, and clears `added`.

    A list that is full moves to the end of the pool, with as much room again.
    """
    for e in range(entries):
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
def trim(lists, count, horizon, now, live):
    """Drops from every list what is too old for its buffer at time `now` and what was consumed; marks the rows that
    stay.

    Returns (lists that stay, entries that stay).
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
    """Moves the lists that are not empty into fresh tables, with rows under their new numbers.

    Returns (lists, pool used).
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
