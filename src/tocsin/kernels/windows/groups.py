# mypy: disable-error-code="no-untyped-def"
"""What do a query's aggregates hold, for each group? Records in one memory, found by a hash of the query and the key.

An event that comes is added to the record of its group, one that leaves is taken away again, both without looking at
the others: sums are exact (`sums`), and for the least and greatest value there is a queue through the entries of the
window, of those values that can still become it when others have left. That is right since a window is left in the
order in which it was entered. A group that has no events is dropped when its chunk is over.

All memory is reached by address; `place` is the table of addresses, see `windows`.
"""

from __future__ import annotations

import math

import numpy as np

from tocsin.kernels.core import (
    CODE,
    COMPUTED,
    COMPUTED_KNOWN,
    FRAME,
    PRESENT,
    SEQ,
    STACK,
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
from tocsin.kernels.exact_sums import (
    DOUBLE_EXPONENT,
    LIMBS_DOUBLE,
    LIMBS_DOUBLE_SQUARES,
    LIMBS_LONG,
    LIMBS_LONG_SQUARES,
    add_square,
    add_value,
    clear_sum,
    clear_wide,
    sum_double,
    sum_long,
    variance,
)
from tocsin.kernels.expressions import evaluate
from tocsin.kernels.identity import mix
from tocsin.kernels.layout import (
    A_ARGUMENT,
    A_AT,
    A_DOUBLE,
    A_FUNCTION,
    A_QUEUE,
    ARGUMENT_TS,
    AVG,
    C_GROUPS,
    C_MEMORY,
    CALL_WORDS,
    COUNT,
    G_BEFORE,
    G_CHAIN,
    G_CHUNK,
    G_EMPTY,
    G_HASH,
    G_KEY,
    G_NEXT,
    G_QUERY,
    G_ROWS,
    IN_LANES,
    LANES,
    MAX,
    MIN,
    NONE,
    Q_CALL_COUNT,
    Q_CALLS,
    Q_KEY_COUNT,
    Q_KEYS,
    Q_RECORD,
    Q_STATE,
    S_EMPTY,
    S_FREE,
    S_GROUPS,
    STD_DEV,
    SUM,
)
from tocsin.kernels.lists import V_VALUE, beats, begin_values, first_of, forget_values, tally

# The table of addresses: the records and how many words of them are taken, the buckets of the hash, the states of the
# queries, the entries of windows with the queues through them, what comes out, what is known of rules and events, and
# how many attempts an automaton may have.
MEMORY, TAKEN, BUCKETS, BUCKET_MASK, STATES, COUNTS = range(6)
ENTRY_ROW, ENTRY_NEXT, ENTRY_GROUP, QUEUE_WORD, QUEUE_NEXT, QUEUE_BEFORE, ENTRIES = range(6, 13)
OUT_RULE, OUT_TS, OUT_SEQ, OUT_EXPIRED, OUT_FIRST, OUT_SECOND, OUT_WORDS, OUT_KNOWN, OUT_ROOM = range(13, 22)
RULE_WORDS, STORE_FIRST, STORE_SECOND, STORE_TYPE, ATTEMPTS_MAX = range(22, 27)
ADDRESSES = 27

_KEY = 900
"""Where the key of a group that is searched stands in the scratch memory."""
NOT_EMPTY = -2
"""In the place of the next empty group: this one is not among them."""


def call_words(function: int, *, double: bool, ordered: bool) -> int:
    """How many words of a record an aggregate takes; `ordered`: what leaves is what came first."""
    if function == COUNT:
        return 0
    if function in (MIN, MAX):
        return 2 if ordered else LANES
    limbs = LIMBS_DOUBLE if double else LIMBS_LONG
    if function == STD_DEV:
        return 5 + limbs + (LIMBS_DOUBLE_SQUARES if double else LIMBS_LONG_SQUARES)
    return 3 + limbs


@jit
def clear(env, place, query, group):
    """Empties the aggregates of a group."""
    code, memory = get(env, CODE), get(place, MEMORY)
    put(memory, group + G_ROWS, np.int64(0))
    call = get(code, query + Q_CALLS)
    for _ in range(get(code, query + Q_CALL_COUNT)):
        function, double = get(code, call + A_FUNCTION), get(code, call + A_DOUBLE)
        at, queue = group + get(code, call + A_AT), get(code, call + A_QUEUE)
        call += CALL_WORDS
        if function == COUNT:
            continue
        if function in (MIN, MAX):
            if queue == IN_LANES:
                forget_values(memory, get(place, COUNTS), at)
                continue
            put(memory, at, np.int64(NONE))
            put(memory, at + 1, np.int64(NONE))
            continue
        put(memory, at, np.int64(0))
        clear_sum(memory, at + 1)
        if function == STD_DEV:
            squares = at + 3 + (LIMBS_DOUBLE if double else LIMBS_LONG)
            clear_wide(memory, squares, LIMBS_DOUBLE_SQUARES if double else LIMBS_LONG_SQUARES)


@jit
def group_of(env, place, query):
    """The group of the event in the frame, made if there is none yet. There is room for one."""
    keep_apart()
    code, memory = get(env, CODE), get(place, MEMORY)
    keys, slots = get(code, query + Q_KEY_COUNT), get(code, query + Q_KEYS)
    if keys == 0:
        first = get(get(place, STATES) + 8 * get(code, query + Q_STATE), S_GROUPS)
        if first >= 0:
            return first
    return keyed(env, place, query, key_words(env, memory, keys, slots))


@small
def key_words(env, memory, keys, slots):
    """Puts the key of the events in the frame into the scratch memory; returns which of its values there are."""
    stride, known = get(env, STRIDE), np.int64(0)
    for k in range(keys):
        row, slot = get(get(env, FRAME), get(get(env, CODE), slots + 2 * k)), get(get(env, CODE), slots + 2 * k + 1)
        if slot < 0:
            known |= np.int64(row >= 0) << k
            put(memory, _KEY + k, get(get(env, TS if slot == ARGUMENT_TS else SEQ), row) if row >= 0 else np.int64(0))
            continue
        at = slot * stride + max(row, 0)
        there = row >= 0 and get_byte(get(env, PRESENT), at) != 0
        known |= np.int64(there) << k
        put(memory, _KEY + k, get(get(env, WORDS), at) if there else np.int64(0))
    return known


@small
def _hashed(memory, query, keys, known):
    hashed = mix(np.uint64(query)) ^ np.uint64(known)
    for k in range(keys):
        hashed = mix(hashed ^ np.uint64(get(memory, _KEY + k)))
    return np.int64(hashed)


@jit
def found(env, place, query, known):
    """The group of the key in the scratch memory, NONE if there is none."""
    keep_apart()
    memory, keys = get(place, MEMORY), get(get(env, CODE), query + Q_KEY_COUNT)
    mark = _hashed(memory, query, keys, known)
    group = get(get(place, BUCKETS), mark & get(place, BUCKET_MASK))
    while group >= 0:
        if get(memory, group + G_HASH) == mark and get(memory, group + G_QUERY) == query:
            same = get(memory, group + G_KEY) == known
            for k in range(keys):
                same = same and get(memory, group + G_KEY + 1 + k) == get(memory, _KEY + k)
            if same:
                return group
        group = get(memory, group + G_CHAIN)
    return np.int64(NONE)


@jit
def keyed(env, place, query, known):
    """The group of the key in the scratch memory, made if there is none yet."""
    keep_apart()
    memory, keys = get(place, MEMORY), get(get(env, CODE), query + Q_KEY_COUNT)
    group = found(env, place, query, known)
    if group >= 0:
        return group
    group = _made(env, place, query, get(place, STATES) + 8 * get(get(env, CODE), query + Q_STATE))
    mark = _hashed(memory, query, keys, known)
    bucket = mark & get(place, BUCKET_MASK)
    put(memory, group + G_HASH, mark)
    put(memory, group + G_CHAIN, get(get(place, BUCKETS), bucket))
    put(get(place, BUCKETS), bucket, group)
    put(memory, group + G_KEY, known)
    for k in range(keys):
        put(memory, group + G_KEY + 1 + k, get(memory, _KEY + k))
    return group


@jit
def _made(env, place, query, state):
    """A record for a group of a query, without aggregates yet."""
    memory, counts = get(place, MEMORY), get(place, COUNTS)
    group = get(state, S_FREE)
    if group >= 0:
        put(state, S_FREE, get(memory, group + G_NEXT))
    else:
        group = get(counts, C_MEMORY)
        put(counts, C_MEMORY, group + get(get(env, CODE), query + Q_RECORD))
    put(counts, C_GROUPS, get(counts, C_GROUPS) + 1)
    following = get(state, S_GROUPS)
    put(memory, group + G_NEXT, following)
    put(memory, group + G_BEFORE, np.int64(NONE))
    if following >= 0:
        put(memory, following + G_BEFORE, group)
    put(state, S_GROUPS, group)
    put(memory, group + G_QUERY, query)
    put(memory, group + G_CHUNK, np.int64(NONE))
    put(memory, group + G_EMPTY, np.int64(NOT_EMPTY))
    call = get(get(env, CODE), query + Q_CALLS)
    for n in range(get(get(env, CODE), query + Q_CALL_COUNT)):
        if get(get(env, CODE), call + n * CALL_WORDS + A_QUEUE) == IN_LANES:
            begin_values(memory, group + get(get(env, CODE), call + n * CALL_WORDS + A_AT))
    clear(env, place, query, group)
    return group


@jit
def drop(place, state, group):
    """Forgets a group."""
    keep_apart()
    memory, counts = get(place, MEMORY), get(place, COUNTS)
    put(counts, C_GROUPS, get(counts, C_GROUPS) - 1)
    following, before = get(memory, group + G_NEXT), get(memory, group + G_BEFORE)
    if following >= 0:
        put(memory, following + G_BEFORE, before)
    if before >= 0:
        put(memory, before + G_NEXT, following)
    else:
        put(state, S_GROUPS, following)
    bucket = get(memory, group + G_HASH) & get(place, BUCKET_MASK)
    other = get(get(place, BUCKETS), bucket)
    if other == group:
        put(get(place, BUCKETS), bucket, get(memory, group + G_CHAIN))
    else:
        while get(memory, other + G_CHAIN) != group:
            other = get(memory, other + G_CHAIN)
        put(memory, other + G_CHAIN, get(memory, group + G_CHAIN))
    put(memory, group + G_NEXT, get(state, S_FREE))
    put(state, S_FREE, group)


@small
def note_empty(memory, state, group):
    """Remembers that a group has no events, until the chunk is over."""
    if get(memory, group + G_EMPTY) == NOT_EMPTY:
        put(memory, group + G_EMPTY, get(state, S_EMPTY))
        put(state, S_EMPTY, group)


@jit
def apply(env, place, query, group, entry, sign):
    """Adds the event in the frame to its group, or takes it away."""
    keep_apart()
    code, memory, stack = get(env, CODE), get(place, MEMORY), get(env, STACK)
    rows = get(memory, group + G_ROWS) + sign
    put(memory, group + G_ROWS, rows)
    call = get(code, query + Q_CALLS)
    for _ in range(get(code, query + Q_CALL_COUNT)):
        function, double = get(code, call + A_FUNCTION), get(code, call + A_DOUBLE)
        at, queue = group + get(code, call + A_AT), get(code, call + A_QUEUE)
        argument = get(code, call + A_ARGUMENT)
        call += CALL_WORDS
        if function == COUNT or not evaluate(env, argument):
            continue
        word = get(stack, 0)
        if function in (MIN, MAX):
            if queue == IN_LANES:
                tally(memory, get(place, COUNTS), at, word, double, function == MIN, np.int64(sign))
            elif queue >= 0:
                _queue(place, memory, at, queue, entry, word, double, function == MIN, sign)
            elif get(memory, at) <= 0 or beats(word, get(memory, at + 1), double, function == MIN):
                put(memory, at, np.int64(1))
                put(memory, at + 1, word)
            continue
        put(memory, at, get(memory, at) + sign)
        add_value(memory, at + 1, word, double, sign)
        if function == STD_DEV:
            add_square(memory, at + 3 + (LIMBS_DOUBLE if double else LIMBS_LONG), word, double, sign)


@jit
def _queue(place, memory, at, queue, entry, word, double, least, sign):
    """Puts a value into the queue of those that can still become the least, or takes it out."""
    base = queue * get(place, ENTRIES)
    words, nexts, befores = get(place, QUEUE_WORD), get(place, QUEUE_NEXT), get(place, QUEUE_BEFORE)
    if sign < 0:
        if get(memory, at) == entry:
            following = get(nexts, base + entry)
            put(memory, at, following)
            if following < 0:
                put(memory, at + 1, np.int64(NONE))
            else:
                put(befores, base + following, np.int64(NONE))
        return
    last = get(memory, at + 1)
    while last >= 0 and not beats(get(words, base + last), word, double, least):
        last = get(befores, base + last)
    put(words, base + entry, word)
    put(nexts, base + entry, np.int64(NONE))
    put(befores, base + entry, last)
    if last >= 0:
        put(nexts, base + last, np.int64(entry))
    else:
        put(memory, at, np.int64(entry))
    put(memory, at + 1, np.int64(entry))


@jit
def results(env, place, query, group):
    """Computes the aggregates of a group."""
    keep_apart()
    code, memory = get(env, CODE), get(place, MEMORY)
    out, known = get(env, COMPUTED), get(env, COMPUTED_KNOWN)
    call = get(code, query + Q_CALLS)
    for n in range(get(code, query + Q_CALL_COUNT)):
        function, double = get(code, call + A_FUNCTION), get(code, call + A_DOUBLE)
        at, queue = group + get(code, call + A_AT), get(code, call + A_QUEUE)
        call += CALL_WORDS
        if function == COUNT:
            put(out, n, get(memory, group + G_ROWS))
            put_byte(known, n, 1)
            continue
        if queue == IN_LANES:
            node = first_of(memory, at)
            put_byte(known, n, np.uint8(node >= 0))
            if node >= 0:
                put(out, n, get(memory, node + V_VALUE))
            continue
        if function in (MIN, MAX):
            first = get(memory, at)
            there = first >= 0 if queue >= 0 else first > 0
            put_byte(known, n, np.uint8(there))
            if there:
                held = get(place, QUEUE_WORD)
                put(out, n, get(held, queue * get(place, ENTRIES) + first) if queue >= 0 else get(memory, at + 1))
            continue
        number = get(memory, at)
        if number == 0:
            put(out, n, np.int64(0))
            put_byte(known, n, 0)
            continue
        exponent = np.int64(DOUBLE_EXPONENT if double else 0)
        if function == SUM and not double:
            total, within = sum_long(memory, at + 1)
            put(out, n, total)
            put_byte(known, n, np.uint8(within))
            continue
        if function == STD_DEV:
            squares = at + 3 + (LIMBS_DOUBLE if double else LIMBS_LONG)
            value = math.sqrt(max(0.0, variance(memory, at + 1, squares, number, exponent)))
        else:
            value = sum_double(memory, at + 1, exponent)
            if function == AVG:
                value /= number
        put_double(out, n, value + 0.0)
        put_byte(known, n, np.uint8(np.isfinite(value)))


@jit
def rehash(place, states, queries):
    """Puts all groups into new, empty buckets."""
    memory, buckets, mask = get(place, MEMORY), get(place, BUCKETS), get(place, BUCKET_MASK)
    for n in range(queries):
        group = states[n, S_GROUPS]
        while group >= 0:
            bucket = get(memory, group + G_HASH) & mask
            put(memory, group + G_CHAIN, get(buckets, bucket))
            put(buckets, bucket, group)
            group = get(memory, group + G_NEXT)


@jit
def adopt(env, place, query, keys, known, words, start):
    """Makes a group of that key and copies what its aggregates held; `start`: where these stand in the record.

    Behind them are the values of lists: for each how many there are, then value and number.
    """
    code, memory, record = get(env, CODE), get(place, MEMORY), get(get(env, CODE), query + Q_RECORD)
    for k in range(len(keys)):
        put(memory, _KEY + k, keys[k])
    group = keyed(env, place, query, known)
    put(memory, group + G_ROWS, words[0])
    if len(words) - 1 < record - start:
        return
    for n in range(record - start):
        put(memory, group + start + n, words[1 + n])
    at, call = 1 + record - start, get(code, query + Q_CALLS)
    for _ in range(get(code, query + Q_CALL_COUNT)):
        if get(code, call + A_QUEUE) == IN_LANES:
            heads, least = group + get(code, call + A_AT), get(code, call + A_FUNCTION) == MIN
            begin_values(memory, heads)
            for k in range(words[at]):
                word, count = words[at + 1 + 2 * k], words[at + 2 + 2 * k]
                tally(memory, get(place, COUNTS), heads, word, get(code, call + A_DOUBLE), least, count)
            at += 1 + 2 * words[at]
        call += CALL_WORDS
