"""Run alternating measurements in one session, and check and print their bounds; shared by all sections."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, TextIO

from pyspark.sql import DataFrame, SparkSession

from on_spark.sources import Sources

RUNS = 3
SLOTS = 2

Report = dict[str, Any]


@dataclass
class Bench:
    """One run of the benchmarks."""

    spark: SparkSession
    sources: Sources
    figures: Path
    out: TextIO
    failed: list[str] = field(default_factory=list)
    """The names of failed bounds and wrong counts."""

    def say(self, line: str = "") -> None:
        print(line, file=self.out, flush=True)

    def bound(self, name: str, value: float, *, least: float | None = None, most: float | None = None) -> Report:
        """Print a ratio beside its bound."""
        ok = (least is None or value >= least) and (most is None or value <= most)
        limit = f"at least {least:g}" if least is not None else f"at most {most:g}"
        self.say(f"  {name}: {value:.2f} times, bound {limit}: {'ok' if ok else 'NOT HELD'}")
        if not ok:
            self.failed.append(name)
        return {"ratio": value, "least": least, "most": most, "ok": ok}

    def check(self, name: str, found: int, expected: int) -> None:
        """Report a wrong number of matches."""
        if found != expected:
            self.say(f"  WRONG: {name} has {found:,} matches, expected {expected:,}")
            self.failed.append(f"matches of {name}")

    def alternate(self, runs: Mapping[str, Callable[[], object]]) -> dict[str, float]:
        """Return the median seconds of each warm run, in turn, so that all see the same load."""
        taken: dict[str, list[float]] = {name: [] for name in runs}
        for _ in range(RUNS):
            for name, run in runs.items():
                taken[name].append(seconds(run))
        return {name: median(times) for name, times in taken.items()}

    def progress(self, frame: DataFrame) -> list[Report]:
        """Run a stream to its end from an empty checkpoint and return the progress of each micro-batch."""
        with tempfile.TemporaryDirectory(prefix="tocsin-bench-", ignore_cleanup_errors=True) as checkpoint:
            writer = frame.writeStream.format("noop").option("checkpointLocation", checkpoint)
            query = writer.trigger(availableNow=True).start()
            query.awaitTermination()
            reports = [json.loads(progress.json) for progress in query.recentProgress]
        return [progress for progress in reports if "addBatch" in progress["durationMs"]]


def seconds(run: Callable[[], object]) -> float:
    """Return the seconds of a run."""
    start = perf_counter()
    run()
    return perf_counter() - start


def sink(frame: DataFrame) -> None:
    """Compute all of a DataFrame and discard it."""
    frame.write.format("noop").mode("overwrite").save()


def batch_ms(reports: Iterable[Report]) -> list[float]:
    """Return the duration of each micro-batch."""
    return [progress["durationMs"]["triggerExecution"] for progress in reports]


def slot_metrics(progress: Report) -> list[Report]:
    """Return the metrics of the slots in a micro-batch."""
    return [json.loads(counted) for counted in progress["observedMetrics"]["tocsin"]["slots"]]


def matches_of(reports: Iterable[Report]) -> int:
    """Return the number of matches of a stream."""
    return sum(sum(slot["by_rule"].values()) for progress in reports for slot in slot_metrics(progress))
