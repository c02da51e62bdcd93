"""Moving queries: each host delivers the matches of the reference for each range, in its order."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.budget import examples
from tests.conformance import moving_slots
from tests.simulation.moving import Moving, as_expected, as_ranges, dense, moving
from tests.simulation.ranges import all_expected, arriving, by_range, rows_of, without_ids
from tests.simulation.windowed import windowed
from tocsin.engine.moving.detector import MovingDetector
from tocsin.language.mcep.text import parse

NEVER_LATE_US = 2**60
QUIET = list(HealthCheck)
SEEDS = st.integers(0, 2**32)
OTHERS = parse(
    """
    define Z() from AA()
    define Y() from C() and each AA() within 3 us from C
    interest Early of Z around They range circle 5 m
    interest Other of Y around Them range circle 5 m lifetime 9 us
    """
).interests
"""Queries that are added and removed beside those of a case."""


def table(case: Moving, rng: Random) -> None:
    """Push all events at once."""
    detector = MovingDetector(case.interests, case.types, delay_us=NEVER_LATE_US, history_us=case.city.history_us)
    found = [detector.push(list(case.case.events)), detector.finish()]
    assert by_range(rows_of(found)) == all_expected(case)
    assert not detector.dead_letters().num_rows


def stream(case: Moving, rng: Random) -> None:
    """Push batches; after some, restore the detector from its snapshot."""
    batches, delay_us = arriving(case.case.events, rng)
    restarts = rng.choice([0.0, 0.2, 0.5])
    # Consuming rules evaluate ranges from their start, which must not be older than the history.
    detector = MovingDetector(case.interests, case.types, delay_us=delay_us, history_us=case.city.history_us)
    found = []
    for batch in batches:
        found.append(detector.push(batch))
        if rng.random() < restarts:
            detector = MovingDetector.restore(detector.snapshot(), case.interests, case.types)
    found.append(detector.finish())
    assert by_range(rows_of(found)) == all_expected(case)
    assert not detector.dead_letters().num_rows


def slots(case: Moving, rng: Random) -> None:
    """Run Spark's slots of cells without Spark; workers, slots and other queries change."""
    assert by_range(moving_slots.stream(case, rng, OTHERS)) == all_expected(case)


def brokers(case: Moving, rng: Random) -> None:
    """Simulate a city of brokers."""
    delivered = case.simulation().run(case.case.events)
    for name, expected in case.expected().items():
        assert as_ranges(delivered[name]) == as_expected(expected)


HOSTS: dict[str, Callable[[Moving, Random], None]] = {
    "table": table,
    "stream": stream,
    "slots": slots,
    "brokers": brokers,
}


@pytest.mark.parametrize("host", HOSTS)
@settings(max_examples=examples(40), suppress_health_check=QUIET)
@given(case=st.builds(dense, SEEDS, queries=st.sampled_from([1, 2])), ids=st.booleans(), seed=st.integers(0, 999))
def test_host_delivers_what_the_reference_says(host: str, case: Moving, ids: bool, seed: int) -> None:
    HOSTS[host](case if ids or host == "brokers" else without_ids(case), Random(seed))


@pytest.mark.parametrize("host", [host for host in HOSTS if host != "slots"])  # its tables have coordinates only
@settings(max_examples=examples(30), suppress_health_check=QUIET)
@given(case=moving(queries=2), seed=st.integers(0, 999))
def test_host_delivers_what_the_reference_says_for_any_rules(host: str, case: Moving, seed: int) -> None:
    HOSTS[host](case, Random(seed))


@settings(max_examples=examples(60), suppress_health_check=QUIET)
@given(case=st.builds(windowed, SEEDS, queries=st.sampled_from([1, 2])))
def test_brokers_reconfigure_operators_with_counting_windows(case: Moving) -> None:
    brokers(case, Random(0))
