"""Convert times in Spark exactly as `events.times` does, independently of the session's time zone.

Python reads the times of events. Spark needs times only for three purposes: to advance the watermark of a stream, to
find the largest time of a table, and to keep rows with invalid times, which Python rejects with a reason.
"""

from __future__ import annotations

from decimal import Decimal

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

from tocsin.events.reader import Columns
from tocsin.events.times import NUMBER, TEXT, TS_MAX, TS_MIN, TS_UNITS
from tocsin.spark.names import col, quoted

_BLANK = r"[ \t\r\n]*"
_DAY_US = 86_400_000_000
_TEXT = "^" + TEXT.replace("?P<", "?<") + "$"


def event_time(columns: Columns, type: T.DataType) -> Column:
    """Return the time of a row as a timestamp; null if the time is missing or out of range."""
    ts_us = micros(columns, type)
    return F.timestamp_micros(F.when(ts_us.between(TS_MIN, TS_MAX), ts_us))


def is_invalid(columns: Columns, type: T.DataType) -> Column:
    """Return the condition that a row has no valid time.

    For integers and timestamps, data sources can evaluate this condition (predicate pushdown).
    """
    ts = col(columns.ts)
    if isinstance(type, T.TimestampType):
        low, high = (F.timestamp_micros(F.lit(limit)) for limit in (TS_MIN, TS_MAX))
        return ts.isNull() | (ts < low) | (ts > high)
    if isinstance(type, T.IntegralType):
        times, by = TS_UNITS[columns.ts_unit or "us"]
        least, most = -(-TS_MIN * by // times), TS_MAX * by // times
        return ts.isNull() if least < -(2**63) else ts.isNull() | (ts < F.lit(least)) | (ts > F.lit(most))
    return event_time(columns, type).isNull()


def micros(columns: Columns, type: T.DataType) -> Column:
    """Return the time of a row in microseconds; null if the time is invalid.

    A time far outside the valid range may also give null.
    """
    ts, name, (times, by) = col(columns.ts), quoted(columns.ts), TS_UNITS[columns.ts_unit or "us"]
    match type:
        case T.TimestampType():
            return F.unix_micros(ts)
        case T.TimestampNTZType():
            low, high = "timestamp_ntz'0001-01-01 00:00:00'", "timestamp_ntz'9999-12-31 23:59:59.999999'"
            clock = F.hour(ts) * F.lit(3_600) + F.minute(ts) * F.lit(60) + F.date_part(F.lit("SECOND"), ts)
            whole = _days(ts.cast("date")) + (clock * F.lit(1_000_000)).cast("bigint")
            return F.when(ts.between(F.expr(low), F.expr(high)), whole)
        case T.DateType():
            return F.when(ts.between(F.expr("date'0001-01-01'"), F.expr("date'9999-12-31'")), _days(ts))
        case T.IntegralType():
            if by == 1:
                return F.try_multiply(ts.cast("bigint"), F.lit(times).cast("bigint"))
            return F.expr(f"try_subtract({name}, pmod({name}, {by}L)) div {by}L")
        case T.FractionalType() if isinstance(type, T.DecimalType):
            return _whole(ts, times, by)
        case T.FractionalType():
            ts_us = F.rint(ts.cast("double") * F.lit(float(times)) / F.lit(float(by)))
            return F.when(ts_us.between(float(TS_MIN), float(TS_MAX)), ts_us.cast("bigint"))
        case _:
            return _of_text(ts, columns.ts_unit)


def _days(date: Column) -> Column:
    return F.unix_date(date).cast("bigint") * F.lit(_DAY_US)


def _whole(decimal: Column, times: int, by: int) -> Column:
    low, high = (F.lit(Decimal(limit * by // times)) for limit in (TS_MIN - times, TS_MAX + times))
    exact = decimal * F.lit(Decimal(times) / Decimal(by))
    return F.when(decimal.between(low, high), F.bround(exact, 0).cast("bigint"))


def _of_text(text: Column, unit: str | None) -> Column:
    """Parse text as a time in microseconds.

    The text is first brought into a normal form with a zone, because the session's time zone does not affect that.
    """
    text = F.regexp_replace(text, f"^{_BLANK}|{_BLANK}$", "")
    clock = F.regexp_extract(text, r"^.{10}[T ]([0-9:]+)", 1)
    fraction = F.regexp_extract(text, r"[.,](\d+)", 1)
    zone = F.regexp_extract(text, r"^.{11}[0-9:.,]+?(Z|[-+].*)$", 1)
    offset = F.rpad(F.regexp_replace(zone, "[-+:Z]", ""), 4, "0")
    sign = F.when(zone.startswith("-"), F.lit(1)).otherwise(F.lit(-1))
    offset_minutes = sign * (
        F.substring(offset, 1, 2).try_cast("bigint") * 60 + F.substring(offset, 3, 2).try_cast("bigint")
    )
    clock = F.concat(clock, F.substring(F.lit("00:00:00"), F.length(clock) + 1, F.lit(8)))
    local = F.concat(F.substring(text, 1, 10), F.lit("T"), clock, F.lit("."), F.rpad(fraction, 6, "0"), F.lit("Z"))
    valid = (F.substring(offset, 1, 2) < "24") & (F.substring(offset, 3, 2) < "60")
    ts_us = F.unix_micros(local.try_cast("timestamp")) + offset_minutes * F.lit(60_000_000)
    parsed = F.when(text.rlike(_TEXT) & valid, ts_us)
    if unit is None:
        return parsed
    number = F.when(text.rlike(f"^{NUMBER}$"), text).try_cast("decimal(38,12)")
    return F.coalesce(parsed, _whole(number, *TS_UNITS[unit]))
