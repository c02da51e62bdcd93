"""A Kafka broker for tests, and a Spark session of its own that can reach it.

The session lives in a child process: a JVM loads its connector when it starts, so the session of other tests lacks it,
and a session that was started here would be used by later tests. Leaving a context stops its processes.
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import pytest

from tocsin.errors import TocsinError
from tocsin.spark import kafka

T = TypeVar("T")

SCRIPT = Path(__file__).parents[2] / "scripts" / "kafka.sh"
OUT_OF_REACH = 3
"""The script's exit code where Maven reaches no repository."""
LOOPBACK = "127.0.0.1"
STAND_IN = (
    "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0,"
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.1.0-preview1"
)
"""An older connector that runs on Spark 4.3, for where the repository does not have that of Spark 4.3 itself."""
SETTINGS = {
    "spark.master": "local[2]",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.log.level": "ERROR",
    "spark.driver.memory": "640m",
    "spark.driver.host": LOOPBACK,
    "spark.driver.bindAddress": LOOPBACK,
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData",
}


class Broker:
    """A broker with its data in a folder; `address` is host:port, the same after each restart."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.address = ""

    def start(self) -> None:
        self.address = self._script("start")

    def stop(self) -> None:
        self._script("stop")

    def kill(self) -> None:
        """Ends it with SIGKILL; its data stays for `restart`."""
        self._script("kill")

    def restart(self) -> None:
        """Stops it if it runs, and starts it with the same data at the same address."""
        before = self.address
        self.stop()
        self.start()
        assert self.address == before

    def topic(self, name: str) -> kafka.Topic:
        return kafka.topic(f"kafka://{self.address}/{name}")

    def _script(self, command: str) -> str:
        done = subprocess.run([SCRIPT, command, self.folder], capture_output=True, text=True, timeout=900, check=False)
        if done.returncode == OUT_OF_REACH:
            pytest.skip(f"no Kafka broker: {done.stderr.strip()}")
        log = self.folder / "kafka.log"
        tail = log.read_text(encoding="utf-8", errors="replace")[-2000:] if log.exists() else ""
        assert done.returncode == 0, f"{done.stderr}\n{tail}"
        return done.stdout.strip()


@contextmanager
def broker(folder: Path) -> Iterator[Broker]:
    """A broker that runs, with its data in the folder; skips the test where it cannot be downloaded."""
    folder.mkdir(parents=True, exist_ok=True)
    broker = Broker(folder)
    try:
        broker.start()
        yield broker
    finally:
        broker.kill()


def connector() -> list[str]:
    """The jars of Spark's Kafka connector; skips the test where none can be downloaded."""
    try:
        return kafka.jars()
    except TocsinError as error:
        try:
            jars = kafka.jars(STAND_IN)
        except TocsinError:
            pytest.skip(str(error))
        print(f"{error} These tests use {STAND_IN} instead.")
        return jars


class Session:
    """A Spark session in a child process; `run` calls a function of a module there with the session."""

    def __init__(self, pool: ProcessPoolExecutor) -> None:
        self._pool = pool

    def run(self, function: Callable[..., T], *args: object) -> T:
        return self._pool.submit(_with_session, function, *args).result()


@contextmanager
def session(settings: Mapping[str, str] | None = None) -> Iterator[Session]:
    """A Spark session with the connector, on two cores; `settings` come on top of `SETTINGS`."""
    named = {"spark.jars": ",".join(connector()), **SETTINGS, **(settings or {})}
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), _start, (named,)) as pool:
        try:
            yield Session(pool)
        finally:
            pool.submit(_stop).result()


def _start(settings: dict[str, str]) -> None:
    os.environ |= {"SPARK_LOCAL_IP": LOOPBACK, "PYSPARK_PYTHON": sys.executable}
    from pyspark.sql import SparkSession

    SparkSession.builder.config(map={**settings}).getOrCreate()


def _stop() -> None:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    SparkSession.builder.getOrCreate().stop()
    gateway = SparkContext._gateway
    assert gateway is not None
    gateway.shutdown()
    # The JVM ends when its input does.
    gateway.proc.stdin.close()
    gateway.proc.wait(60)


def _with_session(function: Callable[..., T], *args: object) -> T:
    from pyspark.sql import SparkSession

    return function(SparkSession.builder.getOrCreate(), *args)
