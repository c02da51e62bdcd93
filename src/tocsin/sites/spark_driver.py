"""Run a replica of a site on Spark, as one streaming query whose batches make the steps of a host (`host`).

The source of the query is Spark's own clock. Spark's offset log stores the time of each batch, so a replayed batch has
the same time. Within a batch the elapsed time is added. A batch makes steps for about two seconds, as messages arrive.
Each step is committed by itself, so a replayed batch continues after its committed steps.

The query is small on purpose. It needs a JVM of half a gigabyte and one core, and has no shuffle and no state store. If
it ends, for example because a disk is full or a broker is unreachable, a new query continues from the last step. The
error is raised only if queries fail without any batch for half a minute, or for ten minutes if there is a broker.
"""

from __future__ import annotations

import fcntl
import json
import math
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from tocsin.errors import TocsinError
from tocsin.overlay.replicas.replica import group_of
from tocsin.sites.arrivals import Arrivals, open_arrivals
from tocsin.sites.channels import OPERATOR, Broker, Channels, FolderChannels, OperatorChannels, TopicChannels
from tocsin.sites.host import Host
from tocsin.sites.site_plan import SECOND_US, SitePlan
from tocsin.spark import kafka
from tocsin.spark.sessions import session, to_tocsin_error

SETTINGS = {
    "spark.driver.memory": "512m",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData -Xss512k",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.streaming.minBatchesToRetain": "4",
    "spark.sql.streaming.numRecentProgressUpdates": "2",
}
"""Settings of the session. They reduce the start time of the JVM and the cost of a batch, not the cost of a row."""
LOOK_S = 0.1
GIVE_UP_S = 30.0
BROKER_S = 600.0
"""The time without any batch after which a site that needs a broker gives up; other sites wait GIVE_UP_S."""
BATCH_S = 2.0
"""The time for which one batch makes steps. Starting a batch costs Spark as much as a dozen steps."""


def run(plan: SitePlan, name: str, stopped: Callable[[float], bool]) -> None:
    """Run the replica `name` on Spark until it is stopped.

    `stopped` waits for up to the given number of seconds, and returns whether the replica should stop.
    """
    folder = plan.hosting.folder / "sites" / name
    with _exclusive(folder, name):
        spark = session("local[1]", _settings(plan, name))
        patience_s = BROKER_S if plan.hosting.kafka else GIVE_UP_S
        attempts, since_s = 0, time.monotonic()
        try:
            while not stopped(0):
                before = _last_batch(folder)
                failure = _run_query(spark, plan, name, stopped)
                if failure is None:
                    return
                if _last_batch(folder) > before:
                    attempts, since_s = 0, time.monotonic()
                attempts += 1
                print(f"{name}: {failure}", file=sys.stderr, flush=True)
                if time.monotonic() - since_s > patience_s:
                    raise failure
                stopped(min(2.0**attempts, 10.0) / 2)
        finally:
            spark.stop()


def _settings(plan: SitePlan, name: str) -> dict[str, str]:
    """Return the settings of the session, with an empty scratch folder for the replica `name`.

    The folder is emptied here because a replica that was killed could not delete its files.
    """
    scratch = plan.hosting.folder / "aside" / name.replace("#", "-")  # Java ends a path at #
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    chosen = {**SETTINGS, "spark.local.dir": str(scratch)}
    chosen["spark.driver.extraJavaOptions"] += f" -Djava.io.tmpdir={scratch}"
    if plan.hosting.kafka:
        chosen["spark.driver.extraClassPath"] = ":".join(kafka.jars())
    return chosen


def _run_query(spark: SparkSession, plan: SitePlan, name: str, stopped: Callable[[float], bool]) -> TocsinError | None:
    """Run one query until it is stopped or fails, and return its error if it has failed."""
    checkpoint = str(plan.hosting.folder / "sites" / name / "checkpoint")
    try:
        with _connect(spark, plan, name) as (channels, arrivals):
            host = Host(plan, name, channels, round(time.time() * SECOND_US), arrivals)

            def batch(frame: DataFrame, number: int) -> None:
                ((clock_us,),) = frame.selectExpr("max(unix_micros(timestamp))").collect()
                if clock_us is not None:  # the first batch may have no row
                    _run_steps(host, clock_us, BATCH_S, stopped)

            clock = spark.readStream.format("rate").option("rowsPerSecond", 1).option("numPartitions", 1).load()
            query = clock.writeStream.foreachBatch(batch).option("checkpointLocation", checkpoint).start()
            while query.isActive and not stopped(LOOK_S):
                pass
            failure = query.exception()
            query.stop()
    except TocsinError as error:
        return error
    except Exception as error:
        return to_tocsin_error(error)
    return None if failure is None else to_tocsin_error(failure)


