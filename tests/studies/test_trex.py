"""The T-Rex study: its runs are those of the paper's figures, and its claims can fail."""

from __future__ import annotations

from matplotlib.figure import Figure as Canvas

from tocsin.studies import named
from tocsin.studies.study import Row, Scale
from tocsin.studies.trex import STRATEGIES, default, locality, measure, subscriptions

STUDY = named("trex")


def rows(traffic: dict[str, list[float]], delay: dict[str, float], values: list[float]) -> list[Row]:
    return [
        {"x": x, "strategy": name, "traffic": traffic[name][at], "delay_ms": delay[name]}
        for at, x in enumerate(values)
        for name in STRATEGIES
    ]


def test_every_claim_has_a_figure() -> None:
    claims = [claim for figure in STUDY.figures for claim in figure.claims]
    assert sorted(claims) == sorted(f"T{number}" for number in range(1, 13))
    assert [figure.name for figure in STUDY.figures] == [str(number) for number in range(10, 21)]
    for figure in STUDY.figures:
        runs = figure.runs(Scale(seeds=2))
        assert {run["strategy"] for run in runs} == set(STRATEGIES)
        assert {run["seed"] for run in runs} == {1, 2}


def test_one_run_is_measured_and_plotted() -> None:
    small = {
        "processors": 4,
        "types": 6,
        "rules": 3,
        "links": 2.0,
        "subscriptions": 2,
        "rate_min": 0.5,
        "rate_max": 1.0,
    }
    found = [
        {"x": 0, "strategy": name, **row}
        for name in STRATEGIES
        for row in measure({**small, "window_s": 5.0, "seed": 1, "strategy": name, "warm_s": 10.0, "measured_s": 20.0})
    ]
    assert len({row["notices"] for row in found}) == 1
    assert all(float(row["traffic"]) > 0 for row in found)
    canvas = Canvas()
    STUDY.figures[0].draw(found, canvas)
    assert len(canvas.axes) == 2


def test_claims_hold_and_fail() -> None:
    delay = {"Centr": 20.0, "ST": 20.0, "STpp": 21.0, "MT": 12.0, "MTpp": 13.0}
    paper = {"Centr": [900.0], "ST": [500.0], "STpp": [480.0], "MT": [600.0], "MTpp": [580.0]}
    assert [claim.holds for claim in default(rows(paper, delay, [0.0]))] == [True, True]
    assert [claim.holds for claim in default(rows({**paper, "Centr": [510.0]}, delay, [0.0]))] == [True, False]
    assert not default(rows(paper, {**delay, "MT": 25.0}, [0.0]))[0].holds
    crossing = {
        "Centr": [5.0] * 3,
        "ST": [10.0] * 3,
        "STpp": [10.0] * 3,
        "MT": [5.0, 11.0, 20.0],
        "MTpp": [5.0, 11.0, 20.0],
    }
    assert subscriptions(rows(crossing, delay, [1.0, 5.0, 20.0]))[0].holds
    assert not locality(rows(crossing, delay, [1.0, 5.0, 20.0]))[0].holds
