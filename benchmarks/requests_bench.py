"""Check the cost of requests for notification by two ratios, each within one run.

    instances   one expression of 12 leaves: an arrival with 10,000 stored instances against one with 100
    requests    1,000 requests over 50 common sub-expressions: one detector for all against one for each

An arrival is timed inside a batch of many, which excludes the fixed cost of a batch. The paper's four phases
(`tocsin.studies.eps_tree`) run beside it until an arrival takes longer than a limit.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Callable, Iterator
from functools import partial
from time import process_time
from typing import Any

import pyarrow as pa

import tocsin
from tocsin.errors import StateError
from tocsin.events.types import Event
from tocsin.language import parse
from tocsin.reference.patterns import identified
from tocsin.studies.eps_tree import Tree

LEAVES = [f"e{number}" for number in range(1, 13)]
VARIANTS = {
    "& one class": ("&", [(0, n) for n in range(1, 12)]),
    "; one class": (";", [(0, n) for n in range(1, 12)]),
    "& pairs": ("&", [(n, n + 1) for n in range(0, 12, 2)]),
    "; pairs": (";", [(n, n + 1) for n in range(0, 12, 2)]),
    "& chain": ("&", [(n, n + 1) for n in range(11)]),
    "; chain": (";", [(n, n + 1) for n in range(11)]),
}
"""The operator, and which leaves are equal: in a chain by another attribute for each pair, so that it is no class."""
TESTED = 90
"""The percentage of events that a test on one leaf selects."""
TIMED_S_MAX = 6.0
"""The total time of repeats."""
SHARED_MAX = 0.1

Rows = list[tuple[str, int, dict[str, int]]]


# ---- stored instances


def expression(variant: str, window_us: int) -> str:
    """The request of a variant: a test on each leaf, and its equalities. Instances are a microsecond apart, so as many
    are stored as the window is long.
    """
    operator, pairs = VARIANTS[variant]
    on = f" {operator} ".join(f"{leaf}(v < {TESTED})" for leaf in LEAVES)
    attributes = [(f"x{n}", f"x{n}") if "chain" in variant else ("k", "k") for n in range(len(pairs))]
    equal = [
        f"{LEAVES[one]}.{left} = {LEAVES[two]}.{right}"
        for (one, two), (left, right) in zip(pairs, attributes, strict=True)
    ]
    kinds = ", ".join(f"{name}: long" for name in ("v", "k", *(f"x{n}" for n in range(11))))
    declared = "".join(f"event {leaf}({kinds})\n" for leaf in LEAVES)
    return f"{declared}request Found on {on} if {' and '.join(equal)} within {window_us} us"


def instances(count: int, start: int, values: int, seed: int) -> Rows:
    """Return instances of all leaves; an attribute has `values` values."""
    draw = random.Random(seed)
    names = ("k", *(f"x{n}" for n in range(11)))
    return [
        (draw.choice(LEAVES), start + n, {"v": draw.randrange(100), **{name: draw.randrange(values) for name in names}})
        for n in range(count)
    ]


def table(rows: Rows) -> pa.Table:
    """Convert instances to a table."""
    names = rows[0][2]
    columns: dict[str, Any] = {"type": [row[0] for row in rows], "ts": pa.array([row[1] for row in rows], pa.int64())}
    return pa.table({**columns, **{name: [row[2][name] for row in rows] for name in names}})


def seconds(call: Callable[[], object]) -> float:
    """Return processor time, which excludes other processes."""
    start = process_time()
    call()
    return process_time() - start


def arrival_us(variant: str, count: int, arrivals: int, values: int, seed: int) -> float:
    """Return the cost of an arrival with this many stored instances, from two batches of different length."""
    rules = tocsin.rules(expression(variant, count), "eps")
    took: dict[int, list[float]] = {arrivals: [], 2 * arrivals: []}
    detector = rules.detector(ordered=True)
    detector.push(table(instances(count, 0, values, seed)))
    now = count
    for repeat in range(15):
        if repeat >= 2 and sum(map(sum, took.values())) > TIMED_S_MAX:
            break
        for length in took:
            more = table(instances(length, now, values, seed + 1 + repeat))
            now += length
            took[length].append(seconds(partial(detector.push, more)))
    return max(0.1, (min(took[2 * arrivals]) - min(took[arrivals])) / arrivals * 1e6)


def measure_instances(options: argparse.Namespace) -> None:
    """Print the ratio of each variant."""
    few, many = options.instances
    print(f"12 leaves, a test on each; an arrival with {few:,} and with {many:,} stored instances")
    for variant in VARIANTS:
        costs = []
        for count in (few, many):
            # As many values as keep the instances of a leaf and value the same: what is stored grows, not what fits.
            values = max(2, count // len(LEAVES) // 4)
            try:
                costs.append(arrival_us(variant, count, options.arrivals, values, options.seed))
            except StateError as error:
                print(f"  {variant:12} {count:>7,} stored: {error}")
        if len(costs) == 2:
            print(f"  {variant:12} {costs[0]:8.1f} us  {costs[1]:8.1f} us  ratio {costs[1] / costs[0]:.1f}")
        print(f"  {variant:12} four phases: {given_up(variant, options.limit_s, options.seed)}", flush=True)


def given_up(variant: str, limit_s: float, seed: int) -> str:
    """Return where the paper's four phases exceed the limit."""
    grown = Tree(parse(expression(variant, 1_000_000)).rules)
    rows = instances(10_000, 0, 2, seed)
    begun = process_time()
    for n, fact in enumerate(identified(Event(type, ts, values) for type, ts, values in rows)):
        took_s = seconds(partial(grown.arrive, fact))
        if took_s > limit_s or process_time() - begun > 10 * limit_s:
            return f"stops at {n + 1} stored instances: {took_s:.2f} s for one arrival, {grown.size[1]:,} built"
    return "not given up"


