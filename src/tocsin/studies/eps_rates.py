"""Measure how many instances per second a detector processes, for the expressions of the paper's figures.

The paper reports 1,000 to 2,000 instances a minute. Here, random instances of all types go through a detector in
batches, 100,000 for each second of event time. The window is one second, so about as many instances are stored as
arrive in a second. A run that takes too long stops and reports its rate so far.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tocsin import ruleset
from tocsin.studies.eps_expressions import LEAVES, equal, tree
from tocsin.studies.study import Claim, Row, Scale, Settings

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

BATCH = 10_000
STEP_US = 10
WINDOW = "within 1 s"
RATE_MIN = 100_000
PAPER = 2_000 / 60


@dataclass(frozen=True, slots=True)
class RateWorkload:
    """The text of requests, their event types, and the number of different values of each attribute."""

    name: str
    text: str
    types: tuple[str, ...]
    values: tuple[tuple[str, int], ...] = ()


def _leaves(shape: str, operator: str, condition: str = "") -> str:
    return f"request Found on {tree(shape, operator)} {condition} {WINDOW}"


WORKLOADS = {
    workload.name: workload
    for workload in (
        RateWorkload(
            "Fig. 6: st ; rt, the cycle's condition",
            f"request Cycle on st as s ; rt as r if s.proc = r.proc and s.msg = r.msg {WINDOW}",
            ("st", "rt"), (("proc", 3), ("msg", 10_000)),
        ),
        RateWorkload(
            "Fig. 7: balanced & of 8, all k equal",
            _leaves("balanced", "&", f"if {equal()}"), LEAVES, (("k", 10_000),),
        ),
        RateWorkload(
            "Fig. 7: backbone & of 8, all k equal",
            _leaves("backbone", "&", f"if {equal()}"), LEAVES, (("k", 10_000),),
        ),
        RateWorkload(
            "Fig. 8: balanced ; of 8, all k equal",
            _leaves("balanced", ";", f"if {equal()}"), LEAVES, (("k", 10_000),),
        ),
        RateWorkload(
            "Fig. 8: backbone ; of 8, all k equal",
            _leaves("backbone", ";", f"if {equal()}"), LEAVES, (("k", 10_000),),
        ),
        RateWorkload(
            "Fig. 2: (E1 & E2) & E3 and E1 & E2, no condition",
            f"request AP1 on (E1 & E2) & E3 {WINDOW} request AP2 on E1 & E2 {WINDOW}", ("E1", "E2", "E3"),
        ),
    )
}  # fmt: skip


def runs(scale: Scale) -> Sequence[Settings]:
    """Return a run for each workload and each seed."""
    events, limit_s = scale.pick((200_000, 2.0), (500_000, 10.0), (2_000_000, 60.0))
    return [
        {"workload": name, "seed": seed, "events": events, "batch": BATCH, "limit_s": limit_s}
        for name in WORKLOADS
        for seed in range(scale.seeds)
    ]


def batches(workload: RateWorkload, seed: int, events: int, batch: int) -> list[pa.Table]:
    """Return random instances in batches."""
    random = np.random.default_rng(seed)
    types = pa.array(workload.types).take(pa.array(random.integers(0, len(workload.types), events)))
    columns = {"type": types, "ts": pa.array(np.arange(events) * STEP_US)}
    columns |= {name: pa.array(random.integers(0, values, events)) for name, values in workload.values}
    every = pa.table(columns)
    return [every.slice(start, batch) for start in range(0, events, batch)]


def measure(settings: Settings) -> list[Row]:
    """Measure instances per second. The first instances, a tenth of a batch, are not timed."""
    workload, limit_s = WORKLOADS[str(settings["workload"])], float(settings["limit_s"])
    first, *rest = batches(workload, int(settings["seed"]), int(settings["events"]), int(settings["batch"]))
    detector = ruleset.rules(workload.text, "eps").detector(ordered=True)
    few = first.num_rows // 10
    detector.push(first.slice(0, few))
    taken, took_s = 0, 0.0
    start = perf_counter()
    for batch in (first.slice(few), *rest):
        detector.push(batch)
        taken, took_s = taken + batch.num_rows, perf_counter() - start
        if took_s > limit_s:
            break
    return [{"taken": taken, "s": took_s, "rate": taken / took_s, "notifications": detector.counts["matches"]}]


def _rates(rows: Sequence[Row]) -> dict[str, float]:
    return {
        name: median(float(row["rate"]) for row in rows if row["workload"] == name)
        for name in dict.fromkeys(str(row["workload"]) for row in rows)
    }


def judge(rows: Sequence[Row]) -> list[Claim]:
    """Check E4: every workload reaches the rate `RATE_MIN`."""
    rates = _rates(rows)
    text = "; ".join(f"{name}: {rate:,.0f}/s" for name, rate in rates.items())
    return [Claim("E4", min(rates.values()) >= RATE_MIN, f"{text} (batches of {BATCH:,})")]


def draw(rows: Sequence[Row], canvas: Canvas) -> None:
    """Plot a bar for each workload, and lines at the paper's rate and at the required rate."""
    canvas.set_size_inches(9, 4)
    axes = canvas.subplots()
    rates = _rates(rows)
    places = range(len(rates))
    axes.barh(
        places, [*rates.values()], 0.6, color=["tab:blue" if r >= RATE_MIN else "tab:red" for r in rates.values()]
    )
    for place, rate in zip(places, rates.values(), strict=True):
        axes.text(rate * 1.1, place, f"{rate:,.0f}", va="center", fontsize=8)
    axes.set_yticks(places, [*rates], fontsize=8)
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.set_xlim(10, 1e7)
    for rate, label in ((PAPER, "the paper:\n2,000 a minute"), (RATE_MIN, "wanted:\n100,000 a second")):
        axes.axvline(rate, color="0.3", linestyle="--", linewidth=1)
        axes.text(rate, -0.75, label, ha="center", va="bottom", fontsize=8)
    axes.set_xlabel(f"instances a second, in batches of {BATCH:,}")
    axes.set_ylim(len(rates) - 0.5, -1.7)
