"""The loops: everything that is done once for each event, candidate or match, over primitive arrays, compiled once
and kept on disk.

Rules are tables here, never code: `layout` says what their words mean, `expressions` and `detection` interpret them.
Numba is used nowhere else.
"""

from __future__ import annotations

from tocsin.kernels.cache import compiled_kernels
from tocsin.kernels.layout import NONE, OWNER, Filters, Lists

with compiled_kernels():
    from tocsin.kernels import identity, lists, ordering, predicate_scan, predicates
    from tocsin.kernels.buffers import append, assign_lists, rebuild, rehash, room_needed, trim
    from tocsin.kernels.core import Array, Scratch, environment
    from tocsin.kernels.identity import (
        fold_start,
        fold_texts,
        fold_words,
        hexadecimal,
        match_identities,
        text_identities,
    )
    from tocsin.kernels.ingest import enter_texts, find_texts, load_column
    from tocsin.kernels.patterns import detect, project
    from tocsin.kernels.predicates import classify, fill_axis
    from tocsin.kernels.requests.combinations import COMB_WORDS, SIZE, adopt, compact, held
    from tocsin.kernels.requests.contexts import arrive
    from tocsin.kernels.requests.notify import notify
    from tocsin.kernels.requests.search import use
    from tocsin.kernels.sequences import runs
    from tocsin.kernels.windows import entries, groups, joins, projections, step

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
    "classify",
    "compact",
    "detect",
    "enter_texts",
    "entries",
    "environment",
    "fill_axis",
    "find_texts",
    "fold_start",
    "fold_texts",
    "fold_words",
    "groups",
    "held",
    "hexadecimal",
    "identity",
    "joins",
    "lists",
    "load_column",
    "match_identities",
    "notify",
    "ordering",
    "predicate_scan",
    "predicates",
    "project",
    "projections",
    "rebuild",
    "rehash",
    "room_needed",
    "runs",
    "step",
    "text_identities",
    "trim",
    "use",
]
