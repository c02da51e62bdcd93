# mypy: disable-error-code="no-untyped-def, assignment"
"""Which filters does each event of a batch pass?

Where a type has few filters, each pair of an event and a filter of its type goes through the steps of the filter, round
by round, as far as it passes; most do not pass the first. Where it has many, this goes type by type, and for a type
attribute by attribute, so that what is the same for all its events is looked up once. Neither way branches on what
cannot be predicted: of which type an event is, and what it passes.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tocsin.kernels.core import (
    FRAME,
    PRESENT,
    SEQ,
    STACK,
    STRIDE,
    TS,
    WORDS,
    Array,
    bit_count,
    get,
    get_double,
    get_half,
    jit,
    keep_apart,
    lowest_bit,
    put,
    put_byte,
    put_double,
    put_half,
    small,
)
from tocsin.kernels.expressions import evaluate, order_holds
from tocsin.kernels.layout import Filters
from tocsin.kernels.predicate_scan import (
    BITS,
    DOUBLE,
    FIRST_BIT,
    STEP_BYTES,
    VALUES,
    is_there,
    make_ready,
    take_apart,
    try_first,
    try_next,
)

ONE = np.uint64(1)

SPAN = 1 << 13
"""How many events are looked at together: what is known of them so far stays in the nearest cache."""

FEW_TYPES = 8
"""Up to how many types are gathered one by one, in time proportional to their number, but without any branch."""


@small
def has_value(columns, c, i):
    """Whether a column has a value for event i. A double that is not finite is none."""
    bits = columns[c, BITS]
    if bits != 0 and not is_there(bits, columns[c, FIRST_BIT] + i):
        return False
    return columns[c, DOUBLE] == 0 or np.isfinite(get_double(columns[c, VALUES], i))


@small
def copy_row(env, columns, column_of, t, ts, seq, i):
    """Writes an event of the batch to the first row of a store, for a program to read."""
    stride = get(env, STRIDE)
    put(get(env, TS), 0, get(ts, i))
    put(get(env, SEQ), 0, get(seq, i))
    for slot in range(column_of.shape[1]):
        c = column_of[t, slot]
        known = c >= 0 and has_value(columns, c, i)
        put_byte(get(env, PRESENT), slot * stride, known)
        if known and columns[c, DOUBLE] != 0:
            put_double(get(env, WORDS), slot * stride, get_double(columns[c, VALUES], i) + 0.0)
        elif known:
            put(get(env, WORDS), slot * stride, get(columns[c, VALUES], i))


# Where the value of each row stands among the constants of an axis: 2r below constant r, 2r + 1 at it, the last place
# for none. They are searched by halving, in a table as long as a power of two, filled up with the largest value. Which
# half is taken cannot be predicted, so there must be no branch; from `half if … else 0` the compiler would make one.


@jit
def places_of_doubles(values, rows, count, constants, size, places):
    """The places of doubles; one that is not finite is no value."""
    keep_apart()
    halvings = halvings_of(size)
    for k in range(count):
        x = get_double(values, np.int64(get_half(rows, k)))
        at = np.int64(0)
        for step in range(halvings - 1, -1, -1):
            at += np.int64(get_double(constants, at + (np.int64(1) << step) - 1) < x) << step
        constant = get_double(constants, at)
        at = 2 * at + 2 * np.int64(constant < x) + np.int64(constant == x)
        put_half(places, k, np.int32(at if x - x == 0.0 else 2 * size + 1))


@jit
def places_of_words(values, rows, count, constants, size, places):
    """The places of what is no double."""
    keep_apart()
    halvings = halvings_of(size)
    for k in range(count):
        v = get(values, np.int64(get_half(rows, k)))
        at = np.int64(0)
        for step in range(halvings - 1, -1, -1):
            at += np.int64(get(constants, at + (np.int64(1) << step) - 1) < v) << step
        constant = get(constants, at)
        at = 2 * at + 2 * np.int64(constant < v) + np.int64(constant == v)
        put_half(places, k, np.int32(min(at, 2 * size)))  # the largest value there is also fills up the table


@small
def halvings_of(size):
    """How often a table for so many constants is halved until one is left."""
    halvings = 0
    while (np.int64(1) << halvings) < size:
        halvings += 1
    return halvings


@jit
def leave_out(bits, first_bit, rows, count, null, places):
    """Gives rows without a value the last place."""
    keep_apart()
    for k in range(count):
        if not is_there(bits, first_bit + np.int64(get_half(rows, k))):
            put_half(places, k, np.int32(null))


@jit
def narrow(masks, words, count, places, axis):
    """Leaves in the mask of each row, of so many words, the filters that its place on an axis does not rule out."""
    keep_apart()
    if words == 1:
        for k in range(count):
            put(masks, k, get(masks, k) & get(axis, np.int64(get_half(places, k))))
        return
    for k in range(count):
        at = words * np.int64(get_half(places, k))
        for w in range(words):
            put(masks, k * words + w, get(masks, k * words + w) & get(axis, at + w))


@jit
def by_type(types, begin, end, starts, rows):
    """The events from `begin` to `end` type by type: where those of each type start, and which they are."""
    keep_apart()
    if len(starts) <= FEW_TYPES:
        at = 0
        for t in range(len(starts) - 1):
            starts[t] = at
            for i in range(begin, end):
                put_half(rows, at, np.int32(i))
                at += get_half(types, i) == t
        starts[len(starts) - 1] = at
        return
    # Events that nobody needs, of type -1, are gathered too, in front: which they are cannot be predicted.
    counts, at = starts.ctypes.data, np.int64(0)
    starts[:] = 0
    for i in range(begin, end):
        t = np.int64(get_half(types, i)) + 1
        put(counts, t, get(counts, t) + 1)
    for t in range(len(starts)):
        at, starts[t] = at + starts[t], at
    for i in range(begin, end):
        t = np.int64(get_half(types, i)) + 1
        put_half(rows, get(counts, t), np.int32(i))
        put(counts, t, get(counts, t) + 1)  # in the end, where the next one's start


@jit
def bits_set(masks, count):
    """How many bits of so many words are set."""
    keep_apart()
    total = 0
    for k in range(count):
        total += bit_count(get(masks, k))
    return total


@jit
def spread(masks, words, count, rows, ids, hits, found_filter, found_event, found):
    """A pair (filter, event) for each bit of the masks. Returns how many pairs there are now."""
    keep_apart()
    size = 0
    for k in range(count * words):
        put_half(hits, size, np.int32(k))
        size += get(masks, k) != 0
    for h in range(size):
        k = np.int64(get_half(hits, h))
        row, first = (k, 0) if words == 1 else (k // words, 64 * (k % words))
        rest = get(masks, k)
        while rest != 0:
            put(found_filter, found, get(ids, first + lowest_bit(rest)))
            put(found_event, found, np.int64(get_half(rows, row)))
            found += 1
            rest &= rest - 1
    return found


@jit
def run_programs(env, columns, column_of, types, ts, seq, residual, found_filter, found_event, found):
    """Of the pairs keeps those whose filters' programs hold. Returns how many pairs there are then."""
    keep_apart()
    kept, copied = 0, np.int64(-1)
    for p in range(found):
        program, i = residual[found_filter[p]], found_event[p]
        if program >= 0:
            if copied != i:
                copy_row(env, columns, column_of, np.int64(get_half(types, i)), ts, seq, i)
                copied = i
            put(get(env, FRAME), 0, 0)
            evaluate(env, program)
            if get(get(env, STACK), 0) == 0:
                continue
        found_filter[kept], found_event[kept] = found_filter[p], i
        kept += 1
    return kept


