# mypy: disable-error-code="no-untyped-def"
"""The transitions of a run at a stage of an automaton.

A *run* is a partial match, and a *stage* is a place where it waits for an event (see `runs`). The functions let a run
enter a stage, test an event, and move the run to the next stage. The *partner* of a stage is the other stage of a pair
joined by `and` or `or`.
"""

from __future__ import annotations

import numpy as np

from tocsin.kernels.core import CODE, FRAME, TS, get, jit, never_inline, put, small
from tocsin.kernels.expressions import all_hold
from tocsin.kernels.layout import (
    ABSENT,
    COUNTING,
    E_KEY_NEXT,
    E_NEXT,
    E_RUN,
    E_STAGE,
    K_BACKS,
    K_BOTH,
    K_FRONT_COUNT,
    K_FRONTS,
    K_KEYED,
    K_KIND,
    K_LEAST,
    K_MOST,
    K_NEXT,
    K_PARTNER,
    K_RESTART,
    K_ROLE,
    K_STARTS,
    K_TEST_COUNT,
    K_TESTS,
    NONE,
    OVER,
    S_BATCH_COUNT,
    S_HEAD,
    T_COUNTS,
    T_VIOLATED,
    U_FLAGS,
    X_SEQUENCE,
    X_STAGE_COUNT,
)
from tocsin.kernels.sequences.runs import (
    NEW,
    clear_list,
    complete,
    copy_run,
    enter_stage,
    first_of_key,
    group_at,
    leave_once,
    load_frame,
    set_last_event,
    stage_at,
    stage_state,
    start_run,
)
from tocsin.kernels.windows.groups import MEMORY


@jit
def add_run(env, table, query, state, number, run):
    """Let a run wait at a stage and at its partner.

    If the stage may stay empty, the run also waits at the next stage.
    """
    never_inline()
    code, memory, alone = get(env, CODE), get(table, MEMORY), get(get(env, CODE), query + X_SEQUENCE) != 0
    while True:
        stage, here = stage_at(query, number), stage_state(env, table, query, number)
        if get(here, U_FLAGS) & OVER:
            return
        partner = get(code, stage + K_PARTNER)
        if partner >= 0:
            lonely = alone or get(code, stage + K_STARTS) != 0
            for side in (number, partner):
                if not (lonely and get(stage_state(env, table, query, side), S_BATCH_COUNT) > 0):
                    enter_stage(env, table, query, state, side, run)
            return
        if alone and get(code, stage + K_KIND) == ABSENT:
            clear_list(env, table, query, state, number, np.int64(NEW))
        if not (alone and get(here, S_BATCH_COUNT) > 0):
            enter_stage(env, table, query, state, number, run)
        may_skip = get(code, stage + K_KIND) == COUNTING and get(code, stage + K_LEAST) == 0
        if not may_skip or get(memory, run + T_COUNTS + number) > 0:
            return
        _restart_every(env, table, query, state, number, run)
        number = get(code, stage + K_NEXT)


@jit
def restart_run(env, table, query, state, number, run):
    """Let a copy of a run begin again at stage `number`, the first stage of an `every`."""
    never_inline()
    copy = copy_run(env, table, query, state, run, number)
    enter_stage(env, table, query, state, number, copy)
    partner = get(get(env, CODE), stage_at(query, number) + K_PARTNER)
    if partner >= 0:
        enter_stage(env, table, query, state, partner, copy)


@jit
def _restart_every(env, table, query, state, number, run):
    """Begin the next run of an `every` if stage `number` completes it."""
    never_inline()
    again = get(get(env, CODE), stage_at(query, number) + K_RESTART)
    if again >= 0:
        restart_run(env, table, query, state, again, run)


@jit
def advance(env, table, query, state, number, run, ts):
    """Move a run that has completed a stage to the next stage, or to the complete runs."""
    never_inline()
    code, stage = get(env, CODE), stage_at(query, number)
    partner, following = get(code, stage + K_PARTNER), get(code, stage + K_NEXT)
    for side in (number, partner):
        if side >= 0:
            leave_once(env, table, query, state, side, np.int64(0), run)
            leave_once(env, table, query, state, side, np.int64(NEW), run)
    set_last_event(env, table, query, run, ts)
    if following < 0:
        complete(table, state, run)
    else:
        add_run(env, table, query, state, following, run)
    _restart_every(env, table, query, state, number, run)


@jit
def show_event(env, table, query, state, number, row, fits):
    """Offer an event to the runs that wait at a stage.

    `fits` says whether the event meets the tests of the stage alone.
    """
    never_inline()
    code, memory = get(env, CODE), get(table, MEMORY)
    kind, sequence = get(code, stage_at(query, number) + K_KIND), get(code, query + X_SEQUENCE)
    if not fits and not sequence and kind != COUNTING:
        return
    waiting, following = get(stage_state(env, table, query, number), S_HEAD), np.int64(E_NEXT)
    if get(code, stage_at(query, number) + K_KEYED) >= 0:
        group = group_at(env, table, query, number, row)
        waiting, following = np.int64(NONE), np.int64(E_KEY_NEXT)
        if group >= 0:
            waiting = first_of_key(env, table, query, number, group)
    while waiting >= 0:
        if get(memory, waiting + E_STAGE) == number:
            run = get(memory, waiting + E_RUN)
            if kind == ABSENT:
                _violate(env, table, query, state, number, run, row, fits)
            elif kind == COUNTING:
                _count(env, table, query, state, number, run, row, fits)
            else:
                _step(env, table, query, state, number, run, row, fits)
        waiting = get(memory, waiting + following)


