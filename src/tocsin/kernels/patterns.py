# mypy: disable-error-code="no-untyped-def"
"""Detection: for each anchor, the search back through the buffers, role by role.

`env` is the address of an environment (see `memory`), `at` and names of records are offsets into the code.
"""

from __future__ import annotations

import numpy as np

from tocsin.kernels.core import (
    CODE,
    COMPUTED,
    COMPUTED_KNOWN,
    END,
    FRAME,
    HASH_BUFFER,
    HASH_KEY,
    HASH_LIST,
    HASH_MASK,
    LEFT,
    LIST_CAPACITY,
    LIST_LENGTH,
    LIST_OFFSET,
    NEXT,
    PARTIALS,
    POOL_ROW,
    POOL_TS,
    POSITION,
    PRESENT,
    SEQ,
    STACK,
    STRIDE,
    TS,
    WORDS,
    get,
    get_byte,
    get_double,
    jit,
    put,
    put_byte,
    put_double,
    small,
)
from tocsin.kernels.expressions import all_hold, evaluate
from tocsin.kernels.identity import mix
from tocsin.kernels.layout import (
    ABSENCE,
    ARGUMENT_SEQ,
    ARGUMENT_TS,
    AVG,
    COUNT,
    G_ARGUMENT,
    G_BARS_EARLIER,
    G_DOUBLE,
    G_FUNCTION,
    G_INDEX,
    G_KIND,
    G_LOOKUP,
    G_TEST,
    GUARD_WORDS,
    L_BUFFER,
    L_CONDITION_COUNT,
    L_CONDITIONS,
    L_END,
    L_KEY_COUNT,
    L_KEYS,
    L_PLACE,
    L_START,
    L_WINDOW,
    LAST,
    MAX,
    MIN,
    R_COMPUTED_COUNT,
    R_CONSUMES,
    R_GUARD_COUNT,
    R_GUARDS,
    R_SINCE,
    R_STEP_COUNT,
    R_STEPS,
    S_CONSUMED,
    S_COUNT,
    S_GUARD_COUNT,
    S_GUARDS,
    S_LOOKUP,
    S_POLICY,
    STEP_WORDS,
    SUM,
)

INT64_MAX = np.int64(2**63 - 1)
FAILS, HOLDS, BARRED = range(3)


@small
def list_of(env, buffer, key):
    """The list of a (buffer, key), or -1."""
    mask = get(env, HASH_MASK)
    lists, keys, buffers = get(env, HASH_LIST), get(env, HASH_KEY), get(env, HASH_BUFFER)
    at = np.int64(mix(np.uint64(key) + np.uint64(buffer) * np.uint64(0x9E3779B97F4A7C15)) & np.uint64(mask))
    while get(lists, at) >= 0:
        if get(keys, at) == key and get(buffers, at) == buffer:
            return get(lists, at)
        at = (at + 1) & mask
    return np.int64(-1)


@small
def _seq_at(env, position):
    row = get(get(env, POOL_ROW), position)
    return get(get(env, SEQ), row if row >= 0 else ~row)


@small
def _first_at_or_after(env, lo, hi, ts, seq):
    """The first position in [lo, hi) whose event does not precede (ts, seq). Logarithmic."""
    times = get(env, POOL_TS)
    while lo < hi:
        mid = (lo + hi) >> 1
        t = get(times, mid)
        if t < ts or (t == ts and _seq_at(env, mid) < seq):
            lo = mid + 1
        else:
            hi = mid
    return lo


@small
def _first_after(env, lo, hi, ts, seq):
    """The first position in [lo, hi) whose event (ts, seq) precedes. Logarithmic."""
    times = get(env, POOL_TS)
    while lo < hi:
        mid = (lo + hi) >> 1
        t = get(times, mid)
        if t > ts or (t == ts and _seq_at(env, mid) > seq):
            hi = mid
        else:
            lo = mid + 1
    return lo


@jit
def _without_consumed(env, n, lo, hi):
    """Drops consumed entries from the front of a list, so that a queue is not walked again and again."""
    rows, front = get(env, POOL_ROW), lo
    while lo < hi and get(rows, lo) < 0:
        lo += 1
    put(get(env, LIST_OFFSET), n, lo)
    put(get(env, LIST_LENGTH), n, hi - lo)
    put(get(env, LIST_CAPACITY), n, get(get(env, LIST_CAPACITY), n) - (lo - front))
    return lo


