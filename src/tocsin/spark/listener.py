"""Count the progress that Spark reports after each batch of a stream, and export it as Prometheus metrics.

    counters = Counters()
    session.streams.addListener(Listener(counters))
    counters.text()

Counts begin when the listener is added. The progress includes the metrics of slots, under the name that `stream`
observes them by. A slot without work in a batch reports no metrics, and its last values stay.
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
from tocsin.spark.connectors import InputStatistics, input_statistics
from tocsin.spark.stream import OBSERVED

CONTENT = "text/plain; version=0.0.4; charset=utf-8"
LOOPBACK = "127.0.0.1"
INPUT_METRICS = "tocsin_seen"
"""The name under which the progress has the `connectors.statistics_columns`, if the events are observed."""


@dataclass
class Counters:
    """The counts and last values of a streaming query."""

    batches: int = 0
    input_rows: int = 0
    events: int = 0
    """The number of events that were read, if the events are observed (see `INPUT_METRICS`)."""
    bad_lines: int = 0
    span: tuple[int, int] | None = None
    """The earliest and the latest time of the events (µs)."""
    routed: int = 0
    """The number of events that were sent to slots, counted once for each slot."""
    late: int = 0
    dead_letters: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    by_rule: Counter[str] = field(default_factory=Counter)
    stage_ms: Counter[str] = field(default_factory=Counter)
    slot_s: dict[int, float] = field(default_factory=lambda: defaultdict(float))
    state_bytes: dict[int, int] = field(default_factory=dict)
    watermark_us: int | None = None
    """The least watermark of all slots."""
    rows_per_s: float = 0.0
    batch_ms: int = 0
    active: bool = False
    taken: list[Callable[[], None]] = field(default_factory=list)
    """The functions to call after each batch."""
    _watermarks: dict[int, int] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def matches(self) -> int:
        return self.by_rule.total()

    def take(self, progress: Any) -> None:
        """Add the progress of one batch to the counts."""
        with self._lock:
            self.active = True
            self.batches += 1
            self.input_rows += max(0, progress.numInputRows)
            durations = dict(progress.durationMs)
            self.batch_ms = durations.pop("triggerExecution", 0)
            self.rows_per_s = 1000 * progress.numInputRows / self.batch_ms if self.batch_ms else 0.0
            self.stage_ms.update(durations)
            input = progress.observedMetrics.get(INPUT_METRICS)
            if input is not None:
                self._add_input(input_statistics(input.asDict()))
            observed = progress.observedMetrics.get(OBSERVED)
            for metrics in observed["slots"] if observed is not None else ():
                self._add_slot(json.loads(metrics))
        for call in self.taken:
            call()

    def _add_input(self, input: InputStatistics) -> None:
        self.events += input.events
        self.bad_lines += input.bad_lines
        if input.first is not None and input.last is not None:
            first, last = self.span or (input.first, input.last)
            self.span = min(first, input.first), max(last, input.last)

    def _add_slot(self, metrics: dict[str, Any]) -> None:
        slot = metrics["slot"]
        self.routed += metrics["events"]
        self.late += metrics["late"]
        self.dead_letters += metrics.get("letters", 0)
        self.reasons.update(metrics.get("reasons", {}))
        self.by_rule.update(metrics["by_rule"])
        self.slot_s[slot] += metrics.get("seconds", 0)
        self.state_bytes[slot] = metrics.get("state_bytes", 0)
        if metrics.get("watermark") is not None:
            self._watermarks[slot] = metrics["watermark"]
            self.watermark_us = min(self._watermarks.values())

    def lag_s(self) -> float | None:
        """Return how many seconds the watermark is behind the wall clock; None without a watermark."""
        return None if self.watermark_us is None else time() - self.watermark_us / 1e6

    def text(self) -> str:
        """Return all metrics in Prometheus's text format."""
        with self._lock:
            return "".join(self._lines())

    def _lines(self) -> Iterator[str]:
        none: dict[str, float] = {}
        yield from metric("batches_total", "counter", "Micro-batches that ended.", self.batches)
        yield from metric("input_rows_total", "counter", "Rows read, events and control rows.", self.input_rows)
        yield from metric(
            "routed_events_total", "counter", "Events sent to slots, counted once for each slot.", self.routed
        )
        yield from metric("late_events_total", "counter", "Events that arrived after the watermark.", self.late)
        yield from metric(
            "dead_letters_total", "counter", "Events that were rejected, including late ones.", self.dead_letters
        )
        yield from metric("matches_total", "counter", "Composite events.", dict(self.by_rule), "rule")
        yield from metric("state_bytes", "gauge", "Bytes of state.", self.state_bytes, "slot")
        seconds = {stage: ms / 1000 for stage, ms in self.stage_ms.items()}
        yield from metric("stage_seconds_total", "counter", "Time of each stage of the batches.", seconds, "stage")
        yield from metric("slot_seconds_total", "counter", "Processing time of slots.", dict(self.slot_s), "slot")
        yield from metric("batch_seconds", "gauge", "Time of the last batch.", self.batch_ms / 1000)
        lag = self.lag_s()
        yield from metric("watermark_lag_seconds", "gauge", "Clock minus watermark.", none if lag is None else lag)
        yield from metric("query_active", "gauge", "Whether the query runs.", int(self.active))


class Listener(StreamingQueryListener):  # type: ignore[misc]
    """Adds the progress of the query `name`, or of all queries, to `counters`."""

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
    """Publish `counters` for Prometheus in the `with` block, and yield the address.

    `where` is a port of this machine (0 for any free port), or a file that is replaced atomically after each batch. If
    it is None, nothing is published.
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
    """Write the text of `counters` to the file `path`, which is replaced atomically."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        temporary.write_text(counters.text(), encoding="utf-8")
        temporary.replace(path)
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
