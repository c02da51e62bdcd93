# mypy: disable-error-code="no-untyped-def"
"""Process an event or a timer in the automaton of a pattern or sequence.

An event is offered to the stages of its stream. Later stages come first, so that no run takes two steps on one event. A
run that advances is new, and waits from the next event. In a sequence, every event ends the runs that waited and did
not advance. An *absence* is a stage that waits for a time without an event. `reference.sequences` defines the
semantics, and `runs` has the records and lists.
"""

from __future__ import annotations

import numpy as np

from tocsin.kernels.core import CODE, TS, get, jit, never_inline, put, small
from tocsin.kernels.layout import (
    C_GROUPS,
    C_MEMORY,
    C_ROWS,
    COUNTING,
    E_NEXT,
    E_RUN,
    E_STAGE,
    G_ROWS,
    K_BOTH,
    K_DURATION,
    K_EVERY,
    K_FIRST,
    K_KEYED,
    K_KIND,
    K_LEAST,
    K_NEXT,
    K_PARTNER,
    K_RESTART,
    K_STARTS,
    K_TYPE,
    M_BEGUN,
    M_COUNT,
    M_OLDEST,
    M_OUT,
    M_RESTARTS,
    NONE,
    OVER,
    Q_CURRENT,
    Q_GROUPED,
    Q_RECORD,
    QUIET,
    S_BATCH_COUNT,
    S_CHUNK,
    S_COUNT,
    S_HEAD,
    T_FIRST_TS,
    T_LAST_TS,
    T_WAITING,
    T_YOUNGER,
    U_DUE,
    U_FLAGS,
    WAITING_WORDS,
    X_BEGINS,
    X_ORDER,
    X_RECORD,
    X_ROOM,
    X_SEQUENCE,
    X_STAGE_COUNT,
    X_STAGES,
    X_WITHIN,
)
from tocsin.kernels.sequences.runs import (
    NEVER,
    NEW,
    clear_list,
    free_run,
    group_at,
    leave_stage,
    load_frame,
    make_run,
    promote_new,
    set_last_event,
    stage_at,
    stage_state,
    sweep,
)
from tocsin.kernels.sequences.stages import add_run, advance, restart_run, show_event
from tocsin.kernels.windows.entries import CURRENT, DONE, MORE_BUCKETS, MORE_MEMORY, MORE_ROWS, TOO_MANY, emit_row
from tocsin.kernels.windows.groups import (
    BUCKET_MASK,
    CAPACITY,
    COUNTS,
    MEMORY,
    OUT_ROOM,
    RUNS_MAX,
    STORE_TYPE,
    apply,
    group_of,
)


@jit
def sequence_due(env, table, query):
    """Return the time at which the next absence will have lasted long enough."""
    never_inline()
    code, memory, due = get(env, CODE), get(table, MEMORY), NEVER
    for number in range(get(code, query + X_STAGE_COUNT)):
        duration = get(code, stage_at(query, number) + K_DURATION)
        if duration >= 0:
            here = stage_state(env, table, query, number)
            first = get(here, U_DUE)
            if first >= 0 and not get(here, U_FLAGS) & OVER:
                due = min(due, get(memory, get(memory, first + E_RUN) + T_LAST_TS) + duration)
    return due


@jit
def sequence_shortage(env, table, query, state, row):
    """Return which capacity does not suffice for the event `row`, or for a timer if `row` is NONE.

    Returns DONE if every capacity suffices.
    """
    never_inline()
    code, counts, stages = get(env, CODE), get(table, COUNTS), get(get(env, CODE), query + X_STAGE_COUNT)
    if get(state, M_COUNT) > get(table, RUNS_MAX):
        return TOO_MANY
    # Room for a first run, and for a run that restarts at each state.
    words = (stages + 3) * (get(code, query + X_RECORD) + get(code, query + X_ROOM))
    rows = np.int64(1)
    for number in range(stages):
        stage, here = stage_at(query, number), stage_state(env, table, query, number)
        if row < 0 and get(code, stage + K_DURATION) < 0:
            continue
        if row >= 0 and get(get(table, STORE_TYPE), row) != get(code, stage + K_TYPE):
            continue
        waiting_count = get(here, S_COUNT) + get(here, S_BATCH_COUNT)
        if row >= 0 and get(code, stage + K_KEYED) >= 0:
            group = group_at(env, table, query, np.int64(number), row)
            waiting_count = get(get(table, MEMORY), group + G_ROWS) if group >= 0 else np.int64(0)
        words += waiting_count * get(code, query + X_ROOM)
        if get(code, stage + K_NEXT) < 0:
            rows += waiting_count
    if get(counts, C_ROWS) + rows > get(table, OUT_ROOM):
        return MORE_ROWS
    if get(counts, C_GROUPS) + rows + words // WAITING_WORDS > get(table, BUCKET_MASK):
        return MORE_BUCKETS
    if get(code, query + Q_GROUPED):
        words += rows * get(code, query + Q_RECORD)
    return MORE_MEMORY if get(counts, C_MEMORY) + words > get(table, CAPACITY) else DONE


