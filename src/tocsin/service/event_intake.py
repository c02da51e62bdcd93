"""What of a request's body are events, and why not the rest? JSON, NDJSON and Arrow become one batch.

A batch is as `events.batches` has it, with the types by number in a list of names. What kind an attribute of a type is,
is decided by the first event that has it, or by a declaration; later ones are converted to that, or rejected. Text does
not tell whole numbers from others: undeclared numbers of JSON are doubles, unless some rule cannot use them so.
"""

from __future__ import annotations

import json
import re
import threading
from codecs import BOM_UTF8
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tocsin.errors import EventError, RuleError
from tocsin.events.columns import concat, kind_of, whole
from tocsin.events.reader import DEFINED, Columns, Known, read
from tocsin.events.times import UNITS, Clock, micros, show
from tocsin.events.types import Kind
from tocsin.service.encoding import is_utf8
from tocsin.service.event_bodies import (
    DEFAULT,
    EVENTS_MAX,
    HEADER,
    LINE_BYTES_MAX,
    NAME_CHARACTERS_MAX,
    Arrays,
    Object,
    arrow_table,
    check_cells,
    columns_of,
    fast_lines,
    line_texts,
    objects,
    plain,
)
from tocsin.service.event_bodies import lines as lines_of
from tocsin.service.records import Letter

JSON, NDJSON, ARROW_STREAM = "application/json", "application/x-ndjson", "application/vnd.apache.arrow.stream"
FORMATS = (JSON, NDJSON, ARROW_STREAM)

TYPES_MAX = 10_000
ATTRIBUTES_MAX = 1_000
REASONS_MAX = 1_000
"""How many rejected events of a request are reported one by one; the rest is counted."""
REASON_CHARACTERS_MAX = 300
EVENT_CHARACTERS_MAX = 1_000
YEAR_1_US = -62_135_596_800_000_000

NO_TYPE = "is no name of a type: that is letters, digits and _"
_TYPE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

Kinds = Mapping[str, Mapping[str, Kind]]


@dataclass(slots=True)
class Taken:
    """What was read of a body: the events that are accepted, and the others by their place in it."""

    batch: pa.Table
    types: tuple[str, ...]
    rejected: dict[int, str]
    news: dict[str, dict[str, Kind]] = field(default_factory=dict)
    """Kinds that were not known before."""
    times: dict[int, int] = field(default_factory=dict)
    """When rejected events happened, as far as that is known (µs)."""
    letters: list[Letter] = field(default_factory=list)
    """The first of the rejected events."""

    def reason(self, place: int) -> str:
        """Why the event at a place is rejected, as a text that JSON can hold."""
        return plain(self.rejected[place], REASON_CHARACTERS_MAX)

    @property
    def accepted(self) -> int:
        return int(self.batch.num_rows)


@dataclass(frozen=True, slots=True)
class Bounds:
    """Which times are accepted, in microseconds."""

    late_us: int
    early_us: int


class Registry:
    """The kinds of attributes by type. Reading needs no lock: what is there is replaced, never changed."""

    def __init__(self) -> None:
        self.kinds: Kinds = {}
        self._lock = threading.Lock()

    def learn(self, news: Kinds, check: Callable[[Kinds], None] | None = None) -> None:
        """Adds kinds; what is known stays. `check` may refuse them."""
        with self._lock:
            if len(self.kinds) + sum(type not in self.kinds for type in news) > TYPES_MAX:
                raise EventError(f"there are more than {TYPES_MAX} types of events")
            merged = dict(self.kinds)
            for type, named in news.items():
                merged[type] = {**named, **merged.get(type, {})}
                if len(merged[type]) > ATTRIBUTES_MAX:
                    raise EventError(f"{type} has more than {ATTRIBUTES_MAX} attributes")
            if check is not None:
                check(news)
            self.kinds = merged


