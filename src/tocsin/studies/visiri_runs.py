"""What is measured for VISIRI's figures? Generated queries, placed by each placer, and what that placement is worth.

A *workload* is queries as units of placement; with events, also what these say of them: how often a stream comes, what
a filter lets pass, how much work a query has.

How long is each node of a placement busy, in truth? Its queries run as a slot's on Spark do, and are timed.

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
import numpy.typing as npt
import pyarrow as pa

from tocsin.datasets import ATTRIBUTES, STREAMS, stream_events, stream_types
from tocsin.engine.routing import Router
from tocsin.events.reader import Columns
from tocsin.events.types import EventType
from tocsin.language.siddhi.ast import Query, Source
from tocsin.language.syntax.ast import Attribute, Comparison, Literal, Pattern
from tocsin.plans.assignment import Forward, Layout, RuleUnit, forwarding
from tocsin.plans.cost import as_unit, comparisons, query_cost
from tocsin.plans.placement import Input, Placement, Unit, duplication, throughput, variance
from tocsin.plans.placers import ARRIVING, Even, Placer, Random, Sctxpf, Visiri, rebalance
from tocsin.plans.rules import Filter
from tocsin.plans.typing import Catalog
from tocsin.process import uncollected
from tocsin.studies.study import Row, Settings
from tocsin.studies.visiri_queries import generated

if TYPE_CHECKING:
    from tocsin.spark.blocks import Batches
    from tocsin.spark.job import Job

Numbers = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
Ways = Mapping[str, tuple[Placer, bool]]

QUERIES_MAX = 10_000
EVENTS = 200_000
SPREAD = 100.0
"""In the measured workload the fastest stream has up to so many times the events of the slowest."""
REBALANCE_TOLERANCE = 0.05
TIGHT, TIGHT_SLACK = "VISIRI, cost slack 40", 40.0
"""VISIRI with a tenth of the paper's threshold of costs."""


def placers(seed: int) -> dict[str, tuple[Placer, bool]]:
    """The placers by the names in the figures, and whether queries come one by one."""
    return {
        "VISIRI": (Visiri(seed=seed), True),
        "SCTXPF": (Sctxpf(seed=seed), True),
        "random": (Random(seed=seed), True),
        "even": (ARRIVING, True),
        "even, all at once": (Even(), False),
    }


def placed(units: Sequence[Unit], nodes: int, placer: Placer, *, singly: bool) -> Placement:
    """The units on so many nodes."""
    placement = Placement(nodes)
    for batch in ([unit] for unit in units) if singly else (units,):
        placer.place(batch, placement)
    return placement


def workload(queries: int, shape: str, seed: int) -> tuple[tuple[Query, ...], tuple[Unit, ...]]:
    """Generated queries, and as units with the costs of VISIRI's model that read whole streams."""
    most, units = _workload(shape, seed)
    return most[:queries], units[:queries]


@lru_cache(maxsize=2)
def _workload(shape: str, seed: int) -> tuple[tuple[Query, ...], tuple[Unit, ...]]:
    definitions = {stream.name: stream for stream in stream_types()}
    queries = tuple(generated(QUERIES_MAX, shape, seed=seed))
    return queries, tuple(as_unit(query, definitions) for query in queries)


@lru_cache(maxsize=64)
def _units(shape: str, seed: int) -> tuple[Unit, ...]:
    """The units alone, which take little memory, so that those of all seeds can be kept."""
    return _workload(shape, seed)[1]


def measure_placements(settings: Settings) -> list[Row]:
    """Duplication and variance for every placer, and for VISIRI with a tighter threshold."""
    tight = Visiri(cost_slack=TIGHT_SLACK, seed=int(settings["seed"]))
    return [
        {"placer": name, "duplication": duplication(placement), "variance": variance(placement)}
        for name, placement in [*_placements(settings), *_placements(settings, {TIGHT: (tight, True)})]
    ]


def measure_throughput(settings: Settings) -> list[Row]:
    """Events ÷ the largest busy time, for one event of every stream that is read, for every placer."""
    return [
        {"placer": name, "throughput": throughput(len(placement.readers()), busy_by_model(placement))}
        for name, placement in _placements(settings)
    ]


def _placements(settings: Settings, ways: Ways | None = None) -> list[tuple[str, Placement]]:
    seed, nodes = int(settings["seed"]), int(settings["nodes"])
    units = _units(str(settings["shape"]), seed)[: int(settings["queries"])]
    return [
        (name, placed(units, nodes, placer, singly=singly))
        for name, (placer, singly) in (ways or placers(seed)).items()
    ]


