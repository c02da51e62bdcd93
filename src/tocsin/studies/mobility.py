"""Repeat MCEP's evaluation of the cost of moving queries (Section 6 of its paper), with claims M1 to M4.

A city of 1.5 km × 2 km has 1,000 cars that publish about 250 events a second, and brokers in a grid of 3 × 4. The query
of one car asks for accidents, and its range moves with the car. Figures 7 and 8 compare this with ranges deployed all
over the city (predeployment). Figure 9 shows what incremental streaming saves. The figure `answers` compares every
range with the reference. This module has the runs, plots and claims; `mobility_runs` measures one run.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import TYPE_CHECKING

from tocsin.studies import mobility_runs
from tocsin.studies.mobility_runs import DEVIATIONS_M, LIFETIME_S, MODES
from tocsin.studies.study import Claim, Figure, Row, Scale, Settings, Study

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

FAR = 0.5
"""The largest ratio that counts as far below: a half."""
ORDERS = 0.01
"""The largest ratio that counts as orders of magnitude below: a hundredth."""
ACCURATE_M = 100
"""The accuracy in the example of the paper's introduction (m)."""
CLEARLY = 0.8
"""The largest ratio that counts as clearly fewer: four fifths."""
SHAPES = {
    "square": "rectangle 100 m by 100 m",
    "circle": "circle 70 m",
    "wedge": "polygon (-20 m, -20 m), (120 m, -60 m), (120 m, 60 m), (-20 m, 20 m)",
}


def base_runs(scale: Scale) -> list[Settings]:
    """Return runs with ranges of 100 to 500 m, for each seed."""
    edges = scale.pick((100, 300, 500), (100, 200, 300, 400, 500), (100, 200, 300, 400, 500))
    seeds = range(1, 1 + scale.pick(1, min(scale.seeds, 2), scale.seeds))
    city: Settings = {"cars": 1000, "seconds": scale.pick(60, 200, 1000)}
    if scale.trace is not None:
        city = {"trace": scale.trace}
    return [
        {"edge_m": edge, "seed": seed, **city, "lifetime_s": LIFETIME_S}
        for edge, seed in sorted(product(edges, seeds), reverse=True)
    ]


def streaming_runs(scale: Scale) -> list[Settings]:
    """Return runs with ranges of 100 to 500 m, in each of the three streaming modes."""
    return [{**settings, "mode": mode} for settings in base_runs(scale) for mode in MODES]


def answer_runs(scale: Scale) -> list[Settings]:
    """Return runs with all shapes, update conditions and semantics, with and without consumption."""
    updates = ("each", "every 5 s", "every 30 m")
    cases = list(product(SHAPES.values(), updates, (False, True), ("weak", "strong")))
    if scale.quick:
        cases = cases[::5]
    seconds = scale.pick(20, 30, 60)
    return [
        {
            "shape": shape,
            "update": update,
            "consuming": consuming,
            "semantics": semantics,
            "seconds": seconds,
            "seed": at,
        }
        for at, (shape, update, consuming, semantics) in enumerate(cases, 1)
    ]


def judge_streams(rows: Sequence[Row]) -> list[Claim]:
    """Check M1 and M2: MCEP streams far fewer events than predeployment.

    Its control messages are orders of magnitude below its events.
    """
    moving = {(row["edge_m"], row["seed"]): row for row in rows if row["mode"] == "MCEP"}
    ratios = {
        (row["edge_m"], row["deviation_m"]): float(moving[row["edge_m"], row["seed"]]["streamed"])
        / float(row["streamed"])
        for row in rows
        if row["mode"] == "predeployment"
    }
    worst = max(ratios, key=lambda at: ratios[at])
    close = sorted(at for at, ratio in ratios.items() if ratio > FAR)
    shown = "; above half at " + ", ".join(f"{e} m/{d} m" for e, d in close) if close else ""
    text = (
        f"MCEP streams {min(ratios.values()):.5f} to {ratios[worst]:.2f} times predeployment's events; most at "
        f"an edge of {worst[0]} m and a deviation of {worst[1]} m{shown}"
    )
    shares = {at: float(row["control"]) / float(row["streamed"]) for at, row in moving.items()}
    against = {
        (row["edge_m"], row["seed"], row["deviation_m"]): float(moving[row["edge_m"], row["seed"]]["control"])
        / float(row["streamed"])
        for row in rows
        if row["mode"] == "predeployment"
    }
    fine = max(share for (_, _, deviation), share in against.items() if int(deviation) <= ACCURATE_M)
    least = {at: float(row["ranges"]) / float(row["streamed"]) for at, row in moving.items()}
    control = (
        f"control messages {min(shares.values()):.2f} to {max(shares.values()):.2f} times MCEP's streamed events "
        f"(location updates alone {min(least.values()):.2f} to {max(least.values()):.2f}), "
        f"{min(against.values()):.5f} to {max(against.values()):.2f} times those of predeployment "
        f"(at most {fine:.3f} where that is accurate to {ACCURATE_M} m)"
    )
    return [
        Claim("M1", ratios[worst] <= FAR, text),
        Claim("M2", max(shares.values()) <= ORDERS, control),
    ]


