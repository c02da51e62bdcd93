"""How does a column become times? One reading for every host: int64 microseconds since the epoch, UTC.

Times without a zone are UTC, dates are midnight, and nanoseconds are floored to microseconds. Whole numbers count
microseconds unless a unit is given; numbers with a fraction need a unit and are rounded to the nearest microsecond.
Text is a date or a time of ISO 8601, or a number if a unit is given. Nothing is guessed.

How far ahead of its host's clock may an event be?

Time in a stream is what the newest event says, so one sender whose clock is fast would make the events of all others
late. A host that has a clock rejects events that are further ahead of it than a bound. Times in the past are not
limited: old data can be replayed.
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
"""How far ahead of the clock an event may be, unless the user says otherwise."""


class Clock(NamedTuple):
    """What a host's clock says, and how far ahead of it an event may be, in microseconds."""

    now_us: int
    ahead_us: int = AHEAD_US

    @property
    def latest_us(self) -> int:
        """The latest time that an event may have."""
        return self.now_us + self.ahead_us

    def reason(self, ts: int) -> str:
        """Why an event of a time is rejected.

        >>> Clock(0).reason(5_400_500_000)
        'ts is 90 min ahead of the clock; at most 1 min is accepted'
        """
        return f"ts is {_length(ts - self.now_us)} ahead of the clock; at most {_length(self.ahead_us)} is accepted"


_UNITS = (("d", 86_400_000_000), ("h", 3_600_000_000), ("min", 60_000_000), ("s", 1_000_000), ("ms", 1_000), ("us", 1))


def _length(us: int) -> str:
    """A length of time in the largest unit of which there are at least two, or exactly one."""
    unit, worth = next((one for one in _UNITS if us >= 2 * one[1] or us == one[1]), _UNITS[-1])
    return f"{us // worth} {unit}"


Array = np.ndarray[Any, Any]

TS_MIN, TS_MAX = -62_135_596_800_000_000, 253_402_300_799_999_999
"""The first microsecond of the year 1, and the last of the year 9999."""

UNITS = {"s": (1_000_000, 1), "ms": (1_000, 1), "us": (1, 1), "ns": (1, 1_000)}
"""By what a count of a unit is multiplied, and then divided, to give microseconds."""

TEXT = (
    r"(?P<year>\d{4})-(?P<month>\d\d)-(?P<day>\d\d)"
    r"(?:[T ](?P<hour>\d\d)(?::(?P<minute>\d\d)(?::(?P<second>\d\d)(?:[.,](?P<fraction>\d{1,9}))?)?)?"
    r"(?P<zone>Z|[-+]\d\d(?::?\d\d)?)?)?"
)
"""A time as text. The pattern means the same to Python, Arrow and Java."""

NUMBER = r"[-+]?\d{1,30}(?:\.\d{0,30})?"
"""A count of a unit as text."""

_FAR = 2**62
_DAY_US = 86_400_000_000
_NAMED = f"^[ \\t\\r\\n]*{TEXT}[ \\t\\r\\n]*$"
_TEXT, _NUMBER = re.compile(_NAMED, re.ASCII), re.compile(NUMBER, re.ASCII)


def check_unit(unit: str | None) -> None:
    """Fails if that is no unit of `ts`."""
    if unit is not None and unit not in UNITS:
        raise EventError(f"ts_unit is one of {', '.join(UNITS)}, not '{unit}'")


def unit_needed(held: object) -> EventError:
    """What to say of a `ts` with fractions if no unit is given."""
    return EventError(f"ts is {held}: say what it counts, with ts_unit='s', 'ms', 'us' or 'ns'")


def is_time_text(text: str) -> bool:
    """Whether a text has the form of a date or a time.

    >>> is_time_text("2026-07-01"), is_time_text("2026-07-01 12:00:00.123456789+02:00"), is_time_text("1700000000")
    (True, True, False)
    """
    return _TEXT.fullmatch(text) is not None


def micros(array: pa.Array, unit: str | None = None) -> tuple[pa.Array, list[int]]:
    """A column as int64 microseconds, null where it is null, and the rows that are not times (null too).

    What is far outside the range from `TS_MIN` to `TS_MAX` is some other number outside it.
    """
    check_unit(unit)
    type = array.type
    if pa.types.is_dictionary(type):
        array = array.cast(type.value_type)
        type = array.type
    if pa.types.is_timestamp(type):
        return _scaled(array.cast(pa.int64()), type.unit), []
    if pa.types.is_date32(type):
        return _nulled(_multiplied(_words(array.cast(pa.int32())), _DAY_US), array), []
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
    """Which times are of the years 1 to 9999."""
    within: Array = (times >= TS_MIN) & (times <= TS_MAX)
    return within


