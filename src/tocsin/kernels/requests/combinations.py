# mypy: disable-error-code="no-untyped-def,assignment"
"""Combinations of events that operators in Snoop's contexts retain, and the operators `TimesEq` and `TimesDf`.

A *combination* is a set of events that fill leaves of an expression, stored as (leaf, row) pairs side by side in a
pool. An operator retains a list of combinations for each operand, linked in order of arrival. Combinations are only
appended to the pool. `compact` drops those that no list contains. Combinations that are too old are unlinked when a
loop meets them.

    comb: one column for each combination; pool: one for each pair; ends: first and last of each list
"""

from __future__ import annotations

import numpy as np

from tocsin.kernels.core import FRAME, STACK, get, jit, put, small
from tocsin.kernels.expressions import evaluate
from tocsin.kernels.layout import CONTINUOUS, CUMULATIVE, N_ATTRIBUTE, N_FIRST, N_LIST, RECENT
from tocsin.kernels.requests.search import before

AT, SIZE, LOW, LATE_TS, LATE_SEQ, NEXT, PREVIOUS, VALUE = range(8)
"""The words of a combination: the offset and the number of its pairs, its earliest ts, its latest (ts, seq), and its
neighbours in a list. For repetitions also the value of the attribute."""

COMB_WORDS = 8


@jit
def grow_columns(array, size):
    """Return `array`, or a larger copy of it, with room for `size` columns."""
    if array.shape[1] >= size:
        return array
    larger = np.zeros((array.shape[0], max(size, 2 * array.shape[1])), np.int64)
    larger[:, : array.shape[1]] = array
    return larger


@jit
def grow(array, size):
    """Return `array`, or a larger copy of it, with room for `size` elements."""
    if len(array) >= size:
        return array
    larger = np.zeros(max(size, 2 * len(array)), np.int64)
    larger[: len(array)] = array
    return larger


@small
def append(comb, ends, which, c):
    """Append combination `c` to list `which`."""
    last = ends[1, which]
    comb[NEXT, c], comb[PREVIOUS, c] = -1, last
    if last < 0:
        ends[0, which] = c
    else:
        comb[NEXT, last] = c
    ends[1, which] = c


@small
def unlink(comb, ends, which, c):
    """Remove combination `c` from list `which`."""
    prior, after = comb[PREVIOUS, c], comb[NEXT, c]
    if prior < 0:
        ends[0, which] = after
    else:
        comb[NEXT, prior] = after
    if after < 0:
        ends[1, which] = prior
    else:
        comb[PREVIOUS, after] = prior


@small
def following(comb, ends, which, c, floor):
    """Return the combination after `c` in list `which`, or the first if `c` is -1.

    Combinations with a ts before `floor` are unlinked and skipped.
    """
    c = ends[0, which] if c < 0 else comb[NEXT, c]
    while c >= 0 and comb[LOW, c] < floor:
        after = comb[NEXT, c]
        unlink(comb, ends, which, c)
        c = after
    return c


@jit
def disjoint(comb, pool, x, y):
    """Return whether the combinations `x` and `y` share no event."""
    for i in range(comb[AT, x], comb[AT, x] + comb[SIZE, x]):
        for j in range(comb[AT, y], comb[AT, y] + comb[SIZE, y]):
            if pool[1, i] == pool[1, j]:
                return False
    return True


@jit
def disjoint_from(comb, pool, some, begin, end, x):
    """Return whether combination `x` shares no event with any of the combinations `some[begin:end]`."""
    i = begin
    while i < end and disjoint(comb, pool, some[i], x):
        i += 1
    return i == end


@jit
def finish(comb, pool, used, ts, seq):
    """Set the times of the newest combination, whose pairs are already in the pool, and return that combination."""
    c = used[0]
    begin, end = comb[AT, c], comb[AT, c] + comb[SIZE, c]
    row = pool[1, begin]
    low, late_ts, late_seq = ts[row], ts[row], seq[row]
    for i in range(begin + 1, end):
        row = pool[1, i]
        low = min(low, ts[row])
        if ts[row] > late_ts or (ts[row] == late_ts and seq[row] > late_seq):
            late_ts, late_seq = ts[row], seq[row]
    comb[LOW, c], comb[LATE_TS, c], comb[LATE_SEQ, c] = low, late_ts, late_seq
    comb[NEXT, c], comb[PREVIOUS, c], comb[VALUE, c] = -1, -1, 0
    used[0], used[1] = c + 1, end
    return c


@jit
def add_single(comb, pool, used, leaf, row, ts, seq):
    """Add a combination of one event and return it. There must be room."""
    c = used[0]
    comb[AT, c], comb[SIZE, c] = used[1], 1
    pool[0, used[1]], pool[1, used[1]] = leaf, row
    return finish(comb, pool, used, ts, seq)


