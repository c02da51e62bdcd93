"""A Spark session that says nothing unless something is wrong.

What Java writes to the standard error from its start on goes to a log file; `Session.log` says where.
"""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import SparkSession

from tocsin.errors import TocsinError

QUIET = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.driver.extraJavaOptions": "-XX:G1HeapRegionSize=32m",
    "spark.executor.extraJavaOptions": "-XX:G1HeapRegionSize=32m",
    "spark.log.level": "ERROR",
}
"""What a session of ours is set to; a session that a user brings is left as it is.

A parcel is a value of some megabytes: with Java's own small regions each would be an object that needs several.
"""

CHECKPOINTS = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
"""What writes checkpoints on this machine's disk: Spark's usual way starts a process for every file there."""


def session(
    master: str | None = None, settings: Mapping[str, str] | None = None, slots: int | None = None
) -> SparkSession:
    """The running session, or a new one: on this machine (`local[*]`), or on a cluster's master URL."""
    running = SparkSession.getActiveSession()
    if running is not None:
        return running
    python = sys.executable or "python3"
    os.environ.setdefault("PYSPARK_PYTHON", python)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", python)
    master = master or "local[*]"
    if master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.appName("tocsin").master(master)
    chosen = {**QUIET, "spark.sql.shuffle.partitions": str(slots or os.cpu_count() or 2)}
    if master.startswith("local"):
        chosen["spark.sql.streaming.checkpointFileManagerClass"] = CHECKPOINTS
    chosen |= settings or {}
    for name, value in chosen.items():
        builder = builder.config(name, value)
    log = Path(tempfile.mkdtemp(prefix="tocsin-")) / "spark.log"
    with _stderr_to(log):
        try:
            started = builder.getOrCreate()
        except Exception as error:
            raise TocsinError(f"Spark did not start: {_reason(log, error)}") from None
    atexit.register(shutil.rmtree, log.parent, ignore_errors=True)
    return started


def _reason(log: Path, error: Exception) -> str:
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    told = [line for line in lines if "Error" in line or "Exception" in line or "JAVA_HOME" in line]
    return f"{(told or lines or [str(error)])[-1]} (all of it is in {log})"


@contextmanager
def _stderr_to(path: Path) -> Iterator[None]:
    """Sends the standard error of this process, and of those that it starts, to a file."""
    sys.stderr.flush()
    kept = os.dup(2)
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        os.dup2(file, 2)
        yield
    finally:
        sys.stderr.flush()
        os.dup2(kept, 2)
        os.close(kept)
        os.close(file)
