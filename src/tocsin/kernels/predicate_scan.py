# mypy: disable-error-code="no-untyped-def"
"""Evaluate the filters of types that have few filters, one filter after another.

A filter is a chain of *steps*, each a range test of one attribute. Each pair (filter, event) goes through the steps of
its filter until a step fails. There is no branch on the event's type or on the outcome of a test. Most pairs fail the
first step.
"""

from __future__ import annotations

import numpy as np

from tocsin.kernels.core import get, get_byte, get_half, jit, never_inline, put, small
from tocsin.kernels.layout import (
    SCAN_FILTER,
    SCAN_FLIP,
    SCAN_GREATEST,
    SCAN_LAST,
    SCAN_LEAST,
    SCAN_NEXT_FILTER,
    SCAN_SLOT,
    SCAN_TYPE,
)

# A column of a batch: the address of its values, the address of its validity bits (0 if all values are valid), the
# offset of the first bit, and whether the column holds doubles.
COLUMN_VALUES, COLUMN_VALIDITY, COLUMN_OFFSET, COLUMN_DOUBLE = range(4)
COLUMN_BYTES = 32


@small
def is_valid(validity, at):
    """Return whether the validity bit of the value at index `at` is set."""
    return (get_byte(validity, at >> 3) >> np.uint8(at & 7)) & 1 != 0


# A step that is bound to a batch: the address of the values, the address of the validity bits and the offset of the
# first bit, the bits to flip, the least and the greatest value, the filter, and the offset in bytes of the first step
# of the type's next filter. The lowest bit of that offset says whether this step is the last of its filter. The filter
# is in the upper half of its word, as in a pair (filter, event).
R_VALUES, R_VALIDITY, R_OFFSET, R_FLIP, R_LEAST, R_GREATEST, R_FILTER, R_NEXT_FILTER = range(8)
STEP_BYTES = 64
_EVENT = np.int64(0xFFFFFFFF)


@jit
def bind_steps(steps, columns, column_of, ts, bound):
    """Write each step to `bound`, with the addresses of the batch's columns.

    After the last step, a step is added that no event passes.
    """
    never_inline()
    for s in range(len(steps)):
        c = column_of[steps[s, SCAN_TYPE], steps[s, SCAN_SLOT]] if steps[s, SCAN_SLOT] >= 0 else np.int64(-1)
        missing = c < 0 and steps[s, SCAN_SLOT] >= 0
        bound[s, R_VALUES] = columns[c, COLUMN_VALUES] if c >= 0 else ts
        bound[s, R_VALIDITY] = columns[c, COLUMN_VALIDITY] if c >= 0 else 0
        bound[s, R_OFFSET] = columns[c, COLUMN_OFFSET] if c >= 0 else 0
        bound[s, R_FLIP] = steps[s, SCAN_FLIP]
        bound[s, R_LEAST] = 1 if missing else steps[s, SCAN_LEAST]
        bound[s, R_GREATEST] = 0 if missing else steps[s, SCAN_GREATEST]
        bound[s, R_FILTER] = steps[s, SCAN_FILTER] << 32
        bound[s, R_NEXT_FILTER] = STEP_BYTES * steps[s, SCAN_NEXT_FILTER] | steps[s, SCAN_LAST]
    nothing = bound[len(steps)]
    nothing[:] = 0
    nothing[R_VALUES], nothing[R_LEAST], nothing[R_NEXT_FILTER] = ts, 1, STEP_BYTES * len(steps)


@small
def passes(step, i):
    """Return 1 if event `i` passes a step, else 0."""
    x = get(get(step, R_VALUES), i)
    x ^= (x >> 63) & get(step, R_FLIP)
    passed = np.int64(x >= get(step, R_LEAST)) & np.int64(x <= get(step, R_GREATEST))
    if get(step, R_VALIDITY) != 0:
        passed &= np.int64(is_valid(get(step, R_VALIDITY), get(step, R_OFFSET) + i))
    return passed


@small
def scan_one(table, none, i, offset, hits, hit_count, going, going_count, others, other_count):
    """Evaluate the first step of a filter for event `i`, and return the new lengths of three lists of pairs.

    If the step passes, the pair is appended to `hits` if this is the only step of the filter, or else to `going`. The
    type's next filter, if there is one, is appended to `others`.
    """
    step = table + offset
    passed, other = passes(step, i), get(step, R_NEXT_FILTER)
    put(hits, hit_count, get(step, R_FILTER) | i)
    put(going, going_count, (offset + STEP_BYTES) << 32 | i)
    put(others, other_count, (other & -2) << 32 | i)
    return (
        hit_count + (passed & other),
        going_count + (passed & ~other & 1),
        other_count + np.int64((other & -2) != none),
    )


@jit
def scan_first(types, begin, end, firsts, table, none, hits, going, others):
    """Evaluate the first step of every filter for each event.

    First comes the first filter of each event's type, then the second filter, and so on. Returns the number of pairs
    (filter, event) that passed their only step, and the number of pairs that continue with the next step. All arguments
    are addresses, except `begin`, `end` and `none`, the offset of the step that no event passes.
    """
    never_inline()
    hit_count, going_count, other_count = np.int64(0), np.int64(0), np.int64(0)
    for i in range(begin, end):
        offset = np.int64(get_half(firsts, np.int64(get_half(types, i)) + 1))
        hit_count, going_count, other_count = scan_one(
            table, none, i, offset, hits, hit_count, going, going_count, others, other_count
        )
    while other_count > 0:
        count, other_count = other_count, np.int64(0)
        for k in range(count):
            pair = get(others, k)
            hit_count, going_count, other_count = scan_one(
                table, none, pair & _EVENT, pair >> 32, hits, hit_count, going, going_count, others, other_count
            )
    return hit_count, going_count


@jit
def scan_next(table, hits, hit_count, going, count):
    """Evaluate the next step of each pair in `going`.

    A pair that passes stays in `going`, or moves to `hits` if complete. Returns the numbers of pairs in `hits` and in
    `going`.
    """
    never_inline()
    going_count = np.int64(0)
    for k in range(count):
        pair = get(going, k)
        i, step = pair & _EVENT, table + (pair >> 32)
        passed, last = passes(step, i), get(step, R_NEXT_FILTER) & 1
        put(hits, hit_count, get(step, R_FILTER) | i)
        put(going, going_count, pair + (np.int64(STEP_BYTES) << 32))
        hit_count += passed & last
        going_count += passed & (1 - last)
    return hit_count, going_count


@jit
def split_pairs(pairs, count, hit_filter, hit_event):
    """Split pairs of one word into the filters and the events."""
    never_inline()
    for p in range(count):
        hit_filter[p], hit_event[p] = get(pairs, p) >> 32, get(pairs, p) & _EVENT
