# mypy: disable-error-code="no-untyped-def"
"""What do the attempts of an automaton hold, and where do they wait? Records in one memory, with lists through them.

An *attempt* is the events found so far, by place. It waits at one stage or at several: for each there is an *entry*, in
the list of those that the next event sees, or in that of the fresh ones, which see only the event after it. Lists keep
the order in which entries came. Attempts that have begun stand in the order of their first events, so that the too old
ones are found at the front; entries that wait for time in the order of their attempts' last events; and those that
wait for an event with the key of an earlier one by that key.

An entry that left is not used again before the event is over, and still leads to the one behind it. Nothing here looks
for room: there is enough when an event comes.
"""

from __future__ import annotations

import numpy as np

from tocsin.kernels.core import CODE, FRAME, get, jit, keep_apart, put, small
from tocsin.kernels.layout import (
    C_MEMORY,
    E_ATTEMPT,
    E_BEFORE,
    E_DUE_BEFORE,
    E_DUE_NEXT,
    E_FRESH,
    E_GROUP,
    E_KEY_BEFORE,
    E_KEY_NEXT,
    E_NEXT,
    E_OWN,
    E_STAGE,
    E_STAMP,
    ENTRY_WORDS,
    G_KEY,
    G_ROWS,
    K_DURATION,
    K_KEYED,
    K_KEYS,
    K_PLACE,
    M_COUNT,
    M_DEAD,
    M_FREE,
    M_FREE_ENTRY,
    M_OLDEST,
    M_OUT,
    M_OUT_TAIL,
    M_STAMP,
    M_YOUNGEST,
    NONE,
    Q_KEY_COUNT,
    Q_KEYS,
    Q_STATE,
    S_COMING_COUNT,
    S_COUNT,
    S_HEAD,
    S_TAIL,
    STAGE_WORDS,
    STATE_WORDS,
    T_BORN,
    T_COUNTS,
    T_ENTRY,
    T_OLDER,
    T_SINCE,
    T_SPOILT,
    T_YOUNGER,
    U_DUE,
    U_DUE_TAIL,
    X_PLACES,
    X_RECORD,
    X_STAGE_COUNT,
    X_STAGES,
)
from tocsin.kernels.lists import link, unlink
from tocsin.kernels.windows.groups import COUNTS, MEMORY, STATES, drop, found, key_words, keyed

NEVER = np.int64(2**63 - 1)
FRESH = 3
"""How far behind the words of the list that waits those of the fresh one stand."""


@small
def stage_at(query, number):
    """Where the words of a stage stand."""
    return query + X_STAGES + number * STAGE_WORDS


@small
def waits_at(env, place, query, number):
    """What is kept of a stage."""
    return get(place, STATES) + 8 * (get(get(env, CODE), query + Q_STATE) + (1 + number) * STATE_WORDS)


# ---- attempts


@small
def _taken(place, state, which, words):
    """A record: one that is free, or a new one."""
    memory, counts = get(place, MEMORY), get(place, COUNTS)
    record = get(state, which)
    if record >= 0:
        put(state, which, get(memory, record))
        return record
    record = get(counts, C_MEMORY)
    put(counts, C_MEMORY, record + words)
    return record


@jit
def attempt_made(env, place, query, state):
    """An attempt that has nothing yet."""
    keep_apart()
    code, memory = get(env, CODE), get(place, MEMORY)
    attempt = _taken(place, state, M_FREE, get(code, query + X_RECORD))
    put(state, M_COUNT, get(state, M_COUNT) + 1)
    put(memory, attempt + T_ENTRY, np.int64(NONE))
    put(memory, attempt + T_SINCE, NEVER)
    put(memory, attempt + T_SPOILT, np.int64(0))
    put(memory, attempt + T_BORN, NEVER)
    stages = get(code, query + X_STAGE_COUNT)
    for k in range(stages):
        put(memory, attempt + T_COUNTS + k, np.int64(0))
    for k in range(get(code, query + X_PLACES)):
        put(memory, attempt + T_COUNTS + stages + k, np.int64(NONE))
    return attempt


