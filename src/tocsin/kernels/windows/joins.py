# mypy: disable-error-code="no-untyped-def"
"""Joins of two windows.

If `on` requires equal attributes, they are the *key*, and an event is paired only with events of its key. Otherwise it
is paired with all events of the other side. An event that enters or leaves the window of one side *probes* the other
window: it looks for partners there, in a chunk of its own. An event enters its own window first. If both sides have a
timer at the same time, the left timer runs first.
"""

from __future__ import annotations

import numpy as np

from tocsin.kernels.core import CODE, FRAME, TS, get, jit, never_inline, put, small
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
    IN_SKIP_LIST,
    J_DROPS,
    J_ON,
    J_ON_COUNT,
    J_OUTER,
    J_PROBES,
    J_SIDE_WORDS,
    J_SIDES,
    LENGTH,
    LENGTH_BATCH,
    LEVELS,
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
    S_BATCH,
    S_BATCH_COUNT,
    S_BEGUN,
    S_CHUNK,
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
    append_entry,
    clear_groups,
    emit_row,
    remove_first,
)
from tocsin.kernels.windows.groups import (
    BUCKET_MASK,
    CAPACITY,
    COUNTS,
    ENTRY_GROUP,
    ENTRY_NEXT,
    ENTRY_ROW,
    MEMORY,
    OUT_ROOM,
    STATES,
    apply,
    drop_group,
    find_group,
    find_or_add_group,
    group_of,
    load_key,
    note_empty,
)


@small
def _window(env, table, side):
    """Return the address of the state of a side's window."""
    return get(table, STATES) + 8 * get(get(env, CODE), side + Q_STATE)


@jit
def _due(env, table, side):
    """Return the time at which the next timer of a side is due."""
    code, window = get(env, CODE), _window(env, table, side)
    extent = get(code, side + Q_EXTENT)
    if extent == TIME and get(window, S_HEAD) >= 0:
        return get(get(env, TS), get(get(table, ENTRY_ROW), get(window, S_HEAD))) + get(code, side + Q_SIZE)
    if extent == TIME_BATCH and get(window, S_COUNT) + get(window, S_BATCH_COUNT) > 0:
        return get(window, S_NEXT)
    return NEVER


@jit
def join_due(env, table, query):
    """Return the time at which the next timer of a join is due."""
    never_inline()
    return min(_due(env, table, query + J_SIDES), _due(env, table, query + J_SIDES + J_SIDE_WORDS))


@jit
def join_shortage(env, table, query):
    """Return which capacity does not suffice for one event or timer, or DONE if every capacity suffices."""
    never_inline()
    code, counts = get(env, CODE), get(table, COUNTS)
    probes, rows, words, keys = np.int64(0), np.int64(0), np.int64(0), np.int64(0)
    for k in range(2):
        side, other = query + J_SIDES + k * J_SIDE_WORDS, query + J_SIDES + (1 - k) * J_SIDE_WORDS
        extent, window, facing = get(code, side + Q_EXTENT), _window(env, table, side), _window(env, table, other)
        most = np.int64(2)
        if extent == TIME:
            most += get(window, S_COUNT)
        elif extent not in (NO_WINDOW, LENGTH):
            most += get(window, S_COUNT) + get(window, S_BATCH_COUNT)
        probes += most
        if get(code, side + Q_KEY_COUNT) > 0:
            new = get(window, S_BATCH_COUNT) + 1
            keys += new
            words += new * get(code, side + Q_RECORD)
        rows += most * (get(facing, S_COUNT) + get(facing, S_BATCH_COUNT) + 2)
    grouped, pairs = get(code, query + Q_GROUPED) != 0, rows
    if grouped and get(code, query + Q_KEY_COUNT) == 0:
        rows = probes
    if get(counts, C_ROWS) + rows > get(table, OUT_ROOM):
        return MORE_ROWS
    if get(counts, C_FREE_COUNT) < 2:
        return MORE_ENTRIES
    if grouped:
        groups = rows if get(code, query + Q_KEY_COUNT) > 0 else np.int64(1)
        keys += groups
        words += groups * get(code, query + Q_RECORD)
        call = get(code, query + Q_CALLS)
        for n in range(get(code, query + Q_CALL_COUNT)):
            if get(code, call + n * CALL_WORDS + A_QUEUE) == IN_SKIP_LIST:
                words += pairs * (V_NEXT + LEVELS)
    if get(counts, C_MEMORY) + words > get(table, CAPACITY):
        return MORE_MEMORY
    if get(counts, C_GROUPS) + keys > get(table, BUCKET_MASK):
        return MORE_BUCKETS
    return DONE


