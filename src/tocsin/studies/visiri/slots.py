"""How long is each node of a placement busy, in truth? Its queries run as a slot's on Spark do, and are timed.

Events are packed for the slots and detected there by the functions that Spark's workers run, slots and placements in
turn. Busy is the processor time that a slot needs for a parcel of events, the least of many, as what else the machine
does can only add to it. One placement is measured twice, which tells how much a difference means. The dispatcher is the
paper's (Section 3): it knows streams and no filters, so a node takes in all events of a stream that one of its queries
reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from time import process_time
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tocsin.engine.routing import Router
from tocsin.events.batches import Columns
from tocsin.events.streams import stream_events, stream_types
from tocsin.language.queries import Query
from tocsin.plans.catalog import Catalog
from tocsin.plans.graph import Filter
from tocsin.plans.layout import Forward, Layout, Unit, forwarding
from tocsin.plans.placing import Placement, throughput
from tocsin.studies.study import Row, Settings
from tocsin.studies.visiri.runs import Numbers, placed, placers, workload

if TYPE_CHECKING:
    from tocsin.spark.jobs import Job, Sent

EVENTS, PARCELS, UNTIMED = 1_000_000, 20, 4
"""With the first parcels rules are loaded and windows begin to fill."""
PLACERS = ("VISIRI", "SCTXPF", "random", "even")
AGAIN = "VISIRI, again"
"""The placement of VISIRI once more, as if it were another."""


def measure_slots(settings: Settings) -> list[Row]:
    """Events ÷ the largest busy time of a slot, for every placer."""
    seed, nodes = int(settings["seed"]), int(settings["nodes"])
    queries, units = workload(int(settings["queries"]), str(settings["shape"]), seed)
    chosen = {name: way for name, way in placers(seed).items() if name in PLACERS}
    placements = {name: placed(units, nodes, placer, singly=singly) for name, (placer, singly) in chosen.items()}
    placements[AGAIN] = placements["VISIRI"]
    return [
        {"placer": name, "throughput": throughput(EVENTS // PARCELS, busy), "busy_s": float(busy.sum())}
        for name, busy in busy_in_slots(queries, placements).items()
    ]


def busy_in_slots(
    queries: Sequence[Query], placements: Mapping[str, Placement], *, events: int = EVENTS
) -> dict[str, Numbers]:
    """For each placement, the seconds that each node works on a parcel: of so many events ÷ `PARCELS`."""
    nodes = {
        name: [_Node(sent, slot) for slot in range(sent.job.layout.slots)] for name, sent in _sent(queries, placements)
    }
    for part in _parts(events):
        for mine in nodes.values():  # in turn, so that all see the same machine
            _work(mine, part)
    return {name: np.array([np.min(node.taken[UNTIMED:]) for node in mine]) for name, mine in nodes.items()}


def _sent(queries: Sequence[Query], placements: Mapping[str, Placement]) -> Iterator[tuple[str, Sent[Job]]]:
    from tocsin.spark.jobs import Job, send

    catalog = Catalog(types={stream.name: stream for stream in stream_types()})
    for name, placement in placements.items():
        units = tuple(Unit((query.name,), None, placement.node_of(query.name)) for query in queries)
        layout = Layout(len(placement.nodes), units)
        job = Job(tuple(queries), catalog, Columns(), layout, 0, times=True)
        job.__dict__["router"] = _whole_streams(job)
        yield name, send(job)


def _whole_streams(job: Job) -> Router:
    """A forwarding table without filters."""
    homes: dict[str, set[int]] = {}
    for filter, forward in forwarding(job.plan, job.layout).items():
        homes.setdefault(filter.type, set()).update(forward.slots)
    forwards = {Filter(type): Forward((), tuple(sorted(slots))) for type, slots in homes.items()}
    return Router(job.types, job.plan.columns, forwards, job.layout.slots)


class _Node:
    """A slot at work, and how long each parcel took."""

    def __init__(self, sent: Sent[Job], slot: int) -> None:
        from tocsin.spark.slots import Tally

        self.sent = sent
        self.detector, self.tally = sent.job.detector(slot), Tally(sent.job.matches, slot)
        self.taken: list[float] = []


def _work(nodes: Sequence[_Node], part: pa.Table) -> None:
    """Sends a part of the events to the nodes, and lets them work."""
    from tocsin.spark.packing import Parcel, packer
    from tocsin.spark.slots import take_events

    sent = nodes[0].sent
    parcels: dict[int, list[Parcel]] = {label: [] for label in sent.job.labels}
    for packed in packer(sent, ticks=False)(iter(part.to_batches())):
        for row in packed.to_pylist():
            parcels[row["slot"]].append(Parcel(**row))
    end = int(part["ts"][-1].cast(pa.int64()).as_py()) + 1
    for node, mine in zip(nodes, parcels.values(), strict=True):
        begun = process_time()
        for parcel in mine:
            take_events(node.detector, parcel, node.tally)
        node.tally.take(node.detector.advance(end))
        node.tally.rows()
        node.taken.append(process_time() - begun)


@lru_cache(maxsize=1)
def _parts(events: int) -> tuple[pa.Table, ...]:
    table, size = stream_events(events), events // PARCELS
    return tuple(table.slice(size * n, size) for n in range(PARCELS))
