"""One rule, one answer: sites joined by links give every sink the matches of the reference, whatever the strategy."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.conformance.overlay import ALL, check
from tests.strategies import Case, cases

SMALL = cases(events_max=24)


@pytest.mark.parametrize("strategy", ALL)
@settings(max_examples=20, suppress_health_check=list(HealthCheck))
@given(case=SMALL, seed=st.integers(0, 99999))
def test_sites_give_the_answer_of_the_reference(strategy: str, case: Case, seed: int) -> None:
    check(case.rules, case.events, strategy, seed)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ALL)
@settings(max_examples=200, suppress_health_check=list(HealthCheck))
@given(case=SMALL, seed=st.integers(0, 99999))
def test_sites_give_the_answer_of_the_reference_in_a_long_sweep(strategy: str, case: Case, seed: int) -> None:
    check(case.rules, case.events, strategy, seed)
