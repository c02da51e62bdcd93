"""Events exactly at a bound: as old as `within`, at the time of a timer, or at a location update."""

from __future__ import annotations

import pytest

import tocsin
from tocsin import Event
from tocsin.reference import patterns
from tocsin.reference.ranges import coverings

S = 1_000_000


@pytest.mark.parametrize(("age_us", "matches"), [(5 * S - 1, 1), (5 * S, 1), (5 * S + 1, 0)])
@pytest.mark.parametrize("mode", ["", "mode recent"])
def test_an_event_exactly_as_old_as_within_is_in(age_us: int, matches: int, mode: str) -> None:
    rules = tocsin.rules(f"request Together on A & B within 5 s {mode}")
    events = [Event("A", 7), Event("B", 7 + age_us)]
    assert len(patterns.detect(rules.rules, events)) == matches
    assert rules.detect(events).num_rows == matches


@pytest.mark.parametrize(("last_us", "matches"), [(10 * S - 1, 0), (10 * S, 1), (10 * S + 1, 1)])
@pytest.mark.parametrize("timer", ["at(Order, 10 s)", 'at("1970-01-01T00:00:10Z")', "every(10 s)"])
def test_a_timer_due_exactly_at_the_last_event_fires(timer: str, last_us: int, matches: int) -> None:
    rules = tocsin.rules(f"request Late on Order as o ; {timer} as t")
    events = [Event("Order", 0), Event("Clock", last_us)]
    expected = len(patterns.detect(rules.rules, events))
    assert rules.detect(events).num_rows == expected
    if not timer.startswith("every"):
        assert expected == matches
    detector = rules.detector(ts_unit="us")
    assert detector.push(events).num_rows + detector.finish().num_rows == expected


@pytest.mark.parametrize(("ts", "ranges"), [(20 * S - 1, [1]), (20 * S, [1, 2]), (20 * S + 1, [2])])
def test_a_match_at_the_instant_of_a_location_update_belongs_to_both_ranges(ts: int, ranges: list[int]) -> None:
    rules = tocsin.rules("define Hot() from A()\ninterest Near of Hot around Me() range circle 9 m")
    here = {"x": 0.0, "y": 0.0}
    events = [Event("Me", 0, here), Event("Me", 20 * S, here), Event("A", ts, here)]
    actual = [row["range"] for row in rules.detect(events).to_pylist() if row["rule"]]
    (interest,) = rules.interests
    expected = [one.range.number for one in coverings(interest, events) for _ in one.delivered]
    assert actual == expected == ranges


@pytest.mark.parametrize(("age_us", "matches"), [(10 * S, 1), (10 * S + 1, 0)])
def test_a_match_exactly_as_old_as_the_lifetime_is_delivered(age_us: int, matches: int) -> None:
    rules = tocsin.rules("define Hot() from A()\ninterest Near of Hot around Me() range circle 9 m lifetime 10 s")
    here = {"x": 0.0, "y": 0.0}
    events = [Event("A", 30 * S - age_us, here), Event("Me", 30 * S, here)]
    (interest,) = rules.interests
    assert sum(len(one.delivered) for one in coverings(interest, events)) == matches
    assert sum(row["rule"] is not None for row in rules.detect(events).to_pylist()) == matches
