"""Move the state of a checkpoint to a new checkpoint, for another number of slots or for changed rules.

Spark's state reader reads the state of the slots in the old checkpoint. `engine.rescale` regroups the state rule by
rule. A first micro-batch of the same stateful operator then writes the regrouped state into the new checkpoint; the
operator receives it as shuffle blocks. Then the new checkpoint gets the source offsets and the watermark of the old
checkpoint, so that a query that starts from the new checkpoint continues where the old query stopped. The old
checkpoint is not changed.

For moving queries, events are partitioned by their position into cells (see `moving_job`). All slots of cells have the
same ranges and the same waiting location updates, and only their events differ. So each new slot starts with the ranges
and location updates of any old slot, and with those events of all old slots that lie in its own cells.
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
from tocsin.engine.moving.detector import MovingSnapshot, encode, recode_types
from tocsin.engine.moving.gather import GatheredEvents
from tocsin.engine.routing import key_slots
from tocsin.errors import StateError
from tocsin.events.reorder import BEGINNING
from tocsin.events.types import Kind
from tocsin.kernels import Array
from tocsin.language import parse
from tocsin.language.eps.ast import Statement
from tocsin.plans.assignment import Layout, RuleUnit
from tocsin.spark import blocks
from tocsin.spark.blocks import BLOCK_DDL, BLOCK_SCHEMA, INITIAL_STATE, Batches, ShuffleBlock, decode, to_record_batch
from tocsin.spark.job import Job, labels, send
from tocsin.spark.moving_job import MovingJob
from tocsin.spark.moving_slot import FORWARDED_DDL, CellProcessor, cell_slots
from tocsin.spark.sessions import SESSION_DEFAULTS
from tocsin.spark.stream import SlotProcessor

AT = "_tocsin_at"
ONE_BATCH = {
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "false",
    "spark.sql.streaming.stateStore.providerClass": SESSION_DEFAULTS["spark.sql.streaming.stateStore.providerClass"],
}
"""Settings with which a query runs only one batch and writes its complete state."""


def rekey(session: SparkSession, old: str | Path, new: str | Path, job: Job) -> None:
    """Create the checkpoint `new` for `job` with the state of the checkpoint `old`."""
    old, new = Path(old), Path(new)
    batch = last_commit(old, new)
    layout, states, largest = _read(session, old)
    write(
        session,
        new,
        SlotProcessor(send(job)),
        blocks.PAYLOADS_DDL,
        initial_states(layout, states, job, largest),
        largest,
    )
    copy_progress(old, new, batch)


def initial_states(layout: Layout, states: Mapping[int, bytes], job: Job, largest: int) -> list[ShuffleBlock]:
    """Return a shuffle block with the initial state of each slot of `job`.

    `states` are snapshots of the slots of `layout`, and `largest` is the largest ts that they have received.
    """
    return [
        ShuffleBlock(job.labels[slot], INITIAL_STATE, None, largest, _initial_state(job, slot, state, largest))
        for slot, state in enumerate(regroup(layout, states, job))
    ]


def regroup(layout: Layout, states: Mapping[int, bytes], job: Job) -> list[bytes | None]:
    """Return a snapshot for each slot of `job`, from `states`, the snapshots of the slots of `layout`.

    The snapshot of a slot is None if none of its rules has a state.
    """
    parts_of_slots: list[list[bytes]] = [[] for _ in range(job.layout.slots)]
    for unit in job.layout.units:
        names_before = [name for name in unit.rules if name in layout.units_by_rule]
        rules = tuple(rule for rule in job.rules if rule.name in names_before)
        snapshots = []
        for slot, state in states.items():
            mine = tuple(rule for rule in rules if layout.units_by_rule[rule.name].slot in (None, slot))
            if mine:
                snapshots.append(rescale.narrow(state, mine, {}))
        if not snapshots:
            continue
        whole = rescale.join(snapshots)
        if unit.slot is not None:
            parts_of_slots[unit.slot].append(whole)
            continue
        for slot, part in enumerate(rescale.split(whole, _router(unit, job), job.layout.slots)):
            parts_of_slots[slot].append(part)
    return [rescale.join(mine) if mine else None for mine in parts_of_slots]


def _router(unit: RuleUnit, job: Job) -> Any:
    """Return the function that assigns events of a keyed `unit` to slots by their key.

    The key of composite events is an attribute of their own.
    """
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
    """Return the layout of the checkpoint `old`, a snapshot of each of its slots, and the largest ts."""

    heads, stored = heads_in(session, old), segments_in(session, old)
    written = variable(session, old, "layout").select("value.layout").first()
    layout = Layout.from_data(json.loads(written["layout"]))
    states = {
        labels(layout.slots).index(label): snapshot_of(bytes(head["head"]), stored.get(label, {}))
        for label, head in heads.items()
    }
    return layout, states, max(head["largest"] for head in heads.values())


def variable(session: SparkSession, checkpoint: Path, name: str) -> DataFrame:
    """Read the state variable `name` of the stateful operator from `checkpoint`."""
    return session.read.format("statestore").option("path", str(checkpoint)).option("stateVarName", name).load()


def heads_in(session: SparkSession, checkpoint: Path) -> dict[int, Any]:
    """Return the stored head of each slot, by the label of the slot."""
    stored = variable(session, checkpoint, "head").select("key", "value").collect()
    if not stored:
        raise StateError(f"{checkpoint} has no state of a detection")
    return {row["key"]["slot"]: row["value"] for row in stored}


def segments_in(session: SparkSession, checkpoint: Path) -> dict[int, dict[int, bytes]]:
    """Return the stored segments by the label of their slot and by their number."""
    segments: dict[int, dict[int, bytes]] = {}
    columns = ("key", "user_map_key", "user_map_value")
    for key, number, segment in variable(session, checkpoint, "segments").select(*columns).collect():
        segments.setdefault(key["slot"], {})[number["number"]] = bytes(segment["segment"])
    return segments


def snapshot_of(head: bytes, stored: Mapping[int, bytes]) -> bytes:
    """Return the snapshot of a slot from its stored `head` and segments."""
    texts = checkpointer.rules_of(head, stored).values()
    rules: Sequence[Statement] = [rule for text in texts for rule in parse(text).rules]
    return checkpointer.restore(head, stored, rules, {})[0].snapshot()


def _initial_state(job: Job, slot: int, state: bytes | None, largest: int) -> bytes:
    """Return the initial state of `slot`, from its snapshot `state` or, without that, at the time `largest`."""
    if state is not None:
        return Detector.restore(state, job.rules_of(slot), {}).snapshot()
    detector = job.detector(slot)
    if largest > BEGINNING:
        detector.begin(largest - job.delay_us, largest)
    return detector.snapshot()


def write(
    session: SparkSession,
    new: Path,
    processor: StatefulProcessor,
    columns: str,
    states: list[ShuffleBlock],
    largest: int,
) -> None:
    """Create the checkpoint `new` by a micro-batch in which `processor` receives its initial `states`.

    `columns` are the output columns of `processor`, and `largest` is the largest ts (µs) of the old slots.
    """

    def identity(batches: Batches) -> Batches:
        yield from batches

    with tempfile.TemporaryDirectory() as folder:
        pq.write_table(pa.Table.from_batches([to_record_batch(states)], BLOCK_SCHEMA), f"{folder}/seeds.parquet")
        shuffle_blocks = session.readStream.schema(BLOCK_DDL).parquet(folder)
        timed = shuffle_blocks.withColumn(AT, F.timestamp_micros(F.lit(max(largest, 0)))).withWatermark(AT, "0 seconds")
        payloads = (
            timed.drop(AT)
            .mapInArrow(identity, BLOCK_DDL)
            .groupBy("slot")
            .transformWithStateInPandas(processor, columns, "Append", "EventTime")
        )
        with _settings(session, ONE_BATCH):
            writer = payloads.writeStream.format("noop").option("checkpointLocation", str(new))
            writer.trigger(availableNow=True).start().awaitTermination()


@contextmanager
def _settings(session: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Change settings of the session in the `with` block."""
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


