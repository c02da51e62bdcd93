"""Who needs this event? Cuts a batch into one for each slot, before anything is remembered.

Filters are tried where the events are, so that an event that no rule wants goes nowhere and one that two slots want
goes twice. Events that somebody else has sifted, all of which go to the same place, are not tried again here: their
slot does. Only the columns that rules read go on; where others are left behind, the identity of events without ids is
computed here, while all of their columns are at hand.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from tocsin import kernels
from tocsin.engine.batch_columns import words_of
from tocsin.engine.compile import Tables
from tocsin.engine.ingest import identities
from tocsin.engine.predicates import Passed, Sieve
from tocsin.engine.strings import Texts, text_buffers
from tocsin.events.columns import whole
from tocsin.events.reader import LABEL_COLUMN
from tocsin.events.types import ID, Kind
from tocsin.kernels import Array
from tocsin.plans.assignment import Forward
from tocsin.plans.expressions import Field, Typed, leaves
from tocsin.plans.rules import Filter

BITS = 63
"""How many slots are told in one word."""

Needed = Mapping[str, Mapping[str, Kind | None]]
"""The attributes that are needed of each type, with their kinds."""


class Router:
    """The forwarding table at work.

    `types` are what the numbers in batches stand for; of those that are `sifted`, only events that some filter wants
    are in the batches.
    """

    def __init__(
        self,
        types: Sequence[str],
        columns: Needed,
        forwards: Mapping[Filter, Forward],
        slots: int,
        sifted: Container[str] = (),
    ) -> None:
        self._types, self._needed, self.slots = types, columns, slots
        self._texts = Texts()
        self._tables = Tables(self._texts)
        by_filter: dict[int, list[tuple[str, Forward]]] = {}
        tried_on: dict[str, list[tuple[int, bool]]] = {}
        places: dict[str, set[Forward]] = {}
        for filter, forward in forwards.items():
            places.setdefault(filter.type, set()).add(forward)
        for filter, forward in forwards.items():
            alike = filter.type in sifted and len(places[filter.type]) == 1
            tried = () if alike else filter.conditions
            if ID in columns[filter.type]:
                tried = tuple(c for c in tried if not _reads_id(c))
            self._tables.enter(filter.type, columns[filter.type])
            number = self._tables.filter(filter if tried == filter.conditions else replace(filter, conditions=tried))
            by_filter.setdefault(number, []).append((filter.type, forward))
            tried_on.setdefault(filter.type, []).append((number, bool(tried)))
        self._keyed: dict[tuple[str, Kind], Array] = {}
        """For (attribute, kind): whether events that pass a filter go where its hash says."""
        self._set_forwards(by_filter)
        plain = not any(tried for filters in tried_on.values() for _, tried in filters)
        takes_all = [tried_on[type][0][0] if type in tried_on else kernels.NONE for type in types]
        self._filter_of = np.array([*takes_all, kernels.NONE], np.int64) if plain else None
        """For each type the filter that takes all of its events, where no event need be tried."""
        self._columns = {f"{name}:{kind}" for mine in columns.values() for name, kind in mine.items()}
        self._tables.close()

    def _set_forwards(self, forwards: Mapping[int, list[tuple[str, Forward]]]) -> None:
        count = len(forwards)
        slots = [sorted({slot for one in forwards[n] for slot in self._fixed(*one)}) for n in range(count)]
        self._slot_counts = np.array([len(mine) for mine in slots], np.int64)
        self._slot_starts = np.cumsum(self._slot_counts) - self._slot_counts
        self._slots_of = np.array([slot for mine in slots for slot in mine], np.int64)
        for number, mine in forwards.items():
            for type, forward in mine:
                for attribute in forward.keys:
                    kind = self._needed[type][attribute]
                    if kind is None:
                        continue
                    mask = self._keyed.setdefault((attribute, kind), np.zeros(count, bool))
                    mask[number] = True

    def _fixed(self, type: str, forward: Forward) -> tuple[int, ...]:
        """The slots that events go to whatever they hold. A key that was never seen is no key, which is in slot 0."""
        unseen = any(self._needed[type][attribute] is None for attribute in forward.keys)
        return (*forward.slots, 0) if unseen else forward.slots

    def route(self, batch: pa.Table) -> Iterator[tuple[int, pa.Table]]:
        """The batches for the slots that need any of these events."""
        batch = _coded(batch, self.slots)
        numbers = [self._tables.types.get(name, kernels.NONE) for name in self._types]
        types = np.array([*numbers, kernels.NONE], np.int32)[batch["type"].to_numpy()]
        local = batch.set_column(0, "type", pa.array(types))
        passed, source = self._tried(local) if self._filter_of is None else self._by_type(batch)
        if not len(source):
            return
        kept = [name for name in batch.column_names if ":" not in name or name in self._columns or name == LABEL_COLUMN]
        content = None
        if len(kept) < len(batch.column_names):
            content = identities(local, self._tables.type_words, source, {})
        if self._texts.crowded:
            self._texts.keep([])
        thin = batch.select(kept)
        for slot, mine in self._destinations(batch, passed.filters, passed.rows, source):
            table = thin.take(pa.array(source[mine]))
            if content is not None:
                table = table.append_column("first", pa.array(content[0][mine]))
                table = table.append_column("second", pa.array(content[1][mine]))
            yield slot, table

    def _by_type(self, batch: pa.Table) -> tuple[Passed, Array]:
        """What passes where filters take all events of their types."""
        assert self._filter_of is not None
        filters = self._filter_of[batch["type"].to_numpy()]
        source = np.flatnonzero(filters >= 0)
        return Passed(filters[source], np.arange(len(source))), source

    def _tried(self, batch: pa.Table) -> tuple[Passed, Array]:
        """What passes the filters, and where in the batch."""
        sieve = Sieve(self._tables, self._texts)
        return sieve.classify(sieve.view_of(batch))

    def _destinations(self, batch: pa.Table, filters: Array, rows: Array, source: Array) -> Iterator[tuple[int, Array]]:
        """For each slot the rows that go there, which are places in `source`. Linear: a row has a bit for each slot."""
        bits = np.zeros((-(-self.slots // BITS), len(source)), np.int64)
        counts = self._slot_counts[filters]
        if counts.any():
            at = np.repeat(rows, counts)
            offsets = np.arange(len(at)) - np.repeat(np.cumsum(counts) - counts, counts)
            slots = self._slots_of[np.repeat(self._slot_starts[filters], counts) + offsets]
            begins = np.flatnonzero(np.diff(at, prepend=kernels.NONE))
            for word, mine in enumerate(bits):
                own = np.where(slots // BITS == word, 1 << slots % BITS, 0)
                mine[at[begins]] |= np.bitwise_or.reduceat(own, begins)
        for (attribute, kind), mask in self._keyed.items():
            keyed = mask[filters]
            if keyed.any():
                wanted = rows if keyed.all() else rows[keyed]
                wanted = wanted[np.diff(wanted, prepend=kernels.NONE) != 0]
                column = whole(batch[f"{attribute}:{kind}"])
                slots = key_slots(column.take(pa.array(source[wanted])), kind, self.slots)
                bits[slots // BITS, wanted] |= 1 << slots % BITS
        for slot in range(self.slots):
            mine = np.flatnonzero(bits[slot // BITS] >> slot % BITS & 1)
            if len(mine):
                yield slot, mine


def _coded(batch: pa.Table, slots: int) -> pa.Table:
    """The batch with its strings as dictionaries, where that is shorter although every slot gets the dictionary."""
    for place, name in enumerate(batch.column_names):
        if name.endswith(f":{Kind.STRING}"):
            coded = whole(batch[name]).dictionary_encode()
            if not coded.null_count and len(coded.dictionary) * slots <= len(coded):
                batch = batch.set_column(place, name, coded)
    return batch


def key_slots(column: pa.Array, kind: Kind, slots: int) -> Array:
    """The slot of each key; that of no key is 0. The same everywhere and for ever, as state is found by it."""
    if pa.types.is_dictionary(column.type):
        homes = key_slots(column.dictionary, kind, slots)
        return np.asarray(homes[column.indices.to_numpy(zero_copy_only=False)])
    if kind == Kind.STRING:
        offsets, data, present = text_buffers(column)
        first = np.empty(len(column), np.uint64)
        kernels.text_identities(first, np.empty_like(first), offsets, data, np.arange(len(column)))
    else:
        words, present = words_of(column, kind, None)
        first = _mixed(words.view(np.uint64))
    found: Array = np.where(present != 0, first % np.uint64(slots), 0).astype(np.int64)
    return found


def _reads_id(expression: Typed) -> bool:
    return any(isinstance(leaf, Field) and leaf.attribute == ID for leaf in leaves(expression))


def _mixed(words: Array) -> Array:
    """`events.ids.mix` over a column."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: Array = words ^ (words >> np.uint64(31))
    return mixed
