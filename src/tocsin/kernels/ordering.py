# mypy: disable-error-code="no-untyped-def"
"""Matches of many rules in the order of time."""

from __future__ import annotations

import numpy as np

from tocsin.kernels.core import jit
from tocsin.kernels.layout import NONE


@jit
def order_matches(rows, ranks, most, ts, seq, order):
    """How to sort matches by the instants of their last events, and those of an instant by rank, which is below `most`.

    Equals stay as they are. Linear: counts by rank, then by instant. False if the rows do not stand in order of time
    themselves, as those of composite events behind others.
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
    for place in range(len(rows)):
        m = by_rank[place]
        at = instants[rows[m] - low]
        order[starts[at]] = m
        starts[at] += 1
    return True


@jit
def find_twins(origin, types, ts, seq, seen, tied, before):
    """Finds those events at `origin`, which are in order of time, that another one of their type and instant is beside.

    Their places go to `tied`, and to `before` for each of them which of them is the last such one before it, NONE if it
    is the first. `seen` is NONE for each type. Returns how many there are.
    """
    begin, some = 0, False
    for n in range(len(origin)):
        i = origin[n]
        if ts[i] != ts[origin[begin]] or seq[i] != seq[origin[begin]]:
            begin = n
        last = seen[types[i]]
        seen[types[i]] = n
        tied[n] = last >= begin
        if tied[n]:
            tied[last], before[n], some = 1, last, True
        else:
            before[n] = NONE
    count = 0
    if some:
        numbers = np.empty(len(origin), np.int64)
        for n in range(len(origin)):
            if tied[n]:
                numbers[n] = count
                before[count] = NONE if before[n] == NONE else numbers[before[n]]
                tied[count] = n
                count += 1
    return count


@jit
def order_twins(before, first, second, most, order):
    """How to sort events, those that are twins by their identity. `before` has which is the last one before each.

    Returns whether `order` says it, which is not so if one would have to go before more than `most` others.
    """
    for n in range(len(before)):
        place, steps = n, 0
        while before[place] != NONE:
            other = order[before[place]]
            if first[other] < first[n] or (first[other] == first[n] and second[other] <= second[n]):
                break
            if steps == most:
                return False
            order[place] = other
            place = before[place]
            steps += 1
        order[place] = n
    return True


@jit
def count_twins(before, order, first, second, numbers):
    """Counts how often the identity of each twin came before among its twins in order. Returns whether some did."""
    some = False
    for place in range(len(before)):
        event = order[place]
        numbers[event] = 0
        if before[place] != NONE:
            other = order[before[place]]
            if first[other] == first[event] and second[other] == second[event]:
                numbers[event], some = numbers[other] + 1, True
    return some


@jit
def follow(filters, rows, origin, filters_out, rows_out):
    """Pairs (filter, row), in order of the rows, for rows of which number n was number `origin[n]`."""
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
