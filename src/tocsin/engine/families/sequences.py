"""Save and restore the runs of pattern and sequence queries as tables.

An automaton evaluates such a query in *stages*, one for each step of the pattern. A *run* is a partial match, which
waits for its next event at one or several stages. Each row of the table is a run, an event of a run, the entry of a run
that waits at a stage, or the state of the whole automaton.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tocsin import kernels
from tocsin.kernels import Array, layout
from tocsin.kernels.sequences import runs

if TYPE_CHECKING:
    from tocsin.engine.families.window_tables import LoadedQuery

RUN, EVENT, WAITING, AUTOMATON = "attempt", "found", "waits", "automaton"
HEADER = [layout.T_LAST_TS, layout.T_VIOLATED, layout.T_FIRST_TS]
NEVER = int(runs.NEVER)


class Runs:
    """Gives access to the runs of one query.

    `memory` has the records of runs, and `states` the states of the automaton and of its stages.
    """

    def __init__(self, loaded: LoadedQuery, memory: Array, states: Array) -> None:
        assert loaded.windowed.chained is not None
        self._loaded = loaded
        self._memory = memory
        self._states = states[loaded.number : loaded.following]
        self._stages = len(loaded.windowed.chained.stages)

    @property
    def _size(self) -> int:
        """The number of entries of waiting runs at all stages."""
        return int(self._states[1:, [layout.S_COUNT, layout.S_BATCH_COUNT]].sum())

    def waiting_runs(self, env: Array, addresses: Array) -> tuple[Array, Array]:
        """Return the records of the runs in order of their start, and the entries of waiting runs in list order.

        The entries have three rows: index of the run, number of the stage, and whether the entry is new.
        """
        entries = np.zeros((3, self._size), np.int64)
        runs.list_waiting(env.ctypes.data, addresses.ctypes.data, self._loaded.offset, entries)
        records, entries[0] = np.unique(entries[0], return_inverse=True)
        order = np.argsort(self._memory[records + layout.T_FIRST_TS], kind="stable")
        rank = np.empty(len(order), np.int64)
        rank[order] = np.arange(len(order))
        entries[0] = rank[entries[0]]
        return records[order], entries

    def event_addresses(self, env: Array, addresses: Array) -> Array:
        """Return the addresses in `memory` at which runs refer to rows of the store."""
        at = self._events(self.waiting_runs(env, addresses)[0])
        return at[self._memory[at] >= 0]

    def _events(self, records: Array) -> Array:
        indexes = np.arange(len(self._loaded.rule.plan.types))
        return np.asarray(records[:, None] + layout.T_COUNTS + self._stages + indexes)

    def save(self, env: Array, addresses: Array, numbers: Mapping[str, Array]) -> pa.Table | None:
        """Return the state of the query as a table, or None before the first event.

        `numbers` maps rows of the store to the numbers to save, by type.
        """
        if not self._states[0, layout.M_BEGUN]:
            return None
        records, entries = self.waiting_runs(env, addresses)
        types = self._loaded.rule.plan.types
        whole = [*self._states[0, [layout.M_BEGUN, layout.M_RESTARTS]], *self._states[1:, layout.U_FLAGS]]
        tables = [_rows(AUTOMATON, np.array([whole], np.int64), types[0])]
        heads = self._memory[records[:, None] + [*HEADER, *range(layout.T_COUNTS, layout.T_COUNTS + self._stages)]]
        tables.append(_rows(RUN, heads, types[0]))
        events = self._memory[self._events(records)]
        for number, type in enumerate(types):
            present = np.nonzero(events[:, number] >= 0)[0]
            if len(present):
                words = np.stack([present, np.full(len(present), number)], axis=1)
                tables.append(_rows(EVENT, words, type, numbers[type][events[present, number]]))
        tables.append(_rows(WAITING, entries.T, types[0]))
        return pa.concat_tables(tables)

    @staticmethod
    def room(loaded: LoadedQuery, table: pa.Table) -> int:
        """Return an upper bound of the memory that the saved state in `table` needs, in words."""
        assert loaded.windowed.chained is not None
        stages = loaded.windowed.chained.stages
        record = layout.T_COUNTS + len(stages) + len(loaded.rule.plan.types)
        key = layout.G_KEY + 3 + max(len(stage.keys) for stage in stages)
        return int(table.num_rows) * (record + layout.WAITING_WORDS + key)

    def restore(self, env: Array, addresses: Array, table: pa.Table, numbers: Mapping[str, Array]) -> None:
        """Restore the state of the query from `table`. `numbers` maps saved positions to rows of the store, by type."""
        what, width = np.array(table["what"]), len(HEADER) + self._stages

        def words(kind: str, width: int) -> Array:
            own = table["words"].filter(pa.array(what == kind)).combine_chunks()
            return np.asarray(own.flatten()).reshape(-1, width)

        for begun, restarts, *flags in words(AUTOMATON, 2 + self._stages).tolist():
            self._states[0, [layout.M_BEGUN, layout.M_RESTARTS]] = begun, restarts
            self._states[1:, layout.U_FLAGS] = flags
        heads, events = words(RUN, width), words(EVENT, 2)
        records = np.full((len(heads), width + len(self._loaded.rule.plan.types)), kernels.NONE, np.int64)
        records[:, :width] = heads
        positions = table["row"].to_numpy()[what == EVENT]
        for number, type in enumerate(self._loaded.rule.plan.types):
            own = (events[:, 1] == number) & (positions >= 0)
            if type in numbers:
                records[events[own, 0], width + number] = numbers[type][positions[own]]
        entries = np.ascontiguousarray(words(WAITING, 3).T)
        runs.restore_runs(env.ctypes.data, addresses.ctypes.data, self._loaded.offset, records, entries)


def _rows(what: str, words: Array, type: str, rows: Array | None = None) -> pa.Table:
    """Return rows of the kind `what` for the table of a query. Each row has the same number of words."""
    count, width = words.shape
    flat = pa.array(np.ascontiguousarray(words, np.int64).reshape(-1))
    return pa.table(
        {
            "what": pa.repeat(what, count),
            "type": pa.repeat(type, count),
            "row": pa.array(np.full(count, kernels.NONE, np.int64) if rows is None else rows, pa.int64()),
            "words": pa.ListArray.from_arrays(pa.array(np.arange(count + 1) * width, pa.int32()), flat),
            "texts": pa.ListArray.from_arrays(pa.array(np.zeros(count + 1), pa.int32()), pa.array([], pa.string())),
        }
    )
