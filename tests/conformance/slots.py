"""Run Spark's slots without Spark: call the workers' functions in the order in which Spark does.

Fast enough for Hypothesis to search and to shrink. `spark.py` covers Catalyst and the real state store.
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from tests.conformance.hosts import Host
from tests.conformance.packs import Query, Row, arrival, matches_of, table
from tocsin.events.reader import Columns
from tocsin.events.types import Event, EventType
from tocsin.language.syntax.ast import Rule
from tocsin.plans.assignment import assign_rules
from tocsin.plans.placers import Random
from tocsin.plans.plan import plan
from tocsin.plans.typing import Catalog
from tocsin.spark import job, stream
from tocsin.spark.batch import batch_detector
from tocsin.spark.blocks import BLOCK_SCHEMA, CONTROL, WATERMARK, ShuffleBlock, block_packer, report_unpacker
from tocsin.spark.job import Job, SentJob, send
from tocsin.spark.rescale import initial_states, snapshot_of
from tocsin.spark.stream import SlotProcessor


def slots(rules: Sequence[Rule], types: dict[str, EventType], events: list[Event], rng: random.Random) -> list[Row]:
    """Run a batch query in a random number of slots."""
    return detected(received(sent_of(rules, types, events, rng, 0)), types, events, rng)


def detected(sent: SentJob, types: dict[str, EventType], events: list[Event], rng: random.Random) -> list[Row]:
    """Return the matches of the slots of a batch job."""
    blocks = packed(rng.sample(events, len(events)), types, sent, rng, ticks=False)
    if events:
        last = max(event.ts for event in events)
        blocks += [ShuffleBlock(label, WATERMARK, None, last, None) for label in sent.job.labels]
    found: list[Row] = []
    for label in sent.job.labels:
        mine = sorted(
            (block for block in blocks if block.slot == label), key=lambda p: (p.least or 0, p.payload or b"")
        )
        batches = batch_detector(sent)(iter([rows(mine)] if mine else []))
        found += [row for batch in batches for row in matches_of(pa.Table.from_batches([batch]))]
    return found


def micro_batches(
    rules: Sequence[Rule], types: dict[str, EventType], events: list[Event], rng: random.Random
) -> list[Row]:
    """Run a stream in a random number of slots. Workers restart, and batches fail and run again."""
    query = Query("", 0, 1, delay_ticks=rng.choice([0, 1, 3, 10]), batches=min(len(events), rng.randint(1, 6)))
    sent = received(sent_of(rules, types, events, rng, query.delay_ticks))
    stores = {label: Store() for label in sent.job.labels}
    found: list[Row] = []
    for batch in arrival(events, query, rng):
        blocks = packed(batch, types, sent, rng, ticks=True)
        if rng.random() < 0.2:
            turn(sent, copy.deepcopy(stores), blocks)
        if rng.random() < 0.2:
            stream._cached.clear()
        found += turn(sent, stores, blocks)
    return found + ended(sent, stores, events)


def ended(sent: SentJob, stores: dict[int, Store], events: list[Event]) -> list[Row]:
    """Return the matches after time passed the last event; without events there is no time."""
    if not events:
        return []
    end = json.dumps({"advance": max(event.ts for event in events) + 1}).encode()
    return turn(sent, stores, [ShuffleBlock(label, CONTROL, None, None, end) for label in stores])


def moving(rules: Sequence[Rule], types: dict[str, EventType], events: list[Event], rng: random.Random) -> list[Row]:
    """Run a stream whose number of slots and assignment of rules change; state moves with the rules."""
    delay_us = rng.choice([0, 1, 3, 10])
    query = Query("", 0, 1, delay_ticks=delay_us, batches=min(len(events), rng.randint(2, 6)))
    sent = sent_of(rules, types, events, rng, query.delay_ticks)
    stores = {label: Store() for label in sent.job.labels}
    found: list[Row] = []
    for batch in arrival(events, query, rng):
        found += turn(sent, stores, packed(batch, types, sent, rng, ticks=True))
        if rng.random() < 0.6:
            sent, stores = moved(sent, stores, rng)
    return found + ended(sent, stores, events)


def moved(sent: SentJob, stores: dict[int, Store], rng: random.Random) -> tuple[SentJob, dict[int, Store]]:
    """Return the job with a random number of slots and assignment, and its state there."""
    old = sent.job
    layout = assign_rules(old.plan, rng.randint(1, 7), placer=Random(rng.randint(0, 99)))
    job = replace(old, layout=layout)
    states = {
        old.labels.index(label): snapshot_of(
            store.values["head"][3], {n: segment for (n,), (segment,) in store.values["segments"].items()}
        )
        for label, store in stores.items()
    }
    largest = max(store.values["head"][1] for store in stores.values())
    new_stores = {label: Store() for label in job.labels}
    assert not turn(send(job), new_stores, initial_states(old.layout, states, job, largest))
    return send(job), new_stores


SLOTS: dict[str, Host] = {"slots": slots, "micro-batches": micro_batches}


def sent_of(
    rules: Sequence[Rule], types: dict[str, EventType], events: list[Event], rng: random.Random, delay_us: int
) -> SentJob:
    kinds = dict(attribute for type in types.values() for attribute in type.attributes)
    catalog = Catalog().learned(kinds, {}, frozenset(), complete=True)
    layout = assign_rules(plan(rules, catalog), rng.randint(1, 7))
    id = "id" if any(event.id is not None for event in events) else None
    return send(Job(tuple(rules), catalog, Columns(id=id, ts_unit="us"), layout, delay_us, times=False))


def received(sent: SentJob) -> SentJob:
    """Return the job as a worker decodes it."""
    job._jobs.pop(sent.digest, None)
    return sent


def packed(
    events: list[Event], types: dict[str, EventType], sent: SentJob, rng: random.Random, *, ticks: bool
) -> list[ShuffleBlock]:
    """Return the blocks of events in two partitions, in random order, as after a shuffle."""
    query = Query("", 0, 1, named=sent.job.columns.id is not None)
    middle = rng.randint(0, len(events))
    blocks = []
    for part in (events[:middle], events[middle:]):
        whole = table(part, types.values(), query)
        for batch in block_packer(sent, watermarks=ticks)(iter(whole.to_batches())):
            blocks += [ShuffleBlock(**row) for row in batch.to_pylist()]
    return rng.sample(blocks, len(blocks))


def rows(blocks: Iterable[ShuffleBlock]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([block._asdict() for block in blocks], BLOCK_SCHEMA)


def turn(sent: SentJob, stores: dict[int, Store], blocks: list[ShuffleBlock]) -> list[Row]:
    """Run a micro-batch and return its matches."""
    found: list[Row] = []
    for label, store in stores.items():
        processor = SlotProcessor(sent)
        processor.init(store)
        frame = rows(block for block in blocks if block.slot == label).to_pandas()
        for payloads in processor.handleInputRows((label,), iter([frame]), Clock()):
            batches = report_unpacker(sent)(iter([pa.RecordBatch.from_pandas(payloads)]))
            found += [row for batch in batches for row in matches_of(pa.Table.from_batches([batch]))]
    return found


class Clock:
    """Spark's clock, in milliseconds; stays at 0."""

    def getCurrentWatermarkInMs(self) -> int:
        return 0


@dataclass
class Store:
    """The state of one slot, with the interface of Spark."""

    values: dict[str, Any] = field(default_factory=dict)

    def getValueState(self, name: str, schema: str) -> Value:
        return Value(self.values, name)

    def getMapState(self, name: str, key: str, value: str) -> Entries:
        return Entries(self.values.setdefault(name, {}))

    def registerTimer(self, ms: int) -> None:
        assert isinstance(ms, int)


@dataclass
class Value:
    values: dict[str, Any]
    name: str

    def get(self) -> Any:
        return self.values.get(self.name)

    def update(self, value: Any) -> None:
        self.values[self.name] = value


@dataclass
class Entries:
    entries: dict[Any, Any]

    def getValue(self, key: Any) -> Any:
        return self.entries.get(key)

    def updateValue(self, key: Any, value: Any) -> None:
        self.entries[key] = value

    def removeKey(self, key: Any) -> None:
        del self.entries[key]
