"""Queries that move, over a stream: a slot of cells is a group of Spark's stateful operator.

Events go to the slot of their block, location updates to all, so that all slots make the same pieces when the watermark
moves. Each hands the events that it has near the pieces to the slots of the queries, which have no state: what they
need comes with the pieces. The state of a slot is the events of its cells, a segment for each micro-batch that brought
some, and where the ranges are. The watermark follows from ticks as for rules (`spark.streaming`).
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
from tocsin.engine.moving.detector import renumbered
from tocsin.engine.moving.gather import UPDATES, Array, Gathered, Letter
from tocsin.engine.moving.ranges import PIECE, Follower
from tocsin.errors import StateError
from tocsin.events.dead_letters import describe, describe_row, letters
from tocsin.events.reorder import BEGINNING
from tocsin.language.syntax.expressions import print_pattern
from tocsin.process import settle, settling
from tocsin.spark import blocks, stream
from tocsin.spark.batch import Tally
from tocsin.spark.blocks import (
    CONTROL,
    EVENTS,
    LETTERS,
    PARCELS_DDL,
    SEED,
    TICK,
    Batches,
    Parcel,
    chunks,
    decode,
    encode,
    readable,
    rows,
)
from tocsin.spark.job import Sent, send
from tocsin.spark.moving_job import MovingJob, tell
from tocsin.spark.names import map_in_arrow
from tocsin.spark.source import Source
from tocsin.spark.stream import ELSEWHERE, MS, OBSERVED, parcel_rows

LOCATIONS, PIECES, COUNTS = "locations", "pieces", "counts"
HANDED_DDL = "slot int, what string, payload binary"
SLOTS_CACHED = 256


def detect_stream(source: Source, job: MovingJob, changes: DataFrame | None) -> DataFrame:
    """The report of a stream."""
    sent = send(job)
    parcels = map_in_arrow(source.ticking(), _packing(sent), PARCELS_DDL)
    if changes is not None:
        parcels = parcels.unionByName(stream.parcels(changes, job.labels))
    handed = parcels.groupBy("slot").transformWithStateInPandas(CellProcessor(sent), HANDED_DDL, "Append", "EventTime")
    columns = from_arrow_schema(blocks.schema(job.matches))
    report = handed.repartition(job.slots, "slot").mapInArrow(_running(sent), columns)
    return blocks.told_apart(report).observe(OBSERVED, F.collect_list("_metrics").alias("slots"))


def _packing(sent: Sent[MovingJob]) -> Callable[[Batches], Batches]:
    """The function that packs a partition of the source."""

    @settling
    def pack(batches: Batches) -> Batches:
        job, largest = sent.job, None
        for table in chunks(batches):
            batch, dead = readable(table, job)
            if dead is not None:
                yield rows([dead])
            if not batch.num_rows:
                continue
            newest = int(batch["ts"].to_numpy().max())
            largest = newest if largest is None else max(largest, newest)
            updates, bad = job.sieve.updates(batch)
            if bad:
                yield rows([Parcel(job.labels[0], LETTERS, None, None, encode(letters(bad)))])
            if updates.num_rows:
                payload = encode(updates)
                for label in job.labels:
                    yield rows([Parcel(label, LOCATIONS, None, None, payload)])
            for slot, part in _by_block(job, batch):
                yield rows([Parcel(job.labels[slot], EVENTS, None, None, encode(part))])
        yield rows([Parcel(label, TICK, None, largest, None) for label in job.labels])

    return pack


def homes_of(job: MovingJob, events: Gathered) -> Array:
    """The slot of cells of each event, -1 without a place. One that has two, on a plane and on the Earth, goes by the
    first."""
    homes = np.full(len(events), -1, np.int64)
    for space in job.sieve.spaces:
        east, north = events.places(space)
        there = np.flatnonzero(~np.isnan(east) & (homes < 0))
        keys = job.blocks(east[there], north[there], space).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        homes[there] = (keys >> np.uint64(33)).astype(np.int64) % job.slots
    return homes


def _by_block(job: MovingJob, batch: pa.Table) -> Iterator[tuple[int, pa.Table]]:
    """The events for each slot of cells."""
    events = job.sieve.events(batch)
    if events is None:
        return
    gathered = Gathered([events], job.sieve.types, settled=False)
    homes = homes_of(job, gathered)
    for slot in np.unique(homes[homes >= 0]).tolist():
        yield slot, gathered.batch.filter(pa.array(homes == slot))


# ---- by cell


@dataclass
class Slot:
    """What is in memory of a slot of cells."""

    follower: Follower
    parts: dict[int, pa.Table] = field(default_factory=dict)
    """Events by the number of their segment."""
    waiting: pa.Table = field(default_factory=UPDATES.empty_table)
    """Location updates whose time has not come."""
    largest: int = BEGINNING
    watermark: int = BEGINNING
    token: str = ""
    next: int = 0


_cached: OrderedDict[tuple[str, int], Slot] = OrderedDict()


class CellProcessor(StatefulProcessor):  # type: ignore[misc]
    """The slots of cells of a partition."""

    def __init__(self, sent: Sent[MovingJob]) -> None:
        self._sent = sent

    def init(self, handle: Any) -> None:
        self._head = handle.getValueState("head", "token string, head string, waiting binary")
        self._segments = handle.getMapState("segments", "number bigint", "segment binary")

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:
        parcels = parcel_rows(int(key[0]), rows)
        yield from self._turn(int(key[0]), parcels, timerValues.getCurrentWatermarkInMs())

    def close(self) -> None:
        settle()

    def _turn(self, label: int, parcels: list[Parcel], clock_ms: int) -> Iterator[pd.DataFrame]:
        begun = perf_counter()
        job = self._sent.job
        if label not in job.labels:
            raise StateError(ELSEWHERE.format(slots="another number of", now=job.slots))
        number = job.labels.index(label)
        seed = next((parcel for parcel in parcels if parcel.what == SEED), None)
        if seed is not None:
            slot = sown(job, bytes(seed.payload or b""))
            self._save(slot, slot.parts.get(0))
            return
        slot = self._open(job, number)
        given = [decode(parcel.payload or b"") for parcel in parcels if parcel.what == EVENTS]
        events, late = _in_time(given, slot.watermark)
        dead = [letter for part in late for letter in _late_events(part, job)]
        updates, behind = _in_time([decode(p.payload or b"") for p in parcels if p.what == LOCATIONS], slot.watermark)
        if number == 0:
            dead += [letter for part in behind for letter in _late_locations(part, job)]
        fresh = Gathered(events, job.sieve.types, settled=False).batch if events else None
        if fresh is not None and fresh.num_rows:
            slot.parts[slot.next] = fresh
        slot.waiting = pa.concat_tables([slot.waiting, *updates])
        self._move(slot, parcels, clock_ms, job)
        due = slot.waiting["ts"].to_numpy() < slot.watermark
        moves = job.sieve.focals.expanded(slot.waiting.filter(pa.array(due)))
        pieces = slot.follower.advance(moves, slot.watermark)
        slot.waiting = slot.waiting.filter(pa.array(~due))
        handed = list(_handed(job, number, pieces, slot))
        self._save(slot, fresh)
        handed += [(label, LETTERS, bytes(encode(letters(dead))))] if dead else []
        handed += [(label, LETTERS, bytes(p.payload or b"")) for p in parcels if p.what == LETTERS]
        counted = {
            "events": sum(part.num_rows for part in given),
            "late": sum(part.num_rows for part in late),
            "parcels": len(parcels),
            "watermark": None if slot.watermark == BEGINNING else slot.watermark,
            "state_bytes": sum(part.nbytes for part in slot.parts.values()),
            "seconds": round(perf_counter() - begun, 6),
        }
        handed.append((label, COUNTS, json.dumps(counted).encode()))
        yield pd.DataFrame(handed, columns=["slot", "what", "payload"])

    def _move(self, slot: Slot, parcels: list[Parcel], clock_ms: int, job: MovingJob) -> None:
        """Moves the watermark: all slots have the same ticks, clock and control rows, and come to the same."""
        ticks = [parcel.largest for parcel in parcels if parcel.largest is not None]
        slot.largest = max([slot.largest, *ticks, *([clock_ms * MS] if clock_ms > 0 else [])])
        orders = [json.loads(bytes(p.payload)) for p in parcels if p.what == CONTROL and p.payload is not None]
        advances = [int(order["advance"]) for order in orders if order.get("advance") is not None]
        if slot.largest > BEGINNING:
            advances.append(slot.largest - job.delay_us)
        slot.watermark = max([slot.watermark, *advances])
        slot.largest = max(slot.largest, slot.watermark)

    # ---- state

    def _open(self, job: MovingJob, number: int) -> Slot:
        key = self._sent.digest, number
        held = self._head.get()
        slot = _cached.get(key)
        if held is None:
            slot = Slot(Follower(job.followed))
        elif slot is None or slot.token != held[0]:
            slot = self._read(job, *held)
        _cached[key] = slot
        _cached.move_to_end(key)
        while len(_cached) > SLOTS_CACHED:
            _cached.popitem(last=False)
        return slot

    def _read(self, job: MovingJob, token: str, head: str, waiting: bytes) -> Slot:
        told = json.loads(head)
        if told["slots"] != job.slots:
            raise StateError(ELSEWHERE.format(slots=told["slots"], now=job.slots))
        parts = {number: decode(bytes(self._segments.getValue((number,))[0])) for number in told["live"]}
        slot = resumed(job, told, decode(bytes(waiting)), parts, token)
        if told["types"] != list(job.sieve.types):  # the head will say so from now on, of all segments
            for number, part in list(slot.parts.items()):
                if part.num_rows:
                    self._segments.updateValue((number,), (bytes(encode(part)),))
                else:
                    del slot.parts[number]
                    self._segments.removeKey((number,))
        return slot

    def _save(self, slot: Slot, fresh: pa.Table | None) -> None:
        job = self._sent.job
        if slot.next in slot.parts and fresh is not None:
            self._segments.updateValue((slot.next,), (bytes(encode(fresh)),))
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
            "types": list(job.sieve.types),
            "focals": focal_names(job),
            "queries": job.digests,
        }
        self._head.update((slot.token, json.dumps(head), bytes(encode(slot.waiting))))


def resumed(
    job: MovingJob, told: Mapping[str, Any], waiting: pa.Table, parts: Mapping[int, pa.Table], token: str = ""
) -> Slot:
    """A slot whose state was stored, perhaps by a job with other queries."""
    slot = Slot(Follower(job.followed), token=token)
    slot.follower.restore(
        told["follower"], {name for name, one in job.digests.items() if told["queries"].get(name) == one}
    )
    slot.largest, slot.watermark, slot.next = told["largest"], told["watermark"], told["next"]
    slot.waiting = _refocused(waiting, told["focals"], focal_names(job))
    slot.parts = {number: renumbered(part, told["types"], job.sieve.types) for number, part in parts.items()}
    return slot


def sown(job: MovingJob, seed: bytes) -> Slot:
    """A slot that begins with the state of another checkpoint."""
    snapshot = detector.decode(seed)
    assert snapshot.waiting is not None
    parts = {} if snapshot.events is None else {0: snapshot.events}
    return resumed(job, {**snapshot.settings, "follower": snapshot.follower, "next": 0}, snapshot.waiting, parts)


def focal_names(job: MovingJob) -> list[str]:
    """The objects that queries follow, by the numbers that they have in location updates."""
    return [f"{print_pattern(pattern)} {space}" for pattern, space in job.sieve.focals.objects]


def _refocused(waiting: pa.Table, then: Sequence[str], now: Sequence[str]) -> pa.Table:
    """Location updates with the present numbers of objects, without those that are not followed any more."""
    if list(then) == list(now) or not waiting.num_rows:
        return waiting
    places = {name: number for number, name in enumerate(now)}
    numbers = np.array([places.get(name, -1) for name in then], np.int32)[waiting["focal"].to_numpy()]
    return waiting.set_column(0, "focal", pa.array(numbers)).filter(pa.array(numbers >= 0))


def _in_time(parts: list[pa.Table], watermark: int) -> tuple[list[pa.Table], list[pa.Table]]:
    """What comes in time, and what is late."""
    kept, late = [], []
    for part in parts:
        behind = part["ts"].to_numpy() < watermark
        if behind.any():
            late.append(part.filter(pa.array(behind)))
            part = part.filter(pa.array(~behind))
        if part.num_rows:
            kept.append(part)
    return kept, late


def _late_events(part: pa.Table, job: MovingJob) -> Iterator[Letter]:
    for row, number in enumerate(part["type"].to_pylist()):
        type = job.sieve.types[number]
        yield "late", type, part["ts"][row].as_py(), describe_row(part, row, type)


def _late_locations(part: pa.Table, job: MovingJob) -> Iterator[Letter]:
    objects = list(job.sieve.focals.objects)
    for row in part.to_pylist():
        pattern, space = objects[row["focal"]]
        place = dict(zip(space.coordinates, (row["east"], row["north"]), strict=True))
        yield "late", pattern.type, row["ts"], describe(pattern.type, row["ts"], place, row["seq"], row["id"])


def _handed(job: MovingJob, number: int, pieces: Array, slot: Slot) -> Iterator[tuple[int, str, bytes]]:
    """What the slots of queries are given: the first slot of cells hands them the pieces, all their own events."""
    if not len(pieces):
        return
    events = Gathered(list(slot.parts.values()), job.sieve.types, settled=False)
    slots = job.slot_of_query[pieces["query"]]
    for query_slot, label in enumerate(job.labels):
        mine = pieces[slots == query_slot]
        if number == 0 and len(mine):
            yield label, PIECES, mine.tobytes()
        near = job.near(events, mine)
        if near.any():
            yield label, EVENTS, bytes(encode(events.batch.filter(pa.array(near))))


# ---- by query


def _running(sent: Sent[MovingJob]) -> Callable[[Batches], Batches]:
    """The function that runs the pieces of a slot of queries, all of one micro-batch."""

    @settling
    def run(batches: Batches) -> Batches:
        job, slot = sent.job, None
        parts: list[pa.Table] = []
        pieces = [np.zeros(0, PIECE)]
        dead: list[pa.Table] = []
        counted: dict[str, Any] = {"events": 0, "late": 0}
        for batch in batches:
            for label, what, payload in zip(*(batch[name] for name in ("slot", "what", "payload")), strict=True):
                slot = job.labels.index(label.as_py())
                match what.as_py():
                    case "events":
                        parts.append(decode(payload.as_buffer()))
                    case "pieces":
                        pieces.append(np.frombuffer(payload.as_py(), PIECE))
                    case "letters":
                        dead.append(decode(payload.as_buffer()))
                    case "counts":
                        counted = json.loads(payload.as_py())
        if slot is None:
            return
        tally = Tally(job.matches, slot)
        for table in dead:
            tally.bury(table)
        tell(job, tally, np.concatenate(pieces), parts)
        yield from tally.closing(counted).to_batches()

    return run
