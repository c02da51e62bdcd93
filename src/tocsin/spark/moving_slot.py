"""Detect moving queries over a stream, with slots of cells and slots of queries.

Each *slot of cells* is a group of Spark's stateful operator (see `moving_job` for cells, ranges and emissions). Events
go to the slot of their cell, and location updates go to all slots, so that all slots compute the same emissions when
the watermark advances. Each slot forwards its events near the emissions to the *slots of queries*. These have no state,
because all that they need arrives with the emissions.

The state of a slot of cells has the events of its cells, in one segment for each micro-batch with events, and the
positions of the ranges. The watermark follows from markers, as for rules (see `stream`).
"""

from __future__ import annotations

import json
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming import StatefulProcessor

from tocsin.engine.moving import detector
from tocsin.engine.moving.detector import recode_types
from tocsin.engine.moving.gather import UPDATES, Array, DeadLetter, GatheredEvents
from tocsin.engine.moving.ranges import EMISSION, RangeTracker
from tocsin.errors import StateError
from tocsin.events.dead_letters import dead_letter_table, describe, describe_row
from tocsin.events.reorder import BEGINNING
from tocsin.language.syntax.expressions import print_pattern
from tocsin.process import freeze_gc, freezing_gc
from tocsin.spark import blocks, stream
from tocsin.spark.batch import SlotReport
from tocsin.spark.blocks import (
    BLOCK_DDL,
    CONTROL,
    EVENTS,
    INITIAL_STATE,
    REJECTED,
    WATERMARK,
    Batches,
    ShuffleBlock,
    chunks,
    decode,
    encode,
    read_chunk,
    to_record_batch,
)
from tocsin.spark.job import SentJob, send
from tocsin.spark.moving_job import MovingJob, run_ranges
from tocsin.spark.names import map_in_arrow
from tocsin.spark.source import FrameSource
from tocsin.spark.stream import MS, OBSERVED, SLOTS_DIFFER, blocks_in

LOCATIONS, PIECES, COUNTS = "locations", "pieces", "counts"
FORWARDED_DDL = "slot int, what string, payload binary"
SLOTS_CACHED = 256


def detect_stream(source: FrameSource, job: MovingJob, changes: DataFrame | None) -> DataFrame:
    """Return the report of a stream of events as a streaming DataFrame. `changes` are its control rows."""
    sent = send(job)
    shuffle_blocks = map_in_arrow(source.with_watermark(), _packer(sent), BLOCK_DDL)
    if changes is not None:
        shuffle_blocks = shuffle_blocks.unionByName(stream.control_blocks(changes, job.labels))
    forwarded = shuffle_blocks.groupBy("slot").transformWithStateInPandas(
        CellProcessor(sent), FORWARDED_DDL, "Append", "EventTime"
    )
    columns = from_arrow_schema(blocks.report_fields(job.matches))
    report = forwarded.repartition(job.slots, "slot").mapInArrow(_runner(sent), columns)
    return blocks.with_kind(report).observe(OBSERVED, F.collect_list("_metrics").alias("slots"))


def _packer(sent: SentJob[MovingJob]) -> Callable[[Batches], Batches]:
    """Return the function that packs the rows of a partition into shuffle blocks, with a marker for each slot."""

    @freezing_gc
    def pack(batches: Batches) -> Batches:
        job, largest = sent.job, None
        for table in chunks(batches):
            batch, rejected = read_chunk(table, job)
            if rejected is not None:
                yield to_record_batch([rejected])
            if not batch.num_rows:
                continue
            latest = int(batch["ts"].to_numpy().max())
            largest = latest if largest is None else max(largest, latest)
            updates, rejected_updates = job.gatherer.updates(batch)
            if rejected_updates:
                yield to_record_batch(
                    [ShuffleBlock(job.labels[0], REJECTED, None, None, encode(dead_letter_table(rejected_updates)))]
                )
            if updates.num_rows:
                payload = encode(updates)
                for label in job.labels:
                    yield to_record_batch([ShuffleBlock(label, LOCATIONS, None, None, payload)])
            for slot, part in _split_by_slot(job, batch):
                yield to_record_batch([ShuffleBlock(job.labels[slot], EVENTS, None, None, encode(part))])
        yield to_record_batch([ShuffleBlock(label, WATERMARK, None, largest, None) for label in job.labels])

    return pack


