"""Compiled inner loops over events, candidates and matches, on arrays of numbers.

Rules are data for these functions. The module `layout` defines tables that describe a rule, and the other modules
interpret the tables, so a new rule needs no compilation. Numba compiles each function once and caches it on disk. No
other package uses Numba.
"""

from __future__ import annotations

from tocsin.kernels.cache import compiled_kernels
from tocsin.kernels.layout import NONE, OWNER, Lists, PredicateTables

with compiled_kernels():
    from tocsin.kernels import identity, lists, ordering, predicate_scan, predicates
    from tocsin.kernels.buffers import append, assign_lists, evict, rebuild, rehash, room_needed
    from tocsin.kernels.core import Array, Scratch, environment
    from tocsin.kernels.identity import (
        fold_start,
        fold_strings,
        fold_values,
        hexadecimal,
        match_identities,
        string_identities,
    )
    from tocsin.kernels.ingest import find_strings, insert_strings, load_column
    from tocsin.kernels.patterns import detect, project
    from tocsin.kernels.predicates import evaluate_predicates, fill_bitmaps
    from tocsin.kernels.requests.combinations import COMB_WORDS, SIZE, compact, list_pairs, restore_pairs
    from tocsin.kernels.requests.contexts import arrive
    from tocsin.kernels.requests.notify import notify
    from tocsin.kernels.requests.search import mark_used
    from tocsin.kernels.sequences import runs
    from tocsin.kernels.windows import entries, groups, joins, projections, step

__all__ = [
    "COMB_WORDS",
    "NONE",
    "OWNER",
    "SIZE",
    "Array",
    "Lists",
    "PredicateTables",
    "Scratch",
    "append",
    "arrive",
    "assign_lists",
    "compact",
    "detect",
    "entries",
    "environment",
    "evaluate_predicates",
    "evict",
    "fill_bitmaps",
    "find_strings",
    "fold_start",
    "fold_strings",
    "fold_values",
    "groups",
    "hexadecimal",
    "identity",
    "insert_strings",
    "joins",
    "list_pairs",
    "lists",
    "load_column",
    "mark_used",
    "match_identities",
    "notify",
    "ordering",
    "predicate_scan",
    "predicates",
    "project",
    "projections",
    "rebuild",
    "rehash",
    "restore_pairs",
    "room_needed",
    "runs",
    "step",
    "string_identities",
]
