# mypy: disable-error-code="no-untyped-def"
"""Event ids for whole columns, and a set of ids with times.

The functions compute the same hashes as `events.ids`, for many events at once. The state of a hash is two words, `high`
and `low`. *Folding* a value means mixing it into this state. The set of ids is a hash table with open addressing, whose
size is a power of two.
"""

from __future__ import annotations

import numpy as np

from tocsin.kernels.core import get_byte, get_unaligned, jit, small

FREE = -(2**63)
"""The time in a free cell of the table of ids."""


@jit
def insert_ids(table_high, table_low, table_ts, high, low, ts, new):
    """Insert the ids that the table lacks, and set `new` for each of them. Return the number of ids inserted."""
    mask = np.uint64(len(table_ts) - 1)
    count = 0
    for i in range(len(high)):
        at = high[i] & mask
        while table_ts[at] != FREE and (table_high[at] != high[i] or table_low[at] != low[i]):
            at = (at + np.uint64(1)) & mask
        if table_ts[at] == FREE:
            table_high[at], table_low[at], table_ts[at] = high[i], low[i], ts[i]
            new[i] = True
            count += 1
    return count


HIGH_SEED, LOW_SEED = np.uint64(0x746F6373696E2D61), np.uint64(0x746F6373696E2D62)


@small
def mix(word):
    """Return a word with scrambled bits, as a hash of `word`."""
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return word ^ (word >> np.uint64(31))


@small
def fold(high, low, word):
    """Return the hash state (high, low) after folding `word`, like `events.ids.fold`."""
    high = mix(high ^ word)
    low = mix(low + word * np.uint64(0x9E3779B97F4A7C15) + high)
    return high, low


@small
def head_of(data, size, begin, length):
    """Return the first eight bytes of a string as a word, padded with zeros."""
    if begin + 8 <= size:
        head = get_unaligned(data + begin)
        return head if length >= 8 else head & ((np.uint64(1) << np.uint64(8 * length)) - np.uint64(1))
    head = np.uint64(0)
    for k in range(min(length, 8)):
        head |= np.uint64(get_byte(data, begin + k)) << np.uint64(8 * k)
    return head


@small
def text_words(data, start, end):
    """Return the hash of the string between `start` and `end`, like `events.ids.text_words`."""
    a, b = HIGH_SEED, LOW_SEED
    for at in range(start, end, 8):
        a, b = fold(a, b, head_of(data.ctypes.data, len(data), at, end - at))
    return fold(a, b, np.uint64(end - start))


@jit
def fold_start(high, low, type_words, type_ids, ts, seq):
    """Begin the content id of each event with the hash of its type, ts and seq."""
    for i in range(len(high)):
        a, b = HIGH_SEED, LOW_SEED
        a, b = fold(a, b, type_words[type_ids[i], 0])
        a, b = fold(a, b, type_words[type_ids[i], 1])
        a, b = fold(a, b, np.uint64(ts[i]))
        high[i], low[i] = fold(a, b, np.uint64(seq[i]))


@jit
def fold_values(high, low, name, values, valid, source):
    """Fold a column of one-word values into the states `high` and `low` of the rows that have a value."""
    for i in range(len(high)):
        j = source[i]
        if valid[j]:
            a, b = fold(high[i], low[i], name[0])
            a, b = fold(a, b, name[1])
            high[i], low[i] = fold(a, b, np.uint64(values[j]))


@jit
def fold_strings(high, low, name, offsets, data, valid, source):
    """Fold a column of strings into the states `high` and `low` of the rows that have a value."""
    for i in range(len(high)):
        j = source[i]
        if valid[j]:
            a, b = fold(high[i], low[i], name[0])
            a, b = fold(a, b, name[1])
            c, d = text_words(data, offsets[j], offsets[j + 1])
            a, b = fold(a, b, c)
            high[i], low[i] = fold(a, b, d)


@jit
def string_identities(high, low, offsets, data, source):
    """Compute the hashes of the ids that a source gave as strings."""
    for i in range(len(high)):
        high[i], low[i] = text_words(data, offsets[source[i]], offsets[source[i] + 1])


@jit
def match_identities(rule_words, rules, rows, counts, high, low, out_high, out_low):
    """Compute the id of each match from its rule and its events, like `events.ids.match_words`."""
    for m in range(len(rules)):
        a, b = HIGH_SEED, LOW_SEED
        a, b = fold(a, b, rule_words[rules[m], 0])
        a, b = fold(a, b, rule_words[rules[m], 1])
        for p in range(counts[m]):
            a, b = fold(a, b, high[rows[m, p]])
            a, b = fold(a, b, low[rows[m, p]])
        out_high[m], out_low[m] = a, b


@small
def digits(word):
    """Return the lower half of a word as eight hexadecimal digits. The first digit is in the lowest byte."""
    word &= np.uint64(0xFFFFFFFF)
    word = (word >> np.uint64(16)) | (word << np.uint64(32)) & np.uint64(0x0000FFFF00000000)
    word = (word >> np.uint64(8)) & np.uint64(0x000000FF000000FF) | (word << np.uint64(16)) & np.uint64(
        0x00FF000000FF0000
    )
    upper = (word >> np.uint64(4)) & np.uint64(0x000F000F000F000F)
    word = upper | (word << np.uint64(8)) & np.uint64(0x0F000F000F000F00)
    letters = ((word + np.uint64(0x0606060606060606)) >> np.uint64(4)) & np.uint64(0x0101010101010101)
    return word + np.uint64(0x3030303030303030) + letters * np.uint64(39)


@jit
def hexadecimal(high, low, out):
    """Write each id as 32 hexadecimal digits, with eight digits in each word of `out`."""
    for i in range(len(high)):
        out[4 * i] = digits(high[i] >> np.uint64(32))
        out[4 * i + 1] = digits(high[i])
        out[4 * i + 2] = digits(low[i] >> np.uint64(32))
        out[4 * i + 3] = digits(low[i])
