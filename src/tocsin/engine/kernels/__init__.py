"""The loops: everything that is done once for each event, candidate or match, over primitive arrays, compiled once
and kept on disk.

Rules are tables here, never code: `layout` says what their words mean, `expressions` and `detection` interpret them.
Numba is used nowhere else.
"""

from __future__ import annotations

from tocsin.engine.kernels.cache import compiled_kernels
from tocsin.engine.kernels.layout import NONE, OWNER, Filters, Lists

with compiled_kernels():
    from tocsin.engine.kernels import (
        attempts,
        filters,
        groups,
        joins,
        ordering,
        plain,
        queries,
        seen,
        tries,
        values,
        windows,
    )
    from tocsin.engine.kernels.buffers import append, assign_lists, rebuild, rehash, room_needed, trim
    from tocsin.engine.kernels.combinations import use
    from tocsin.engine.kernels.contexts import arrive
    from tocsin.engine.kernels.detection import detect, project
    from tocsin.engine.kernels.filters import classify, fill_axis
    from tocsin.engine.kernels.hashing import (
        fold_start,
        fold_texts,
        fold_words,
        hexadecimal,
        match_identities,
        text_identities,
    )
    from tocsin.engine.kernels.intake import enter_texts, find_texts, load_column
    from tocsin.engine.kernels.kept import COMB_WORDS, SIZE, adopt, compact, held
    from tocsin.engine.kernels.memory import Array, Scratch, environment
    from tocsin.engine.kernels.notifications import notify

__all__ = [
    "COMB_WORDS",
    "NONE",
    "OWNER",
    "SIZE",
    "Array",
    "Filters",
    "Lists",
    "Scratch",
    "adopt",
    "append",
    "arrive",
    "assign_lists",
    "attempts",
    "classify",
    "compact",
    "detect",
    "enter_texts",
    "environment",
    "fill_axis",
    "filters",
    "find_texts",
    "fold_start",
    "fold_texts",
    "fold_words",
    "groups",
    "held",
    "hexadecimal",
    "joins",
    "load_column",
    "match_identities",
    "notify",
    "ordering",
    "plain",
    "project",
    "queries",
    "rebuild",
    "rehash",
    "room_needed",
    "seen",
    "text_identities",
    "tries",
    "trim",
    "use",
    "values",
    "windows",
]
