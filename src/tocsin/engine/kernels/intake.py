# mypy: disable-error-code="no-untyped-def"
"""From a batch to the rows that some rule needs."""

from __future__ import annotations

import numpy as np

from tocsin.engine.kernels.hashing import head_of
from tocsin.engine.kernels.memory import get_half, jit, small


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
def same_rest(data, size, begin, other, other_size, at, length):
    """Whether two texts of one length are the same from their ninth byte on."""
    for k in range(8, length, 8):
        if head_of(data, size, begin + k, length - k) != head_of(other, other_size, at + k, length - k):
            return False
    return True


@small
def place_of(data, size, begin, length, head, spread, mask):
    """Where in a hash table of texts the search begins. Names that count begin alike, so all bytes matter."""
    mixed = (head ^ np.uint64(length)) * spread
    for at in range(8, length, 8):
        mixed = (mixed ^ (mixed >> np.uint64(29)) ^ head_of(data, size, begin + at, length - at)) * spread
    return np.int64((mixed >> np.uint64(32)) & np.uint64(mask))


@jit
def find_texts(offsets, data, size, spread, heads, lengths, begins, known, numbers, counts, missing, out):
    """The number of each text in a column, `missing` for those that are not in the hash table.

    `offsets` and `data` are addresses, `size` the bytes there are. If there is room for that, counts what is found.
    """
    mask = len(heads) - 1
    counting, known_at = len(counts) > 0, known.ctypes.data
    for i in range(len(out)):
        begin = np.int64(get_half(offsets, i))
        length = np.int64(get_half(offsets, i + 1)) - begin
        head = head_of(data, size, begin, length)
        at = place_of(data, size, begin, length, head, spread, mask)
        found = missing
        while lengths[at] >= 0:
            alike = heads[at] == head and lengths[at] == length
            if alike and (length <= 8 or same_rest(data, size, begin, known_at, len(known), begins[at], length)):
                found = numbers[at]
                if counting:
                    counts[at] += 1
                break
            at = (at + 1) & mask
        out[i] = found


@jit
def enter_texts(offsets, known, codes, spread, heads, lengths, begins, numbers):
    """Fills a hash table with texts that differ, and their numbers. Returns how far they are from their places."""
    lengths[:] = -1
    steps = 0
    mask = len(heads) - 1
    data, size = known.ctypes.data, len(known)
    for i in range(len(codes)):
        begin, length = offsets[i], offsets[i + 1] - offsets[i]
        head = head_of(data, size, begin, length)
        at = place_of(data, size, begin, length, head, spread, mask)
        while lengths[at] >= 0:
            at = (at + 1) & mask
            steps += 1
        heads[at], lengths[at], begins[at], numbers[at] = head, length, begin, codes[i]
    return steps
