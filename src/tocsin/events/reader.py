"""Convert tables, mappings and events to batches, and reject bad rows.

A *batch* is an Arrow table with these columns:

- `type` (int32): the number of the event type, or -1 if no rule needs the type.
- `ts` and `seq` (int64): the time and the sequence number of the event.
- `\\0id:string`: the id that the source gave the event, if the source has ids.
- `name:kind` for each attribute. The kind is part of the name because two types may use a name with different kinds.
"""

from __future__ import annotations

import builtins
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tocsin.errors import EventError, nearest
from tocsin.events.columns import convert, kind_of, one_array
from tocsin.events.dead_letters import describe
from tocsin.events.times import TS_MAX, TS_MIN, in_range, micros, show
from tocsin.events.types import LABEL, Event, Kind, Value

Data: TypeAlias = pa.Table | pa.RecordBatch | Mapping[str, pa.Table] | Iterable[Event]
Array = np.ndarray[Any, Any]

TS_LIMIT = 2**61
UNNEEDED, DEFINED = -1, -2
ARRIVAL = "\0at"
"""The column with the positions of `Event` objects in the input."""
LABEL_COLUMN = f"{LABEL}:{Kind.STRING}"


@dataclass(frozen=True, slots=True)
class Columns:
    """The names of the columns with the type, time, sequence number and id of each event.

    `ts_unit` is the unit of numbers in the column of times: s, ms, us or ns.

    `id` is the column with the ids that the source gave its events. If it is None, the source has no ids, and a column
    called `id` is an attribute. An id is part of the content of an event, so two events may have the same id.
    """

    type: str = "type"
    ts: str = "ts"
    seq: str = "seq"
    id: str | None = None
    ts_unit: str | None = None


@dataclass(slots=True)
class TypeInfo:
    """The event types and kinds of attributes that are known. `exact`, `shared` and `seen` are as in `Catalog`."""

    numbers: Mapping[str, int] = field(default_factory=dict)
    """The number of each type that rules need, by name; `DEFINED` for a type that rules define."""
    exact: Mapping[str, Mapping[str, Kind]] = field(default_factory=dict)
    shared: Mapping[str, Kind] = field(default_factory=dict)
    seen: Mapping[str, Mapping[str, Kind]] = field(default_factory=dict)
    find: Callable[[pa.Array], tuple[Array, set[int]]] | None = None
    """A fast function from a column of types to their numbers, and to the set of numbers that occur."""

    uniform: dict[tuple[str, Kind], bool] = field(default_factory=dict)
    """The cached results of `all_of`, by attribute and kind."""

    def all_of(self, attribute: str, kind: Kind) -> bool:
        """Return whether `attribute` has the kind `kind` in all types that rules need.

        The result is cached, because every batch needs it.
        """
        if (attribute, kind) not in self.uniform:
            owners = [type for type, number in self.numbers.items() if number >= 0]
            self.uniform[attribute, kind] = all(self.kind(type, attribute) == kind for type in owners)
        return self.uniform[attribute, kind]

    def kind(self, type: str, attribute: str) -> Kind | None:
        """Return the kind that `attribute` must have in events of `type`; None if it is not known."""
        if type in self.exact:
            return self.exact[type].get(attribute)
        return self.seen.get(type, {}).get(attribute) or self.shared.get(attribute)


@dataclass(slots=True)
class ReadResult:
    """The result of `read`: a batch, the rejected rows, and the kinds of the attributes.

    A rejected row has a reason, a type, a time and a text. `shared` has the kinds of attributes in a table with a type
    column, and `by_type` has those of tables with one type. `rows` is the number of rows in the input.
    """

    batch: pa.Table
    rejected: list[tuple[str, str | None, int | None, str]]
    shared: dict[str, Kind]
    by_type: dict[str, dict[str, Kind]]
    times: bool
    """Whether the times in the input were timestamps or text, and not numbers."""
    rows: int
    empty: frozenset[str] = frozenset()
    """The names of columns without any value, whose kinds are unknown."""
    complete: bool = True
    """Whether the input has all attributes of its types. `Event` objects may lack attributes of their type."""
    reasons: Mapping[int, str] = field(default_factory=dict)
    """The reason of each rejected row, by row number, if the input is one table."""


