"""Which events pass some filter? Filters are tried on the columns of a batch where they are, before anything is copied.

Most events pass none. So a string is only looked up among the constants of rules here, unless a filter is a program,
and becomes a number when its event has passed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tocsin import kernels
from tocsin.engine.batch_columns import View
from tocsin.engine.compile import Tables
from tocsin.engine.store import Store
from tocsin.engine.strings import Texts
from tocsin.events.columns import whole
from tocsin.events.reader import LABEL_COLUMN
from tocsin.events.types import ID, Kind
from tocsin.kernels import Array

NO_RANKS: Array = np.zeros(1, np.int64)


@dataclass(slots=True)
class Passed:
    """Events that passed filters: pairs (filter, row) in canonical order."""

    filters: Array
    rows: Array


class Sieve:
    """Tries the filters of the tables."""

    def __init__(self, tables: Tables, texts: Texts) -> None:
        self._tables, self._texts = tables, texts
        self._scratch = kernels.Scratch()
        self._tried = Store()
        """One row, where a filter that is a program finds the event."""
        self._room = 0
        """For how many pairs there must be room, if they are more than events: twice as many as there ever were."""
        self._works: dict[bool, tuple[kernels.Filters, kernels.predicates.Work]] = {}
        """Arrays to work with for some filters, for what is done ahead and for the rest."""

    def _environment(self, store: Store, lists: kernels.Lists | None) -> Array:
        tables = self._tables
        ranks = self._texts.ranks if tables.expressions.uses_ranks else NO_RANKS
        columns = (store.ts, store.seq, store.words, store.present)
        return kernels.environment(self._scratch, tables.code.data, *columns, ranks, lists)

    def view(self, types: Array, ts: Array, seq: Array) -> View:
        """Of events with these types and times, without any other column yet."""
        return View(types, ts, seq, (max(len(self._tables.types), 1), max(self._tables.width, 1)))

    def view_of(self, batch: pa.Table) -> View:
        """The columns of a batch that filters ask for; ids, if they do, are all there."""
        tables, filters = self._tables, self._tables.filters
        view = self.view(*(batch[name].to_numpy() for name in ("type", "ts", "seq")))
        for name in batch.column_names:
            attribute, _, kind = name.rpartition(":") if name != LABEL_COLUMN else (ID, "", Kind.STRING)
            slots = tables.slots_of(attribute, Kind(kind)) if attribute else None
            if slots is not None and filters.ask_for(slots):
                view.add_column(whole(batch[name]), Kind(kind), self._texts, slots, all_texts=filters.has_programs)
        return view

    def lay_out(self) -> None:
        """Makes the index of filters, if it is not made yet."""
        self._tables.filters.tables(len(self._tables.types))

    def classify(self, view: View, *, ahead: bool = False) -> tuple[Passed, Array]:
        """Which events pass filters: the pairs (filter, place), and which event is at each place.

        `ahead`: elsewhere, while the same may be done here.
        """
        tables = self._tables
        filters = tables.filters.tables(len(tables.types))
        self._tried.reserve(1, tables.width)
        env = self._environment(self._tried, None)
        header = (array.ctypes.data for array in (view.types, view.ts, view.seq))
        given = filters, env.ctypes.data, view.columns, view.column_of, *header, len(view)
        while True:
            room = max(self._room, len(view))
            made, work = self._works.get(ahead, (None, None))
            if work is None or made is not filters or len(work.source) <= len(view) or len(work.pair_filter) < room:
                # They stay: memory that is new each time has to be found page by page.
                work = kernels.predicates.work_for(filters, len(view), room)
                self._works[ahead] = filters, work
            needed, source, passed, places = kernels.classify(*given, work)
            if needed <= room:
                return Passed(passed.copy(), places.copy()), source.copy()
            self._room = 2 * needed
