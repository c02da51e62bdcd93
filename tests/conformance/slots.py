"""Spark's slots without Spark: what the workers do, called in the order in which Spark would call it.

Fast enough for Hypothesis to search and to shrink. What Catalyst does, and the real state store, are for `spark.py`.
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
from tocsin.plans.assignment import lay_out
from tocsin.plans.placers import Random
from tocsin.plans.plan import plan
from tocsin.plans.typing import Catalog
from tocsin.spark import job, stream
from tocsin.spark.batch import batch_detector
from tocsin.spark.blocks import CONTROL, PARCELS, TICK, Parcel, packer, unpacker
from tocsin.spark.job import Job, Sent, send
from tocsin.spark.rescale import seeds, snapshot_of
from tocsin.spark.stream import SlotProcessor


def slots(rules: Sequence[Rule], types: dict[str, EventType], events: list[Event], chance: random.Random) -> list[Row]:
    """Some slots, and tables in some partitions."""
    return detected(received(sent_of(rules, types, events, chance, 0)), types, events, chance)


def detected(sent: Sent, types: dict[str, EventType], events: list[Event], chance: random.Random) -> list[Row]:
    """What the slots of a job find in tables."""
    parcels = packed(chance.sample(events, len(events)), types, sent, chance, ticks=False)
    if events:
        last = max(event.ts for event in events)
        parcels += [Parcel(label, TICK, None, last, None) for label in sent.job.labels]
    found: list[Row] = []
    for label in sent.job.labels:
        mine = sorted(
            (parcel for parcel in parcels if parcel.slot == label), key=lambda p: (p.least or 0, p.payload or b"")
        )
        batches = batch_detector(sent)(iter([rows(mine)] if mine else []))
        found += [row for batch in batches for row in matches_of(pa.Table.from_batches([batch]))]
    return found


def micro_batches(
    rules: Sequence[Rule], types: dict[str, EventType], events: list[Event], chance: random.Random
) -> list[Row]:
    """Some slots of a stream. Workers come and go, and batches fail and are run again."""
    query = Query("", 0, 1, delay_ticks=chance.choice([0, 1, 3, 10]), batches=min(len(events), chance.randint(1, 6)))
    sent = received(sent_of(rules, types, events, chance, query.delay_ticks))
    stores = {label: Store() for label in sent.job.labels}
    found: list[Row] = []
    for batch in arrival(events, query, chance):
        parcels = packed(batch, types, sent, chance, ticks=True)
        if chance.random() < 0.2:
            turn(sent, copy.deepcopy(stores), parcels)
        if chance.random() < 0.2:
            stream._cached.clear()
        found += turn(sent, stores, parcels)
    return found + ended(sent, stores, events)


def ended(sent: Sent, stores: dict[int, Store], events: list[Event]) -> list[Row]:
    """What comes when time has passed the last event; without any event there is no time."""
    if not events:
        return []
    end = json.dumps({"advance": max(event.ts for event in events) + 1}).encode()
    return turn(sent, stores, [Parcel(label, CONTROL, None, None, end) for label in stores])


def moving(rules: Sequence[Rule], types: dict[str, EventType], events: list[Event], chance: random.Random) -> list[Row]:
    """A stream whose slots become more or fewer on the way, and whose rules are placed anew: state moves with them."""
    delay_us = chance.choice([0, 1, 3, 10])
    query = Query("", 0, 1, delay_ticks=delay_us, batches=min(len(events), chance.randint(2, 6)))
    sent = sent_of(rules, types, events, chance, query.delay_ticks)
    stores = {label: Store() for label in sent.job.labels}
    found: list[Row] = []
    for batch in arrival(events, query, chance):
        found += turn(sent, stores, packed(batch, types, sent, chance, ticks=True))
        if chance.random() < 0.6:
            sent, stores = moved(sent, stores, chance)
    return found + ended(sent, stores, events)


def moved(sent: Sent, stores: dict[int, Store], chance: random.Random) -> tuple[Sent, dict[int, Store]]:
    """The job in another number of slots, with rules in any of them, and its state there."""
    old = sent.job
    layout = lay_out(old.plan, chance.randint(1, 7), placer=Random(chance.randint(0, 99)))
    job = replace(old, layout=layout)
    states = {
        old.labels.index(label): snapshot_of(
            store.values["head"][3], {n: segment for (n,), (segment,) in store.values["segments"].items()}
        )
        for label, store in stores.items()
    }
    largest = max(store.values["head"][1] for store in stores.values())
    fresh = {label: Store() for label in job.labels}
    assert not turn(send(job), fresh, seeds(old.layout, states, job, largest))
    return send(job), fresh


SLOTS: dict[str, Host] = {"slots": slots, "micro-batches": micro_batches}


def sent_of(
    rules: Sequence[Rule], types: dict[str, EventType], events: list[Event], chance: random.Random, delay_us: int
) -> Sent:
    kinds = dict(attribute for type in types.values() for attribute in type.attributes)
    catalog = Catalog().learned(kinds, {}, frozenset(), complete=True)
    layout = lay_out(plan(rules, catalog), chance.randint(1, 7))
    id = "id" if any(event.id is not None for event in events) else None
    return send(Job(tuple(rules), catalog, Columns(id=id, ts_unit="us"), layout, delay_us, times=False))


def received(sent: Sent) -> Sent:
    """The job as a worker has it: read from its bytes."""
    job._kept.pop(sent.digest, None)
    return sent


def packed(
    events: list[Event], types: dict[str, EventType], sent: Sent, chance: random.Random, *, ticks: bool
) -> list[Parcel]:
    """The parcels of events in two partitions, in the order in which a shuffle brings them: any."""
    query = Query("", 0, 1, named=sent.job.columns.id is not None)
    middle = chance.randint(0, len(events))
    parcels = []
    for part in (events[:middle], events[middle:]):
        whole = table(part, types.values(), query)
        for batch in packer(sent, ticks=ticks)(iter(whole.to_batches())):
            parcels += [Parcel(**row) for row in batch.to_pylist()]
    return chance.sample(parcels, len(parcels))


def rows(parcels: Iterable[Parcel]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([parcel._asdict() for parcel in parcels], PARCELS)


def turn(sent: Sent, stores: dict[int, Store], parcels: list[Parcel]) -> list[Row]:
    """What the slots find in a micro-batch."""
    found: list[Row] = []
    for label, store in stores.items():
        processor = SlotProcessor(sent)
        processor.init(store)
        frame = rows(parcel for parcel in parcels if parcel.slot == label).to_pandas()
        for payloads in processor.handleInputRows((label,), iter([frame]), Clock()):
            batches = unpacker(sent)(iter([pa.RecordBatch.from_pandas(payloads)]))
            found += [row for batch in batches for row in matches_of(pa.Table.from_batches([batch]))]
    return found


class Clock:
    """Spark's, which is told in whole milliseconds: none has passed yet."""

    def getCurrentWatermarkInMs(self) -> int:
        return 0


@dataclass
class Store:
    """The state of one slot, as Spark hands it out."""

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