def judge_incremental(rows: Sequence[Row]) -> list[Claim]:
    """Check M3: incremental streaming sends clearly fewer events, and with updates every 10 s even fewer."""
    found = {(row["edge_m"], row["seed"], row["mode"]): float(row["streamed"]) for row in rows}
    points = sorted({(edge, seed) for edge, seed, _ in found})
    whole, timed = "MCEP w/o optimizations", "MCEP tmp update"
    saved = [found[*at, "MCEP"] / found[*at, whole] for at in points]
    still = [found[*at, timed] / found[*at, "MCEP"] for at in points]
    wrong = sum(int(row["wrong"]) for row in rows)
    text = (
        f"with incremental streaming {min(saved):.2f} to {max(saved):.2f} times the events without, and with updates "
        f"every 10 s {min(still):.2f} to {max(still):.2f} times those; {wrong} sampled ranges wrong"
    )
    return [Claim("M3", max(saved) <= CLEARLY and max(still) < 1 and not wrong, text)]


def judge_answers(rows: Sequence[Row]) -> list[Claim]:
    """Check M4: every range equals the reference's range, and strong queries agree where their ranges overlap."""
    wrong, ranges = (sum(int(row[name]) for row in rows) for name in ("wrong", "ranges"))
    strong = [row for row in rows if row["semantics"] == "strong"]
    pairs, apart = (sum(int(row[name]) for row in strong) for name in ("pairs", "disagreeing"))
    refused = sum(int(row["refused"]) for row in rows)
    weak = sum(int(row["disagreeing"]) for row in rows if row["semantics"] == "weak")
    matches = sum(int(row["delivered"]) for row in rows)
    text = (
        f"{wrong} of {ranges} ranges wrong ({matches} matches; {refused} refused for lack of a quiescent point); "
        f"strong: {apart} of {pairs} pairs over one region disagree (weak: {weak})"
    )
    return [Claim("M4", wrong == 0 and apart == 0 and pairs > 0 and matches > 0, text)]


def draw_streams(rows: Sequence[Row], canvas: Canvas) -> None:
    """Plot figures 7 and 8: streamed events and control messages, by the edge of the range."""
    left, right = canvas.subplots(1, 2)
    for deviation in DEVIATIONS_M:
        chosen = [row for row in rows if row.get("deviation_m") == deviation]
        left.plot(*_series(chosen, "streamed"), marker="o", markersize=3, label=f"predeployed, {deviation} m")
    moving = [row for row in rows if row["mode"] == "MCEP"]
    left.plot(*_series(moving, "streamed"), marker="s", color="black", linewidth=2, label="MCEP")
    left.set(yscale="log", xlabel="edge of the range (m)", ylabel="events streamed", title="Figure 7")
    bottom, top = left.get_ylim()
    left.set_ylim(bottom, top * 30)
    left.legend(frameon=False, fontsize=7, ncols=2, loc="upper left")
    right.plot(*_series(moving, "streamed"), marker="s", color="black", label="events")
    right.plot(*_series(moving, "control"), marker="^", color="tab:red", label="control messages")
    right.set(xlabel="edge of the range (m)", ylabel="messages of MCEP", title="Figure 8", ylim=(0, None))
    right.legend(frameon=False, fontsize=8)


def draw_incremental(rows: Sequence[Row], canvas: Canvas) -> None:
    """Plot figure 9: the events streamed in the three modes."""
    axes = canvas.subplots()
    for mode, marker in zip(MODES, "so^", strict=True):
        axes.plot(*_series([row for row in rows if row["mode"] == mode], "streamed"), marker=marker, label=mode)
    axes.set(yscale="log", xlabel="edge of the range (m)", ylabel="events streamed")
    axes.legend(frameon=False)


def draw_answers(rows: Sequence[Row], canvas: Canvas) -> None:
    """Plot the ranges of each run, and how many were wrong."""
    axes = canvas.subplots()
    labels = []
    for number, row in enumerate(rows, 1):
        consuming = "consuming, " if row["consuming"] else ""
        labels.append(f"{number}: {str(row['shape']).split()[0]}, {row['update']}, {consuming}{row['semantics']}")
    axes.barh(labels, [int(row["ranges"]) for row in rows], color="tab:green", label="ranges")
    axes.barh(labels, [int(row["wrong"]) for row in rows], color="tab:red", label="wrong")
    axes.tick_params(axis="y", labelsize=6)
    axes.invert_yaxis()
    axes.legend(frameon=False)


def _series(rows: Sequence[Row], name: str) -> tuple[list[int], list[float]]:
    """Return the edges of ranges in ascending order, and for each edge the mean of `name` over seeds."""
    edges = sorted({int(row["edge_m"]) for row in rows})
    means = []
    for edge in edges:
        values = [float(row[name]) for row in rows if row["edge_m"] == edge]
        means.append(sum(values) / len(values))
    return edges, means


STUDY = Study(
    "mobility",
    "MCEP: moving range queries",
    (
        Figure(
            "7",
            "Predeployment and moving",
            ("M1", "M2", "8"),
            base_runs,
            mobility_runs.measure_streams,
            draw_streams,
            judge_streams,
        ),
        Figure(
            "9",
            "Incremental streaming",
            ("M3",),
            streaming_runs,
            mobility_runs.measure_moving,
            draw_incremental,
            judge_incremental,
        ),
        Figure(
            "answers",
            "Every range against the reference",
            ("M4",),
            answer_runs,
            mobility_runs.measure_answers,
            draw_answers,
            judge_answers,
        ),
    ),
)
