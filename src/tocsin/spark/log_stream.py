"""Run a streaming query over a log that another process writes and reads.

    log ─► records of a range (next to the source) ─► shuffle blocks ─► slots ─► reports, to the owner of the log

The offsets of the query are positions in the log. The process that owns the log goes in lockstep with the query. It
sets the position up to which the query may read (`RecordReader.latest`), waits for the reports of the slots
(`LogQuery.run`), stores them, and acknowledges them (`LogQuery.acknowledge`). Only then is the batch committed. So
after a crash, either the reports up to the query's position are all stored, or the query repeats one batch with the
same end.

A `RecordReader` reads the owner's records. It is sent to the workers, which see the same files.
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
from tocsin.spark.blocks import (
    BLOCK_DDL,
    CONTROL,
    EVENTS,
    WATERMARK,
    ShuffleBlock,
    compacted,
    decode,
    encode,
    to_record_batch,
)
from tocsin.spark.job import Job, SentJob, send
from tocsin.spark.sessions import plain_errors, to_tocsin_error
from tocsin.spark.stream import Slot, SlotProcessor

AT = "_tocsin_at"
STEPWISE = {"spark.sql.streaming.noDataMicroBatches.enabled": "false"}
"""Settings by which Spark starts no batch without data, because each batch must be a range of the log."""

WAIT_S, STOP_S_MAX = 0.5, 60.0


class RecordReader(Protocol):
    """The interface by which the driver and the workers read the records of a log."""

    def latest(self) -> int:
        """Return the position up to which the query may read records now."""

    def cut(self, start: int, end: int) -> list[int]:
        """Return positions that split the range for parallel reading, including `start` and `end`."""

    def read(self, start: int, end: int) -> tuple[list[tuple[pa.Table, Sequence[str]]], list[int]]:
        """Return the batches of events in a range with the names of their types, and the times (µs) to advance to."""


@dataclass(frozen=True)
class LogQueryOptions:
    """The options of `LogSource`, which say how to read the log, and which job needs the events."""

    reader: RecordReader
    sent: SentJob[Job]
    start: int
    """The position at which a new query begins to read."""


@dataclass
class LogRange(InputPartition):  # type: ignore[misc]
    """A range of positions in the log that one task reads."""

    start: int
    end: int


class LogSource(DataSource):  # type: ignore[misc]
    """Spark's data source for shuffle blocks from a log. Its option `work` is a file with pickled `LogQueryOptions`."""

    @classmethod
    def name(cls) -> str:
        return "tocsin_log"

    def schema(self) -> str:
        return f"{BLOCK_DDL}, {AT} timestamp"

    def streamReader(self, schema: Any) -> LogReader:
        return LogReader(self.options["work"])


class LogReader(DataSourceStreamReader):  # type: ignore[misc]
    """Reads the ranges of a log as shuffle blocks, for `LogSource`."""

    def __init__(self, path: str) -> None:
        self._path = path

    def initialOffset(self) -> dict[str, int]:
        return {"position": _work(self._path).start}

    def latestOffset(self, start: dict[str, int], limit: Any) -> dict[str, int]:
        return {"position": max(start["position"], _work(self._path).reader.latest())}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[LogRange]:
        cuts = _work(self._path).reader.cut(start["position"], end["position"])
        return [LogRange(one, other) for one, other in pairwise(cuts)]

    def read(self, partition: LogRange) -> Iterator[pa.RecordBatch]:
        work = _work(self._path)
        job = work.sent.job
        batches, advances = work.reader.read(partition.start, partition.end)
        largest = max((int(batch["ts"].to_numpy().max()) for batch, _ in batches), default=None)
        shuffle_blocks = [ShuffleBlock(label, WATERMARK, None, largest, None) for label in job.labels]
        for ts in advances:
            shuffle_blocks += [ShuffleBlock(label, CONTROL, None, None, _advance(ts)) for label in job.labels]
        for batch, types in batches:
            shuffle_blocks += to_blocks(batch, types, job)
        clock = pa.scalar(max(largest or 0, 0), pa.timestamp("us", "UTC"))
        for block in shuffle_blocks:
            yield to_record_batch([block]).append_column(AT, pa.array([clock.as_py()], clock.type))


@lru_cache(maxsize=8)
def _work(path: str) -> LogQueryOptions:
    work: LogQueryOptions = pickle.loads(Path(path).read_bytes())
    return work


def _advance(ts: int) -> bytes:
    return json.dumps({"advance": ts}).encode()


def to_blocks(batch: pa.Table, types: Sequence[str], job: Job) -> Iterator[ShuffleBlock]:
    """Yield the shuffle blocks of `batch`, whose column `type` has positions in `types`."""
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
        yield ShuffleBlock(job.labels[slot], EVENTS, int(ts.min()), int(ts.max()), encode(compacted(part, names)))


class LogProcessor(SlotProcessor):
    """The stateful operator of a log query.

    Its slots can start in the middle of the log, and can continue with a catalog of types that has grown.
    """

    def __init__(self, sent: SentJob[Job], watermark: int, largest: int) -> None:
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


