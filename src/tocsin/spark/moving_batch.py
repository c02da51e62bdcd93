"""Detect moving queries over a table of events and a table of location updates.

A separate Spark job reads the location updates first, so that all ranges are known before the events are read. The
emissions of each slot (see `moving_job`) are split into *chunks* in the order of their time, and a slot runs one chunk
after the other. Workers send each event to the slots and chunks with emissions near it. The report has matches and
markers, which are rows that end a range.
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
from tocsin.engine.moving.detector import common_focal_type
from tocsin.engine.moving.gather import UPDATES, Array, FocalObjects, GatheredEvents, Gatherer
from tocsin.engine.moving.ranges import EMISSION, HISTORY_US, UNBOUNDED_US, RangeTracker
from tocsin.errors import EventError
from tocsin.events.dead_letters import dead_letter_table
from tocsin.events.reader import Columns
from tocsin.events.types import EventType
from tocsin.language.mcep.ast import Interest
from tocsin.plans.moving import is_exact, is_strong
from tocsin.plans.plan import plan
from tocsin.plans.typing import Catalog
from tocsin.process import freezing_gc
from tocsin.spark import blocks
from tocsin.spark.batch import SlotReport, blocks_of
from tocsin.spark.blocks import (
    BLOCK_DDL,
    EVENTS,
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
from tocsin.spark.names import exact, map_in_arrow
from tocsin.spark.rejected import count_rejected, rejected_accumulator
from tocsin.spark.source import EventFrames, FrameSource, default_slots

EMISSIONS_MAX = 2_000
"""The most emissions in a chunk, which run together."""
LOCATION_SCHEMA = pa.schema([*UPDATES, ("reason", pa.string()), ("type", pa.string()), ("event", pa.string())])
"""The columns of location updates, followed by the columns of dead letters for rejected location updates."""


def detect_table(source: FrameSource, locations: FrameSource, job: MovingJob, log_rejected: bool = False) -> DataFrame:
    """Return the report of the moving queries of `job` over a table.

    The location updates are read immediately, and the events when Spark computes the report. `log_rejected` logs a
    warning about rejected rows.
    """
    job = with_emissions(job, locations)
    sent = send(job)
    spark = source.frame.sparkSession
    shuffle_blocks = map_in_arrow(source.needed(), _packer(sent), BLOCK_DDL)
    markers = [(label, WATERMARK, -1, None, None) for label in job.labels]
    shuffle_blocks = shuffle_blocks.unionByName(spark.createDataFrame(markers, BLOCK_DDL))
    spread = shuffle_blocks.repartition(job.slots, "slot").sortWithinPartitions("least")
    columns = from_arrow_schema(blocks.report_fields(job.matches))
    run = count_rejected(_runner(sent), rejected_accumulator(spark) if log_rejected else None)
    return blocks.with_kind(spread.mapInArrow(run, columns))


def with_emissions(job: MovingJob, locations: FrameSource) -> MovingJob:
    """Read the location updates, and return `job` with the emissions of each slot and the rejected updates."""
    updates_found = map_in_arrow(
        locations.needed(), _location_finder(send(job)), from_arrow_schema(LOCATION_SCHEMA)
    ).toArrow()
    bad = updates_found.filter(updates_found["reason"].is_valid()).to_pylist()
    rejected_rows = tuple((row["reason"], row["type"], row["ts"], row["event"]) for row in bad)
    updates = updates_found.filter(updates_found["reason"].is_null()).select(UPDATES.names).cast(UPDATES)
    emissions = RangeTracker(job.range_parameters).advance(job.gatherer.focals.expanded(updates), None)
    slots = job.slot_of_query[emissions["query"]]
    return replace(
        job,
        emissions=tuple(_split_chunks(emissions[slots == slot]) for slot in range(job.slots)),
        rejected=rejected_rows,
    )


def _split_chunks(emissions: Array) -> tuple[Array, ...]:
    """Sort emissions by their begin, and split them into chunks.

    Emissions without an end come last. Each of them is the last emission of its query.
    """
    open_ended = emissions["hi"] >= UNBOUNDED_US - 1
    emissions = emissions[np.lexsort((emissions["number"], emissions["query"], emissions["begin"], open_ended))]
    # The ranges of a query stay in order, because a range that begins later is not in an earlier chunk.
    count = int(np.count_nonzero(~open_ended))
    return tuple(
        part[at : at + EMISSIONS_MAX]
        for part in (emissions[:count], emissions[count:])
        for at in range(0, len(part), EMISSIONS_MAX)
    )


def _location_finder(sent: SentJob[MovingJob]) -> Callable[[Batches], Batches]:
    """Return the function that selects the location updates in the rows of a partition, and rejects invalid updates."""

    @freezing_gc
    def find(batches: Batches) -> Batches:
        job = sent.job
        for table in chunks(batches):
            batch, _ = read_chunk(table, job)
            updates, rejected_rows = job.gatherer.updates(batch)
            rejected = dead_letter_table(rejected_rows)
            bad = pa.table(
                [
                    *(pa.nulls(len(rejected), field.type) for field in UPDATES),
                    rejected["reason"],
                    rejected["type"],
                    rejected["event"],
                ],
                schema=LOCATION_SCHEMA,
            ).set_column(1, "ts", rejected["ts"])
            nothing = [pa.nulls(len(updates), pa.string())] * 3
            yield from pa.table([*updates.columns, *nothing], schema=LOCATION_SCHEMA).to_batches()
            yield from bad.to_batches()

    return find


def _packer(sent: SentJob[MovingJob]) -> Callable[[Batches], Batches]:
    """Return the function that packs the events of a partition for the slots and chunks with emissions near them."""

    @freezing_gc
    def pack(batches: Batches) -> Batches:
        job = sent.job
        for table in chunks(batches):
            batch, rejected_rows = read_chunk(table, job)
            if rejected_rows is not None:
                yield to_record_batch([rejected_rows])
            events = job.gatherer.events(batch) if batch.num_rows else None
            if events is None:
                continue
            gathered = GatheredEvents([events], job.gatherer.types, canonical=False)
            for slot, parts in enumerate(job.emissions):
                for number, emissions in enumerate(parts):
                    near = job.near(gathered, emissions)
                    if near.any():
                        payload = encode(gathered.batch.filter(pa.array(near)))
                        yield to_record_batch([ShuffleBlock(job.labels[slot], EVENTS, number, None, payload)])

    return pack


def _runner(sent: SentJob[MovingJob]) -> Callable[[Batches], Batches]:
    """Return the function that runs the emissions of a slot, chunk by chunk, and yields the slot's report."""

    @freezing_gc
    def run(batches: Batches) -> Batches:
        job = sent.job
        shuffle_blocks = blocks_of(batches)
        first = next(shuffle_blocks, None)
        if first is None:
            return
        slot = job.labels.index(first.slot)
        slot_report, count = SlotReport(job.matches, slot), 0
        if slot == 0:
            slot_report.reject(dead_letter_table(list(job.rejected)))
        by_chunk = groupby(
            _with_first(first, shuffle_blocks), key=lambda block: -1 if block.what != EVENTS else block.least
        )
        current = next(by_chunk, None)
        for number, emissions in enumerate((np.zeros(0, EMISSION), *job.emissions[slot]), -1):
            parts: list[pa.Table] = []
            if current is not None and current[0] == number:
                for block in current[1]:
                    if block.what == REJECTED:
                        slot_report.reject(decode(block.payload or b""))
                    elif block.what == EVENTS:
                        parts.append(decode(block.payload or b""))
                current = next(by_chunk, None)
            count += sum(part.num_rows for part in parts)
            run_ranges(job, slot_report, emissions, parts)
            yield from slot_report.take_rows().to_batches()
        metrics = {"events": count, "late": 0, "ranges": sum(len(emissions) for emissions in job.emissions[slot])}
        yield from slot_report.finish(metrics).to_batches()

    return run


