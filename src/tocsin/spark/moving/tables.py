"""Queries that move, over a table.

Location updates are found first, by a job of their own, so that all ranges are known when the events are read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import groupby

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema

from tocsin.engine.moving.following import FOREVER, PIECE, Follower
from tocsin.engine.moving.gathering import UPDATES, Array, Gathered
from tocsin.events.letters import letters
from tocsin.garbage import settling
from tocsin.spark import reports
from tocsin.spark.frames import Source
from tocsin.spark.jobs import Sent, send
from tocsin.spark.moving.jobs import MovingJob, tell
from tocsin.spark.names import map_in_arrow
from tocsin.spark.packing import (
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
from tocsin.spark.rejected import counted, counter
from tocsin.spark.slots import Tally, parcels_of

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
    columns = from_arrow_schema(reports.schema(job.matches))
    run = counted(_running(sent), counter(spark) if telling else None)
    return reports.told_apart(spread.mapInArrow(run, columns))


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
