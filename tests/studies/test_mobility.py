"""Does the study of moving queries count what it says, and can its claims fail?"""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import pytest

from tocsin.language.mcep.ast import Rectangle, Space
from tocsin.language.mcep.text import parse
from tocsin.plans.moving import Region
from tocsin.reference.patterns import detect
from tocsin.studies import mobility, mobility_runs, named
from tocsin.studies.mobility_runs import DEVIATIONS_M, measure_answers, measure_moving, measure_predeployed
from tocsin.studies.study import Row, Scale

SAMPLE = Path(__file__).parents[2] / "examples" / "data" / "sumo_sample.csv"
SETTINGS = {"cars": 60, "seconds": 12, "seed": 1, "edge_m": 300, "lifetime_s": 10}


def test_the_study_has_all_claims() -> None:
    found = {claim for figure in named("mobility").figures for claim in figure.claims}
    assert {"M1", "M2", "M3", "M4"} <= found
    assert all(figure.runs(Scale(quick=True)) for figure in named("mobility").figures)


def test_predeployed_ranges_are_counted_one_by_one() -> None:
    trace = mobility_runs._trace(60, 12, 1)
    for row in measure_predeployed(SETTINGS):
        if (deviation := row["deviation_m"]) < 100:
            continue
        xs = range(deviation // 2, int(trace.width_m) + deviation // 2, deviation)
        ys = range(deviation // 2, int(trace.height_m) + deviation // 2, deviation)
        shape = mobility_runs._interests(mobility_runs.RULES, ["c1"], "rectangle 300 m by 300 m", "1 s", "each")[
            0
        ].shape
        regions = [Region(shape, (x, y), Space.PLANE) for x in xs for y in ys]
        held = sum(region.contains((e.attributes["x"], e.attributes["y"])) for e in trace.events for region in regions)
        assert (row["deployed"], row["primary"]) == (len(regions), held)


def test_what_goes_between_predeployed_operators_is_counted_range_by_range() -> None:
    trace = mobility_runs.street_trace(40, 12, 3, 300.0, 300.0, accident_every_s=2.0)
    lower = [rule for rule in parse(mobility_runs.RULES).rules if rule.emits.name != "Accident"]
    places = {event.id: (event.attributes["x"], event.attributes["y"]) for event in trace.events}
    boxes = mobility_runs._composites(trace.events, places)
    centres = [np.arange(50, 350, 100)] * 2
    counted = mobility_runs._ranges_with(boxes, centres, 120.0).sum()
    found = 0
    for x, y in product(*centres):
        region = Region(Rectangle(120.0, 120.0), (x, y))
        found += len(detect(lower, [event for event in trace.events if region.contains(places[event.id])]))
    assert counted == found > 0


def test_incremental_streaming_streams_less_and_delivers_the_same() -> None:
    rows = {mode: measure_moving({**SETTINGS, "mode": mode})[0] for mode in mobility_runs.MODES}
    assert all(row["wrong"] == 0 for row in rows.values())
    assert rows["MCEP"]["streamed"] < rows["MCEP w/o optimizations"]["streamed"]
    assert rows["MCEP"]["delivered"] == rows["MCEP w/o optimizations"]["delivered"]
    assert rows["MCEP tmp update"]["ranges"] < rows["MCEP"]["ranges"] == 12


def test_the_study_drives_by_a_trace_of_sumo() -> None:
    runs_of = mobility.base_runs(Scale(quick=True, trace=str(SAMPLE)))
    assert {run["trace"] for run in runs_of} == {str(SAMPLE)}
    rows = mobility_runs.measure_streams({**runs_of[-1], "edge_m": 300, "lifetime_s": 5})
    (moving,) = (row for row in rows if row["mode"] == "MCEP")
    assert (moving["wrong"], moving["ranges"]) == (0, 90)
    assert moving["delivered"] > 0
    assert all(row["streamed"] > 0 for row in rows)


@pytest.mark.parametrize("semantics", ["weak", "strong"])
@pytest.mark.parametrize("consuming", [False, True])
def test_answers_are_right_and_there_are_some(semantics: str, consuming: bool) -> None:
    run = {"shape": "circle 150 m", "update": "every 5 s", "seconds": 25, "seed": 2}
    (row,) = measure_answers({**run, "semantics": semantics, "consuming": consuming})
    assert row["wrong"] == row["disagreeing"] == 0
    assert row["pairs"] > 0
    assert row["delivered"] > 10


def streams(mcep: int, control: int, predeployed: int) -> list[Row]:
    base = {"edge_m": 100, "seed": 1}
    rows = [{**base, "mode": "predeployment", "deviation_m": one, "streamed": predeployed} for one in DEVIATIONS_M]
    return [*rows, {**base, "mode": "MCEP", "streamed": mcep, "control": control, "ranges": 1}]


def test_claims_can_fail() -> None:
    assert [claim.holds for claim in mobility.judge_streams(streams(100, 1, 10_000))] == [True, True]
    assert [claim.holds for claim in mobility.judge_streams(streams(100, 50, 150))] == [False, False]
    base = {"edge_m": 100, "seed": 1, "wrong": 0}

    def three(*streamed: int) -> list[Row]:
        return [{**base, "mode": mode, "streamed": n} for mode, n in zip(mobility_runs.MODES, streamed, strict=True)]

    assert mobility.judge_incremental(three(50, 100, 40))[0].holds
    assert not mobility.judge_incremental(three(95, 100, 40))[0].holds
    assert not mobility.judge_incremental(three(50, 100, 60))[0].holds
    good = {"wrong": 0, "ranges": 9, "semantics": "strong", "pairs": 3, "disagreeing": 0, "refused": 0, "delivered": 4}
    assert mobility.judge_answers([good])[0].holds
    for wrong in ({"wrong": 1}, {"disagreeing": 1}, {"pairs": 0}, {"delivered": 0}):
        assert not mobility.judge_answers([{**good, **wrong}])[0].holds
