"""Measure the cost of growth: twice the events, twice the keys in as many events, more rules that share."""

from __future__ import annotations

from pyspark.sql import DataFrame

import tocsin
from on_spark.bench import SLOTS, Bench, Report, sink
from workloads import FIRE_RULES

FACTORS = (1, 2, 4)
EVENTS_MOST, KEYS_MOST, RULES_MOST = 2.2, 1.2, 4.0
"""For twice the events, twice the keys, four times the rules: about linear, about flat, less than linear."""


def rules_that_share(count: int) -> str:
    """Return copies of W1 last with the same filters, and other windows and outputs."""
    return "".join(
        FIRE_RULES["last"].replace("Fire", f"Fire{number}").replace("5 min", f"{300 - 30 * number} s")
        for number in range(count)
    )


def measure(bench: Bench) -> Report:
    """Measure W1 last as it grows in three directions; print a table and write a plot."""

    def run(path: object, rules: int = 1) -> DataFrame:
        return tocsin.rules(rules_that_share(rules)).detect(bench.spark.read.parquet(str(path)), slots=SLOTS)

    part = bench.sources.fire_part
    frames = {("", 1): run(part(4))}
    frames |= {("events", factor): run(part(4 // factor)) for factor in FACTORS[1:]}
    frames |= {("keys", factor): run(part(4, keys=factor)) for factor in FACTORS[1:]}
    frames |= {("rules", factor): run(part(4), rules=factor) for factor in FACTORS[1:]}
    base_events = bench.sources.events // 4
    bench.say(f"scaling: W1 last over {base_events:,} events, 1,000 areas, one rule, and more of each")
    found = {key: frame.count() for key, frame in frames.items()}
    seconds = bench.alternate({key: (lambda frame=frame: sink(frame)) for key, frame in frames.items()})  # type: ignore[misc]
    curves = {
        what: [seconds[what if factor > 1 else "", factor] for factor in FACTORS]  # type: ignore[index]
        for what in ("events", "keys", "rules")
    }
    for what, taken in curves.items():
        cells = "   ".join(
            f"x{factor} {time:6.2f} s ({time / taken[0]:.2f})" for factor, time in zip(FACTORS, taken, strict=True)
        )
        bench.say(f"  {what:7} {cells}")
    bench.say("  matches: " + ", ".join(f"{what or 'base'} x{factor} {n:,}" for (what, factor), n in found.items()))
    twice, four = FACTORS.index(2), FACTORS.index(4)
    events, keys, rules = curves.values()
    report = {
        "seconds": curves,
        "events": bench.bound("time of twice the events", events[twice] / events[0], most=EVENTS_MOST),
        "keys": bench.bound("time of twice the keys", keys[twice] / keys[0], most=KEYS_MOST),
        "rules": bench.bound("time of four times the rules", rules[four] / rules[0], most=RULES_MOST),
    }
    bench.say(f"  {_plot(bench, curves)}\n")
    return report


def _plot(bench: Bench, curves: dict[str, list[float]]) -> str:
    from on_spark.plots import axes, save

    figure, ax = axes("times as much", "times as long")
    ax.plot(FACTORS, FACTORS, color="0.8", linestyle="--", label="linear")
    for what, taken in curves.items():
        ax.plot(FACTORS, [time / taken[0] for time in taken], marker="o", label=what)
    ax.set_xticks(FACTORS)
    ax.set_ylim(bottom=0)
    ax.legend(frameon=False)
    return save(figure, bench.figures / "spark-scaling.png")
