"""Spark with two cores, on the same events in Parquet: this project as a batch and as a stream, and a query by hand.

Ways: `window` is W1 last in Spark SQL by hand, with its filter in front (benchmarks/on_spark/batches.py); `alike` is
this project with the same three columns; `batch` with whole matches. All write to a sink that throws rows away; what
they have is counted apart. Tables and streams are six files, each with all events, an hour after those of the one
before: what a query costs whatever is in its table is a second, and a table of 2 million events would tell little else.
Times and matches are those of one file.

`stream` (whole matches) and `stream-alike` (those three columns) read one file in each micro-batch. The time is the
median of micro-batches after the first two, with all that a micro-batch costs: plan, offsets, state store, checkpoint.
That price hardly depends on what is in a micro-batch, and a backlog, or a stream that is faster than Spark, comes in
large ones; so files grow, in turns that also warm the session, up to all events (2 million of W1) or as many as a
turn's seconds allow. With little in a micro-batch the rate is less: `pace` and benchmarks/on_spark/streams.py look at
that side.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark import __version__ as spark_version
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import tocsin
from on_spark.batches import window
from on_spark.bench import SLOTS, Bench, batch_ms, matches_of, sink
from peers import files
from peers.embedded import ALIKE, CHECKED
from peers.orders import UNCHECKED, Found, latency, serve
from peers.processes import cpu_s
from tocsin.spark import session
from workloads import WORKLOADS

ROW_GROUPS = 8
FILES, SKIPPED = 6, 2
WAKING = 1_000
"""Spark ends Python workers after an idle minute, so a warm-up before each turn reads this many events."""
PAUSE_US = 3_600_000_000
PACE_FILE_S = 0.25
"""The interval in seconds of writing files, at a rate."""


class Spark:
    """A session, and files of the first `count` events."""

    def __init__(self, path: Path, workload: str, way: str, folder: Path) -> None:
        settings = {"spark.driver.memory": "3g", "spark.network.timeout": "10h"}  # it stands still between its turns
        self.spark = session(f"local[{SLOTS}]", settings, slots=SLOTS)
        self.spark.conf.set("spark.sql.streaming.noDataMicroBatches.enabled", "false")
        self._rules, self._way, self._folder = tocsin.rules(WORKLOADS[workload].rules), way, folder
        self._events = files.read(path, files.layout(workload))
        self._checked = CHECKED[workload.split()[0]]
        self._found: dict[int, Found] = {}
        self._bench = Bench(self.spark, None, folder, sys.stderr)  # type: ignore[arg-type]
        self._count = 0

    def _files(self, count: int) -> Path:
        """Return a folder of files with the same first events, each an hour later than the previous file."""
        folder = self._folder / str(count)
        if not folder.exists():
            folder.mkdir()
            some = self._events.slice(0, count)
            ts = some["ts"].cast(pa.int64())
            span = pc.max(ts).as_py() - pc.min(ts).as_py() + PAUSE_US
            at = some.column_names.index("ts")
            for number in range(FILES + 1):
                copy = some if number < FILES else _alone(some)
                later = pc.add(copy["ts"].cast(pa.int64()), number * span).cast(copy["ts"].type)
                path = folder / f"{number:03}.parquet"
                pq.write_table(copy.set_column(at, "ts", later), path, row_group_size=max(1, count // ROW_GROUPS))
                os.utime(path, (1_700_000_000 + number,) * 2)
        return folder

    def _frame(self, rows: DataFrame) -> DataFrame:
        if self._way == "window":
            return window(rows)
        return self._rules.detect(rows, slots=SLOTS, select=ALIKE if self._way.endswith("alike") else None)

    # ---- tables

    def batch(self, count: int) -> Callable[[], Any]:
        """Run a turn over a table of all files."""
        frame = self._frame(self.spark.read.parquet(str(self._files(count))))
        self._count = count
        if count not in self._found:
            hundredths = F.sum(F.round(F.col(self._checked) * 100))
            row = frame.agg(F.count("*").alias("matches"), hundredths.alias("sum")).first()
            assert row is not None
            self._found[count] = int(row["matches"]), int(row["sum"] or 0)
        sink(self._frame(self.spark.read.parquet(str(self._files(WAKING)))))
        return lambda: sink(frame)

    def found(self, _: object) -> Found:
        """Return the counted rows of the query in one file, or in all if files differ."""
        matches, total = self._found[self._count]
        return (matches, total) if matches % FILES or total % FILES else (matches // FILES, total // FILES)

    # ---- streams

    def stream(self, count: int) -> Callable[[], list[dict[str, Any]]]:
        """Run a turn over files, one in each micro-batch."""
        frame = self._frame(self._read(self._files(count)))
        return lambda: self._bench.progress(frame)

    def _read(self, folder: Path) -> DataFrame:
        empty = self._folder / "empty.parquet"
        if not empty.exists():
            pq.write_table(self._events.slice(0, 0), empty)
        schema = self.spark.read.parquet(str(empty)).schema
        return self.spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(folder))

    def pace(self, count: int, rate: float) -> dict[str, float]:
        """Measure latencies of a stream of small files, each with the events since the previous one."""
        folder = Path(tempfile.mkdtemp(dir=self._folder))
        events = self._events.slice(0, count)
        ts = events["ts"].cast(pa.int64()).to_numpy()
        late: list[Any] = []
        start = 0.0

        def take(rows: DataFrame, _: int) -> None:
            found = rows.select("ts").toArrow()["ts"].cast(pa.int64()).to_numpy()
            late.append((time.perf_counter() - start) * 1e6 - np.searchsorted(ts, found) * 1e6 / rate)

        def write() -> None:
            done = 0
            while done < count:
                time.sleep(PACE_FILE_S)
                there = min(count, int((time.perf_counter() - start) * rate))
                part = folder.parent / "part"
                pq.write_table(events.slice(done, there - done), part)
                part.rename(folder / f"{done:09}.parquet")
                done = there

        stream = self._rules.detect(
            self.spark.readStream.schema(self._read(folder).schema).parquet(str(folder)), slots=SLOTS
        )
        query = stream.writeStream.foreachBatch(take).option("checkpointLocation", f"{folder}.checkpoint").start()
        start = time.perf_counter()
        writer = threading.Thread(target=write)
        writer.start()
        writer.join()
        query.processAllAvailable()
        query.stop()
        return latency(np.concatenate(late))


def _alone(events: pa.Table) -> pa.Table:
    """One more event that passes the filters lets all before it settle: the first Smoke, in an area of its own. Where
    there are no areas there is no stream either, and none is needed.
    """
    if "area" not in events.column_names:
        return events.slice(0, 0)
    row = events.filter(pc.equal(events["type"], "Smoke")).slice(0, 1)
    return row.set_column(row.column_names.index("area"), "area", pa.array(["nowhere"]))


def settled(reports: list[dict[str, Any]]) -> Found:
    """Return the matches of one file, or of all if files differ, which is then reported as wrong."""
    total = matches_of(reports)
    return (total if total % FILES else total // FILES), UNCHECKED


def a_batch_s(reports: list[dict[str, Any]]) -> float:
    """Return the median seconds of a micro-batch."""
    return median(batch_ms(reports[SKIPPED:FILES])) / 1e3


def used_s() -> float:
    """Return the processor time of this process, of Spark and its workers."""
    return cpu_s(os.getpid())


def main() -> None:
    path, workload, way, _ = sys.argv[1:]
    with tempfile.TemporaryDirectory(prefix="tocsin-peers-", ignore_cleanup_errors=True) as folder:
        on = Spark(Path(path), workload, way, Path(folder))
        version = f"Spark {spark_version}"
        if way.startswith("stream"):
            serve(version, on.stream, settled, on.pace, seconds=a_batch_s, used_s=used_s, copies=FILES)
        else:
            serve(version, on.batch, on.found, used_s=used_s, copies=FILES)
        on.spark.stop()


if __name__ == "__main__":
    main()