@jit
def in_order(found_filter, found_event, found, begin, end, passing, places, source, kept, pair_filter, pair_row, pairs):
    """Puts the pairs of a span into the order of events, behind those before. Returns (events that passed, pairs)."""
    keep_apart()
    for p in range(found):
        passing[found_event[p] - begin] += 1
    first = kept
    for i in range(begin, end):
        source[kept] = i
        kept += passing[i - begin] != 0
    for row in range(first, kept):
        i = source[row] - begin
        places[i] = pairs
        for _ in range(passing[i]):
            pair_row[pairs] = row
            pairs += 1
        passing[i] = 0
    for p in range(found):
        i = found_event[p] - begin
        pair_filter[places[i]] = found_filter[p]
        places[i] += 1
    return kept, pairs


@jit
def masks_of(f, block, t, columns, column_of, rows, count, masks, places):
    """Which filters of a block each row passes, as far as conditions on single attributes say it: a bit for each."""
    filters = f.block_filter_count[block]
    words = (filters + 63) >> 6
    axes = range(f.block_axes[block], f.block_axes[block] + f.block_axis_count[block])
    for w in range(words):
        left = filters - 64 * w
        every = np.int64(-1) if left >= 64 else (np.int64(1) << left) - 1
        for axis in axes:
            if column_of[t, f.axis_slot[axis]] < 0:
                null = words * (2 * f.axis_constant_count[axis] + 1)
                every &= np.int64(f.bits[f.axis_bits[axis] + null + w])
        for k in range(count):
            put(masks, k * words + w, every)
    for axis in axes:
        c = column_of[t, f.axis_slot[axis]]
        if c < 0:
            continue
        values, bits, first_bit = columns[c, VALUES], columns[c, BITS], columns[c, FIRST_BIT]
        constants, size = f.constants.ctypes.data + 8 * f.axis_constants[axis], f.axis_constant_count[axis]
        if f.axis_double[axis] != 0:
            places_of_doubles(values, rows, count, constants, size, places)
        else:
            places_of_words(values, rows, count, constants, size, places)
        if bits != 0:
            leave_out(bits, first_bit, rows, count, 2 * size + 1, places)
        narrow(masks, words, count, places, f.bits.ctypes.data + 8 * f.axis_bits[axis])


