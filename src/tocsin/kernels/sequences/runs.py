# mypy: disable-error-code="no-untyped-def"
"""The state of an automaton: records of its runs, and lists of the runs that wait at each stage.

A *run* is a partial match: the events selected so far, by role. It waits at one stage or at several. For each of these
stages the run has a *waiting run* record in one of the two lists of the stage. The next event sees the runs of the
first list. The *new* runs in the second list are seen only by the event after it.

Lists are in order of insertion, with three further orders:

- Runs that have begun are linked in the order of their first events, so that expired runs are at the front.
- Waiting runs with a timer are linked in the order of their runs' last events.
- Waiting runs whose event must have the key of an earlier event are linked by that key.

A record that left a list is not reused until the event has been processed, and still leads to the next record. No
function here checks capacity, because the caller made sure of it when the event came.
"""

from __future__ import annotations

import numpy as np

from tocsin.kernels.core import CODE, FRAME, get, jit, never_inline, put, small
from tocsin.kernels.layout import (
    C_MEMORY,
    E_BEFORE,
    E_DUE_BEFORE,
    E_DUE_NEXT,
    E_GROUP,
    E_KEY_BEFORE,
    E_KEY_NEXT,
    E_NEW,
    E_NEXT,
    E_RUN,
    E_RUN_NEXT,
    E_STAGE,
    E_STAMP,
    G_KEY,
    G_ROWS,
    K_DURATION,
    K_KEYED,
    K_KEYS,
    K_ROLE,
    M_COUNT,
    M_FREE,
    M_FREE_WAITING,
    M_LEFT,
    M_OLDEST,
    M_OUT,
    M_OUT_TAIL,
    M_STAMP,
    M_YOUNGEST,
    NONE,
    Q_KEY_COUNT,
    Q_KEYS,
    Q_STATE,
    S_BATCH_COUNT,
    S_COUNT,
    S_HEAD,
    S_TAIL,
    STAGE_WORDS,
    STATE_WORDS,
    T_COUNTS,
    T_FIRST_TS,
    T_LAST_TS,
    T_OLDER,
    T_VIOLATED,
    T_WAITING,
    T_YOUNGER,
    U_DUE,
    U_DUE_TAIL,
    WAITING_WORDS,
    X_RECORD,
    X_ROLES,
    X_STAGE_COUNT,
    X_STAGES,
)
from tocsin.kernels.lists import link, unlink
from tocsin.kernels.windows.groups import COUNTS, MEMORY, STATES, drop_group, find_group, find_or_add_group, load_key

NEVER = np.int64(2**63 - 1)
NEW = 3
"""The distance in words from the list of waiting runs to the list of new runs, in the state of a stage."""


@small
def stage_at(query, number):
    """Return the offset of the record of stage `number`."""
    return query + X_STAGES + number * STAGE_WORDS


@small
def stage_state(env, table, query, number):
    """Return the address of the state of stage `number`."""
    return get(table, STATES) + 8 * (get(get(env, CODE), query + Q_STATE) + (1 + number) * STATE_WORDS)


# ---- runs


@small
def _allocate(table, state, which, words):
    """Return the offset of a free record from list `which`, or of a new record if the list is empty."""
    memory, counts = get(table, MEMORY), get(table, COUNTS)
    record = get(state, which)
    if record >= 0:
        put(state, which, get(memory, record))
        return record
    record = get(counts, C_MEMORY)
    put(counts, C_MEMORY, record + words)
    return record


@jit
def make_run(env, table, query, state):
    """Return a new run without events."""
    never_inline()
    code, memory = get(env, CODE), get(table, MEMORY)
    run = _allocate(table, state, M_FREE, get(code, query + X_RECORD))
    put(state, M_COUNT, get(state, M_COUNT) + 1)
    put(memory, run + T_WAITING, np.int64(NONE))
    put(memory, run + T_LAST_TS, NEVER)
    put(memory, run + T_VIOLATED, np.int64(0))
    put(memory, run + T_FIRST_TS, NEVER)
    stages = get(code, query + X_STAGE_COUNT)
    for k in range(stages):
        put(memory, run + T_COUNTS + k, np.int64(0))
    for k in range(get(code, query + X_ROLES)):
        put(memory, run + T_COUNTS + stages + k, np.int64(NONE))
    return run


