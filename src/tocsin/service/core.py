"""The service without HTTP: publish, deploy and look, from any thread, while one thread detects.

What is published or deployed is a record of the log first (`committer`); the detecting thread reads the log, as far as
it is on the disk, and writes what it finds into feeds. It saves its state now and then, so that after a crash it reads
only from there on. Records up to the position that a feed has are read again for the state alone.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import uuid
from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from tocsin.errors import RuleError, StateError, TocsinError, nearest
from tocsin.events.scheduler import BEGINNING
from tocsin.events.types import SECOND_US
from tocsin.service.committer import Committer
from tocsin.service.deployed import Deployed, Text, read
from tocsin.service.detection import Detection, Row
from tocsin.service.feed import Feed
from tocsin.service.intake import Bounds, Intake, Registry, Taken
from tocsin.service.log import Log
from tocsin.service.rates import Rates
from tocsin.service.records import Change, Deploy, Events, Tick, decode

journal = logging.getLogger("tocsin.service")

STEP_BYTES = 4 << 20
"""How much of the log is detected in at a time, at most."""
SNAPSHOT_BYTES = 32 << 20
SNAPSHOT_S = 60.0
SNAPSHOTS_KEPT = 2
KEYS_KEPT = 10_000
RECENT_EVENTS = 100_000
RECENT_BYTES = 128 << 20
"""How much is at hand for dry runs and questions."""
IDLE_S = 0.05
TICK_S = 0.1
RULES_MAX = 10_000


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
    ahead_us: int = 3_600 * SECOND_US
    clock: str = "events"
    keep_bytes: int = 256 << 20
    """How much of the log is kept for looking back, beyond what a restart needs."""
    backlog_bytes: int = 512 << 20
    """How far detection may be behind before nothing more is accepted."""
    matches_bytes: int = 1 << 30
    segment_bytes: int = 64 << 20
    snapshot_bytes: int = SNAPSHOT_BYTES


@dataclass(frozen=True, slots=True)
class Receipt:
    """What became of a request's events."""

    accepted: int
    rejected: int
    reasons: tuple[tuple[int, str], ...] = ()
    """Of rejected events, the place in the request and why."""
    repeated: bool = False
    """Whether the request had been answered before, under the same key."""


