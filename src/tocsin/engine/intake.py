"""From a batch to rows: loads the columns that rules read, keeps the events that pass some filter, says who they are
and puts equals in order.

What comes out is the store's new rows and the pairs (filter, row), in canonical order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tocsin.engine import kernels
from tocsin.engine.kernels import Array
from tocsin.engine.store import Store
from tocsin.engine.tables import Tables
from tocsin.engine.texts import Texts
from tocsin.events import ids
from tocsin.events.ids import text_words
from tocsin.events.types import Kind

NO_RANKS: Array = np.zeros(1, np.int64)


@dataclass(slots=True)
class Passed:
    """Events that passed filters: pairs (filter, row) in canonical order."""

    filters: Array
    rows: Array


def words_of(column: pa.Array, kind: Kind, texts: Texts | None) -> tuple[Array, Array]:
    """A column as 64-bit words, and whether there is a value. Doubles that are not finite are no values."""
    size = len(column)
    if column.null_count:
        present = column.is_valid().to_numpy(zero_copy_only=False).astype(np.uint8)
    else:
        present = np.ones(size, np.uint8)
    if kind == Kind.STRING:
        assert texts is not None
        return texts.encode(column), present
    if kind == Kind.DOUBLE:
        doubles = (column.fill_null(0.0) if column.null_count else column).to_numpy(zero_copy_only=False) + 0.0
        finite = np.isfinite(doubles)
        if not finite.all():
            present &= finite
        return doubles.view(np.int64), present
    if kind == Kind.BOOL:
        return column.fill_null(False).to_numpy(zero_copy_only=False).astype(np.int64), present
    if kind == Kind.TIMESTAMP:
        column = column.cast(pa.int64())
    filled = column.fill_null(0) if column.null_count else column
    return filled.to_numpy(zero_copy_only=False).astype(np.int64, copy=False), present


def load(batch: pa.Table, tables: Tables, texts: Texts, store: Store) -> tuple[int, dict[str, tuple[Array, Array]]]:
    """Copies the columns that rules read behind the store's last row. Returns where, and the words of the columns."""
    size = batch.num_rows
    base = store.reserve(size, tables.width)
    types = batch["type"].to_numpy().astype(np.int64)
    store.ts[base : base + size] = batch["ts"].to_numpy()
    store.seq[base : base + size] = batch["seq"].to_numpy()
    store.type[base : base + size] = types
    store.given[base : base + size] = kernels.NONE
    columns: dict[str, tuple[Array, Array]] = {}
    for name in batch.column_names:
        if ":" not in name:
            continue
        attribute, _, kind = name.rpartition(":")
        slots = tables.slots_of(attribute, Kind(kind))
        if slots is not None:
            columns[name] = words_of(whole(batch[name]), Kind(kind), texts)
            kernels.load_column(store.words, store.present, base, *columns[name], types, slots)
    return base, columns


def whole(column: pa.ChunkedArray) -> pa.Array:
    """A column in one piece."""
    if column.num_chunks == 1:
        return column.chunk(0)
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


def identities(
    batch: pa.Table, type_words: Array, source: Array, columns: Mapping[str, tuple[Array, Array]]
) -> tuple[Array, Array]:
    """The identities of the content of the events at `source` in a batch, of which some columns may be words already.

    They are in the batch if it has crossed a border behind which not all columns of the events are at hand.
    """
    if "first" in batch.column_names:
        # Where events with ids and without wait together, those with ids have none.
        columns_of = (whole(batch[name]).fill_null(0) for name in ("first", "second"))
        first, second = (column.to_numpy()[source] for column in columns_of)
        return first, second
    first, second = np.empty(len(source), np.uint64), np.empty(len(source), np.uint64)
    header = (batch[name].to_numpy()[source].astype(np.int64, copy=False) for name in ("type", "ts", "seq"))
    kernels.fold_start(first, second, type_words, *header)
    for name in sorted(name for name in batch.column_names if ":" in name):
        attribute, _, kind = name.rpartition(":")
        title = np.array(text_words(attribute), np.uint64)
        if kind == Kind.STRING:
            kernels.fold_texts(first, second, title, *text_buffers(whole(batch[name])), source)
        else:
            words = columns.get(name) or words_of(whole(batch[name]), Kind(kind), None)
            kernels.fold_words(first, second, title, *words, source)
    return first, second


