"""Generate topologies, and workloads of types, rates, rules and subscriptions, from a seed.

`Workload` has all parameters of the evaluation in T-Rex, Section 4, and its default scenario as defaults. Topologies
are random graphs as BRITE generates them, or are read from a file. Processors lie in a square. In the Waxman model, two
processors are more likely to be linked if they are near each other. In the Barabási–Albert model, a processor is more
likely to be linked if it already has many links. The delay of a link is proportional to its length, and the mean delay
of all links is a parameter.

`Factory` is a distributed manufacturing process with facilities in a production hierarchy (*strong reliability*,
Section II, Fig. 1). Each facility is a site, which is linked to the facility that gets its parts. Site 0 is the global
management. The names of types end with the number of the facility, because each facility has its own sources. The paper
names the events by letters: A `Produced`, B `Consumed`, C `Stored`, D `Delivered`, E `Price` (of storage), F `Ratio`
(of B and C).

Situation A is the production rate. Each finished part reports how many parts were finished within a time before it. In
the paper the rate is reported when it changes, but a change is not defined; here it is reported if there was at least
one other part. Situation B is the number of parts that should be accepted for storage. It is reported when the rate
changes at the facility, or at a facility that ships to it, and uses the last event of each other type. Both situations
are decided at the facility and delivered to the management.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from pathlib import Path

import networkx as nx
import numpy as np
import pyarrow as pa

from tocsin.errors import TocsinError, nearest
from tocsin.events.types import EventType, Kind
from tocsin.language import parse
from tocsin.language.syntax.ast import (
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
from tocsin.overlay.replicas.messages import Publication
from tocsin.overlay.strategies import STRATEGIES, Link, Sites
from tocsin.simulation.checking import expected_ids
from tocsin.simulation.replica_groups import ReplicatedSetup
from tocsin.simulation.replicated import source_batches

MODELS = ("waxman", "barabasi-albert")
WAXMAN_RANGE = 0.3
"""The distance at which Waxman's probability of a link has fallen to 1/e, as a fraction of the longest distance."""