def read(data: Data, columns: Columns, type_info: TypeInfo) -> ReadResult:
    """Convert `data` to a batch. Raise an `EventError` if it has no usable form or lacks a column."""
    if isinstance(data, pa.RecordBatch):
        data = pa.Table.from_batches([data])
    if isinstance(data, pa.Table):
        return _read_table(data, None, columns, type_info)
    if isinstance(data, Mapping):
        parts = [_read_table(_as_table(table), type, columns, type_info) for type, table in data.items()]
        result = _concat(parts)
        ts = result.batch["ts"].to_numpy()
        if len(parts) > 1:
            result.batch = result.batch.take(np.argsort(ts, kind="stable"))
        return result
    if isinstance(data, Event):
        data = [data]
    try:
        events = list(data)
    except TypeError:
        events = [data]
    for event in events:
        if not isinstance(event, Event):
            forms = "an Arrow table, a mapping of type to table, or Event objects"
            raise EventError(f"events come as {forms}, not as {type(event).__name__}")
    return _read_events(events, type_info)


def _as_table(data: object) -> pa.Table:
    if isinstance(data, pa.RecordBatch):
        return pa.Table.from_batches([data])
    if not isinstance(data, pa.Table):
        raise EventError(f"a mapping of type to events needs Arrow tables, not {type(data).__name__}")
    return data


def _read_table(table: pa.Table, type: str | None, columns: Columns, type_info: TypeInfo) -> ReadResult:
    names = table.column_names
    id = columns.id
    required = [(columns.ts, "ts"), *([] if type else [(columns.type, "type")])]
    if id is not None:
        required.append((id, "id"))
    elif LABEL in names:
        id = LABEL  # the ids of single events and of files in event notation
    for name, what in required:
        if name not in names:
            hint = nearest(name, names) or ""
            raise EventError(
                f"the events have no column '{name}'; pass {what}=… if it has another name. {hint}".rstrip()
            )
    repeated = {name for name in names if names.count(name) > 1}
    if repeated:
        raise EventError(f"the events have two columns '{min(repeated)}'")
    size = table.num_rows
    reasons: dict[int, str] = {}
    times, ts = _times(table[columns.ts], columns.ts_unit, reasons)
    if type is None:
        kinds_by_number, numbers = _types(table[columns.type], type_info, reasons)
    else:
        number = type_info.numbers.get(type, UNNEEDED)
        kinds_by_number, numbers = {number: type}, np.full(size, number, np.int32)
        if number == DEFINED:
            reasons.update((row, f"{type} is defined by a rule") for row in range(size))
    result: dict[str, Any] = {"type": pa.array(numbers), "ts": pa.array(ts), "seq": pa.array(_seq(table, columns))}
    header = {columns.ts, columns.seq, *(() if type else (columns.type,))}
    if id is not None and id in names:
        result[LABEL_COLUMN] = _text(table[id])
        header.add(id)
    shared: dict[str, Kind] = {}
    for name in names:
        kind = kind_of(table.schema.field(name).type)
        if name in header or kind is None or not name:
            continue
        _convert(name, kind, table[name], type, kinds_by_number, numbers, type_info, result, shared, reasons)
    batch = pa.table(result)
    rejected = _rejected_rows(batch, table, columns, type, reasons)
    if reasons:
        keep = np.ones(size, bool)
        keep[list(reasons)] = False
        batch = batch.filter(pa.array(keep))
    empty = frozenset(name for name in names if name not in header and pa.types.is_null(table.schema.field(name).type))
    by_type = {type: shared} if type else {}
    return ReadResult(batch, rejected, {} if type else shared, by_type, times, size, empty, reasons=reasons)


def _convert(
    name: str,
    kind: Kind,
    column: pa.ChunkedArray,
    type: str | None,
    types: Mapping[int, str],
    numbers: Array,
    type_info: TypeInfo,
    result: dict[str, Any],
    shared: dict[str, Kind],
    reasons: dict[int, str],
) -> None:
    """Convert the column of an attribute to each kind that a type needs, and add the converted columns to `result`.

    Add the rows that cannot be converted to `reasons`, and the kind of the attribute to `shared`.
    """
    shared[name] = type_info.kind(type, name) or kind if type else type_info.shared.get(name, kind)
    wanted: dict[Kind, list[int]] = defaultdict(list)
    if type_info.all_of(name, shared[name]):
        wanted[shared[name]] = [*types]
    else:
        for number, owner in types.items():
            target = type_info.kind(owner, name)
            if target is not None or owner not in type_info.exact:
                wanted[target or kind].append(number)
    wanted.setdefault(shared[name], [])
    elsewhere = {number for target, owners in wanted.items() for number in owners if target != shared[name]}
    for target, owners in wanted.items():
        array, failed = convert(column, target)
        for row in failed:
            if numbers[row] in owners and numbers[row] >= 0:
                reasons.setdefault(row, f"{name} should be a {target}, it is {show(column[row])!r}")
        if elsewhere:  # each value is in one column only, or an event's identity would depend on its neighbours
            others = np.isin(numbers, [*elsewhere]) if target == shared[name] else ~np.isin(numbers, owners)
            array = pc.if_else(pa.array(others), pa.scalar(None, array.type), array)
        result[f"{name}:{target}"] = array


