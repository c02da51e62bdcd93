"""Convert Arrow columns to the kinds of attributes, and combine columns and batches."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from tocsin.events.times import in_range, micros
from tocsin.events.types import Kind

ARROW: dict[Kind, pa.DataType] = {
    Kind.STRING: pa.string(),
    Kind.INT: pa.int32(),
    Kind.LONG: pa.int64(),
    Kind.DOUBLE: pa.float64(),
    Kind.BOOL: pa.bool_(),
    Kind.TIMESTAMP: pa.timestamp("us", tz="UTC"),
}


WHOLE_DIGITS = 20
"""The maximum number of digits of a decimal that counts as an integer: that of Spark's unsigned 64-bit integers."""


def kind_of(type: pa.DataType) -> Kind | None:
    """Return the kind of attribute that an Arrow column of `type` holds; None if the column cannot be an attribute.

    >>> kind_of(pa.int16()), kind_of(pa.list_(pa.int16()))
    (<Kind.INT: 'int'>, None)
    """
    if pa.types.is_dictionary(type):
        type = type.value_type
    if pa.types.is_string(type) or pa.types.is_large_string(type) or pa.types.is_string_view(type):
        return Kind.STRING
    if pa.types.is_boolean(type):
        return Kind.BOOL
    if pa.types.is_integer(type):
        return Kind.INT if type.bit_width < 32 or type == pa.int32() else Kind.LONG
    if pa.types.is_decimal(type) and type.scale == 0 and type.precision <= WHOLE_DIGITS:
        return Kind.LONG
    if pa.types.is_floating(type) or pa.types.is_decimal(type):
        return Kind.DOUBLE
    if pa.types.is_timestamp(type) or pa.types.is_date(type):
        return Kind.TIMESTAMP
    return None


def convert(column: pa.ChunkedArray, kind: Kind) -> tuple[pa.Array, list[int]]:
    """Convert `column` to `kind`. Return the new column, and the rows whose values cannot be converted.

    The new column is null in these rows. Times outside the years 1 to 9999 become null, too.
    """
    array = one_array(column)
    target = ARROW[kind]
    if kind == Kind.TIMESTAMP and _can_be_time(array.type):
        ts_us, wrong = micros(array)
        return _in_range(ts_us).cast(target), wrong
    if pa.types.is_timestamp(array.type):  # normalize unit and zone
        array = _in_range(micros(array)[0])
        array = array if kind == Kind.LONG else array.cast(ARROW[Kind.TIMESTAMP])
    if array.type == target or (kind == Kind.STRING and pa.types.is_dictionary(array.type)):
        return (array, []) if not pa.types.is_dictionary(array.type) else (array.cast(pa.string()), [])
    try:
        return _cast(array, target), []
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        pass
    failed: list[int] = []
    arrays: list[pa.Array] = []
    for row in range(len(array)):
        try:
            arrays.append(_cast(array.slice(row, 1), target))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            failed.append(row)
            arrays.append(pa.nulls(1, target))
    return pa.concat_arrays(arrays) if arrays else pa.nulls(0, target), failed


def common_type(types: Sequence[pa.DataType]) -> pa.DataType | None:
    """Return an Arrow type that can hold the values of all `types`, for `as_type`; None if `types` differ in kind.

    >>> common_type([pa.int32(), pa.null(), pa.float32()]), common_type([pa.timestamp("ns"), pa.date32()])
    (DataType(double), TimestampType(timestamp[us, tz=UTC]))
    >>> common_type([pa.int64(), pa.string()])
    """
    distinct = [type for type in dict.fromkeys(types) if not pa.types.is_null(type)]
    if len(distinct) < 2:
        return distinct[0] if distinct else pa.null()
    distinct = list(dict.fromkeys(type.value_type if pa.types.is_dictionary(type) else type for type in distinct))
    kinds = {kind_of(type) for type in distinct}
    if kinds == {Kind.STRING}:
        return pa.string()
    if kinds == {Kind.TIMESTAMP}:
        return ARROW[Kind.TIMESTAMP]
    if len(distinct) == 1:
        return distinct[0]
    if kinds == {Kind.DOUBLE} or (Kind.DOUBLE in kinds and kinds <= {Kind.INT, Kind.LONG, Kind.DOUBLE}):
        return pa.float64()
    if kinds <= {Kind.INT, Kind.LONG}:
        wide = any(pa.types.is_uint64(type) or pa.types.is_decimal(type) for type in distinct)
        return pa.decimal128(WHOLE_DIGITS) if wide else pa.int64()
    return None


def as_type(array: pa.Array, type: pa.DataType) -> pa.Array:
    """Convert a column to `type`, which comes from `common_type`. Numbers are rounded to the nearest double."""
    if array.type == type:
        return array
    if pa.types.is_timestamp(type):
        return micros(array)[0].cast(type)
    return array.cast(type, safe=not pa.types.is_floating(type))


def one_array(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    """Return a column as one array, without a copy if the column has only one chunk."""
    if not isinstance(column, pa.ChunkedArray):
        return column
    if column.num_chunks == 1:
        return column.chunk(0)
    array = column.combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], column.type)
    return array


def _can_be_time(type: pa.DataType) -> bool:
    return kind_of(type) in (Kind.TIMESTAMP, Kind.STRING, Kind.INT, Kind.LONG)


def _in_range(ts_us: pa.Array) -> pa.Array:
    """Replace times outside the years 1 to 9999 by null."""
    outside = ~in_range(ts_us.fill_null(0).to_numpy(zero_copy_only=False))
    return pc.if_else(pa.array(outside), None, ts_us) if outside.any() else ts_us


def _cast(array: pa.Array, target: pa.DataType) -> pa.Array:
    if pa.types.is_timestamp(target):
        raise pa.ArrowInvalid("not a time")
    return array.cast(target)


def concat(batches: Sequence[pa.Table]) -> pa.Table:
    """Concatenate batches. If a batch lacks a column of another batch, its rows are null in this column."""
    if len(batches) == 1:
        return batches[0]
    return pa.concat_tables(batches, promote_options="default").combine_chunks()
