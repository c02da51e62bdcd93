"""Run many cases of moving queries in one Spark query: each is a tenant with its own types, rules and interests."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

import tocsin
from tests.conformance.packs import Move, Row, rows_of
from tests.conformance.spark import PATIENCE_S, conf, write
from tests.simulation.moving import Moving, dense
from tests.simulation.ranges import by_range, expected, without_ids
from tocsin.events.types import Event
from tocsin.language.mcep.ast import Interest
from tocsin.reference.ranges import coverings
from tocsin.spark import stream as control


@dataclass(frozen=True)
class MovingQuery:
    """The cases of a pack, and how it runs."""

    name: str
    seed: int
    tenants: int
    slots: int = 2
    named: bool = True
    batches: int = 3
    delay_us: int = 5
    restarts: int = 1
    history_us: int | None = 10_000
    apart: bool = False
    """Whether location updates are a separate input."""
    rekeyed: int | None = None
    """The number of slots of a stream after its first restart."""

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class MovingPack:
    """The tenants of one query."""

    query: MovingQuery

    @cached_property
    def cases(self) -> list[tuple[tuple[Interest, ...], tuple[Event, ...]]]:
        found = []
        for number in range(self.query.tenants):
            case = dense(self.query.seed + number, queries=2)
            found.append(moved(case if self.query.named else without_ids(case), f"t{number}_"))
        return found

    @cached_property
    def interests(self) -> tuple[Interest, ...]:
        return tuple(one for interests, _ in self.cases for one in interests)

    @cached_property
    def events(self) -> list[Event]:
        return [event for _, events in self.cases for event in events]

    def wrong(self, rows: Sequence[Row]) -> list[str]:
        """Return the queries whose deliveries differ from the reference."""
        found = by_range(rows)
        wrong = []
        for interests, events in self.cases:
            for one in interests:
                expected_rows = expected(coverings(one, events, self.query.history_us))
                if found.pop(one.name, []) != expected_rows:
                    wrong.append(one.name)
        return wrong + list(found)


def moved(case: Moving, prefix: str) -> tuple[tuple[Interest, ...], tuple[Event, ...]]:
    """Rename a case, to run it beside others."""
    move = Move(prefix)
    interests = tuple(
        replace(
            one,
            name=prefix + one.name,
            delivers=tuple(prefix + name for name in one.delivers),
            focal=move.node(one.focal),
            rules=move.node(one.rules),
        )
        for one in case.interests
    )
    return interests, tuple(move.event(event, set()) for event in case.case.events)


def table(events: Sequence[Event], query: MovingQuery) -> pa.Table:
    """Convert events to a table."""
    columns = {
        "type": pa.array([event.type for event in events], pa.string()),
        "ts": pa.array([event.ts for event in events], pa.int64()),
        **{
            name: pa.array([event.attributes.get(name) for event in events], pa.float64())
            for name in ("x", "y", "lon", "lat")
        },
    }
    if query.named:
        columns["id"] = pa.array([event.id for event in events], pa.string())
    return pa.table(columns)


def is_location(event: Event) -> bool:
    return event.type.endswith(("_Me", "_You"))


def batch(spark: SparkSession, pack: MovingPack, folder: Path) -> list[Row]:
    """Return the deliveries of all tenants, from unordered tables of several files."""
    query, rng = pack.query, Random(pack.query.seed)
    shuffled = rng.sample(pack.events, len(pack.events))
    parts = {"events": shuffled}
    if query.apart:
        parts = {
            "events": [e for e in shuffled if not is_location(e)],
            "locations": [e for e in shuffled if is_location(e)],
        }
    for name, events in parts.items():
        for part in (0, 1):
            write(table(events[part::2], query), folder / name / f"{part}.parquet", 0)
    frames = {name: spark.read.parquet(str(folder / name)) for name in parts}
    with conf(spark, partitions=query.slots):
        report = tocsin.rules(pack.interests).report(
            frames["events"],
            locations=frames.get("locations"),
            id="id" if query.named else None,
            ts_unit="us",
            slots=query.slots,
            history=query.history_us,
        )
        return delivered(report.toArrow())


def stream(spark: SparkSession, pack: MovingPack, folder: Path) -> list[Row]:
    """Return the deliveries of all tenants, from micro-batches with restarts in between."""
    query, rng = pack.query, Random(pack.query.seed)
    late = sorted(pack.events, key=lambda event: event.ts + rng.randint(0, query.delay_us))
    cuts = sorted(rng.sample(range(1, len(late)), query.batches - 1))
    (folder / "control").mkdir(parents=True)
    found: dict[int, pa.Table] = {}
    stops = {round(query.batches * n / (query.restarts + 1)) for n in range(1, query.restarts + 1)}
    with conf(spark, partitions=query.slots):
        for number, (low, high) in enumerate(zip([0, *cuts], [*cuts, len(late)], strict=True), 1):
            some = late[low:high]
            for part, name in ((0, "events"), (1, "locations" if query.apart else "events")):
                mine = [e for n, e in enumerate(some) if (is_location(e) if query.apart else n % 2) == part]
                write(table(mine, query), folder / name / f"{number:03}-{part}.parquet", number)
            if number in stops or number == query.batches:
                run(spark, pack, folder, found)
            if number == min(stops) and query.rekeyed is not None:
                pack = rekey(spark, pack, folder)
        last = max(event.ts for event in pack.events)
        (folder / "control" / "end.json").write_text(json.dumps({"advance": last + 1}))
        run(spark, pack, folder, found)
    return [row for number in sorted(found) for row in delivered(found[number])]


def run(spark: SparkSession, pack: MovingPack, folder: Path, found: dict[int, pa.Table]) -> None:
    """Run all available data. A batch that runs again replaces its earlier output."""
    events, options = reading(spark, pack.query, folder)
    report = tocsin.rules(pack.interests).report(events, **options)

    def keep(frame: DataFrame, number: int) -> None:
        found[number] = frame.toArrow()

    writer = report.writeStream.option("checkpointLocation", str(checkpoint(pack.query, folder))).foreachBatch(keep)
    running = writer.trigger(availableNow=True).start()
    try:
        assert running.awaitTermination(PATIENCE_S), f"not done in {PATIENCE_S} s"
    finally:
        running.stop()


def reading(spark: SparkSession, query: MovingQuery, folder: Path) -> tuple[DataFrame, dict[str, Any]]:
    """The events of a stream, and their source."""
    reader = spark.readStream.option("maxFilesPerTrigger", 1 if query.apart else 2)
    frames: dict[str, DataFrame] = {}
    for name in ("events", "locations") if query.apart else ("events",):
        path = str(folder / name)
        frames[name] = reader.schema(spark.read.parquet(path).schema).parquet(path)
    orders = spark.readStream.schema(control.SCHEMA).json(str(folder / "control"))
    return frames["events"], {
        "locations": frames.get("locations"),
        "control": orders,
        "delay": query.delay_us,
        "id": "id" if query.named else None,
        "ts_unit": "us",
        "slots": query.slots,
        "history": query.history_us,
    }


def checkpoint(query: MovingQuery, folder: Path) -> Path:
    return folder / f"checkpoint{query.slots}"


def rekey(spark: SparkSession, pack: MovingPack, folder: Path) -> MovingPack:
    """Return the pack with its state in another number of slots."""
    assert pack.query.rekeyed is not None
    new = replace(pack.query, slots=pack.query.rekeyed)
    events, options = reading(spark, new, folder)
    with conf(spark, partitions=new.slots):
        rules = tocsin.rules(pack.interests)
        rules.rekey(events, checkpoint(pack.query, folder), checkpoint(new, folder), **options)
    return MovingPack(new)


def delivered(report: pa.Table) -> list[Row]:
    """Return the markers and matches of a report without dead letters."""
    rows = rows_of(report)
    assert not [row for row in rows if row["_reason"] is not None]
    return [{name: row[name] for name in row if name[0] != "_"} for row in rows if row["_metrics"] is None]
