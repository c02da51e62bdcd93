"""State that moves: from a checkpoint to a new one with another number of slots, or other rules.

A checkpoint's slots are read with Spark's state reader, regrouped rule by rule (`engine.rekeying`), and written by a
first micro-batch of the same stateful operator in the new checkpoint, to which state comes as parcels. Then the new
checkpoint is given the source offsets and the watermark of the old one, so that a query that starts from it reads on
where the other stopped. The old checkpoint is left as it is.

How does a stream of queries that move go on with another number of slots? Its events are laid out by place anew.

All slots of cells know the same ranges and the same location updates that wait; only events are apart. So the new slots
begin with what any of the old ones knows, and with the events of all that lie on their own blocks. The rest is as for
rules (`spark.rekeying`).
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor

from tocsin.engine import checkpointer, rescale
from tocsin.engine.detector import Detector
from tocsin.engine.moving.detector import Snapshot, encode, renumbered
from tocsin.engine.moving.gather import Gathered
from tocsin.engine.routing import key_slots
from tocsin.errors import StateError
from tocsin.events.reorder import BEGINNING
from tocsin.events.types import Kind
from tocsin.kernels import Array
from tocsin.language import parse
from tocsin.language.eps.ast import Statement
from tocsin.plans.assignment import Layout, RuleUnit
from tocsin.spark import blocks
from tocsin.spark.blocks import PARCELS, PARCELS_DDL, SEED, Batches, Parcel, decode, rows
from tocsin.spark.job import Job, labels, send
from tocsin.spark.moving_job import MovingJob
from tocsin.spark.moving_slot import HANDED_DDL, CellProcessor, homes_of
from tocsin.spark.sessions import QUIET
from tocsin.spark.stream import SlotProcessor

AT = "_tocsin_at"
SEEDING = {
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "false",
    "spark.sql.streaming.stateStore.providerClass": QUIET["spark.sql.streaming.stateStore.providerClass"],
}
"""One batch, whose state is written whole."""


def rekey(session: SparkSession, old: str | Path, new: str | Path, job: Job) -> None:
    """Makes a checkpoint for the job, whose state is that of the old checkpoint."""
    old, new = Path(old), Path(new)
    batch = last_commit(old, new)
    layout, states, largest = _read(session, old)
    write(session, new, SlotProcessor(send(job)), blocks.PAYLOADS_DDL, seeds(layout, states, job, largest), largest)
    take_over(old, new, batch)


def seeds(layout: Layout, states: Mapping[int, bytes], job: Job, largest: int) -> list[Parcel]:
    """What the slots of the job start from, given the snapshots of another layout's slots and the largest ts."""
    return [
        Parcel(job.labels[slot], SEED, None, largest, _seed(job, slot, state, largest))
        for slot, state in enumerate(regroup(layout, states, job))
    ]


def regroup(layout: Layout, states: Mapping[int, bytes], job: Job) -> list[bytes | None]:
    """The snapshots of the job's slots, made of those of the slots of another layout."""
    pieces: list[list[bytes]] = [[] for _ in range(job.layout.slots)]
    for unit in job.layout.units:
        known = [name for name in unit.rules if name in layout.homes]
        rules = tuple(rule for rule in job.rules if rule.name in known)
        held = []
        for slot, state in states.items():
            mine = tuple(rule for rule in rules if layout.homes[rule.name].slot in (None, slot))
            if mine:
                held.append(rescale.narrowed(state, mine, {}))
        if not held:
            continue
        whole = rescale.joined(held)
        if unit.slot is not None:
            pieces[unit.slot].append(whole)
            continue
        for slot, part in enumerate(rescale.split(whole, _place(unit, job), job.layout.slots)):
            pieces[slot].append(part)
    return [rescale.joined(mine) if mine else None for mine in pieces]


def _place(unit: RuleUnit, job: Job) -> Any:
    """Where events of a keyed unit go; composite events go where their own key says."""
    from tocsin.plans.keys import common_key

    rules = [rule for rule in job.plan.rules if rule.rule.name in unit.rules]
    key = common_key(rules, unit.key) or unit.key or {}

    def place(type: str, table: pa.Table) -> Array:
        attribute = key[type]
        column = next(name for name in table.column_names if name.rpartition(":")[0] == attribute)
        kind = Kind(column.rpartition(":")[2])
        values = table[column].combine_chunks()
        return key_slots(values, kind, job.layout.slots)

    return place


