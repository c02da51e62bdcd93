"""Do moving queries in a city of brokers deliver what the reference says, for every range and in order?"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings

from tests.simulation.moving import Moving, as_expected, as_ranges, moving, whole
from tocsin.language.interests import Semantics

QUIET = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]


def check(case: Moving) -> None:
    delivered = case.simulation().run(case.case.events)
    for name, expected in case.expected().items():
        assert as_ranges(delivered[name]) == as_expected(expected)


@settings(max_examples=100, suppress_health_check=QUIET)
@given(moving())
def test_every_range_is_complete_and_in_order(case: Moving) -> None:
    check(case)


@pytest.mark.slow
@settings(max_examples=1000, suppress_health_check=QUIET)
@given(moving(queries=2))
def test_every_range_of_two_queries_is_complete_and_in_order(case: Moving) -> None:
    check(case)


@settings(max_examples=30, suppress_health_check=QUIET)
@given(moving(queries=2, same=True, strong=True))
def test_strong_queries_agree_where_they_overlap(case: Moving) -> None:
    agreeing(case)


@pytest.mark.slow
@settings(max_examples=300, suppress_health_check=QUIET)
@given(moving(queries=2, same=True, strong=True))
def test_strong_queries_agree_where_they_overlap_in_many_cases(case: Moving) -> None:
    agreeing(case)


def agreeing(case: Moving) -> None:
    """Definition 2 of the paper's Section 3, for ranges over one region; both queries at the first one's places."""
    one, two = case.interests
    assert one.semantics is two.semantics is Semantics.STRONG
    events = []
    for event in case.case.events:
        events.append(event)
        if event.type == "Me":
            events.append(type(event)("You", event.ts + 3, event.attributes, event.seq, f"{event.id}y"))
    delivered = Moving(case.interests, type(case.case)(case.case.rules, tuple(events)), case.city)
    expected = delivered.expected()
    found = delivered.simulation().run(events)
    for name in found:
        assert as_ranges(found[name]) == as_expected(expected[name])
    for mine in expected[one.name]:
        for other in expected[two.name]:
            if mine.range.region != other.range.region or mine.error or other.error:
                continue
            begin, end = max(mine.range.start, other.range.start), min(mine.range.end, other.range.end)
            seen = [[whole(d.match) for d in c.delivered if begin <= d.match.ts <= end] for c in (mine, other)]
            assert seen[0] == seen[1]
