"""From a batch to rows: of the events that pass some filter it loads the columns that rules read, says who they are and
puts equals in order.

What comes out is the store's new rows and the pairs (filter, row), in canonical order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tocsin import kernels
from tocsin.engine.batch_columns import View, hexadecimal, words_of
from tocsin.engine.compile import Tables
from tocsin.engine.predicates import Passed, Sieve
from tocsin.engine.store import Store
from tocsin.engine.strings import FoundTexts, Texts, text_buffers
from tocsin.engine.ties import (
    Keys,
    Tail,
    Twins,
    canonical,
    count_twins,
    number_occurrences,
    order_twins,
    plus,
    reordered,
    twins,
)
from tocsin.events.columns import whole
from tocsin.events.reader import LABEL_COLUMN
from tocsin.events.types import ID, Kind, text_words
from tocsin.kernels import Array


@dataclass(slots=True)
class Ready:
    """What of a batch's columns could be made ready without learning anything."""

    words: dict[str, tuple[Array, Array]] = field(default_factory=dict)
    found: dict[str, FoundTexts] = field(default_factory=dict)


def make_ready(batch: pa.Table, tables: Tables, texts: Texts) -> Ready:
    """The columns that rules read as words, and of strings what is known."""
    ready = Ready()
    for name in batch.column_names:
        attribute, _, kind = name.rpartition(":")
        if not attribute or tables.slots_of(attribute, Kind(kind)) is None:
            continue
        column = whole(batch[name])
        if kind != Kind.STRING:
            ready.words[name] = words_of(column, Kind(kind), None)
        elif (found := texts.find(column)) is not None:
            ready.found[name] = found
    return ready


def load(
    batch: pa.Table, tables: Tables, texts: Texts, store: Store, ready: Ready
) -> tuple[int, dict[str, tuple[Array, Array]]]:
    """Copies the columns that rules read behind the store's last row. Returns where, and the words of the columns."""
    size = batch.num_rows
    base = store.reserve(size, tables.width)
    types = batch["type"].to_numpy().astype(np.int64)
    store.ts[base : base + size] = batch["ts"].to_numpy()
    store.seq[base : base + size] = batch["seq"].to_numpy()
    store.type[base : base + size] = types
    store.given[base : base + size] = kernels.NONE
    store.size = base + size
    columns: dict[str, tuple[Array, Array]] = {}
    for name in batch.column_names:
        if ":" not in name:
            continue
        attribute, _, kind = name.rpartition(":")
        slots = tables.slots_of(attribute, Kind(kind))
        if slots is not None:
            known = ready.words.get(name)
            columns[name] = known or words_of(whole(batch[name]), Kind(kind), texts, ready.found.get(name))
            kernels.load_column(store.words, store.present, base, *columns[name], types, slots)
    return base, columns


def identities(
    batch: pa.Table, type_words: Array, source: Array, columns: Mapping[str, tuple[Array, Array]]
) -> tuple[Array, Array]:
    """The identities of the content of the events at `source` in a batch, of which some columns may be words already.

    They are in the batch if it has crossed a border behind which not all columns of the events are at hand.
    """
    if "first" in batch.column_names:
        first, second = (whole(batch[name]).to_numpy()[source] for name in ("first", "second"))
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


def own_ids(batch: pa.Table) -> pa.Array | None:
    """The ids that the source gave the events, null where it gave none."""
    if LABEL_COLUMN not in batch.column_names:
        return None
    ids = whole(batch[LABEL_COLUMN])
    return ids.cast(pa.string()) if pa.types.is_dictionary(ids.type) else ids


class Direct(NamedTuple):
    """Events for those who read them where they are: pairs (filter, row of a batch), the batch, and a view of it."""

    passed: Passed
    batch: pa.Table
    view: View
    numbers: Array | None = None
    """Which occurrence of the same content each event is; None if all are the first."""


@dataclass(slots=True)
class Sifted:
    """The events of a batch that passed some filter, and at which of its rows they were."""

    events: pa.Table
    passed: Passed | None
    """Pairs (filter, place); None where filters ask for ids, which are not known before an event is taken in."""
    origin: Array
    ready: Ready
    content: tuple[Array, Array] | None = None
    """The identities of the events, if they have no ids."""
    direct: Direct | None = None