def _read(session: SparkSession, old: Path) -> tuple[Layout, dict[int, bytes], int]:
    """The layout of a checkpoint, a snapshot of each slot, and the largest ts."""

    heads, stored = heads_in(session, old), segments_in(session, old)
    written = variable(session, old, "layout").select("value.layout").first()
    layout = Layout.from_data(json.loads(written["layout"]))
    states = {
        labels(layout.slots).index(label): snapshot_of(bytes(head["head"]), stored.get(label, {}))
        for label, head in heads.items()
    }
    return layout, states, max(head["largest"] for head in heads.values())


def variable(session: SparkSession, checkpoint: Path, name: str) -> DataFrame:
    """A variable of the state in a checkpoint."""
    return session.read.format("statestore").option("path", str(checkpoint)).option("stateVarName", name).load()


def heads_in(session: SparkSession, checkpoint: Path) -> dict[int, Any]:
    """The head of each slot, by its label."""
    stored = variable(session, checkpoint, "head").select("key", "value").collect()
    if not stored:
        raise StateError(f"there is no state of a detection in {checkpoint}")
    return {row["key"]["slot"]: row["value"] for row in stored}


def segments_in(session: SparkSession, checkpoint: Path) -> dict[int, dict[int, bytes]]:
    """The segments of each slot, by its label and by their numbers."""
    found: dict[int, dict[int, bytes]] = {}
    columns = ("key", "user_map_key", "user_map_value")
    for key, number, segment in variable(session, checkpoint, "segments").select(*columns).collect():
        found.setdefault(key["slot"], {})[number["number"]] = bytes(segment["segment"])
    return found


def snapshot_of(head: bytes, stored: Mapping[int, bytes]) -> bytes:
    """The snapshot of a slot, of which the head and the segments are stored."""
    texts = checkpointer.rules_of(head, stored).values()
    rules: Sequence[Statement] = [rule for text in texts for rule in parse(text).rules]
    return checkpointer.restore(head, stored, rules, {})[0].snapshot()


def _seed(job: Job, slot: int, state: bytes | None, largest: int) -> bytes:
    """What a slot starts from."""
    if state is not None:
        return Detector.restore(state, job.rules_of(slot), {}).snapshot()
    detector = job.detector(slot)
    if largest > BEGINNING:
        detector.begin(largest - job.delay_us, largest)
    return detector.snapshot()


def write(
    session: SparkSession, new: Path, processor: StatefulProcessor, columns: str, seeds: list[Parcel], largest: int
) -> None:
    """Runs the first micro-batch of the new checkpoint: the processor, which gives these columns, takes its seeds."""

    def as_they_are(batches: Batches) -> Batches:
        yield from batches

    with tempfile.TemporaryDirectory() as folder:
        pq.write_table(pa.Table.from_batches([rows(seeds)], PARCELS), f"{folder}/seeds.parquet")
        parcels = session.readStream.schema(PARCELS_DDL).parquet(folder)
        timed = parcels.withColumn(AT, F.timestamp_micros(F.lit(max(largest, 0)))).withWatermark(AT, "0 seconds")
        payloads = (
            timed.drop(AT)
            .mapInArrow(as_they_are, PARCELS_DDL)
            .groupBy("slot")
            .transformWithStateInPandas(processor, columns, "Append", "EventTime")
        )
        with _settings(session, SEEDING):
            writer = payloads.writeStream.format("noop").option("checkpointLocation", str(new))
            writer.trigger(availableNow=True).start().awaitTermination()


