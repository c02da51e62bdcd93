"""What is found in the ranges? Pieces and the events around them in; markers and matches out, in order.

Pieces with the same rules, region and times are one *unit*, whosever they are. Units are joined with the events that
lie in them, and each (unit, event) is a row of an ordinary batch with the unit's number: the rules of
`plans.operators.ranged` keep units apart, so that one detector runs thousands of them.
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
from tocsin.engine.moving.gather import Gathered, Sieve
from tocsin.engine.moving.ranges import ERRORS, FOREVER, NOT_QUIET, Cells, Followed, cell_size
from tocsin.engine.strings import text_buffers
from tocsin.events.columns import whole
from tocsin.events.reader import LABEL_COLUMN
from tocsin.events.types import ID, LANE, EventType, Kind, text_words
from tocsin.language.eps.ast import shown_type
from tocsin.language.mcep.ast import Interest, Shape
from tocsin.plans.moving import AGE, RANGE, delivered, is_exact, is_strong, ranged, reaches_us, tree
from tocsin.plans.plan import MATCH_COLUMNS, Plan, column_names, plan
from tocsin.plans.typing import Catalog

Array = np.ndarray[Any, Any]

ROWS_MAX = 1 << 18
"""How many rows a detector gets at once, if no single unit has more."""
NEVER_LATE_US = 2**60
MARKER = "Marker"
"""The type of the rows that stand before a range."""


@dataclass(frozen=True)
class Group:
    """Queries with the same rules, in one space: they run in one detector."""

    number: int
    interest: Interest
    """Any of them."""
    catalog: Catalog

    @cached_property
    def plan(self) -> Plan:
        rules = ranged(self.interest)
        more = {RANGE: Kind.LONG, **({AGE: Kind.LONG} if self.exact else {})}
        types = {name: EventType(name, (*type.attributes, *more.items())) for name, type in self.catalog.types.items()}
        seen = {name: {**kinds, **more} for name, kinds in self.catalog.seen.items()}
        given = Catalog(
            types, {**self.catalog.shared, **more}, seen, self.catalog.empty, self.catalog.complete, self.catalog.closed
        )
        return plan(rules, given)

    @cached_property
    def exact(self) -> bool:
        return is_exact(self.interest)

    @cached_property
    def windows_us(self) -> int:
        return tree(self.interest).windows_us

    def spared(self, types: Sequence[str]) -> Array:
        """By how much less than the windows each type is looked back for."""
        reaches = reaches_us(tree(self.interest))
        return np.array([self.windows_us - reaches.get(type, 0) for type in types], np.int64)


class Matcher:
    """Runs pieces of some interests over events of a known shape.

    `times`: ts of matches are timestamps. `select`: the columns that rows have besides the rule, if not all.
    """

    def __init__(self, followed: Followed, sieve: Sieve, *, times: bool, select: Collection[str] | None = None) -> None:
        self.followed, self.sieve, self.times = followed, sieve, times
        interests = followed.interests
        groups: dict[object, Group] = {}
        self._group_of = np.zeros(len(interests), np.int64)
        shapes: dict[Shape, int] = {}
        self._shape_of = np.array([shapes.setdefault(one.shape, len(shapes)) for one in interests], np.int64)
        self._shapes = list(shapes)
        for number, one in enumerate(interests):
            key = (one.rules, one.delivers, one.space, is_strong(one))
            group = groups.setdefault(key, Group(len(groups), one, sieve.catalog))
            self._group_of[number] = group.number
        self.groups = tuple(groups.values())
        self._named = {**_named(sieve.plan), RANGE: RANGE}
        whole = matches_schema(sieve.plan, times=times)
        self.schema = pa.schema([field for field in whole if select is None or field.name in (*select, "rule")])
        self._found = {*self.schema.names, "rule", "type", "ts", "id", RANGE}
        self._names = pa.array([one.name for one in interests], pa.string())
        words = [text_words(one.name) for one in interests]
        self._words = np.array(words, np.uint64).reshape(-1, 2)

    def run(self, pieces: Array, events: Gathered) -> pa.Table:
        """The markers and matches of these pieces, by query, range and match."""
        pieces = pieces.copy()
        tables: list[pa.Table] = []
        keys: list[Array] = []
        for group in self.groups:
            mine = np.flatnonzero((self._group_of[pieces["query"]] == group.number) & (pieces["error"] == 0))
            if len(mine):
                of, found = self._group(group, pieces, mine, events)
                tables.append(found)
                keys.append(np.column_stack([of, np.ones(len(of), np.int64)]))
        begun = np.flatnonzero(pieces["fresh"])
        tables.append(self._markers(pieces[begun]))
        keys.append(np.column_stack([begun, np.zeros(len(begun), np.int64)]))
        of, what = np.concatenate(keys).T
        order = np.lexsort((what, pieces["number"][of], pieces["query"][of]))
        return pa.concat_tables(tables).take(pa.array(order))

    # ---- one group

    def _group(self, group: Group, pieces: Array, mine: Array, events: Gathered) -> tuple[Array, pa.Table]:
        """Which piece each match belongs to, and the matches."""
        units, unit_of = self._units(group, pieces[mine])
        parts: list[tuple[Array, pa.Table]] = []
        wanted = [number for number, type in enumerate(events.types) if type in self.sieve.used_by(group.interest)]
        space = group.interest.space
        east, north = events.places(space) if len(events) else (np.zeros(0), np.zeros(0))
        rows = np.flatnonzero(np.isin(events.type, wanted) & ~np.isnan(east))
        east, north, ts = east[rows], north[rows], events.ts[rows]
        types, spared = events.type[rows], group.spared(events.types)
        quiet = np.full(len(units), -FOREVER)
        for number in np.unique(units["shape"]).tolist():
            here = np.flatnonzero(units["shape"] == number)
            shape, centres = self._shapes[number], (units["east"][here], units["north"][here])
            cells = Cells(east, north, *cell_size(shape, space, centres[1]))
            low = np.searchsorted(ts, units["begin"][here], "right")
            high = np.searchsorted(ts, units["hi"][here], "right")
            near = cells.near(shape, space, centres, low, high)
            for start, stop in _chunks(np.bincount(near.of, near.counts, len(here))):
                unit, event = cells.pairs(shape, space, centres, near.some(start, stop))
                unit = here[unit]
                if is_strong(group.interest):
                    unit, event = self._since_quiet(group, units, unit, event, ts, here[start:stop], quiet)
                elif not group.exact:
                    kept = ts[event] > units["begin"][unit] + spared[types[event]]
                    unit, event = unit[kept], event[kept]
                parts.append(self._detect(group, units, unit, rows[event], events))
        if is_strong(group.interest) and self.followed.history_us is not None:
            loud = quiet - group.windows_us < units["start"] - self.followed.history_us
            pieces["error"][mine[loud[unit_of]]] = NOT_QUIET
        return self._delivered(pieces, mine, unit_of, parts, events)

    def _units(self, group: Group, pieces: Array) -> tuple[Array, Array]:
        """What is to be run, each once, by its beginning; and the unit of each piece."""
        names = ["begin", "shape", "east", "north", "hi", *(["first"] if group.exact else [])]
        names += ["start"] if is_strong(group.interest) else []
        columns = {
            **{name: pieces[name] for name in pieces.dtype.names or ()},
            "shape": self._shape_of[pieces["query"]],
        }
        kinds = [(name, columns[name].dtype) for name in names]
        units = np.zeros(len(pieces), kinds)
        for name in names:
            units[name] = columns[name]
        return np.unique(units, return_inverse=True)

    def _since_quiet(
        self, group: Group, units: Array, unit: Array, event: Array, ts: Array, mine: Array, quiet: Array
    ) -> tuple[Array, Array]:
        """The rows later than the quiet point of their unit; notes these points."""
        order = np.lexsort((event, unit))
        unit, event = unit[order], event[order]
        starts = np.searchsorted(unit, mine)
        stops = np.searchsorted(unit, mine, "right")
        for number, start, stop in zip(mine.tolist(), starts, stops, strict=True):
            latest = int(units["first"][number]) - group.windows_us
            quiet[number] = quiet_point(ts[event[start:stop]], latest, group.windows_us)
        later = ts[event] > quiet[unit]
        return unit[later], event[later]

    def _detect(
        self, group: Group, units: Array, unit: Array, event: Array, events: Gathered
    ) -> tuple[Array, pa.Table]:
        """The unit of each match, and the matches, of rows (unit, event)."""
        order = np.argsort(event, kind="stable")
        unit, event = unit[order], event[order]
        wanted = {f"{name}:{kind}" for columns in group.plan.columns.values() for name, kind in columns.items()}
        header = ["type", "ts", "seq", "first", "second"]
        if any(ID in columns for columns in group.plan.columns.values()):
            header.append(LABEL_COLUMN)
        names = [name for name in events.batch.column_names if name in wanted or name in header]
        detector = Detector(group.plan, {}, delay_us=NEVER_LATE_US, times=False)
        detector.settled, detector.select, detector.named = True, self._found, self._named
        if len(event):
            rows = events.batch.select(names).take(pa.array(event))
            rows = rows.append_column(f"{RANGE}:{Kind.LONG}", pa.array(unit))
            if group.exact:
                strong = is_strong(group.interest)
                age = np.full(len(unit), FOREVER) if strong else events.ts[event] - units["first"][unit]
                rows = rows.append_column(f"{AGE}:{Kind.LONG}", pa.array(age))
            found = pa.concat_tables([detector.push_batch(rows, events.types), detector.finish()])
        else:
            found = detector.finish()
        found = found.filter(pc.is_in(found["type"], pa.array(delivered(group.interest))))
        return found[RANGE].to_numpy(), found

    def _delivered(
        self, pieces: Array, mine: Array, unit_of: Array, parts: list[tuple[Array, pa.Table]], events: Gathered
    ) -> tuple[Array, pa.Table]:
        """Matches of units as matches of the pieces that want them."""
        if not parts:
            return np.zeros(0, np.int64), self.schema.empty_table()
        unit = np.concatenate([part for part, _ in parts])
        found = pa.concat_tables([table for _, table in parts])
        by_unit = np.argsort(unit_of, kind="stable")
        starts = np.searchsorted(unit_of[by_unit], unit)
        counts = np.searchsorted(unit_of[by_unit], unit, "right") - starts
        match = np.repeat(np.arange(len(unit)), counts)
        offsets = np.arange(len(match)) - np.repeat(np.cumsum(counts) - counts, counts)
        piece = mine[by_unit[np.repeat(starts, counts) + offsets]]
        ts = found["ts"].to_numpy()[match]
        kept = (pieces["lo"][piece] <= ts) & (ts <= pieces["hi"][piece]) & (pieces["error"][piece] == 0)
        piece, match = piece[kept], match[kept]
        found = _with_own_ids(found, events).take(pa.array(match))
        return piece, self._told(pieces[piece], found)

    def _told(self, of: Array, found: pa.Table) -> pa.Table:
        """Matches as rows of what is delivered."""
        values = {
            "query": self._names.take(pa.array(of["query"])),
            "range": pa.array(of["number"]),
            "rule": _shown(found["rule"]),
            "type": _shown(found["type"]),
        }
        if "id" in self.schema.names:
            words = _words_of(whole(found["id"]))
            state = self._words[of["query"]].T.copy()
            for word in (of["number"].astype(np.uint64), words[0], words[1]):
                state = _folded(state, word)
            values["id"] = hexadecimal(state[0], state[1])
        return self._table(values, found, len(of))

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

    def _table(self, values: dict[str, Any], found: pa.Table, size: int) -> pa.Table:
        columns = []
        for field in self.schema:
            held = values.get(field.name)
            if held is None and field.name in found.column_names:
                held = found[field.name]
            columns.append(pa.nulls(size, field.type) if held is None else held.cast(field.type))
        return pa.table(columns, schema=self.schema)


def _named(plan: Plan) -> dict[str, str]:
    return column_names(plan.emitted.kinds, taken=(*MATCH_COLUMNS, "query", "range", "error"))


def attributes_of(plan: Plan) -> dict[str, str]:
    """Which attribute each column of what is delivered holds."""
    return {column: attribute for attribute, column in _named(plan).items()}


def matches_schema(plan: Plan, *, times: bool) -> pa.Schema:
    """The columns of what queries that move deliver."""
    fields = list(match_table.schema(plan, times=times, named=_named(plan)))
    own = [pa.field("query", pa.string()), pa.field("range", pa.int64())]
    return pa.schema([*own, *fields, pa.field("error", pa.string())])


def quiet_point(times: Array, latest: int, windows_us: int) -> int:
    """The latest point up to `latest` before which nothing happened for as long as the windows reach."""
    times = times[: np.searchsorted(times, latest, "right")]
    ends = np.append(times[1:] - 1, latest)
    far = np.flatnonzero(ends - times >= windows_us)
    if len(far):
        return int(ends[far[-1]])
    return int(times[0]) - 1 if len(times) else latest


def _chunks(counts: Array) -> Iterator[tuple[int, int]]:
    """Stretches of units with few enough rows."""
    ends = np.cumsum(counts)
    at = 0
    while at < len(counts):
        done = ends[at - 1] if at else 0
        stop = max(at + 1, int(np.searchsorted(ends, done + ROWS_MAX, "right")))
        yield at, stop
        at = stop


def _with_own_ids(found: pa.Table, events: Gathered) -> pa.Table:
    """Matches whose parts have the ids that their sources gave them."""
    ids = events.ids if len(events) and "parts" in found.column_names else None
    if ids is None or not found.num_rows:
        return found
    parts = whole(found["parts"])
    flat = parts.flatten()
    at = pc.index_in(flat.field("id"), value_set=ids[0])
    named = pc.if_else(at.is_valid(), ids[1].take(at), flat.field("id"))
    fields = [named if field.name == "id" else flat.field(field.name) for field in flat.type]
    structs = pa.StructArray.from_arrays(fields, names=[field.name for field in flat.type])
    lengths = parts.value_lengths().to_numpy(zero_copy_only=False)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    place = found.column_names.index("parts")
    return found.set_column(place, "parts", pa.ListArray.from_arrays(pa.array(offsets), structs))


def _shown(column: pa.ChunkedArray) -> pa.Array:
    coded = whole(column).dictionary_encode()
    names = pa.array([shown_type(name) for name in coded.dictionary.to_pylist()], pa.string())
    return names.take(coded.indices)


def _words_of(ids: pa.Array) -> tuple[Array, Array]:
    """Identities from their 32 hexadecimal digits."""
    offsets, data, _ = text_buffers(ids)
    digits = data[offsets[0] : offsets[-1]].reshape(-1, 32).astype(np.uint64)
    values = digits - np.where(digits >= ord("a"), ord("a") - 10, ord("0")).astype(np.uint64)
    shifts = np.arange(60, -4, -4, dtype=np.uint64)
    return (values[:, :16] << shifts).sum(1, dtype=np.uint64), (values[:, 16:] << shifts).sum(1, dtype=np.uint64)


def _mixed(words: Array) -> Array:
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    found: Array = words ^ (words >> np.uint64(31))
    return found


def _folded(state: Array, word: Array) -> Array:
    """`events.ids.fold` over columns."""
    first = _mixed(state[0] ^ word)
    return np.array([first, _mixed(state[1] + word * np.uint64(LANE) + first)])