@jit
def copy_run(env, table, query, state, run, number):
    """Return a copy of `run` without the events of stage `number` and later stages.

    If `run` is NONE, the copy is empty.
    """
    never_inline()
    code, memory = get(env, CODE), get(table, MEMORY)
    copy = make_run(env, table, query, state)
    if run < 0:
        return copy
    put(memory, copy + T_LAST_TS, get(memory, run + T_LAST_TS))
    if number == 0:
        return copy
    for k in range(number):
        put(memory, copy + T_COUNTS + k, get(memory, run + T_COUNTS + k))
    rows = T_COUNTS + get(code, query + X_STAGE_COUNT)
    for k in range(get(code, stage_at(query, number) + K_ROLE)):
        put(memory, copy + rows + k, get(memory, run + rows + k))
    if get(memory, run + T_FIRST_TS) != NEVER:
        put(memory, copy + T_FIRST_TS, get(memory, run + T_FIRST_TS))
        _link_after(memory, state, copy, run)
    return copy


@small
def start_run(table, state, run, ts):
    """Set the time of the first event of a run that has none yet. The run becomes the youngest."""
    memory = get(table, MEMORY)
    if get(memory, run + T_FIRST_TS) == NEVER:
        put(memory, run + T_FIRST_TS, np.int64(ts))
        _link_after(memory, state, run, get(state, M_YOUNGEST))


@small
def _link_after(memory, state, run, older):
    """Insert a run after the run `older` in the order of first events."""
    link(memory, run, older, T_YOUNGER, T_OLDER, state, M_OLDEST, M_YOUNGEST)


@jit
def free_run(table, state, run):
    """Free the record of a run."""
    never_inline()
    memory = get(table, MEMORY)
    if get(memory, run + T_FIRST_TS) != NEVER:
        unlink(memory, run, T_YOUNGER, T_OLDER, state, M_OLDEST, M_YOUNGEST)
    put(state, M_COUNT, get(state, M_COUNT) - 1)
    put(memory, run + T_VIOLATED, np.int64(NONE))
    put(memory, run, get(state, M_FREE))
    put(state, M_FREE, run)


@small
def load_frame(env, table, query, run):
    """Copy the events of a run into the frame."""
    code = get(env, CODE)
    rows = get(table, MEMORY) + 8 * (run + T_COUNTS + get(code, query + X_STAGE_COUNT))
    for k in range(get(code, query + X_ROLES)):
        put(get(env, FRAME), k, get(rows, k))


# ---- waiting runs


@jit
def enter_stage(env, table, query, state, number, run):
    """Add a run to the new runs of a stage, so that it waits there after the current event."""
    never_inline()
    memory, here = get(table, MEMORY), stage_state(env, table, query, number)
    waiting = _allocate(table, state, M_FREE_WAITING, WAITING_WORDS)
    stamp = get(state, M_STAMP)
    put(state, M_STAMP, stamp + 1)
    put(memory, waiting + E_RUN, run)
    put(memory, waiting + E_STAGE, np.int64(number))
    put(memory, waiting + E_NEW, np.int64(NEW))
    put(memory, waiting + E_STAMP, stamp)
    put(memory, waiting + E_RUN_NEXT, np.int64(NONE))
    last = get(memory, run + T_WAITING)
    if last < 0:
        put(memory, run + T_WAITING, waiting)
    else:
        while get(memory, last + E_RUN_NEXT) >= 0:
            last = get(memory, last + E_RUN_NEXT)
        put(memory, last + E_RUN_NEXT, waiting)
    new = here + 8 * NEW
    link(memory, waiting, get(new, S_TAIL), E_NEXT, E_BEFORE, new, S_HEAD, S_TAIL)
    put(new, S_COUNT, get(new, S_COUNT) + 1)
    _enter_key(env, table, query, number, waiting, run)
    if get(get(env, CODE), stage_at(query, number) + K_DURATION) >= 0:
        put(memory, waiting + E_DUE_NEXT, np.int64(NONE))
        put(memory, waiting + E_DUE_BEFORE, np.int64(NONE))
        if get(memory, run + T_LAST_TS) != NEVER:
            _add_timer(memory, here, waiting)