class Service:
    """Everything in one folder. By the `events` clock time is what events say, and when none came for as long as events
    may be late, the newest is taken as the last of its time; by the `wall` clock time passes by itself.
    """

    def __init__(self, folder: str | Path, options: Options | None = None) -> None:
        options = options or Options()
        self.folder, self.options = Path(folder), options
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.log = Log(self.folder / "events", segment_bytes=options.segment_bytes)
        self.matches = Feed(self.folder / "matches", keep_bytes=options.matches_bytes)
        self.letters = Feed(self.folder / "letters", keep_bytes=options.matches_bytes // 8)
        self.detection = Detection(options.delay_us)
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
        self._recent: deque[Events] = deque()
        self._recent_rows = self._recent_bytes = 0
        self._keys: OrderedDict[str, Future[Receipt]] = OrderedDict()
        self._keys_lock = threading.Lock()
        self._tickets: dict[str, Future[tuple[Deployed, ...]]] = {}
        self._changed = threading.Condition()
        self._closing = False
        self._ticking: Future[int] | None = None
        self._heard_s = time.monotonic()
        self._snapshot_position = self.position
        self._snapshot_s = time.monotonic()
        self._recover()
        self.committer = Committer(self.log, self._wake)
        self._thread = threading.Thread(target=self._run, name="tocsin-detection", daemon=True)
        self._thread.start()

    # ---- events

    def read(self, body: bytes, format: str, ts_unit: str | None = None) -> Taken:
        """The events of a body, and why others are none."""
        now_us = time.time_ns() // 1_000
        return self.intake.read(body, format, now_us=now_us, bounds=self._bounds(now_us), ts_unit=ts_unit)

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
        reasons = tuple(sorted(taken.rejected.items()))
        receipt: Future[Receipt] = Future()
        if key is not None:
            with self._keys_lock:
                known = self._keys.get(key)
                if known is not None:
                    return known
                self._remember(key, receipt)
        self.requests += 1
        self.rejected += len(reasons)
        if not taken.accepted:
            receipt.set_result(Receipt(0, len(reasons), reasons))
            return receipt
        record = Events(taken.batch, taken.types, taken.news, key, len(reasons), time.time_ns() // 1_000)

        def committed(end: Future[int]) -> None:
            if (error := end.exception()) is not None:
                if key is not None:
                    with self._keys_lock:
                        self._keys.pop(key, None)
                receipt.set_exception(error)
            else:
                receipt.set_result(Receipt(taken.accepted, len(reasons), reasons))

        self.committer.submit(record.encode()).add_done_callback(committed)
        return receipt

    def publish(self, body: bytes, format: str, key: str | None = None, ts_unit: str | None = None) -> Receipt:
        """Reads and accepts a body, and waits for the receipt."""
        if key is not None and (known := self.receipt(key)) is not None:
            return known.result()
        return self.accept(self.read(body, format, ts_unit), key).result()

    def receipt(self, key: str) -> Future[Receipt] | None:
        """What a key's request got, if there was one."""
        with self._keys_lock:
            known = self._keys.get(key)
        if known is None:
            return None
        again: Future[Receipt] = Future()

        def tell(first: Future[Receipt]) -> None:
            if (error := first.exception()) is not None:
                again.set_exception(error)
            else:
                one = first.result()
                again.set_result(Receipt(one.accepted, one.rejected, one.reasons, repeated=True))

        known.add_done_callback(tell)
        return again

    # ---- rules

    @property
    def rules(self) -> dict[str, Deployed]:
        return dict(self.detection.deployed)

    def check(self, source: str, language: str | None = None) -> Text:
        """Reads a text of rules and says what is wrong with it here; rules of the same names would be replaced."""
        text = read(source, language)
        self.detection.check(text, [name for name in text.names if name in self.detection.deployed])
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
        self.detection.check(text, there)
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

    # ---- looking back

    def recent(self, types: Iterable[str] | None = None) -> list[Events]:
        """The last events, oldest first; records without any of these types may be left out."""
        wanted = None if types is None else set(types)
        return [one for one in list(self._recent) if wanted is None or not wanted.isdisjoint(one.types)]

    @property
    def backlog_bytes(self) -> int:
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
        done: list[tuple[str, tuple[Deployed, ...] | Exception]] = []
        at_us = 0
        position = self.position
        for record in self.log.read(position, min(STEP_BYTES, stop - position)):
            position = record.end
            match decode(record.payload):
                case Events() as events:
                    waiting.append(events)
                    at_us = events.at_us
                case Tick(ts):
                    found += self._take(waiting)
                    found += self.detection.tick(ts)
                case Change() as change:
                    found += self._take(waiting)
                    try:
                        done.append((change.ticket, self.detection.change(change)))
                        self.registry.learn(self.detection.kinds)
                    except RuleError as error:
                        done.append((change.ticket, error))
        found += self._take(waiting)
        dead = self.detection.letters()
        if matches:
            self.matches.write(found, position)
        if letters:
            self.letters.write(dead, position)
        self.position = position
        if at_us:
            self.lag_s = max(0.0, time.time() - at_us / SECOND_US)
        for ticket, outcome in done:
            self._answer(ticket, outcome)

    def _take(self, waiting: list[Events]) -> list[Row]:
        if not waiting:
            return []
        self._heard_s = time.monotonic()
        found = self.detection.take(waiting)
        for record in waiting:
            self._note(record)
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
            timed = detection.detector.next_ts is not None or detection.plan.is_timed or bool(detection.moving)
            ts = time.time_ns() // 1_000 - options.delay_us
            if not timed or ts <= detection.watermark:
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

    def _note(self, record: Events) -> None:
        self._recent.append(record)
        self._recent_rows += record.batch.num_rows
        self._recent_bytes += record.batch.nbytes
        while (
            self._recent_rows - self._recent[0].batch.num_rows >= RECENT_EVENTS
            or self._recent_bytes - self._recent[0].batch.nbytes >= RECENT_BYTES
        ):
            gone = self._recent.popleft().batch
            self._recent_rows -= gone.num_rows
            self._recent_bytes -= gone.nbytes

    def _note_rates(self) -> None:
        now_s = time.monotonic()
        self.event_rates.sample(now_s, self.detection.events_by_type)
        self.match_rates.sample(now_s, self.detection.matches_by_rule)

    def _remember(self, key: str, receipt: Future[Receipt]) -> None:
        self._keys[key] = receipt
        while len(self._keys) > KEYS_KEPT:
            self._keys.popitem(last=False)

    # ---- state

    def _recover(self) -> None:
        """Goes on where the last snapshot was taken: reads the rest of the log again, telling nothing twice."""
        position = self.log.begin
        for path in sorted((self.folder / "state").glob("*.state"), reverse=True):
            try:
                self.detection, more = Detection.restore(path.read_bytes())
            except StateError as error:
                journal.warning("%s is left out: %s", path, error)
                continue
            position = int(path.stem)
            self.registry.learn(self.detection.kinds)
            self.events, self.rejected = more["events"], more["rejected"]
            for key, accepted, rejected in more["keys"]:
                self._remember(key, _done(Receipt(accepted, rejected)))
            break
        else:
            if self.log.begin:
                raise StateError(f"{self.folder} has no state that fits its log: it was trimmed behind a snapshot")
        for record in self.log.read(self.log.begin):
            events = decode(record.payload)
            if isinstance(events, Events):
                if record.position < position:
                    self._note(events)
                else:
                    self.registry.learn(events.news)
                    self.rejected += events.rejected
                if events.key is not None:
                    self._remember(events.key, _done(Receipt(events.batch.num_rows, events.rejected)))
        self.position = self._snapshot_position = position
        for end in sorted({self.matches.upto, self.letters.upto, self.log.end}):
            while self.position < end:
                self._step(end, matches=end > self.matches.upto, letters=end > self.letters.upto)

    def _save_sometimes(self) -> None:
        behind = self.position - self._snapshot_position
        aged = behind > 0 and time.monotonic() - self._snapshot_s > SNAPSHOT_S
        if behind >= self.options.snapshot_bytes or aged:
            self._save()

    def _save(self) -> None:
        """Writes the state down, and lets go of the log that nobody needs any more."""
        folder = self.folder / "state"
        folder.mkdir(exist_ok=True, mode=0o700)
        with self._keys_lock:
            done = [(key, one.result()) for key, one in self._keys.items() if one.done() and not one.exception()]
        keys = [(key, receipt.accepted, receipt.rejected) for key, receipt in done]
        data = self.detection.snapshot({"events": self.events, "rejected": self.rejected, "keys": keys})
        fresh = folder / f".{self.position:020}.part"
        with fresh.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(folder / f"{self.position:020}.state")
        handle = os.open(folder, os.O_RDONLY)
        os.fsync(handle)
        os.close(handle)
        self._snapshot_position, self._snapshot_s = self.position, time.monotonic()
        states = sorted(folder.glob("*.state"))
        for old in states[:-SNAPSHOTS_KEPT]:
            old.unlink()
        oldest = int(states[-SNAPSHOTS_KEPT:][0].stem)
        self.log.trim(min(oldest, self.log.end - self.options.keep_bytes))


def _done(receipt: Receipt) -> Future[Receipt]:
    future: Future[Receipt] = Future()
    future.set_result(receipt)
    return future


def status(service: Service) -> dict[str, Any]:
    """How the service is doing, in numbers."""
    detection = service.detection
    return {
        "state": "failed" if service.failure else "running",
        "failure": service.failure,
        "uptime_s": round(time.time() - service.started_s, 1),
        "events": service.events,
        "rejected": service.rejected,
        "dead_letters": detection.dead,
        "matches": service.matches.last,
        "rules": len(detection.deployed),
        "lag_ms": round(service.lag_s * 1_000, 2),
        "backlog_bytes": service.backlog_bytes,
        "log_bytes": service.log.size_bytes,
        "commits": service.committer.groups,
        "requests": service.requests,
        "watermark_us": detection.watermark if detection.largest > detection.watermark or detection.ticked else None,
        "events_per_s": round(sum(service.event_rates.per_s().values()), 2),
        "matches_per_s": round(sum(service.match_rates.per_s().values()), 2),
    }


__all__: Sequence[str] = ("Busy", "Conflict", "NotFound", "Options", "Receipt", "Service", "status")
