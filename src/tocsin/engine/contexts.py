"""Requests in one of Snoop's contexts at work: what the operators of each keep, and what new events make of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from tocsin.engine import kernels
from tocsin.engine.kernels import Array
from tocsin.engine.requests import LOOKS_MAX, ranks_of
from tocsin.engine.sieve import Passed
from tocsin.errors import StateError

if TYPE_CHECKING:
    from tocsin.engine.machine import Machine
    from tocsin.engine.request_tables import LoadedContext


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
