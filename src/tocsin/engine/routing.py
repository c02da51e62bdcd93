"""Route events to the slots that need them, next to the source of the events.

A *slot* is one of several detectors among which the rules and keys are distributed. An event that no rule needs is
dropped, and an event that two slots need is sent to both. Routing keeps no state. Filters need not be evaluated here if
the source has evaluated them and all events of the type have the same destination.

Only the columns that rules read are sent. If columns are dropped, the ids of events are computed here, because they
depend on all columns.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from tocsin import kernels
from tocsin.engine.batch_columns import column_values
from tocsin.engine.compile import RuleTables
from tocsin.engine.ingest import content_ids
from tocsin.engine.predicates import PredicateEvaluator, SelectedRows
from tocsin.engine.strings import StringDictionary, string_buffers
from tocsin.events.columns import one_array
from tocsin.events.reader import LABEL_COLUMN
from tocsin.events.types import ID, Kind
from tocsin.kernels import Array
from tocsin.plans.assignment import Forward
from tocsin.plans.expressions import Field, Typed, leaves
from tocsin.plans.rules import Filter

BITS = 63
"""The number of slots whose bits fit into one word."""

Needed = Mapping[str, Mapping[str, Kind | None]]
"""The kinds of the needed attributes, by type and name."""


class Router:
    """Sends events to slots according to `forwards`, which has the destinations of the events that pass each filter.

    `types` has the name of each type number in batches, and `columns` the attributes to send. Types are in `evaluated`
    if batches have only events of the type that pass a filter.
    """

    def __init__(
        self,
        types: Sequence[str],
        columns: Needed,
        forwards: Mapping[Filter, Forward],
        slots: int,
        evaluated: Container[str] = (),
    ) -> None:
        self._types, self._needed, self.slots = types, columns, slots
        self._strings = StringDictionary()
        self._tables = RuleTables(self._strings)
        by_filter: dict[int, list[tuple[str, Forward]]] = {}
        tried_on: dict[str, list[tuple[int, bool]]] = {}
        places: dict[str, set[Forward]] = {}
        for filter, forward in forwards.items():
            places.setdefault(filter.type, set()).add(forward)
        for filter, forward in forwards.items():
            alike = filter.type in evaluated and len(places[filter.type]) == 1
            tried = () if alike else filter.conditions
            if ID in columns[filter.type]:
                tried = tuple(c for c in tried if not _reads_id(c))
            self._tables.add_type(filter.type, columns[filter.type])
            number = self._tables.filter(filter if tried == filter.conditions else replace(filter, conditions=tried))
            by_filter.setdefault(number, []).append((filter.type, forward))
            tried_on.setdefault(filter.type, []).append((number, bool(tried)))
        self._keyed: dict[tuple[str, Kind], Array] = {}
        """A mask of the filters whose events go to the slot of a key's hash, by (attribute, kind) of the key."""
        self._set_forwards(by_filter)
        plain = not any(tried for filters in tried_on.values() for _, tried in filters)
        takes_all = [tried_on[type][0][0] if type in tried_on else kernels.NONE for type in types]
        self._filter_of = np.array([*takes_all, kernels.NONE], np.int64) if plain else None
        """The filter that all events of each type pass. None if some filter must be evaluated."""
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
        """Return the slots that get all events of a type, whatever their keys.

        Slot 0 is among them if a key attribute was never seen, because events without a key go to slot 0.
        """
        unseen = any(self._needed[type][attribute] is None for attribute in forward.keys)
        return (*forward.slots, 0) if unseen else forward.slots

    def route(self, batch: pa.Table) -> Iterator[tuple[int, pa.Table]]:
        """Yield the number of each slot that needs events of `batch`, and a batch of these events."""
        batch = _encode_strings(batch, self.slots)
        numbers = [self._tables.types.get(name, kernels.NONE) for name in self._types]
        types = np.array([*numbers, kernels.NONE], np.int32)[batch["type"].to_numpy()]
        local = batch.set_column(0, "type", pa.array(types))
        selected, source = self._evaluate(local) if self._filter_of is None else self._select_by_type(batch)
        if not len(source):
            return
        names = [
            name for name in batch.column_names if ":" not in name or name in self._columns or name == LABEL_COLUMN
        ]
        content = None
        if len(names) < len(batch.column_names):
            content = content_ids(local, self._tables.type_words, source, {})
        if self._strings.needs_cleanup:
            self._strings.retain([])
        thin = batch.select(names)
        for slot, mine in self._destinations(batch, selected.filters, selected.rows, source):
            table = thin.take(pa.array(source[mine]))
            if content is not None:
                table = table.append_column("first", pa.array(content[0][mine]))
                table = table.append_column("second", pa.array(content[1][mine]))
            yield slot, table

    def _select_by_type(self, batch: pa.Table) -> tuple[SelectedRows, Array]:
        """Select events by type alone, because each filter takes all events of its type."""
        assert self._filter_of is not None
        filters = self._filter_of[batch["type"].to_numpy()]
        source = np.flatnonzero(filters >= 0)
        return SelectedRows(filters[source], np.arange(len(source))), source

    def _evaluate(self, batch: pa.Table) -> tuple[SelectedRows, Array]:
        """Evaluate the filters. Return the pairs (filter, position), and the row of the batch at each position."""
        evaluator = PredicateEvaluator(self._tables, self._strings)
        return evaluator.evaluate(evaluator.view_batch(batch))

    def _destinations(self, batch: pa.Table, filters: Array, rows: Array, source: Array) -> Iterator[tuple[int, Array]]:
        """Yield each slot, and the positions in `source` of the events that go to it, in linear time.

        Each position has one bit for each slot.
        """
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
                column = one_array(batch[f"{attribute}:{kind}"])
                slots = key_slots(column.take(pa.array(source[wanted])), kind, self.slots)
                bits[slots // BITS, wanted] |= 1 << slots % BITS
        for slot in range(self.slots):
            mine = np.flatnonzero(bits[slot // BITS] >> slot % BITS & 1)
            if len(mine):
                yield slot, mine


def _encode_strings(batch: pa.Table, slots: int) -> pa.Table:
    """Encode string columns as dictionaries if this is smaller, even though every slot gets the whole dictionary."""
    for index, name in enumerate(batch.column_names):
        if name.endswith(f":{Kind.STRING}"):
            coded = one_array(batch[name]).dictionary_encode()
            if not coded.null_count and len(coded.dictionary) * slots <= len(coded):
                batch = batch.set_column(index, name, coded)
    return batch


def key_slots(column: pa.Array, kind: Kind, slots: int) -> Array:
    """Return the slot of each key, and 0 for null.

    The result for a key must never change between versions, because saved state is distributed by it.
    """
    if pa.types.is_dictionary(column.type):
        slot_codes = key_slots(column.dictionary, kind, slots)
        return np.asarray(slot_codes[column.indices.to_numpy(zero_copy_only=False)])
    if kind == Kind.STRING:
        offsets, data, valid = string_buffers(column)
        first = np.empty(len(column), np.uint64)
        kernels.string_identities(first, np.empty_like(first), offsets, data, np.arange(len(column)))
    else:
        words, valid = column_values(column, kind, None)
        first = _mixed(words.view(np.uint64))
    chosen: Array = np.where(valid != 0, first % np.uint64(slots), 0).astype(np.int64)
    return chosen


def _reads_id(expression: Typed) -> bool:
    return any(isinstance(leaf, Field) and leaf.attribute == ID for leaf in leaves(expression))


def _mixed(words: Array) -> Array:
    """Apply `events.types.mix` to each word."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: Array = words ^ (words >> np.uint64(31))
    return mixed
