# mypy: disable-error-code="no-untyped-def,assignment"
"""Snoop's contexts: each operator of an expression keeps what its operands brought and combines it as its context says.

A *combination* is a run of (leaf, row) pairs in a pool; what an operator keeps for an operand is a list of
combinations, linked in the order in which they came. Combinations are only appended here; `compact` drops what no list
holds any more. What is too old is unlinked where it is met.

    comb: one column for each combination; pool: one for each pair; ends: first and last of each list
"""

from __future__ import annotations

import numpy as np

from tocsin.engine.kernels.combinations import before
from tocsin.engine.kernels.expressions import all_hold, evaluate
from tocsin.engine.kernels.layout import (
    CHRONOLOGICAL,
    CONTINUOUS,
    CUMULATIVE,
    N_ALL,
    N_ATTRIBUTE,
    N_COUNT,
    N_EITHER,
    N_FIRST,
    N_LEAF,
    N_LIST,
    N_OPERANDS,
    N_OPERATOR,
    N_SAME,
    N_THEN,
    RECENT,
)
from tocsin.engine.kernels.memory import FRAME, STACK, get, jit, put, small

AT, SIZE, LOW, LATE_TS, LATE_SEQ, NEXT, PREVIOUS, VALUE = range(8)
"""Where its pairs begin and how many there are, its earliest ts, its latest (ts, seq), its neighbours in a list, and
for what a repetition keeps the value of the attribute."""

COMB_WORDS = 8


@jit
def _grown(array, size):
    if array.shape[1] >= size:
        return array
    grown = np.zeros((array.shape[0], max(size, 2 * array.shape[1])), np.int64)
    grown[:, : array.shape[1]] = array
    return grown


@jit
def _longer(array, size):
    if len(array) >= size:
        return array
    grown = np.zeros(max(size, 2 * len(array)), np.int64)
    grown[: len(array)] = array
    return grown


@small
def _append(comb, ends, which, c):
    last = ends[1, which]
    comb[NEXT, c], comb[PREVIOUS, c] = -1, last
    if last < 0:
        ends[0, which] = c
    else:
        comb[NEXT, last] = c
    ends[1, which] = c


@small
def _unlink(comb, ends, which, c):
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
def _next(comb, ends, which, c, floor):
    """The combination behind c (-1: the first) in a list; what is too old there is unlinked."""
    c = ends[0, which] if c < 0 else comb[NEXT, c]
    while c >= 0 and comb[LOW, c] < floor:
        after = comb[NEXT, c]
        _unlink(comb, ends, which, c)
        c = after
    return c


@jit
def _apart(comb, pool, x, y):
    """Whether two combinations share no event."""
    for i in range(comb[AT, x], comb[AT, x] + comb[SIZE, x]):
        for j in range(comb[AT, y], comb[AT, y] + comb[SIZE, y]):
            if pool[1, i] == pool[1, j]:
                return False
    return True


@jit
def _apart_from(comb, pool, some, begin, end, x):
    i = begin
    while i < end and _apart(comb, pool, some[i], x):
        i += 1
    return i == end


@jit
def _noted(comb, pool, used, ts, seq):
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
def _single(comb, pool, used, leaf, row, ts, seq):
    """A combination of one event. There must be room."""
    c = used[0]
    comb[AT, c], comb[SIZE, c] = used[1], 1
    pool[0, used[1]], pool[1, used[1]] = leaf, row
    return _noted(comb, pool, used, ts, seq)


@jit
def _merged(comb, pool, used, some, begin, end, ts, seq, types, ranks):
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
    return _noted(comb, pool, used, ts, seq)


@jit
def _sizes(comb, some, begin, end):
    total = 0
    for k in range(begin, end):
        total += comb[SIZE, some[k]]
    return total


