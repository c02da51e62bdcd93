# mypy: disable-error-code="no-untyped-def"
"""Projections and count-window queries, the commonest queries, of which there may be thousands.

A *projection* selects attributes of the events that pass a filter. A *count-window query* aggregates the last n events,
or n events at a time. Both emit only current rows, and have no groups, no tests after the window and no timers. Such a
query reads its events from the columns of a batch, and retains values instead of events. Its record holds both the
query and its state (see `layout`). A tumbling window has only aggregates. A sliding window also has a ring buffer of
entries:

    a bit for each aggregate that has a value  value of the first aggregate  value of the second  …

Sums are exact (see `exact_sums`). For least or greatest values, the ring buffer is divided at a *cut*. When the cut is
moved, each value before it is replaced by the least of the entries from that value to the cut. After the cut, a running
least is kept. The least of all is therefore the value of the first entry or the running least.
"""

from __future__ import annotations

import numpy as np

from tocsin.kernels.core import get, get_double, get_half, jit, never_inline, put, small
from tocsin.kernels.exact_sums import (
    DOUBLE_EXPONENT,
    LIMBS_DOUBLE,
    LIMBS_LONG,
    NARROW,
    add_value,
    clear_sum,
    clear_wide,
    sum_double,
    sum_long,
)
from tocsin.kernels.identity import HIGH_SEED, LOW_SEED, fold
from tocsin.kernels.layout import (
    AVG,
    COUNT,
    LENGTH,
    MAX,
    MIN,
    NO_WINDOW,
    P_BLOCK,
    P_CALL_COUNT,
    P_CALLS,
    P_CAPACITY,
    P_COUNT,
    P_CUT,
    P_EXTENT,
    P_HEAD,
    P_OUTPUT_COUNT,
    P_OUTPUTS,
    P_RULE,
    P_SINCE,
    P_SIZE,
    PC_ARGUMENT,
    PC_DOUBLE,
    PC_FUNCTION,
    PC_STATE,
    PROJECTION_CALL_WORDS,
    SUM,
)
from tocsin.kernels.lists import beats
from tocsin.kernels.predicate_scan import (
    COLUMN_BYTES,
    COLUMN_DOUBLE,
    COLUMN_OFFSET,
    COLUMN_VALIDITY,
    COLUMN_VALUES,
    is_valid,
)

DONE, MORE_ROWS, MORE_MEMORY = range(3)
"""The reasons why a run stopped: all queries are done, or the output or the memory is full."""
_FIRST_ROOM = 8


@jit
def run_projections(
    memory, used, limit, starts, queries, filters, events, pair, skip, columns, column_of, width, types, ts, rules,
    sources, values, valid,
):  # fmt: skip
    """Run all queries of the filter of each pair (filter, event), beginning with query `skip` of pair `pair`.

    `memory`, `columns`, `column_of` (with `width` words for each type), `types` and `ts` are addresses. `used` is the
    number of words of memory in use, and `limit` the number available. Rows go to `rules`, `sources` (the event of each
    row), `values` and `valid`. Returns (pair, query, rows, reason): where the run stopped, the number of rows, and why
    it stopped.
    """
    rows = np.int64(0)
    for p in range(pair, len(filters)):
        i = events[p]
        own = column_of + 8 * width * np.int64(get_half(types, i))
        first, end = starts[filters[p]], starts[filters[p] + 1]
        for n in range(first + skip, end):
            query = queries[n]
            if get(ts, i) < get(memory, query + P_SINCE):
                continue
            if rows == len(rules):
                return p, n - first, rows, MORE_ROWS
            extent = get(memory, query + P_EXTENT)
            if extent != NO_WINDOW:
                count, size = get(memory, query + P_COUNT), get(memory, query + P_SIZE)
                if extent == LENGTH:
                    if not _has_room(memory, used, limit, query, count, size):
                        return p, n - first, rows, MORE_MEMORY
                    if count == size:
                        _remove_first(memory, query)
                        count -= 1
                _add_event(memory, query, extent == LENGTH, count, columns, own, i)
                put(memory, query + P_COUNT, count + 1)
                if extent != LENGTH and count + 1 < size:
                    continue
            outputs = get(memory, query + P_OUTPUTS)
            for k in range(get(memory, query + P_OUTPUT_COUNT)):
                output = get(memory, outputs + k)
                if output < 0:
                    values[k, rows], valid[k, rows] = _aggregate(memory, query, -output - 1)
                else:
                    values[k, rows], valid[k, rows] = _value(columns, own, output, i)
            rules[rows], sources[rows] = get(memory, query + P_RULE), i
            rows += 1
            if extent != NO_WINDOW and extent != LENGTH:
                clear(memory, query)
        skip = np.int64(0)
    return np.int64(len(filters)), np.int64(0), rows, DONE


