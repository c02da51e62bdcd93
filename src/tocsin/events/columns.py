"""Which kind of attribute is an Arrow column, how is it brought into another, or into one piece?"""

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
"""Decimals without a fraction and of at most so many digits are whole numbers: so Spark holds unsigned 64 bits."""


def kind_of(type: pa.DataType) -> Kind | None:
    """The kind of attribute that an Arrow column holds; None for what an attribute cannot be.

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
    """The column as that kind, with the rows that cannot be so (null in the result).

    As a double cannot be infinite, a time cannot be outside the years 1 to 9999: such values are null.
    """
    array = whole(column)
    target = ARROW[kind]
    if kind == Kind.TIMESTAMP and _tells_time(array.type):
        words, wrong = micros(array)
        return _in_range(words).cast(target), wrong
    if pa.types.is_timestamp(array.type):  # one form of it, whatever unit and zone it came with
        array = _in_range(micros(array)[0])
        array = array if kind == Kind.LONG else array.cast(ARROW[Kind.TIMESTAMP])
    if array.type == target or (kind == Kind.STRING and pa.types.is_dictionary(array.type)):
        return (array, []) if not pa.types.is_dictionary(array.type) else (array.cast(pa.string()), [])
    try:
        return _cast(array, target), []
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        pass
    failed: list[int] = []
    pieces: list[pa.Array] = []
    for row in range(len(array)):
        try:
            pieces.append(_cast(array.slice(row, 1), target))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            failed.append(row)
            pieces.append(pa.nulls(1, target))
    return pa.concat_arrays(pieces) if pieces else pa.nulls(0, target), failed


def common_type(types: Sequence[pa.DataType]) -> pa.DataType | None:
    """What holds the values of columns of these types, as `as_type` brings them there; None if they differ in kind.

    >>> common_type([pa.int32(), pa.null(), pa.float32()]), common_type([pa.timestamp("ns"), pa.date32()])
    (DataType(double), TimestampType(timestamp[us, tz=UTC]))
    >>> common_type([pa.int64(), pa.string()])
    """
    held = [type for type in dict.fromkeys(types) if not pa.types.is_null(type)]
    if len(held) < 2:
        return held[0] if held else pa.null()
    held = list(dict.fromkeys(type.value_type if pa.types.is_dictionary(type) else type for type in held))
    kinds = {kind_of(type) for type in held}
    if kinds == {Kind.STRING}:
        return pa.string()
    if kinds == {Kind.TIMESTAMP}:
        return ARROW[Kind.TIMESTAMP]
    if len(held) == 1:
        return held[0]
    if kinds == {Kind.DOUBLE} or (Kind.DOUBLE in kinds and kinds <= {Kind.INT, Kind.LONG, Kind.DOUBLE}):
        return pa.float64()
    if kinds <= {Kind.INT, Kind.LONG}:
        wide = any(pa.types.is_uint64(type) or pa.types.is_decimal(type) for type in held)
        return pa.decimal128(WHOLE_DIGITS) if wide else pa.int64()
    return None


def as_type(array: pa.Array, type: pa.DataType) -> pa.Array:
    """The values of a column as their `common_type` holds them. Doubles are the nearest ones."""
    if array.type == type:
        return array
    if pa.types.is_timestamp(type):
        return micros(array)[0].cast(type)
    return array.cast(type, safe=not pa.types.is_floating(type))


def whole(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    """A column in one piece; not copied if it is that already."""
    if not isinstance(column, pa.ChunkedArray):
        return column
    if column.num_chunks == 1:
        return column.chunk(0)
    array = column.combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], column.type)
    return array


def _tells_time(type: pa.DataType) -> bool:
    return kind_of(type) in (Kind.TIMESTAMP, Kind.STRING, Kind.INT, Kind.LONG)


def _in_range(words: pa.Array) -> pa.Array:
    """Microseconds, null where no time can be."""
    outside = ~in_range(words.fill_null(0).to_numpy(zero_copy_only=False))
    return pc.if_else(pa.array(outside), None, words) if outside.any() else words


def _cast(array: pa.Array, target: pa.DataType) -> pa.Array:
    if pa.types.is_timestamp(target):
        raise pa.ArrowInvalid("not a time")
    return array.cast(target)


def concat(batches: Sequence[pa.Table]) -> pa.Table:
    """Batches one after another; columns that one of them lacks are null there."""
    if len(batches) == 1:
        return batches[0]
    return pa.concat_tables(batches, promote_options="default").combine_chunks()
