# mypy: disable-error-code="no-untyped-def"
"""Detection of TESLA rules.

For each anchor, the detection searches backward through the buffers, and fills one role of the rule after another. The
*anchor* is the event from which a rule looks back. A *role* is the part of a rule that one event fills. A *step* is the
record of one role besides the anchor, and a *lookup* is the record that says where the candidates for a role are.

In all functions `env` is the address of an environment (see `core`). `at` and the names of records (`rule`, `step`) are
offsets into the environment's code (see `layout`). `since` is the least time of events that the rule sees.
"""

from __future__ import annotations

import numpy as np

from tocsin.kernels.core import (
    CODE,
    COMPUTED,
    COMPUTED_VALID,
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
    SEQ,
    STACK,
    STRIDE,
    TS,
    VALID,
    VALUES,
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
    ARGUMENT_SEQ,
    ARGUMENT_TS,
    AVG,
    COND_ARGUMENT,
    COND_BARS_EARLIER,
    COND_DOUBLE,
    COND_FUNCTION,
    COND_INDEX,
    COND_KIND,
    COND_LOOKUP,
    COND_TEST,
    CONDITION_WORDS,
    COUNT,
    L_BUFFER,
    L_END,
    L_KEY_COUNT,
    L_KEYS,
    L_ROLE,
    L_START,
    L_TEST_COUNT,
    L_TESTS,
    L_WINDOW,
    LAST,
    MAX,
    MIN,
    NEGATION,
    R_COMPUTED_COUNT,
    R_CONDITION_COUNT,
    R_CONDITIONS,
    R_CONSUMES,
    R_SINCE,
    R_STEP_COUNT,
    R_STEPS,
    S_CONDITION_COUNT,
    S_CONDITIONS,
    S_CONSUMED,
    S_COUNT,
    S_LOOKUP,
    S_POLICY,
    STEP_WORDS,
    SUM,
)

INT64_MAX = np.int64(2**63 - 1)
FAILS, HOLDS, BARRED = range(3)


@small
def list_of(env, buffer, key):
    """Return the number of the list of rows with this buffer and key, or -1 if there is none."""
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
    """Return the first position in [lo, hi) whose event does not precede (ts, seq). Takes logarithmic time."""
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
    """Return the first position in [lo, hi) whose event is after (ts, seq). Takes logarithmic time."""
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
def _drop_consumed(env, n, lo, hi):
    """Drop consumed entries from the front of list `n`, so that later scans skip them.

    Returns the new first position of the list.
    """
    rows, front = get(env, POOL_ROW), lo
    while lo < hi and get(rows, lo) < 0:
        lo += 1
    put(get(env, LIST_OFFSET), n, lo)
    put(get(env, LIST_LENGTH), n, hi - lo)
    put(get(env, LIST_CAPACITY), n, get(get(env, LIST_CAPACITY), n) - (lo - front))
    return lo


@jit
def _candidate_range(env, at, since):
    """Return the range [lo, hi) of pool positions that hold the candidates of the lookup at `at`."""
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
        lo = _drop_consumed(env, n, lo, hi)
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
    """Return whether a candidate of the lookup at `at` meets the tests of the lookup."""
    lo, hi = _candidate_range(env, at, since)
    code = get(env, CODE)
    tests = get(code, at + L_TEST_COUNT)
    if tests == 0:
        return hi > lo
    role, rows = get(code, at + L_ROLE), get(env, POOL_ROW)
    for i in range(hi - 1, lo - 1, -1):
        put(get(env, FRAME), role, get(rows, i))
        if all_hold(env, get(code, at + L_TESTS), tests):
            return True
    return False


@small
def _add_exactly(partials, count, x):
    """Add `x` to a sum that is stored as doubles that do not overlap (Shewchuk).

    Returns the new number of these doubles.
    """
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
    """Return the exact sum as the nearest double, with ties to even, like `math.fsum`."""
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
def _aggregate(env, at, since):
    """Compute the aggregate of the condition at `at` and store its value. Takes time linear in the candidates."""
    if not _aggregate_scaled(env, at, since, 1.0):  # a partial sum overflowed, the total may not
        _aggregate_scaled(env, at, since, 2.0**-128)


