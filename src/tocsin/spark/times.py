"""How does Spark itself read times? As `events.times` does, whatever the time zone of the session is.

Python reads the times of events. Spark needs them for what it does alone: to move the watermark of a stream, to find
the largest time of a table, and to let rows pass whose time is wrong, so that Python rejects them with a reason.
"""

from __future__ import annotations

from decimal import Decimal

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

from tocsin.events.reader import Columns
from tocsin.events.times import NUMBER, TEXT, TS_MAX, TS_MIN, UNITS
from tocsin.spark.names import col, quoted

_BLANK = r"[ \t\r\n]*"
_DAY_US = 86_400_000_000
_TEXT = "^" + TEXT.replace("?P<", "?<") + "$"


def moment(columns: Columns, held: T.DataType) -> Column:
    """The time of a row as a timestamp; null where there is none, or where it is out of range."""
    words = micros(columns, held)
    return F.timestamp_micros(F.when(words.between(TS_MIN, TS_MAX), words))


def is_wrong(columns: Columns, held: T.DataType) -> Column:
    """Whether a row has no time that can be used; for whole numbers and timestamps a test that sources understand."""
    ts = col(columns.ts)
    if isinstance(held, T.TimestampType):
        low, high = (F.timestamp_micros(F.lit(limit)) for limit in (TS_MIN, TS_MAX))
        return ts.isNull() | (ts < low) | (ts > high)
    if isinstance(held, T.IntegralType):
        times, by = UNITS[columns.ts_unit or "us"]
        least, most = -(-TS_MIN * by // times), TS_MAX * by // times
        return ts.isNull() if least < -(2**63) else ts.isNull() | (ts < F.lit(least)) | (ts > F.lit(most))
    return moment(columns, held).isNull()


def micros(columns: Columns, held: T.DataType) -> Column:
    """The time of a row in microseconds, null where that is no time. Far outside the range it may be null, too."""
    ts, name, (times, by) = col(columns.ts), quoted(columns.ts), UNITS[columns.ts_unit or "us"]
    match held:
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
        case T.FractionalType() if isinstance(held, T.DecimalType):
            return _whole(ts, times, by)
        case T.FractionalType():
            words = F.rint(ts.cast("double") * F.lit(float(times)) / F.lit(float(by)))
            return F.when(words.between(float(TS_MIN), float(TS_MAX)), words.cast("bigint"))
        case _:
            return _of_text(ts, columns.ts_unit)


def _days(date: Column) -> Column:
    return F.unix_date(date).cast("bigint") * F.lit(_DAY_US)


def _whole(decimal: Column, times: int, by: int) -> Column:
    low, high = (F.lit(Decimal(limit * by // times)) for limit in (TS_MIN - times, TS_MAX + times))
    exact = decimal * F.lit(Decimal(times) / Decimal(by))
    return F.when(decimal.between(low, high), F.bround(exact, 0).cast("bigint"))


def _of_text(text: Column, unit: str | None) -> Column:
    """Text that is a time, brought into the one form that Spark reads in every session alike: with a zone."""
    text = F.regexp_replace(text, f"^{_BLANK}|{_BLANK}$", "")
    clock = F.regexp_extract(text, r"^.{10}[T ]([0-9:]+)", 1)
    fraction = F.regexp_extract(text, r"[.,](\d+)", 1)
    zone = F.regexp_extract(text, r"^.{11}[0-9:.,]+?(Z|[-+].*)$", 1)
    away = F.rpad(F.regexp_replace(zone, "[-+:Z]", ""), 4, "0")
    sign = F.when(zone.startswith("-"), F.lit(1)).otherwise(F.lit(-1))
    away_us = sign * (F.substring(away, 1, 2).try_cast("bigint") * 60 + F.substring(away, 3, 2).try_cast("bigint"))
    clock = F.concat(clock, F.substring(F.lit("00:00:00"), F.length(clock) + 1, F.lit(8)))
    local = F.concat(F.substring(text, 1, 10), F.lit("T"), clock, F.lit("."), F.rpad(fraction, 6, "0"), F.lit("Z"))
    known = (F.substring(away, 1, 2) < "24") & (F.substring(away, 3, 2) < "60")
    words = F.unix_micros(local.try_cast("timestamp")) + away_us * F.lit(60_000_000)
    found = F.when(text.rlike(_TEXT) & known, words)
    if unit is None:
        return found
    number = F.when(text.rlike(f"^{NUMBER}$"), text).try_cast("decimal(38,12)")
    return F.coalesce(found, _whole(number, *UNITS[unit]))
