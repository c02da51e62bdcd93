"""How does a stream follow a log that somebody else writes and reads? Its offsets are the log's positions.

    log ─► records of a range (beside the source) ─► parcels ─► slots ─► what they found, to the log's owner

The owner goes in lock step: it says up to where the query may read (`run`), takes what was found there, puts it into a
safe place and says so (`keep`); only then is the batch committed. So after a crash the query is at a position up to
which everything found is safe, or one batch behind it, which it does again with the same end. `Reading` is how the
owner's records are read; it is sent to the workers, which see the same files.
"""

from __future__ import annotations

import hashlib
import json
import pickle
import queue
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from time import monotonic, sleep
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from tocsin.errors import StateError, TocsinError
from tocsin.events.columns import ARROW
from tocsin.events.reader import UNNEEDED
from tocsin.events.reorder import BEGINNING
from tocsin.events.types import ID
from tocsin.spark import blocks
from tocsin.spark.blocks import CONTROL, EVENTS, PARCELS_DDL, TICK, Parcel, decode, encode, rows, shortened
from tocsin.spark.job import Job, Sent, send
from tocsin.spark.sessions import plainly, told
from tocsin.spark.stream import Slot, SlotProcessor

AT = "_tocsin_at"
STEPWISE = {"spark.sql.streaming.noDataMicroBatches.enabled": "false"}
"""A batch is a range of the log: none comes by itself."""

WAIT_S, STOP_S_MAX = 0.5, 60.0


class Reading(Protocol):
    """How the records of a log are read."""

    def latest(self) -> int:
        """The position up to which the owner wants them read."""

    def cut(self, start: int, end: int) -> list[int]:
        """Where a range may be cut, so that its pieces are read at the same time; with its start and end."""

    def read(self, start: int, end: int) -> tuple[list[tuple[pa.Table, Sequence[str]]], list[int]]:
        """Batches of events with the names of their types, and times that have been reached (µs)."""


@dataclass(frozen=True)
class Work:
    """What the source is told."""

    reading: Reading
    sent: Sent[Job]
    start: int
    """Where a new query begins to read."""


@dataclass
class Range(InputPartition):  # type: ignore[misc]
    """A piece of the log, for one task."""

    start: int
    end: int


class LogSource(DataSource):  # type: ignore[misc]
    """Parcels from a log. The option `work` is a file with the `Work`."""

    @classmethod
    def name(cls) -> str:
        return "tocsin_log"

    def schema(self) -> str:
        return f"{PARCELS_DDL}, {AT} timestamp"

    def streamReader(self, schema: Any) -> LogReader:
        return LogReader(self.options["work"])


class LogReader(DataSourceStreamReader):  # type: ignore[misc]
    """Ranges of the log as parcels."""

    def __init__(self, path: str) -> None:
        self._path = path

    def initialOffset(self) -> dict[str, int]:
        return {"position": _work(self._path).start}

    def latestOffset(self, start: dict[str, int], limit: Any) -> dict[str, int]:
        return {"position": max(start["position"], _work(self._path).reading.latest())}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[Range]:
        cuts = _work(self._path).reading.cut(start["position"], end["position"])
        return [Range(one, other) for one, other in pairwise(cuts)]

    def read(self, partition: Range) -> Iterator[pa.RecordBatch]:
        work = _work(self._path)
        job = work.sent.job
        batches, reached = work.reading.read(partition.start, partition.end)
        largest = max((int(batch["ts"].to_numpy().max()) for batch, _ in batches), default=None)
        parcels = [Parcel(label, TICK, None, largest, None) for label in job.labels]
        for ts in reached:
            parcels += [Parcel(label, CONTROL, None, None, _advance(ts)) for label in job.labels]
        for batch, types in batches:
            parcels += routed(batch, types, job)
        clock = pa.scalar(max(largest or 0, 0), pa.timestamp("us", "UTC"))
        for parcel in parcels:
            yield rows([parcel]).append_column(AT, pa.array([clock.as_py()], clock.type))


@lru_cache(maxsize=8)
def _work(path: str) -> Work:
    work: Work = pickle.loads(Path(path).read_bytes())
    return work


def _advance(ts: int) -> bytes:
    return json.dumps({"advance": ts}).encode()


def routed(batch: pa.Table, types: Sequence[str], job: Job) -> Iterator[Parcel]:
    """The parcels of a batch of events."""
    if not batch.num_rows or not job.types:
        return
    numbers = {type: number for number, type in enumerate(job.types) if type not in job.plan.defined}
    codes = np.array([numbers.get(type, UNNEEDED) for type in types], np.int32)
    batch = batch.set_column(0, "type", pa.array(codes[batch["type"].to_numpy()]))
    for named in job.plan.columns.values():
        for name, kind in named.items():
            if kind is not None and name != ID and f"{name}:{kind}" not in batch.column_names:
                batch = batch.append_column(f"{name}:{kind}", pa.nulls(batch.num_rows, ARROW[kind]))
    names = json.dumps(job.types)
    for slot, part in job.router.route(batch):
        ts = part["ts"].to_numpy()
        yield Parcel(job.labels[slot], EVENTS, int(ts.min()), int(ts.max()), encode(shortened(part, names)))


