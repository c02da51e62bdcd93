# mypy: disable-error-code="no-untyped-def"
"""How do attempts go through an automaton as events and time come? What patterns and sequences do, by tables.

An event is shown to the stages of its stream, the later ones first, so that it does not take two steps of one attempt.
Where an attempt goes on it is fresh, and waits from the next event on. In a sequence, what waited and was not fresh is
given up at every event. The rules, one by one, are those of `reference_chains`; records and lists are in `attempts`.
"""

from __future__ import annotations

import numpy as np

from tocsin.kernels.core import CODE, TS, get, jit, keep_apart, put, small
from tocsin.kernels.layout import (
    C_GROUPS,
    C_MEMORY,
    C_ROWS,
    COUNTING,
    E_ATTEMPT,
    E_NEXT,
    E_STAGE,
    ENTRY_WORDS,
    G_ROWS,
    K_AGAIN,
    K_BOTH,
    K_DURATION,
    K_FIRST,
    K_HOME,
    K_KEYED,
    K_LEAST,
    K_NEXT,
    K_PARTNER,
    K_STARTS,
    K_TYPE,
    K_WHAT,
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
    S_CHUNK,
    S_COMING_COUNT,
    S_COUNT,
    S_HEAD,
    T_BORN,
    T_ENTRY,
    T_SINCE,
    T_YOUNGER,
    U_DUE,
    U_FLAGS,
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
    FRESH,
    NEVER,
    attempt_made,
    clear_list,
    free_attempt,
    group_at,
    last_came,
    leave_stage,
    settle,
    show_frame,
    stage_at,
    sweep,
    waits_at,
)
from tocsin.kernels.sequences.stages import add, add_again, advance, show
from tocsin.kernels.windows.entries import CURRENT, DONE, MORE_BUCKETS, MORE_MEMORY, MORE_ROWS, TOO_MANY, put_out
from tocsin.kernels.windows.groups import (
    ATTEMPTS_MAX,
    BUCKET_MASK,
    COUNTS,
    MEMORY,
    OUT_ROOM,
    STORE_TYPE,
    TAKEN,
    apply,
    group_of,
)


@jit
def chain_due(env, place, query):
    """When an absence has lasted long enough."""
    keep_apart()
    code, memory, due = get(env, CODE), get(place, MEMORY), NEVER
    for number in range(get(code, query + X_STAGE_COUNT)):
        duration = get(code, stage_at(query, number) + K_DURATION)
        if duration >= 0:
            here = waits_at(env, place, query, number)
            first = get(here, U_DUE)
            if first >= 0 and not get(here, U_FLAGS) & OVER:
                due = min(due, get(memory, get(memory, first + E_ATTEMPT) + T_SINCE) + duration)
    return due


@jit
def chain_missing(env, place, query, state, row):
    """What there is too little of for one event, or a moment (`row` NONE), or DONE."""
    keep_apart()
    code, counts, stages = get(env, CODE), get(place, COUNTS), get(get(env, CODE), query + X_STAGE_COUNT)
    if get(state, M_COUNT) > get(place, ATTEMPTS_MAX):
        return TOO_MANY
    # A first attempt and one that begins anew at each state.
    words = (stages + 3) * (get(code, query + X_RECORD) + get(code, query + X_ROOM))
    rows = np.int64(1)
    for number in range(stages):
        stage, here = stage_at(query, number), waits_at(env, place, query, number)
        if row < 0 and get(code, stage + K_DURATION) < 0:
            continue
        if row >= 0 and get(get(place, STORE_TYPE), row) != get(code, stage + K_TYPE):
            continue
        waiting = get(here, S_COUNT) + get(here, S_COMING_COUNT)
        if row >= 0 and get(code, stage + K_KEYED) >= 0:
            group = group_at(env, place, query, np.int64(number), row)
            waiting = get(get(place, MEMORY), group + G_ROWS) if group >= 0 else np.int64(0)
        words += waiting * get(code, query + X_ROOM)
        if get(code, stage + K_NEXT) < 0:
            rows += waiting
    if get(counts, C_ROWS) + rows > get(place, OUT_ROOM):
        return MORE_ROWS
    if get(counts, C_GROUPS) + rows + words // ENTRY_WORDS > get(place, BUCKET_MASK):
        return MORE_BUCKETS
    if get(code, query + Q_GROUPED):
        words += rows * get(code, query + Q_RECORD)
    return MORE_MEMORY if get(counts, C_MEMORY) + words > get(place, TAKEN) else DONE


