"""Sites joined by links give every sink the matches of the reference, with any strategy."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.budget import examples, seeds
from tests.conformance.changing import check_changes
from tests.conformance.overlay import ALL, WITH_AGGREGATES, aggregates, check, sequences, swept
from tests.strategies import Case, cases

SMALL = cases(events_max=24, ids_shared=False)


@pytest.mark.parametrize("strategy", ALL)
@settings(max_examples=examples(25), suppress_health_check=list(HealthCheck))
@given(case=SMALL, seed=st.integers(0, 99999))
def test_sites_give_the_answer_of_the_reference(strategy: str, case: Case, seed: int) -> None:
    check(case.rules, case.events, strategy, seed)


@pytest.mark.parametrize("strategy", ["ST", "MT", "STpp", "MTpp", "STpp eager", "MTpp eager"])
def test_sequences_at_different_rates(strategy: str) -> None:
    sent = sequences_checked(strategy, seeds(range(12)))
    assert sent["Answer"] or "eager" not in strategy, "no slave was ever asked"


def test_a_change_of_masters_while_messages_are_delayed() -> None:
    """`E()` and `E(n>1)` start to be pushed together; neither may take the other to have sent an event."""
    sequences_checked("MTpp eager", range(2137, 2138))


def sequences_checked(strategy: str, seeds: range) -> Counter[str]:
    return swept(seeds, lambda rng, seed: check(*sequences(rng), strategy, seed))


@pytest.mark.parametrize("strategy", WITH_AGGREGATES)
def test_aggregates_on_the_way_are_those_of_one_place(strategy: str) -> None:
    sent = aggregates_checked(strategy, seeds(range(15)))
    assert sent["Shares"], "no site was ever asked"


def aggregates_checked(strategy: str, seeds: range) -> Counter[str]:
    def checked(rng: random.Random, seed: int) -> Counter[str]:
        rules, events = aggregates(rng)
        sent = check(rules, events, strategy, seed)
        return sent + check_changes(rules, events, strategy, seed) if seed % 3 == 0 else sent

    return swept(seeds, checked)
