# mypy: disable-error-code="no-untyped-def"
"""Identities over columns: the same as `events.ids`, for many events at once."""

from __future__ import annotations

import numpy as np

from tocsin.engine.kernels.memory import jit, small

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
def text_words(data, start, end):
    """The identity of a text, `events.ids.text_words`."""
    a, b = FIRST_SEED, SECOND_SEED
    for at in range(start, end, 8):
        word = np.uint64(0)
        for i in range(at, min(at + 8, end)):
            word |= np.uint64(data[i]) << np.uint64(8 * (i - at))
        a, b = fold(a, b, word)
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


@jit
def hexadecimal(first, second, out):
    """Identities as 32 hexadecimal digits each, into a flat array of bytes."""
    for i in range(len(first)):
        for lane in range(2):
            word = first[i] if lane == 0 else second[i]
            for k in range(16):
                digit = np.int64((word >> np.uint64(60 - 4 * k)) & np.uint64(15))
                out[32 * i + 16 * lane + k] = 48 + digit if digit < 10 else 87 + digit