class Intake:
    """Reads bodies. `defined` gives the types that rules define, `check` refuses kinds that a rule cannot use."""

    def __init__(
        self, registry: Registry, defined: Callable[[], Iterable[str]], check: Callable[[Kinds], None] | None = None
    ) -> None:
        self.registry = registry
        self._defined, self._check = defined, check

    def read(self, body: bytes, format: str, *, now_us: int, bounds: Bounds, columns: Columns = DEFAULT) -> Taken:
        """The events of a body. An `EventError` says that it is no such body at all."""
        if format == ARROW_STREAM:
            return self._arrow(arrow_table(body), columns, now_us, bounds)
        if format == NDJSON:
            taken, body = None, body.removeprefix(BOM_UTF8)
            if (table := fast_lines(body)) is not None:
                with suppress(EventError):  # object by object it is seen which of them are to blame
                    taken = self._table(table, columns, now_us, bounds, text=True)
            if taken is None:
                taken = self._rows(*lines_of(body), columns, now_us, bounds)
            return _with_letters(taken, lambda places: line_texts(body, places))
        if format == JSON:
            found = objects(body)
            rows = [(place, one) for place, one in enumerate(found) if isinstance(one, dict)]
            rejected = {place: "not a JSON object" for place, one in enumerate(found) if not isinstance(one, dict)}
            taken = self._rows(rows, rejected, columns, now_us, bounds)
            return _with_letters(taken, lambda places: [_object_text(found[place]) for place in places])
        raise EventError(f"events come as {', '.join(FORMATS)}, not as '{format}'")

    def table(self, table: pa.Table, *, now_us: int, bounds: Bounds) -> Taken:
        """The events of a table."""
        return self._arrow(table, Columns(), now_us, bounds)

    # ---- a table

    def _arrow(self, table: pa.Table, columns: Columns, now_us: int, bounds: Bounds) -> Taken:
        taken = self._table(table, columns, now_us, bounds, text=False)
        return _with_letters(taken, lambda places: [_row_text(table, place) for place in places])

    def _table(self, table: pa.Table, columns: Columns, now_us: int, bounds: Bounds, *, text: bool) -> Taken:
        if table.num_rows > EVENTS_MAX:
            raise EventError(f"one request has at most {EVENTS_MAX:,} events, this has {table.num_rows:,}")
        if len(set(table.column_names)) < table.num_columns:
            twice = next(name for name in table.column_names if table.column_names.count(name) > 1)
            raise EventError(f"the events have two columns called '{twice[:NAME_CHARACTERS_MAX]}'")
        table = _timed(table, now_us, columns)
        if columns.id not in table.column_names:
            columns = replace(columns, id=None)
        for name in table.column_names:
            if name not in (*HEADER, columns.id) and kind_of(table.schema.field(name).type) is None:
                table = table.drop_columns([name])
        types, refused = _type_names(table)
        defined = set(self._defined())
        numbers = {name: DEFINED if name in defined else number for number, name in enumerate(types)}
        learned: dict[str, dict[str, Kind]] = {}
        while True:
            kinds = self.registry.kinds
            news, alternatives = self._news(_without(table, refused), types, kinds, columns, text=text)
            known = {**kinds, **{type: {**named, **kinds.get(type, {})} for type, named in news.items()}}
            seen = read(table, columns, Known(numbers, {}, {}, known))
            reasons = {**seen.reasons, **refused}
            kept = np.delete(np.arange(table.num_rows), list(seen.reasons))
            batch = seen.batch
            times = _check_times(batch["ts"].to_numpy(), kept, now_us, bounds, reasons)
            for row in np.nonzero(batch["type"].to_numpy() < 0)[0].tolist():
                reasons.setdefault(int(kept[row]), "type is no name")
            if reasons and news:  # what is rejected shows no kinds
                news, alternatives = self._news(_without(table, reasons), types, kinds, columns, text=text)
            new, wrong = self._learned(news, alternatives)
            for type, named in new.items():
                learned.setdefault(type, {}).update(named)
            if wrong:  # the other types are not to suffer for it
                names = table["type"].cast(pa.string()).to_pylist()
                refused |= {row: wrong[name] for row, name in enumerate(names) if name in wrong}
            elif new == news:
                break
        if len(reasons) > len(seen.reasons):
            batch = batch.filter(pa.array(~np.isin(kept, list(reasons))))
        if reasons:
            here = [name for name in batch.column_names if ":" not in name or batch[name].null_count < batch.num_rows]
            batch = batch.select(here)
        return Taken(batch, tuple(numbers), reasons, learned, times)

    def _news(
        self, table: pa.Table, types: Sequence[str], kinds: Kinds, columns: Columns, *, text: bool
    ) -> tuple[dict[str, dict[str, Kind]], dict[tuple[str, str], Kind]]:
        """The kinds that the table shows first, and what numbers could be instead."""
        news: dict[str, dict[str, Kind]] = {}
        alternatives: dict[tuple[str, str], Kind] = {}
        owner, here = None, set[str]()
        for name in table.column_names:
            known = name in (*HEADER, columns.id)
            unknown = [] if known else [type for type in types if name not in kinds.get(type, {})]
            if not unknown:
                continue
            if len(name) > NAME_CHARACTERS_MAX:
                raise EventError(f"'{name[:20]}…': a name has at most {NAME_CHARACTERS_MAX} characters")
            column = table[name]
            kind = kind_of(column.type)
            assert kind is not None
            if owner is None:
                owner = table["type"].cast(pa.string())
                here = set(owner.unique().to_pylist())
            there = set(owner.filter(column.is_valid()).unique().to_pylist()) if column.null_count else here
            for type in unknown:
                if type not in there:
                    continue
                if text and kind is Kind.LONG:
                    alternatives[type, name] = kind
                news.setdefault(type, {})[name] = Kind.DOUBLE if text and kind is Kind.LONG else kind
        return news, alternatives

    def _learned(
        self, news: Kinds, alternatives: Mapping[tuple[str, str], Kind]
    ) -> tuple[dict[str, dict[str, Kind]], dict[str, str]]:
        """Notes the news as far as rules can use it. Returns what was learned, and by type why the rest was not."""
        if not news:
            return {}, {}
        try:
            self.registry.learn(news, self._check)
        except (RuleError, EventError) as error:
            reason = error.message
        else:
            kinds = self.registry.kinds
            return {type: {name: kinds[type][name] for name in named} for type, named in news.items()}, {}
        if len(news) > 1:
            items = list(news.items())
            half = len(items) // 2
            (one, wrong), (other, more) = (
                self._learned(dict(part), alternatives) for part in (items[:half], items[half:])
            )
            return {**one, **other}, {**wrong, **more}
        ((type, named),) = news.items()
        whole = {name: alternatives.get((type, name), kind) for name, kind in named.items()}
        if whole != named:
            learned, wrong = self._learned({type: whole}, {})
            return learned, dict.fromkeys(wrong, reason)
        return {}, {type: reason}

    # ---- objects

    def _rows(
        self,
        rows: list[Object],
        rejected: dict[int, str],
        columns: Columns,
        now_us: int,
        bounds: Bounds,
    ) -> Taken:
        """Objects of which one column may hold several kinds: a table for each type."""
        by_type: dict[str, list[Object]] = {}
        for place, cells in rows:
            if not isinstance(type := cells.get("type"), str):
                rejected[place] = "there is no type" if type is None else f"type is {type!r}, not a name"
            elif not is_utf8(type):
                rejected[place] = f"{type[:50]!r} {NO_TYPE}"
            else:
                by_type.setdefault(type, []).append((place, cells))
        batches: list[pa.Table] = []
        places: list[Arrays] = []
        names: list[str] = []
        news: dict[str, dict[str, Kind]] = {}
        times: dict[int, int] = {}
        for type, mine in by_type.items():
            table, mine_places = columns_of(mine, self.registry.kinds.get(type, {}), rejected, columns)
            if not len(mine_places):
                continue
            try:
                taken = self._table(table, columns, now_us, bounds, text=True)
            except EventError as error:
                rejected |= dict.fromkeys(mine_places.tolist(), error.message)
                continue
            rejected |= {int(mine_places[row]): reason for row, reason in taken.rejected.items()}
            news |= taken.news
            times |= {int(mine_places[row]): ts for row, ts in taken.times.items()}
            kept = np.delete(mine_places, list(taken.rejected))
            if not len(kept):
                continue
            batches.append(taken.batch.set_column(0, "type", pa.array(np.full(len(kept), len(names), np.int32))))
            places.append(kept)
            names.append(type)
        if not batches:
            return Taken(_EMPTY, (), rejected, news, times)
        check_cells(len({name for one in batches for name in one.column_names}), sum(map(len, places)))
        batch = concat(batches).take(np.argsort(np.concatenate(places), kind="stable"))
        return Taken(batch, tuple(names), rejected, news, times)


