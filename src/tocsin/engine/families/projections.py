"""Run thousands of projections on the columns of a batch, without storing events.

A *projection* is a query that only selects attributes of its events, or aggregates over a fixed number of events. It is
defined by `window_tables.is_projection` and run by `kernels.windows.projections`. One array holds the records and
states of all projections. The saved state of a projection is a list of words, which are the entries of a sliding window
or the aggregates of a batch window.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from tocsin import kernels
from tocsin.engine.batch_columns import ColumnView
from tocsin.engine.compile import RuleTables
from tocsin.engine.families.window_tables import LoadedProjection
from tocsin.engine.ingest import UnstoredEvents
from tocsin.engine.match_columns import MatchColumns, MatchTimes
from tocsin.engine.predicates import SelectedRows
from tocsin.kernels import Array, layout
from tocsin.kernels.exact_sums import SCRATCH
from tocsin.kernels.windows import projections
from tocsin.kernels.windows.groups import call_words

if TYPE_CHECKING:
    from tocsin.engine.pipeline import Pipeline

PAIRWISE_MAX = 16
"""The largest number of rows of one instant that are sorted by insertion."""
STATE = "plain"
"""The kind of the only row in the saved table of a query."""


class ProjectedRows(NamedTuple):
    """Output rows in columns: the number of the rule, the index of the event, and the values."""

    rules: Array
    sources: Array
    values: Array
    valid: Array


class Projections:
    """Holds all projections of a pipeline with their states, and runs them."""

    def __init__(self, tables: RuleTables) -> None:
        self._tables = tables
        self._loaded: list[tuple[LoadedProjection, int]] = []
        """The queries, each with the offset of its record."""
        self._memory: Array = np.zeros(4096, np.int64)
        self._used: Array = np.array([SCRATCH], np.int64)
        self._by_stratum: dict[int, list[tuple[int, int]]] = {}
        """Pairs (filter of a query, offset of its record), by stratum."""
        self._fan_outs: dict[int, tuple[Array, Array]] = {}

    def __bool__(self) -> bool:
        return bool(self._loaded)

    def copy(self) -> Projections:
        """Return a copy with the same queries and state."""
        other = Projections(self._tables)
        other._memory, other._used = self._memory.copy(), self._used.copy()
        other._loaded, other._fan_outs = [*self._loaded], {**self._fan_outs}
        other._by_stratum = {stratum: [*queries] for stratum, queries in self._by_stratum.items()}
        return other

    def add(self, loaded: LoadedProjection) -> None:
        """Add a query, with an empty state."""
        calls, outputs = len(loaded.calls), len(loaded.outputs)
        call_sizes = [call_words(function, double=double, ordered=True) for function, _, double in loaded.calls]
        at = self._allocate(layout.PROJECTION_WORDS + layout.PROJECTION_CALL_WORDS * calls + outputs + sum(call_sizes))
        calls_at = at + layout.PROJECTION_WORDS
        outputs_at = calls_at + layout.PROJECTION_CALL_WORDS * calls
        record = [loaded.since, loaded.rule.number, loaded.extent, loaded.size, calls, calls_at, outputs, outputs_at]
        record += [0] * (layout.PROJECTION_WORDS - len(record))
        at_entry = outputs_at + outputs
        for (function, slot, double), words in zip(loaded.calls, call_sizes, strict=True):
            record += [function, slot, int(double), at_entry]
            at_entry += words
        record += loaded.outputs
        self._memory[at : at + len(record)] = record
        projections.clear(self._memory.ctypes.data, at)
        self._loaded.append((loaded, at))
        stratum = loaded.rule.stratum
        self._by_stratum.setdefault(stratum, []).append((loaded.rule.anchor, at))
        self._fan_outs.pop(stratum, None)

    def _allocate(self, words: int) -> int:
        """Allocate words, and return the offset of the first word."""
        at = int(self._used[0])
        self._reserve(words)
        self._used[0] += words
        return at

    def _reserve(self, words: int) -> None:
        if (missing := int(self._used[0]) + words - len(self._memory)) > 0:
            self._memory = np.concatenate([self._memory, np.zeros(max(missing, len(self._memory)), np.int64)])

    # ---- one batch

    def run_unstored(self, pipeline: Pipeline, events: UnstoredEvents) -> list[MatchColumns]:
        """Run the queries on events that are not stored, and return their output rows."""
        if 0 not in self._by_stratum:
            return []
        return [
            _as_matches(rows, pipeline, events.view, *pipeline.ingest.event_ids(events, rows.sources))
            for rows in self._run(*self._fan_out(0), events.selected, events.view)
        ]

    def run_stored(self, pipeline: Pipeline, stratum: int, selections: Iterable[SelectedRows]) -> list[MatchColumns]:
        """Run the queries of a stratum on selected rows of the store, and return their output rows."""
        matches: list[MatchColumns] = []
        if stratum not in self._by_stratum:
            return matches
        starts, queries = self._fan_out(stratum)
        for selected in selections:
            mine = starts[selected.filters + 1] > starts[selected.filters]
            stored, entries = np.unique(selected.rows[mine], return_inverse=True)
            if len(stored):
                view, store = pipeline.ingest.view_rows(stored), pipeline.store
                for rows in self._run(starts, queries, SelectedRows(selected.filters[mine], entries), view):
                    at = stored[rows.sources]
                    matches.append(_as_matches(rows, pipeline, view, store.id_high[at], store.id_low[at]))
        return matches

    def _run(self, starts: Array, queries: Array, selected: SelectedRows, view: ColumnView) -> Iterator[ProjectedRows]:
        """Yield output rows in the order of time and rule.

        `selected` has pairs (filter, event of the view) in canonical order. The time is linear in the number of pairs
        and of queries that receive them, and does not depend on the length of windows.
        """
        width = max(1, self._tables.outputs)
        position, room, columns = (0, 0), max(1024, len(selected.filters)), view.columns
        while position[0] < len(selected.filters):
            out = ProjectedRows(
                np.empty(room, np.int64),
                np.empty(room, np.int64),
                np.empty((width, room), np.int64),
                np.zeros((width, room), np.uint8),
            )
            *position, count, why = projections.run_projections(
                self._memory.ctypes.data, self._used, len(self._memory), starts, queries,
                selected.filters, selected.rows, *position,
                columns.ctypes.data, view.column_of.ctypes.data, view.column_of.shape[1],
                view.types.ctypes.data, view.ts.ctypes.data, *out,
            )  # fmt: skip
            if why == projections.MORE_MEMORY:
                self._reserve(len(self._memory))
            if count:
                output = ProjectedRows(*(array[..., :count] for array in out))
                if (order := self._order(output, view)) is not None:
                    output = ProjectedRows(*(array[..., order] for array in output))
                yield output

    def _order(self, output: ProjectedRows, view: ColumnView) -> Array | None:
        """Return the permutation that sorts output rows by time and rule, or None if they are sorted."""
        labels, order = self._tables.labels, np.empty(len(output.rules), np.int64)
        arguments = output.sources, output.rules, labels.ranks, view.ts.ctypes.data, view.seq.ctypes.data
        if projections.is_ordered(*arguments):
            return None
        if not projections.order_rows(*arguments, PAIRWISE_MAX, order):
            ranks = labels.ranks[output.rules]
            kernels.ordering.order_matches(output.sources, ranks, len(labels), view.ts, view.seq, order)
        return order

    def _fan_out(self, stratum: int) -> tuple[Array, Array]:
        """Return the index of each filter's first query, and the offsets of the records of all queries by filter."""
        filters = len(self._tables.is_anchor)
        fan = self._fan_outs.get(stratum)
        if fan is None or len(fan[0]) <= filters:
            by_filter, records = np.array(self._by_stratum[stratum], np.int64).T.copy()
            order = np.argsort(by_filter, kind="stable")
            starts = np.concatenate([[0], np.cumsum(np.bincount(by_filter, minlength=filters + 1))])
            fan = self._fan_outs[stratum] = starts, records[order]
        return fan

    # ---- state

    def save(self) -> dict[str, pa.Table]:
        """Return the state of each query as a table, by name of the query."""
        states: dict[str, pa.Table] = {}
        memory = self._memory.ctypes.data
        for loaded, at in self._loaded:
            if self._memory[at + layout.P_COUNT]:
                words = np.zeros(projections.state_words(memory, at), np.int64)
                words = words[: projections.write_state(memory, at, words)]
                states[loaded.rule.plan.rule.name] = pa.table(
                    {
                        "what": [STATE],
                        "type": [loaded.rule.plan.types[0]],
                        "row": pa.array([kernels.NONE], pa.int64()),
                        "words": pa.array([words], pa.list_(pa.int64())),
                        "texts": pa.array([[]], pa.list_(pa.string())),
                    }
                )
        return states

    def restore(
        self, saved: Mapping[str, pa.Table], numbers: Mapping[str, Array], stored: Callable[[Array], ColumnView]
    ) -> None:
        """Restore the states of queries from tables, by name of the query.

        A table may have rows of the store instead of a state. Then these rows are processed again. `numbers` maps their
        saved positions to rows of the store, by type, and `stored` returns a view of rows.
        """
        for loaded, at in self._loaded:
            table = saved.get(loaded.rule.plan.rule.name)
            if table is None or not table.num_rows:
                continue
            if table["what"][0].as_py() == STATE:
                words = table["words"].combine_chunks().flatten().to_numpy()
                self._reserve(2 * len(words))
                projections.read_state(self._memory.ctypes.data, self._used, len(self._memory), at, words)
                continue
            rows = numbers.get(loaded.rule.plan.types[0], np.zeros(0, np.int64))
            rows = rows[table["row"].to_numpy()] if len(rows) else rows
            rows = rows[rows >= 0]
            selected = SelectedRows(np.zeros(len(rows), np.int64), np.arange(len(rows)))
            for _ in self._run(np.array([0, 1]), np.array([at]), selected, stored(rows)):
                pass  # these rows were output before


def _as_matches(
    rows: ProjectedRows, pipeline: Pipeline, view: ColumnView, id_high: Array, id_low: Array
) -> MatchColumns:
    """Convert output rows to matches, and buffer the matches for other rules.

    `id_high` and `id_low` are the ids of the events. They are replaced in place by the ids of the matches.
    """
    nothing = np.zeros((len(rows.rules), pipeline.tables.roles_max), np.int64)
    if not pipeline.ingest.without_ids:
        projections.row_identities(pipeline.tables.rule_words, rows.rules, id_high, id_low)
    times = MatchTimes(view.ts[rows.sources], view.seq[rows.sources])
    matches = MatchColumns(rows.rules, nothing, nothing[:, 0], rows.values, rows.valid, id_high, id_low, times)
    pipeline.buffer_composites([matches])
    return matches
