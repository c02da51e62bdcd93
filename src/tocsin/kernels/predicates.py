# mypy: disable-error-code="no-untyped-def, assignment"
"""Evaluate the filters of all rules on a batch with a bitmap index.

The result is a list of pairs (filter, event), one for each filter that an event passes. If a type has few filters, they
are scanned one after another (see `predicate_scan`). For all other types, the events are processed type by type and
attribute by attribute, so that what the events of a type have in common is looked up once.

Neither way branches on what the processor cannot predict: the type of an event, and the outcome of a test.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tocsin.kernels.core import (
    FRAME,
    SEQ,
    STACK,
    STRIDE,
    TS,
    VALID,
    VALUES,
    Array,
    bit_count,
    get,
    get_double,
    get_half,
    jit,
    lowest_bit,
    never_inline,
    put,
    put_byte,
    put_double,
    put_half,
    small,
)
from tocsin.kernels.expressions import evaluate, order_holds
from tocsin.kernels.layout import PredicateTables
from tocsin.kernels.predicate_scan import (
    COLUMN_DOUBLE,
    COLUMN_OFFSET,
    COLUMN_VALIDITY,
    COLUMN_VALUES,
    STEP_BYTES,
    bind_steps,
    is_valid,
    scan_first,
    scan_next,
    split_pairs,
)

ONE = np.uint64(1)

SPAN = 1 << 13
"""The number of events that are processed together, so that their intermediate results stay in the L1 cache."""

FEW_TYPES = 8
"""The largest number of types up to which events are grouped without a branch, in time proportional to that number."""


@small
def has_value(columns, c, i):
    """Return whether column `c` has a value for event `i`. A double that is not finite counts as null."""
    validity = columns[c, COLUMN_VALIDITY]
    if validity != 0 and not is_valid(validity, columns[c, COLUMN_OFFSET] + i):
        return False
    return columns[c, COLUMN_DOUBLE] == 0 or np.isfinite(get_double(columns[c, COLUMN_VALUES], i))


@small
def copy_row(env, columns, column_of, t, ts, seq, i):
    """Write event `i` of the batch to the first row of a store, so that a program can read it."""
    stride = get(env, STRIDE)
    put(get(env, TS), 0, get(ts, i))
    put(get(env, SEQ), 0, get(seq, i))
    for slot in range(column_of.shape[1]):
        c = column_of[t, slot]
        present = c >= 0 and has_value(columns, c, i)
        put_byte(get(env, VALID), slot * stride, present)
        if present and columns[c, COLUMN_DOUBLE] != 0:
            put_double(get(env, VALUES), slot * stride, get_double(columns[c, COLUMN_VALUES], i) + 0.0)
        elif present:
            put(get(env, VALUES), slot * stride, get(columns[c, COLUMN_VALUES], i))


# The position of a value among the constants of a bitmap index is 2r below constant r, 2r + 1 at constant r, and the
# last position for null. It is found by binary search in a table whose size is a power of two, padded with the largest
# value. The processor cannot predict which half is taken, so there must be no branch. The compiler would make a branch
# from `half if … else 0`.


@jit
def positions_of_doubles(values, rows, count, constants, size, positions):
    """Compute the position of each double among the constants. A double that is not finite counts as null."""
    never_inline()
    halvings = halvings_of(size)
    for k in range(count):
        x = get_double(values, np.int64(get_half(rows, k)))
        at = np.int64(0)
        for step in range(halvings - 1, -1, -1):
            at += np.int64(get_double(constants, at + (np.int64(1) << step) - 1) < x) << step
        constant = get_double(constants, at)
        at = 2 * at + 2 * np.int64(constant < x) + np.int64(constant == x)
        put_half(positions, k, np.int32(at if x - x == 0.0 else 2 * size + 1))


@jit
def positions_of_words(values, rows, count, constants, size, positions):
    """Compute the position among the constants of each value that is not a double."""
    never_inline()
    halvings = halvings_of(size)
    for k in range(count):
        v = get(values, np.int64(get_half(rows, k)))
        at = np.int64(0)
        for step in range(halvings - 1, -1, -1):
            at += np.int64(get(constants, at + (np.int64(1) << step) - 1) < v) << step
        constant = get(constants, at)
        at = 2 * at + 2 * np.int64(constant < v) + np.int64(constant == v)
        put_half(positions, k, np.int32(min(at, 2 * size)))  # the table is padded with the largest value


@small
def halvings_of(size):
    """Return how often a table for `size` constants is halved until one constant is left."""
    halvings = 0
    while (np.int64(1) << halvings) < size:
        halvings += 1
    return halvings


@jit
def mark_nulls(validity, offset, rows, count, null, positions):
    """Set the position of each row without a value to `null`, the last position."""
    never_inline()
    for k in range(count):
        if not is_valid(validity, offset + np.int64(get_half(rows, k))):
            put_half(positions, k, np.int32(null))


@jit
def apply_bitmaps(masks, words, count, positions, bitmaps):
    """AND the mask of each row with the bitmap of its position.

    The filters that the attribute does not rule out remain.
    """
    never_inline()
    if words == 1:
        for k in range(count):
            put(masks, k, get(masks, k) & get(bitmaps, np.int64(get_half(positions, k))))
        return
    for k in range(count):
        at = words * np.int64(get_half(positions, k))
        for w in range(words):
            put(masks, k * words + w, get(masks, k * words + w) & get(bitmaps, at + w))


@jit
def group_by_type(types, begin, end, starts, rows):
    """Group the events from `begin` to `end` by type. Write them to `rows`, and where each type starts to `starts`."""
    never_inline()
    if len(starts) <= FEW_TYPES:
        at = 0
        for t in range(len(starts) - 1):
            starts[t] = at
            for i in range(begin, end):
                put_half(rows, at, np.int32(i))
                at += get_half(types, i) == t
        starts[len(starts) - 1] = at
        return
    # Events of type -1, which no rule uses, are grouped too, at the front, because skipping them would need a branch.
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
        put(counts, t, get(counts, t) + 1)  # after the loop, this is the start of the next type


@jit
def count_bits(masks, count):
    """Return the number of set bits in the first `count` words of `masks`."""
    never_inline()
    total = 0
    for k in range(count):
        total += bit_count(get(masks, k))
    return total


@jit
def expand_masks(masks, words, count, rows, ids, nonzero, hit_filter, hit_event, hit_count):
    """Append a pair (filter, event) for each set bit of the masks. Return the new number of pairs."""
    never_inline()
    size = 0
    for k in range(count * words):
        put_half(nonzero, size, np.int32(k))
        size += get(masks, k) != 0
    for h in range(size):
        k = np.int64(get_half(nonzero, h))
        row, first = (k, 0) if words == 1 else (k // words, 64 * (k % words))
        rest = get(masks, k)
        while rest != 0:
            put(hit_filter, hit_count, get(ids, first + lowest_bit(rest)))
            put(hit_event, hit_count, np.int64(get_half(rows, row)))
            hit_count += 1
            rest &= rest - 1
    return hit_count


@jit
def run_programs(env, columns, column_of, types, ts, seq, residual, hit_filter, hit_event, hit_count):
    """Drop the pairs whose filter has a program that is not true for the event.

    Returns the number of pairs that remain.
    """
    never_inline()
    retained, copied = 0, np.int64(-1)
    for p in range(hit_count):
        program, i = residual[hit_filter[p]], hit_event[p]
        if program >= 0:
            if copied != i:
                copy_row(env, columns, column_of, np.int64(get_half(types, i)), ts, seq, i)
                copied = i
            put(get(env, FRAME), 0, 0)
            evaluate(env, program)
            if get(get(env, STACK), 0) == 0:
                continue
        hit_filter[retained], hit_event[retained] = hit_filter[p], i
        retained += 1
    return retained


@jit
def sort_pairs(
    hit_filter,
    hit_event,
    hit_count,
    begin,
    end,
    hits_of_event,
    pair_starts,
    source,
    selected,
    pair_filter,
    pair_row,
    pairs,
):
    """Append the pairs of a span in the order of events. Return the new numbers of selected events and of pairs."""
    never_inline()
    for p in range(hit_count):
        hits_of_event[hit_event[p] - begin] += 1
    first = selected
    for i in range(begin, end):
        source[selected] = i
        selected += hits_of_event[i - begin] != 0
    for row in range(first, selected):
        i = source[row] - begin
        pair_starts[i] = pairs
        for _ in range(hits_of_event[i]):
            pair_row[pairs] = row
            pairs += 1
        hits_of_event[i] = 0
    for p in range(hit_count):
        i = hit_event[p] - begin
        pair_filter[pair_starts[i]] = hit_filter[p]
        pair_starts[i] += 1
    return selected, pairs


@jit
def fill_masks(f, block, t, columns, column_of, rows, count, masks, positions):
    """Compute for each row a mask of the filters of a block whose tests of single attributes the row passes."""
    filters = f.block_filter_count[block]
    words = (filters + 63) >> 6
    bitmaps = range(f.block_bitmaps[block], f.block_bitmaps[block] + f.block_bitmap_count[block])
    for w in range(words):
        left = filters - 64 * w
        mask = np.int64(-1) if left >= 64 else (np.int64(1) << left) - 1
        for bitmap in bitmaps:
            if column_of[t, f.bitmap_slot[bitmap]] < 0:
                null = words * (2 * f.bitmap_constant_count[bitmap] + 1)
                mask &= np.int64(f.bits[f.bitmap_start[bitmap] + null + w])
        for k in range(count):
            put(masks, k * words + w, mask)
    for bitmap in bitmaps:
        c = column_of[t, f.bitmap_slot[bitmap]]
        if c < 0:
            continue
        values, validity, offset = columns[c, COLUMN_VALUES], columns[c, COLUMN_VALIDITY], columns[c, COLUMN_OFFSET]
        constants, size = f.constants.ctypes.data + 8 * f.bitmap_constants[bitmap], f.bitmap_constant_count[bitmap]
        if f.bitmap_double[bitmap] != 0:
            positions_of_doubles(values, rows, count, constants, size, positions)
        else:
            positions_of_words(values, rows, count, constants, size, positions)
        if validity != 0:
            mark_nulls(validity, offset, rows, count, 2 * size + 1, positions)
        apply_bitmaps(masks, words, count, positions, f.bits.ctypes.data + 8 * f.bitmap_start[bitmap])


class SelectionArrays(NamedTuple):
    """The output and scratch arrays of `evaluate_predicates`."""

    bound: Array
    scan_hits: Array
    going: Array
    others: Array
    starts: Array
    rows: Array
    masks: Array
    positions: Array
    hits_of_event: Array
    pair_starts: Array
    hit_filter: Array
    hit_event: Array
    pair_filter: Array
    pair_row: Array
    source: Array


def selection_arrays(filters: PredicateTables, count: int, room: int) -> SelectionArrays:
    """Return the arrays for `count` events and `room` pairs."""
    types = len(filters.first_block)
    span = min(max(SPAN, 2 * types), max(count, 1))
    scan_hits = span * filters.scan_filters_max[0] + 1
    words = max(1, (int(filters.block_filter_count.max()) + 63) >> 6)
    return SelectionArrays(
        np.empty((len(filters.scan_steps) + 1, STEP_BYTES // 8), np.int64),
        np.empty(scan_hits, np.int64),
        np.empty(scan_hits, np.int64),
        np.empty(span + 1, np.int64),
        np.empty(types + 1, np.int64),
        np.empty(span + 1, np.int32),
        np.empty(span * words, np.int64),
        np.empty(span * words + 1, np.int32),
        np.zeros(span, np.int64),
        np.empty(span, np.int64),
        np.empty(room + scan_hits, np.int64),
        np.empty(room + scan_hits, np.int64),
        np.empty(room, np.int64),
        np.empty(room, np.int64),
        np.empty(count + 1, np.int64),
    )


@jit
def evaluate_predicates(f, env, columns, column_of, types, ts, seq, count, w):
    """Test the events of a batch against all filters of their types. The columns of the batch are read in place.

    Returns the number of pairs (filter, event) for which there must be room. If there is enough, also returns the
    events that passed some filter, and the pairs (filter, index of the selected event) in the order of events. Both are
    in the arrays `w`.

    The time for an event is one test for each filter of its type if these are few. Otherwise it is a binary search for
    each tested attribute, and one word for 64 filters. Programs read the event from the only row of the environment's
    store.
    """
    span, room, hit_filter, hit_event = len(w.hits_of_event), len(w.pair_filter), w.hit_filter, w.hit_event
    rows, positions = w.rows.ctypes.data, w.positions
    table, starts, masks = w.bound.ctypes.data, w.starts, w.masks.ctypes.data
    scan_hits, goings, scan_starts, none = (
        w.scan_hits.ctypes.data,
        w.going.ctypes.data,
        f.scan_starts.ctypes.data,
        np.int64(0),
    )
    some_scanned, some_indexed, some_programs = f.scanned.any(), not f.scanned.all(), f.has_program.any()
    selected, pairs, needed = 0, 0, 0
    if some_scanned:
        bind_steps(f.scan_steps, columns, column_of, ts, w.bound)
        none = np.int64(STEP_BYTES * len(f.scan_steps))
    for begin in range(0, count, span):
        end = min(begin + span, count)
        hit_count = 0
        if some_scanned:
            hit_count, going = scan_first(
                types, begin, end, scan_starts, table, none, scan_hits, goings, w.others.ctypes.data
            )
            while going > 0:
                hit_count, going = scan_next(table, scan_hits, hit_count, goings, going)
            split_pairs(scan_hits, hit_count, hit_filter, hit_event)
            needed += hit_count
        if some_indexed:
            group_by_type(types, begin, end, starts, rows)
            for t in range(len(f.first_block)):
                mine, size = rows + 4 * starts[t], starts[t + 1] - starts[t]
                block = f.first_block[t] if size > 0 else np.int64(-1)
                while block >= 0:
                    if f.scanned[block] == 0:
                        words = (f.block_filter_count[block] + 63) >> 6
                        fill_masks(f, block, t, columns, column_of, mine, size, masks, positions.ctypes.data)
                        more = count_bits(masks, size * words)
                        needed += more
                        if more > 0 and needed <= room:
                            ids = f.filter_ids.ctypes.data + 8 * f.block_filters[block]
                            hit_count = expand_masks(
                                masks, words, size, mine, ids, positions.ctypes.data, hit_filter.ctypes.data,
                                hit_event.ctypes.data, hit_count,
                            )  # fmt: skip
                    block = f.next_block[block]
        if needed <= room:
            if some_programs:
                hit_count = run_programs(
                    env, columns, column_of, types, ts, seq, f.residual, hit_filter, hit_event, hit_count
                )
            selected, pairs = sort_pairs(
                hit_filter, hit_event, hit_count, begin, end, w.hits_of_event, w.pair_starts, w.source, selected,
                w.pair_filter, w.pair_row, pairs,
            )  # fmt: skip
    return needed, w.source[:selected], w.pair_filter[:pairs], w.pair_row[:pairs]


@jit
def fill_bitmaps(bits, at, words, positions, filters, starts, relations, ranks_):
    """Fill the bitmaps of an index with the filters whose tests of the attribute all hold at each position.

    The tests of filter k are `starts[k] <= c < starts[k+1]`, and test c compares the value with the constant
    `ranks_[c]`. Position 2r is below constant r and above constant r - 1, position 2r + 1 is at constant r, and the
    last one is null.
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