def _run_steps(host: Host, clock_us: int, for_s: float, stopped: Callable[[float], bool]) -> None:
    """Make steps of `host` for `for_s` seconds, as messages arrive and as time passes."""
    started_s, stepped_us = time.monotonic(), 0
    idle_us = host.plan.hosting.settings.beat_us // 2
    while (passed_s := time.monotonic() - started_s) < for_s and not stopped(0):
        now_us = clock_us + round(passed_s * SECOND_US)
        batches = host.channels.read(host.name, host.positions)
        if batches or now_us - stepped_us >= idle_us:
            stepped_us = now_us
            host.step(now_us, batches)
            _write_status(host, now_us)


def run_embedded(plan: SitePlan, name: str, stopped: Callable[[float], bool]) -> None:
    """Run the replica `name` in this process, without Spark, until it is stopped. Channels must be folders."""
    if plan.hosting.kafka:
        raise TocsinError("topics need Spark's connector: an embedded site uses folders")
    with _exclusive(plan.hosting.folder / "sites" / name, name):
        now_us = round(time.time() * SECOND_US)
        host = Host(
            plan,
            name,
            FolderChannels(plan.hosting.folder / "channels"),
            now_us,
            open_arrivals(plan, group_of(name), None),
        )
        _run_steps(host, now_us, math.inf, stopped)


@contextmanager
def _connect(spark: SparkSession, plan: SitePlan, name: str) -> Iterator[tuple[Channels, Arrivals | None]]:
    """Open the channels and the live source of the replica `name`, and close their Kafka clients at the end."""
    with ExitStack() as stack:

        def broker(servers: Sequence[str]) -> Broker:
            client = Broker(spark, servers)
            stack.callback(client.close)
            return client

        arrivals = open_arrivals(plan, group_of(name), broker)
        if plan.hosting.topics is None:
            yield FolderChannels(plan.hosting.folder / "channels"), arrivals
        else:
            yield TopicChannels(broker(plan.hosting.topics.servers), plan, name), arrivals


@contextmanager
def operator_channels(plan: SitePlan) -> Iterator[FolderChannels | OperatorChannels]:
    """Open the channels through which the operator sends messages to the sites of `plan`, and close them at the end."""
    if plan.hosting.topics is None:
        yield FolderChannels(plan.hosting.folder / "channels")
        return
    spark = session("local[1]", _settings(plan, OPERATOR))
    broker = Broker(spark, plan.hosting.topics.servers)
    try:
        yield OperatorChannels(broker, plan.hosting.topics)
    finally:
        broker.close()
        spark.stop()


def _last_batch(folder: Path) -> int:
    """Return the number of the last batch in Spark's offset log, or -1 if there is none."""
    offsets = folder / "checkpoint" / "offsets"
    return max((int(one.name) for one in offsets.glob("[0-9]*")), default=-1) if offsets.is_dir() else -1


def _write_status(host: Host, now_us: int) -> None:
    """Write the status of the replica to `status.json` in its folder."""
    path = host.folder / "status.json"
    temporary = path.with_name(".status.json")
    temporary.write_text(json.dumps(host.status(now_us)), encoding="utf-8")
    temporary.replace(path)


@contextmanager
def _exclusive(folder: Path, name: str) -> Iterator[None]:
    """Lock the folder of the replica `name`, so that no other process can run the replica."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise TocsinError(f"{name} runs already (it holds {folder / 'lock'})") from None
        yield


def read_status(folder: Path, name: str) -> dict[str, Any] | None:
    """Return the last status of the replica `name`, or None if the replica has not written its status.

    `folder` is the folder of the plan.
    """
    try:
        status: dict[str, Any] = json.loads((folder / "sites" / name / "status.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return status