def busy_by_model(placement: Placement) -> Numbers:
    """How long each node works on one event of every stream, in units of cost.

    Each query works on the event of its stream, and a node takes in each event that it is sent. That costs what the
    model gives a query which only passes events on.
    """
    stream = stream_types(1)[0]
    values = tuple((name, Attribute(name)) for name in ATTRIBUTES)
    passing = Query("pass", EventType("output", stream.attributes), Source(Pattern(stream.name)), values)
    intake = query_cost(passing, {stream.name: stream})
    received = sum(placement.sent().values(), np.zeros(len(placement.nodes)))
    return placement.loads + intake * received


def measure_knowing(settings: Settings) -> list[Row]:
    """VISIRI and `even` where costs, rates and what filters let pass were measured.

    VISIRI places by its own model and sends whole streams; with filters at the dispatcher, which its paper leaves for
    later, it is a row of its own. Costs and copies are those that the events show.
    """
    seed, nodes = int(settings["seed"]), int(settings["nodes"])
    queries, model = workload(int(settings["queries"]), "mixed", seed)
    seen = Seen(queries, seed)
    rows: list[Row] = []
    for name, (placer, singly) in placers(seed).items():
        if name in ("VISIRI", "even"):
            placement = placed(model, nodes, placer, singly=singly)
            if name == "VISIRI":
                rows.append(seen.row("VISIRI", placement, filtered=False))
                rows.append(seen.row("VISIRI, filtering", placement, filtered=True))
            else:
                costs = {unit.name: unit.cost for unit in seen.units}
                moved = len({move.unit for move in rebalance(placement, costs, tolerance=REBALANCE_TOLERANCE)})
                rows.append({**seen.row("even, rebalanced", placement, filtered=True), "moved": moved})
        elif name == "even, all at once":
            rows.append(seen.row("even", placed(seen.units, nodes, placer, singly=singly), filtered=True))
    return rows


class Seen:
    """What events say about queries."""

    def __init__(self, queries: Sequence[Query], seed: int) -> None:
        table = stream_events(EVENTS, spread=SPREAD, seed=seed)
        stream = table["type"].combine_chunks().dictionary_encode()
        order = np.argsort(stream.indices.to_numpy(), kind="stable")
        ends = np.cumsum(np.bincount(stream.indices.to_numpy(), minlength=len(stream.dictionary)))
        columns = {name: table[name].to_numpy()[order] for name in ATTRIBUTES}
        names = stream.dictionary.to_pylist()
        self._parts = {name: slice(start, end) for name, start, end in zip(names, (0, *ends), ends, strict=False)}
        self._columns = columns
        self._masks = {query.name: self._mask(query) for query in queries}
        self.units = tuple(self._unit(query) for query in queries)

    def _mask(self, query: Query) -> Mask:
        """Which events of its stream a query's filter lets pass."""
        (pattern,) = query.patterns
        part = self._parts.get(pattern.type, slice(0, 0))
        mask = np.ones(part.stop - part.start, np.bool_)
        for test in pattern.constraints:
            assert isinstance(test, Comparison)
            assert isinstance(test.left, Attribute)
            assert isinstance(test.right, Literal)
            compare = {"<": np.less, ">": np.greater}[test.operator]
            mask &= compare(self._columns[test.left.name][part], test.right.value)
        return mask

    def _unit(self, query: Query) -> Unit:
        """Work is counted: each event is looked at and tested, and those that pass go into the window and out of it."""
        mask = self._masks[query.name]
        passed = int(mask.sum())
        (source,) = query.sources
        steps = 0 if source.window is None else len(query.aggregates) * (1 if source.window.extent.batched else 2)
        cost = len(mask) * (1.0 + comparisons(query)) + passed * (1.0 + steps)
        share = 1.0 if not source.pattern.constraints else passed / max(len(mask), 1)
        given = Input(source.pattern.type, rate=float(len(mask)), passing=share, filter=query.name)
        return as_unit(query, cost=cost, inputs=[given])

    def row(self, name: str, placement: Placement, *, filtered: bool) -> Row:
        """Copies of an event and the variance of the nodes' counted work, as a share of the mean squared."""
        work = np.zeros(len(placement.nodes))
        needed: dict[tuple[int, str], Mask] = {}
        for unit in self.units:
            node, stream = placement.node_of(unit.name), unit.types[0]
            mask = self._masks[unit.name]
            work[node] += unit.cost
            if not filtered:
                mask = np.ones_like(mask)
            before = needed.get((node, stream))
            needed[node, stream] = mask if before is None else before | mask
        sent = sum(int(mask.sum()) for mask in needed.values())
        events = sum(len(self._masks[name]) for name in {unit.types[0]: unit.name for unit in self.units}.values())
        return {"placer": name, "copies": sent / events, "variance": float(work.var() / work.mean() ** 2)}


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
    from tocsin.spark.batch import batch_detector
    from tocsin.spark.blocks import packer
    from tocsin.spark.job import Job, send

    units = tuple(RuleUnit((query.name,), None, placement.node_of(query.name)) for query in queries)
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
