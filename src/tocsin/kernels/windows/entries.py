# mypy: disable-error-code="no-untyped-def"
"""Windows of events. Events that enter and leave a window change groups and emit rows.

A window is a list of *entries*, each of which refers to a row of the store. A *chunk* is the set of effects of one
event or timer. In a chunk, events that leave are subtracted from their groups, a new batch resets all groups, and
events that enter are added. With an aggregate or `group by`, a chunk emits only the last row of each group. A timer
runs at its exact time, before the events of that time.
"""

from __future__ import annotations

import numpy as np

from tocsin.kernels.core import (
    CODE,
    COMPUTED,
    COMPUTED_VALID,
    FRAME,
    STACK,
    TS,
    get,
    get_byte,
    jit,
    never_inline,
    put,
    put_byte,
    small,
)
from tocsin.kernels.expressions import all_hold, evaluate
from tocsin.kernels.identity import HIGH_SEED, LOW_SEED, fold
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
    S_BATCH,
    S_BATCH_COUNT,
    S_BEGUN,
    S_CHUNK,
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
    CAPACITY,
    COUNTS,
    ENTRY_GROUP,
    ENTRY_NEXT,
    ENTRY_ROW,
    MEMORY,
    NOT_EMPTY,
    OUT_EXPIRED,
    OUT_ID_HIGH,
    OUT_ID_LOW,
    OUT_ROOM,
    OUT_RULE,
    OUT_SEQ,
    OUT_TS,
    OUT_VALID,
    OUT_VALUES,
    RULE_WORDS,
    STATES,
    apply,
    clear_group,
    compute_aggregates,
    drop_group,
    group_of,
    note_empty,
)

DONE, MORE_ROWS, MORE_ENTRIES, MORE_MEMORY, MORE_BUCKETS, TOO_MANY = range(6)
"""The reasons why a run of queries stopped: all are done, some capacity is too small, or there are too many runs."""
NEVER = np.int64(2**63 - 1)
CURRENT, EXPIRED = np.int64(1), np.int64(-1)
"""The sign of an event in a chunk. These are typed words, not literals, so that the compiler does not specialise each
function twice."""


@small
def window_shortage(env, table, query, state):
    """Return which capacity does not suffice for one chunk, or DONE if every capacity suffices."""
    code, counts = get(env, CODE), get(table, COUNTS)
    most = get(state, S_COUNT) + get(state, S_BATCH_COUNT) + 1
    if get(code, query + Q_EXTENT) in (NO_WINDOW, LENGTH):
        most = np.int64(2)
    groups = most if get(code, query + Q_KEY_COUNT) > 0 else np.int64(1)
    rows = groups if get(code, query + Q_GROUPED) else most
    if get(counts, C_ROWS) + rows > get(table, OUT_ROOM):
        return MORE_ROWS
    if get(counts, C_FREE_COUNT) < 1:
        return MORE_ENTRIES
    if get(code, query + Q_GROUPED):
        if get(code, query + Q_EXTENT) == TIME:
            groups = np.int64(1)
        if get(counts, C_MEMORY) + groups * get(code, query + Q_RECORD) > get(table, CAPACITY):
            return MORE_MEMORY
        if get(counts, C_GROUPS) + groups > get(table, BUCKET_MASK):
            return MORE_BUCKETS
    return DONE


@small
def window_due(env, table, query, state):
    """Return the time at which the query's next timer is due."""
    extent = get(get(env, CODE), query + Q_EXTENT)
    if extent == TIME:
        head = get(state, S_HEAD)
        if head < 0:
            return NEVER
        return get(get(env, TS), get(get(table, ENTRY_ROW), head)) + get(get(env, CODE), query + Q_SIZE)
    if extent == TIME_BATCH and get(state, S_COUNT) + get(state, S_BATCH_COUNT) > 0:
        return get(state, S_NEXT)
    return NEVER


