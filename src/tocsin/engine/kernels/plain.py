# mypy: disable-error-code="no-untyped-def"
"""How do the commonest queries run, by the thousand? Attributes of events that pass a filter, or aggregates of them
over the last n events or over n at a time, of which only the new rows come out: no groups, no tests behind the window,
no timers.

Such a window is a ring in the common memory. An entry is the row of the store, with a bit for each aggregate that says
whether it has a value, and, where events leave one by one, the values themselves, which are not looked up again.

    row and bits  value of the first aggregate  value of the second  …

Sums are those of `sums`. For a least or greatest value the ring is cut in two: of the entries up to the cut the values
are replaced, once, by the least of all from there to the cut, and behind it the least so far is kept. So the least of
all is that of the first entry or that one.
"""

from __future__ import annotations

import numpy as np

from tocsin.engine.kernels.groups import (
    COUNTS,
    MEMORY,
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
    STORE_FIRST,
    STORE_SECOND,
    TAKEN,
)
from tocsin.engine.kernels.hashing import FIRST_SEED, SECOND_SEED, fold
from tocsin.engine.kernels.layout import (
    A_ARGUMENT,
    A_AT,
    A_DOUBLE,
    A_FUNCTION,
    AVG,
    C_MEMORY,
    C_ROWS,
    CALL_WORDS,
    COUNT,
    LENGTH,
    LENGTH_BATCH,
    MAX,
    MIN,
    NO_WINDOW,
    P_BLOCK,
    P_COUNT,
    P_CUT,
    P_HEAD,
    P_RECORD,
    P_ROOM,
    PLAIN_CALLS_MAX,
    Q_CALL_COUNT,
    Q_CALLS,
    Q_EXTENT,
    Q_OUTPUT_COUNT,
    Q_OUTPUTS,
    Q_RECORD,
    Q_RULE,
    Q_SINCE,
    Q_SIZE,
    Q_STATE,
    SUM,
)
from tocsin.engine.kernels.memory import (
    CODE,
    PRESENT,
    SEQ,
    STRIDE,
    TS,
    WORDS,
    get,
    get_byte,
    jit,
    keep_apart,
    put,
    put_byte,
    put_double,
    small,
)
from tocsin.engine.kernels.sums import DOUBLE_EXPONENT, add_value, clear_sum, sum_double, sum_long
from tocsin.engine.kernels.values import beats

DONE, MORE_ROWS, MORE_MEMORY = 0, 1, 3
"""Why a run stopped, as in `windows`."""
ROW_BITS = 48
_ROW = np.int64((1 << ROW_BITS) - 1)
_FIRST_ROOM = 8


def words_at_most(entries: int) -> int:
    """How many words the first ring for so many entries can need."""
    return max(_FIRST_ROOM, entries) * (1 + PLAIN_CALLS_MAX)


@jit
def plain_run(env, place, query, state, arrivals, at, end):
    """Lets a query see arrivals from `at` on. Returns where it stopped, and why."""
    keep_apart()
    code, counts = get(env, CODE), get(place, COUNTS)
    since, size = get(code, query + Q_SINCE), get(code, query + Q_SIZE)
    extent, width = get(code, query + Q_EXTENT), entry_words(env, query)
    ts = get(env, TS)
    while at < end:
        row = arrivals[at]
        if get(ts, row) >= since:
            if get(counts, C_ROWS) >= get(place, OUT_ROOM):
                return at, MORE_ROWS
            if extent != NO_WINDOW:
                if not _has_room(env, place, query, state, width, np.int64(1)):
                    return at, MORE_MEMORY
                if extent == LENGTH and get(state, P_COUNT) == size:
                    _leave(env, place, query, state, width)
                _come(env, place, query, state, width, row)
            if extent != LENGTH_BATCH or get(state, P_COUNT) == size:
                _put_out(env, place, query, state, width, row)
                if extent == LENGTH_BATCH:
                    _begin(env, place, query, state)
        at += 1
    return at, DONE


@small
def entry_words(env, query):
    """How long an entry is."""
    code = get(env, CODE)
    return np.int64(1) + (get(code, query + Q_CALL_COUNT) if get(code, query + Q_EXTENT) == LENGTH else np.int64(0))


@jit
def _has_room(env, place, query, state, width, more):
    """Makes room for so many entries more, if there is memory for it."""
    code, memory, counts = get(env, CODE), get(place, MEMORY), get(place, COUNTS)
    size, room, count = get(code, query + Q_SIZE), get(state, P_ROOM), get(state, P_COUNT)
    if count + more <= room or room == size:
        return True
    wanted = min(size, max(np.int64(_FIRST_ROOM), 2 * room, count + more))
    record = get(code, query + Q_RECORD) if get(state, P_RECORD) < 0 else np.int64(0)
    free = get(counts, C_MEMORY)
    if free + record + wanted * width > get(place, TAKEN):
        return False
    put(counts, C_MEMORY, free + record + wanted * width)
    if record:
        put(state, P_RECORD, free)
        _begin(env, place, query, state)
    old, head, block = get(state, P_BLOCK), get(state, P_HEAD), free + record
    for n in range(count):
        for k in range(width):
            put(memory, block + n * width + k, get(memory, old + (head + n) % room * width + k))
    put(state, P_BLOCK, block)
    put(state, P_HEAD, np.int64(0))
    put(state, P_ROOM, wanted)
    return True