def copy_progress(old: Path, new: Path, batch: int) -> None:
    """Give the first batch of the checkpoint `new` the number, offsets, watermark and query of `batch` of `old`.

    `batch` is the last committed batch of `old`, so that sinks continue with the next number.
    """
    version, batch_metadata, *sources = (old / "offsets" / str(batch)).read_text().splitlines()
    new_offsets = (new / "offsets" / "0").read_text().splitlines()
    settings = {**json.loads(new_offsets[1]), "batchWatermarkMs": json.loads(batch_metadata)["batchWatermarkMs"]}
    mark = json.loads((old / "commits" / str(batch)).read_text().splitlines()[1])
    first, commit = (new / "commits" / "0").read_text().splitlines()[:2]
    commit = json.dumps({**json.loads(commit), "nextBatchWatermarkMs": mark["nextBatchWatermarkMs"]})
    for folder in ("offsets", "commits", "sources"):
        shutil.rmtree(new / folder, ignore_errors=True)
    (new / "offsets").mkdir()
    (new / "commits").mkdir()
    (new / "offsets" / str(batch)).write_text("\n".join([version, json.dumps(settings), *sources]))
    (new / "commits" / str(batch)).write_text(f"{first}\n{commit}")
    for folder in ("offsets", "commits"):  # Spark reads the batch before the last, too
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
    """Return the number of the last committed batch of the checkpoint `old`.

    Raise `StateError` if there is none, or if the folder `new` is not empty.
    """
    if new.exists() and any(new.iterdir()):
        raise StateError(f"{new} is not empty: a new checkpoint needs an empty folder")
    commits = [int(path.name) for path in (old / "commits").glob("[0-9]*")]
    if not commits:
        raise StateError(f"{old} is not the checkpoint of a stream, or has no committed batch")
    return max(commits)