@jit
def leave_stage(env, table, query, state, waiting):
    """Remove a waiting run from its list."""
    never_inline()
    memory = get(table, MEMORY)
    run, number = get(memory, waiting + E_RUN), get(memory, waiting + E_STAGE)
    stage = stage_state(env, table, query, number)
    here = stage + 8 * get(memory, waiting + E_NEW)
    unlink(memory, waiting, E_NEXT, E_BEFORE, here, S_HEAD, S_TAIL)
    put(here, S_COUNT, get(here, S_COUNT) - 1)
    _leave_key(env, table, query, number, waiting)
    if get(get(env, CODE), stage_at(query, number) + K_DURATION) >= 0 and get(memory, run + T_LAST_TS) != NEVER:
        _remove_timer(memory, stage, waiting)
    own = get(memory, run + T_WAITING)
    if own == waiting:
        put(memory, run + T_WAITING, get(memory, waiting + E_RUN_NEXT))
    else:
        while get(memory, own + E_RUN_NEXT) != waiting:
            own = get(memory, own + E_RUN_NEXT)
        put(memory, own + E_RUN_NEXT, get(memory, waiting + E_RUN_NEXT))
    put(memory, waiting + E_STAGE, np.int64(NONE))
    put(memory, waiting + E_RUN_NEXT, get(state, M_LEFT))
    put(state, M_LEFT, waiting)


@jit
def leave_once(env, table, query, state, number, new, run):
    """Remove one waiting run record of `run` from a list of a stage, if there is any."""
    never_inline()
    memory = get(table, MEMORY)
    waiting = get(memory, run + T_WAITING)
    while waiting >= 0:
        if get(memory, waiting + E_STAGE) == number and get(memory, waiting + E_NEW) == new:
            leave_stage(env, table, query, state, waiting)
            return
        waiting = get(memory, waiting + E_RUN_NEXT)


@jit
def clear_list(env, table, query, state, number, new):
    """Remove all waiting runs from a list of a stage."""
    never_inline()
    here = stage_state(env, table, query, number) + 8 * new
    while get(here, S_HEAD) >= 0:
        leave_stage(env, table, query, state, get(here, S_HEAD))


@jit
def promote_new(env, table, query, number):
    """Append the new runs of a stage to its waiting runs."""
    never_inline()
    memory, here = get(table, MEMORY), stage_state(env, table, query, number)
    waiting = get(here, S_HEAD + NEW)
    if waiting < 0:
        return
    put(memory, waiting + E_BEFORE, get(here, S_TAIL))
    if get(here, S_TAIL) >= 0:
        put(memory, get(here, S_TAIL) + E_NEXT, waiting)
    else:
        put(here, S_HEAD, waiting)
    put(here, S_TAIL, get(here, S_TAIL + NEW))
    put(here, S_COUNT, get(here, S_COUNT) + get(here, S_BATCH_COUNT))
    while waiting >= 0:
        put(memory, waiting + E_NEW, np.int64(0))
        waiting = get(memory, waiting + E_NEXT)
    put(here, S_HEAD + NEW, np.int64(NONE))
    put(here, S_TAIL + NEW, np.int64(NONE))
    put(here, S_BATCH_COUNT, np.int64(0))


# ---- waiting runs of one key, in order of insertion


@jit
def group_at(env, table, query, number, row):
    """Return the group of waiting runs at a stage that have the key of an event, or NONE if there are none."""
    never_inline()
    code, memory, stage = get(env, CODE), get(table, MEMORY), stage_at(query, number)
    keyed_by = get(code, stage + K_KEYED)
    keys = get(code, keyed_by + Q_KEY_COUNT)
    put(get(env, FRAME), get(code, stage + K_ROLE), np.int64(row))
    valid = load_key(env, memory, keys, get(code, stage + K_KEYS))
    if valid != (np.int64(1) << keys) - 1:
        return np.int64(NONE)
    return find_group(env, table, keyed_by, valid)