class LogProcessor(SlotProcessor):
    """Slots that start in the middle of the log, and go on with more knowledge of the events than before."""

    def __init__(self, sent: Sent[Job], watermark: int, largest: int) -> None:
        super().__init__(sent)
        self._started_at = watermark, largest

    def _begin(self, job: Job, number: int) -> Slot:
        slot = super()._begin(job, number)
        watermark, largest = self._started_at
        if largest > BEGINNING:
            slot.detector.begin(watermark, largest)
            slot.largest = largest
        return slot

    def _read(self, job: Job, number: int, token: str, largest: int, timer: int | None, head: bytes) -> Slot:
        slot = super()._read(job, number, token, largest, timer, head)
        slot.detector.know(job.catalog)
        return slot


class Following:
    """A query over a log, used by one thread, that of the log's owner."""

    def __init__(self, session: SparkSession, reading: Reading) -> None:
        self._session = session.newSession()
        for name, value in STEPWISE.items():
            self._session.conf.set(name, value)
        self._session.dataSource.register(LogSource)
        self._reading = reading
        self._found: queue.Queue[tuple[int, int, list[pa.Table]]] = queue.Queue()
        self._kept: queue.Queue[bool] = queue.Queue()
        self._query: Any = None
        self._checkpoint = Path()
        self._batch: int | None = None
        """The number of a batch whose outcome was taken, and that may not be committed yet."""
        self._safe = True

    @property
    def session(self) -> SparkSession:
        return self._session

    @property
    def runs(self) -> bool:
        return self._query is not None

    def start(self, job: Job, checkpoint: Path, start: int, watermark: int, largest: int) -> None:
        """Starts the query, or starts it again from its checkpoint. `start`: where a new one begins to read, at that
        watermark and behind that largest ts.
        """
        sent = send(job)
        data = pickle.dumps(Work(self._reading, sent, start))
        work = checkpoint.parent / f"work-{hashlib.sha256(data).hexdigest()[:16]}"
        if not work.exists():
            for old in checkpoint.parent.glob("work-*"):
                old.unlink()
            work.write_bytes(data)
        parcels = self._session.readStream.format(LogSource.name()).option("work", str(work)).load()
        payloads = (
            parcels.withWatermark(AT, "0 seconds")
            .drop(AT)
            .mapInArrow(_as_they_are, PARCELS_DDL)
            .groupBy("slot")
            .transformWithStateInPandas(
                LogProcessor(sent, watermark, largest), blocks.PAYLOADS_DDL, "Append", "EventTime"
            )
        )
        self._checkpoint = checkpoint
        writer = payloads.writeStream.option("checkpointLocation", str(checkpoint)).foreachBatch(self._take)
        self._query = writer.start()

    def run(self, upto: int) -> list[pa.Table]:
        """Waits for the batch that ends at a position, and returns what its slots report."""
        while True:
            try:
                position, batch, tables = self._found.get(timeout=WAIT_S)
            except queue.Empty:
                self._look()
                continue
            if position != upto:
                raise StateError(f"Spark has detected up to {position} of the log, not up to {upto}")
            self._batch, self._safe = batch, False
            return tables

    def keep(self) -> None:
        """Says that what the last batch found is safe."""
        if self._batch is not None and not self._safe:
            self._safe = True
            self._kept.put(True)

    def settle(self) -> None:
        """Waits until the last batch is committed."""
        if self._batch is None:
            return
        until = monotonic() + STOP_S_MAX
        while not (self._checkpoint / "commits" / str(self._batch)).exists():
            self._look()
            if monotonic() > until:
                raise TocsinError("Spark does not commit its batch")
            sleep(0.005)
        self._batch = None

    def stop(self) -> None:
        """Ends the query after its batch, or without it if what it found is not safe."""
        if self._query is None:
            return
        if self._safe:
            self.settle()
        else:
            self._kept.put(False)
        with plainly():
            self._query.stop()
        self._query, self._batch, self._safe = None, None, True

    def _look(self) -> None:
        """Fails if the query has."""
        if self._query is None:
            return
        with plainly():
            if (failed := self._query.exception()) is not None:
                raise told(failed)
            if not self._query.isActive:
                raise TocsinError("the query has ended")

    def _take(self, payloads: DataFrame, batch: int) -> None:
        """What Spark does with each batch: the state is written when this returns."""
        found = payloads.toArrow()["payload"]
        position = ended(self._checkpoint, batch)
        self._found.put((position, batch, [decode(payload.as_buffer()) for payload in found]))
        if not self._kept.get():
            raise StateError("what the batch found was not kept")


def _as_they_are(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


def ended(checkpoint: Path, batch: int) -> int:
    """The position at which a batch ends."""
    offset = (checkpoint / "offsets" / str(batch)).read_text().splitlines()[-1]
    return int(json.loads(offset)["position"])


def positions(checkpoint: Path) -> tuple[int | None, int | None]:
    """Where the last committed batch of a checkpoint ends, and where the one that was begun after it does."""
    found: list[int | None] = []
    for folder in ("commits", "offsets"):
        numbers = [int(path.name) for path in (checkpoint / folder).glob("[0-9]*")]
        position = None
        if numbers:
            with suppress(FileNotFoundError, IndexError, ValueError):
                position = ended(checkpoint, max(numbers))
        found.append(position)
    return found[0], found[1]
