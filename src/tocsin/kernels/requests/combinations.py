"""What operators in Snoop's contexts keep: combinations of events, in lists.

A *combination* is a run of (leaf, row) pairs in a pool; what an operator keeps for an operand is a list of
combinations, linked in the order in which they came. Combinations are only appended; `compact` drops what no list
holds any more. What is too old is unlinked where it is met.

    comb: one column for each combination; pool: one for each pair; ends: first and last of each list

`TimesEq` and `TimesDf` in Snoop's contexts: n events of one value, or of n values.
"""

from __future__ import annotations

import numpy as np

from tocsin.kernels.core import FRAME, STACK, get, jit, put, small
from tocsin.kernels.expressions import evaluate
from tocsin.kernels.layout import CONTINUOUS, CUMULATIVE, N_ATTRIBUTE, N_FIRST, N_LIST, RECENT
from tocsin.kernels.requests.search import before

# mypy: disable-error-code="no-untyped-def,assignment"


AT, SIZE, LOW, LATE_TS, LATE_SEQ, NEXT, PREVIOUS, VALUE = range(8)
"""Where its pairs begin and how many there are, its earliest ts, its latest (ts, seq), its neighbours in a list, and
for what a repetition keeps the value of the attribute."""

COMB_WORDS = 8


@jit
def grown(array, size):
    if array.shape[1] >= size:
        return array
    grown = np.zeros((array.shape[0], max(size, 2 * array.shape[1])), np.int64)
    grown[:, : array.shape[1]] = array
    return grown


@jit
def longer(array, size):
    if len(array) >= size:
        return array
    grown = np.zeros(max(size, 2 * len(array)), np.int64)
    grown[: len(array)] = array
    return grown


@small
def append(comb, ends, which, c):
    last = ends[1, which]
    comb[NEXT, c], comb[PREVIOUS, c] = -1, last
    if last < 0:
        ends[0, which] = c
    else:
        comb[NEXT, last] = c
    ends[1, which] = c


@small
def unlink(comb, ends, which, c):
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
    """The combination behind c (-1: the first) in a list; what is too old there is unlinked."""
    c = ends[0, which] if c < 0 else comb[NEXT, c]
    while c >= 0 and comb[LOW, c] < floor:
        after = comb[NEXT, c]
        unlink(comb, ends, which, c)
        c = after
    return c


@jit
def apart(comb, pool, x, y):
    """Whether two combinations share no event."""
    for i in range(comb[AT, x], comb[AT, x] + comb[SIZE, x]):
        for j in range(comb[AT, y], comb[AT, y] + comb[SIZE, y]):
            if pool[1, i] == pool[1, j]:
                return False
    return True


@jit
def apart_from(comb, pool, some, begin, end, x):
    i = begin
    while i < end and apart(comb, pool, some[i], x):
        i += 1
    return i == end


@jit
def noted(comb, pool, used, ts, seq):
    """Notes the times of the newest combination, whose pairs are there."""
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
def single(comb, pool, used, leaf, row, ts, seq):
    """A combination of one event. There must be room."""
    c = used[0]
    comb[AT, c], comb[SIZE, c] = used[1], 1
    pool[0, used[1]], pool[1, used[1]] = leaf, row
    return noted(comb, pool, used, ts, seq)


@jit
def merged(comb, pool, used, some, begin, end, ts, seq, types, ranks):
    """All events of some combinations: by leaf, those of one leaf in canonical order. There must be room."""
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
    return noted(comb, pool, used, ts, seq)


@jit
def sizes(comb, some, begin, end):
    total = 0
    for k in range(begin, end):
        total += comb[SIZE, some[k]]
    return total


@jit
def compact(comb, pool, ends, live, number):
    """What lists hold, if all of its rows are live, with the rows' new numbers: (comb, pool, ends, used)."""
    combs, pairs = 0, 0
    for which in range(ends.shape[1]):
        c = ends[0, which]
        while c >= 0:
            combs += 1
            pairs += comb[SIZE, c]
            c = comb[NEXT, c]
    fresh_comb, fresh_pool = np.zeros((COMB_WORDS, max(combs, 16)), np.int64), np.zeros((2, max(pairs, 16)), np.int64)
    fresh_ends, used = np.full((2, ends.shape[1]), -1, np.int64), np.zeros(2, np.int64)
    for which in range(ends.shape[1]):
        c = ends[0, which]
        while c >= 0:
            whole = True
            for i in range(comb[AT, c], comb[AT, c] + comb[SIZE, c]):
                whole = whole and live[pool[1, i]] != 0
            if whole:
                fresh = used[0]
                fresh_comb[:, fresh] = comb[:, c]
                fresh_comb[AT, fresh] = used[1]
                for i in range(comb[SIZE, c]):
                    fresh_pool[0, used[1] + i] = pool[0, comb[AT, c] + i]
                    fresh_pool[1, used[1] + i] = number[pool[1, comb[AT, c] + i]]
                used[0], used[1] = fresh + 1, used[1] + comb[SIZE, c]
                append(fresh_comb, fresh_ends, which, fresh)
            c = comb[NEXT, c]
    return fresh_comb, fresh_pool, fresh_ends, used