@jit
def _fits(env, table, query, number, run, row):
    """Return whether an event meets the tests that compare it with the earlier events of a run."""
    never_inline()
    code, stage = get(env, CODE), stage_at(query, number)
    count = get(code, stage + K_TEST_COUNT)
    if count == 0:
        return True
    load_frame(env, table, query, run)
    put(get(env, FRAME), get(code, stage + K_ROLE), np.int64(row))
    return all_hold(env, get(code, stage + K_TESTS), count)


@jit
def _step(env, table, query, state, number, run, row, fits):
    """Offer an event to a run that waits at a stage for one event."""
    never_inline()
    code, memory, stage = get(env, CODE), get(table, MEMORY), stage_at(query, number)
    if not fits or not _fits(env, table, query, number, run, row):
        if get(code, query + X_SEQUENCE):
            leave_once(env, table, query, state, number, np.int64(0), run)
        return
    leave_once(env, table, query, state, number, np.int64(0), run)
    ts, partner = get(get(env, TS), row), get(code, stage + K_PARTNER)
    put(memory, run + T_COUNTS + number, np.int64(1))
    put(memory, run + T_COUNTS + get(code, query + X_STAGE_COUNT) + get(code, stage + K_ROLE), np.int64(row))
    if get(code, stage + K_STARTS):
        start_run(table, state, run, ts)
    if partner < 0 or not get(code, stage + K_BOTH) or _is_ready(code, memory, query, partner, run):
        advance(env, table, query, state, number, run, ts)
    elif get(code, stage_at(query, partner) + K_KIND) == ABSENT:
        # The event that should be absent came, so this run has ended; `every` begins the next one.
        _restart_every(env, table, query, state, number, run)


@small
def _is_ready(code, memory, query, partner, run):
    """Return whether the partner stage of a pair is complete for a run."""
    if get(code, stage_at(query, partner) + K_KIND) == ABSENT:
        return get(memory, run + T_VIOLATED) == 0
    return get(memory, run + T_COUNTS + partner) > 0


@jit
def _count(env, table, query, state, number, run, row, fits):
    """Offer an event to a run that waits at a counting stage."""
    never_inline()
    code, memory, stage = get(env, CODE), get(table, MEMORY), stage_at(query, number)
    sequence, following = get(code, query + X_SEQUENCE), get(code, stage + K_NEXT)
    if _has_left(code, memory, query, following, run):
        leave_once(env, table, query, state, number, np.int64(0), run)
        return
    if not fits or not _fits(env, table, query, number, run, row):
        if sequence:
            leave_once(env, table, query, state, number, np.int64(0), run)
        return
    ts, least, most = get(get(env, TS), row), get(code, stage + K_LEAST), get(code, stage + K_MOST)
    count = get(memory, run + T_COUNTS + number) + 1
    put(memory, run + T_COUNTS + number, count)
    _retain(code, memory, query, stage, run, count, row)
    if get(code, stage + K_STARTS):
        start_run(table, state, run, ts)
    set_last_event(env, table, query, run, ts)
    if count == most:
        leave_once(env, table, query, state, number, np.int64(0), run)
    if sequence:
        if count >= least and following >= 0:
            add_run(env, table, query, state, following, run)
        if count != most:
            add_run(env, table, query, state, number, run)
        if following >= 0:
            return
    if count == least:
        if following < 0:
            leave_once(env, table, query, state, number, np.int64(0), run)
            leave_once(env, table, query, state, number, np.int64(NEW), run)
            complete(table, state, run)
        else:
            add_run(env, table, query, state, following, run)
        _restart_every(env, table, query, state, number, run)


@small
def _retain(code, memory, query, stage, run, count, row):
    """Store an event of a counting stage if an expression refers to it by its index."""
    rows = run + T_COUNTS + get(code, query + X_STAGE_COUNT) + get(code, stage + K_ROLE) + 1
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
def _has_left(code, memory, query, following, run):
    """Return whether a run already has an event of a stage that follows a counting stage."""
    if following < 0:
        return False
    after = stage_at(query, following)
    partner, beyond = get(code, after + K_PARTNER), get(code, after + K_NEXT)
    if get(memory, run + T_COUNTS + following) > 0:
        return True
    if partner >= 0:
        return get(memory, run + T_COUNTS + partner) > 0
    return beyond >= 0 and get(memory, run + T_COUNTS + beyond) > 0


@jit
def _violate(env, table, query, state, number, run, row, fits):
    """End a run if the event that should be absent came."""
    never_inline()
    code, memory, stage = get(env, CODE), get(table, MEMORY), stage_at(query, number)
    if not fits or not _fits(env, table, query, number, run, row):
        return
    leave_once(env, table, query, state, number, np.int64(0), run)
    if get(code, stage + K_PARTNER) >= 0:
        put(memory, run + T_VIOLATED, np.int64(1))
    elif get(code, stage + K_STARTS):
        copy = copy_run(env, table, query, state, run, number)
        set_last_event(env, table, query, copy, get(get(env, TS), row))
        enter_stage(env, table, query, state, number, copy)
