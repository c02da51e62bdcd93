"""Start a Spark session, convert Spark's errors to `TocsinError`, and run independent tasks on Spark.

A session that `session` starts prints only errors. While Spark starts, its standard error goes to a log file. If Spark
does not start, the error has the path of that file.

Spark wraps an exception of a worker in a Java exception, then in a streaming exception, and then in a Python exception.
`plain_errors` looks for the innermost cause. If that is an error of this package, its class and message are kept. Of
any other error, the first sentence is reported.
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

SESSION_DEFAULTS = {
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
"""The settings of a session that `session` starts; the user's own session is not changed.

The region size of Java's garbage collector is larger than its default because a shuffle block has some megabytes, and
would otherwise need several regions.
"""

CHECKPOINTS = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
"""The class that writes checkpoints to the local disk. Spark's default class starts a process for every file."""


def session(
    master: str | None = None, settings: Mapping[str, str] | None = None, slots: int | None = None
) -> SparkSession:
    """Return the active Spark session, or start a session if there is none.

    `master` is the URL of a cluster's master; without it, Spark runs on this machine (`local[*]`). `settings` override
    `SESSION_DEFAULTS`, and `slots` is the number of shuffle partitions (default: the number of cores).
    """
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
    chosen = {**SESSION_DEFAULTS, "spark.sql.shuffle.partitions": str(slots or os.cpu_count() or 2)}
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
    relevant = [line for line in lines if "Error" in line or "Exception" in line or "JAVA_HOME" in line]
    return f"{(relevant or lines or [str(error)])[-1]} (all of it is in {log})"


@contextmanager
def _stderr_to(path: Path) -> Iterator[None]:
    """Redirect the standard error of this process and its child processes to the file `path`."""
    sys.stderr.flush()
    saved = os.dup(2)
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        os.dup2(file, 2)
        yield
    finally:
        sys.stderr.flush()
        os.dup2(saved, 2)
        os.close(saved)
        os.close(file)


MASTER_S_MAX = 5.0
JAVA_LEAST = 17

TOCSIN_ERROR = re.compile(
    r"^(?:tocsin\.errors\.)(?P<name>\w+): (?P<message>.*(?:\n(?!\tat |\s*SQLSTATE|\S*(?:Error|Exception)\b).+)*)", re.M
)
JAVA_ERROR = re.compile(r"^(?:Caused by: |: )?(?P<name>[\w.$]+(?:Exception|Error)): (?P<message>.+)$", re.M)
LABEL = re.compile(r"\[[A-Z_]+(?:\.[A-Z_]+)*\] ?")
STATE = re.compile(r"\s*SQLSTATE: \w+")
NO_JAVA = ("JAVA_HOME is not set", "JAVA_GATEWAY_EXITED", "java: command not found", "Unable to locate a Java Runtime")


@contextmanager
def plain_errors() -> Iterator[None]:
    """Convert errors of Spark in the `with` block to `TocsinError`."""
    try:
        yield
    except (PySparkException, Py4JError, ConnectionRefusedError, ConnectionResetError) as error:
        raise to_tocsin_error(error) from None


def to_tocsin_error(error: BaseException) -> TocsinError:
    """Convert `error`, an exception of Spark, to a `TocsinError` with a plain message."""
    if isinstance(error, TocsinError):
        return error
    if isinstance(error, Py4JNetworkError | ConnectionError) or "Answer from Java side is empty" in str(error):
        return TocsinError("Spark has ended: its Java process is gone")
    text = str(error)
    if ours := [*TOCSIN_ERROR.finditer(text)]:
        return _rebuild(ours[-1]["name"], STATE.sub("", ours[-1]["message"]).strip())
    return TocsinError(_explain(text) or _innermost(error, text))


