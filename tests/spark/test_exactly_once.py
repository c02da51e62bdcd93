"""A stream on a cluster delivers each match exactly once, whichever of its processes are killed, and when."""

from __future__ import annotations

import json
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tocsin
from tests.budget import seeds
from tests.spark.cluster import Cluster, until
from tests.spark.exactly_once_job import RULES

JOB = Path(__file__).with_name("exactly_once_job.py")
FILES_PER_BATCH = 4  # as in the job
FILE_EVERY_S = 0.2
KILL_WITHIN_S = 3.0


def events_of(rng: random.Random, total: int) -> pa.Table:
    """A thousand events a second, out of order by up to two seconds."""
    types = rng.choices(["Temp", "Smoke", "Rain"], [90, 5, 5], k=total)
    ts = [1_000_000_000_000 + 1_000 * number + rng.randrange(1_000) for number in range(total)]
    events = pa.table(
        {
            "type": types,
            "ts": pa.array(ts, pa.int64()),
            "area": [f"A{rng.randrange(100)}" for _ in range(total)],
            "value": pa.array([round(rng.uniform(10, 90), 1) if type == "Temp" else None for type in types]),
        }
    )
    arrival = [at + rng.randrange(2_000_000) for at in ts]
    return events.take(sorted(range(total), key=arrival.__getitem__))


def expected(events: pa.Table) -> Counter[tuple[object, ...]]:
    """The answer of the engine in this process."""
    found = tocsin.rules(RULES).detect(events, ts_unit="us")
    return rows_of(found.select(["rule", "ts", "id", "area", "temp", "parts"]))


def rows_of(table: pa.Table) -> Counter[tuple[object, ...]]:
    """Matches as they are compared: whole rows, parts as text."""
    columns = []
    for name, column in zip(table.column_names, table.columns, strict=True):
        values = column.to_pylist()
        if name == "parts":
            values = [json.dumps(json.loads(v) if isinstance(v, str) else v, sort_keys=True) for v in values]
        columns.append(values)
    return Counter(zip(*columns, strict=True))


class Feed(threading.Thread):
    """Puts events into a folder file by file, a share of them after each kill, so that no kill comes too late."""

    def __init__(self, events: pa.Table, folder: Path, files: int, shares: int) -> None:
        super().__init__()
        self.share = 1
        self.stopped = False
        self._events, self._folder, self._files, self._shares = events, folder, files, shares

    def run(self) -> None:
        size = -(-len(self._events) // self._files)
        for number in range(self._files):
            while number * self._shares >= self.share * self._files and not self.stopped:
                time.sleep(FILE_EVERY_S)
            if self.stopped:
                return
            name = f"{number:05}.parquet"
            hidden = self._folder / "input" / f".{name}"
            pq.write_table(self._events.slice(number * size, size), hidden)
            hidden.rename(hidden.with_name(name))
            time.sleep(FILE_EVERY_S)
        (self._folder / "complete").touch()


@contextmanager
def feeding(events: pa.Table, folder: Path, files: int, shares: int) -> Iterator[Feed]:
    feed = Feed(events, folder, files, shares)
    feed.start()
    try:
        yield feed
    finally:
        feed.stopped = True
        feed.join()


def last_batch(folder: Path) -> int:
    return max((int(path.name) for path in (folder / "checkpoint" / "commits").glob("[0-9]*")), default=-1)


def alive(cluster: Cluster) -> bool:
    assert cluster.driver is not None
    return cluster.driver.poll() is None


def reached(batch: int, folder: Path, cluster: Cluster) -> bool:
    return last_batch(folder) >= batch or not alive(cluster)


def kill(what: str, cluster: Cluster, rng: random.Random, folder: Path) -> str:
    match what:
        case "executor":
            pid = cluster.kill_executor(rng.choice(until(cluster.executors, "an executor")))
            return f"executor {pid}"
        case "worker":
            number, machine = rng.randrange(2), rng.random() < 0.5
            cluster.kill_worker(number, machine=machine)
            time.sleep(rng.uniform(0, KILL_WITHIN_S))
            cluster.start_worker(number)
            return f"worker {number}" + (" with all that it ran" if machine else "")
        case _:
            cluster.kill_driver()
            cluster.submit(JOB, str(folder))
            return "driver"


@pytest.mark.parametrize(
    ("total", "files", "kills_of_each"),
    [(20_000, 32, 1), pytest.param(1_000_000, 480, 7, marks=pytest.mark.long)],
    ids=["few", "many"],
)
def test_kills_change_nothing(tmp_path: Path, total: int, files: int, kills_of_each: int) -> None:
    seed = seeds(range(1)).start
    print(f"seed {seed}")
    rng = random.Random(seed)
    events = events_of(rng, total)
    kills = ["executor", "worker", "driver"] * kills_of_each
    rng.shuffle(kills)
    batches = files // (len(kills) + 1) // FILES_PER_BATCH
    folder = tmp_path / "job"
    (folder / "input").mkdir(parents=True)
    (folder / "control").mkdir()
    start = time.monotonic()

    def report(what: str) -> None:
        print(f"{time.monotonic() - start:6.1f} s, batch {last_batch(folder)}: {what}", flush=True)

    with Cluster(tmp_path / "cluster") as cluster, feeding(events, folder, files, len(kills) + 1) as feed:
        cluster.submit(JOB, str(folder))
        for number, what in enumerate(kills):
            # Most kills find a stream at work, some one that has not recovered from the kill before.
            if number == 0 or rng.random() < 0.75:
                batch = last_batch(folder) + rng.randint(1, batches)
                until(partial(reached, batch, folder, cluster), f"batch {batch}")
            time.sleep(rng.uniform(0, KILL_WITHIN_S))
            assert alive(cluster), cluster.log("driver")
            report("killed " + kill(what, cluster, rng, folder))
            feed.share += 1
        until(lambda: not alive(cluster), "the end of the stream", timeout_s=900)
        assert cluster.driver is not None
        assert cluster.driver.returncode == 0, cluster.log("driver")
        report("at the end")

    actual, wanted = rows_of(pq.read_table(folder / "committed.parquet")), expected(events)
    assert wanted.total() > total // 100
    assert not wanted - actual, f"lost: {sorted((wanted - actual).items(), key=repr)[:10]}"
    assert not actual - wanted, f"doubled or changed: {sorted((actual - wanted).items(), key=repr)[:10]}"
