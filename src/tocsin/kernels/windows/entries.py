# mypy: disable-error-code="no-untyped-def"
"""How do events come into a window and leave it, and what rows does that bring?

What a window holds is a list of entries, each a row of the store. What one event, or one moment of a timer, brings
about is a *chunk*: events that leave are taken away from their groups, a new batch empties all groups, events that come
are added. Under an aggregate or `group by` a chunk has one row for each group, the last. A timer runs at its very
moment, before the events of that moment.
"""

from __future__ import annotations

import numpy as np

from tocsin.kernels.core import (
    CODE,
    COMPUTED,
    COMPUTED_KNOWN,
    FRAME,
    STACK,
    TS,
    get,
    get_byte,
    jit,
    keep_apart,
    put,
    put_byte,
    small,
)
from tocsin.kernels.expressions import all_hold, evaluate
from tocsin.kernels.identity import FIRST_SEED, SECOND_SEED, fold
from tocsin.kernels.layout import (
    C_FREE,
    C_FREE_COUNT,
    C_GROUPS,
    C_MEMORY,
    C_ROWS,
    G_CHUNK,
    G_EMPTY,
    G_LAST,
    G_NEXT,
    G_OUT,
    G_ROWS,
    LENGTH,
    LENGTH_BATCH,
    NO_WINDOW,
    NONE,
    Q_AFTER,
    Q_AFTER_COUNT,
    Q_CALL_COUNT,
    Q_CURRENT,
    Q_EXPIRED,
    Q_EXTENT,
    Q_GROUPED,
    Q_HAVING,
    Q_HAVING_COUNT,
    Q_KEY_COUNT,
    Q_OUTPUT_COUNT,
    Q_OUTPUTS,
    Q_RECORD,
    Q_RULE,
    Q_SIZE,
    S_BEGUN,
    S_CHUNK,
    S_COMING,
    S_COMING_COUNT,
    S_COUNT,
    S_EMPTY,
    S_FIRST,
    S_GROUPS,
    S_HEAD,
    S_NEXT,
    S_TAIL,
    TIME,
    TIME_BATCH,
)
from tocsin.kernels.windows.groups import (
    BUCKET_MASK,
    COUNTS,
    ENTRY_GROUP,
    ENTRY_NEXT,
    ENTRY_ROW,
    MEMORY,
    NOT_EMPTY,
    OUT_EXPIRED,
    OUT_FIRST,
    OUT_KNOWN,
    OUT_ROOM,
    OUT_RULE,
    OUT_SECOND,
    OUT_SEQ,
    OUT_TS,
    OUT_WORDS,
    RULE_WORDS,
    STATES,
    TAKEN,
    apply,
    clear,
    drop,
    group_of,
    note_empty,
    results,
)

DONE, MORE_ROWS, MORE_ENTRIES, MORE_MEMORY, MORE_BUCKETS, TOO_MANY = range(6)
"""Why a run stopped."""
NEVER = np.int64(2**63 - 1)
CURRENT, EXPIRED = np.int64(1), np.int64(-1)
"""The sign of a chunk's event. As words and not as literals, for which the compiler would make each function twice."""


@small
def window_missing(env, place, query, state):
    """What there is too little of for one chunk, or DONE."""
    code, counts = get(env, CODE), get(place, COUNTS)
    most = get(state, S_COUNT) + get(state, S_COMING_COUNT) + 1
    if get(code, query + Q_EXTENT) in (NO_WINDOW, LENGTH):
        most = np.int64(2)
    groups = most if get(code, query + Q_KEY_COUNT) > 0 else np.int64(1)
    rows = groups if get(code, query + Q_GROUPED) else most
    if get(counts, C_ROWS) + rows > get(place, OUT_ROOM):
        return MORE_ROWS
    if get(counts, C_FREE_COUNT) < 1:
        return MORE_ENTRIES
    if get(code, query + Q_GROUPED):
        if get(code, query + Q_EXTENT) == TIME:
            groups = np.int64(1)
        if get(counts, C_MEMORY) + groups * get(code, query + Q_RECORD) > get(place, TAKEN):
            return MORE_MEMORY
        if get(counts, C_GROUPS) + groups > get(place, BUCKET_MASK):
            return MORE_BUCKETS
    return DONE


@small
def window_due(env, place, query, state):
    """When the query's next timer is to run."""
    extent = get(get(env, CODE), query + Q_EXTENT)
    if extent == TIME:
        head = get(state, S_HEAD)
        if head < 0:
            return NEVER
        return get(get(env, TS), get(get(place, ENTRY_ROW), head)) + get(get(env, CODE), query + Q_SIZE)
    if extent == TIME_BATCH and get(state, S_COUNT) + get(state, S_COMING_COUNT) > 0:
        return get(state, S_NEXT)
    return NEVER


