"""Call back for each match, with requests that can be added and cancelled while events arrive.

Time is the wall clock minus the delay that events may have. So timers fire and absent events are detected even if no
event arrives. Time is advanced by a background thread (`with live:`) or by calls of `tick`.

>>> from tocsin import Event
>>> live = Live(now=lambda: 0)
>>> bell = live.request('request Fire on Smoke as s & Heat as h if s.area = h.area notify "run"', print)
>>> live.publish([Event("Smoke", 1, {"area": "A"}), Event("Heat", 2, {"area": "A"})])
>>> live.tick(3)
Fire at 2: run (Smoke@1, Heat@2)
>>> live.cancel(bell)
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from tocsin.engine.detector import NO_INTERESTS, Detector
from tocsin.errors import RuleError, nearest
from tocsin.events.reader import Data
from tocsin.events.times import AHEAD_US, HostClock
from tocsin.events.types import EventType
from tocsin.language import parse
from tocsin.language.eps.ast import Request, Statement
from tocsin.language.siddhi.ast import Query
from tocsin.language.supported import check_supported
from tocsin.language.syntax.ast import Program, Rule

log = logging.getLogger("tocsin.live")

TICK_S = 0.05
"""How often the background thread advances time."""


@dataclass(frozen=True, slots=True)
class Notification:
    """The argument of a callback: one match of a request.

    `request` is the id of the request, and `text` is its notification text. `ts` is the time of the last event (µs),
    `id` is the stable id of the match, and `parts` are the events of the match.
    """

    request: str
    text: str | None
    ts: int
    id: str
    attributes: Mapping[str, Any]
    parts: tuple[Mapping[str, Any], ...]

    def __str__(self) -> str:
        parts = ", ".join(f"{part['type']}@{part['ts']}" for part in self.parts)
        return f"{self.request} at {self.ts}: " + (f"{self.text} ({parts})" if self.text else f"({parts})")


Callback = Callable[[Notification], object]


class Live:
    """A detector with a callback for each of its requests, which can be added and cancelled at any time.

    All methods can be called from any thread.
    """

    def __init__(
        self,
        types: Iterable[EventType] = (),
        *,
        delay_us: int = 0,
        ahead_us: int = AHEAD_US,
        now: Callable[[], int] = lambda: time.time_ns() // 1_000,
    ) -> None:
        """Create a detector without requests.

        `delay_us` is how late events may arrive, and `ahead_us` is how far ahead of the clock they may be. Events that
        are further ahead become dead letters. `now` returns the time in microseconds since 1970.
        """
        self._now, self._delay_us, self._ahead_us = now, delay_us, ahead_us
        self._detector = Detector([], {type.name: type for type in types}, delay_us=delay_us, times=False)
        self._callbacks: dict[str, Callback] = {}
        self._lock = threading.RLock()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    # ---- requests

    def request(self, what: str | Statement, callback: Callback) -> str:
        """Add a request or a rule, and return its id. From now on, each of its matches calls `callback`."""
        program = parse(what) if isinstance(what, str) else Program(rules=(what,))
        check_supported("`Live.request`", program, Rule, Request, Query, remedy=NO_INTERESTS)
        if len(program.rules) != 1:
            raise RuleError(f"one request has one callback, this text has {len(program.rules)}")
        rule = replace(program.rules[0], source=what) if isinstance(what, str) else program.rules[0]
        with self._lock:
            self._detector.declare(program.types)
            self._detector.add([rule])
            self._callbacks[rule.name] = callback
        return rule.name

    def cancel(self, id: str) -> None:
        """Cancel the request `id`: do not call its callback again, and free the state that only this request needs."""
        with self._lock:
            if id not in self._callbacks:
                raise RuleError(f"there is no request {id}", hint=nearest(id, self._callbacks))
            self._detector.remove(id)
            del self._callbacks[id]

    @property
    def requests(self) -> tuple[str, ...]:
        """The ids of the active requests."""
        return tuple(self._callbacks)

    # ---- events and time

    def publish(self, events: Data) -> None:
        """Push events, and call back for each match as soon as it is certain."""
        with self._lock:
            self._notify(self._detector.push(events, HostClock(self._now(), self._ahead_us)))

    def tick(self, now: int | None = None) -> None:
        """Advance time to `now` (µs; default: the clock), so that timers fire and waiting events are processed."""
        with self._lock:
            self._notify(self._detector.advance((self._now() if now is None else now) - self._delay_us))

    def dead_letters(self) -> pa.Table:
        """Return the dead letters with their reasons, and clear them."""
        with self._lock:
            return self._detector.dead_letters()

    def _notify(self, matches: pa.Table) -> None:
        attributes = self._detector.attributes
        for row in matches.to_pylist():
            callback = self._callbacks.get(row["rule"])
            if callback is None:
                continue
            rest = {attribute: row[column] for column, attribute in attributes.items()}
            rest |= {"expired": row["expired"]} if "expired" in row else {}
            notification = Notification(
                row["rule"], rest.get("notification"), row["ts"], row["id"], rest, tuple(row["parts"])
            )
            try:
                callback(notification)
            except Exception:
                log.exception("the callback of %s failed", row["rule"])

    # ---- the background

    def __enter__(self) -> Live:
        self._stopping.clear()
        self._thread = threading.Thread(target=self._run, name="tocsin-live", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _run(self) -> None:
        while not self._stopping.wait(TICK_S):
            try:
                self.tick()
            except Exception:
                log.exception("time could not pass")
                return
