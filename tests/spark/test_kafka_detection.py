"""From topic to topic, matches are the same if the broker and the query are stopped and restarted in between."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import tocsin
from tests.spark.exactly_once_job import RULES
from tests.spark.kafka import broker, session
from tests.spark.test_exactly_once import events_of
from tocsin.spark import kafka, sessions, sinks

EVENT = "type string, ts long, area string, value double"
MATCH = "rule string, ts long, id string, area string, temp double"
END = 4_000_000_000_000_000


def produce(spark: SparkSession, topic: kafka.Topic, lines: list[str]) -> None:
    rows = spark.createDataFrame([(line,) for line in lines], "value string").coalesce(1)
    rows.write.format("kafka").options(**kafka.writing(topic)).save()


def start(spark: SparkSession, source: kafka.Topic, address: str, folder: Path) -> None:
    """Starts the query; it goes on by itself."""
    read = spark.readStream.format("kafka").options(**kafka.reading(source, batch_events_max=2_000)).load()
    events = read.select(F.from_json(F.col("value").cast("string"), EVENT).alias("event")).select("event.*")
    control = spark.readStream.schema("advance long").json(str(folder / "control"))
    report = tocsin.rules(RULES).report(events, ts_unit="us", delay="2 s", slots=2, control=control)
    send = sinks.to_kafka(address)
    writer = report.writeStream.foreachBatch(send).option("checkpointLocation", str(folder / "checkpoint"))
    writer.start()


def done(spark: SparkSession) -> int:
    """How many rows the running query has taken since it started; fails if it has ended."""
    (query,) = spark.streams.active
    return sum(progress["numInputRows"] for progress in query.recentProgress)


def stop(spark: SparkSession) -> None:
    for query in spark.streams.active:
        query.stop()


def finish(spark: SparkSession) -> None:
    (query,) = spark.streams.active
    query.processAllAvailable()


def matches(spark: SparkSession, topic: kafka.Topic) -> tuple[int, list[tuple[object, ...]]]:
    """How many messages there are, and the matches in them, each once."""
    read = spark.read.format("kafka").options(**kafka.reading(topic)).load()
    found: DataFrame = read.select(F.from_json(F.col("value").cast("string"), MATCH).alias("m")).select("m.*")
    return found.count(), [tuple(row) for row in sinks.deduplicated(found).collect()]


@pytest.mark.slow
def test_a_broker_that_is_killed_changes_nothing(tmp_path: Path) -> None:
    import random

    events = events_of(random.Random(5), 20_000)
    lines = [json.dumps({k: v for k, v in row.items() if v is not None}) for row in events.to_pylist()]
    (tmp_path / "control").mkdir()
    with broker(tmp_path / "broker") as server, session(sessions.SESSION_DEFAULTS) as spark:
        source, target = server.topic("events"), server.topic("matches")
        address = f"kafka://{server.address}/matches"
        spark.run(produce, source, lines[:8_000])
        spark.run(start, source, address, tmp_path)
        _until(lambda: spark.run(done) >= 2_000)

        server.kill()
        time.sleep(1)
        server.restart()
        spark.run(produce, source, lines[8_000:14_000])
        _until(lambda: spark.run(done) >= 9_000)

        spark.run(stop)
        spark.run(produce, source, lines[14_000:])
        spark.run(start, source, address, tmp_path)
        spark.run(finish)
        (tmp_path / "control" / "end.json").write_text(json.dumps({"advance": END}))
        spark.run(finish)
        sent, found = spark.run(matches, target)
        spark.run(stop)
    wanted: pa.Table = tocsin.rules(RULES).detect(events, ts_unit="us").select(["rule", "ts", "id", "area", "temp"])
    assert len(wanted) > 200
    assert sent >= len(wanted)
    assert sorted(found, key=repr) == sorted((tuple(row.values()) for row in wanted.to_pylist()), key=repr)


def _until(holds: object, timeout_s: float = 240) -> None:
    deadline = time.monotonic() + timeout_s
    while not holds():  # type: ignore[operator]
        assert time.monotonic() < deadline, "the stream does not go on"
        time.sleep(0.5)