@small
def _value(columns, own, slot, i):
    """Return the value of a slot of event `i`, and whether the value is valid.

    `own` is the address of the type's columns.
    """
    c = get(own, slot)
    if c < 0:
        return np.int64(0), False
    column = columns + COLUMN_BYTES * c
    validity, column_values = get(column, COLUMN_VALIDITY), get(column, COLUMN_VALUES)
    present = validity == 0 or is_valid(validity, get(column, COLUMN_OFFSET) + i)
    if get(column, COLUMN_DOUBLE) == 0:
        return get(column_values, i), present
    x = get_double(column_values, i)
    return np.float64(x + 0.0).view(np.int64), present and x - x == 0.0  # NaN if x is not finite


@small
def _entry_words(memory, query):
    """Return the length in words of an entry of a query's ring buffer."""
    return np.int64(1) + get(memory, query + P_CALL_COUNT)


@small
def _has_room(memory, used, limit, query, count, size):
    """Return whether the ring buffer has room for another entry, after enlarging it if necessary."""
    capacity = get(memory, query + P_CAPACITY)
    return count < capacity or capacity == size or _grow(memory, used, limit, query, count + 1)


@jit
def _grow(memory, used, limit, query, needed):
    """Move a ring buffer to a place with a larger capacity. Return False if there is not enough memory."""
    never_inline()
    size, capacity, count = get(memory, query + P_SIZE), get(memory, query + P_CAPACITY), get(memory, query + P_COUNT)
    width, wanted = _entry_words(memory, query), min(size, max(np.int64(_FIRST_ROOM), 2 * capacity, needed))
    block = used[0]
    if block + wanted * width > limit:
        return False
    used[0] += wanted * width
    old, head = get(memory, query + P_BLOCK), get(memory, query + P_HEAD)
    for n in range(count):
        for k in range(width):
            put(memory, block + n * width + k, get(memory, old + (head + n) % capacity * width + k))
    put(memory, query + P_BLOCK, block)
    put(memory, query + P_HEAD, np.int64(0))
    put(memory, query + P_CAPACITY, wanted)
    return True


@jit
def clear(memory, query):
    """Empty the window of a query."""
    put(memory, query + P_HEAD, np.int64(0))
    put(memory, query + P_COUNT, np.int64(0))
    put(memory, query + P_CUT, np.int64(0))
    call = get(memory, query + P_CALLS)
    for _ in range(get(memory, query + P_CALL_COUNT)):
        function, state = get(memory, call + PC_FUNCTION), get(memory, call + PC_STATE)
        if function != COUNT:
            put(memory, state, np.int64(0))
        if function in (SUM, AVG):
            clear_sum(memory, state + 1)
        call += PROJECTION_CALL_WORDS


@small
def _accumulate(memory, call, value):
    """Add a value to an aggregate."""
    function, state, double = (
        get(memory, call + PC_FUNCTION),
        get(memory, call + PC_STATE),
        get(memory, call + PC_DOUBLE),
    )
    if function in (SUM, AVG):
        put(memory, state, get(memory, state) + 1)
        add_value(memory, state + 1, value, double, np.int64(1))
    elif get(memory, state) == 0 or beats(value, get(memory, state + 1), double, function == MIN):
        put(memory, state, np.int64(1))
        put(memory, state + 1, value)


@small
def _add_event(memory, query, slides, count, columns, own, i):
    """Add event `i` to a window that has `count` events. There must be room for it."""
    entry = np.int64(0)
    if slides:
        index, capacity = get(memory, query + P_HEAD) + count, get(memory, query + P_CAPACITY)
        entry = get(memory, query + P_BLOCK) + (index - capacity if index >= capacity else index) * _entry_words(
            memory, query
        )
    call, bits = get(memory, query + P_CALLS), np.int64(0)
    for n in range(get(memory, query + P_CALL_COUNT)):
        if get(memory, call + PC_FUNCTION) != COUNT:
            value, present = _value(columns, own, get(memory, call + PC_ARGUMENT), i)
            if present:
                bits |= np.int64(1) << n
                if slides:
                    put(memory, entry + 1 + n, value)
                _accumulate(memory, call, value)
        call += PROJECTION_CALL_WORDS
    if slides:
        put(memory, entry, bits)


