"""Convert columns of times to int64 microseconds since the epoch in UTC, with the same result on every host.

- A time without a zone is in UTC. A date is its midnight. Nanoseconds are rounded down to microseconds.
- An integer is in microseconds if no unit is given. A number with a fraction needs a unit, and is rounded to the
  nearest microsecond.
- Text is a date or a time of ISO 8601. If a unit is given, it may also be a number.

A host with a clock (`HostClock`) rejects events that are too far ahead of this clock. The time of a stream is the time
of its newest event, so a single sender with a fast clock would make the events of all other senders late. Times in the
past are not limited, because old data can be replayed.
"""

from __future__ import annotations

import re
from decimal import ROUND_HALF_EVEN, Decimal, localcontext
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tocsin.errors import EventError

AHEAD_US = 60_000_000
"""How far ahead of the clock an event may be by default, in microseconds."""


class HostClock(NamedTuple):
    """The time of a host's clock, and how far ahead of it an event may be, in microseconds."""

    now_us: int
    ahead_us: int = AHEAD_US

    @property
    def latest_us(self) -> int:
        """The latest time that an event may have."""
        return self.now_us + self.ahead_us

    def reason(self, ts: int) -> str:
        """Return the reason why an event at the time `ts` is rejected, as text.

        >>> HostClock(0).reason(5_400_500_000)
        'ts is 90 min ahead of the clock; at most 1 min is accepted'
        """
        return f"ts is {_length(ts - self.now_us)} ahead of the clock; at most {_length(self.ahead_us)} is accepted"


_UNITS = (("d", 86_400_000_000), ("h", 3_600_000_000), ("min", 60_000_000), ("s", 1_000_000), ("ms", 1_000), ("us", 1))


def _length(us: int) -> str:
    """Format `us` microseconds in the largest unit for which the number is exactly one, or at least two."""
    unit, worth = next((one for one in _UNITS if us >= 2 * one[1] or us == one[1]), _UNITS[-1])
    return f"{us // worth} {unit}"


Array = np.ndarray[Any, Any]

TS_MIN, TS_MAX = -62_135_596_800_000_000, 253_402_300_799_999_999
"""The first microsecond of the year 1, and the last microsecond of the year 9999."""

TS_UNITS = {"s": (1_000_000, 1), "ms": (1_000, 1), "us": (1, 1), "ns": (1, 1_000)}
"""The multiplier and the divisor that convert a number of each unit to microseconds."""

TEXT = (
    r"(?P<year>\d{4})-(?P<month>\d\d)-(?P<day>\d\d)"
    r"(?:[T ](?P<hour>\d\d)(?::(?P<minute>\d\d)(?::(?P<second>\d\d)(?:[.,](?P<fraction>\d{1,9}))?)?)?"
    r"(?P<zone>Z|[-+]\d\d(?::?\d\d)?)?)?"
)
"""The pattern of a time as text. Python, Arrow and Java interpret it in the same way."""

NUMBER = r"[-+]?\d{1,30}(?:\.\d{0,30})?"
"""The pattern of a number as text."""

_FAR = 2**62
_DAY_US = 86_400_000_000
_NAMED = f"^[ \\t\\r\\n]*{TEXT}[ \\t\\r\\n]*$"
_TEXT, _NUMBER = re.compile(_NAMED, re.ASCII), re.compile(NUMBER, re.ASCII)


def check_unit(unit: str | None) -> None:
    """Raise if `unit` is neither None nor one of `TS_UNITS`."""
    if unit is not None and unit not in TS_UNITS:
        raise EventError(f"ts_unit is one of {', '.join(TS_UNITS)}, not '{unit}'")


def unit_needed(type: object) -> EventError:
    """Return the error for a column of times whose Arrow `type` has fractions, if no unit is given."""
    return EventError(f"ts is {type}: say what it counts, with ts_unit='s', 'ms', 'us' or 'ns'")


def is_time_text(text: str) -> bool:
    """Return whether `text` has the form of a date or a time of ISO 8601.

    >>> is_time_text("2026-07-01"), is_time_text("2026-07-01 12:00:00.123456789+02:00"), is_time_text("1700000000")
    (True, True, False)
    """
    return _TEXT.fullmatch(text) is not None


def micros(array: pa.Array, unit: str | None = None) -> tuple[pa.Array, list[int]]:
    """Convert a column of times to int64 microseconds. Return the new column, and the rows that hold no time.

    The new column is null in these rows, and where the old column is null. A time far outside the range from `TS_MIN`
    to `TS_MAX` becomes another number outside this range.
    """
    check_unit(unit)
    type = array.type
    if pa.types.is_dictionary(type):
        array = array.cast(type.value_type)
        type = array.type
    if pa.types.is_timestamp(type):
        return _scaled(array.cast(pa.int64()), type.unit), []
    if pa.types.is_date32(type):
        return _nulled(_multiplied(_int64(array.cast(pa.int32())), _DAY_US), array), []
    if pa.types.is_date64(type):
        return _scaled(array.cast(pa.int64()), "ms"), []
    if pa.types.is_uint64(type):
        array = pc.min_element_wise(array, pa.scalar(2**63 - 1, type), skip_nulls=False).cast(pa.int64())
        return _scaled(array, unit or "us"), []
    if pa.types.is_integer(type):
        return _scaled(array.cast(pa.int64()), unit or "us"), []
    if pa.types.is_decimal(type) and (unit is not None or type.scale == 0):
        return _of_decimals(array, unit or "us"), []
    if pa.types.is_floating(type) and unit is not None:
        return _of_floats(array, unit)
    if pa.types.is_decimal(type) or pa.types.is_floating(type):
        raise unit_needed(type)
    if pa.types.is_string(type) or pa.types.is_large_string(type) or pa.types.is_string_view(type):
        return _of_text(array.cast(pa.string()), unit)
    raise EventError(f"ts must hold times or numbers, it is {type}")


