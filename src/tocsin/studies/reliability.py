"""Repeat the evaluation of the paper on strong reliability (its Section VI).

Each run is the manufacturing scenario with a group of f+1 replicas for every processor. In each step of 100 ms, a
replica fails with a given probability, and it comes back after ten steps. Figure 8 also has runs with five steps,
because the paper does not say how many.

In Figures 5 and 6, at most f replicas of a group are down at a time, and a replica that comes back has forgotten
everything. In Figures 7 and 8, any number of replicas may be down, and they come back with their state, because in the
paper processing waits until a failed node recovers.

Replicas fail only after rules are deployed. All runs see the same events; seeds change the faults.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from statistics import fmean
from typing import TYPE_CHECKING

from tocsin.studies.study import Claim, Figure, Row, Scale, Settings, Study

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

STEP_US = 100_000
RECOVERY = 10
"""The number of steps until a replica that failed comes back."""
ROUNDS = 6
QUEUE_MAX = 500
COLOURS = ("#444444", "#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e")


def measure(settings: Settings) -> list[Row]:
    """Run the scenario once with random failures, and check and count what it delivers."""
    from tocsin.overlay.replicas.queues import Settings as Times
    from tocsin.overlay.replicas.replica import replica_names
    from tocsin.simulation.faults import random_failures
    from tocsin.simulation.replicated import ReplicatedNetwork, play
    from tocsin.simulation.workloads import EPOCH_US, factory

    seconds, f = int(settings["seconds"]), int(settings["f"])
    works = factory(int(settings["facilities"]), seconds, 1)
    groups = {name: replica_names(name, f + 1) for name in works.sites.processors}
    kept = bool(settings["kept"])
    begins_us = len(works.setup.deploying(ROUNDS)) * EPOCH_US
    script = random_failures(
        groups, float(settings["p_fail"]), step_us=STEP_US, steps=seconds * 1_000_000 // STEP_US,
        recovery_us=int(settings["recovery"]) * STEP_US, kept=kept, seed=int(settings["seed"]), since_us=begins_us,
    )  # fmt: skip
    times = Times(
        rounds=ROUNDS, beat_us=STEP_US // 4, prune_us=10 * STEP_US, suspect_us=3 * STEP_US // 4, vote_us=STEP_US // 5,
        resend_us=25 * STEP_US, queue_max=QUEUE_MAX, inbox_max=QUEUE_MAX,
    )  # fmt: skip
    network = ReplicatedNetwork(
        works.setup, script, settings=times, seed=int(settings["seed"]), shared=True,
        flaw=str(settings.get("flaw", "none")), within_limit=not kept,
    )  # fmt: skip
    limit_us = (seconds + 120) * 1_000_000
    wrong = play(network, works.epochs, epoch_us=EPOCH_US, limit_us=limit_us, expected=works.expected)
    counts = network.counts
    late_us = [
        at_us - network.begins_us - ts
        for _, sink in network.sink_replicas()
        for notice, at_us in sink.got
        for ts in notice.batch["ts"].to_pylist()
    ]
    several = sum(seen for leaders, seen in counts.leaders.items() if leaders > 1)
    return [
        {
            "primary": works.events[0].num_rows,
            "situations": counts.situations,
            "events": counts.events,
            "links": counts.links,
            "duplicates": counts.duplicates,
            "elections": counts.elections,
            "messages": counts.messages.total(),
            "queue_longest": counts.outgoing_longest,
            "acknowledgements": counts.messages["Delivered"],
            "leaders": counts.leaders_mean,
            "several": several / max(1, counts.leaders.total()),
            "latency_ms": fmean(late_us) / 1000 if late_us else 0.0,
            "crashes": sum(fault.kind == "crash" for fault in network.applied),
            "violations": len(wrong),
            "violated": "; ".join(sorted({one.property for one in wrong})),
        }
    ]


def _runs(
    scale: Scale,
    fs: Sequence[int],
    ps: Sequence[float],
    *,
    kept: bool,
    seeds: int,
    flaws: Sequence[str] = ("none",),
    recoveries: Sequence[int] = (RECOVERY,),
) -> list[Settings]:
    size = {"facilities": scale.pick(9, 30, 70), "seconds": scale.pick(20, 60, 95)}
    if flaws != ("none",):
        size = {"facilities": 5, "seconds": 15}
    return [
        {"f": f, "p_fail": p, "seed": seed, "kept": kept, "flaw": flaw, "recovery": recovery, **size}
        for recovery in recoveries
        for flaw in flaws
        for f in fs
        for p in ps
        for seed in range(1, 1 + (seeds if p else 1))
    ]


def _mean(rows: Iterable[Row], what: str, **where: float) -> float:
    chosen = [float(row[what]) for row in rows if all(row[name] == value for name, value in where.items())]
    return fmean(chosen) if chosen else 0.0


def _values(rows: Iterable[Row], name: str) -> list[float]:
    return sorted({float(row[name]) for row in rows})


def _line(xs: Sequence[float], ys: Sequence[float]) -> tuple[float, float]:
    """Fit a straight line to the points, and return its slope and r²."""
    x_mean, y_mean = fmean(xs), fmean(ys)
    across = sum((x - x_mean) ** 2 for x in xs)
    slope = sum((x - x_mean) * (y - y_mean) for x, y in zip(xs, ys, strict=True)) / across
    total = sum((y - y_mean) ** 2 for y in ys)
    rest = sum((y - y_mean - slope * (x - x_mean)) ** 2 for x, y in zip(xs, ys, strict=True))
    return slope, 1 - rest / total if total else 0.0


def _listed(values: Iterable[float]) -> str:
    return "[" + ", ".join(f"{value:.3g}" for value in values) + "]"


# ---- claims


def properties(rows: Sequence[Row]) -> list[Claim]:
    sound = [row for row in rows if row["flaw"] == "none"]
    wrong = sum(int(row["violations"]) > 0 for row in sound)
    crashes = sum(int(row["crashes"]) for row in sound)
    found = {
        flaw: sum(int(row["violations"]) > 0 for row in rows if row["flaw"] == flaw)
        for flaw in ("no filter", "active standby")
    }
    said = ", ".join(f"{flaw}: in {count}" for flaw, count in found.items())
    holds = not wrong and crashes > 0 and all(found.values())
    return [Claim("R1", holds, f"violations in {wrong} of {len(sound)} runs with {crashes} crashes; {said}")]


def _elections(rows: Sequence[Row], sweep: str) -> Claim:
    """Check R4: election messages are less than 1 % of all messages for every f and failure probability.

    `sweep` says which runs were checked.
    """
    settings = sorted({(int(row["f"]), float(row["p_fail"])) for row in rows})
    elections = {at: _mean(rows, "elections", f=at[0], p_fail=at[1]) for at in settings}
    of_all = max(elections[at] / _mean(rows, "messages", f=at[0], p_fail=at[1]) for at in settings)
    of_events = max(elections[at] / _mean(rows, "events", f=at[0], p_fail=at[1]) for at in settings)
    said = f"election messages at most {of_all:.2%} of all messages, {of_events:.1%} of event messages ({sweep})"
    return Claim("R4", of_all < 0.01, said)


def by_replicas(rows: Sequence[Row]) -> list[Claim]:
    fs = _values(rows, "f")
    top = max(_values(rows, "p_fail"))
    line = [_mean(rows, "duplicates", f=f, p_fail=top) for f in fs]
    none = sum(_mean(rows, "duplicates", f=f, p_fail=0.0) for f in fs)
    slope, r2 = _line(fs, line)
    holds = r2 >= 0.98 and slope > 0 and none <= 0.001 * _mean(rows, "events", p_fail=0.0)
    each = [_mean(rows, "events", f=f, p_fail=0.0) / _mean(rows, "links", f=f, p_fail=0.0) for f in fs]
    exact = all(abs(value - (f + 1)) < 1e-9 for f, value in zip(fs, each, strict=True))
    bound = all(
        int(row["events"]) / int(row["links"]) <= (int(row["f"]) + 1) ** 2 for row in rows if row["p_fail"] == top
    )
    return [
        Claim("R2", holds, f"duplicates {_listed(line)} for f {_listed(fs)} at p {top:g}, r² {r2:.3f}; {none:g} at 0"),
        _elections(rows, "f sweep"),
        Claim(
            "R7", exact and bound, f"event messages per event and link, one leader: {_listed(each)} for f {_listed(fs)}"
        ),
    ]


def by_failures(rows: Sequence[Row]) -> list[Claim]:
    ps = _values(rows, "p_fail")
    lines = {f: _line(ps, [_mean(rows, "duplicates", f=f, p_fail=p) for p in ps]) for f in _values(rows, "f")}
    slopes = [slope for slope, _ in lines.values()]
    steeper = all(later > before for before, later in pairwise(slopes))
    holds = steeper and all(r2 >= 0.9 for _, r2 in lines.values())
    said = ", ".join(f"f {f:g}: {slope / 1000:.3g} per 0.1 %, r² {r2:.3f}" for f, (slope, r2) in lines.items())
    return [
        Claim("R3", holds, f"duplicates {said}"),
        _elections(rows, "p_fail sweep"),
    ]


def leaders(rows: Sequence[Row]) -> list[Claim]:
    ps = _values(rows, "p_fail")
    line = [_mean(rows, "leaders", p_fail=p) for p in ps]
    usual = [value for p, value in zip(ps, line, strict=True) if p <= 0.001]
    holds = all(abs(value - 1) <= 0.02 for value in usual) and line[-1] < 1
    return [Claim("R5", holds, f"leaders {_listed(line)} at p_fail {_listed(ps)}")]


def latency(rows: Sequence[Row]) -> list[Claim]:
    said, holds = [], True
    for recovery in _values(rows, "recovery"):
        none = _mean(rows, "latency_ms", f=0, p_fail=0.005, recovery=recovery)
        three = _mean(rows, "latency_ms", f=2, p_fail=0.1, recovery=recovery)
        alone = _mean(rows, "latency_ms", f=0, p_fail=0.1, recovery=recovery)
        holds = holds and 0 < three <= 1.25 * none
        said.append(
            f"back after {recovery:g} steps: {three:.0f} ms with three at 0.1, {none:.0f} ms with one at 0.005, "
            f"{alone:.0f} ms with one at 0.1"
        )
    calm = _mean(rows, "latency_ms", p_fail=0.0)
    return [Claim("R6", holds, "; ".join(said) + f"; {calm:.0f} ms without failures")]


# ---- plots


def _curves(x: str, by: str, panels: Sequence[tuple[str, str]], label: str) -> Callable[[Sequence[Row], Canvas], None]:
    def draw(rows: Sequence[Row], canvas: Canvas) -> None:
        axes = canvas.subplots(1, len(panels), squeeze=False)[0]
        for ax, (what, unit) in zip(axes, panels, strict=True):
            for colour, value in zip(COLOURS, _values(rows, by), strict=False):
                xs = [at for at in _values(rows, x) if any(row[x] == at and row[by] == value for row in rows)]
                ys = [_mean(rows, what, **{x: at, by: value}) for at in xs]
                ax.plot(xs, ys, "o-", color=colour, label=f"{by} = {value:g}")
            ax.set_xlabel(label)
            ax.set_ylabel(unit)
            ax.legend(fontsize=8)
            if what != "leaders":
                ax.set_ylim(bottom=0)

    return draw


def _latencies(rows: Sequence[Row], canvas: Canvas) -> None:
    """Plot the latency by failure probability, in one panel for each recovery time."""
    recoveries = _values(rows, "recovery")
    axes = canvas.subplots(1, len(recoveries), squeeze=False, sharey=True)[0]
    for ax, recovery in zip(axes, recoveries, strict=True):
        mine = [row for row in rows if row["recovery"] == recovery]
        for colour, f in zip(COLOURS, _values(mine, "f"), strict=False):
            ps = _values(mine, "p_fail")
            ax.plot(ps, [_mean(mine, "latency_ms", f=f, p_fail=p) for p in ps], "o-", color=colour, label=f"f = {f:g}")
        ax.set_title(f"back after {recovery:g} steps", fontsize=10)
        ax.set_xlabel("failure probability per step")
        ax.set_yscale("log")
        ax.legend(fontsize=8)
    axes[0].set_ylabel("latency (ms)")


def _bars(rows: Sequence[Row], canvas: Canvas) -> None:
    ax = canvas.subplots()
    flaws = list(dict.fromkeys(str(row["flaw"]) for row in rows))
    shares = [fmean(int(row["violations"]) > 0 for row in rows if row["flaw"] == flaw) for flaw in flaws]
    ax.bar(flaws, shares, color=COLOURS[: len(flaws)])
    ax.set_ylabel("share of runs with a violation")
    ax.set_ylim(0, 1)


MESSAGES = (("duplicates", "duplicate event messages"), ("elections", "messages for elections"))

STUDY = Study(
    "reliability",
    "Strong reliability",
    (
        Figure("properties", "Five properties, and flawed replicas", ("R1",),
               lambda scale: _runs(scale, (1, 2, 3), (0.005,), kept=False, seeds=scale.pick(2, 4, 20),
                                   flaws=("none", "no filter", "active standby")),
               measure, _bars, properties),
        Figure("5", "Overhead by the number of replicas", ("R2", "R4", "R7"),
               lambda scale: _runs(scale, scale.pick((1, 2, 3), (1, 2, 3, 4, 5), (1, 2, 3, 4, 5)), (0.0, 0.001),
                                   kept=False, seeds=scale.pick(16, 4 * scale.seeds, scale.seeds)),
               measure, _curves("f", "p_fail", MESSAGES, "additional replicas f"), by_replicas),
        Figure("6", "Overhead by the failure probability", ("R3", "R4"),
               lambda scale: _runs(scale, scale.pick((1, 3), (1, 2, 3), (1, 2, 3)),
                                   scale.pick((0.0, 0.0005, 0.001), (0.0, 0.00025, 0.0005, 0.00075, 0.001),
                                              (0.0, 0.00025, 0.0005, 0.00075, 0.001)),
                                   kept=False, seeds=scale.pick(16, 4 * scale.seeds, scale.seeds)),
               measure, _curves("p_fail", "f", MESSAGES, "failure probability per step"), by_failures),
        Figure("7", "Leaders at a time", ("R5",),
               lambda scale: _runs(scale, (2,), (0.0005, 0.001, 0.01, 0.1), kept=True,
                                   seeds=scale.pick(2, scale.seeds, scale.seeds)),
               measure, _curves("p_fail", "f", (("leaders", "mean number of leaders"),), "failure probability a step"),
               leaders),
        Figure("8", "Latency by the failure probability", ("R6",),
               lambda scale: _runs(scale, (0, 2), scale.pick((0.0, 0.005, 0.1), (0.0, 0.005, 0.02, 0.05, 0.1),
                                                             (0.0, 0.005, 0.02, 0.05, 0.1)),
                                   kept=True, seeds=scale.pick(2, scale.seeds, scale.seeds), recoveries=(5, RECOVERY)),
               measure, _latencies, latency),
    ),
)  # fmt: skip
