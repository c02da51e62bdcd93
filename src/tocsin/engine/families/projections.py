"""Plain queries at work: by the thousand, on the columns of a batch, without taking in any event.

See `plain_tables` for which these are, and `kernels.plain` for how they run. The record of a query, with what it does
and what it keeps, stands in one memory with those of all others.

What is written down of a query is what it keeps, as words: the entries of a window that slides, the aggregates of one
that fills up and empties.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from tocsin import kernels
from tocsin.engine.batch_columns import View
from tocsin.engine.compile import Tables
from tocsin.engine.families.window_tables import LoadedPlain
from tocsin.engine.ingest import Direct
from tocsin.engine.match_columns import Found, Moments
from tocsin.engine.predicates import Passed
from tocsin.kernels import Array, layout
from tocsin.kernels.exact_sums import SCRATCH
from tocsin.kernels.windows import projections
from tocsin.kernels.windows.groups import call_words

if TYPE_CHECKING:
    from tocsin.engine.pipeline import Machine

TOGETHER_FEW = 16
"""Up to how many rows of one instant are put in order one by one."""
KEPT = "plain"
"""What the row of the table of a query is."""


class Told(NamedTuple):
    """What came out: the rule of each row, its event, and the values."""

    rules: Array
    sources: Array
    words: Array
    known: Array


class Plain:
    """The plain queries of a machine, and what they keep."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._loaded: list[tuple[LoadedPlain, int]] = []
        """With where their records are."""
        self._memory: Array = np.zeros(4096, np.int64)
        self._used: Array = np.array([SCRATCH], np.int64)
        self._levels: dict[int, list[tuple[int, int]]] = {}
        """The filters of the queries of a level, and their records."""
        self._fans: dict[int, tuple[Array, Array]] = {}

    def __bool__(self) -> bool:
        return bool(self._loaded)

    def copy(self) -> Plain:
        """The same queries, with what they keep now."""
        other = Plain(self._tables)
        other._memory, other._used = self._memory.copy(), self._used.copy()
        other._loaded, other._fans = [*self._loaded], {**self._fans}
        other._levels = {level: [*queries] for level, queries in self._levels.items()}
        return other

    def add(self, loaded: LoadedPlain) -> None:
        """Takes one more query."""
        calls, outputs = len(loaded.calls), len(loaded.outputs)
        held = [call_words(function, double=double, ordered=True) for function, _, double in loaded.calls]
        at = self._room(layout.PLAIN_WORDS + layout.PLAIN_CALL_WORDS * calls + outputs + sum(held))
        behind = at + layout.PLAIN_WORDS
        outputs_at = behind + layout.PLAIN_CALL_WORDS * calls
        record = [loaded.since, loaded.rule.number, loaded.extent, loaded.size, calls, behind, outputs, outputs_at]
        record += [0] * (layout.PLAIN_WORDS - len(record))
        place = outputs_at + outputs
        for (function, slot, double), words in zip(loaded.calls, held, strict=True):
            record += [function, slot, int(double), place]
            place += words
        record += loaded.outputs
        self._memory[at : at + len(record)] = record
        projections.clear(self._memory.ctypes.data, at)
        self._loaded.append((loaded, at))
        level = loaded.rule.level
        self._levels.setdefault(level, []).append((loaded.rule.anchor, at))
        self._fans.pop(level, None)

    def _room(self, words: int) -> int:
        """Where so many words of memory are free from now on."""
        at = int(self._used[0])
        self._reserve(words)
        self._used[0] += words
        return at

    def _reserve(self, words: int) -> None:
        if (missing := int(self._used[0]) + words - len(self._memory)) > 0:
            self._memory = np.concatenate([self._memory, np.zeros(max(missing, len(self._memory)), np.int64)])

    # ---- one batch

    def direct(self, machine: Machine, given: Direct) -> list[Found]:
        """The rows for events that are not taken in."""
        if 0 not in self._levels:
            return []
        return [
            _found(told, machine, given.view, *machine.intake.identities(given, told.sources))
            for told in self._run(*self._fan(0), given.passed, given.view)
        ]

    def stored(self, machine: Machine, level: int, entered: Iterable[Passed]) -> list[Found]:
        """The rows of the queries of a level for rows of the store."""
        found: list[Found] = []
        if level not in self._levels:
            return found
        starts, queries = self._fan(level)
        for passed in entered:
            mine = starts[passed.filters + 1] > starts[passed.filters]
            rows, place = np.unique(passed.rows[mine], return_inverse=True)
            if len(rows):
                view, store = machine.intake.stored(rows), machine.store
                for told in self._run(starts, queries, Passed(passed.filters[mine], place), view):
                    at = rows[told.sources]
                    found.append(_found(told, machine, view, store.first[at], store.second[at]))
        return found

    def _run(self, starts: Array, queries: Array, passed: Passed, view: View) -> Iterator[Told]:
        """The rows that events bring, in the order of time and then of rules.

        `passed` is pairs (filter, event of the view) in canonical order. Linear in these and the queries that see them,
        whatever the length of windows.
        """
        width = max(1, self._tables.outputs)
        place, room, columns = (0, 0), max(1024, len(passed.filters)), view.columns
        while place[0] < len(passed.filters):
            told = Told(
                np.empty(room, np.int64),
                np.empty(room, np.int64),
                np.empty((width, room), np.int64),
                np.zeros((width, room), np.uint8),
            )
            *place, rows, why = projections.plain_run(
                self._memory.ctypes.data, self._used, len(self._memory), starts, queries, passed.filters, passed.rows,
                *place, columns.ctypes.data, view.column_of.ctypes.data, view.column_of.shape[1],
                view.types.ctypes.data, view.ts.ctypes.data, *told,
            )  # fmt: skip
            if why == projections.MORE_MEMORY:
                self._reserve(len(self._memory))
            if rows:
                found = Told(*(array[..., :rows] for array in told))
                if (order := self._order(found, view)) is not None:
                    found = Told(*(array[..., order] for array in found))
                yield found

    def _order(self, found: Told, view: View) -> Array | None:
        """How to put rows that are in the order of events into that of time and then of rules; None if they are."""
        labels, order = self._tables.labels, np.empty(len(found.rules), np.int64)
        given = found.sources, found.rules, labels.ranks, view.ts.ctypes.data, view.seq.ctypes.data
        if projections.in_order(*given):
            return None
        if not projections.order_rows(*given, TOGETHER_FEW, order):
            ranks = labels.ranks[found.rules]
            kernels.ordering.order_matches(found.sources, ranks, len(labels), view.ts, view.seq, order)
        return order

    def _fan(self, level: int) -> tuple[Array, Array]:
        """Where the queries of each filter begin, and their records."""
        filters = len(self._tables.is_anchor)
        fan = self._fans.get(level)
        if fan is None or len(fan[0]) <= filters:
            by_filter, records = np.array(self._levels[level], np.int64).T.copy()
            order = np.argsort(by_filter, kind="stable")
            starts = np.concatenate([[0], np.cumsum(np.bincount(by_filter, minlength=filters + 1))])
            fan = self._fans[level] = starts, records[order]
        return fan

    # ---- what is kept

    def kept(self) -> dict[str, pa.Table]:
        """What each query keeps."""
        found: dict[str, pa.Table] = {}
        memory = self._memory.ctypes.data
        for loaded, at in self._loaded:
            if self._memory[at + layout.P_COUNT]:
                words = np.zeros(projections.words_kept(memory, at), np.int64)
                words = words[: projections.write_kept(memory, at, words)]
                found[loaded.rule.plan.rule.name] = pa.table(
                    {
                        "what": [KEPT],
                        "type": [loaded.rule.plan.types[0]],
                        "row": pa.array([kernels.NONE], pa.int64()),
                        "words": pa.array([words], pa.list_(pa.int64())),
                        "texts": pa.array([[]], pa.list_(pa.string())),
                    }
                )
        return found

    def take(self, kept: Mapping[str, pa.Table], numbers: Mapping[str, Array], stored: Callable[[Array], View]) -> None:
        """Gives queries what they kept.

        Where rows of the store were written down, these come anew: `numbers` are the rows of a type's events, and
        `stored` a view of rows.
        """
        for loaded, at in self._loaded:
            table = kept.get(loaded.rule.plan.rule.name)
            if table is None or not table.num_rows:
                continue
            if table["what"][0].as_py() == KEPT:
                words = table["words"].combine_chunks().flatten().to_numpy()
                self._reserve(2 * len(words))
                projections.read_kept(self._memory.ctypes.data, self._used, len(self._memory), at, words)
                continue
            rows = numbers.get(loaded.rule.plan.types[0], np.zeros(0, np.int64))
            rows = rows[table["row"].to_numpy()] if len(rows) else rows
            rows = rows[rows >= 0]
            passed = Passed(np.zeros(len(rows), np.int64), np.arange(len(rows)))
            for _ in self._run(np.array([0, 1]), np.array([at]), passed, stored(rows)):
                pass  # what they brought once came out then


def _found(told: Told, machine: Machine, view: View, first: Array, second: Array) -> Found:
    """Rows as matches, which other rules may use; `first` and `second` are the identities of their events."""
    nothing = np.zeros((len(told.rules), machine.tables.places), np.int64)
    if not machine.intake.nameless:
        projections.row_identities(machine.tables.rule_words, told.rules, first, second)
    moments = Moments(view.ts[told.sources], view.seq[told.sources])
    found = Found(told.rules, nothing, nothing[:, 0], told.words, told.known, first, second, moments)
    machine.hold([found])
    return found
