"""Which is the least, or the greatest, of values that come and go in any order? A list with lanes for each aggregate.

Distinct values stand in order, each with how often it is there, which can be less than none: in a join more can leave
than had come. Of the nodes of a lane about every fourth is in the next one, as the value itself decides, so that a
value is found in logarithmic time on the average, and the same values make the same list.

How do records in one memory stand in a list? Each names the one behind and the one before it.

A record's neighbours are words of it, at `next` and `before`; where the list begins and ends is said by the words
`head` and `tail` at the address `ends`. One record can stand in several lists, each with words of its own.
"""

from __future__ import annotations

import numpy as np

from tocsin.kernels.core import get, jit, keep_apart, put, small
from tocsin.kernels.identity import mix
from tocsin.kernels.layout import C_MEMORY, C_NODES, LANES, NONE

# mypy: disable-error-code="no-untyped-def"


V_VALUE, V_COUNT, V_LANES, V_NEXT = range(4)
"""A node: the value, how often it is there, in how many lanes it stands, and the next one in each of them."""
_BEFORE = 980
"""Where it is noted, in the scratch memory, behind what a value stands in each lane."""


@small
def beats(word, other, double, least):
    """Whether a value is less than another, or greater if the greatest is asked for."""
    if double:
        x, y = np.int64(word).view(np.float64), np.int64(other).view(np.float64)
        return x < y if least else x > y
    return word < other if least else word > other


@jit
def tally(memory, counts, at, word, double, least, more):
    """Lets a value be there so many times more, or less. There is room for a node; `at`: the heads of the lanes."""
    keep_apart()
    base = np.int64(at)
    for lane in range(LANES - 1, -1, -1):
        while get(memory, base + lane) >= 0 and beats(get(memory, get(memory, base + lane)), word, double, least):
            base = get(memory, base + lane) + V_NEXT
        put(memory, _BEFORE + lane, base)
    node = get(memory, base)
    if node < 0 or beats(word, get(memory, node + V_VALUE), double, least):
        _put_in(memory, counts, word, more)
        return
    count = get(memory, node + V_COUNT) + more
    put(memory, node + V_COUNT, count)
    if count == 0:
        for lane in range(get(memory, node + V_LANES)):
            put(memory, get(memory, _BEFORE + lane) + lane, get(memory, node + V_NEXT + lane))
        _free(memory, counts, node)


@small
def _put_in(memory, counts, word, more):
    lanes, bits = np.int64(1), mix(np.uint64(word))
    while lanes < LANES and bits & np.uint64(3) == np.uint64(0):
        lanes += 1
        bits >>= np.uint64(2)
    node = get(counts, C_NODES + lanes - 1)
    if node >= 0:
        put(counts, C_NODES + lanes - 1, get(memory, node))
    else:
        node = get(counts, C_MEMORY)
        put(counts, C_MEMORY, node + V_NEXT + lanes)
    put(memory, node + V_VALUE, np.int64(word))
    put(memory, node + V_COUNT, np.int64(more))
    put(memory, node + V_LANES, lanes)
    for lane in range(lanes):
        before = get(memory, _BEFORE + lane) + lane
        put(memory, node + V_NEXT + lane, get(memory, before))
        put(memory, before, node)


@small
def _free(memory, counts, node):
    lanes = get(memory, node + V_LANES)
    put(memory, node, get(counts, C_NODES + lanes - 1))
    put(counts, C_NODES + lanes - 1, node)


@small
def first_of(memory, at):
    """The node of the first value that is there, NONE if there is none."""
    node = get(memory, at)
    while node >= 0 and get(memory, node + V_COUNT) <= 0:
        node = get(memory, node + V_NEXT)
    return node


@jit
def forget_values(memory, counts, at):
    """Empties a list."""
    keep_apart()
    node = get(memory, at)
    while node >= 0:
        following = get(memory, node + V_NEXT)
        _free(memory, counts, node)
        node = following
    begin_values(memory, at)


@small
def begin_values(memory, at):
    """Makes a list that is empty."""
    for lane in range(LANES):
        put(memory, at + lane, np.int64(NONE))


@jit
def values_of(memory, heads):
    """The values of a list and how often they are there, one after another."""
    count, node = 0, memory[heads]
    while node >= 0:
        count, node = count + 1, memory[node + V_NEXT]
    out, node = np.empty(2 * count, np.int64), memory[heads]
    for k in range(count):
        out[2 * k], out[2 * k + 1] = memory[node + V_VALUE], memory[node + V_COUNT]
        node = memory[node + V_NEXT]
    return out


# mypy: disable-error-code="no-untyped-def"


@small
def link(memory, record, older, next, before, ends, head, tail):
    """Puts a record behind another; behind NONE it is the first."""
    following = get(memory, older + next) if older >= 0 else get(ends, head)
    put(memory, record + before, older)
    put(memory, record + next, following)
    if older >= 0:
        put(memory, older + next, record)
    else:
        put(ends, head, record)
    if following >= 0:
        put(memory, following + before, record)
    else:
        put(ends, tail, record)


@small
def unlink(memory, record, next, before, ends, head, tail):
    """Takes a record out of its list. It still leads to the one behind it."""
    older, following = get(memory, record + before), get(memory, record + next)
    if older >= 0:
        put(memory, older + next, following)
    else:
        put(ends, head, following)
    if following >= 0:
        put(memory, following + before, older)
    else:
        put(ends, tail, older)
