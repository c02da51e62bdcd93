# mypy: disable-error-code="no-untyped-def"
"""From a batch to the rows that some rule needs."""

from __future__ import annotations

import numpy as np

from tocsin.engine.kernels.expressions import evaluate, order_holds
from tocsin.engine.kernels.hashing import head_of
from tocsin.engine.kernels.memory import (
    FRAME,
    PRESENT,
    SEQ,
    STACK,
    STRIDE,
    TS,
    WORDS,
    get,
    get_byte,
    get_double,
    get_half,
    jit,
    put,
    put_byte,
    put_double,
    small,
)

ONE = np.uint64(1)
SPREAD = np.uint64(0x9E3779B97F4A7C15)

# A column of a batch: the address of its values, that of the bits that say which are there (0: all are) and the first
# of these bits, and whether it holds doubles.
VALUES, BITS, FIRST_BIT, DOUBLE = range(4)


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


@small
def has_value(columns, c, i):
    """Whether a column has a value for event i. A double that is not finite is none."""
    bits = columns[c, BITS]
    if bits != 0:
        at = columns[c, FIRST_BIT] + i
        if (get_byte(bits, at >> 3) >> np.uint8(at & 7)) & 1 == 0:
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


@small
def position(columns, c, i, constants, constants_doubles, lo, count, double):
    """Where the value of event i stands among the constants of an axis: 2r below constant r, 2r + 1 at it, the last
    place for none."""
    if c < 0 or not has_value(columns, c, i):
        return 2 * count + 1
    # Halving without branches: which half is taken cannot be predicted.
    first, left = lo, count
    if double:
        x = get_double(columns[c, VALUES], i)
        while left > 1:
            half = left >> 1
            lo += half if constants_doubles[lo + half - 1] < x else 0
            left -= half
        hit = constants_doubles[lo] == x
        lo += 1 if constants_doubles[lo] < x else 0
    else:
        v = get(columns[c, VALUES], i)
        while left > 1:
            half = left >> 1
            lo += half if constants[lo + half - 1] < v else 0
            left -= half
        hit = constants[lo] == v
        lo += 1 if constants[lo] < v else 0
    return 2 * (lo - first) + np.int64(hit)


@jit
def classify(f, env, columns, column_of, types, ts, seq, start, count, to, source, pair_filter, pair_row):
    """Tests the batch's events against all filters of their types, in the columns where they are.

    Goes from event `start` until the pairs (filter, place in `source`) are full. Returns (next event, events that
    passed, pairs). For one event: a binary search for each attribute that some filter tests, and one word for every 64
    filters of its type. A program reads the event from the one row of the store in the environment.
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
    acc = np.zeros(8, np.uint64)
    for i in range(start, count):
        t = np.int64(get_half(types, i))
        if t < 0:
            continue
        first_pair = pairs
        copied = False
        block = first_block[t]
        while block >= 0:
            filters = block_filter_count[block]
            if pairs + filters > room:
                return i, kept, first_pair
            words = (filters + 63) >> 6
            for w in range(1, words):
                left = filters - 64 * w
                acc[w] = ~np.uint64(0) if left >= 64 else (ONE << np.uint64(left)) - ONE
            rest = ~np.uint64(0) if filters >= 64 else (ONE << np.uint64(filters)) - ONE
            for axis in range(block_axes[block], block_axes[block] + block_axis_count[block]):
                at = axis_bits[axis] + words * position(
                    columns, column_of[t, axis_slot[axis]], i, constants, constants_doubles, axis_constants[axis],
                    axis_constant_count[axis], axis_double[axis],
                )  # fmt: skip
                rest &= bits[at]
                for w in range(1, words):
                    acc[w] &= bits[at + w]
                if words == 1 and rest == 0:
                    break
            for w in range(words):
                if w:
                    rest = acc[w]
                while rest != 0:
                    low = rest & (~rest + ONE)
                    rest ^= low
                    k = 64 * w + bit_number(low)
                    filter_id = filter_ids[block_filters[block] + k]
                    if residual[filter_id] >= 0:
                        if not copied:
                            copy_row(env, columns, column_of, t, ts, seq, i)
                            copied = True
                        put(get(env, FRAME), 0, 0)
                        evaluate(env, residual[filter_id])
                        if get(get(env, STACK), 0) == 0:
                            continue
                    pair_filter[pairs] = filter_id
                    pair_row[pairs] = kept
                    pairs += 1
            block = next_block[block]
        if pairs > first_pair:
            source[kept] = i
            kept += 1
    return count, kept, pairs


@small
def same_bytes(data, begin, other, at, length):
    """Whether two texts of one length are the same from their ninth byte on."""
    for k in range(8, length):  # noqa: SIM110
        if get_byte(data, begin + k) != other[at + k]:
            return False
    return True


@small
def place_of(data, size, begin, length, head, mask):
    """Where in a hash table of texts the search begins. Names that count begin alike, so all bytes matter."""
    mixed = (head ^ np.uint64(length)) * SPREAD
    for at in range(8, length, 8):
        mixed = (mixed ^ (mixed >> np.uint64(29)) ^ head_of(data, size, begin + at, length - at)) * SPREAD
    return np.int64((mixed >> np.uint64(32)) & np.uint64(mask))


@jit
def find_texts(offsets, data, size, heads, lengths, begins, known, numbers, counts, missing, out):
    """The number of each text in a column, `missing` for those that are not in the hash table.

    `offsets` and `data` are addresses, `size` the bytes there are. If there is room for that, counts what is found.
    """
    mask = len(heads) - 1
    counting = len(counts) > 0
    for i in range(len(out)):
        begin = np.int64(get_half(offsets, i))
        length = np.int64(get_half(offsets, i + 1)) - begin
        head = head_of(data, size, begin, length)
        at = place_of(data, size, begin, length, head, mask)
        found = missing
        while lengths[at] >= 0:
            alike = heads[at] == head and lengths[at] == length
            if alike and (length <= 8 or same_bytes(data, begin, known, begins[at], length)):
                found = numbers[at]
                if counting:
                    counts[at] += 1
                break
            at = (at + 1) & mask
        out[i] = found


@jit
def enter_texts(offsets, known, codes, heads, lengths, begins, numbers):
    """Fills an empty hash table with texts that differ, and their numbers."""
    mask = len(heads) - 1
    data, size = known.ctypes.data, len(known)
    for i in range(len(codes)):
        begin, length = offsets[i], offsets[i + 1] - offsets[i]
        head = head_of(data, size, begin, length)
        at = place_of(data, size, begin, length, head, mask)
        while lengths[at] >= 0:
            at = (at + 1) & mask
        heads[at], lengths[at], begins[at], numbers[at] = head, length, begin, codes[i]


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
