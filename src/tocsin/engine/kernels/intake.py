# mypy: disable-error-code="no-untyped-def"
"""From a batch to the rows that some rule needs."""

from __future__ import annotations

import numpy as np

from tocsin.engine.kernels.expressions import evaluate, order_holds
from tocsin.engine.kernels.memory import FRAME, STACK, get, jit, put, small

ONE = np.uint64(1)


@jit
def load_column(words, present, base, column, has, types, slot_of_type):
    """Copies a column of the batch to where each event's type keeps that attribute."""
    for i in range(len(column)):
        t = types[i]
        if t >= 0:
            slot = slot_of_type[t]
            if slot >= 0:
                words[slot, base + i] = column[i]
                present[slot, base + i] = has[i]


@jit
def classify(f, env, ts, seq, words_of, doubles, present, types, base, start, count, to, source, pair_filter, pair_row):
    """Tests the batch's events, loaded at `base`, against all filters of their types, and moves those that pass any
    down to `base`.

    Goes from event `start` until the pairs (filter, row) are full. Returns (next event, rows kept, pairs). For one
    event: a binary search for each attribute that some filter tests, and one word for every 64 filters of its type.
    """
    (
        first_block,
        next_block,
        block_axes,
        block_axis_count,
        block_filters,
        block_filter_count,
        axis_slot,
        axis_double,
        axis_constants,
        axis_constant_count,
        axis_bits,
        constants,
        constants_doubles,
        bits,
        filter_ids,
        residual,
    ) = f
    kept, pairs = to, 0
    room = len(pair_filter)
    width = words_of.shape[0]
    acc = np.zeros(8, np.uint64)
    for i in range(start, count):
        row = base + i
        t = types[row]
        if t < 0:
            continue
        first_pair = pairs
        block = first_block[t]
        while block >= 0:
            filters = block_filter_count[block]
            if pairs + filters > room:
                return i, kept, first_pair
            words = (filters + 63) >> 6
            for w in range(words):
                left = filters - 64 * w
                acc[w] = ~np.uint64(0) if left >= 64 else (ONE << np.uint64(left)) - ONE
            for axis in range(block_axes[block], block_axes[block] + block_axis_count[block]):
                slot = axis_slot[axis]
                count_here = axis_constant_count[axis]
                if present[slot, row] == 0:
                    at = 2 * count_here + 1
                else:
                    # Halving without branches: which half is taken cannot be predicted.
                    lo, left = axis_constants[axis], count_here
                    if axis_double[axis]:
                        x = doubles[slot, row]
                        while left > 1:
                            half = left >> 1
                            lo += half if constants_doubles[lo + half - 1] < x else 0
                            left -= half
                        hit = constants_doubles[lo] == x
                        lo += 1 if constants_doubles[lo] < x else 0
                    else:
                        v = words_of[slot, row]
                        while left > 1:
                            half = left >> 1
                            lo += half if constants[lo + half - 1] < v else 0
                            left -= half
                        hit = constants[lo] == v
                        lo += 1 if constants[lo] < v else 0
                    at = 2 * (lo - axis_constants[axis]) + np.int64(hit)
                row_of_bits = axis_bits[axis] + at * words
                for w in range(words):
                    acc[w] &= bits[row_of_bits + w]
            for w in range(words):
                rest = acc[w]
                while rest != 0:
                    low = rest & (~rest + ONE)
                    rest ^= low
                    k = 64 * w + bit_number(low)
                    filter_id = filter_ids[block_filters[block] + k]
                    if residual[filter_id] >= 0:
                        put(get(env, FRAME), 0, row)
                        evaluate(env, residual[filter_id])
                        if get(get(env, STACK), 0) == 0:
                            continue
                    pair_filter[pairs] = filter_id
                    pair_row[pairs] = base + kept
                    pairs += 1
            block = next_block[block]
        if pairs > first_pair:
            target = base + kept
            source[kept] = i
            if target != row:
                ts[target] = ts[row]
                seq[target] = seq[row]
                types[target] = t
                for slot in range(width):
                    words_of[slot, target] = words_of[slot, row]
                    present[slot, target] = present[slot, row]
            kept += 1
    return count, kept, pairs


@small
def bit_number(bit):
    """Which bit it is, of a word with one bit set."""
    n = 0
    if bit & np.uint64(0xFFFFFFFF00000000):
        n += 32
    if bit & np.uint64(0xFFFF0000FFFF0000):
        n += 16
    if bit & np.uint64(0xFF00FF00FF00FF00):
        n += 8
    if bit & np.uint64(0xF0F0F0F0F0F0F0F0):
        n += 4
    if bit & np.uint64(0xCCCCCCCCCCCCCCCC):
        n += 2
    if bit & np.uint64(0xAAAAAAAAAAAAAAAA):
        n += 1
    return n


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