@small
def first_of_key(env, table, query, number, group):
    """Return the first waiting run of a group."""
    keys = get(get(env, CODE), get(get(env, CODE), stage_at(query, number) + K_KEYED) + Q_KEY_COUNT)
    return get(get(table, MEMORY), group + G_KEY + 1 + keys)


@jit
def _enter_key(env, table, query, number, waiting, run):
    """Link a waiting run with the waiting runs of the same key."""
    never_inline()
    code, memory, keyed_by = get(env, CODE), get(table, MEMORY), get(get(env, CODE), stage_at(query, number) + K_KEYED)
    put(memory, waiting + E_GROUP, np.int64(NONE))
    if keyed_by < 0:
        return
    keys = get(code, keyed_by + Q_KEY_COUNT)
    load_frame(env, table, query, run)
    valid = load_key(env, memory, keys, get(code, keyed_by + Q_KEYS))
    if valid != (np.int64(1) << keys) - 1:
        return  # no event has the same key
    group = find_or_add_group(env, table, keyed_by, valid)
    ends, rows = group + G_KEY + 1 + keys, get(memory, group + G_ROWS)
    put(memory, waiting + E_GROUP, group)
    if rows == 0:  # the list of a new group is not initialised
        put(memory, ends, np.int64(NONE))
        put(memory, ends + 1, np.int64(NONE))
    link(memory, waiting, get(memory, ends + 1), E_KEY_NEXT, E_KEY_BEFORE, memory, ends, ends + 1)
    put(memory, group + G_ROWS, rows + 1)


@jit
def _leave_key(env, table, query, number, waiting):
    """Unlink a waiting run from the waiting runs of the same key."""
    never_inline()
    code, memory = get(env, CODE), get(table, MEMORY)
    group = get(memory, waiting + E_GROUP)
    if group < 0:
        return
    ends = group + G_KEY + 1 + get(code, get(code, stage_at(query, number) + K_KEYED) + Q_KEY_COUNT)
    unlink(memory, waiting, E_KEY_NEXT, E_KEY_BEFORE, memory, ends, ends + 1)
    put(memory, group + G_ROWS, get(memory, group + G_ROWS) - 1)
    if get(memory, group + G_ROWS) == 0:
        drop_group(table, stage_state(env, table, query, number), group)


# ---- timers


@jit
def _add_timer(memory, stage, waiting):
    """Insert a waiting run into the list of those with a timer.

    The list is ordered by the times of the runs' last events, and then by insertion.
    """
    never_inline()
    since, stamp = get(memory, get(memory, waiting + E_RUN) + T_LAST_TS), get(memory, waiting + E_STAMP)
    before = get(stage, U_DUE_TAIL)
    while before >= 0:
        other = get(memory, get(memory, before + E_RUN) + T_LAST_TS)
        if other < since or (other == since and get(memory, before + E_STAMP) < stamp):
            break
        before = get(memory, before + E_DUE_BEFORE)
    link(memory, waiting, before, E_DUE_NEXT, E_DUE_BEFORE, stage, U_DUE, U_DUE_TAIL)


@small
def _remove_timer(memory, stage, waiting):
    """Remove a waiting run from the list of those with a timer."""
    unlink(memory, waiting, E_DUE_NEXT, E_DUE_BEFORE, stage, U_DUE, U_DUE_TAIL)


