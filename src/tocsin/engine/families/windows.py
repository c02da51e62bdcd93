"""Queries over windows at work: what each keeps, and the rows that new events and time bring.

What all queries keep stands in common memory (see `kernels.windows` and `kernels.groups`), so that one call runs all
queries of a level that have something to do. Memory that is too small is made larger, and the call goes on.

What is written down is the rows of the store that windows hold: what the aggregates hold follows from them. Only an
aggregate without a window, over all that ever came, is written down itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from tocsin import kernels
from tocsin.engine.families.sequences import Attempts
from tocsin.engine.predicates import Passed
from tocsin.engine.strata import Level
from tocsin.errors import StateError
from tocsin.events.types import Kind
from tocsin.kernels import Array, layout, lists
from tocsin.kernels.windows import entries, groups, joins, step

if TYPE_CHECKING:
    from tocsin.engine.families.window_tables import LoadedWindow
    from tocsin.engine.pipeline import Machine

ROWS_MAX = 1 << 24
"""How many rows one event or moment may bring at most, as far as can be said before."""

ATTEMPTS_MAX = 1_000_000
"""How many attempts of a pattern or a sequence may wait at once."""

HELD, COMING, BEGUN, GROUP = "held", "coming", "begun", "group"
"""What a row of the table of a query is: an event of its window, one of the batch that is coming, when its first event
came and when the batch ends, or a group."""


class Rows(NamedTuple):
    """What came out, in columns: the rule, when, whether it is of an event that left, the identity, the values."""

    rules: Array
    ts: Array
    seq: Array
    expired: Array
    first: Array
    second: Array
    words: Array
    known: Array


class Windows:
    """The windows and groups of all queries of a machine."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._loaded: list[LoadedWindow] = []
        self._levels: dict[int, Level] = {}
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

    def add(self, loaded: LoadedWindow) -> None:
        """Takes one more query."""
        if loaded.following > len(self._states):
            grown = np.full((max(16, 2 * loaded.following), layout.STATE_WORDS), kernels.NONE, np.int64)
            grown[: len(self._states)] = self._states
            self._states = grown
        states = self._states[loaded.number : loaded.following]
        states[:] = kernels.NONE
        states[:, [layout.S_COUNT, layout.S_COMING_COUNT, layout.S_BEGUN, layout.S_CHUNK]] = 0
        states[:, layout.S_DUE] = entries.NEVER
        if loaded.windowed.chained is not None:
            states[0, layout.M_RESTARTS] = 0
            states[1:, layout.U_DUE], states[1:, layout.U_FLAGS] = kernels.NONE, 0
        self._loaded.append(loaded)
        self._levels.setdefault(loaded.rule.level, Level()).add(loaded)

    # ---- one batch

    def run(self, level: int, entered: Sequence[Passed], fire_to: int) -> Iterator[Rows]:
        """The rows of the queries of a level: what has entered comes to them, and timers run up to that time (µs)."""
        mine = self._levels.get(level)
        if mine is None:
            return
        numbers, rows, bits = mine.arrivals(self._machine, entered)
        starts = np.flatnonzero(np.diff(numbers, prepend=kernels.NONE))
        called, ends = numbers[starts], np.append(starts[1:], len(numbers))[: len(starts)]
        timed = mine.timed
        waiting = timed[self._states[timed, layout.S_DUE] <= fire_to] if len(timed) else timed
        late = np.setdiff1d(waiting, called)
        if not len(called) and not len(late):
            return
        nothing = np.zeros(len(late), np.int64)
        jobs = np.stack(
            [
                mine.offsets[np.concatenate([called, late])],
                np.concatenate([starts, nothing]),
                np.concatenate([ends, nothing]),
            ],
            axis=1,
        ).astype(np.int64)
        yield from self._run(jobs, rows, bits, fire_to)

    def _run(self, jobs: Array, rows: Array, bits: Array, fire_to: int) -> Iterator[Rows]:
        job, at, room = 0, int(jobs[0, 1]), max(1024, 2 * len(rows))
        while job < len(jobs):
            out = _Out(room, max(1, self._machine.tables.outputs))
            self._counts[layout.C_ROWS] = 0
            env = self._machine.intake.environment(None)
            place = self._addresses(out)
            job, at, why = step.run(env.ctypes.data, place.ctypes.data, jobs, rows, bits, job, at, fire_to)
            count = int(self._counts[layout.C_ROWS])
            if count:
                yield out.rows(count)
            elif why == entries.MORE_ROWS:
                if room > ROWS_MAX:
                    name = self._loaded_at(int(jobs[job, 0])).rule.plan.rule.name
                    raise StateError(f"query {name}: one moment may bring more than {ROWS_MAX:,} rows")
                room *= 4
            if why == entries.MORE_ENTRIES:
                self._more_entries(2)
            elif why == entries.MORE_MEMORY:
                self._more_memory(len(self._memory))
            elif why == entries.MORE_BUCKETS:
                self._more_buckets(2 * len(self._buckets), out)
            elif why == entries.TOO_MANY:
                name = self._loaded_at(int(jobs[job, 0])).rule.plan.rule.name
                message = f"query {name}: more than {ATTEMPTS_MAX:,} attempts wait for their next event"
                raise StateError(f"{message}; bound it with 'within', or with a test")

    def _loaded_at(self, offset: int) -> LoadedWindow:
        return next(loaded for loaded in self._loaded if loaded.offset == offset)

    def _addresses(self, out: _Out) -> Array:
        """Where everything is, for the kernels; valid until an array moves."""
        store, tables = self._machine.store, self._machine.tables
        arrays = {
            groups.MEMORY: self._memory,
            groups.BUCKETS: self._buckets,
            groups.STATES: self._states,
            groups.COUNTS: self._counts,
            groups.ENTRY_ROW: self._row,
            groups.ENTRY_NEXT: self._next,
            groups.ENTRY_GROUP: self._group,
            groups.QUEUE_WORD: self._queues[0],
            groups.QUEUE_NEXT: self._queues[1],
            groups.QUEUE_BEFORE: self._queues[2],
            groups.RULE_WORDS: tables.rule_words,
            groups.STORE_FIRST: store.first,
            groups.STORE_SECOND: store.second,
            groups.STORE_TYPE: store.type,
            **out.arrays,
        }
        table = np.zeros(groups.ADDRESSES, np.int64)
        for place, array in arrays.items():
            table[place] = array.__array_interface__["data"][0]
        table[groups.TAKEN], table[groups.BUCKET_MASK] = len(self._memory), len(self._buckets) - 1
        table[groups.ENTRIES], table[groups.OUT_ROOM] = len(self._row), out.room
        table[groups.ATTEMPTS_MAX] = ATTEMPTS_MAX
        return table

    def _more_entries(self, need: int) -> None:
        """Makes room for more entries of windows."""
        old = len(self._row)
        size = max(1024, 2 * old, old + need)
        row, following, group = (np.full(size, kernels.NONE, np.int64) for _ in range(3))
        row[:old], following[:old], group[:old] = self._row, self._next, self._group
        following[old:-1] = np.arange(old + 1, size)
        following[-1] = self._counts[layout.C_FREE]
        queues = np.zeros((3, self._machine.tables.queues, size), np.int64)
        queues[:, : self._queues.shape[1], :old] = self._queues
        self._row, self._next, self._group, self._queues = row, following, group, queues
        self._counts[layout.C_FREE] = old
        self._counts[layout.C_FREE_COUNT] += size - old

    def _more_memory(self, more: int) -> None:
        self._memory = np.concatenate([self._memory, np.zeros(more, np.int64)])

    def _more_buckets(self, need: int, out: _Out) -> None:
        size = 1 << (need - 1).bit_length()
        self._buckets = np.full(size, kernels.NONE, np.int64)
        groups.rehash(self._addresses(out).ctypes.data, self._states, len(self._states))

    def widen(self) -> None:
        """Makes room for the queues of rules that came later."""
        if self._queues.shape[1] < self._machine.tables.queues and len(self._row):
            queues = np.zeros((3, self._machine.tables.queues, len(self._row)), np.int64)
            queues[:, : self._queues.shape[1]] = self._queues
            self._queues = queues

    # ---- what is kept

    @property
    def rows(self) -> Array:
        """The rows of the store that windows hold, some of them several times."""
        found = (self._memory[at] for at in self._found())
        return np.concatenate([self._row[self._row >= 0], *found])

    def renumber(self, number: Array) -> None:
        """Follows the store: rows have other numbers."""
        held = self._row >= 0
        self._row[held] = number[self._row[held]]
        for at in self._found():
            self._memory[at] = number[self._memory[at]]

    def _found(self) -> Iterator[Array]:
        """Where in memory the events stand that attempts have found."""
        for loaded in self._loaded:
            if loaded.windowed.chained is not None and self._states[loaded.number, layout.M_COUNT]:
                yield self._attempts(loaded).found(*self._tables())

    def _attempts(self, loaded: LoadedWindow) -> Attempts:
        return Attempts(loaded, self._memory, self._states)

    def _tables(self) -> tuple[Array, Array]:
        """What kernels get that put out nothing."""
        out = _Out(1, max(1, self._machine.tables.outputs))
        return self._machine.intake.environment(None), self._addresses(out)

    def texts(self) -> Iterator[Array]:
        """The strings that are keys of groups of queries without a window."""
        for loaded in self._loaded:
            kinds, state = _key_kinds(loaded), self._states[loaded.number]
            if loaded.windowed.window is None and Kind.STRING in kinds:
                for group in self._groups(state):
                    key = self._memory[group + layout.G_KEY : group + layout.G_KEY + 1 + len(kinds)]
                    strings = [key[1 + k] for k, kind in enumerate(kinds) if kind == Kind.STRING and key[0] >> k & 1]
                    yield np.array(strings, np.int64)

    def _groups(self, state: Array) -> Iterator[int]:
        group = int(state[layout.S_GROUPS])
        while group >= 0:
            yield group
            group = int(self._memory[group + layout.G_NEXT])

    def kept(self, numbers: Mapping[str, Array]) -> dict[str, pa.Table]:
        """What each query keeps, with rows said as numbers of their type's events; `numbers` has these by row."""
        found: dict[str, pa.Table] = {}
        for loaded in self._loaded:
            state, what = self._states[loaded.number], list[str]()
            types, rows = list[str](), list[int]()
            words, texts = list[list[int]](), list[list[str]]()
            for place, window in self._windows_of(loaded):
                type = loaded.rule.plan.types[place]
                for name, at in ((HELD, layout.S_HEAD), (COMING, layout.S_COMING)):
                    listed = self._listed(window, at)
                    what += [_placed(name, place)] * len(listed)
                    types += [type] * len(listed)
                    rows += numbers[type][listed].tolist() if len(listed) else []
                    words += [[]] * len(listed)
                if window[layout.S_BEGUN]:
                    what.append(_placed(BEGUN, place))
                    types.append(type)
                    rows.append(kernels.NONE)
                    words.append([int(window[layout.S_FIRST]), int(window[layout.S_NEXT])])
            texts += [[]] * len(what)
            if loaded.windowed.window is None and loaded.windowed.calls:
                for group in self._groups(state):
                    key, strings = self._key(loaded, group)
                    what.append(GROUP)
                    rest = self._memory[group + loaded.start : group + loaded.record].tolist()
                    for lane in loaded.lanes:
                        held = lists.values_of(self._memory, group + lane).tolist()
                        rest += [len(held) // 2, *held]
                    words.append([*key, int(self._memory[group + layout.G_ROWS]), *rest])
                    texts.append(strings)
            if what:
                types += [loaded.rule.plan.types[0]] * (len(what) - len(rows))
                rows += [kernels.NONE] * (len(what) - len(rows))
                found[loaded.rule.plan.rule.name] = pa.table(
                    {
                        "what": what,
                        "type": types,
                        "row": pa.array(rows, pa.int64()),
                        "words": pa.array(words, pa.list_(pa.int64())),
                        "texts": pa.array(texts, pa.list_(pa.string())),
                    }
                )
            if loaded.windowed.chained is not None:
                name, tried = loaded.rule.plan.rule.name, self._attempts(loaded).kept(*self._tables(), numbers)
                if tried is not None:
                    found[name] = pa.concat_tables([tried, *([found[name]] if name in found else [])])
        return found

    def _listed(self, window: Array, at: int) -> Array:
        """The rows that a window holds, or of the batch that is coming, whose list is at that place of its state."""
        linked: Array = entries.listed(self._next, self._row, int(window[at]), int(window[at + 2]))
        return linked

    def _windows_of(self, loaded: LoadedWindow) -> Iterator[tuple[int, Array]]:
        """The states of a query's windows, with the places of their events."""
        if loaded.windowed.chained is not None:
            return
        if loaded.windowed.joined is None:
            yield 0, self._states[loaded.number]
        else:
            yield from enumerate(self._states[loaded.number + 1 : loaded.following])

    def _key(self, loaded: LoadedWindow, group: int) -> tuple[list[int], list[str]]:
        """The key of a group: which values there are, the values, and the strings among them."""
        kinds = _key_kinds(loaded)
        known, *values = self._memory[group + layout.G_KEY : group + layout.G_KEY + 1 + len(kinds)].tolist()
        strings = [
            self._machine.texts.text(value)
            for k, (kind, value) in enumerate(zip(kinds, values, strict=True))
            if kind == Kind.STRING and known >> k & 1
        ]
        return [known, *values], strings

    def take(self, kept: Mapping[str, pa.Table], numbers: Mapping[str, Array]) -> None:
        """Gives queries what they kept; `numbers` are the rows of a type's events."""
        out = _Out(1, max(1, self._machine.tables.outputs))
        for loaded in self._loaded:
            table = kept.get(loaded.rule.plan.rule.name)
            if table is None:
                continue
            what, said = np.array(table["what"].to_pylist()), table["row"].to_numpy()
            adopted = np.nonzero(what == GROUP)[0]
            chained = loaded.windowed.chained is not None
            more = Attempts.room(loaded, table) if chained else 0
            if loaded.lanes:
                more += (3 + layout.LANES) * len(table["words"].combine_chunks().flatten())
            self._reserve(len(what), len(what) * (loaded.record + layout.J_SIDE_WORDS) + more, out)
            env, addresses = self._machine.intake.environment(None), self._addresses(out)
            for place, window in self._windows_of(loaded):
                type = loaded.rule.plan.types[place]
                lists = [np.zeros(0, np.int64), np.zeros(0, np.int64)]
                for k, name in enumerate((HELD, COMING)):
                    mine = said[what == _placed(name, place)]
                    if len(mine) and type in numbers:
                        rows = numbers[type][mine[mine >= 0]]
                        lists[k] = rows[rows >= 0]
                for row in np.nonzero(what == _placed(BEGUN, place))[0]:
                    window[[layout.S_BEGUN, layout.S_FIRST, layout.S_NEXT]] = 1, *table["words"][row].as_py()
                state = layout.STATE_WORDS * (loaded.number + place + (loaded.windowed.joined is not None))
                grouped = loaded.windowed.joined is None
                entries.restore(env.ctypes.data, addresses.ctypes.data, loaded.offset, state, grouped, *lists)
            if loaded.windowed.joined is not None:
                joins.link_sides(env.ctypes.data, addresses.ctypes.data, loaded.offset)
            if chained:
                self._attempts(loaded).take(env, addresses, table, numbers)
            step.set_due(env.ctypes.data, addresses.ctypes.data, loaded.offset)
            for row in adopted:
                self._adopt(loaded, table["words"][row].as_py(), table["texts"][row].as_py(), env, addresses)

    def _reserve(self, entries: int, words: int, out: _Out) -> None:
        if self._counts[layout.C_FREE_COUNT] < entries:
            self._more_entries(entries)
        if (missing := int(self._counts[layout.C_MEMORY]) + words - len(self._memory)) > 0:
            self._more_memory(missing + len(self._memory))
        count = int(self._counts[layout.C_GROUPS]) + (words > 0) * entries + 2
        if count >= len(self._buckets):
            self._more_buckets(2 * count, out)

    def _adopt(self, loaded: LoadedWindow, words: list[int], texts: list[str], env: Array, addresses: Array) -> None:
        kinds, strings = _key_kinds(loaded), iter(texts)
        known, keys, rest = words[0], words[1 : 1 + len(kinds)], words[1 + len(kinds) :]
        for k, kind in enumerate(kinds):
            if kind == Kind.STRING and known >> k & 1:
                keys[k] = self._machine.texts.number(next(strings))
        groups.adopt(
            env.ctypes.data, addresses.ctypes.data, loaded.offset, np.array(keys, np.int64), known,
            np.array(rest, np.int64), loaded.start,
        )  # fmt: skip


class _Out:
    """Room for rows that come out; one more is for values that are tried."""

    def __init__(self, room: int, width: int) -> None:
        self.room = room
        kinds = {
            groups.OUT_RULE: np.int64,
            groups.OUT_TS: np.int64,
            groups.OUT_SEQ: np.int64,
            groups.OUT_EXPIRED: np.uint8,
            groups.OUT_FIRST: np.uint64,
            groups.OUT_SECOND: np.uint64,
        }
        self.arrays: dict[int, Array] = {place: np.empty(room + 1, kind) for place, kind in kinds.items()}
        self.arrays[groups.OUT_WORDS] = np.zeros((width, room + 1), np.int64)
        self.arrays[groups.OUT_KNOWN] = np.zeros((width, room + 1), np.uint8)

    def rows(self, count: int) -> Rows:
        return Rows(*(array[..., :count] for array in self.arrays.values()))


def _key_kinds(loaded: LoadedWindow) -> list[Kind | None]:
    return [key.kind for key in loaded.windowed.group_by]


def _placed(what: str, place: int) -> str:
    """What a row of the table is, of a join's right side too."""
    return what if place == 0 else f"{what} right"
