# mypy: disable-error-code="no-untyped-def,assignment"
"""Snoop's contexts: each operator of an expression combines what its operands brought as its context says.

`kept` has what operators hold, `repetitions` the one that counts events.
"""

from __future__ import annotations

import numpy as np

from tocsin.kernels.core import FRAME, get, jit, put
from tocsin.kernels.expressions import all_hold
from tocsin.kernels.layout import (
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
from tocsin.kernels.requests.combinations import (
    AT,
    LATE_SEQ,
    LATE_TS,
    SIZE,
    apart,
    apart_from,
    append,
    following,
    grown,
    longer,
    merged,
    repetition,
    single,
    sizes,
    unlink,
)


@jit
def _conjunction(mode, comb, pool, ends, used, base, operands, place, new, floor, made, found, ts, seq, types, ranks):
    """What `&` makes of a combination that one of its operands brings."""
    if mode == RECENT:
        ends[0, base + place], ends[1, base + place] = -1, -1
    append(comb, ends, base + place, new)
    chosen = np.empty(16, np.int64)
    bounds = np.zeros(operands + 1, np.int64)
    count = 0
    complete = True
    if mode in (CUMULATIVE, CONTINUOUS):
        for other in range(operands):
            bounds[other] = count
            begin = count
            if other != place:
                c = following(comb, ends, base + other, -1, floor)
                while c >= 0:
                    fits = apart(comb, pool, new, c)
                    if fits and mode == CUMULATIVE:
                        fits = apart_from(comb, pool, chosen, 0, begin, c)
                    if fits:
                        chosen = longer(chosen, count + 1)
                        chosen[count] = c
                        count += 1
                    c = following(comb, ends, base + other, c, floor)
                complete = complete and count > begin
        bounds[operands] = count
        if not complete:
            return comb, pool, made, found
    if mode == CUMULATIVE:
        others = count
        c = following(comb, ends, base + place, -1, floor)
        while c >= 0:
            if c == new or apart_from(comb, pool, chosen, 0, others, c):
                chosen = longer(chosen, count + 1)
                chosen[count] = c
                count += 1
            c = following(comb, ends, base + place, c, floor)
        comb = grown(comb, used[0] + 1)
        pool = grown(pool, used[1] + sizes(comb, chosen, 0, count))
        made = longer(made, found + 1)
        made[found] = merged(comb, pool, used, chosen, 0, count, ts, seq, types, ranks)
        found += 1
        for k in range(count):
            c = chosen[k]
            for other in range(operands):
                if other != place and bounds[other] <= k < bounds[other + 1]:
                    unlink(comb, ends, base + other, c)
            if k >= others:
                unlink(comb, ends, base + place, c)
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
                    fits = fits and apart_from(comb, pool, some, 0, n, c)
                    some[n] = c
                    n += 1
            if fits:
                comb = grown(comb, used[0] + 1)
                pool = grown(pool, used[1] + sizes(comb, some, 0, n))
                made = longer(made, found + 1)
                made[found] = merged(comb, pool, used, some, 0, n, ts, seq, types, ranks)
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
                        unlink(comb, ends, base + other, chosen[k])
    else:
        if mode == RECENT:
            chosen[0] = new
            count = 1
        lists = np.empty(operands + 1, np.int64)
        lists[0] = base + place
        chosen = longer(chosen, operands + 1)
        for other in range(operands):
            if mode == RECENT and other == place:
                continue
            c = following(comb, ends, base + other, -1, floor)
            while c >= 0 and not apart_from(comb, pool, chosen, 0, count, c):
                c = following(comb, ends, base + other, c, floor)
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
        comb = grown(comb, used[0] + 1)
        pool = grown(pool, used[1] + sizes(comb, chosen, 0, count))
        made = longer(made, found + 1)
        made[found] = merged(comb, pool, used, chosen, 0, count, ts, seq, types, ranks)
        found += 1
        for k in range(count):
            unlink(comb, ends, lists[k], chosen[k])
        if mode == CHRONOLOGICAL:  # what shares an event with it is used up too
            for other in range(operands):
                c = following(comb, ends, base + other, -1, floor)
                while c >= 0:
                    after = following(comb, ends, base + other, c, floor)
                    if not apart(comb, pool, made[found - 1], c):
                        unlink(comb, ends, base + other, c)
                    c = after
    return comb, pool, made, found


@jit
def _sequence(mode, comb, pool, ends, used, base, place, new, floor, made, found, ts, seq, types, ranks):
    """What `;` makes of a combination that one of its operands brings."""
    if place == 0:
        if mode == RECENT:
            ends[0, base], ends[1, base] = -1, -1
        append(comb, ends, base, new)
        return comb, pool, made, found
    chosen = np.empty(16, np.int64)
    count = 0
    c = following(comb, ends, base, -1, floor)
    while c >= 0:
        earlier = comb[LATE_TS, c] < comb[LATE_TS, new] or (
            comb[LATE_TS, c] == comb[LATE_TS, new] and comb[LATE_SEQ, c] < comb[LATE_SEQ, new]
        )
        if earlier and apart(comb, pool, c, new):
            if mode == RECENT:
                count = 0
            chosen = longer(chosen, count + 2)
            chosen[count] = c
            count += 1
            if mode == CHRONOLOGICAL:
                break
        c = following(comb, ends, base, c, floor)
    for k in range(count):
        unlink(comb, ends, base, chosen[k])
    if count == 0:
        return comb, pool, made, found
    chosen = longer(chosen, count + 1)
    chosen[count] = new
    if mode == CUMULATIVE:
        comb = grown(comb, used[0] + 1)
        pool = grown(pool, used[1] + sizes(comb, chosen, 0, count + 1))
        made = longer(made, found + 1)
        made[found] = merged(comb, pool, used, chosen, 0, count + 1, ts, seq, types, ranks)
        return comb, pool, made, found + 1
    pair = np.empty(2, np.int64)
    for k in range(count):
        pair[0], pair[1] = chosen[k], new
        comb = grown(comb, used[0] + 1)
        pool = grown(pool, used[1] + sizes(comb, pair, 0, 2))
        made = longer(made, found + 1)
        made[found] = merged(comb, pool, used, pair, 0, 2, ts, seq, types, ranks)
        found += 1
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
                    comb, pool, made = grown(comb, used[0] + 1), grown(pool, used[1] + 1), longer(made, found + 1)
                    made[found] = single(comb, pool, used, first, row, ts, seq)
                    found += 1
            elif operator == N_EITHER:
                for k in range(nodes[n, N_COUNT]):
                    child = operands[nodes[n, N_OPERANDS] + k]
                    for i in range(begin[child], end[child]):
                        made = longer(made, found + 1)
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
                comb, pool, made, found = repetition(
                    env, mode, comb, pool, ends, used, nodes[n, N_LIST], first, nodes[n, N_COUNT],
                    nodes[n, N_ATTRIBUTE], nodes[n, N_SAME] != 0, row, floor, made, found, ts, seq, types, ranks,
                )  # fmt: skip
            end[n] = found
        for i in range(begin[total - 1], end[total - 1]):
            if _meets(env, comb, pool, made[i], conditions, condition_count, places, repeated, budget):
                out, anchors = longer(out, notified + 1), longer(anchors, notified + 1)
                out[notified], anchors[notified] = made[i], row
                notified += 1
            if budget[0] < 0:
                return comb, pool, out[:notified], anchors[:notified], a
    return comb, pool, out[:notified], anchors[:notified], -1
