"""Requests that are asked for, answered and cancelled while events come in: a callback for each.

Time is that of the clock on the wall, behind by the delay that events may have on their way: so timers fire and absent
events are missed although nothing else happens. A background thread lets time pass (`with live:`), or `tick` does.

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
from tocsin.events.times import AHEAD_US, Clock
from tocsin.events.types import EventType
from tocsin.language import parse
from tocsin.language.eps.ast import Request, Statement
from tocsin.language.siddhi.ast import Query
from tocsin.language.supported import check_supported
from tocsin.language.syntax.ast import Program, Rule

log = logging.getLogger("tocsin.live")

TICK_S = 0.05
"""How often the background thread lets time pass."""


@dataclass(frozen=True, slots=True)
class Notification:
    """What a callback is given: the request, its text, when the last event was (µs), a stable id, and the events."""

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
    """A detector for callers that come and go. All methods can be called from any thread."""

    def __init__(
        self,
        types: Iterable[EventType] = (),
        *,
        delay_us: int = 0,
        ahead_us: int = AHEAD_US,
        now: Callable[[], int] = lambda: time.time_ns() // 1_000,
    ) -> None:
        """`delay_us`: how late events may come. `ahead_us`: how far ahead of the clock; what is further ahead is a dead
        letter. `now`: the time in microseconds since 1970.
        """
        self._now, self._delay_us, self._ahead_us = now, delay_us, ahead_us
        self._detector = Detector([], {type.name: type for type in types}, delay_us=delay_us, times=False)
        self._callbacks: dict[str, Callback] = {}
        self._lock = threading.RLock()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    # ---- requests

    def request(self, what: str | Statement, callback: Callback) -> str:
        """Asks to be called for each notification of a request, or match of a rule, from now on; returns its id."""
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
        """Takes a request back. It is not called any more, and what only it needed is forgotten."""
        with self._lock:
            if id not in self._callbacks:
                raise RuleError(f"there is no request {id}", hint=nearest(id, self._callbacks))
            self._detector.remove(id)
            del self._callbacks[id]

    @property
    def requests(self) -> tuple[str, ...]:
        """The ids of what is asked for."""
        return tuple(self._callbacks)

    # ---- events and time

    def publish(self, events: Data) -> None:
        """Takes events; whoever asked for what they complete is called, when it is certain."""
        with self._lock:
            self._tell(self._detector.push(events, Clock(self._now(), self._ahead_us)))

    def tick(self, now: int | None = None) -> None:
        """Lets time pass, to `now` (µs; default: what the clock says): timers fire, and events that waited are used."""
        with self._lock:
            self._tell(self._detector.advance((self._now() if now is None else now) - self._delay_us))

    def dead_letters(self) -> pa.Table:
        """Takes what could not be used, with the reasons."""
        with self._lock:
            return self._detector.dead_letters()

    def _tell(self, matches: pa.Table) -> None:
        attributes = self._detector.attributes
        for row in matches.to_pylist():
            callback = self._callbacks.get(row["rule"])
            if callback is None:
                continue
            rest = {attribute: row[column] for column, attribute in attributes.items()}
            rest |= {"expired": row["expired"]} if "expired" in row else {}
            told = Notification(row["rule"], rest.get("notification"), row["ts"], row["id"], rest, tuple(row["parts"]))
            try:
                callback(told)
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
