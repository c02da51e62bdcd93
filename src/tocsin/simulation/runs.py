"""One run: sites under a strategy for some time, and what was sent and how long it took.

*Traffic* is messages times hops: an event on a link is one message, whatever trees it is for, if it is sent at one
time; composite events, awakenings and answers count too. Progress, Done and what sets up trees and rules are counted
apart. *Delay* is from the occurrence of the last part of a composite event to its receipt by a sink.

From sources, sinks and rules to processors that are ready: trees are built, then tables, then rules go down.

What does each processor have to be told when sites change? Who leaves, whose trees are concerned, what is new there.

In a single tree every change concerns the tree. Otherwise a sink concerns the tree of its processor, a link those trees
whose shortest paths it changes, and a source or a processor that comes or goes all of them.

What does a change cost? A network whose sites become others at one event time, and what that took.

Everything before that time has been published. Messages that follow from the change alone are counted: what sets up
trees, tables and rules, and events that are sent again for windows that reach back. The time is that until nothing is
under way any more.

The network as SVG: links as wide as what they carry, tree links dark, the root of a single tree ringed.
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
from tocsin.overlay.effects import Meter
from tocsin.overlay.messages import Base, Rows
from tocsin.overlay.processor import Processor
from tocsin.overlay.strategies import Link, Sites, Strategy, place
from tocsin.overlay.tree_building import root_of
from tocsin.overlay.tree_changes import Change
from tocsin.overlay.tree_parts import Array
from tocsin.simulation.network import Network, Watch


def deployed(
    sites: Sites,
    strategy: Strategy,
    types: Mapping[str, EventType],
    rules: Sequence[Rule],
    *,
    watch: Watch = lambda sender, receiver, message: None,
    through: Callable[[m.Message], m.Message] = lambda message: message,
    period_us: int = 60_000_000,
) -> Network:
    """A network in which every rule that somebody wants is deployed."""
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
        for name in sorted({place(sink) for sink in sites.sinks}):
            processors[name].root()
    network.run()
    for name, offered in sorted(sites.sources.items()):
        processors[name].advertise("", offered)
    network.run()
    for sink, wanted in sorted(sites.sinks.items()):
        processors[place(sink)].subscribe(sink, wanted)
    network.run()
    return network


def announced(number: int, at_us: int, before: Sites, after: Sites, strategy: Strategy) -> dict[str, Change]:
    """The change from one state of the sites to another, for each processor that is there before or after."""
    old, new = set(before.processors), set(after.processors)
    left = frozenset(old - new)
    for name in sorted(left):
        if not any(here == name and there in new for here, there in before.delays_us):
            raise TocsinError(f"{name} cannot leave: none of its neighbours stays")
    roots = frozenset(place(sink) for sink in after.sinks)
    trees = None if strategy.single else _concerned(before, after)
    built = frozenset() if strategy.single else roots if trees is None else roots & trees
    told = {}
    for name in sorted(old | new):
        links = {there: delay_us for (here, there), delay_us in after.delays_us.items() if here == name}
        offers = {"": after.sources[name]} if name in after.sources else {}
        told[name] = Change(number, at_us, links, offers, _at(after, name), left, trees, built)
    return told


def _at(sites: Sites, name: str) -> dict[str, tuple[Pattern, ...]]:
    return {sink: wanted for sink, wanted in sites.sinks.items() if place(sink) == name}


def _concerned(before: Sites, after: Sites) -> frozenset[str] | None:
    if before.processors != after.processors or before.sources != after.sources:
        return None
    roots = {place(sink) for sites in (before, after) for sink in sites.sinks}
    return frozenset(
        root
        for root in roots
        if _at(before, root) != _at(after, root) or fathers(before.delays_us, root) != fathers(after.delays_us, root)
    )


def fathers(delays_us: Mapping[Link, int], root: str) -> dict[str, tuple[str, int]]:
    """The shortest paths to a root as the protocol finds them: the father of each processor, and how far the root is.

    >>> fathers({("a", "b"): 1, ("b", "a"): 1, ("b", "c"): 2, ("c", "b"): 2}, "a")
    {'b': ('a', 1), 'c': ('b', 3)}
    """
    found: dict[str, tuple[str, int]] = {}
    waiting = [(0, "", root)]
    neighbours: dict[str, list[tuple[str, int]]] = {}
    for (here, there), delay_us in delays_us.items():
        neighbours.setdefault(here, []).append((there, delay_us))
    while waiting:
        distance_us, father, name = heapq.heappop(waiting)
        if name in found:
            continue
        found[name] = (father, distance_us)
        for there, delay_us in neighbours.get(name, ()):
            if there not in found:
                heapq.heappush(waiting, (distance_us + delay_us, name, there))
    del found[root]
    return found


SECOND_US = 1_000_000


@dataclass(frozen=True)
class Repair:
    """When it was, how many messages set things up, how many times an event went over a link again, and how long it
    took."""

    at_s: float
    messages: int
    events: int
    time_ms: float


def repaired(
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
    """Changes a network that has published everything before a time."""
    counts: Counter[str] = Counter()
    watch = network.watch

    def counting(sender: str, receiver: str, message: m.Message) -> None:
        watch(sender, receiver, message)
        counts[type(message).__name__] += message.batch.num_rows if isinstance(message, m.Events) else 1

    network.watch = counting
    network.delays_us = {**network.delays_us, **after.delays_us}
    told = announced(number, at_us, before, after, strategy)
    start_us = network.now_us
    for name, change in told.items():
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
class Outcome:
    """What was measured: messages × hops, bytes, seconds of event time; delays in milliseconds over all notices."""

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
    """Of the single tree."""
    trees: Mapping[str, Mapping[str, str]]
    """The father of each processor, by tree."""
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
) -> tuple[Outcome, Network]:
    """Runs events, `where` they are published, cut at the ends of epochs (the last of which ends the run).

    `changes`: how the sites are from a time on.
    """
    meter = Meter()
    network = deployed(
        sites, strategy, types, rules, watch=meter.watch, period_us=round(period_s * SECOND_US)
    )  # fmt: skip
    coded = where.dictionary_encode()
    places, at = coded.dictionary.to_pylist(), coded.indices.to_numpy()
    ts = events["ts"].to_numpy()
    empty, shared = events.slice(0, 0), Base(events)
    start = 0.0
    states = dict(changes)
    repairs: list[Repair] = []
    for end in sorted({*epochs_s, *states}):
        meter.on = start >= measured_from_s
        first, last = np.searchsorted(ts, [start * SECOND_US, end * SECOND_US])
        order = first + np.argsort(at[first:last], kind="stable")
        ends = np.searchsorted(at[order], np.arange(len(places) + 1))
        batches = {place: Rows(shared, order[ends[number] : ends[number + 1]]) for number, place in enumerate(places)}
        network.publish(batches, empty, round(end * SECOND_US))
        if end in states:
            after, number, at_us = states[end], len(repairs) + 1, round(end * SECOND_US)
            repairs.append(
                repaired(network, number, at_us, sites, after, strategy, types, rules, round(period_s * SECOND_US))
            )
            sites = after
        meter.settle()
        start = end
    outcome = _outcome(strategy, network, meter, epochs_s[-1] - measured_from_s, measured_from_s)
    return replace(outcome, repairs=tuple(repairs)), network


def _outcome(strategy: Strategy, network: Network, meter: Meter, seconds: float, since_s: float) -> Outcome:
    delays: list[Array] = []
    for processor in network.processors.values():
        for _, batch, at in processor.notices:
            ts = batch.ts
            fits = (ts >= since_s * SECOND_US) & pc.not_equal(batch["rule"], "").combine_chunks().to_numpy(False)
            delays.append((at - ts)[fits])
    delay = np.concatenate(delays) if delays else np.zeros(0)
    trees: dict[str, dict[str, str]] = {}
    for name, processor in network.processors.items():
        for tree, membership in processor.memberships.items():
            trees.setdefault(tree, {})
            if membership.father is not None:
                trees[tree][name] = membership.father
    return Outcome(
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


def picture(outcome: Outcome, delays_us: dict[Link, int]) -> str:
    """The processors, the links, and the traffic of one run on them, in messages a second."""
    graph = nx.Graph()
    graph.add_nodes_from(sorted({name for link in delays_us for name in link} or {outcome.root or "0"}))
    graph.add_weighted_edges_from((*link, 1 / max(delay, 1)) for link, delay in sorted(delays_us.items()))
    spots = (
        nx.spring_layout(graph, weight=None, seed=1, iterations=300) if len(graph) > 1 else dict.fromkeys(graph, (0, 0))
    )
    low, high = ([edge(spot[k] for spot in spots.values()) for k in range(2)] for edge in (min, max))
    place = {
        name: tuple(MARGIN + (spot[k] - low[k]) / ((high[k] - low[k]) or 1) * (SIZE - 2 * MARGIN) for k in range(2))
        for name, spot in spots.items()
    }
    used = {frozenset(edge) for fathers in outcome.trees.values() for edge in fathers.items()}
    loads = {frozenset(edge): outcome.links.get(edge, 0) + outcome.links.get(edge[::-1], 0) for edge in graph.edges}
    most = max(loads.values(), default=0) or 1
    lines, labels = [], []
    for here, there in graph.edges:
        edge = frozenset((here, there))
        (x1, y1), (x2, y2) = place[here], place[there]
        a_second = loads[edge] / outcome.seconds
        title = f"{here} – {there}: {a_second:.1f} messages/s, {delays_us[here, there] / 1000:.1f} ms"
        colour, width = ("#1f5f99", 1.5 + 9 * loads[edge] / most) if edge in used else ("#cccccc", 1.0)
        lines.append(
            f'<line x1="{x1:.0f}" y1="{y1:.0f}" x2="{x2:.0f}" y2="{y2:.0f}" stroke="{colour}" '
            f'stroke-width="{width:.1f}"><title>{escape(title)}</title></line>'
        )
        if edge in used and loads[edge] / most > 0.05:
            labels.append(f'<text x="{(x1 + x2) / 2:.0f}" y="{(y1 + y2) / 2:.0f}" class="load">{a_second:.3g}</text>')
    for name, (x, y) in place.items():
        ring = ' stroke="#d62728" stroke-width="4"' if name == outcome.root else ' stroke="#333"'
        labels.append(f'<circle cx="{x:.0f}" cy="{y:.0f}" r="{RADIUS}" fill="#fff"{ring}/>')
        labels.append(f'<text x="{x:.0f}" y="{y + 4:.0f}" class="name">{escape(name)}</text>')
    style = (
        "text{font:12px sans-serif;text-anchor:middle}.load{fill:#a33;paint-order:stroke;stroke:#fff;stroke-width:3}"
    )
    said = f"{outcome.strategy}: {outcome.traffic / outcome.seconds:.3g} messages/s on all links"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{SIZE}" height="{SIZE}" viewBox="0 0 {SIZE} {SIZE}">'
        f'<style>{style}</style><rect width="{SIZE}" height="{SIZE}" fill="#fff"/>{"".join(lines)}{"".join(labels)}'
        f'<text x="{SIZE / 2:.0f}" y="24">{escape(said)}</text></svg>\n'
    )