@jit
def add_merged(comb, pool, used, some, begin, end, ts, seq, types, ranks):
    """Add a combination of all events of `some[begin:end]`, by leaf and then in canonical order. There must be room."""
    c, at = used[0], used[1]
    comb[AT, c] = at
    size = 0
    for k in range(begin, end):
        x = some[k]
        for i in range(comb[AT, x], comb[AT, x] + comb[SIZE, x]):
            leaf, row = pool[0, i], pool[1, i]
            j = at + size
            while j > at and (
                pool[0, j - 1] > leaf or (pool[0, j - 1] == leaf and before(row, pool[1, j - 1], ts, seq, types, ranks))
            ):
                pool[0, j], pool[1, j] = pool[0, j - 1], pool[1, j - 1]
                j -= 1
            pool[0, j], pool[1, j] = leaf, row
            size += 1
    comb[SIZE, c] = size
    return finish(comb, pool, used, ts, seq)


@jit
def total_size(comb, some, begin, end):
    """Return the total number of pairs of the combinations `some[begin:end]`."""
    total = 0
    for k in range(begin, end):
        total += comb[SIZE, some[k]]
    return total


@jit
def compact(comb, pool, ends, live, number):
    """Return new (comb, pool, ends, used) with only the combinations that are in a list and whose rows are all live.

    The rows get the ids in `number`.
    """
    combs, pairs = 0, 0
    for which in range(ends.shape[1]):
        c = ends[0, which]
        while c >= 0:
            combs += 1
            pairs += comb[SIZE, c]
            c = comb[NEXT, c]
    new_comb, new_pool = np.zeros((COMB_WORDS, max(combs, 16)), np.int64), np.zeros((2, max(pairs, 16)), np.int64)
    new_ends, used = np.full((2, ends.shape[1]), -1, np.int64), np.zeros(2, np.int64)
    for which in range(ends.shape[1]):
        c = ends[0, which]
        while c >= 0:
            whole = True
            for i in range(comb[AT, c], comb[AT, c] + comb[SIZE, c]):
                whole = whole and live[pool[1, i]] != 0
            if whole:
                new_c = used[0]
                new_comb[:, new_c] = comb[:, c]
                new_comb[AT, new_c] = used[1]
                for i in range(comb[SIZE, c]):
                    new_pool[0, used[1] + i] = pool[0, comb[AT, c] + i]
                    new_pool[1, used[1] + i] = number[pool[1, comb[AT, c] + i]]
                used[0], used[1] = new_c + 1, used[1] + comb[SIZE, c]
                append(new_comb, new_ends, which, new_c)
            c = comb[NEXT, c]
    return new_comb, new_pool, new_ends, used


@jit
def list_pairs(comb, pool, ends, out):
    """Write (list, index of the combination, leaf, row) for every pair of the combinations in lists.

    `out` must have room for all pairs. Returns their number.
    """
    n, numbered = 0, 0
    for which in range(ends.shape[1]):
        c = ends[0, which]
        while c >= 0:
            for i in range(comb[AT, c], comb[AT, c] + comb[SIZE, c]):
                out[0, n], out[1, n], out[2, n], out[3, n] = which, numbered, pool[0, i], pool[1, i]
                n += 1
            numbered += 1
            c = comb[NEXT, c]
    return n


@jit
def restore_pairs(env, nodes, pairs, ends, ts, seq):
    """Rebuild the lists of combinations from the output of `list_pairs`. Return (comb, pool, used)."""
    count = pairs.shape[1]
    comb, pool = np.zeros((COMB_WORDS, max(count, 16)), np.int64), np.zeros((2, max(count, 16)), np.int64)
    used = np.zeros(2, np.int64)
    i = 0
    while i < count:
        c, which = used[0], pairs[0, i]
        comb[AT, c] = used[1]
        j = i
        while j < count and pairs[1, j] == pairs[1, i]:
            pool[0, used[1] + j - i], pool[1, used[1] + j - i] = pairs[2, j], pairs[3, j]
            j += 1
        comb[SIZE, c] = j - i
        finish(comb, pool, used, ts, seq)
        for n in range(len(nodes)):
            if nodes[n, N_LIST] == which and nodes[n, N_ATTRIBUTE] >= 0:
                put(get(env, FRAME), nodes[n, N_FIRST], pool[1, comb[AT, c]])
                evaluate(env, nodes[n, N_ATTRIBUTE])
                comb[VALUE, c] = get(get(env, STACK), 0)
        append(comb, ends, which, c)
        i = j
    return comb, pool, used


@jit
def _sort_rows(rows, count, ts, seq, types, ranks):
    """Sort rows in canonical order, in place."""
    for i in range(1, count):
        row, j = rows[i], i
        while j > 0 and before(row, rows[j - 1], ts, seq, types, ranks):
            rows[j] = rows[j - 1]
            j -= 1
        rows[j] = row