def in_range(times: Array) -> Array:
    """Return for each of `times` (µs) whether it is in the years 1 to 9999."""
    within: Array = (times >= TS_MIN) & (times <= TS_MAX)
    return within


def show(value: pa.Scalar[Any]) -> Any:
    """Return a value of a column as a Python object. If Python's types cannot hold a time, return it as text."""
    try:
        return value.as_py()
    except (ValueError, OverflowError, KeyError):  # KeyError: a zone that this machine does not know
        type: Any = value.type
        if pa.types.is_timestamp(type):
            return f"{value.cast(pa.int64()).as_py()} {type.unit}"
        return f"{value.cast(pa.int32()).as_py()} d" if pa.types.is_date32(type) else f"<{type}>"


def _int64(array: pa.Array) -> Array:
    filled = array.fill_null(0) if array.null_count else array
    ts_us: Array = filled.to_numpy(zero_copy_only=False).astype(np.int64, copy=False)
    return ts_us


def _nulled(ts_us: Array, array: pa.Array) -> pa.Array:
    """Return `ts_us` as an Arrow array that is null where `array` is null."""
    mask = array.is_null().to_numpy(zero_copy_only=False) if array.null_count else None
    return pa.array(ts_us, pa.int64(), mask=mask)


def _multiplied(ts_us: Array, factor: int) -> Array:
    multiplied: Array = np.clip(ts_us, -_FAR // factor, _FAR // factor) * factor
    return multiplied


def _scaled(array: pa.Array, unit: str) -> pa.Array:
    """Convert integers in the unit `unit` to microseconds."""
    if unit == "us":
        return array
    times, by = TS_UNITS[unit]
    return _nulled(_multiplied(_int64(array), times) // by, array)


def _of_floats(array: pa.Array, unit: str) -> tuple[pa.Array, list[int]]:
    doubles = array.cast(pa.float64())
    values = doubles.fill_null(0.0).to_numpy(zero_copy_only=False)
    not_finite = ~np.isfinite(values)
    times, by = TS_UNITS[unit]
    with np.errstate(over="ignore"):  # a value that is too large becomes infinite and is clipped
        scaled = np.where(not_finite, 0.0, values) * float(times) / float(by)
    ts_us = np.rint(np.clip(scaled, -float(_FAR), float(_FAR))).astype(np.int64)
    null = doubles.is_null().to_numpy(zero_copy_only=False)
    return pa.array(ts_us, pa.int64(), mask=null | not_finite), np.nonzero(not_finite)[0].tolist()


def _of_decimals(array: pa.Array, unit: str) -> pa.Array:
    return pa.array([None if value is None else _rounded(value, unit) for value in array.to_pylist()], pa.int64())


def _rounded(value: Decimal, unit: str) -> int:
    with localcontext(prec=100):
        times, by = TS_UNITS[unit]
        exact = value * times / by
        return int(min(max(exact, Decimal(-_FAR)), Decimal(_FAR)).to_integral_value(ROUND_HALF_EVEN))


def _of_text(array: pa.Array, unit: str | None) -> tuple[pa.Array, list[int]]:
    for target in (pa.timestamp("us", "UTC"), pa.timestamp("us")):
        try:  # fast, if Arrow can parse all values
            return array.cast(target).cast(pa.int64()), []
        except pa.ArrowInvalid:
            pass
    ts_us, valid = _of_groups(array)
    null = array.is_null().to_numpy(zero_copy_only=False)
    failed: list[int] = []
    for row in np.nonzero(~valid & ~null)[0].tolist():
        text = array[row].as_py().strip(" \t\r\n")
        if unit is not None and _NUMBER.fullmatch(text):
            ts_us[row], valid[row] = _rounded(Decimal(text), unit), True
        else:
            failed.append(row)
    return pa.array(ts_us, pa.int64(), mask=~valid), failed


def _of_groups(array: pa.Array) -> tuple[Array, Array]:
    """Parse texts to microseconds. Return the numbers, and for each text whether it is a time."""
    found: Any = pc.extract_regex(array, pattern=_NAMED)
    valid = found.is_valid().to_numpy(zero_copy_only=False)

    def group(name: str) -> pa.Array:
        return found.field(name).fill_null("")

    def number(name: str) -> Array:
        digits = group(name)
        return np.asarray(pc.if_else(pc.equal(digits, ""), "0", digits).cast(pa.int64()))

    year, month, day = number("year"), number("month"), number("day")
    hour, minute, second = number("hour"), number("minute"), number("second")
    months = (year - 1970) * 12 + month - 1
    first = months.astype("datetime64[M]").astype("datetime64[D]").astype(np.int64)
    days = (months + 1).astype("datetime64[M]").astype("datetime64[D]").astype(np.int64) - first
    fraction = np.asarray(pc.utf8_slice_codeunits(pc.utf8_rpad(group("fraction"), 6, "0"), 0, 6).cast(pa.int64()))
    zone = group("zone")
    offset = pc.replace_substring_regex(zone, "[-+:Z]", "")
    offset = np.asarray(pc.utf8_rpad(offset, 4, "0").cast(pa.int64()))
    sign = np.where(np.asarray(pc.starts_with(zone, "-")), -1, 1)
    valid &= (month >= 1) & (month <= 12) & (day >= 1) & (day <= days)
    valid &= (hour < 24) & (minute < 60) & (second < 60) & (offset // 100 < 24) & (offset % 100 < 60)
    minutes = (first + day - 1) * 1_440 + hour * 60 + minute - sign * (offset // 100 * 60 + offset % 100)
    return np.where(valid, (minutes * 60 + second) * 1_000_000 + fraction, 0), valid
