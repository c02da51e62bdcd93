# mypy: disable-error-code="no-untyped-def"
"""Load the columns of a batch into the store, and map strings to their dictionary codes.

The *store* keeps the attributes of events by column. The number of an attribute's column there is its *slot*.
"""

from __future__ import annotations

import numpy as np

from tocsin.kernels.core import bit_count, get, get_half, get_unaligned, jit, small
from tocsin.kernels.identity import head_of


@jit
def load_column(values, valid, base, column, column_valid, types, slot_of_type):
    """Copy a column of a batch to the slot in which the type of each event keeps that attribute."""
    for i in range(len(column)):
        t = types[i]
        if t >= 0:
            slot = slot_of_type[t]
            if slot >= 0:
                values[slot, base + i] = column[i]
                valid[slot, base + i] = column_valid[i]


# An entry of the hash table of strings has four words: the first eight bytes of the string; its last eight bytes; its
# length together with its offset in the bytes of the dictionary; and its code. The first two words and the length
# identify a string of up to sixteen bytes.
HEAD, TAIL, EXTENT, NUMBER = range(4)
ENTRY_WORDS = 4
EMPTY = -1
_LENGTH_BITS = 31
_LENGTH = np.int64((1 << _LENGTH_BITS) - 1)
_SPREAD_TAIL = np.uint64(0x9E3779B97F4A7C15)


@small
def ends_of(data, size, begin, length):
    """Return the first and the last eight bytes of a string as words. A shorter string is padded with zero bytes."""
    if begin + 8 <= size and begin + length >= 8:
        short = np.uint64(64) - np.uint64(8 * min(length, 8))
        if length == 0:
            return np.uint64(0), np.uint64(0)
        return get_unaligned(data + begin) << short, get_unaligned(data + begin + length - 8) >> short
    short = np.uint64(8 * (8 - min(length, 8)))
    if length == 0:
        return np.uint64(0), np.uint64(0)
    first = max(length - 8, 0)
    return head_of(data, size, begin, length) << short, head_of(data, size, begin + first, length - first)


@small
def bucket_of(data, size, begin, length, head, tail, spread, shift):
    """Return the cell of the hash table at which the search for a string begins.

    All bytes are hashed, because names that end in a number often have equal prefixes.
    """
    mixed = (head ^ (tail * _SPREAD_TAIL) ^ np.uint64(length)) * spread
    for at in range(8, length - 8, 8):
        mixed = (mixed ^ (mixed >> np.uint64(29)) ^ head_of(data, size, begin + at, length - at)) * spread
    return np.int64(mixed >> shift)


@small
def same_middle(data, size, begin, other, other_size, at, length):
    """Return whether two strings of equal length agree in the bytes between the first eight and the last eight."""
    for k in range(8, length - 8, 8):
        if head_of(data, size, begin + k, length - k) != head_of(other, other_size, at + k, length - k):
            return False
    return True


@jit
def find_strings(offsets, data, size, spread, table, string_data, used, missing, out):
    """Write the code of each string of a column to `out`, or `missing` if the string is not in the hash table.

    `offsets` and `data` are the addresses of the column's arrays, and `size` is the number of bytes of `data`. If
    `used` is not empty, the table entries of the strings found are marked there.
    """
    slots, mask = table.ctypes.data, len(table) - 1
    shift = np.uint64(64) - np.uint64(bit_count(mask))
    marking, string_address = len(used) > 0, string_data.ctypes.data
    begin = np.int64(get_half(offsets, 0))
    for i in range(len(out)):
        end = np.int64(get_half(offsets, i + 1))
        length = end - begin
        head, tail = ends_of(data, size, begin, length)
        at = bucket_of(data, size, begin, length, head, tail, spread, shift)
        code = missing
        entry = slots + 8 * ENTRY_WORDS * at
        while get(entry, EXTENT) != EMPTY:
            extent = get(entry, EXTENT)
            differ = (get(entry, HEAD) ^ np.int64(head)) | (get(entry, TAIL) ^ np.int64(tail))
            if differ | ((extent & _LENGTH) ^ length) == 0 and (
                length <= 16
                or same_middle(data, size, begin, string_address, len(string_data), extent >> _LENGTH_BITS, length)
            ):
                code = out.dtype.type(get(entry, NUMBER))
                if marking:
                    used[at] = 1
                break
            at = (at + 1) & mask
            entry = slots + 8 * ENTRY_WORDS * at
        out[i] = code
        begin = end


@jit
def insert_strings(offsets, string_data, codes, spread, table):
    """Fill the hash table `table` with distinct strings and their codes.

    Returns the sum of the distances between the cells of the strings and the cells at which their searches begin.
    """
    table[:, EXTENT] = EMPTY
    steps = 0
    mask = len(table) - 1
    shift = np.uint64(64) - np.uint64(bit_count(mask))
    data, size = string_data.ctypes.data, len(string_data)
    for i in range(len(codes)):
        begin, length = np.int64(offsets[i]), np.int64(offsets[i + 1] - offsets[i])
        head, tail = ends_of(data, size, begin, length)
        at = bucket_of(data, size, begin, length, head, tail, spread, shift)
        while table[at, EXTENT] != EMPTY:
            at = (at + 1) & mask
            steps += 1
        table[at, HEAD], table[at, TAIL] = np.int64(head), np.int64(tail)
        table[at, EXTENT], table[at, NUMBER] = length | (begin << _LENGTH_BITS), codes[i]
    return steps