@jit
def join_fire(env, table, query, state, due):
    """Run the timers that are due at the time `due`, the left before the right."""
    never_inline()
    for side in range(2):
        if _due(env, table, query + J_SIDES + side * J_SIDE_WORDS) == due:
            _fire(env, table, query, state, side, due)


@jit
def join_arrive(env, table, query, state, row, sides):
    """Process an event on the sides that it belongs to, which are the set bits of `sides`."""
    never_inline()
    for side in range(2):
        if sides >> side & 1:
            _arrive(env, table, query, state, side, row)


@jit
def _arrive(env, table, query, state, number, row):
    """Process an event on side `number`."""
    never_inline()
    code, side = get(env, CODE), query + J_SIDES + number * J_SIDE_WORDS
    window, extent, size = _window(env, table, side), get(code, side + Q_EXTENT), get(code, side + Q_SIZE)
    if extent == NO_WINDOW:
        _probe(env, table, query, state, number, row, CURRENT)
        _probe(env, table, query, state, number, row, EXPIRED)
        if get(code, side + J_PROBES):
            clear_groups(env, table, query, state)
    elif extent in (LENGTH, TIME):
        expired = np.int64(NONE)
        if extent == LENGTH and get(window, S_COUNT) == size:
            expired = _remove_first(env, table, side, number)
        _link(env, table, side, number, append_entry(table, window, S_HEAD, row))
        if expired >= 0:
            _probe(env, table, query, state, number, expired, EXPIRED)
        _probe(env, table, query, state, number, row, CURRENT)
    elif extent == LENGTH_BATCH:
        append_entry(table, window, S_BATCH, row)
        if get(window, S_BATCH_COUNT) == size:
            _rotate_batch(env, table, query, state, number)
    else:
        ts = get(get(env, TS), row)
        if get(window, S_BEGUN) == 0:
            put(window, S_BEGUN, np.int64(1))
            put(window, S_FIRST, ts)
        if get(window, S_COUNT) + get(window, S_BATCH_COUNT) == 0:
            put(window, S_NEXT, ts + size - (ts - get(window, S_FIRST)) % size)
        append_entry(table, window, S_BATCH, row)


@jit
def _fire(env, table, query, state, number, due):
    """Run the timer of side `number`."""
    never_inline()
    code, side = get(env, CODE), query + J_SIDES + number * J_SIDE_WORDS
    window = _window(env, table, side)
    if get(code, side + Q_EXTENT) == TIME_BATCH:
        put(window, S_NEXT, due + get(code, side + Q_SIZE))
        _rotate_batch(env, table, query, state, number)
        return
    while _due(env, table, side) <= due:
        row = _remove_first(env, table, side, number)
        _probe(env, table, query, state, number, row, EXPIRED)


@jit
def _rotate_batch(env, table, query, state, number):
    """Replace the current batch of a side by the next batch."""
    never_inline()
    code, side = get(env, CODE), query + J_SIDES + number * J_SIDE_WORDS
    window = _window(env, table, side)
    while get(window, S_COUNT) > 0:
        row = _remove_first(env, table, side, number)
        _probe(env, table, query, state, number, row, EXPIRED)
    for k in range(3):
        put(window, S_HEAD + k, get(window, S_BATCH + k))
        put(window, S_BATCH + k, np.int64(NONE if k < 2 else 0))
    if get(window, S_COUNT) == 0:
        return
    link_all(env, table, side, number)
    if get(code, side + J_PROBES):
        clear_groups(env, table, query, state)
    entry = get(window, S_HEAD)
    while entry >= 0:
        _probe(env, table, query, state, number, get(get(table, ENTRY_ROW), entry), CURRENT)
        entry = get(get(table, ENTRY_NEXT), entry)


# ---- entries of one key, in order of insertion


@jit
def _first_partner(env, table, side, keys, slots):
    """Return the first entry of a side with the key of the event in the frame, or NONE."""
    never_inline()
    memory = get(table, MEMORY)
    valid = load_key(env, memory, keys, slots)
    if valid != (np.int64(1) << keys) - 1:
        return np.int64(NONE)
    group = find_group(env, table, side, valid)
    return get(memory, group + G_KEY + 1 + keys) if group >= 0 else np.int64(NONE)