@jit
def _aggregate_scaled(env, at, since, scale):
    """Compute the aggregate at `at` with its doubles multiplied by `scale`, a power of two, and store its value.

    Returns False if the sum of the scaled doubles overflowed with `scale` 1, so that a smaller scale is needed.
    """
    code = get(env, CODE)
    lookup, function = get(code, at + COND_LOOKUP), get(code, at + COND_FUNCTION)
    slot, double, index = get(code, at + COND_ARGUMENT), get(code, at + COND_DOUBLE) != 0, get(code, at + COND_INDEX)
    lo, hi = _candidate_range(env, lookup, since)
    role, tests = get(code, lookup + L_ROLE), get(code, lookup + L_TEST_COUNT)
    column_values, column_valid, partials = get(env, VALUES), get(env, VALID), get(env, PARTIALS)
    column = slot * get(env, STRIDE)
    count, partial_count = np.int64(0), np.int64(0)
    high, low = np.int64(0), np.int64(0)
    best, best_double = np.int64(0), 0.0
    for i in range(lo, hi):
        row = get(get(env, POOL_ROW), i)
        if tests > 0:
            put(get(env, FRAME), role, row)
            if not all_hold(env, get(code, lookup + L_TESTS), tests):
                continue
        value, x = np.int64(0), 0.0
        if slot >= 0:
            if get_byte(column_valid, column + row) == 0:
                continue
            value, x = get(column_values, column + row), get_double(column_values, column + row)
        elif slot == ARGUMENT_TS:
            value = get(get(env, TS), row)
        elif slot == ARGUMENT_SEQ:
            value = get(get(env, SEQ), row)
        if function in (AVG, SUM):
            if double:
                partial_count = _add_exactly(partials, partial_count, x * scale)
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
    out, valid = get(env, COMPUTED), np.uint8(1)
    if function == COUNT:
        put(out, index, count)
    elif count == 0:
        valid = np.uint8(0)
    elif function in (MIN, MAX):
        if double:
            put_double(out, index, best_double)
        else:
            put(out, index, best)
    elif double:
        total = _rounded(partials, partial_count)
        if not np.isfinite(total) and scale == 1.0:
            return False
        total /= scale
        if not np.isfinite(total):
            valid = np.uint8(0)
        put_double(out, index, (total / count if function == AVG else total) + 0.0)
    else:
        high += low >> 32
        low &= 0xFFFFFFFF
        if function == AVG:  # both terms are exact, so the sum is rounded once
            put_double(out, index, (np.float64(high) * 4294967296.0 + np.float64(low)) / count)
        else:
            if high > 2147483647 or high < -2147483648:
                valid = np.uint8(0)
            put(out, index, (high << 32) | low)
    put_byte(get(env, COMPUTED_VALID), index, valid)
    return True


@jit
def _conditions_hold(env, at, count, since):
    """Compute the `count` conditions (negations and aggregates) at `at`, and return HOLDS, FAILS or BARRED.

    FAILS means that a condition does not hold. BARRED means that moreover no earlier event can fill the role. The
    values of the aggregates are stored.
    """
    code = get(env, CODE)
    for g in range(count):
        condition = at + g * CONDITION_WORDS
        if get(code, condition + COND_KIND) == NEGATION:
            if _exists(env, get(code, condition + COND_LOOKUP), since):
                return BARRED if get(code, condition + COND_BARS_EARLIER) != 0 else FAILS
        else:
            _aggregate(env, condition, since)
            test = get(code, condition + COND_TEST)
            if test >= 0:
                evaluate(env, test)
                if get(get(env, STACK), 0) == 0:
                    return FAILS
    return HOLDS


@small
def _accept(env, step, role, position, since):
    """Put the event at a pool position into the step's role and test it. Return HOLDS, FAILS or BARRED."""
    code = get(env, CODE)
    row = get(get(env, POOL_ROW), position)
    if row < 0:
        return FAILS
    put(get(env, FRAME), role, row)
    put(get(env, POSITION), role, position)
    lookup = get(code, step + S_LOOKUP)
    tests = get(code, lookup + L_TEST_COUNT)
    if tests > 0 and not all_hold(env, get(code, lookup + L_TESTS), tests):
        return FAILS
    count = get(code, step + S_CONDITION_COUNT)
    return HOLDS if count == 0 else _conditions_hold(env, get(code, step + S_CONDITIONS), count, since)


