"""Queries that move, over a table.

Location updates are found first, by a job of their own, so that all ranges are known when the events are read.

From DataFrames of events and of location updates to a DataFrame of markers and matches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import groupby

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from tocsin.engine import match_table
from tocsin.engine.moving.detector import the_focal_type
from tocsin.engine.moving.gather import UPDATES, Array, Focals, Gathered, Sieve
from tocsin.engine.moving.ranges import FOREVER, HISTORY_US, PIECE, Follower
from tocsin.errors import EventError
from tocsin.events.dead_letters import letters
from tocsin.events.reader import Columns
from tocsin.events.types import EventType
from tocsin.language.mcep.ast import Interest
from tocsin.plans.moving import is_exact, is_strong
from tocsin.plans.plan import plan
from tocsin.plans.typing import Catalog
from tocsin.process import settling
from tocsin.spark import blocks
from tocsin.spark.batch import Tally, parcels_of
from tocsin.spark.blocks import (
    EVENTS,
    LETTERS,
    PARCELS_DDL,
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
from tocsin.spark.names import exact, map_in_arrow
from tocsin.spark.rejected import counted, counter
from tocsin.spark.source import Events, Source, default_slots

PIECES_MAX = 2_000
"""How many pieces of a slot are run together."""
FOUND = pa.schema([*UPDATES, ("reason", pa.string()), ("type", pa.string()), ("event", pa.string())])
"""Location updates, and those that could not be used."""


def detect_table(source: Source, locations: Source, job: MovingJob, telling: bool = False) -> DataFrame:
    """The report of a table. Looks for the location updates now. `telling`: rejected rows are logged."""
    job = with_pieces(job, locations)
    sent = send(job)
    spark = source.frame.sparkSession
    parcels = map_in_arrow(source.needed(), _sending(sent), PARCELS_DDL)
    every = [(label, TICK, -1, None, None) for label in job.labels]
    parcels = parcels.unionByName(spark.createDataFrame(every, PARCELS_DDL))
    spread = parcels.repartition(job.slots, "slot").sortWithinPartitions("least")
    columns = from_arrow_schema(blocks.schema(job.matches))
    run = counted(_running(sent), counter(spark) if telling else None)
    return blocks.told_apart(spread.mapInArrow(run, columns))


def with_pieces(job: MovingJob, locations: Source) -> MovingJob:
    """The job with what is to be run in each slot."""
    found = map_in_arrow(locations.needed(), _looking(send(job)), from_arrow_schema(FOUND)).toArrow()
    bad = found.filter(found["reason"].is_valid()).to_pylist()
    dead = tuple((row["reason"], row["type"], row["ts"], row["event"]) for row in bad)
    updates = found.filter(found["reason"].is_null()).select(UPDATES.names).cast(UPDATES)
    pieces = Follower(job.followed).advance(job.sieve.focals.expanded(updates), None)
    slots = job.slot_of_query[pieces["query"]]
    return replace(job, pieces=tuple(_chunked(pieces[slots == slot]) for slot in range(job.slots)), letters=dead)


def _chunked(pieces: Array) -> tuple[Array, ...]:
    """Pieces in the order of their beginning; those without an end, each the last of its query, behind the others."""
    endless = pieces["hi"] >= FOREVER - 1
    pieces = pieces[np.lexsort((pieces["number"], pieces["query"], pieces["begin"], endless))]
    # A query's ranges stay in order: a range that begins later is not in an earlier chunk.
    count = int(np.count_nonzero(~endless))
    return tuple(
        part[at : at + PIECES_MAX]
        for part in (pieces[:count], pieces[count:])
        for at in range(0, len(part), PIECES_MAX)
    )


def _looking(sent: Sent[MovingJob]) -> Callable[[Batches], Batches]:
    """The function that finds the location updates of a partition."""

    @settling
    def look(batches: Batches) -> Batches:
        job = sent.job
        for table in chunks(batches):
            batch, _ = readable(table, job)
            updates, dead = job.sieve.updates(batch)
            told = letters(dead)
            bad = pa.table(
                [*(pa.nulls(len(told), field.type) for field in UPDATES), told["reason"], told["type"], told["event"]],
                schema=FOUND,
            ).set_column(1, "ts", told["ts"])
            nothing = [pa.nulls(len(updates), pa.string())] * 3
            yield from pa.table([*updates.columns, *nothing], schema=FOUND).to_batches()
            yield from bad.to_batches()

    return look


def _sending(sent: Sent[MovingJob]) -> Callable[[Batches], Batches]:
    """The function that sends the events of a partition to the slots and chunks that they can concern."""

    @settling
    def pack(batches: Batches) -> Batches:
        job = sent.job
        for table in chunks(batches):
            batch, dead = readable(table, job)
            if dead is not None:
                yield rows([dead])
            events = job.sieve.events(batch) if batch.num_rows else None
            if events is None:
                continue
            gathered = Gathered([events], job.sieve.types, settled=False)
            for slot, parts in enumerate(job.pieces):
                for number, pieces in enumerate(parts):
                    near = job.near(gathered, pieces)
                    if near.any():
                        payload = encode(gathered.batch.filter(pa.array(near)))
                        yield rows([Parcel(job.labels[slot], EVENTS, number, None, payload)])

    return pack


def _running(sent: Sent[MovingJob]) -> Callable[[Batches], Batches]:
    """The function that runs the queries of a slot, chunk by chunk."""

    @settling
    def run(batches: Batches) -> Batches:
        job = sent.job
        parcels = parcels_of(batches)
        first = next(parcels, None)
        if first is None:
            return
        slot = job.labels.index(first.slot)
        tally, count = Tally(job.matches, slot), 0
        if slot == 0:
            tally.bury(letters(list(job.letters)))
        waiting = groupby(_all(first, parcels), key=lambda parcel: -1 if parcel.what != EVENTS else parcel.least)
        given = next(waiting, None)
        for number, pieces in enumerate((np.zeros(0, PIECE), *job.pieces[slot]), -1):
            parts: list[pa.Table] = []
            if given is not None and given[0] == number:
                for parcel in given[1]:
                    if parcel.what == LETTERS:
                        tally.bury(decode(parcel.payload or b""))
                    elif parcel.what == EVENTS:
                        parts.append(decode(parcel.payload or b""))
                given = next(waiting, None)
            count += sum(part.num_rows for part in parts)
            tell(job, tally, pieces, parts)
            yield from tally.rows().to_batches()
        counted = {"events": count, "late": 0, "ranges": sum(len(pieces) for pieces in job.pieces[slot])}
        yield from tally.closing(counted).to_batches()

    return run


def _all(first: Parcel, rest: Iterator[Parcel]) -> Iterator[Parcel]:
    yield first
    yield from rest


def detect(
    interests: tuple[Interest, ...],
    types: Mapping[str, EventType],
    events: Events,
    columns: Columns,
    *,
    locations: DataFrame | None = None,
    delay_us: int = 0,
    history_us: int | None = None,
    slots: int | None = None,
    control: DataFrame | None = None,
    select: Iterable[str] | None = None,
    telling: bool = False,
) -> DataFrame:
    """The report of these queries over these events and location updates. `telling`: rejected rows of a table are
    logged."""
    frames = [*([events] if isinstance(events, DataFrame) else events.values()), *([locations] if locations else [])]
    with exact(frames[0].sparkSession, {name for frame in frames for name in frame.columns}):
        return _detect(
            interests, types, events, columns, locations, delay_us, history_us, slots, control, select, telling
        )


def _detect(
    interests: tuple[Interest, ...],
    types: Mapping[str, EventType],
    events: Events,
    columns: Columns,
    locations: DataFrame | None,
    delay_us: int,
    history_us: int | None,
    slots: int | None,
    control: DataFrame | None,
    select: Iterable[str] | None,
    telling: bool,
) -> DataFrame:
    source, focal, job = prepare(
        interests, types, events, columns, locations=locations, delay_us=delay_us, history_us=history_us, slots=slots
    )
    if select is not None:
        job = replace(job, select=match_table.checked(select, job.matches.names))
    if source.streaming:
        from tocsin.spark.moving_slot import detect_stream

        return detect_stream(source, job, control)
    if control is not None:
        raise EventError("control rows are for streams only: these events are no stream")

    return detect_table(source, focal, job, telling)


def prepare(
    interests: tuple[Interest, ...],
    types: Mapping[str, EventType],
    events: Events,
    columns: Columns,
    *,
    locations: DataFrame | None = None,
    delay_us: int = 0,
    history_us: int | None = None,
    slots: int | None = None,
) -> tuple[Source, Source, MovingJob]:
    """What is read for the queries, what of it for location updates alone, and what workers are told."""
    together = joined(events, locations, interests, columns)
    focals = Focals(interests)
    rules = tuple(dict.fromkeys(rule for one in interests for rule in one.rules))
    strong = {type for one in interests if is_strong(one) for type in Sieve.used_by(one)}
    places = tuple(dict.fromkeys(name for one in interests for name in one.space.coordinates))
    given = Catalog(types=types, closed=bool(types))
    source = Source(plan((*rules, *focals.rules), given), together, columns, tuple(sorted(strong)), places)
    if source.streaming and history_us is None and any(is_exact(one) for one in interests):
        history_us = HISTORY_US
    slots = slots or default_slots(source.frame.sparkSession)
    job = MovingJob(interests, source.catalog, columns, slots, source.times, source.tables, delay_us, history_us)
    return source, Source(plan(focals.rules, given), together, columns, (), places), job


def joined(events: Events, locations: DataFrame | None, interests: tuple[Interest, ...], columns: Columns) -> Events:
    """Events and location updates as one."""
    if locations is None:
        return events
    frames = [events] if isinstance(events, DataFrame) else list(events.values())
    if any(frame.isStreaming != locations.isStreaming for frame in frames):
        raise EventError("events and locations are both tables, or both streams")
    typed = columns.type in locations.columns
    if isinstance(events, DataFrame):
        if not typed:
            locations = locations.withColumn(columns.type, F.lit(the_focal_type(interests, columns)))
        return events.unionByName(locations, allowMissingColumns=True)
    if typed:
        raise EventError(f"events come by type, the locations have a column '{columns.type}': give them by type too")
    name = the_focal_type(interests, columns)
    if name in events:
        return {**events, name: events[name].unionByName(locations, allowMissingColumns=True)}
    return {**events, name: locations}