@jit
def _reach(env, at, since):
    """Where in the pool candidates of the lookup at `at` stand: [lo, hi)."""
    code, frame, times = get(env, CODE), get(env, FRAME), get(env, TS)
    key = np.int64(0)
    count = get(code, at + L_KEY_COUNT)
    if count > 0:
        mixed = np.uint64(0)
        for i in range(count):
            if not evaluate(env, get(code, get(code, at + L_KEYS) + i)):
                return np.int64(0), np.int64(0)
            key = get(get(env, STACK), 0)
            mixed = mix(mixed ^ np.uint64(key))
        if count > 1:
            key = np.int64(mixed)
    n = list_of(env, get(code, at + L_BUFFER), key)
    if n < 0:
        return np.int64(0), np.int64(0)
    lo = get(get(env, LIST_OFFSET), n)
    hi = lo + get(get(env, LIST_LENGTH), n)
    if hi > lo and get(get(env, POOL_ROW), lo) < 0:
        lo = _without_consumed(env, n, lo, hi)
    end = get(frame, get(code, at + L_END))
    end_ts = get(times, end)
    start = get(code, at + L_START)
    if start >= 0:
        event = get(frame, start)
        after_ts, after_seq = get(times, event), get(get(env, SEQ), event)
        if after_ts < since:
            after_ts, after_seq = since - 1, INT64_MAX
    else:
        after_ts, after_seq = max(end_ts - get(code, at + L_WINDOW), since - 1), INT64_MAX
    lo = _first_after(env, lo, hi, after_ts, after_seq)
    hi = _first_at_or_after(env, lo, hi, end_ts, get(get(env, SEQ), end))
    return lo, hi


@jit
def _exists(env, at, since):
    """Whether the lookup at `at` has a candidate."""
    lo, hi = _reach(env, at, since)
    code = get(env, CODE)
    conditions = get(code, at + L_CONDITION_COUNT)
    if conditions == 0:
        return hi > lo
    place, rows = get(code, at + L_PLACE), get(env, POOL_ROW)
    for i in range(hi - 1, lo - 1, -1):
        put(get(env, FRAME), place, get(rows, i))
        if all_hold(env, get(code, at + L_CONDITIONS), conditions):
            return True
    return False


@small
def _add_exactly(partials, count, x):
    """Adds x to a sum kept as doubles that do not overlap (Shewchuk). Returns how many there are now."""
    i = np.int64(0)
    for j in range(count):
        y = get_double(partials, j)
        if abs(x) < abs(y):
            x, y = y, x
        high = x + y
        low = y - (high - x)
        if low != 0.0:
            put_double(partials, i, low)
            i += 1
        x = high
    put_double(partials, i, x)
    return i + 1


@small
def _rounded(partials, count):
    """The exact sum as the nearest double, ties to even, as `math.fsum`."""
    if count == 0:
        return 0.0
    n = count - 1
    high = get_double(partials, n)
    low = 0.0
    while n > 0:
        x = high
        n -= 1
        y = get_double(partials, n)
        high = x + y
        low = y - (high - x)
        if low != 0.0:
            break
    if n > 0:
        below = get_double(partials, n - 1)
        if (low < 0.0 and below < 0.0) or (low > 0.0 and below > 0.0):
            y = low * 2.0
            x = high + y
            if y == x - high:
                high = x
    return high


@jit
def _reduce(env, at, since):
    """Computes the aggregate of the guard at `at` into its place. Linear in the candidates."""
    if not _reduce_scaled(env, at, since, 1.0):  # a sum on the way was too large, though the whole may not be
        _reduce_scaled(env, at, since, 2.0**-128)


