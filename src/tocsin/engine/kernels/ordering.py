# mypy: disable-error-code="no-untyped-def"
"""Matches of many rules in the order of time."""

from __future__ import annotations

import numpy as np

from tocsin.engine.kernels.memory import jit


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
