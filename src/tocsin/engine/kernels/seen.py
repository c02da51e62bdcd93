# mypy: disable-error-code="no-untyped-def"
"""A set of identities, with a time for each: open addressing in a table whose size is a power of two."""

from __future__ import annotations

import numpy as np

from tocsin.engine.kernels.memory import jit

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
