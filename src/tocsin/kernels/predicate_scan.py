# mypy: disable-error-code="no-untyped-def"
"""Does an event pass the filters of its type, where these are few? Each is tried, step by step, without a branch on
what an event is or what it passes; most events do not pass a first step.
"""

from __future__ import annotations

import numpy as np

from tocsin.kernels.core import get, get_byte, get_half, jit, keep_apart, put, small
from tocsin.kernels.layout import (
    TRY_FILTER,
    TRY_GREATEST,
    TRY_LAST,
    TRY_LEAST,
    TRY_OTHER,
    TRY_SLOT,
    TRY_TURNED,
    TRY_TYPE,
)

# A column of a batch: the address of its values, that of the bits that say which are there (0: all are) and the first
# of these bits, and whether it holds doubles.
VALUES, BITS, FIRST_BIT, DOUBLE = range(4)
COLUMN_BYTES = 32


@small
def is_there(bits, at):
    """Whether the bit that says that a value is there is set."""
    return (get_byte(bits, at >> 3) >> np.uint8(at & 7)) & 1 != 0


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