@jit
def window_arrive(env, place, query, state, row):
    """An event comes."""
    keep_apart()
    code = get(env, CODE)
    extent, size = get(code, query + Q_EXTENT), get(code, query + Q_SIZE)
    if extent == NO_WINDOW:
        _come(env, place, query, state, np.int64(NONE), row)
    elif extent in (LENGTH, TIME):
        if extent == LENGTH and get(state, S_COUNT) == size:
            _leave(env, place, query, state)
        entry = enter(place, state, S_HEAD, row)
        _come(env, place, query, state, entry, row)
    elif extent == LENGTH_BATCH:
        enter(place, state, S_COMING, row)
        if get(state, S_COMING_COUNT) == size:
            _turn(env, place, query, state)
    else:
        ts = get(get(env, TS), row)
        if get(state, S_BEGUN) == 0:
            put(state, S_BEGUN, np.int64(1))
            put(state, S_FIRST, ts)
        if get(state, S_COUNT) + get(state, S_COMING_COUNT) == 0:
            put(state, S_NEXT, ts + size - (ts - get(state, S_FIRST)) % size)
        enter(place, state, S_COMING, row)


@jit
def window_fire(env, place, query, state, due):
    """A timer runs."""
    keep_apart()
    code = get(env, CODE)
    if get(code, query + Q_EXTENT) == TIME:
        while window_due(env, place, query, state) <= due:
            _leave(env, place, query, state)
    else:
        put(state, S_NEXT, due + get(code, query + Q_SIZE))
        _turn(env, place, query, state)


@jit
def _turn(env, place, query, state):
    """One batch goes, the next one comes."""
    keep_apart()
    code, memory = get(env, CODE), get(place, MEMORY)
    while get(state, S_COUNT) > 0:
        _leave(env, place, query, state)
    for k in range(3):
        put(state, S_HEAD + k, get(state, S_COMING + k))
        put(state, S_COMING + k, np.int64(NONE if k < 2 else 0))
    if get(state, S_COUNT) == 0:
        return
    reset(env, place, query, state)
    rows, following = get(place, ENTRY_ROW), get(place, ENTRY_NEXT)
    # Of the rows of a group the last comes out: without `having`, the others need not be made.
    last_only = get(code, query + Q_GROUPED) != 0 and get(code, query + Q_HAVING_COUNT) == 0
    entry = get(state, S_HEAD)
    while entry >= 0:
        row = get(rows, entry)
        if last_only:
            group = _admit(env, place, query, entry, row)
            if group >= 0:
                apply(env, place, query, group, entry, CURRENT)
                put(memory, group + G_LAST, entry)
                if get(code, query + Q_CURRENT):
                    _out(place, state, group)
        else:
            _come(env, place, query, state, entry, row)
        entry = get(following, entry)
    if last_only and get(code, query + Q_CURRENT):
        entry = get(state, S_HEAD)
        while entry >= 0:
            group = get(get(place, ENTRY_GROUP), entry)
            if group >= 0 and get(memory, group + G_LAST) == entry:
                put(get(env, FRAME), 0, get(rows, entry))
                _select(env, place, query, group, CURRENT, get(memory, group + G_OUT))
            entry = get(following, entry)
    if not get(code, query + Q_EXPIRED):  # nobody asks for the batch any more
        while get(state, S_COUNT) > 0:
            free_first(place, state)
        reset(env, place, query, state)


@jit
def reset(env, place, query, state):
    """Empties all groups."""
    keep_apart()
    memory = get(place, MEMORY)
    group = get(state, S_GROUPS)
    while group >= 0:
        clear(env, place, query, group)
        note_empty(memory, state, group)
        group = get(memory, group + G_NEXT)


@small
def enter(place, state, which, row):
    """Appends a row to the window, or to the batch that is coming."""
    counts, following = get(place, COUNTS), get(place, ENTRY_NEXT)
    entry = get(counts, C_FREE)
    put(counts, C_FREE, get(following, entry))
    put(counts, C_FREE_COUNT, get(counts, C_FREE_COUNT) - 1)
    put(get(place, ENTRY_ROW), entry, np.int64(row))
    put(get(place, ENTRY_GROUP), entry, np.int64(NONE))
    put(following, entry, np.int64(NONE))
    last = get(state, which + 1)
    if last >= 0:
        put(following, last, entry)
    else:
        put(state, which, entry)
    put(state, which + 1, entry)
    put(state, which + 2, get(state, which + 2) + 1)
    return entry


