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

from tocsin.engine.kernels.expressions import evaluate, order_holds
from tocsin.engine.kernels.layout import (
    TRY_FILTER,
    TRY_GREATEST,
    TRY_LAST,
    TRY_LEAST,
    TRY_OTHER,
    TRY_SLOT,
    TRY_TURNED,
    TRY_TYPE,
    Filters,
)
from tocsin.engine.kernels.memory import (
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
    get_byte,
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

ONE = np.uint64(1)

SPAN = 1 << 13
"""How many events are looked at together: what is known of them so far stays in the nearest cache."""

FEW_TYPES = 8
"""Up to how many types are gathered one by one, in time proportional to their number, but without any branch."""

# A column of a batch: the address of its values, that of the bits that say which are there (0: all are) and the first
# of these bits, and whether it holds doubles.
VALUES, BITS, FIRST_BIT, DOUBLE = range(4)
COLUMN_BYTES = 32


@small
def is_there(bits, at):
    """Whether the bit that says that a value is there is set."""
    return (get_byte(bits, at >> 3) >> np.uint8(at & 7)) & 1 != 0


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


# A step as it is tried: where the values are, the bits that say which are there and the first of these, the bits to
# turn, the least and the greatest word, the filter, and where the first step of the type's next filter is; the lowest
# bit of that says whether this step is the last of its own. Filters stand in the upper half of a word, as in a pair
# with an event, and places of steps are counted in bytes.
R_VALUES, R_BITS, R_FIRST_BIT, R_TURNED, R_LEAST, R_GREATEST, R_FILTER, R_OTHER = range(8)
STEP_BYTES = 64
_EVENT = np.int64(0xFFFFFFFF)


@jit
def make_ready(steps, columns, column_of, ts, ready):
    """Says for each step where its values are. Behind the last stands one that nothing passes."""
    keep_apart()
    for s in range(len(steps)):
        c = column_of[steps[s, TRY_TYPE], steps[s, TRY_SLOT]] if steps[s, TRY_SLOT] >= 0 else np.int64(-1)
        missing = c < 0 and steps[s, TRY_SLOT] >= 0
        ready[s, R_VALUES] = columns[c, VALUES] if c >= 0 else ts
        ready[s, R_BITS] = columns[c, BITS] if c >= 0 else 0
        ready[s, R_FIRST_BIT] = columns[c, FIRST_BIT] if c >= 0 else 0
        ready[s, R_TURNED] = steps[s, TRY_TURNED]
        ready[s, R_LEAST] = 1 if missing else steps[s, TRY_LEAST]
        ready[s, R_GREATEST] = 0 if missing else steps[s, TRY_GREATEST]
        ready[s, R_FILTER] = steps[s, TRY_FILTER] << 32
        ready[s, R_OTHER] = STEP_BYTES * steps[s, TRY_OTHER] | steps[s, TRY_LAST]
    nothing = ready[len(steps)]
    nothing[:] = 0
    nothing[R_VALUES], nothing[R_LEAST], nothing[R_OTHER] = ts, 1, STEP_BYTES * len(steps)


@small
def passes(step, i):
    """1 if event i passes a step, else 0."""
    x = get(get(step, R_VALUES), i)
    x ^= (x >> 63) & get(step, R_TURNED)
    passed = np.int64(x >= get(step, R_LEAST)) & np.int64(x <= get(step, R_GREATEST))
    if get(step, R_BITS) != 0:
        passed &= np.int64(is_there(get(step, R_BITS), get(step, R_FIRST_BIT) + i))
    return passed


@small
def try_one(table, none, i, place, found, founds, going, goings, others, more):
    """Tries the first step of a filter. Notes the pair as found, or as going on, and the type's next filter."""
    step = table + place
    passed, other = passes(step, i), get(step, R_OTHER)
    put(found, founds, get(step, R_FILTER) | i)
    put(going, goings, (place + STEP_BYTES) << 32 | i)
    put(others, more, (other & -2) << 32 | i)
    return founds + (passed & other), goings + (passed & ~other & 1), more + np.int64((other & -2) != none)


@jit
def try_first(types, begin, end, firsts, table, none, found, going, others):
    """Tries the first step of each filter of each event: of the first filters of all types, then of the second ones, ….

    Returns how many pairs of a filter and an event have passed their only step, and how many go on to the next one. All
    is addresses, but the first and the last event; `none` is the place of the step that nothing passes.
    """
    keep_apart()
    founds, goings, more = np.int64(0), np.int64(0), np.int64(0)
    for i in range(begin, end):
        place = np.int64(get_half(firsts, np.int64(get_half(types, i)) + 1))
        founds, goings, more = try_one(table, none, i, place, found, founds, going, goings, others, more)
    while more > 0:
        count, more = more, np.int64(0)
        for k in range(count):
            pair = get(others, k)
            founds, goings, more = try_one(
                table, none, pair & _EVENT, pair >> 32, found, founds, going, goings, others, more
            )
    return founds, goings


@jit
def try_next(table, found, founds, going, count):
    """Tries the step of each pair. Those that pass go on to the next one, in the same place, or that was their last.

    Returns how many have passed all steps up to now, and how many go on.
    """
    keep_apart()
    goings = np.int64(0)
    for k in range(count):
        pair = get(going, k)
        i, step = pair & _EVENT, table + (pair >> 32)
        passed, last = passes(step, i), get(step, R_OTHER) & 1
        put(found, founds, get(step, R_FILTER) | i)
        put(going, goings, pair + (np.int64(STEP_BYTES) << 32))
        founds += passed & last
        goings += passed & (1 - last)
    return founds, goings


@jit
def take_apart(pairs, count, found_filter, found_event):
    """Pairs as filters and events."""
    keep_apart()
    for p in range(count):
        found_filter[p], found_event[p] = get(pairs, p) >> 32, get(pairs, p) & _EVENT


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
