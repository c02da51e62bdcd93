"""Which of several events of one instant comes first, and how are equal ones told apart?

Events of equal (ts, seq) stand in the order of type, id and content. Of those without ids that are equal in all, the
second has an identity greater by one, the third by two, and so on. *Twins* are events of one type and instant: for who
sees only events of one type, the order among others does not matter.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tocsin import kernels
from tocsin.engine.batch_columns import View
from tocsin.engine.predicates import Passed
from tocsin.engine.store import Store
from tocsin.events import types
from tocsin.kernels import Array

TOGETHER_FEW = 64
"""Up to how many twins are put in order one by one."""


class Keys(NamedTuple):
    """What the order of events without ids goes by: the instant, the type, and the identity of the content."""

    ts: Array
    seq: Array
    type: Array
    first: Array
    second: Array


class Twins(NamedTuple):
    """The places of twins, and for each of them which of them is the last one before it, NONE if it is the first."""

    places: Array
    before: Array


def twins(view: View, origin: Array, types: int) -> Twins:
    """The twins, among so many types, of the events at `origin` in a view, which are in order of time."""
    seen = np.full(types, kernels.NONE, np.int64)
    places, before = np.empty(len(origin), np.int64), np.empty(len(origin), np.int64)
    count = kernels.ordering.find_twins(origin, view.types, view.ts, view.seq, seen, places, before)
    return Twins(places[:count], before[:count])


def order_twins(found: Twins, keys: Keys, ids: pa.Array | None) -> Array:
    """How to sort twins by their contents, and before these by their ids if they have any.

    Linear if there are no ids and few of one type and instant.
    """
    order, first, second = np.empty(len(found.places), np.int64), keys.first, keys.second
    if ids is None and kernels.ordering.order_twins(found.before, first, second, TOGETHER_FEW, order):
        return order
    order[np.lexsort((keys.type, keys.seq, keys.ts))] = canonical(keys, ids)
    return order


def count_twins(found: Twins, order: Array, keys: Keys) -> Array | None:
    """Which occurrence of its identity each of some twins is; None if all are the first."""
    numbers = np.empty(len(order), np.int64)
    some = kernels.ordering.count_twins(found.before, order, keys.first, keys.second, numbers)
    return numbers if some else None


def canonical(keys: Keys, given: pa.Array | None = None) -> Array:
    """How to sort events; `given`: by their ids too, to which the content is second."""
    if given is None:
        return np.lexsort(keys[::-1])
    columns = {
        "ts": keys.ts,
        "seq": keys.seq,
        "type": keys.type,
        "id": given,
        "first": keys.first,
        "second": keys.second,
    }
    found = pc.sort_indices(pa.table(columns), [(name, "ascending") for name in columns])
    return np.asarray(found, np.int64)


def reordered(passed: Passed, count: int, tied: Array, order: Array) -> Passed:
    """The pairs (filter, place) where, of `count` places, what is at `tied[order[i]]` goes to `tied[i]`."""
    origin = np.arange(count)
    origin[tied] = tied[order]
    filters, rows = np.empty_like(passed.filters), np.empty_like(passed.rows)
    kernels.ordering.follow(passed.filters, passed.rows, origin, filters, rows)
    return Passed(filters, rows)


def occurrences(keys: Keys) -> Array | None:
    """Which occurrence of the same each of some events in order is; None if all are the first."""
    equal = np.ones(max(len(keys.ts) - 1, 0), bool)
    for column in keys:
        equal &= column[1:] == column[:-1]
    if not equal.any():
        return None
    position = np.arange(len(keys.ts))
    return position - np.maximum.accumulate(np.where(np.concatenate([[True], ~equal]), position, 0))


def number_occurrences(store: Store, rows: Array) -> None:
    """Adds to the computed identities of equal events, which stand behind each other, 0, 1, 2, …"""
    keys = Keys(*(column[rows] for column in (store.ts, store.seq, store.type, store.first, store.second)))
    if (numbers := occurrences(keys)) is not None:
        store.first[rows], store.second[rows] = plus(keys.first, keys.second, numbers)


def plus(first: Array, second: Array, numbers: Array) -> tuple[Array, Array]:
    """Identities, as numbers of 128 bits, with numbers added."""
    low = second + numbers.astype(np.uint64)
    return first + (low < second).astype(np.uint64), low


class Tail:
    """The rows at the last (ts, seq) of an ordered source, beside which more may still come."""

    def __init__(self) -> None:
        self.key: tuple[int, int] | None = None
        self.counts: dict[tuple[int, int, int], int] = {}
        """How often each content (type, identity) occurred."""
        self.last: dict[int, str] = {}
        """The last id of each type."""

    def follow(self, store: Store, base: int, count: int, tied: Array) -> list[int]:
        """Goes on numbering occurrences; returns the rows that come before one of their type that is already out."""
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
            store.first[[row]], store.second[[row]] = plus(store.first[[row]], store.second[[row]], np.array([earlier]))
        mark = {row: _id_text(store, row) for row in content}
        late = [row for row in begin if mark[row] < self.last.get(content[row][0], "")]
        if ends != self.key:
            self.key, self.counts, self.last = ends, {}, {}
        for row in end:
            if row not in late:
                type = content[row][0]
                self.counts[content[row]] = self.counts.get(content[row], 0) + 1
                self.last[type] = max(mark[row], self.last.get(type, ""))
        return late


def _identity(store: Store, row: int) -> tuple[int, int]:
    return int(store.first[row]), int(store.second[row])


def _id_text(store: Store, row: int) -> str:
    if store.given[row] < 0:
        return types.hexadecimal(_identity(store, row))
    return str(store.names.texts(store.given[row : row + 1])[0])
