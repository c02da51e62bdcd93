"""Workers read files as Spark would, and anything but a plain scan is left to Spark."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tocsin
from tocsin.spark import blocks
from tocsin.spark.pushdown import SETTING, Scan, scan_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

RULES = """
    define Fire(area: string, temp: double)
    from   Smoke(area = $a) and last Temp(area = $a, value > 45) within 5 s from Smoke
    where  area = $a, temp = Temp.value
"""
NAMES = ["type", "ts", "area", "value", "floor"]


def made(events: int, seed: int = 1) -> pa.Table:
    random = np.random.default_rng(seed)
    return pa.table(
        {
            "type": pa.array(["Temp", "Smoke", "Rain", None]).take(random.choice(4, events, p=[0.7, 0.2, 0.08, 0.02])),
            "ts": pa.array(random.permutation(events) * 100_000, pa.timestamp("us", "UTC")),
            "area": pa.array(["A", "B", "a longer name"]).take(random.integers(0, 3, events)),
            "value": pa.array(random.uniform(0, 100, events), mask=random.random(events) < 0.1),
            "floor": pa.array(random.integers(0, 9, events), pa.int32()),
        }
    )


def report(frame: DataFrame, setting: str) -> tuple[list[Any], list[Any], str]:
    """Matches, dead letters and the plan, as the setting has them."""
    session, rules = frame.sparkSession, tocsin.rules(RULES)
    session.conf.set(SETTING, setting)
    try:
        report = rules.report(frame).persist()
        found, dead = blocks.matches(report).toArrow(), blocks.dead_letters(report).toArrow()
        report.unpersist()
        return (
            sorted(found.to_pylist(), key=lambda row: (row["ts"], row["id"])),
            sorted(map(str, dead.to_pylist())),
            rules.explain(frame),
        )
    finally:
        session.conf.unset(SETTING)


@pytest.mark.parametrize("form", ["plain", "dictionary", "large", "named", "several files"])
def test_files_are_read_as_spark_reads_them(spark: SparkSession, tmp_path: Path, form: str) -> None:
    events = made(3_000)
    if form == "dictionary":
        events = events.set_column(2, "area", events["area"].dictionary_encode())
    if form == "large":
        events = events.set_column(2, "area", events["area"].cast(pa.large_string()))
    if form == "named":
        events = events.append_column("id", pa.array([str(number) for number in range(events.num_rows)]))
    folder = tmp_path / "with space"
    folder.mkdir()
    cuts = [0, 700, 701, 3_000] if form == "several files" else [0, 3_000]
    for number, (begin, end) in enumerate(pairwise(cuts)):
        pq.write_table(events.slice(begin, end - begin), folder / f"{number}.parquet", row_group_size=512)
    frame = spark.read.parquet(str(folder))
    found, dead, plan = report(frame, "files")
    expected, letters, other = report(frame, "spark")
    assert "by the workers themselves" in plan
    assert "by the workers themselves" not in other
    assert (found, dead) == (expected, letters)
    assert len(found) > 10
    assert len(dead) == events["type"].null_count
    embedded = tocsin.rules(RULES).detector(delay="1 d")
    rows = pa.concat_tables([embedded.push(events), embedded.finish()]).to_pylist()
    assert [(row["id"], row["temp"]) for row in found] == [
        (row["id"], row["temp"]) for row in sorted(rows, key=lambda row: (row["ts"], row["id"]))
    ]


def test_what_is_no_plain_scan_is_left_to_spark(spark: SparkSession, tmp_path: Path) -> None:
    pq.write_table(made(50), tmp_path / "events.parquet")
    frame = spark.read.parquet(str(tmp_path / "events.parquet"))
    assert scan_of(frame, NAMES, "type") is not None
    assert scan_of(frame.where("floor > 3"), NAMES, "type") is None
    assert scan_of(frame.withColumn("floor", frame["floor"] + 1), NAMES, "type") is None
    assert scan_of(frame.unionByName(frame), NAMES, "type") is None
    assert scan_of(spark.createDataFrame(made(5).to_pylist()), ["type", "ts"], "type") is None
    other = frame.schema.fieldNames()
    wider = spark.read.schema("type string, ts timestamp, area string, value double, floor bigint")
    assert scan_of(wider.parquet(str(tmp_path / "events.parquet")), other, "type") is None
    pq.write_table(made(50).drop_columns(["floor"]), tmp_path / "fewer.parquet")
    both = spark.read.option("mergeSchema", True).parquet(str(tmp_path))
    assert scan_of(both, NAMES, "type") is None
    assert scan_of(both, NAMES[:4], "type") is not None
    frame.write.partitionBy("floor").parquet(str(tmp_path / "parts"))
    assert scan_of(spark.read.parquet(str(tmp_path / "parts")), NAMES, "type") is None
    frame.write.json(str(tmp_path / "text"))
    assert scan_of(spark.read.schema(frame.schema).json(str(tmp_path / "text")), NAMES, "type") is None


def test_tasks_read_every_row_group_once_and_in_order(spark: SparkSession, tmp_path: Path) -> None:
    events = made(1_000)
    for number in range(3):
        pq.write_table(events.slice(number * 300, 300), tmp_path / f"{number}.parquet", row_group_size=64)
    scan = scan_of(spark.read.parquet(str(tmp_path)), NAMES, "type")
    assert scan is not None
    assert len(scan.tasks) == spark.sparkContext.defaultParallelism
    read = [batch for task in range(len(scan.tasks)) for batch in scan.batches(task)]
    found = pa.Table.from_batches(read)
    assert found["ts"].to_pylist() == events.slice(0, 900)["ts"].to_pylist()
    sizes = [sum(batch.num_rows for batch in scan.batches(task)) for task in range(len(scan.tasks))]
    assert max(sizes) - min(sizes) <= 2 * 64


def test_a_changed_file_is_an_error(tmp_path: Path) -> None:
    pq.write_table(made(10), tmp_path / "events.parquet")
    scan = Scan((((str(tmp_path / "events.parquet"), (0, 1)),),), tuple(NAMES), "type")
    with pytest.raises(tocsin.EventError, match="has changed since"):
        list(scan.batches(0))


def test_nothing_to_read_finds_nothing(spark: SparkSession, tmp_path: Path) -> None:
    pq.write_table(made(0), tmp_path / "events.parquet")
    frame = spark.read.parquet(str(tmp_path))
    assert report(frame, "files")[:2] == ([], [])
