"""One replicated run, from commands that deploy through epochs of events to a verdict.

Every run is judged: the five properties for each drain, the limits of all queues, and, if nothing went wrong, that each
event crossed each link once for each replica.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pyarrow as pa

from tocsin.overlay.replicas.messages import Publication
from tocsin.simulation.properties import Violation, violations
from tocsin.simulation.replicated import ReplicatedNetwork

Epoch = Mapping[str, Publication]
"""By group."""


def epochs(
    groups: Iterable[str], events: pa.Table, where: Sequence[str], *, epoch_us: int, count: int, spare: int = 4
) -> list[dict[str, Publication]]:
    """Events, in order of time and `where` they happen, cut into epochs; then some that are empty."""
    ts, homes = events["ts"].to_numpy(), np.asarray(where)
    found = []
    for number in range(count + spare):
        upto = (number + 1) * epoch_us
        first, last = np.searchsorted(ts, [number * epoch_us, upto])
        rows, mine = events.slice(first, last - first), homes[first:last]
        found.append({group: Publication(rows.filter(pa.array(mine == group)), upto) for group in groups})
    return found


def played(
    network: ReplicatedNetwork,
    publications: Sequence[Epoch],
    *,
    epoch_us: int,
    limit_us: int,
    expected: Mapping[str, Sequence[str]],
) -> list[Violation]:
    """Deploys, publishes epochs, and waits until all rounds have been run, sinks have as many notices as expected and
    no more faults come, and a little longer; then says what is wrong."""
    deploying = network.setup.deploying(network.settings.rounds)
    network.begins_us = len(deploying) * epoch_us
    for number, commands in enumerate(deploying):
        network.publish({group: commands.get(group, ()) for group in network.groups}, (number + 1) * epoch_us)
    for number, epoch in enumerate(publications):
        at_us = network.begins_us + (number + 1) * epoch_us
        network.publish({group: (epoch[group],) for group in network.groups}, at_us)
    return continued(network, limit_us=limit_us, expected=expected)


def continued(network: ReplicatedNetwork, *, limit_us: int, expected: Mapping[str, Sequence[str]]) -> list[Violation]:
    """Lets time pass until all is there; then says what is wrong."""
    last_us = max([network.published_us, *(max(one.at_us, one.until_us) for one in network.script.faults)])
    last_us += 10 * network.settings.beat_us

    def enough() -> bool:
        if network.now_us <= last_us or network.behind():
            return False
        return all(
            drain.count >= len(expected[sink]) for sink, drain in network.drains() if drain.name not in network.down
        )

    network.run(limit_us, enough)
    return judged(network, expected)


def judged(network: ReplicatedNetwork, expected: Mapping[str, Sequence[str]]) -> list[Violation]:
    """All that is wrong with a run. A drain that is down need not have everything, if another has."""
    found: list[Violation] = []
    for sink, names in network.sinks.items():
        up = [name for name in names if name not in network.down] or names
        for name in names:
            found += violations({name: network.got(name)}, {name: expected[sink]}, ended=name in up)
    found += [Violation("incomplete", name, f"round {rounds}") for name, rounds in network.behind().items()]
    counts, settings = network.measured(), network.settings
    for what, longest, limit in (
        ("outgoing", counts.outgoing_longest, settings.queue_max),
        ("incoming", counts.incoming_longest, settings.inbox_max),
    ):
        if longest > limit:
            found.append(Violation("queue over its limit", what, f"{longest} of {limit}"))
    if not network.applied:
        replicas = network.script.replicas
        for what, sent, once in (("links", counts.events, counts.links), ("sinks", counts.notices, counts.situations)):
            if sent != replicas * once:
                found.append(Violation("more than f + 1 messages", what, f"{sent} for {once} events"))
    return found
