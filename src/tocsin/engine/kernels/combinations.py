# mypy: disable-error-code="no-untyped-def"
"""Requests: for each arriving event, the first combination of it and earlier unused events.

Combinations are searched, not enumerated, and each part of the places by itself (see `plans.parts`). `_search` finds
some way to fill the places of a part, looking up one after another. If a step has no candidate left, it goes back to
the last one that had a part in that, so that events which have nothing to do with each other are not tried in all
combinations. If nothing but that one had a part in it, its event is a dead end for what depends on it, and that is
remembered: if the places form a tree, each event is tried at most once at each place.
`_first` then asks for a way with an earlier event until there is none, puts that event where it can stand, and goes on
with the next: so the events of the first combination are found one by one, from the earliest on.

Dead ends are kept in a table with a *mark* that says how long they hold. A search whose events are not confined has the
mark of its arrival, and what it finds holds for all searches of that arrival; one with fixed events has a mark of its
own for what these have a part in. What can only depend on older events has the mark LASTING, since those can only
become fewer. The table forgets what it has no room for.
"""

from __future__ import annotations

import numpy as np

from tocsin.engine.kernels.detection import list_of
from tocsin.engine.kernels.expressions import all_hold, evaluate
from tocsin.engine.kernels.hashing import mix
from tocsin.engine.kernels.layout import (
    C_AGE,
    C_BEHIND,
    C_BRANCH,
    C_BUFFER,
    C_CONDITION_COUNT,
    C_CONDITIONS,
    C_CONTEXT,
    C_DEPENDS,
    C_KEY_COUNT,
    C_KEY_MASK,
    C_KEYS,
    C_PAIR_COUNT,
    C_PAIRS,
    C_PLACE,
    C_SEQUENCE_COUNT,
    C_SEQUENCES,
    C_TEST_COUNT,
    C_TEST_MASK,
    C_TESTS,
    C_TYPE,
    COMBINE_WORDS,
    MAX_PLACES,
    OLDER,
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
    YOUNGER,
)
from tocsin.engine.kernels.memory import (
    CODE,
    FRAME,
    LIST_LENGTH,
    LIST_OFFSET,
    POOL_ROW,
    POOL_TS,
    STACK,
    get,
    jit,
    put,
    small,
)

OWNER = np.int64(1) << 40
"""An event that a request has used is request · OWNER + row + 1 in the set of these."""


LASTING = np.int64(1)
"""The mark of dead ends for ever. Those of searches are greater."""
TRIAL = np.int64(64)
"""How many events are looked at in the usual order before one begins with the place in question."""


@small
def is_used(used, key):
    mask = np.int64(len(used) - 1)
    at = np.int64(mix(np.uint64(key))) & mask
    while used[at] != 0:
        if used[at] == key:
            return True
        at = (at + 1) & mask
    return False


@jit
def use(used, keys):
    """Enters events that requests have used; each once. There must be room."""
    mask = np.int64(len(used) - 1)
    for key in keys:
        at = np.int64(mix(np.uint64(key))) & mask
        while used[at] != 0:
            at = (at + 1) & mask
        used[at] = key


@small
def _before(x, y, ts, seq, types, ranks):
    """Whether row x stands before row y in canonical order. Rows of one type are in order."""
    if ts[x] != ts[y]:
        return ts[x] < ts[y]
    if seq[x] != seq[y]:
        return seq[x] < seq[y]
    if types[x] != types[y]:
        return ranks[types[x]] < ranks[types[y]]
    return x < y


