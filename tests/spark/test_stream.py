"""Rules change on a running stream, time advances without events, and state moves to other slots."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

import tocsin
from tests.spark.exactly_once_job import RULES
from tests.spark.test_exactly_once import events_of
from tocsin.errors import EventError, RuleError
from tocsin.spark import dead_letters, matches, stream
from tocsin.spark.job import labels

FIRE = """
    rule Fire
    define Fire(area: string, temp: double)
    from   Smoke(area=$a) and last Temp(area=$a, value>{limit}) within 20 s from Smoke
    where  area = Smoke.area, temp = Temp.value
"""
WET = """
    rule Wet
    define Wet(place: string)
    from   Rain(area=$a) and last Smoke(area=$a) within 5 s from Rain
    where  place = $a
"""
SCHEMA = "type string, ts long, area string, value double"


class Stream:
    """A stream that is fed file by file and stopped and started between them."""

    def __init__(self, spark: SparkSession, folder: Path, query: Callable[[DataFrame, DataFrame], DataFrame]) -> None:
        self._spark, self.folder, self._query, self._count = spark, folder, query, 0
        self.checkpoint = folder / "checkpoint"
        (folder / "events").mkdir()
        (folder / "control").mkdir()

    def events(self) -> DataFrame:
        return self._spark.readStream.schema(SCHEMA).parquet(str(self.folder / "events"))

    def control(self) -> DataFrame:
        return self._spark.readStream.schema(stream.SCHEMA).json(str(self.folder / "control"))

    def put(self, table: pa.Table) -> None:
        self._count += 1
        pq.write_table(table, self.folder / "events" / f"{self._count:03}.parquet")

    def order(self, **order: Any) -> None:
        self._count += 1
        (self.folder / "control" / f"{self._count:03}.json").write_text(json.dumps(order))

    def run(self) -> Any:
        """Takes all that is there. Returns the query, which has ended."""
        report = self._query(self.events(), self.control())
        writer = report.where("_kind != 'metrics'").writeStream.format("parquet")
        writer = writer.option("path", str(self.folder / "out")).option("checkpointLocation", str(self.checkpoint))
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        return query

    def report(self) -> DataFrame:
        return self._spark.read.parquet(str(self.folder / "out"))


def ids(table: Any) -> list[str]:
    return sorted(row["id"] for row in (table.to_pylist() if isinstance(table, pa.Table) else table.collect()))


def test_rules_come_change_and_go_at_one_event_time_in_all_slots(spark: SparkSession, tmp_path: Path) -> None:
    import random

    events = events_of(random.Random(3), 8_000).sort_by("ts")
    first, second, third = FIRE.format(limit=45), FIRE.format(limit=75), WET
    rules = tocsin.rules(first)
    stream = Stream(
        spark,
        tmp_path,
        lambda events, changes: rules.report(
            events, ts_unit="us", slots=3, control=changes, keep=["Rain"], delay="100 ms"
        ),
    )
    times = events["ts"].to_pylist()
    pieces = [events.slice(start, 2_000) for start in range(0, 8_000, 2_000)]

    # One query goes on from batch to batch: changes come as rows, between and beside the events.
    live = rules.report(stream.events(), ts_unit="us", slots=3, control=stream.control(), keep=["Rain"], delay="100 ms")
    writer = live.where("_kind != 'metrics'").writeStream.format("parquet").option("path", str(tmp_path / "out"))
    query = writer.option("checkpointLocation", str(stream.checkpoint)).start()
    try:
        stream.put(pieces[0])
        query.processAllAvailable()
        changed_us = times[2_500]
        stream.order(add=second, at=changed_us)
        query.processAllAvailable()
        stream.put(pieces[1])
        query.processAllAvailable()
        stream.order(add=third)
        query.processAllAvailable()
        added_us = times[3_999] + 1
        stream.put(pieces[2])
        query.processAllAvailable()
        removed_us = times[7_000]
        stream.order(remove=["Fire"], at=removed_us)
        stream.order(remove=["Fier"])
        query.processAllAvailable()
        stream.put(pieces[3])
        query.processAllAvailable()
        stream.order(advance=times[-1] + 1)
        query.processAllAvailable()
        run = query.runId
    finally:
        query.stop()
    assert run is not None

    def answer(text: str, begin: int, end: int, since: int = 0) -> list[str]:
        seen = events.filter(pa.array([since <= ts for ts in times]))
        found = tocsin.rules(text).detect(seen, ts_unit="us").to_pylist()
        return [row["id"] for row in found if begin <= row["ts"] < end]

    far = times[-1] + 1
    right = answer(first, 0, changed_us) + answer(second, changed_us, removed_us, changed_us)
    right += answer(third, added_us, far, added_us)
    found = matches(stream.report())
    assert ids(found) == sorted(right)
    assert {row["rule"] for row in found.collect()} == {"Fire", "Wet"}
    assert all(json.loads(row["attributes"])["place"] for row in found.where("rule = 'Wet'").collect())
    (refused,) = dead_letters(stream.report()).collect()
    assert "there is no rule Fier" in refused["reason"]


def test_state_moves_to_another_number_of_slots(spark: SparkSession, tmp_path: Path) -> None:
    import random

    events = events_of(random.Random(4), 6_000)
    rules, slots = tocsin.rules(RULES), 2
    stream = Stream(
        spark,
        tmp_path,
        lambda events, changes: rules.report(events, ts_unit="us", slots=slots, control=changes, delay="2 s"),
    )
    stream.put(events.slice(0, 3_000))
    stream.run()
    slots = 3
    options: dict[str, Any] = {"ts_unit": "us", "slots": 3, "delay": "2 s"}
    rules.rekey(stream.events(), stream.checkpoint, tmp_path / "moved", **options)
    stream.put(events.slice(3_000))
    with pytest.raises(Exception, match="keeps its state in 2 slots"):
        stream.run()
    stream.checkpoint = tmp_path / "moved"
    stream.run()
    stream.order(advance=4_000_000_000_000_000)
    stream.run()
    assert ids(matches(stream.report())) == ids(rules.detect(events, ts_unit="us"))


def test_time_goes_on_in_a_slot_without_events(spark: SparkSession, tmp_path: Path) -> None:
    rules = tocsin.rules(FIRE.format(limit=45))
    stream = Stream(spark, tmp_path, lambda events, _: rules.report(events, ts_unit="us", slots=5, delay="1 s"))
    second = 1_000_000
    rows = [("Temp", 100 * second, "A1", 50.0), ("Smoke", 101 * second, "A1", None)]
    stream.put(_table(rows))
    stream.run()
    # Wind is nothing that a rule wants: no slot gets it, and yet it says that time has gone on.
    stream.put(_table([("Wind", 200 * second, "A1", None)]))
    stream.run()
    assert [row["temp"] for row in matches(stream.report()).collect()] == [50.0]


def test_late_and_broken_rows_are_dead_letters(spark: SparkSession, tmp_path: Path) -> None:
    rules = tocsin.rules(FIRE.format(limit=45))
    stream = Stream(spark, tmp_path, lambda events, _: rules.report(events, ts_unit="us", slots=2, delay="1 s"))
    second = 1_000_000
    stream.put(_table([("Smoke", 100 * second, "A1", None), ("Temp", 100 * second, "A1", 50.0)]))
    stream.run()
    stream.put(_table([("Smoke", 98 * second, "A1", None), ("Smoke", None, "A2", None), (None, second, "A2", None)]))
    stream.run()
    letters = sorted(
        (row["reason"], row["type"] or "", row["event"]) for row in dead_letters(stream.report()).collect()
    )
    assert [(reason, type) for reason, type, _ in letters] == [
        ("late", "Smoke"),
        ("ts is null", "Smoke"),
        ("type is null", ""),
    ]
    assert letters[0][2] == 'Smoke@98000000(area="A1")'


def test_control_rows_need_a_stream_and_known_columns(spark: SparkSession, tmp_path: Path) -> None:
    rules = tocsin.rules(FIRE.format(limit=45))
    table = spark.createDataFrame([("Smoke", 1, "A1", 1.0)], SCHEMA)
    with pytest.raises(EventError, match="no stream"):
        rules.detect(table, control=table)
    with pytest.raises(RuleError, match="Did you mean 'area'"):
        tocsin.rules(FIRE.format(limit=45).replace("(area=$a", "(aria=$a")).detect(table)


@pytest.mark.parametrize("slots", [1, 2, 3, 7, 32])
def test_slots_spread_over_partitions_one_to_each(spark: SparkSession, slots: int) -> None:
    rows = spark.createDataFrame([(label,) for label in labels(slots)], "slot int").repartition(slots, "slot")
    assert sorted(rows.rdd.glom().map(len).collect()) == [1] * slots


def _table(rows: list[tuple[Any, ...]]) -> pa.Table:
    type, ts, area, value = zip(*rows, strict=True)
    return pa.table(
        {
            "type": pa.array(type, pa.string()),
            "ts": pa.array(ts, pa.int64()),
            "area": pa.array(area, pa.string()),
            "value": pa.array(value, pa.float64()),
        }
    )