@jit
def _conjunction(mode, comb, pool, ends, used, base, operands, place, new, floor, made, found, ts, seq, types, ranks):
    """What `&` makes of a combination that one of its operands brings."""
    if mode == RECENT:
        ends[0, base + place], ends[1, base + place] = -1, -1
    _append(comb, ends, base + place, new)
    chosen = np.empty(16, np.int64)
    bounds = np.zeros(operands + 1, np.int64)
    count = 0
    complete = True
    if mode in (CUMULATIVE, CONTINUOUS):
        for other in range(operands):
            bounds[other] = count
            begin = count
            if other != place:
                c = _next(comb, ends, base + other, -1, floor)
                while c >= 0:
                    fits = _apart(comb, pool, new, c)
                    if fits and mode == CUMULATIVE:
                        fits = _apart_from(comb, pool, chosen, 0, begin, c)
                    if fits:
                        chosen = _longer(chosen, count + 1)
                        chosen[count] = c
                        count += 1
                    c = _next(comb, ends, base + other, c, floor)
                complete = complete and count > begin
        bounds[operands] = count
        if not complete:
            return comb, pool, made, found
    if mode == CUMULATIVE:
        others = count
        c = _next(comb, ends, base + place, -1, floor)
        while c >= 0:
            if c == new or _apart_from(comb, pool, chosen, 0, others, c):
                chosen = _longer(chosen, count + 1)
                chosen[count] = c
                count += 1
            c = _next(comb, ends, base + place, c, floor)
        comb = _grown(comb, used[0] + 1)
        pool = _grown(pool, used[1] + _sizes(comb, chosen, 0, count))
        made = _longer(made, found + 1)
        made[found] = _merged(comb, pool, used, chosen, 0, count, ts, seq, types, ranks)
        found += 1
        for k in range(count):
            c = chosen[k]
            for other in range(operands):
                if other != place and bounds[other] <= k < bounds[other + 1]:
                    _unlink(comb, ends, base + other, c)
            if k >= others:
                _unlink(comb, ends, base + place, c)
    elif mode == CONTINUOUS:
        begun_at = found
        turn = bounds[:operands].copy()
        some = np.empty(operands, np.int64)
        going = True
        while going:
            some[0] = new
            n = 1
            fits = True
            for other in range(operands):
                if other != place:
                    c = chosen[turn[other]]
                    fits = fits and _apart_from(comb, pool, some, 0, n, c)
                    some[n] = c
                    n += 1
            if fits:
                comb = _grown(comb, used[0] + 1)
                pool = _grown(pool, used[1] + _sizes(comb, some, 0, n))
                made = _longer(made, found + 1)
                made[found] = _merged(comb, pool, used, some, 0, n, ts, seq, types, ranks)
                found += 1
            other = operands - 1
            going = False
            while other >= 0 and not going:
                if other != place:
                    turn[other] += 1
                    if turn[other] < bounds[other + 1]:
                        going = True
                    else:
                        turn[other] = bounds[other]
                other -= 1
        if found > begun_at:
            for other in range(operands):
                if other != place:
                    for k in range(bounds[other], bounds[other + 1]):
                        _unlink(comb, ends, base + other, chosen[k])
    else:
        if mode == RECENT:
            chosen[0] = new
            count = 1
        lists = np.empty(operands + 1, np.int64)
        lists[0] = base + place
        chosen = _longer(chosen, operands + 1)
        for other in range(operands):
            if mode == RECENT and other == place:
                continue
            c = _next(comb, ends, base + other, -1, floor)
            while c >= 0 and not _apart_from(comb, pool, chosen, 0, count, c):
                c = _next(comb, ends, base + other, c, floor)
            if c < 0:
                return comb, pool, made, found
            lists[count] = base + other
            chosen[count] = c
            count += 1
        contains = False
        for k in range(count):
            contains = contains or chosen[k] == new
        if not contains:
            return comb, pool, made, found
        comb = _grown(comb, used[0] + 1)
        pool = _grown(pool, used[1] + _sizes(comb, chosen, 0, count))
        made = _longer(made, found + 1)
        made[found] = _merged(comb, pool, used, chosen, 0, count, ts, seq, types, ranks)
        found += 1
        for k in range(count):
            _unlink(comb, ends, lists[k], chosen[k])
        if mode == CHRONOLOGICAL:  # what shares an event with it is used up too
            for other in range(operands):
                c = _next(comb, ends, base + other, -1, floor)
                while c >= 0:
                    after = _next(comb, ends, base + other, c, floor)
                    if not _apart(comb, pool, made[found - 1], c):
                        _unlink(comb, ends, base + other, c)
                    c = after
    return comb, pool, made, found


