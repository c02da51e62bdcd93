# mypy: disable-error-code="no-untyped-def"
"""Requests: for each arriving event, the first combination of it and earlier unused events.

`_first` asks for a way to fill the places of a part with an earlier event until there is none, puts that event where it
can stand, and goes on with the next: so the events of the first combination are found one by one, from the earliest on.
`_together` joins the parts.
"""

from __future__ import annotations

import numpy as np

from tocsin.kernels.core import CODE, FRAME, LIST_LENGTH, LIST_OFFSET, POOL_ROW, get, jit, put, small
from tocsin.kernels.expressions import all_hold
from tocsin.kernels.layout import (
    C_BEHIND,
    C_BUFFER,
    C_PLACE,
    C_TYPE,
    COMBINE_WORDS,
    MAX_PLACES,
    OWNER,
    P_DETACHED,
    P_IN_TIME,
    P_ORDERS,
    P_STEP_COUNT,
    P_STEPS,
    PART_WORDS,
    V_ANCHOR,
    V_CONDITION_COUNT,
    V_CONDITIONS,
    V_NUMBER,
    V_PART_COUNT,
    V_PARTS,
    V_SINCE,
    V_STEP_COUNT,
    V_WINDOW,
)
from tocsin.kernels.patterns import list_of
from tocsin.kernels.requests.search import before, is_used, search, use

TRIAL = np.int64(64)
"""How many events are looked at in the usual order before one begins with the place in question."""


@jit
def _first(
    env, v, part, arrival, scratch, dead, fronts, marks, used, owner, ts, seq, types, ranks, budget, rows, line
):  # fmt: skip
    """The first combination of a part: `rows` by place, `line` in canonical order. 1, 0 or -1 as `search`."""
    code, frame = get(env, CODE), get(env, FRAME)
    steps, first = get(code, part + P_STEP_COUNT), get(code, part + P_STEPS)
    orders = code + 8 * get(code, part + P_ORDERS)
    high, fixed, begin, end, stack, masks, now, blame, clean = (
        scratch[0], scratch[1], scratch[2], scratch[3], scratch[4], scratch[5], scratch[6], scratch[7], scratch[8],
    )  # fmt: skip
    wide = marks[1]
    for q in range(steps):
        place = get(code, first + q * COMBINE_WORDS + C_PLACE)
        high[place], fixed[place] = -1, -1
    if get(code, part + P_IN_TIME) >= 0:
        return _in_time(
            env, v, part, arrival, high, fixed, begin, end, blame, clean, dead, fronts, wide,
            used, owner, ts, seq, types, ranks, budget, rows, line,
        )  # fmt: skip
    found = np.int64(0)
    depth = 0
    low = np.int64(-1)
    while True:
        if depth < steps:
            mine = wide
            if depth > 0:
                marks[0] += 1
                mine = marks[0]
            state = search(
                env, v, steps, first, arrival, low, high, fixed, begin, end, blame, clean, dead, fronts,
                wide, mine, used, owner, ts, seq, types, ranks, budget,
            )  # fmt: skip
            if state < 0:
                return state
            masks[depth] = 0
            if state == 1:
                earliest = np.int64(-1)
                improved = True
                while improved:
                    improved = False
                    for q in range(steps):
                        place = get(code, first + q * COMBINE_WORDS + C_PLACE)
                        now[place] = get(frame, place)
                    earliest = np.int64(-1)
                    for q in range(steps):
                        place = get(code, first + q * COMBINE_WORDS + C_PLACE)
                        if fixed[place] < 0 and (earliest < 0 or before(now[place], earliest, ts, seq, types, ranks)):
                            earliest = now[place]
                    for q in range(steps):
                        place = get(code, first + q * COMBINE_WORDS + C_PLACE)
                        if fixed[place] >= 0 or _is_behind(code, first + q * COMBINE_WORDS, fixed):
                            continue
                        high[place] = earliest
                        whole = budget[0]
                        budget[0] = min(whole, TRIAL)
                        marks[0] += 1
                        state = search(
                            env, v, steps, first, arrival, low, high, fixed, begin, end, blame, clean,
                            dead, fronts, wide, marks[0], used, owner, ts, seq, types, ranks, budget,
                        )  # fmt: skip
                        budget[0] += whole - min(whole, TRIAL)
                        if state < 0:
                            budget[0] = max(budget[0], 0)
                            state = search(
                                env, v, steps, get(orders, q), arrival, low, high, fixed, begin, end, blame, clean,
                                dead, fronts, wide, mine, used, owner, ts, seq, types, ranks, budget,
                            )  # fmt: skip
                        high[place] = -1
                        if state < 0:
                            return state
                        if state == 1:
                            improved = True
                            break
                for q in range(steps):
                    step = first + q * COMBINE_WORDS
                    place = get(code, step + C_PLACE)
                    if fixed[place] >= 0 or types[earliest] != get(code, step + C_TYPE):
                        continue
                    marks[0] += 1
                    fixed[place] = earliest
                    state = search(
                        env, v, steps, get(orders, q), arrival, earliest, high, fixed, begin, end, blame, clean,
                        dead, fronts, wide, marks[0], used, owner, ts, seq, types, ranks, budget,
                    )  # fmt: skip
                    fixed[place] = -1
                    if state < 0:
                        return state
                    if state == 1:
                        masks[depth] |= np.int64(1) << place
                stack[depth] = earliest
        else:
            for q in range(steps):
                place = get(code, first + q * COMBINE_WORDS + C_PLACE)
                now[place] = fixed[place]
            if found == 0 or _compare_parts(code, part, stack, now, line, rows, ts, seq, types, ranks) < 0:
                for q in range(steps):
                    place = get(code, first + q * COMBINE_WORDS + C_PLACE)
                    rows[place] = now[place]
                    line[q] = stack[q]
            found = np.int64(1)
            depth -= 1
            _release(code, part, fixed, stack[depth])
        while masks[depth] == 0:
            depth -= 1
            if depth < 0:
                return found
            _release(code, part, fixed, stack[depth])
        place = 0
        while (masks[depth] >> place) & 1 == 0:
            place += 1
        masks[depth] &= ~(np.int64(1) << place)
        fixed[place] = stack[depth]
        low = stack[depth]
        depth += 1


