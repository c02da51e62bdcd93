"""Requests for notification at work: which events arrive where, and which of them each request has used up.

An instance is used up for one request and not for others, so the buffers stay shared, and what is used is a set of
(request, row) beside them.

Requests in one of Snoop's contexts at work: what the operators of each keep, and what new events make of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from tocsin import kernels
from tocsin.engine.families.request_tables import Arriving
from tocsin.engine.predicates import Passed
from tocsin.errors import StateError
from tocsin.kernels import Array
from tocsin.language.eps.ast import Request, owned

if TYPE_CHECKING:
    from tocsin.engine.families.request_tables import LoadedContext
    from tocsin.engine.pipeline import Machine

LOOKS_MAX = 5_000_000
"""How many events a request may look at for one that arrives."""

DEAD_EACH, DEAD_MAX = 8, 1 << 20
"""How many dead ends of searches are remembered: for each event, and at most."""

Notified = tuple[Array, Array, Array]
"""Of each notification: the rule's number, the rows at its places, the row that arrived last."""


class Requests:
    """The requests of a machine."""

    def __init__(self) -> None:
        self._used: Array = np.zeros(64, np.int64)
        self._count = 0
        self._dead: Array = np.zeros((2, 3), np.int64)
        """Dead ends of searches; see `kernels.combinations`."""
        self._fronts: Array = np.zeros(0, np.int64)
        self._marks: Array = np.ones(2, np.int64)

    def notify(self, machine: Machine, passed: Sequence[Passed], level: int) -> Notified | None:
        """The notifications that new rows bring to the requests of a level; they use up what they are made of."""
        tables, store = machine.tables, machine.store
        ranks = ranks_of(tables.types)
        arrivals = self._arrivals(machine, passed, machine.tables.arriving[level], ranks) if passed else None
        if arrivals is None:
            return None
        groups = 1 + int(((arrivals[1:, 0] != arrivals[:-1, 0]) | (arrivals[1:, 1] != arrivals[:-1, 1])).sum())
        self._make_room(groups * tables.places)
        if len(self._fronts) < len(tables.branches):
            self._fronts = np.full(2 * len(tables.branches), -1, np.int64)
        dead = min(DEAD_EACH * store.size, DEAD_MAX)
        if len(self._dead) < dead:
            self._dead = np.zeros((1 << (2 * dead - 1).bit_length(), 3), np.int64)
        numbers, anchors = np.empty(groups, np.int64), np.empty(groups, np.int64)
        rows = np.zeros((groups, tables.places), np.int64)
        env = machine.intake.environment(machine.buffers.lists)
        count, used, stuck = kernels.notify(
            env.ctypes.data, arrivals, machine.buffers.counts, self._used,
            self._dead, self._fronts, self._marks,
            store.ts, store.seq, store.type, ranks, LOOKS_MAX,
            numbers, rows, anchors,
        )  # fmt: skip
        if stuck >= 0:
            name = next(name for name, number in tables.requests.items() if number == arrivals[stuck, 1])
            message = f"request {name}: more than {LOOKS_MAX:,} events were looked at for one that arrived"
            raise StateError(f"{message}; join its events with equalities, or give it a shorter window")
        self._count += used
        return numbers[:count], rows[:count], anchors[:count]

    def _arrivals(
        self,
        machine: Machine,
        passed: Sequence[Passed],
        arriving: Arriving,
        ranks: Array,
    ) -> Array | None:
        """(row, request, variant) for all that new rows may complete, in canonical order."""
        filters = np.concatenate([some.filters for some in passed])
        starts, completes = arriving.table(len(machine.tables.is_anchor))
        counts = starts[filters + 1] - starts[filters]
        if not counts.any():
            return None
        first = np.repeat(starts[filters] - (np.cumsum(counts) - counts), counts)
        rows = np.repeat(np.concatenate([some.rows for some in passed]), counts)
        every = np.column_stack([rows, completes[first + np.arange(len(rows))]])
        store = machine.store
        keys = (every[:, 2], every[:, 1], rows, ranks[store.type[rows]], store.seq[rows], store.ts[rows])
        return np.ascontiguousarray(every[np.lexsort(keys)])

    # ---- what is used

    def used_by_request(self) -> dict[int, Array]:
        """The rows that each request has used, in order."""
        held = np.sort(self._used[self._used != 0] - 1)
        numbers, starts = np.unique(held // kernels.OWNER, return_index=True)
        return dict(zip(numbers.tolist(), np.split(held % kernels.OWNER, starts[1:]), strict=True) if len(held) else ())

    def use(self, request: int, rows: Array) -> None:
        """Says that a request has used rows."""
        self._make_room(len(rows))
        kernels.use(self._used, request * kernels.OWNER + rows + 1)
        self._count += len(rows)

    def renumber(self, live: Array, number: Array) -> None:
        """Follows the store: rows have other numbers, or are gone."""
        self._dead, self._fronts = np.zeros((2, 3), np.int64), np.zeros(0, np.int64)
        if not self._count:
            return
        held = self._used[self._used != 0] - 1
        owner, row = held // kernels.OWNER, held % kernels.OWNER
        stays = live[row] != 0
        self._used, self._count = np.zeros(64, np.int64), 0
        self._make_room(int(stays.sum()))
        kernels.use(self._used, owner[stays] * kernels.OWNER + number[row[stays]] + 1)
        self._count = int(stays.sum())

    def _make_room(self, more: int) -> None:
        size = len(self._used)
        while 2 * (self._count + more) > size:
            size *= 2
        if size > len(self._used):
            held = self._used[self._used != 0]
            self._used = np.zeros(size, np.int64)
            kernels.use(self._used, held)


def ranks_of(types: Mapping[str, int]) -> Array:
    """For the number of a type, its place in the order of their names."""
    ranks = np.zeros(len(types) + 1, np.int64)
    for rank, name in enumerate(sorted(types)):
        ranks[types[name]] = rank
    return ranks


def owners(machine: Machine) -> Iterator[tuple[tuple[str, int], int, str]]:
    """What can be used: (request, place in what it can use up), the number of what uses it, the type."""
    for rule in {loaded.plan.rule.name: loaded.plan.rule for loaded in machine.tables.rules}.values():
        if isinstance(rule, Request) and rule.name in machine.tables.requests:
            for place, (user, type) in enumerate(owned(rule)):
                yield (rule.name, place), machine.tables.requests[user], type


def used_of(machine: Machine, places: Mapping[str, Array]) -> Iterator[tuple[tuple[str, int], str, Array]]:
    """For each request and type of which it has used rows: the type, and the numbers of these among its rows."""
    gone = machine.requests.used_by_request()
    for owner, number, type in owners(machine):
        rows = places.get(type)
        if rows is not None and number in gone:
            some = np.nonzero(np.isin(rows, gone[number]))[0]
            if len(some):
                yield owner, type, some


def take_used(machine: Machine, used: Mapping[tuple[str, int], Array], numbers: Mapping[str, Array]) -> None:
    """Marks rows as used; `numbers` are the rows of a type's events."""
    for owner, number, type in owners(machine):
        if owner in used and type in numbers:
            rows = numbers[type][used[owner]]
            machine.requests.use(number, rows[rows >= 0])


def consumed(machine: Machine, notified: Notified) -> Iterator[tuple[tuple[str, int], str, Array]]:
    """Of each request that was notified and each of its types, the rows that it used."""
    numbers, rows, _ = notified
    plans = [machine.tables.rules[number].plan for number in numbers]
    used: dict[str, list[Array]] = {}
    for plan, parts in zip(plans, rows, strict=True):
        used.setdefault(plan.user, []).append(parts[: 1 + len(plan.steps)])
    for rule in {plan.rule.name: plan.rule for plan in plans}.values():
        assert isinstance(rule, Request)
        for place, (user, type) in enumerate(owned(rule)):
            every = np.sort(np.concatenate(used.get(user, [rows[:0, 0]])))
            some = every[machine.store.type[every] == machine.tables.types[type]]
            if len(some):
                yield (rule.name, place), type, some


class Combined(NamedTuple):
    """Notifications: for each how many events, these in a matrix with the leaves at which they stand, the last row."""

    counts: Array
    rows: Array
    leaves: Array
    anchors: Array


class Context:
    """The operators of one request, see `kernels.contexts`."""

    def __init__(self, loaded: LoadedContext) -> None:
        self.loaded = loaded
        self._comb: Array = np.zeros((kernels.COMB_WORDS, 16), np.int64)
        self._pool: Array = np.zeros((2, 16), np.int64)
        self._ends: Array = np.full((2, loaded.lists), -1, np.int64)
        self._used: Array = np.zeros(2, np.int64)

    def arrive(self, machine: Machine, entered: Iterable[Passed]) -> Combined | None:
        """The notifications that new rows bring."""
        loaded, store = self.loaded, machine.store
        ranks = ranks_of(machine.tables.types)
        rows, masks = self._arrivals(machine, entered, ranks)
        if not len(rows):
            return None
        env = machine.intake.environment(machine.buffers.lists)
        self._comb, self._pool, found, anchors, stuck = kernels.arrive(
            env.ctypes.data, loaded.nodes, loaded.operands, loaded.mode, loaded.window_us, loaded.since,
            loaded.conditions, loaded.condition_count, loaded.places, loaded.repeated, rows, masks,
            self._comb, self._pool, self._ends, self._used, store.ts, store.seq, store.type, ranks, LOOKS_MAX,
        )  # fmt: skip
        if stuck >= 0:
            name = loaded.rule.plan.rule.name
            raise StateError(f"request {name}: a condition was tried more than {LOOKS_MAX:,} times for one event")
        if not len(found):
            return None
        counts, begin = self._comb[kernels.SIZE, found], self._comb[0, found]
        at = np.arange(counts.max())
        there = at < counts[:, None]
        place = np.where(there, begin[:, None] + at, 0)
        leaves, parts = (np.where(there, self._pool[k][place], 0) for k in range(2))
        return Combined(counts, parts, leaves, anchors.copy())

    def _arrivals(self, machine: Machine, entered: Iterable[Passed], ranks: Array) -> tuple[Array, Array]:
        """New rows in canonical order, and the leaves that each fits, as bits."""
        bits = self.loaded.bits
        rows, masks = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        for passed in entered:
            mine = np.isin(passed.filters, np.fromiter(bits, np.int64))
            rows.append(passed.rows[mine])
            masks.append(np.array([bits[filter] for filter in passed.filters[mine].tolist()], np.int64))
        each, which = np.unique(np.concatenate(rows), return_inverse=True)
        together = np.zeros(len(each), np.int64)
        np.bitwise_or.at(together, which, np.concatenate(masks))
        store = machine.store
        order = np.lexsort((each, ranks[store.type[each]], store.seq[each], store.ts[each]))
        return each[order], together[order]

    # ---- what is kept

    def renumber(self, live: Array, number: Array) -> None:
        """Follows the store: rows have other numbers, or are gone. Drops what nothing holds."""
        if self._used[0]:
            kept = kernels.compact(self._comb, self._pool, self._ends, live, number)
            self._comb, self._pool, self._ends, self._used = kept

    def held(self) -> Array:
        """What is kept: (list, number of the combination, leaf, row), one column for each event of a combination."""
        out = np.zeros((4, max(1, int(self._used[1]))), np.int64)
        return out[:, : kernels.held(self._comb, self._pool, self._ends, out)]

    def adopt(self, machine: Machine, pairs: Array) -> None:
        """Takes over what was kept; combinations with a row that is not there (-1) are left out."""
        whole = ~np.isin(pairs[1], pairs[1, pairs[3] < 0])
        env = machine.intake.environment(machine.buffers.lists)
        pairs = np.ascontiguousarray(pairs[:, whole])
        self._comb, self._pool, self._used = kernels.adopt(
            env.ctypes.data, self.loaded.nodes, pairs, self._ends, machine.store.ts, machine.store.seq
        )


def kept_of(machine: Machine, numbers: Mapping[str, Array]) -> dict[str, pa.Table]:
    """What each request keeps, with rows said as numbers of their type's events; `numbers` has these by row."""
    types, found = list(machine.tables.types), {}
    for user, context in machine.contexts.items():
        pairs = context.held()
        if pairs.shape[1]:
            names = [types[type] for type in machine.store.type[pairs[3]]]
            rows = [int(numbers[name][row]) for name, row in zip(names, pairs[3], strict=True)]
            found[user] = pa.table(
                {"list": pairs[0], "combination": pairs[1], "leaf": pairs[2], "type": names, "row": rows}
            )
    return found


def take_kept(machine: Machine, kept: Mapping[str, pa.Table], numbers: Mapping[str, Array]) -> None:
    """Gives requests what they kept; `numbers` are the rows of a type's events."""
    for user, table in kept.items():
        if user in machine.contexts:
            where, combination, leaf = (table[name].to_numpy() for name in ("list", "combination", "leaf"))
            said = zip(table["type"].to_pylist(), table["row"].to_pylist(), strict=True)
            rows = [int(numbers[type][row]) if type in numbers and row >= 0 else -1 for type, row in said]
            machine.contexts[user].adopt(machine, np.stack([where, combination, leaf, rows]))