@jit
def _reduce_scaled(env, at, since, scale):
    """Computes the aggregate with doubles times a power of two; whether their sum could be computed so."""
    code = get(env, CODE)
    lookup, function = get(code, at + G_LOOKUP), get(code, at + G_FUNCTION)
    slot, double, index = get(code, at + G_ARGUMENT), get(code, at + G_DOUBLE) != 0, get(code, at + G_INDEX)
    lo, hi = _reach(env, lookup, since)
    place, conditions = get(code, lookup + L_PLACE), get(code, lookup + L_CONDITION_COUNT)
    words, present, partials = get(env, WORDS), get(env, PRESENT), get(env, PARTIALS)
    column = slot * get(env, STRIDE)
    count, parts = np.int64(0), np.int64(0)
    high, low = np.int64(0), np.int64(0)
    best, best_double = np.int64(0), 0.0
    for i in range(lo, hi):
        row = get(get(env, POOL_ROW), i)
        if conditions > 0:
            put(get(env, FRAME), place, row)
            if not all_hold(env, get(code, lookup + L_CONDITIONS), conditions):
                continue
        value, x = np.int64(0), 0.0
        if slot >= 0:
            if get_byte(present, column + row) == 0:
                continue
            value, x = get(words, column + row), get_double(words, column + row)
        elif slot == ARGUMENT_TS:
            value = get(get(env, TS), row)
        elif slot == ARGUMENT_SEQ:
            value = get(get(env, SEQ), row)
        if function in (AVG, SUM):
            if double:
                parts = _add_exactly(partials, parts, x * scale)
            else:
                high += value >> 32
                low += value & 0xFFFFFFFF
        elif count == 0:
            best, best_double = value, x
        elif function == MIN:
            best = min(best, value)
            best_double = min(best_double, x)
        elif function == MAX:
            best = max(best, value)
            best_double = max(best_double, x)
        count += 1
    out, known = get(env, COMPUTED), np.uint8(1)
    if function == COUNT:
        put(out, index, count)
    elif count == 0:
        known = np.uint8(0)
    elif function in (MIN, MAX):
        if double:
            put_double(out, index, best_double)
        else:
            put(out, index, best)
    elif double:
        total = _rounded(partials, parts)
        if not np.isfinite(total) and scale == 1.0:
            return False
        total /= scale
        if not np.isfinite(total):
            known = np.uint8(0)
        put_double(out, index, (total / count if function == AVG else total) + 0.0)
    else:
        high += low >> 32
        low &= 0xFFFFFFFF
        if function == AVG:  # both terms are exact, so the sum is rounded once
            put_double(out, index, (np.float64(high) * 4294967296.0 + np.float64(low)) / count)
        else:
            if high > 2147483647 or high < -2147483648:
                known = np.uint8(0)
            put(out, index, (high << 32) | low)
    put_byte(get(env, COMPUTED_KNOWN), index, known)
    return True


@jit
def _guards_hold(env, at, count, since):
    """Whether the negations and aggregate tests of a role let it pass: HOLDS, FAILS, or BARRED, if no earlier event
    could fill the role either. Aggregates are left computed.
    """
    code = get(env, CODE)
    for g in range(count):
        guard = at + g * GUARD_WORDS
        if get(code, guard + G_KIND) == ABSENCE:
            if _exists(env, get(code, guard + G_LOOKUP), since):
                return BARRED if get(code, guard + G_BARS_EARLIER) != 0 else FAILS
        else:
            _reduce(env, guard, since)
            test = get(code, guard + G_TEST)
            if test >= 0:
                evaluate(env, test)
                if get(get(env, STACK), 0) == 0:
                    return FAILS
    return HOLDS


@small
def _accept(env, step, place, position, since):
    """Whether the event at a position of the pool can fill the step's role, as `_guards_hold` says it; if so puts it
    there."""
    code = get(env, CODE)
    row = get(get(env, POOL_ROW), position)
    if row < 0:
        return FAILS
    put(get(env, FRAME), place, row)
    put(get(env, POSITION), place, position)
    lookup = get(code, step + S_LOOKUP)
    conditions = get(code, lookup + L_CONDITION_COUNT)
    if conditions > 0 and not all_hold(env, get(code, lookup + L_CONDITIONS), conditions):
        return FAILS
    count = get(code, step + S_GUARD_COUNT)
    return HOLDS if count == 0 else _guards_hold(env, get(code, step + S_GUARDS), count, since)


@jit
def _open(env, step, place, since):
    """Prepares the search for a role: where to go on, where to end, how many to take.

    `last` is looked up from behind; the search then starts at the farthest event that will be taken.
    """
    code = get(env, CODE)
    lo, hi = _reach(env, get(code, step + S_LOOKUP), since)
    count = get(code, step + S_COUNT)
    if get(code, step + S_POLICY) == LAST:
        found, farthest = 0, hi
        for i in range(hi - 1, lo - 1, -1):
            accepted = _accept(env, step, place, i, since)
            if accepted == BARRED:
                break
            if accepted == HOLDS:
                farthest = i
                found += 1
                if found == count:
                    break
        lo = farthest
    put(get(env, NEXT), place, lo)
    put(get(env, END), place, hi)
    put(get(env, LEFT), place, count if count > 0 else INT64_MAX)


