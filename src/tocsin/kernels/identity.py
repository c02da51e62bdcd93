"""Identities over columns: the same as `events.ids`, for many events at once.

A set of identities, with a time for each: open addressing in a table whose size is a power of two.
"""

from __future__ import annotations

import numpy as np

from tocsin.kernels.core import get_anywhere, get_byte, jit, small

# mypy: disable-error-code="no-untyped-def"


FREE = -(2**63)
"""The time of a place that nobody has."""


@jit
def add_unseen(table_first, table_second, table_ts, first, second, ts, unseen):
    """Adds identities that are not there yet, and says which those are; returns how many."""
    mask = np.uint64(len(table_ts) - 1)
    count = 0
    for i in range(len(first)):
        at = first[i] & mask
        while table_ts[at] != FREE and (table_first[at] != first[i] or table_second[at] != second[i]):
            at = (at + np.uint64(1)) & mask
        if table_ts[at] == FREE:
            table_first[at], table_second[at], table_ts[at] = first[i], second[i], ts[i]
            unseen[i] = True
            count += 1
    return count


# mypy: disable-error-code="no-untyped-def"


FIRST_SEED, SECOND_SEED = np.uint64(0x746F6373696E2D61), np.uint64(0x746F6373696E2D62)


@small
def mix(word):
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return word ^ (word >> np.uint64(31))


@small
def fold(first, second, word):
    """`events.ids.fold` on machine words."""
    first = mix(first ^ word)
    second = mix(second + word * np.uint64(0x9E3779B97F4A7C15) + first)
    return first, second


@small
def head_of(data, size, begin, length):
    """The first eight bytes of a text, fewer filled up with zeros."""
    if begin + 8 <= size:
        head = get_anywhere(data + begin)
        return head if length >= 8 else head & ((np.uint64(1) << np.uint64(8 * length)) - np.uint64(1))
    head = np.uint64(0)
    for k in range(min(length, 8)):
        head |= np.uint64(get_byte(data, begin + k)) << np.uint64(8 * k)
    return head


@small
def text_words(data, start, end):
    """The identity of a text, `events.ids.text_words`."""
    a, b = FIRST_SEED, SECOND_SEED
    for at in range(start, end, 8):
        a, b = fold(a, b, head_of(data.ctypes.data, len(data), at, end - at))
    return fold(a, b, np.uint64(end - start))


@jit
def fold_start(first, second, type_words, type_ids, ts, seq):
    """Begins the content identities: type, ts, seq."""
    for i in range(len(first)):
        a, b = FIRST_SEED, SECOND_SEED
        a, b = fold(a, b, type_words[type_ids[i], 0])
        a, b = fold(a, b, type_words[type_ids[i], 1])
        a, b = fold(a, b, np.uint64(ts[i]))
        first[i], second[i] = fold(a, b, np.uint64(seq[i]))


@jit
def fold_words(first, second, name, words, present, source):
    """Takes a column of one-word values into the states of the rows that have one."""
    for i in range(len(first)):
        j = source[i]
        if present[j]:
            a, b = fold(first[i], second[i], name[0])
            a, b = fold(a, b, name[1])
            first[i], second[i] = fold(a, b, np.uint64(words[j]))


@jit
def fold_texts(first, second, name, offsets, data, present, source):
    """Takes a column of texts into the states of the rows that have one."""
    for i in range(len(first)):
        j = source[i]
        if present[j]:
            a, b = fold(first[i], second[i], name[0])
            a, b = fold(a, b, name[1])
            c, d = text_words(data, offsets[j], offsets[j + 1])
            a, b = fold(a, b, c)
            first[i], second[i] = fold(a, b, d)


@jit
def text_identities(first, second, offsets, data, source):
    """The identities of texts themselves: for ids that the source gave."""
    for i in range(len(first)):
        first[i], second[i] = text_words(data, offsets[source[i]], offsets[source[i] + 1])


@jit
def match_identities(rule_words, rules, parts, counts, first, second, out_first, out_second):
    """`events.ids.match_words` for each match."""
    for m in range(len(rules)):
        a, b = FIRST_SEED, SECOND_SEED
        a, b = fold(a, b, rule_words[rules[m], 0])
        a, b = fold(a, b, rule_words[rules[m], 1])
        for p in range(counts[m]):
            a, b = fold(a, b, first[parts[m, p]])
            a, b = fold(a, b, second[parts[m, p]])
        out_first[m], out_second[m] = a, b


@small
def digits(word):
    """The lower half of a word as eight hexadecimal digits, the first of them in the lowest byte."""
    word &= np.uint64(0xFFFFFFFF)
    word = (word >> np.uint64(16)) | (word << np.uint64(32)) & np.uint64(0x0000FFFF00000000)
    word = (word >> np.uint64(8)) & np.uint64(0x000000FF000000FF) | (word << np.uint64(16)) & np.uint64(
        0x00FF000000FF0000
    )
    high = (word >> np.uint64(4)) & np.uint64(0x000F000F000F000F)
    word = high | (word << np.uint64(8)) & np.uint64(0x0F000F000F000F00)
    letters = ((word + np.uint64(0x0606060606060606)) >> np.uint64(4)) & np.uint64(0x0101010101010101)
    return word + np.uint64(0x3030303030303030) + letters * np.uint64(39)


@jit
def hexadecimal(first, second, out):
    """Identities as 32 hexadecimal digits each, eight in each word."""
    for i in range(len(first)):
        out[4 * i] = digits(first[i] >> np.uint64(32))
        out[4 * i + 1] = digits(first[i])
        out[4 * i + 2] = digits(second[i] >> np.uint64(32))
        out[4 * i + 3] = digits(second[i])
