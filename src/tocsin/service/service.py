"""Run a service without HTTP: any thread publishes events, deploys rules and reads results, and one thread detects.

Every input is first appended to the log. In each step, the detection thread reads the next committed records and writes
matches and dead letters to feeds. It saves its state periodically. After a crash, it restores the state and replays the
log from there. Records whose output is already in a feed are replayed only for their effect on the state.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from tocsin.errors import RuleError, StateError, TocsinError, nearest
from tocsin.events.reader import Columns
from tocsin.events.reorder import BEGINNING
from tocsin.events.times import AHEAD_US
from tocsin.events.types import SECOND_US
from tocsin.service.deployments import Deployed, ParsedText, parse_rules
from tocsin.service.embedded_backend import EmbeddedBackend, Row, check_loadable
from tocsin.service.event_intake import REASONS_MAX, Bounds, EventIntake, ParsedEvents, Registry
from tocsin.service.feed import Feed, RecentEvents
from tocsin.service.rates import RateCounter
from tocsin.service.records import Acks, Deploy, EventsAck, EventsRecord, GroupCommit, RulesRecord, TimeRecord, decode
from tocsin.storage import Log, SnapshotFolder

logger = logging.getLogger("tocsin.service")

STEP_BYTES = 4 << 20
"""The maximal size in bytes of a step through the log."""
REMOTE_STEP_BYTES = 32 << 20
"""The maximal size in bytes of a step, for an engine whose steps are expensive, such as Spark."""
ENGINE = "engine"
"""The name of a file in the service's folder, which names the engine whose state the folder has."""
SNAPSHOT_BYTES = 32 << 20
SNAPSHOT_S = 60.0
IDLE_S = 0.05
TIME_CHECK_S = 0.1
RULES_MAX = 10_000


def engine_of(folder: Path) -> str | None:
    """Return the name of the engine whose state is in `folder`, or None for a new folder."""
    path = folder / ENGINE
    if path.exists():
        return path.read_text().strip()
    return "embedded" if any(segment.stat().st_size for segment in (folder / "events").glob("*.log")) else None


class Busy(TocsinError):
    """The service is overloaded; try again later."""


class Conflict(RuleError):
    """A rule of the same name exists already."""


class NotFound(TocsinError):
    """The resource does not exist."""


@dataclass(frozen=True, slots=True)
class Options:
    """Options of a service. `clock` is `events` or `wall`, see `Service`."""

    delay_us: int = SECOND_US
    ahead_us: int = AHEAD_US
    """How far the time of an event may be ahead of this machine's clock (µs)."""
    clock: str = "events"
    keep_bytes: int = 256 << 20
    """The size of the end of the log that is kept for inspection, even if a restart does not need it."""
    backlog_bytes: int = 512 << 20
    """The number of unprocessed bytes above which events are refused."""
    matches_bytes: int = 1 << 30
    segment_bytes: int = 64 << 20
    snapshot_bytes: int = SNAPSHOT_BYTES
    engine: str = "embedded"
    """Where to detect: `embedded` for this process, `spark` for a Structured Streaming query that reads the log."""
    master: str | None = None
    """The Spark master, or None for this machine."""