@jit
def _remove_first(memory, query):
    """Remove the first event from a sliding window."""
    head, capacity = get(memory, query + P_HEAD), get(memory, query + P_CAPACITY)
    if get(memory, query + P_CUT) == 0:
        _cut(memory, query)
    entry = get(memory, query + P_BLOCK) + head * _entry_words(memory, query)
    bits, call = get(memory, entry), get(memory, query + P_CALLS)
    for n in range(get(memory, query + P_CALL_COUNT)):
        if get(memory, call + PC_FUNCTION) in (SUM, AVG) and bits >> n & 1:
            state = get(memory, call + PC_STATE)
            put(memory, state, get(memory, state) - 1)
            add_value(memory, state + 1, get(memory, entry + 1 + n), get(memory, call + PC_DOUBLE), np.int64(-1))
        call += PROJECTION_CALL_WORDS
    put(memory, query + P_HEAD, np.int64(0) if head + 1 == capacity else head + 1)
    put(memory, query + P_COUNT, get(memory, query + P_COUNT) - 1)
    put(memory, query + P_CUT, get(memory, query + P_CUT) - 1)


@jit
def _cut(memory, query):
    """Move the cut after the last entry.

    For least and greatest values, each value is replaced by the least or greatest of the values from it to the cut.
    """
    never_inline()
    count, head, capacity = get(memory, query + P_COUNT), get(memory, query + P_HEAD), get(memory, query + P_CAPACITY)
    block, width = get(memory, query + P_BLOCK), _entry_words(memory, query)
    put(memory, query + P_CUT, count)
    call = get(memory, query + P_CALLS)
    for n in range(get(memory, query + P_CALL_COUNT)):
        function, double = get(memory, call + PC_FUNCTION), get(memory, call + PC_DOUBLE)
        state = get(memory, call + PC_STATE)
        call += PROJECTION_CALL_WORDS
        if function not in (MIN, MAX):
            continue
        put(memory, state, np.int64(0))
        present, best = False, np.int64(0)
        for k in range(count - 1, -1, -1):
            entry = block + (head + k) % capacity * width
            bits, value = get(memory, entry), get(memory, entry + 1 + n)
            if bits >> n & 1 and (not present or beats(value, best, double, function == MIN)):
                present, best = True, value
            if present:
                put(memory, entry, bits | np.int64(1) << n)
                put(memory, entry + 1 + n, best)


@jit
def _aggregate(memory, query, n):
    """Return the value of the n-th aggregate of a query, and whether the value is valid."""
    call = get(memory, query + P_CALLS) + n * PROJECTION_CALL_WORDS
    function, double = get(memory, call + PC_FUNCTION), get(memory, call + PC_DOUBLE)
    if function == COUNT:
        return get(memory, query + P_COUNT), True
    state = get(memory, call + PC_STATE)
    if function in (MIN, MAX):
        present, best = get(memory, state) != 0, get(memory, state + 1)
        if get(memory, query + P_CUT) > 0:
            entry = get(memory, query + P_BLOCK) + get(memory, query + P_HEAD) * _entry_words(memory, query)
            first = get(memory, entry + 1 + n)
            if get(memory, entry) >> n & 1 and (not present or beats(first, best, double, function == MIN)):
                present, best = True, first
        return best, present
    number = get(memory, state)
    if number == 0:
        return np.int64(0), False
    if function == SUM and not double:
        return sum_long(memory, state + 1)
    value = sum_double(memory, state + 1, np.int64(DOUBLE_EXPONENT if double else 0))
    if function == AVG:
        value /= number
    return np.float64(value + 0.0).view(np.int64), np.isfinite(value)


# ---- order of rows


@jit
def order_rows(sources, rules, ranks, ts, seq, most, order):
    """Sort rows, which are in the order of events, by time and then by the ranks of their rules.

    Returns True if `order` has the new order. Returns False if the rows are in order already, or if a row would have to
    be sorted among more than `most` rows of one instant.
    """
    begin, wrong = 0, False
    for row in range(len(rules)):
        i, first = sources[row], sources[begin]
        order[row] = row
        if i != first and (get(ts, i) != get(ts, first) or get(seq, i) != get(seq, first)):
            begin = row
        position = row
        while position > begin and ranks[rules[order[position - 1]]] > ranks[rules[row]]:
            wrong = True
            if row - begin >= most:
                return False
            order[position] = order[position - 1]
            position -= 1
        order[position] = row
    return wrong


