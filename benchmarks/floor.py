"""The scan floor, a lower bound of the work of any engine: read each event once, and nothing else.

It decodes the Arrow columns that the rules need, codes types, keys and texts as numbers, finds the rows of each type,
and evaluates each distinct filter with NumPy. It keeps no history, joins nothing and writes no match: about the least
that anything over Arrow tables can do, and a yardstick that grows and shrinks with the machine.
"""

from __future__ import annotations

import operator
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

Array = np.ndarray[Any, Any]
Condition = tuple[str, str, str | float]

COMPARE = {"<": operator.lt, ">": operator.gt, "=": operator.eq}
LARGE = 0.25
"""Above this share of all rows, comparing whole columns is faster than gathering a type's rows first."""
FEW = 8
"""Rows of up to this many types are found by comparing; of more types by sorting."""


@dataclass(frozen=True)
class Filter:
    """Return the events of a type that meet all conditions."""

    type: str
    conditions: tuple[Condition, ...]


@dataclass(frozen=True)
class Scan:
    """The input of rules: their distinct filters, and the columns that join events."""

    filters: tuple[Filter, ...]
    keys: tuple[str, ...] = ()


def scan(table: pa.Table, what: Scan) -> int:
    """Run one pass of the floor and return the number of (event, filter) pairs that hold."""
    types, names = _codes(table, "type")
    columns: dict[str, Array] = {"ts": _numbers(table, "ts")}
    texts: dict[str, list[str]] = {}
    for name in dict.fromkeys((*what.keys, *(column for f in what.filters for column, _, _ in f.conditions))):
        if pa.types.is_string(table.schema.field(name).type):
            columns[name], texts[name] = _codes(table, name)
        else:
            columns[name] = _numbers(table, name)

    by_code: dict[int, list[Filter]] = defaultdict(list)
    for filter in what.filters:
        if filter.type in names:
            by_code[names.index(filter.type)].append(filter)
    sizes = np.bincount(types, minlength=len(names))
    order = np.argsort(types.astype(np.uint16), kind="stable") if len(names) > FEW else None
    ends = np.cumsum(sizes)
    held = 0
    for code, filters in by_code.items():
        if sizes[code] >= LARGE * len(types):
            held += sum(_count(filter, columns, texts, types == code) for filter in filters)
            continue
        rows = np.flatnonzero(types == code) if order is None else order[ends[code] - sizes[code] : ends[code]]
        used = {column for filter in filters for column, _, _ in filter.conditions}
        gathered = {column: columns[column][rows] for column in used}
        held += sum(_count(filter, gathered, texts, np.True_, len(rows)) for filter in filters)
    return held


def _count(
    filter: Filter, columns: dict[str, Array], texts: dict[str, list[str]], mask: Array | np.bool, rows: int = 0
) -> int:
    for column, compare, constant in filter.conditions:
        if isinstance(constant, str):
            if constant not in texts[column]:
                return 0
            constant = texts[column].index(constant)
        mask = mask & COMPARE[compare](columns[column], constant)
    return int(np.count_nonzero(mask)) if mask.ndim else rows


def _codes(table: pa.Table, name: str) -> tuple[Array, list[str]]:
    """Encode a column of strings as numbers, with their dictionary."""
    encoded = _array(table, name).dictionary_encode()
    return encoded.indices.to_numpy(), encoded.dictionary.to_pylist()


def _numbers(table: pa.Table, name: str) -> Array:
    """Return a column of numbers or times, with nulls as NaN, so that each comparison with them fails."""
    array = _array(table, name)
    if pa.types.is_timestamp(array.type):
        array = array.view(pa.int64())
    numbers: Array = array.to_numpy(zero_copy_only=False)
    return numbers


def _array(table: pa.Table, name: str) -> Any:
    column = table[name]
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
