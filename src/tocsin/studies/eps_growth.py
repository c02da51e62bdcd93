"""Measure the time to a notification by the number of stored instances (the paper's Figure 7).

One run gives one curve, for a shape of the tree and a distribution of the stored instances over its leaves. Instances
of all leaves but `e1` are stored. Then an `e1` completes a combination, and the time to its notification is measured.

The paper's four phases (`eps_tree`) build all combinations, so their curve ends where one arrival takes too long. The
curve of Tocsin continues. The condition is that all eight events have the same `k`, which holds for one combination.
Tocsin also runs without the condition.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from statistics import linear_regression, median
from typing import TYPE_CHECKING

from tocsin import ruleset
from tocsin.errors import StateError
from tocsin.studies.eps_expressions import (
    LEAVES,
    SHAPES,
    STEP_US,
    PrimitiveInstance,
    declared,
    equal,
    facts,
    requests,
    stored,
    table,
    timed,
    tree,
)
from tocsin.studies.eps_tree import Tree
from tocsin.studies.study import Claim, Row, Scale, Settings

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

SPREADS = ("even", "one leaf")
"""How instances are spread over leaves: evenly, or nearly all at the last leaf. The paper does not say which."""
TREES, TOCSIN, FREE = "four phases", "Tocsin", "Tocsin, no condition"
OTHERS = len(LEAVES) - 1
SLOPE_MAX = 1.1
"""The largest slope of log time over log instances that counts as linear growth."""
STEEP_MIN = 2.0
"""The smallest slope that counts as clearly more than linear growth."""


def runs(scale: Scale) -> Sequence[Settings]:
    """Return a run for each evaluator, shape and spread."""
    limit_s, most, repeats = scale.pick((0.3, 16_000, 7), (4.0, 64_000, 15), (20.0, 128_000, 25))
    return [
        {"by": by, "shape": shape, "spread": spread, "limit_s": limit_s, "most": most, "repeats": repeats}
        for by in (TREES, TOCSIN, FREE)
        for shape in SHAPES
        for spread in SPREADS
    ]


def measure(settings: Settings) -> list[Row]:
    """Return the points of the curve of a run."""
    curve = _of_trees if settings["by"] == TREES else _of_tocsin
    return list(curve(settings))


def counts(spread: str, instances: int) -> list[int]:
    """Return the number of stored instances of each leaf from `e2` to `e8`."""
    if spread == "even":
        return [instances // OTHERS] * OTHERS
    return [1] * (OTHERS - 1) + [instances - OTHERS + 1]


def request(shape: str, *, free: bool = False) -> str:
    """Return the text of the measured request. If `free` is true, the request has no condition."""
    condition = "" if free else f"if {equal()}"
    return f"{declared()}request Found on {tree(shape)} {condition}"


def last(instances: Sequence[PrimitiveInstance]) -> PrimitiveInstance:
    """Return the instance of `e1` that completes a combination of stored instances."""
    return PrimitiveInstance(LEAVES[0], instances[-1].ts + STEP_US, 0)


# ---- the paper's four phases


def _of_trees(settings: Settings) -> Iterator[Row]:
    spread, limit_s = str(settings["spread"]), float(settings["limit_s"])
    parsed = requests(request(str(settings["shape"])))
    sizes = range(OTHERS, 100 * OTHERS, OTHERS) if spread == "even" else [2**n * OTHERS for n in range(7)]
    for size in sizes:
        every = stored(counts(spread, size))
        seconds: list[float] = []
        error = ""
        while len(seconds) < 3 and sum(seconds) < limit_s and not error:
            grown = Tree(parsed)
            *before, arriving = facts([*every, last(every)])
            for fact in before:
                grown.arrive(fact)
            try:
                took_s, notified = timed(partial(grown.arrive, arriving))
            except StateError as stop:
                error = str(stop)
                break
            seconds.append(took_s)
            assert len(notified) == 1
        stopped = bool(error) or median(seconds) > limit_s
        if seconds:
            yield {"instances": size, "ms": median(seconds) * 1e3, "stopped": stopped}
        if stopped:
            return


# ---- Tocsin


def _of_tocsin(settings: Settings) -> Iterator[Row]:
    spread, free = str(settings["spread"]), settings["by"] == FREE
    rules = ruleset.rules(request(str(settings["shape"]), free=free), "eps")
    size = OTHERS
    while size <= int(settings["most"]):
        every = stored(counts(spread, size))
        detector = rules.detector(ordered=True)
        detector.push(table(every))
        seconds = []
        for _ in range(1 + int(settings["repeats"])):
            now = last(every)
            took_s, notified = timed(partial(detector.push, table([now])))
            seconds.append(took_s)
            assert notified.num_rows == 1
            # Replace the consumed instances.
            every = [PrimitiveInstance(leaf, now.ts + n * STEP_US, 0) for n, leaf in enumerate(LEAVES[1:], 1)]
            detector.push(table(every))
        yield {"instances": size, "ms": median(seconds[1:]) * 1e3, "stopped": False}
        size *= 2


# ---- results


def slope(points: Sequence[tuple[int, float]]) -> float:
    """Return the slope of log time over log instances for the points of a curve."""
    logarithms = [(math.log(instances), math.log(ms)) for instances, ms in points]
    return linear_regression(*zip(*logarithms, strict=True)).slope


def _curves(rows: Sequence[Row]) -> dict[tuple[str, str, str], list[tuple[int, float]]]:
    found: dict[tuple[str, str, str], list[tuple[int, float]]] = {}
    for row in rows:
        curve = str(row["by"]), str(row["shape"]), str(row["spread"])
        found.setdefault(curve, []).append((int(row["instances"]), float(row["ms"])))
    return found


def judge(rows: Sequence[Row]) -> list[Claim]:
    """Check E2: the time of the four phases grows steeply with an even spread, and otherwise linearly.

    The time of Tocsin grows at most linearly.
    """
    curves = _curves(rows)
    slopes = {
        # The first points of the four phases only show what any arrival costs.
        curve: slope([point for point in points if curve[0] != TREES or point[0] > OTHERS])
        for curve, points in curves.items()
    }
    steep, linear = slopes[TREES, "balanced", "even"], slopes[TREES, "backbone", "one leaf"]
    most, where = max((slope, curve) for curve, slope in slopes.items() if curve[0] != TREES)
    ends = [curves[TREES, shape, "even"][-1] for shape in SHAPES]
    largest = max(points[-1][0] for curve, points in curves.items() if curve[0] != TREES)
    latest_ms = max(points[-1][1] for curve, points in curves.items() if curve[0] != TREES)
    text = (
        f"slope of log time over log instances: four phases, even: balanced {steep:.1f}, backbone "
        f"{slopes[TREES, 'backbone', 'even']:.1f} (given up at {ends[0][0]} and {ends[1][0]} instances, "
        f"{ends[0][1]:,.0f} and {ends[1][1]:,.0f} ms); one leaf: backbone {linear:.2f}, balanced "
        f"{slopes[TREES, 'balanced', 'one leaf']:.2f}; Tocsin at most {most:.2f} ({', '.join(where)}), "
        f"{latest_ms:.1f} ms with {largest:,} instances"
    )
    return [Claim("E2", steep >= STEEP_MIN and linear <= 1.3 and most <= SLOPE_MAX, text)]


def draw(rows: Sequence[Row], canvas: Canvas) -> None:
    """Plot time against instances as in the paper, and all curves on logarithmic axes."""
    canvas.set_size_inches(11.5, 5.6)
    left, right = canvas.subplots(1, 2)
    colors = {"balanced": "tab:red", "backbone": "tab:blue"}
    styles = {TREES: "-", TOCSIN: "--", FREE: ":"}
    curves = _curves(rows)
    for (by, shape, spread), points in curves.items():
        fill = colors[shape] if spread == "even" else "white"
        for axes in (left, right):
            axes.plot(*zip(*points, strict=True), styles[by], marker="o" if spread == "even" else "s", markersize=4,
                      color=colors[shape], markerfacecolor=fill, label=f"{by}, {shape}, {spread}")  # fmt: skip
    ended = [points[-1] for (by, _, spread), points in curves.items() if (by, spread) == (TREES, "even")]
    left.set_xlim(0, 2.5 * max(instances for instances, _ in ended))
    left.set_ylim(-0.03 * max(ms for _, ms in ended), 1.1 * max(ms for _, ms in ended))
    left.annotate("given up here", max(ended), (10, -4), textcoords="offset points", fontsize=8, va="top")
    right.set_xscale("log")
    right.set_yscale("log")
    for axes, title in ((left, "linear axes, as in the paper"), (right, "the same and more, logarithmic axes")):
        axes.set_title(title, fontsize=9)
        axes.set_xlabel("stored instances")
        axes.grid(color="0.92")
    left.set_ylabel("time to the notification (ms)")
    canvas.legend(*right.get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=8)
    canvas.suptitle("Time to the notification, trees of eight leaves (Fig. 7)")
