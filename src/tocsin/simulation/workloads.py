"""What happens at the sites? Types, rates, rules and subscriptions made up from a seed, with all knobs of the paper's
evaluation (T-Rex, Section 4). The defaults are its default scenario.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from itertools import pairwise

import networkx as nx
import numpy as np
import pyarrow as pa

from tocsin.errors import TocsinError
from tocsin.events.types import EventType, Kind
from tocsin.language.rules import (
    Attribute,
    Clause,
    Comparison,
    Expression,
    Literal,
    Pattern,
    Policy,
    Rule,
    Selection,
    Within,
)
from tocsin.overlay.sites import Sites
from tocsin.simulation.topologies import topology

SECOND_US = 1_000_000
CLASS = 10
"""How many rules share their types where there is locality."""
NEAR = 3
"""At how many neighbouring processors the types of a class are published."""


@dataclass(frozen=True)
class Workload:
    """The knobs. `links`: at each processor, on the average. `each`: the share of selections that are `each` and not
    `last`. `window_s`: on the average. `values`: of the attribute, of which each pattern wants one. `locality`: rules
    come in classes that share types, published near each other. `apart`: every type is in one rule only.
    """

    model: str = "waxman"
    processors: int = 20
    links: float = 5.0
    delay_ms: float = 5.0
    types: int = 120
    rate_min: float = 0.001
    rate_max: float = 10.0
    rules: int = 100
    length: int = 3
    each: float = 0.0
    window_s: float = 60.0
    subscriptions: int = 10
    values: int = 1
    locality: bool = False
    apart: bool = False
    seed: int = 1

    def __post_init__(self) -> None:
        for name, least in (("processors", 1), ("types", 1), ("rules", 1), ("length", 1), ("values", 1)):
            if getattr(self, name) < least:
                raise TocsinError(f"a workload has at least {least} {name}, not {getattr(self, name)}")
        if not 0 < self.rate_min <= self.rate_max:
            raise TocsinError("rates are above 0, and rate_min is not above rate_max")
        if self.window_s <= 0 or not 0 <= self.each <= 1:
            raise TocsinError("window_s is above 0, and each between 0 and 1")
        if self.length > self.types and not self.apart:
            raise TocsinError(f"a sequence of {self.length} different types needs as many, there are {self.types}")


@dataclass(frozen=True)
class Drawn:
    """A workload drawn from its seed: sites, rules, and the rate of each type."""

    sites: Sites
    types: dict[str, EventType]
    rules: tuple[Rule, ...]
    rates: dict[str, float]
    homes: dict[str, str]
    values: int


def drawn(workload: Workload) -> Drawn:
    """Draws a workload."""
    chance = random.Random(f"workload {workload.seed}")
    delays = topology(workload.model, workload.processors, workload.links, workload.delay_ms, workload.seed)
    names = [str(number) for number in range(workload.processors)]
    count = workload.rules * workload.length if workload.apart else workload.types
    types = {name: EventType(name, (("v", Kind.INT),)) for name in (f"T{number}" for number in range(count))}
    low, high = math.log(workload.rate_min), math.log(workload.rate_max)
    rates = {name: math.exp(chance.uniform(low, high)) for name in types}
    homes = {name: chance.choice(names) for name in types}
    groups = [list(types)] * workload.rules
    if workload.apart:
        known = list(types)
        chance.shuffle(known)
        groups = [known[at : at + workload.length] for at in range(0, len(known), workload.length)]
    elif workload.locality:
        groups = _classes(workload, list(types), homes, delays, chance)
    rules = tuple(_rule(f"C{number}", group, workload, chance) for number, group in enumerate(groups))
    sinks = {
        name: tuple(Pattern(rule.emits.name) for rule in chance.sample(rules, min(len(rules), workload.subscriptions)))
        for name in names
    }
    sources: dict[str, frozenset[str]] = {}
    for type, name in homes.items():
        sources[name] = sources.get(name, frozenset()) | {type}
    wanted = {name: patterns for name, patterns in sinks.items() if patterns}
    return Drawn(Sites(delays, sources, wanted), types, rules, rates, homes, workload.values)


def _classes(
    workload: Workload,
    types: list[str],
    homes: dict[str, str],
    delays: dict[tuple[str, str], int],
    chance: random.Random,
) -> list[list[str]]:
    """The types of each rule's class; those of a class are published near each other."""
    graph = nx.Graph()
    graph.add_weighted_edges_from((here, there, delay) for (here, there), delay in delays.items())
    classes = max(1, math.ceil(workload.rules / CLASS))
    shuffled = chance.sample(types, len(types))
    each = max(workload.length, len(types) // classes)
    groups = []
    for number in range(classes):
        mine = [shuffled[(number * each + k) % len(shuffled)] for k in range(each)]
        center = str(chance.randrange(workload.processors))
        lengths = nx.single_source_dijkstra_path_length(graph, center) if center in graph else {center: 0}
        near = sorted(lengths, key=lambda name: (lengths[name], name))[:NEAR]
        homes.update((type, chance.choice(near)) for type in mine)
        groups += [mine] * CLASS
    return groups[: workload.rules]


def _rule(name: str, types: list[str], workload: Workload, chance: random.Random) -> Rule:
    chosen = chance.sample(types, workload.length)
    patterns = []
    for type in chosen:
        test: tuple[Expression, ...] = ()
        if workload.values > 1:
            test = (Comparison("=", Attribute("v"), Literal(chance.randrange(workload.values), Kind.INT)),)
        patterns.append(Pattern(type, test))
    clauses: list[Clause] = []
    for before, pattern in pairwise(patterns):
        window_us = round(workload.window_s * chance.uniform(0.5, 1.5) * SECOND_US)
        every = chance.random() < workload.each
        policy, count = (Policy.EACH, 0) if every else (Policy.LAST, 1)
        clauses.append(Selection(policy, pattern, Within(window_us, before.type), count))
    return Rule(name, EventType(name), patterns[0], tuple(clauses))


def events(drawn: Drawn, duration_s: float, seed: int) -> tuple[pa.Table, pa.Array]:
    """The events of a stretch of time, each type by chance at its rate, in order of time; and where they happen."""
    random = np.random.default_rng([seed, 7])
    counts = random.poisson([rate * duration_s for rate in drawn.rates.values()])
    total = int(counts.sum())
    ts = np.sort(random.integers(0, round(duration_s * SECOND_US), total))
    which = random.permutation(np.repeat(np.arange(len(counts)), counts))
    names = pa.array(list(drawn.rates), pa.string())
    homes = pa.array([drawn.homes[name] for name in drawn.rates], pa.string())
    table = pa.table(
        {
            "type": names.take(pa.array(which)),
            "ts": pa.array(ts),
            "seq": pa.array(np.zeros(total, np.int64)),
            "id": pa.array(np.arange(total)).cast(pa.string()),
            "v": pa.array(random.integers(0, drawn.values, total).astype(np.int32)),
        }
    )
    return table, homes.take(pa.array(which))
