"""Break ties between events of one instant, and number equal events.

An *instant* is a pair (ts, seq). The *canonical order* sorts events of one instant by type, id and content. The
*occurrence* of an event is its number (0, 1, …) among equal events. The occurrence is added to the computed id, so that
equal events without source ids have consecutive ids. Only ties between events of the same type matter here, because
rules that read one type do not depend on its order among other types.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tocsin import kernels
from tocsin.engine.batch_columns import ColumnView
from tocsin.engine.predicates import SelectedRows
from tocsin.engine.store import EventStore
from tocsin.events import types
from tocsin.kernels import Array

PAIRWISE_MAX = 64
"""The largest number of tied events past which an insertion sort moves one event."""


class TieKeys(NamedTuple):
    """The sort keys of events without source ids: instant, type and hash of the content."""

    ts: Array
    seq: Array
    type: Array
    id_high: Array
    id_low: Array


class Ties(NamedTuple):
    """The positions of tied events, and the last tied event before each event, or NONE if it is first in its tie."""

    positions: Array
    before: Array


def find_ties(view: ColumnView, origin: Array, types: int) -> Ties:
    """Find ties among the events at the rows `origin` of a view, in order of time. `types` is the number of types."""
    seen = np.full(types, kernels.NONE, np.int64)
    positions, before = np.empty(len(origin), np.int64), np.empty(len(origin), np.int64)
    count = kernels.ordering.find_ties(origin, view.types, view.ts, view.seq, seen, positions, before)
    return Ties(positions[:count], before[:count])


def order_ties(ties: Ties, keys: TieKeys, ids: pa.Array | None) -> Array:
    """Return the permutation that sorts tied events by source id and content.

    This takes linear time if there are no source ids and ties are small.
    """
    order, id_high, id_low = np.empty(len(ties.positions), np.int64), keys.id_high, keys.id_low
    if ids is None and kernels.ordering.order_ties(ties.before, id_high, id_low, PAIRWISE_MAX, order):
        return order
    order[np.lexsort((keys.type, keys.seq, keys.ts))] = canonical_order(keys, ids)
    return order


def count_ties(ties: Ties, order: Array, keys: TieKeys) -> Array | None:
    """Return the occurrence of each tied event among equal events, or None if there are no equal events."""
    numbers = np.empty(len(order), np.int64)
    some = kernels.ordering.count_ties(ties.before, order, keys.id_high, keys.id_low, numbers)
    return numbers if some else None


def canonical_order(keys: TieKeys, source_ids: pa.Array | None = None) -> Array:
    """Return the permutation that sorts events canonically, by source ids before content."""
    if source_ids is None:
        return np.lexsort(keys[::-1])
    columns = {
        "ts": keys.ts,
        "seq": keys.seq,
        "type": keys.type,
        "id": source_ids,
        "first": keys.id_high,
        "second": keys.id_low,
    }
    order = pc.sort_indices(pa.table(columns), [(name, "ascending") for name in columns])
    return np.asarray(order, np.int64)


def reordered(selected: SelectedRows, count: int, tied: Array, order: Array) -> SelectedRows:
    """Adapt pairs (filter, position) after the event at `tied[order[i]]` has moved to `tied[i]`, for each i.

    `count` is the number of positions.
    """
    origin = np.arange(count)
    origin[tied] = tied[order]
    filters, rows = np.empty_like(selected.filters), np.empty_like(selected.rows)
    kernels.ordering.follow(selected.filters, selected.rows, origin, filters, rows)
    return SelectedRows(filters, rows)


def occurrences(keys: TieKeys) -> Array | None:
    """Return the occurrence of each event among equal events, or None if there are no equal events.

    `keys` must be in canonical order.
    """
    equal = np.ones(max(len(keys.ts) - 1, 0), bool)
    for column in keys:
        equal &= column[1:] == column[:-1]
    if not equal.any():
        return None
    position = np.arange(len(keys.ts))
    return position - np.maximum.accumulate(np.where(np.concatenate([[True], ~equal]), position, 0))


def number_occurrences(store: EventStore, rows: Array) -> None:
    """Add 0, 1, 2, … to the computed ids of equal events, which are adjacent in `rows`."""
    keys = TieKeys(*(column[rows] for column in (store.ts, store.seq, store.type, store.id_high, store.id_low)))
    if (numbers := occurrences(keys)) is not None:
        store.id_high[rows], store.id_low[rows] = add_to_ids(keys.id_high, keys.id_low, numbers)


def add_to_ids(id_high: Array, id_low: Array, numbers: Array) -> tuple[Array, Array]:
    """Return the sums of ids, which are 128-bit integers, and `numbers`."""
    low = id_low + numbers.astype(np.uint64)
    return id_high + (low < id_low).astype(np.uint64), low


class Tail:
    """Remembers the events of the last instant of an ordered source, which may send further events of this instant."""

    def __init__(self) -> None:
        self.key: tuple[int, int] | None = None
        self.counts: dict[tuple[int, int, int], int] = {}
        """The number of events of each content, by (type, first word of the id, second word)."""
        self.last: dict[int, str] = {}
        """The largest id of each type."""

    def follow(self, store: EventStore, base: int, count: int, tied: Array) -> list[int]:
        """Continue to number occurrences, and return the late rows among `count` new rows from `base` on.

        A row is late if an event of its type that canonically follows it was processed in an earlier batch.
        """
        if count == 0:
            return []
        ts, seq = store.ts[base : base + count], store.seq[base : base + count]
        ends = (int(ts[-1]), int(seq[-1]))
        begin = (base + np.nonzero((ts == ts[0]) & (seq == seq[0]))[0]).tolist()
        if self.key != (ts[0], seq[0]):
            begin = []
        end = (base + np.nonzero((ts == ends[0]) & (seq == ends[1]))[0]).tolist()
        content = {row: (int(store.type[row]), *_identity(store, row)) for row in {*begin, *end}}
        number_occurrences(store, tied)
        for row in begin:
            earlier = self.counts.get(content[row], 0)
            store.id_high[[row]], store.id_low[[row]] = add_to_ids(
                store.id_high[[row]], store.id_low[[row]], np.array([earlier])
            )
        mark = {row: _id_string(store, row) for row in content}
        late = [row for row in begin if mark[row] < self.last.get(content[row][0], "")]
        if ends != self.key:
            self.key, self.counts, self.last = ends, {}, {}
        for row in end:
            if row not in late:
                type = content[row][0]
                self.counts[content[row]] = self.counts.get(content[row], 0) + 1
                self.last[type] = max(mark[row], self.last.get(type, ""))
        return late


def _identity(store: EventStore, row: int) -> tuple[int, int]:
    return int(store.id_high[row]), int(store.id_low[row])


def _id_string(store: EventStore, row: int) -> str:
    if store.source_id[row] < 0:
        return types.hexadecimal(_identity(store, row))
    return str(store.source_ids.strings(store.source_id[row : row + 1])[0])
