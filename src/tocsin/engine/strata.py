"""Deliver new events to the queries of a stratum, by the filters that the events passed.

The rules of a stratum read only composite events that rules of earlier strata define.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from tocsin.engine.families.requests import ranks_of
from tocsin.engine.predicates import SelectedRows
from tocsin.kernels import Array

if TYPE_CHECKING:
    from tocsin.engine.families.window_tables import LoadedQuery
    from tocsin.engine.pipeline import Pipeline


class StratumQueries:
    """Holds the queries of one stratum, by the filters of the events that they receive."""

    def __init__(self) -> None:
        self._loaded: list[LoadedQuery] = []
        self._table: tuple[Array, Array, Array] | None = None
        self._several: Array = np.zeros(0, bool)
        """Whether events reach each query through several filters, by number of the query."""
        self.offsets: Array = np.zeros(0, np.int64)
        """The offset of each query's record, by number of the query."""
        self.timed: Array = np.zeros(0, np.int64)
        """The numbers of the queries that may output rows when time advances, without a new event."""

    def add(self, loaded: LoadedQuery) -> None:
        """Add a query to the stratum."""
        self._loaded.append(loaded)
        self._table = None

    def arrivals(self, pipeline: Pipeline, selections: Iterable[SelectedRows]) -> tuple[Array, Array, Array]:
        """Return the numbers of queries, the rows that they receive, and the bits of each row.

        A bit stands for a side of a join or a stage of an automaton. Rows are in order of queries, and for each query
        in canonical order.
        """
        starts, numbers, bits = self._fan_out(len(pipeline.tables.is_anchor))
        positions, rows = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        for selected in selections:
            counts = starts[selected.filters + 1] - starts[selected.filters]
            total = int(counts.sum())
            if total:
                within = np.arange(total) - np.repeat(np.cumsum(counts) - counts, counts)
                positions.append(np.repeat(starts[selected.filters], counts) + within)
                rows.append(np.repeat(selected.rows, counts))
        at, row = np.concatenate(positions), np.concatenate(rows)
        number, bit = numbers[at], bits[at]
        several = self._several[number]
        if several.any():
            number, row, bit = (
                np.concatenate(pair)
                for pair in zip(
                    (number[~several], row[~several], bit[~several]),
                    _merge_arrivals(pipeline, number[several], row[several], bit[several]),
                    strict=True,
                )
            )
        order = np.argsort(number.astype(np.uint16) if len(self.offsets) < 65536 else number, kind="stable")
        return number[order], row[order], bit[order]

    def _fan_out(self, filters: int) -> tuple[Array, Array, Array]:
        """Return the index of each filter's first query, the numbers of queries by filter, and their bits."""
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


def _merge_arrivals(pipeline: Pipeline, number: Array, row: Array, bits: Array) -> tuple[Array, Array, Array]:
    """Return each event of a query once, in canonical order, with the bits of all filters that it passed."""
    store, ranks = pipeline.store, ranks_of(pipeline.tables.types)
    order = np.lexsort((row, ranks[store.type[row]], store.seq[row], store.ts[row], number))
    number, row, bits = number[order], row[order], bits[order]
    first = np.concatenate([[True], (number[1:] != number[:-1]) | (row[1:] != row[:-1])])
    return number[first], row[first], np.bitwise_or.reduceat(bits, np.nonzero(first)[0])