@jit
def _add_repetition(comb, pool, used, first, times, some, count, row, produced, produced_count, ts, seq, types, ranks):
    """Add a combination of the arrived event `row` and the events of `some[:count]`, each a combination of one event.

    If there are more events than leaves, all remaining events fill the last leaf.
    """
    rows = np.empty(count + 1, np.int64)
    for k in range(count):
        rows[k] = pool[1, comb[AT, some[k]]]
    rows[count] = row
    _sort_rows(rows, count + 1, ts, seq, types, ranks)
    comb = grow_columns(comb, used[0] + 1)
    pool = grow_columns(pool, used[1] + count + 1)
    c = used[0]
    comb[AT, c], comb[SIZE, c] = used[1], count + 1
    for k in range(count + 1):
        pool[0, used[1] + k], pool[1, used[1] + k] = first + min(k, times - 1), rows[k]
    produced = grow(produced, produced_count + 1)
    produced[produced_count] = finish(comb, pool, used, ts, seq)
    return comb, pool, produced, produced_count + 1


@jit
def repetition(
    env, mode, comb, pool, ends, used, base, first, times, attribute, same, row, floor, produced, produced_count,
    ts, seq, types, ranks,
):  # fmt: skip
    """Combine an arrived event as `TimesEq` (n events of equal value) or `TimesDf` (n events of distinct values).

    Returns (comb, pool, produced, number of produced combinations).
    """
    put(get(env, FRAME), first, row)
    if not evaluate(env, attribute):
        return comb, pool, produced, produced_count
    value = get(get(env, STACK), 0)
    members = np.empty(16, np.int64)
    group = np.empty(16, np.int64)
    begun = np.empty(16, np.int64)
    count, groups = 0, 0
    c = following(comb, ends, base, -1, floor)
    while c >= 0:
        after = following(comb, ends, base, c, floor)
        members, group, begun = grow(members, count + 1), grow(group, count + 1), grow(begun, groups + 1)
        equal = comb[VALUE, c] == value
        g = np.int64(-1)
        if same:
            if equal:
                g = groups
        elif equal:
            if mode == RECENT:
                unlink(comb, ends, base, c)
                c = after
                continue
        else:
            g = 0
            while g < groups and comb[VALUE, begun[g]] != comb[VALUE, c]:
                g += 1
        if g == groups:
            begun[g] = c
            groups += 1
        members[count], group[count] = c, g
        count += 1
        c = after
    needed = times - 1
    first_produced = produced_count
    some = np.empty(max(needed, count, 1), np.int64)
    if groups >= needed:
        if mode == CUMULATIVE:
            n = 0
            for k in range(count):
                if not same or group[k] >= 0:
                    some[n] = members[k]
                    n += 1
            comb, pool, produced, produced_count = _add_repetition(
                comb, pool, used, first, times, some, n, row, produced, produced_count, ts, seq, types, ranks
            )
            for k in range(n):
                unlink(comb, ends, base, some[k])
        elif mode == CONTINUOUS:
            pick, turn, consumed = np.arange(needed), np.zeros(needed, np.int64), np.zeros(count, np.uint8)
            choosing = True
            while choosing:
                for d in range(needed):
                    turn[d] = 0
                    while group[turn[d]] != pick[d]:
                        turn[d] += 1
                going = True
                while going:
                    for d in range(needed):
                        some[d] = members[turn[d]]
                        consumed[turn[d]] = 1
                    comb, pool, produced, produced_count = _add_repetition(
                        comb,
                        pool,
                        used,
                        first,
                        times,
                        some,
                        needed,
                        row,
                        produced,
                        produced_count,
                        ts,
                        seq,
                        types,
                        ranks,
                    )
                    d = needed - 1
                    going = False
                    while d >= 0 and not going:
                        k = turn[d] + 1
                        while k < count and group[k] != pick[d]:
                            k += 1
                        if k < count:
                            turn[d] = k
                            going = True
                        else:
                            turn[d] = 0
                            while group[turn[d]] != pick[d]:
                                turn[d] += 1
                        d -= 1
                d = needed - 1
                while d >= 0 and pick[d] == groups - needed + d:
                    d -= 1
                choosing = d >= 0
                if choosing:
                    pick[d] += 1
                    for e in range(d + 1, needed):
                        pick[e] = pick[e - 1] + 1
            for k in range(count):
                if consumed[k]:
                    unlink(comb, ends, base, members[k])
        else:
            of_group = np.empty(max(groups, 1), np.int64)
            for k in range(count):
                g = group[k]
                if g >= 0 and (mode == RECENT or begun[g] == members[k]):
                    of_group[g] = pool[1, comb[AT, members[k]]]
            _sort_rows(of_group, groups, ts, seq, types, ranks)
            start = groups - needed if mode == RECENT else 0
            for n in range(needed):
                for k in range(count):
                    if pool[1, comb[AT, members[k]]] == of_group[start + n]:
                        some[n] = members[k]
            comb, pool, produced, produced_count = _add_repetition(
                comb, pool, used, first, times, some, needed, row, produced, produced_count, ts, seq, types, ranks
            )
            for n in range(needed):
                unlink(comb, ends, base, some[n])
    if produced_count == first_produced or mode == CONTINUOUS:
        comb, pool = grow_columns(comb, used[0] + 1), grow_columns(pool, used[1] + 1)
        c = add_single(comb, pool, used, first, row, ts, seq)
        comb[VALUE, c] = value
        append(comb, ends, base, c)
    return comb, pool, produced, produced_count
