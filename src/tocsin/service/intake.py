"""What of a request's body are events, and why not the rest? JSON, NDJSON and Arrow become one batch.

A batch is as `events.batches` has it, with the types by number in a list of names. What kind an attribute of a type is,
is decided by the first event that has it, or by a declaration; later ones are converted to that, or rejected. Text does
not tell whole numbers from others: undeclared numbers of JSON are doubles, unless some rule cannot use them so.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tocsin.errors import EventError, RuleError
from tocsin.events.arrow import concat, kind_of, whole
from tocsin.events.batches import DEFINED, TS_LIMIT, Columns, Known, read
from tocsin.events.times import micros
from tocsin.events.types import Kind
from tocsin.service.bodies import (
    EVENTS_MAX,
    HEADER,
    NAME_CHARACTERS_MAX,
    Arrays,
    Object,
    arrow_table,
    columns_of,
    fast_lines,
    objects,
)
from tocsin.service.bodies import lines as lines_of

JSON, NDJSON, ARROW_STREAM = "application/json", "application/x-ndjson", "application/vnd.apache.arrow.stream"
FORMATS = (JSON, NDJSON, ARROW_STREAM)

TYPES_MAX = 10_000
ATTRIBUTES_MAX = 1_000
REASONS_MAX = 1_000
"""How many rejected events are told one by one; the rest is counted."""

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
            merged = dict(self.kinds)
            for type, named in news.items():
                merged[type] = {**named, **merged.get(type, {})}
                if len(merged[type]) > ATTRIBUTES_MAX:
                    raise EventError(f"{type} has more than {ATTRIBUTES_MAX} attributes")
            if len(merged) > TYPES_MAX:
                raise EventError(f"there are more than {TYPES_MAX} types of events")
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

    def read(self, body: bytes, format: str, *, now_us: int, bounds: Bounds, ts_unit: str | None = None) -> Taken:
        """The events of a body. An `EventError` says that it is no such body at all."""
        columns = Columns(ts_unit=ts_unit)
        if format == ARROW_STREAM:
            return self._table(arrow_table(body), columns, now_us, bounds, text=False)
        if format == NDJSON:
            table = fast_lines(body)
            if table is not None:
                try:
                    return self._table(table, columns, now_us, bounds, text=True)
                except EventError:
                    pass  # object by object it is seen which of them are to blame
            rows, rejected = lines_of(body)
        elif format == JSON:
            rows, rejected = objects(body)
        else:
            raise EventError(f"events come as {', '.join(FORMATS)}, not as '{format}'")
        return self._rows(rows, rejected, columns, now_us, bounds)

    def table(self, table: pa.Table, *, now_us: int, bounds: Bounds) -> Taken:
        """The events of a table."""
        return self._table(table, Columns(), now_us, bounds, text=False)

    # ---- a table

    def _table(self, table: pa.Table, columns: Columns, now_us: int, bounds: Bounds, *, text: bool) -> Taken:
        if table.num_rows > EVENTS_MAX:
            raise EventError(f"one request has at most {EVENTS_MAX:,} events, this has {table.num_rows:,}")
        table = _timed(table, now_us, columns)
        for name in table.column_names:
            if name not in HEADER and kind_of(table.schema.field(name).type) is None:
                table = table.drop_columns([name])
        types, reasons = _type_names(table)
        defined = set(self._defined())
        numbers = {name: DEFINED if name in defined else number for number, name in enumerate(types)}
        while True:
            kinds = self.registry.kinds
            news, alternatives = self._news(table, types, kinds, text=text)
            if news and (refused := self._learned(news, alternatives)) is not None:
                if refused.type is None:
                    raise EventError(refused.reason)
                # The other types are not to suffer for it.
                types_column = table["type"].combine_chunks().cast(pa.string())
                bad = np.nonzero(np.asarray(pc.fill_null(pc.equal(types_column, refused.type), False)))[0]
                reasons |= dict.fromkeys(bad.tolist(), refused.reason)
                types = tuple(name for name in types if name != refused.type)
                continue
            break
        seen = read(table, columns, Known(numbers, {}, {}, self.registry.kinds))
        reasons = {**seen.reasons, **reasons}
        kept = np.delete(np.arange(table.num_rows), list(seen.reasons)) if seen.reasons else np.arange(table.num_rows)
        batch = seen.batch
        ts = batch["ts"].to_numpy()
        _check_times(ts, kept, bounds, reasons)
        for row in np.nonzero(batch["type"].to_numpy() < 0)[0].tolist():
            reasons.setdefault(int(kept[row]), "type is no name")
        if len(reasons) > len(seen.reasons):
            batch = batch.filter(pa.array(~np.isin(kept, list(reasons))))
        return Taken(batch, tuple(numbers), reasons, news)

    def _news(
        self, table: pa.Table, types: Sequence[str], kinds: Kinds, *, text: bool
    ) -> tuple[dict[str, dict[str, Kind]], dict[tuple[str, str], Kind]]:
        """The kinds that the table shows first, and what numbers could be instead."""
        news: dict[str, dict[str, Kind]] = {}
        alternatives: dict[tuple[str, str], Kind] = {}
        owner = None
        for name in table.column_names:
            unknown = [type for type in types if name not in HEADER and name not in kinds.get(type, {})]
            if not unknown:
                continue
            if len(name) > NAME_CHARACTERS_MAX:
                raise EventError(f"'{name[:20]}…': a name has at most {NAME_CHARACTERS_MAX} characters")
            column = table[name]
            kind = kind_of(column.type)
            assert kind is not None
            if owner is None:
                owner = table["type"].cast(pa.string())
            there = set(owner.filter(column.is_valid()).unique().to_pylist()) if column.null_count else set(types)
            for type in unknown:
                if type not in there:
                    continue
                if text and kind is Kind.LONG:
                    alternatives[type, name] = kind
                news.setdefault(type, {})[name] = Kind.DOUBLE if text and kind is Kind.LONG else kind
        return news, alternatives

    def _learned(
        self, news: dict[str, dict[str, Kind]], alternatives: Mapping[tuple[str, str], Kind]
    ) -> Refused | None:
        """Notes the news, if rules can live with it; else what they cannot use."""
        try:
            self.registry.learn(news, self._check)
            return None
        except (RuleError, EventError) as error:
            if len(news) == 1 and not alternatives:
                (type,) = news
                return Refused(type, error.message)
        for type, named in news.items():
            refused = None
            for changed in ({}, {name: kind for (owner, name), kind in alternatives.items() if owner == type}):
                if refused is not None and not changed:
                    break
                try:
                    self.registry.learn({type: {**named, **changed}}, self._check)
                except (RuleError, EventError) as error:
                    refused = refused or Refused(type, error.message)
                else:
                    named.update(changed)
                    refused = None
                    break
            if refused is not None:
                return refused
        return None

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
            else:
                by_type.setdefault(type, []).append((place, cells))
        batches: list[pa.Table] = []
        places: list[Arrays] = []
        names: list[str] = []
        news: dict[str, dict[str, Kind]] = {}
        for type, mine in by_type.items():
            table, mine_places = columns_of(mine, self.registry.kinds.get(type, {}), rejected, columns.ts_unit)
            if not len(mine_places):
                continue
            try:
                taken = self._table(table, columns, now_us, bounds, text=True)
            except EventError as error:
                rejected |= dict.fromkeys(mine_places.tolist(), error.message)
                continue
            rejected |= {int(mine_places[row]): reason for row, reason in taken.rejected.items()}
            news |= taken.news
            kept = np.delete(mine_places, list(taken.rejected))
            if not len(kept):
                continue
            batches.append(taken.batch.set_column(0, "type", pa.array(np.full(len(kept), len(names), np.int32))))
            places.append(kept)
            names.append(type)
        if not batches:
            return Taken(_EMPTY, (), rejected, news)
        batch = concat(batches).take(np.argsort(np.concatenate(places), kind="stable"))
        return Taken(batch, tuple(names), rejected, news)


@dataclass(frozen=True, slots=True)
class Refused:
    """Kinds that some rule cannot use."""

    type: str | None
    reason: str


_EMPTY = pa.table({"type": pa.array([], pa.int32()), "ts": pa.array([], pa.int64()), "seq": pa.array([], pa.int64())})


def _timed(table: pa.Table, now_us: int, columns: Columns) -> pa.Table:
    """The table with the present moment where no time is given."""
    if "ts" not in table.column_names or pa.types.is_null(table.schema.field("ts").type):
        if "ts" in table.column_names:
            table = table.drop_columns(["ts"])
        now = pa.repeat(pa.scalar(now_us, pa.int64()), table.num_rows).cast(pa.timestamp("us", "UTC"))
        return table.append_column("ts", now)
    column = table["ts"]
    if column.null_count and pa.types.is_timestamp(column.type):
        filled = pc.fill_null(micros(whole(column))[0], now_us).cast(pa.timestamp("us", "UTC"))
        return table.set_column(table.column_names.index("ts"), "ts", filled)
    if pa.types.is_integer(column.type) and columns.ts_unit in (None, "us") and column.null_count:
        return table.set_column(table.column_names.index("ts"), "ts", pc.fill_null(column.cast(pa.int64()), now_us))
    return table


def _type_names(table: pa.Table) -> tuple[tuple[str, ...], dict[int, str]]:
    """The names of types in the order in which they occur, and the rows whose type is no name."""
    if "type" not in table.column_names:
        raise EventError("the events have no 'type'")
    column = table["type"]
    if kind_of(column.type) is not Kind.STRING:
        raise EventError(f"'type' must hold names of event types, it is {column.type}")
    names = [name for name in column.unique().cast(pa.string()).to_pylist() if name is not None]
    odd = [name for name in names if len(name) > NAME_CHARACTERS_MAX or not _TYPE.fullmatch(name)]
    reasons: dict[int, str] = {}
    if odd:
        rows = np.asarray(pc.fill_null(pc.is_in(column.cast(pa.string()), pa.array(odd)), False))
        said = "is no name of a type: that is letters, digits and _"
        texts = column.cast(pa.string())
        reasons = {row: f"{texts[row].as_py()[:50]!r} {said}" for row in np.nonzero(rows)[0].tolist()}
        names = [name for name in names if name not in set(odd)]
    return tuple(names), reasons


def _check_times(ts: Arrays, rows: Arrays, bounds: Bounds, reasons: dict[int, str]) -> None:
    if not len(ts):
        return
    if int(ts.min()) < bounds.late_us:
        for row in np.nonzero(ts < bounds.late_us)[0].tolist():
            reasons.setdefault(int(rows[row]), f"late: time has reached {_iso(bounds.late_us)}")
    if int(ts.max()) > bounds.early_us:
        for row in np.nonzero(ts > bounds.early_us)[0].tolist():
            reasons.setdefault(int(rows[row]), f"too early: times are accepted up to {_iso(bounds.early_us)}")


def _iso(ts: int) -> str:
    try:
        return str(pa.scalar(ts, pa.timestamp("us", "UTC")).as_py().isoformat())
    except (ValueError, OverflowError):
        return str(max(-TS_LIMIT, ts))
