"""One run: sites under a strategy for some time, and what was sent and how long it took.

*Traffic* is messages times hops: an event on a link is one message, whatever trees it is for, if it is sent at one
time; composite events, awakenings and answers count too. Progress, Done and what sets up trees and rules are counted
apart. *Delay* is from the occurrence of the last part of a composite event to its receipt by a sink.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tocsin.events.types import EventType
from tocsin.language.rules import Rule
from tocsin.overlay.metering import Meter
from tocsin.overlay.rows import Base, Rows
from tocsin.overlay.sites import Link, Sites
from tocsin.overlay.strategies import Strategy
from tocsin.overlay.timing import Array
from tocsin.overlay.trees import root_of
from tocsin.simulation.deployment import deployed
from tocsin.simulation.network import Network
from tocsin.simulation.repairs import Repair, repaired

SECOND_US = 1_000_000


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
