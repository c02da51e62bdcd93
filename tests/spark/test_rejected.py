"""Rejected rows of a table on Spark are logged, with their reasons."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import tocsin

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RULE = "define Seen(n: long) from A(n > 0) where n = A.n"
ROWS = [("A", "2024-01-01", 1), ("A", "soon", 2), (None, "2024-01-01", 3), ("A", None, 4), ("Z", "later", 5)]
SCHEMA = "type string, ts string, n bigint"
WAIT_S = 30


def logged(caplog: pytest.LogCaptureFixture, lines: int) -> list[str]:
    """What was logged, once that many lines were."""
    until = time.monotonic() + WAIT_S
    while time.monotonic() < until and len(caplog.records) < lines:
        time.sleep(0.05)
    return [record.getMessage() for record in caplog.records if record.name == "tocsin"]


def test_rejected_rows_are_logged_after_an_action(spark: SparkSession, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "tocsin")
    rules = tocsin.rules(RULE)
    with pytest.warns(tocsin.DeadLetterWarning) as warned:
        rules.detect(pa.table(dict(zip(("type", "ts", "n"), zip(*ROWS, strict=True), strict=True))))
    embedded = str(warned[0].message)
    assert embedded.startswith("4 events could not be used; the first: ts is not a time: 'soon': ")
    counts = "(of all: ts is not a time 2, type is null 1, ts is null 1)"
    assert embedded.endswith(counts)
    found = rules.detect(spark.createDataFrame(ROWS, SCHEMA))
    assert not caplog.records
    for action in (1, 2):
        assert found.count() == 1
        *_, message = logged(caplog, action)
        assert message.startswith("4 events could not be used; the first: ")
        assert sorted(message.partition("(of all: ")[2].partition(")")[0].split(", ")) == sorted(
            counts[9:-1].split(", ")
        )
        assert message.endswith("tocsin.spark.dead_letters(rules.report(events)) has all of them")
    assert tocsin.spark.dead_letters(rules.report(spark.createDataFrame(ROWS, SCHEMA))).count() == 4


def test_nothing_is_logged_of_good_rows_and_of_reports(spark: SparkSession, caplog: pytest.LogCaptureFixture) -> None:
    rules = tocsin.rules(RULE)
    assert rules.detect(spark.createDataFrame(ROWS[:1], SCHEMA)).count() == 1
    rules.report(spark.createDataFrame(ROWS, SCHEMA)).collect()
    time.sleep(1)
    assert not [record for record in caplog.records if record.name == "tocsin"]