@small
def free_first(place, state):
    """Takes the first entry out of the window."""
    counts, following = get(place, COUNTS), get(place, ENTRY_NEXT)
    entry = get(state, S_HEAD)
    put(state, S_HEAD, get(following, entry))
    if get(following, entry) < 0:
        put(state, S_TAIL, np.int64(NONE))
    put(state, S_COUNT, get(state, S_COUNT) - 1)
    put(get(place, ENTRY_ROW), entry, np.int64(NONE))
    put(following, entry, get(counts, C_FREE))
    put(counts, C_FREE, entry)
    put(counts, C_FREE_COUNT, get(counts, C_FREE_COUNT) + 1)


# ---- what comes out


@small
def begin_chunk(place, state):
    put(state, S_CHUNK, get(state, S_CHUNK) + 1)
    put(state, S_EMPTY, np.int64(NONE))
    return get(get(place, COUNTS), C_ROWS)


@small
def _admit(env, place, query, entry, row):
    """The group of an event that comes, NONE if it fails the tests behind the window."""
    code = get(env, CODE)
    put(get(env, FRAME), 0, np.int64(row))
    if not all_hold(env, get(code, query + Q_AFTER), get(code, query + Q_AFTER_COUNT)):
        return np.int64(NONE)
    group = group_of(env, place, query)
    if entry >= 0:
        put(get(place, ENTRY_GROUP), entry, group)
    return group


@jit
def _come(env, place, query, state, entry, row):
    """An event comes."""
    keep_apart()
    code = get(env, CODE)
    if get(code, query + Q_GROUPED):
        group = _admit(env, place, query, entry, row)
        if group < 0:
            return
        apply(env, place, query, group, entry, CURRENT)
        if get(code, query + Q_CURRENT):
            put_out(env, place, query, state, group, CURRENT)
        return
    put(get(env, FRAME), 0, np.int64(row))
    if get(code, query + Q_CURRENT) and all_hold(env, get(code, query + Q_AFTER), get(code, query + Q_AFTER_COUNT)):
        put_out(env, place, query, state, np.int64(NONE), CURRENT)


@jit
def _leave(env, place, query, state):
    """The first event of the window leaves."""
    keep_apart()
    code, memory = get(env, CODE), get(place, MEMORY)
    entry = get(state, S_HEAD)
    put(get(env, FRAME), 0, get(get(place, ENTRY_ROW), entry))
    if get(code, query + Q_GROUPED):
        group = get(get(place, ENTRY_GROUP), entry)
        if group >= 0:
            apply(env, place, query, group, entry, EXPIRED)
            if get(memory, group + G_ROWS) == 0:
                note_empty(memory, state, group)
            if get(code, query + Q_EXPIRED):
                put_out(env, place, query, state, group, EXPIRED)
    elif get(code, query + Q_EXPIRED) and all_hold(env, get(code, query + Q_AFTER), get(code, query + Q_AFTER_COUNT)):
        put_out(env, place, query, state, np.int64(NONE), EXPIRED)
    free_first(place, state)


@small
def _out(place, state, group):
    """The place of a group's row in the chunk; each group has one."""
    memory, counts = get(place, MEMORY), get(place, COUNTS)
    if group >= 0 and get(memory, group + G_CHUNK) == get(state, S_CHUNK):
        return get(memory, group + G_OUT)
    row = get(counts, C_ROWS)
    put(counts, C_ROWS, row + 1)
    if group >= 0:
        put(memory, group + G_CHUNK, get(state, S_CHUNK))
        put(memory, group + G_OUT, row)
    return row


@jit
def put_out(env, place, query, state, group, sign):
    """Puts out the row of the event in the frame, if it meets what is asked of rows."""
    keep_apart()
    code, room = get(env, CODE), get(place, OUT_ROOM)
    if get(code, query + Q_HAVING_COUNT) == 0:
        _select(env, place, query, group, sign, _out(place, state, group))
        return
    # What `having` speaks of must be known before there is a place for it: the last row is kept free.
    _select(env, place, query, group, sign, room)
    calls = get(code, query + Q_CALL_COUNT)
    for k in range(get(code, query + Q_OUTPUT_COUNT)):
        put(get(env, COMPUTED), calls + k, get(get(place, OUT_WORDS), k * (room + 1) + room))
        put_byte(get(env, COMPUTED_KNOWN), calls + k, get_byte(get(place, OUT_KNOWN), k * (room + 1) + room))
    if all_hold(env, get(code, query + Q_HAVING), get(code, query + Q_HAVING_COUNT)):
        row = _out(place, state, group)
        for k in range(get(code, query + Q_OUTPUT_COUNT)):
            put(get(place, OUT_WORDS), k * (room + 1) + row, get(get(env, COMPUTED), calls + k))
            put_byte(get(place, OUT_KNOWN), k * (room + 1) + row, get_byte(get(env, COMPUTED_KNOWN), calls + k))
        put_byte(get(place, OUT_EXPIRED), row, np.uint8(sign == EXPIRED))


