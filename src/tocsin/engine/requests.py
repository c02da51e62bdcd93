"""Requests for notification at work: which events arrive where, and which of them each request has used up.

An instance is used up for one request and not for others, so the buffers stay shared, and what is used is a set of
(request, row) beside them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np

from tocsin.engine import kernels
from tocsin.engine.intake import Passed
from tocsin.engine.kernels import Array
from tocsin.errors import StateError

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

    def notify(self, machine: Machine, passed: Passed) -> Notified | None:
        """The notifications that new rows bring; they use up what they are made of."""
        tables, store = machine.tables, machine.store
        ranks = np.zeros(len(tables.types) + 1, np.int64)
        for rank, name in enumerate(sorted(tables.types)):
            ranks[tables.types[name]] = rank
        arrivals = self._arrivals(machine, passed, ranks)
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

    def _arrivals(self, machine: Machine, passed: Passed, ranks: Array) -> Array | None:
        """(row, request, variant) for all that new rows may complete, in canonical order."""
        arriving = machine.tables.arriving
        found = []
        for filter in np.unique(passed.filters).tolist():
            if filter in arriving:
                rows = passed.rows[passed.filters == filter]
                for request, variant in arriving[filter]:
                    found.append(np.column_stack([rows, np.full_like(rows, request), np.full_like(rows, variant)]))
        if not found:
            return None
        every = np.concatenate(found)
        store, rows = machine.store, every[:, 0]
        keys = (every[:, 2], every[:, 1], rows, ranks[store.type[rows]], store.seq[rows], store.ts[rows])
        return np.ascontiguousarray(every[np.lexsort(keys)])

    # ---- what is used

    def used(self, request: int) -> Array:
        """The rows that a request has used, in order."""
        held = self._used[self._used != 0] - 1
        return np.sort(held[held // kernels.OWNER == request] % kernels.OWNER)

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


def owners(machine: Machine) -> Iterator[tuple[tuple[str, int], int, str]]:
    """What is used, in the state: (request, place of a type among its types), the request's number, the type."""
    for loaded in {loaded.plan.rule.name: loaded for loaded in machine.tables.rules}.values():
        rule = loaded.plan.rule
        if rule.name in machine.tables.requests:
            for place, type in enumerate(rule.uses):
                yield (rule.name, place), machine.tables.requests[rule.name], type


def left_of(machine: Machine, places: Mapping[str, Array]) -> dict[tuple[str, int], tuple[str, Array]]:
    """For each request and type of which it has used rows: which of that type's rows are left for it."""
    found: dict[tuple[str, int], tuple[str, Array]] = {}
    for owner, number, type in owners(machine):
        rows = places.get(type)
        gone = machine.requests.used(number)
        if rows is not None and np.isin(rows, gone).any():
            found[owner] = type, np.nonzero(~np.isin(rows, gone))[0]
    return found


def take_left(machine: Machine, left: Mapping[tuple[str, int], Array], numbers: Mapping[str, Array]) -> None:
    """Marks as used what is not left; `numbers` are the rows of a type's events."""
    for owner, number, type in owners(machine):
        if owner in left and type in numbers:
            rows = np.delete(numbers[type], left[owner])
            machine.requests.use(number, rows[rows >= 0])


def consumed(machine: Machine, notified: Notified) -> Iterator[tuple[tuple[str, int], str, Array]]:
    """Of each request that was notified and each of its types, the rows that it used."""
    numbers, rows, _ = notified
    plans = [machine.tables.rules[number].plan for number in numbers]
    used: dict[str, list[Array]] = {}
    for plan, parts in zip(plans, rows, strict=True):
        used.setdefault(plan.rule.name, []).append(parts[: 1 + len(plan.steps)])
    for rule in {plan.rule.name: plan.rule for plan in plans}.values():
        every = np.sort(np.concatenate(used[rule.name]))
        for place, type in enumerate(rule.uses):
            some = every[machine.store.type[every] == machine.tables.types[type]]
            if len(some):
                yield (rule.name, place), type, some