class Work(NamedTuple):
    """What `classify` writes to: for a span of events the pairs that are tried, then the events of each type and what
    they pass, then all pairs.
    """

    ready: Array
    tried: Array
    going: Array
    others: Array
    starts: Array
    rows: Array
    masks: Array
    near: Array
    passing: Array
    places: Array
    found_filter: Array
    found_event: Array
    pair_filter: Array
    pair_row: Array
    source: Array


def work_for(filters: Filters, count: int, room: int) -> Work:
    """Arrays for so many events and pairs."""
    types = len(filters.first_block)
    span = min(max(SPAN, 2 * types), max(count, 1))
    tries = span * filters.filters_most[0] + 1
    words = max(1, (int(filters.block_filter_count.max()) + 63) >> 6)
    return Work(
        np.empty((len(filters.steps) + 1, STEP_BYTES // 8), np.int64),
        np.empty(tries, np.int64),
        np.empty(tries, np.int64),
        np.empty(span + 1, np.int64),
        np.empty(types + 1, np.int64),
        np.empty(span + 1, np.int32),
        np.empty(span * words, np.int64),
        np.empty(span * words + 1, np.int32),
        np.zeros(span, np.int64),
        np.empty(span, np.int64),
        np.empty(room + tries, np.int64),
        np.empty(room + tries, np.int64),
        np.empty(room, np.int64),
        np.empty(room, np.int64),
        np.empty(count + 1, np.int64),
    )


@jit
def classify(f, env, columns, column_of, types, ts, seq, count, w):
    """Tests the batch's events against all filters of their types, in the columns where they are.

    Returns how many pairs (filter, event) may have to be told apart; if there is room for that, the events that passed
    some filter, and the pairs (filter, place among these) in the order of events; these stand in the work arrays `w`.
    For one event: each filter of its type if these are few, else a binary search for each attribute that some filter
    tests, and one word for every 64 filters. A program reads the event from the one row of the environment's store.
    """
    span, room, found_filter, found_event = len(w.passing), len(w.pair_filter), w.found_filter, w.found_event
    rows, near = w.rows.ctypes.data, w.near
    table, starts, masks = w.ready.ctypes.data, w.starts, w.masks.ctypes.data
    tried, goings, firsts, none = w.tried.ctypes.data, w.going.ctypes.data, f.firsts.ctypes.data, np.int64(0)
    some_few, some_many, some_programs = f.few.any(), not f.few.all(), f.has_program.any()
    kept, pairs, needed = 0, 0, 0
    if some_few:
        make_ready(f.steps, columns, column_of, ts, w.ready)
        none = np.int64(STEP_BYTES * len(f.steps))
    for begin in range(0, count, span):
        end = min(begin + span, count)
        found = 0
        if some_few:
            found, going = try_first(types, begin, end, firsts, table, none, tried, goings, w.others.ctypes.data)
            while going > 0:
                found, going = try_next(table, tried, found, goings, going)
            take_apart(tried, found, found_filter, found_event)
            needed += found
        if some_many:
            by_type(types, begin, end, starts, rows)
            for t in range(len(f.first_block)):
                mine, size = rows + 4 * starts[t], starts[t + 1] - starts[t]
                block = f.first_block[t] if size > 0 else np.int64(-1)
                while block >= 0:
                    if f.few[block] == 0:
                        words = (f.block_filter_count[block] + 63) >> 6
                        masks_of(f, block, t, columns, column_of, mine, size, masks, near.ctypes.data)
                        more = bits_set(masks, size * words)
                        needed += more
                        if more > 0 and needed <= room:
                            ids = f.filter_ids.ctypes.data + 8 * f.block_filters[block]
                            found = spread(
                                masks, words, size, mine, ids, near.ctypes.data, found_filter.ctypes.data,
                                found_event.ctypes.data, found,
                            )  # fmt: skip
                    block = f.next_block[block]
        if needed <= room:
            if some_programs:
                found = run_programs(
                    env, columns, column_of, types, ts, seq, f.residual, found_filter, found_event, found
                )
            kept, pairs = in_order(
                found_filter, found_event, found, begin, end, w.passing, w.places, w.source, kept, w.pair_filter,
                w.pair_row, pairs,
            )  # fmt: skip
    return needed, w.source[:kept], w.pair_filter[:pairs], w.pair_row[:pairs]


@jit
def fill_axis(bits, at, words, positions, filters, starts, relations, ranks_):
    """Writes an axis's rows of bits: at each position, the filters whose conditions on it all hold there.

    Condition c of filter k (`starts[k] <= c < starts[k+1]`) relates the value to constant `ranks_[c]`. Positions: 2r
    below constant r and above r-1, 2r+1 at constant r, the last one for null.
    """
    for position in range(positions):
        null = position == positions - 1
        for k in range(filters):
            holds = True
            for c in range(starts[k], starts[k + 1]):
                constant = 2 * ranks_[c] + 1
                if null or not order_holds(relations[c], position < constant, position == constant):
                    holds = False
                    break
            if holds:
                bits[at + position * words + (k >> 6)] |= ONE << np.uint64(k & 63)
