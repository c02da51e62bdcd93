"""How does a stream of queries that move go on with another number of slots? Its events are laid out by place anew.

All slots of cells know the same ranges and the same location updates that wait; only events are apart. So the new slots
begin with what any of the old ones knows, and with the events of all that lie on their own blocks. The rest is as for
rules (`spark.rekeying`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from tocsin.engine.moving.gathering import Gathered
from tocsin.engine.moving.snapshots import Snapshot, encode, renumbered
from tocsin.errors import StateError
from tocsin.spark.jobs import send
from tocsin.spark.moving.jobs import MovingJob
from tocsin.spark.moving.streams import HANDED_DDL, CellProcessor, homes_of
from tocsin.spark.packing import SEED, Parcel, decode
from tocsin.spark.rekeying import heads_in, last_commit, segments_in, take_over, write


def rekey(session: SparkSession, old: str | Path, new: str | Path, job: MovingJob) -> None:
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