_EMPTY = pa.table({"type": pa.array([], pa.int32()), "ts": pa.array([], pa.int64()), "seq": pa.array([], pa.int64())})


def _timed(table: pa.Table, now_us: int, columns: Columns) -> pa.Table:
    """The table with the present moment where no time is given."""
    if "ts" not in table.column_names or pa.types.is_null(table.schema.field("ts").type):
        if "ts" in table.column_names:
            table = table.drop_columns(["ts"])
        now = pa.repeat(pa.scalar(now_us, pa.int64()), table.num_rows).cast(pa.timestamp("us", "UTC"))
        return table.append_column("ts", now)
    column = table["ts"]
    if not column.null_count:
        return table
    array, unit = whole(column), columns.ts_unit or "us"
    if pa.types.is_dictionary(array.type):
        array = array.cast(array.type.value_type)
    if kind_of(array.type) is Kind.STRING:
        filled = array.cast(pa.string()).fill_null(pc.strftime(pa.scalar(now_us, pa.timestamp("us")), _ISO).as_py())
    elif pa.types.is_floating(array.type):
        times, by = UNITS[unit]
        filled = array.cast(pa.float64()).fill_null(now_us * by / times)
    elif pa.types.is_boolean(array.type):
        return table
    else:
        filled = micros(array, unit)[0].fill_null(now_us).cast(pa.timestamp("us", "UTC"))
    return table.set_column(table.column_names.index("ts"), "ts", filled)