def rekey_moving(session: SparkSession, old: str | Path, new: str | Path, job: MovingJob) -> None:
    """Create the checkpoint `new` for the moving queries of `job` with the state of the checkpoint `old`."""
    old, new = Path(old), Path(new)
    batch = last_commit(old, new)
    heads, stored = heads_in(session, old), segments_in(session, old)
    if any("waiting" not in head for head in heads.values()):
        raise StateError(f"{old} is the checkpoint of rules, not of moving queries")
    slot_states = [json.loads(head["head"]) for head in heads.values()]
    waiting = decode(bytes(next(iter(heads.values()))["waiting"]))
    live = [
        decode(stored[label][number]) for label, head in zip(heads, slot_states, strict=True) for number in head["live"]
    ]
    largest = max(head["largest"] for head in slot_states)
    states = [
        ShuffleBlock(job.labels[slot], INITIAL_STATE, None, largest, state)
        for slot, state in enumerate(moving_initial_states(job, slot_states[0], waiting, live))
    ]
    write(session, new, CellProcessor(send(job)), FORWARDED_DDL, states, largest)
    copy_progress(old, new, batch)


def moving_initial_states(
    job: MovingJob, state: Mapping[str, Any], waiting: pa.Table, parts: Sequence[pa.Table]
) -> list[bytes]:
    """Return the initial state of each slot of `job`.

    `state` and `waiting` are the head and the waiting location updates of any old slot. `parts` are the events of all
    old slots.
    """
    settings = {name: state[name] for name in ("largest", "watermark", "focals", "queries")}
    settings["types"] = list(job.gatherer.types)
    events = GatheredEvents(
        [recode_types(part, state["types"], job.gatherer.types) for part in parts], job.gatherer.types, canonical=False
    )
    slots = cell_slots(job, events)
    states = []
    for slot in range(job.slots):
        mine = events.batch.filter(pa.array(slots == slot)) if len(events) else None
        stored = mine if mine is not None and mine.num_rows else None
        states.append(encode(MovingSnapshot(settings, state["follower"], stored, waiting)))
    return states
