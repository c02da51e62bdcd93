"""Evaluate the filters of all rules on the columns of a batch, in place, before anything is copied.

Most events pass no filter. Therefore strings are only looked up among the constants of rules, and encoded later if
their event is selected. Only if some filter has a program, all strings are encoded at once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tocsin import kernels
from tocsin.engine.batch_columns import ColumnView
from tocsin.engine.compile import RuleTables
from tocsin.engine.store import EventStore
from tocsin.engine.strings import StringDictionary
from tocsin.events.columns import one_array
from tocsin.events.reader import LABEL_COLUMN
from tocsin.events.types import ID, Kind
from tocsin.kernels import Array

NO_RANKS: Array = np.zeros(1, np.int64)


@dataclass(slots=True)
class SelectedRows:
    """Pairs (filter, row), one for each filter that an event passes, in canonical order of the events."""

    filters: Array
    rows: Array


class PredicateEvaluator:
    """Evaluates the filters in `tables`."""

    def __init__(self, tables: RuleTables, strings: StringDictionary) -> None:
        self._tables, self._strings = tables, strings
        self._scratch = kernels.Scratch()
        self._row_store = EventStore()
        """A store with a single row, from which the programs of filters read an event."""
        self._room = 0
        """The capacity for pairs if there were more pairs than events; twice the largest number of pairs so far."""
        self._work: dict[bool, tuple[kernels.PredicateTables, kernels.predicates.SelectionArrays]] = {}
        """The work arrays of calls in the foreground (False) and in the background (True)."""

    def _environment(self, store: EventStore, lists: kernels.Lists | None) -> Array:
        tables = self._tables
        ranks = self._strings.ranks if tables.expressions.uses_ranks else NO_RANKS
        columns = (store.ts, store.seq, store.values, store.valid)
        return kernels.environment(self._scratch, tables.code.data, *columns, ranks, lists)

    def view(self, types: Array, ts: Array, seq: Array) -> ColumnView:
        """Return a view of events with the given types and times, and without attributes."""
        return ColumnView(types, ts, seq, (max(len(self._tables.types), 1), max(self._tables.width, 1)))

    def view_batch(self, batch: pa.Table) -> ColumnView:
        """Return a view of the columns of `batch` that filters read.

        If filters read ids, all events must have an id from the source.
        """
        tables, filters = self._tables, self._tables.filters
        view = self.view(*(batch[name].to_numpy() for name in ("type", "ts", "seq")))
        for name in batch.column_names:
            attribute, _, kind = name.rpartition(":") if name != LABEL_COLUMN else (ID, "", Kind.STRING)
            slots = tables.slots_of(attribute, Kind(kind)) if attribute else None
            if slots is not None and filters.reads(slots):
                view.add_column(
                    one_array(batch[name]), Kind(kind), self._strings, slots, all_strings=filters.has_programs
                )
        return view

    def build_index(self) -> None:
        """Build the predicate index if it is not up to date."""
        self._tables.filters.tables(len(self._tables.types))

    def evaluate(self, view: ColumnView, *, background: bool = False) -> tuple[SelectedRows, Array]:
        """Return the pairs (filter, position) of selected events, and the row of the event at each position.

        If `background`, the call may run concurrently with a call that is not in the background.
        """
        tables = self._tables
        filters = tables.filters.tables(len(tables.types))
        self._row_store.reserve(1, tables.width)
        env = self._environment(self._row_store, None)
        header = (array.ctypes.data for array in (view.types, view.ts, view.seq))
        arguments = filters, env.ctypes.data, view.columns, view.column_of, *header, len(view)
        while True:
            room = max(self._room, len(view))
            built, work = self._work.get(background, (None, None))
            if work is None or built is not filters or len(work.source) <= len(view) or len(work.pair_filter) < room:
                # Keep the arrays: new memory would cause page faults in each call.
                work = kernels.predicates.selection_arrays(filters, len(view), room)
                self._work[background] = filters, work
            needed, source, selected, positions = kernels.evaluate_predicates(*arguments, work)
            if needed <= room:
                return SelectedRows(selected.copy(), positions.copy()), source.copy()
            self._room = 2 * needed