@jit
def _open(
    env, step, s, arrival, floor, low, high, fixed, wide, begin, end, blame, fronts, clean, ts, seq, types, ranks
):
    """Where candidates for a step stand in the pool. Logarithmic.

    `clean` becomes 1 if what is in vain for ever among them moves the front: if the search is not confined (`wide`).
    """
    code = get(env, CODE)
    place = get(code, step + C_PLACE)
    begin[s], end[s] = 0, 0
    front = np.int64(-1)
    clean[s] = 0
    if get(code, step + C_AGE) == OLDER and get(code, step + C_KEY_COUNT) == 0 and get(code, step + C_CONTEXT) < 0:
        front = fronts[get(code, step + C_BRANCH)]
        clean[s] = wide and low < 0 and fixed[place] < 0
    if fixed[place] >= 0:
        end[s] = 1
        return
    key = np.int64(0)
    count = get(code, step + C_KEY_COUNT)
    if count > 0:
        mixed = np.uint64(0)
        for i in range(count):
            if not evaluate(env, get(code, get(code, step + C_KEYS) + i)):
                return
            key = get(get(env, STACK), 0)
            mixed = mix(mixed ^ np.uint64(key))
        if count > 1:
            key = np.int64(mixed)
    n = list_of(env, get(code, step + C_BUFFER), key)
    if n < 0:
        return
    start = get(get(env, LIST_OFFSET), n)
    stop = start + get(get(env, LIST_LENGTH), n)
    rows, times = get(env, POOL_ROW), get(env, POOL_TS)
    lo, hi = start, stop
    while lo < hi:
        mid = (lo + hi) >> 1
        row = get(rows, mid)
        if get(times, mid) < floor or row <= front or (low >= 0 and not _before(low, row, ts, seq, types, ranks)):
            lo = mid + 1
        else:
            hi = mid
    start, hi = lo, stop
    limit = high[place] if high[place] >= 0 else arrival
    while lo < hi:
        mid = (lo + hi) >> 1
        if _before(get(rows, mid), limit, ts, seq, types, ranks):
            lo = mid + 1
        else:
            hi = mid
    begin[s], end[s] = start, lo
    _narrow(env, step, s, begin, end, blame, clean, ts, seq, types, ranks)


@jit
def _narrow(env, step, s, begin, end, blame, clean, ts, seq, types, ranks):
    """Leaves out candidates that are too early or too late for the events before and behind them."""
    code, frame, rows = get(env, CODE), get(env, FRAME), get(env, POOL_ROW)
    at = get(code, step + C_PAIRS)
    for _ in range(get(code, step + C_PAIR_COUNT)):
        other, q = get(frame, get(code, at)), get(code, at + 1)
        later, strictly = get(code, at + 2) != 0, get(code, at + 3) != 0
        at += 4
        lo, hi = begin[s], end[s]
        while lo < hi:
            mid = (lo + hi) >> 1
            row = get(rows, mid)
            if strictly and ts[row] == ts[other] and seq[row] == seq[other]:
                left = later
            else:
                left = _before(row, other, ts, seq, types, ranks)
            if left:
                lo = mid + 1
            else:
                hi = mid
        if later and lo > begin[s]:
            # What is too early stays so with a later event there; only what kept it from an earlier one can help.
            blame[s] |= blame[q]
            begin[s] = lo
            clean[s] = 0
        elif not later and lo < end[s]:
            if q >= 0:
                blame[s] |= np.int64(1) << q
            end[s] = lo


@small
def _latest(env, at, count, ts, seq):
    """The time of the last of some places."""
    code, frame = get(env, CODE), get(env, FRAME)
    row = get(frame, get(code, at))
    best_ts, best_seq = ts[row], seq[row]
    for i in range(1, count):
        row = get(frame, get(code, at + i))
        if ts[row] > best_ts or (ts[row] == best_ts and seq[row] > best_seq):
            best_ts, best_seq = ts[row], seq[row]
    return best_ts, best_seq


@jit
def _fits(env, step, s, first, row, arrival, held, blame, ts, seq, types, ranks):
    """Whether a row can stand at the place of a step, beside those of earlier steps: -1 if it can, else those of them
    that are in its way, as bits. `held`: it was put there.
    """
    code, frame = get(env, CODE), get(env, FRAME)
    if row == arrival:
        return np.int64(0)
    for q in range(s):
        if get(frame, get(code, first + q * COMBINE_WORDS + C_PLACE)) == row:
            return np.int64(1) << q
    place = get(code, step + C_PLACE)
    if held and types[row] != get(code, step + C_TYPE):
        return np.int64(0)
    put(frame, place, row)
    if (held or get(code, step + C_KEY_COUNT) > 1) and not all_hold(
        env, get(code, step + C_TESTS), get(code, step + C_TEST_COUNT)
    ):
        return get(code, step + C_KEY_MASK)
    mask = get(code, step + C_TEST_MASK)
    count = get(code, step + C_CONDITION_COUNT)
    if count > 0 and not all_hold(env, get(code, step + C_CONDITIONS), count):
        return mask
    at = get(code, step + C_PAIRS)
    for _ in range(get(code, step + C_PAIR_COUNT)):
        other, q = get(frame, get(code, at)), get(code, at + 1)
        later, strictly = get(code, at + 2) != 0, get(code, at + 3) != 0
        x, y = (other, row) if later else (row, other)
        if strictly:
            right = ts[x] < ts[y] or (ts[x] == ts[y] and seq[x] < seq[y])
        else:
            right = _before(x, y, ts, seq, types, ranks)
        if not right:
            if q < 0:
                return np.int64(0)
            # What is too early stays so with a later event there; only what kept it from an earlier one can help.
            return blame[q] if later else np.int64(1) << q
        at += 4
    at = get(code, step + C_SEQUENCES)
    for _ in range(get(code, step + C_SEQUENCE_COUNT)):
        count = get(code, at)
        left = get(frame, get(code, at + 1))
        right_ts, right_seq = _latest(env, at + 2, count, ts, seq)
        if ts[left] > right_ts or (ts[left] == right_ts and seq[left] >= right_seq):
            return mask
        at += 2 + count
    return np.int64(-1)


