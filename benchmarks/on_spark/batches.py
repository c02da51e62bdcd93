"""Batch queries: W1 beside plain Spark on the same file, W2, W3, and the bytes of the shuffle.

`identity` hands every row to Python and takes it back: what any engine in Python pays that filters there. `window` is
the rule W1 last in Spark SQL by hand, with its filter in front: the last hot Temp up to a Smoke, looked for in all that
came before (a running value, which is faster than a frame of five minutes), then held against the five minutes.
`grouped` is the same by hand in Python, area by area. Both have three columns, so the one held against them is
`W1 last alike`, with just these three.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

import tocsin
from on_spark.bench import SLOTS, Bench, Report, sink
from on_spark.sources import tables
from workloads import FIRE_RULES, WORKLOADS

WINDOW_US = 300_000_000
IDENTITY_LEAST = 1.5
WINDOW_LEAST = 1.0
HOT_OR_SMOKE = "type = 'Smoke' OR (type = 'Temp' AND value > 45)"

_groups = count()


def same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Return each row unchanged."""
    yield from batches


def window(rows: DataFrame) -> DataFrame:
    """W1 last in Spark SQL."""
    so_far = Window.partitionBy("area").orderBy("ts").rowsBetween(Window.unboundedPreceding, Window.currentRow)
    temp = F.when(F.col("type") == "Temp", F.struct("ts", "value"))
    found = rows.where(HOT_OR_SMOKE).withColumn("temp", F.last(temp, ignorenulls=True).over(so_far))
    matched = found.where("type = 'Smoke' AND temp.ts >= ts - INTERVAL 5 MINUTES")
    return matched.selectExpr("ts", "area", "temp.value AS temp")


def grouped(rows: DataFrame) -> DataFrame:
    """W1 last in Python, a table for each area."""

    def last(table: pa.Table) -> pa.Table:
        table = table.sort_by("ts")
        ts = table["ts"].cast(pa.int64()).to_numpy()
        smoke = table["type"].to_numpy(zero_copy_only=False) == "Smoke"
        latest = np.maximum.accumulate(np.where(smoke, -1, np.arange(len(ts))))
        matched = np.flatnonzero(smoke & (latest >= 0) & (ts - ts[latest] <= WINDOW_US))
        value = table["value"].take(latest[matched])
        return pa.table({"ts": table["ts"].take(matched), "area": table["area"].take(matched), "temp": value})

    return rows.where(HOT_OR_SMOKE).groupBy("area").applyInArrow(last, "ts timestamp, area string, temp double")


def embedded(text: str, path: Path) -> int:
    """Return the number of matches of the engine in this process."""
    detector = tocsin.rules(text).detector(ordered=True)
    return sum(detector.push(table).num_rows for table in tables(path)) + detector.finish().num_rows


def measure(bench: Bench) -> Report:
    """Measure the rates on tables."""
    fire = bench.spark.read.parquet(str(bench.sources.fire()))
    events = bench.sources.events
    last = tocsin.rules(FIRE_RULES["last"])
    runs: dict[str, DataFrame] = {
        "identity": fire.mapInArrow(same, fire.schema),
        "window": window(fire),
        "grouped": grouped(fire),
        "W1 last alike": last.detect(fire, slots=SLOTS, select=("ts", "area", "temp")),
        **{f"W1 {name}": tocsin.rules(text).detect(fire, slots=SLOTS) for name, text in FIRE_RULES.items()},
    }
    bench.say(f"batch: {events:,} events of W1 in one Parquet file, {SLOTS} slots")
    expected = {f"W1 {name}": embedded(text, bench.sources.fire()) for name, text in FIRE_RULES.items()}
    expected |= {
        "identity": events,
        **dict.fromkeys(("window", "grouped", "W1 last alike"), expected["W1 last"]),
    }
    report = _rates(bench, runs, expected, events)
    seconds = {name: found["seconds"] for name, found in report.items()}
    bench.say(f"  rate of W1 last to window: {seconds['window'] / seconds['W1 last']:.2f} times")
    for name, other, least in (
        ("W1 last", "identity", IDENTITY_LEAST),
        ("W1 last alike", "window", WINDOW_LEAST),
    ):
        ratio = seconds[other] / seconds[name]
        report[f"to {other}"] = bench.bound(f"rate of {name} to {other}", ratio, least=least)
    bench.say()

    for name, path in (("W2", bench.sources.sequences()), ("W3", bench.sources.filters())):
        rows = bench.spark.read.parquet(str(path))
        text = WORKLOADS[name].rules
        bench.say(f"batch: {events // 5:,} events of {name}, {len(tocsin.rules(text)):,} rules")
        others = {
            f"{name} identity": rows.mapInArrow(same, rows.schema),
            name: tocsin.rules(text).detect(rows, slots=SLOTS),
        }
        right = {f"{name} identity": events // 5, name: embedded(text, path)}
        report |= _rates(bench, others, right, events // 5)
        bench.say()
    return report


def _rates(bench: Bench, runs: dict[str, DataFrame], expected: dict[str, int], events: int) -> Report:
    found = {name: frame.count() for name, frame in runs.items()}
    seconds = bench.alternate({name: (lambda frame=frame: sink(frame)) for name, frame in runs.items()})
    report: Report = {}
    for name, taken in seconds.items():
        report[name] = {"seconds": taken, "events_per_s": events / taken, "rows": found[name]}
        bench.say(f"  {name:22} {taken:8.2f} s   {events / taken / 1e6:6.2f} M events/s   {found[name]:>10,} rows")
        bench.check(name, found[name], expected[name])
    return report


def measure_shuffle(bench: Bench) -> Report:
    """Return the shuffled bytes from Spark's metrics."""
    fire = bench.spark.read.parquet(str(bench.sources.fire()))
    ours = tocsin.rules(FIRE_RULES["last"]).detect(fire, slots=SLOTS)
    bench.say(f"shuffle: bytes written for W1 last over {bench.sources.events:,} events")
    written = {
        "all rows": shuffle_bytes(bench, lambda: sink(fire.repartition(SLOTS, "area"))),
        "rows that pass the filter": shuffle_bytes(
            bench, lambda: sink(fire.where(HOT_OR_SMOKE).repartition(SLOTS, "area"))
        ),
        "window": shuffle_bytes(bench, lambda: sink(window(fire))),
        "ours": shuffle_bytes(bench, lambda: sink(ours)),
    }
    for name, size in written.items():
        bench.say(f"  {name:26} {size:>14,} bytes   {size / written['all rows']:8.4f} of all rows'")
    bench.say()
    return written


def shuffle_bytes(bench: Bench, run: Callable[[], object]) -> int:
    """Return the bytes that the stages of a run wrote for later stages."""
    context = bench.spark.sparkContext
    group = f"tocsin-bench-{next(_groups)}"
    context.setJobGroup(group, group)
    try:
        run()
    finally:
        context.setLocalProperty("spark.jobGroup.id", None)
    java = context._jsc.sc()
    java.listenerBus().waitUntilEmpty()
    tracker = context.statusTracker()
    stages = {stage for job in tracker.getJobIdsForGroup(group) for stage in tracker.getJobInfo(job).stageIds}
    return sum(java.statusStore().lastStageAttempt(stage).shuffleWriteBytes() for stage in stages)