@jit
def cut(env, place, query, state, attempt, number):
    """A copy of an attempt (NONE: of one that is over) that has nothing from that stage on."""
    keep_apart()
    code, memory = get(env, CODE), get(place, MEMORY)
    copy = attempt_made(env, place, query, state)
    if attempt < 0:
        return copy
    put(memory, copy + T_SINCE, get(memory, attempt + T_SINCE))
    if number == 0:
        return copy
    for k in range(number):
        put(memory, copy + T_COUNTS + k, get(memory, attempt + T_COUNTS + k))
    rows = T_COUNTS + get(code, query + X_STAGE_COUNT)
    for k in range(get(code, stage_at(query, number) + K_PLACE)):
        put(memory, copy + rows + k, get(memory, attempt + rows + k))
    if get(memory, attempt + T_BORN) != NEVER:
        put(memory, copy + T_BORN, get(memory, attempt + T_BORN))
        _stand_behind(memory, state, copy, attempt)
    return copy


@small
def bear(place, state, attempt, ts):
    """The first event of an attempt came, if it has none: all that began before are older."""
    memory = get(place, MEMORY)
    if get(memory, attempt + T_BORN) == NEVER:
        put(memory, attempt + T_BORN, np.int64(ts))
        _stand_behind(memory, state, attempt, get(state, M_YOUNGEST))


@small
def _stand_behind(memory, state, attempt, older):
    link(memory, attempt, older, T_YOUNGER, T_OLDER, state, M_OLDEST, M_YOUNGEST)


@jit
def free_attempt(place, state, attempt):
    """Forgets an attempt."""
    keep_apart()
    memory = get(place, MEMORY)
    if get(memory, attempt + T_BORN) != NEVER:
        unlink(memory, attempt, T_YOUNGER, T_OLDER, state, M_OLDEST, M_YOUNGEST)
    put(state, M_COUNT, get(state, M_COUNT) - 1)
    put(memory, attempt + T_SPOILT, np.int64(NONE))
    put(memory, attempt, get(state, M_FREE))
    put(state, M_FREE, attempt)


@small
def show_frame(env, place, query, attempt):
    """Puts the events of an attempt into the frame."""
    code = get(env, CODE)
    rows = get(place, MEMORY) + 8 * (attempt + T_COUNTS + get(code, query + X_STAGE_COUNT))
    for k in range(get(code, query + X_PLACES)):
        put(get(env, FRAME), k, get(rows, k))


# ---- where they wait


@jit
def enter_stage(env, place, query, state, number, attempt):
    """Lets an attempt wait at a stage from the next event on."""
    keep_apart()
    memory, here = get(place, MEMORY), waits_at(env, place, query, number)
    entry = _taken(place, state, M_FREE_ENTRY, ENTRY_WORDS)
    stamp = get(state, M_STAMP)
    put(state, M_STAMP, stamp + 1)
    put(memory, entry + E_ATTEMPT, attempt)
    put(memory, entry + E_STAGE, np.int64(number))
    put(memory, entry + E_FRESH, np.int64(FRESH))
    put(memory, entry + E_STAMP, stamp)
    put(memory, entry + E_OWN, np.int64(NONE))
    last = get(memory, attempt + T_ENTRY)
    if last < 0:
        put(memory, attempt + T_ENTRY, entry)
    else:
        while get(memory, last + E_OWN) >= 0:
            last = get(memory, last + E_OWN)
        put(memory, last + E_OWN, entry)
    fresh = here + 8 * FRESH
    link(memory, entry, get(fresh, S_TAIL), E_NEXT, E_BEFORE, fresh, S_HEAD, S_TAIL)
    put(fresh, S_COUNT, get(fresh, S_COUNT) + 1)
    _enter_key(env, place, query, number, entry, attempt)
    if get(get(env, CODE), stage_at(query, number) + K_DURATION) >= 0:
        put(memory, entry + E_DUE_NEXT, np.int64(NONE))
        put(memory, entry + E_DUE_BEFORE, np.int64(NONE))
        if get(memory, attempt + T_SINCE) != NEVER:
            _await(memory, here, entry)