def cell_slots(job: MovingJob, events: GatheredEvents) -> Array:
    """Return for each event the slot of its cell, or -1 if the event has no position.

    If an event has a position on the plane and on the Earth, the first space of the queries decides.
    """
    slots = np.full(len(events), -1, np.int64)
    for space in job.gatherer.spaces:
        east, north = events.positions(space)
        located = np.flatnonzero(~np.isnan(east) & (slots < 0))
        keys = job.cells_of(east[located], north[located], space).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        slots[located] = (keys >> np.uint64(33)).astype(np.int64) % job.slots
    return slots


def _split_by_slot(job: MovingJob, batch: pa.Table) -> Iterator[tuple[int, pa.Table]]:
    """Yield each slot of cells that has events in `batch`, and its events."""
    events = job.gatherer.events(batch)
    if events is None:
        return
    gathered = GatheredEvents([events], job.gatherer.types, canonical=False)
    slots = cell_slots(job, gathered)
    for slot in np.unique(slots[slots >= 0]).tolist():
        yield slot, gathered.batch.filter(pa.array(slots == slot))


# ---- slots of cells


@dataclass
class MovingSlot:
    """A slot of cells that a Python worker keeps in memory between batches."""

    follower: RangeTracker
    parts: dict[int, pa.Table] = field(default_factory=dict)
    """The stored events, by the number of their segment."""
    waiting: pa.Table = field(default_factory=UPDATES.empty_table)
    """The location updates at or after the watermark, which wait until the watermark passes their time."""
    largest: int = BEGINNING
    watermark: int = BEGINNING
    token: str = ""
    next: int = 0


_cached: OrderedDict[tuple[str, int], MovingSlot] = OrderedDict()


