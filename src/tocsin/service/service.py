"""The service without HTTP: publish, deploy and look, from any thread, while one thread detects.

What is published or deployed is a record of the log first (`committer`); the detecting thread reads the log, as far as
it is on the disk, and writes what it finds into feeds. It saves its state now and then, so that after a crash it reads
only from there on. Records up to the position that a feed has are read again for the state alone.
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
from tocsin.service.deployments import Deployed, Text, read
from tocsin.service.embedded_backend import Detection, Row, check_loadable
from tocsin.service.event_intake import REASONS_MAX, Bounds, Intake, Registry, Taken
from tocsin.service.feed import Feed, Recent
from tocsin.service.rates import Rates
from tocsin.service.records import Change, Committer, Deploy, Events, Receipt, Receipts, Tick, decode
from tocsin.storage import Log, States

journal = logging.getLogger("tocsin.service")

STEP_BYTES = 4 << 20
"""How much of the log is detected in at a time, at most."""
STEP_BYTES_FAR = 32 << 20
"""The same where a step is dear, as on Spark."""
ENGINE = "engine"
"""The file that says which engine's state a folder has."""
SNAPSHOT_BYTES = 32 << 20
SNAPSHOT_S = 60.0
IDLE_S = 0.05
TICK_S = 0.1
RULES_MAX = 10_000


def engine_of(folder: Path) -> str | None:
    """The engine that detects in a service's folder; None if there is no service yet."""
    path = folder / ENGINE
    if path.exists():
        return path.read_text().strip()
    return "embedded" if any(segment.stat().st_size for segment in (folder / "events").glob("*.log")) else None


class Busy(TocsinError):
    """Nothing can be taken now, but later."""


class Conflict(RuleError):
    """There is a rule of that name already."""


class NotFound(TocsinError):
    """There is no such thing."""


@dataclass(frozen=True, slots=True)
class Options:
    """How a service behaves. `clock`: `events` or `wall`, what time is; see `Service`."""

    delay_us: int = SECOND_US
    ahead_us: int = AHEAD_US
    """How far ahead of this machine's clock an event may be."""
    clock: str = "events"
    keep_bytes: int = 256 << 20
    """How much of the log is kept for looking back, beyond what a restart needs."""
    backlog_bytes: int = 512 << 20
    """How far detection may be behind before nothing more is accepted."""
    matches_bytes: int = 1 << 30
    segment_bytes: int = 64 << 20
    snapshot_bytes: int = SNAPSHOT_BYTES
    engine: str = "embedded"
    """`embedded`: in this process; `spark`: by a Structured Streaming query that reads the log."""
    master: str | None = None
    """Where Spark runs, if not on this machine."""