def topology(model: str, processors: int, links: float, delay_ms: float, seed: int) -> dict[Link, int]:
    """Generate a connected graph, and return the delay (µs) of each link in both directions.

    `model` is one of MODELS, `links` the average number of links of a processor, and `delay_ms` the mean delay.
    """
    if model not in MODELS:
        raise TocsinError(f"there is no topology '{model}'. {nearest(model, MODELS)}")
    if processors < 1:
        raise TocsinError("a topology has at least one processor")
    rng = random.Random(f"{model} {processors} {links} {seed}")
    at = [(rng.random(), rng.random()) for _ in range(processors)]
    wanted = min(round(processors * links / 2), processors * (processors - 1) // 2)
    edges = _waxman(at, wanted, rng) if model == "waxman" else _preferential(processors, links, rng)
    lengths = {edge: max(math.dist(at[edge[0]], at[edge[1]]), 0.01) for edge in edges}
    scale = delay_ms * 1000 / (sum(lengths.values()) / len(lengths)) if lengths else 0.0
    return both_ways((str(here), str(there), round(length * scale)) for (here, there), length in lengths.items())


def _waxman(at: list[tuple[float, float]], wanted: int, rng: random.Random) -> list[tuple[int, int]]:
    """Link each processor to a random earlier processor, and then add random links until there are `wanted` links.

    Links between near processors are more likely.
    """
    longest = math.sqrt(2)
    edges: dict[tuple[int, int], None] = {}

    def weight(here: int, there: int) -> float:
        return math.exp(-math.dist(at[here], at[there]) / (WAXMAN_RANGE * longest))

    for new in range(1, len(at)):
        (old,) = rng.choices(range(new), [weight(new, known) for known in range(new)])
        edges[old, new] = None
    rest = [(here, there) for there in range(len(at)) for here in range(there) if (here, there) not in edges]
    keyed = sorted(rest, key=lambda edge: rng.random() ** (1 / weight(*edge)), reverse=True)
    edges.update(dict.fromkeys(keyed[: max(0, wanted - len(edges))]))
    return list(edges)


def _preferential(processors: int, links: float, rng: random.Random) -> list[tuple[int, int]]:
    each = max(1, min(processors - 1, round(links / 2 + 0.5)))
    if processors < 2:
        return []
    graph = nx.barabasi_albert_graph(processors, each, seed=rng.randrange(2**31))
    return [(min(edge), max(edge)) for edge in graph.edges]


def both_ways(links: Iterable[tuple[str, str, int]]) -> dict[Link, int]:
    """Return the delay of each link in both directions, which is the same."""
    delays: dict[Link, int] = {}
    for here, there, delay_us in links:
        delays[here, there] = delays[there, here] = delay_us
    return delays


def read(path: Path) -> dict[Link, int]:
    """Read a topology from a file, in which each line has two processors and the delay between them in milliseconds."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise TocsinError(f"{path} cannot be read: {error}") from None
    links = []
    for number, line in enumerate(lines, 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        try:
            here, there, delay = words
            links.append((here, there, round(float(delay) * 1000)))
        except ValueError:
            raise TocsinError(
                f"{path}, line {number}: expected two processors and a delay in ms, as in: a b 5"
            ) from None
    return connected(both_ways(links), str(path))


def connected(delays: dict[Link, int], where: str) -> dict[Link, int]:
    """Return `delays`, or raise `TocsinError` unless every processor can reach every other processor.

    The message of the error begins with `where`.
    """
    graph = nx.Graph(list(delays))
    if any(delay < 0 for delay in delays.values()):
        raise TocsinError(f"{where}: a delay cannot be negative")
    if any(here == there for here, there in delays):
        raise TocsinError(f"{where}: a link joins two processors")
    if graph.number_of_nodes() and not nx.is_connected(graph):
        parts = [sorted(part)[0] for part in nx.connected_components(graph)]
        raise TocsinError(f"{where}: there is no way from {parts[0]} to {parts[1]}")
    return delays


SECOND_US = 1_000_000
RATES = {"Produced": 1.6, "Consumed": 1.6, "Stored": 1.0, "Delivered": 1.0, "Price": 0.2, "Ratio": 0.6}
"""The number of events of each kind a second at each facility."""
BRANCHES = 3
DELAY_US = 5_000
EPOCH_US = 1_000_000


@dataclass(frozen=True)
class Factory:
    """A factory with `facilities` sites, and its events in `seconds`, generated from `seed`."""

    facilities: int
    seconds: int
    seed: int

    @cached_property
    def parents(self) -> dict[int, int]:
        return {number: (number - 1) // BRANCHES for number in range(1, self.facilities)}

    @cached_property
    def types(self) -> dict[str, EventType]:
        names = [f"{kind}{number}" for number in range(self.facilities) for kind in RATES]
        return {name: EventType(name, (("amount", Kind.DOUBLE),)) for name in names}

    @cached_property
    def rules(self) -> tuple[Rule, ...]:
        text = []
        for number in range(self.facilities):
            text.append(
                f"define SituationA{number}(rate: long) from Produced{number}() and "
                f"1 <= $n=Count(Produced{number}() within 4 s from Produced{number}) where rate = $n"
            )
            ships = [child for child, parent in self.parents.items() if parent == number][:1]
            for which in (number, *ships):
                anchor = f"SituationA{which}"
                rest = "".join(
                    f" and last {kind}{number}() within {window} s from {anchor}"
                    for kind, window in (("Consumed", 4), ("Stored", 5), ("Delivered", 5), ("Price", 20), ("Ratio", 8))
                )
                text.append(
                    f"define SituationB{number}by{which}(rate: long, price: double) from {anchor}(){rest} "
                    f"where rate = {anchor}.rate, price = Price{number}.amount"
                )
        return tuple(rule for rule in parse(" ".join(text)).rules if isinstance(rule, Rule))

    @cached_property
    def sites(self) -> Sites:
        links = both_ways((str(child), str(parent), DELAY_US) for child, parent in self.parents.items())
        sources = {str(n): frozenset(f"{kind}{n}" for kind in RATES) for n in range(self.facilities)}
        return Sites(links, sources, {"0/management": tuple(Pattern(rule.emits.name) for rule in self.rules)})

    @cached_property
    def events(self) -> tuple[pa.Table, list[str]]:
        """All primary events in order of time, and the site of each event."""
        rng = np.random.default_rng([self.seed, 11])
        kinds = [(f"{kind}{n}", str(n), rate) for n in range(self.facilities) for kind, rate in RATES.items()]
        counts = rng.poisson([rate * self.seconds for _, _, rate in kinds])
        total = int(counts.sum())
        which = rng.permutation(np.repeat(np.arange(len(kinds)), counts))
        ts = np.sort(rng.choice(self.seconds * SECOND_US, total, replace=False))
        table = pa.table(
            {
                "type": pa.array([kinds[at][0] for at in which], pa.string()),
                "ts": pa.array(ts, pa.int64()),
                "seq": pa.array(np.zeros(total, np.int64)),
                "id": pa.array(np.arange(total)).cast(pa.string()),
                "amount": pa.array(rng.random(total).round(3)),
            }
        )
        return table, [kinds[at][1] for at in which]

    @cached_property
    def epochs(self) -> list[dict[str, Publication]]:
        events, where = self.events
        count = self.seconds * SECOND_US // EPOCH_US
        return source_batches(self.sites.processors, events, where, epoch_us=EPOCH_US, count=count)

    @cached_property
    def expected(self) -> dict[str, list[str]]:
        """The ids of the matches that each sink should get. The only sink is that of the global management."""
        return expected_ids(self.rules, self.types, self.sites.sinks, self.events[0], 2**60)

    @cached_property
    def setup(self) -> ReplicatedSetup:
        return ReplicatedSetup(self.sites, STRATEGIES["MT"], self.types, self.rules)


@lru_cache(maxsize=4)
def factory(facilities: int, seconds: int, seed: int) -> Factory:
    """Return the factory with these parameters, which several runs in one process share."""
    return Factory(facilities, seconds, seed)


CLASS = 10
"""The number of rules in a class if there is locality. The rules of a class share their types."""
NEAR = 3
"""The number of neighbouring processors at which the types of a class are published."""


@dataclass(frozen=True)
class Workload:
    """The parameters of a generated workload.

    `links` is the average number of links of a processor. `length` is the number of events in the sequence that a rule
    detects. `each` is the fraction of selections with the policy `each` instead of `last`. `window_s` is the average
    window. `values` is the number of values of the attribute, of which each pattern wants one. If `locality` is true,
    classes of rules share types, which are published near each other. If `apart` is true, every type is in one rule
    only.
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
class GeneratedWorkload:
    """A generated workload.

    `rates` has the events a second of each type, and `homes` the processor that publishes the type. `values` is the
    number of values of the attribute.
    """

    sites: Sites
    types: dict[str, EventType]
    rules: tuple[Rule, ...]
    rates: dict[str, float]
    homes: dict[str, str]
    values: int


def generate(workload: Workload) -> GeneratedWorkload:
    """Generate the sites, types, rules and rates of a workload from its seed."""
    rng = random.Random(f"workload {workload.seed}")
    delays = topology(workload.model, workload.processors, workload.links, workload.delay_ms, workload.seed)
    names = [str(number) for number in range(workload.processors)]
    count = workload.rules * workload.length if workload.apart else workload.types
    types = {name: EventType(name, (("v", Kind.INT),)) for name in (f"T{number}" for number in range(count))}
    low, high = math.log(workload.rate_min), math.log(workload.rate_max)
    rates = {name: math.exp(rng.uniform(low, high)) for name in types}
    homes = {name: rng.choice(names) for name in types}
    groups = [list(types)] * workload.rules
    if workload.apart:
        shuffled = list(types)
        rng.shuffle(shuffled)
        groups = [shuffled[at : at + workload.length] for at in range(0, len(shuffled), workload.length)]
    elif workload.locality:
        groups = _classes(workload, list(types), homes, delays, rng)
    rules = tuple(_rule(f"C{number}", group, workload, rng) for number, group in enumerate(groups))
    sinks = {
        name: tuple(Pattern(rule.emits.name) for rule in rng.sample(rules, min(len(rules), workload.subscriptions)))
        for name in names
    }
    sources: dict[str, frozenset[str]] = {}
    for type, name in homes.items():
        sources[name] = sources.get(name, frozenset()) | {type}
    wanted = {name: patterns for name, patterns in sinks.items() if patterns}
    return GeneratedWorkload(Sites(delays, sources, wanted), types, rules, rates, homes, workload.values)


def _classes(
    workload: Workload,
    types: list[str],
    homes: dict[str, str],
    delays: dict[tuple[str, str], int],
    rng: random.Random,
) -> list[list[str]]:
    """Return the types that each rule may use, which are the types of its class.

    Change `homes` so that the types of a class are published near each other.
    """
    graph = nx.Graph()
    graph.add_weighted_edges_from((here, there, delay) for (here, there), delay in delays.items())
    classes = max(1, math.ceil(workload.rules / CLASS))
    shuffled = rng.sample(types, len(types))
    each = max(workload.length, len(types) // classes)
    groups = []
    for number in range(classes):
        mine = [shuffled[(number * each + k) % len(shuffled)] for k in range(each)]
        center = str(rng.randrange(workload.processors))
        lengths = nx.single_source_dijkstra_path_length(graph, center) if center in graph else {center: 0}
        near = sorted(lengths, key=lambda name: (lengths[name], name))[:NEAR]
        homes.update((type, rng.choice(near)) for type in mine)
        groups += [mine] * CLASS
    return groups[: workload.rules]


def _rule(name: str, types: list[str], workload: Workload, rng: random.Random) -> Rule:
    chosen = rng.sample(types, workload.length)
    patterns = []
    for type in chosen:
        test: tuple[Expression, ...] = ()
        if workload.values > 1:
            test = (Comparison("=", Attribute("v"), Literal(rng.randrange(workload.values), Kind.INT)),)
        patterns.append(Pattern(type, test))
    clauses: list[Clause] = []
    for before, pattern in pairwise(patterns):
        window_us = round(workload.window_s * rng.uniform(0.5, 1.5) * SECOND_US)
        every = rng.random() < workload.each
        policy, count = (Policy.EACH, 0) if every else (Policy.LAST, 1)
        clauses.append(Selection(policy, pattern, Within(window_us, before.type), count))
    return Rule(name, EventType(name), patterns[0], tuple(clauses))


def events(workload: GeneratedWorkload, duration_s: float, seed: int) -> tuple[pa.Table, pa.Array]:
    """Generate events for `duration_s` seconds, and return them in order of time, with the processor of each event.

    Each type has the rate that the workload gives it.
    """
    random = np.random.default_rng([seed, 7])
    counts = random.poisson([rate * duration_s for rate in workload.rates.values()])
    total = int(counts.sum())
    ts = np.sort(random.integers(0, round(duration_s * SECOND_US), total))
    which = random.permutation(np.repeat(np.arange(len(counts)), counts))
    names = pa.array(list(workload.rates), pa.string())
    homes = pa.array([workload.homes[name] for name in workload.rates], pa.string())
    table = pa.table(
        {
            "type": names.take(pa.array(which)),
            "ts": pa.array(ts),
            "seq": pa.array(np.zeros(total, np.int64)),
            "id": pa.array(np.arange(total)).cast(pa.string()),
            "v": pa.array(random.integers(0, workload.values, total).astype(np.int32)),
        }
    )
    return table, homes.take(pa.array(which))
