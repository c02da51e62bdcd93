"""What is a site on Spark? One streaming query whose batches make the steps of a host (`hosts`).

The source is Spark's own clock: its offset log says when a batch was, also if it is replayed, and within the batch time
is that and what has passed since. A batch makes steps as parcels come, for a while. Each is committed by itself, so a
batch that is replayed has those behind it that were committed, and goes on from there.

The query is small on purpose: a JVM of half a gigabyte, one core, no shuffle, no state store. Whatever ends it, be it a
full disk, a broker that is away or Spark itself, the site goes on from its last step with a new query; if that has not
helped for minutes, it says why and ends.
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
from tocsin.sites.arrivals import Arrivals, opened
from tocsin.sites.channels import OPERATOR, Broker, Channels, Folders, Operator, Topics
from tocsin.sites.host import Host
from tocsin.sites.site_plan import SECOND_US, Plan
from tocsin.spark import kafka
from tocsin.spark.sessions import session, told

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
"""Short batches of one row: what counts is the start of a JVM and what a batch costs, not its speed."""
LOOK_S = 0.1
GIVE_UP_S = 30.0
BROKER_S = 600.0
"""How long it may take without a single batch; a broker may be away for longer."""
BATCH_S = 2.0
"""How long the steps of one batch take. Starting a batch costs Spark as much as a dozen of steps."""


def run(plan: Plan, name: str, stopped: Callable[[float], bool]) -> None:
    """Runs a replica until it is told to stop; `stopped` waits for so many seconds and says whether it is."""
    folder = plan.hosting.folder / "sites" / name
    with _alone(folder, name):
        spark = session("local[1]", _settings(plan, name))
        patience_s = BROKER_S if plan.hosting.kafka else GIVE_UP_S
        tried, since_s = 0, time.monotonic()
        try:
            while not stopped(0):
                before = _batches(folder)
                failure = _followed(spark, plan, name, stopped)
                if failure is None:
                    return
                if _batches(folder) > before:
                    tried, since_s = 0, time.monotonic()
                tried += 1
                print(f"{name}: {failure}", file=sys.stderr, flush=True)
                if time.monotonic() - since_s > patience_s:
                    raise failure
                stopped(min(2.0**tried, 10.0) / 2)
        finally:
            spark.stop()


def _settings(plan: Plan, name: str) -> dict[str, str]:
    """What Spark keeps aside has a place for each replica: one that is killed cannot clean up, but the next can."""
    aside = plan.hosting.folder / "aside" / name.replace("#", "-")  # Java takes # for the end of a path
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    chosen = {**SETTINGS, "spark.local.dir": str(aside)}
    chosen["spark.driver.extraJavaOptions"] += f" -Djava.io.tmpdir={aside}"
    if plan.hosting.kafka:
        chosen["spark.driver.extraClassPath"] = ":".join(kafka.jars())
    return chosen


def _followed(spark: SparkSession, plan: Plan, name: str, stopped: Callable[[float], bool]) -> TocsinError | None:
    """One query, until it is stopped or fails."""
    checkpoint = str(plan.hosting.folder / "sites" / name / "checkpoint")
    try:
        with _joined(spark, plan, name) as (channels, arrivals):
            host = Host(plan, name, channels, round(time.time() * SECOND_US), arrivals)

            def batch(frame: DataFrame, number: int) -> None:
                ((tick_us,),) = frame.selectExpr("max(unix_micros(timestamp))").collect()
                if tick_us is not None:  # the first batch may have no row
                    _stepped(host, tick_us, BATCH_S, stopped)

            ticks = spark.readStream.format("rate").option("rowsPerSecond", 1).option("numPartitions", 1).load()
            query = ticks.writeStream.foreachBatch(batch).option("checkpointLocation", checkpoint).start()
            while query.isActive and not stopped(LOOK_S):
                pass
            failure = query.exception()
            query.stop()
    except TocsinError as error:
        return error
    except Exception as error:
        return told(error)
    return None if failure is None else told(failure)


def _stepped(host: Host, tick_us: int, for_s: float, stopped: Callable[[float], bool]) -> None:
    """Makes steps for a while, as parcels come and as time passes since a tick."""
    began_s, stepped_us = time.monotonic(), 0
    idle_us = host.plan.hosting.settings.beat_us // 2
    while (passed_s := time.monotonic() - began_s) < for_s and not stopped(0):
        now_us = tick_us + round(passed_s * SECOND_US)
        parcels = host.channels.read(host.name, host.positions)
        if parcels or now_us - stepped_us >= idle_us:
            stepped_us = now_us
            host.step(now_us, parcels)
            _tell(host, now_us)


def run_embedded(plan: Plan, name: str, stopped: Callable[[float], bool]) -> None:
    """Runs a replica in this process, without Spark, until it is told to stop. Channels are folders."""
    if plan.hosting.kafka:
        raise TocsinError("topics are read and written by Spark's connector: an embedded site has folders")
    with _alone(plan.hosting.folder / "sites" / name, name):
        now_us = round(time.time() * SECOND_US)
        host = Host(plan, name, Folders(plan.hosting.folder / "channels"), now_us, opened(plan, group_of(name), None))
        _stepped(host, now_us, math.inf, stopped)


@contextmanager
def _joined(spark: SparkSession, plan: Plan, name: str) -> Iterator[tuple[Channels, Arrivals | None]]:
    """What a replica hears and reads."""
    with ExitStack() as held:

        def broker(servers: Sequence[str]) -> Broker:
            found = Broker(spark, servers)
            held.callback(found.close)
            return found

        arrivals = opened(plan, group_of(name), broker)
        if plan.hosting.topics is None:
            yield Folders(plan.hosting.folder / "channels"), arrivals
        else:
            yield Topics(broker(plan.hosting.topics.servers), plan, name), arrivals


@contextmanager
def operating(plan: Plan) -> Iterator[Folders | Operator]:
    """What the operator of a plan's sites speaks through."""
    if plan.hosting.topics is None:
        yield Folders(plan.hosting.folder / "channels")
        return
    spark = session("local[1]", _settings(plan, OPERATOR))
    broker = Broker(spark, plan.hosting.topics.servers)
    try:
        yield Operator(broker, plan.hosting.topics)
    finally:
        broker.close()
        spark.stop()


def _batches(folder: Path) -> int:
    """How far the offset log is."""
    offsets = folder / "checkpoint" / "offsets"
    return max((int(one.name) for one in offsets.glob("[0-9]*")), default=-1) if offsets.is_dir() else -1


def _tell(host: Host, now_us: int) -> None:
    """Writes down how the replica is doing, for those who watch."""
    path = host.folder / "status.json"
    fresh = path.with_name(".status.json")
    fresh.write_text(json.dumps(host.status(now_us)), encoding="utf-8")
    fresh.replace(path)


@contextmanager
def _alone(folder: Path, name: str) -> Iterator[None]:
    """Within, no other process runs this replica."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise TocsinError(f"{name} runs already (it holds {folder / 'lock'})") from None
        yield


def status(folder: Path, name: str) -> dict[str, Any] | None:
    """What a replica last said of itself."""
    try:
        found: dict[str, Any] = json.loads((folder / "sites" / name / "status.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return found
