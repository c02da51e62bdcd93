"""Streams: measure W1 last with a file in each micro-batch, with a million rows and with one row.

Micro-batches have a price of their own: Spark plans, starts tasks, commits state. It is measured with files of a single
row, after two full ones so that there is state; and so is that of the same query around an operator that does nothing:
same source, one row for each slot in place of packing, the same state variables, never used.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor

import tocsin
from on_spark.bench import RUNS, SLOTS, Bench, Report, batch_ms, matches_of, seconds, sink
from on_spark.sources import EMPTY_FULL_FILES, FILES, tables
from tocsin.events.reader import Columns
from tocsin.spark.blocks import BLOCK_DDL, WATERMARK, ShuffleBlock, to_record_batch
from tocsin.spark.job import labels
from tocsin.spark.source import prepare
from workloads import FIRE_RULES

SKIPPED = 2
"""The first micro-batches, which start workers and compile, are skipped."""
NET_LEAST, GROSS_LEAST = 0.6, 0.35
EMPTY_MOST = 1.5


class Nothing(StatefulProcessor):  # type: ignore[misc]
    """Declares the state of a slot and never uses it."""

    def init(self, handle: Any) -> None:
        self._head = handle.getValueState("head", "token string, largest bigint, timer bigint, head binary")
        self._segments = handle.getMapState("segments", "number bigint", "segment binary")
        self._layout = handle.getValueState("layout", "layout string")

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:
        for _ in rows:
            pass
        yield pd.DataFrame({"payload": [b""]})

    def close(self) -> None:
        pass


def a_row_for_each_slot(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for _ in batches:
        pass
    yield to_record_batch([ShuffleBlock(label, WATERMARK, None, None, None) for label in labels(SLOTS)])


def same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


def nothing(events: DataFrame, *, reported: bool) -> DataFrame:
    """Return the query with an operator that does nothing. `reported`: with the last stage, which decodes payloads."""
    source, job = prepare(tocsin.rules(FIRE_RULES["last"])._plan, events, Columns(), 0, SLOTS, None, None)
    blocks = source.with_watermark(job.types).mapInArrow(a_row_for_each_slot, BLOCK_DDL)
    done = blocks.groupBy("slot").transformWithStateInPandas(Nothing(), "payload binary", "Append", "EventTime")
    if not reported:
        return done
    return done.mapInArrow(same, "payload binary").observe("nothing", F.collect_list("payload").alias("slots"))


def measure(bench: Bench) -> Report:
    """Measure the rates of a stream, and the fixed cost of a micro-batch."""
    bench.spark.conf.set("spark.sql.streaming.noDataMicroBatches.enabled", "false")
    rules = tocsin.rules(FIRE_RULES["last"])
    full, empty = bench.sources.fire_files(), bench.sources.fire_empty()
    table = bench.spark.read.parquet(str(full))
    reader = bench.spark.readStream.schema(table.schema).option("maxFilesPerTrigger", 1)
    queries = {
        "full": (rules.detect(reader.parquet(str(full)), slots=SLOTS), SKIPPED),
        "empty": (rules.detect(reader.parquet(str(empty)), slots=SLOTS), EMPTY_FULL_FILES + 1),
        "nothing": (nothing(reader.parquet(str(empty)), reported=True), EMPTY_FULL_FILES + 1),
        "nothing, without a report": (nothing(reader.parquet(str(empty)), reported=False), EMPTY_FULL_FILES + 1),
    }
    batch = rules.detect(table, slots=SLOTS)
    batch.count()
    events = sum(pq.read_metadata(file).num_rows for file in full.iterdir())
    a_file = events // FILES
    bench.say(f"stream: W1 last, {FILES} micro-batches of {a_file:,} events, and micro-batches of one event")
    expected = settled(full)

    medians: dict[str, list[float]] = {name: [] for name in queries}
    batches_s: list[float] = []
    parts: dict[str, list[float]] = {}
    for _ in range(RUNS):
        batches_s.append(seconds(lambda: sink(batch)))
        for name, (frame, skipped) in queries.items():
            reports = bench.progress(frame)
            medians[name].append(median(batch_ms(reports[skipped:])))
            if name == "full":
                bench.check("the stream", matches_of(reports), expected)
            if name == "empty":
                for part in reports[-1]["durationMs"]:
                    found = median(progress["durationMs"].get(part, 0) for progress in reports[skipped:])
                    parts.setdefault(part, []).append(found)
    ms = {name: median(found) for name, found in medians.items()}
    batch_s = median(batches_s)
    rate = events / batch_s
    for name, found in ms.items():
        bench.say(f"  micro-batch, {name:26} {found:8.0f} ms")
    inside = ", ".join(f"{part} {median(found):.0f}" for part, found in parts.items() if part != "triggerExecution")
    bench.say(f"  of an empty one of ours: {inside}")
    bench.say(f"  the same events as a table {batch_s:8.2f} s   {rate / 1e6:6.2f} M events/s")
    net = a_file / max(1e-3, (ms["full"] - ms["empty"]) / 1e3)
    gross = a_file / (ms["full"] / 1e3)
    bench.say(f"  a stream {gross / 1e6:.2f} M events/s, {net / 1e6:.2f} M without the price of a micro-batch")
    report = {
        "ms": ms,
        "empty_parts_ms": {part: median(found) for part, found in parts.items()},
        "batch_events_per_s": rate,
        "net_events_per_s": net,
        "gross_events_per_s": gross,
        "net": bench.bound("stream without that price, to batch", net / rate, least=NET_LEAST),
        "gross": bench.bound("stream to batch", gross / rate, least=GROSS_LEAST),
        "empty": bench.bound("empty micro-batch to one of nothing", ms["empty"] / ms["nothing"], most=EMPTY_MOST),
    }
    bench.say()
    return report


def settled(path: Path) -> int:
    """Return the matches that a stream reports at its end; the last selected event is still buffered."""
    detector = tocsin.rules(FIRE_RULES["last"]).detector(ordered=True)
    *others, last = tables(path)
    wanted = pc.fill_null(pc.or_kleene(pc.equal(last["type"], "Smoke"), pc.greater(last["value"], 45)), False)
    before = last.slice(0, int(np.flatnonzero(wanted.to_numpy())[-1]))
    return sum(detector.push(table).num_rows for table in (*others, before)) + detector.finish().num_rows
