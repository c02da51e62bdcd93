"""Some way to fill the places of a request: `search` finds it, or that there is none.

Combinations are searched, not enumerated, and each part of the places by itself (see `plans.parts`), looking up one
place after another. If a step has no candidate left, it goes back to the last one that had a part in that, so that
events which have nothing to do with each other are not tried in all combinations. If nothing but that one had a part in
it, its event is a dead end for what depends on it, and that is remembered: if the places form a tree, each event is
tried at most once at each place.

Dead ends: which events need not be tried again in a search for combinations?

They are kept in a table, as (branch and row, the row beside, mark). The *mark* says how long they hold. A search whose
events are not confined has the mark of its arrival, and what it finds holds for all searches of that arrival; one with
fixed events has a mark of its own for what these have a part in. What can only depend on older events has the mark
LASTING, since those can only become fewer. The table forgets what it has no room for.
"""

from __future__ import annotations

import numpy as np

from tocsin.kernels.core import CODE, FRAME, LIST_LENGTH, LIST_OFFSET, POOL_ROW, POOL_TS, STACK, get, jit, put, small
from tocsin.kernels.expressions import all_hold, evaluate
from tocsin.kernels.identity import mix
from tocsin.kernels.layout import (
    C_AGE,
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
    OLDER,
    OWNER,
    V_ANCHOR,
    V_SINCE,
    V_WINDOW,
    YOUNGER,
)
from tocsin.kernels.patterns import list_of

# mypy: disable-error-code="no-untyped-def"


LASTING = np.int64(1)
"""The mark of dead ends for ever. Those of searches are greater."""


@small
def _slot(dead, branch, row, beside):
    mixed = mix(np.uint64(branch * OWNER + row) ^ mix(np.uint64(beside)))
    return np.int64(mixed & np.uint64(len(dead) - 2))


@small
def is_dead(dead, branch, row, beside, wide, mine):
    key = branch * OWNER + row
    at = _slot(dead, branch, row, beside)
    for i in range(at, at + 2):
        if dead[i, 0] == key and dead[i, 1] == beside:
            mark = dead[i, 2]
            if mark in (LASTING, wide, mine):
                return True
    return False


@jit
def bury(dead, branch, row, beside, mark):
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


# mypy: disable-error-code="no-untyped-def"


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
def before(x, y, ts, seq, types, ranks):
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
        if get(times, mid) < floor or row <= front or (low >= 0 and not before(low, row, ts, seq, types, ranks)):
            lo = mid + 1
        else:
            hi = mid
    start, hi = lo, stop
    limit = high[place] if high[place] >= 0 else arrival
    while lo < hi:
        mid = (lo + hi) >> 1
        if before(get(rows, mid), limit, ts, seq, types, ranks):
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
                left = before(row, other, ts, seq, types, ranks)
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
            right = before(x, y, ts, seq, types, ranks)
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
def _beside(env, first, step):
    """The event at the step with which a branch has to do besides, or -1."""
    code = get(env, CODE)
    context = get(code, step + C_CONTEXT)
    if context < 0:
        return np.int64(-1)
    return get(get(env, FRAME), get(code, first + context * COMBINE_WORDS + C_PLACE))


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
def search(
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
            if branch >= 0 and is_dead(dead, branch, row, beside, wide, mine):
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
            branch = get(code, step + C_BRANCH)
            lasting = mine == wide and get(code, step + C_AGE) == OLDER
            # What depends on this event has failed. Others are to blame only for its not being an earlier one.
            if branch >= 0 and (get(code, step + C_DEPENDS) >> place) & 1 != 0:
                row = get(frame, get(code, step + C_PLACE))
                mark = LASTING if lasting else mine
                if mine != wide and not _is_confined(code, step, low, high, fixed):
                    mark = wide
                bury(dead, branch, row, _beside(env, first, step), mark)
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