class Intake:
    """Takes in batches and composite events. `ordered`: an instant may be spread over several batches."""

    def __init__(self, tables: Tables, texts: Texts, store: Store, *, ordered: bool = False) -> None:
        self._tables, self._texts, self._store = tables, texts, store
        self._scratch = kernels.Scratch()
        self.tail = Tail() if ordered else None
        self.nameless = False
        """Whether nobody will ask who an event is: then only equals are identified, for their order."""
        self.settled = False
        """Whether batches are in canonical order already, with identities in which occurrences are counted."""

    def environment(self, lists: kernels.Lists | None) -> Array:
        """What the kernels need to evaluate expressions and to search these lists; valid until any array moves."""
        store, tables = self._store, self._tables
        ranks = self._texts.ranks if tables.expressions.uses_ranks else NO_RANKS
        columns = (store.ts, store.seq, store.words, store.present)
        return kernels.environment(self._scratch, tables.code.data, *columns, ranks, lists)

    def batch(self, batch: pa.Table) -> tuple[Passed, list[int]]:
        """Takes in a batch in order of (ts, seq).

        Returns what passed, and which events came behind an equal one that canonically follows them.
        """
        given = whole(batch["id"]) if "id" in batch.column_names else None
        if self._reads_ids and (given is None or given.null_count):
            return self._identified_first(batch)
        store = self._store
        base, columns = load(batch, self._tables, self._texts, store)
        if given is not None and self._reads_ids:
            self._load_ids(base, words_of(given, Kind.STRING, self._texts))
        passed, source = self.classify(base, batch.num_rows)
        store.size = base + len(source)
        self._identify(batch, columns, given, base, source)
        late, passed = self._settle(batch, columns, base, source, passed)
        if late:
            gone = np.isin(passed.rows, late)
            passed = Passed(passed.filters[~gone], passed.rows[~gone])
        return passed, [int(source[row - base]) for row in late]

    def _identified_first(self, batch: pa.Table) -> tuple[Passed, list[int]]:
        """Takes in a batch for rules that read computed ids: these must be known before filters are tried."""
        store = self._store
        needed = np.nonzero(batch["type"].to_numpy() >= 0)[0]
        batch = batch.take(needed)
        base, columns = load(batch, self._tables, self._texts, store)
        source = np.arange(len(needed))
        self._identify(batch, columns, whole(batch["id"]) if "id" in batch.column_names else None, base, source)
        late, _ = self._settle(batch, columns, base, source, Passed(source[:0], source[:0]))
        store.type[late] = kernels.NONE
        rows = slice(base, base + len(needed))
        first, second, given = store.first[rows].copy(), store.second[rows].copy(), store.given[rows].copy()
        self._load_ids(base, self._id_words(first, second, given))
        passed, kept = self.classify(base, len(needed))
        rows = slice(base, base + len(kept))
        store.first[rows], store.second[rows], store.given[rows] = first[kept], second[kept], given[kept]
        store.size = rows.stop
        return passed, [int(needed[source[row - base]]) for row in late]

    def _id_words(self, first: Array, second: Array, given: Array) -> tuple[Array, Array]:
        """Ids as words, as rules read them."""
        computed = given < 0
        words = np.empty(len(given), np.int64)
        words[computed] = self._texts.encode(hexadecimal(first[computed], second[computed]))
        words[~computed] = self._texts.encode(self._store.names.texts(given[~computed]))
        return words, np.ones(len(words), np.uint8)

    def identified(
        self,
        type: int,
        ts: Array,
        seq: Array,
        first: Array,
        second: Array,
        given: Array,
        slots: dict[int, tuple[Array, Array]],
    ) -> tuple[Passed, Array]:
        """Takes in events of one type, in canonical order, of which is known who they are: composite and restored ones.

        Returns what passed, and for each row of the store, from the first new one on, which event it is.
        """
        store, size = self._store, len(ts)
        base = store.reserve(size, self._tables.width)
        rows = slice(base, base + size)
        store.ts[rows], store.seq[rows], store.type[rows] = ts, seq, type
        for slot, (words, present) in slots.items():
            store.words[slot, rows], store.present[slot, rows] = words, present
        if self._reads_ids:
            self._load_ids(base, self._id_words(first, second, given))
        passed, source = self.classify(base, size)
        kept = slice(base, base + len(source))
        store.first[kept], store.second[kept], store.given[kept] = first[source], second[source], given[source]
        store.size = kept.stop
        return passed, source

    def classify(self, base: int, size: int) -> tuple[Passed, Array]:
        """Keeps the loaded events that pass some filter. Returns the pairs and where each kept row was in the batch."""
        tables, store = self._tables, self._store
        filters = tables.filters.tables(len(tables.types))
        env = self.environment(None)
        source = np.empty(size, np.int64)
        at = kept = 0
        parts = [(np.zeros(0, np.int64), np.zeros(0, np.int64))]
        while at < size:
            room = size - at + tables.filters.most_of_a_type
            pair_filter, pair_row = np.empty(room, np.int64), np.empty(room, np.int64)
            at, kept, pairs = kernels.classify(
                filters, env.ctypes.data, store.ts, store.seq, store.words, store.words.view(np.float64), store.present,
                store.type, base, at, size, kept, source, pair_filter, pair_row,
            )  # fmt: skip
            parts.append((pair_filter[:pairs], pair_row[:pairs]))
        joined = [np.concatenate([part[k] for part in parts]) if len(parts) > 2 else parts[-1][k] for k in range(2)]
        return Passed(joined[0], joined[1]), source[:kept]

    # ---- who an event is

    @property
    def _reads_ids(self) -> bool:
        return self._tables.slots_of("id", Kind.STRING) is not None

    def _load_ids(self, base: int, ids: tuple[Array, Array]) -> None:
        """Lets rules read ids like any other attribute."""
        store, slots = self._store, self._tables.slots_of("id", Kind.STRING)
        kernels.load_column(store.words, store.present, base, *ids, store.type[base : base + len(ids[0])], slots)

    def _identify(
        self,
        batch: pa.Table,
        columns: dict[str, tuple[Array, Array]],
        given: pa.Array | None,
        base: int,
        source: Array,
    ) -> None:
        """Writes the identities of the rows from `base` on, which were at `source` in the batch."""
        store, rows = self._store, slice(base, base + len(source))
        if self.nameless:
            store.first[rows], store.second[rows] = 0, 0
            return
        unnamed = np.arange(len(source))
        if given is not None:
            offsets, data, present = text_buffers(given)
            kernels.text_identities(store.first[rows], store.second[rows], offsets, data, source)
            unnamed = np.nonzero(present[source] == 0)[0]
            named = given.take(pa.array(source[present[source] != 0]))
            store.given[base + np.nonzero(present[source])[0]] = store.names.add(named)
        if len(unnamed):
            chosen = base + unnamed
            content = identities(batch, self._tables.type_words, source[unnamed], columns)
            store.first[chosen], store.second[chosen] = content

    # ---- order among equals

    def _settle(
        self,
        batch: pa.Table,
        columns: dict[str, tuple[Array, Array]],
        base: int,
        source: Array,
        passed: Passed,
    ) -> tuple[list[int], Passed]:
        """Puts rows of equal (ts, seq) in order of (type, id, content) and numbers the occurrences of equal events.

        `source` and `passed` follow. Returns the rows that are late among their equals.
        """
        if self.settled:
            return [], passed
        store, count = self._store, len(source)
        ts, seq = store.ts[base : base + count], store.seq[base : base + count]
        same = (ts[1:] == ts[:-1]) & (seq[1:] == seq[:-1])
        rows = np.zeros(0, np.int64)
        if same.any():
            tied = np.zeros(count, bool)
            tied[1:] |= same
            tied[:-1] |= same
            rows = base + np.nonzero(tied)[0]
            if self.nameless:
                content = identities(batch, self._tables.type_words, source[rows - base], columns)
                store.first[rows], store.second[rows] = content
            order = self._canonical(batch, columns, source[rows - base], rows)
            if (np.diff(order) != 1).any():
                store.permute(rows, order)
                source[rows - base] = source[rows[order] - base]
                moved = np.arange(base + count)
                moved[rows[order]] = rows
                filters, at = passed.filters, moved[passed.rows]
                again = np.argsort(at, kind="stable")
                passed = Passed(filters[again], at[again])
        if self.tail is not None:
            return self.tail.follow(store, base, count, rows), passed
        number_occurrences(store, rows)
        return [], passed

    def _canonical(self, batch: pa.Table, columns: dict[str, tuple[Array, Array]], source: Array, rows: Array) -> Array:
        """How to sort tied rows by (ts, seq, type, id, content)."""
        store = self._store
        given = store.given[rows]
        if (given < 0).all():
            keys = (store.second[rows], store.first[rows], store.type[rows], store.seq[rows], store.ts[rows])
            return np.lexsort(keys)
        first, second = identities(batch, self._tables.type_words, source, columns)
        texts = store.names.texts(given)
        table = pa.table(
            {
                "ts": store.ts[rows],
                "seq": store.seq[rows],
                "type": store.type[rows],
                "id": pc.if_else(pa.array(given >= 0), texts, hexadecimal(first, second)),
                "first": first,
                "second": second,
            }
        )
        return np.asarray(pc.sort_indices(table, [(name, "ascending") for name in table.column_names]), np.int64)


