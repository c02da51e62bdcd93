# mypy: disable-error-code="no-untyped-def"
"""Sort matches and events by time, and those of one time by rank or event id.

An *instant* is a pair (ts, seq). A *tie* is a set of events that have the same type and the same instant.
"""

from __future__ import annotations

import numpy as np

from tocsin.kernels.core import jit
from tocsin.kernels.layout import NONE


@jit
def order_matches(rows, ranks, most, ts, seq, order):
    """Sort matches by the instants of their last events, and matches of one instant by rank. Ranks are below `most`.

    The sort is stable and takes linear time, because it counts: first by rank, then by instant. Returns False if the
    rows themselves are not in order of time, as can happen with composite events that follow others.
    """
    low, high = rows[0], rows[0]
    for m in range(len(rows)):
        low, high = min(low, rows[m]), max(high, rows[m])
    instants = np.empty(high - low + 1, np.int32)
    instant = 0
    instants[0] = 0
    for row in range(low + 1, high + 1):
        if ts[row] < ts[row - 1] or (ts[row] == ts[row - 1] and seq[row] < seq[row - 1]):
            return False
        instant += ts[row] != ts[row - 1] or seq[row] != seq[row - 1]
        instants[row - low] = instant
    starts = np.zeros(most + 1, np.int64)
    for m in range(len(rows)):
        starts[ranks[m] + 1] += 1
    for rank in range(most):
        starts[rank + 1] += starts[rank]
    by_rank = np.empty(len(rows), np.int64)
    for m in range(len(rows)):
        by_rank[starts[ranks[m]]] = m
        starts[ranks[m]] += 1
    starts = np.zeros(instant + 2, np.int64)
    for m in range(len(rows)):
        starts[instants[rows[m] - low] + 1] += 1
    for before in range(instant + 1):
        starts[before + 1] += starts[before]
    for position in range(len(rows)):
        m = by_rank[position]
        at = instants[rows[m] - low]
        order[starts[at]] = m
        starts[at] += 1
    return True


@jit
def find_ties(origin, types, ts, seq, last_of_type, tied, before):
    """Find the events of `origin` that share their type and instant with another event. `origin` is in order of time.

    The positions of these events go to `tied`. For each of them, `before` gets the index of the previous event of its
    tie, or NONE for the first. `last_of_type` must be NONE for each type. Returns the number of events found.
    """
    begin, any_tied = 0, False
    for n in range(len(origin)):
        i = origin[n]
        if ts[i] != ts[origin[begin]] or seq[i] != seq[origin[begin]]:
            begin = n
        last = last_of_type[types[i]]
        last_of_type[types[i]] = n
        tied[n] = last >= begin
        if tied[n]:
            tied[last], before[n], any_tied = 1, last, True
        else:
            before[n] = NONE
    count = 0
    if any_tied:
        numbers = np.empty(len(origin), np.int64)
        for n in range(len(origin)):
            if tied[n]:
                numbers[n] = count
                before[count] = NONE if before[n] == NONE else numbers[before[n]]
                tied[count] = n
                count += 1
    return count


@jit
def order_ties(before, high, low, most, order):
    """Sort the events of each tie by id. `before` has the index of the previous event of the same tie.

    Returns False, with `order` incomplete, if an event would have to move past more than `most` others.
    """
    for n in range(len(before)):
        position, moves = n, 0
        while before[position] != NONE:
            other = order[before[position]]
            if high[other] < high[n] or (high[other] == high[n] and low[other] <= low[n]):
                break
            if moves == most:
                return False
            order[position] = other
            position = before[position]
            moves += 1
        order[position] = n
    return True


@jit
def count_ties(before, order, high, low, numbers):
    """Count how often the id of each event occurred earlier in its tie. Return whether any id occurred twice."""
    any_repeated = False
    for position in range(len(before)):
        event = order[position]
        numbers[event] = 0
        if before[position] != NONE:
            other = order[before[position]]
            if high[other] == high[event] and low[other] == low[event]:
                numbers[event], any_repeated = numbers[other] + 1, True
    return any_repeated


@jit
def follow(filters, rows, origin, filters_out, rows_out):
    """Write the pairs (filter, row) for rows in a new order, in which row n was row `origin[n]` before."""
    starts = np.zeros(len(origin) + 1, np.int64)
    for pair in range(len(rows)):
        starts[rows[pair] + 1] += 1
    for row in range(len(origin)):
        starts[row + 1] += starts[row]
    out = 0
    for row in range(len(origin)):
        for pair in range(starts[origin[row]], starts[origin[row] + 1]):
            filters_out[out], rows_out[out] = filters[pair], row
            out += 1
