"""Measure VISIRI's figures: place generated queries on nodes with each placer, and evaluate the placements.

A query is a unit of placement, which runs on one node as a whole. Its cost comes from the cost model, or is measured:
`MeasuredQueries` counts the rates of streams, the selectivity of filters and the work of queries on events.

`busy_in_slots` runs the queries of each node as a slot on Spark does, and times them. Events are packed into blocks for
the slots, and the function that detects in a partition processes the blocks of each slot, both as in Spark's workers.
This is repeated several times, with the placements in turn. A slot's busy time is the sum of the minimal processor
times of its blocks, because other load only adds time. One placement is measured twice to show the noise.

The dispatcher is the paper's (Section 3). It knows streams but no filters, so a node receives all events of a stream
that one of its queries reads.
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
from tocsin.language.siddhi.ast import Query, StreamSource
from tocsin.language.syntax.ast import Attribute, Comparison, Literal, Pattern
from tocsin.plans.assignment import Forward, Layout, RuleUnit, forwarding
from tocsin.plans.cost import as_unit, comparisons, query_cost
from tocsin.plans.placement import Input, Placement, Unit, duplication, throughput, variance
from tocsin.plans.placers import ARRIVING, Even, Placer, Random, Sctxpf, Visiri, rebalance
from tocsin.plans.rules import Filter
from tocsin.plans.typing import Catalog
from tocsin.process import gc_paused
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
"""How many times more events the fastest stream of the measured workload has than the slowest, at most."""
REBALANCE_TOLERANCE = 0.05
TIGHT, TIGHT_SLACK = "VISIRI, cost slack 40", 40.0
"""The placer VISIRI with a tenth of the paper's threshold of costs."""


def placers(seed: int) -> dict[str, tuple[Placer, bool]]:
    """Return each placer by its name in the figures, and whether it places queries one by one."""
    return {
        "VISIRI": (Visiri(seed=seed), True),
        "SCTXPF": (Sctxpf(seed=seed), True),
        "random": (Random(seed=seed), True),
        "even": (ARRIVING, True),
        "even, all at once": (Even(), False),
    }


def placed(units: Sequence[Unit], nodes: int, placer: Placer, *, singly: bool) -> Placement:
    """Place `units` on `nodes` nodes, either one by one (`singly`) or all at once."""
    placement = Placement(nodes)
    for batch in ([unit] for unit in units) if singly else (units,):
        placer.place(batch, placement)
    return placement


def workload(queries: int, shape: str, seed: int) -> tuple[tuple[Query, ...], tuple[Unit, ...]]:
    """Return generated queries and their units, which have the costs of VISIRI's model and read whole streams."""
    most, units = _workload(shape, seed)
    return most[:queries], units[:queries]


@lru_cache(maxsize=2)
def _workload(shape: str, seed: int) -> tuple[tuple[Query, ...], tuple[Unit, ...]]:
    definitions = {stream.name: stream for stream in stream_types()}
    queries = tuple(generated(QUERIES_MAX, shape, seed=seed))
    return queries, tuple(as_unit(query, definitions) for query in queries)


@lru_cache(maxsize=64)
def _units(shape: str, seed: int) -> tuple[Unit, ...]:
    """Return the units of a workload without the queries. Units are small, so the units of all seeds are cached."""
    return _workload(shape, seed)[1]


def measure_placements(settings: Settings) -> list[Row]:
    """Return the duplication of events and the variance of loads for each placer, and for VISIRI's tight variant."""
    tight = Visiri(cost_slack=TIGHT_SLACK, seed=int(settings["seed"]))
    return [
        {"placer": name, "duplication": duplication(placement), "variance": variance(placement)}
        for name, placement in [*_placements(settings), *_placements(settings, {TIGHT: (tight, True)})]
    ]


def measure_throughput(settings: Settings) -> list[Row]:
    """Return the throughput for each placer by the cost model, for one event of each stream that is read.

    The throughput is the number of events divided by the largest busy time of a node.
    """
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
    """Return the work of each node for one event of each stream, in units of cost.

    Each query processes the event of its stream, and a node ingests each event that it receives. Ingesting costs as
    much as a query that only passes events on.
    """
    stream = stream_types(1)[0]
    values = tuple((name, Attribute(name)) for name in ATTRIBUTES)
    passing = Query("pass", EventType("output", stream.attributes), StreamSource(Pattern(stream.name)), values)
    intake = query_cost(passing, {stream.name: stream})
    received = sum(placement.sent().values(), np.zeros(len(placement.nodes)))
    return placement.loads + intake * received


def measure_knowing(settings: Settings) -> list[Row]:
    """Evaluate VISIRI and `even` with measured costs, rates and selectivities.

    VISIRI places by its own model and sends whole streams; a separate row has filters at the dispatcher, which the
    paper leaves for later. Costs and copies are counted on the events.
    """
    seed, nodes = int(settings["seed"]), int(settings["nodes"])
    queries, model = workload(int(settings["queries"]), "mixed", seed)
    seen = MeasuredQueries(queries, seed)
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