@jit
def window_arrive(env, table, query, state, row):
    """Process the event `row` in a window."""
    never_inline()
    code = get(env, CODE)
    extent, size = get(code, query + Q_EXTENT), get(code, query + Q_SIZE)
    if extent == NO_WINDOW:
        _add_event(env, table, query, state, np.int64(NONE), row)
    elif extent in (LENGTH, TIME):
        if extent == LENGTH and get(state, S_COUNT) == size:
            _expire_first(env, table, query, state)
        entry = append_entry(table, state, S_HEAD, row)
        _add_event(env, table, query, state, entry, row)
    elif extent == LENGTH_BATCH:
        append_entry(table, state, S_BATCH, row)
        if get(state, S_BATCH_COUNT) == size:
            _rotate_batch(env, table, query, state)
    else:
        ts = get(get(env, TS), row)
        if get(state, S_BEGUN) == 0:
            put(state, S_BEGUN, np.int64(1))
            put(state, S_FIRST, ts)
        if get(state, S_COUNT) + get(state, S_BATCH_COUNT) == 0:
            put(state, S_NEXT, ts + size - (ts - get(state, S_FIRST)) % size)
        append_entry(table, state, S_BATCH, row)


@jit
def window_fire(env, table, query, state, due):
    """Run the timer of a window that is due at the time `due`."""
    never_inline()
    code = get(env, CODE)
    if get(code, query + Q_EXTENT) == TIME:
        while window_due(env, table, query, state) <= due:
            _expire_first(env, table, query, state)
    else:
        put(state, S_NEXT, due + get(code, query + Q_SIZE))
        _rotate_batch(env, table, query, state)


@jit
def _rotate_batch(env, table, query, state):
    """Replace the current batch by the next batch."""
    never_inline()
    code, memory = get(env, CODE), get(table, MEMORY)
    while get(state, S_COUNT) > 0:
        _expire_first(env, table, query, state)
    for k in range(3):
        put(state, S_HEAD + k, get(state, S_BATCH + k))
        put(state, S_BATCH + k, np.int64(NONE if k < 2 else 0))
    if get(state, S_COUNT) == 0:
        return
    clear_groups(env, table, query, state)
    rows, following = get(table, ENTRY_ROW), get(table, ENTRY_NEXT)
    # Only the last row of each group is emitted. Without `having`, the other rows need not be computed.
    last_only = get(code, query + Q_GROUPED) != 0 and get(code, query + Q_HAVING_COUNT) == 0
    entry = get(state, S_HEAD)
    while entry >= 0:
        row = get(rows, entry)
        if last_only:
            group = _admit(env, table, query, entry, row)
            if group >= 0:
                apply(env, table, query, group, entry, CURRENT)
                put(memory, group + G_LAST, entry)
                if get(code, query + Q_CURRENT):
                    _row_of(table, state, group)
        else:
            _add_event(env, table, query, state, entry, row)
        entry = get(following, entry)
    if last_only and get(code, query + Q_CURRENT):
        entry = get(state, S_HEAD)
        while entry >= 0:
            group = get(get(table, ENTRY_GROUP), entry)
            if group >= 0 and get(memory, group + G_LAST) == entry:
                put(get(env, FRAME), 0, get(rows, entry))
                _compute_row(env, table, query, group, CURRENT, get(memory, group + G_OUT))
            entry = get(following, entry)
    if not get(code, query + Q_EXPIRED):  # the batch is not needed any more
        while get(state, S_COUNT) > 0:
            remove_first(table, state)
        clear_groups(env, table, query, state)


@jit
def clear_groups(env, table, query, state):
    """Reset all groups of a query."""
    never_inline()
    memory = get(table, MEMORY)
    group = get(state, S_GROUPS)
    while group >= 0:
        clear_group(env, table, query, group)
        note_empty(memory, state, group)
        group = get(memory, group + G_NEXT)


@small
def append_entry(table, state, which, row):
    """Append a row to the window or to the next batch, as `which` says, and return the new entry."""
    counts, following = get(table, COUNTS), get(table, ENTRY_NEXT)
    entry = get(counts, C_FREE)
    put(counts, C_FREE, get(following, entry))
    put(counts, C_FREE_COUNT, get(counts, C_FREE_COUNT) - 1)
    put(get(table, ENTRY_ROW), entry, np.int64(row))
    put(get(table, ENTRY_GROUP), entry, np.int64(NONE))
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
def remove_first(table, state):
    """Remove the first entry of a window."""
    counts, following = get(table, COUNTS), get(table, ENTRY_NEXT)
    entry = get(state, S_HEAD)
    put(state, S_HEAD, get(following, entry))
    if get(following, entry) < 0:
        put(state, S_TAIL, np.int64(NONE))
    put(state, S_COUNT, get(state, S_COUNT) - 1)
    put(get(table, ENTRY_ROW), entry, np.int64(NONE))
    put(following, entry, get(counts, C_FREE))
    put(counts, C_FREE, entry)
    put(counts, C_FREE_COUNT, get(counts, C_FREE_COUNT) + 1)


