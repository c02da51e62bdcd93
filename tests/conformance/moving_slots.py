"""Queries that move in Spark's slots, without Spark: what the workers do, in the order in which Spark would call it."""

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
from tocsin.spark.blocks import CONTROL, SEED, Parcel, decode
from tocsin.spark.job import Sent, send
from tocsin.spark.moving_job import MovingJob
from tocsin.spark.moving_slot import CellProcessor
from tocsin.spark.rescale import spread

HANDED = pa.schema([("slot", pa.int32()), ("what", pa.string()), ("payload", pa.binary())])
Stores = dict[int, Store]


def stream(case: Moving, chance: random.Random, others: Sequence[Interest] = ()) -> list[Row]:
    """What a stream delivers. Workers come and go, batches fail and are run again, slots become more or fewer, and of
    `others` some are there for a while."""
    batches, delay_us = arriving(case.case.events, chance)
    shape = Catalog().learned(dict.fromkeys(("x", "y", "lon", "lat"), Kind.DOUBLE), {}, frozenset(), complete=True)
    id = "id" if any(event.id is not None for event in case.case.events) else None
    columns, history_us = Columns(id=id, ts_unit="us"), case.city.history_us
    job = MovingJob(case.interests, shape, columns, chance.randint(1, 5), False, None, delay_us, history_us)
    sent = send(job)
    stores = {label: Store() for label in job.labels}
    found: list[Row] = []
    for batch in batches:
        parcels = packed(batch, sent, chance)
        if chance.random() < 0.2:
            turn(sent, copy.deepcopy(stores), parcels)
        if chance.random() < 0.3:
            moving_slot._cached.clear()
        found += turn(sent, stores, parcels)
        if chance.random() < 0.3:
            present = [one for one in others if chance.random() < 0.5]
            sent = send(replace(sent.job, interests=(*present, *case.interests)))
        if chance.random() < 0.3:
            sent, stores = rekeyed(sent, stores, chance.randint(1, 5))
    end = json.dumps({"advance": max((event.ts for event in case.case.events), default=0) + 1}).encode()
    found += turn(sent, stores, [Parcel(label, CONTROL, None, None, end) for label in stores])
    names = {one.name for one in case.interests}
    return [row for row in found if row["query"] in names]


def packed(events: list[Event], sent: Sent[MovingJob], chance: random.Random) -> list[Parcel]:
    """The parcels of events in two partitions, in the order in which a shuffle brings them: any."""
    query = MovingQuery("", 0, 1, named=sent.job.columns.id is not None)
    middle = chance.randint(0, len(events))
    parcels = []
    for part in (events[:middle], events[middle:]):
        for batch in moving_slot._packing(sent)(iter(table(part, query).to_batches())):
            parcels += [Parcel(**row) for row in batch.to_pylist()]
    return chance.sample(parcels, len(parcels))


def turn(sent: Sent[MovingJob], stores: Stores, parcels: list[Parcel]) -> list[Row]:
    """What a micro-batch delivers: first the slots of cells, then those of queries."""
    handed: list[dict[str, object]] = []
    for label, store in stores.items():
        processor = CellProcessor(sent)
        processor.init(store)
        frame = rows(parcel for parcel in parcels if parcel.slot == label).to_pandas()
        for given in processor.handleInputRows((label,), iter([frame]), Clock()):
            handed += given.to_dict("records")
    found: list[Row] = []
    for label in stores:
        mine = pa.RecordBatch.from_pylist([row for row in handed if row["slot"] == label], HANDED)
        for report in moving_slot._running(sent)(iter([mine])):
            found += delivered(pa.Table.from_batches([report]))
    return found


def rekeyed(sent: Sent[MovingJob], stores: Stores, slots: int) -> tuple[Sent[MovingJob], Stores]:
    """The job in another number of slots, and its state there."""
    job = replace(sent.job, slots=slots)
    heads = {label: store.values["head"] for label, store in stores.items()}
    told = {label: json.loads(head[1]) for label, head in heads.items()}
    live = [
        decode(stores[label].values["segments"][(number,)][0]) for label in stores for number in told[label]["live"]
    ]
    fresh = {label: Store() for label in job.labels}
    waiting = decode(heads[0][2])
    seeds = [
        Parcel(job.labels[n], SEED, None, None, seed) for n, seed in enumerate(spread(job, told[0], waiting, live))
    ]
    assert not turn(send(job), fresh, seeds)
    return send(job), fresh