class MeasuredQueries:
    """The rates, selectivities and costs of queries, counted on generated events."""

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
        """Return a mask of the events that the query's filter selects from the query's stream."""
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
        """Return the unit of a query with its counted work.

        Each event is read and tested, and each selected event enters and leaves the window.
        """
        mask = self._masks[query.name]
        selected = int(mask.sum())
        (source,) = query.sources
        steps = 0 if source.window is None else len(query.aggregates) * (1 if source.window.extent.batched else 2)
        cost = len(mask) * (1.0 + comparisons(query)) + selected * (1.0 + steps)
        passing = 1.0 if not source.pattern.constraints else selected / max(len(mask), 1)
        source_input = Input(source.pattern.type, rate=float(len(mask)), passing=passing, filter=query.name)
        return as_unit(query, cost=cost, inputs=[source_input])

    def row(self, name: str, placement: Placement, *, filtered: bool) -> Row:
        """Return the mean number of copies of an event, and the variance of the nodes' work by the squared mean.

        If `filtered` is false, nodes receive whole streams.
        """
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


BLOCKS, EVENTS_OF_BLOCK = 6, 100_000
STREAM_EVENTS = BLOCKS * EVENTS_OF_BLOCK / STREAMS
"""The approximate number of events per stream."""
ROUNDS = 12
PLACERS = ("VISIRI", "SCTXPF", "random", "even")
AGAIN = "VISIRI, again"
"""The name of the second measurement of VISIRI's placement, which shows the noise."""


def measure_slots(settings: Settings) -> list[Row]:
    """Return the throughput for each placer: the number of events divided by the largest busy time of a slot.

    Also return the total busy time of the slots, and the numbers of events that slots received and that queries read.
    """
    seed, nodes = int(settings["seed"]), int(settings["nodes"])
    queries, units = workload(int(settings["queries"]), str(settings["shape"]), seed)
    chosen = {name: way for name, way in placers(seed).items() if name in PLACERS}
    placements = {name: placed(units, nodes, placer, singly=singly) for name, (placer, singly) in chosen.items()}
    placements[AGAIN] = placements["VISIRI"]
    return [
        {
            "placer": name,
            "throughput": throughput(BLOCKS * EVENTS_OF_BLOCK, busy),
            "busy_s": float(busy.sum()),
            "sent": float(sum(nodes.sum() for nodes in placements[name].sent().values()) * STREAM_EVENTS),
            "seen": float(len(queries) * STREAM_EVENTS),
        }
        for name, busy in busy_in_slots(queries, placements).items()
    ]


@gc_paused()
def busy_in_slots(
    queries: Sequence[Query], placements: Mapping[str, Placement], *, events: int = EVENTS_OF_BLOCK
) -> dict[str, Numbers]:
    """Return the busy time in seconds of each node of each placement, for blocks of `events` events."""
    nodes = {name: _nodes(queries, placement, events) for name, placement in placements.items()}
    gc.freeze()  # so that a collection only visits the objects of the round
    for number in range(ROUNDS):
        for turn in zip(*nodes.values(), strict=True):  # in turn, so that all placements see the same load
            first = number % len(turn)
            for node in turn[first:] + turn[:first]:
                node.work()
        gc.collect()
    gc.unfreeze()
    return {name: np.array([node.busy for node in mine]) for name, mine in nodes.items()}


def _nodes(queries: Sequence[Query], placement: Placement, events: int) -> list[_Node]:
    """Return the nodes of `placement` with the blocks of events that they receive."""
    from tocsin.spark.batch import batch_detector
    from tocsin.spark.blocks import block_packer
    from tocsin.spark.job import Job, send

    units = tuple(RuleUnit((query.name,), None, placement.node_of(query.name)) for query in queries)
    layout = Layout(len(placement.nodes), units)
    catalog = Catalog(types={stream.name: stream for stream in stream_types()})
    job = Job(tuple(queries), catalog, Columns(), layout, 0, times=True)
    job.__dict__["router"] = _whole_streams(job)
    sent = send(job)
    blocks: dict[int, list[pa.RecordBatch]] = {label: [] for label in job.labels}
    for part in _parts(events):
        for block in block_packer(sent, watermarks=False)(iter(part.to_batches())):
            blocks[block["slot"][0].as_py()].append(block)
    return [_Node(batch_detector(sent), mine) for mine in blocks.values()]


def _whole_streams(job: Job) -> Router:
    """Return a router that sends whole streams to the slots of `job`, without filters."""
    slots_of: dict[str, set[int]] = {}
    for filter, forward in forwarding(job.plan, job.layout).items():
        slots_of.setdefault(filter.type, set()).update(forward.slots)
    forwards = {Filter(type): Forward((), tuple(sorted(slots))) for type, slots in slots_of.items()}
    return Router(job.types, job.plan.columns, forwards, job.layout.slots)


class _Node:
    """A node that runs as a slot, with its blocks and its processor time for each block."""

    def __init__(self, detect: Callable[[Batches], Batches], blocks: Sequence[pa.RecordBatch]) -> None:
        self._detect, self._blocks = detect, blocks
        self._seconds: list[list[float]] = []

    def work(self) -> None:
        """Process all blocks once."""
        times_s: list[float] = []

        def timed_blocks() -> Iterator[pa.RecordBatch]:
            for block in self._blocks:
                times_s.append(process_time())
                yield block
            times_s.append(process_time())

        for _ in self._detect(timed_blocks()):
            pass
        # A block is processed when the next one, or the end, is read. So the first interval is compiling rules, and the
        # last block, which ends the input, is not timed.
        self._seconds.append([after - before for before, after in pairwise(times_s[1:])])

    @property
    def busy(self) -> float:
        """The sum of the minimum times of all timed blocks, in seconds."""
        return float(np.min(self._seconds, axis=0).sum())


@lru_cache(maxsize=1)
def _parts(size: int) -> tuple[pa.Table, ...]:
    table = stream_events(size * (BLOCKS + 1))
    return tuple(table.slice(size * n, size) for n in range(BLOCKS + 1))