def check_master(master: str) -> None:
    """Raise an error if no master of the standalone cluster `master` answers within seconds.

    Spark itself would try for a minute. Other kinds of masters are not checked.
    """
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
    """Return the error to raise if Spark did not start because Java is missing or too old; None for other reasons."""
    if not any(sign in reason for sign in NO_JAVA) and "UnsupportedClassVersionError" not in reason:
        return None
    return TocsinError(
        f"Spark needs Java {JAVA_LEAST} or newer, which was not found: install it (on Debian or Ubuntu: "
        f"sudo apt-get install openjdk-{JAVA_LEAST}-jre-headless), or set JAVA_HOME to where it is"
    )


def _rebuild(name: str, message: str) -> TocsinError:
    """Return the error of this package with the class `name`, as a worker raised it."""
    kind: Any = getattr(errors, name, TocsinError)
    return kind(message) if isinstance(kind, type) and issubclass(kind, TocsinError) else TocsinError(message)


def _explain(text: str) -> str | None:
    """Return a plain message for the frequent error that `text` describes; None for other errors."""
    if found := re.search(r"\[PATH_NOT_FOUND\] Path does not exist: (\S+?)\.? ", text):
        return f"there is no file or folder {_path(found[1])}"
    if found := re.search(r"\[FAILED_READ_FILE\.\w+\].*? reading file (\S+?)\. ", text):
        why = [match["message"] for match in JAVA_ERROR.finditer(text)]
        why = [message for message in why if "FAILED_READ_FILE" not in message]
        return f"{_path(found[1])} cannot be read: {why[-1] if why else 'it is damaged, or of another format'}"
    if "KAFKA_DATA_SOURCE_NOT_ENABLED" in text:
        return "Spark was started without its Kafka connector; start it with the jars of tocsin.spark.kafka.jars()"
    if found := re.search(
        r"(?:Failed to (?:list|describe|fetch)|Timed? ?out|TimeoutException).*?(?:topic|node|call)[^\n]*", text, re.I
    ):
        return f"the Kafka broker does not answer: {found[0][:200]}"
    if "There are [" in text and "sources in the checkpoint offsets" in text:
        return "the checkpoint has other sources: run as before (with or without live rules), or with a new checkpoint"
    if found := re.search(r"Permission denied[^\n]*|No space left on device", text):
        return found[0]
    return None


def _innermost(error: BaseException, text: str) -> str:
    """Return the first line of the innermost cause of `error`."""
    java = error.java_exception if isinstance(error, Py4JJavaError) else getattr(error, "_origin", None)
    message = ""
    try:
        while java is not None:
            message, java = java.getMessage() or message, java.getCause()
    except Py4JError:
        pass
    python = re.findall(r"^(?:\w+\.)*\w+(?:Error|Exception|Warning): .+$", text, re.M)
    last = python[-1] if "Traceback (most recent call last)" in text and python else message or text
    plain = STATE.sub("", LABEL.sub("", last)).strip()
    return f"Spark says: {(plain.splitlines() or [type(error).__name__])[0].rstrip()}"


def _path(path: str) -> str:
    return re.sub(r"^file:/+", "/", path)


T = TypeVar("T")
R = TypeVar("R")

POLL_S = 0.2


def fan_out(work: Callable[[T], R], items: Sequence[T], done: Callable[[int], None] = lambda _: None) -> list[R]:
    """Call `work` for each item in a Spark task, and return the results in the order of `items`.

    `work` must be a function that is defined in a module. `done` is called regularly with the number of completed
    items.
    """
    context = session().sparkContext
    group = f"tocsin-{id(items)}"

    def collect() -> list[R]:
        context.setJobGroup(group, "independent runs")
        found: list[R] = context.parallelize(items, len(items)).map(work).collect()
        return found

    with plain_errors(), ThreadPoolExecutor(1) as executor:
        result = executor.submit(collect)
        tracker = context.statusTracker()
        while not result.done():
            time.sleep(POLL_S)
            stages = [stage for job in tracker.getJobIdsForGroup(group) for stage in tracker.getJobInfo(job).stageIds]
            infos = [tracker.getStageInfo(stage) for stage in stages]
            done(sum(info.numCompletedTasks for info in infos if info is not None))
        done(len(items))
        return result.result()
