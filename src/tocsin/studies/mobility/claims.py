"""Which runs are made for MCEP's figures, and what do they say of its claims?"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from tocsin.studies.mobility.runs import LIFETIME_S, MODES
from tocsin.studies.study import Claim, Row, Scale, Settings

FAR = 0.5
"""Far below: at most half."""
ORDERS = 0.01
"""Orders of magnitude below: at most a hundredth."""
ACCURATE_M = 100
"""The accuracy of the example in the paper's introduction."""
CLEARLY = 0.8
"""Clearly fewer: at most four fifths."""
SHAPES = {
    "square": "rectangle 100 m by 100 m",
    "circle": "circle 70 m",
    "wedge": "polygon (-20 m, -20 m), (120 m, -60 m), (120 m, 60 m), (-20 m, 20 m)",
}


def base_runs(scale: Scale) -> list[Settings]:
    """Ranges with edges of 100 to 500 m."""
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
    """Ranges with edges of 100 to 500 m, in each of the three ways to move."""
    return [{**settings, "mode": mode} for settings in base_runs(scale) for mode in MODES]


def answer_runs(scale: Scale) -> list[Settings]:
    """All shapes, update conditions and semantics, with and without consumption."""
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
    """M1 and M2: far fewer events than predeployment, and control messages orders of magnitude below events."""
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
    """M3: incremental streaming streams clearly fewer, updates every 10 s fewer still."""
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
    """M4: every range as the reference has it; strong queries over one region agree where they overlap."""
    wrong, ranges = (sum(int(row[name]) for row in rows) for name in ("wrong", "ranges"))
    strong = [row for row in rows if row["semantics"] == "strong"]
    pairs, apart = (sum(int(row[name]) for row in strong) for name in ("pairs", "disagreeing"))
    refused = sum(int(row["refused"]) for row in rows)
    weak = sum(int(row["disagreeing"]) for row in rows if row["semantics"] == "weak")
    matches = sum(int(row["delivered"]) for row in rows)
    text = (
        f"{wrong} of {ranges} ranges wrong ({matches} matches; {refused} refused for want of a quiet point); strong: "
        f"{apart} of {pairs} pairs over one region disagree (weak: {weak})"
    )
    return [Claim("M4", wrong == 0 and apart == 0 and pairs > 0 and matches > 0, text)]