@jit
def _sequence(mode, comb, pool, ends, used, base, place, new, floor, made, found, ts, seq, types, ranks):
    """What `;` makes of a combination that one of its operands brings."""
    if place == 0:
        if mode == RECENT:
            ends[0, base], ends[1, base] = -1, -1
        _append(comb, ends, base, new)
        return comb, pool, made, found
    chosen = np.empty(16, np.int64)
    count = 0
    c = _next(comb, ends, base, -1, floor)
    while c >= 0:
        earlier = comb[LATE_TS, c] < comb[LATE_TS, new] or (
            comb[LATE_TS, c] == comb[LATE_TS, new] and comb[LATE_SEQ, c] < comb[LATE_SEQ, new]
        )
        if earlier and _apart(comb, pool, c, new):
            if mode == RECENT:
                count = 0
            chosen = _longer(chosen, count + 2)
            chosen[count] = c
            count += 1
            if mode == CHRONOLOGICAL:
                break
        c = _next(comb, ends, base, c, floor)
    for k in range(count):
        _unlink(comb, ends, base, chosen[k])
    if count == 0:
        return comb, pool, made, found
    chosen = _longer(chosen, count + 1)
    chosen[count] = new
    if mode == CUMULATIVE:
        comb = _grown(comb, used[0] + 1)
        pool = _grown(pool, used[1] + _sizes(comb, chosen, 0, count + 1))
        made = _longer(made, found + 1)
        made[found] = _merged(comb, pool, used, chosen, 0, count + 1, ts, seq, types, ranks)
        return comb, pool, made, found + 1
    pair = np.empty(2, np.int64)
    for k in range(count):
        pair[0], pair[1] = chosen[k], new
        comb = _grown(comb, used[0] + 1)
        pool = _grown(pool, used[1] + _sizes(comb, pair, 0, 2))
        made = _longer(made, found + 1)
        made[found] = _merged(comb, pool, used, pair, 0, 2, ts, seq, types, ranks)
        found += 1
    return comb, pool, made, found


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
    comb = _grown(comb, used[0] + 1)
    pool = _grown(pool, used[1] + count + 1)
    c = used[0]
    comb[AT, c], comb[SIZE, c] = used[1], count + 1
    for k in range(count + 1):
        pool[0, used[1] + k], pool[1, used[1] + k] = first + min(k, times - 1), rows[k]
    made = _longer(made, found + 1)
    made[found] = _noted(comb, pool, used, ts, seq)
    return comb, pool, made, found + 1


