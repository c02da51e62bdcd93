# mypy: disable-error-code="no-untyped-def"
"""How do the events of two windows meet?

Where `on` asks for equal attributes, an event meets only those of its key; without, it looks at all.

An event that comes into, or leaves, the window of one side meets all that the other side's window holds: a chunk for
each. An event first enters its own window. Timers of one moment run left before right.
"""

from __future__ import annotations

import numpy as np

from tocsin.kernels.core import CODE, FRAME, TS, get, jit, keep_apart, put, small
from tocsin.kernels.expressions import all_hold
from tocsin.kernels.layout import (
    A_QUEUE,
    C_FREE_COUNT,
    C_GROUPS,
    C_MEMORY,
    C_ROWS,
    CALL_WORDS,
    G_KEY,
    G_ROWS,
    IN_LANES,
    J_DROPS,
    J_LOOKS,
    J_ON,
    J_ON_COUNT,
    J_OUTER,
    J_SIDE_WORDS,
    J_SIDES,
    LANES,
    LENGTH,
    LENGTH_BATCH,
    NO_WINDOW,
    NONE,
    Q_CALL_COUNT,
    Q_CALLS,
    Q_CURRENT,
    Q_EXPIRED,
    Q_EXTENT,
    Q_GROUPED,
    Q_KEY_COUNT,
    Q_KEYS,
    Q_RECORD,
    Q_SIZE,
    Q_STATE,
    S_BEGUN,
    S_CHUNK,
    S_COMING,
    S_COMING_COUNT,
    S_COUNT,
    S_FIRST,
    S_HEAD,
    S_NEXT,
    TIME,
    TIME_BATCH,
)
from tocsin.kernels.lists import V_NEXT
from tocsin.kernels.windows.entries import (
    CURRENT,
    DONE,
    EXPIRED,
    MORE_BUCKETS,
    MORE_ENTRIES,
    MORE_MEMORY,
    MORE_ROWS,
    NEVER,
    enter,
    free_first,
    put_out,
    reset,
)
from tocsin.kernels.windows.groups import (
    BUCKET_MASK,
    COUNTS,
    ENTRY_GROUP,
    ENTRY_NEXT,
    ENTRY_ROW,
    MEMORY,
    OUT_ROOM,
    STATES,
    TAKEN,
    apply,
    drop,
    found,
    group_of,
    key_words,
    keyed,
    note_empty,
)


@small
def _window(env, place, side):
    """The state of a side's window."""
    return get(place, STATES) + 8 * get(get(env, CODE), side + Q_STATE)


@jit
def _due(env, place, side):
    code, window = get(env, CODE), _window(env, place, side)
    extent = get(code, side + Q_EXTENT)
    if extent == TIME and get(window, S_HEAD) >= 0:
        return get(get(env, TS), get(get(place, ENTRY_ROW), get(window, S_HEAD))) + get(code, side + Q_SIZE)
    if extent == TIME_BATCH and get(window, S_COUNT) + get(window, S_COMING_COUNT) > 0:
        return get(window, S_NEXT)
    return NEVER


@jit
def join_due(env, place, query):
    """When the next timer of a join is to run."""
    keep_apart()
    return min(_due(env, place, query + J_SIDES), _due(env, place, query + J_SIDES + J_SIDE_WORDS))


@jit
def join_missing(env, place, query):
    """What there is too little of for one event or moment, or DONE."""
    keep_apart()
    code, counts = get(env, CODE), get(place, COUNTS)
    looks, rows, words, keys = np.int64(0), np.int64(0), np.int64(0), np.int64(0)
    for k in range(2):
        side, other = query + J_SIDES + k * J_SIDE_WORDS, query + J_SIDES + (1 - k) * J_SIDE_WORDS
        extent, window, facing = get(code, side + Q_EXTENT), _window(env, place, side), _window(env, place, other)
        most = np.int64(2)
        if extent == TIME:
            most += get(window, S_COUNT)
        elif extent not in (NO_WINDOW, LENGTH):
            most += get(window, S_COUNT) + get(window, S_COMING_COUNT)
        looks += most
        if get(code, side + Q_KEY_COUNT) > 0:
            new = get(window, S_COMING_COUNT) + 1
            keys += new
            words += new * get(code, side + Q_RECORD)
        rows += most * (get(facing, S_COUNT) + get(facing, S_COMING_COUNT) + 2)
    grouped, pairs = get(code, query + Q_GROUPED) != 0, rows
    if grouped and get(code, query + Q_KEY_COUNT) == 0:
        rows = looks
    if get(counts, C_ROWS) + rows > get(place, OUT_ROOM):
        return MORE_ROWS
    if get(counts, C_FREE_COUNT) < 2:
        return MORE_ENTRIES
    if grouped:
        groups = rows if get(code, query + Q_KEY_COUNT) > 0 else np.int64(1)
        keys += groups
        words += groups * get(code, query + Q_RECORD)
        call = get(code, query + Q_CALLS)
        for n in range(get(code, query + Q_CALL_COUNT)):
            if get(code, call + n * CALL_WORDS + A_QUEUE) == IN_LANES:
                words += pairs * (V_NEXT + LANES)
    if get(counts, C_MEMORY) + words > get(place, TAKEN):
        return MORE_MEMORY
    if get(counts, C_GROUPS) + keys > get(place, BUCKET_MASK):
        return MORE_BUCKETS
    return DONE


