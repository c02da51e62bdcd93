"""Show the progress of a `--follow` run on Spark, and stop it on Ctrl-C or SIGTERM."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import TYPE_CHECKING, Any

from tocsin.cli import console as showing
from tocsin.cli.console import console, rate
from tocsin.cli.run import RunReport

if TYPE_CHECKING:
    import pyarrow as pa

    from tocsin.spark.listener import Counters
    from tocsin.spark.runs import FollowRun

LOOK_S = 0.5
SAY_S = 5.0


class StopSignal:
    """A signal handler that records in `by` whether SIGINT or SIGTERM has arrived. `wait` waits for either signal."""

    def __init__(self) -> None:
        self.by: int | None = None
        self._event = threading.Event()

    def __call__(self, number: int, frame: Any) -> None:
        self.by = number
        self._event.set()

    def wait(self, seconds: float) -> bool:
        return self._event.wait(seconds)


@contextmanager
def stopping() -> Iterator[StopSignal]:
    """Handle SIGINT and SIGTERM in the block of a `with` statement, by recording them in the `StopSignal`."""
    stopped = StopSignal()
    before = {number: signal.signal(number, stopped) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stopped
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def follow(followed: FollowRun, metrics: str | None) -> tuple[RunReport, int]:
    """Process new events until SIGINT or SIGTERM. Return the report and the exit code.

    `metrics` is the file or the local port for Prometheus metrics.
    """
    from tocsin.spark.listener import published

    begun = perf_counter()
    counters = followed.counters
    with stopping() as stopped, published(counters, metrics) as where, followed.running():
        if where is not None and where.startswith("http"):
            showing.say(f"metrics: {where}", err=True)
        _watch(followed, stopped)
    counts = {
        "events": counters.events,
        "late": counters.late,
        "dead": counters.dead_letters - counters.bad_lines,
        "matches": counters.matches,
        "bad_lines": counters.bad_lines,
    }
    seconds = perf_counter() - begun
    report = RunReport(
        counts, counters.by_rule, None, counters.dead_letters, [], seconds, counters.reasons, counters.span
    )
    return report, 130 if stopped.by == signal.SIGINT else 0


def _watch(followed: FollowRun, stopped: StopSignal) -> None:
    stderr = console(stderr=True)
    printed_s, printed = perf_counter(), -1
    with stderr.status("starting") as status:
        while not stopped.wait(LOOK_S):
            followed.poll()
            text = line(followed.counters)
            if stderr.is_terminal:
                status.update(text)
            elif perf_counter() - printed_s >= SAY_S and followed.counters.batches != printed:
                showing.say(text, err=True)
                printed_s, printed = perf_counter(), followed.counters.batches


def line(counters: Counters) -> str:
    """Return the progress of the run as a line of text."""
    if not counters.batches:
        return "waiting for the first batch"
    parts = [
        f"{counters.events:,} events",
        rate(round(counters.rows_per_s), 1),
        f"{counters.matches:,} matches",
        f"state {_bytes(sum(counters.state_bytes.values()))}",
        f"batch {counters.batch_ms / 1000:.1f} s",
    ]
    lag = counters.lag_s()
    if lag is not None:
        parts.insert(2, f"lag {_span(lag)}")
    if counters.dead_letters:
        parts.append(f"{counters.dead_letters:,} rejected")
    return ", ".join(parts)


def print_matches(matches: pa.Table) -> None:
    """Print matches on stdout, one JSON object per line."""
    from tocsin.events.files import records

    for record in records(matches):
        showing.say(showing.as_json(record))


def _bytes(size: float) -> str:
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"


def _span(seconds: float) -> str:
    for unit, worth in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if abs(seconds) >= 2 * worth:
            return f"{seconds / worth:.0f} {unit}"
    return f"{seconds:.1f} s"
