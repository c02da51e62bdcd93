"""A fake of Spark's query over the log, which calls slots as Spark does.

What is committed is in the checkpoint's folder, with the same files for positions. It can be made to fail before a
batch is handed out, before it is committed, or not at all.
"""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

from tests.conformance.slots import Clock, Store
from tocsin.spark import log_stream, rescale, stream
from tocsin.spark.blocks import BLOCK_SCHEMA, ShuffleBlock, decode
from tocsin.spark.job import Job, send
from tocsin.spark.log_stream import LogProcessor, LogQueryOptions, LogReader
from tocsin.spark.stream import SlotProcessor


class Killed(BaseException):
    """The process was killed."""


class Following:
    """Stands in for `tocsin.spark.log_stream.LogQuery`."""

    fails: Callable[[str], bool] = staticmethod(lambda moment: False)
    """Whether the process is killed at a moment: `found`, `kept`."""

    def __init__(self, session: Any, reading: Any) -> None:
        self.session = session
        self._reading = reading
        self.running = False
        self._uncommitted: tuple[int, dict[int, Store]] | None = None

    def start(self, job: Job, checkpoint: Path, start: int, watermark: int, largest: int) -> None:
        assert not self.running
        sent = send(job)
        work = LogQueryOptions(self._reading, sent, start)
        self._reader = LogReader("work")
        log_stream._work = lambda path: work  # type: ignore[assignment]
        self._made = lambda: LogProcessor(sent, watermark, largest)
        self._checkpoint, self._job = checkpoint, job
        stream._cached.clear()
        self.running = True

    def run(self, upto: int) -> list[pa.Table]:
        batch, position, stores = held(self._checkpoint)
        start = self._reader.initialOffset() if position is None else {"position": position}
        begun = self._checkpoint / "offsets" / str(batch)
        if begun.exists():  # as it was planned before the crash
            end = json.loads(begun.read_text().splitlines()[-1])
        else:
            end = self._reader.latestOffset(start, None)
            begun.parent.mkdir(parents=True, exist_ok=True)
            begun.write_text("v1\n{}\n" + json.dumps(end))
        assert end == {"position": upto}
        blocks = [
            ShuffleBlock(**{name: value for name, value in row.items() if name != log_stream.AT})
            for partition in self._reader.partitions(start, end)
            for rows in self._reader.read(partition)
            for row in rows.to_pylist()
        ]
        stores = stores or {label: Store() for label in self._job.labels}
        found = turned(self._made, stores, blocks)
        if self.fails("found"):
            raise Killed
        self._uncommitted = batch, stores
        return found

    def acknowledge(self) -> None:
        if self._uncommitted is not None:
            if self.fails("kept"):
                raise Killed
            commit(self._checkpoint, *self._uncommitted)
            self._uncommitted = None

    def wait_committed(self) -> None:
        assert self._uncommitted is None

    def stop(self) -> None:
        self.wait_committed()
        self.running = False


def held(checkpoint: Path) -> tuple[int, int | None, dict[int, Store] | None]:
    """Return the number of the next batch, its start position, and its initial state."""
    commits = [int(path.name) for path in (checkpoint / "commits").glob("*")]
    if not commits:
        return 0, None, None
    stores = pickle.loads((checkpoint / "stores").read_bytes())
    return max(commits) + 1, log_stream.end_position(checkpoint, max(commits)), stores


def commit(checkpoint: Path, batch: int, stores: dict[int, Store]) -> None:
    (checkpoint / "stores").write_bytes(pickle.dumps(stores))
    (checkpoint / "commits").mkdir(exist_ok=True)
    (checkpoint / "commits" / str(batch)).write_text("v1\n{}")


def turned(made: Callable[[], SlotProcessor], stores: dict[int, Store], blocks: list[ShuffleBlock]) -> list[pa.Table]:
    """What the slots report for their blocks."""
    found = []
    for label, store in stores.items():
        processor = made()
        processor.init(store)
        mine = [block._asdict() for block in blocks if block.slot == label]
        if mine:
            frame = pa.RecordBatch.from_pylist(mine, BLOCK_SCHEMA).to_pandas()
            for payloads in processor.handleInputRows((label,), iter([frame]), Clock()):
                found += [decode(payload) for payload in payloads["payload"]]
    return found


def rekey(session: Any, old: Path, new: Path, job: Job) -> None:
    """Stands in for `tocsin.spark.rescale.rekey`."""
    from tocsin.plans.assignment import Layout

    batch, position, stores = held(old)
    assert stores is not None
    layout = Layout.from_data(json.loads(stores[0].values["layout"][0]))
    labels = rescale.labels(layout.slots)
    states = {
        labels.index(label): rescale.snapshot_of(
            store.values["head"][3], {n: segment for (n,), (segment,) in store.values["segments"].items()}
        )
        for label, store in copy.deepcopy(stores).items()
    }
    largest = max(store.values["head"][1] for store in stores.values())
    fresh = {label: Store() for label in job.labels}
    turned(lambda: SlotProcessor(send(job)), fresh, rescale.initial_states(layout, states, job, largest))
    new.mkdir(parents=True)
    (new / "offsets").mkdir()
    (new / "offsets" / str(batch - 1)).write_text("v1\n{}\n" + json.dumps({"position": position}))
    commit(new, batch - 1, fresh)