@jit
def join_fire(env, place, query, state, due):
    """The timers of a moment run, left before right."""
    keep_apart()
    for side in range(2):
        if _due(env, place, query + J_SIDES + side * J_SIDE_WORDS) == due:
            _fire(env, place, query, state, side, due)


@jit
def join_arrive(env, place, query, state, row, sides):
    """An event comes to one side, or both: `sides` are bits."""
    keep_apart()
    for side in range(2):
        if sides >> side & 1:
            _arrive(env, place, query, state, side, row)


@jit
def _arrive(env, place, query, state, number, row):
    """An event comes to one side."""
    keep_apart()
    code, side = get(env, CODE), query + J_SIDES + number * J_SIDE_WORDS
    window, extent, size = _window(env, place, side), get(code, side + Q_EXTENT), get(code, side + Q_SIZE)
    if extent == NO_WINDOW:
        _look(env, place, query, state, number, row, CURRENT)
        _look(env, place, query, state, number, row, EXPIRED)
        if get(code, side + J_LOOKS):
            reset(env, place, query, state)
    elif extent in (LENGTH, TIME):
        gone = np.int64(NONE)
        if extent == LENGTH and get(window, S_COUNT) == size:
            gone = _leave(env, place, side, number)
        _link(env, place, side, number, enter(place, window, S_HEAD, row))
        if gone >= 0:
            _look(env, place, query, state, number, gone, EXPIRED)
        _look(env, place, query, state, number, row, CURRENT)
    elif extent == LENGTH_BATCH:
        enter(place, window, S_COMING, row)
        if get(window, S_COMING_COUNT) == size:
            _turn(env, place, query, state, number)
    else:
        ts = get(get(env, TS), row)
        if get(window, S_BEGUN) == 0:
            put(window, S_BEGUN, np.int64(1))
            put(window, S_FIRST, ts)
        if get(window, S_COUNT) + get(window, S_COMING_COUNT) == 0:
            put(window, S_NEXT, ts + size - (ts - get(window, S_FIRST)) % size)
        enter(place, window, S_COMING, row)


@jit
def _fire(env, place, query, state, number, due):
    """The timer of one side runs."""
    keep_apart()
    code, side = get(env, CODE), query + J_SIDES + number * J_SIDE_WORDS
    window = _window(env, place, side)
    if get(code, side + Q_EXTENT) == TIME_BATCH:
        put(window, S_NEXT, due + get(code, side + Q_SIZE))
        _turn(env, place, query, state, number)
        return
    while _due(env, place, side) <= due:
        row = _leave(env, place, side, number)
        _look(env, place, query, state, number, row, EXPIRED)


@jit
def _turn(env, place, query, state, number):
    """One batch of a side goes, the next one comes."""
    keep_apart()
    code, side = get(env, CODE), query + J_SIDES + number * J_SIDE_WORDS
    window = _window(env, place, side)
    while get(window, S_COUNT) > 0:
        row = _leave(env, place, side, number)
        _look(env, place, query, state, number, row, EXPIRED)
    for k in range(3):
        put(window, S_HEAD + k, get(window, S_COMING + k))
        put(window, S_COMING + k, np.int64(NONE if k < 2 else 0))
    if get(window, S_COUNT) == 0:
        return
    link_all(env, place, side, number)
    if get(code, side + J_LOOKS):
        reset(env, place, query, state)
    entry = get(window, S_HEAD)
    while entry >= 0:
        _look(env, place, query, state, number, get(get(place, ENTRY_ROW), entry), CURRENT)
        entry = get(get(place, ENTRY_NEXT), entry)


# ---- the entries of one key stand behind each other, in the order in which they came


