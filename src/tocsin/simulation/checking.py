"""Did every sink get what it should? The same rules over all events at one place, as nothing were apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from tocsin.engine.detector import Detector
from tocsin.events.types import EventType
from tocsin.language.rules import Rule
from tocsin.simulation.deployment import Sites
from tocsin.simulation.network import Network


def wrong_sinks(
    network: Network,
    sites: Sites,
    types: Mapping[str, EventType],
    rules: Sequence[Rule],
    events: pa.Table,
    upto_us: int,
) -> list[str]:
    """The sinks that did not get exactly the matches they want, once each and in order. Subscriptions with content
    constraints are not looked at."""
    detector = Detector(rules, types)
    found = pa.concat_tables([detector.push(events), detector.advance(upto_us)], promote_options="default")
    right = list(zip(found["type"].to_pylist(), found["id"].to_pylist(), strict=True))
    got: dict[str, list[str]] = {}
    for processor in network.processors.values():
        for sink, batch, _ in processor.notices:
            pairs = zip(batch["rule"].to_pylist(), batch["id"].to_pylist(), strict=True)
            got.setdefault(sink, []).extend(id for rule, id in pairs if rule)
    wrong = []
    for sink, wanted in sites.sinks.items():
        names = {pattern.type for pattern in wanted if not pattern.constraints}
        if any(pattern.constraints and pattern.type not in types for pattern in wanted):
            continue
        if got.get(sink, []) != [id for type, id in right if type in names]:
            wrong.append(sink)
    return wrong