@jit
def _begin(env, place, query, state):
    """Empties the window."""
    code, memory, record = get(env, CODE), get(place, MEMORY), get(state, P_RECORD)
    put(state, P_HEAD, np.int64(0))
    put(state, P_COUNT, np.int64(0))
    put(state, P_CUT, np.int64(0))
    call = get(code, query + Q_CALLS)
    for _ in range(get(code, query + Q_CALL_COUNT)):
        function, held = get(code, call + A_FUNCTION), record + get(code, call + A_AT)
        if function != COUNT:
            put(memory, held, np.int64(0))
        if function in (SUM, AVG):
            clear_sum(memory, held + 1)
        call += CALL_WORDS


@jit
def _come(env, place, query, state, width, row):
    """An event comes. There is room for it."""
    code, memory, record = get(env, CODE), get(place, MEMORY), get(state, P_RECORD)
    count, room = get(state, P_COUNT), get(state, P_ROOM)
    spot = get(state, P_HEAD) + count
    entry = get(state, P_BLOCK) + (spot - room if spot >= room else spot) * width
    call, known = get(code, query + Q_CALLS), np.int64(0)
    for n in range(get(code, query + Q_CALL_COUNT)):
        function = get(code, call + A_FUNCTION)
        if function != COUNT:
            cell = get(code, call + A_ARGUMENT) * get(env, STRIDE) + row
            if get_byte(get(env, PRESENT), cell):
                word, double = get(get(env, WORDS), cell), get(code, call + A_DOUBLE)
                held = record + get(code, call + A_AT)
                known |= np.int64(1) << n
                if width > 1:
                    put(memory, entry + 1 + n, word)
                if function in (SUM, AVG):
                    put(memory, held, get(memory, held) + 1)
                    add_value(memory, held + 1, word, double, np.int64(1))
                elif get(memory, held) == 0 or beats(word, get(memory, held + 1), double, function == MIN):
                    put(memory, held, np.int64(1))
                    put(memory, held + 1, word)
        call += CALL_WORDS
    put(memory, entry, np.int64(row) | (known << ROW_BITS))
    put(state, P_COUNT, count + 1)


@jit
def _leave(env, place, query, state, width):
    """The first event leaves."""
    code, memory, record = get(env, CODE), get(place, MEMORY), get(state, P_RECORD)
    count, head, room = get(state, P_COUNT), get(state, P_HEAD), get(state, P_ROOM)
    if get(state, P_CUT) == 0:
        _cut(env, place, query, state, width)
    entry = get(state, P_BLOCK) + head * width
    known, call = get(memory, entry) >> ROW_BITS, get(code, query + Q_CALLS)
    for n in range(get(code, query + Q_CALL_COUNT)):
        if get(code, call + A_FUNCTION) in (SUM, AVG) and known >> n & 1:
            held = record + get(code, call + A_AT)
            put(memory, held, get(memory, held) - 1)
            add_value(memory, held + 1, get(memory, entry + 1 + n), get(code, call + A_DOUBLE), np.int64(-1))
        call += CALL_WORDS
    put(state, P_HEAD, np.int64(0) if head + 1 == room else head + 1)
    put(state, P_COUNT, count - 1)
    put(state, P_CUT, get(state, P_CUT) - 1)


@jit
def _cut(env, place, query, state, width):
    """Puts the cut behind the last entry."""
    keep_apart()
    code, memory, record = get(env, CODE), get(place, MEMORY), get(state, P_RECORD)
    count, head, room, block = get(state, P_COUNT), get(state, P_HEAD), get(state, P_ROOM), get(state, P_BLOCK)
    put(state, P_CUT, count)
    call = get(code, query + Q_CALLS)
    for n in range(get(code, query + Q_CALL_COUNT)):
        function, double = get(code, call + A_FUNCTION), get(code, call + A_DOUBLE)
        held = record + get(code, call + A_AT)
        call += CALL_WORDS
        if function not in (MIN, MAX):
            continue
        put(memory, held, np.int64(0))
        there, best = False, np.int64(0)
        for k in range(count - 1, -1, -1):
            entry = block + (head + k) % room * width
            word, value = get(memory, entry), get(memory, entry + 1 + n)
            if word >> (ROW_BITS + n) & 1 and (not there or beats(value, best, double, function == MIN)):
                there, best = True, value
            if there:
                put(memory, entry, word | np.int64(1) << (ROW_BITS + n))
                put(memory, entry + 1 + n, best)


