"""Requests for notification at work: which events arrive where, and which of them each request has used up.

An instance is used up for one request and not for others, so the buffers stay shared, and what is used is a set of
(request, row) beside them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from tocsin.engine import kernels
from tocsin.engine.kernels import Array
from tocsin.engine.request_tables import Arriving
from tocsin.engine.sieve import Passed
from tocsin.errors import StateError
from tocsin.language.requests import Request, owned

if TYPE_CHECKING:
    from tocsin.engine.machine import Machine

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
