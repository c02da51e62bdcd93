"""Detect with a Structured Streaming query that reads the log, while moving queries stay in this process.

A step through the log is one micro-batch of the query. The detection thread sets the log position up to which the query
may read, waits for its matches, and lets it commit when the matches are in the feeds. The `Detector` in this process
only holds the plan.

The query starts with the first rule. If rules or kinds change, it restarts from its checkpoint: rules that stay keep
their state, and new rules see later events. The rules run in *slots*, which are the units of parallelism of the query.
If rules must move to other slots, their state moves to the checkpoint of a new *generation*. A generation is a folder
with a checkpoint and a note, which has the generation's start and its layout (which rule runs in which slot).
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
from tocsin.plans.assignment import Layout, assign_rules
from tocsin.plans.plan import Plan
from tocsin.service.embedded_backend import EmbeddedBackend, Row, concat_records
from tocsin.service.records import EventsRecord, TimeRecord, decode
from tocsin.storage import records_between, replace_file

if TYPE_CHECKING:
    from tocsin.spark.job import Job

logger = logging.getLogger("tocsin.service")

NOTE = "note.json"
SPLIT_BYTES_MIN = 1 << 20
"""The size in bytes below which a range of the log is not split between tasks."""


@dataclass(frozen=True)
class LogReading:
    """Read ranges of the service's log in Spark workers."""

    log: str
    limit: str
    """The path of the file that has the end position and the positions of excluded records."""
    pieces: int

    def latest(self) -> int:
        return int(json.loads(Path(self.limit).read_text())["upto"])

    def cut(self, start: int, end: int) -> list[int]:
        size = max(SPLIT_BYTES_MIN, (end - start) // self.pieces)
        cuts = [start]
        for record in records_between(Path(self.log), start, end):
            if record.end - cuts[-1] >= size:
                cuts.append(record.end)
        return cuts if cuts[-1] == end else [*cuts, end]

    def read(self, start: int, end: int) -> tuple[list[tuple[pa.Table, Sequence[str]]], list[int]]:
        unused = set(json.loads(Path(self.limit).read_text())["unused"])
        events: list[EventsRecord] = []
        reached: list[int] = []
        for record in records_between(Path(self.log), start, end):
            if record.position in unused:
                continue
            match decode(record.payload):
                case EventsRecord() as one if one.batch.num_rows:
                    events.append(one)
                case TimeRecord(ts):
                    reached.append(ts)
        return [concat_records(events)] if events else [], reached


class SparkBackend(EmbeddedBackend):
    """The deployed rules on Spark. `folder` has the generations, and `log` is the folder of the ingest log."""

    stepwise = True

    def __init__(self, delay_us: int, folder: Path, log: Path, master: str | None = None) -> None:
        super().__init__(delay_us)
        self._folder = folder
        self._limit = folder / "limit"
        self._unused: list[int] = []
        """The log positions of excluded records that the query has not passed yet."""
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        session = _session(master)
        from tocsin.spark.log_stream import LogQuery, checkpoint_positions
        from tocsin.spark.source import default_slots

        self._generation, self._note = _newest(folder)
        committed, begun = checkpoint_positions(self._checkpoint)
        self._position = max(self._note.get("start", 0), self._note.get("ended") or 0, committed or 0)
        """The log position that the query has reached."""
        self._boundaries = {self._position, begun or 0}
        self._before = BEGINNING, BEGINNING
        """The watermark and the largest time (µs) before the current step."""
        self._slots = default_slots(session)
        self._query = LogQuery(session, LogReading(str(log), str(self._limit), self._slots))
        self._plan: Plan | None = None
        """The plan of the running query."""
        self._job: Job | None = None

    # ---- records

    def take(self, records: Sequence[EventsRecord]) -> list[Row]:
        self._before = self.watermark, max(self.largest, self.advanced_to)
        return super().take(records)

    def advance(self, ts: int, span: tuple[int, int] = (0, 0)) -> list[Row]:
        self._before = self.watermark, max(self.largest, self.advanced_to)
        return super().advance(ts, span)

    @property
    def watermark(self) -> int:
        return max(self.advanced_to, self.largest - self.delay_us if self.largest > BEGINNING else BEGINNING)

    @property
    def waits(self) -> bool:
        return self.largest >= self.watermark > BEGINNING or self.plan.is_timed or bool(self.moving)

    def _push(self, batch: pa.Table, types: Sequence[str], records: Sequence[EventsRecord]) -> list[pa.Table]:
        return self._run(records[0].span[0], records[-1].span[1])

    def _advance(self, ts: int, span: tuple[int, int]) -> list[pa.Table]:
        return self._run(*span)

    def _skip(self, record: EventsRecord) -> None:
        self._unused.append(record.span[0])

    def _run(self, start: int, end: int) -> list[pa.Table]:
        """Let the query read the log from `start` to `end` and return the matches.

        If the query has read this range before, return nothing.
        """
        if end <= self._position:
            return []
        if not self.plan.rules:
            self._end(end)
            return []
        self._unused = [position for position in self._unused if position >= self._position]
        replace_file(self._limit, json.dumps({"upto": end, "unused": self._unused}).encode())
        self._start(start)
        reports = self._query.run(end)
        self._position = end
        return [self._matches(table) for table in _sorted(reports)]

    def _matches(self, report: pa.Table) -> pa.Table:
        """Return the matches in `report`, a table that the query returned, and add its dead letters."""
        dead = report.filter(report["_reason"].is_valid())
        ts = dead["ts"].cast(pa.int64()).to_pylist()
        for reason, type, at, event in zip(
            *(dead[name].to_pylist() for name in ("_reason", "type")), ts, dead["_event"].to_pylist(), strict=True
        ):
            self._add_dead_letter(reason, type, at, event)
        matches = report.filter(pc.and_(report["_reason"].is_null(), report["_metrics"].is_null()))
        return matches.drop_columns(["_reason", "_event", "_metrics"])

    # ---- the query

    def boundaries(self) -> set[int]:
        return self._boundaries

    def committed(self) -> None:
        self._query.acknowledge()
        if self._job is not None and self._note.get("layout") != self._job.layout.as_data():
            self._query.wait_committed()
            self._write_note(layout=self._job.layout.as_data())

    def flush(self) -> None:
        self._query.wait_committed()

    def close(self) -> None:
        self._query.stop()

    def _start(self, position: int) -> None:
        """Run the query with the current rules and kinds. A new query starts to read at `position`."""
        plan = self.plan
        if self._query.running and self._plan is not None:
            if plan is self._plan:
                return
            if plan.rules == self._plan.rules and plan.catalog == self._plan.catalog:
                self._plan = plan
                return
        from tocsin.spark.job import Job

        self._query.stop()
        layout = assign_rules(plan, self._slots)
        job = Job(tuple(plan.sources), plan.catalog, Columns(), layout, self.delay_us, times=True)
        if not self._note or self._note.get("ended") is not None:
            self._begin_generation(position, None)
        elif self._note.get("layout") is not None and _moves(Layout.from_data(self._note["layout"]), layout):
            self._begin_generation(position, job)
        start, watermark, largest = (self._note[name] for name in ("start", "watermark", "largest"))
        self._query.start(job, self._checkpoint, start, watermark, largest)
        self._plan, self._job = plan, job

    def _begin_generation(self, position: int, job: Job | None) -> None:
        """Begin a new generation that reads the log from `position` on.

        If `job` is given, move the old state to the slots of the job. Otherwise begin without state.
        """
        old, self._generation = self._checkpoint, self._generation + 1
        self._generation_folder.mkdir(mode=0o700)
        watermark, largest = self._before
        note: dict[str, Any] = {"start": position, "watermark": watermark, "largest": largest}
        if job is not None:
            from tocsin.spark.rescale import rekey

            try:
                rekey(self._query.session, old, self._checkpoint, job)
                note["layout"] = job.layout.as_data()
            except StateError as error:
                logger.warning("rules restart without their state: %s", error)
                shutil.rmtree(self._checkpoint, ignore_errors=True)
        self._note = {}
        self._write_note(**note)
        shutil.rmtree(old.parent, ignore_errors=True)

    def _end(self, position: int) -> None:
        """End the query at `position`, because no rule is left and its state is no longer needed."""
        self._position = position
        self._unused = []
        if self._note and self._note.get("ended") is None:
            self._query.stop()
            self._write_note(ended=position)

    @property
    def _generation_folder(self) -> Path:
        return self._folder / f"{self._generation:06}"

    @property
    def _checkpoint(self) -> Path:
        return self._generation_folder / "checkpoint"

    def _write_note(self, **more: Any) -> None:
        self._note |= more
        replace_file(self._generation_folder / NOTE, json.dumps(self._note).encode())


def _newest(folder: Path) -> tuple[int, dict[str, Any]]:
    """Return the number and the note of the newest complete generation. Delete incomplete generations."""
    for path in sorted(folder.glob("[0-9]*"), reverse=True):
        if (path / NOTE).exists():
            return int(path.name), json.loads((path / NOTE).read_text())
        shutil.rmtree(path)
    return 0, {}


def _moves(old: Layout, new: Layout) -> bool:
    """Return whether a rule that has a slot in the layout `old` has another slot in the layout `new`."""
    from tocsin.spark.stream import check_layout

    try:
        for slot in range(new.slots):
            check_layout(old, new, slot)
    except StateError:
        return True
    return False


def _sorted(tables: Sequence[pa.Table]) -> list[pa.Table]:
    """Join the tables that the slots returned into one table, sorted by time.

    Return a list with this table, or an empty list if there is no table.
    """
    if not tables:
        return []
    one = pa.concat_tables(tables, promote_options="default")
    return [one.sort_by([("ts", "ascending"), ("type", "ascending"), ("id", "ascending")])]


def _session(master: str | None) -> Any:
    """Return the Spark session, or raise an error with installation hints."""
    hint = "or use --engine embedded, which needs no Spark"
    try:
        from tocsin.spark import session
        from tocsin.spark.sessions import plain_errors
    except ImportError as error:
        raise TocsinError(f"detection on Spark needs {error.name}: pip install pyspark, {hint}") from None
    try:
        with plain_errors():
            return session(master)
    except TocsinError as error:
        raise TocsinError(f"{error}; install Java 17 or newer and set JAVA_HOME, {hint}") from None