def show(value: pa.Scalar[Any]) -> Any:
    """A value of a column in Python, also a time that Python's own types cannot hold."""
    try:
        return value.as_py()
    except (ValueError, OverflowError, KeyError):  # KeyError: a zone that this machine does not know
        type: Any = value.type
        if pa.types.is_timestamp(type):
            return f"{value.cast(pa.int64()).as_py()} {type.unit}"
        return f"{value.cast(pa.int32()).as_py()} d" if pa.types.is_date32(type) else f"<{type}>"


def _words(array: pa.Array) -> Array:
    filled = array.fill_null(0) if array.null_count else array
    words: Array = filled.to_numpy(zero_copy_only=False).astype(np.int64, copy=False)
    return words


def _nulled(words: Array, array: pa.Array) -> pa.Array:
    """The words, null where the array is."""
    mask = array.is_null().to_numpy(zero_copy_only=False) if array.null_count else None
    return pa.array(words, pa.int64(), mask=mask)


def _multiplied(words: Array, factor: int) -> Array:
    multiplied: Array = np.clip(words, -_FAR // factor, _FAR // factor) * factor
    return multiplied


def _scaled(array: pa.Array, unit: str) -> pa.Array:
    """Whole numbers of that unit."""
    if unit == "us":
        return array
    times, by = UNITS[unit]
    return _nulled(_multiplied(_words(array), times) // by, array)


def _of_floats(array: pa.Array, unit: str) -> tuple[pa.Array, list[int]]:
    given = array.cast(pa.float64())
    values = given.fill_null(0.0).to_numpy(zero_copy_only=False)
    odd = ~np.isfinite(values)
    times, by = UNITS[unit]
    with np.errstate(over="ignore"):  # what is too large becomes infinite, and is clipped
        scaled = np.where(odd, 0.0, values) * float(times) / float(by)
    words = np.rint(np.clip(scaled, -float(_FAR), float(_FAR))).astype(np.int64)
    null = given.is_null().to_numpy(zero_copy_only=False)
    return pa.array(words, pa.int64(), mask=null | odd), np.nonzero(odd)[0].tolist()


def _of_decimals(array: pa.Array, unit: str) -> pa.Array:
    return pa.array([None if value is None else _rounded(value, unit) for value in array.to_pylist()], pa.int64())


def _rounded(value: Decimal, unit: str) -> int:
    with localcontext(prec=100):
        times, by = UNITS[unit]
        exact = value * times / by
        return int(min(max(exact, Decimal(-_FAR)), Decimal(_FAR)).to_integral_value(ROUND_HALF_EVEN))


def _of_text(array: pa.Array, unit: str | None) -> tuple[pa.Array, list[int]]:
    for target in (pa.timestamp("us", "UTC"), pa.timestamp("us")):
        try:  # as long as Arrow can read all of it: that is fast
            return array.cast(target).cast(pa.int64()), []
        except pa.ArrowInvalid:
            pass
    words, good = _of_pieces(array)
    null = array.is_null().to_numpy(zero_copy_only=False)
    failed: list[int] = []
    for row in np.nonzero(~good & ~null)[0].tolist():
        text = array[row].as_py().strip(" \t\r\n")
        if unit is not None and _NUMBER.fullmatch(text):
            words[row], good[row] = _rounded(Decimal(text), unit), True
        else:
            failed.append(row)
    return pa.array(words, pa.int64(), mask=~good), failed


def _of_pieces(array: pa.Array) -> tuple[Array, Array]:
    """Texts as microseconds, and which of them are times."""
    found: Any = pc.extract_regex(array, pattern=_NAMED)
    good = found.is_valid().to_numpy(zero_copy_only=False)

    def piece(name: str) -> pa.Array:
        return found.field(name).fill_null("")

    def number(name: str) -> Array:
        texts = piece(name)
        return np.asarray(pc.if_else(pc.equal(texts, ""), "0", texts).cast(pa.int64()))

    year, month, day = number("year"), number("month"), number("day")
    hour, minute, second = number("hour"), number("minute"), number("second")
    months = (year - 1970) * 12 + month - 1
    first = months.astype("datetime64[M]").astype("datetime64[D]").astype(np.int64)
    length = (months + 1).astype("datetime64[M]").astype("datetime64[D]").astype(np.int64) - first
    fraction = np.asarray(pc.utf8_slice_codeunits(pc.utf8_rpad(piece("fraction"), 6, "0"), 0, 6).cast(pa.int64()))
    zone = piece("zone")
    away = pc.replace_substring_regex(zone, "[-+:Z]", "")
    away = np.asarray(pc.utf8_rpad(away, 4, "0").cast(pa.int64()))
    sign = np.where(np.asarray(pc.starts_with(zone, "-")), -1, 1)
    good &= (month >= 1) & (month <= 12) & (day >= 1) & (day <= length)
    good &= (hour < 24) & (minute < 60) & (second < 60) & (away // 100 < 24) & (away % 100 < 60)
    minutes = (first + day - 1) * 1_440 + hour * 60 + minute - sign * (away // 100 * 60 + away % 100)
    return np.where(good, (minutes * 60 + second) * 1_000_000 + fraction, 0), good
