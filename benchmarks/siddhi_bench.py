"""Compare thousands of queries with Siddhi itself: VISIRI's generated queries, in one run.

Siddhi (5.1.30, through Maven; a JDK is needed) has one runtime for each query, as in VISIRI's paper, behind a table of
who reads a stream, and only counts its rows. Ours are embedded, and on Spark with two cores, reading Parquet; they make
tables of what Siddhi's callbacks get: time and values. All get the same events, in turn, and the rows of each query
are compared. Siddhi is handed objects that are made before, with the number of their stream; ours an Arrow table, with
the names of streams as a dictionary. Siddhi keeps its windows from one turn to the next, as our detector does; Spark
starts fresh each time, and its time has the start of two stages in it, some 0.3 s.

    python benchmarks/siddhi_bench.py [--queries 1000] [--streams 1000] [--events 8000000] [--no-spark]
    python benchmarks/siddhi_bench.py --load           # 10,000 queries over 1,000 streams, on Spark alone
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import IO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import tocsin
from tocsin.datasets import ATTRIBUTES, stream_events, stream_types
from tocsin.language.siddhi.ast import Query
from tocsin.language.siddhi.printer import print_definition, print_query
from tocsin.studies.visiri_queries import as_text, generated

HERE = Path(__file__).resolve().parent
WARM, TURNS, TIMES = 2, 5, 2
"""Turns that are not counted and those that are; in each an engine runs so many times, of which the last counts: what
it holds in memory is cold when others had their turns.
"""
EMBEDDED_LEAST, SPARK_LEAST = 20.0, 3.0
LOAD_MOST_S = 20.0
SELECT = ("rule", "ts", *ATTRIBUTES[:3])


class Siddhi:
    """Siddhi in a separate process, with one runtime for each query."""

    def __init__(self, queries: list[Query], events: pa.Table, streams: int, folder: Path) -> None:
        definitions = {stream.name: print_definition(stream) for stream in stream_types(streams)}
        with (folder / "applications").open("w") as written:
            for query in queries:
                (source,) = query.sources
                text = f"{definitions[source.pattern.type]} {print_query(query)}".replace("\n", " ")
                print(_number(source.pattern.type), query.emits.name, text, sep="\t", file=written)
        rows = np.zeros(events.num_rows, [("stream", "<i4"), ("ms", "<i8"), ("values", "<f8", len(ATTRIBUTES))])
        types = events["type"].dictionary_encode().combine_chunks()
        rows["stream"] = np.array([_number(name) for name in types.dictionary.to_pylist()])[types.indices.to_numpy()]
        rows["ms"] = events["ts"].cast(pa.int64()).to_numpy() // 1000
        for at, name in enumerate(ATTRIBUTES):
            rows["values"][:, at] = events[name].to_numpy()
        rows.tofile(folder / "events")
        java = Path(_output(HERE.parent / "scripts" / "java.sh")) / "bin" / "java"
        pom, path = HERE / "siddhi" / "pom.xml", folder / "classpath"
        _output("mvn", "-B", "-ntp", "-q", "-f", pom, "dependency:build-classpath", f"-Dmdep.outputFile={path}")
        given = folder / "applications", folder / "events"
        self._process = subprocess.Popen(
            [java, "-Xmx6g", "-cp", path.read_text(), HERE / "siddhi" / "OneRuntimePerQuery.java", *given],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self._names = [query.name for query in queries]
        self.loaded = float(self._answer()[1])

    def send(self, threads: int) -> tuple[float, Counter[str]]:
        """Send all events and return the seconds, and the rows of each query."""
        orders: IO[str] | None = self._process.stdin
        assert orders is not None
        print(threads, file=orders, flush=True)
        _, seconds, *rows = self._answer()
        return float(seconds), Counter({name: int(n) for name, n in zip(self._names, rows, strict=True) if int(n)})

    def stop(self) -> None:
        """End the process."""
        self._process.communicate()

    def _answer(self) -> list[str]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline().split()
        if not line:
            raise SystemExit("Siddhi ended early")
        return line


class Embedded:
    """The detector in this process; each turn shifts the events by a whole span."""

    def __init__(self, queries: list[Query], events: pa.Table, streams: int) -> None:
        start = perf_counter()
        self._detector = tocsin.rules(as_text(queries, inputs=streams), language="siddhi").detector()
        self._detector.select, self._detector.without_ids = SELECT, True
        self._detector.push(events.slice(0, 0))
        self.loaded = perf_counter() - start
        self._events = events.set_column(0, "type", events["type"].dictionary_encode())
        self._turn = 0
        ts = events["ts"].cast(pa.int64())
        self._span = pc.max(ts).as_py() - pc.min(ts).as_py() + 1

    def send(self) -> tuple[float, Counter[str]]:
        ts = pc.add(self._events["ts"].cast(pa.int64()), self._turn * self._span).cast(self._events["ts"].type)
        events = self._events.set_column(self._events.column_names.index("ts"), "ts", ts)
        self._turn += 1
        last = pc.max(events["ts"].cast(pa.int64())).as_py()
        start = perf_counter()
        found = self._detector.push(events)
        rest = self._detector.advance(last + 1)  # else the last moment would wait for more events
        seconds = perf_counter() - start
        return seconds, _by_rule(found) + _by_rule(rest)


class OnSpark:
    """Ours on Spark, from a Parquet file to rows that are thrown away. The session has run two of the queries before:
    loading is that of queries, not of Spark and its Python workers.
    """

    def __init__(self, queries: list[Query], events: pa.Table, streams: int, folder: Path) -> None:
        from tocsin.spark import session

        self._spark = session("local[2]", {"spark.driver.memory": "2g"}, slots=2)
        pq.write_table(events, folder / "events.parquet", row_group_size=1 << 17)
        events_there = self._spark.read.parquet(str(folder / "events.parquet"))
        first = tocsin.rules(as_text(queries[:2], inputs=streams), language="siddhi")
        first.detect(events_there, slots=2).write.format("noop").mode("overwrite").save()
        start = perf_counter()
        rules = tocsin.rules(as_text(queries, inputs=streams), language="siddhi")
        self._found = rules.detect(events_there, slots=2, select=SELECT)
        self.loaded = perf_counter() - start

    def send(self) -> float:
        start = perf_counter()
        self._found.write.format("noop").mode("overwrite").save()
        return perf_counter() - start

    def rows(self) -> Counter[str]:
        return Counter({row["rule"]: row["count"] for row in self._found.groupBy("rule").count().collect()})

    def stop(self) -> None:
        self._spark.stop()


def _number(stream: str) -> int:
    return int(stream.removeprefix("stream"))


def _by_rule(found: pa.Table) -> Counter[str]:
    return Counter({row["values"]: row["counts"] for row in pc.value_counts(found["rule"]).to_pylist()})


def _output(*command: object) -> str:
    return subprocess.run([str(part) for part in command], check=True, capture_output=True, text=True).stdout.strip()


def compare(queries: int, streams: int, count: int, folder: Path, *, spark: bool) -> bool:
    """Print the table and return whether the bounds hold and the rows are equal."""
    some, events = generated(queries, "mixed", inputs=streams), stream_events(count, streams=streams)
    siddhi, embedded = Siddhi(some, events, streams, folder), Embedded(some, events, streams)
    ours = OnSpark(some, events, streams, folder) if spark else None
    taken: dict[str, list[float]] = {}
    rows: dict[str, Counter[str]] = {}
    same = True
    for turn in range(WARM + TURNS):
        found: dict[str, float] = {}
        once = [siddhi.send(1) for _ in range(TIMES)]
        again = [embedded.send() for _ in range(TIMES)]
        for (_, expected), (_, mine) in zip(once, again, strict=True):
            rows.setdefault("first", expected)
            same &= _same(f"embedded, turn {turn}", mine, expected)
        found["Siddhi"], found["embedded"] = once[-1][0], again[-1][0]
        if ours is not None:
            found["Spark"] = [ours.send() for _ in range(TIMES)][-1]
        if turn >= WARM:
            for name, value in found.items():
                taken.setdefault(name, []).append(value)
    if ours is not None:
        same &= _same("Spark", ours.rows(), rows["first"])
        ours.stop()
    taken["Siddhi, two threads"] = [siddhi.send(2)[0] for _ in range(TIMES + TURNS)][TIMES:]
    siddhi.stop()
    times = {name: median(values) for name, values in taken.items()}
    total = sum(rows["first"].values())
    print(
        f"{queries:,} queries over {streams:,} streams, {count:,} events, {total:,} rows ({total / count:.2f} an event)"
    )
    for name, value in times.items():
        print(
            f"  {name:<22}{value:>9.3f} s{count / value:>14,.0f} events/s{times['Siddhi'] / value:>8.2f} times Siddhi"
        )
    print(f"  loaded in s: Siddhi {siddhi.loaded:.1f}, embedded {embedded.loaded:.1f}", end="")
    print(f", Spark {ours.loaded:.1f}" if ours is not None else "")
    print(f"  rows of each query, each turn: {'the same' if same else 'NOT THE SAME'}")
    held = _held("embedded", times["Siddhi"] / times["embedded"], EMBEDDED_LEAST)
    if ours is not None:
        held &= _held("Spark", times["Siddhi"] / times["Spark"], SPARK_LEAST)
    return held and same


def _held(name: str, ratio: float, least: float) -> bool:
    print(f"  {name}: {ratio:.2f} times Siddhi, bound at least {least:g}: {'ok' if ratio >= least else 'NOT HELD'}")
    return ratio >= least


def _same(name: str, found: Counter[str], expected: Counter[str], other: str = "Siddhi") -> bool:
    wrong = sorted(rule for rule in found.keys() | expected.keys() if found[rule] != expected[rule])
    for rule in wrong[:3]:
        print(f"  WRONG, {name}: {rule} has {found[rule]:,} rows, {other} {expected[rule]:,}")
    return not wrong


def load(queries: int, streams: int, count: int, folder: Path) -> bool:
    """Load all queries on Spark and run them."""
    some, events = generated(queries, "mixed", inputs=streams), stream_events(count, streams=streams)
    ours = OnSpark(some, events, streams, folder)
    first, second = ours.send(), ours.send()
    detector = Embedded(some, events, streams)
    same = _same("Spark", ours.rows(), detector.send()[1], "embedded")
    ours.stop()
    print(
        f"{queries:,} queries over {streams:,} streams on Spark local[2]: text to plan {ours.loaded:.1f} s; {count:,} ",
        end="",
    )
    print(
        f"events in {first:.1f} s with the loading in the tasks, then {second:.1f} s ({count / second:,.0f} events/s)"
    )
    print(f"  rows of each query as embedded: {'the same' if same else 'NOT THE SAME'}")
    loaded = ours.loaded + max(first - second, 0.0)
    print(f"  loading {loaded:.1f} s, bound at most {LOAD_MOST_S:g}: {'ok' if loaded <= LOAD_MOST_S else 'NOT HELD'}")
    return same and loaded <= LOAD_MOST_S


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--queries", type=int)
    parser.add_argument("--streams", type=int, default=1_000)
    parser.add_argument("--events", type=int)
    parser.add_argument("--no-spark", action="store_true")
    parser.add_argument("--load", action="store_true")
    options = parser.parse_args()
    print(f"{os.getloadavg()[0]:.1f} processes were running when this began, on {os.cpu_count()} cores")
    with tempfile.TemporaryDirectory(prefix="tocsin-bench-") as folder:
        if options.load:
            ok = load(options.queries or 10_000, options.streams, options.events or 200_000, Path(folder))
        else:
            queries, events = options.queries or 1_000, options.events or 8_000_000
            ok = compare(queries, options.streams, events, Path(folder), spark=not options.no_spark)
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