def _with_first(first: ShuffleBlock, rest: Iterator[ShuffleBlock]) -> Iterator[ShuffleBlock]:
    yield first
    yield from rest


def detect(
    interests: tuple[Interest, ...],
    types: Mapping[str, EventType],
    events: EventFrames,
    columns: Columns,
    *,
    locations: DataFrame | None = None,
    delay_us: int = 0,
    history_us: int | None = None,
    slots: int | None = None,
    control: DataFrame | None = None,
    select: Iterable[str] | None = None,
    log_rejected: bool = False,
) -> DataFrame:
    """Return the report of the moving queries `interests` over `events` as a DataFrame.

    `locations` are location updates that are not among `events`. `log_rejected` logs a warning about rejected rows of
    a table.
    """
    frames = [*([events] if isinstance(events, DataFrame) else events.values()), *([locations] if locations else [])]
    with exact(frames[0].sparkSession, {name for frame in frames for name in frame.columns}):
        return _detect(
            interests, types, events, columns, locations, delay_us, history_us, slots, control, select, log_rejected
        )


def _detect(
    interests: tuple[Interest, ...],
    types: Mapping[str, EventType],
    events: EventFrames,
    columns: Columns,
    locations: DataFrame | None,
    delay_us: int,
    history_us: int | None,
    slots: int | None,
    control: DataFrame | None,
    select: Iterable[str] | None,
    log_rejected: bool,
) -> DataFrame:
    source, focal, job = prepare(
        interests, types, events, columns, locations=locations, delay_us=delay_us, history_us=history_us, slots=slots
    )
    if select is not None:
        job = replace(job, select=match_table.checked_select(select, job.matches.names))
    if source.streaming:
        from tocsin.spark.moving_slot import detect_stream

        return detect_stream(source, job, control)
    if control is not None:
        raise EventError("control rows are for streams only: these events are no stream")

    return detect_table(source, focal, job, log_rejected)