# ---- many requests


def requests(count: int, parts: int) -> Iterator[str]:
    """Return requests over common subexpressions with different conditions."""
    for n in range(count):
        part = n % parts
        first, second, third = f"a{part}", f"b{part}", f"c{n // parts % 5}"
        yield (
            f"request R{n} on ({first} ; {second}) & {third} "
            f"if {first}.k = {second}.k and {second}.k = {third}.k and {first}.v < {20 + n // parts} within 1 s"
        )


def of_parts(count: int, parts: int, seed: int) -> pa.Table:
    """Return events of all types of the requests, 100,000 per second."""
    draw = random.Random(seed)
    names = [f"{letter}{n}" for n in range(parts) for letter in "ab"] + [f"c{n}" for n in range(5)] * (parts // 5)
    columns = {"k": [draw.randrange(100) for _ in range(count)], "v": [draw.randrange(100) for _ in range(count)]}
    ts = pa.array([n * 10 for n in range(count)], pa.int64())
    return pa.table({"type": [draw.choice(names) for _ in range(count)], "ts": ts, **columns})


def run(text: str, events: pa.Table, batch: int) -> tuple[float, int, int]:
    """Return seconds, bytes of state and notifications of one detector."""
    detector = tocsin.rules(text, "eps").detector(ordered=True)
    detector.push(events.slice(0, batch))
    batches = [events.slice(start, batch) for start in range(batch, events.num_rows, batch)]
    took_s = seconds(lambda: [detector.push(one) for one in batches])
    return took_s, detector.state_bytes, detector.counts["matches"]


def measure_requests(options: argparse.Namespace) -> bool:
    """Compare one detector for all requests with one for each."""
    count, parts = options.requests, options.parts
    every = list(requests(count, parts))
    names = [f"{letter}{n}" for letter, most in (("a", parts), ("b", parts), ("c", 5)) for n in range(most)]
    events = of_parts(options.events, parts, options.seed)
    head = "".join(f"event {name}(k: long, v: long)\n" for name in names)
    sample = random.Random(options.seed).sample(range(count), min(options.sample, count))
    print(
        f"{count:,} requests over {parts} sub-expressions, {events.num_rows:,} events in batches of {options.batch:,}"
    )
    together_s, together_bytes, found = run(head + "\n".join(every), events, options.batch)
    apart = [run(head + every[n], events, options.batch) for n in sample]
    scale = count / len(sample)
    apart_s, apart_bytes = scale * sum(one[0] for one in apart), scale * sum(one[1] for one in apart)
    timed = events.num_rows - options.batch
    for name, took_s, held, note in (
        ("one detector", together_s, together_bytes, f"{found:,} notifications"),
        ("one for each", apart_s, apart_bytes, f"{len(sample)} measured, scaled up"),
    ):
        print(f"  {name}: {took_s / timed * 1e6:10.2f} us an event  {held:14,.0f} bytes  ({note})")
    ratios = together_s / apart_s, together_bytes / apart_bytes
    print(f"  ratio: time {ratios[0]:.4f}, state {ratios[1]:.4f}; wanted below {SHARED_MAX}")
    return max(ratios) < SHARED_MAX


def main() -> int:
    """Parse the options and run the benchmarks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=("instances", "requests", "all"), default="all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--instances", type=int, nargs=2, default=(100, 10_000), metavar=("FEW", "MANY"))
    parser.add_argument("--arrivals", type=int, default=1_000, help="how many arrivals are timed together")
    parser.add_argument(
        "--limit-s",
        type=float,
        default=1.0,
        help="an arrival in the four phases may take so long, all of them ten times",
    )
    parser.add_argument("--requests", type=int, default=1_000)
    parser.add_argument("--parts", type=int, default=50, help="how many common sub-expressions there are")
    parser.add_argument("--events", type=int, default=50_000)
    parser.add_argument("--batch", type=int, default=1_000)
    parser.add_argument("--sample", type=int, default=25, help="how many of the single detectors are measured")
    options = parser.parse_args()
    print("python", " ".join(sys.argv), f"(seed {options.seed})", flush=True)
    if options.what in ("instances", "all"):
        measure_instances(options)
    return 0 if options.what == "instances" or measure_requests(options) else 1


if __name__ == "__main__":
    sys.exit(main())