@jit
def held(comb, pool, ends, out):
    """Every pair that lists hold: (list, number of the combination, leaf, row). `out` has room."""
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
def adopt(env, nodes, pairs, ends, ts, seq):
    """The combinations that `held` gave, in lists again: (comb, pool, used)."""
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
        noted(comb, pool, used, ts, seq)
        for n in range(len(nodes)):
            if nodes[n, N_LIST] == which and nodes[n, N_ATTRIBUTE] >= 0:
                put(get(env, FRAME), nodes[n, N_FIRST], pool[1, comb[AT, c]])
                evaluate(env, nodes[n, N_ATTRIBUTE])
                comb[VALUE, c] = get(get(env, STACK), 0)
        append(comb, ends, which, c)
        i = j
    return comb, pool, used


# mypy: disable-error-code="no-untyped-def,assignment"


@jit
def _in_order(rows, count, ts, seq, types, ranks):
    for i in range(1, count):
        row, j = rows[i], i
        while j > 0 and before(row, rows[j - 1], ts, seq, types, ranks):
            rows[j] = rows[j - 1]
            j -= 1
        rows[j] = row


@jit
def _repeated_once(comb, pool, used, first, times, some, count, row, made, found, ts, seq, types, ranks):
    """One repetition: the events of some single combinations and the one that arrived. More events than leaves share
    the last leaf.
    """
    rows = np.empty(count + 1, np.int64)
    for k in range(count):
        rows[k] = pool[1, comb[AT, some[k]]]
    rows[count] = row
    _in_order(rows, count + 1, ts, seq, types, ranks)
    comb = grown(comb, used[0] + 1)
    pool = grown(pool, used[1] + count + 1)
    c = used[0]
    comb[AT, c], comb[SIZE, c] = used[1], count + 1
    for k in range(count + 1):
        pool[0, used[1] + k], pool[1, used[1] + k] = first + min(k, times - 1), rows[k]
    made = longer(made, found + 1)
    made[found] = noted(comb, pool, used, ts, seq)
    return comb, pool, made, found + 1


@jit
def repetition(
    env, mode, comb, pool, ends, used, base, first, times, attribute, same, row, floor, made, found,
    ts, seq, types, ranks,
):  # fmt: skip
    """What `TimesEq` and `TimesDf` make of an event that arrived."""
    put(get(env, FRAME), first, row)
    if not evaluate(env, attribute):
        return comb, pool, made, found
    value = get(get(env, STACK), 0)
    held = np.empty(16, np.int64)
    group = np.empty(16, np.int64)
    begun = np.empty(16, np.int64)
    count, groups = 0, 0
    c = following(comb, ends, base, -1, floor)
    while c >= 0:
        after = following(comb, ends, base, c, floor)
        held, group, begun = longer(held, count + 1), longer(group, count + 1), longer(begun, groups + 1)
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
        held[count], group[count] = c, g
        count += 1
        c = after
    needed = times - 1
    begun_at = found
    some = np.empty(max(needed, count, 1), np.int64)
    if groups >= needed:
        if mode == CUMULATIVE:
            n = 0
            for k in range(count):
                if not same or group[k] >= 0:
                    some[n] = held[k]
                    n += 1
            comb, pool, made, found = _repeated_once(
                comb, pool, used, first, times, some, n, row, made, found, ts, seq, types, ranks
            )
            for k in range(n):
                unlink(comb, ends, base, some[k])
        elif mode == CONTINUOUS:
            pick, turn, taken = np.arange(needed), np.zeros(needed, np.int64), np.zeros(count, np.uint8)
            choosing = True
            while choosing:
                for d in range(needed):
                    turn[d] = 0
                    while group[turn[d]] != pick[d]:
                        turn[d] += 1
                going = True
                while going:
                    for d in range(needed):
                        some[d] = held[turn[d]]
                        taken[turn[d]] = 1
                    comb, pool, made, found = _repeated_once(
                        comb, pool, used, first, times, some, needed, row, made, found, ts, seq, types, ranks
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
                if taken[k]:
                    unlink(comb, ends, base, held[k])
        else:
            of_group = np.empty(max(groups, 1), np.int64)
            for k in range(count):
                g = group[k]
                if g >= 0 and (mode == RECENT or begun[g] == held[k]):
                    of_group[g] = pool[1, comb[AT, held[k]]]
            _in_order(of_group, groups, ts, seq, types, ranks)
            start = groups - needed if mode == RECENT else 0
            for n in range(needed):
                for k in range(count):
                    if pool[1, comb[AT, held[k]]] == of_group[start + n]:
                        some[n] = held[k]
            comb, pool, made, found = _repeated_once(
                comb, pool, used, first, times, some, needed, row, made, found, ts, seq, types, ranks
            )
            for n in range(needed):
                unlink(comb, ends, base, some[n])
    if found == begun_at or mode == CONTINUOUS:
        comb, pool = grown(comb, used[0] + 1), grown(pool, used[1] + 1)
        c = single(comb, pool, used, first, row, ts, seq)
        comb[VALUE, c] = value
        append(comb, ends, base, c)
    return comb, pool, made, found
