# mypy: disable-error-code="no-untyped-def,assignment"
"""What operators in Snoop's contexts keep: combinations of events, in lists.

A *combination* is a run of (leaf, row) pairs in a pool; what an operator keeps for an operand is a list of
combinations, linked in the order in which they came. Combinations are only appended; `compact` drops what no list
holds any more. What is too old is unlinked where it is met.

    comb: one column for each combination; pool: one for each pair; ends: first and last of each list
"""

from __future__ import annotations

import numpy as np

from tocsin.engine.kernels.combinations import before
from tocsin.engine.kernels.expressions import evaluate
from tocsin.engine.kernels.layout import N_ATTRIBUTE, N_FIRST, N_LIST
from tocsin.engine.kernels.memory import FRAME, STACK, get, jit, put, small

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
