"""What do queries that move need of a batch? The events that some rule wants, where they are, and location updates.

`Sieve` looks at batches as they come, one at a time and without memory, so that it can stand beside any source. What it
lets through is put together by `Gathered`: in canonical order, with identities, by place.
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
from tocsin.engine.ingest import identities, own_ids
from tocsin.engine.moving.ranges import UPDATE
from tocsin.engine.routing import Router
from tocsin.engine.ties import Keys, canonical, occurrences, plus
from tocsin.errors import RuleError
from tocsin.events.columns import concat, whole
from tocsin.events.dead_letters import describe
from tocsin.events.reader import DEFINED, LABEL_COLUMN, Known
from tocsin.events.types import EventType, Kind, text_words
from tocsin.language.mcep.ast import Interest, Space, check_rules_alone
from tocsin.language.syntax.ast import Arithmetic, Attribute, Literal, Pattern, Rule
from tocsin.plans.assignment import Forward
from tocsin.plans.moving import is_strong
from tocsin.plans.plan import Plan, plan
from tocsin.plans.rules import Filter
from tocsin.plans.typing import Catalog

Array = np.ndarray[Any, Any]
Letter = tuple[str, str | None, int | None, str]

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
"""Location updates, by the number of the focal object."""
EAST, NORTH, SEQ = "\0east", "\0north", "\0seq"
NEVER_LATE_US = 2**60


@dataclass(frozen=True)
class Focals:
    """The objects that queries follow; several may follow one."""

    interests: tuple[Interest, ...]

    @cached_property
    def objects(self) -> dict[tuple[Pattern, Space], int]:
        return {key: n for n, key in enumerate(dict.fromkeys((one.focal, one.space) for one in self.interests))}

    @cached_property
    def followers(self) -> list[Array]:
        """The queries of each object."""
        found: list[list[int]] = [[] for _ in self.objects]
        for number, one in enumerate(self.interests):
            found[self.objects[one.focal, one.space]].append(number)
        return [np.array(queries, np.int32) for queries in found]

    @cached_property
    def of_query(self) -> Array:
        """The object of each query."""
        return np.array([self.objects[one.focal, one.space] for one in self.interests], np.int64)

    @cached_property
    def rules(self) -> tuple[Rule, ...]:
        """A rule for each object: its matches are the location updates."""
        kinds = ((EAST, Kind.DOUBLE), (NORTH, Kind.DOUBLE), (SEQ, Kind.LONG))
        found = []
        for (focal, space), number in self.objects.items():
            role, one = focal.role, Literal(1.0, Kind.DOUBLE)
            places = [Arithmetic("*", Attribute(name, role), one) for name in space.coordinates]
            where = ((EAST, places[0]), (NORTH, places[1]), (SEQ, Attribute("seq", role)))
            found.append(Rule(f"\0{number}", EventType(f"\0{number}", kinds), focal, where=where))
        return tuple(found)

    @cached_property
    def types(self) -> frozenset[str]:
        return frozenset(focal.type for focal, _ in self.objects)

    def read(self, found: pa.Table) -> tuple[pa.Table, list[Letter]]:
        """Location updates from the matches of `rules`, and those that say no place."""
        labels = found["rule"].combine_chunks().dictionary_encode()
        if isinstance(labels, pa.ChunkedArray):
            labels = labels.combine_chunks()
        numbers = np.array([int(label[1:]) for label in labels.dictionary.to_pylist()] or [0], np.int32)
        focal = numbers[labels.indices.to_numpy(zero_copy_only=False)]
        east, north = (found[name].to_numpy(zero_copy_only=False).astype(np.float64) for name in (EAST, NORTH))
        ids = pc.list_element(found["parts"], 0).combine_chunks()
        ids = (pa.concat_arrays(ids.chunks) if isinstance(ids, pa.ChunkedArray) else ids).field("id")
        ts = found["ts"].cast(pa.int64())
        columns = [pa.array(focal), ts, found[SEQ].cast(pa.int64()), ids, pa.array(east), pa.array(north)]
        table = pa.table(columns, schema=UPDATES)
        spaces = [space for _, space in self.objects]
        on_earth = np.array([space is Space.WGS84 for space in spaces] or [False])[focal]
        placed = are_places(east, north, on_earth)
        letters: list[Letter] = []
        keys = list(self.objects)
        for row in np.flatnonzero(~placed).tolist():
            (pattern, space), when = keys[focal[row]], table["ts"][row].as_py()
            values = {
                name: None if np.isnan(value[row]) else float(value[row])
                for name, value in zip(space.coordinates, (east, north), strict=True)
            }
            told = {name: value for name, value in values.items() if value is not None}
            text = describe(pattern.type, when, told)
            letters.append(
                (f"{space.coordinates[0]} and {space.coordinates[1]} are no place", pattern.type, when, text)
            )
        return table.filter(pa.array(placed)), letters

    def expanded(self, updates: pa.Table) -> Array:
        """Updates of objects as updates of queries, in canonical order."""
        order = pc.sort_indices(updates, [(name, "ascending") for name in ("ts", "seq", "id")])
        updates = updates.take(order)
        focal = updates["focal"].to_numpy()
        counts = np.array([len(queries) for queries in self.followers], np.int64)[focal]
        rows = np.repeat(np.arange(len(focal)), counts)
        found = np.zeros(len(rows), UPDATE)
        found["query"] = np.concatenate([self.followers[n] for n in focal.tolist()]) if len(focal) else []
        for name in ("ts", "east", "north"):
            found[name] = updates[name].to_numpy()[rows]
        return found


def are_places(east: Array, north: Array, on_earth: Array | bool) -> Array:
    """Whether coordinates are those of a place."""
    with np.errstate(invalid="ignore"):
        there = np.isfinite(east) & np.isfinite(north)
        found: Array = there & (~np.asarray(on_earth) | ((np.abs(east) <= 180) & (np.abs(north) <= 90)))
    return found


class Sieve:
    """What queries that move need of events of a known shape. `types` are what the numbers in batches stand for."""

    def __init__(self, interests: tuple[Interest, ...], catalog: Catalog) -> None:
        check_rules_alone(interests)
        self.focals = Focals(interests)
        self.catalog = catalog
        self.plan = checked(interests, catalog)
        defined = self.plan.defined
        self.used = tuple(type for type in self.plan.numbers if type not in defined)
        """The types of primary events that rules use."""
        self.types = tuple(dict.fromkeys((*self.used, *sorted(self.focals.types))))
        self.spaces = tuple(dict.fromkeys(one.space for one in interests))
        self._focal_plan = plan(self.focals.rules, catalog)
        filters = {filter: Forward((), (0,)) for filter in self.plan.filters if filter.type not in defined}
        for one in interests:
            if is_strong(one):  # whether it was quiet depends on all events of its types
                filters |= {Filter(type): Forward((), (0,)) for type in self.used_by(one)}
        coordinates = [name for space in self.spaces for name in space.coordinates]
        columns: dict[str, dict[str, Kind | None]] = {}
        for type in self.used:
            kinds = {name: self._kind(type, name) for name in coordinates}
            columns[type] = {**self.plan.columns[type], **{name: kind for name, kind in kinds.items() if kind}}
        self.columns = columns
        """The attributes that are needed of each type."""
        self._router = Router(self.types, columns, filters, 1)

    @staticmethod
    def used_by(interest: Interest) -> set[str]:
        """The types of primary events that a query looks at."""
        defined = {rule.emits.name for rule in interest.rules}
        return {type for rule in interest.rules for type in rule.uses} - defined

    def _kind(self, type: str, name: str) -> Kind | None:
        try:
            return self.catalog.kind(type, name, None)
        except RuleError:
            return None

    @cached_property
    def known(self) -> Known:
        """What the reader of batches must know."""
        numbers = {type: number for number, type in enumerate(self.types)}
        numbers |= dict.fromkeys(self.plan.defined, DEFINED)
        exact = {name: dict(type.attributes) for name, type in self.catalog.types.items()}
        return Known(numbers, exact, self.catalog.shared, self.catalog.seen)

    def updates(self, batch: pa.Table) -> tuple[pa.Table, list[Letter]]:
        """The location updates in a batch, and those that say no place."""
        numbers = [number for number, type in enumerate(self.types) if type in self.focals.types]
        mine = batch.filter(pa.array(np.isin(batch["type"].to_numpy(), numbers)))
        if not mine.num_rows:
            return UPDATES.empty_table(), []
        detector = Detector(self._focal_plan, {}, delay_us=NEVER_LATE_US, times=False)
        parts = [detector.push_batch(mine, self.types), detector.finish()]
        return self.focals.read(pa.concat_tables(parts))

    def events(self, batch: pa.Table) -> pa.Table | None:
        """The events of a batch that rules want, with what is needed of them and with their identities; None if there
        is none. Strings are dictionaries, so that they are copied cheaply."""
        parts = [part for _, part in self._router.route(batch)]
        if not parts:
            return None
        found = parts[0]
        for place, name in enumerate(found.column_names):
            if pa.types.is_string(found.schema.field(place).type) and name != LABEL_COLUMN:
                found = found.set_column(place, name, whole(found[name]).dictionary_encode())
        return self._identified(found)

    def _identified(self, found: pa.Table) -> pa.Table:
        if "first" in found.column_names:
            return found
        words = np.array([text_words(type) for type in self.types], np.uint64)
        plain = found
        for place, name in enumerate(found.column_names):
            if pa.types.is_dictionary(found.schema.field(place).type):
                plain = plain.set_column(place, name, whole(found[name]).cast(pa.string()))
        first, second = identities(plain, words, np.arange(found.num_rows), {})
        return found.append_column("first", pa.array(first)).append_column("second", pa.array(second))


def checked(interests: Sequence[Interest], catalog: Catalog) -> Plan:
    """All rules of the queries, bound. Fails if events of a type that is looked at cannot have places."""
    bound = plan(tuple(dict.fromkeys(rule for one in interests for rule in one.rules)), catalog)
    for one in interests:
        for type in {*Sieve.used_by(one), one.focal.type}:
            for name in one.space.coordinates:
                kind = catalog.kind(type, name, one.span)
                if kind is not None and not kind.numeric:
                    raise RuleError(f"{type}.{name} is a {kind}: a place is made of numbers", span=one.span)
    return bound


class Gathered:
    """Events of which is known where they are. `settled`: all are there, in canonical order, with their identities."""

    def __init__(self, parts: Sequence[pa.Table], types: Sequence[str], *, settled: bool = True) -> None:
        self.types = types
        self._places: dict[Space, tuple[Array, Array]] = {}
        batch = concat(_alike(parts)) if parts else pa.table({})
        if not batch.num_rows:
            self.batch, self.ts, self.type = pa.table({}), np.zeros(0, np.int64), np.zeros(0, np.int32)
            return
        self.batch = _numbered(batch.take(self._canonical(batch))) if settled else batch
        self.ts, self.type = self.batch["ts"].to_numpy(), self.batch["type"].to_numpy()

    def _canonical(self, batch: pa.Table) -> Array:
        keys = _keys(batch)
        ranks = np.argsort(np.argsort(np.array(self.types)))[keys.type]
        ids = own_ids(batch)
        if ids is not None:
            ids = pc.coalesce(ids, hexadecimal(keys.first, keys.second))
        return canonical(keys._replace(type=ranks), ids)

    def __len__(self) -> int:
        return len(self.ts)

    def places(self, space: Space) -> tuple[Array, Array]:
        """East and north of each event, NaN where it has no place."""
        if space not in self._places:
            found = [_doubles(self.batch, name) for name in space.coordinates]
            there = are_places(found[0], found[1], space is Space.WGS84)
            self._places[space] = np.where(there, found[0], np.nan), np.where(there, found[1], np.nan)
        return self._places[space]

    @cached_property
    def ids(self) -> tuple[pa.Array, pa.Array] | None:
        """Identities as text, and the sources' own ids beside them; None if there are none."""
        own = own_ids(self.batch)
        if own is None:
            return None
        there = own.is_valid()
        mine = self.batch.filter(there)
        return hexadecimal(mine["first"].to_numpy(), mine["second"].to_numpy()), own.filter(there)