@jit
def _put_out(env, place, query, state, width, row):
    """Puts out a row for the event that came."""
    code, counts = get(env, CODE), get(place, COUNTS)
    out, room = get(counts, C_ROWS), get(place, OUT_ROOM) + 1
    put(counts, C_ROWS, out + 1)
    outputs = get(code, query + Q_OUTPUTS)
    for k in range(get(code, query + Q_OUTPUT_COUNT)):
        what = get(code, outputs + k)
        to = k * room + out
        if what >= 0:  # an attribute of the event
            cell = what * get(env, STRIDE) + row
            put(get(place, OUT_WORDS), to, get(get(env, WORDS), cell))
            put_byte(get(place, OUT_KNOWN), to, get_byte(get(env, PRESENT), cell))
        else:
            _aggregate(env, place, query, state, width, -what - 1, to)
    put_byte(get(place, OUT_EXPIRED), out, np.uint8(0))
    rule = get(code, query + Q_RULE)
    a, b = fold(FIRST_SEED, SECOND_SEED, np.uint64(get(get(place, RULE_WORDS), 2 * rule)))
    a, b = fold(a, b, np.uint64(get(get(place, RULE_WORDS), 2 * rule + 1)))
    a, b = fold(a, b, np.uint64(get(get(place, STORE_FIRST), row)))
    a, b = fold(a, b, np.uint64(get(get(place, STORE_SECOND), row)))
    put(get(place, OUT_FIRST), out, np.int64(a))
    put(get(place, OUT_SECOND), out, np.int64(b))
    put(get(place, OUT_RULE), out, rule)
    put(get(place, OUT_TS), out, get(get(env, TS), row))
    put(get(place, OUT_SEQ), out, get(get(env, SEQ), row))


@jit
def _aggregate(env, place, query, state, width, n, to):
    """Writes the value of an aggregate to a place of the rows that come out."""
    code, memory = get(env, CODE), get(place, MEMORY)
    words, knowns = get(place, OUT_WORDS), get(place, OUT_KNOWN)
    call = get(code, query + Q_CALLS) + n * CALL_WORDS
    function, double = get(code, call + A_FUNCTION), get(code, call + A_DOUBLE)
    held = get(state, P_RECORD) + get(code, call + A_AT)
    if function == COUNT:
        put(words, to, get(state, P_COUNT))
        put_byte(knowns, to, np.uint8(1))
        return
    if function in (MIN, MAX):
        there, best = get(memory, held) != 0, get(memory, held + 1)
        if width > 1 and get(state, P_CUT) > 0:
            entry = get(state, P_BLOCK) + get(state, P_HEAD) * width
            if get(memory, entry) >> (ROW_BITS + n) & 1:
                first = get(memory, entry + 1 + n)
                if not there or beats(first, best, double, function == MIN):
                    there, best = True, first
        put(words, to, best)
        put_byte(knowns, to, np.uint8(there))
        return
    number = get(memory, held)
    if number == 0:
        put(words, to, np.int64(0))
        put_byte(knowns, to, np.uint8(0))
        return
    if function == SUM and not double:
        total, within = sum_long(memory, held + 1)
        put(words, to, total)
        put_byte(knowns, to, np.uint8(within))
        return
    value = sum_double(memory, held + 1, np.int64(DOUBLE_EXPONENT if double else 0))
    if function == AVG:
        value /= number
    put_double(words, to, value + 0.0)
    put_byte(knowns, to, np.uint8(np.isfinite(value)))


# ---- what is kept


@jit
def plain_restore(env, place, query, rows):
    """Gives a window the events that it held. There is memory for them."""
    state = get(place, STATES) + 8 * get(get(env, CODE), query + Q_STATE)
    width = entry_words(env, query)
    if _has_room(env, place, query, state, width, np.int64(len(rows))):
        for n in range(len(rows)):
            _come(env, place, query, state, width, rows[n])


@jit
def plain_rows(env, place, query, rows, renumbered):
    """The rows that a window holds, written to `rows`; they get other numbers, if there are any. Returns how many."""
    memory = get(place, MEMORY)
    state = get(place, STATES) + 8 * get(get(env, CODE), query + Q_STATE)
    width, head, count, room = entry_words(env, query), get(state, P_HEAD), get(state, P_COUNT), get(state, P_ROOM)
    for n in range(count):
        entry = get(state, P_BLOCK) + (head + n) % room * width
        word = get(memory, entry)
        if len(renumbered):
            word = (word & ~_ROW) | renumbered[word & _ROW]
            put(memory, entry, word)
        if len(rows):
            rows[n] = word & _ROW
    return count


@jit
def plain_all(env, place, queries, rows, renumbered):
    """The rows that the windows of several queries hold, one after another; see `plain_rows`. Returns how many."""
    total = np.int64(0)
    for query in queries:
        total += plain_rows(env, place, query, rows[total:], renumbered)
    return total
