"""Columns that no rule reads do not affect a run, whatever their names and contents."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import tocsin
from tocsin.errors import EventError, RuleError
from tocsin.spark.names import CASE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NOON = 1_704_110_400_000_000
RULE = "define Pair(n: long, Id: long) from A() and last B() within 1 min from A where n = A.n, Id = B.n"
NAMES = [
    "Solar.R",
    "a b",
    'q"q',
    "q'q",
    "back`tick",
    "`quoted`",
    "a:b",
    "n:long",
    ":",
    "line\nbreak",
    "größe",
    "日本",
    "N",
    "Type",
]
"""Names of columns that no rule reads; two differ from those that rules read only in case."""

UNREADABLE = {
    "struct": "named_struct('x', 1)",
    "list": "array(1, 2)",
    "map": "map('a', 1)",
    "bytes": "cast('x' as binary)",
    "months": "interval '3' month",
    "days": "interval '3' day",
    "calendar": "make_interval(1, 2, 3)",
    "nothing": "null",
    "variant": "parse_json('1')",
}
"""Columns that hold what no rule can read."""


def rows_of(spark: SparkSession, more: dict[str, str]) -> DataFrame:
    """Two events, with columns made by expressions."""
    events = spark.createDataFrame([("B", NOON, 1), ("A", NOON + 5, 2)], "type string, ts bigint, n bigint")
    wide = events.selectExpr("*", *(f"{expression} as `_{place}`" for place, expression in enumerate(more.values())))
    return wide.toDF(*events.columns, *more)


def embedded(more: dict[str, Any]) -> list[Any]:
    table = pa.table({"type": ["B", "A"], "ts": [NOON, NOON + 5], "n": [1, 2], **more})
    return answer(tocsin.rules(RULE).detect(table))


def answer(found: pa.Table) -> list[Any]:
    return sorted(zip(*(found[name].to_pylist() for name in ("id", "ts", "n", "Id_1")), strict=True))


def test_names_of_any_kind(spark: SparkSession) -> None:
    more = {name: [place, place] for place, name in enumerate(NAMES)}
    right = embedded(more)
    assert len(right) == 1
    frame = rows_of(spark, {name: f"{place}L" for place, name in enumerate(NAMES)})
    before = spark.conf.get(CASE)
    assert answer(tocsin.rules(RULE).detect(frame).toArrow()) == right
    by_type = {type: rows_of(spark, {}).where(f"type = '{type}'").drop("type") for type in "AB"}
    wide = {
        type: rows.selectExpr("*", *(f"{place}L" for place in range(len(NAMES)))).toDF("ts", "n", *NAMES)
        for type, rows in by_type.items()
    }
    assert answer(tocsin.rules(RULE).detect(wide).toArrow()) == right
    assert spark.conf.get(CASE) == before


def test_columns_that_no_rule_can_read(spark: SparkSession) -> None:
    """They are no part of an event's identity either."""
    right = embedded({})
    assert right == embedded({"struct": [{"x": 1}] * 2, "list": [[1]] * 2, "bytes": [b"x"] * 2, "nothing": pa.nulls(2)})
    assert right == embedded({"days": pa.array([1, 2], pa.duration("us")), "clock": pa.array([1, 2], pa.time64("us"))})
    assert right == embedded({"": [1, 2]})
    assert answer(tocsin.rules(RULE).detect(rows_of(spark, {**UNREADABLE, "": "1L"})).toArrow()) == right


def test_a_rule_that_reads_such_a_column(spark: SparkSession) -> None:
    said = "A has no attribute struct: the events have no such column of strings, numbers, booleans or times"
    rules = tocsin.rules("define Seen() from A(struct > 1)")
    with pytest.raises(RuleError, match=said):
        rules.detect(pa.table({"type": ["A"], "ts": [1], "n": [1], "struct": [{"x": 1}]}))
    with pytest.raises(RuleError, match=said):
        rules.detect(rows_of(spark, UNREADABLE))


def test_two_columns_of_one_name(spark: SparkSession) -> None:
    said = "the events have two columns 'n'"
    table = pa.table([["A"], [1], [1], [2]], names=["type", "ts", "n", "n"])
    with pytest.raises(EventError, match=said):
        tocsin.rules(RULE).detect(table)
    with pytest.raises(EventError, match=said):
        tocsin.rules(RULE).detect(rows_of(spark, {"x": "1L"}).toDF("type", "ts", "n", "n"))