@jit
def chain_fire(env, place, query, state, due):
    """What has been absent for long enough."""
    keep_apart()
    code, memory = get(env, CODE), get(place, MEMORY)
    for number in range(get(code, query + X_STAGE_COUNT)):
        stage, here = stage_at(query, number), waits_at(env, place, query, number)
        duration = get(code, stage + K_DURATION)
        if duration < 0 or get(here, U_FLAGS) & OVER or not _lasted(memory, here, duration, due):
            continue
        if get(code, query + X_SEQUENCE) and get(here, S_COMING_COUNT) > 0:
            clear_list(env, place, query, state, np.int64(number), np.int64(0))
        settle(env, place, query, np.int64(number))
        while _lasted(memory, here, duration, due):
            entry = get(here, U_DUE)
            attempt = get(memory, entry + E_ATTEMPT)
            leave_stage(env, place, query, state, entry)
            if not _is_old(env, place, query, attempt, due):
                advance(env, place, query, state, np.int64(number), attempt, due)
                if get(code, stage + K_STARTS) and get(code, stage + K_AGAIN) < 0:
                    put(here, U_FLAGS, get(here, U_FLAGS) | OVER)
    _put_out(env, place, query, state)


@small
def _lasted(memory, here, duration, due):
    first = get(here, U_DUE)
    return first >= 0 and get(memory, get(memory, first + E_ATTEMPT) + T_SINCE) + duration <= due


@jit
def chain_arrive(env, place, query, state, row, bits):
    """An event comes; `bits` are the stages whose own tests it meets."""
    keep_apart()
    code, ts, type = get(env, CODE), get(get(env, TS), row), get(get(place, STORE_TYPE), row)
    stages, sequence = get(code, query + X_STAGE_COUNT), get(code, query + X_SEQUENCE)
    if get(state, M_BEGUN) == 0:
        _begin(env, place, query, state)
    _grow_quiet(env, place, query, ts)
    _expire(env, place, query, state, ts)
    if sequence:
        _give_up(env, place, query, state)
    for number in range(stages):
        if sequence or _is_shown(code, query, number, type):
            settle(env, place, query, np.int64(number))
    order, second = get(code, query + X_ORDER), get(code, query + X_STAGES + K_NEXT)
    first = query + X_STAGES
    restarts = sequence and get(code, first + K_WHAT) == COUNTING and get(code, first + K_LEAST) == 0
    for k in range(stages):
        number = get(code, order + k)
        if get(code, stage_at(query, number) + K_TYPE) != type:
            continue
        if restarts and number == second and get(waits_at(env, place, query, number), S_COUNT) > 0:
            put(state, M_RESTARTS, np.int64(1))
        show(env, place, query, state, number, row, (bits >> number) & 1)
    _put_out(env, place, query, state)


@small
def _is_shown(code, query, number, type):
    """Whether a stage, or its partner, sees events of that type."""
    stage = stage_at(query, number)
    partner = get(code, stage + K_PARTNER)
    return get(code, stage + K_TYPE) == type or (partner >= 0 and get(code, stage_at(query, partner) + K_TYPE) == type)


@jit
def _put_out(env, place, query, state):
    """The rows of what is complete, each a chunk of its own."""
    keep_apart()
    code, memory = get(env, CODE), get(place, MEMORY)
    cell = get(state, M_OUT)
    while cell >= 0:
        put(state, S_CHUNK, get(state, S_CHUNK) + 1)
        show_frame(env, place, query, get(memory, cell + E_ATTEMPT))
        group = np.int64(NONE)
        if get(code, query + Q_GROUPED):
            group = group_of(env, place, query)
            apply(env, place, query, group, np.int64(NONE), CURRENT)
        if get(code, query + Q_CURRENT):
            put_out(env, place, query, state, group, CURRENT)
        cell = get(memory, cell + E_NEXT)
    sweep(place, state)


