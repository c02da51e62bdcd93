"""Measure the search per arrival with few and many stored instances: requests of 12 events, 100 and 10,000 instances.

For each shape of equalities and each operator two kinds of arrivals are timed. *nothing*: the values of the first link
never match, so that no arrival completes a combination. *found*: beside such instances, a few combinations lack only
their last event, and these events arrive, the only ones of their type. Time is that of the search
alone (`kernels.notify`), in microseconds for each arrival, the median over runs; what reading and storing an event
costs is left out.
"""

from __future__ import annotations

import argparse
import random
import string
from itertools import pairwise
from statistics import median
from time import perf_counter
from typing import Any

import tocsin
from tocsin import kernels
from tocsin.errors import StateError
from tocsin.events.types import Event

LEAVES = string.ascii_lowercase[:12]
PAIRS = [(LEAVES[n], LEAVES[n + 1]) for n in range(0, 12, 2)]
CHAIN = list(pairwise(LEAVES))
RATIO_MAX = 20.0
WINDOW = "within 30 d"

Link = tuple[tuple[str, str], tuple[str, str]]

SHAPES: dict[str, list[Link]] = {
    "one class": [((x, "k0"), (y, "k0")) for x, y in CHAIN],
    "chain": [((x, f"k{n % 2}"), (y, f"k{n % 2}")) for n, (x, y) in enumerate(CHAIN)],
    "pairs": [((x, "k0"), (y, "k0")) for x, y in PAIRS],
    "star": [(("a", f"k{n}"), (y, "k0")) for n, y in enumerate(LEAVES[1:])],
}
EXPRESSIONS = {
    "&": " & ".join(f"{x.upper()} as {x}" for x in LEAVES),
    ";": " ; ".join(f"{x.upper()} as {x}" for x in LEAVES),
    "; in &": " & ".join(f"({x.upper()} as {x} ; {y.upper()} as {y})" for x, y in PAIRS),
    "& in ;": " ; ".join(f"({x.upper()} as {x} & {y.upper()} as {y})" for x, y in PAIRS),
}
KEYS = {"few share a value": 0.5, "more share a value": 2.0, "50 values": 0.0}
"""The average number of instances of a type per value; 0: there are always 50 values."""


def request(shape: str, operator: str) -> str:
    """Return the request's text."""
    tests = " and ".join(f"{x}.{m} = {y}.{n}" for (x, m), (y, n) in SHAPES[shape])
    return f"request R on {EXPRESSIONS[operator]} if {tests} {WINDOW}"


class Stream:
    """Stored events and arrivals of one run."""

    def __init__(self, shape: str, keys: str, stored: int, arrivals: int, *, found: bool, seed: int) -> None:
        rng = random.Random(seed)
        self.shape, self.rng = shape, rng
        each = stored / len(LEAVES)
        self.values = max(2, int(each / KEYS[keys])) if KEYS[keys] else 50
        whole = [self._whole(n) for n in range(arrivals)] if found else []
        missing = LEAVES[-1] if found else None
        parts = [part for one in whole for part in one if part[0] != missing]
        kept = LEAVES[:-1] if found else LEAVES
        stock = [self._single(kept[n % len(kept)]) for n in range(stored - len(parts))]
        rng.shuffle(stock)
        # Parts of one combination keep their order, which is that of the leaves.
        places = sorted(rng.sample(range(stored), len(parts)))
        rows: list[Any] = [None] * stored
        for place, part in zip(places, parts, strict=True):
            rows[place] = part
        rest = iter(stock)
        rows = [row or next(rest) for row in rows]
        last = [part for one in whole for part in one if part[0] == missing]
        self.stored = [self._event(row, ts) for ts, row in enumerate(rows)]
        if not found:
            last = [self._single(rng.choice(LEAVES)) for _ in range(arrivals)]
        self.arrivals = [self._event(row, stored + n) for n, row in enumerate(last)]

    def _event(self, row: tuple[str, dict[str, int]], ts: int) -> Event:
        return Event(row[0].upper(), ts, row[1])

    def _single(self, leaf: str) -> tuple[str, dict[str, int]]:
        """Return an event that never matches the other end of the first link."""
        content = {f"k{n}": self.rng.randrange(self.values) for n in range(11)}
        for here, there in SHAPES[self.shape][:1]:
            for name, attribute in (here, there):
                if name == leaf:
                    content[attribute] += 1_000_000 * (1 + (name == "a"))
        return leaf, content

    def _whole(self, number: int) -> list[tuple[str, dict[str, int]]]:
        return [(leaf, {f"k{n}": -1 - number for n in range(11)}) for leaf in LEAVES]


def measure(shape: str, operator: str, keys: str, stored: int, *, found: bool, runs: int) -> float | None:
    """Return microseconds of search per arrival; None if the search limit is exceeded."""
    times = []
    timed = Timed()
    try:
        for seed in range(runs + 1):
            arrivals = 5 if found else 24
            stream = Stream(shape, keys, stored, arrivals, found=found, seed=seed)
            if operator in (";", "& in ;") and not found:
                ends = LEAVES[-1:] if operator == ";" else LEAVES[-2:]
                stream.arrivals = [
                    stream._event(stream._single(stream.rng.choice(ends)), stored + n) for n in range(arrivals)
                ]
            detector = tocsin.rules(request(shape, operator)).detector(ordered=True)
            rows = detector.push(stream.stored).num_rows
            assert rows == 0, rows
            timed.spent = 0.0
            rows = detector.push(stream.arrivals).num_rows
            assert (rows > 0) == found, rows
            if seed:
                times.append(1e6 * timed.spent / arrivals)
    except StateError:
        return None
    finally:
        timed.end()
    return median(times)


class Timed:
    """Measure the total time of the search."""

    def __init__(self) -> None:
        self.spent = 0.0
        self._inner = kernels.notify
        kernels.notify = self

    def __call__(self, *arguments: Any) -> Any:
        start = perf_counter()
        found = self._inner(*arguments)
        self.spent += perf_counter() - start
        return found

    def end(self) -> None:
        """Restore the kernel."""
        kernels.notify = self._inner


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--few", type=int, default=100)
    parser.add_argument("--many", type=int, default=10_000)
    parser.add_argument("--keys", nargs="*", default=list(KEYS))
    parser.add_argument("--operators", nargs="*", default=list(EXPRESSIONS))
    parser.add_argument("--shapes", nargs="*", default=list(SHAPES))
    options = parser.parse_args()
    print(f"{'keys':20}{'equalities':12}{'operator':10}{'arrival':10}{options.few:>10,}{options.many:>12,}{'ratio':>8}")
    for keys in options.keys:
        for shape in options.shapes:
            for operator in options.operators:
                for found in (False, True):
                    few, many = (
                        measure(shape, operator, keys, stored, found=found, runs=options.runs)
                        for stored in (options.few, options.many)
                    )
                    shown = [f"{one:.1f}" if one is not None else "fails" for one in (few, many)]
                    ratio = many / few if few is not None and many is not None else None
                    verdict = "-" if ratio is None else f"{ratio:.1f}"
                    mark = "" if ratio is not None and ratio <= RATIO_MAX else "  <--"
                    arrival = "found" if found else "nothing"
                    print(
                        f"{keys:20}{shape:12}{operator:10}{arrival:10}{shown[0]:>10}{shown[1]:>12}{verdict:>8}{mark}",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
