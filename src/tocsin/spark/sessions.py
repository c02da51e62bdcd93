"""A Spark session that says nothing unless something is wrong.

What Java writes to the standard error from its start on goes to a log file; `Session.log` says where.

What went wrong in Spark, in one sentence that a person can act on, and without a Java stack.

Spark wraps what happens in a worker into a Java exception, that into a streaming exception, and that into a Python
one. `plainly` looks for the innermost cause: an error of ours from a worker keeps its own words and its own class, of
the others the first sentence is told.

Independent pieces of work as Spark tasks, one each.
"""

from __future__ import annotations

import atexit
import os
import re
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tocsin import errors
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


MASTER_S_MAX = 5.0
JAVA_LEAST = 17

OURS = re.compile(
    r"^(?:tocsin\.errors\.)(?P<name>\w+): (?P<said>.*(?:\n(?!\tat |\s*SQLSTATE|\S*(?:Error|Exception)\b).+)*)", re.M
)
THEIRS = re.compile(r"^(?:Caused by: |: )?(?P<name>[\w.$]+(?:Exception|Error)): (?P<said>.+)$", re.M)
LABEL = re.compile(r"\[[A-Z_]+(?:\.[A-Z_]+)*\] ?")
STATE = re.compile(r"\s*SQLSTATE: \w+")
NO_JAVA = ("JAVA_HOME is not set", "JAVA_GATEWAY_EXITED", "java: command not found", "Unable to locate a Java Runtime")


@contextmanager
def plainly() -> Iterator[None]:
    """Turns what Spark raises into one `TocsinError`."""
    try:
        yield
    except (PySparkException, Py4JError, ConnectionRefusedError, ConnectionResetError) as error:
        raise told(error) from None


def told(error: BaseException) -> TocsinError:
    """What an exception of Spark's means."""
    if isinstance(error, TocsinError):
        return error
    if isinstance(error, Py4JNetworkError | ConnectionError) or "Answer from Java side is empty" in str(error):
        return TocsinError("Spark has ended: its Java process is gone")
    text = str(error)
    if ours := [*OURS.finditer(text)]:
        return _again(ours[-1]["name"], STATE.sub("", ours[-1]["said"]).strip())
    return TocsinError(_known(text) or _innermost(error, text))


def reach(master: str) -> None:
    """Fails at once if no master of a standalone cluster answers, for which Spark itself takes a minute."""
    if not master.startswith("spark://"):
        return
    reason = "there is none in it"
    for server in master.removeprefix("spark://").split(","):
        host, _, port = server.rpartition(":")
        try:
            with socket.create_connection((host.strip("[]"), int(port)), timeout=MASTER_S_MAX):
                return
        except ValueError:
            reason = f"'{server}' is not host:port"
        except OSError as error:
            reason = error.strerror or str(error)
    raise TocsinError(f"no Spark master answers at {master}: {reason}")


def no_java(reason: str) -> TocsinError | None:
    """The error for a Spark that did not start, if that was for want of Java."""
    if not any(sign in reason for sign in NO_JAVA) and "UnsupportedClassVersionError" not in reason:
        return None
    return TocsinError(
        f"Spark needs Java {JAVA_LEAST} or newer, and none was found: install it (on Debian or Ubuntu: "
        f"sudo apt-get install openjdk-{JAVA_LEAST}-jre-headless), or set JAVA_HOME to where it is"
    )


def _again(name: str, said: str) -> TocsinError:
    """The error that a worker raised."""
    kind: Any = getattr(errors, name, TocsinError)
    return kind(said) if isinstance(kind, type) and issubclass(kind, TocsinError) else TocsinError(said)


def _known(text: str) -> str | None:
    """What happens often, said for those who do not know Spark."""
    if found := re.search(r"\[PATH_NOT_FOUND\] Path does not exist: (\S+?)\.? ", text):
        return f"there is no file or folder {_path(found[1])}"
    if found := re.search(r"\[FAILED_READ_FILE\.\w+\].*? reading file (\S+?)\. ", text):
        why = [match["said"] for match in THEIRS.finditer(text) if "FAILED_READ_FILE" not in match["said"]]
        return f"{_path(found[1])} cannot be read: {why[-1] if why else 'it is damaged, or of another format'}"
    if "KAFKA_DATA_SOURCE_NOT_ENABLED" in text:
        return "Spark was started without its Kafka connector; start it with the jars of tocsin.spark.kafka.jars()"
    if found := re.search(
        r"(?:Failed to (?:list|describe|fetch)|Timed? ?out|TimeoutException).*?(?:topic|node|call)[^\n]*", text, re.I
    ):
        return f"the Kafka broker does not answer: {found[0][:200]}"
    if "There are [" in text and "sources in the checkpoint offsets" in text:
        return "the checkpoint is of a query with other sources: run as before (with or without live rules), or anew"
    if found := re.search(r"Permission denied[^\n]*|No space left on device", text):
        return found[0]
    return None


def _innermost(error: BaseException, text: str) -> str:
    """The first sentence of the cause that is furthest down."""
    java = error.java_exception if isinstance(error, Py4JJavaError) else getattr(error, "_origin", None)
    said = ""
    try:
        while java is not None:
            said, java = java.getMessage() or said, java.getCause()
    except Py4JError:
        pass
    python = re.findall(r"^(?:\w+\.)*\w+(?:Error|Exception|Warning): .+$", text, re.M)
    last = python[-1] if "Traceback (most recent call last)" in text and python else said or text
    plain = STATE.sub("", LABEL.sub("", last)).strip()
    return f"Spark says: {(plain.splitlines() or [type(error).__name__])[0].rstrip()}"


def _path(path: str) -> str:
    return re.sub(r"^file:/+", "/", path)


T = TypeVar("T")
R = TypeVar("R")

POLL_S = 0.2


def fan_out(work: Callable[[T], R], items: Sequence[T], done: Callable[[int], None] = lambda _: None) -> list[R]:
    """What the function of a module makes of each item, in their order; `done` is told how many there are so far."""
    context = session().sparkContext
    group = f"tocsin-{id(items)}"

    def collect() -> list[R]:
        context.setJobGroup(group, "independent runs")
        found: list[R] = context.parallelize(items, len(items)).map(work).collect()
        return found

    with plainly(), ThreadPoolExecutor(1) as beside:
        result = beside.submit(collect)
        tracker = context.statusTracker()
        while not result.done():
            time.sleep(POLL_S)
            stages = [stage for job in tracker.getJobIdsForGroup(group) for stage in tracker.getJobInfo(job).stageIds]
            infos = [tracker.getStageInfo(stage) for stage in stages]
            done(sum(info.numCompletedTasks for info in infos if info is not None))
        done(len(items))
        return result.result()
