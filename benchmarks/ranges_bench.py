"""Measure the cost of moving queries that follow the cars of a city's trace; print a table and plot it.

1,000 cars drive for 1,000 s and publish about 250 events/s; each query asks for accidents in a rectangle of 300 m
around its car, of the last 30 s, and moves every 10 s. *Own*: each query follows a car of its own. *Shared*: all follow
the same 100 cars, so that ranges coincide. Runs on Spark `local[2]`, over Parquet; then the stream, in a few
micro-batches. Rows have what a map needs; *with all* also ids and the events that accidents are made of. Beside the
time on the clock stands that of the processors, which other programs disturb less.

    python benchmarks/ranges_bench.py [--seconds 1000] [--cars 1000] [--queries 1000] [--plot FILE] [--only own]

Exits with 1 if the whole number of queries is not 20 times as fast as real time, or if shared ranges cost as much as
own ones.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import tocsin
import tocsin.spark
from on_spark.plots import axes, save
from tocsin.events.types import SECOND_US
from tocsin.simulation.car_traces import RULES, Trace, street_trace

EVERY_S = 10
SHARED = 100
FASTER = 20
PARTS = 8
"""Files of events, and micro-batches of the stream."""
COLUMNS = ("query", "range", "rule", "ts", "x", "y")
"""The columns that a map needs: accidents, without the events of each match."""
POSITION = "event Position(car: string, x: double, y: double)\n"
MORE = f"range rectangle 300 m by 300 m lifetime 30 s update every {EVERY_S} s"


def queries(count: int, objects: int) -> tocsin.RuleSet:
    """Return this many queries, which follow this many cars."""
    lines = [f'interest Near_{n} of Accident around Position(car="c{n % objects}") {MORE}\n' for n in range(count)]
    return tocsin.rules(POSITION + RULES + "".join(lines))


def write(trace: Trace, folder: Path, seconds: int) -> None:
    """Write the trace as Parquet: events and location updates, in files of equally many seconds."""
    events = trace.events
    table = pa.table(
        {
            "type": [event.type for event in events],
            "ts": pa.array([event.ts for event in events], pa.timestamp("us", "UTC")),
            "id": [event.id for event in events],
            "car": [event.attributes["car"] for event in events],
            **{
                name: pa.array([event.attributes.get(name) for event in events], pa.float64())
                for name in ("a", "angle", "x", "y")
            },
        }
    )
    places = sorted(
        (second, car, *at) for car, way in trace.ways.items() for second, at in way if second % EVERY_S == 0
    )
    second, car, x, y = (list(column) for column in zip(*places, strict=True))
    ts = pa.array([SECOND_US * one for one in second], pa.timestamp("us", "UTC"))
    ids = [f"p{one}.{when}" for one, when in zip(car, second, strict=True)]
    locations = pa.table({"ts": ts, "id": ids, "car": car, "x": x, "y": y})
    for name, whole in (("events", table), ("locations", locations)):
        (folder / name).mkdir()
        times = whole["ts"].cast(pa.int64()).to_numpy()
        for part in range(PARTS):
            low, high = (SECOND_US * seconds * at // PARTS for at in (part, part + 1))
            path = folder / name / f"{part}.parquet"
            pq.write_table(whole.filter(pa.array((low <= times) & (times < high))), path)
            moment = time.time() - 3600 + 60 * part
            os.utime(path, (moment, moment))


@dataclass
class Took:
    """The times of a run, and the size of its result."""

    clock_s: float
    processors_s: float
    ranges: int
    matches: int

    def line(self, kind: str, count: int, seconds: int) -> str:
        figures = f"{self.clock_s:>10.1f}{self.processors_s:>10.1f}{self.ranges:>10,}{self.matches:>12,}"
        return f"{kind:<9}{count:>8,}{figures}{seconds / self.clock_s:>13.1f}"


def processors_s() -> float:
    """Return the CPU time so far of this process and its children."""
    used: dict[int, tuple[int, float]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = path.read_text().rpartition(")")[2].split()
            # Also of children that have ended, if their parent waited for them.
            used[int(path.parent.name)] = int(fields[1]), sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    mine, total = {os.getpid()}, 0.0
    while found := {process for process, (parent, _) in used.items() if parent in mine} - mine:
        mine |= found
    for process in mine:
        total += used[process][1] if process in used else 0.0
    return total


def table_took(
    spark: SparkSession, ruleset: tocsin.RuleSet, folder: Path, select: Sequence[str] | None = COLUMNS
) -> Took:
    """Run the trace as a table; `select`: the columns of the result, or all."""
    begin, before = time.perf_counter(), processors_s()
    events, locations = (spark.read.parquet(str(folder / name)) for name in ("events", "locations"))
    rows = ruleset.detect(events, locations=locations, slots=2, select=select)
    found = rows.groupBy("rule").agg(F.count("*").alias("count"), F.max(F.struct(*rows.columns))).collect()
    clock_s, used_s = time.perf_counter() - begin, processors_s() - before
    counts = {row["rule"]: row["count"] for row in found}
    return Took(clock_s, used_s, counts.pop(None, 0), sum(counts.values()))


def stream_took(spark: SparkSession, ruleset: tocsin.RuleSet, folder: Path) -> Took:
    """Run the trace as a stream."""
    begin, before = time.perf_counter(), processors_s()
    reader = spark.readStream.option("maxFilesPerTrigger", 1)
    frames = [
        reader.schema(spark.read.parquet(str(folder / name)).schema).parquet(str(folder / name))
        for name in ("events", "locations")
    ]
    counts: dict[int, dict[str | None, int]] = {}

    def count(frame: DataFrame, number: int) -> None:
        counts[number] = {row["rule"]: row["count"] for row in frame.groupBy("rule").count().collect()}

    with tempfile.TemporaryDirectory() as checkpoint:
        found = ruleset.detect(frames[0], locations=frames[1], slots=2)
        writer = found.writeStream.option("checkpointLocation", checkpoint).foreachBatch(count)
        running = writer.trigger(availableNow=True).start()
        running.awaitTermination()
    ranges = sum(found.pop(None, 0) for found in counts.values())
    matches = sum(sum(found.values()) for found in counts.values())
    return Took(time.perf_counter() - begin, processors_s() - before, ranges, matches)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=1000)
    parser.add_argument("--cars", type=int, default=1000)
    parser.add_argument("--queries", type=int, default=1000)
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--only", choices=("own", "shared", "stream", "largest"))
    options = parser.parse_args()
    trace = street_trace(options.cars, options.seconds, 1)
    print(f"{len(trace.events):,} events of {options.cars:,} cars in {options.seconds:,} s")
    spark = tocsin.spark.session("local[2]")
    steps = [options.queries * n // 8 for n in ((8,) if options.only == "largest" else (1, 2, 4, 8))]
    objects = {"own": options.cars, "shared": min(SHARED, steps[0])}
    took: dict[str, list[Took]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(trace, folder, options.seconds)
        table_took(spark, queries(10, 10), folder)  # so that Spark and its workers are warm
        header = f"{'':<9}{'queries':>8}{'seconds':>10}{'CPU s':>10}{'ranges':>10}{'matches':>12}"
        print(f"{header}{'× real time':>13}")
        for kind, count in ((kind, count) for kind in objects for count in steps):
            if options.only in (None, kind) or (options.only == "largest" and kind == "own"):
                took.setdefault(kind, []).append(table_took(spark, queries(count, objects[kind]), folder))
                print(took[kind][-1].line(kind, count, options.seconds), flush=True)
        if options.only in (None, "largest"):
            found = table_took(spark, queries(options.queries, options.cars), folder, None)
            print(found.line("with all", options.queries, options.seconds), flush=True)
        if options.only in (None, "stream"):
            found = stream_took(spark, queries(options.queries, options.cars), folder)
            print(found.line("stream", options.queries, options.seconds), flush=True)
    spark.stop()
    return report(took, steps, options)


def report(took: dict[str, list[Took]], steps: list[int], options: argparse.Namespace) -> int:
    """Print which bounds hold; return 1 if one does not."""
    failed = False
    if "own" in took:
        last = took["own"][-1]
        speed = options.seconds / last.clock_s
        alone = options.seconds / (last.processors_s / 2)
        failed |= speed < FASTER
        print(f"{steps[-1]:,} queries: {speed:.1f} times as fast as real time (bound {FASTER}); ", end="")
        print(f"{alone:.1f} times if two processors did nothing else")
    growth = {kind: found[-1].processors_s / found[0].processors_s for kind, found in took.items() if len(found) > 1}
    if len(growth) == 2:
        failed |= growth["shared"] >= growth["own"]
        print(f"8 times the queries: own ranges {growth['own']:.2f}, shared {growth['shared']:.2f} times the CPU time")
    if options.plot is not None and growth:
        figure, ax = axes("queries", "CPU seconds")
        for kind, found in took.items():
            ax.plot(steps, [one.processors_s for one in found], "o-", label=f"{kind} ranges")
        ax.set_ylim(0)
        ax.legend(frameon=False)
        print(save(figure, options.plot))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