@jit
def is_ordered(sources, rules, ranks, ts, seq):
    """Return whether the rows of each instant are in the order of their rules' ranks."""
    for row in range(1, len(rules)):
        i, before = sources[row], sources[row - 1]
        same = i == before or (get(ts, i) == get(ts, before) and get(seq, i) == get(seq, before))
        if same and ranks[rules[row]] < ranks[rules[row - 1]]:
            return False
    return True


@jit
def row_identities(rule_words, rules, high, low):
    """Replace the id of each row's event by the id of the row."""
    for row in range(len(rules)):
        a, b = fold(HIGH_SEED, LOW_SEED, rule_words[rules[row], 0])
        a, b = fold(a, b, rule_words[rules[row], 1])
        a, b = fold(a, b, high[row])
        high[row], low[row] = fold(a, b, low[row])


# ---- snapshots


@jit
def state_words(memory, query):
    """Return an upper bound of the number of words that the state of a query takes in a snapshot."""
    if get(memory, query + P_EXTENT) == LENGTH:
        return 1 + get(memory, query + P_COUNT) * _entry_words(memory, query)
    return 1 + get(memory, query + P_CALL_COUNT) * (3 + LIMBS_DOUBLE)


@jit
def write_state(memory, query, out):
    """Write the state of a query to `out`: the number of events in its window, then its entries or its aggregates.

    Returns the number of words written.
    """
    count, call, at = get(memory, query + P_COUNT), get(memory, query + P_CALLS), 1
    out[0] = count
    if get(memory, query + P_EXTENT) == LENGTH:
        capacity, width = get(memory, query + P_CAPACITY), _entry_words(memory, query)
        for n in range(count):
            entry = get(memory, query + P_BLOCK) + (get(memory, query + P_HEAD) + n) % capacity * width
            for k in range(width):
                out[at] = get(memory, entry + k)
                at += 1
        return at
    for _ in range(get(memory, query + P_CALL_COUNT)):
        function, state = get(memory, call + PC_FUNCTION), get(memory, call + PC_STATE)
        call += PROJECTION_CALL_WORDS
        if function == COUNT:
            continue
        length = 2 if function in (MIN, MAX) else 5
        if length == 5 and get(memory, state + 1) != NARROW:
            length = max(3 + get(memory, state + 2) + 1, np.int64(3))
        for k in range(length):
            out[at] = get(memory, state + k)
            at += 1
    return at


@jit
def read_state(memory, used, limit, query, saved):
    """Restore the state of a query from `saved`. There must be memory for it."""
    clear(memory, query)
    count, call, at = saved[0], get(memory, query + P_CALLS), 1
    if get(memory, query + P_EXTENT) == LENGTH:
        width = _entry_words(memory, query)
        if count > get(memory, query + P_CAPACITY) and not _grow(memory, used, limit, query, count):
            return
        for n in range(count):
            entry = get(memory, query + P_BLOCK) + n * width
            for k in range(width):
                put(memory, entry + k, saved[at + n * width + k])
            for k in range(width - 1):
                mine = call + k * PROJECTION_CALL_WORDS
                if saved[at + n * width] >> k & 1 and get(memory, mine + PC_FUNCTION) != COUNT:
                    _accumulate(memory, mine, saved[at + n * width + 1 + k])
        put(memory, query + P_COUNT, count)
        return
    for _ in range(get(memory, query + P_CALL_COUNT)):
        function, state = get(memory, call + PC_FUNCTION), get(memory, call + PC_STATE)
        double = get(memory, call + PC_DOUBLE)
        call += PROJECTION_CALL_WORDS
        if function == COUNT:
            continue
        length = 2 if function in (MIN, MAX) else 5
        if length == 5 and saved[at + 1] != NARROW:
            clear_wide(memory, state + 1, LIMBS_DOUBLE if double else LIMBS_LONG)
            length = max(3 + saved[at + 2] + 1, np.int64(3))
        for k in range(length):
            put(memory, state + k, saved[at + k])
        at += length
    put(memory, query + P_COUNT, count)