class Service:
    """Everything in one folder. By the `events` clock time is what events say, and when none came for as long as events
    may be late, the newest is taken as the last of its time; by the `wall` clock time passes by itself.
    """

    def __init__(self, folder: str | Path, options: Options | None = None) -> None:
        options = options or Options()
        self.folder, self.options = Path(folder), options
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if (kept := engine_of(self.folder)) is not None and kept != options.engine:
            raise StateError(f"{self.folder} has the state of the engine '{kept}': go on with --engine {kept}")
        self.log = Log(self.folder / "events", segment_bytes=options.segment_bytes)
        self.matches = Feed(self.folder / "matches", keep_bytes=options.matches_bytes)
        self.letters = Feed(self.folder / "letters", keep_bytes=options.matches_bytes // 8)
        self.detection: Detection
        self.position = self.log.begin
        """Up to where the log has been detected in."""
        self.registry = Registry()
        self.intake = Intake(
            self.registry, lambda: self.detection.plan.defined, lambda new: self.detection.check_kinds(new)
        )
        self.event_rates, self.match_rates = Rates(), Rates()
        self.failure: str | None = None
        self.started_s = time.time()
        self.events = self.rejected = self.requests = 0
        self.lag_s = 0.0
        """How long ago the last detected events were accepted, when they were."""
        self.recent = Recent()
        self._states = States(self.folder / "state")
        self._receipts = Receipts()
        self._tickets: dict[str, Future[tuple[Deployed, ...]]] = {}
        self._changed = threading.Condition()
        self._closing = False
        self._ticking: Future[int] | None = None
        self._heard_s = time.monotonic()
        self._snapshot_position = self.position
        self._snapshot_s = time.monotonic()
        self._recover()
        (self.folder / ENGINE).write_text(options.engine)
        self.committer = Committer(self.log, self._wake)
        self._thread = threading.Thread(target=self._run, name="tocsin-detection", daemon=True)
        self._thread.start()

    # ---- events

    def read(self, body: bytes, format: str, ts_unit: str | None = None, id: str | None = None) -> Taken:
        """The events of a body, and why others are none. `id`: what holds the source's own id of an event."""
        now_us = time.time_ns() // 1_000
        return self.intake.read(
            body, format, now_us=now_us, bounds=self._bounds(now_us), columns=Columns(ts_unit=ts_unit, id=id)
        )

    def take(self, table: pa.Table) -> Taken:
        """The events of a table, and why others are none."""
        now_us = time.time_ns() // 1_000
        return self.intake.table(table, now_us=now_us, bounds=self._bounds(now_us))

    def _bounds(self, now_us: int) -> Bounds:
        return Bounds(self.detection.watermark, now_us + self.options.ahead_us)

    def accept(self, taken: Taken, key: str | None = None) -> Future[Receipt]:
        """Puts events into the log. The receipt comes when they are on the disk.

        `key`: what the publisher calls this request; the same one again gets the first one's receipt.
        """
        self._check_alive()
        if self.log.end - self.position > self.options.backlog_bytes:
            raise Busy("detection is behind: try again in a moment")
        count = len(taken.rejected)
        reasons = tuple((place, taken.reason(place)) for place in sorted(taken.rejected)[:REASONS_MAX])
        receipt: Future[Receipt] = Future()
        if key is not None and (known := self._receipts.claim(key, receipt)) is not None:
            return known
        self.requests += 1
        self.rejected += count
        if not taken.accepted and not count:
            receipt.set_result(Receipt(0, 0))
            return receipt
        record = Events(taken.batch, taken.types, taken.news, key, count, taken.letters, time.time_ns() // 1_000)

        def committed(end: Future[int]) -> None:
            if (error := end.exception()) is not None:
                if key is not None:
                    self._receipts.drop(key)
                receipt.set_exception(error)
            else:
                receipt.set_result(Receipt(taken.accepted, count, reasons))

        self.committer.submit(record.encode()).add_done_callback(committed)
        return receipt

    def publish(self, body: bytes, format: str, key: str | None = None, ts_unit: str | None = None) -> Receipt:
        """Reads and accepts a body, and waits for the receipt."""
        if key is not None and (known := self.receipt(key)) is not None:
            return known.result()
        return self.accept(self.read(body, format, ts_unit), key).result()

    def receipt(self, key: str) -> Future[Receipt] | None:
        """What a key's request got, if there was one."""
        return self._receipts.find(key)

    # ---- rules

    @property
    def rules(self) -> dict[str, Deployed]:
        return dict(self.detection.deployed)

    def check(self, source: str, language: str | None = None) -> Text:
        """Reads a text of rules and says what is wrong with it here; rules of the same names would be replaced."""
        text = read(source, language)
        there = [name for name in text.names if name in self.detection.deployed]
        check_loadable(self.detection.check(text, there), text)
        return text

    def deploy(
        self, source: str, language: str | None = None, *, replace: bool = False, by: str = ""
    ) -> Future[tuple[Deployed, ...]]:
        """Adds the rules of a text. The result comes when they are at work."""
        text = read(source, language)
        there = tuple(name for name in text.names if name in self.detection.deployed)
        if there and not replace:
            message = f"there is a rule {there[0]} already"
            raise Conflict(message, hint="Replace it, or give this one another name.")
        if len(self.detection.deployed) + len(text.names) > RULES_MAX:
            raise RuleError(f"there are at most {RULES_MAX:,} rules")
        check_loadable(self.detection.check(text, there), text)
        return self._change(Change(there, Deploy(source, text.language), by=by))

    def remove(self, id: str, by: str = "") -> Future[tuple[Deployed, ...]]:
        """Removes a rule. The result comes when it is gone."""
        if id not in self.detection.deployed:
            raise NotFound(f"there is no rule {id}. {nearest(id, self.detection.deployed) or ''}".rstrip())
        return self._change(Change((id,), by=by))

    def _change(self, change: Change) -> Future[tuple[Deployed, ...]]:
        self._check_alive()
        ticket = uuid.uuid4().hex
        future: Future[tuple[Deployed, ...]] = Future()
        self._tickets[ticket] = future
        record = Change(change.remove, change.deploy, ticket, change.by, time.time_ns() // 1_000)

        def failed(end: Future[int]) -> None:
            if (error := end.exception()) is not None and self._tickets.pop(ticket, None) is not None:
                future.set_exception(error)

        self.committer.submit(record.encode()).add_done_callback(failed)
        return future

    @property
    def backlog_bytes(self) -> int:
        """What was accepted and not detected in yet."""
        return self.log.end - self.position

    # ---- life

    def close(self) -> None:
        """Detects in what was accepted, saves the state and ends."""
        self.committer.close()
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join()
        if self.failure is None:
            self._save()
        with suppress(TocsinError):
            self.detection.close()
        for part in (self.log, self.matches, self.letters):
            part.close()

    def wait(self, timeout_s: float = 300.0) -> None:
        """Waits until everything that was accepted by now has been detected in."""
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
                        self._changed.wait(TICK_S if self.detection.deployed else 1.0)
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
            journal.exception("detection has stopped")
            for ticket in list(self._tickets):
                self._tickets.pop(ticket).set_exception(StateError(f"detection has stopped: {self.failure}"))

    def _step(self, stop: int, *, matches: bool = True, letters: bool = True) -> None:
        """Detects in some records, at most up to a position, and writes down what is found, where that is wanted."""
        found: list[Row] = []
        waiting: list[Events] = []
        dead: list[Row] = []
        done: list[tuple[str, tuple[Deployed, ...] | Exception]] = []
        at_us = 0
        position = self.position
        stepwise = self.detection.stepwise
        step_bytes = STEP_BYTES_FAR if stepwise else STEP_BYTES
        for record in self.log.read(position, min(step_bytes, stop - position)):
            place = (record.position, record.end)
            one = decode(record.payload)
            if stepwise and waiting and not isinstance(one, Events):
                break
            position = record.end
            match one:
                case Events() as events:
                    events.place = place
                    waiting.append(events)
                    dead += [letter._asdict() for letter in events.letters]
                    at_us = events.at_us
                case Tick(ts):
                    found += self._take(waiting)
                    found += self.detection.tick(ts, place)
                    if stepwise:
                        break
                case Change() as change:
                    found += self._take(waiting)
                    try:
                        done.append((change.ticket, self.detection.change(change)))
                        self.registry.learn(self.detection.kinds)
                    except RuleError as error:
                        done.append((change.ticket, error))
        found += self._take(waiting)
        dead += self.detection.letters()
        if matches:
            self.matches.write(found, position)
        if letters:
            self.letters.write(dead, position)
        self.detection.written()
        self.position = position
        if at_us:
            self.lag_s = max(0.0, time.time() - at_us / SECOND_US)
        for ticket, outcome in done:
            self._answer(ticket, outcome)

    def _take(self, waiting: list[Events]) -> list[Row]:
        if not waiting:
            return []
        found = self.detection.take(waiting)
        for record in waiting:
            if record.batch.num_rows:
                self._heard_s = time.monotonic()
                self.recent.note(record)
                self.events += record.batch.num_rows
        waiting.clear()
        return found

    def _answer(self, ticket: str, outcome: tuple[Deployed, ...] | Exception) -> None:
        future = self._tickets.pop(ticket, None)
        if future is None:
            return
        if isinstance(outcome, Exception):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)

    def _pass_time(self) -> None:
        """Lets time pass where something may wait for that."""
        detection, options = self.detection, self.options
        if not detection.deployed or (self._ticking is not None and not self._ticking.done()):
            return
        if options.clock == "wall":
            ts = time.time_ns() // 1_000 - options.delay_us
            if not detection.waits or ts <= detection.watermark:
                return
        else:
            ts = detection.largest + 1
            if detection.largest == BEGINNING:
                return
            quiet_s = time.monotonic() - self._heard_s
            if ts <= detection.ticked or quiet_s < IDLE_S + options.delay_us / SECOND_US:
                return
        with suppress(TocsinError):  # the service may be stopping
            self._ticking = self.committer.submit(Tick(ts).encode())

    def _note_rates(self) -> None:
        now_s = time.monotonic()
        self.event_rates.sample(now_s, self.detection.events_by_type)
        self.match_rates.sample(now_s, self.detection.matches_by_rule)

    # ---- state

    def _made(self, delay_us: int) -> Detection:
        """Rules at work, none so far."""
        if self.options.engine == "embedded":
            return Detection(delay_us)
        from tocsin.service.spark_backend import SparkDetection

        return SparkDetection(delay_us, self.folder / "spark", self.folder / "events", self.options.master)

    def _recover(self) -> None:
        """Goes on where the last snapshot was taken: reads the rest of the log again, telling nothing twice."""
        position = self.log.begin
        for at, path in self._states.newest_first():
            try:
                self.detection, more = Detection.restore(path.read_bytes(), self._made)
            except StateError as error:
                journal.warning("%s is left out: %s", path, error)
                continue
            position = at
            self.registry.learn(self.detection.kinds)
            self.events, self.rejected = more["events"], more["rejected"]
            for key, accepted, rejected in more["keys"]:
                self._receipts.note(key, accepted, rejected)
            break
        else:
            if self.log.begin:
                raise StateError(f"{self.folder} has no state that fits its log: it was trimmed behind a snapshot")
            self.detection = self._made(self.options.delay_us)
        for record in self.log.read(self.log.begin):
            events = decode(record.payload)
            if isinstance(events, Events):
                if record.position < position:
                    if events.batch.num_rows:
                        self.recent.note(events)
                else:
                    self.registry.learn(events.news)
                    self.rejected += events.rejected
                if events.key is not None:
                    self._receipts.note(events.key, events.batch.num_rows, events.rejected)
        self.position = self._snapshot_position = position
        for end in sorted({self.matches.upto, self.letters.upto, self.log.end, *self.detection.marks()}):
            while self.position < end:
                self._step(end, matches=end > self.matches.upto, letters=end > self.letters.upto)

    def _save_sometimes(self) -> None:
        behind = self.position - self._snapshot_position
        aged = behind > 0 and time.monotonic() - self._snapshot_s > SNAPSHOT_S
        if behind >= self.options.snapshot_bytes or aged:
            self._save()

    def _save(self) -> None:
        """Writes the state down, and lets go of the log that nobody needs any more."""
        self.detection.settle()
        more = {"events": self.events, "rejected": self.rejected, "keys": self._receipts.all()}
        oldest = self._states.save(self.position, self.detection.snapshot(more))
        self._snapshot_position, self._snapshot_s = self.position, time.monotonic()
        self.log.trim(min(oldest, self.log.end - self.options.keep_bytes))
