# mypy: disable-error-code="no-untyped-def,assignment"
"""`TimesEq` and `TimesDf` in Snoop's contexts: n events of one value, or of n values."""

from __future__ import annotations

import numpy as np

from tocsin.engine.kernels.combinations import before
from tocsin.engine.kernels.expressions import evaluate
from tocsin.engine.kernels.kept import AT, SIZE, VALUE, append, following, grown, longer, noted, single, unlink
from tocsin.engine.kernels.layout import CONTINUOUS, CUMULATIVE, RECENT
from tocsin.engine.kernels.memory import FRAME, STACK, get, jit, put


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
