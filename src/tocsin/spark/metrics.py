"""How is a stream doing? Counted from the progress that Spark reports after each batch, and told as Prometheus text.

    counters = Counters()
    session.streams.addListener(Listener(counters))
    counters.text()

Counts are since the listener was added. What slots say of themselves stands in the progress under the name that
`streaming` observes it by; a slot that had nothing to do in a batch says nothing, and its last word holds.
"""

from __future__ import annotations

import json
import os
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from time import time
from typing import Any

from pyspark.sql.streaming import StreamingQueryListener

from tocsin.errors import TocsinError
from tocsin.process import metric
from tocsin.spark.connectors import Measured, measured
from tocsin.spark.stream import OBSERVED

CONTENT = "text/plain; version=0.0.4; charset=utf-8"
LOOPBACK = "127.0.0.1"
SEEN = "tocsin_seen"
"""What the progress calls the counts of `sources.measures`, where the events are observed."""


@dataclass
class Counters:
    """What was counted. `taken` is called after each batch."""

    batches: int = 0
    input_rows: int = 0
    events: int = 0
    """Where events are observed: how many came."""
    bad_lines: int = 0
    span: tuple[int, int] | None = None
    """The first and the last time of the events (µs)."""
    routed: int = 0
    late: int = 0
    letters: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    by_rule: Counter[str] = field(default_factory=Counter)
    stage_ms: Counter[str] = field(default_factory=Counter)
    slot_s: dict[int, float] = field(default_factory=lambda: defaultdict(float))
    state_bytes: dict[int, int] = field(default_factory=dict)
    watermark_us: int | None = None
    """The least of the slots'."""
    rows_per_s: float = 0.0
    batch_ms: int = 0
    active: bool = False
    taken: list[Callable[[], None]] = field(default_factory=list)
    _watermarks: dict[int, int] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def matches(self) -> int:
        return self.by_rule.total()

    def take(self, progress: Any) -> None:
        """Counts one batch."""
        with self._lock:
            self.active = True
            self.batches += 1
            self.input_rows += max(0, progress.numInputRows)
            durations = dict(progress.durationMs)
            self.batch_ms = durations.pop("triggerExecution", 0)
            self.rows_per_s = 1000 * progress.numInputRows / self.batch_ms if self.batch_ms else 0.0
            self.stage_ms.update(durations)
            seen = progress.observedMetrics.get(SEEN)
            if seen is not None:
                self._take_seen(measured(seen.asDict()))
            observed = progress.observedMetrics.get(OBSERVED)
            for told in observed["slots"] if observed is not None else ():
                self._take_slot(json.loads(told))
        for call in self.taken:
            call()

    def _take_seen(self, seen: Measured) -> None:
        self.events += seen.events
        self.bad_lines += seen.bad_lines
        if seen.first is not None and seen.last is not None:
            first, last = self.span or (seen.first, seen.last)
            self.span = min(first, seen.first), max(last, seen.last)

    def _take_slot(self, told: dict[str, Any]) -> None:
        slot = told["slot"]
        self.routed += told["events"]
        self.late += told["late"]
        self.letters += told.get("letters", 0)
        self.reasons.update(told.get("reasons", {}))
        self.by_rule.update(told["by_rule"])
        self.slot_s[slot] += told.get("seconds", 0)
        self.state_bytes[slot] = told.get("state_bytes", 0)
        if told.get("watermark") is not None:
            self._watermarks[slot] = told["watermark"]
            self.watermark_us = min(self._watermarks.values())

    def lag_s(self) -> float | None:
        """How far the watermark is behind the clock on the wall."""
        return None if self.watermark_us is None else time() - self.watermark_us / 1e6

    def text(self) -> str:
        """Everything in Prometheus's text format."""
        with self._lock:
            return "".join(self._lines())

    def _lines(self) -> Iterator[str]:
        none: dict[str, float] = {}
        yield from metric("batches_total", "counter", "Micro-batches that ended.", self.batches)
        yield from metric("input_rows_total", "counter", "Rows that came in, events and control rows.", self.input_rows)
        yield from metric("routed_events_total", "counter", "Events sent to slots, each time counted.", self.routed)
        yield from metric("late_events_total", "counter", "Events that came after the watermark.", self.late)
        yield from metric(
            "dead_letters_total", "counter", "Events that could not be used, late ones too.", self.letters
        )
        yield from metric("matches_total", "counter", "Composite events found.", dict(self.by_rule), "rule")
        yield from metric("state_bytes", "gauge", "Bytes of state.", self.state_bytes, "slot")
        seconds = {stage: ms / 1000 for stage, ms in self.stage_ms.items()}
        yield from metric("stage_seconds_total", "counter", "Time for each stage of the batches.", seconds, "stage")
        yield from metric("slot_seconds_total", "counter", "Time that slots were at work.", dict(self.slot_s), "slot")
        yield from metric("batch_seconds", "gauge", "Time of the last batch.", self.batch_ms / 1000)
        lag = self.lag_s()
        yield from metric("watermark_lag_seconds", "gauge", "Clock minus watermark.", none if lag is None else lag)
        yield from metric("query_active", "gauge", "Whether the query runs.", int(self.active))


class Listener(StreamingQueryListener):  # type: ignore[misc]
    """Gives the progress of queries to counters: of the query with that name, or of all."""

    def __init__(self, counters: Counters, name: str | None = None) -> None:
        self._counters, self._name = counters, name

    def onQueryStarted(self, event: Any) -> None:
        if self._name in (None, event.name):
            self._counters.active = True

    def onQueryProgress(self, event: Any) -> None:
        if self._name in (None, event.progress.name):
            self._counters.take(event.progress)

    def onQueryIdle(self, event: Any) -> None:
        pass

    def onQueryTerminated(self, event: Any) -> None:
        self._counters.active = False


@contextmanager
def published(counters: Counters, where: str | None) -> Iterator[str | None]:
    """The counters for Prometheus to read: on a port of this machine (0 for any), or in a file, whole at any time.

    Gives where they are.
    """
    if where is None:
        yield None
    elif where.isdigit():
        with _served(counters, int(where)) as address:
            yield address
    else:
        path = Path(where)
        write_text(counters, path)
        counters.taken.append(lambda: write_text(counters, path))
        yield where
        write_text(counters, path)


def write_text(counters: Counters, path: Path) -> None:
    """Puts the text into a file, at once."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        fresh.write_text(counters.text(), encoding="utf-8")
        fresh.replace(path)
    except OSError as error:
        raise TocsinError(f"{path} cannot be written: {error.strerror}") from None


@contextmanager
def _served(counters: Counters, port: int) -> Iterator[str]:
    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = self.path in ("/", "/metrics")
            body = counters.text().encode() if found else b"the metrics are at /metrics\n"
            self.send_response(200 if found else 404)
            self.send_header("Content-Type", CONTENT if found else "text/plain; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    try:
        server = ThreadingHTTPServer((LOOPBACK, port), Page)
    except (OSError, OverflowError) as error:
        raise TocsinError(f"port {port} cannot be used for metrics: {error}") from None
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://{LOOPBACK}:{server.server_address[1]}/metrics"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