@jit
def leave_stage(env, place, query, state, entry):
    """Takes an entry out of its list."""
    keep_apart()
    memory = get(place, MEMORY)
    attempt, number = get(memory, entry + E_ATTEMPT), get(memory, entry + E_STAGE)
    stage = waits_at(env, place, query, number)
    here = stage + 8 * get(memory, entry + E_FRESH)
    unlink(memory, entry, E_NEXT, E_BEFORE, here, S_HEAD, S_TAIL)
    put(here, S_COUNT, get(here, S_COUNT) - 1)
    _leave_key(env, place, query, number, entry)
    if get(get(env, CODE), stage_at(query, number) + K_DURATION) >= 0 and get(memory, attempt + T_SINCE) != NEVER:
        _await_no_more(memory, stage, entry)
    own = get(memory, attempt + T_ENTRY)
    if own == entry:
        put(memory, attempt + T_ENTRY, get(memory, entry + E_OWN))
    else:
        while get(memory, own + E_OWN) != entry:
            own = get(memory, own + E_OWN)
        put(memory, own + E_OWN, get(memory, entry + E_OWN))
    put(memory, entry + E_STAGE, np.int64(NONE))
    put(memory, entry + E_OWN, get(state, M_DEAD))
    put(state, M_DEAD, entry)


@jit
def leave_once(env, place, query, state, number, fresh, attempt):
    """Takes the first entry of an attempt out of a stage's list, if it is there."""
    keep_apart()
    memory = get(place, MEMORY)
    entry = get(memory, attempt + T_ENTRY)
    while entry >= 0:
        if get(memory, entry + E_STAGE) == number and get(memory, entry + E_FRESH) == fresh:
            leave_stage(env, place, query, state, entry)
            return
        entry = get(memory, entry + E_OWN)


@jit
def clear_list(env, place, query, state, number, fresh):
    """Gives up all that waits in a list."""
    keep_apart()
    here = waits_at(env, place, query, number) + 8 * fresh
    while get(here, S_HEAD) >= 0:
        leave_stage(env, place, query, state, get(here, S_HEAD))


@jit
def settle(env, place, query, number):
    """What is fresh waits from now on."""
    keep_apart()
    memory, here = get(place, MEMORY), waits_at(env, place, query, number)
    entry = get(here, S_HEAD + FRESH)
    if entry < 0:
        return
    put(memory, entry + E_BEFORE, get(here, S_TAIL))
    if get(here, S_TAIL) >= 0:
        put(memory, get(here, S_TAIL) + E_NEXT, entry)
    else:
        put(here, S_HEAD, entry)
    put(here, S_TAIL, get(here, S_TAIL + FRESH))
    put(here, S_COUNT, get(here, S_COUNT) + get(here, S_COMING_COUNT))
    while entry >= 0:
        put(memory, entry + E_FRESH, np.int64(0))
        entry = get(memory, entry + E_NEXT)
    put(here, S_HEAD + FRESH, np.int64(NONE))
    put(here, S_TAIL + FRESH, np.int64(NONE))
    put(here, S_COMING_COUNT, np.int64(0))


# ---- the entries of one key stand behind each other, in the order in which they came


