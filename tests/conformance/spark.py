"""Spark as a host: a pack of cases as one query over tables, or over a stream of micro-batches.

    .venv/bin/python -m tests.conformance.spark CASE embedded|batch|stream SLOTS

runs one case alone, from a file as a failing test writes it, and prints missing and surplus matches.
"""

from __future__ import annotations

import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

import tocsin
from tests.conformance.packs import Pack, Query, Row, arrival, matches_of, read_case, rows_of, table
from tocsin.engine.detector import Detector
from tocsin.events.types import Event
from tocsin.spark import stream as control

PATIENCE_S = 600


def embedded(pack: Pack) -> list[Row]:
    """Return the matches of all tenants without Spark."""
    detector = Detector(pack.rules, pack.types, delay_us=2**60)
    return [*rows_of(detector.push(pack.events)), *rows_of(detector.finish())]


def batch(spark: SparkSession, pack: Pack, query: Query, folder: Path) -> list[Row]:
    """Return the matches of all tenants, from unordered tables of several files."""
    rng = random.Random(query.seed)
    shuffled = rng.sample(pack.events, len(pack.events))
    put(shuffled, pack, query, folder, rng)
    with conf(spark, partitions=query.partitions):
        frames = {path.name: spark.read.parquet(str(path)) for path in sorted(folder.iterdir())}
        events = frames if query.by_type else frames["events"]
        return matches_of(tocsin.rules(pack.rules).report(events, **options(query)).toArrow())


def stream(spark: SparkSession, pack: Pack, query: Query, folder: Path) -> list[Row]:
    """Return the matches of all tenants, from micro-batches with restarts in between and before time advances."""
    rng = random.Random(query.seed)
    pending = arrival(pack.events, query, rng)
    (folder / "control").mkdir(parents=True)
    with conf(spark, partitions=query.partitions), cold(spark) if query.cold else conf(spark):
        found: dict[int, pa.Table] = {}
        stops = {round(query.batches * n / (query.restarts + 1)) for n in range(1, query.restarts + 1)}
        for number, events in enumerate(pending, 1):
            put(events, pack, query, folder / "events", rng, number)
            if number in stops or number == query.batches:
                run(spark, pack, query, folder, found)
        assert len(found) >= query.batches, f"{len(found)} micro-batches"
        last = max(event.ts for event in pack.events)
        (folder / "control" / "end.json").write_text(json.dumps({"advance": last + 1}))
        run(spark, pack, query, folder, found)
    return [row for number in sorted(found) for row in matches_of(found[number])]


def run(spark: SparkSession, pack: Pack, query: Query, folder: Path, found: dict[int, pa.Table]) -> None:
    """Run all available data. A batch that runs again replaces its earlier output."""
    reader = spark.readStream.option("maxFilesPerTrigger", 1 if query.by_type else 2)
    frames: Mapping[str, DataFrame] = {
        path.name: reader.schema(spark.read.parquet(str(path)).schema).parquet(str(path))
        for path in sorted((folder / "events").iterdir())
    }
    orders = spark.readStream.schema(control.SCHEMA).json(str(folder / "control"))
    report = tocsin.rules(pack.rules).report(
        frames if query.by_type else frames["events"],
        control=orders,
        delay=query.delay_ticks * query.tick_us,
        **options(query),
    )

    def keep(frame: DataFrame, number: int) -> None:
        found[number] = frame.toArrow()

    writer = report.writeStream.option("checkpointLocation", str(folder / "checkpoint")).foreachBatch(keep)
    running = writer.trigger(availableNow=True).start()
    try:
        assert running.awaitTermination(PATIENCE_S), f"not done in {PATIENCE_S} s"
    finally:
        running.stop()


def put(events: list[Event], pack: Pack, query: Query, folder: Path, rng: random.Random, number: int = 0) -> None:
    """Write the events of a micro-batch into two files, or into one for each type."""
    if query.by_type:
        parts = {name: [event for event in events if event.type == name] for name in pack.types}
        for name, mine in parts.items():
            write(table(mine, [pack.types[name]], query, type=False), folder / name / f"{number:03}.parquet", number)
        return
    middle = rng.randint(0, len(events))
    for part, some in enumerate((events[:middle], events[middle:])):
        whole = table(some, pack.types.values(), query)
        write(whole, folder / "events" / f"{number:03}-{part}.parquet", number)


def write(table: pa.Table, path: Path, number: int) -> None:
    """Write a file and set its modification time, as Spark reads the oldest file first."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path)
    moment = time.time() - 3600 + number * 60
    os.utime(path, (moment, moment))


def options(query: Query) -> dict[str, object]:
    return {
        "slots": query.slots,
        "id": "id" if query.named else None,
        **({} if query.timestamps else {"ts_unit": "us"}),
    }


@contextmanager
def conf(spark: SparkSession, partitions: int | None = None) -> Iterator[None]:
    """Set the number of shuffle partitions of the session."""
    name = "spark.sql.shuffle.partitions"
    before = spark.conf.get(name)
    spark.conf.set(name, str(partitions or before))
    try:
        yield
    finally:
        spark.conf.set(name, before)


@contextmanager
def cold(spark: SparkSession) -> Iterator[None]:
    """Give each task a new Python worker, so that nothing is cached in memory."""
    settings = spark.sparkContext._conf  # of the running context, read for each task
    settings.set("spark.python.worker.reuse", "false")
    try:
        yield
    finally:
        settings.set("spark.python.worker.reuse", "true")


def alone(path: Path, way: str, slots: int) -> bool:
    """Run one case from a file, and print whether its matches are correct."""
    case = read_case(path)
    pack = Pack({case.rules[0].name.split("_")[0]: case})
    named = bool(case.events) and case.events[0].id is not None
    query = Query("alone", 0, slots, named=named, batches=min(3, len(case.events)))
    if way == "embedded":
        found = embedded(pack)
    else:
        spark = tocsin.spark.session("local[2]")
        with tempfile.TemporaryDirectory() as folder:
            found = {"batch": batch, "stream": stream}[way](spark, pack, query, Path(folder) / "case")
    wrong = "\n".join(pack.wrong(found).values())
    print(wrong or f"{len(found)} matches, all correct")
    return not wrong


if __name__ == "__main__":
    file, way, slots = sys.argv[1:]
    sys.exit(not alone(Path(file), way, int(slots)))