@small
def _slot(dead, branch, row, beside):
    mixed = mix(np.uint64(branch * OWNER + row) ^ mix(np.uint64(beside)))
    return np.int64(mixed & np.uint64(len(dead) - 2))


@small
def _beside(env, first, step):
    """The event at the step with which a branch has to do besides, or -1."""
    code = get(env, CODE)
    context = get(code, step + C_CONTEXT)
    if context < 0:
        return np.int64(-1)
    return get(get(env, FRAME), get(code, first + context * COMBINE_WORDS + C_PLACE))


@small
def _is_dead(dead, branch, row, beside, wide, mine):
    key = branch * OWNER + row
    at = _slot(dead, branch, row, beside)
    for i in range(at, at + 2):
        if dead[i, 0] == key and dead[i, 1] == beside:
            mark = dead[i, 2]
            if mark in (LASTING, wide, mine):
                return True
    return False


@jit
def _bury(dead, branch, row, beside, mark):
    """Remembers a dead end, in the place of one that is forgotten or of less use."""
    key = branch * OWNER + row
    at = _slot(dead, branch, row, beside)
    chosen = at
    for i in range(at, at + 2):
        if dead[i, 0] == key and dead[i, 1] == beside:
            if dead[i, 2] == LASTING:
                return
            chosen = i
            break
        if dead[i, 2] != LASTING and (dead[chosen, 2] == LASTING or dead[i, 2] < dead[chosen, 2]):
            chosen = i
    dead[chosen, 0], dead[chosen, 1], dead[chosen, 2] = key, beside, mark


@small
def _is_confined(code, step, low, high, fixed):
    """Whether what depends on a step is fixed, or kept from some events by `low` or `high`.

    What is younger than an event that is not fixed, and so is itself behind `low`, is behind `low` anyway.
    """
    if low >= 0 and (get(code, step + C_AGE) != YOUNGER or fixed[get(code, step + C_PLACE)] >= 0):
        return True
    places, place = get(code, step + C_DEPENDS), 0
    while places != 0:
        if places & 1 != 0 and (fixed[place] >= 0 or high[place] >= 0):
            return True
        places >>= 1
        place += 1
    return False