def _times(column: pa.ChunkedArray, unit: str | None, reasons: dict[int, str]) -> tuple[bool, Array]:
    """Return whether a column of times holds timestamps or text, and the times in microseconds.

    Add rows without a valid time to `reasons`.
    """
    if pa.types.is_null(column.type):
        column = column.cast(pa.int64())
    array = one_array(column)
    ts, failed = micros(array, unit)
    for row in failed:
        reasons[row] = f"ts is not a time: {show(array[row])!r}"
    for row in _where_null(ts):
        reasons.setdefault(row, "ts is null")
    ts_us = (ts.fill_null(0) if ts.null_count else ts).to_numpy(zero_copy_only=False)
    if len(ts_us) and not TS_MIN <= int(ts_us.min()) <= int(ts_us.max()) <= TS_MAX:
        for row in np.nonzero(~in_range(ts_us))[0].tolist():
            reasons.setdefault(row, "ts is out of range")
    return kind_of(column.type) in (Kind.TIMESTAMP, Kind.STRING), ts_us


def times_us(column: pa.ChunkedArray, unit: str | None) -> Array:
    """Return the valid times of a column, in microseconds. `unit` is the unit of numbers in the column."""
    reasons: dict[int, str] = {}
    _, ts_us = _times(column, unit, reasons)
    return np.delete(ts_us, list(reasons)) if reasons else ts_us


def _types(column: pa.ChunkedArray, type_info: TypeInfo, reasons: dict[int, str]) -> tuple[dict[int, str], Array]:
    """Return the names of the needed types that occur in a column, by number, and the type number of each row.

    Add rows without a type, or with a type that a rule defines, to `reasons`.
    """
    if kind_of(column.type) != Kind.STRING:
        if pa.types.is_null(column.type):
            column = column.cast(pa.string())
        else:
            raise EventError(f"the type column must hold names of event types, it is {column.type}")
    array = one_array(column)
    if type_info.find is not None and not array.null_count:
        numbers, present = type_info.find(array)
        if DEFINED not in present:
            return {number: name for name, number in type_info.numbers.items() if number in present}, numbers
    coded = array if pa.types.is_dictionary(array.type) else array.dictionary_encode()
    names = coded.dictionary.to_pylist()
    by_code = np.array([type_info.numbers.get(name, UNNEEDED) for name in names] or [UNNEEDED], np.int32)
    null = _where_null(coded)
    indices = coded.indices.fill_null(0) if coded.indices.null_count else coded.indices
    numbers = by_code[indices.to_numpy(zero_copy_only=False)]
    for row in null:
        reasons.setdefault(row, "type is null")
    if DEFINED in by_code:
        for row in np.nonzero(numbers == DEFINED)[0].tolist():
            reasons.setdefault(row, f"{array[row].as_py()} is defined by a rule")
    return {int(number): name for name, number in zip(names, by_code, strict=False) if number >= 0}, numbers


def _seq(table: pa.Table, columns: Columns) -> Array:
    if columns.seq not in table.column_names:
        return np.zeros(table.num_rows, np.int64)
    column = table[columns.seq]
    kind = kind_of(column.type)
    if kind is None or not kind.integral:
        if column.null_count == len(column):
            return np.zeros(table.num_rows, np.int64)
        raise EventError(f"seq must hold whole numbers, it is {column.type}")
    array, _ = convert(column, Kind.LONG)
    return np.asarray(array.fill_null(0))


def _text(column: pa.ChunkedArray) -> pa.Array:
    if kind_of(column.type) not in (Kind.STRING, Kind.INT, Kind.LONG):
        raise EventError(f"ids must be strings or whole numbers, they are {column.type}")
    return convert(column, Kind.STRING)[0]


def _where_null(array: pa.Array) -> list[int]:
    if not array.null_count:
        return []
    return np.nonzero(array.is_null().to_numpy(zero_copy_only=False))[0].tolist()