@jit
def _link(env, table, side, number, entry):
    """Append an entry to the entries of the same key.

    An entry with a null in its key is not linked, so it is never found.
    """
    never_inline()
    code, memory, keys = get(env, CODE), get(table, MEMORY), get(get(env, CODE), side + Q_KEY_COUNT)
    put(get(env, FRAME), number, get(get(table, ENTRY_ROW), entry))
    valid = load_key(env, memory, keys, get(code, side + Q_KEYS))
    if keys == 0 or valid != (np.int64(1) << keys) - 1:
        return
    group = find_or_add_group(env, table, side, valid)
    ends = group + G_KEY + 1 + keys
    if get(memory, group + G_ROWS) == 0:
        put(memory, ends, np.int64(entry))
    else:
        put(get(table, ENTRY_GROUP), get(memory, ends + 1), np.int64(entry))
    put(memory, ends + 1, np.int64(entry))
    put(memory, group + G_ROWS, get(memory, group + G_ROWS) + 1)


@jit
def link_all(env, table, side, number):
    """Link all entries of a side by key."""
    never_inline()
    entry = get(_window(env, table, side), S_HEAD)
    while entry >= 0:
        _link(env, table, side, number, entry)
        entry = get(get(table, ENTRY_NEXT), entry)


@jit
def _remove_first(env, table, side, number):
    """Remove the first entry of a side's window and return the row of that entry."""
    never_inline()
    code, memory, keys = get(env, CODE), get(table, MEMORY), get(get(env, CODE), side + Q_KEY_COUNT)
    window = _window(env, table, side)
    entry = get(window, S_HEAD)
    row = get(get(table, ENTRY_ROW), entry)
    put(get(env, FRAME), number, row)
    valid = load_key(env, memory, keys, get(code, side + Q_KEYS))
    if keys > 0 and valid == (np.int64(1) << keys) - 1:
        group = find_group(env, table, side, valid)
        put(memory, group + G_KEY + 1 + keys, get(get(table, ENTRY_GROUP), entry))
        put(memory, group + G_ROWS, get(memory, group + G_ROWS) - 1)
        if get(memory, group + G_ROWS) == 0:
            drop_group(table, window, group)
    remove_first(table, window)
    return row


@jit
def link_sides(env, table, query):
    """Link the entries of both sides of a join by key, after a restore."""
    for number in range(2):
        link_all(env, table, query + J_SIDES + number * J_SIDE_WORDS, number)


# ---- pairs


@jit
def _probe(env, table, query, state, number, row, sign):
    """Pair an event of one side with the entries of the other side."""
    never_inline()
    code, frame, side = get(env, CODE), get(env, FRAME), query + J_SIDES + number * J_SIDE_WORDS
    if not get(code, side + J_PROBES):
        return
    put(state, S_CHUNK, get(state, S_CHUNK) + 1)
    other, keys = query + J_SIDES + (1 - number) * J_SIDE_WORDS, get(code, side + Q_KEY_COUNT)
    following, matched = get(table, ENTRY_NEXT if keys == 0 else ENTRY_GROUP), False
    entry = get(_window(env, table, other), S_HEAD)
    if keys > 0:
        put(frame, number, np.int64(row))
        entry = _first_partner(env, table, other, keys, get(code, side + Q_KEYS))
    while entry >= 0:
        put(frame, number, np.int64(row))
        put(frame, 1 - number, get(get(table, ENTRY_ROW), entry))
        if all_hold(env, get(code, query + J_ON), get(code, query + J_ON_COUNT)):
            matched = True
            _pair(env, table, query, state, sign)
        entry = get(following, entry)
    if not matched and get(code, side + J_OUTER):
        put(frame, number, np.int64(row))
        put(frame, 1 - number, np.int64(NONE))
        _pair(env, table, query, state, sign)


@jit
def _pair(env, table, query, state, sign):
    """Add the pair in the frame to its group, or subtract it, and emit its row."""
    never_inline()
    code, group = get(env, CODE), np.int64(NONE)
    if get(code, query + Q_GROUPED):
        group = group_of(env, table, query)
        apply(env, table, query, group, np.int64(NONE), sign)
        # If more can be subtracted than was added, the group must remember the balance.
        if get(get(table, MEMORY), group + G_ROWS) == 0 and get(code, query + J_DROPS):
            note_empty(get(table, MEMORY), state, group)
    if get(code, query + (Q_CURRENT if sign == CURRENT else Q_EXPIRED)):
        emit_row(env, table, query, state, group, sign)