@jit
def _in_time(
    env, v, part, arrival, high, fixed, begin, end, blame, clean, dead, fronts, wide,
    used, owner, ts, seq, types, ranks, budget, rows, line,
):  # fmt: skip
    """The first combination of a part whose events stand one before another: what is found in that order.

    Whether there is any is asked in the usual order, in which more is remembered from one arrival to the next.
    """
    code, frame = get(env, CODE), get(env, FRAME)
    steps = get(code, part + P_STEP_COUNT)
    state = np.int64(1)
    for first in (get(code, part + P_STEPS), get(code, part + P_IN_TIME)):
        state = search(
            env, v, steps, first, arrival, np.int64(-1), high, fixed, begin, end, blame, clean, dead, fronts,
            wide, wide, used, owner, ts, seq, types, ranks, budget,
        )  # fmt: skip
        if state != 1:
            return state
    for q in range(steps):
        place = get(code, get(code, part + P_IN_TIME) + q * COMBINE_WORDS + C_PLACE)
        rows[place] = line[q] = get(frame, place)
    return state


@small
def _is_behind(code, step, fixed):
    """Whether an event that is not fixed must stand before that of a step: then that one is earlier still."""
    behind, place = get(code, step + C_BEHIND), 0
    while behind != 0:
        if behind & 1 != 0 and fixed[place] < 0:
            return True
        behind >>= 1
        place += 1
    return False


@small
def _release(code, part, fixed, row):
    first = get(code, part + P_STEPS)
    for q in range(get(code, part + P_STEP_COUNT)):
        place = get(code, first + q * COMBINE_WORDS + C_PLACE)
        if fixed[place] == row:
            fixed[place] = -1


@jit
def _compare_parts(code, part, line, rows, other_line, other_rows, ts, seq, types, ranks):
    """Which of two combinations of a part comes first: by their events in order, then by places."""
    steps, first = get(code, part + P_STEP_COUNT), get(code, part + P_STEPS)
    for d in range(steps):
        if line[d] != other_line[d]:
            return -1 if before(line[d], other_line[d], ts, seq, types, ranks) else 1
    differs = np.int64(-1)
    for q in range(steps):
        place = get(code, first + q * COMBINE_WORDS + C_PLACE)
        if rows[place] != other_rows[place] and (differs < 0 or place < differs):
            differs = place
    if differs < 0:
        return 0
    return -1 if before(rows[differs], other_rows[differs], ts, seq, types, ranks) else 1