_ISO = "%Y-%m-%dT%H:%M:%SZ"


def _type_names(table: pa.Table) -> tuple[tuple[str, ...], dict[int, str]]:
    """The names of types in the order in which they occur, and the rows whose type is no name."""
    if "type" not in table.column_names:
        raise EventError("the events have no 'type'")
    column = table["type"]
    if pa.types.is_null(column.type):
        column = column.cast(pa.string())
    if kind_of(column.type) is not Kind.STRING:
        raise EventError(f"'type' must hold names of event types, it is {column.type}")
    names = [name for name in column.unique().cast(pa.string()).to_pylist() if name is not None]
    odd = [name for name in names if len(name) > NAME_CHARACTERS_MAX or not _TYPE.fullmatch(name)]
    reasons: dict[int, str] = {}
    if odd:
        rows = np.asarray(pc.fill_null(pc.is_in(column.cast(pa.string()), pa.array(odd)), False))
        texts = column.cast(pa.string())
        reasons = {row: f"{texts[row].as_py()[:50]!r} {NO_TYPE}" for row in np.nonzero(rows)[0].tolist()}
        names = [name for name in names if name not in set(odd)]
    return tuple(names), reasons


def _without(table: pa.Table, rejected: Mapping[int, str]) -> pa.Table:
    """The table without some of its rows."""
    return table.take(np.delete(np.arange(table.num_rows), list(rejected))) if rejected else table


def _check_times(ts: Arrays, rows: Arrays, now_us: int, bounds: Bounds, reasons: dict[int, str]) -> dict[int, int]:
    """Rejects events that are late, ahead of the clock, or before year 1. Returns the times of such events."""
    old, late, early = ts < YEAR_1_US, ts < bounds.late_us, ts > bounds.early_us
    for row in np.nonzero(old)[0].tolist():
        reasons.setdefault(int(rows[row]), "ts is out of range")
    if late.any():
        reached = f"late: time has reached {pa.scalar(bounds.late_us, pa.timestamp('us', 'UTC'))}"
        for row in np.nonzero(late)[0].tolist():
            reasons.setdefault(int(rows[row]), reached)
    clock = Clock(now_us, bounds.early_us - now_us)
    for row in np.nonzero(early)[0].tolist():
        reasons.setdefault(int(rows[row]), clock.reason(int(ts[row])))
    outside = np.nonzero((late | early) & ~old)[0]
    return dict(zip(rows[outside].tolist(), ts[outside].tolist(), strict=True))


def _with_letters(taken: Taken, texts: Callable[[list[int]], list[str]]) -> Taken:
    """Adds the first of the rejected events as dead letters. `texts`: the events of some places, as they came."""
    places = sorted(taken.rejected)[:REASONS_MAX]
    for place, text in zip(places, texts(places) if places else (), strict=True):
        letter = Letter(taken.reason(place), _type_in(text), taken.times.get(place), plain(text, EVENT_CHARACTERS_MAX))
        taken.letters.append(letter)
    if (more := len(taken.rejected) - len(places)) > 0:
        taken.letters.append(Letter(f"{more:,} more events of the same request were rejected", None, None, ""))
    return taken


def _type_in(text: str) -> str | None:
    """The type that the JSON of an event says."""
    try:
        type = json.loads(text)["type"] if len(text) < LINE_BYTES_MAX else None
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    return plain(type, NAME_CHARACTERS_MAX) if isinstance(type, str) else None


def _object_text(value: object) -> str:
    """A value of a body as JSON; nothing if it is nested too deeply for that."""
    try:
        return json.dumps(value)
    except RecursionError:
        return ""


def _row_text(table: pa.Table, row: int) -> str:
    """A row as JSON."""
    cells: dict[str, object] = {}
    for name in table.column_names:
        cell = table[name][row]
        if cell.is_valid:
            value = show(cell) if kind_of(cell.type) is not None else f"<{cell.type}>"[:100]  # a list may be long
            cells[name] = value if isinstance(value, int | float | bool) else str(value)[:EVENT_CHARACTERS_MAX]
    return _object_text(cells)
