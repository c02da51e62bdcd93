"""Convert request bodies (JSON, NDJSON, Arrow) to a batch of events, and give a reason for each rejected event.

A batch has the format of `events.batch`, and its type codes index a list of type names. The kind of an attribute is set
by a declaration, or by the first event of its type that has the attribute. Later values are converted to this kind or
rejected. JSON does not distinguish integers from doubles, so undeclared numbers are doubles unless a rule needs
integers.
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
from tocsin.events.columns import concat, kind_of, one_array
from tocsin.events.reader import DEFINED, Columns, TypeInfo, read
from tocsin.events.times import TS_UNITS, HostClock, micros, show
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
from tocsin.service.records import RejectedEvent

JSON, NDJSON, ARROW_STREAM = "application/json", "application/x-ndjson", "application/vnd.apache.arrow.stream"
FORMATS = (JSON, NDJSON, ARROW_STREAM)

TYPES_MAX = 10_000
ATTRIBUTES_MAX = 1_000
REASONS_MAX = 1_000
"""The number of rejected events of a request that are reported one by one. Further events are only counted."""
REASON_CHARACTERS_MAX = 300
EVENT_CHARACTERS_MAX = 1_000
YEAR_1_US = -62_135_596_800_000_000

NO_TYPE = "is not a type name: use letters, digits and _"
_TYPE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

Kinds = Mapping[str, Mapping[str, Kind]]


@dataclass(slots=True)
class ParsedEvents:
    """The events of a parsed body.

    `batch` has the accepted events, and `types` the names that its type codes index. `rejected` has the reason for each
    rejected event, by the event's index in the body.
    """

    batch: pa.Table
    types: tuple[str, ...]
    rejected: dict[int, str]
    new_kinds: dict[str, dict[str, Kind]] = field(default_factory=dict)
    """The kinds of attributes that appear for the first time, by type and attribute."""
    times: dict[int, int] = field(default_factory=dict)
    """The times of rejected events by index (µs), where they are known."""
    dead_letters: list[RejectedEvent] = field(default_factory=list)
    """The first rejected events, and a last entry that counts further ones."""

    def reason(self, index: int) -> str:
        """Return why the event at an index was rejected, as text that is valid in JSON."""
        return plain(self.rejected[index], REASON_CHARACTERS_MAX)

    @property
    def accepted(self) -> int:
        return int(self.batch.num_rows)


@dataclass(frozen=True, slots=True)
class Bounds:
    """The earliest and the latest accepted event time (µs)."""

    late_us: int
    early_us: int


class Registry:
    """The kinds of the attributes of each type.

    Any thread may read `kinds` without a lock, because the mapping is replaced and never changed.
    """

    def __init__(self) -> None:
        self.kinds: Kinds = {}
        self._lock = threading.Lock()

    def learn(self, new_kinds: Kinds, check: Callable[[Kinds], None] | None = None) -> None:
        """Add `new_kinds` for attributes that have no kind yet. `check` may raise an error to refuse `new_kinds`."""
        with self._lock:
            if len(self.kinds) + sum(type not in self.kinds for type in new_kinds) > TYPES_MAX:
                raise EventError(f"there are more than {TYPES_MAX} event types")
            merged = dict(self.kinds)
            for type, named in new_kinds.items():
                merged[type] = {**named, **merged.get(type, {})}
                if len(merged[type]) > ATTRIBUTES_MAX:
                    raise EventError(f"{type} has more than {ATTRIBUTES_MAX} attributes")
            if check is not None:
                check(new_kinds)
            self.kinds = merged


class EventIntake:
    """Parse the bodies of publish requests.

    `defined` returns the types that rules define. `check` raises an error for kinds that a rule cannot use.
    """

    def __init__(
        self, registry: Registry, defined: Callable[[], Iterable[str]], check: Callable[[Kinds], None] | None = None
    ) -> None:
        self.registry = registry
        self._defined, self._check = defined, check

    def read(
        self, body: bytes, format: str, *, now_us: int, bounds: Bounds, columns: Columns = DEFAULT
    ) -> ParsedEvents:
        """Parse the events in `body`. Raise an `EventError` if the body does not have the given format."""
        if format == ARROW_STREAM:
            return self._arrow(arrow_table(body), columns, now_us, bounds)
        if format == NDJSON:
            parsed, body = None, body.removeprefix(BOM_UTF8)
            if (table := fast_lines(body)) is not None:
                with suppress(EventError):  # the slow path reports the reason of each object
                    parsed = self._table(table, columns, now_us, bounds, text=True)
            if parsed is None:
                parsed = self._rows(*lines_of(body), columns, now_us, bounds)
            return _with_dead_letters(parsed, lambda indices: line_texts(body, indices))
        if format == JSON:
            items = objects(body)
            rows = [(index, one) for index, one in enumerate(items) if isinstance(one, dict)]
            rejected = {index: "not a JSON object" for index, one in enumerate(items) if not isinstance(one, dict)}
            parsed = self._rows(rows, rejected, columns, now_us, bounds)
            return _with_dead_letters(parsed, lambda indices: [_object_text(items[index]) for index in indices])
        raise EventError(f"the format must be one of {', '.join(FORMATS)}, it is '{format}'")

    def table(self, table: pa.Table, *, now_us: int, bounds: Bounds) -> ParsedEvents:
        """Parse the events in an Arrow table."""
        return self._arrow(table, Columns(), now_us, bounds)

    # ---- tables

    def _arrow(self, table: pa.Table, columns: Columns, now_us: int, bounds: Bounds) -> ParsedEvents:
        parsed = self._table(table, columns, now_us, bounds, text=False)
        return _with_dead_letters(parsed, lambda indices: [_row_text(table, index) for index in indices])

    def _table(self, table: pa.Table, columns: Columns, now_us: int, bounds: Bounds, *, text: bool) -> ParsedEvents:
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
            new_kinds, alternatives = self._new_kinds(_without(table, refused), types, kinds, columns, text=text)
            all_kinds = {**kinds, **{type: {**named, **kinds.get(type, {})} for type, named in new_kinds.items()}}
            seen = read(table, columns, TypeInfo(numbers, {}, {}, all_kinds))
            reasons = {**seen.reasons, **refused}
            kept = np.delete(np.arange(table.num_rows), list(seen.reasons))
            batch = seen.batch
            times = _check_times(batch["ts"].to_numpy(), kept, now_us, bounds, reasons)
            for row in np.nonzero(batch["type"].to_numpy() < 0)[0].tolist():
                reasons.setdefault(int(kept[row]), "type is not a type name")
            if reasons and new_kinds:  # rejected events do not define kinds
                new_kinds, alternatives = self._new_kinds(_without(table, reasons), types, kinds, columns, text=text)
            new, wrong = self._learn(new_kinds, alternatives)
            for type, named in new.items():
                learned.setdefault(type, {}).update(named)
            if wrong:  # reject only events of these types
                names = table["type"].cast(pa.string()).to_pylist()
                refused |= {row: wrong[name] for row, name in enumerate(names) if name in wrong}
            elif new == new_kinds:
                break
        if len(reasons) > len(seen.reasons):
            batch = batch.filter(pa.array(~np.isin(kept, list(reasons))))
        if reasons:
            here = [name for name in batch.column_names if ":" not in name or batch[name].null_count < batch.num_rows]
            batch = batch.select(here)
        return ParsedEvents(batch, tuple(numbers), reasons, learned, times)

    def _new_kinds(
        self, table: pa.Table, types: Sequence[str], kinds: Kinds, columns: Columns, *, text: bool
    ) -> tuple[dict[str, dict[str, Kind]], dict[tuple[str, str], Kind]]:
        """Return the kinds of attributes that their types do not have yet, and alternative kinds.

        An attribute with integers in JSON has the kind double, and the alternative long.
        """
        new_kinds: dict[str, dict[str, Kind]] = {}
        alternatives: dict[tuple[str, str], Kind] = {}
        owner, here = None, set[str]()
        for name in table.column_names:
            is_header = name in (*HEADER, columns.id)
            unknown = [] if is_header else [type for type in types if name not in kinds.get(type, {})]
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
                new_kinds.setdefault(type, {})[name] = Kind.DOUBLE if text and kind is Kind.LONG else kind
        return new_kinds, alternatives

    def _learn(
        self, new_kinds: Kinds, alternatives: Mapping[tuple[str, str], Kind]
    ) -> tuple[dict[str, dict[str, Kind]], dict[str, str]]:
        """Register those of `new_kinds` that rules can use.

        Return the registered kinds, and the reason for each type whose kinds were refused.
        """
        if not new_kinds:
            return {}, {}
        try:
            self.registry.learn(new_kinds, self._check)
        except (RuleError, EventError) as error:
            reason = error.message
        else:
            kinds = self.registry.kinds
            return {type: {name: kinds[type][name] for name in named} for type, named in new_kinds.items()}, {}
        if len(new_kinds) > 1:
            items = list(new_kinds.items())
            half = len(items) // 2
            (one, wrong), (other, more) = (
                self._learn(dict(part), alternatives) for part in (items[:half], items[half:])
            )
            return {**one, **other}, {**wrong, **more}
        ((type, named),) = new_kinds.items()
        whole = {name: alternatives.get((type, name), kind) for name, kind in named.items()}
        if whole != named:
            learned, wrong = self._learn({type: whole}, {})
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
    ) -> ParsedEvents:
        """Parse objects with one table per type, because two types may give an attribute different kinds."""
        by_type: dict[str, list[Object]] = {}
        for index, cells in rows:
            if not isinstance(type := cells.get("type"), str):
                rejected[index] = "the type is missing" if type is None else f"type is {type!r}, not a name"
            elif not is_utf8(type):
                rejected[index] = f"{type[:50]!r} {NO_TYPE}"
            else:
                by_type.setdefault(type, []).append((index, cells))
        batches: list[pa.Table] = []
        indices: list[Arrays] = []
        names: list[str] = []
        new_kinds: dict[str, dict[str, Kind]] = {}
        times: dict[int, int] = {}
        for type, mine in by_type.items():
            table, type_indices = columns_of(mine, self.registry.kinds.get(type, {}), rejected, columns)
            if not len(type_indices):
                continue
            try:
                parsed = self._table(table, columns, now_us, bounds, text=True)
            except EventError as error:
                rejected |= dict.fromkeys(type_indices.tolist(), error.message)
                continue
            rejected |= {int(type_indices[row]): reason for row, reason in parsed.rejected.items()}
            new_kinds |= parsed.new_kinds
            times |= {int(type_indices[row]): ts for row, ts in parsed.times.items()}
            kept = np.delete(type_indices, list(parsed.rejected))
            if not len(kept):
                continue
            batches.append(parsed.batch.set_column(0, "type", pa.array(np.full(len(kept), len(names), np.int32))))
            indices.append(kept)
            names.append(type)
        if not batches:
            return ParsedEvents(_EMPTY, (), rejected, new_kinds, times)
        check_cells(len({name for one in batches for name in one.column_names}), sum(map(len, indices)))
        batch = concat(batches).take(np.argsort(np.concatenate(indices), kind="stable"))
        return ParsedEvents(batch, tuple(names), rejected, new_kinds, times)


_EMPTY = pa.table({"type": pa.array([], pa.int32()), "ts": pa.array([], pa.int64()), "seq": pa.array([], pa.int64())})


def _timed(table: pa.Table, now_us: int, columns: Columns) -> pa.Table:
    """Return `table` with `now_us` as the time of each event that has no time."""
    if "ts" not in table.column_names or pa.types.is_null(table.schema.field("ts").type):
        if "ts" in table.column_names:
            table = table.drop_columns(["ts"])
        now = pa.repeat(pa.scalar(now_us, pa.int64()), table.num_rows).cast(pa.timestamp("us", "UTC"))
        return table.append_column("ts", now)
    column = table["ts"]
    if not column.null_count:
        return table
    array, unit = one_array(column), columns.ts_unit or "us"
    if pa.types.is_dictionary(array.type):
        array = array.cast(array.type.value_type)
    if kind_of(array.type) is Kind.STRING:
        filled = array.cast(pa.string()).fill_null(pc.strftime(pa.scalar(now_us, pa.timestamp("us")), _ISO).as_py())
    elif pa.types.is_floating(array.type):
        times, by = TS_UNITS[unit]
        filled = array.cast(pa.float64()).fill_null(now_us * by / times)
    elif pa.types.is_boolean(array.type):
        return table
    else:
        filled = micros(array, unit)[0].fill_null(now_us).cast(pa.timestamp("us", "UTC"))
    return table.set_column(table.column_names.index("ts"), "ts", filled)


_ISO = "%Y-%m-%dT%H:%M:%SZ"


def _type_names(table: pa.Table) -> tuple[tuple[str, ...], dict[int, str]]:
    """Return the valid type names in order of occurrence, and the reason for each row with an invalid type name."""
    if "type" not in table.column_names:
        raise EventError("the events have no 'type'")
    column = table["type"]
    if pa.types.is_null(column.type):
        column = column.cast(pa.string())
    if kind_of(column.type) is not Kind.STRING:
        raise EventError(f"'type' must be a column of strings, it is {column.type}")
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
    """Return `table` without the rejected rows."""
    return table.take(np.delete(np.arange(table.num_rows), list(rejected))) if rejected else table


def _check_times(ts: Arrays, rows: Arrays, now_us: int, bounds: Bounds, reasons: dict[int, str]) -> dict[int, int]:
    """Add a reason for each event that is late, ahead of the clock, or before year 1.

    Return the times (µs) of late and early events by row.
    """
    old, late, early = ts < YEAR_1_US, ts < bounds.late_us, ts > bounds.early_us
    for row in np.nonzero(old)[0].tolist():
        reasons.setdefault(int(rows[row]), "ts is out of range")
    if late.any():
        reached = f"late: the watermark is {pa.scalar(bounds.late_us, pa.timestamp('us', 'UTC'))}"
        for row in np.nonzero(late)[0].tolist():
            reasons.setdefault(int(rows[row]), reached)
    clock = HostClock(now_us, bounds.early_us - now_us)
    for row in np.nonzero(early)[0].tolist():
        reasons.setdefault(int(rows[row]), clock.reason(int(ts[row])))
    outside = np.nonzero((late | early) & ~old)[0]
    return dict(zip(rows[outside].tolist(), ts[outside].tolist(), strict=True))


def _with_dead_letters(parsed: ParsedEvents, texts: Callable[[list[int]], list[str]]) -> ParsedEvents:
    """Add the first rejected events to `parsed.dead_letters`. `texts` returns the original texts at given indices."""
    indices = sorted(parsed.rejected)[:REASONS_MAX]
    for index, text in zip(indices, texts(indices) if indices else (), strict=True):
        dead_letter = RejectedEvent(
            parsed.reason(index), _type_in(text), parsed.times.get(index), plain(text, EVENT_CHARACTERS_MAX)
        )
        parsed.dead_letters.append(dead_letter)
    if (more := len(parsed.rejected) - len(indices)) > 0:
        parsed.dead_letters.append(
            RejectedEvent(f"{more:,} more events of the same request were rejected", None, None, "")
        )
    return parsed


def _type_in(text: str) -> str | None:
    """Return the type in the JSON text of an event, or None if it has no type."""
    try:
        type = json.loads(text)["type"] if len(text) < LINE_BYTES_MAX else None
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    return plain(type, NAME_CHARACTERS_MAX) if isinstance(type, str) else None


def _object_text(value: object) -> str:
    """Return a value as JSON, or an empty text if it is nested too deeply."""
    try:
        return json.dumps(value)
    except RecursionError:
        return ""


def _row_text(table: pa.Table, row: int) -> str:
    """Return a row of `table` as JSON."""
    cells: dict[str, object] = {}
    for name in table.column_names:
        cell = table[name][row]
        if cell.is_valid:
            value = show(cell) if kind_of(cell.type) is not None else f"<{cell.type}>"[:100]  # a list may be long
            cells[name] = value if isinstance(value, int | float | bool) else str(value)[:EVENT_CHARACTERS_MAX]
    return _object_text(cells)
