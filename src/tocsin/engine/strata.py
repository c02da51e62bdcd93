"""Which queries of a level do new events go to? By the filters that they passed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from tocsin.engine.families.requests import ranks_of
from tocsin.engine.predicates import Passed
from tocsin.kernels import Array

if TYPE_CHECKING:
    from tocsin.engine.families.window_tables import LoadedWindow
    from tocsin.engine.pipeline import Machine


class Level:
    """The queries of one level."""

    def __init__(self) -> None:
        self._loaded: list[LoadedWindow] = []
        self._table: tuple[Array, Array, Array] | None = None
        self._several: Array = np.zeros(0, bool)
        """Whether events come to a query by several filters, by its number among all."""
        self.offsets: Array = np.zeros(0, np.int64)
        """Where the record of each query is, by its number among all."""
        self.timed: Array = np.zeros(0, np.int64)
        """The numbers of those that have timers."""

    def add(self, loaded: LoadedWindow) -> None:
        """Takes one more query."""
        self._loaded.append(loaded)
        self._table = None

    def arrivals(self, machine: Machine, entered: Iterable[Passed]) -> tuple[Array, Array, Array]:
        """Number of the query, row and bits of what has entered: one query after another, each in canonical order."""
        starts, numbers, bits = self._fan_out(len(machine.tables.is_anchor))
        places, rows = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        for passed in entered:
            counts = starts[passed.filters + 1] - starts[passed.filters]
            total = int(counts.sum())
            if total:
                within = np.arange(total) - np.repeat(np.cumsum(counts) - counts, counts)
                places.append(np.repeat(starts[passed.filters], counts) + within)
                rows.append(np.repeat(passed.rows, counts))
        at, row = np.concatenate(places), np.concatenate(rows)
        number, bit = numbers[at], bits[at]
        several = self._several[number]
        if several.any():
            number, row, bit = (
                np.concatenate(pair)
                for pair in zip(
                    (number[~several], row[~several], bit[~several]),
                    _together(machine, number[several], row[several], bit[several]),
                    strict=True,
                )
            )
        order = np.argsort(number.astype(np.uint16) if len(self.offsets) < 65536 else number, kind="stable")
        return number[order], row[order], bit[order]

    def _fan_out(self, filters: int) -> tuple[Array, Array, Array]:
        """Where the queries of each filter begin; the queries, and what they are told."""
        if self._table is None or len(self._table[0]) <= filters:
            pairs = [
                (filter, loaded.number, bits)
                for loaded in self._loaded
                for filter, bits in (loaded.bits or {loaded.rule.anchor: 0}).items()
            ]
            by_filter, numbers, bits = np.array(pairs, np.int64).T
            order = np.argsort(by_filter, kind="stable")
            starts = np.concatenate([[0], np.cumsum(np.bincount(by_filter, minlength=filters + 1))])
            self._table = starts, numbers[order], bits[order]
            self.offsets = np.zeros(int(numbers.max()) + 1, np.int64)
            self._several = np.zeros(len(self.offsets), bool)
            for loaded in self._loaded:
                self.offsets[loaded.number] = loaded.offset
                self._several[loaded.number] = bool(loaded.bits)
            timed = [loaded.number for loaded in self._loaded if loaded.windowed.is_timed]
            self.timed = np.array(timed, np.int64)
        return self._table


def _together(machine: Machine, number: Array, row: Array, bits: Array) -> tuple[Array, Array, Array]:
    """Each event of a query once, in canonical order, with all that it is told."""
    store, ranks = machine.store, ranks_of(machine.tables.types)
    order = np.lexsort((row, ranks[store.type[row]], store.seq[row], store.ts[row], number))
    number, row, bits = number[order], row[order], bits[order]
    first = np.concatenate([[True], (number[1:] != number[:-1]) | (row[1:] != row[:-1])])
    return number[first], row[first], np.bitwise_or.reduceat(bits, np.nonzero(first)[0])
