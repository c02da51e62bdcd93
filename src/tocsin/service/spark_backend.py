"""Detection by a Structured Streaming query that reads the log itself; queries that move stay in this process.

A step is one micro-batch: this thread says up to where the query may read, waits for what it finds, and lets it commit
when that is in the feeds. The detector here has no events; it holds the plan. The query starts when there is something
to detect, and starts again from its checkpoint when rules came or went or kinds became known: rules that stay keep
their state, others see what comes. Where they must run in other slots than before, the state moves into a checkpoint
of a new *generation*, a folder with a note of where it began and how it is laid out.
"""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from tocsin.errors import StateError, TocsinError
from tocsin.events.reader import Columns
from tocsin.events.reorder import BEGINNING
from tocsin.plans.assignment import Layout, lay_out
from tocsin.plans.plan import Plan
from tocsin.service.embedded_backend import Detection, Row, joined
from tocsin.service.records import Events, Tick, decode
from tocsin.storage import records_between, replace_file

if TYPE_CHECKING:
    from tocsin.spark.job import Job

journal = logging.getLogger("tocsin.service")

NOTE = "note.json"
PIECE_BYTES_MIN = 1 << 20
"""A smaller range of the log is not cut for several tasks."""


@dataclass(frozen=True)
class LogReading:
    """How Spark's workers read the service's log."""

    log: str
    limit: str
    """A file that says up to where, and which records are left out."""
    pieces: int

    def latest(self) -> int:
        return int(json.loads(Path(self.limit).read_text())["upto"])

    def cut(self, start: int, end: int) -> list[int]:
        size = max(PIECE_BYTES_MIN, (end - start) // self.pieces)
        cuts = [start]
        for record in records_between(Path(self.log), start, end):
            if record.end - cuts[-1] >= size:
                cuts.append(record.end)
        return cuts if cuts[-1] == end else [*cuts, end]

    def read(self, start: int, end: int) -> tuple[list[tuple[pa.Table, Sequence[str]]], list[int]]:
        unused = set(json.loads(Path(self.limit).read_text())["unused"])
        events: list[Events] = []
        reached: list[int] = []
        for record in records_between(Path(self.log), start, end):
            if record.position in unused:
                continue
            match decode(record.payload):
                case Events() as one if one.batch.num_rows:
                    events.append(one)
                case Tick(ts):
                    reached.append(ts)
        return [joined(events)] if events else [], reached


class SparkDetection(Detection):
    """Rules at work on Spark. `folder` is for its checkpoints, `log` that of the events."""

    stepwise = True

    def __init__(self, delay_us: int, folder: Path, log: Path, master: str | None = None) -> None:
        super().__init__(delay_us)
        self._folder = folder
        self._limit = folder / "limit"
        self._unused: list[int] = []
        """The positions of records that the query is not to use, from its own position on."""
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        session = _session(master)
        from tocsin.spark.log_stream import Following, positions
        from tocsin.spark.source import default_slots

        self._generation, self._note = _newest(folder)
        committed, begun = positions(self._checkpoint)
        self._position = max(self._note.get("start", 0), self._note.get("ended") or 0, committed or 0)
        """Up to where the query has read the log."""
        self._marks = {self._position, begun or 0}
        self._before = BEGINNING, BEGINNING
        """The watermark and the largest ts before this step."""
        self._slots = default_slots(session)
        self._query = Following(session, LogReading(str(log), str(self._limit), self._slots))
        self._plan: Plan | None = None
        """What the query was started with."""
        self._job: Job | None = None

    # ---- what records do

    def take(self, records: Sequence[Events]) -> list[Row]:
        self._before = self.watermark, max(self.largest, self.ticked)
        return super().take(records)

    def tick(self, ts: int, place: tuple[int, int] = (0, 0)) -> list[Row]:
        self._before = self.watermark, max(self.largest, self.ticked)
        return super().tick(ts, place)

    @property
    def watermark(self) -> int:
        return max(self.ticked, self.largest - self.delay_us if self.largest > BEGINNING else BEGINNING)

    @property
    def waits(self) -> bool:
        return self.largest >= self.watermark > BEGINNING or self.plan.is_timed or bool(self.moving)

    def _push(self, batch: pa.Table, types: Sequence[str], records: Sequence[Events]) -> list[pa.Table]:
        return self._run(records[0].place[0], records[-1].place[1])

    def _pass(self, ts: int, place: tuple[int, int]) -> list[pa.Table]:
        return self._run(*place)

    def _skip(self, record: Events) -> None:
        self._unused.append(record.place[0])

    def _run(self, start: int, end: int) -> list[pa.Table]:
        """What the query finds in a range of the log, if it has not read that before."""
        if end <= self._position:
            return []
        if not self.plan.rules:
            self._end(end)
            return []
        self._unused = [position for position in self._unused if position >= self._position]
        replace_file(self._limit, json.dumps({"upto": end, "unused": self._unused}).encode())
        self._start(start)
        found = self._query.run(end)
        self._position = end
        return [self._matches(table) for table in _sorted(found)]

    def _matches(self, report: pa.Table) -> pa.Table:
        """The matches of a report, whose dead letters are noted."""
        dead = report.filter(report["_reason"].is_valid())
        ts = dead["ts"].cast(pa.int64()).to_pylist()
        for reason, type, at, event in zip(
            *(dead[name].to_pylist() for name in ("_reason", "type")), ts, dead["_event"].to_pylist(), strict=True
        ):
            self._letter(reason, type, at, event)
        found = report.filter(pc.and_(report["_reason"].is_null(), report["_metrics"].is_null()))
        return found.drop_columns(["_reason", "_event", "_metrics"])

    # ---- the query

    def marks(self) -> set[int]:
        return self._marks

    def written(self) -> None:
        self._query.keep()
        if self._job is not None and self._note.get("layout") != self._job.layout.as_data():
            self._query.settle()
            self._write_note(layout=self._job.layout.as_data())

    def settle(self) -> None:
        self._query.settle()

    def close(self) -> None:
        self._query.stop()

    def _start(self, position: int) -> None:
        """Lets the query run with the rules and kinds of now. A new one begins to read at that position."""
        plan = self.plan
        if self._query.runs and self._plan is not None:
            if plan is self._plan:
                return
            if plan.rules == self._plan.rules and plan.given == self._plan.given:
                self._plan = plan
                return
        from tocsin.spark.job import Job

        self._query.stop()
        layout = lay_out(plan, self._slots)
        job = Job(tuple(plan.sources), plan.given, Columns(), layout, self.delay_us, times=True)
        if not self._note or self._note.get("ended") is not None:
            self._advance(position, None)
        elif self._note.get("layout") is not None and _moves(Layout.from_data(self._note["layout"]), layout):
            self._advance(position, job)
        start, watermark, largest = (self._note[name] for name in ("start", "watermark", "largest"))
        self._query.start(job, self._checkpoint, start, watermark, largest)
        self._plan, self._job = plan, job

    def _advance(self, position: int, job: Job | None) -> None:
        """Begins a new generation: with the state of the old one, laid out for a job, or without any."""
        old, self._generation = self._checkpoint, self._generation + 1
        self._place.mkdir(mode=0o700)
        watermark, largest = self._before
        note: dict[str, Any] = {"start": position, "watermark": watermark, "largest": largest}
        if job is not None:
            from tocsin.spark.rescale import rekey

            try:
                rekey(self._query.session, old, self._checkpoint, job)
                note["layout"] = job.layout.as_data()
            except StateError as error:
                journal.warning("the rules start anew, without what they had seen: %s", error)
                shutil.rmtree(self._checkpoint, ignore_errors=True)
        self._note = {}
        self._write_note(**note)
        shutil.rmtree(old.parent, ignore_errors=True)

    def _end(self, position: int) -> None:
        """There are no rules any more: what there is of state is of no use."""
        self._position = position
        self._unused = []
        if self._note and self._note.get("ended") is None:
            self._query.stop()
            self._write_note(ended=position)

    @property
    def _place(self) -> Path:
        return self._folder / f"{self._generation:06}"

    @property
    def _checkpoint(self) -> Path:
        return self._place / "checkpoint"

    def _write_note(self, **more: Any) -> None:
        self._note |= more
        replace_file(self._place / NOTE, json.dumps(self._note).encode())


def _newest(folder: Path) -> tuple[int, dict[str, Any]]:
    """The newest generation that was begun wholly, and its note. What was half made is gone then."""
    for path in sorted(folder.glob("[0-9]*"), reverse=True):
        if (path / NOTE).exists():
            return int(path.name), json.loads((path / NOTE).read_text())
        shutil.rmtree(path)
    return 0, {}


def _moves(old: Layout, new: Layout) -> bool:
    """Whether some rule must run elsewhere."""
    from tocsin.spark.stream import check_layout

    try:
        for slot in range(new.slots):
            check_layout(old, new, slot)
    except StateError:
        return True
    return False


def _sorted(tables: Sequence[pa.Table]) -> list[pa.Table]:
    """What slots found, in one order of time."""
    if not tables:
        return []
    one = pa.concat_tables(tables, promote_options="default")
    return [one.sort_by([("ts", "ascending"), ("type", "ascending"), ("id", "ascending")])]


def _session(master: str | None) -> Any:
    """Spark, or why there is none."""
    hint = "or let the service detect in its own process: --engine embedded"
    try:
        from tocsin.spark import session
        from tocsin.spark.sessions import plainly
    except ImportError as error:
        raise TocsinError(f"detection on Spark needs {error.name}: pip install pyspark, {hint}") from None
    try:
        with plainly():
            return session(master)
    except TocsinError as error:
        raise TocsinError(f"{error}; install Java 17 or newer and set JAVA_HOME, {hint}") from None
