# mypy: disable-error-code="no-untyped-def"
"""What happens to an attempt at a stage of an automaton: it is let in, it is shown an event, it goes on."""

from __future__ import annotations

import numpy as np

from tocsin.kernels.core import CODE, FRAME, TS, get, jit, keep_apart, put, small
from tocsin.kernels.expressions import all_hold
from tocsin.kernels.layout import (
    ABSENT,
    COUNTING,
    E_ATTEMPT,
    E_KEY_NEXT,
    E_NEXT,
    E_STAGE,
    K_AGAIN,
    K_BACKS,
    K_BOTH,
    K_FRONT_COUNT,
    K_FRONTS,
    K_KEYED,
    K_LEAST,
    K_MOST,
    K_NEXT,
    K_PARTNER,
    K_PLACE,
    K_STARTS,
    K_TEST_COUNT,
    K_TESTS,
    K_WHAT,
    NONE,
    OVER,
    S_COMING_COUNT,
    S_HEAD,
    T_COUNTS,
    T_SPOILT,
    U_FLAGS,
    X_SEQUENCE,
    X_STAGE_COUNT,
)
from tocsin.kernels.sequences.runs import (
    FRESH,
    bear,
    clear_list,
    complete,
    cut,
    enter_stage,
    first_of_key,
    group_at,
    last_came,
    leave_once,
    show_frame,
    stage_at,
    waits_at,
)
from tocsin.kernels.windows.groups import MEMORY


@jit
def add(env, place, query, state, number, attempt):
    """Lets an attempt wait at a stage, and at its partner; where nothing need come, at what is behind it too."""
    keep_apart()
    code, memory, alone = get(env, CODE), get(place, MEMORY), get(get(env, CODE), query + X_SEQUENCE) != 0
    while True:
        stage, here = stage_at(query, number), waits_at(env, place, query, number)
        if get(here, U_FLAGS) & OVER:
            return
        partner = get(code, stage + K_PARTNER)
        if partner >= 0:
            lonely = alone or get(code, stage + K_STARTS) != 0
            for side in (number, partner):
                if not (lonely and get(waits_at(env, place, query, side), S_COMING_COUNT) > 0):
                    enter_stage(env, place, query, state, side, attempt)
            return
        if alone and get(code, stage + K_WHAT) == ABSENT:
            clear_list(env, place, query, state, number, np.int64(FRESH))
        if not (alone and get(here, S_COMING_COUNT) > 0):
            enter_stage(env, place, query, state, number, attempt)
        may_skip = get(code, stage + K_WHAT) == COUNTING and get(code, stage + K_LEAST) == 0
        if not may_skip or get(memory, attempt + T_COUNTS + number) > 0:
            return
        _repeat(env, place, query, state, number, attempt)
        number = get(code, stage + K_NEXT)


@jit
def add_again(env, place, query, state, number, attempt):
    """Lets a copy begin anew at the first stage of what is repeated."""
    keep_apart()
    copy = cut(env, place, query, state, attempt, number)
    enter_stage(env, place, query, state, number, copy)
    partner = get(get(env, CODE), stage_at(query, number) + K_PARTNER)
    if partner >= 0:
        enter_stage(env, place, query, state, partner, copy)


@jit
def _repeat(env, place, query, state, number, attempt):
    """A stage is complete: `every` begins the next attempt."""
    keep_apart()
    again = get(get(env, CODE), stage_at(query, number) + K_AGAIN)
    if again >= 0:
        add_again(env, place, query, state, again, attempt)


@jit
def advance(env, place, query, state, number, attempt, ts):
    """A state is complete."""
    keep_apart()
    code, stage = get(env, CODE), stage_at(query, number)
    partner, following = get(code, stage + K_PARTNER), get(code, stage + K_NEXT)
    for side in (number, partner):
        if side >= 0:
            leave_once(env, place, query, state, side, np.int64(0), attempt)
            leave_once(env, place, query, state, side, np.int64(FRESH), attempt)
    last_came(env, place, query, attempt, ts)
    if following < 0:
        complete(place, state, attempt)
    else:
        add(env, place, query, state, following, attempt)
    _repeat(env, place, query, state, number, attempt)


@jit
def show(env, place, query, state, number, row, fits):
    """Shows an event to what waits at a stage."""
    keep_apart()
    code, memory = get(env, CODE), get(place, MEMORY)
    what, sequence = get(code, stage_at(query, number) + K_WHAT), get(code, query + X_SEQUENCE)
    if not fits and not sequence and what != COUNTING:
        return
    entry, following = get(waits_at(env, place, query, number), S_HEAD), np.int64(E_NEXT)
    if get(code, stage_at(query, number) + K_KEYED) >= 0:
        group = group_at(env, place, query, number, row)
        entry, following = np.int64(NONE), np.int64(E_KEY_NEXT)
        if group >= 0:
            entry = first_of_key(env, place, query, number, group)
    while entry >= 0:
        if get(memory, entry + E_STAGE) == number:
            attempt = get(memory, entry + E_ATTEMPT)
            if what == ABSENT:
                _spoil(env, place, query, state, number, attempt, row, fits)
            elif what == COUNTING:
                _count(env, place, query, state, number, attempt, row, fits)
            else:
                _step(env, place, query, state, number, attempt, row, fits)
        entry = get(memory, entry + following)