@jit
def set_last_event(env, table, query, run, ts):
    """Set the time of the last event of a run. Its timers count from this time."""
    never_inline()
    code, memory = get(env, CODE), get(table, MEMORY)
    was_set = get(memory, run + T_LAST_TS) != NEVER
    waiting = get(memory, run + T_WAITING)
    while waiting >= 0 and was_set:
        number = get(memory, waiting + E_STAGE)
        if get(code, stage_at(query, number) + K_DURATION) >= 0:
            _remove_timer(memory, stage_state(env, table, query, number), waiting)
        waiting = get(memory, waiting + E_RUN_NEXT)
    put(memory, run + T_LAST_TS, np.int64(ts))
    waiting = get(memory, run + T_WAITING)
    while waiting >= 0:
        number = get(memory, waiting + E_STAGE)
        if get(code, stage_at(query, number) + K_DURATION) >= 0:
            _add_timer(memory, stage_state(env, table, query, number), waiting)
        waiting = get(memory, waiting + E_RUN_NEXT)


# ---- completion


@small
def complete(table, state, run):
    """Append a run to the list of complete runs."""
    memory = get(table, MEMORY)
    cell = _allocate(table, state, M_FREE_WAITING, WAITING_WORDS)
    put(memory, cell + E_RUN, run)
    put(memory, cell + E_NEXT, np.int64(NONE))
    tail = get(state, M_OUT_TAIL)
    if tail >= 0:
        put(memory, tail + E_NEXT, cell)
    else:
        put(state, M_OUT, cell)
    put(state, M_OUT_TAIL, cell)


@jit
def sweep(table, state):
    """Free the records that the current event has completed or removed, and the runs that wait nowhere."""
    never_inline()
    memory = get(table, MEMORY)
    cell = get(state, M_OUT)
    while cell >= 0:
        following = get(memory, cell + E_NEXT)
        put(memory, cell, get(state, M_FREE_WAITING))
        put(state, M_FREE_WAITING, cell)
        cell = following
    put(state, M_OUT, np.int64(NONE))
    put(state, M_OUT_TAIL, np.int64(NONE))
    waiting = get(state, M_LEFT)
    while waiting >= 0:
        following, run = get(memory, waiting + E_RUN_NEXT), get(memory, waiting + E_RUN)
        if get(memory, run + T_VIOLATED) >= 0 and get(memory, run + T_WAITING) < 0:
            free_run(table, state, run)
        put(memory, waiting, get(state, M_FREE_WAITING))
        put(state, M_FREE_WAITING, waiting)
        waiting = following
    put(state, M_LEFT, np.int64(NONE))


# ---- snapshots


@jit
def list_waiting(env, table, query, out):
    """Write (run, stage, new) for all waiting runs in the order of their lists. Return the number of waiting runs."""
    memory, waiting_count = get(table, MEMORY), 0
    for number in range(get(get(env, CODE), query + X_STAGE_COUNT)):
        here = stage_state(env, table, query, number)
        for new in (np.int64(0), np.int64(NEW)):
            waiting = get(here, S_HEAD + new)
            while waiting >= 0:
                out[0, waiting_count], out[1, waiting_count], out[2, waiting_count] = (
                    get(memory, waiting + E_RUN),
                    number,
                    new,
                )
                waiting_count += 1
                waiting = get(memory, waiting + E_NEXT)
    return waiting_count


@jit
def restore_runs(env, table, query, records, waits):
    """Restore the runs of an automaton.

    `records` has the words of each run after its links, `waits` where each run waits. Runs that have begun come in the
    order of their first events. There must be room for all of them.
    """
    memory, state = get(table, MEMORY), stage_state(env, table, query, -1)
    runs = np.empty(len(records), np.int64)
    for n in range(len(records)):
        run = runs[n] = make_run(env, table, query, state)
        put(memory, run + T_LAST_TS, records[n, 0])
        put(memory, run + T_VIOLATED, records[n, 1])
        if records[n, 2] != NEVER:
            start_run(table, state, run, records[n, 2])
        for k in range(3, records.shape[1]):
            put(memory, run + T_COUNTS + k - 3, records[n, k])
    for n in range(waits.shape[1]):
        number = waits[1, n]
        enter_stage(env, table, query, state, number, runs[waits[0, n]])
        ends = n + 1 == waits.shape[1] or waits[1, n + 1] != number or waits[2, n + 1] != 0
        if waits[2, n] == 0 and ends:
            promote_new(env, table, query, number)