@jit
def sequence_fire(env, table, query, state, due):
    """Advance the runs whose absence has lasted long enough at the time `due`."""
    never_inline()
    code, memory = get(env, CODE), get(table, MEMORY)
    for number in range(get(code, query + X_STAGE_COUNT)):
        stage, here = stage_at(query, number), stage_state(env, table, query, number)
        duration = get(code, stage + K_DURATION)
        if duration < 0 or get(here, U_FLAGS) & OVER or not _has_lasted(memory, here, duration, due):
            continue
        if get(code, query + X_SEQUENCE) and get(here, S_BATCH_COUNT) > 0:
            clear_list(env, table, query, state, np.int64(number), np.int64(0))
        promote_new(env, table, query, np.int64(number))
        while _has_lasted(memory, here, duration, due):
            waiting = get(here, U_DUE)
            run = get(memory, waiting + E_RUN)
            leave_stage(env, table, query, state, waiting)
            if not _is_expired(env, table, query, run, due):
                advance(env, table, query, state, np.int64(number), run, due)
                if get(code, stage + K_STARTS) and get(code, stage + K_RESTART) < 0:
                    put(here, U_FLAGS, get(here, U_FLAGS) | OVER)
    _emit(env, table, query, state)


@small
def _has_lasted(memory, here, duration, due):
    """Return whether the first timer of a stage is due."""
    first = get(here, U_DUE)
    return first >= 0 and get(memory, get(memory, first + E_RUN) + T_LAST_TS) + duration <= due


@jit
def sequence_arrive(env, table, query, state, row, bits):
    """Process the event `row`. The set `bits` are the stages whose tests of the event alone are met."""
    never_inline()
    code, ts, type = get(env, CODE), get(get(env, TS), row), get(get(table, STORE_TYPE), row)
    stages, sequence = get(code, query + X_STAGE_COUNT), get(code, query + X_SEQUENCE)
    if get(state, M_BEGUN) == 0:
        _begin(env, table, query, state)
    _start_absence(env, table, query, ts)
    _expire(env, table, query, state, ts)
    if sequence:
        _give_up(env, table, query, state)
    for number in range(stages):
        if sequence or _is_shown(code, query, number, type):
            promote_new(env, table, query, np.int64(number))
    order, second = get(code, query + X_ORDER), get(code, query + X_STAGES + K_NEXT)
    first = query + X_STAGES
    restarts = sequence and get(code, first + K_KIND) == COUNTING and get(code, first + K_LEAST) == 0
    for k in range(stages):
        number = get(code, order + k)
        if get(code, stage_at(query, number) + K_TYPE) != type:
            continue
        if restarts and number == second and get(stage_state(env, table, query, number), S_COUNT) > 0:
            put(state, M_RESTARTS, np.int64(1))
        show_event(env, table, query, state, number, row, (bits >> number) & 1)
    _emit(env, table, query, state)


@small
def _is_shown(code, query, number, type):
    """Return whether a stage or its partner sees events of `type`."""
    stage = stage_at(query, number)
    partner = get(code, stage + K_PARTNER)
    return get(code, stage + K_TYPE) == type or (partner >= 0 and get(code, stage_at(query, partner) + K_TYPE) == type)


