"""How long is each node of a placement busy, in truth? Its queries run as a slot's on Spark do, and are timed.

Events are packed for the slots, and each slot's parcels given to the function that detects in a partition, both as
Spark's workers run them; several times, all placements in turn. Busy is the processor time of a slot, for each parcel
the least of all times, as what else the machine does can only add to it. One placement is measured twice, which tells
how much a difference means. The dispatcher is the paper's (Section 3): it knows streams and no filters, so a node takes
in all events of a stream that one of its queries reads.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from time import process_time
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tocsin.engine.routing import Router
from tocsin.events.batches import Columns
from tocsin.events.streams import STREAMS, stream_events, stream_types
from tocsin.garbage import uncollected
from tocsin.language.queries import Query
from tocsin.plans.catalog import Catalog
from tocsin.plans.graph import Filter
from tocsin.plans.layout import Forward, Layout, Unit, forwarding
from tocsin.plans.placing import Placement, throughput
from tocsin.studies.study import Row, Settings
from tocsin.studies.visiri.runs import Numbers, placed, placers, workload

if TYPE_CHECKING:
    from tocsin.spark.jobs import Job
    from tocsin.spark.packing import Batches

PARCELS, EVENTS_OF_PARCEL = 6, 100_000
STREAM_EVENTS = PARCELS * EVENTS_OF_PARCEL / STREAMS
"""Of each stream, about."""
ROUNDS = 12
PLACERS = ("VISIRI", "SCTXPF", "random", "even")
AGAIN = "VISIRI, again"
"""The placement of VISIRI once more, as if it were another."""


def measure_slots(settings: Settings) -> list[Row]:
    """Events ÷ the largest busy time of a slot, for every placer; and how long all slots together were busy, how many
    events they were sent, and how many their queries saw.
    """
    seed, nodes = int(settings["seed"]), int(settings["nodes"])
    queries, units = workload(int(settings["queries"]), str(settings["shape"]), seed)
    chosen = {name: way for name, way in placers(seed).items() if name in PLACERS}
    placements = {name: placed(units, nodes, placer, singly=singly) for name, (placer, singly) in chosen.items()}
    placements[AGAIN] = placements["VISIRI"]
    return [
        {
            "placer": name,
            "throughput": throughput(PARCELS * EVENTS_OF_PARCEL, busy),
            "busy_s": float(busy.sum()),
            "sent": float(sum(nodes.sum() for nodes in placements[name].sent().values()) * STREAM_EVENTS),
            "seen": float(len(queries) * STREAM_EVENTS),
        }
        for name, busy in busy_in_slots(queries, placements).items()
    ]


@uncollected()
def busy_in_slots(
    queries: Sequence[Query], placements: Mapping[str, Placement], *, events: int = EVENTS_OF_PARCEL
) -> dict[str, Numbers]:
    """For each placement, the seconds that each node works on parcels of so many events."""
    nodes = {name: _nodes(queries, placement, events) for name, placement in placements.items()}
    gc.freeze()  # what is left of a round is found among what the round made
    for number in range(ROUNDS):
        for turn in zip(*nodes.values(), strict=True):  # placements in turn, so that all see the same machine
            first = number % len(turn)
            for node in turn[first:] + turn[:first]:
                node.work()
        gc.collect()
    gc.unfreeze()
    return {name: np.array([node.busy for node in mine]) for name, mine in nodes.items()}


def _nodes(queries: Sequence[Query], placement: Placement, events: int) -> list[_Node]:
    """The nodes of a placement with what is sent to them."""
    from tocsin.spark.jobs import Job, send
    from tocsin.spark.packing import packer
    from tocsin.spark.slots import batch_detector

    units = tuple(Unit((query.name,), None, placement.node_of(query.name)) for query in queries)
    layout = Layout(len(placement.nodes), units)
    catalog = Catalog(types={stream.name: stream for stream in stream_types()})
    job = Job(tuple(queries), catalog, Columns(), layout, 0, times=True)
    job.__dict__["router"] = _whole_streams(job)
    sent = send(job)
    parcels: dict[int, list[pa.RecordBatch]] = {label: [] for label in job.labels}
    for part in _parts(events):
        for parcel in packer(sent, ticks=False)(iter(part.to_batches())):
            parcels[parcel["slot"][0].as_py()].append(parcel)
    return [_Node(batch_detector(sent), mine) for mine in parcels.values()]


def _whole_streams(job: Job) -> Router:
    """A forwarding table without filters."""
    homes: dict[str, set[int]] = {}
    for filter, forward in forwarding(job.plan, job.layout).items():
        homes.setdefault(filter.type, set()).update(forward.slots)
    forwards = {Filter(type): Forward((), tuple(sorted(slots))) for type, slots in homes.items()}
    return Router(job.types, job.plan.columns, forwards, job.layout.slots)


class _Node:
    """A slot at work, and how long each parcel took it."""

    def __init__(self, detect: Callable[[Batches], Batches], parcels: Sequence[pa.RecordBatch]) -> None:
        self._detect, self._parcels = detect, parcels
        self._taken: list[list[float]] = []

    def work(self) -> None:
        """Works on all parcels once."""
        marks: list[float] = []

        def given() -> Iterator[pa.RecordBatch]:
            for parcel in self._parcels:
                marks.append(process_time())
                yield parcel
            marks.append(process_time())

        for _ in self._detect(given()):
            pass
        # Each parcel is worked on when the next one, or that there is none, is known: the first time is for rules, and
        # the last parcel, which ends all, is not timed.
        self._taken.append([after - before for before, after in pairwise(marks[1:])])

    @property
    def busy(self) -> float:
        """The seconds for all timed parcels, each at its fastest."""
        return float(np.min(self._taken, axis=0).sum())


@lru_cache(maxsize=1)
def _parts(size: int) -> tuple[pa.Table, ...]:
    table = stream_events(size * (PARCELS + 1))
    return tuple(table.slice(size * n, size) for n in range(PARCELS + 1))
