"""Rule changes take effect at one event time, whatever the order of arrival."""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import tocsin
from tests.budget import examples
from tests.conformance.hosts import expected, rows_of
from tests.strategies import TYPES, Case, cases
from tests.strategies_requests import request_cases
from tocsin.engine.checkpointer import Checkpointer, restore
from tocsin.engine.detector import Detector
from tocsin.errors import RuleError
from tocsin.events.formats import read_events
from tocsin.language.eps.ast import Mode, Request
from tocsin.reference import patterns

DECLARED = {type.name: type for type in TYPES}


@settings(max_examples=examples(300), suppress_health_check=list(HealthCheck))
@given(case=cases(), seed=st.integers(0, 9999))
def test_a_change_is_exact(case: Case, seed: int) -> None:
    defined = {rule.emits.name for rule in case.rules}
    assume(not any(type in defined for rule in case.rules for type in rule.uses))
    check_change(case, random.Random(seed))


@settings(max_examples=examples(150), suppress_health_check=list(HealthCheck))
@given(case=request_cases(tuple(Mode), events_max=8, timers=True), seed=st.integers(0, 9999))
def test_requests_are_added_and_removed(case: Case, seed: int) -> None:
    check_change(case, random.Random(seed))


def check_change(case: Case, rng: random.Random) -> None:
    """Add and remove rules while events arrive."""
    fate = {rule.name: rng.choice(["stays", "goes", "comes"]) for rule in case.rules}
    delay_us = rng.choice([0, 2, 8])
    arrival = sorted(case.events, key=lambda event: event.ts + rng.randint(0, delay_us))
    detector = Detector([rule for rule in case.rules if fate[rule.name] != "comes"], DECLARED, delay_us=delay_us)
    checkpoints, segments, manifest = Checkpointer(detector), {}, b""
    actual = []
    moment = rng.randint(0, len(arrival))
    at = 0
    cuts = sorted({0, moment, len(arrival), *(rng.randint(0, len(arrival)) for _ in range(rng.randint(0, 12)))})
    for number, following in zip(cuts, [*cuts[1:], len(arrival)], strict=True):
        if number == moment:
            at = max((event.ts for event in arrival[:number]), default=-5) + rng.randint(1, 8)
            add = [rule for rule in case.rules if fate[rule.name] == "comes"]
            detector.change(add=add, remove=[name for name, what in fate.items() if what == "goes"], at=at)
        actual += rows_of(detector.push(arrival[number:following]))
        changes = checkpoints.delta()
        segments = {n: data for n, data in {**segments, **changes.put}.items() if n not in changes.drop}
        manifest = changes.manifest
        if rng.random() < 0.2:
            detector, checkpoints = restore(manifest, segments, detector.plan.sources, DECLARED)
    actual += rows_of(detector.finish())
    timed = any(isinstance(rule, Request) for rule in case.rules)
    if at > max((event.ts for event in arrival), default=-5) + 1 and not timed:
        actual += rows_of(detector.advance(at))
    expected_rows = []
    for rule in case.rules:
        since = {rule.name: at} if fate[rule.name] == "comes" else {}
        matches = expected(patterns.detect([rule], case.events, since), case.rules)
        expected_rows += [row for row in matches if fate[rule.name] != "goes" or row["ts"] < at]

    def plain(rows: list[dict[str, object]]) -> list[str]:
        return sorted(repr(sorted((k, v) for k, v in row.items() if v is not None)) for row in rows)

    assert plain(actual) == plain(expected_rows)


@settings(max_examples=examples(40), suppress_health_check=list(HealthCheck))
@given(case=cases() | request_cases((Mode.GENERIC,), events_max=12), seed=st.integers(0, 9999))
def test_disabled_rules_are_removed(case: Case, seed: int) -> None:
    """A detector that rebuilds its rules after each removal gives the same matches, also with checkpoints."""
    rng = random.Random(seed)
    detectors = [Detector(case.rules, DECLARED, delay_us=2) for _ in range(2)]
    cuts = sorted({0, len(case.events), *(rng.randint(0, len(case.events)) for _ in range(6))})
    for number, following in zip(cuts, [*cuts[1:], len(case.events)], strict=True):
        valid = {rule.name for rule in detectors[0].plan.sources}
        absent = [rule for rule in case.rules if rule.name not in valid]
        used = {type for rule in case.rules for type in rule.uses}
        free = sorted(rule.name for rule in case.rules if rule.name in valid and rule.emits.name not in used)
        fate = rng.random()
        for detector, thorough in zip(detectors, (False, True), strict=True):
            if fate < 0.4 and free:
                detector.remove(free[int(fate * 100) % len(free)])
            elif fate < 0.6 and absent:
                detector.add([absent[0]])
            if thorough:
                detector._drop_disabled()
        one, other = (rows_of(detector.push(case.events[number:following])) for detector in detectors)
        assert one == other
        if rng.random() < 0.2:
            detectors[0] = Detector.restore(detectors[0].snapshot(), detectors[0].plan.sources, DECLARED)
    one, other = (rows_of(detector.finish()) for detector in detectors)
    assert one == other


def test_a_late_event_of_a_removed_rule_is_ignored() -> None:
    detector = tocsin.rules("define P() from A() define Q() from B()").detector(delay="2 us")
    detector.push(read_events("A@9()\nB@9()"))
    detector.remove("P")
    detector.push(read_events("A@1()\nB@2()"))
    assert detector.dead_letters()["type"].to_pylist() == ["B"]


FIRE = """
define Fire(area: string)
from Smoke(area=$a) and last Temp(area=$a, value>45) within 5 s from Smoke
where area=$a
"""
HOT = FIRE.replace("45", "60")


def test_a_rule_is_replaced_by_name() -> None:
    detector = tocsin.rules(FIRE).detector(delay="2 s")
    assert detector.push(read_events('Temp@1s(area="A", value=50.0)\nSmoke@2s(area="A")')).num_rows == 0
    detector.change(add=tocsin.rules(HOT).rules, at=5_000_000)
    actual = detector.push(read_events('Smoke@4s(area="A")\nSmoke@6s(area="A")\nTemp@7s(area="A", value=61.0)'))
    later = detector.push(read_events('Smoke@8s(area="A")\nSmoke@20s(area="A")'))
    rows = [row["ts"] for table in (actual, later) for row in rows_of(table)]
    assert rows == [2_000_000, 4_000_000, 8_000_000]


def test_a_change_before_the_latest_event_is_rejected() -> None:
    detector = tocsin.rules(FIRE).detector()
    detector.push(read_events('Smoke@2s(area="A")'))
    with pytest.raises(RuleError, match="have been seen"):
        detector.change(remove=["Fire"], at=2_000_000)
    with pytest.raises(RuleError, match="Did you mean 'Fire'"):
        detector.change(remove=["Fier"], at=3_000_000)