class Service:
    """A service whose data is in one folder. With the clock `wall`, time passes by itself. With the clock `events`,
    time comes from events; if no event arrives for the allowed delay, time advances past the newest event.
    """

    def __init__(self, folder: str | Path, options: Options | None = None) -> None:
        options = options or Options()
        self.folder, self.options = Path(folder), options
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if (stored := engine_of(self.folder)) is not None and stored != options.engine:
            raise StateError(f"{self.folder} has the state of the engine '{stored}': use --engine {stored}")
        self.log = Log(self.folder / "events", segment_bytes=options.segment_bytes)
        self.matches = Feed(self.folder / "matches", keep_bytes=options.matches_bytes)
        self.dead_letters = Feed(self.folder / "letters", keep_bytes=options.matches_bytes // 8)
        self.backend: EmbeddedBackend
        self.position = self.log.begin
        """The position up to which detection has processed the log."""
        self.registry = Registry()
        self.intake = EventIntake(
            self.registry, lambda: self.backend.plan.defined, lambda new: self.backend.check_kinds(new)
        )
        self.event_rates, self.match_rates = RateCounter(), RateCounter()
        self.failure: str | None = None
        self.started_s = time.time()
        self.events = self.rejected = self.requests = 0
        self.lag_s = 0.0
        """The seconds between the acceptance and the detection of the last events."""
        self.recent = RecentEvents()
        self._states = SnapshotFolder(self.folder / "state")
        self._acks = Acks()
        self._pending_changes: dict[str, Future[tuple[Deployed, ...]]] = {}
        self._changed = threading.Condition()
        self._closing = False
        self._advancing: Future[int] | None = None
        self._last_event_s = time.monotonic()
        self._snapshot_position = self.position
        self._snapshot_s = time.monotonic()
        self._recover()
        (self.folder / ENGINE).write_text(options.engine)
        self.committer = GroupCommit(self.log, self._wake)
        self._thread = threading.Thread(target=self._run, name="tocsin-detection", daemon=True)
        self._thread.start()

    # ---- events

    def read(self, body: bytes, format: str, ts_unit: str | None = None, id: str | None = None) -> ParsedEvents:
        """Parse the events in `body`. `id` names the attribute that has the source's own id of an event."""
        now_us = time.time_ns() // 1_000
        return self.intake.read(
            body, format, now_us=now_us, bounds=self._bounds(now_us), columns=Columns(ts_unit=ts_unit, id=id)
        )

    def take(self, table: pa.Table) -> ParsedEvents:
        """Parse the events in an Arrow table."""
        now_us = time.time_ns() // 1_000
        return self.intake.table(table, now_us=now_us, bounds=self._bounds(now_us))

    def _bounds(self, now_us: int) -> Bounds:
        return Bounds(self.backend.watermark, now_us + self.options.ahead_us)

    def accept(self, parsed: ParsedEvents, key: str | None = None) -> Future[EventsAck]:
        """Append the accepted events of `parsed` to the log. The future resolves when the events are on disk.

        `key` is the idempotency key. If an earlier request had the same key, return its acknowledgement.
        """
        self._check_alive()
        if self.log.end - self.position > self.options.backlog_bytes:
            raise Busy("detection is behind: try again later")
        count = len(parsed.rejected)
        reasons = tuple((span, parsed.reason(span)) for span in sorted(parsed.rejected)[:REASONS_MAX])
        ack: Future[EventsAck] = Future()
        if key is not None and (first := self._acks.claim(key, ack)) is not None:
            return first
        self.requests += 1
        self.rejected += count
        if not parsed.accepted and not count:
            ack.set_result(EventsAck(0, 0))
            return ack
        record = EventsRecord(
            parsed.batch, parsed.types, parsed.new_kinds, key, count, parsed.dead_letters, time.time_ns() // 1_000
        )

        def committed(end: Future[int]) -> None:
            if (error := end.exception()) is not None:
                if key is not None:
                    self._acks.drop(key)
                ack.set_exception(error)
            else:
                ack.set_result(EventsAck(parsed.accepted, count, reasons))

        self.committer.submit(record.encode()).add_done_callback(committed)
        return ack

    def publish(self, body: bytes, format: str, key: str | None = None, ts_unit: str | None = None) -> EventsAck:
        """Parse and accept the events in `body`, and wait for the acknowledgement."""
        if key is not None and (first := self.ack(key)) is not None:
            return first.result()
        return self.accept(self.read(body, format, ts_unit), key).result()

    def ack(self, key: str) -> Future[EventsAck] | None:
        """Return the acknowledgement of the request with `key`, or None if the key is unknown."""
        return self._acks.find(key)

    # ---- rules

    @property
    def rules(self) -> dict[str, Deployed]:
        return dict(self.backend.deployed)

    def check(self, source: str, language: str | None = None) -> ParsedText:
        """Parse `source` and check that its rules can be deployed, if they replace rules of the same names."""
        text = parse_rules(source, language)
        replaced = [name for name in text.names if name in self.backend.deployed]
        check_loadable(self.backend.check(text, replaced), text)
        return text

    def deploy(
        self, source: str, language: str | None = None, *, replace: bool = False, by: str = ""
    ) -> Future[tuple[Deployed, ...]]:
        """Deploy the rules in `source`. The future resolves when the rules run."""
        text = parse_rules(source, language)
        replaced = tuple(name for name in text.names if name in self.backend.deployed)
        if replaced and not replace:
            message = f"rule {replaced[0]} already exists"
            raise Conflict(message, hint="Replace it, or rename the new one.")
        if len(self.backend.deployed) + len(text.names) > RULES_MAX:
            raise RuleError(f"there are at most {RULES_MAX:,} rules")
        check_loadable(self.backend.check(text, replaced), text)
        return self._change(RulesRecord(replaced, Deploy(source, text.language), by=by))

    def remove(self, id: str, by: str = "") -> Future[tuple[Deployed, ...]]:
        """Remove the rule `id`. The future resolves when the rule no longer runs."""
        if id not in self.backend.deployed:
            raise NotFound(f"there is no rule {id}. {nearest(id, self.backend.deployed) or ''}".rstrip())
        return self._change(RulesRecord((id,), by=by))

    def _change(self, change: RulesRecord) -> Future[tuple[Deployed, ...]]:
        self._check_alive()
        correlation_id = uuid.uuid4().hex
        future: Future[tuple[Deployed, ...]] = Future()
        self._pending_changes[correlation_id] = future
        record = RulesRecord(change.remove, change.deploy, correlation_id, change.by, time.time_ns() // 1_000)

        def failed(end: Future[int]) -> None:
            if (error := end.exception()) is not None and self._pending_changes.pop(correlation_id, None) is not None:
                future.set_exception(error)

        self.committer.submit(record.encode()).add_done_callback(failed)
        return future

    @property
    def backlog_bytes(self) -> int:
        """The number of bytes in the log that were accepted but not yet processed."""
        return self.log.end - self.position

    # ---- lifecycle

    def close(self) -> None:
        """Process the accepted records, save the state and stop."""
        self.committer.close()
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join()
        if self.failure is None:
            self._save()
        with suppress(TocsinError):
            self.backend.close()
        for part in (self.log, self.matches, self.dead_letters):
            part.close()

    def wait(self, timeout_s: float = 300.0) -> None:
        """Wait until all records accepted so far are processed."""
        end, until = self.log.end, time.monotonic() + timeout_s
        while self.position < end:
            self._check_alive()
            if time.monotonic() > until:
                raise Busy("detection is behind")
            time.sleep(0.002)

    def _check_alive(self) -> None:
        if self.failure is not None:
            raise StateError(f"detection has stopped: {self.failure}")

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify()

    def _run(self) -> None:
        try:
            while True:
                with self._changed:
                    if self.log.end <= self.position and not self._closing:
                        self._changed.wait(TIME_CHECK_S if self.backend.deployed else 1.0)
                if self.log.end > self.position:
                    self._step(self.log.end)
                elif self._closing:
                    return
                else:
                    self._pass_time()
                self._note_rates()
                self._save_sometimes()
        except BaseException as error:
            self.failure = f"{type(error).__name__}: {error}"
            logger.exception("detection has stopped")
            for correlation_id in list(self._pending_changes):
                self._pending_changes.pop(correlation_id).set_exception(
                    StateError(f"detection has stopped: {self.failure}")
                )

    def _step(self, stop: int, *, matches: bool = True, dead_letters: bool = True) -> None:
        """Process the next records, at most up to position `stop`, and write their output to feeds that lack it."""
        rows: list[Row] = []
        batch_records: list[EventsRecord] = []
        dead: list[Row] = []
        done: list[tuple[str, tuple[Deployed, ...] | Exception]] = []
        at_us = 0
        position = self.position
        stepwise = self.backend.stepwise
        step_bytes = REMOTE_STEP_BYTES if stepwise else STEP_BYTES
        for record in self.log.read(position, min(step_bytes, stop - position)):
            span = (record.position, record.end)
            one = decode(record.payload)
            if stepwise and batch_records and not isinstance(one, EventsRecord):
                break
            position = record.end
            match one:
                case EventsRecord() as events:
                    events.span = span
                    batch_records.append(events)
                    dead += [dead_letter._asdict() for dead_letter in events.dead_letters]
                    at_us = events.at_us
                case TimeRecord(ts):
                    rows += self._take(batch_records)
                    rows += self.backend.advance(ts, span)
                    if stepwise:
                        break
                case RulesRecord() as change:
                    rows += self._take(batch_records)
                    try:
                        done.append((change.ticket, self.backend.change(change)))
                        self.registry.learn(self.backend.kinds)
                    except RuleError as error:
                        done.append((change.ticket, error))
        rows += self._take(batch_records)
        dead += self.backend.dead_letters()
        if matches:
            self.matches.write(rows, position)
        if dead_letters:
            self.dead_letters.write(dead, position)
        self.backend.committed()
        self.position = position
        if at_us:
            self.lag_s = max(0.0, time.time() - at_us / SECOND_US)
        for correlation_id, outcome in done:
            self._answer(correlation_id, outcome)

    def _take(self, batch_records: list[EventsRecord]) -> list[Row]:
        if not batch_records:
            return []
        rows = self.backend.take(batch_records)
        for record in batch_records:
            if record.batch.num_rows:
                self._last_event_s = time.monotonic()
                self.recent.note(record)
                self.events += record.batch.num_rows
        batch_records.clear()
        return rows

    def _answer(self, correlation_id: str, outcome: tuple[Deployed, ...] | Exception) -> None:
        future = self._pending_changes.pop(correlation_id, None)
        if future is None:
            return
        if isinstance(outcome, Exception):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)

    def _pass_time(self) -> None:
        """Append a `TimeRecord` if time has passed without events and matches may depend on it."""
        backend, options = self.backend, self.options
        if not backend.deployed or (self._advancing is not None and not self._advancing.done()):
            return
        if options.clock == "wall":
            ts = time.time_ns() // 1_000 - options.delay_us
            if not backend.waits or ts <= backend.watermark:
                return
        else:
            ts = backend.largest + 1
            if backend.largest == BEGINNING:
                return
            idle_s = time.monotonic() - self._last_event_s
            if ts <= backend.advanced_to or idle_s < IDLE_S + options.delay_us / SECOND_US:
                return
        with suppress(TocsinError):  # the service may be stopping
            self._advancing = self.committer.submit(TimeRecord(ts).encode())

    def _note_rates(self) -> None:
        now_s = time.monotonic()
        self.event_rates.sample(now_s, self.backend.events_by_type)
        self.match_rates.sample(now_s, self.backend.matches_by_rule)

    # ---- state

    def _new_backend(self, delay_us: int) -> EmbeddedBackend:
        """Create a backend without rules."""
        if self.options.engine == "embedded":
            return EmbeddedBackend(delay_us)
        from tocsin.service.spark_backend import SparkBackend

        return SparkBackend(delay_us, self.folder / "spark", self.folder / "events", self.options.master)

    def _recover(self) -> None:
        """Restore the newest valid snapshot and replay the log after it, without writing output again."""
        position = self.log.begin
        for at, path in self._states.newest_first():
            try:
                self.backend, more = EmbeddedBackend.restore(path.read_bytes(), self._new_backend)
            except StateError as error:
                logger.warning("skipped snapshot %s: %s", path, error)
                continue
            position = at
            self.registry.learn(self.backend.kinds)
            self.events, self.rejected = more["events"], more["rejected"]
            for key, accepted, rejected in more["keys"]:
                self._acks.note(key, accepted, rejected)
            break
        else:
            if self.log.begin:
                raise StateError(f"{self.folder} has no snapshot that fits its log: the log starts after the last one")
            self.backend = self._new_backend(self.options.delay_us)
        for record in self.log.read(self.log.begin):
            events = decode(record.payload)
            if isinstance(events, EventsRecord):
                if record.position < position:
                    if events.batch.num_rows:
                        self.recent.note(events)
                else:
                    self.registry.learn(events.new_kinds)
                    self.rejected += events.rejected
                if events.key is not None:
                    self._acks.note(events.key, events.batch.num_rows, events.rejected)
        self.position = self._snapshot_position = position
        for end in sorted({self.matches.upto, self.dead_letters.upto, self.log.end, *self.backend.boundaries()}):
            while self.position < end:
                self._step(end, matches=end > self.matches.upto, dead_letters=end > self.dead_letters.upto)

    def _save_sometimes(self) -> None:
        behind = self.position - self._snapshot_position
        aged = behind > 0 and time.monotonic() - self._snapshot_s > SNAPSHOT_S
        if behind >= self.options.snapshot_bytes or aged:
            self._save()

    def _save(self) -> None:
        """Write a snapshot and delete the part of the log that is no longer needed."""
        self.backend.flush()
        more = {"events": self.events, "rejected": self.rejected, "keys": self._acks.all()}
        oldest = self._states.save(self.position, self.backend.snapshot(more))
        self._snapshot_position, self._snapshot_s = self.position, time.monotonic()
        self.log.delete_before(min(oldest, self.log.end - self.options.keep_bytes))