@jit
def _emit(env, table, query, state):
    """Emit a row for each complete run, each as a chunk of its own."""
    never_inline()
    code, memory = get(env, CODE), get(table, MEMORY)
    cell = get(state, M_OUT)
    while cell >= 0:
        put(state, S_CHUNK, get(state, S_CHUNK) + 1)
        load_frame(env, table, query, get(memory, cell + E_RUN))
        group = np.int64(NONE)
        if get(code, query + Q_GROUPED):
            group = group_of(env, table, query)
            apply(env, table, query, group, np.int64(NONE), CURRENT)
        if get(code, query + Q_CURRENT):
            emit_row(env, table, query, state, group, CURRENT)
        cell = get(memory, cell + E_NEXT)
    sweep(table, state)


# ---- where runs begin and wait


@jit
def _begin(env, table, query, state):
    """Begin the first run, or a later run if the automaton lets another run begin after the first."""
    never_inline()
    if get(state, M_BEGUN) and not get(get(env, CODE), query + X_BEGINS):
        return
    put(state, M_BEGUN, np.int64(1))
    run = make_run(env, table, query, state)
    add_run(env, table, query, state, np.int64(0), run)
    if get(get(table, MEMORY), run + T_WAITING) < 0:
        free_run(table, state, run)


@jit
def _start_absence(env, table, query, ts):
    """Start the clock of an absence that begins the pattern, at the first event."""
    never_inline()
    code, memory, here = get(env, CODE), get(table, MEMORY), stage_state(env, table, query, 0)
    if get(code, query + X_STAGES + K_DURATION) < 0 or get(here, U_FLAGS) & QUIET:
        return
    put(here, U_FLAGS, get(here, U_FLAGS) | QUIET)
    for new in (np.int64(0), np.int64(NEW)):
        waiting = get(here, S_HEAD + new)
        while waiting >= 0:
            set_last_event(env, table, query, get(memory, waiting + E_RUN), ts)
            waiting = get(memory, waiting + E_NEXT)


@jit
def _give_up(env, table, query, state):
    """End the runs of a sequence that are not new.

    A pair joined by `and` that has one event waits for one more event.
    """
    never_inline()
    code, begins = get(env, CODE), False
    for number in range(get(code, query + X_STAGE_COUNT)):
        stage, here = stage_at(query, number), stage_state(env, table, query, number)
        partner = get(code, stage + K_PARTNER)
        if partner < 0:
            clear_list(env, table, query, state, np.int64(number), np.int64(0))
            begins = begins or (number == 0 and get(here, S_BATCH_COUNT) == 0)
        elif partner > number:
            other = stage_state(env, table, query, partner)
            if not get(code, stage + K_BOTH) or get(here, S_COUNT) == get(other, S_COUNT):
                clear_list(env, table, query, state, np.int64(number), np.int64(0))
                clear_list(env, table, query, state, partner, np.int64(0))
                begins = begins or (number == 0 and get(other, S_BATCH_COUNT) == 0)
    if begins:
        _begin(env, table, query, state)
    if get(state, M_RESTARTS):
        put(state, M_RESTARTS, np.int64(0))
        _begin(env, table, query, state)


@small
def _is_expired(env, table, query, run, ts):
    """Return whether a run began longer ago than `within` allows."""
    within, first_ts = get(get(env, CODE), query + X_WITHIN), get(get(table, MEMORY), run + T_FIRST_TS)
    return within >= 0 and first_ts != NEVER and ts - first_ts > within


@jit
def _expire(env, table, query, state, ts):
    """End expired runs.

    If an `every` begins the pattern, one run restarts for each of its states that had expired runs.
    """
    never_inline()
    code, memory = get(env, CODE), get(table, MEMORY)
    run, states = get(state, M_OLDEST), np.int64(0)
    while run >= 0 and _is_expired(env, table, query, run, ts):
        first = np.int64(63)
        while get(memory, run + T_WAITING) >= 0:
            waiting = get(memory, run + T_WAITING)
            first = min(first, get(code, stage_at(query, get(memory, waiting + E_STAGE)) + K_FIRST))
            leave_stage(env, table, query, state, waiting)
        states |= np.int64(1) << first
        run = get(memory, run + T_YOUNGER)
    for number in range(get(code, query + X_STAGE_COUNT)):
        every = get(code, stage_at(query, number) + K_EVERY)
        if states >> number & 1 and every == 0:
            restart_run(env, table, query, state, every, np.int64(NONE))
            partner = get(code, query + X_STAGES + K_PARTNER)
            promote_new(env, table, query, every)
            if partner >= 0:
                promote_new(env, table, query, partner)
