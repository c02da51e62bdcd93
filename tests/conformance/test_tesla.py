"""One rule, one answer: every host gives the matches of the reference, for any rules and any events."""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.conformance.hosts import HOSTS, expected
from tests.conformance.packs import joined, settled
from tests.conformance.slots import SLOTS
from tests.strategies import KINDS, TYPES, Case, cases
from tocsin.engine import reference

ALL = {**HOSTS, **SLOTS}
DECLARED = {type.name: type for type in TYPES}
KEYED = st.builds(joined, cases(), st.sampled_from(list(KINDS)), st.integers(0, 15))
"""Cases of which some rules can be partitioned."""


def check(host: str, case: Case, seed: int) -> None:
    right = expected(reference.detect(case.rules, case.events), case.rules)
    found = ALL[host](case.rules, DECLARED, list(case.events), random.Random(seed))
    if host == "ordered":  # what is released at once cannot be put in order within its instant
        assert [row["ts"] for row in found] == [row["ts"] for row in right]
    if host == "ordered" or host in SLOTS:
        found, right = settled(found), settled(right)
    assert found == right


@pytest.mark.parametrize("host", ALL)
@settings(max_examples=300, suppress_health_check=list(HealthCheck))
@given(case=cases(), seed=st.integers(0, 999))
def test_host_gives_the_answer_of_the_reference(host: str, case: Case, seed: int) -> None:
    check(host, case, seed)


@pytest.mark.parametrize("host", SLOTS)
@settings(max_examples=150, suppress_health_check=list(HealthCheck))
@given(case=KEYED, seed=st.integers(0, 999))
def test_keyed_rules_give_the_answer_of_the_reference(host: str, case: Case, seed: int) -> None:
    check(host, case, seed)


@pytest.mark.slow
@pytest.mark.parametrize("host", HOSTS)
@settings(max_examples=2500, suppress_health_check=list(HealthCheck))
@given(case=cases(), seed=st.integers(0, 999))
def test_host_gives_the_answer_of_the_reference_in_a_long_sweep(host: str, case: Case, seed: int) -> None:
    check(host, case, seed)


@pytest.mark.slow
@pytest.mark.parametrize("host", SLOTS)
@settings(max_examples=800, suppress_health_check=list(HealthCheck))
@given(case=KEYED, seed=st.integers(0, 999))
def test_keyed_rules_give_the_answer_of_the_reference_in_a_long_sweep(host: str, case: Case, seed: int) -> None:
    check(host, case, seed)