@contextmanager
def _settings(session: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Runs with these settings."""
    before = {name: session.conf.get(name, None) for name in settings}
    for name, value in settings.items():
        session.conf.set(name, value)
    try:
        yield
    finally:
        for name, earlier in before.items():
            if earlier is None:
                session.conf.unset(name)
            else:
                session.conf.set(name, earlier)


def take_over(old: Path, new: Path, batch: int) -> None:
    """Makes the new checkpoint's first batch the old one's last: its number, offsets, watermark and query.

    So sinks go on counting batches where they were.
    """
    version, told, *sources = (old / "offsets" / str(batch)).read_text().splitlines()
    own = (new / "offsets" / "0").read_text().splitlines()
    settings = {**json.loads(own[1]), "batchWatermarkMs": json.loads(told)["batchWatermarkMs"]}
    mark = json.loads((old / "commits" / str(batch)).read_text().splitlines()[1])
    first, commit = (new / "commits" / "0").read_text().splitlines()[:2]
    commit = json.dumps({**json.loads(commit), "nextBatchWatermarkMs": mark["nextBatchWatermarkMs"]})
    for folder in ("offsets", "commits", "sources"):
        shutil.rmtree(new / folder, ignore_errors=True)
    (new / "offsets").mkdir()
    (new / "commits").mkdir()
    (new / "offsets" / str(batch)).write_text("\n".join([version, json.dumps(settings), *sources]))
    (new / "commits" / str(batch)).write_text(f"{first}\n{commit}")
    for folder in ("offsets", "commits"):  # Spark looks at the batch before the last, too
        if batch and (old / folder / str(batch - 1)).exists():
            shutil.copy(old / folder / str(batch - 1), new / folder / str(batch - 1))
    if (old / "sources").exists():
        shutil.copytree(old / "sources", new / "sources")
    (new / ".metadata.crc").unlink(missing_ok=True)
    shutil.copy(old / "metadata", new / "metadata")
    for snapshot in (new / "state").glob("*/*/1.zip"):
        snapshot.with_name(".1.zip.crc").unlink(missing_ok=True)
        snapshot.rename(snapshot.with_name(f"{batch + 1}.zip"))


def last_commit(old: Path, new: Path) -> int:
    """The last batch of the old checkpoint; fails if there is none, or if the new one is not empty."""
    if new.exists() and any(new.iterdir()):
        raise StateError(f"there is something in {new} already: a new checkpoint needs an empty folder")
    commits = [int(path.name) for path in (old / "commits").glob("[0-9]*")]
    if not commits:
        raise StateError(f"{old} is no checkpoint of a stream, or no batch of it was ever committed")
    return max(commits)


def rekey_moving(session: SparkSession, old: str | Path, new: str | Path, job: MovingJob) -> None:
    """Makes a checkpoint for the job, whose state is that of the old checkpoint."""
    old, new = Path(old), Path(new)
    batch = last_commit(old, new)
    heads, stored = heads_in(session, old), segments_in(session, old)
    if any("waiting" not in head for head in heads.values()):
        raise StateError(f"{old} is the checkpoint of rules, not of queries that move")
    told = [json.loads(head["head"]) for head in heads.values()]
    waiting = decode(bytes(next(iter(heads.values()))["waiting"]))
    live = [decode(stored[label][number]) for label, head in zip(heads, told, strict=True) for number in head["live"]]
    largest = max(head["largest"] for head in told)
    seeds = [
        Parcel(job.labels[slot], SEED, None, largest, seed)
        for slot, seed in enumerate(spread(job, told[0], waiting, live))
    ]
    write(session, new, CellProcessor(send(job)), HANDED_DDL, seeds, largest)
    take_over(old, new, batch)


def spread(job: MovingJob, told: Mapping[str, Any], waiting: pa.Table, parts: Sequence[pa.Table]) -> list[bytes]:
    """What each slot begins with, of what one slot knew and the events of all."""
    settings = {name: told[name] for name in ("largest", "watermark", "focals", "queries")}
    settings["types"] = list(job.sieve.types)
    events = Gathered(
        [renumbered(part, told["types"], job.sieve.types) for part in parts], job.sieve.types, settled=False
    )
    homes = homes_of(job, events)
    seeds = []
    for slot in range(job.slots):
        mine = events.batch.filter(pa.array(homes == slot)) if len(events) else None
        held = mine if mine is not None and mine.num_rows else None
        seeds.append(encode(Snapshot(settings, told["follower"], held, waiting)))
    return seeds
