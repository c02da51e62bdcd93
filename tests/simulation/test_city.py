"""Moving queries in a city of brokers deliver the matches of the reference, for every range and in order."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck

from tests.budget import seeds
from tests.simulation.moving import Moving, as_expected, as_ranges, dense, shadowed, whole
from tests.simulation.windowed import windowed
from tocsin.language.mcep.ast import Semantics

QUIET = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]


def check(case: Moving) -> None:
    delivered = case.simulation().run(case.case.events)
    for name, expected in case.expected().items():
        assert as_ranges(delivered[name]) == as_expected(expected)


@pytest.mark.parametrize("seed", seeds(range(20)))
def test_strong_queries_agree_where_they_overlap(seed: int) -> None:
    agreeing(dense(seed, queries=2, same=True, strong=True))


def test_seeded_cases_are_of_all_kinds() -> None:
    several = [dense(seed) for seed in range(60)]
    delivered = [sum(len(one.delivered) for one in case.expected()["qMe"]) for case in several]
    assert sum(count > 5 for count in delivered) > 30
    kinds = {(type(c.interests[0].shape), type(c.interests[0].update), c.interests[0].semantics) for c in several}
    assert len(kinds) > 14
    assert len({case.interests[0].space for case in several}) == 2


def test_queries_whose_rules_and_ranges_coincide_share_their_operators() -> None:
    for seed in range(10):
        case = dense(seed)
        (one,) = case.interests
        alone = case.simulation()
        alone.run(case.case.events)
        case = replace(case, interests=(one, replace(one, name="other"), replace(one, name="third", lifetime_us=2)))
        check(case)
        together = replace(case, interests=case.interests[:2]).simulation()
        delivered = together.run(case.case.events)
        assert together.traffic.streamed == alone.traffic.streamed
        assert together.traffic.messages == alone.traffic.messages
        assert len(delivered["other"]) == len(delivered[one.name])


def test_cases_with_counting_windows_are_of_all_kinds() -> None:
    several = [windowed(seed) for seed in range(60)]
    delivered = [sum(len(one.delivered) for one in case.expected()["qMe"]) for case in several]
    assert sum(count > 5 for count in delivered) > 20

    def found(case: Moving, semantics: Semantics) -> list[list[object]]:
        (one,) = case.interests
        return as_expected(replace(case, interests=(replace(one, semantics=semantics),)).expected()[one.name])

    # Where an operator begins decides what it finds.
    assert sum(found(case, Semantics.WEAK) != found(case, Semantics.STRONG) for case in several) > 1


@pytest.mark.parametrize("seed", seeds(range(20)))
def test_strong_queries_with_counting_windows_agree_where_they_overlap(seed: int) -> None:
    agreeing(windowed(seed, queries=2, same=True, strong=True))


def agreeing(case: Moving) -> None:
    """Definition 2 of the paper's Section 3, for ranges over one region; both queries at the locations of the first."""
    one, two = case.interests
    assert one.semantics is two.semantics is Semantics.STRONG
    case = shadowed(case)
    expected = case.expected()
    found = case.simulation().run(case.case.events)
    for name in found:
        assert as_ranges(found[name]) == as_expected(expected[name])
    for mine in expected[one.name]:
        for other in expected[two.name]:
            if mine.range.region != other.range.region or mine.error or other.error:
                continue
            begin, end = max(mine.range.start, other.range.start), min(mine.range.end, other.range.end)
            seen = [[whole(d.match) for d in c.delivered if begin <= d.match.ts <= end] for c in (mine, other)]
            assert seen[0] == seen[1]
