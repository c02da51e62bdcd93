# mypy: disable-error-code="no-untyped-def"
"""From a batch to the rows that some rule needs."""

from __future__ import annotations

import numpy as np

from tocsin.kernels.core import bit_count, get, get_anywhere, get_half, jit, small
from tocsin.kernels.identity import head_of


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


# A hash table of texts, four words an entry: the first eight bytes of the text, the last eight, its length with where
# it begins among the known bytes, and its number. A text of up to sixteen bytes is known by its first two words.
HEAD, TAIL, EXTENT, NUMBER = range(4)
ENTRY_WORDS = 4
EMPTY = -1
_LENGTH_BITS = 31
_LENGTH = np.int64((1 << _LENGTH_BITS) - 1)
_SPREAD_TAIL = np.uint64(0x9E3779B97F4A7C15)


@small
def ends_of(data, size, begin, length):
    """The first and the last eight bytes of a text; fewer stand at the upper end of the first word."""
    if begin + 8 <= size and begin + length >= 8:
        short = np.uint64(64) - np.uint64(8 * min(length, 8))
        if length == 0:
            return np.uint64(0), np.uint64(0)
        return get_anywhere(data + begin) << short, get_anywhere(data + begin + length - 8) >> short
    short = np.uint64(8 * (8 - min(length, 8)))
    if length == 0:
        return np.uint64(0), np.uint64(0)
    first = max(length - 8, 0)
    return head_of(data, size, begin, length) << short, head_of(data, size, begin + first, length - first)


@small
def place_of(data, size, begin, length, head, tail, spread, shift):
    """Where in a hash table of texts the search begins. Names that count begin alike, so all bytes matter."""
    mixed = (head ^ (tail * _SPREAD_TAIL) ^ np.uint64(length)) * spread
    for at in range(8, length - 8, 8):
        mixed = (mixed ^ (mixed >> np.uint64(29)) ^ head_of(data, size, begin + at, length - at)) * spread
    return np.int64(mixed >> shift)


@small
def same_middle(data, size, begin, other, other_size, at, length):
    """Whether two texts of one length are the same between their first and their last eight bytes."""
    for k in range(8, length - 8, 8):
        if head_of(data, size, begin + k, length - k) != head_of(other, other_size, at + k, length - k):
            return False
    return True


@jit
def find_texts(offsets, data, size, spread, table, known, seen, missing, out):
    """The number of each text in a column, `missing` for those that are not in the hash table.

    `offsets` and `data` are addresses, `size` the bytes there are. If there is room for that, notes which are found.
    """
    entries, mask = table.ctypes.data, len(table) - 1
    shift = np.uint64(64) - np.uint64(bit_count(mask))
    noting, known_at = len(seen) > 0, known.ctypes.data
    begin = np.int64(get_half(offsets, 0))
    for i in range(len(out)):
        end = np.int64(get_half(offsets, i + 1))
        length = end - begin
        head, tail = ends_of(data, size, begin, length)
        at = place_of(data, size, begin, length, head, tail, spread, shift)
        found = missing
        entry = entries + 8 * ENTRY_WORDS * at
        while get(entry, EXTENT) != EMPTY:
            extent = get(entry, EXTENT)
            differ = (get(entry, HEAD) ^ np.int64(head)) | (get(entry, TAIL) ^ np.int64(tail))
            if differ | ((extent & _LENGTH) ^ length) == 0 and (
                length <= 16 or same_middle(data, size, begin, known_at, len(known), extent >> _LENGTH_BITS, length)
            ):
                found = out.dtype.type(get(entry, NUMBER))
                if noting:
                    seen[at] = 1
                break
            at = (at + 1) & mask
            entry = entries + 8 * ENTRY_WORDS * at
        out[i] = found
        begin = end


@jit
def enter_texts(offsets, known, codes, spread, table):
    """Fills a hash table with texts that differ, and their numbers. Returns how far they are from their places."""
    table[:, EXTENT] = EMPTY
    steps = 0
    mask = len(table) - 1
    shift = np.uint64(64) - np.uint64(bit_count(mask))
    data, size = known.ctypes.data, len(known)
    for i in range(len(codes)):
        begin, length = np.int64(offsets[i]), np.int64(offsets[i + 1] - offsets[i])
        head, tail = ends_of(data, size, begin, length)
        at = place_of(data, size, begin, length, head, tail, spread, shift)
        while table[at, EXTENT] != EMPTY:
            at = (at + 1) & mask
            steps += 1
        table[at, HEAD], table[at, TAIL] = np.int64(head), np.int64(tail)
        table[at, EXTENT], table[at, NUMBER] = length | (begin << _LENGTH_BITS), codes[i]
    return steps