@jit
def group_at(env, place, query, number, row):
    """The group of the entries at a stage that have the key of an event, NONE if there are none."""
    keep_apart()
    code, memory, stage = get(env, CODE), get(place, MEMORY), stage_at(query, number)
    keyed_by = get(code, stage + K_KEYED)
    keys = get(code, keyed_by + Q_KEY_COUNT)
    put(get(env, FRAME), get(code, stage + K_PLACE), np.int64(row))
    known = key_words(env, memory, keys, get(code, stage + K_KEYS))
    if known != (np.int64(1) << keys) - 1:
        return np.int64(NONE)
    return found(env, place, keyed_by, known)


@small
def first_of_key(env, place, query, number, group):
    """The first entry of a group."""
    keys = get(get(env, CODE), get(get(env, CODE), stage_at(query, number) + K_KEYED) + Q_KEY_COUNT)
    return get(get(place, MEMORY), group + G_KEY + 1 + keys)


@jit
def _enter_key(env, place, query, number, entry, attempt):
    keep_apart()
    code, memory, keyed_by = get(env, CODE), get(place, MEMORY), get(get(env, CODE), stage_at(query, number) + K_KEYED)
    put(memory, entry + E_GROUP, np.int64(NONE))
    if keyed_by < 0:
        return
    keys = get(code, keyed_by + Q_KEY_COUNT)
    show_frame(env, place, query, attempt)
    known = key_words(env, memory, keys, get(code, keyed_by + Q_KEYS))
    if known != (np.int64(1) << keys) - 1:
        return  # no event has the same
    group = keyed(env, place, keyed_by, known)
    ends, rows = group + G_KEY + 1 + keys, get(memory, group + G_ROWS)
    put(memory, entry + E_GROUP, group)
    if rows == 0:  # a group that is new says nothing about its list
        put(memory, ends, np.int64(NONE))
        put(memory, ends + 1, np.int64(NONE))
    link(memory, entry, get(memory, ends + 1), E_KEY_NEXT, E_KEY_BEFORE, memory, ends, ends + 1)
    put(memory, group + G_ROWS, rows + 1)


@jit
def _leave_key(env, place, query, number, entry):
    keep_apart()
    code, memory = get(env, CODE), get(place, MEMORY)
    group = get(memory, entry + E_GROUP)
    if group < 0:
        return
    ends = group + G_KEY + 1 + get(code, get(code, stage_at(query, number) + K_KEYED) + Q_KEY_COUNT)
    unlink(memory, entry, E_KEY_NEXT, E_KEY_BEFORE, memory, ends, ends + 1)
    put(memory, group + G_ROWS, get(memory, group + G_ROWS) - 1)
    if get(memory, group + G_ROWS) == 0:
        drop(place, waits_at(env, place, query, number), group)


# ---- time


@jit
def _await(memory, stage, entry):
    """Puts an entry among those that wait for time: by the last event of their attempts, then as they came."""
    keep_apart()
    since, stamp = get(memory, get(memory, entry + E_ATTEMPT) + T_SINCE), get(memory, entry + E_STAMP)
    before = get(stage, U_DUE_TAIL)
    while before >= 0:
        other = get(memory, get(memory, before + E_ATTEMPT) + T_SINCE)
        if other < since or (other == since and get(memory, before + E_STAMP) < stamp):
            break
        before = get(memory, before + E_DUE_BEFORE)
    link(memory, entry, before, E_DUE_NEXT, E_DUE_BEFORE, stage, U_DUE, U_DUE_TAIL)


@small
def _await_no_more(memory, stage, entry):
    unlink(memory, entry, E_DUE_NEXT, E_DUE_BEFORE, stage, U_DUE, U_DUE_TAIL)


@jit
def last_came(env, place, query, attempt, ts):
    """The last event of an attempt came: what waits for time waits from then on."""
    keep_apart()
    code, memory = get(env, CODE), get(place, MEMORY)
    known = get(memory, attempt + T_SINCE) != NEVER
    entry = get(memory, attempt + T_ENTRY)
    while entry >= 0 and known:
        number = get(memory, entry + E_STAGE)
        if get(code, stage_at(query, number) + K_DURATION) >= 0:
            _await_no_more(memory, waits_at(env, place, query, number), entry)
        entry = get(memory, entry + E_OWN)
    put(memory, attempt + T_SINCE, np.int64(ts))
    entry = get(memory, attempt + T_ENTRY)
    while entry >= 0:
        number = get(memory, entry + E_STAGE)
        if get(code, stage_at(query, number) + K_DURATION) >= 0:
            _await(memory, waits_at(env, place, query, number), entry)
        entry = get(memory, entry + E_OWN)


