# mypy: disable-error-code="no-untyped-def"
"""Find the notifications of requests in generic mode.

For each arriving event, the first combination of that event and of earlier unused events is found. A *component* is a
set of roles that conditions connect. `_first_of_component` searches for a solution with ever earlier events until there
is none. Then it fixes the earliest event in each role that the event can fill, and continues with the next event. In
this way it finds the events of the first combination one by one, beginning with the earliest. `_first_combination`
joins the combinations of all components.

A *variant* of a request is one alternative of its expression, with the role that the arriving event fills.
"""

from __future__ import annotations

import numpy as np

from tocsin.kernels.core import CODE, FRAME, LIST_LENGTH, LIST_OFFSET, POOL_ROW, get, jit, put, small
from tocsin.kernels.expressions import all_hold
from tocsin.kernels.layout import (
    C_BUFFER,
    C_EARLIER,
    C_ROLE,
    C_TYPE,
    COMPONENT_WORDS,
    JOIN_STEP_WORDS,
    MAX_ROLES,
    OWNER,
    P_DETACHED,
    P_IN_TIME,
    P_ORDERS,
    P_STEP_COUNT,
    P_STEPS,
    V_ANCHOR,
    V_COMPONENT_COUNT,
    V_COMPONENTS,
    V_CONDITION_COUNT,
    V_CONDITIONS,
    V_NUMBER,
    V_SINCE,
    V_STEP_COUNT,
    V_WINDOW,
)
from tocsin.kernels.patterns import list_of
from tocsin.kernels.requests.search import before, is_used, mark_used, search

TRIAL = np.int64(64)
"""How many events a search in the usual join order may try before it restarts from the role to fill earlier."""