class LogQuery:
    """A streaming query over a log. Only one thread, which owns the log, may use it."""

    def __init__(self, session: SparkSession, reader: RecordReader) -> None:
        self._session = session.newSession()
        for name, value in STEPWISE.items():
            self._session.conf.set(name, value)
        self._session.dataSource.register(LogSource)
        self._reader = reader
        self._results: queue.Queue[tuple[int, int, list[pa.Table]]] = queue.Queue()
        self._acknowledgements: queue.Queue[bool] = queue.Queue()
        self._query: Any = None
        self._checkpoint = Path()
        self._uncommitted: int | None = None
        """The number of the last batch whose reports were returned, until the batch is known to be committed."""
        self._acknowledged = True

    @property
    def session(self) -> SparkSession:
        return self._session

    @property
    def running(self) -> bool:
        return self._query is not None

    def start(self, job: Job, checkpoint: Path, start: int, watermark: int, largest: int) -> None:
        """Start the query, or restart it from `checkpoint`.

        A new query begins to read at the position `start`, with the watermark `watermark` and the largest ts `largest`.
        """
        sent = send(job)
        data = pickle.dumps(LogQueryOptions(self._reader, sent, start))
        work = checkpoint.parent / f"work-{hashlib.sha256(data).hexdigest()[:16]}"
        if not work.exists():
            for old in checkpoint.parent.glob("work-*"):
                old.unlink()
            work.write_bytes(data)
        shuffle_blocks = self._session.readStream.format(LogSource.name()).option("work", str(work)).load()
        payloads = (
            shuffle_blocks.withWatermark(AT, "0 seconds")
            .drop(AT)
            .mapInArrow(_identity, BLOCK_DDL)
            .groupBy("slot")
            .transformWithStateInPandas(
                LogProcessor(sent, watermark, largest), blocks.PAYLOADS_DDL, "Append", "EventTime"
            )
        )
        self._checkpoint = checkpoint
        writer = payloads.writeStream.option("checkpointLocation", str(checkpoint)).foreachBatch(self._process_batch)
        self._query = writer.start()

    def run(self, end: int) -> list[pa.Table]:
        """Wait for the batch that ends at the position `end`, and return the reports of its slots."""
        while True:
            try:
                position, batch, tables = self._results.get(timeout=WAIT_S)
            except queue.Empty:
                self._check()
                continue
            if position != end:
                raise StateError(f"Spark has processed the log up to {position}, not up to {end}")
            self._uncommitted, self._acknowledged = batch, False
            return tables

    def acknowledge(self) -> None:
        """Confirm to the query that the reports of the last batch are stored, so that Spark commits the batch."""
        if self._uncommitted is not None and not self._acknowledged:
            self._acknowledged = True
            self._acknowledgements.put(True)

    def wait_committed(self) -> None:
        """Wait until Spark has committed the last batch."""
        if self._uncommitted is None:
            return
        until = monotonic() + STOP_S_MAX
        while not (self._checkpoint / "commits" / str(self._uncommitted)).exists():
            self._check()
            if monotonic() > until:
                raise TocsinError("Spark did not commit its batch")
            sleep(0.005)
        self._uncommitted = None

    def stop(self) -> None:
        """Stop the query after the commit of its last batch.

        If the reports of the batch are not acknowledged, the batch is not committed.
        """
        if self._query is None:
            return
        if self._acknowledged:
            self.wait_committed()
        else:
            self._acknowledgements.put(False)
        with plain_errors():
            self._query.stop()
        self._query, self._uncommitted, self._acknowledged = None, None, True

    def _check(self) -> None:
        """Raise an error if the query has failed or ended."""
        if self._query is None:
            return
        with plain_errors():
            if (failed := self._query.exception()) is not None:
                raise to_tocsin_error(failed)
            if not self._query.isActive:
                raise TocsinError("the query has ended")

    def _process_batch(self, payloads: DataFrame, batch: int) -> None:
        """Pass the reports of a batch to `run`, and wait for the acknowledgement.

        Spark calls this for each batch, and writes the state after it returns.
        """
        found = payloads.toArrow()["payload"]
        position = end_position(self._checkpoint, batch)
        self._results.put((position, batch, [decode(payload.as_buffer()) for payload in found]))
        if not self._acknowledgements.get():
            raise StateError("the reports of the batch were not acknowledged")


def _identity(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


def end_position(checkpoint: Path, batch: int) -> int:
    """Return the position in the log at which `batch` of `checkpoint` ends."""
    offset = (checkpoint / "offsets" / str(batch)).read_text().splitlines()[-1]
    return int(json.loads(offset)["position"])


def checkpoint_positions(checkpoint: Path) -> tuple[int | None, int | None]:
    """Return the positions at which the last committed batch and the last started batch of `checkpoint` end.

    A position is None if there is no such batch.
    """
    found: list[int | None] = []
    for folder in ("commits", "offsets"):
        numbers = [int(path.name) for path in (checkpoint / folder).glob("[0-9]*")]
        position = None
        if numbers:
            with suppress(FileNotFoundError, IndexError, ValueError):
                position = end_position(checkpoint, max(numbers))
        found.append(position)
    return found[0], found[1]
