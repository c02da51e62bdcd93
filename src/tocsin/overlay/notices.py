"""Who gets which matches, and in which order? What reached a root is put in order, and sinks take what they want."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tocsin.language.rules import Pattern
from tocsin.overlay.evaluation import Types, passing
from tocsin.overlay.rows import Rows
from tocsin.overlay.timing import Array


def in_order(batch: Rows, at: Array) -> tuple[Rows, Array]:
    """Matches and plain events by time, then rule, then type and id; none is ready before those in front of it."""
    rules, plain = _ranks(batch["rule"]), pc.equal(batch["rule"], "").combine_chunks().to_numpy(zero_copy_only=False)
    keys: list[Array] = [rules, batch["seq"].to_numpy(), batch.ts]
    if plain.any():
        keys = [*(np.where(plain, _ranks(batch[name]), 0) for name in ("id", "type")), *keys]
    if _ascending(keys):
        return batch, np.maximum.accumulate(at)
    order = np.lexsort(keys)
    return batch.take(order), np.maximum.accumulate(at[order])


def _ranks(column: pa.ChunkedArray) -> Array:
    """The place of each string in the order of those that occur."""
    coded = column.combine_chunks().dictionary_encode()
    ranks = np.empty(len(coded.dictionary), np.int64)
    ranks[pc.sort_indices(coded.dictionary).to_numpy()] = np.arange(len(ranks))
    return np.asarray(ranks[coded.indices.to_numpy()])


def _ascending(keys: list[Array]) -> bool:
    """Whether rows are in the order of the last key, then of the one before it, and so on."""
    later = np.zeros(max(len(keys[0]) - 1, 0), bool)
    for key in reversed(keys):
        if ((key[1:] < key[:-1]) & ~later).any():
            return False
        later |= key[1:] > key[:-1]
    return True


def fitting(wanted: Iterable[Pattern], batch: Rows, types: Types) -> Array:
    """The rows that some of the subscriptions ask for; `types`: declared ones and those that rules define."""
    fits = np.zeros(batch.num_rows, bool)
    by_type: dict[str, list[Pattern]] = {}
    for pattern in wanted:
        by_type.setdefault(pattern.type, []).append(pattern)
    names, codes = batch.types
    for number, name in enumerate(names):
        if name not in by_type:
            continue
        rows = np.nonzero(codes == number)[0]
        if not all(pattern.constraints for pattern in by_type[name]):
            fits[rows] = True
            continue
        some = batch.take(rows)
        for pattern in by_type[name]:
            fits[rows[passing(pattern, some, types)]] = True
    return np.nonzero(fits)[0]
