"""Write the matches of a stream to folders exactly once, or to other sinks at least once.

Folders get each batch exactly once. After a failure, a micro-batch may run again, with the same number and the same
result. `folders` writes the batch under a hidden name in the same folder, and then renames it to `batch=<number>`. If
that name exists already, the batch is not written again. So after any crash, each batch is there once and complete.

A folder belongs to one checkpoint, because another checkpoint numbers its batches independently. So the folder records
the id of the query of its checkpoint. The rename must be atomic, as it is on a local disk or HDFS, but not in an object
store.

Other sinks get each match at least once. A match that is sent again has the same id, and `deduplicated` removes
repeated matches when such a sink is read.
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
    """Return a function for `foreachBatch` of a report that writes matches and dead letters as Parquet, exactly once.

    `matches` and `dead_letters` are the folders. Before each batch is written, the functions in `more` are called with
    the report and the number of the batch. They may be called again for the same batch after a failure.
    """
    parts = [(path, part) for path, part in ((matches, blocks.matches), (dead_letters, blocks.dead_letters)) if path]
    owned: set[tuple[str, str]] = set()

    def write(report: DataFrame, batch: int) -> None:
        session = report.sparkSession
        query = session.sparkContext.getLocalProperty(QUERY_ID) or ""
        for path, _ in parts:
            if (path, query) not in owned:
                claim(session, path, query)
                owned.add((path, query))
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
    """Return a function for `foreachBatch` that sends the matches of each batch to a Kafka topic, at least once."""
    kafka.topic(address)
    return lambda report, batch: send(blocks.matches(report), address)


def send(matches: DataFrame, address: str) -> None:
    """Send each match to a Kafka topic as a JSON object, with the id of the match as the key."""
    value = F.to_json(F.struct(*(col(name) for name in matches.columns)), TIMES)
    rows = matches.select(F.col("id").alias("key"), value.alias("value"))
    rows.write.format("kafka").options(**kafka.writing(kafka.topic(address))).save()


def deduplicated(frame: DataFrame, by: str = "id", *, ts: str = "ts", horizon: str | None = HORIZON) -> DataFrame:
    """Drop repeated matches, which have the same value in the column `by`, from a table or a stream.

    For a stream, Spark's `dropDuplicatesWithinWatermark` remembers an id until the stream's time (`ts`) is `horizon`
    later than the match, and drops matches that arrive later than that. Unlike `dropDuplicates`, it does not compare
    `ts`. A match is repeated within minutes, when a query is restarted, so `horizon` must be longer than any downtime
    of the query. With `horizon=None`, all ids are remembered forever.
    """
    for name in (by, *((ts,) if frame.isStreaming and horizon else ())):
        if name not in frame.columns:
            raise EventError(f"there is no column '{name}'; the columns are {', '.join(frame.columns)}")
    if not frame.isStreaming or horizon is None:
        return frame.dropDuplicates([by])
    if isinstance(frame.schema[ts].dataType, T.TimestampType):
        return frame.withWatermark(ts, horizon).dropDuplicatesWithinWatermark([by])
    at = F.timestamp_micros(col(ts)) if isinstance(frame.schema[ts].dataType, T.LongType) else F.to_timestamp(col(ts))
    timed = frame.withColumn("_at", at).withWatermark("_at", horizon)
    return timed.dropDuplicatesWithinWatermark([by]).drop("_at")


def claim(session: SparkSession, path: str, query: str) -> None:
    """Record that the folder `path` belongs to `query`, or raise `StateError` if it belongs to another query."""
    files, folder = _files(session, path)
    note = _child(session, folder, ".query")
    if files.exists(note):
        stream = files.open(note)
        owner = bytes(stream.readAllBytes()).decode()
        stream.close()
        if owner != query:
            raise StateError(
                f"{path} has the matches of another run: continue with its checkpoint, or write to another folder"
            )
        return
    if files.exists(folder) and any(name.startswith("batch=") for name in _names(files, folder)):
        raise StateError(f"{path} has batches that belong to no run: write to another folder")
    files.mkdirs(folder)
    temporary = _child(session, folder, f".query.{uuid.uuid4().hex}")
    stream = files.create(temporary)
    stream.write(query.encode())
    stream.close()
    files.rename(temporary, note)


def _write(rows: DataFrame, path: str, batch: int) -> None:
    session = rows.sparkSession
    files, folder = _files(session, path)
    target = _child(session, folder, f"batch={batch}")
    if files.exists(target):
        return
    for name in _names(files, folder):
        if name.startswith(f".batch={batch}."):
            files.delete(_child(session, folder, name), True)
    if rows.isEmpty():
        return
    temporary = _child(session, folder, f".batch={batch}.{uuid.uuid4().hex}")
    rows.write.parquet(temporary.toString())
    if not files.rename(temporary, target):
        raise StateError(f"{path} cannot be written: batch {batch} could not be renamed to its target")


def _files(session: SparkSession, path: str) -> tuple[Any, Any]:
    """Return the Hadoop file system of `path`, and `path` as a path of that file system."""
    jvm: Any = session.sparkContext._jvm
    target = jvm.org.apache.hadoop.fs.Path(path)
    files = target.getFileSystem(session.sparkContext._jsc.hadoopConfiguration())
    return files, files.makeQualified(target)


def _child(session: SparkSession, folder: Any, name: str) -> Any:
    jvm: Any = session.sparkContext._jvm
    # `name` has no colon: Hadoop would parse the part before it as a scheme.
    return jvm.org.apache.hadoop.fs.Path(folder, name)


def _names(files: Any, folder: Any) -> list[str]:
    return [status.getPath().getName() for status in files.listStatus(folder)]