@jit
def _select(env, place, query, group, sign, row):
    """Computes a row."""
    code, room = get(env, CODE), get(place, OUT_ROOM)
    if group >= 0:
        results(env, place, query, group)
    programs = get(code, query + Q_OUTPUTS)
    for k in range(get(code, query + Q_OUTPUT_COUNT)):
        known = evaluate(env, get(code, programs + k))
        put(get(place, OUT_WORDS), k * (room + 1) + row, get(get(env, STACK), 0))
        put_byte(get(place, OUT_KNOWN), k * (room + 1) + row, np.uint8(known))
    put_byte(get(place, OUT_EXPIRED), row, np.uint8(sign == EXPIRED))


@jit
def end_chunks(env, place, query, state, begin, ts, seq, first, second):
    """Ends a chunk: its rows get their time and identity, and groups without events are dropped."""
    keep_apart()
    memory, rule = get(place, MEMORY), get(get(env, CODE), query + Q_RULE)
    end = get(get(place, COUNTS), C_ROWS)
    if end > begin:
        a, b = FIRST_SEED, SECOND_SEED
        a, b = fold(a, b, np.uint64(get(get(place, RULE_WORDS), 2 * rule)))
        a, b = fold(a, b, np.uint64(get(get(place, RULE_WORDS), 2 * rule + 1)))
        a, b = fold(a, b, np.uint64(first))
        a, b = fold(a, b, np.uint64(second))
        for row in range(begin, end):
            own = b + np.uint64(row - begin)
            put(get(place, OUT_FIRST), row, np.int64(a + np.uint64(1) if own < b else a))
            put(get(place, OUT_SECOND), row, np.int64(own))
            put(get(place, OUT_RULE), row, rule)
            put(get(place, OUT_TS), row, np.int64(ts))
            put(get(place, OUT_SEQ), row, np.int64(seq))
    group = get(state, S_EMPTY)
    while group >= 0:
        following = get(memory, group + G_EMPTY)
        put(memory, group + G_EMPTY, np.int64(NOT_EMPTY))
        if get(memory, group + G_ROWS) == 0:
            drop(place, state, group)
        group = following
    put(state, S_EMPTY, np.int64(NONE))


@jit
def timer_words(due):
    """The identity of the text `timer …` with the time."""
    keep_apart()
    text = np.empty(32, np.uint8)
    text[0], text[1], text[2], text[3], text[4], text[5] = 116, 105, 109, 101, 114, 32
    size, left = 6, due
    if left < 0:
        text[6] = 45
        size, left = 7, -left
    digits = np.int64(1)
    while left // digits >= 10:
        digits *= 10
    while digits > 0:
        text[size] = 48 + left // digits % 10
        size += 1
        digits //= 10
    a, b = FIRST_SEED, SECOND_SEED
    for at in range(0, size, 8):
        word = np.uint64(0)
        for i in range(at, min(at + 8, size)):
            word |= np.uint64(text[i]) << np.uint64(8 * (i - at))
        a, b = fold(a, b, word)
    return fold(a, b, np.uint64(size))


@jit
def restore(env, place, query, at, grouped, rows, coming):
    """Gives the window whose state is at `at` what it held, and its groups the events of it. There is room for all."""
    code = get(env, CODE)
    state = get(place, STATES) + 8 * at
    for n in range(len(rows)):
        entry = enter(place, state, S_HEAD, rows[n])
        if grouped and get(code, query + Q_GROUPED):
            group = _admit(env, place, query, entry, rows[n])
            if group >= 0:
                apply(env, place, query, group, entry, CURRENT)
    for n in range(len(coming)):
        enter(place, state, S_COMING, coming[n])


@jit
def listed(following, row, first, count):
    """The rows of a list of entries."""
    found = np.empty(count, np.int64)
    entry = first
    for n in range(count):
        found[n] = row[entry]
        entry = following[entry]
    return found
