"""Where the matches of a stream go, and how often.

Exactly once, into folders: a micro-batch may be run again after a failure, with the same number and the same result.
`folders` writes what it found under a hidden name beside its place, and then renames that to `batch=<number>`. A place
that is taken is left alone, so that whatever is killed whenever, each batch is there once and whole. A folder belongs
to one checkpoint, which it notes, since another one counts its batches anew. The rename must be atomic, as it is on a
disk and on HDFS, and is not in an object store.

At least once, elsewhere: a match that is sent again has the same id. `deduplicated` is for those who read such.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from tocsin.errors import EventError, StateError
from tocsin.spark import blocks, kafka
from tocsin.spark.names import col

Batch: TypeAlias = Callable[[DataFrame, int], None]
HORIZON = "1 day"
TIMES = {"timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX", "timeZone": "UTC", "ignoreNullFields": "false"}
QUERY_ID = "sql.streaming.queryId"


def folders(matches: str | None = None, dead_letters: str | None = None, more: Sequence[Batch] = ()) -> Batch:
    """What to give to `foreachBatch` of a report, so that its parts are in these folders exactly once, as Parquet.

    `more` are called with the report and the batch's number before that; they may be called again after a failure.
    """
    parts = [(path, part) for path, part in ((matches, blocks.matches), (dead_letters, blocks.dead_letters)) if path]
    claimed: set[tuple[str, str]] = set()

    def write(report: DataFrame, batch: int) -> None:
        session = report.sparkSession
        query = session.sparkContext.getLocalProperty(QUERY_ID) or ""
        for path, _ in parts:
            if (path, query) not in claimed:
                claim(session, path, query)
                claimed.add((path, query))
        report.persist()
        try:
            for other in more:
                other(report, batch)
            for path, part in parts:
                _write(part(report), path, batch)
        finally:
            report.unpersist()

    return write


def to_kafka(address: str) -> Batch:
    """Sends the matches of each batch to a topic, at least once."""
    kafka.topic(address)
    return lambda report, batch: send(blocks.matches(report), address)


def send(matches: DataFrame, address: str) -> None:
    """Sends matches to a topic: the id as the key, and a JSON object."""
    value = F.to_json(F.struct(*(col(name) for name in matches.columns)), TIMES)
    rows = matches.select(F.col("id").alias("key"), value.alias("value"))
    rows.write.format("kafka").options(**kafka.writing(kafka.topic(address))).save()


def deduplicated(frame: DataFrame, by: str = "id", *, ts: str = "ts", horizon: str | None = HORIZON) -> DataFrame:
    """Each match once, of a table or a stream that may have some of them repeatedly.

    Of a stream, ids are remembered until its time (`ts`) is `horizon` later than the match, and what is later than that
    is left out, with Spark's `dropDuplicatesWithinWatermark`: unlike `dropDuplicates` it forgets by time alone, and so
    needs no `ts` in the comparison. A repetition follows its first within minutes, when a query is restarted; the
    horizon must be longer than the query was ever down. `horizon=None` remembers all ids for ever.
    """
    for name in (by, *((ts,) if frame.isStreaming and horizon else ())):
        if name not in frame.columns:
            raise EventError(f"there is no column '{name}' here; there are {', '.join(frame.columns)}")
    if not frame.isStreaming or horizon is None:
        return frame.dropDuplicates([by])
    if isinstance(frame.schema[ts].dataType, T.TimestampType):
        return frame.withWatermark(ts, horizon).dropDuplicatesWithinWatermark([by])
    at = F.timestamp_micros(col(ts)) if isinstance(frame.schema[ts].dataType, T.LongType) else F.to_timestamp(col(ts))
    timed = frame.withColumn("_at", at).withWatermark("_at", horizon)
    return timed.dropDuplicatesWithinWatermark([by]).drop("_at")


def claim(session: SparkSession, path: str, query: str) -> None:
    """Notes that a folder is that of a query, or fails if it is another's."""
    files, folder = _files(session, path)
    note = _child(session, folder, ".query")
    if files.exists(note):
        stream = files.open(note)
        owner = bytes(stream.readAllBytes()).decode()
        stream.close()
        if owner != query:
            raise StateError(
                f"{path} has the matches of another run: go on with its checkpoint, or write somewhere else"
            )
        return
    if files.exists(folder) and any(name.startswith("batch=") for name in _names(files, folder)):
        raise StateError(f"{path} has batches in it that no run has noted as its own: write somewhere else")
    files.mkdirs(folder)
    fresh = _child(session, folder, f".query.{uuid.uuid4().hex}")
    stream = files.create(fresh)
    stream.write(query.encode())
    stream.close()
    files.rename(fresh, note)


def _write(rows: DataFrame, path: str, batch: int) -> None:
    session = rows.sparkSession
    files, folder = _files(session, path)
    place = _child(session, folder, f"batch={batch}")
    if files.exists(place):
        return
    for name in _names(files, folder):
        if name.startswith(f".batch={batch}."):
            files.delete(_child(session, folder, name), True)
    if rows.isEmpty():
        return
    fresh = _child(session, folder, f".batch={batch}.{uuid.uuid4().hex}")
    rows.write.parquet(fresh.toString())
    if not files.rename(fresh, place):
        raise StateError(f"{path} cannot be written: batch {batch} could not be put in its place")


def _files(session: SparkSession, path: str) -> tuple[Any, Any]:
    """Hadoop's file system of a path, and the path in it."""
    jvm: Any = session.sparkContext._jvm
    place = jvm.org.apache.hadoop.fs.Path(path)
    files = place.getFileSystem(session.sparkContext._jsc.hadoopConfiguration())
    return files, files.makeQualified(place)


def _child(session: SparkSession, folder: Any, name: str) -> Any:
    jvm: Any = session.sparkContext._jvm
    # A name with a colon would be taken for a scheme; ours have none.
    return jvm.org.apache.hadoop.fs.Path(folder, name)


def _names(files: Any, folder: Any) -> list[str]:
    return [status.getPath().getName() for status in files.listStatus(folder)]
