# mypy: disable-error-code="no-untyped-def"
"""Dead ends: which events need not be tried again in a search for combinations?

They are kept in a table, as (branch and row, the row beside, mark). The *mark* says how long they hold. A search whose
events are not confined has the mark of its arrival, and what it finds holds for all searches of that arrival; one with
fixed events has a mark of its own for what these have a part in. What can only depend on older events has the mark
LASTING, since those can only become fewer. The table forgets what it has no room for.
"""

from __future__ import annotations

import numpy as np

from tocsin.engine.kernels.hashing import mix
from tocsin.engine.kernels.layout import OWNER
from tocsin.engine.kernels.memory import jit, small

LASTING = np.int64(1)
"""The mark of dead ends for ever. Those of searches are greater."""


@small
def _slot(dead, branch, row, beside):
    mixed = mix(np.uint64(branch * OWNER + row) ^ mix(np.uint64(beside)))
    return np.int64(mixed & np.uint64(len(dead) - 2))


@small
def is_dead(dead, branch, row, beside, wide, mine):
    key = branch * OWNER + row
    at = _slot(dead, branch, row, beside)
    for i in range(at, at + 2):
        if dead[i, 0] == key and dead[i, 1] == beside:
            mark = dead[i, 2]
            if mark in (LASTING, wide, mine):
                return True
    return False


@jit
def bury(dead, branch, row, beside, mark):
    """Remembers a dead end, in the place of one that is forgotten or of less use."""
    key = branch * OWNER + row
    at = _slot(dead, branch, row, beside)
    chosen = at
    for i in range(at, at + 2):
        if dead[i, 0] == key and dead[i, 1] == beside:
            if dead[i, 2] == LASTING:
                return
            chosen = i
            break
        if dead[i, 2] != LASTING and (dead[chosen, 2] == LASTING or dead[i, 2] < dead[chosen, 2]):
            chosen = i
    dead[chosen, 0], dead[chosen, 1], dead[chosen, 2] = key, beside, mark
