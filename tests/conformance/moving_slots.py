"""Run moving queries in Spark's slots without Spark: call the workers' functions in the order in which Spark does."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa

from tests.conformance.moving_packs import MovingQuery, delivered, table
from tests.conformance.packs import Row
from tests.conformance.slots import Clock, Store, rows
from tests.simulation.moving import Moving
from tests.simulation.ranges import arriving
from tocsin.events.reader import Columns
from tocsin.events.types import Event, Kind
from tocsin.language.mcep.ast import Interest
from tocsin.plans.typing import Catalog
from tocsin.spark import moving_slot
from tocsin.spark.blocks import CONTROL, INITIAL_STATE, ShuffleBlock, decode
from tocsin.spark.job import SentJob, send
from tocsin.spark.moving_job import MovingJob
from tocsin.spark.moving_slot import CellProcessor
from tocsin.spark.rescale import moving_initial_states

CELL_REPORTS = pa.schema([("slot", pa.int32()), ("what", pa.string()), ("payload", pa.binary())])
Stores = dict[int, Store]


def stream(case: Moving, rng: random.Random, others: Sequence[Interest] = ()) -> list[Row]:
    """Return the deliveries of a stream. Workers restart, batches fail and run again, the number of slots changes, and
    some of `others` run for a while."""
    batches, delay_us = arriving(case.case.events, rng)
    shape = Catalog().learned(dict.fromkeys(("x", "y", "lon", "lat"), Kind.DOUBLE), {}, frozenset(), complete=True)
    id = "id" if any(event.id is not None for event in case.case.events) else None
    columns, history_us = Columns(id=id, ts_unit="us"), case.city.history_us
    job = MovingJob(case.interests, shape, columns, rng.randint(1, 5), False, None, delay_us, history_us)
    sent = send(job)
    stores = {label: Store() for label in job.labels}
    found: list[Row] = []
    for batch in batches:
        blocks = packed(batch, sent, rng)
        if rng.random() < 0.2:
            turn(sent, copy.deepcopy(stores), blocks)
        if rng.random() < 0.3:
            moving_slot._cached.clear()
        found += turn(sent, stores, blocks)
        if rng.random() < 0.3:
            present = [one for one in others if rng.random() < 0.5]
            sent = send(replace(sent.job, interests=(*present, *case.interests)))
        if rng.random() < 0.3:
            sent, stores = rekeyed(sent, stores, rng.randint(1, 5))
    end = json.dumps({"advance": max((event.ts for event in case.case.events), default=0) + 1}).encode()
    found += turn(sent, stores, [ShuffleBlock(label, CONTROL, None, None, end) for label in stores])
    names = {one.name for one in case.interests}
    return [row for row in found if row["query"] in names]


def packed(events: list[Event], sent: SentJob[MovingJob], rng: random.Random) -> list[ShuffleBlock]:
    """Return the blocks of events in two partitions, in random order, as after a shuffle."""
    query = MovingQuery("", 0, 1, named=sent.job.columns.id is not None)
    middle = rng.randint(0, len(events))
    blocks = []
    for part in (events[:middle], events[middle:]):
        for batch in moving_slot._packer(sent)(iter(table(part, query).to_batches())):
            blocks += [ShuffleBlock(**row) for row in batch.to_pylist()]
    return rng.sample(blocks, len(blocks))


def turn(sent: SentJob[MovingJob], stores: Stores, blocks: list[ShuffleBlock]) -> list[Row]:
    """Run a micro-batch, first the slots of cells, then those of queries, and return its deliveries."""
    cell_reports: list[dict[str, object]] = []
    for label, store in stores.items():
        processor = CellProcessor(sent)
        processor.init(store)
        frame = rows(block for block in blocks if block.slot == label).to_pandas()
        for given in processor.handleInputRows((label,), iter([frame]), Clock()):
            cell_reports += given.to_dict("records")
    found: list[Row] = []
    for label in stores:
        mine = pa.RecordBatch.from_pylist([row for row in cell_reports if row["slot"] == label], CELL_REPORTS)
        for report in moving_slot._runner(sent)(iter([mine])):
            found += delivered(pa.Table.from_batches([report]))
    return found


def rekeyed(sent: SentJob[MovingJob], stores: Stores, slots: int) -> tuple[SentJob[MovingJob], Stores]:
    """Return the job in another number of slots, and its state there."""
    job = replace(sent.job, slots=slots)
    heads = {label: store.values["head"] for label, store in stores.items()}
    position = {label: json.loads(head[1]) for label, head in heads.items()}
    live = [
        decode(stores[label].values["segments"][(number,)][0]) for label in stores for number in position[label]["live"]
    ]
    fresh = {label: Store() for label in job.labels}
    waiting = decode(heads[0][2])
    seeds = [
        ShuffleBlock(job.labels[n], INITIAL_STATE, None, None, seed)
        for n, seed in enumerate(moving_initial_states(job, position[0], waiting, live))
    ]
    assert not turn(send(job), fresh, seeds)
    return send(job), fresh
