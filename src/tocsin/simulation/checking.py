"""Did every sink get what it should? The same rules over all events at one place, as nothing were apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import pyarrow as pa

from tocsin.engine.detector import Detector
from tocsin.events.batches import Columns
from tocsin.events.types import EventType
from tocsin.language.rules import Rule
from tocsin.overlay.deployment import closure
from tocsin.overlay.sites import Sites
from tocsin.simulation.network import Network


def wrong_sinks(
    network: Network,
    sites: Sites,
    types: Mapping[str, EventType],
    rules: Sequence[Rule],
    events: pa.Table,
    upto_us: int,
    changes: Sequence[tuple[float, Sites]] = (),
) -> list[str]:
    """The sinks that did not get exactly the matches they want, once each and in order."""
    got: dict[str, list[str]] = {}
    for processor in network.processors.values():
        for sink, batch, _ in processor.notices:
            pairs = zip(batch["rule"].to_pylist(), batch["id"].to_pylist(), strict=True)
            got.setdefault(sink, []).extend(id for rule, id in pairs if rule)
    right = due(sites, types, rules, events, upto_us, changes)
    return [sink for sink, ids in right.items() if got.get(sink, []) != ids]


def due(
    sites: Sites,
    types: Mapping[str, EventType],
    rules: Sequence[Rule],
    events: pa.Table,
    upto_us: int,
    changes: Sequence[tuple[float, Sites]] = (),
) -> dict[str, list[str]]:
    """The matches that each sink should get. Subscriptions with content constraints are not looked at, nor rules that
    consume and that were not wanted from the beginning."""
    detector = Detector(rules, types, columns=Columns(id="id"))
    found = pa.concat_tables([detector.push(events), detector.advance(upto_us)], promote_options="default")
    right = list(zip(found["type"].to_pylist(), found["id"].to_pylist(), found["ts"].to_pylist(), strict=True))
    lives = [(0, sites), *((round(at_s * 1_000_000), later) for at_s, later in changes), (upto_us, sites)]
    consuming = {rule.emits.name for rule in rules if any(one.consuming for one in closure(rule, rules))}
    expected = {}
    for sink in dict.fromkeys(sink for _, some in lives for sink in some.sinks):
        wanted = [(some.sinks.get(sink, ()), start, end) for (start, some), (end, _) in pairwise(lives)]
        if any(p.constraints and p.type not in types for patterns, _, _ in wanted for p in patterns):
            continue
        names = [({p.type for p in patterns if not p.constraints}, start, end) for patterns, start, end in wanted]
        if changes and any(mine & consuming for mine, _, _ in names):
            continue
        ids = [id for mine, start, end in names for type, id, ts in right if type in mine and start <= ts < end]
        expected[sink] = ids
    return expected
