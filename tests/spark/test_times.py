"""Spark reads times as all other hosts do, whatever the zone of its session."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import tocsin
from tocsin.errors import EventError
from tocsin.events.columns import one_array
from tocsin.events.reader import Columns
from tocsin.events.times import TS_MAX, TS_MIN, in_range, micros
from tocsin.testing.times import REFUSED, SPELLINGS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ZONES = ("UTC", "Pacific/Kiritimati", "America/St_Johns")
NOON = 1_704_110_400_000_000
TEXTS = [*SPELLINGS, *REFUSED]

FORMS = {
    "a": ("timestamp_micros(n)", None),
    "b": (
        "cast('2024-01-01 12:00:00.123456' as timestamp_ntz) + make_dt_interval(cast(n % 4000003 as int), 7, 3, 0.7)",
        None,
    ),
    "c": ("date_add(date'2024-01-01', cast(n % 4000003 as int))", None),
    "d": ("cast(n % 100 as tinyint)", "s"),
    "e": ("cast(n % 30000 as smallint)", "ms"),
    "f": ("cast(n % 2000000000 as int)", "s"),
    "g": ("n", None),
    "h": ("n", "s"),
    "i": ("n", "ns"),
    "j": ("cast(n as double) / 1000003", "s"),
    "k": ("cast(n as double) / 7", "ns"),
    "l": ("cast(n % 1000003 as float)", "ms"),
    "m": ("cast(n as decimal(38,6)) / 1000003", "s"),
    "n": ("cast(n as decimal(20,0))", None),
    "o": ("cast(n as decimal(24,4)) / 7", "ns"),
    "p": ("cast(n as string)", "ms"),
    "q": ("cast('NaN' as double) * n", "s"),
    "r": ("cast('Infinity' as double)", "s"),
    "t": ("cast(cast(n as decimal(30,3)) / 7 as string)", "us"),
    "u": ("cast(null as void)", None),
}
"""Columns made of whole numbers of any size, and what they count."""

COUNTS = [0, 1, -1, 999, -1_001, 1_704_110_400, -NOON, NOON, NOON * 1_000, TS_MIN, TS_MAX, TS_MAX + 1, 2**62, 1 - 2**62]


@contextmanager
def zone_of(spark: SparkSession, zone: str) -> Iterator[None]:
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        yield
    finally:
        spark.conf.set("spark.sql.session.timeZone", str(before))


def expected(column: pa.ChunkedArray, unit: str | None) -> list[int | None]:
    if pa.types.is_null(column.type):
        return [None] * len(column)
    found = micros(one_array(column), unit)[0]
    return [one if one is not None and in_range(one) else None for one in found.to_pylist()]


def test_spark_finds_the_times_that_python_finds(spark: SparkSession) -> None:
    from pyspark.sql import functions as F

    from tocsin.spark.times import event_time, is_invalid

    for zone in ZONES:
        with zone_of(spark, zone):
            rows = spark.createDataFrame([(n,) for n in COUNTS], "n bigint").selectExpr(
                *(f"{form} as {name}" for name, (form, _) in FORMS.items())
            )
            texts = spark.createDataFrame([(text,) for text in TEXTS], "z string")
            for frame, units in ((rows, {name: unit for name, (_, unit) in FORMS.items()}), (texts, {"z": None})):
                asked = []
                for name, unit in units.items():
                    held = frame.schema[name].dataType
                    columns = Columns(ts=name, ts_unit=unit)
                    asked.append(F.unix_micros(event_time(columns, held)).alias(f"{name} is"))
                    asked.append(F.coalesce(is_invalid(columns, held), F.lit(True)).alias(f"{name} wrong"))
                found = frame.select("*", *asked).toArrow()
                for name, unit in units.items():
                    right = expected(found[name], unit)
                    assert (zone, name, found[f"{name} is"].to_pylist()) == (zone, name, right)
                    assert (name, found[f"{name} wrong"].to_pylist()) == (name, [one is None for one in right])


PAIRS = "define Pair(a: long, b: long) from A() and last B() within 1 min from A where a = A.n, b = B.n"


def test_times_as_text_are_the_same_in_any_zone(spark: SparkSession) -> None:
    """With nanoseconds, with a zone and without, and with texts that are no times, which are rejected."""
    rows = [("A", text, number) for number, text in enumerate(TEXTS)] + [
        ("B", text, number) for number, text in enumerate(TEXTS)
    ]
    with pytest.warns(tocsin.DeadLetterWarning):
        there = tocsin.rules(PAIRS).detect(
            pa.table(dict(zip(("type", "ts", "n"), zip(*rows, strict=True), strict=True)))
        )
    assert there.num_rows > 5
    for zone in ZONES[1:]:
        with zone_of(spark, zone):
            report = tocsin.rules(PAIRS).report(spark.createDataFrame(rows, "type string, ts string, n bigint"))
            found = tocsin.spark.matches(report).toArrow()
            assert sorted(found["id"].to_pylist()) == sorted(there["id"].to_pylist())
            dead = tocsin.spark.dead_letters(report).collect()
            assert sorted(row["reason"] for row in dead) == sorted(
                f"ts is not a time: {text!r}" for text in REFUSED * 2
            )


def ids(table: pa.Table) -> list[Any]:
    return sorted(zip(table["id"].to_pylist(), table["ts"].cast(pa.int64()).to_pylist(), strict=True))


def test_times_without_a_zone_are_utc(spark: SparkSession) -> None:
    rows = [("A", "2024-03-10 02:30:00", 1), ("B", "2024-03-10 02:29:30", 2), ("A", "2024-03-31 02:30:00.000001", 3)]
    table = pa.table(dict(zip(("type", "ts", "n"), zip(*rows, strict=True), strict=True)))
    there = tocsin.rules(PAIRS).detect(table)
    assert there.num_rows == 1
    with zone_of(spark, "America/New_York"):
        for kind in ("timestamp_ntz", "string"):
            events = spark.createDataFrame(rows, "type string, ts string, n bigint")
            events = events.selectExpr("type", f"cast(ts as {kind}) as ts", "n")
            assert ids(tocsin.rules(PAIRS).detect(events).toArrow()) == ids(there)


@pytest.mark.parametrize(
    ("column", "unit", "said"),
    [
        ("1.5D", None, "ts is double: say what it counts"),
        ("cast(1.5 as decimal(4,1))", None, r"ts is decimal128\(4, 1\): say what it counts"),
        ("true", "s", "ts must hold times or numbers, it is bool"),
        ("array(1)", "s", "ts must hold times or numbers, it is list"),
        ("interval '1' month", "s", "ts must hold times or numbers, it is interval month"),
        ("1L", "h", "ts_unit is one of s, ms, us, ns, not 'h'"),
    ],
)
def test_what_cannot_be_times_is_said_before_anything_runs(
    spark: SparkSession, column: str, unit: str | None, said: str
) -> None:
    with pytest.raises(EventError, match=said):
        tocsin.rules(PAIRS).detect(spark.sql(f"select 'A' as type, {column} as ts, 1L as n"), ts_unit=unit)


def test_whole_numbers_count_microseconds_in_every_partition(spark: SparkSession) -> None:
    """Also where those of one partition could be seconds."""
    rows = [("A", NOON, 1), ("B", NOON - 9, 2), ("A", 1_704_110_400, 3), ("B", 1_704_110_391, 4)]
    events = spark.createDataFrame(rows, "type string, ts bigint, n bigint").repartition(4)
    found = tocsin.rules(PAIRS).detect(events).toArrow()
    assert sorted(found["ts"].to_pylist()) == [1_704_110_400, NOON]