class Intake(Sieve):
    """Takes in batches and composite events. `ordered`: an instant may be spread over several batches."""

    def __init__(self, tables: Tables, texts: Texts, store: Store, *, ordered: bool = False) -> None:
        super().__init__(tables, texts)
        self._store = store
        self.tail = Tail() if ordered else None
        self.nameless = False
        """Whether nobody will ask who an event is: then only equals are identified, for their order."""
        self.settled = False
        """Whether batches are in canonical order already, with identities in which occurrences are counted."""
        self.shows_ids = True
        """Whether parts of matches are shown with the ids that the source gave, rather than with their identities."""

    def environment(self, lists: kernels.Lists | None) -> Array:
        """What the kernels need to evaluate expressions and to search these lists; valid until any array moves."""
        return self._environment(self._store, lists)

    @property
    def can_sift_ahead(self) -> bool:
        """Whether sifting a batch neither needs nor changes what is remembered."""
        return not self._tables.filters.has_programs and not self._reads_ids

    def sift(self, batch: pa.Table, *, ahead: bool = False) -> Sifted:
        """The events of a batch that pass some filter. `ahead`: elsewhere, while others are at work here."""
        ids = own_ids(batch)
        if self._reads_ids and (ids is None or ids.null_count):
            return Sifted(batch, None, np.arange(batch.num_rows), Ready())
        view = self.view_of(batch)
        direct, passed, origin = self._apart(batch, view, *self.classify(view, ahead=ahead))
        if len(origin) < batch.num_rows:
            batch = batch.take(pa.array(origin))
        ready = make_ready(batch, self._tables, self._texts)
        sifted = Sifted(batch, passed, origin, ready, direct=direct)
        if not self.nameless:
            sifted.content = identities(batch, self._tables.type_words, np.arange(len(origin)), ready.words)
        return sifted

    def _apart(self, batch: pa.Table, view: View, passed: Passed, origin: Array) -> tuple[Direct | None, Passed, Array]:
        """What need not be taken in, and the rest.

        Taken in is what comes from an ordered source, which may have sent an equal event before.
        """
        stored = self._tables.is_stored[passed.filters] != 0
        if stored.all() or self.tail is not None:
            return None, passed, origin
        read = Direct(Passed(passed.filters[~stored], passed.rows[~stored]), batch, view)
        rows, place = np.unique(passed.rows[stored], return_inverse=True)
        return self._ordered(read, origin), Passed(passed.filters[stored], place), origin[rows]

    def _ordered(self, given: Direct, origin: Array) -> Direct:
        """Pairs (filter, place) as pairs (filter, row of the batch), where twins are in order."""
        passed, numbers = given.passed, None
        if not self.settled and len((found := twins(given.view, origin, len(self._tables.types))).places):
            order, numbers = self._among(found, given.batch, given.view, origin)
            passed = reordered(passed, len(origin), found.places, order)
            origin = origin.copy()
            origin[found.places] = origin[found.places[order]]
        return given._replace(passed=Passed(passed.filters, origin[passed.rows]), numbers=numbers)

    def _among(self, found: Twins, batch: pa.Table, view: View, origin: Array) -> tuple[Array, Array | None]:
        """How to put twins in order, and, if somebody asks, which occurrence of the same content each event of the
        batch is; None if all are the first.
        """
        source = origin[found.places]
        content = identities(batch, self._tables.type_words, source, {})
        keys = Keys(view.ts[source], view.seq[source], view.types[source], *content)
        ids = own_ids(batch)
        if ids is not None:
            ids = pc.coalesce(ids.take(pa.array(source)), hexadecimal(*content))
        order = order_twins(found, keys, ids)
        if self.nameless:
            return order, None
        again = count_twins(found, order, keys)
        if again is None:
            return order, None
        numbers = np.zeros(batch.num_rows, np.int64)
        numbers[source] = again
        return order, numbers

    def identities(self, given: Direct, source: Array) -> tuple[Array, Array]:
        """Who events are that are not taken in, unless nobody asks."""
        if self.nameless:
            return np.zeros(len(source), np.uint64), np.zeros(len(source), np.uint64)
        first, second = identities(given.batch, self._tables.type_words, source, {})
        return (first, second) if given.numbers is None else plus(first, second, given.numbers[source])

    def batch(self, sifted: Sifted) -> tuple[Passed, list[int]]:
        """Takes in the events of a batch, in order of (ts, seq).

        Returns what passed, and which events came behind an equal one that canonically follows them.
        """
        batch, passed, origin = sifted.events, sifted.passed, sifted.origin
        if passed is None:
            return self._identified_first(batch)
        given = own_ids(batch)
        base, columns = load(batch, self._tables, self._texts, self._store, sifted.ready)
        passed.rows += base
        if given is not None and self._reads_ids:
            self._load_ids(base, words_of(given, Kind.STRING, self._texts))
        source = np.arange(len(origin))
        self._identify(batch, columns, given, base, source, sifted.content)
        late, passed = self._settle(batch, columns, base, source, passed)
        if late:
            gone = np.isin(passed.rows, late)
            passed = Passed(passed.filters[~gone], passed.rows[~gone])
        return passed, origin[source[np.array(late, np.int64) - base]].tolist()

    def _identified_first(self, batch: pa.Table) -> tuple[Passed, list[int]]:
        """Takes in a batch for rules that read computed ids: these must be known before filters are tried."""
        store = self._store
        needed = np.nonzero(batch["type"].to_numpy() >= 0)[0]
        batch = batch.take(needed)
        base, columns = load(batch, self._tables, self._texts, store, Ready())
        source = np.arange(len(needed))
        self._identify(batch, columns, own_ids(batch), base, source)
        late, _ = self._settle(batch, columns, base, source, Passed(source[:0], source[:0]))
        store.type[late] = kernels.NONE
        rows = slice(base, base + len(needed))
        self._load_ids(base, self._id_words(store.first[rows], store.second[rows], store.given[rows]))
        passed, kept = self.classify(self.stored(rows))
        store.keep(base, kept)
        passed.rows += base
        return passed, [int(needed[source[row - base]]) for row in late]

    def stored(self, rows: slice | Array) -> View:
        """Rows of the store, for filters to read."""
        store = self._store
        view = self.view(store.type[rows], store.ts[rows], store.seq[rows])
        for slot in range(store.width):
            view.add_words(store.words[slot, rows], store.present[slot, rows], slot)
        return view

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
        store.first[rows], store.second[rows], store.given[rows] = first, second, given
        for slot, (words, present) in slots.items():
            store.words[slot, rows], store.present[slot, rows] = words, present
        if self._reads_ids:
            self._load_ids(base, self._id_words(first, second, given))
        store.size = base + size
        passed, source = self.classify(self.stored(rows))
        store.keep(base, source)
        passed.rows += base
        return passed, source

    # ---- who an event is

    @property
    def _reads_ids(self) -> bool:
        return self._tables.slots_of(ID, Kind.STRING) is not None

    def _load_ids(self, base: int, ids: tuple[Array, Array]) -> None:
        """Lets rules read ids like any other attribute."""
        store, slots = self._store, self._tables.slots_of(ID, Kind.STRING)
        kernels.load_column(store.words, store.present, base, *ids, store.type[base : base + len(ids[0])], slots)

    def _identify(
        self,
        batch: pa.Table,
        columns: dict[str, tuple[Array, Array]],
        given: pa.Array | None,
        base: int,
        source: Array,
        content: tuple[Array, Array] | None = None,
    ) -> None:
        """Writes the identities of the rows from `base` on, which were at `source` in the batch."""
        store, rows = self._store, slice(base, base + len(source))
        if self.nameless and (given is None or self.settled):
            store.first[rows], store.second[rows] = 0, 0
            return
        if content is not None:
            store.first[rows], store.second[rows] = content
        else:
            store.first[rows], store.second[rows] = identities(batch, self._tables.type_words, source, columns)
        if given is not None:
            mine = given.take(pa.array(source))
            named = np.flatnonzero(mine.is_valid().to_numpy(zero_copy_only=False))
            store.given[base + named] = store.names.add(mine.take(pa.array(named)))

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
            places = np.nonzero(tied)[0]
            rows = base + places
            if self.nameless:
                store.first[rows], store.second[rows] = identities(
                    batch, self._tables.type_words, source[places], columns
                )
            order = self._canonical(batch, columns, source[places], rows)
            if (np.diff(order) != 1).any():
                store.permute(rows, order)
                source[places] = source[places[order]]
                passed = reordered(Passed(passed.filters, passed.rows - base), count, places, order)
                passed.rows += base
        if self.tail is not None:
            return self.tail.follow(store, base, count, rows), passed
        number_occurrences(store, rows)
        return [], passed

    def _canonical(self, batch: pa.Table, columns: dict[str, tuple[Array, Array]], source: Array, rows: Array) -> Array:
        """How to sort tied rows, which were at `source` in a batch."""
        store = self._store
        given = store.given[rows]
        times = store.ts[rows], store.seq[rows], store.type[rows]
        if (given < 0).all():
            return canonical(Keys(*times, store.first[rows], store.second[rows]))
        content = identities(batch, self._tables.type_words, source, columns)
        ids = pc.if_else(pa.array(given >= 0), store.names.texts(given), hexadecimal(*content))
        return canonical(Keys(*times, *content), ids)
