"""Which events pass some filter? Filters are tried on the columns of a batch where they are, before anything is copied.

Most events pass none. So a string is only looked up among the constants of rules here, unless a filter is a program,
and becomes a number when its event has passed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tocsin.engine import kernels
from tocsin.engine.columns import View
from tocsin.engine.kernels import Array
from tocsin.engine.store import Store
from tocsin.engine.tables import Tables
from tocsin.engine.texts import Texts
from tocsin.events.arrow import whole
from tocsin.events.types import Kind

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
            attribute, _, kind = name.rpartition(":") if name != "id" else ("id", "", Kind.STRING)
            slots = tables.slots_of(attribute, Kind(kind)) if attribute else None
            if slots is not None and filters.ask_for(slots):
                view.add_column(whole(batch[name]), Kind(kind), self._texts, slots, all_texts=filters.has_programs)
        return view

    def classify(self, view: View) -> tuple[Passed, Array]:
        """Which events pass filters: the pairs (filter, place), and which event is at each place."""
        tables, size = self._tables, len(view)
        filters = tables.filters.tables(len(tables.types))
        self._tried.reserve(1, tables.width)
        env, columns = self._environment(self._tried, None), view.columns
        source = np.empty(size, np.int64)
        at = kept = 0
        parts = [(np.zeros(0, np.int64), np.zeros(0, np.int64))]
        while at < size:
            room = size - at + tables.filters.most_of_a_type
            pair_filter, pair_row = np.empty(room, np.int64), np.empty(room, np.int64)
            at, kept, pairs = kernels.classify(
                filters, env.ctypes.data, columns, view.column_of, view.types.ctypes.data, view.ts.ctypes.data,
                view.seq.ctypes.data, at, size, kept, source, pair_filter, pair_row,
            )  # fmt: skip
            parts.append((pair_filter[:pairs], pair_row[:pairs]))
        joined = [np.concatenate([part[k] for part in parts]) if len(parts) > 2 else parts[-1][k] for k in range(2)]
        return Passed(joined[0], joined[1]), source[:kept]