@jit
def _search(
    env, v, steps, first, arrival, low, high, fixed, begin, end, blame, clean, dead, fronts, wide, mine,
    used, owner, ts, seq, types, ranks, budget,
):  # fmt: skip
    """Some way to fill the places of a part, left in the frame: 1, or 0 if there is none, or -1 if the budget does not
    last.

    Places are filled in the order of the steps at `first`. Events that are not `fixed` stand behind `low`, and before
    `high` of their place. Dead ends hold if their mark is `wide` or `mine`, and get `mine`.
    """
    code, frame = get(env, CODE), get(env, FRAME)
    put(frame, get(code, v + V_ANCHOR), arrival)
    floor = max(ts[arrival] - get(code, v + V_WINDOW), get(code, v + V_SINCE))
    s = 0
    blame[0] = 0
    _open(
        env, first, 0, arrival, floor, low, high, fixed, mine == wide, begin, end, blame, fronts, clean,
        ts, seq, types, ranks,
    )  # fmt: skip
    while s < steps:
        step = first + s * COMBINE_WORDS
        place, branch = get(code, step + C_PLACE), get(code, step + C_BRANCH)
        held = fixed[place] >= 0
        beside = _beside(env, first, step)
        moved = False
        while begin[s] < end[s]:
            row = fixed[place] if held else get(get(env, POOL_ROW), begin[s])
            begin[s] += 1
            budget[0] -= 1
            if budget[0] < 0:
                return -1
            if branch >= 0 and _is_dead(dead, branch, row, beside, wide, mine):
                if beside >= 0:
                    blame[s] |= np.int64(1) << get(code, step + C_CONTEXT)
                if clean[s] != 0:
                    fronts[branch] = row
                continue
            if is_used(used, owner + row + 1):
                if clean[s] != 0:
                    fronts[branch] = row
                continue
            guilty = _fits(env, step, s, first, row, arrival, held, blame, ts, seq, types, ranks)
            if guilty < 0:
                moved = True
                break
            clean[s] = 0
            blame[s] |= guilty
        if not moved:
            mask = blame[s]
            if mask == 0:
                return 0
            s -= 1
            while (mask >> s) & 1 == 0:
                s -= 1
            mask &= ~(np.int64(1) << s)
            blame[s] |= mask
            step = first + s * COMBINE_WORDS
            branch, context = get(code, step + C_BRANCH), get(code, step + C_CONTEXT)
            lasting = mine == wide and get(code, step + C_AGE) == OLDER
            if branch >= 0 and (mask == 0 or (context >= 0 and mask == np.int64(1) << context)):
                row = get(frame, get(code, step + C_PLACE))
                mark = LASTING if lasting else mine
                if mine != wide and not _is_confined(code, step, low, high, fixed):
                    mark = wide
                _bury(dead, branch, row, _beside(env, first, step), mark)
                if lasting and clean[s] != 0:
                    fronts[branch] = row
                    continue
            clean[s] = 0
            continue
        s += 1
        if s < steps:
            following = first + s * COMBINE_WORDS
            blame[s] = get(code, following + C_KEY_MASK)
            _open(
                env, following, s, arrival, floor, low, high, fixed, mine == wide, begin, end, blame, fronts, clean,
                ts, seq, types, ranks,
            )  # fmt: skip
    return 1


@jit
def _first(
    env, v, part, arrival, scratch, dead, fronts, marks, used, owner, ts, seq, types, ranks, budget, rows, line
):  # fmt: skip
    """The first combination of a part: `rows` by place, `line` in canonical order. 1, 0 or -1 as `_search`."""
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
    found = np.int64(0)
    depth = 0
    low = np.int64(-1)
    while True:
        if depth < steps:
            mine = wide
            if depth > 0:
                marks[0] += 1
                mine = marks[0]
            state = _search(
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
                        if fixed[place] < 0 and (earliest < 0 or _before(now[place], earliest, ts, seq, types, ranks)):
                            earliest = now[place]
                    for q in range(steps):
                        place = get(code, first + q * COMBINE_WORDS + C_PLACE)
                        if fixed[place] >= 0 or _is_behind(code, first + q * COMBINE_WORDS, fixed):
                            continue
                        high[place] = earliest
                        whole = budget[0]
                        budget[0] = min(whole, TRIAL)
                        marks[0] += 1
                        state = _search(
                            env, v, steps, first, arrival, low, high, fixed, begin, end, blame, clean,
                            dead, fronts, wide, marks[0], used, owner, ts, seq, types, ranks, budget,
                        )  # fmt: skip
                        budget[0] += whole - min(whole, TRIAL)
                        if state < 0:
                            budget[0] = max(budget[0], 0)
                            state = _search(
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
                    state = _search(
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
            return -1 if _before(line[d], other_line[d], ts, seq, types, ranks) else 1
    differs = np.int64(-1)
    for q in range(steps):
        place = get(code, first + q * COMBINE_WORDS + C_PLACE)
        if rows[place] != other_rows[place] and (differs < 0 or place < differs):
            differs = place
    if differs < 0:
        return 0
    return -1 if _before(rows[differs], other_rows[differs], ts, seq, types, ranks) else 1


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
    length = 0
    for n in range(parts):
        part = at + n * PART_WORDS
        state = _first(
            env, v, part, arrival, scratch, dead, fronts, marks, used, owner, ts, seq, types, ranks, budget, rows,
            line[length:],
        )  # fmt: skip
        if state != 1:
            return state
        for d in range(length, length + get(code, part + P_STEP_COUNT)):
            row, place = line[d], d
            while place > 0 and _before(row, line[place - 1], ts, seq, types, ranks):
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
            return -1 if _before(line[d], other_line[d], ts, seq, types, ranks) else 1
    if length != other_length:
        return -1 if length > shorter else 1  # the arrival itself, which is last, stands where the other goes on
    for p in range(places):
        if rows[p] != other_rows[p]:
            return -1 if _before(rows[p], other_rows[p], ts, seq, types, ranks) else 1
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
