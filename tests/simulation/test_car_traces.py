"""Traces are reproducible, on the streets, and have accidents that the rules find."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from tocsin.engine.detector import Detector
from tocsin.errors import EventError
from tocsin.language.mcep.text import parse
from tocsin.simulation.car_traces import BLOCK_M, RULES, fcd_trace, street_trace

SAMPLE = Path(__file__).parents[2] / "examples" / "data" / "sumo_sample.csv"


def test_cars_stay_on_the_streets_and_do_not_jump() -> None:
    trace = street_trace(30, 60, 2, 500.0, 400.0)
    for way in trace.ways.values():
        assert [second for second, _ in way] == list(range(60))
        for (_, (x, y)), (_, (a, b)) in pairwise(way):
            assert abs(x - a) + abs(y - b) <= 12 * 1.2 + 1e-6
            assert min(x % BLOCK_M, -x % BLOCK_M) < 1e-6 or min(y % BLOCK_M, -y % BLOCK_M) < 1e-6


def test_about_one_event_a_second_for_four_cars() -> None:
    trace = street_trace(400, 40, 1)
    assert 0.2 < len(trace.events) / 400 / 40 < 0.3
    assert len({event.id for event in trace.events}) == len(trace.events)
    assert list(trace.events) == sorted(trace.events, key=lambda event: event.ts)


def test_another_seed_is_another_trace() -> None:
    assert street_trace(20, 20, 1) == street_trace(20, 20, 1)
    assert street_trace(20, 20, 1) != street_trace(20, 20, 2)


def test_the_rules_find_accidents_where_there_are_any() -> None:
    program = parse(RULES)

    def accidents(every_s: float) -> int:
        trace = street_trace(100, 40, 3, 400.0, 400.0, accident_every_s=every_s)
        detector = Detector(program.rules, {type.name: type for type in program.types})
        tables = [detector.push(list(trace.events)), detector.finish()]
        return sum(table["type"].to_pylist().count("Accident") for table in tables)

    assert accidents(5.0) > 10
    assert accidents(1e9) == 0


def test_the_sample_of_sumo() -> None:
    trace = fcd_trace(SAMPLE)
    assert len(trace.ways) == 60
    assert {event.type for event in trace.events} == {"Acceleration", "Steering"}
    assert all(
        -5 <= at[0] <= trace.width_m and -5 <= at[1] <= trace.height_m for way in trace.ways.values() for _, at in way
    )
    assert len(trace.positions("c0")) == len(trace.ways["c0"]) == 90


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("second,car,x\n1,c0,5\n", "no trace with second, car, x, y, speed and heading"),
        ("second,car,x,y,speed,heading\n1,c0,5,here,0,0\n", "could not convert string to float"),
        ("second,car,x,y,speed,heading\n", "there is no car"),
    ],
)
def test_a_file_that_is_not_a_trace(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(text)
    with pytest.raises(EventError, match=said):
        fcd_trace(path)
    with pytest.raises(EventError, match="cannot read the trace"):
        fcd_trace(tmp_path / "missing.csv")