def number_occurrences(store: Store, rows: Array) -> None:
    """Adds to the computed identities of equal events, which stand behind each other, 0, 1, 2, …"""
    rows = rows[store.given[rows] < 0]
    equal = np.ones(max(len(rows) - 1, 0), bool)
    for column in (store.ts, store.seq, store.type, store.first, store.second):
        equal &= column[rows[1:]] == column[rows[:-1]]
    if equal.any():
        position = np.arange(len(rows))
        begins = np.maximum.accumulate(np.where(np.concatenate([[True], ~equal]), position, 0))
        add_to_identities(store, rows, position - begins)


def add_to_identities(store: Store, rows: Array, numbers: Array) -> None:
    """Adds numbers to identities, taken as 128-bit numbers."""
    second = store.second[rows] + numbers.astype(np.uint64)
    store.first[rows] += (second < store.second[rows]).astype(np.uint64)
    store.second[rows] = second


class Tail:
    """The rows at the last (ts, seq) of an ordered source, beside which more may still come."""

    def __init__(self) -> None:
        self.key: tuple[int, int] | None = None
        self.counts: dict[tuple[int, int, int], int] = {}
        """How often each content (type, identity) occurred."""
        self.last: dict[int, str] = {}
        """The last id of each type."""

    def follow(self, store: Store, base: int, count: int, tied: Array) -> list[int]:
        """Goes on numbering occurrences; returns the rows that come before one of their type that is already out."""
        if count == 0:
            return []
        ts, seq = store.ts[base : base + count], store.seq[base : base + count]
        ends = (int(ts[-1]), int(seq[-1]))
        begin = (base + np.nonzero((ts == ts[0]) & (seq == seq[0]))[0]).tolist()
        if self.key != (ts[0], seq[0]):
            begin = []
        end = (base + np.nonzero((ts == ends[0]) & (seq == ends[1]))[0]).tolist()
        content = {row: (int(store.type[row]), *_identity(store, row)) for row in {*begin, *end}}
        number_occurrences(store, tied)
        for row in begin:
            if store.given[row] < 0:
                earlier = self.counts.get(content[row], 0)
                add_to_identities(store, np.array([row]), np.array([earlier]))
        mark = {row: _id_text(store, row) for row in content}
        late = [row for row in begin if mark[row] < self.last.get(content[row][0], "")]
        if ends != self.key:
            self.key, self.counts, self.last = ends, {}, {}
        for row in end:
            if row not in late:
                type = content[row][0]
                self.counts[content[row]] = self.counts.get(content[row], 0) + 1
                self.last[type] = max(mark[row], self.last.get(type, ""))
        return late


