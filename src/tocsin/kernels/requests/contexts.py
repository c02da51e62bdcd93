# mypy: disable-error-code="no-untyped-def,assignment"
"""Snoop's contexts, in which each operator of an event expression combines what its operands produce.

The context says which combinations an operator uses, and which of them it retains. `combinations` holds the state of
operators, and the operators that count events.
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
    add_merged,
    add_single,
    append,
    disjoint,
    disjoint_from,
    following,
    grow,
    grow_columns,
    repetition,
    total_size,
    unlink,
)


@jit
def _conjunction(
    mode, comb, pool, ends, used, base, operands, operand, new, floor, produced, produced_count, ts, seq, types, ranks
):
    """Combine `new`, which one operand of `&` produced, with retained combinations of the other operands.

    Returns (comb, pool, produced, number of produced combinations).
    """
    if mode == RECENT:
        ends[0, base + operand], ends[1, base + operand] = -1, -1
    append(comb, ends, base + operand, new)
    chosen = np.empty(16, np.int64)
    bounds = np.zeros(operands + 1, np.int64)
    count = 0
    complete = True
    if mode in (CUMULATIVE, CONTINUOUS):
        for other in range(operands):
            bounds[other] = count
            begin = count
            if other != operand:
                c = following(comb, ends, base + other, -1, floor)
                while c >= 0:
                    fits = disjoint(comb, pool, new, c)
                    if fits and mode == CUMULATIVE:
                        fits = disjoint_from(comb, pool, chosen, 0, begin, c)
                    if fits:
                        chosen = grow(chosen, count + 1)
                        chosen[count] = c
                        count += 1
                    c = following(comb, ends, base + other, c, floor)
                complete = complete and count > begin
        bounds[operands] = count
        if not complete:
            return comb, pool, produced, produced_count
    if mode == CUMULATIVE:
        others = count
        c = following(comb, ends, base + operand, -1, floor)
        while c >= 0:
            if c == new or disjoint_from(comb, pool, chosen, 0, others, c):
                chosen = grow(chosen, count + 1)
                chosen[count] = c
                count += 1
            c = following(comb, ends, base + operand, c, floor)
        comb = grow_columns(comb, used[0] + 1)
        pool = grow_columns(pool, used[1] + total_size(comb, chosen, 0, count))
        produced = grow(produced, produced_count + 1)
        produced[produced_count] = add_merged(comb, pool, used, chosen, 0, count, ts, seq, types, ranks)
        produced_count += 1
        for k in range(count):
            c = chosen[k]
            for other in range(operands):
                if other != operand and bounds[other] <= k < bounds[other + 1]:
                    unlink(comb, ends, base + other, c)
            if k >= others:
                unlink(comb, ends, base + operand, c)
    elif mode == CONTINUOUS:
        first_produced = produced_count
        turn = bounds[:operands].copy()
        some = np.empty(operands, np.int64)
        going = True
        while going:
            some[0] = new
            n = 1
            fits = True
            for other in range(operands):
                if other != operand:
                    c = chosen[turn[other]]
                    fits = fits and disjoint_from(comb, pool, some, 0, n, c)
                    some[n] = c
                    n += 1
            if fits:
                comb = grow_columns(comb, used[0] + 1)
                pool = grow_columns(pool, used[1] + total_size(comb, some, 0, n))
                produced = grow(produced, produced_count + 1)
                produced[produced_count] = add_merged(comb, pool, used, some, 0, n, ts, seq, types, ranks)
                produced_count += 1
            other = operands - 1
            going = False
            while other >= 0 and not going:
                if other != operand:
                    turn[other] += 1
                    if turn[other] < bounds[other + 1]:
                        going = True
                    else:
                        turn[other] = bounds[other]
                other -= 1
        if produced_count > first_produced:
            for other in range(operands):
                if other != operand:
                    for k in range(bounds[other], bounds[other + 1]):
                        unlink(comb, ends, base + other, chosen[k])
    else:
        if mode == RECENT:
            chosen[0] = new
            count = 1
        lists = np.empty(operands + 1, np.int64)
        lists[0] = base + operand
        chosen = grow(chosen, operands + 1)
        for other in range(operands):
            if mode == RECENT and other == operand:
                continue
            c = following(comb, ends, base + other, -1, floor)
            while c >= 0 and not disjoint_from(comb, pool, chosen, 0, count, c):
                c = following(comb, ends, base + other, c, floor)
            if c < 0:
                return comb, pool, produced, produced_count
            lists[count] = base + other
            chosen[count] = c
            count += 1
        contains = False
        for k in range(count):
            contains = contains or chosen[k] == new
        if not contains:
            return comb, pool, produced, produced_count
        comb = grow_columns(comb, used[0] + 1)
        pool = grow_columns(pool, used[1] + total_size(comb, chosen, 0, count))
        produced = grow(produced, produced_count + 1)
        produced[produced_count] = add_merged(comb, pool, used, chosen, 0, count, ts, seq, types, ranks)
        produced_count += 1
        for k in range(count):
            unlink(comb, ends, lists[k], chosen[k])
        if mode == CHRONOLOGICAL:  # combinations that share an event with the new one are used up too
            for other in range(operands):
                c = following(comb, ends, base + other, -1, floor)
                while c >= 0:
                    after = following(comb, ends, base + other, c, floor)
                    if not disjoint(comb, pool, produced[produced_count - 1], c):
                        unlink(comb, ends, base + other, c)
                    c = after
    return comb, pool, produced, produced_count


@jit
def _sequence(mode, comb, pool, ends, used, base, operand, new, floor, produced, produced_count, ts, seq, types, ranks):
    """Combine `new`, which one operand of `;` produced, with retained combinations of the other operand.

    Returns (comb, pool, produced, number of produced combinations).
    """
    if operand == 0:
        if mode == RECENT:
            ends[0, base], ends[1, base] = -1, -1
        append(comb, ends, base, new)
        return comb, pool, produced, produced_count
    chosen = np.empty(16, np.int64)
    count = 0
    c = following(comb, ends, base, -1, floor)
    while c >= 0:
        earlier = comb[LATE_TS, c] < comb[LATE_TS, new] or (
            comb[LATE_TS, c] == comb[LATE_TS, new] and comb[LATE_SEQ, c] < comb[LATE_SEQ, new]
        )
        if earlier and disjoint(comb, pool, c, new):
            if mode == RECENT:
                count = 0
            chosen = grow(chosen, count + 2)
            chosen[count] = c
            count += 1
            if mode == CHRONOLOGICAL:
                break
        c = following(comb, ends, base, c, floor)
    for k in range(count):
        unlink(comb, ends, base, chosen[k])
    if count == 0:
        return comb, pool, produced, produced_count
    chosen = grow(chosen, count + 1)
    chosen[count] = new
    if mode == CUMULATIVE:
        comb = grow_columns(comb, used[0] + 1)
        pool = grow_columns(pool, used[1] + total_size(comb, chosen, 0, count + 1))
        produced = grow(produced, produced_count + 1)
        produced[produced_count] = add_merged(comb, pool, used, chosen, 0, count + 1, ts, seq, types, ranks)
        return comb, pool, produced, produced_count + 1
    pair = np.empty(2, np.int64)
    for k in range(count):
        pair[0], pair[1] = chosen[k], new
        comb = grow_columns(comb, used[0] + 1)
        pool = grow_columns(pool, used[1] + total_size(comb, pair, 0, 2))
        produced = grow(produced, produced_count + 1)
        produced[produced_count] = add_merged(comb, pool, used, pair, 0, 2, ts, seq, types, ranks)
        produced_count += 1
    return comb, pool, produced, produced_count


@jit
def _meets(env, comb, pool, c, conditions, condition_count, roles, repeated, budget):
    """Return whether the condition holds for some choice of one event for each leaf that has several events."""
    if condition_count == 0:
        return True
    frame = get(env, FRAME)
    count = len(roles)
    begin, end = np.zeros(count, np.int64), np.zeros(count, np.int64)
    for k in range(count):
        put(frame, roles[k], -1)
        for i in range(comb[AT, c], comb[AT, c] + comb[SIZE, c]):
            if pool[0, i] == roles[k]:
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
                put(frame, roles[k], pool[1, turn[k]])
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
    env, nodes, operands, mode, window, since, conditions, condition_count, roles, repeated, rows, masks,
    comb, pool, ends, used, ts, seq, types, ranks, budget_each,
):  # fmt: skip
    """Process the events `rows` in canonical order. The bits of `masks` are the leaves that each event fits.

    Returns (comb, pool, notified combinations, the arrived row of each of them, index). The index is -1, or that of the
    arrival for which the budget was exhausted.
    """
    total = len(nodes)
    begin, end = np.zeros(total, np.int64), np.zeros(total, np.int64)
    out, anchors = np.empty(16, np.int64), np.empty(16, np.int64)
    produced = np.empty(64, np.int64)
    notified = 0
    budget = np.empty(1, np.int64)
    for a in range(len(rows)):
        row = rows[a]
        if ts[row] < since:
            continue
        budget[0] = budget_each
        floor = ts[row] - window
        produced_count = 0
        for n in range(total):
            begin[n] = produced_count
            operator, first = nodes[n, N_OPERATOR], nodes[n, N_FIRST]
            fits = (masks[a] >> first) & 1
            if operator == N_LEAF:
                if fits:
                    comb, pool, produced = (
                        grow_columns(comb, used[0] + 1),
                        grow_columns(pool, used[1] + 1),
                        grow(produced, produced_count + 1),
                    )
                    produced[produced_count] = add_single(comb, pool, used, first, row, ts, seq)
                    produced_count += 1
            elif operator == N_EITHER:
                for k in range(nodes[n, N_COUNT]):
                    child = operands[nodes[n, N_OPERANDS] + k]
                    for i in range(begin[child], end[child]):
                        produced = grow(produced, produced_count + 1)
                        produced[produced_count] = produced[i]
                        produced_count += 1
            elif operator in (N_ALL, N_THEN):
                for k in range(nodes[n, N_COUNT]):
                    child = operands[nodes[n, N_OPERANDS] + k]
                    for i in range(begin[child], end[child]):
                        if operator == N_ALL:
                            comb, pool, produced, produced_count = _conjunction(
                                mode, comb, pool, ends, used, nodes[n, N_LIST], nodes[n, N_COUNT], k, produced[i],
                                floor, produced, produced_count, ts, seq, types, ranks,
                            )  # fmt: skip
                        else:
                            comb, pool, produced, produced_count = _sequence(
                                mode, comb, pool, ends, used, nodes[n, N_LIST], k, produced[i], floor, produced,
                                produced_count, ts, seq, types, ranks,
                            )  # fmt: skip
            elif fits:
                comb, pool, produced, produced_count = repetition(
                    env, mode, comb, pool, ends, used, nodes[n, N_LIST], first, nodes[n, N_COUNT],
                    nodes[n, N_ATTRIBUTE], nodes[n, N_SAME] != 0, row, floor, produced, produced_count, ts, seq,
                    types, ranks,
                )  # fmt: skip
            end[n] = produced_count
        for i in range(begin[total - 1], end[total - 1]):
            if _meets(env, comb, pool, produced[i], conditions, condition_count, roles, repeated, budget):
                out, anchors = grow(out, notified + 1), grow(anchors, notified + 1)
                out[notified], anchors[notified] = produced[i], row
                notified += 1
            if budget[0] < 0:
                return comb, pool, out[:notified], anchors[:notified], a
    return comb, pool, out[:notified], anchors[:notified], -1