class CellProcessor(StatefulProcessor):  # type: ignore[misc]
    """The stateful operator, which processes the slots of cells of one partition."""

    def __init__(self, sent: SentJob[MovingJob]) -> None:
        self._sent = sent

    def init(self, handle: Any) -> None:
        self._head = handle.getValueState("head", "token string, head string, waiting binary")
        self._segments = handle.getMapState("segments", "number bigint", "segment binary")

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:
        shuffle_blocks = blocks_in(int(key[0]), rows)
        yield from self._process(int(key[0]), shuffle_blocks, timerValues.getCurrentWatermarkInMs())

    def close(self) -> None:
        freeze_gc()

    def _process(self, label: int, shuffle_blocks: list[ShuffleBlock], clock_ms: int) -> Iterator[pd.DataFrame]:
        started_s = perf_counter()
        job = self._sent.job
        if label not in job.labels:
            raise StateError(SLOTS_DIFFER.format(slots="another number of", now=job.slots))
        number = job.labels.index(label)
        seed = next((block for block in shuffle_blocks if block.what == INITIAL_STATE), None)
        if seed is not None:
            slot = initial_slot(job, bytes(seed.payload or b""))
            self._save(slot, slot.parts.get(0))
            return
        slot = self._open(job, number)
        given = [decode(block.payload or b"") for block in shuffle_blocks if block.what == EVENTS]
        events, late = _in_time(given, slot.watermark)
        rejected = [letter for part in late for letter in _late_events(part, job)]
        updates, late_updates = _in_time(
            [decode(p.payload or b"") for p in shuffle_blocks if p.what == LOCATIONS], slot.watermark
        )
        if number == 0:
            rejected += [letter for part in late_updates for letter in _late_locations(part, job)]
        new_events = GatheredEvents(events, job.gatherer.types, canonical=False).batch if events else None
        if new_events is not None and new_events.num_rows:
            slot.parts[slot.next] = new_events
        slot.waiting = pa.concat_tables([slot.waiting, *updates])
        self._move(slot, shuffle_blocks, clock_ms, job)
        due = slot.waiting["ts"].to_numpy() < slot.watermark
        moves = job.gatherer.focals.expanded(slot.waiting.filter(pa.array(due)))
        emissions = slot.follower.advance(moves, slot.watermark)
        slot.waiting = slot.waiting.filter(pa.array(~due))
        forwarded = list(_forwarded(job, number, emissions, slot))
        self._save(slot, new_events)
        forwarded += [(label, REJECTED, bytes(encode(dead_letter_table(rejected))))] if rejected else []
        forwarded += [(label, REJECTED, bytes(p.payload or b"")) for p in shuffle_blocks if p.what == REJECTED]
        counted = {
            "events": sum(part.num_rows for part in given),
            "late": sum(part.num_rows for part in late),
            "parcels": len(shuffle_blocks),
            "watermark": None if slot.watermark == BEGINNING else slot.watermark,
            "state_bytes": sum(part.nbytes for part in slot.parts.values()),
            "seconds": round(perf_counter() - started_s, 6),
        }
        forwarded.append((label, COUNTS, json.dumps(counted).encode()))
        yield pd.DataFrame(forwarded, columns=["slot", "what", "payload"])

    def _move(self, slot: MovingSlot, shuffle_blocks: list[ShuffleBlock], clock_ms: int, job: MovingJob) -> None:
        """Advance the watermark of `slot`. All slots advance alike, from the same markers, clock and control rows."""
        largest_ts = [block.largest for block in shuffle_blocks if block.largest is not None]
        slot.largest = max([slot.largest, *largest_ts, *([clock_ms * MS] if clock_ms > 0 else [])])
        orders = [json.loads(bytes(p.payload)) for p in shuffle_blocks if p.what == CONTROL and p.payload is not None]
        advances = [int(order["advance"]) for order in orders if order.get("advance") is not None]
        if slot.largest > BEGINNING:
            advances.append(slot.largest - job.delay_us)
        slot.watermark = max([slot.watermark, *advances])
        slot.largest = max(slot.largest, slot.watermark)

    # ---- state

    def _open(self, job: MovingJob, number: int) -> MovingSlot:
        key = self._sent.digest, number
        stored = self._head.get()
        slot = _cached.get(key)
        if stored is None:
            slot = MovingSlot(RangeTracker(job.range_parameters))
        elif slot is None or slot.token != stored[0]:
            slot = self._read(job, *stored)
        _cached[key] = slot
        _cached.move_to_end(key)
        while len(_cached) > SLOTS_CACHED:
            _cached.popitem(last=False)
        return slot

    def _read(self, job: MovingJob, token: str, head: str, waiting: bytes) -> MovingSlot:
        state = json.loads(head)
        if state["slots"] != job.slots:
            raise StateError(SLOTS_DIFFER.format(slots=state["slots"], now=job.slots))
        parts = {number: decode(bytes(self._segments.getValue((number,))[0])) for number in state["live"]}
        slot = restore_slot(job, state, decode(bytes(waiting)), parts, token)
        if state["types"] != list(job.gatherer.types):  # the head has one list of types for all segments
            for number, part in list(slot.parts.items()):
                if part.num_rows:
                    self._segments.updateValue((number,), (bytes(encode(part)),))
                else:
                    del slot.parts[number]
                    self._segments.removeKey((number,))
        return slot

    def _save(self, slot: MovingSlot, new_events: pa.Table | None) -> None:
        job = self._sent.job
        if slot.next in slot.parts and new_events is not None:
            self._segments.updateValue((slot.next,), (bytes(encode(new_events)),))
            slot.next += 1
        floor = slot.follower.needed_from()
        for number in [n for n, part in slot.parts.items() if part["ts"].to_numpy().max() <= floor]:
            del slot.parts[number]
            self._segments.removeKey((number,))
        slot.token = uuid.uuid4().hex
        head = {
            "slots": job.slots,
            "follower": slot.follower.as_data(),
            "largest": slot.largest,
            "watermark": slot.watermark,
            "next": slot.next,
            "live": sorted(slot.parts),
            "types": list(job.gatherer.types),
            "focals": focal_names(job),
            "queries": job.digests,
        }
        self._head.update((slot.token, json.dumps(head), bytes(encode(slot.waiting))))


def restore_slot(
    job: MovingJob, head: Mapping[str, Any], waiting: pa.Table, parts: Mapping[int, pa.Table], token: str = ""
) -> MovingSlot:
    """Restore a slot from its stored state, which a job with other queries may have written."""
    slot = MovingSlot(RangeTracker(job.range_parameters), token=token)
    slot.follower.restore(
        head["follower"], {name for name, one in job.digests.items() if head["queries"].get(name) == one}
    )
    slot.largest, slot.watermark, slot.next = head["largest"], head["watermark"], head["next"]
    slot.waiting = _refocused(waiting, head["focals"], focal_names(job))
    slot.parts = {number: recode_types(part, head["types"], job.gatherer.types) for number, part in parts.items()}
    return slot