@jit
def _open(env, step, role, since):
    """Prepare the search for a role. Store where the search begins, where it ends, and how many events it may select.

    For the policy `last`, the candidates are first tested backward, and the search begins at the earliest event to
    select.
    """
    code = get(env, CODE)
    lo, hi = _candidate_range(env, get(code, step + S_LOOKUP), since)
    count = get(code, step + S_COUNT)
    if get(code, step + S_POLICY) == LAST:
        accepted_count, farthest = 0, hi
        for i in range(hi - 1, lo - 1, -1):
            accepted = _accept(env, step, role, i, since)
            if accepted == BARRED:
                break
            if accepted == HOLDS:
                farthest = i
                accepted_count += 1
                if accepted_count == count:
                    break
        lo = farthest
    put(get(env, NEXT), role, lo)
    put(get(env, END), role, hi)
    put(get(env, LEFT), role, count if count > 0 else INT64_MAX)


@jit
def _advance(env, step, role, since):
    """Put the next event that fits into the role of `step`. Return False if there is no such event."""
    nexts, lefts = get(env, NEXT), get(env, LEFT)
    left, position, end = get(lefts, role), get(nexts, role), get(get(env, END), role)
    while left > 0 and position < end:
        accepted = _accept(env, step, role, position, since) == HOLDS
        position += 1
        if accepted:
            put(nexts, role, position)
            put(lefts, role, left - 1)
            return True
    put(nexts, role, position)
    return False


@jit
def _consume(env, first_step, steps, positions, before, matches):
    """Remove the selected events of consumed roles from their buffers.

    A removed entry is stored as the row's complement.
    """
    code, rows = get(env, CODE), get(env, POOL_ROW)
    for p in range(1, steps + 1):
        if get(code, first_step + (p - 1) * STEP_WORDS + S_CONSUMED) != 0:
            for m in range(before, matches):
                at = positions[m, p]
                if get(rows, at) >= 0:
                    put(rows, at, ~get(rows, at))


@jit
def detect(env, jobs, anchors, first_job, first_anchor, out_job, out_rows, out_position, out_values, out_valid):
    """Find the matches of each job (rule, first anchor, last anchor), by anchor and then by role from left to right.

    If the output has no room for all matches of an anchor, detection stops before that anchor. Returns (job, anchor,
    matches): where to continue, and the number of matches written. When all jobs are done, `job` is the number of jobs.
    """
    code, frame = get(env, CODE), get(env, FRAME)
    room = out_rows.shape[0]
    matches = 0
    for job in range(first_job, jobs.shape[0]):
        rule = jobs[job, 0]
        since = get(code, rule + R_SINCE)
        steps, first_step = get(code, rule + R_STEP_COUNT), get(code, rule + R_STEPS)
        conditions, computed = get(code, rule + R_CONDITION_COUNT), get(code, rule + R_COMPUTED_COUNT)
        start = first_anchor if job == first_job else jobs[job, 1]
        for a in range(start, jobs[job, 2]):
            anchor = anchors[a]
            if get(get(env, TS), anchor) < since:
                continue
            put(frame, 0, anchor)
            if conditions > 0 and _conditions_hold(env, get(code, rule + R_CONDITIONS), conditions, since) != HOLDS:
                continue
            before = matches
            role = 1
            if steps > 0:
                _open(env, first_step, 1, since)
            while role > 0:
                if role > steps:
                    if matches == room:
                        return job, a, before
                    out_job[matches] = job
                    for p in range(steps + 1):
                        out_rows[matches, p] = get(frame, p)
                        out_position[matches, p] = get(get(env, POSITION), p)
                    for c in range(computed):
                        out_values[matches, c] = get(get(env, COMPUTED), c)
                        out_valid[matches, c] = get_byte(get(env, COMPUTED_VALID), c)
                    matches += 1
                    role -= 1
                elif _advance(env, first_step + (role - 1) * STEP_WORDS, role, since):
                    role += 1
                    if role <= steps:
                        _open(env, first_step + (role - 1) * STEP_WORDS, role, since)
                else:
                    role -= 1
            if get(code, rule + R_CONSUMES) != 0 and matches > before:
                _consume(env, first_step, steps, out_position, before, matches)
    return jobs.shape[0], 0, matches


@jit
def project(env, rules, program_starts, programs, roles, rows, values, valid, out, out_valid):
    """Compute the attributes of matches. `out[k, m]` is the value of the k-th program of the rule of match `m`."""
    for m in range(len(rules)):
        rule = rules[m]
        for p in range(roles[rule]):
            put(get(env, FRAME), p, rows[m, p])
        for c in range(values.shape[1]):
            put(get(env, COMPUTED), c, values[m, c])
            put_byte(get(env, COMPUTED_VALID), c, valid[m, c])
        first = program_starts[rule]
        for k in range(program_starts[rule + 1] - first):
            out_valid[k, m] = evaluate(env, programs[first + k])
            out[k, m] = get(get(env, STACK), 0)