def _rejected_rows(
    batch: pa.Table,
    table: pa.Table,
    columns: Columns,
    type: str | None,
    reasons: Mapping[int, str],
) -> list[tuple[str, str | None, int | None, str]]:
    rejected: list[tuple[str, str | None, int | None, str]] = []
    for row, reason in sorted(reasons.items()):
        original = {name: show(table[name][row]) for name in table.column_names}
        name = type or original.get(columns.type)
        ts = None if reason.startswith("ts ") else int(batch["ts"][row].as_py())
        attributes = {
            key: _value(value)
            for key, value in original.items()
            if key not in (columns.type, columns.ts, columns.seq, columns.id, ARRIVAL, LABEL) and value is not None
        }
        rejected.append((reason, name, ts, describe(name, ts, attributes)))
    return rejected


def _value(value: object) -> Value:
    return (
        value
        if isinstance(value, str | int | bool)
        else (value if isinstance(value, float) and value == value and abs(value) != float("inf") else str(value))
    )


def _read_events(events: Sequence[Event], type_info: TypeInfo) -> ReadResult:
    """Convert `Event` objects to a batch, in the order of the input. Each type is read as a table of its own."""
    by_type: dict[str, list[int]] = defaultdict(list)
    for position, event in enumerate(events):
        by_type[event.type].append(position)
    if not events:
        empty = pa.table({"type": pa.array([], pa.string()), "ts": pa.array([], pa.int64())})
        nothing = _read_table(empty, None, Columns(), type_info)
        nothing.complete = False
        return nothing
    parts, order = [], []
    for type, positions in by_type.items():
        events_of_type = [events[position] for position in positions]
        table: dict[str, pa.Array] = {
            "\0ts": _whole_numbers(type, "ts", [event.ts for event in events_of_type]),
            "\0seq": _whole_numbers(type, "seq", [event.seq for event in events_of_type]),
            ARRIVAL: pa.array(positions, pa.int64()),
        }
        ids = [event.id for event in events_of_type]
        if any(id is not None for id in ids):
            table[LABEL] = pa.array(ids, pa.string())
        for name in sorted({name for event in events_of_type for name in event.attributes}):
            table[name] = _event_column(type, name, [event.attributes.get(name) for event in events_of_type])
        names = Columns(ts="\0ts", seq="\0seq", ts_unit="us")
        parts.append(_read_table(pa.table(table), type, names, type_info))
    result = _concat(parts)
    order = result.batch[f"{ARRIVAL}:long"].to_numpy()
    result.batch = result.batch.drop_columns([f"{ARRIVAL}:long"]).take(np.argsort(order, kind="stable"))
    for kinds in result.by_type.values():
        kinds.pop(ARRIVAL, None)
    result.complete = False
    return result


def _whole_numbers(type: str, name: str, values: list[int]) -> pa.Array:
    for value in values:
        if not isinstance(value, int) or isinstance(value, bool) or abs(value) >= 2**63:
            raise EventError(f"{name} of a {type} is {value!r}; it must be a 64-bit whole number")
    return pa.array(values, pa.int64())


def _event_column(type: str, name: str, values: list[Value]) -> pa.Array:
    """Return the values of an attribute as a column. If some values are doubles, integers become doubles."""
    kinds: set[object] = {builtins.type(value) for value in values if value is not None}
    targets: dict[object, pa.DataType] = {bool: pa.bool_(), int: pa.int64(), float: pa.float64(), str: pa.string()}
    if kinds == {int, float}:
        kinds, values = {float}, [None if value is None else float(value) for value in values]
    invalid = [value for value in values if value is not None and builtins.type(value) not in targets]
    if invalid:
        raise EventError(f"{type}.{name} cannot hold {invalid[0]!r}: an attribute is a string, a number or a boolean")
    if len(kinds) > 1:
        several = ", ".join(sorted(str(targets[kind]) for kind in kinds))
        raise EventError(f"{type}.{name} is of several kinds: {several}")
    try:
        return pa.array(values, targets[kinds.pop()] if kinds else pa.null())
    except OverflowError as error:
        raise EventError(f"{type}.{name} holds a whole number of more than 64 bits") from error


def _concat(parts: Sequence[ReadResult]) -> ReadResult:
    if not parts:
        raise EventError("an empty mapping has no events")
    by_type: dict[str, dict[str, Kind]] = {}
    for part in parts:
        by_type.update(part.by_type)
    batch = pa.concat_tables([part.batch for part in parts], promote_options="default").combine_chunks()
    rejected = [letter for part in parts for letter in part.rejected]
    empty = frozenset[str]().union(*(part.empty for part in parts))
    times, rows = any(part.times for part in parts), sum(part.rows for part in parts)
    return ReadResult(batch, rejected, {}, by_type, times, rows, empty)