# ---- output


@small
def begin_chunk(table, state):
    """Begin a chunk. Return the number of rows emitted before."""
    put(state, S_CHUNK, get(state, S_CHUNK) + 1)
    put(state, S_EMPTY, np.int64(NONE))
    return get(get(table, COUNTS), C_ROWS)


@small
def _admit(env, table, query, entry, row):
    """Return the group of an event that enters the window, or NONE if the event fails the tests after the window."""
    code = get(env, CODE)
    put(get(env, FRAME), 0, np.int64(row))
    if not all_hold(env, get(code, query + Q_AFTER), get(code, query + Q_AFTER_COUNT)):
        return np.int64(NONE)
    group = group_of(env, table, query)
    if entry >= 0:
        put(get(table, ENTRY_GROUP), entry, group)
    return group


@jit
def _add_event(env, table, query, state, entry, row):
    """Add an event that enters the window to its group, and emit its row."""
    never_inline()
    code = get(env, CODE)
    if get(code, query + Q_GROUPED):
        group = _admit(env, table, query, entry, row)
        if group < 0:
            return
        apply(env, table, query, group, entry, CURRENT)
        if get(code, query + Q_CURRENT):
            emit_row(env, table, query, state, group, CURRENT)
        return
    put(get(env, FRAME), 0, np.int64(row))
    if get(code, query + Q_CURRENT) and all_hold(env, get(code, query + Q_AFTER), get(code, query + Q_AFTER_COUNT)):
        emit_row(env, table, query, state, np.int64(NONE), CURRENT)


@jit
def _expire_first(env, table, query, state):
    """Subtract the first event of the window from its group, emit its row and remove it."""
    never_inline()
    code, memory = get(env, CODE), get(table, MEMORY)
    entry = get(state, S_HEAD)
    put(get(env, FRAME), 0, get(get(table, ENTRY_ROW), entry))
    if get(code, query + Q_GROUPED):
        group = get(get(table, ENTRY_GROUP), entry)
        if group >= 0:
            apply(env, table, query, group, entry, EXPIRED)
            if get(memory, group + G_ROWS) == 0:
                note_empty(memory, state, group)
            if get(code, query + Q_EXPIRED):
                emit_row(env, table, query, state, group, EXPIRED)
    elif get(code, query + Q_EXPIRED) and all_hold(env, get(code, query + Q_AFTER), get(code, query + Q_AFTER_COUNT)):
        emit_row(env, table, query, state, np.int64(NONE), EXPIRED)
    remove_first(table, state)


@small
def _row_of(table, state, group):
    """Return the output row of a group in the current chunk, which is the same for all events of the group."""
    memory, counts = get(table, MEMORY), get(table, COUNTS)
    if group >= 0 and get(memory, group + G_CHUNK) == get(state, S_CHUNK):
        return get(memory, group + G_OUT)
    row = get(counts, C_ROWS)
    put(counts, C_ROWS, row + 1)
    if group >= 0:
        put(memory, group + G_CHUNK, get(state, S_CHUNK))
        put(memory, group + G_OUT, row)
    return row


@jit
def emit_row(env, table, query, state, group, sign):
    """Emit the row of the event in the frame, if the row meets `having`."""
    never_inline()
    code, room = get(env, CODE), get(table, OUT_ROOM)
    if get(code, query + Q_HAVING_COUNT) == 0:
        _compute_row(env, table, query, group, sign, _row_of(table, state, group))
        return
    # `having` needs the values of a row before it is emitted. They are computed in the last row, which is reserved.
    _compute_row(env, table, query, group, sign, room)
    calls = get(code, query + Q_CALL_COUNT)
    for k in range(get(code, query + Q_OUTPUT_COUNT)):
        put(get(env, COMPUTED), calls + k, get(get(table, OUT_VALUES), k * (room + 1) + room))
        put_byte(get(env, COMPUTED_VALID), calls + k, get_byte(get(table, OUT_VALID), k * (room + 1) + room))
    if all_hold(env, get(code, query + Q_HAVING), get(code, query + Q_HAVING_COUNT)):
        row = _row_of(table, state, group)
        for k in range(get(code, query + Q_OUTPUT_COUNT)):
            put(get(table, OUT_VALUES), k * (room + 1) + row, get(get(env, COMPUTED), calls + k))
            put_byte(get(table, OUT_VALID), k * (room + 1) + row, get_byte(get(env, COMPUTED_VALID), calls + k))
        put_byte(get(table, OUT_EXPIRED), row, np.uint8(sign == EXPIRED))


