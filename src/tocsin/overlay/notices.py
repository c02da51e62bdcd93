"""Who gets which matches, and in which order? What reached a root is put in order, and sinks take what they want."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tocsin.language.rules import Pattern
from tocsin.overlay.evaluation import Types, passing
from tocsin.overlay.timing import Array


def in_order(batch: pa.Table, at: Array) -> tuple[pa.Table, Array]:
    """Matches and plain events by time, then rule, then type and id; none is ready before those in front of it."""
    plain = pc.equal(batch["rule"], "").combine_chunks()
    keys = pa.table(
        {
            "ts": batch["ts"],
            "seq": batch["seq"],
            "rule": batch["rule"],
            "type": pc.if_else(plain, batch["type"].combine_chunks(), ""),
            "id": pc.if_else(plain, batch["id"].combine_chunks(), ""),
            "row": pa.array(np.arange(batch.num_rows)),
        }
    )
    order = pc.sort_indices(keys, [(name, "ascending") for name in keys.column_names]).to_numpy()
    return batch.take(order), np.maximum.accumulate(at[order])


def fitting(wanted: Iterable[Pattern], batch: pa.Table, types: Types) -> Array:
    """The rows that some of the subscriptions ask for; `types`: declared ones and those that rules define."""
    fits = np.zeros(batch.num_rows, bool)
    by_type: dict[str, list[Pattern]] = {}
    for pattern in wanted:
        by_type.setdefault(pattern.type, []).append(pattern)
    coded = batch["type"].combine_chunks().dictionary_encode()
    names, codes = coded.dictionary.to_pylist(), coded.indices.to_numpy()
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