def prepare(
    interests: tuple[Interest, ...],
    types: Mapping[str, EventType],
    events: EventFrames,
    columns: Columns,
    *,
    locations: DataFrame | None = None,
    delay_us: int = 0,
    history_us: int | None = None,
    slots: int | None = None,
) -> tuple[FrameSource, FrameSource, MovingJob]:
    """Check `interests` against the events, and return the sources of events and of location updates, and the job."""
    combined = combine_inputs(events, locations, interests, columns)
    focals = FocalObjects(interests)
    rules = tuple(dict.fromkeys(rule for one in interests for rule in one.rules))
    strong = {type for one in interests if is_strong(one) for type in Gatherer.used_by(one)}
    coordinates = tuple(dict.fromkeys(name for one in interests for name in one.space.coordinates))
    given = Catalog(types=types, closed=bool(types))
    source = FrameSource(plan((*rules, *focals.rules), given), combined, columns, tuple(sorted(strong)), coordinates)
    if source.streaming and history_us is None and any(is_exact(one) for one in interests):
        history_us = HISTORY_US
    slots = slots or default_slots(source.frame.sparkSession)
    job = MovingJob(interests, source.catalog, columns, slots, source.times, source.tables, delay_us, history_us)
    return source, FrameSource(plan(focals.rules, given), combined, columns, (), coordinates), job


def combine_inputs(
    events: EventFrames, locations: DataFrame | None, interests: tuple[Interest, ...], columns: Columns
) -> EventFrames:
    """Combine `events` and `locations` into one input, in the form of `events`."""
    if locations is None:
        return events
    frames = [events] if isinstance(events, DataFrame) else list(events.values())
    if any(frame.isStreaming != locations.isStreaming for frame in frames):
        raise EventError("events and locations are both tables, or both streams")
    typed = columns.type in locations.columns
    if isinstance(events, DataFrame):
        if not typed:
            locations = locations.withColumn(columns.type, F.lit(common_focal_type(interests, columns)))
        return events.unionByName(locations, allowMissingColumns=True)
    if typed:
        raise EventError(f"events come by type, the locations have a column '{columns.type}': give them by type too")
    name = common_focal_type(interests, columns)
    if name in events:
        return {**events, name: events[name].unionByName(locations, allowMissingColumns=True)}
    return {**events, name: locations}