@jit
def _first_of_component(
    env, v, component, arrival, scratch, no_goods, fronts, epochs, used, owner, ts, seq, types, ranks, budget, rows,
    line,
):  # fmt: skip
    """Find the first combination of a component, and write it to `rows` by role and to `line` in canonical order.

    Returns 1, 0 or -1 like `search`.
    """
    code, frame = get(env, CODE), get(env, FRAME)
    steps, first = get(code, component + P_STEP_COUNT), get(code, component + P_STEPS)
    orders = code + 8 * get(code, component + P_ORDERS)
    high, fixed, begin, end, stack, masks, now, conflicts, clean = (
        scratch[0], scratch[1], scratch[2], scratch[3], scratch[4], scratch[5], scratch[6], scratch[7], scratch[8],
    )  # fmt: skip
    arrival_epoch = epochs[1]
    for q in range(steps):
        role = get(code, first + q * JOIN_STEP_WORDS + C_ROLE)
        high[role], fixed[role] = -1, -1
    if get(code, component + P_IN_TIME) >= 0:
        return _first_in_time(
            env, v, component, arrival, high, fixed, begin, end, conflicts, clean, no_goods, fronts, arrival_epoch,
            used, owner, ts, seq, types, ranks, budget, rows, line,
        )  # fmt: skip
    any_found = np.int64(0)
    depth = 0
    low = np.int64(-1)
    while True:
        if depth < steps:
            own_epoch = arrival_epoch
            if depth > 0:
                epochs[0] += 1
                own_epoch = epochs[0]
            state = search(
                env, v, steps, first, arrival, low, high, fixed, begin, end, conflicts, clean, no_goods, fronts,
                arrival_epoch, own_epoch, used, owner, ts, seq, types, ranks, budget,
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
                        role = get(code, first + q * JOIN_STEP_WORDS + C_ROLE)
                        now[role] = get(frame, role)
                    earliest = np.int64(-1)
                    for q in range(steps):
                        role = get(code, first + q * JOIN_STEP_WORDS + C_ROLE)
                        if fixed[role] < 0 and (earliest < 0 or before(now[role], earliest, ts, seq, types, ranks)):
                            earliest = now[role]
                    for q in range(steps):
                        role = get(code, first + q * JOIN_STEP_WORDS + C_ROLE)
                        if fixed[role] >= 0 or _must_follow(code, first + q * JOIN_STEP_WORDS, fixed):
                            continue
                        high[role] = earliest
                        whole = budget[0]
                        budget[0] = min(whole, TRIAL)
                        epochs[0] += 1
                        state = search(
                            env, v, steps, first, arrival, low, high, fixed, begin, end, conflicts, clean,
                            no_goods, fronts, arrival_epoch, epochs[0], used, owner, ts, seq, types, ranks, budget,
                        )  # fmt: skip
                        budget[0] += whole - min(whole, TRIAL)
                        if state < 0:
                            budget[0] = max(budget[0], 0)
                            state = search(
                                env, v, steps, get(orders, q), arrival, low, high, fixed, begin, end, conflicts, clean,
                                no_goods, fronts, arrival_epoch, own_epoch, used, owner, ts, seq, types, ranks, budget,
                            )  # fmt: skip
                        high[role] = -1
                        if state < 0:
                            return state
                        if state == 1:
                            improved = True
                            break
                for q in range(steps):
                    step = first + q * JOIN_STEP_WORDS
                    role = get(code, step + C_ROLE)
                    if fixed[role] >= 0 or types[earliest] != get(code, step + C_TYPE):
                        continue
                    epochs[0] += 1
                    fixed[role] = earliest
                    state = search(
                        env, v, steps, get(orders, q), arrival, earliest, high, fixed, begin, end, conflicts, clean,
                        no_goods, fronts, arrival_epoch, epochs[0], used, owner, ts, seq, types, ranks, budget,
                    )  # fmt: skip
                    fixed[role] = -1
                    if state < 0:
                        return state
                    if state == 1:
                        masks[depth] |= np.int64(1) << role
                stack[depth] = earliest
        else:
            for q in range(steps):
                role = get(code, first + q * JOIN_STEP_WORDS + C_ROLE)
                now[role] = fixed[role]
            if (
                any_found == 0
                or _compare_in_component(code, component, stack, now, line, rows, ts, seq, types, ranks) < 0
            ):
                for q in range(steps):
                    role = get(code, first + q * JOIN_STEP_WORDS + C_ROLE)
                    rows[role] = now[role]
                    line[q] = stack[q]
            any_found = np.int64(1)
            depth -= 1
            _release(code, component, fixed, stack[depth])
        while masks[depth] == 0:
            depth -= 1
            if depth < 0:
                return any_found
            _release(code, component, fixed, stack[depth])
        role = 0
        while (masks[depth] >> role) & 1 == 0:
            role += 1
        masks[depth] &= ~(np.int64(1) << role)
        fixed[role] = stack[depth]
        low = stack[depth]
        depth += 1


@jit
def _first_in_time(
    env, v, component, arrival, high, fixed, begin, end, conflicts, clean, no_goods, fronts, arrival_epoch,
    used, owner, ts, seq, types, ranks, budget, rows, line,
):  # fmt: skip
    """Find the first combination of a component whose events must follow one another. Return 1, 0 or -1 like `search`.

    In the join order `P_IN_TIME`, the first solution found is the first combination. The usual join order decides
    before whether there is a solution, because it retains more no-goods from one arrival to the next.
    """
    code, frame = get(env, CODE), get(env, FRAME)
    steps = get(code, component + P_STEP_COUNT)
    state = np.int64(1)
    for first in (get(code, component + P_STEPS), get(code, component + P_IN_TIME)):
        state = search(
            env, v, steps, first, arrival, np.int64(-1), high, fixed, begin, end, conflicts, clean, no_goods, fronts,
            arrival_epoch, arrival_epoch, used, owner, ts, seq, types, ranks, budget,
        )  # fmt: skip
        if state != 1:
            return state
    for q in range(steps):
        role = get(code, get(code, component + P_IN_TIME) + q * JOIN_STEP_WORDS + C_ROLE)
        rows[role] = line[q] = get(frame, role)
    return state


@small
def _must_follow(code, step, fixed):
    """Return whether an event that is not fixed must precede the event of a step, and is therefore earlier."""
    earlier, role = get(code, step + C_EARLIER), 0
    while earlier != 0:
        if earlier & 1 != 0 and fixed[role] < 0:
            return True
        earlier >>= 1
        role += 1
    return False


@small
def _release(code, component, fixed, row):
    """Remove an event of a component from `fixed`."""
    first = get(code, component + P_STEPS)
    for q in range(get(code, component + P_STEP_COUNT)):
        role = get(code, first + q * JOIN_STEP_WORDS + C_ROLE)
        if fixed[role] == row:
            fixed[role] = -1


@jit
def _compare_in_component(code, component, line, rows, other_line, other_rows, ts, seq, types, ranks):
    """Compare two combinations of a component by their events in order, then by roles. Return -1, 0 or 1."""
    steps, first = get(code, component + P_STEP_COUNT), get(code, component + P_STEPS)
    for d in range(steps):
        if line[d] != other_line[d]:
            return -1 if before(line[d], other_line[d], ts, seq, types, ranks) else 1
    differs = np.int64(-1)
    for q in range(steps):
        role = get(code, first + q * JOIN_STEP_WORDS + C_ROLE)
        if rows[role] != other_rows[role] and (differs < 0 or role < differs):
            differs = role
    if differs < 0:
        return 0
    return -1 if before(rows[differs], other_rows[differs], ts, seq, types, ranks) else 1


@jit
def _lacks_component(env, v, arrival, scratch, no_goods, fronts, epochs, used, owner, ts, seq, types, ranks, budget):
    """Return 1 if some detached component has no combination, 0 if all may have one, or -1 if out of budget.

    A detached component that had no combination at its last check can only have one with a younger event, so only
    younger events are tried. The components that lacked one most recently are checked first.
    """
    code = get(env, CODE)
    components, at = get(code, v + V_COMPONENT_COUNT), get(code, v + V_COMPONENTS)
    checked = np.int64(0)
    while True:
        chosen, latest = np.int64(-1), np.int64(-1)
        for n in range(components):
            number = get(code, at + n * COMPONENT_WORDS + P_DETACHED)
            if (checked >> n) & 1 == 0 and number >= 0 and fronts[number] > latest:
                chosen, latest = np.int64(n), fronts[number]
        if chosen < 0:
            return np.int64(0)
        checked |= np.int64(1) << chosen
        component = at + chosen * COMPONENT_WORDS
        state = _has_recent(
            env,
            v,
            component,
            latest,
            arrival,
            scratch,
            no_goods,
            fronts,
            epochs,
            used,
            owner,
            ts,
            seq,
            types,
            ranks,
            budget,
        )
        if state < 0:
            return state
        if state == 0:
            fronts[get(code, component + P_DETACHED)] = arrival
            return np.int64(1)


@jit
def _has_recent(
    env, v, component, since, arrival, scratch, no_goods, fronts, epochs, used, owner, ts, seq, types, ranks, budget
):  # fmt: skip
    """Return 1 if a component has a combination with an event not before `since`, else 0, or -1 if out of budget."""
    code = get(env, CODE)
    steps, orders = get(code, component + P_STEP_COUNT), code + 8 * get(code, component + P_ORDERS)
    high, fixed, begin, end, conflicts, clean = (
        scratch[0],
        scratch[1],
        scratch[2],
        scratch[3],
        scratch[7],
        scratch[8],
    )
    floor = max(ts[arrival] - get(code, v + V_WINDOW), get(code, v + V_SINCE))
    for q in range(steps):
        role = get(code, get(orders, q) + C_ROLE)
        high[role], fixed[role] = -1, -1
    for q in range(steps):
        first = get(orders, q)
        role = get(code, first + C_ROLE)
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
                fixed[role] = row
                epochs[0] += 1
                state = search(
                    env, v, steps, first, arrival, np.int64(-1), high, fixed, begin, end, conflicts, clean, no_goods,
                    fronts, epochs[1], epochs[0], used, owner, ts, seq, types, ranks, budget,
                )  # fmt: skip
                fixed[role] = -1
                if state != 0:
                    return state
    return np.int64(0)


@jit
def _first_combination(
    env, v, arrival, scratch, counts, no_goods, fronts, epochs, used, owner, ts, seq, types, ranks, budget, rows, line
):  # fmt: skip
    """Find the first combination of a variant, component by component. Return 1, 0 or -1 like `search`."""
    code = get(env, CODE)
    components, at = get(code, v + V_COMPONENT_COUNT), get(code, v + V_COMPONENTS)
    for n in range(components):
        component = at + n * COMPONENT_WORDS
        first = get(code, component + P_STEPS)
        for q in range(get(code, component + P_STEP_COUNT)):
            if counts[get(code, first + q * JOIN_STEP_WORDS + C_BUFFER)] == 0:
                return np.int64(0)
    state = _lacks_component(
        env, v, arrival, scratch, no_goods, fronts, epochs, used, owner, ts, seq, types, ranks, budget
    )
    if state != 0:
        return np.int64(0) if state > 0 else state
    length = 0
    for n in range(components):
        component = at + n * COMPONENT_WORDS
        state = _first_of_component(
            env, v, component, arrival, scratch, no_goods, fronts, epochs, used, owner, ts, seq, types, ranks,
            budget, rows, line[length:],
        )  # fmt: skip
        if state != 1:
            if state == 0 and get(code, component + P_DETACHED) >= 0:
                fronts[get(code, component + P_DETACHED)] = arrival
            return state
        for d in range(length, length + get(code, component + P_STEP_COUNT)):
            row, position = line[d], d
            while position > 0 and before(row, line[position - 1], ts, seq, types, ranks):
                line[position] = line[position - 1]
                position -= 1
            line[position] = row
        length += get(code, component + P_STEP_COUNT)
    rows[get(code, v + V_ANCHOR)] = arrival
    return np.int64(1)


@small
def _compare(line, length, rows, other_line, other_length, other_rows, roles, ts, seq, types, ranks):
    """Compare two combinations with the same arrival by their events in order, then by roles. Return -1, 0 or 1."""
    shorter = min(length, other_length)
    for d in range(shorter):
        if line[d] != other_line[d]:
            return -1 if before(line[d], other_line[d], ts, seq, types, ranks) else 1
    if length != other_length:
        return -1 if length > shorter else 1  # the shorter one continues with the arrival, which is last
    for p in range(roles):
        if rows[p] != other_rows[p]:
            return -1 if before(rows[p], other_rows[p], ts, seq, types, ranks) else 1
    return 0


@jit
def notify(
    env, arrivals, counts, used, no_goods, fronts, epochs, ts, seq, types, ranks, budget_each,
    out_number, out_rows, out_anchor,
):  # fmt: skip
    """Find the notifications for `arrivals`, which are (row, request, variant) in order, grouped by row and request.

    `no_goods` holds (subtree and row, context row, epoch). `fronts` has for each subtree the row up to which all rows
    are permanent no-goods or used. `epochs` has the last epoch and the epoch of the arrival.

    Returns (number of notifications, number of used events, index). The index is -1, or that of the arrival for which
    the budget was exhausted.
    """
    code = get(env, CODE)
    scratch = np.empty((9, MAX_ROLES), np.int64)
    rows, line = np.empty(MAX_ROLES, np.int64), np.empty(MAX_ROLES, np.int64)
    best_rows, best_line = np.empty(MAX_ROLES, np.int64), np.empty(MAX_ROLES, np.int64)
    budget = np.empty(1, np.int64)
    count, keys = 0, 0
    at = 0
    while at < len(arrivals):
        row, request = arrivals[at, 0], arrivals[at, 1]
        owner = request * OWNER
        best, best_length = np.int64(-1), np.int64(0)
        budget[0] = budget_each
        epochs[0] += 1
        epochs[1] = epochs[0]
        first_arrival = at
        while at < len(arrivals) and arrivals[at, 0] == row and arrivals[at, 1] == request:
            v = arrivals[at, 2]
            at += 1
            if ts[row] < get(code, v + V_SINCE):
                continue
            put(get(env, FRAME), get(code, v + V_ANCHOR), row)
            conditions = get(code, v + V_CONDITION_COUNT)
            if conditions > 0 and not all_hold(env, get(code, v + V_CONDITIONS), conditions):
                continue
            state = _first_combination(
                env, v, row, scratch, counts, no_goods, fronts, epochs, used, owner, ts, seq, types, ranks, budget,
                rows, line,
            )  # fmt: skip
            if state < 0:
                return count, keys, first_arrival
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
                mark_used(used, single)
                keys += 1
            count += 1
    return count, keys, -1
