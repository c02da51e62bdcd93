"""One rule, one answer: every host gives the matches of the reference, for any rules and any events."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.budget import examples
from tests.conformance.hosts import HOSTS, expected
from tests.conformance.packs import beside, joined, settled
from tests.conformance.slots import SLOTS, detected, sent_of
from tests.strategies import KINDS, TYPES, Case, cases, rule_sets
from tocsin.reference import patterns
from tocsin.spark.job import send

ALL = {**HOSTS, **SLOTS}
DECLARED = {type.name: type for type in TYPES}
KEYED = st.builds(
    beside, st.builds(joined, cases(), st.sampled_from(list(KINDS)), st.integers(0, 15)), st.just(()) | rule_sets()
)
"""Cases of which some rules can be partitioned, some with other rules beside."""


def check(host: str, case: Case, seed: int) -> None:
    expected_rows = expected(patterns.detect(case.rules, case.events), case.rules)
    found = ALL[host](case.rules, DECLARED, list(case.events), random.Random(seed))
    if host == "ordered":  # what is released at once cannot be put in order within its instant
        assert [row["ts"] for row in found] == [row["ts"] for row in expected_rows]
    if host == "ordered" or host in SLOTS:
        found, expected_rows = settled(found), settled(expected_rows)
    assert found == expected_rows


@pytest.mark.parametrize("host", ALL)
@settings(max_examples=examples(200), suppress_health_check=list(HealthCheck))
@given(case=cases(), seed=st.integers(0, 999))
def test_host_gives_the_answer_of_the_reference(host: str, case: Case, seed: int) -> None:
    check(host, case, seed)


@pytest.mark.parametrize("host", SLOTS)
@settings(max_examples=examples(100), suppress_health_check=list(HealthCheck))
@given(case=KEYED, seed=st.integers(0, 999))
def test_keyed_rules_give_the_answer_of_the_reference(host: str, case: Case, seed: int) -> None:
    check(host, case, seed)


@settings(max_examples=examples(60), suppress_health_check=list(HealthCheck))
@given(case=cases(), seed=st.integers(0, 999))
def test_some_columns_of_matches_are_those_of_all_columns(case: Case, seed: int) -> None:
    """Where nobody asks for ids, events are not identified, and still stand in the right order."""
    sent = sent_of(case.rules, DECLARED, case.events, random.Random(seed), 0)
    names = [name for name in sent.job.matches.names if name not in ("id", "parts")]
    some = send(replace(sent.job, select=tuple(names)))
    rows = [
        sorted(str([row[name] for name in names]) for row in detected(job, DECLARED, case.events, random.Random(seed)))
        for job in (sent, some)
    ]
    assert rows[0] == rows[1]