# ---- where attempts begin and wait


@jit
def _begin(env, place, query, state):
    """A first attempt, and later ones where another begins at every event."""
    keep_apart()
    if get(state, M_BEGUN) and not get(get(env, CODE), query + X_BEGINS):
        return
    put(state, M_BEGUN, np.int64(1))
    attempt = attempt_made(env, place, query, state)
    add(env, place, query, state, np.int64(0), attempt)
    if get(get(place, MEMORY), attempt + T_ENTRY) < 0:
        free_attempt(place, state, attempt)


@jit
def _grow_quiet(env, place, query, ts):
    """An absence at the start lasts from the first event on."""
    keep_apart()
    code, memory, here = get(env, CODE), get(place, MEMORY), waits_at(env, place, query, 0)
    if get(code, query + X_STAGES + K_DURATION) < 0 or get(here, U_FLAGS) & QUIET:
        return
    put(here, U_FLAGS, get(here, U_FLAGS) | QUIET)
    for fresh in (np.int64(0), np.int64(FRESH)):
        entry = get(here, S_HEAD + fresh)
        while entry >= 0:
            last_came(env, place, query, get(memory, entry + E_ATTEMPT), ts)
            entry = get(memory, entry + E_NEXT)


@jit
def _give_up(env, place, query, state):
    """In a sequence: only what is fresh goes on. A pair of which one has come goes on for one more event."""
    keep_apart()
    code, begins = get(env, CODE), False
    for number in range(get(code, query + X_STAGE_COUNT)):
        stage, here = stage_at(query, number), waits_at(env, place, query, number)
        partner = get(code, stage + K_PARTNER)
        if partner < 0:
            clear_list(env, place, query, state, np.int64(number), np.int64(0))
            begins = begins or (number == 0 and get(here, S_COMING_COUNT) == 0)
        elif partner > number:
            other = waits_at(env, place, query, partner)
            if not get(code, stage + K_BOTH) or get(here, S_COUNT) == get(other, S_COUNT):
                clear_list(env, place, query, state, np.int64(number), np.int64(0))
                clear_list(env, place, query, state, partner, np.int64(0))
                begins = begins or (number == 0 and get(other, S_COMING_COUNT) == 0)
    if begins:
        _begin(env, place, query, state)
    if get(state, M_RESTARTS):
        put(state, M_RESTARTS, np.int64(0))
        _begin(env, place, query, state)


@small
def _is_old(env, place, query, attempt, ts):
    within, born = get(get(env, CODE), query + X_WITHIN), get(get(place, MEMORY), attempt + T_BORN)
    return within >= 0 and born != NEVER and ts - born > within


@jit
def _expire(env, place, query, state, ts):
    """Gives up attempts that are too old; of those in an `every` at the start, one for each state begins anew."""
    keep_apart()
    code, memory = get(env, CODE), get(place, MEMORY)
    attempt, states = get(state, M_OLDEST), np.int64(0)
    while attempt >= 0 and _is_old(env, place, query, attempt, ts):
        first = np.int64(63)
        while get(memory, attempt + T_ENTRY) >= 0:
            entry = get(memory, attempt + T_ENTRY)
            first = min(first, get(code, stage_at(query, get(memory, entry + E_STAGE)) + K_FIRST))
            leave_stage(env, place, query, state, entry)
        states |= np.int64(1) << first
        attempt = get(memory, attempt + T_YOUNGER)
    for number in range(get(code, query + X_STAGE_COUNT)):
        home = get(code, stage_at(query, number) + K_HOME)
        if states >> number & 1 and home == 0:
            add_again(env, place, query, state, home, np.int64(NONE))
            partner = get(code, query + X_STAGES + K_PARTNER)
            settle(env, place, query, home)
            if partner >= 0:
                settle(env, place, query, partner)
