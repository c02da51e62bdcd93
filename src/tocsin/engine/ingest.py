"""Store the events of a batch that rules need.

Only events that pass some filter are stored, with the attributes that rules read. Each event gets an id, which is
computed from its content and counts its occurrence among equal events. *Ties*, which are events of one instant, are put
in canonical order. The result is a set of pairs (filter, row), one for each filter that a new row of the store passes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tocsin import kernels
from tocsin.engine.batch_columns import ColumnView, column_values, hexadecimal
from tocsin.engine.compile import RuleTables
from tocsin.engine.predicates import PredicateEvaluator, SelectedRows
from tocsin.engine.store import EventStore
from tocsin.engine.strings import StringCodes, StringDictionary, string_buffers
from tocsin.engine.ties import (
    Tail,
    TieKeys,
    Ties,
    add_to_ids,
    canonical_order,
    count_ties,
    find_ties,
    number_occurrences,
    order_ties,
    reordered,
)
from tocsin.events.columns import one_array
from tocsin.events.reader import LABEL_COLUMN
from tocsin.events.types import ID, Kind, text_words
from tocsin.kernels import Array


@dataclass(slots=True)
class PreparedColumns:
    """The columns of a batch, as far as they can be converted without changing the string dictionary."""

    values: dict[str, tuple[Array, Array]] = field(default_factory=dict)
    codes: dict[str, StringCodes] = field(default_factory=dict)


def prepare_columns(batch: pa.Table, tables: RuleTables, strings: StringDictionary) -> PreparedColumns:
    """Convert the columns of `batch` that rules read, and look up the strings that have a code already."""
    prepared = PreparedColumns()
    for name in batch.column_names:
        attribute, _, kind = name.rpartition(":")
        if not attribute or tables.slots_of(attribute, Kind(kind)) is None:
            continue
        column = one_array(batch[name])
        if kind != Kind.STRING:
            prepared.values[name] = column_values(column, Kind(kind), None)
        elif (codes := strings.find(column)) is not None:
            prepared.codes[name] = codes
    return prepared


def load_rows(
    batch: pa.Table, tables: RuleTables, strings: StringDictionary, store: EventStore, prepared: PreparedColumns
) -> tuple[int, dict[str, tuple[Array, Array]]]:
    """Copy the columns of `batch` that rules read to new rows of the store.

    Return the first new row, and the converted columns by name.
    """
    size = batch.num_rows
    base = store.reserve(size, tables.width)
    types = batch["type"].to_numpy().astype(np.int64)
    store.ts[base : base + size] = batch["ts"].to_numpy()
    store.seq[base : base + size] = batch["seq"].to_numpy()
    store.type[base : base + size] = types
    store.source_id[base : base + size] = kernels.NONE
    store.size = base + size
    columns: dict[str, tuple[Array, Array]] = {}
    for name in batch.column_names:
        if ":" not in name:
            continue
        attribute, _, kind = name.rpartition(":")
        slots = tables.slots_of(attribute, Kind(kind))
        if slots is not None:
            converted = prepared.values.get(name)
            columns[name] = converted or column_values(
                one_array(batch[name]), Kind(kind), strings, prepared.codes.get(name)
            )
            kernels.load_column(store.values, store.valid, base, *columns[name], types, slots)
    return base, columns


def content_ids(
    batch: pa.Table, type_words: Array, source: Array, columns: Mapping[str, tuple[Array, Array]]
) -> tuple[Array, Array]:
    """Return ids that depend only on the content of the events at the rows `source` of a batch.

    `columns` has the columns that are converted already. If a batch was sent without some of its columns, it has these
    ids as columns instead.
    """
    if "first" in batch.column_names:
        id_high, id_low = (one_array(batch[name]).to_numpy()[source] for name in ("first", "second"))
        return id_high, id_low
    id_high, id_low = np.empty(len(source), np.uint64), np.empty(len(source), np.uint64)
    header = (batch[name].to_numpy()[source].astype(np.int64, copy=False) for name in ("type", "ts", "seq"))
    kernels.fold_start(id_high, id_low, type_words, *header)
    for name in sorted(name for name in batch.column_names if ":" in name):
        attribute, _, kind = name.rpartition(":")
        name_hash = np.array(text_words(attribute), np.uint64)
        if kind == Kind.STRING:
            kernels.fold_strings(id_high, id_low, name_hash, *string_buffers(one_array(batch[name])), source)
        else:
            values = columns.get(name) or column_values(one_array(batch[name]), Kind(kind), None)
            kernels.fold_values(id_high, id_low, name_hash, *values, source)
    return id_high, id_low


def source_ids(batch: pa.Table) -> pa.Array | None:
    """Return the ids that the source gave the events, with null for events without such an id."""
    if LABEL_COLUMN not in batch.column_names:
        return None
    ids = one_array(batch[LABEL_COLUMN])
    return ids.cast(pa.string()) if pa.types.is_dictionary(ids.type) else ids


class UnstoredEvents(NamedTuple):
    """Selected events that need not be stored, as pairs (filter, row of the batch), with the batch and a view of it."""

    selected: SelectedRows
    batch: pa.Table
    view: ColumnView
    numbers: Array | None = None
    """The occurrence (0, 1, …) of each event among events of equal content. None if there are no equal events."""


@dataclass(slots=True)
class SelectedEvents:
    """The events of a batch that pass some filter, and their rows in the batch."""

    events: pa.Table
    selected: SelectedRows | None
    """Pairs (filter, position in `events`). None if filters read ids, which are known only after events are stored."""
    origin: Array
    prepared: PreparedColumns
    content: tuple[Array, Array] | None = None
    """The ids of the content of the events, or None if they are not computed in advance."""
    unstored: UnstoredEvents | None = None


class EventIngest(PredicateEvaluator):
    """Stores the events of batches, and composite events. If `ordered`, an instant may span several batches."""

    def __init__(
        self, tables: RuleTables, strings: StringDictionary, store: EventStore, *, ordered: bool = False
    ) -> None:
        super().__init__(tables, strings)
        self._store = store
        self.tail = Tail() if ordered else None
        self.without_ids = False
        """Whether rules and matches need no event ids. Then ids are computed only to order ties."""
        self.canonical = False
        """Whether batches are already in canonical order and have ids that count occurrences."""
        self.shows_ids = True
        """Whether the parts of matches show the ids that the source gave, instead of computed ids."""

    def environment(self, lists: kernels.Lists | None) -> Array:
        """Return the addresses with which kernels evaluate expressions and search `lists`.

        The addresses are valid until one of the arrays is replaced.
        """
        return self._environment(self._store, lists)

    @property
    def can_prefetch(self) -> bool:
        """Whether `select` neither reads nor changes state, so that it can run ahead of time on another thread."""
        return not self._tables.filters.has_programs and not self._reads_ids

    def select(self, batch: pa.Table, *, background: bool = False) -> SelectedEvents:
        """Return the events of a batch that pass some filter.

        If `background`, the call may run concurrently with a call that is not in the background.
        """
        ids = source_ids(batch)
        if self._reads_ids and (ids is None or ids.null_count):
            return SelectedEvents(batch, None, np.arange(batch.num_rows), PreparedColumns())
        view = self.view_batch(batch)
        unstored, selected, origin = self._split_unstored(batch, view, *self.evaluate(view, background=background))
        if len(origin) < batch.num_rows:
            batch = batch.take(pa.array(origin))
        prepared = prepare_columns(batch, self._tables, self._strings)
        chunk = SelectedEvents(batch, selected, origin, prepared, unstored=unstored)
        if not self.without_ids:
            chunk.content = content_ids(batch, self._tables.type_words, np.arange(len(origin)), prepared.values)
        return chunk

    def _split_unstored(
        self, batch: pa.Table, view: ColumnView, selected: SelectedRows, origin: Array
    ) -> tuple[UnstoredEvents | None, SelectedRows, Array]:
        """Split selected events into those that need not be stored and those to store.

        All events of an ordered source are stored, because the source may have sent an equal event before. Return the
        events that need not be stored, the pairs to store, and the row of the batch for each stored position.
        """
        stored = self._tables.is_stored[selected.filters] != 0
        if stored.all() or self.tail is not None:
            return None, selected, origin
        unstored = UnstoredEvents(SelectedRows(selected.filters[~stored], selected.rows[~stored]), batch, view)
        rows, positions = np.unique(selected.rows[stored], return_inverse=True)
        return self._order_unstored(unstored, origin), SelectedRows(selected.filters[stored], positions), origin[rows]

    def _order_unstored(self, events: UnstoredEvents, origin: Array) -> UnstoredEvents:
        """Put ties in canonical order, and replace positions in pairs (filter, position) by rows of the batch."""
        selected, numbers = events.selected, None
        if not self.canonical and len((ties := find_ties(events.view, origin, len(self._tables.types))).positions):
            order, numbers = self._tie_order(ties, events.batch, events.view, origin)
            selected = reordered(selected, len(origin), ties.positions, order)
            origin = origin.copy()
            origin[ties.positions] = origin[ties.positions[order]]
        return events._replace(selected=SelectedRows(selected.filters, origin[selected.rows]), numbers=numbers)

    def _tie_order(self, ties: Ties, batch: pa.Table, view: ColumnView, origin: Array) -> tuple[Array, Array | None]:
        """Return the permutation that sorts tied events, and the occurrence of each event among equal events.

        The occurrences have one element per event of the batch. They are None if there are no equal events, or if ids
        are not needed.
        """
        source = origin[ties.positions]
        content = content_ids(batch, self._tables.type_words, source, {})
        keys = TieKeys(view.ts[source], view.seq[source], view.types[source], *content)
        ids = source_ids(batch)
        if ids is not None:
            ids = pc.coalesce(ids.take(pa.array(source)), hexadecimal(*content))
        order = order_ties(ties, keys, ids)
        if self.without_ids:
            return order, None
        numbers_of_ties = count_ties(ties, order, keys)
        if numbers_of_ties is None:
            return order, None
        numbers = np.zeros(batch.num_rows, np.int64)
        numbers[source] = numbers_of_ties
        return order, numbers

    def event_ids(self, events: UnstoredEvents, source: Array) -> tuple[Array, Array]:
        """Return the ids of events that are not stored, at the rows `source` of their batch; zeros without ids."""
        if self.without_ids:
            return np.zeros(len(source), np.uint64), np.zeros(len(source), np.uint64)
        id_high, id_low = content_ids(events.batch, self._tables.type_words, source, {})
        return (id_high, id_low) if events.numbers is None else add_to_ids(id_high, id_low, events.numbers[source])

    def store_batch(self, chunk: SelectedEvents) -> tuple[SelectedRows, list[int]]:
        """Store the selected events of a batch, in canonical order.

        Return the selected rows of the store, and the rows of the batch with late events. An event is late if it
        precedes an event of the same instant and type that was processed before.
        """
        batch, selected, origin = chunk.events, chunk.selected, chunk.origin
        if selected is None:
            return self._store_before_evaluation(batch)
        ids = source_ids(batch)
        base, columns = load_rows(batch, self._tables, self._strings, self._store, chunk.prepared)
        selected.rows += base
        if ids is not None and self._reads_ids:
            self._load_ids(base, column_values(ids, Kind.STRING, self._strings))
        source = np.arange(len(origin))
        self._identify(batch, columns, ids, base, source, chunk.content)
        late, selected = self._break_ties(batch, columns, base, source, selected)
        if late:
            is_late = np.isin(selected.rows, late)
            selected = SelectedRows(selected.filters[~is_late], selected.rows[~is_late])
        return selected, origin[source[np.array(late, np.int64) - base]].tolist()

    def _store_before_evaluation(self, batch: pa.Table) -> tuple[SelectedRows, list[int]]:
        """Store all needed events of a batch, and then evaluate filters, because filters read computed ids.

        Return the selected rows of the store, and the rows of the batch with late events.
        """
        store = self._store
        needed = np.nonzero(batch["type"].to_numpy() >= 0)[0]
        batch = batch.take(needed)
        base, columns = load_rows(batch, self._tables, self._strings, store, PreparedColumns())
        source = np.arange(len(needed))
        self._identify(batch, columns, source_ids(batch), base, source)
        late, _ = self._break_ties(batch, columns, base, source, SelectedRows(source[:0], source[:0]))
        store.type[late] = kernels.NONE
        rows = slice(base, base + len(needed))
        self._load_ids(base, self._id_values(store.id_high[rows], store.id_low[rows], store.source_id[rows]))
        selected, stored = self.evaluate(self.view_rows(rows))
        store.retain(base, stored)
        selected.rows += base
        return selected, [int(needed[source[row - base]]) for row in late]

    def view_rows(self, rows: slice | Array) -> ColumnView:
        """Return a view of the rows `rows` of the store, for predicates."""
        store = self._store
        view = self.view(store.type[rows], store.ts[rows], store.seq[rows])
        for slot in range(store.width):
            view.add_values(store.values[slot, rows], store.valid[slot, rows], slot)
        return view

    def _id_values(self, id_high: Array, id_low: Array, source_id: Array) -> tuple[Array, Array]:
        """Return event ids as codes of strings, with their validity. Ids of the source replace computed ids."""
        computed = source_id < 0
        values = np.empty(len(source_id), np.int64)
        values[computed] = self._strings.encode(hexadecimal(id_high[computed], id_low[computed]))
        values[~computed] = self._strings.encode(self._store.source_ids.strings(source_id[~computed]))
        return values, np.ones(len(values), np.uint8)

    def store_identified(
        self,
        type: int,
        ts: Array,
        seq: Array,
        id_high: Array,
        id_low: Array,
        source_id: Array,
        slots: dict[int, tuple[Array, Array]],
    ) -> tuple[SelectedRows, Array]:
        """Store composite or restored events of one type, which have ids and are in canonical order.

        `slots` has the values and validity of attributes, by slot. Return the selected rows, and for each new row of
        the store the position of its event.
        """
        store, size = self._store, len(ts)
        base = store.reserve(size, self._tables.width)
        rows = slice(base, base + size)
        store.ts[rows], store.seq[rows], store.type[rows] = ts, seq, type
        store.id_high[rows], store.id_low[rows], store.source_id[rows] = id_high, id_low, source_id
        for slot, (values, valid) in slots.items():
            store.values[slot, rows], store.valid[slot, rows] = values, valid
        if self._reads_ids:
            self._load_ids(base, self._id_values(id_high, id_low, source_id))
        store.size = base + size
        selected, source = self.evaluate(self.view_rows(rows))
        store.retain(base, source)
        selected.rows += base
        return selected, source

    # ---- event ids

    @property
    def _reads_ids(self) -> bool:
        return self._tables.slots_of(ID, Kind.STRING) is not None

    def _load_ids(self, base: int, ids: tuple[Array, Array]) -> None:
        """Write ids to the slot of the attribute `id`, for the rows of the store from `base` on."""
        store, slots = self._store, self._tables.slots_of(ID, Kind.STRING)
        kernels.load_column(store.values, store.valid, base, *ids, store.type[base : base + len(ids[0])], slots)

    def _identify(
        self,
        batch: pa.Table,
        columns: dict[str, tuple[Array, Array]],
        ids: pa.Array | None,
        base: int,
        source: Array,
        content: tuple[Array, Array] | None = None,
    ) -> None:
        """Write the event ids of new rows of the store from `base` on, which are the rows `source` of the batch."""
        store, rows = self._store, slice(base, base + len(source))
        if self.without_ids and (ids is None or self.canonical):
            store.id_high[rows], store.id_low[rows] = 0, 0
            return
        if content is not None:
            store.id_high[rows], store.id_low[rows] = content
        else:
            store.id_high[rows], store.id_low[rows] = content_ids(batch, self._tables.type_words, source, columns)
        if ids is not None:
            own_ids = ids.take(pa.array(source))
            with_source_id = np.flatnonzero(own_ids.is_valid().to_numpy(zero_copy_only=False))
            store.source_id[base + with_source_id] = store.source_ids.add(own_ids.take(pa.array(with_source_id)))

    # ---- ties

    def _break_ties(
        self,
        batch: pa.Table,
        columns: dict[str, tuple[Array, Array]],
        base: int,
        source: Array,
        selected: SelectedRows,
    ) -> tuple[list[int], SelectedRows]:
        """Sort new rows of equal (ts, seq) by (type, id, content), and number the occurrences of equal events.

        `source` is permuted in place in the same way. Return the rows that are late within their instant, and the
        selected rows with their new numbers.
        """
        if self.canonical:
            return [], selected
        store, count = self._store, len(source)
        ts, seq = store.ts[base : base + count], store.seq[base : base + count]
        same = (ts[1:] == ts[:-1]) & (seq[1:] == seq[:-1])
        rows = np.zeros(0, np.int64)
        if same.any():
            in_ties = np.zeros(count, bool)
            in_ties[1:] |= same
            in_ties[:-1] |= same
            positions = np.nonzero(in_ties)[0]
            rows = base + positions
            if self.without_ids:
                store.id_high[rows], store.id_low[rows] = content_ids(
                    batch, self._tables.type_words, source[positions], columns
                )
            order = self._tied_order(batch, columns, source[positions], rows)
            if (np.diff(order) != 1).any():
                store.permute(rows, order)
                source[positions] = source[positions[order]]
                selected = reordered(SelectedRows(selected.filters, selected.rows - base), count, positions, order)
                selected.rows += base
        if self.tail is not None:
            return self.tail.follow(store, base, count, rows), selected
        number_occurrences(store, rows)
        return [], selected

    def _tied_order(
        self, batch: pa.Table, columns: dict[str, tuple[Array, Array]], source: Array, rows: Array
    ) -> Array:
        """Return the permutation that sorts tied rows of the store, which are the rows `source` of the batch."""
        store = self._store
        source_id = store.source_id[rows]
        times = store.ts[rows], store.seq[rows], store.type[rows]
        if (source_id < 0).all():
            return canonical_order(TieKeys(*times, store.id_high[rows], store.id_low[rows]))
        content = content_ids(batch, self._tables.type_words, source, columns)
        ids = pc.if_else(pa.array(source_id >= 0), store.source_ids.strings(source_id), hexadecimal(*content))
        return canonical_order(TieKeys(*times, *content), ids)
