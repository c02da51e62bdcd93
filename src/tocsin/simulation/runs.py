"""Run sites under a strategy in virtual time, and measure traffic, delay and repairs.

*Traffic* is the number of messages times hops. An event that is sent once over a link is one message, even if several
trees need it. Composite events, awakenings (requests for events) and answers count, too. Progress, Done and the
messages that set up trees and rules are counted separately. *Delay* is the time from the last event of a composite
event to the arrival of the composite event at a sink.

`deploy` builds the trees and the tables, and then deploys the rules. `run` publishes events and measures.

`topology_changes` derives what each processor must change when the sites change. In a single tree, every change
concerns the tree. Otherwise, a changed sink concerns the tree of its processor. A changed link concerns the trees whose
shortest paths change. A source or a processor that comes or goes concerns all trees. `repair` makes such a change after
all earlier events have been published. It measures the messages that the change causes, and the time until no message
is under way.

`picture` draws the network as SVG.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape

import networkx as nx
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tocsin.errors import TocsinError
from tocsin.events.types import EventType
from tocsin.language.syntax.ast import Pattern, Rule
from tocsin.overlay import messages as m
from tocsin.overlay.codec import kind_of
from tocsin.overlay.effects import Meter
from tocsin.overlay.messages import Base, Rows
from tocsin.overlay.processor import Processor
from tocsin.overlay.strategies import Link, Sites, Strategy, processor_of
from tocsin.overlay.tree_building import root_of
from tocsin.overlay.tree_changes import TopologyChange
from tocsin.overlay.tree_parts import Array
from tocsin.simulation.network import Network, Watch


def deploy(
    sites: Sites,
    strategy: Strategy,
    types: Mapping[str, EventType],
    rules: Sequence[Rule],
    *,
    watch: Watch = lambda sender, receiver, message: None,
    through: Callable[[m.Message], m.Message] = lambda message: message,
    period_us: int = 60_000_000,
) -> Network:
    """Create a network in which every rule that a sink wants is deployed.

    `watch` and `through` are passed to `Network`, and `period_us` to the processors.
    """
    processors = {}
    for name in sites.processors:
        processors[name] = Processor(name, sites.links(name), strategy, types, rules, period_us=period_us)
    network = Network(processors, sites.delays_us, watch, through)
    if strategy.single:
        for processor in processors.values():
            processor.start()
        network.run()
        leader = min(processor.leader for processor in processors.values())[-1]
        processors[leader].root()
    else:
        for name in sorted({processor_of(sink) for sink in sites.sinks}):
            processors[name].root()
    network.run()
    for name, offered in sorted(sites.sources.items()):
        processors[name].advertise("", offered)
    network.run()
    for sink, wanted in sorted(sites.sinks.items()):
        processors[processor_of(sink)].subscribe(sink, wanted)
    network.run()
    return network


def topology_changes(
    number: int, at_us: int, before: Sites, after: Sites, strategy: Strategy
) -> dict[str, TopologyChange]:
    """Return the change that each processor receives when the sites change from `before` to `after`.

    `number` is the number of the change, and `at_us` its event time. Processors that leave also receive a change.
    """
    old, new = set(before.processors), set(after.processors)
    left = frozenset(old - new)
    for name in sorted(left):
        if not any(here == name and there in new for here, there in before.delays_us):
            raise TocsinError(f"{name} cannot leave: none of its neighbours stays")
    roots = frozenset(processor_of(sink) for sink in after.sinks)
    trees = None if strategy.single else _concerned(before, after)
    built = frozenset() if strategy.single else roots if trees is None else roots & trees
    changes_by_name = {}
    for name in sorted(old | new):
        links = {there: delay_us for (here, there), delay_us in after.delays_us.items() if here == name}
        offers = {"": after.sources[name]} if name in after.sources else {}
        changes_by_name[name] = TopologyChange(number, at_us, links, offers, _at(after, name), left, trees, built)
    return changes_by_name


def _at(sites: Sites, name: str) -> dict[str, tuple[Pattern, ...]]:
    return {sink: wanted for sink, wanted in sites.sinks.items() if processor_of(sink) == name}


def _concerned(before: Sites, after: Sites) -> frozenset[str] | None:
    if before.processors != after.processors or before.sources != after.sources:
        return None
    roots = {processor_of(sink) for sites in (before, after) for sink in sites.sinks}
    return frozenset(
        root
        for root in roots
        if _at(before, root) != _at(after, root)
        or shortest_path_parents(before.delays_us, root) != shortest_path_parents(after.delays_us, root)
    )


def shortest_path_parents(delays_us: Mapping[Link, int], root: str) -> dict[str, tuple[str, int]]:
    """Return the parent of each processor on the shortest path to `root`, and the distance, as the protocol finds them.

    >>> shortest_path_parents({("a", "b"): 1, ("b", "a"): 1, ("b", "c"): 2, ("c", "b"): 2}, "a")
    {'b': ('a', 1), 'c': ('b', 3)}
    """
    paths: dict[str, tuple[str, int]] = {}
    waiting = [(0, "", root)]
    neighbours: dict[str, list[tuple[str, int]]] = {}
    for (here, there), delay_us in delays_us.items():
        neighbours.setdefault(here, []).append((there, delay_us))
    while waiting:
        distance_us, parent, name = heapq.heappop(waiting)
        if name in paths:
            continue
        paths[name] = (parent, distance_us)
        for there, delay_us in neighbours.get(name, ()):
            if there not in paths:
                heapq.heappush(waiting, (distance_us + delay_us, name, there))
    del paths[root]
    return paths


SECOND_US = 1_000_000


@dataclass(frozen=True)
class Repair:
    """The cost of a change at the event time `at_s`.

    `messages` is the number of messages that the change caused, `events` the number of events that were sent again, and
    `time_ms` the time until the change was complete.
    """

    at_s: float
    messages: int
    events: int
    time_ms: float


def repair(
    network: Network,
    number: int,
    at_us: int,
    before: Sites,
    after: Sites,
    strategy: Strategy,
    types: Mapping[str, EventType],
    rules: Sequence[Rule],
    period_us: int,
) -> Repair:
    """Change the sites of a network from `before` to `after`, and measure the cost.

    The network must have published all events before `at_us`.
    """
    counts: Counter[str] = Counter()
    watch = network.watch

    def counting(sender: str, receiver: str, message: m.Message) -> None:
        watch(sender, receiver, message)
        counts[kind_of(message)] += message.batch.num_rows if isinstance(message, m.Events) else 1

    network.watch = counting
    network.delays_us = {**network.delays_us, **after.delays_us}
    changes_by_name = topology_changes(number, at_us, before, after, strategy)
    start_us = network.now_us
    for name, change in changes_by_name.items():
        if name not in network.processors:
            network.processors[name] = Processor(
                name, {}, strategy, types, rules, period_us=period_us, joins=number
            )  # fmt: skip
        network.processors[name].change(change)
    network.run()
    network.watch = watch
    aside = ("Events", "Matches", "Progress")
    messages = sum(count for kind, count in counts.items() if kind not in aside)
    return Repair(at_us / SECOND_US, messages, counts["Events"], (network.now_us - start_us) / 1000)


@dataclass(frozen=True)
class SimulationResult:
    """The measurements of a run.

    `seconds` is the measured event time. `traffic` is in messages × hops, and `messages` counts the messages by kind.
    `delay_ms_mean` and `delay_ms_max` are the delays of the notices to sinks.
    """

    strategy: str
    seconds: float
    traffic: int
    messages: Mapping[str, int]
    bytes: int
    notices: int
    delay_ms_mean: float
    delay_ms_max: float
    links: Mapping[Link, int]
    root: str | None
    """The root of the tree if the strategy has a single tree, otherwise None."""
    trees: Mapping[str, Mapping[str, str]]
    """The parent of each processor in each tree."""
    repairs: tuple[Repair, ...] = ()


def run(
    sites: Sites,
    strategy: Strategy,
    types: Mapping[str, EventType],
    rules: Sequence[Rule],
    events: pa.Table,
    where: pa.Array,
    *,
    epochs_s: Sequence[float],
    measured_from_s: float,
    period_s: float = 20.0,
    changes: Sequence[tuple[float, Sites]] = (),
) -> tuple[SimulationResult, Network]:
    """Run the sites on `events`, and return the measurements and the network.

    `where` has the processor of each event. `epochs_s` has the times at which epochs end; the last of these times ends
    the run. Measuring begins at `measured_from_s`. `changes` has the sites from each time (s) on.
    """
    meter = Meter()
    network = deploy(
        sites, strategy, types, rules, watch=meter.watch, period_us=round(period_s * SECOND_US)
    )  # fmt: skip
    coded = where.dictionary_encode()
    names, at = coded.dictionary.to_pylist(), coded.indices.to_numpy()
    ts = events["ts"].to_numpy()
    empty, shared = events.slice(0, 0), Base(events)
    start = 0.0
    states = dict(changes)
    repairs: list[Repair] = []
    for end in sorted({*epochs_s, *states}):
        meter.on = start >= measured_from_s
        first, last = np.searchsorted(ts, [start * SECOND_US, end * SECOND_US])
        order = first + np.argsort(at[first:last], kind="stable")
        ends = np.searchsorted(at[order], np.arange(len(names) + 1))
        batches = {name: Rows(shared, order[ends[number] : ends[number + 1]]) for number, name in enumerate(names)}
        network.publish(batches, empty, round(end * SECOND_US))
        if end in states:
            after, number, at_us = states[end], len(repairs) + 1, round(end * SECOND_US)
            repairs.append(
                repair(network, number, at_us, sites, after, strategy, types, rules, round(period_s * SECOND_US))
            )
            sites = after
        meter.count_pushed()
        start = end
    outcome = _result(strategy, network, meter, epochs_s[-1] - measured_from_s, measured_from_s)
    return replace(outcome, repairs=tuple(repairs)), network


def _result(strategy: Strategy, network: Network, meter: Meter, seconds: float, since_s: float) -> SimulationResult:
    delays: list[Array] = []
    for processor in network.processors.values():
        for _, batch, at in processor.notices:
            ts = batch.ts
            fits = (ts >= since_s * SECOND_US) & pc.not_equal(batch["rule"], "").combine_chunks().to_numpy(False)
            delays.append((at - ts)[fits])
    delay = np.concatenate(delays) if delays else np.zeros(0)
    trees: dict[str, dict[str, str]] = {}
    for name, processor in network.processors.items():
        for tree, node in processor.tree_nodes.items():
            trees.setdefault(tree, {})
            if node.parent is not None:
                trees[tree][name] = node.parent
    return SimulationResult(
        strategy.name,
        seconds,
        meter.traffic,
        dict(meter.messages),
        meter.bytes,
        len(delay),
        float(delay.mean()) / 1000 if len(delay) else 0.0,
        float(delay.max()) / 1000 if len(delay) else 0.0,
        dict(meter.links),
        root_of(next(iter(trees))) if strategy.single and trees else None,
        trees,
    )


SIZE, MARGIN, RADIUS = 760, 60, 15


def picture(outcome: SimulationResult, delays_us: dict[Link, int]) -> str:
    """Draw the processors, and the links with their traffic in messages a second, as SVG.

    Links are as wide as their traffic. Links of trees are dark, and the root of a single tree has a ring.
    """
    graph = nx.Graph()
    graph.add_nodes_from(sorted({name for link in delays_us for name in link} or {outcome.root or "0"}))
    graph.add_weighted_edges_from((*link, 1 / max(delay, 1)) for link, delay in sorted(delays_us.items()))
    spots = (
        nx.spring_layout(graph, weight=None, seed=1, iterations=300) if len(graph) > 1 else dict.fromkeys(graph, (0, 0))
    )
    low, high = ([edge(spot[k] for spot in spots.values()) for k in range(2)] for edge in (min, max))
    position = {
        name: tuple(MARGIN + (spot[k] - low[k]) / ((high[k] - low[k]) or 1) * (SIZE - 2 * MARGIN) for k in range(2))
        for name, spot in spots.items()
    }
    used = {frozenset(edge) for parents in outcome.trees.values() for edge in parents.items()}
    loads = {frozenset(edge): outcome.links.get(edge, 0) + outcome.links.get(edge[::-1], 0) for edge in graph.edges}
    most = max(loads.values(), default=0) or 1
    lines, labels = [], []
    for here, there in graph.edges:
        edge = frozenset((here, there))
        (x1, y1), (x2, y2) = position[here], position[there]
        a_second = loads[edge] / outcome.seconds
        title = f"{here} – {there}: {a_second:.1f} messages/s, {delays_us[here, there] / 1000:.1f} ms"
        colour, width = ("#1f5f99", 1.5 + 9 * loads[edge] / most) if edge in used else ("#cccccc", 1.0)
        lines.append(
            f'<line x1="{x1:.0f}" y1="{y1:.0f}" x2="{x2:.0f}" y2="{y2:.0f}" stroke="{colour}" '
            f'stroke-width="{width:.1f}"><title>{escape(title)}</title></line>'
        )
        if edge in used and loads[edge] / most > 0.05:
            labels.append(f'<text x="{(x1 + x2) / 2:.0f}" y="{(y1 + y2) / 2:.0f}" class="load">{a_second:.3g}</text>')
    for name, (x, y) in position.items():
        ring = ' stroke="#d62728" stroke-width="4"' if name == outcome.root else ' stroke="#333"'
        labels.append(f'<circle cx="{x:.0f}" cy="{y:.0f}" r="{RADIUS}" fill="#fff"{ring}/>')
        labels.append(f'<text x="{x:.0f}" y="{y + 4:.0f}" class="name">{escape(name)}</text>')
    style = (
        "text{font:12px sans-serif;text-anchor:middle}.load{fill:#a33;paint-order:stroke;stroke:#fff;stroke-width:3}"
    )
    title = f"{outcome.strategy}: {outcome.traffic / outcome.seconds:.3g} messages/s on all links"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{SIZE}" height="{SIZE}" viewBox="0 0 {SIZE} {SIZE}">'
        f'<style>{style}</style><rect width="{SIZE}" height="{SIZE}" fill="#fff"/>{"".join(lines)}{"".join(labels)}'
        f'<text x="{SIZE / 2:.0f}" y="24">{escape(title)}</text></svg>\n'
    )
