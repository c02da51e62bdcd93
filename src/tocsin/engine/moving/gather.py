"""Gather the location updates and the events that moving queries need.

A *focal object* is an object that moving queries follow, and an *interest* is the syntax tree of a moving query.
`Gatherer` processes each batch on its own and without state, so that it can run next to any source. `GatheredEvents`
combines the gathered events in canonical order, with ids and positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tocsin.engine.batch_columns import hexadecimal
from tocsin.engine.detector import Detector
from tocsin.engine.ingest import content_ids, source_ids
from tocsin.engine.moving.ranges import UNBOUNDED_US, UPDATE
from tocsin.engine.routing import Router
from tocsin.engine.ties import TieKeys, add_to_ids, canonical_order, occurrences
from tocsin.errors import RuleError
from tocsin.events.columns import concat, one_array
from tocsin.events.dead_letters import describe
from tocsin.events.reader import DEFINED, LABEL_COLUMN, TypeInfo
from tocsin.events.types import EventType, Kind, text_words
from tocsin.language.mcep.ast import Interest, Space, check_rules_alone
from tocsin.language.syntax.ast import Arithmetic, Attribute, Literal, Pattern, Rule
from tocsin.plans.assignment import Forward
from tocsin.plans.moving import is_strong
from tocsin.plans.plan import Plan, plan
from tocsin.plans.rules import Filter
from tocsin.plans.typing import Catalog

Array = np.ndarray[Any, Any]
DeadLetter = tuple[str, str | None, int | None, str]

UPDATES = pa.schema(
    [
        ("focal", pa.int32()),
        ("ts", pa.int64()),
        ("seq", pa.int64()),
        ("id", pa.string()),
        ("east", pa.float64()),
        ("north", pa.float64()),
    ]
)
"""The schema of location updates. `focal` is the number of the focal object."""
EAST, NORTH, SEQ = "\0east", "\0north", "\0seq"


@dataclass(frozen=True)
class FocalObjects:
    """The focal objects of queries. Several queries may follow the same object."""

    interests: tuple[Interest, ...]

    @cached_property
    def objects(self) -> dict[tuple[Pattern, Space], int]:
        return {key: n for n, key in enumerate(dict.fromkeys((one.focal, one.space) for one in self.interests))}

    @cached_property
    def followers(self) -> list[Array]:
        """The numbers of the queries that follow each object."""
        followers_of: list[list[int]] = [[] for _ in self.objects]
        for number, one in enumerate(self.interests):
            followers_of[self.objects[one.focal, one.space]].append(number)
        return [np.array(queries, np.int32) for queries in followers_of]

    @cached_property
    def of_query(self) -> Array:
        """The number of the object that each query follows."""
        return np.array([self.objects[one.focal, one.space] for one in self.interests], np.int64)

    @cached_property
    def rules(self) -> tuple[Rule, ...]:
        """A rule for each object, whose matches are the location updates of the object."""
        kinds = ((EAST, Kind.DOUBLE), (NORTH, Kind.DOUBLE), (SEQ, Kind.LONG))
        focal_rules = []
        for (focal, space), number in self.objects.items():
            role, one = focal.role, Literal(1.0, Kind.DOUBLE)
            coordinates = [Arithmetic("*", Attribute(name, role), one) for name in space.coordinates]
            where = ((EAST, coordinates[0]), (NORTH, coordinates[1]), (SEQ, Attribute("seq", role)))
            focal_rules.append(Rule(f"\0{number}", EventType(f"\0{number}", kinds), focal, where=where))
        return tuple(focal_rules)

    @cached_property
    def types(self) -> frozenset[str]:
        return frozenset(focal.type for focal, _ in self.objects)

    def read(self, matches: pa.Table) -> tuple[pa.Table, list[DeadLetter]]:
        """Convert the matches of `rules` to location updates.

        Return the updates, and the dead letters for updates without a valid position.
        """
        labels = matches["rule"].combine_chunks().dictionary_encode()
        if isinstance(labels, pa.ChunkedArray):
            labels = labels.combine_chunks()
        numbers = np.array([int(label[1:]) for label in labels.dictionary.to_pylist()] or [0], np.int32)
        focal = numbers[labels.indices.to_numpy(zero_copy_only=False)]
        east, north = (matches[name].to_numpy(zero_copy_only=False).astype(np.float64) for name in (EAST, NORTH))
        ids = pc.list_element(matches["parts"], 0).combine_chunks()
        ids = (pa.concat_arrays(ids.chunks) if isinstance(ids, pa.ChunkedArray) else ids).field("id")
        ts = matches["ts"].cast(pa.int64())
        columns = [pa.array(focal), ts, matches[SEQ].cast(pa.int64()), ids, pa.array(east), pa.array(north)]
        table = pa.table(columns, schema=UPDATES)
        spaces = [space for _, space in self.objects]
        on_earth = np.array([space is Space.WGS84 for space in spaces] or [False])[focal]
        placed = are_positions(east, north, on_earth)
        dead_letters: list[DeadLetter] = []
        keys = list(self.objects)
        for row in np.flatnonzero(~placed).tolist():
            (pattern, space), when = keys[focal[row]], table["ts"][row].as_py()
            values = {
                name: None if np.isnan(value[row]) else float(value[row])
                for name, value in zip(space.coordinates, (east, north), strict=True)
            }
            coordinates = {name: value for name, value in values.items() if value is not None}
            text = describe(pattern.type, when, coordinates)
            dead_letters.append(
                (f"{space.coordinates[0]} and {space.coordinates[1]} are not a position", pattern.type, when, text)
            )
        return table.filter(pa.array(placed)), dead_letters

    def expanded(self, updates: pa.Table) -> Array:
        """Return `updates` in canonical order, once for each query that follows the object."""
        order = pc.sort_indices(updates, [(name, "ascending") for name in ("ts", "seq", "id")])
        updates = updates.take(order)
        focal = updates["focal"].to_numpy()
        counts = np.array([len(queries) for queries in self.followers], np.int64)[focal]
        rows = np.repeat(np.arange(len(focal)), counts)
        expanded_updates = np.zeros(len(rows), UPDATE)
        expanded_updates["query"] = np.concatenate([self.followers[n] for n in focal.tolist()]) if len(focal) else []
        for name in ("ts", "east", "north"):
            expanded_updates[name] = updates[name].to_numpy()[rows]
        return expanded_updates


def are_positions(east: Array, north: Array, on_earth: Array | bool) -> Array:
    """Return whether each pair of coordinates is a valid position. `on_earth` says if they are degrees."""
    with np.errstate(invalid="ignore"):
        finite = np.isfinite(east) & np.isfinite(north)
        valid: Array = finite & (~np.asarray(on_earth) | ((np.abs(east) <= 180) & (np.abs(north) <= 90)))
    return valid


class Gatherer:
    """Gathers the location updates and events that moving queries need.

    The attribute `types` has the name of each type number in batches.
    """

    def __init__(self, interests: tuple[Interest, ...], catalog: Catalog) -> None:
        check_rules_alone(interests)
        self.focals = FocalObjects(interests)
        self.catalog = catalog
        self.plan = bind_rules(interests, catalog)
        defined = self.plan.defined
        self.used = tuple(type for type in self.plan.numbers if type not in defined)
        """The types of primary events (events that no rule defines) that rules read."""
        self.types = tuple(dict.fromkeys((*self.used, *sorted(self.focals.types))))
        self.spaces = tuple(dict.fromkeys(one.space for one in interests))
        self._focal_plan = plan(self.focals.rules, catalog)
        filters = {filter: Forward((), (0,)) for filter in self.plan.filters if filter.type not in defined}
        for one in interests:
            if is_strong(one):  # quiescence depends on all events of these types
                filters |= {Filter(type): Forward((), (0,)) for type in self.used_by(one)}
        coordinates = [name for space in self.spaces for name in space.coordinates]
        columns: dict[str, dict[str, Kind | None]] = {}
        for type in self.used:
            kinds = {name: self._kind(type, name) for name in coordinates}
            columns[type] = {**self.plan.columns[type], **{name: kind for name, kind in kinds.items() if kind}}
        self.columns = columns
        """The kinds of the needed attributes, by type and name."""
        self._router = Router(self.types, columns, filters, 1)

    @staticmethod
    def used_by(interest: Interest) -> set[str]:
        """Return the types of primary events that the rules of a query read."""
        defined = {rule.emits.name for rule in interest.rules}
        return {type for rule in interest.rules for type in rule.uses} - defined

    def _kind(self, type: str, name: str) -> Kind | None:
        try:
            return self.catalog.kind(type, name, None)
        except RuleError:
            return None

    @cached_property
    def known(self) -> TypeInfo:
        """The information about types that the reader of batches needs."""
        numbers = {type: number for number, type in enumerate(self.types)}
        numbers |= dict.fromkeys(self.plan.defined, DEFINED)
        exact = {name: dict(type.attributes) for name, type in self.catalog.types.items()}
        return TypeInfo(numbers, exact, self.catalog.shared, self.catalog.seen)

    def updates(self, batch: pa.Table) -> tuple[pa.Table, list[DeadLetter]]:
        """Return the location updates in a batch, and the dead letters for updates without a valid position."""
        numbers = [number for number, type in enumerate(self.types) if type in self.focals.types]
        focal_events = batch.filter(pa.array(np.isin(batch["type"].to_numpy(), numbers)))
        if not focal_events.num_rows:
            return UPDATES.empty_table(), []
        detector = Detector(self._focal_plan, {}, delay_us=UNBOUNDED_US, times=False)
        tables = [detector.push_batch(focal_events, self.types), detector.finish()]
        return self.focals.read(pa.concat_tables(tables))

    def events(self, batch: pa.Table) -> pa.Table | None:
        """Return the events of a batch that rules read, or None if there are none.

        The events have ids and only the needed attributes. Strings are dictionary-encoded, so that copies are cheap.
        """
        tables = [table for _, table in self._router.route(batch)]
        if not tables:
            return None
        events = tables[0]
        for index, name in enumerate(events.column_names):
            if pa.types.is_string(events.schema.field(index).type) and name != LABEL_COLUMN:
                events = events.set_column(index, name, one_array(events[name]).dictionary_encode())
        return self._identified(events)

    def _identified(self, events: pa.Table) -> pa.Table:
        if "first" in events.column_names:
            return events
        words = np.array([text_words(type) for type in self.types], np.uint64)
        plain = events
        for index, name in enumerate(events.column_names):
            if pa.types.is_dictionary(events.schema.field(index).type):
                plain = plain.set_column(index, name, one_array(events[name]).cast(pa.string()))
        id_high, id_low = content_ids(plain, words, np.arange(events.num_rows), {})
        return events.append_column("first", pa.array(id_high)).append_column("second", pa.array(id_low))


def bind_rules(interests: Sequence[Interest], catalog: Catalog) -> Plan:
    """Bind the rules of all queries. Raise an error if the coordinates of some type are not numbers."""
    bound = plan(tuple(dict.fromkeys(rule for one in interests for rule in one.rules)), catalog)
    for one in interests:
        for type in {*Gatherer.used_by(one), one.focal.type}:
            for name in one.space.coordinates:
                kind = catalog.kind(type, name, one.span)
                if kind is not None and not kind.numeric:
                    raise RuleError(f"{type}.{name} is a {kind}: coordinates must be numbers", span=one.span)
    return bound


class GatheredEvents:
    """Holds gathered events with their positions.

    If `canonical`, `tables` must have all events. The events are then sorted canonically, and the ids of equal events
    are made distinct.
    """

    def __init__(self, tables: Sequence[pa.Table], types: Sequence[str], *, canonical: bool = True) -> None:
        self.types = types
        self._positions: dict[Space, tuple[Array, Array]] = {}
        batch = concat(_unify_dictionaries(tables)) if tables else pa.table({})
        if not batch.num_rows:
            self.batch, self.ts, self.type = pa.table({}), np.zeros(0, np.int64), np.zeros(0, np.int32)
            return
        self.batch = _number_occurrences(batch.take(self._canonical(batch))) if canonical else batch
        self.ts, self.type = self.batch["ts"].to_numpy(), self.batch["type"].to_numpy()

    def _canonical(self, batch: pa.Table) -> Array:
        keys = _keys(batch)
        ranks = np.argsort(np.argsort(np.array(self.types)))[keys.type]
        ids = source_ids(batch)
        if ids is not None:
            ids = pc.coalesce(ids, hexadecimal(keys.id_high, keys.id_low))
        return canonical_order(keys._replace(type=ranks), ids)

    def __len__(self) -> int:
        return len(self.ts)

    def positions(self, space: Space) -> tuple[Array, Array]:
        """Return the coordinates east and north of each event, or NaN for events without a valid position."""
        if space not in self._positions:
            coordinates = [_doubles(self.batch, name) for name in space.coordinates]
            valid = are_positions(coordinates[0], coordinates[1], space is Space.WGS84)
            self._positions[space] = np.where(valid, coordinates[0], np.nan), np.where(valid, coordinates[1], np.nan)
        return self._positions[space]

    @cached_property
    def ids(self) -> tuple[pa.Array, pa.Array] | None:
        """The computed ids of the events that have source ids, as text, and these source ids.

        None if the source gives no ids.
        """
        own = source_ids(self.batch)
        if own is None:
            return None
        has_id = own.is_valid()
        events = self.batch.filter(has_id)
        return hexadecimal(events["first"].to_numpy(), events["second"].to_numpy()), own.filter(has_id)


def _unify_dictionaries(tables: Sequence[pa.Table]) -> list[pa.Table]:
    """Return a list with one table, the concatenation of `tables` with unified dictionaries."""
    unified = []
    for table in tables:
        columns = [
            pa.field(field.name, pa.dictionary(pa.int32(), pa.string()))
            if pa.types.is_dictionary(field.type)
            else field
            for field in table.schema
        ]
        unified.append(table.cast(pa.schema(columns)))
    return (
        [unified[0]]
        if len(unified) == 1
        else [pa.concat_tables(unified, promote_options="default").unify_dictionaries()]
    )


def _doubles(batch: pa.Table, name: str) -> Array:
    """Return the attribute `name`, of any numeric kind, as doubles, with NaN for missing values."""
    doubles = np.full(batch.num_rows, np.nan)
    for kind in (Kind.DOUBLE, Kind.LONG, Kind.INT):
        if f"{name}:{kind}" in batch.column_names:
            column = batch[f"{name}:{kind}"].cast(pa.float64())
            values = column.to_numpy(zero_copy_only=False)
            doubles = np.where(np.isnan(doubles), values, doubles)
    return doubles


def _keys(batch: pa.Table) -> TieKeys:
    return TieKeys(*(batch[name].to_numpy() for name in ("ts", "seq", "type", "first", "second")))


def _number_occurrences(batch: pa.Table) -> pa.Table:
    """Add the number of each event among equal events to its id. `batch` must be in canonical order."""
    keys = _keys(batch)
    numbers = occurrences(keys)
    if numbers is None:
        return batch
    id_high, id_low = add_to_ids(keys.id_high, keys.id_low, numbers)
    names = batch.column_names
    batch = batch.set_column(names.index("first"), "first", pa.array(id_high))
    return batch.set_column(names.index("second"), "second", pa.array(id_low))
