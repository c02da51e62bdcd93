# mypy: disable-error-code="no-untyped-def"
"""Aggregates for each group of a query, as records in one memory. A hash of the query and the key finds the record.

An event that enters a window is added to the record of its group, and an event that leaves is subtracted. The other
events of the window are not read. Sums are exact (see `exact_sums`). For the least or greatest value, a queue goes
through the entries of the window: its values are those that can become the least or greatest when others have left, and
the first of them is the current one. The queue requires that events leave a window in the order in which they entered.
A group without events is dropped at the end of its chunk.

All memory is reached by address. `table` is the table of the addresses below.
"""

from __future__ import annotations

import math

import numpy as np

from tocsin.kernels.core import (
    CODE,
    COMPUTED,
    COMPUTED_VALID,
    FRAME,
    SEQ,
    STACK,
    STRIDE,
    TS,
    VALID,
    VALUES,
    get,
    get_byte,
    jit,
    never_inline,
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
    IN_SKIP_LIST,
    LEVELS,
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
from tocsin.kernels.lists import V_VALUE, add_count, beats, clear_values, first_of, init_values

# The table of addresses: the records and their capacity in words, the buckets of the hash table, the states of the
# queries, the entries of windows and the queues through the entries, the output, the hashes of rules, the ids and types
# of events, and the largest number of runs that an automaton may have.
MEMORY, CAPACITY, BUCKETS, BUCKET_MASK, STATES, COUNTS = range(6)
ENTRY_ROW, ENTRY_NEXT, ENTRY_GROUP, QUEUE_VALUE, QUEUE_NEXT, QUEUE_BEFORE, ENTRIES = range(6, 13)
OUT_RULE, OUT_TS, OUT_SEQ, OUT_EXPIRED, OUT_ID_HIGH, OUT_ID_LOW, OUT_VALUES, OUT_VALID, OUT_ROOM = range(13, 22)
RULE_WORDS, STORE_ID_HIGH, STORE_ID_LOW, STORE_TYPE, RUNS_MAX = range(22, 27)
ADDRESSES = 27

_KEY = 900
"""The offset in the scratch memory of the key that is looked up."""
NOT_EMPTY = -2
"""Stored in place of the next empty group if the group is not in the list of empty groups."""


def call_words(function: int, *, double: bool, ordered: bool) -> int:
    """Return how many words an aggregate takes in a record.

    `ordered` says whether values leave in the order in which they came.
    """
    if function == COUNT:
        return 0
    if function in (MIN, MAX):
        return 2 if ordered else LEVELS
    limbs = LIMBS_DOUBLE if double else LIMBS_LONG
    if function == STD_DEV:
        return 5 + limbs + (LIMBS_DOUBLE_SQUARES if double else LIMBS_LONG_SQUARES)
    return 3 + limbs


@jit
def clear_group(env, table, query, group):
    """Reset the aggregates of a group."""
    code, memory = get(env, CODE), get(table, MEMORY)
    put(memory, group + G_ROWS, np.int64(0))
    call = get(code, query + Q_CALLS)
    for _ in range(get(code, query + Q_CALL_COUNT)):
        function, double = get(code, call + A_FUNCTION), get(code, call + A_DOUBLE)
        at, queue = group + get(code, call + A_AT), get(code, call + A_QUEUE)
        call += CALL_WORDS
        if function == COUNT:
            continue
        if function in (MIN, MAX):
            if queue == IN_SKIP_LIST:
                clear_values(memory, get(table, COUNTS), at)
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
def group_of(env, table, query):
    """Return the group of the event in the frame. Add the group if it does not exist; there must be room for one."""
    never_inline()
    code, memory = get(env, CODE), get(table, MEMORY)
    keys, slots = get(code, query + Q_KEY_COUNT), get(code, query + Q_KEYS)
    if keys == 0:
        first = get(get(table, STATES) + 8 * get(code, query + Q_STATE), S_GROUPS)
        if first >= 0:
            return first
    return find_or_add_group(env, table, query, load_key(env, memory, keys, slots))


@small
def load_key(env, memory, keys, slots):
    """Write the key of the events in the frame to the scratch memory.

    Returns a set bit for each valid value of the key.
    """
    stride, valid = get(env, STRIDE), np.int64(0)
    for k in range(keys):
        row, slot = get(get(env, FRAME), get(get(env, CODE), slots + 2 * k)), get(get(env, CODE), slots + 2 * k + 1)
        if slot < 0:
            valid |= np.int64(row >= 0) << k
            put(memory, _KEY + k, get(get(env, TS if slot == ARGUMENT_TS else SEQ), row) if row >= 0 else np.int64(0))
            continue
        at = slot * stride + max(row, 0)
        present = row >= 0 and get_byte(get(env, VALID), at) != 0
        valid |= np.int64(present) << k
        put(memory, _KEY + k, get(get(env, VALUES), at) if present else np.int64(0))
    return valid


@small
def _hashed(memory, query, keys, valid):
    """Return the hash of the key in the scratch memory."""
    hashed = mix(np.uint64(query)) ^ np.uint64(valid)
    for k in range(keys):
        hashed = mix(hashed ^ np.uint64(get(memory, _KEY + k)))
    return np.int64(hashed)


@jit
def find_group(env, table, query, valid):
    """Return the group with the key in the scratch memory, or NONE if there is none."""
    never_inline()
    memory, keys = get(table, MEMORY), get(get(env, CODE), query + Q_KEY_COUNT)
    key_hash = _hashed(memory, query, keys, valid)
    group = get(get(table, BUCKETS), key_hash & get(table, BUCKET_MASK))
    while group >= 0:
        if get(memory, group + G_HASH) == key_hash and get(memory, group + G_QUERY) == query:
            same = get(memory, group + G_KEY) == valid
            for k in range(keys):
                same = same and get(memory, group + G_KEY + 1 + k) == get(memory, _KEY + k)
            if same:
                return group
        group = get(memory, group + G_CHAIN)
    return np.int64(NONE)


@jit
def find_or_add_group(env, table, query, valid):
    """Return the group with the key in the scratch memory. Add the group if it does not exist."""
    never_inline()
    memory, keys = get(table, MEMORY), get(get(env, CODE), query + Q_KEY_COUNT)
    group = find_group(env, table, query, valid)
    if group >= 0:
        return group
    group = _new_group(env, table, query, get(table, STATES) + 8 * get(get(env, CODE), query + Q_STATE))
    key_hash = _hashed(memory, query, keys, valid)
    bucket = key_hash & get(table, BUCKET_MASK)
    put(memory, group + G_HASH, key_hash)
    put(memory, group + G_CHAIN, get(get(table, BUCKETS), bucket))
    put(get(table, BUCKETS), bucket, group)
    put(memory, group + G_KEY, valid)
    for k in range(keys):
        put(memory, group + G_KEY + 1 + k, get(memory, _KEY + k))
    return group


@jit
def _new_group(env, table, query, state):
    """Return a new group record of a query, with empty aggregates."""
    memory, counts = get(table, MEMORY), get(table, COUNTS)
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
        if get(get(env, CODE), call + n * CALL_WORDS + A_QUEUE) == IN_SKIP_LIST:
            init_values(memory, group + get(get(env, CODE), call + n * CALL_WORDS + A_AT))
    clear_group(env, table, query, group)
    return group


@jit
def drop_group(table, state, group):
    """Remove a group from its query and its bucket, and free its record."""
    never_inline()
    memory, counts = get(table, MEMORY), get(table, COUNTS)
    put(counts, C_GROUPS, get(counts, C_GROUPS) - 1)
    following, before = get(memory, group + G_NEXT), get(memory, group + G_BEFORE)
    if following >= 0:
        put(memory, following + G_BEFORE, before)
    if before >= 0:
        put(memory, before + G_NEXT, following)
    else:
        put(state, S_GROUPS, following)
    bucket = get(memory, group + G_HASH) & get(table, BUCKET_MASK)
    other = get(get(table, BUCKETS), bucket)
    if other == group:
        put(get(table, BUCKETS), bucket, get(memory, group + G_CHAIN))
    else:
        while get(memory, other + G_CHAIN) != group:
            other = get(memory, other + G_CHAIN)
        put(memory, other + G_CHAIN, get(memory, group + G_CHAIN))
    put(memory, group + G_NEXT, get(state, S_FREE))
    put(state, S_FREE, group)


@small
def note_empty(memory, state, group):
    """Add a group without events to the list of empty groups, which are dropped when the chunk ends."""
    if get(memory, group + G_EMPTY) == NOT_EMPTY:
        put(memory, group + G_EMPTY, get(state, S_EMPTY))
        put(state, S_EMPTY, group)


@jit
def apply(env, table, query, group, entry, sign):
    """Add the event in the frame to the aggregates of its group, or subtract it, as `sign` says."""
    never_inline()
    code, memory, stack = get(env, CODE), get(table, MEMORY), get(env, STACK)
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
        value = get(stack, 0)
        if function in (MIN, MAX):
            if queue == IN_SKIP_LIST:
                add_count(memory, get(table, COUNTS), at, value, double, function == MIN, np.int64(sign))
            elif queue >= 0:
                _queue(table, memory, at, queue, entry, value, double, function == MIN, sign)
            elif get(memory, at) <= 0 or beats(value, get(memory, at + 1), double, function == MIN):
                put(memory, at, np.int64(1))
                put(memory, at + 1, value)
            continue
        put(memory, at, get(memory, at) + sign)
        add_value(memory, at + 1, value, double, sign)
        if function == STD_DEV:
            add_square(memory, at + 3 + (LIMBS_DOUBLE if double else LIMBS_LONG), value, double, sign)


@jit
def _queue(table, memory, at, queue, entry, value, double, least, sign):
    """Add the value of an entry to the queue of a least or greatest value, or remove it, as `sign` says."""
    base = queue * get(table, ENTRIES)
    values, nexts, befores = get(table, QUEUE_VALUE), get(table, QUEUE_NEXT), get(table, QUEUE_BEFORE)
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
    while last >= 0 and not beats(get(values, base + last), value, double, least):
        last = get(befores, base + last)
    put(values, base + entry, value)
    put(nexts, base + entry, np.int64(NONE))
    put(befores, base + entry, last)
    if last >= 0:
        put(nexts, base + last, np.int64(entry))
    else:
        put(memory, at, np.int64(entry))
    put(memory, at + 1, np.int64(entry))


@jit
def compute_aggregates(env, table, query, group):
    """Compute the values of the aggregates of a group."""
    never_inline()
    code, memory = get(env, CODE), get(table, MEMORY)
    out, valid = get(env, COMPUTED), get(env, COMPUTED_VALID)
    call = get(code, query + Q_CALLS)
    for n in range(get(code, query + Q_CALL_COUNT)):
        function, double = get(code, call + A_FUNCTION), get(code, call + A_DOUBLE)
        at, queue = group + get(code, call + A_AT), get(code, call + A_QUEUE)
        call += CALL_WORDS
        if function == COUNT:
            put(out, n, get(memory, group + G_ROWS))
            put_byte(valid, n, 1)
            continue
        if queue == IN_SKIP_LIST:
            node = first_of(memory, at)
            put_byte(valid, n, np.uint8(node >= 0))
            if node >= 0:
                put(out, n, get(memory, node + V_VALUE))
            continue
        if function in (MIN, MAX):
            first = get(memory, at)
            present = first >= 0 if queue >= 0 else first > 0
            put_byte(valid, n, np.uint8(present))
            if present:
                values = get(table, QUEUE_VALUE)
                put(out, n, get(values, queue * get(table, ENTRIES) + first) if queue >= 0 else get(memory, at + 1))
            continue
        number = get(memory, at)
        if number == 0:
            put(out, n, np.int64(0))
            put_byte(valid, n, 0)
            continue
        exponent = np.int64(DOUBLE_EXPONENT if double else 0)
        if function == SUM and not double:
            total, within = sum_long(memory, at + 1)
            put(out, n, total)
            put_byte(valid, n, np.uint8(within))
            continue
        if function == STD_DEV:
            squares = at + 3 + (LIMBS_DOUBLE if double else LIMBS_LONG)
            value = math.sqrt(max(0.0, variance(memory, at + 1, squares, number, exponent)))
        else:
            value = sum_double(memory, at + 1, exponent)
            if function == AVG:
                value /= number
        put_double(out, n, value + 0.0)
        put_byte(valid, n, np.uint8(np.isfinite(value)))


@jit
def rehash(table, states, queries):
    """Insert all groups into new, empty buckets."""
    memory, buckets, mask = get(table, MEMORY), get(table, BUCKETS), get(table, BUCKET_MASK)
    for n in range(queries):
        group = states[n, S_GROUPS]
        while group >= 0:
            bucket = get(memory, group + G_HASH) & mask
            put(memory, group + G_CHAIN, get(buckets, bucket))
            put(buckets, bucket, group)
            group = get(memory, group + G_NEXT)


@jit
def restore_group(env, table, query, keys, valid, values, start):
    """Restore a group with the key `keys` and the words of its aggregates, which begin at `start` in the record.

    `values` has the number of events and these words. After them come the values of skip lists: for each skip list the
    length, then each value with its count.
    """
    code, memory, record = get(env, CODE), get(table, MEMORY), get(get(env, CODE), query + Q_RECORD)
    for k in range(len(keys)):
        put(memory, _KEY + k, keys[k])
    group = find_or_add_group(env, table, query, valid)
    put(memory, group + G_ROWS, values[0])
    if len(values) - 1 < record - start:
        return
    for n in range(record - start):
        put(memory, group + start + n, values[1 + n])
    at, call = 1 + record - start, get(code, query + Q_CALLS)
    for _ in range(get(code, query + Q_CALL_COUNT)):
        if get(code, call + A_QUEUE) == IN_SKIP_LIST:
            heads, least = group + get(code, call + A_AT), get(code, call + A_FUNCTION) == MIN
            init_values(memory, heads)
            for k in range(values[at]):
                value, count = values[at + 1 + 2 * k], values[at + 2 + 2 * k]
                add_count(memory, get(table, COUNTS), heads, value, get(code, call + A_DOUBLE), least, count)
            at += 1 + 2 * values[at]
        call += CALL_WORDS