@jit
def _advance(env, step, place, since):
    """Goes on to the next event that can fill the role; whether there is one."""
    nexts, lefts = get(env, NEXT), get(env, LEFT)
    left, position, end = get(lefts, place), get(nexts, place), get(get(env, END), place)
    while left > 0 and position < end:
        taken = _accept(env, step, place, position, since) == HOLDS
        position += 1
        if taken:
            put(nexts, place, position)
            put(lefts, place, left - 1)
            return True
    put(nexts, place, position)
    return False


@jit
def _consume(env, first_step, steps, positions, before, matches):
    """Takes the chosen events of consumed roles out of their buffers: a consumed entry is the row's complement."""
    code, rows = get(env, CODE), get(env, POOL_ROW)
    for p in range(1, steps + 1):
        if get(code, first_step + (p - 1) * STEP_WORDS + S_CONSUMED) != 0:
            for m in range(before, matches):
                at = positions[m, p]
                if get(rows, at) >= 0:
                    put(rows, at, ~get(rows, at))


@jit
def detect(env, jobs, anchors, first_job, first_anchor, out_job, out_rows, out_position, out_words, out_known):
    """Finds the matches of each job (rule, first anchor, last anchor) in anchor order, places compared from left to
    right.

    Stops when the output is full, before an anchor whose matches do not all fit. Returns (job, anchor, matches): where
    to go on, the job being the number of jobs when all is done, and how many matches were written.
    """
    code, frame = get(env, CODE), get(env, FRAME)
    room = out_rows.shape[0]
    matches = 0
    for job in range(first_job, jobs.shape[0]):
        rule = jobs[job, 0]
        since = get(code, rule + R_SINCE)
        steps, first_step = get(code, rule + R_STEP_COUNT), get(code, rule + R_STEPS)
        guards, computed = get(code, rule + R_GUARD_COUNT), get(code, rule + R_COMPUTED_COUNT)
        start = first_anchor if job == first_job else jobs[job, 1]
        for a in range(start, jobs[job, 2]):
            anchor = anchors[a]
            if get(get(env, TS), anchor) < since:
                continue
            put(frame, 0, anchor)
            if guards > 0 and _guards_hold(env, get(code, rule + R_GUARDS), guards, since) != HOLDS:
                continue
            before = matches
            place = 1
            if steps > 0:
                _open(env, first_step, 1, since)
            while place > 0:
                if place > steps:
                    if matches == room:
                        return job, a, before
                    out_job[matches] = job
                    for p in range(steps + 1):
                        out_rows[matches, p] = get(frame, p)
                        out_position[matches, p] = get(get(env, POSITION), p)
                    for c in range(computed):
                        out_words[matches, c] = get(get(env, COMPUTED), c)
                        out_known[matches, c] = get_byte(get(env, COMPUTED_KNOWN), c)
                    matches += 1
                    place -= 1
                elif _advance(env, first_step + (place - 1) * STEP_WORDS, place, since):
                    place += 1
                    if place <= steps:
                        _open(env, first_step + (place - 1) * STEP_WORDS, place, since)
                else:
                    place -= 1
            if get(code, rule + R_CONSUMES) != 0 and matches > before:
                _consume(env, first_step, steps, out_position, before, matches)
    return jobs.shape[0], 0, matches


@jit
def project(env, rules, program_starts, programs, roles, parts, words, known, out, out_known):
    """Computes the attributes of matches: `out[k, m]` is the k-th of match m, by the k-th program of its rule."""
    for m in range(len(rules)):
        rule = rules[m]
        for p in range(roles[rule]):
            put(get(env, FRAME), p, parts[m, p])
        for c in range(words.shape[1]):
            put(get(env, COMPUTED), c, words[m, c])
            put_byte(get(env, COMPUTED_KNOWN), c, known[m, c])
        first = program_starts[rule]
        for k in range(program_starts[rule + 1] - first):
            out_known[k, m] = evaluate(env, programs[first + k])
            out[k, m] = get(get(env, STACK), 0)