@jit
def _some_lack(env, v, arrival, scratch, dead, fronts, marks, used, owner, ts, seq, types, ranks, budget):
    """Whether some part has no combination, as one can see from the last arrival that found it so: 1, 0, or -1.

    A combination of a detached part that was not there then has an event that is younger. Parts that lacked one of late
    are asked first.
    """
    code = get(env, CODE)
    parts, at = get(code, v + V_PART_COUNT), get(code, v + V_PARTS)
    asked = np.int64(0)
    while True:
        chosen, latest = np.int64(-1), np.int64(-1)
        for n in range(parts):
            number = get(code, at + n * PART_WORDS + P_DETACHED)
            if (asked >> n) & 1 == 0 and number >= 0 and fronts[number] > latest:
                chosen, latest = np.int64(n), fronts[number]
        if chosen < 0:
            return np.int64(0)
        asked |= np.int64(1) << chosen
        part = at + chosen * PART_WORDS
        state = _lately(
            env, v, part, latest, arrival, scratch, dead, fronts, marks, used, owner, ts, seq, types, ranks, budget
        )
        if state < 0:
            return state
        if state == 0:
            fronts[get(code, part + P_DETACHED)] = arrival
            return np.int64(1)


@jit
def _lately(
    env, v, part, since, arrival, scratch, dead, fronts, marks, used, owner, ts, seq, types, ranks, budget
):  # fmt: skip
    """Whether a part has a combination with an event that is not before `since`: 1, 0 or -1 as `search`."""
    code = get(env, CODE)
    steps, orders = get(code, part + P_STEP_COUNT), code + 8 * get(code, part + P_ORDERS)
    high, fixed, begin, end, blame, clean = scratch[0], scratch[1], scratch[2], scratch[3], scratch[7], scratch[8]
    floor = max(ts[arrival] - get(code, v + V_WINDOW), get(code, v + V_SINCE))
    for q in range(steps):
        place = get(code, get(orders, q) + C_PLACE)
        high[place], fixed[place] = -1, -1
    for q in range(steps):
        first = get(orders, q)
        place = get(code, first + C_PLACE)
        n = list_of(env, get(code, first + C_BUFFER), np.int64(0))
        if n < 0:
            continue
        start = get(get(env, LIST_OFFSET), n)
        last = start + get(get(env, LIST_LENGTH), n) - 1
        while last >= start:
            row = get(get(env, POOL_ROW), last)
            last -= 1
            budget[0] -= 1
            if budget[0] < 0:
                return np.int64(-1)
            if before(row, since, ts, seq, types, ranks) or ts[row] < floor:
                break
            if before(row, arrival, ts, seq, types, ranks) and not is_used(used, owner + row + 1):
                fixed[place] = row
                marks[0] += 1
                state = search(
                    env, v, steps, first, arrival, np.int64(-1), high, fixed, begin, end, blame, clean, dead, fronts,
                    marks[1], marks[0], used, owner, ts, seq, types, ranks, budget,
                )  # fmt: skip
                fixed[place] = -1
                if state != 0:
                    return state
    return np.int64(0)


@jit
def _together(
    env, v, arrival, scratch, counts, dead, fronts, marks, used, owner, ts, seq, types, ranks, budget, rows, line
):  # fmt: skip
    """The first combination of a variant, part by part, as `_first`."""
    code = get(env, CODE)
    parts, at = get(code, v + V_PART_COUNT), get(code, v + V_PARTS)
    for n in range(parts):
        part = at + n * PART_WORDS
        first = get(code, part + P_STEPS)
        for q in range(get(code, part + P_STEP_COUNT)):
            if counts[get(code, first + q * COMBINE_WORDS + C_BUFFER)] == 0:
                return np.int64(0)
    state = _some_lack(env, v, arrival, scratch, dead, fronts, marks, used, owner, ts, seq, types, ranks, budget)
    if state != 0:
        return np.int64(0) if state > 0 else state
    length = 0
    for n in range(parts):
        part = at + n * PART_WORDS
        state = _first(
            env, v, part, arrival, scratch, dead, fronts, marks, used, owner, ts, seq, types, ranks, budget, rows,
            line[length:],
        )  # fmt: skip
        if state != 1:
            if state == 0 and get(code, part + P_DETACHED) >= 0:
                fronts[get(code, part + P_DETACHED)] = arrival
            return state
        for d in range(length, length + get(code, part + P_STEP_COUNT)):
            row, place = line[d], d
            while place > 0 and before(row, line[place - 1], ts, seq, types, ranks):
                line[place] = line[place - 1]
                place -= 1
            line[place] = row
        length += get(code, part + P_STEP_COUNT)
    rows[get(code, v + V_ANCHOR)] = arrival
    return np.int64(1)


