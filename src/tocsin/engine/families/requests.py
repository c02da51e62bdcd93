"""Run requests for notification, with and without Snoop's contexts.

A request uses each event once, but other requests may use the same event. Therefore requests share buffers, and used
events are kept in a set of (request, row). A request has *variants*, which are its alternatives. A request in one of
Snoop's contexts keeps the combinations of events that its operators have produced.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from tocsin import kernels
from tocsin.engine.families.request_tables import Completions
from tocsin.engine.predicates import SelectedRows
from tocsin.errors import StateError
from tocsin.kernels import Array
from tocsin.language.eps.ast import Request, owned

if TYPE_CHECKING:
    from tocsin.engine.families.request_tables import LoadedContext
    from tocsin.engine.pipeline import Pipeline

EVENTS_TRIED_MAX = 5_000_000
"""The largest number of events that a request tries when one event arrives."""

NOGOODS_PER_EVENT, NOGOODS_MAX = 8, 1 << 20
"""The largest number of no-goods per stored event, and in total."""

Notifications = tuple[Array, Array, Array]
"""Notifications in columns: the number of the rule, the rows of its roles, and the row that arrived last."""


class Requests:
    """Runs the requests of a pipeline, and holds the events that they have used."""

    def __init__(self) -> None:
        self._used: Array = np.zeros(64, np.int64)
        self._count = 0
        self._nogoods: Array = np.zeros((2, 3), np.int64)
        """The table of no-goods, which are events that cannot fill a role; see `kernels.requests.search`."""
        self._fronts: Array = np.zeros(0, np.int64)
        self._epochs: Array = np.ones(2, np.int64)

    def run(self, pipeline: Pipeline, selected: Sequence[SelectedRows], stratum: int) -> Notifications | None:
        """Return the notifications of a stratum's requests for the selected rows, and mark their events as used."""
        tables, store = pipeline.tables, pipeline.store
        ranks = ranks_of(tables.types)
        arrivals = self._arrivals(pipeline, selected, pipeline.tables.completions[stratum], ranks) if selected else None
        if arrivals is None:
            return None
        groups = 1 + int(((arrivals[1:, 0] != arrivals[:-1, 0]) | (arrivals[1:, 1] != arrivals[:-1, 1])).sum())
        self._make_room(groups * tables.roles_max)
        if len(self._fronts) < len(tables.conflict_sets):
            self._fronts = np.full(2 * len(tables.conflict_sets), -1, np.int64)
        nogoods = min(NOGOODS_PER_EVENT * store.size, NOGOODS_MAX)
        if len(self._nogoods) < nogoods:
            self._nogoods = np.zeros((1 << (2 * nogoods - 1).bit_length(), 3), np.int64)
        numbers, anchors = np.empty(groups, np.int64), np.empty(groups, np.int64)
        rows = np.zeros((groups, tables.roles_max), np.int64)
        env = pipeline.ingest.environment(pipeline.buffers.lists)
        count, used, stuck = kernels.notify(
            env.ctypes.data, arrivals, pipeline.buffers.counts, self._used,
            self._nogoods, self._fronts, self._epochs,
            store.ts, store.seq, store.type, ranks, EVENTS_TRIED_MAX,
            numbers, rows, anchors,
        )  # fmt: skip
        if stuck >= 0:
            name = next(name for name, number in tables.requests.items() if number == arrivals[stuck, 1])
            message = f"request {name}: more than {EVENTS_TRIED_MAX:,} events were tried for one that arrived"
            raise StateError(f"{message}; join its events with equalities, or give it a shorter window")
        self._count += used
        return numbers[:count], rows[:count], anchors[:count]

    def _arrivals(
        self,
        pipeline: Pipeline,
        selected: Sequence[SelectedRows],
        arriving: Completions,
        ranks: Array,
    ) -> Array | None:
        """Return (row, request, variant) for each variant that a selected row may complete, in canonical order."""
        filters = np.concatenate([some.filters for some in selected])
        starts, completes = arriving.table(len(pipeline.tables.is_anchor))
        counts = starts[filters + 1] - starts[filters]
        if not counts.any():
            return None
        first = np.repeat(starts[filters] - (np.cumsum(counts) - counts), counts)
        rows = np.repeat(np.concatenate([some.rows for some in selected]), counts)
        every = np.column_stack([rows, completes[first + np.arange(len(rows))]])
        store = pipeline.store
        keys = (every[:, 2], every[:, 1], rows, ranks[store.type[rows]], store.seq[rows], store.ts[rows])
        return np.ascontiguousarray(every[np.lexsort(keys)])

    # ---- used events

    def used_by_request(self) -> dict[int, Array]:
        """Return the ascending rows that each request has used, by number of the request."""
        used = np.sort(self._used[self._used != 0] - 1)
        numbers, starts = np.unique(used // kernels.OWNER, return_index=True)
        return dict(zip(numbers.tolist(), np.split(used % kernels.OWNER, starts[1:]), strict=True) if len(used) else ())

    def mark_used(self, request: int, rows: Array) -> None:
        """Mark `rows` as used by the request with the number `request`."""
        self._make_room(len(rows))
        kernels.mark_used(self._used, request * kernels.OWNER + rows + 1)
        self._count += len(rows)

    def remap(self, live: Array, number: Array) -> None:
        """Replace row numbers after eviction.

        `live` is a mask of the rows that stay, and `number` has the new number of each row.
        """
        self._nogoods, self._fronts = np.zeros((2, 3), np.int64), np.zeros(0, np.int64)
        if not self._count:
            return
        used = self._used[self._used != 0] - 1
        owner, row = used // kernels.OWNER, used % kernels.OWNER
        stays = live[row] != 0
        self._used, self._count = np.zeros(64, np.int64), 0
        self._make_room(int(stays.sum()))
        kernels.mark_used(self._used, owner[stays] * kernels.OWNER + number[row[stays]] + 1)
        self._count = int(stays.sum())

    def _make_room(self, more: int) -> None:
        size = len(self._used)
        while 2 * (self._count + more) > size:
            size *= 2
        if size > len(self._used):
            used = self._used[self._used != 0]
            self._used = np.zeros(size, np.int64)
            kernels.mark_used(self._used, used)


def ranks_of(types: Mapping[str, int]) -> Array:
    """Return the rank of each type when types are sorted by name. `types` has the number of each type."""
    ranks = np.zeros(len(types) + 1, np.int64)
    for rank, name in enumerate(sorted(types)):
        ranks[types[name]] = rank
    return ranks


def consumers(pipeline: Pipeline) -> Iterator[tuple[tuple[str, int], int, str]]:
    """Yield (owner, number of the consumer, type) for each event type that a request or one of its timers uses.

    The owner is (name of the request, index of the pair of consumer and type in `owned`). The consumer is the request
    or the timer.
    """
    for rule in {loaded.plan.rule.name: loaded.plan.rule for loaded in pipeline.tables.rules}.values():
        if isinstance(rule, Request) and rule.name in pipeline.tables.requests:
            for index, (user, type) in enumerate(owned(rule)):
                yield (rule.name, index), pipeline.tables.requests[user], type


def used_of(pipeline: Pipeline, rows_of: Mapping[str, Array]) -> Iterator[tuple[tuple[str, int], str, Array]]:
    """Yield (owner, type, positions) for each event type of which a request or timer has used rows.

    The positions are those of the used rows in `rows_of[type]`. For the owner, see `consumers`.
    """
    used = pipeline.requests.used_by_request()
    for owner, number, type in consumers(pipeline):
        rows = rows_of.get(type)
        if rows is not None and number in used:
            some = np.nonzero(np.isin(rows, used[number]))[0]
            if len(some):
                yield owner, type, some


def restore_used(pipeline: Pipeline, used: Mapping[tuple[str, int], Array], numbers: Mapping[str, Array]) -> None:
    """Mark the positions in `used` as used. `numbers` maps positions to rows of the store, by type."""
    for owner, number, type in consumers(pipeline):
        if owner in used and type in numbers:
            rows = numbers[type][used[owner]]
            pipeline.requests.mark_used(number, rows[rows >= 0])


def consumed(pipeline: Pipeline, notified: Notifications) -> Iterator[tuple[tuple[str, int], str, Array]]:
    """Yield (owner, type, rows) for the rows that requests used for the notifications; see `consumers`."""
    numbers, rows, _ = notified
    plans = [pipeline.tables.rules[number].plan for number in numbers]
    used: dict[str, list[Array]] = {}
    for plan, used_rows in zip(plans, rows, strict=True):
        used.setdefault(plan.consumer, []).append(used_rows[: 1 + len(plan.steps)])
    for rule in {plan.rule.name: plan.rule for plan in plans}.values():
        assert isinstance(rule, Request)
        for index, (user, type) in enumerate(owned(rule)):
            every = np.sort(np.concatenate(used.get(user, [rows[:0, 0]])))
            some = every[pipeline.store.type[every] == pipeline.tables.types[type]]
            if len(some):
                yield (rule.name, index), type, some


class ContextMatches(NamedTuple):
    """Notifications of a request in one of Snoop's contexts.

    `counts` has the number of events of each notification. `rows` and `leaves` are matrices with its events and the
    leaves that they match. `anchors` has the row that arrived last.
    """

    counts: Array
    rows: Array
    leaves: Array
    anchors: Array


class ContextState:
    """Holds the combinations of the operators of one request; see `kernels.requests.contexts`."""

    def __init__(self, loaded: LoadedContext) -> None:
        self.loaded = loaded
        self._combinations: Array = np.zeros((kernels.COMB_WORDS, 16), np.int64)
        self._pool: Array = np.zeros((2, 16), np.int64)
        self._ends: Array = np.full((2, loaded.lists), -1, np.int64)
        self._used: Array = np.zeros(2, np.int64)

    def run(self, pipeline: Pipeline, selections: Iterable[SelectedRows]) -> ContextMatches | None:
        """Return the notifications for the selected rows, or None if there are none."""
        loaded, store = self.loaded, pipeline.store
        ranks = ranks_of(pipeline.tables.types)
        rows, masks = self._arrivals(pipeline, selections, ranks)
        if not len(rows):
            return None
        env = pipeline.ingest.environment(pipeline.buffers.lists)
        self._combinations, self._pool, completed, anchors, stuck = kernels.arrive(
            env.ctypes.data, loaded.nodes, loaded.operands, loaded.mode, loaded.window_us, loaded.since,
            loaded.conditions, loaded.condition_count, loaded.roles, loaded.repeated, rows, masks,
            self._combinations, self._pool, self._ends, self._used, store.ts, store.seq, store.type, ranks,
            EVENTS_TRIED_MAX,
        )  # fmt: skip
        if stuck >= 0:
            name = loaded.rule.plan.rule.name
            raise StateError(
                f"request {name}: a condition was evaluated more than {EVENTS_TRIED_MAX:,} times for one event"
            )
        if not len(completed):
            return None
        counts, begin = self._combinations[kernels.SIZE, completed], self._combinations[0, completed]
        at = np.arange(counts.max())
        in_match = at < counts[:, None]
        indexes = np.where(in_match, begin[:, None] + at, 0)
        leaves, event_rows = (np.where(in_match, self._pool[k][indexes], 0) for k in range(2))
        return ContextMatches(counts, event_rows, leaves, anchors.copy())

    def _arrivals(self, pipeline: Pipeline, selections: Iterable[SelectedRows], ranks: Array) -> tuple[Array, Array]:
        """Return the selected rows in canonical order, and the leaves that each row matches, as bits."""
        bits = self.loaded.bits
        rows, masks = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        for selected in selections:
            mine = np.isin(selected.filters, np.fromiter(bits, np.int64))
            rows.append(selected.rows[mine])
            masks.append(np.array([bits[filter] for filter in selected.filters[mine].tolist()], np.int64))
        events, index = np.unique(np.concatenate(rows), return_inverse=True)
        leaves = np.zeros(len(events), np.int64)
        np.bitwise_or.at(leaves, index, np.concatenate(masks))
        store = pipeline.store
        order = np.lexsort((events, ranks[store.type[events]], store.seq[events], store.ts[events]))
        return events[order], leaves[order]

    # ---- state

    def remap(self, live: Array, number: Array) -> None:
        """Replace row numbers after eviction, and remove combinations to which nothing refers.

        `live` is a mask of the rows that stay, and `number` has the new number of each row.
        """
        if self._used[0]:
            compacted = kernels.compact(self._combinations, self._pool, self._ends, live, number)
            self._combinations, self._pool, self._ends, self._used = compacted

    def save(self) -> Array:
        """Return a matrix with the rows (list, combination, leaf, row), and a column per event of a combination."""
        out = np.zeros((4, max(1, int(self._used[1]))), np.int64)
        return out[:, : kernels.list_pairs(self._combinations, self._pool, self._ends, out)]

    def restore(self, pipeline: Pipeline, pairs: Array) -> None:
        """Restore combinations from the matrix `pairs` of `save`, except combinations with a missing row (-1)."""
        whole = ~np.isin(pairs[1], pairs[1, pairs[3] < 0])
        env = pipeline.ingest.environment(pipeline.buffers.lists)
        pairs = np.ascontiguousarray(pairs[:, whole])
        self._combinations, self._pool, self._used = kernels.restore_pairs(
            env.ctypes.data, self.loaded.nodes, pairs, self._ends, pipeline.store.ts, pipeline.store.seq
        )


def saved_contexts(pipeline: Pipeline, numbers: Mapping[str, Array]) -> dict[str, pa.Table]:
    """Return the state of each request in one of Snoop's contexts as a table, by name of the request.

    `numbers` maps rows of the store to numbers that identify them within their type, by type.
    """
    types, saved = list(pipeline.tables.types), {}
    for user, context in pipeline.contexts.items():
        pairs = context.save()
        if pairs.shape[1]:
            names = [types[type] for type in pipeline.store.type[pairs[3]]]
            rows = [int(numbers[name][row]) for name, row in zip(names, pairs[3], strict=True)]
            saved[user] = pa.table(
                {"list": pairs[0], "combination": pairs[1], "leaf": pairs[2], "type": names, "row": rows}
            )
    return saved


def restore_contexts(pipeline: Pipeline, saved: Mapping[str, pa.Table], numbers: Mapping[str, Array]) -> None:
    """Restore the requests in Snoop's contexts. `numbers` maps saved positions to rows of the store, by type."""
    for user, table in saved.items():
        if user in pipeline.contexts:
            where, combination, leaf = (table[name].to_numpy() for name in ("list", "combination", "leaf"))
            listed = zip(table["type"].to_pylist(), table["row"].to_pylist(), strict=True)
            rows = [int(numbers[type][row]) if type in numbers and row >= 0 else -1 for type, row in listed]
            pipeline.contexts[user].restore(pipeline, np.stack([where, combination, leaf, rows]))
