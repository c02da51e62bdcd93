"""What the sections share: the session, the files, runs that alternate, bounds, and how they are printed."""

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
    """The bounds that do not hold, and the counts that are wrong."""

    def say(self, line: str = "") -> None:
        print(line, file=self.out, flush=True)

    def bound(self, name: str, value: float, *, least: float | None = None, most: float | None = None) -> Report:
        """Prints a ratio beside its bound."""
        ok = (least is None or value >= least) and (most is None or value <= most)
        limit = f"at least {least:g}" if least is not None else f"at most {most:g}"
        self.say(f"  {name}: {value:.2f} times, bound {limit}: {'ok' if ok else 'NOT HELD'}")
        if not ok:
            self.failed.append(name)
        return {"ratio": value, "least": least, "most": most, "ok": ok}

    def check(self, name: str, found: int, expected: int) -> None:
        """Complains if a number of matches is not the right one."""
        if found != expected:
            self.say(f"  WRONG: {name} has {found:,} matches, {expected:,} are right")
            self.failed.append(f"matches of {name}")

    def alternate(self, runs: Mapping[str, Callable[[], object]]) -> dict[str, float]:
        """The median seconds of each, run in turn, so that all see the same machine. They are warm already."""
        taken: dict[str, list[float]] = {name: [] for name in runs}
        for _ in range(RUNS):
            for name, run in runs.items():
                taken[name].append(seconds(run))
        return {name: median(times) for name, times in taken.items()}

    def progress(self, frame: DataFrame) -> list[Report]:
        """What each micro-batch of a stream told, run to its end from an empty checkpoint."""
        with tempfile.TemporaryDirectory(prefix="tocsin-bench-", ignore_cleanup_errors=True) as checkpoint:
            writer = frame.writeStream.format("noop").option("checkpointLocation", checkpoint)
            query = writer.trigger(availableNow=True).start()
            query.awaitTermination()
            told = [json.loads(progress.json) for progress in query.recentProgress]
        return [progress for progress in told if "addBatch" in progress["durationMs"]]


def seconds(run: Callable[[], object]) -> float:
    """How long a run takes."""
    start = perf_counter()
    run()
    return perf_counter() - start


def sink(frame: DataFrame) -> None:
    """Computes all of a DataFrame and throws it away."""
    frame.write.format("noop").mode("overwrite").save()


def batch_ms(told: Iterable[Report]) -> list[float]:
    """How long each micro-batch took."""
    return [progress["durationMs"]["triggerExecution"] for progress in told]


def slots_told(progress: Report) -> list[Report]:
    """What our slots counted in a micro-batch."""
    return [json.loads(counted) for counted in progress["observedMetrics"]["tocsin"]["slots"]]


def matches_told(told: Iterable[Report]) -> int:
    """How many matches a stream had."""
    return sum(sum(slot["by_rule"].values()) for progress in told for slot in slots_told(progress))