@jit
def _first(env, place, side, keys, slots):
    """The first entry of a side whose key is that of the event in the frame."""
    keep_apart()
    memory = get(place, MEMORY)
    known = key_words(env, memory, keys, slots)
    if known != (np.int64(1) << keys) - 1:
        return np.int64(NONE)
    group = found(env, place, side, known)
    return get(memory, group + G_KEY + 1 + keys) if group >= 0 else np.int64(NONE)


@jit
def _link(env, place, side, number, entry):
    """Puts an entry behind those of its key; what has no key is never found."""
    keep_apart()
    code, memory, keys = get(env, CODE), get(place, MEMORY), get(get(env, CODE), side + Q_KEY_COUNT)
    put(get(env, FRAME), number, get(get(place, ENTRY_ROW), entry))
    known = key_words(env, memory, keys, get(code, side + Q_KEYS))
    if keys == 0 or known != (np.int64(1) << keys) - 1:
        return
    group = keyed(env, place, side, known)
    ends = group + G_KEY + 1 + keys
    if get(memory, group + G_ROWS) == 0:
        put(memory, ends, np.int64(entry))
    else:
        put(get(place, ENTRY_GROUP), get(memory, ends + 1), np.int64(entry))
    put(memory, ends + 1, np.int64(entry))
    put(memory, group + G_ROWS, get(memory, group + G_ROWS) + 1)


@jit
def link_all(env, place, side, number):
    """Puts all that a side holds behind those of their keys."""
    keep_apart()
    entry = get(_window(env, place, side), S_HEAD)
    while entry >= 0:
        _link(env, place, side, number, entry)
        entry = get(get(place, ENTRY_NEXT), entry)


@jit
def _leave(env, place, side, number):
    """Takes the first entry out of a side's window; returns its row."""
    keep_apart()
    code, memory, keys = get(env, CODE), get(place, MEMORY), get(get(env, CODE), side + Q_KEY_COUNT)
    window = _window(env, place, side)
    entry = get(window, S_HEAD)
    row = get(get(place, ENTRY_ROW), entry)
    put(get(env, FRAME), number, row)
    known = key_words(env, memory, keys, get(code, side + Q_KEYS))
    if keys > 0 and known == (np.int64(1) << keys) - 1:
        group = found(env, place, side, known)
        put(memory, group + G_KEY + 1 + keys, get(get(place, ENTRY_GROUP), entry))
        put(memory, group + G_ROWS, get(memory, group + G_ROWS) - 1)
        if get(memory, group + G_ROWS) == 0:
            drop(place, window, group)
    free_first(place, window)
    return row


@jit
def link_sides(env, place, query):
    """Links what both sides of a join hold, when that was given to them."""
    for number in range(2):
        link_all(env, place, query + J_SIDES + number * J_SIDE_WORDS, number)


# ---- who meets whom


@jit
def _look(env, place, query, state, number, row, sign):
    """An event of one side meets what the other side holds."""
    keep_apart()
    code, frame, side = get(env, CODE), get(env, FRAME), query + J_SIDES + number * J_SIDE_WORDS
    if not get(code, side + J_LOOKS):
        return
    put(state, S_CHUNK, get(state, S_CHUNK) + 1)
    other, keys = query + J_SIDES + (1 - number) * J_SIDE_WORDS, get(code, side + Q_KEY_COUNT)
    following, met = get(place, ENTRY_NEXT if keys == 0 else ENTRY_GROUP), False
    entry = get(_window(env, place, other), S_HEAD)
    if keys > 0:
        put(frame, number, np.int64(row))
        entry = _first(env, place, other, keys, get(code, side + Q_KEYS))
    while entry >= 0:
        put(frame, number, np.int64(row))
        put(frame, 1 - number, get(get(place, ENTRY_ROW), entry))
        if all_hold(env, get(code, query + J_ON), get(code, query + J_ON_COUNT)):
            met = True
            _pair(env, place, query, state, sign)
        entry = get(following, entry)
    if not met and get(code, side + J_OUTER):
        put(frame, number, np.int64(row))
        put(frame, 1 - number, np.int64(NONE))
        _pair(env, place, query, state, sign)


@jit
def _pair(env, place, query, state, sign):
    """The events in the frame come together, or leave each other."""
    keep_apart()
    code, group = get(env, CODE), np.int64(NONE)
    if get(code, query + Q_GROUPED):
        group = group_of(env, place, query)
        apply(env, place, query, group, np.int64(NONE), sign)
        # Where more can be taken away than was added, what is left over stays.
        if get(get(place, MEMORY), group + G_ROWS) == 0 and get(code, query + J_DROPS):
            note_empty(get(place, MEMORY), state, group)
    if get(code, query + (Q_CURRENT if sign == CURRENT else Q_EXPIRED)):
        put_out(env, place, query, state, group, sign)
