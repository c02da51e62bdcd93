"""Match the rules of moving queries on the events in their ranges.

A *range* is the region around a moving object from one location update to the next. A *marker* is an output row that
announces a new range. An *emission* is the part of a range that can be delivered now; see `ranges`. The matcher
converts emissions to markers and matches.

Emissions with the same rules, region and times form one *unit*, even if they belong to different queries. Units are
joined with the events in their regions, and each pair (unit, event) becomes a row of an ordinary batch, with the number
of the unit. Because the rules of `plans.moving.ranged` only combine events of the same unit, one detector runs
thousands of units.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tocsin.engine import match_table
from tocsin.engine.batch_columns import hexadecimal
from tocsin.engine.detector import Detector
from tocsin.engine.moving.gather import GatheredEvents, Gatherer
from tocsin.engine.moving.ranges import ERRORS, NOT_QUIESCENT, UNBOUNDED_US, GridIndex, RangeParameters, cell_size
from tocsin.engine.strings import string_buffers
from tocsin.events.columns import one_array
from tocsin.events.reader import LABEL_COLUMN
from tocsin.events.types import GAMMA, ID, EventType, Kind, text_words
from tocsin.language.eps.ast import shown_type
from tocsin.language.mcep.ast import Interest, Shape
from tocsin.plans.moving import AGE, RANGE, delivered, is_exact, is_strong, lookback_us, ranged, tree
from tocsin.plans.plan import MATCH_COLUMNS, Plan, column_names, plan
from tocsin.plans.typing import Catalog

Array = np.ndarray[Any, Any]

ROWS_MAX = 1 << 18
"""The largest number of rows that a detector gets at once, unless one unit has more rows."""
MARKER = "Marker"
"""The type of markers, which precede the matches of a range."""


@dataclass(frozen=True)
class RuleGroup:
    """A group of queries with the same rules and the same coordinate space, which share a detector."""

    number: int
    interest: Interest
    """Any of the queries in the group, because they differ only in their ranges."""
    catalog: Catalog

    @cached_property
    def plan(self) -> Plan:
        rules = ranged(self.interest)
        more = {RANGE: Kind.LONG, **({AGE: Kind.LONG} if self.exact else {})}
        types = {name: EventType(name, (*type.attributes, *more.items())) for name, type in self.catalog.types.items()}
        seen = {name: {**kinds, **more} for name, kinds in self.catalog.seen.items()}
        catalog = Catalog(
            types, {**self.catalog.shared, **more}, seen, self.catalog.empty, self.catalog.complete, self.catalog.closed
        )
        return plan(rules, catalog)

    @cached_property
    def exact(self) -> bool:
        return is_exact(self.interest)

    @cached_property
    def windows_us(self) -> int:
        return tree(self.interest).windows_us

    def spared(self, types: Sequence[str]) -> Array:
        """Return how much shorter (µs) the lookback of each type is than the sum of the windows."""
        reaches = lookback_us(tree(self.interest))
        return np.array([self.windows_us - reaches.get(type, 0) for type in types], np.int64)


class Matcher:
    """Matches the emissions of some queries on gathered events.

    If `times`, the `ts` of matches are timestamps. `select` has the columns of matches besides `rule`, or is None for
    all columns.
    """

    def __init__(
        self, parameters: RangeParameters, gatherer: Gatherer, *, times: bool, select: Collection[str] | None = None
    ) -> None:
        self.parameters, self.gatherer, self.times = parameters, gatherer, times
        interests = parameters.interests
        groups: dict[object, RuleGroup] = {}
        self._group_of = np.zeros(len(interests), np.int64)
        shapes: dict[Shape, int] = {}
        self._shape_of = np.array([shapes.setdefault(one.shape, len(shapes)) for one in interests], np.int64)
        self._shapes = list(shapes)
        for number, one in enumerate(interests):
            key = (one.rules, one.delivers, one.space, is_strong(one))
            group = groups.setdefault(key, RuleGroup(len(groups), one, gatherer.catalog))
            self._group_of[number] = group.number
        self.groups = tuple(groups.values())
        self._named = {**_named(gatherer.plan), RANGE: RANGE}
        whole = matches_schema(gatherer.plan, times=times)
        self.schema = pa.schema([field for field in whole if select is None or field.name in (*select, "rule")])
        self._found = {*self.schema.names, "rule", "type", "ts", "id", RANGE}
        self._names = pa.array([one.name for one in interests], pa.string())
        words = [text_words(one.name) for one in interests]
        self._words = np.array(words, np.uint64).reshape(-1, 2)

    def run(self, emissions: Array, events: GatheredEvents) -> pa.Table:
        """Return the markers and matches of emissions, sorted by query and range.

        The marker of a range precedes its matches.
        """
        emissions = emissions.copy()
        tables: list[pa.Table] = []
        keys: list[Array] = []
        for group in self.groups:
            selected = np.flatnonzero((self._group_of[emissions["query"]] == group.number) & (emissions["error"] == 0))
            if len(selected):
                of, matches = self._group(group, emissions, selected, events)
                tables.append(matches)
                keys.append(np.column_stack([of, np.ones(len(of), np.int64)]))
        begun = np.flatnonzero(emissions["fresh"])
        tables.append(self._markers(emissions[begun]))
        keys.append(np.column_stack([begun, np.zeros(len(begun), np.int64)]))
        of, what = np.concatenate(keys).T
        order = np.lexsort((what, emissions["number"][of], emissions["query"][of]))
        return pa.concat_tables(tables).take(pa.array(order))

    # ---- one group

    def _group(
        self, group: RuleGroup, emissions: Array, selected: Array, events: GatheredEvents
    ) -> tuple[Array, pa.Table]:
        """Return the index of the emission of each match of a group, and the matches.

        `selected` has the indexes of the emissions of the group.
        """
        units, unit_of = self._units(group, emissions[selected])
        results: list[tuple[Array, pa.Table]] = []
        wanted = [number for number, type in enumerate(events.types) if type in self.gatherer.used_by(group.interest)]
        space = group.interest.space
        east, north = events.positions(space) if len(events) else (np.zeros(0), np.zeros(0))
        rows = np.flatnonzero(np.isin(events.type, wanted) & ~np.isnan(east))
        east, north, ts = east[rows], north[rows], events.ts[rows]
        types, spared = events.type[rows], group.spared(events.types)
        quiescent = np.full(len(units), -UNBOUNDED_US)
        for number in np.unique(units["shape"]).tolist():
            here = np.flatnonzero(units["shape"] == number)
            shape, centres = self._shapes[number], (units["east"][here], units["north"][here])
            grid = GridIndex(east, north, *cell_size(shape, space, centres[1]))
            low = np.searchsorted(ts, units["begin"][here], "right")
            high = np.searchsorted(ts, units["hi"][here], "right")
            near = grid.near(shape, space, centres, low, high)
            for start, stop in _chunks(np.bincount(near.of, near.counts, len(here))):
                unit, event = grid.pairs(shape, space, centres, near.some(start, stop))
                unit = here[unit]
                if is_strong(group.interest):
                    unit, event = self._since_quiescent(group, units, unit, event, ts, here[start:stop], quiescent)
                elif not group.exact:
                    in_reach = ts[event] > units["begin"][unit] + spared[types[event]]
                    unit, event = unit[in_reach], event[in_reach]
                results.append(self._detect(group, units, unit, rows[event], events))
        if is_strong(group.interest) and self.parameters.history_us is not None:
            not_quiescent = quiescent - group.windows_us < units["start"] - self.parameters.history_us
            emissions["error"][selected[not_quiescent[unit_of]]] = NOT_QUIESCENT
        return self._delivered(emissions, selected, unit_of, results, events)

    def _units(self, group: RuleGroup, emissions: Array) -> tuple[Array, Array]:
        """Return the distinct units, sorted by their beginning, and the index of the unit of each emission."""
        names = ["begin", "shape", "east", "north", "hi", *(["first"] if group.exact else [])]
        names += ["start"] if is_strong(group.interest) else []
        columns = {
            **{name: emissions[name] for name in emissions.dtype.names or ()},
            "shape": self._shape_of[emissions["query"]],
        }
        kinds = [(name, columns[name].dtype) for name in names]
        units = np.zeros(len(emissions), kinds)
        for name in names:
            units[name] = columns[name]
        return np.unique(units, return_inverse=True)

    def _since_quiescent(
        self,
        group: RuleGroup,
        units: Array,
        unit: Array,
        event: Array,
        ts: Array,
        unit_numbers: Array,
        quiescent: Array,
    ) -> tuple[Array, Array]:
        """Return the pairs (unit, event) whose event is later than the quiescent point of the unit.

        Write the quiescent points of the units in `unit_numbers` to `quiescent`; see `quiescent_point`.
        """
        order = np.lexsort((event, unit))
        unit, event = unit[order], event[order]
        starts = np.searchsorted(unit, unit_numbers)
        stops = np.searchsorted(unit, unit_numbers, "right")
        for number, start, stop in zip(unit_numbers.tolist(), starts, stops, strict=True):
            latest = int(units["first"][number]) - group.windows_us
            quiescent[number] = quiescent_point(ts[event[start:stop]], latest, group.windows_us)
        later = ts[event] > quiescent[unit]
        return unit[later], event[later]

    def _detect(
        self, group: RuleGroup, units: Array, unit: Array, event: Array, events: GatheredEvents
    ) -> tuple[Array, pa.Table]:
        """Detect matches in the pairs (unit, event). Return the unit of each match, and the matches."""
        order = np.argsort(event, kind="stable")
        unit, event = unit[order], event[order]
        wanted = {f"{name}:{kind}" for columns in group.plan.columns.values() for name, kind in columns.items()}
        header = ["type", "ts", "seq", "first", "second"]
        if any(ID in columns for columns in group.plan.columns.values()):
            header.append(LABEL_COLUMN)
        names = [name for name in events.batch.column_names if name in wanted or name in header]
        detector = Detector(group.plan, {}, delay_us=UNBOUNDED_US, times=False)
        detector.canonical, detector.select, detector.named = True, self._found, self._named
        if len(event):
            rows = events.batch.select(names).take(pa.array(event))
            rows = rows.append_column(f"{RANGE}:{Kind.LONG}", pa.array(unit))
            if group.exact:
                strong = is_strong(group.interest)
                age = np.full(len(unit), UNBOUNDED_US) if strong else events.ts[event] - units["first"][unit]
                rows = rows.append_column(f"{AGE}:{Kind.LONG}", pa.array(age))
            matches = pa.concat_tables([detector.push_batch(rows, events.types), detector.finish()])
        else:
            matches = detector.finish()
        matches = matches.filter(pc.is_in(matches["type"], pa.array(delivered(group.interest))))
        return matches[RANGE].to_numpy(), matches

    def _delivered(
        self,
        emissions: Array,
        selected: Array,
        unit_of: Array,
        results: list[tuple[Array, pa.Table]],
        events: GatheredEvents,
    ) -> tuple[Array, pa.Table]:
        """Return the matches of units once for each emission whose time contains them, with the emission of each."""
        if not results:
            return np.zeros(0, np.int64), self.schema.empty_table()
        unit = np.concatenate([units for units, _ in results])
        matches = pa.concat_tables([table for _, table in results])
        by_unit = np.argsort(unit_of, kind="stable")
        starts = np.searchsorted(unit_of[by_unit], unit)
        counts = np.searchsorted(unit_of[by_unit], unit, "right") - starts
        match = np.repeat(np.arange(len(unit)), counts)
        offsets = np.arange(len(match)) - np.repeat(np.cumsum(counts) - counts, counts)
        emission = selected[by_unit[np.repeat(starts, counts) + offsets]]
        ts = matches["ts"].to_numpy()[match]
        contained = (
            (emissions["lo"][emission] <= ts) & (ts <= emissions["hi"][emission]) & (emissions["error"][emission] == 0)
        )
        emission, match = emission[contained], match[contained]
        matches = _with_own_ids(matches, events).take(pa.array(match))
        return emission, self._match_rows(emissions[emission], matches)

    def _match_rows(self, of: Array, matches: pa.Table) -> pa.Table:
        """Return matches as output rows. `of` has the emission of each match."""
        values = {
            "query": self._names.take(pa.array(of["query"])),
            "range": pa.array(of["number"]),
            "rule": _shown(matches["rule"]),
            "type": _shown(matches["type"]),
        }
        if "id" in self.schema.names:
            words = _parse_ids(one_array(matches["id"]))
            state = self._words[of["query"]].T.copy()
            for word in (of["number"].astype(np.uint64), words[0], words[1]):
                state = _folded(state, word)
            values["id"] = hexadecimal(state[0], state[1])
        return self._table(values, matches, len(of))

    def _markers(self, of: Array) -> pa.Table:
        state = self._words[of["query"]].T.copy()
        state = _folded(state, of["number"].astype(np.uint64))
        values = {
            "query": self._names.take(pa.array(of["query"])),
            "range": pa.array(of["number"]),
            "type": pa.repeat(pa.scalar(MARKER, pa.string()), len(of)),
            "ts": pa.array(of["start"]),
            "id": hexadecimal(state[0], state[1]),
            "error": pa.array([ERRORS[code] for code in of["error"].tolist()], pa.string()),
        }
        return self._table(values, pa.table({}), len(of))

    def _table(self, values: dict[str, Any], matches: pa.Table, size: int) -> pa.Table:
        columns = []
        for field in self.schema:
            column = values.get(field.name)
            if column is None and field.name in matches.column_names:
                column = matches[field.name]
            columns.append(pa.nulls(size, field.type) if column is None else column.cast(field.type))
        return pa.table(columns, schema=self.schema)


def _named(plan: Plan) -> dict[str, str]:
    return column_names(plan.emitted.kinds, taken=(*MATCH_COLUMNS, "query", "range", "error"))


def attributes_of(plan: Plan) -> dict[str, str]:
    """Return the attribute of each output column, by column name."""
    return {column: attribute for attribute, column in _named(plan).items()}


def matches_schema(plan: Plan, *, times: bool) -> pa.Schema:
    """Return the schema of the output of moving queries. If `times`, `ts` are timestamps instead of integers."""
    fields = list(match_table.schema(plan, times=times, named=_named(plan)))
    own = [pa.field("query", pa.string()), pa.field("range", pa.int64())]
    return pa.schema([*own, *fields, pa.field("error", pa.string())])


def quiescent_point(times: Array, latest: int, windows_us: int) -> int:
    """Return the quiescent point: the latest time (µs) up to `latest` that ends `windows_us` without events.

    `times` are the ascending times of events. Without such a time, return a time before all events.
    """
    times = times[: np.searchsorted(times, latest, "right")]
    ends = np.append(times[1:] - 1, latest)
    far = np.flatnonzero(ends - times >= windows_us)
    if len(far):
        return int(ends[far[-1]])
    return int(times[0]) - 1 if len(times) else latest


def _chunks(counts: Array) -> Iterator[tuple[int, int]]:
    """Yield intervals (start, stop) of units that have at most ROWS_MAX rows together, or are a single unit."""
    ends = np.cumsum(counts)
    at = 0
    while at < len(counts):
        done = ends[at - 1] if at else 0
        stop = max(at + 1, int(np.searchsorted(ends, done + ROWS_MAX, "right")))
        yield at, stop
        at = stop


def _with_own_ids(matches: pa.Table, events: GatheredEvents) -> pa.Table:
    """Replace the computed ids in the parts of matches by the ids that the source gave the events."""
    ids = events.ids if len(events) and "parts" in matches.column_names else None
    if ids is None or not matches.num_rows:
        return matches
    parts = one_array(matches["parts"])
    flat = parts.flatten()
    at = pc.index_in(flat.field("id"), value_set=ids[0])
    named = pc.if_else(at.is_valid(), ids[1].take(at), flat.field("id"))
    fields = [named if field.name == "id" else flat.field(field.name) for field in flat.type]
    structs = pa.StructArray.from_arrays(fields, names=[field.name for field in flat.type])
    lengths = parts.value_lengths().to_numpy(zero_copy_only=False)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    index = matches.column_names.index("parts")
    return matches.set_column(index, "parts", pa.ListArray.from_arrays(pa.array(offsets), structs))


def _shown(column: pa.ChunkedArray) -> pa.Array:
    coded = one_array(column).dictionary_encode()
    names = pa.array([shown_type(name) for name in coded.dictionary.to_pylist()], pa.string())
    return names.take(coded.indices)


def _parse_ids(ids: pa.Array) -> tuple[Array, Array]:
    """Convert ids of 32 hexadecimal digits to two words each."""
    offsets, data, _ = string_buffers(ids)
    digits = data[offsets[0] : offsets[-1]].reshape(-1, 32).astype(np.uint64)
    values = digits - np.where(digits >= ord("a"), ord("a") - 10, ord("0")).astype(np.uint64)
    shifts = np.arange(60, -4, -4, dtype=np.uint64)
    return (values[:, :16] << shifts).sum(1, dtype=np.uint64), (values[:, 16:] << shifts).sum(1, dtype=np.uint64)


def _mixed(words: Array) -> Array:
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: Array = words ^ (words >> np.uint64(31))
    return mixed


def _folded(state: Array, word: Array) -> Array:
    """Apply `events.types.fold` to columns of states and words."""
    first = _mixed(state[0] ^ word)
    return np.array([first, _mixed(state[1] + word * np.uint64(GAMMA) + first)])