@jit
def _compute_row(env, table, query, group, sign, row):
    """Compute the values of an output row."""
    code, room = get(env, CODE), get(table, OUT_ROOM)
    if group >= 0:
        compute_aggregates(env, table, query, group)
    programs = get(code, query + Q_OUTPUTS)
    for k in range(get(code, query + Q_OUTPUT_COUNT)):
        valid = evaluate(env, get(code, programs + k))
        put(get(table, OUT_VALUES), k * (room + 1) + row, get(get(env, STACK), 0))
        put_byte(get(table, OUT_VALID), k * (room + 1) + row, np.uint8(valid))
    put_byte(get(table, OUT_EXPIRED), row, np.uint8(sign == EXPIRED))


@jit
def end_chunks(env, table, query, state, begin, ts, seq, high, low):
    """End a chunk. Set the times and ids of its rows, and drop groups without events."""
    never_inline()
    memory, rule = get(table, MEMORY), get(get(env, CODE), query + Q_RULE)
    end = get(get(table, COUNTS), C_ROWS)
    if end > begin:
        a, b = HIGH_SEED, LOW_SEED
        a, b = fold(a, b, np.uint64(get(get(table, RULE_WORDS), 2 * rule)))
        a, b = fold(a, b, np.uint64(get(get(table, RULE_WORDS), 2 * rule + 1)))
        a, b = fold(a, b, np.uint64(high))
        a, b = fold(a, b, np.uint64(low))
        for row in range(begin, end):
            own = b + np.uint64(row - begin)
            put(get(table, OUT_ID_HIGH), row, np.int64(a + np.uint64(1) if own < b else a))
            put(get(table, OUT_ID_LOW), row, np.int64(own))
            put(get(table, OUT_RULE), row, rule)
            put(get(table, OUT_TS), row, np.int64(ts))
            put(get(table, OUT_SEQ), row, np.int64(seq))
    group = get(state, S_EMPTY)
    while group >= 0:
        following = get(memory, group + G_EMPTY)
        put(memory, group + G_EMPTY, np.int64(NOT_EMPTY))
        if get(memory, group + G_ROWS) == 0:
            drop_group(table, state, group)
        group = following
    put(state, S_EMPTY, np.int64(NONE))


@jit
def timer_words(due):
    """Return the hash of the text `timer …` with the time `due`."""
    never_inline()
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
    a, b = HIGH_SEED, LOW_SEED
    for at in range(0, size, 8):
        word = np.uint64(0)
        for i in range(at, min(at + 8, size)):
            word |= np.uint64(text[i]) << np.uint64(8 * (i - at))
        a, b = fold(a, b, word)
    return fold(a, b, np.uint64(size))


@jit
def restore_window(env, table, query, at, grouped, rows, batch):
    """Restore the window whose state is at `at`, and the groups of its events. There must be room for all of them."""
    code = get(env, CODE)
    state = get(table, STATES) + 8 * at
    for n in range(len(rows)):
        entry = append_entry(table, state, S_HEAD, rows[n])
        if grouped and get(code, query + Q_GROUPED):
            group = _admit(env, table, query, entry, rows[n])
            if group >= 0:
                apply(env, table, query, group, entry, CURRENT)
    for n in range(len(batch)):
        append_entry(table, state, S_BATCH, batch[n])


@jit
def list_rows(following, row, first, count):
    """Return the rows of the `count` entries of a list that begins with `first`."""
    rows = np.empty(count, np.int64)
    entry = first
    for n in range(count):
        rows[n] = row[entry]
        entry = following[entry]
    return rows
