"""Run window queries, joins and sequences on new events and timers.

The states of all queries are in common memory (see `kernels.windows`), so that one call of a kernel runs all queries of
a stratum that have new events or timers. If the memory is full, it is enlarged and the call continues. The saved state
of a query lists the rows that its windows hold, because aggregates can be computed from the rows. Only aggregates of
queries without a window are saved.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from tocsin import kernels
from tocsin.engine.families.sequences import Runs
from tocsin.engine.predicates import SelectedRows
from tocsin.engine.strata import StratumQueries
from tocsin.errors import StateError
from tocsin.events.types import Kind
from tocsin.kernels import Array, layout, lists
from tocsin.kernels.windows import entries, groups, joins, step

if TYPE_CHECKING:
    from tocsin.engine.families.window_tables import LoadedQuery
    from tocsin.engine.pipeline import Pipeline

ROWS_MAX = 1 << 24
"""The largest number of rows that one event or timestamp may output, if the number is known in advance."""

RUNS_MAX = 1_000_000
"""The largest number of waiting runs, which are partial matches, of a pattern or sequence."""

CURRENT, NEXT_BATCH, BEGUN, GROUP = "held", "coming", "begun", "group"
"""The kinds of rows in the saved table of a query.

They are an event of the window, an event of the next batch, the times of the first event and of the end of the batch,
and a group.
"""


class WindowRows(NamedTuple):
    """Output rows of queries in columns: rule, time, whether the event left its window, id and values."""

    rules: Array
    ts: Array
    seq: Array
    expired: Array
    id_high: Array
    id_low: Array
    values: Array
    valid: Array


class Windows:
    """Holds the windows and groups of all queries of a pipeline, and runs the queries."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._loaded: list[LoadedQuery] = []
        self._by_stratum: dict[int, StratumQueries] = {}
        self._states: Array = np.zeros((0, layout.STATE_WORDS), np.int64)
        self._memory: Array = np.zeros(4096, np.int64)
        self._buckets: Array = np.full(64, kernels.NONE, np.int64)
        self._counts: Array = np.zeros(layout.COUNT_WORDS, np.int64)
        self._counts[layout.C_NODES :] = kernels.NONE
        self._counts[[layout.C_MEMORY, layout.C_FREE]] = 1024, kernels.NONE
        self._row: Array = np.zeros(0, np.int64)
        self._next: Array = np.zeros(0, np.int64)
        self._group: Array = np.zeros(0, np.int64)
        self._queues: Array = np.zeros((3, 0, 0), np.int64)

    def __bool__(self) -> bool:
        return bool(self._loaded)

    def add(self, loaded: LoadedQuery) -> None:
        """Add a query, with an empty state."""
        if loaded.following > len(self._states):
            grown = np.full((max(16, 2 * loaded.following), layout.STATE_WORDS), kernels.NONE, np.int64)
            grown[: len(self._states)] = self._states
            self._states = grown
        states = self._states[loaded.number : loaded.following]
        states[:] = kernels.NONE
        states[:, [layout.S_COUNT, layout.S_BATCH_COUNT, layout.S_BEGUN, layout.S_CHUNK]] = 0
        states[:, layout.S_DUE] = entries.NEVER
        if loaded.windowed.chained is not None:
            states[0, layout.M_RESTARTS] = 0
            states[1:, layout.U_DUE], states[1:, layout.U_FLAGS] = kernels.NONE, 0
        self._loaded.append(loaded)
        self._by_stratum.setdefault(loaded.rule.stratum, StratumQueries()).add(loaded)

    # ---- one batch

    def run(self, stratum: int, selections: Sequence[SelectedRows], fire_to: int) -> Iterator[WindowRows]:
        """Run the queries of a stratum on selected rows, fire timers up to `fire_to` (µs), and yield output rows."""
        queries = self._by_stratum.get(stratum)
        if queries is None:
            return
        numbers, rows, bits = queries.arrivals(self._pipeline, selections)
        starts = np.flatnonzero(np.diff(numbers, prepend=kernels.NONE))
        triggered, ends = numbers[starts], np.append(starts[1:], len(numbers))[: len(starts)]
        timed = queries.timed
        waiting = timed[self._states[timed, layout.S_DUE] <= fire_to] if len(timed) else timed
        timed_only = np.setdiff1d(waiting, triggered)
        if not len(triggered) and not len(timed_only):
            return
        nothing = np.zeros(len(timed_only), np.int64)
        jobs = np.stack(
            [
                queries.offsets[np.concatenate([triggered, timed_only])],
                np.concatenate([starts, nothing]),
                np.concatenate([ends, nothing]),
            ],
            axis=1,
        ).astype(np.int64)
        yield from self._run(jobs, rows, bits, fire_to)

    def _run(self, jobs: Array, rows: Array, bits: Array, fire_to: int) -> Iterator[WindowRows]:
        job, at, room = 0, int(jobs[0, 1]), max(1024, 2 * len(rows))
        while job < len(jobs):
            out = _Out(room, max(1, self._pipeline.tables.outputs))
            self._counts[layout.C_ROWS] = 0
            env = self._pipeline.ingest.environment(None)
            addresses = self._addresses(out)
            job, at, why = step.run(env.ctypes.data, addresses.ctypes.data, jobs, rows, bits, job, at, fire_to)
            count = int(self._counts[layout.C_ROWS])
            if count:
                yield out.rows(count)
            elif why == entries.MORE_ROWS:
                if room > ROWS_MAX:
                    name = self._loaded_at(int(jobs[job, 0])).rule.plan.rule.name
                    raise StateError(f"query {name}: one timestamp may output more than {ROWS_MAX:,} rows")
                room *= 4
            if why == entries.MORE_ENTRIES:
                self._grow_entries(2)
            elif why == entries.MORE_MEMORY:
                self._grow_memory(len(self._memory))
            elif why == entries.MORE_BUCKETS:
                self._grow_buckets(2 * len(self._buckets), out)
            elif why == entries.TOO_MANY:
                name = self._loaded_at(int(jobs[job, 0])).rule.plan.rule.name
                message = f"query {name}: more than {RUNS_MAX:,} runs wait for their next event"
                raise StateError(f"{message}; bound it with 'within', or with a test")

    def _loaded_at(self, offset: int) -> LoadedQuery:
        return next(loaded for loaded in self._loaded if loaded.offset == offset)

    def _addresses(self, out: _Out) -> Array:
        """Return the addresses of all arrays for the kernels. They are valid until an array is replaced."""
        store, tables = self._pipeline.store, self._pipeline.tables
        arrays = {
            groups.MEMORY: self._memory,
            groups.BUCKETS: self._buckets,
            groups.STATES: self._states,
            groups.COUNTS: self._counts,
            groups.ENTRY_ROW: self._row,
            groups.ENTRY_NEXT: self._next,
            groups.ENTRY_GROUP: self._group,
            groups.QUEUE_VALUE: self._queues[0],
            groups.QUEUE_NEXT: self._queues[1],
            groups.QUEUE_BEFORE: self._queues[2],
            groups.RULE_WORDS: tables.rule_words,
            groups.STORE_ID_HIGH: store.id_high,
            groups.STORE_ID_LOW: store.id_low,
            groups.STORE_TYPE: store.type,
            **out.arrays,
        }
        table = np.zeros(groups.ADDRESSES, np.int64)
        for index, array in arrays.items():
            table[index] = array.__array_interface__["data"][0]
        table[groups.CAPACITY], table[groups.BUCKET_MASK] = len(self._memory), len(self._buckets) - 1
        table[groups.ENTRIES], table[groups.OUT_ROOM] = len(self._row), out.room
        table[groups.RUNS_MAX] = RUNS_MAX
        return table

    def _grow_entries(self, need: int) -> None:
        """Allocate at least `need` further entries for windows."""
        old = len(self._row)
        size = max(1024, 2 * old, old + need)
        row, following, group = (np.full(size, kernels.NONE, np.int64) for _ in range(3))
        row[:old], following[:old], group[:old] = self._row, self._next, self._group
        following[old:-1] = np.arange(old + 1, size)
        following[-1] = self._counts[layout.C_FREE]
        queues = np.zeros((3, self._pipeline.tables.queues, size), np.int64)
        queues[:, : self._queues.shape[1], :old] = self._queues
        self._row, self._next, self._group, self._queues = row, following, group, queues
        self._counts[layout.C_FREE] = old
        self._counts[layout.C_FREE_COUNT] += size - old

    def _grow_memory(self, more: int) -> None:
        self._memory = np.concatenate([self._memory, np.zeros(more, np.int64)])

    def _grow_buckets(self, need: int, out: _Out) -> None:
        size = 1 << (need - 1).bit_length()
        self._buckets = np.full(size, kernels.NONE, np.int64)
        groups.rehash(self._addresses(out).ctypes.data, self._states, len(self._states))

    def grow_queues(self) -> None:
        """Allocate the queues of rules that were added since the entries were allocated."""
        if self._queues.shape[1] < self._pipeline.tables.queues and len(self._row):
            queues = np.zeros((3, self._pipeline.tables.queues, len(self._row)), np.int64)
            queues[:, : self._queues.shape[1]] = self._queues
            self._queues = queues

    # ---- state

    @property
    def rows(self) -> Array:
        """The rows of the store to which windows and runs refer. Rows may repeat."""
        run_events = (self._memory[at] for at in self._event_addresses())
        return np.concatenate([self._row[self._row >= 0], *run_events])

    def remap(self, number: Array) -> None:
        """Replace row numbers after eviction. `number` has the new number of each row."""
        used = self._row >= 0
        self._row[used] = number[self._row[used]]
        for at in self._event_addresses():
            self._memory[at] = number[self._memory[at]]

    def _event_addresses(self) -> Iterator[Array]:
        """Yield the addresses in memory at which the runs of each query refer to rows."""
        for loaded in self._loaded:
            if loaded.windowed.chained is not None and self._states[loaded.number, layout.M_COUNT]:
                yield self._runs(loaded).event_addresses(*self._kernel_arguments())

    def _runs(self, loaded: LoadedQuery) -> Runs:
        return Runs(loaded, self._memory, self._states)

    def _kernel_arguments(self) -> tuple[Array, Array]:
        """Return the environment and the addresses for kernels that output no rows."""
        out = _Out(1, max(1, self._pipeline.tables.outputs))
        return self._pipeline.ingest.environment(None), self._addresses(out)

    def strings(self) -> Iterator[Array]:
        """Yield the codes of the strings in the keys of groups, for queries without a window."""
        for loaded in self._loaded:
            kinds, state = _key_kinds(loaded), self._states[loaded.number]
            if loaded.windowed.window is None and Kind.STRING in kinds:
                for group in self._groups(state):
                    key = self._memory[group + layout.G_KEY : group + layout.G_KEY + 1 + len(kinds)]
                    key_strings = [
                        key[1 + k] for k, kind in enumerate(kinds) if kind == Kind.STRING and key[0] >> k & 1
                    ]
                    yield np.array(key_strings, np.int64)

    def _groups(self, state: Array) -> Iterator[int]:
        group = int(state[layout.S_GROUPS])
        while group >= 0:
            yield group
            group = int(self._memory[group + layout.G_NEXT])

    def save(self, numbers: Mapping[str, Array]) -> dict[str, pa.Table]:
        """Return the state of each query as a table, by name of the query.

        `numbers` maps rows of the store to numbers that identify them within their type, by type.
        """
        states: dict[str, pa.Table] = {}
        for loaded in self._loaded:
            state, what = self._states[loaded.number], list[str]()
            types, rows = list[str](), list[int]()
            words, strings = list[list[int]](), list[list[str]]()
            for side, window in self._windows_of(loaded):
                type = loaded.rule.plan.types[side]
                for name, at in ((CURRENT, layout.S_HEAD), (NEXT_BATCH, layout.S_BATCH)):
                    listed = self._linked_rows(window, at)
                    what += [_row_kind(name, side)] * len(listed)
                    types += [type] * len(listed)
                    rows += numbers[type][listed].tolist() if len(listed) else []
                    words += [[]] * len(listed)
                if window[layout.S_BEGUN]:
                    what.append(_row_kind(BEGUN, side))
                    types.append(type)
                    rows.append(kernels.NONE)
                    words.append([int(window[layout.S_FIRST]), int(window[layout.S_NEXT])])
            strings += [[]] * len(what)
            if loaded.windowed.window is None and loaded.windowed.calls:
                for group in self._groups(state):
                    key, key_strings = self._key(loaded, group)
                    what.append(GROUP)
                    rest = self._memory[group + loaded.start : group + loaded.record].tolist()
                    for skip_list in loaded.skip_lists:
                        list_values = lists.values_of(self._memory, group + skip_list).tolist()
                        rest += [len(list_values) // 2, *list_values]
                    words.append([*key, int(self._memory[group + layout.G_ROWS]), *rest])
                    strings.append(key_strings)
            if what:
                types += [loaded.rule.plan.types[0]] * (len(what) - len(rows))
                rows += [kernels.NONE] * (len(what) - len(rows))
                states[loaded.rule.plan.rule.name] = pa.table(
                    {
                        "what": what,
                        "type": types,
                        "row": pa.array(rows, pa.int64()),
                        "words": pa.array(words, pa.list_(pa.int64())),
                        "texts": pa.array(strings, pa.list_(pa.string())),
                    }
                )
            if loaded.windowed.chained is not None:
                name, runs_table = (
                    loaded.rule.plan.rule.name,
                    self._runs(loaded).save(*self._kernel_arguments(), numbers),
                )
                if runs_table is not None:
                    states[name] = pa.concat_tables([runs_table, *([states[name]] if name in states else [])])
        return states

    def _linked_rows(self, window: Array, at: int) -> Array:
        """Return the rows in the list at offset `at` of a window's state, which is the window or its next batch."""
        linked: Array = entries.list_rows(self._next, self._row, int(window[at]), int(window[at + 2]))
        return linked

    def _windows_of(self, loaded: LoadedQuery) -> Iterator[tuple[int, Array]]:
        """Yield the index and state of each side of a query that may have a window."""
        if loaded.windowed.chained is not None:
            return
        if loaded.windowed.joined is None:
            yield 0, self._states[loaded.number]
        else:
            yield from enumerate(self._states[loaded.number + 1 : loaded.following])

    def _key(self, loaded: LoadedQuery, group: int) -> tuple[list[int], list[str]]:
        """Return the key of a group as words, and the strings of its valid string values.

        The first word has the validity bits of the values that follow.
        """
        kinds = _key_kinds(loaded)
        valid, *values = self._memory[group + layout.G_KEY : group + layout.G_KEY + 1 + len(kinds)].tolist()
        key_strings = [
            self._pipeline.strings.string(value)
            for k, (kind, value) in enumerate(zip(kinds, values, strict=True))
            if kind == Kind.STRING and valid >> k & 1
        ]
        return [valid, *values], key_strings

    def restore(self, saved: Mapping[str, pa.Table], numbers: Mapping[str, Array]) -> None:
        """Restore the states of queries from tables, by name of the query.

        `numbers` maps saved positions to rows of the store, by type.
        """
        out = _Out(1, max(1, self._pipeline.tables.outputs))
        for loaded in self._loaded:
            table = saved.get(loaded.rule.plan.rule.name)
            if table is None:
                continue
            what, saved_rows = np.array(table["what"].to_pylist()), table["row"].to_numpy()
            group_rows = np.nonzero(what == GROUP)[0]
            chained = loaded.windowed.chained is not None
            more = Runs.room(loaded, table) if chained else 0
            if loaded.skip_lists:
                more += (3 + layout.LEVELS) * len(table["words"].combine_chunks().flatten())
            self._reserve(len(what), len(what) * (loaded.record + layout.J_SIDE_WORDS) + more, out)
            env, addresses = self._pipeline.ingest.environment(None), self._addresses(out)
            for side, window in self._windows_of(loaded):
                type = loaded.rule.plan.types[side]
                lists = [np.zeros(0, np.int64), np.zeros(0, np.int64)]
                for k, name in enumerate((CURRENT, NEXT_BATCH)):
                    mine = saved_rows[what == _row_kind(name, side)]
                    if len(mine) and type in numbers:
                        rows = numbers[type][mine[mine >= 0]]
                        lists[k] = rows[rows >= 0]
                for row in np.nonzero(what == _row_kind(BEGUN, side))[0]:
                    window[[layout.S_BEGUN, layout.S_FIRST, layout.S_NEXT]] = 1, *table["words"][row].as_py()
                state = layout.STATE_WORDS * (loaded.number + side + (loaded.windowed.joined is not None))
                grouped = loaded.windowed.joined is None
                entries.restore_window(env.ctypes.data, addresses.ctypes.data, loaded.offset, state, grouped, *lists)
            if loaded.windowed.joined is not None:
                joins.link_sides(env.ctypes.data, addresses.ctypes.data, loaded.offset)
            if chained:
                self._runs(loaded).restore(env, addresses, table, numbers)
            step.set_due(env.ctypes.data, addresses.ctypes.data, loaded.offset)
            for row in group_rows:
                self._restore_group(loaded, table["words"][row].as_py(), table["texts"][row].as_py(), env, addresses)

    def _reserve(self, entries: int, words: int, out: _Out) -> None:
        if self._counts[layout.C_FREE_COUNT] < entries:
            self._grow_entries(entries)
        if (missing := int(self._counts[layout.C_MEMORY]) + words - len(self._memory)) > 0:
            self._grow_memory(missing + len(self._memory))
        count = int(self._counts[layout.C_GROUPS]) + (words > 0) * entries + 2
        if count >= len(self._buckets):
            self._grow_buckets(2 * count, out)

    def _restore_group(
        self, loaded: LoadedQuery, words: list[int], strings: list[str], env: Array, addresses: Array
    ) -> None:
        kinds, key_strings = _key_kinds(loaded), iter(strings)
        valid, keys, rest = words[0], words[1 : 1 + len(kinds)], words[1 + len(kinds) :]
        for k, kind in enumerate(kinds):
            if kind == Kind.STRING and valid >> k & 1:
                keys[k] = self._pipeline.strings.code(next(key_strings))
        groups.restore_group(
            env.ctypes.data, addresses.ctypes.data, loaded.offset, np.array(keys, np.int64), valid,
            np.array(rest, np.int64), loaded.start,
        )  # fmt: skip


class _Out:
    """Arrays for `room` output rows, and for one further row that is being computed."""

    def __init__(self, room: int, width: int) -> None:
        self.room = room
        kinds = {
            groups.OUT_RULE: np.int64,
            groups.OUT_TS: np.int64,
            groups.OUT_SEQ: np.int64,
            groups.OUT_EXPIRED: np.uint8,
            groups.OUT_ID_HIGH: np.uint64,
            groups.OUT_ID_LOW: np.uint64,
        }
        self.arrays: dict[int, Array] = {index: np.empty(room + 1, kind) for index, kind in kinds.items()}
        self.arrays[groups.OUT_VALUES] = np.zeros((width, room + 1), np.int64)
        self.arrays[groups.OUT_VALID] = np.zeros((width, room + 1), np.uint8)

    def rows(self, count: int) -> WindowRows:
        return WindowRows(*(array[..., :count] for array in self.arrays.values()))


def _key_kinds(loaded: LoadedQuery) -> list[Kind | None]:
    return [key.kind for key in loaded.windowed.group_by]


def _row_kind(what: str, side: int) -> str:
    """Return the kind of a row in the saved table. The kinds of a join's right side end with `right`."""
    return what if side == 0 else f"{what} right"