# ---- what comes out, and what is over


@small
def complete(place, state, attempt):
    """Notes that an attempt is complete, in the order in which they are."""
    memory = get(place, MEMORY)
    cell = _taken(place, state, M_FREE_ENTRY, ENTRY_WORDS)
    put(memory, cell + E_ATTEMPT, attempt)
    put(memory, cell + E_NEXT, np.int64(NONE))
    tail = get(state, M_OUT_TAIL)
    if tail >= 0:
        put(memory, tail + E_NEXT, cell)
    else:
        put(state, M_OUT, cell)
    put(state, M_OUT_TAIL, cell)


@jit
def sweep(place, state):
    """Forgets what left and what came out, when an event is over: attempts that wait nowhere."""
    keep_apart()
    memory = get(place, MEMORY)
    cell = get(state, M_OUT)
    while cell >= 0:
        following = get(memory, cell + E_NEXT)
        put(memory, cell, get(state, M_FREE_ENTRY))
        put(state, M_FREE_ENTRY, cell)
        cell = following
    put(state, M_OUT, np.int64(NONE))
    put(state, M_OUT_TAIL, np.int64(NONE))
    entry = get(state, M_DEAD)
    while entry >= 0:
        following, attempt = get(memory, entry + E_OWN), get(memory, entry + E_ATTEMPT)
        if get(memory, attempt + T_SPOILT) >= 0 and get(memory, attempt + T_ENTRY) < 0:
            free_attempt(place, state, attempt)
        put(memory, entry, get(state, M_FREE_ENTRY))
        put(state, M_FREE_ENTRY, entry)
        entry = following
    put(state, M_DEAD, np.int64(NONE))


# ---- what is written down


@jit
def waiting(env, place, query, out):
    """All entries in the order of their lists, as (attempt, stage, fresh); returns how many."""
    memory, count = get(place, MEMORY), 0
    for number in range(get(get(env, CODE), query + X_STAGE_COUNT)):
        here = waits_at(env, place, query, number)
        for fresh in (np.int64(0), np.int64(FRESH)):
            entry = get(here, S_HEAD + fresh)
            while entry >= 0:
                out[0, count], out[1, count], out[2, count] = get(memory, entry + E_ATTEMPT), number, fresh
                count += 1
                entry = get(memory, entry + E_NEXT)
    return count


@jit
def revive(env, place, query, words, entries):
    """Gives an automaton attempts, as `words` of records behind their neighbours, and where they wait.

    Attempts that have begun come in the order of their first events. There is room for all.
    """
    memory, state = get(place, MEMORY), waits_at(env, place, query, -1)
    made = np.empty(len(words), np.int64)
    for n in range(len(words)):
        attempt = made[n] = attempt_made(env, place, query, state)
        put(memory, attempt + T_SINCE, words[n, 0])
        put(memory, attempt + T_SPOILT, words[n, 1])
        if words[n, 2] != NEVER:
            bear(place, state, attempt, words[n, 2])
        for k in range(3, words.shape[1]):
            put(memory, attempt + T_COUNTS + k - 3, words[n, k])
    for n in range(entries.shape[1]):
        number = entries[1, n]
        enter_stage(env, place, query, state, number, made[entries[0, n]])
        ends = n + 1 == entries.shape[1] or entries[1, n + 1] != number or entries[2, n + 1] != 0
        if entries[2, n] == 0 and ends:
            settle(env, place, query, number)
