"""From DataFrames of events and of location updates to a DataFrame of markers and matches."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tocsin.engine import output
from tocsin.engine.moving.detector import the_focal_type
from tocsin.engine.moving.following import HISTORY_US
from tocsin.engine.moving.gathering import Focals, Sieve
from tocsin.errors import EventError
from tocsin.events.batches import Columns
from tocsin.events.types import EventType
from tocsin.language.interests import Interest
from tocsin.plans.catalog import Catalog
from tocsin.plans.operators import is_exact, is_strong
from tocsin.plans.plan import plan
from tocsin.spark.frames import Events, Source, default_slots
from tocsin.spark.moving.jobs import MovingJob
from tocsin.spark.names import exact


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
        job = replace(job, select=output.checked(select, job.matches.names))
    if source.streaming:
        from tocsin.spark.moving.streams import detect_stream

        return detect_stream(source, job, control)
    if control is not None:
        raise EventError("control rows are for streams only: these events are no stream")
    from tocsin.spark.moving.tables import detect_table

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
