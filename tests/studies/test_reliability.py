"""The study of strong reliability: every claim has a figure, a run is measured, and claims can fail."""

from __future__ import annotations

from matplotlib.figure import Figure as Canvas

from tocsin.simulation.workloads import RATES, Factory
from tocsin.studies import named
from tocsin.studies.reliability import by_failures, by_replicas, latency, leaders, measure, properties
from tocsin.studies.study import Row, Scale

STUDY = named("reliability")


def test_every_claim_has_a_figure() -> None:
    claims = {claim for figure in STUDY.figures for claim in figure.claims}
    assert claims == {f"R{number}" for number in range(1, 8)}
    assert all(figure.runs(Scale()) for figure in STUDY.figures)


def test_the_scenario_has_the_paper_s_events_and_situations() -> None:
    works = Factory(6, 10, 1)
    assert works.sites.sources["3"] == {f"{kind}3" for kind in RATES}
    emitted = {rule.emits.name for rule in works.rules}
    assert {"SituationA5", "SituationB1by1", "SituationB1by4", "SituationB0by1"} <= emitted
    assert works.parents[5] == 1


def test_a_run_is_measured_and_plotted() -> None:
    rows = []
    for flaw in ("none", "active standby"):
        settings = {"facilities": 3, "seconds": 8, "f": 1, "p_fail": 0.01, "seed": 1, "kept": False, "flaw": flaw,
                    "recovery": 10}  # fmt: skip
        rows += [{**settings, **row} for row in measure(settings)]
    assert rows[0]["violations"] == 0
    assert rows[0]["situations"] > 0
    assert rows[0]["crashes"] > 0
    assert rows[1]["violations"] > 0
    for figure in STUDY.figures:
        canvas = Canvas()
        figure.draw(rows, canvas)
        assert canvas.axes


def overhead(duplicates: dict[tuple[int, float], int], elections: int = 1) -> list[Row]:
    return [
        {"f": f, "p_fail": p, "duplicates": count, "events": 100 * (f + 1), "links": 100, "elections": elections,
         "messages": 1000}
        for (f, p), count in duplicates.items()
    ]  # fmt: skip


def test_claims_hold_and_fail() -> None:
    straight = {(1, 0.0): 0, (2, 0.0): 0, (3, 0.0): 0, (1, 0.001): 10, (2, 0.001): 20, (3, 0.001): 30}
    assert [claim.holds for claim in by_replicas(overhead(straight))] == [True, True, True]
    bent = {**straight, (3, 0.001): 90}
    assert [claim.holds for claim in by_replicas(overhead(bent, 50))] == [False, False, True]
    rising = {(1, 0.0): 0, (1, 0.0005): 5, (1, 0.001): 10, (3, 0.0): 0, (3, 0.0005): 20, (3, 0.001): 40}
    assert [claim.holds for claim in by_failures(overhead(rising))] == [True, True]
    assert not by_failures(overhead({**rising, (1, 0.001): 90}))[0].holds
    assert leaders([{"p_fail": 0.001, "leaders": 1.01}, {"p_fail": 0.1, "leaders": 0.8}])[0].holds
    assert not leaders([{"p_fail": 0.001, "leaders": 1.05}, {"p_fail": 0.1, "leaders": 0.8}])[0].holds
    for late, holds in ((120.0, True), (150.0, False)):
        rows = [
            {"f": 0, "p_fail": 0.005, "latency_ms": 100.0, "recovery": 5},
            {"f": 2, "p_fail": 0.1, "latency_ms": late, "recovery": 5},
        ]
        assert latency(rows)[0].holds == holds
    sound = [{"flaw": "none", "violations": 0, "crashes": 3}, {"flaw": "no filter", "violations": 1, "crashes": 3}]
    assert not properties(sound)[0].holds
    assert properties([*sound, {"flaw": "active standby", "violations": 2, "crashes": 1}])[0].holds
