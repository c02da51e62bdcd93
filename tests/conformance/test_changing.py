"""Processors, links, sources and sinks come and go while events flow, and every sink gets what the reference says."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.budget import examples, seeds
from tests.conformance.changing import KINDS_OF_CHANGE, check_changes
from tests.conformance.overlay import ALL, sequences, swept
from tests.strategies import Case, cases

SMALL = cases(events_max=24, ids_shared=False)


@pytest.mark.parametrize("strategy", ALL)
@settings(max_examples=examples(12), suppress_health_check=list(HealthCheck))
@given(case=SMALL, seed=st.integers(0, 99999))
def test_what_comes_and_goes_changes_no_answer(strategy: str, case: Case, seed: int) -> None:
    check_changes(case.rules, case.events, strategy, seed)


@pytest.mark.parametrize("strategy", ALL)
def test_sequences_while_sites_change(strategy: str) -> None:
    cases = seeds(range(8))
    sent = sequences_checked(strategy, cases)
    if len(cases) >= 100:
        never = [kind for kind in (*KINDS_OF_CHANGE, "Handover", "Retire", "Memory") if not sent[kind]]
        assert not never, f"these never happened: {never}"


def sequences_checked(strategy: str, seeds: range) -> Counter[str]:
    def checked(rng: random.Random, seed: int) -> Counter[str]:
        rules, events = sequences(rng)
        rules = [replace(rule, consuming=rng.choice([(), (rule.roles[-1].role,)])) for rule in rules]
        return check_changes(rules, events, strategy, seed)

    return swept(seeds, checked)
