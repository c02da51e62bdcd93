"""The rules and events of the benchmarks: three workloads, each generated from a seed.

W1, fire: 2 million events of 1,000 areas at 1,000 events/s (each area about once a second), Poisson arrivals: 33
minutes, so that the window of five minutes fills and slides. 90 % Temp, 5 % Smoke, 5 % Rain; 5 % of the temperatures
are over 45. Three rules, timed one by one.

W2, the default scenario of the T-Rex paper (its Section 4): a million events of 120 types whose rates are log-uniform
between 0.001 and 10 events/s, 100 rules of a sequence of three types with `last` within 60 s, not keyed. The paper
filters by type alone; here each event of a rule must also exceed a level that 5, 10, 15 or 20 % of events do, or almost
every event would end a match.

W3, content-based filtering: a million events of 50 types equally often, 20 rules for each type, each of two conditions
that 1 % of the type's events meet together: for half of the rules two ranges (from 2 % and 50 % to 50 % and 2 %), for
the other half an equality with one of 20 texts (5 %) and a range (20 %).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from floor import Condition, Filter, Scan

START_US = 1_782_907_200_000_000
"""2026-07-01T12:00:00Z."""


@dataclass(frozen=True)
class Workload:
    """Rules, their events, the input of the scan floor, and the largest ratio of a run to its floor."""

    name: str
    rules: str
    events: Callable[[], pa.Table]
    scan: Scan
    bound: float
    matches: int
    """The number of matches, as counted without an engine."""
    facts: str
    """Type mix, rate and selectivity, for the report."""


def _times(random: np.random.Generator, events: int, rate: float, start_us: int = START_US) -> pa.Array[Any]:
    """Return strictly increasing times of a Poisson process."""
    gaps = np.maximum(1, random.exponential(1e6 / rate, events).astype(np.int64))
    return pa.array(start_us + np.cumsum(gaps), pa.int64()).cast(pa.timestamp("us", "UTC"))


def _levels(random: np.random.Generator, events: int) -> pa.Array[Any]:
    return pa.array(np.round(random.uniform(0, 100, events), 2), pa.float64())


FIRE_AREAS = 1_000
FIRE_RATE = 1_000.0
FIRE_MIX = {"Temp": 0.90, "Smoke": 0.05, "Rain": 0.05}
FIRE_HOT = 0.05
FIRE_FACTS = "1,000 areas, 1,000 events/s, Temp 90 % (5 % of them > 45), Smoke 5 %, Rain 5 %"

FIRE_RULES = {
    "last": """
        define Fire(area: string, temp: double)
        from   Smoke(area=$a) and last Temp(area=$a, value>45) within 5 min from Smoke
        where  area = Smoke.area, temp = Temp.value
    """,
    "each": """
        define Fire(area: string, temp: double)
        from   Smoke(area=$a) and each Temp(area=$a, value>45) within 30 s from Smoke
        where  area = Smoke.area, temp = Temp.value
    """,
    "not": """
        define Fire(area: string, temp: double)
        from   Smoke(area=$a) and last Temp(area=$a, value>45) within 5 min from Smoke
               and not Rain(area=$a) between Temp and Smoke
        where  area = Smoke.area, temp = Temp.value
    """,
}


def fire_events(events: int = 2_000_000, seed: int = 1, start_us: int = START_US) -> pa.Table:
    """Generate the events of W1."""
    random = np.random.default_rng(seed)
    kind = np.searchsorted(np.cumsum(list(FIRE_MIX.values()))[:-1], random.random(events), side="right")
    hot = random.random(events) < FIRE_HOT
    value = np.round(np.where(hot, random.uniform(45.1, 90, events), random.uniform(10, 45, events)), 1)
    areas = pa.array([f"A{number}" for number in range(FIRE_AREAS)])
    return pa.table(
        {
            "type": pa.array(list(FIRE_MIX)).take(kind),
            "ts": _times(random, events, FIRE_RATE, start_us),
            "area": areas.take(random.integers(0, FIRE_AREAS, events)),
            "value": pa.array(value, mask=kind != 0),
        }
    )


def fire_chunks(events: int, rows: int = 100_000, seed: int = 1) -> Iterator[pa.Table]:
    """Generate the stream of W1 chunk by chunk."""
    start_us = START_US
    for number in range(events // rows):
        chunk = fire_events(rows, seed * 1_000_003 + number, start_us)
        start_us = chunk["ts"][-1].value
        yield chunk


SEQUENCE_TYPES = 120
SEQUENCE_RULES = 100
SEQUENCE_LEVELS = (80, 85, 90, 95)
SEQUENCE_FACTS = (
    "120 types at log-uniform rates of 0.001 to 10 events/s, 100 rules of 3 types, "
    "unkeyed, each event filtered to 5, 10, 15 or 20 %"
)


Step = tuple[str, int]
"""A type, and the threshold of its value."""


def sequences(seed: int = 2) -> list[tuple[Step, Step, Step]]:
    """Generate the sequences of W2, each backwards from its anchor, the last event."""
    random = np.random.default_rng(seed)
    found = []
    for _ in range(SEQUENCE_RULES):
        a, b, c = (f"T{type}" for type in random.choice(SEQUENCE_TYPES, 3, replace=False))
        p, q, r = (int(level) for level in random.choice(SEQUENCE_LEVELS, 3))
        found.append(((a, p), (b, q), (c, r)))
    return found


def _sequence_rules() -> tuple[str, Scan]:
    rules = []
    filters = []
    for number, steps in enumerate(sequences()):
        (a, p), (b, q), (c, r) = steps
        rules.append(f"""
            define C{number}(first: double, second: double, third: double)
            from   {a}(value > {p}) and last {b}(value > {q}) within 60 s from {a}
                   and last {c}(value > {r}) within 60 s from {b}
            where  first = {c}.value, second = {b}.value, third = {a}.value
        """)
        filters += [Filter(type, (("value", ">", level),)) for type, level in steps]
    return "".join(rules), Scan(tuple(dict.fromkeys(filters)))


def sequence_events(events: int = 1_000_000, seed: int = 2) -> pa.Table:
    """Generate the events of W2."""
    random = np.random.default_rng(seed)
    rates = np.exp(random.uniform(np.log(0.001), np.log(10), SEQUENCE_TYPES))
    names = pa.array([f"T{type}" for type in range(SEQUENCE_TYPES)])
    return pa.table(
        {
            "type": names.take(random.choice(SEQUENCE_TYPES, events, p=rates / rates.sum())),
            "ts": _times(random, events, float(rates.sum())),
            "value": _levels(random, events),
        }
    )


FILTER_TYPES = 50
FILTER_RULES_PER_TYPE = 20
FILTER_SITES = 20
FILTER_SELECTIVITY = 0.01
FILTER_FACTS = "50 types equally often, 20 rules a type, each of two conditions that 1 % of the type's events meet"


def filters(seed: int = 3) -> list[Filter]:
    """Generate the filters of W3."""
    random = np.random.default_rng(seed)
    found = []
    for number in range(FILTER_TYPES * FILTER_RULES_PER_TYPE):
        conditions: tuple[Condition, ...]
        if number // FILTER_TYPES % 2:
            share = float(np.exp(random.uniform(np.log(0.02), np.log(0.5))))
            limits = round(100 - 100 * share, 2), round(100 * FILTER_SELECTIVITY / share, 2)
            conditions = (("a", ">", limits[0]), ("b", "<", limits[1]))
        else:
            column, operator, limit = (("a", ">", 80), ("a", "<", 20), ("b", ">", 80), ("b", "<", 20))[
                random.integers(4)
            ]
            conditions = (("site", "=", f"S{random.integers(FILTER_SITES)}"), (column, operator, limit))
        found.append(Filter(f"T{number % FILTER_TYPES}", conditions))
    return found


def _filter_rules() -> tuple[str, Scan]:
    rules = []
    for number, filter in enumerate(filters()):
        text = ", ".join(f"{column} {operator} {_constant(value)}" for column, operator, value in filter.conditions)
        rules.append(f"""
            define X{number}(a: double, b: double)
            from   {filter.type}({text})
            where  a = {filter.type}.a, b = {filter.type}.b
        """)
    return "".join(rules), Scan(tuple(dict.fromkeys(filters())))


def _constant(value: str | float) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value)


def filter_events(events: int = 1_000_000, seed: int = 3) -> pa.Table:
    """Generate the events of W3."""
    random = np.random.default_rng(seed)
    types = pa.array([f"T{type}" for type in range(FILTER_TYPES)])
    sites = pa.array([f"S{site}" for site in range(FILTER_SITES)])
    return pa.table(
        {
            "type": types.take(random.integers(0, FILTER_TYPES, events)),
            "ts": _times(random, events, 10_000.0),
            "site": sites.take(random.integers(0, FILTER_SITES, events)),
            "a": _levels(random, events),
            "b": _levels(random, events),
        }
    )


def many_rules(count: int = 10_000, seed: int = 4) -> str:
    """Generate rules to measure their load time: half filters, half keyed sequences of two, over 500 types."""
    random = np.random.default_rng(seed)
    rules = []
    for number in range(count):
        first, second = (f"T{type}" for type in random.choice(500, 2, replace=False))
        level = round(float(random.uniform(0, 100)), 2)
        rest = f"and last {second}(site = $s, b < {level}) within 5 min from {first}" if number % 2 else ""
        rules.append(f"""
            define X{number}(site: string, a: double)
            from   {first}(site = $s, a > {level}) {rest}
            where  site = $s, a = {first}.a
        """)
    return "".join(rules)


def _workloads() -> dict[str, Workload]:
    hot = Filter("Temp", (("value", ">", 45),))
    smoke, rain = Filter("Smoke", ()), Filter("Rain", ())
    sequence_rules, sequence_scan = _sequence_rules()
    filter_rules, filter_scan = _filter_rules()
    fire = [
        Workload(f"W1 {name}", FIRE_RULES[name], fire_events, Scan(scanned, ("area",)), bound, matches, FIRE_FACTS)
        for name, scanned, bound, matches in (
            ("last", (smoke, hot), 5.0, 98_915),
            ("each", (smoke, hot), 10.0, 133_973),
            ("not", (smoke, hot, rain), 10.0, 46_961),
        )
    ]
    others = [
        Workload("W2", sequence_rules, sequence_events, sequence_scan, 10.0, 13_186, SEQUENCE_FACTS),
        Workload("W3", filter_rules, filter_events, filter_scan, 10.0, 201_771, FILTER_FACTS),
    ]
    return {workload.name: workload for workload in (*fire, *others)}


WORKLOADS = _workloads()