@jit
def _repetition(
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
    c = _next(comb, ends, base, -1, floor)
    while c >= 0:
        after = _next(comb, ends, base, c, floor)
        held, group, begun = _longer(held, count + 1), _longer(group, count + 1), _longer(begun, groups + 1)
        equal = comb[VALUE, c] == value
        g = np.int64(-1)
        if same:
            if equal:
                g = groups
        elif equal:
            if mode == RECENT:
                _unlink(comb, ends, base, c)
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
                _unlink(comb, ends, base, some[k])
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
                    _unlink(comb, ends, base, held[k])
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
                _unlink(comb, ends, base, some[n])
    if found == begun_at or mode == CONTINUOUS:
        comb, pool = _grown(comb, used[0] + 1), _grown(pool, used[1] + 1)
        c = _single(comb, pool, used, first, row, ts, seq)
        comb[VALUE, c] = value
        _append(comb, ends, base, c)
    return comb, pool, made, found


@jit
def _meets(env, comb, pool, c, conditions, condition_count, places, repeated, budget):
    """Whether the condition holds for some choice where a leaf has several events."""
    if condition_count == 0:
        return True
    frame = get(env, FRAME)
    count = len(places)
    begin, end = np.zeros(count, np.int64), np.zeros(count, np.int64)
    for k in range(count):
        put(frame, places[k], -1)
        for i in range(comb[AT, c], comb[AT, c] + comb[SIZE, c]):
            if pool[0, i] == places[k]:
                if end[k] == 0:
                    begin[k] = i
                    end[k] = i + 1
                elif not repeated[k]:
                    end[k] = i + 1
    turn = begin.copy()
    while True:
        budget[0] -= 1
        if budget[0] < 0:
            return False
        for k in range(count):
            if end[k] > 0:
                put(frame, places[k], pool[1, turn[k]])
        if all_hold(env, conditions, condition_count):
            return True
        k = count - 1
        while k >= 0:
            turn[k] += 1
            if turn[k] < end[k]:
                break
            turn[k] = begin[k]
            k -= 1
        if k < 0:
            return False


@jit
def arrive(
    env, nodes, operands, mode, window, since, conditions, condition_count, places, repeated, rows, masks,
    comb, pool, ends, used, ts, seq, types, ranks, budget_each,
):  # fmt: skip
    """Takes events in canonical order, each with the leaves that it fits as bits.

    Returns (comb, pool, what was notified, the row that arrived for each, -1), or instead of -1 the place of the
    arrival for which the budget did not last.
    """
    total = len(nodes)
    begin, end = np.zeros(total, np.int64), np.zeros(total, np.int64)
    out, anchors = np.empty(16, np.int64), np.empty(16, np.int64)
    made = np.empty(64, np.int64)
    notified = 0
    budget = np.empty(1, np.int64)
    for a in range(len(rows)):
        row = rows[a]
        if ts[row] < since:
            continue
        budget[0] = budget_each
        floor = ts[row] - window
        found = 0
        for n in range(total):
            begin[n] = found
            operator, first = nodes[n, N_OPERATOR], nodes[n, N_FIRST]
            fits = (masks[a] >> first) & 1
            if operator == N_LEAF:
                if fits:
                    comb, pool, made = _grown(comb, used[0] + 1), _grown(pool, used[1] + 1), _longer(made, found + 1)
                    made[found] = _single(comb, pool, used, first, row, ts, seq)
                    found += 1
            elif operator == N_EITHER:
                for k in range(nodes[n, N_COUNT]):
                    child = operands[nodes[n, N_OPERANDS] + k]
                    for i in range(begin[child], end[child]):
                        made = _longer(made, found + 1)
                        made[found] = made[i]
                        found += 1
            elif operator in (N_ALL, N_THEN):
                for k in range(nodes[n, N_COUNT]):
                    child = operands[nodes[n, N_OPERANDS] + k]
                    for i in range(begin[child], end[child]):
                        if operator == N_ALL:
                            comb, pool, made, found = _conjunction(
                                mode, comb, pool, ends, used, nodes[n, N_LIST], nodes[n, N_COUNT], k, made[i], floor,
                                made, found, ts, seq, types, ranks,
                            )  # fmt: skip
                        else:
                            comb, pool, made, found = _sequence(
                                mode, comb, pool, ends, used, nodes[n, N_LIST], k, made[i], floor, made, found,
                                ts, seq, types, ranks,
                            )  # fmt: skip
            elif fits:
                comb, pool, made, found = _repetition(
                    env, mode, comb, pool, ends, used, nodes[n, N_LIST], first, nodes[n, N_COUNT],
                    nodes[n, N_ATTRIBUTE], nodes[n, N_SAME] != 0, row, floor, made, found, ts, seq, types, ranks,
                )  # fmt: skip
            end[n] = found
        for i in range(begin[total - 1], end[total - 1]):
            if _meets(env, comb, pool, made[i], conditions, condition_count, places, repeated, budget):
                out, anchors = _longer(out, notified + 1), _longer(anchors, notified + 1)
                out[notified], anchors[notified] = made[i], row
                notified += 1
            if budget[0] < 0:
                return comb, pool, out[:notified], anchors[:notified], a
    return comb, pool, out[:notified], anchors[:notified], -1


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
                _append(fresh_comb, fresh_ends, which, fresh)
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
        _noted(comb, pool, used, ts, seq)
        for n in range(len(nodes)):
            if nodes[n, N_LIST] == which and nodes[n, N_ATTRIBUTE] >= 0:
                put(get(env, FRAME), nodes[n, N_FIRST], pool[1, comb[AT, c]])
                evaluate(env, nodes[n, N_ATTRIBUTE])
                comb[VALUE, c] = get(get(env, STACK), 0)
        _append(comb, ends, which, c)
        i = j
    return comb, pool, used
