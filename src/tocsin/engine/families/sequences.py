"""What the attempts of patterns and sequences hold, as tables: written down, and taken over again.

A row of the table is an attempt, an event that one has found, that one waits at a stage, or what is known of the
automaton as a whole.
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
    from tocsin.engine.families.window_tables import LoadedWindow

ATTEMPT, FOUND, WAITS, AUTOMATON = "attempt", "found", "waits", "automaton"
HEADER = [layout.T_SINCE, layout.T_SPOILT, layout.T_BORN]
NEVER = int(runs.NEVER)


class Attempts:
    """Those of one query: `memory` has their records, `states` what is kept of the automaton and of its stages."""

    def __init__(self, loaded: LoadedWindow, memory: Array, states: Array) -> None:
        assert loaded.windowed.chained is not None
        self._loaded = loaded
        self._memory = memory
        self._states = states[loaded.number : loaded.following]
        self._stages = len(loaded.windowed.chained.stages)

    @property
    def _size(self) -> int:
        """How many entries there are."""
        return int(self._states[1:, [layout.S_COUNT, layout.S_COMING_COUNT]].sum())

    def waiting(self, env: Array, place: Array) -> tuple[Array, Array]:
        """The attempts, those that began first before others; and where they wait, in the order of the lists: number of
        the attempt, stage, whether it is fresh.
        """
        entries = np.zeros((3, self._size), np.int64)
        runs.waiting(env.ctypes.data, place.ctypes.data, self._loaded.offset, entries)
        each, entries[0] = np.unique(entries[0], return_inverse=True)
        order = np.argsort(self._memory[each + layout.T_BORN], kind="stable")
        rank = np.empty(len(order), np.int64)
        rank[order] = np.arange(len(order))
        entries[0] = rank[entries[0]]
        return each[order], entries

    def found(self, env: Array, place: Array) -> Array:
        """Where in memory the events stand that attempts have found."""
        at = self._events(self.waiting(env, place)[0])
        return at[self._memory[at] >= 0]

    def _events(self, each: Array) -> Array:
        places = np.arange(len(self._loaded.rule.plan.types))
        return np.asarray(each[:, None] + layout.T_COUNTS + self._stages + places)

    def kept(self, env: Array, place: Array, numbers: Mapping[str, Array]) -> pa.Table | None:
        """All of it, with rows said as numbers of their type's events; None if nothing has begun."""
        if not self._states[0, layout.M_BEGUN]:
            return None
        each, entries = self.waiting(env, place)
        types = self._loaded.rule.plan.types
        whole = [*self._states[0, [layout.M_BEGUN, layout.M_RESTARTS]], *self._states[1:, layout.U_FLAGS]]
        pieces = [_rows(AUTOMATON, np.array([whole], np.int64), types[0])]
        heads = self._memory[each[:, None] + [*HEADER, *range(layout.T_COUNTS, layout.T_COUNTS + self._stages)]]
        pieces.append(_rows(ATTEMPT, heads, types[0]))
        events = self._memory[self._events(each)]
        for number, type in enumerate(types):
            mine = np.nonzero(events[:, number] >= 0)[0]
            if len(mine):
                words = np.stack([mine, np.full(len(mine), number)], axis=1)
                pieces.append(_rows(FOUND, words, type, numbers[type][events[mine, number]]))
        pieces.append(_rows(WAITS, entries.T, types[0]))
        return pa.concat_tables(pieces)

    @staticmethod
    def room(loaded: LoadedWindow, table: pa.Table) -> int:
        """How many words of memory what was kept takes at most."""
        assert loaded.windowed.chained is not None
        stages = loaded.windowed.chained.stages
        record = layout.T_COUNTS + len(stages) + len(loaded.rule.plan.types)
        key = layout.G_KEY + 3 + max(len(stage.keys) for stage in stages)
        return int(table.num_rows) * (record + layout.ENTRY_WORDS + key)

    def take(self, env: Array, place: Array, table: pa.Table, numbers: Mapping[str, Array]) -> None:
        """Takes over what was kept; `numbers` are the rows of a type's events."""
        what, width = np.array(table["what"]), len(HEADER) + self._stages

        def words(kind: str, width: int) -> Array:
            mine = table["words"].filter(pa.array(what == kind)).combine_chunks()
            return np.asarray(mine.flatten()).reshape(-1, width)

        for begun, restarts, *flags in words(AUTOMATON, 2 + self._stages).tolist():
            self._states[0, [layout.M_BEGUN, layout.M_RESTARTS]] = begun, restarts
            self._states[1:, layout.U_FLAGS] = flags
        heads, found = words(ATTEMPT, width), words(FOUND, 2)
        records = np.full((len(heads), width + len(self._loaded.rule.plan.types)), kernels.NONE, np.int64)
        records[:, :width] = heads
        said = table["row"].to_numpy()[what == FOUND]
        for number, type in enumerate(self._loaded.rule.plan.types):
            mine = (found[:, 1] == number) & (said >= 0)
            if type in numbers:
                records[found[mine, 0], width + number] = numbers[type][said[mine]]
        entries = np.ascontiguousarray(words(WAITS, 3).T)
        runs.revive(env.ctypes.data, place.ctypes.data, self._loaded.offset, records, entries)


def _rows(what: str, words: Array, type: str, rows: Array | None = None) -> pa.Table:
    """Rows of the table, each with as many words."""
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
