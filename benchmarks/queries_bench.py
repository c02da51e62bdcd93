"""Benchmark SiddhiQL queries; print three tables.

The first: time for an event in a sliding window of 10 events and in one of 100,000, for each aggregate. The second: the
same for a join and a pattern by a key, where an event finds one partner among so many. The third: how long the queries
that VISIRI's evaluation generates take to load, and events a second with all of them running.

    python benchmarks/queries_bench.py [--queries 10000] [--events 200000]
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import pyarrow as pa

from tocsin.datasets import ATTRIBUTES, VALUE_MAX, stream_types
from tocsin.engine.detector import Detector
from tocsin.language import parse
from tocsin.studies.visiri_queries import generated

SMALL, LARGE = 10, 100_000
FUNCTIONS = ("sum", "avg", "min", "max", "count", "stdDev")
ROUNDS = 3


def window_ns(function: str, kind: str, size: int, events: int) -> float:
    """Return nanoseconds per event in a full window."""
    text = f"define stream S (x {kind}); from S#window.length({size}) select {function}(x) as v insert into O;"
    program = parse(text, "siddhi")
    detector = Detector(program.rules, {type.name: type for type in program.types})
    detector.select = ("ts", "v")
    detector.without_ids = True
    rng = np.random.default_rng(1)

    def table(first: int, count: int) -> pa.Table:
        values = rng.random(count) * 1000 if kind == "double" else rng.integers(0, 1000, count)
        return pa.table({"type": ["S"] * count, "ts": np.arange(first, first + count), "x": values})

    detector.push(table(0, LARGE + events))
    best, at = float("inf"), LARGE + events
    for _ in range(ROUNDS):
        batch, at = table(at, events), at + events
        begin = time.perf_counter()
        detector.push(batch)
        best = min(best, time.perf_counter() - begin)
    return best / events * 1e9


BY_KEY = {
    "join": "from A#window.length({0}) as a join B#window.length({0}) as b on a.k == b.k "
    "select a.k as v insert into O;",
    "max in a join": "from A#window.length({0}) as a join B#window.length({0}) as b on a.k == b.k "
    "select max(a.x) as v insert into O;",
    "pattern": "from every e1=A -> e2=B[k == e1.k] within {1} us select e1.k as v insert into O;",
}


def by_key_ns(text: str, size: int, events: int) -> float:
    """Return nanoseconds per event that matches one of this many retained events."""
    streams = "define stream A (x int, k int); define stream B (x int, k int);"
    program = parse(streams + text.format(size, 2 * size), "siddhi")
    detector = Detector(program.rules, {type.name: type for type in program.types})
    detector.select = ("ts", "v")
    detector.without_ids = True
    rng = np.random.default_rng(1)

    def table(first: int, count: int) -> pa.Table:
        values = {name: rng.integers(0, size, count, np.int32) for name in ("x", "k")}
        return pa.table({"type": ["A", "B"] * (count // 2), "ts": np.arange(first, first + count), **values})

    detector.push(table(0, 2 * LARGE + events))
    best, at = float("inf"), 2 * LARGE + events
    for _ in range(ROUNDS):
        batch, at = table(at, events), at + events
        begin = time.perf_counter()
        detector.push(batch)
        best = min(best, time.perf_counter() - begin)
    return best / events * 1e9


def many(queries: int, inputs: int, events: int) -> tuple[float, float, float]:
    """Return the seconds to load this many queries, events per second with all of them, and rows per event."""
    rules = generated(queries, "mixed", inputs=inputs)
    types = {type.name: type for type in stream_types(inputs)}
    rng = np.random.default_rng(1)

    def table(first: int, count: int) -> pa.Table:
        names = pa.array([*types]).take(pa.array(rng.integers(0, inputs, count)))
        values = {name: rng.random(count) * VALUE_MAX for name in ATTRIBUTES}
        return pa.table({"type": names, "ts": np.arange(first, first + count), **values})

    begin = time.perf_counter()
    detector = Detector(rules, types)
    detector.push(table(0, 1))
    loaded = time.perf_counter() - begin
    detector.push(table(1, events))
    before = detector.counts["matches"]
    batch = table(1 + events, events)
    begin = time.perf_counter()
    detector.push(batch)
    return loaded, events / (time.perf_counter() - begin), (detector.counts["matches"] - before) / events


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--queries", type=int, default=10_000)
    parser.add_argument("--inputs", type=int, default=1_000)
    parser.add_argument("--events", type=int, default=200_000)
    options = parser.parse_args()
    print(f"{'aggregate':<14}{f'length({SMALL})':>14}{f'length({LARGE:,})':>18}{'ratio':>8}   ns/event")
    for kind in ("double", "int"):
        for function in FUNCTIONS:
            small, large = (window_ns(function, kind, size, options.events) for size in (SMALL, LARGE))
            print(f"{f'{function} {kind}':<14}{small:>14,.0f}{large:>18,.0f}{large / small:>8.2f}")
    print(f"\n{'by a key':<14}{f'{SMALL} held':>14}{f'{LARGE:,} held':>18}{'ratio':>8}   ns/event")
    for name, text in BY_KEY.items():
        small, large = (by_key_ns(text, size, options.events) for size in (SMALL, LARGE))
        print(f"{name:<14}{small:>14,.0f}{large:>18,.0f}{large / small:>8.2f}")
    print()
    loaded, rate, rows = many(options.queries, options.inputs, options.events)
    print(f"{options.queries:,} queries over {options.inputs:,} streams: loaded in {loaded:.1f} s, ", end="")
    print(f"{rate:,.0f} events/s, {rows:.2f} rows for an event")


if __name__ == "__main__":
    main()