@small
def _compare(line, length, rows, other_line, other_length, other_rows, places, ts, seq, types, ranks):
    """Which of two combinations with one arrival comes first: by their events in order, then by places."""
    shorter = min(length, other_length)
    for d in range(shorter):
        if line[d] != other_line[d]:
            return -1 if before(line[d], other_line[d], ts, seq, types, ranks) else 1
    if length != other_length:
        return -1 if length > shorter else 1  # the arrival itself, which is last, stands where the other goes on
    for p in range(places):
        if rows[p] != other_rows[p]:
            return -1 if before(rows[p], other_rows[p], ts, seq, types, ranks) else 1
    return 0


@jit
def notify(
    env, arrivals, counts, used, dead, fronts, marks, ts, seq, types, ranks, budget_each,
    out_number, out_rows, out_anchor,
):  # fmt: skip
    """The notifications for arrivals: (row, request, variant) in order, those of one row and request together.

    `dead` holds dead ends as (branch and row, the row beside, mark), `fronts` for a branch the last of the rows before
    which all are dead ends for ever or used; `marks` the last mark and that of the arrival.

    Returns (notifications, used events, -1), or instead of -1 the place of the arrival for which the budget did not
    last.
    """
    code = get(env, CODE)
    scratch = np.empty((9, MAX_PLACES), np.int64)
    rows, line = np.empty(MAX_PLACES, np.int64), np.empty(MAX_PLACES, np.int64)
    best_rows, best_line = np.empty(MAX_PLACES, np.int64), np.empty(MAX_PLACES, np.int64)
    budget = np.empty(1, np.int64)
    count, keys = 0, 0
    at = 0
    while at < len(arrivals):
        row, request = arrivals[at, 0], arrivals[at, 1]
        owner = request * OWNER
        best, best_length = np.int64(-1), np.int64(0)
        budget[0] = budget_each
        marks[0] += 1
        marks[1] = marks[0]
        begun = at
        while at < len(arrivals) and arrivals[at, 0] == row and arrivals[at, 1] == request:
            v = arrivals[at, 2]
            at += 1
            if ts[row] < get(code, v + V_SINCE):
                continue
            put(get(env, FRAME), get(code, v + V_ANCHOR), row)
            conditions = get(code, v + V_CONDITION_COUNT)
            if conditions > 0 and not all_hold(env, get(code, v + V_CONDITIONS), conditions):
                continue
            state = _together(
                env, v, row, scratch, counts, dead, fronts, marks, used, owner, ts, seq, types, ranks, budget,
                rows, line,
            )  # fmt: skip
            if state < 0:
                return count, keys, begun
            if state == 0:
                continue
            length = get(code, v + V_STEP_COUNT)
            if (
                best < 0
                or _compare(
                    line, length, rows, best_line, best_length, best_rows, min(length, best_length) + 1,
                    ts, seq, types, ranks,
                ) < 0
            ):  # fmt: skip
                best, best_length = v, length
                for p in range(length + 1):
                    best_rows[p] = rows[p]
                for d in range(length):
                    best_line[d] = line[d]
        if best >= 0:
            out_number[count], out_anchor[count] = get(code, best + V_NUMBER), row
            single = np.empty(1, np.int64)
            for p in range(best_length + 1):
                out_rows[count, p] = best_rows[p]
                single[0] = owner + best_rows[p] + 1
                use(used, single)
                keys += 1
            count += 1
    return count, keys, -1