@jit
def _fits(env, place, query, number, attempt, row):
    """Whether an event goes with those that were found before."""
    keep_apart()
    code, stage = get(env, CODE), stage_at(query, number)
    count = get(code, stage + K_TEST_COUNT)
    if count == 0:
        return True
    show_frame(env, place, query, attempt)
    put(get(env, FRAME), get(code, stage + K_PLACE), np.int64(row))
    return all_hold(env, get(code, stage + K_TESTS), count)


@jit
def _step(env, place, query, state, number, attempt, row, fits):
    keep_apart()
    code, memory, stage = get(env, CODE), get(place, MEMORY), stage_at(query, number)
    if not fits or not _fits(env, place, query, number, attempt, row):
        if get(code, query + X_SEQUENCE):
            leave_once(env, place, query, state, number, np.int64(0), attempt)
        return
    leave_once(env, place, query, state, number, np.int64(0), attempt)
    ts, partner = get(get(env, TS), row), get(code, stage + K_PARTNER)
    put(memory, attempt + T_COUNTS + number, np.int64(1))
    put(memory, attempt + T_COUNTS + get(code, query + X_STAGE_COUNT) + get(code, stage + K_PLACE), np.int64(row))
    if get(code, stage + K_STARTS):
        bear(place, state, attempt, ts)
    if partner < 0 or not get(code, stage + K_BOTH) or _is_ready(code, memory, query, partner, attempt):
        advance(env, place, query, state, number, attempt, ts)
    elif get(code, stage_at(query, partner) + K_WHAT) == ABSENT:
        # The other one came, so this attempt is over; `every` begins the next one.
        _repeat(env, place, query, state, number, attempt)


@small
def _is_ready(code, memory, query, partner, attempt):
    """Whether the other one of a pair is complete."""
    if get(code, stage_at(query, partner) + K_WHAT) == ABSENT:
        return get(memory, attempt + T_SPOILT) == 0
    return get(memory, attempt + T_COUNTS + partner) > 0


@jit
def _count(env, place, query, state, number, attempt, row, fits):
    keep_apart()
    code, memory, stage = get(env, CODE), get(place, MEMORY), stage_at(query, number)
    sequence, following = get(code, query + X_SEQUENCE), get(code, stage + K_NEXT)
    if _has_left(code, memory, query, following, attempt):
        leave_once(env, place, query, state, number, np.int64(0), attempt)
        return
    if not fits or not _fits(env, place, query, number, attempt, row):
        if sequence:
            leave_once(env, place, query, state, number, np.int64(0), attempt)
        return
    ts, least, most = get(get(env, TS), row), get(code, stage + K_LEAST), get(code, stage + K_MOST)
    count = get(memory, attempt + T_COUNTS + number) + 1
    put(memory, attempt + T_COUNTS + number, count)
    _note(code, memory, query, stage, attempt, count, row)
    if get(code, stage + K_STARTS):
        bear(place, state, attempt, ts)
    last_came(env, place, query, attempt, ts)
    if count == most:
        leave_once(env, place, query, state, number, np.int64(0), attempt)
    if sequence:
        if count >= least and following >= 0:
            add(env, place, query, state, following, attempt)
        if count != most:
            add(env, place, query, state, number, attempt)
        if following >= 0:
            return
    if count == least:
        if following < 0:
            leave_once(env, place, query, state, number, np.int64(0), attempt)
            leave_once(env, place, query, state, number, np.int64(FRESH), attempt)
            complete(place, state, attempt)
        else:
            add(env, place, query, state, following, attempt)
        _repeat(env, place, query, state, number, attempt)


@small
def _note(code, memory, query, stage, attempt, count, row):
    """Keeps those of several events that are spoken of: some from the first on, and the last ones."""
    rows = attempt + T_COUNTS + get(code, query + X_STAGE_COUNT) + get(code, stage + K_PLACE) + 1
    fronts = get(code, stage + K_FRONT_COUNT)
    for k in range(fronts):
        if get(code, get(code, stage + K_FRONTS) + k) == count - 1:
            put(memory, rows + k, np.int64(row))
    rows += fronts
    for k in range(get(code, stage + K_BACKS) - 1, 0, -1):
        put(memory, rows + k, get(memory, rows + k - 1))
    if get(code, stage + K_BACKS) > 0:
        put(memory, rows, np.int64(row))


@small
def _has_left(code, memory, query, following, attempt):
    """Whether an attempt has an event of what comes behind a counting stage."""
    if following < 0:
        return False
    after = stage_at(query, following)
    partner, beyond = get(code, after + K_PARTNER), get(code, after + K_NEXT)
    if get(memory, attempt + T_COUNTS + following) > 0:
        return True
    if partner >= 0:
        return get(memory, attempt + T_COUNTS + partner) > 0
    return beyond >= 0 and get(memory, attempt + T_COUNTS + beyond) > 0


@jit
def _spoil(env, place, query, state, number, attempt, row, fits):
    """What should be absent has come."""
    keep_apart()
    code, memory, stage = get(env, CODE), get(place, MEMORY), stage_at(query, number)
    if not fits or not _fits(env, place, query, number, attempt, row):
        return
    leave_once(env, place, query, state, number, np.int64(0), attempt)
    if get(code, stage + K_PARTNER) >= 0:
        put(memory, attempt + T_SPOILT, np.int64(1))
    elif get(code, stage + K_STARTS):
        copy = cut(env, place, query, state, attempt, number)
        last_came(env, place, query, copy, get(get(env, TS), row))
        enter_stage(env, place, query, state, number, copy)
