# mypy: disable-error-code="no-untyped-def"
"""Skip lists of values with counts, and doubly linked lists of records.

A *skip list* keeps values that come and go in any order, and gives the least or the greatest of them. It has a node for
each distinct value, in order, with the count of that value. The count can be negative, because in a join more equal
values can leave than have come. A hash of the value decides on how many levels its node is. About a fourth of the nodes
of a level are in the next level too. A value is therefore found in logarithmic time on average, and equal values make
equal lists.

The links of a record in a *linked list* are the words at the offsets `next` and `before` of the record. The first and
the last record are in the words `head` and `tail` at the address `ends`. A record can be in several lists, with other
words for each list.
"""

from __future__ import annotations

import numpy as np

from tocsin.kernels.core import get, jit, never_inline, put, small
from tocsin.kernels.identity import mix
from tocsin.kernels.layout import C_MEMORY, C_NODES, LEVELS, NONE

V_VALUE, V_COUNT, V_LEVELS, V_NEXT = range(4)
"""The words of a node: the value, its count, the number of its levels, and the next node on each of these levels."""
_BEFORE = 980
"""The offset in the scratch memory at which the predecessors on each level are noted."""


@small
def beats(value, other, double, least):
    """Return whether `value` is less than `other`, or greater if `least` is false."""
    if double:
        x, y = np.int64(value).view(np.float64), np.int64(other).view(np.float64)
        return x < y if least else x > y
    return value < other if least else value > other


@jit
def add_count(memory, counts, at, value, double, least, change):
    """Add `change` to the count of `value` in the skip list whose level heads are at `at`.

    There must be room for a node.
    """
    never_inline()
    base = np.int64(at)
    for level in range(LEVELS - 1, -1, -1):
        while get(memory, base + level) >= 0 and beats(get(memory, get(memory, base + level)), value, double, least):
            base = get(memory, base + level) + V_NEXT
        put(memory, _BEFORE + level, base)
    node = get(memory, base)
    if node < 0 or beats(value, get(memory, node + V_VALUE), double, least):
        _insert(memory, counts, value, change)
        return
    count = get(memory, node + V_COUNT) + change
    put(memory, node + V_COUNT, count)
    if count == 0:
        for level in range(get(memory, node + V_LEVELS)):
            put(memory, get(memory, _BEFORE + level) + level, get(memory, node + V_NEXT + level))
        _free(memory, counts, node)


@small
def _insert(memory, counts, value, change):
    """Insert a node for `value` after the predecessors that `add_count` noted."""
    levels, bits = np.int64(1), mix(np.uint64(value))
    while levels < LEVELS and bits & np.uint64(3) == np.uint64(0):
        levels += 1
        bits >>= np.uint64(2)
    node = get(counts, C_NODES + levels - 1)
    if node >= 0:
        put(counts, C_NODES + levels - 1, get(memory, node))
    else:
        node = get(counts, C_MEMORY)
        put(counts, C_MEMORY, node + V_NEXT + levels)
    put(memory, node + V_VALUE, np.int64(value))
    put(memory, node + V_COUNT, np.int64(change))
    put(memory, node + V_LEVELS, levels)
    for level in range(levels):
        before = get(memory, _BEFORE + level) + level
        put(memory, node + V_NEXT + level, get(memory, before))
        put(memory, before, node)


@small
def _free(memory, counts, node):
    """Add a node to the free list for nodes of its number of levels."""
    levels = get(memory, node + V_LEVELS)
    put(memory, node, get(counts, C_NODES + levels - 1))
    put(counts, C_NODES + levels - 1, node)


@small
def first_of(memory, at):
    """Return the first node of a skip list with a positive count, or NONE if there is no such node."""
    node = get(memory, at)
    while node >= 0 and get(memory, node + V_COUNT) <= 0:
        node = get(memory, node + V_NEXT)
    return node


@jit
def clear_values(memory, counts, at):
    """Remove all values of a skip list."""
    never_inline()
    node = get(memory, at)
    while node >= 0:
        following = get(memory, node + V_NEXT)
        _free(memory, counts, node)
        node = following
    init_values(memory, at)


@small
def init_values(memory, at):
    """Make the skip list at `at` empty, without freeing nodes."""
    for level in range(LEVELS):
        put(memory, at + level, np.int64(NONE))


@jit
def values_of(memory, heads):
    """Return the values of a skip list, each followed by its count."""
    count, node = 0, memory[heads]
    while node >= 0:
        count, node = count + 1, memory[node + V_NEXT]
    out, node = np.empty(2 * count, np.int64), memory[heads]
    for k in range(count):
        out[2 * k], out[2 * k + 1] = memory[node + V_VALUE], memory[node + V_COUNT]
        node = memory[node + V_NEXT]
    return out


@small
def link(memory, record, older, next, before, ends, head, tail):
    """Insert `record` after the record `older`, or as the first of the list if `older` is NONE."""
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
    """Remove `record` from its list.

    Its own links stay, so that a loop that has reached `record` can go on from there.
    """
    older, following = get(memory, record + before), get(memory, record + next)
    if older >= 0:
        put(memory, older + next, following)
    else:
        put(ends, head, following)
    if following >= 0:
        put(memory, following + before, older)
    else:
        put(ends, tail, older)