def initial_slot(job: MovingJob, seed: bytes) -> MovingSlot:
    """Create a slot from `seed`, its part of the state of another checkpoint."""
    snapshot = detector.decode(seed)
    assert snapshot.waiting is not None
    parts = {} if snapshot.events is None else {0: snapshot.events}
    return restore_slot(job, {**snapshot.settings, "follower": snapshot.follower, "next": 0}, snapshot.waiting, parts)


def focal_names(job: MovingJob) -> list[str]:
    """Return the names of the focal objects, in the order of their numbers in location updates."""
    return [f"{print_pattern(pattern)} {space}" for pattern, space in job.gatherer.focals.objects]


def _refocused(waiting: pa.Table, then: Sequence[str], now: Sequence[str]) -> pa.Table:
    """Renumber the focal objects of waiting location updates, and drop updates of objects that no query follows now.

    `then` and `now` are the names of the focal objects by their old and new numbers.
    """
    if list(then) == list(now) or not waiting.num_rows:
        return waiting
    numbers_now = {name: number for number, name in enumerate(now)}
    numbers = np.array([numbers_now.get(name, -1) for name in then], np.int32)[waiting["focal"].to_numpy()]
    return waiting.set_column(0, "focal", pa.array(numbers)).filter(pa.array(numbers >= 0))


def _in_time(parts: list[pa.Table], watermark: int) -> tuple[list[pa.Table], list[pa.Table]]:
    """Return the rows at or after the watermark, and the late rows, each as a list of batches."""
    kept, late = [], []
    for part in parts:
        late_updates = part["ts"].to_numpy() < watermark
        if late_updates.any():
            late.append(part.filter(pa.array(late_updates)))
            part = part.filter(pa.array(~late_updates))
        if part.num_rows:
            kept.append(part)
    return kept, late


def _late_events(part: pa.Table, job: MovingJob) -> Iterator[DeadLetter]:
    for row, number in enumerate(part["type"].to_pylist()):
        type = job.gatherer.types[number]
        yield "late", type, part["ts"][row].as_py(), describe_row(part, row, type)


def _late_locations(part: pa.Table, job: MovingJob) -> Iterator[DeadLetter]:
    objects = list(job.gatherer.focals.objects)
    for row in part.to_pylist():
        pattern, space = objects[row["focal"]]
        place = dict(zip(space.coordinates, (row["east"], row["north"]), strict=True))
        yield "late", pattern.type, row["ts"], describe(pattern.type, row["ts"], place, row["seq"], row["id"])


def _forwarded(job: MovingJob, number: int, emissions: Array, slot: MovingSlot) -> Iterator[tuple[int, str, bytes]]:
    """Yield what a slot of cells sends to the slots of queries.

    All slots of cells compute the same emissions, so only slot 0 sends them. Each slot sends its events near them.
    """
    if not len(emissions):
        return
    events = GatheredEvents(list(slot.parts.values()), job.gatherer.types, canonical=False)
    slots = job.slot_of_query[emissions["query"]]
    for query_slot, label in enumerate(job.labels):
        mine = emissions[slots == query_slot]
        if number == 0 and len(mine):
            yield label, PIECES, mine.tobytes()
        near = job.near(events, mine)
        if near.any():
            yield label, EVENTS, bytes(encode(events.batch.filter(pa.array(near))))


# ---- slots of queries


def _runner(sent: SentJob[MovingJob]) -> Callable[[Batches], Batches]:
    """Return the function that runs the emissions of a slot of queries in one micro-batch, and yields its report."""

    @freezing_gc
    def run(batches: Batches) -> Batches:
        job, slot = sent.job, None
        parts: list[pa.Table] = []
        emissions = [np.zeros(0, EMISSION)]
        rejected: list[pa.Table] = []
        counted: dict[str, Any] = {"events": 0, "late": 0}
        for batch in batches:
            for label, what, payload in zip(*(batch[name] for name in ("slot", "what", "payload")), strict=True):
                slot = job.labels.index(label.as_py())
                match what.as_py():
                    case "events":
                        parts.append(decode(payload.as_buffer()))
                    case "pieces":
                        emissions.append(np.frombuffer(payload.as_py(), EMISSION))
                    case "letters":
                        rejected.append(decode(payload.as_buffer()))
                    case "counts":
                        counted = json.loads(payload.as_py())
        if slot is None:
            return
        slot_report = SlotReport(job.matches, slot)
        for table in rejected:
            slot_report.reject(table)
        run_ranges(job, slot_report, np.concatenate(emissions), parts)
        yield from slot_report.finish(counted).to_batches()

    return run