def _alike(parts: Sequence[pa.Table]) -> list[pa.Table]:
    """Tables whose dictionaries are one."""
    found = []
    for part in parts:
        columns = [
            pa.field(field.name, pa.dictionary(pa.int32(), pa.string()))
            if pa.types.is_dictionary(field.type)
            else field
            for field in part.schema
        ]
        found.append(part.cast(pa.schema(columns)))
    return [found[0]] if len(found) == 1 else [pa.concat_tables(found, promote_options="default").unify_dictionaries()]


def _doubles(batch: pa.Table, name: str) -> Array:
    """An attribute of any numeric kind."""
    found = np.full(batch.num_rows, np.nan)
    for kind in (Kind.DOUBLE, Kind.LONG, Kind.INT):
        if f"{name}:{kind}" in batch.column_names:
            column = batch[f"{name}:{kind}"].cast(pa.float64())
            values = column.to_numpy(zero_copy_only=False)
            found = np.where(np.isnan(found), values, found)
    return found


def _keys(batch: pa.Table) -> Keys:
    return Keys(*(batch[name].to_numpy() for name in Keys._fields))


def _numbered(batch: pa.Table) -> pa.Table:
    """The batch in canonical order, with the occurrences of equal events counted in their identities."""
    keys = _keys(batch)
    numbers = occurrences(keys)
    if numbers is None:
        return batch
    first, second = plus(keys.first, keys.second, numbers)
    names = batch.column_names
    batch = batch.set_column(names.index("first"), "first", pa.array(first))
    return batch.set_column(names.index("second"), "second", pa.array(second))