def _identity(store: Store, row: int) -> tuple[int, int]:
    return int(store.first[row]), int(store.second[row])


def _id_text(store: Store, row: int) -> str:
    if store.given[row] < 0:
        return ids.hexadecimal(_identity(store, row))
    return str(store.names.texts(store.given[row : row + 1])[0])


def hexadecimal(first: Array, second: Array) -> pa.Array:
    """Identities as they are printed, 32 digits each."""
    data = np.empty(32 * len(first), np.uint8)
    kernels.hexadecimal(first, second, data)
    offsets = np.arange(0, 32 * len(first) + 1, 32, dtype=np.int32)
    return pa.StringArray.from_buffers(len(first), pa.py_buffer(offsets), pa.py_buffer(data))


def text_buffers(column: pa.Array) -> tuple[Array, Array, Array]:
    """The offsets, the bytes, and whether there is a value, of a column of strings."""
    column = column.cast(pa.string())
    buffers = column.buffers()
    offsets = np.frombuffer(buffers[1], np.int32)[column.offset : column.offset + len(column) + 1]
    data = np.frombuffer(buffers[2], np.uint8) if buffers[2] is not None and buffers[2].size else np.zeros(1, np.uint8)
    if column.null_count:
        present = column.is_valid().to_numpy(zero_copy_only=False).astype(np.uint8)
    else:
        present = np.ones(len(column), np.uint8)
    return offsets, data, present
