"""Requests for notification: each host, and the paper's four phases, give the answer of the reference."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import tocsin
from tests.budget import examples
from tests.conformance.hosts import HOSTS
from tests.conformance.test_tesla import ALL, check
from tests.strategies import Case
from tests.strategies_requests import crowded_cases, linked_cases, request_cases
from tocsin.events.formats import read_events
from tocsin.language import parse
from tocsin.language.eps.ast import Mode
from tocsin.language.syntax.expressions import print_rule
from tocsin.reference import patterns
from tocsin.reference.patterns import identified
from tocsin.studies.eps_tree import Tree

QUIET = list(HealthCheck)
EXAMPLES = examples(60)
SNOOP = (Mode.RECENT, Mode.CHRONOLOGICAL, Mode.CONTINUOUS, Mode.CUMULATIVE)


@pytest.mark.parametrize("host", ALL)
@settings(max_examples=EXAMPLES, suppress_health_check=QUIET)
@given(case=request_cases(), seed=st.integers(0, 999))
def test_host_gives_the_notifications_of_the_reference(host: str, case: Case, seed: int) -> None:
    check(host, case, seed)


@pytest.mark.parametrize("host", [host for host in ALL if host != "ordered"])
@settings(max_examples=EXAMPLES, suppress_health_check=QUIET)
@given(case=request_cases(timers=True, events_max=6), seed=st.integers(0, 999))
def test_host_gives_the_notifications_of_the_reference_with_timers(host: str, case: Case, seed: int) -> None:
    check(host, case, seed)


@pytest.mark.parametrize("host", ALL)
@settings(max_examples=EXAMPLES, suppress_health_check=QUIET)
@given(case=request_cases(modes=SNOOP), seed=st.integers(0, 999))
def test_host_gives_the_notifications_of_the_reference_in_contexts(host: str, case: Case, seed: int) -> None:
    check(host, case, seed)


@pytest.mark.parametrize("host", HOSTS)
@settings(max_examples=EXAMPLES, suppress_health_check=QUIET)
@given(case=linked_cases(), seed=st.integers(0, 999))
def test_host_gives_the_notifications_of_the_reference_for_events_joined_in_pairs(
    host: str, case: Case, seed: int
) -> None:
    check(host, case, seed)


def _case(text: str, events: str) -> Case:
    return Case(parse(text).rules, tuple(read_events(events)))


BOTH_ALTERNATIVES_ON_THE_RIGHT = _case(
    "request N0 on A() as a ; (A() as b & (A() as c || A() as d)) within 5 us mode cumulative",
    "A@0()\nA@0()\nA@0()\nA@1()",
)
BOTH_ALTERNATIVES_ON_THE_LEFT = _case(
    "request N0 on (B() as a & (A() as b || A() as c)) ; A() as d within 5 us mode cumulative",
    "A@0()\nB@0()\nA@1()",
)
BOTH_ALTERNATIVES_OF_TWO_OPERANDS = _case(
    "request N0 on (B as a & (A as b || A as c)) & (B as d & (A as e || A as f)) within 5 us mode cumulative",
    "A@0()\nA@0()\nB@1()\nB@1()\nA@2()\nB@2()",
)


@pytest.mark.parametrize("host", ALL)
@pytest.mark.parametrize("mode", SNOOP)
@settings(max_examples=examples(25), suppress_health_check=QUIET)
@example(case=BOTH_ALTERNATIVES_ON_THE_RIGHT, seed=0)
@example(case=BOTH_ALTERNATIVES_ON_THE_LEFT, seed=0)
@example(case=BOTH_ALTERNATIVES_OF_TWO_OPERANDS, seed=0)
@given(case=crowded_cases(), seed=st.integers(0, 999))
def test_an_event_that_fits_several_leaves(host: str, mode: Mode, case: Case, seed: int) -> None:
    check(host, replace(case, rules=tuple(replace(request, mode=mode) for request in case.rules)), seed)


def test_two_leaves_that_one_event_fills_are_one_operand_of_another_operator() -> None:
    """`c` and `d` are the same event; `a` must be another, and there are two."""
    found = patterns.detect(BOTH_ALTERNATIVES_ON_THE_RIGHT.rules, BOTH_ALTERNATIVES_ON_THE_RIGHT.events)
    (match,) = found
    assert [(part.role, part.ts) for part in match.parts] == [("a", 0), ("a", 0), ("b", 1), ("c", 0), ("d", 0)]
    ids = [part.id for part in match.parts]
    assert ids[3] == ids[4]
    assert len(set(ids)) == 4


def test_two_values_of_one_event_that_a_third_makes_equal() -> None:
    """`a.x = b.x and b.x = a.y` says of the event that arrives last that x = y."""
    text = "request R on A as a & B as b if a.x = b.x and b.x = a.y"
    events = read_events("B@1(x=1)\nA@2(x=1, y=2)\nA@3(x=1, y=1)")
    found = tocsin.rules(text).detect(list(events)).to_pylist()
    assert [[part["ts"] for part in match["parts"]] for match in found] == [[3, 1]]


def test_one_event_that_is_both_alternatives_is_accumulated_as_both() -> None:
    text = "request R on (B as a || B as b) & A as c & A as d within 5 us mode cumulative"
    events = read_events("A@1()\nB@1()\nA@2()")
    found = tocsin.rules(text).detect(list(events)).to_pylist()
    assert [[(part["role"], part["ts"]) for part in match["parts"]] for match in found] == [
        [("a", 1), ("b", 1), ("c", 2), ("d", 1)]
    ]
    expected = patterns.detect(parse(text).rules, events)
    assert [[(part.role, part.ts) for part in match.parts] for match in expected] == [
        [("a", 1), ("b", 1), ("c", 2), ("d", 1)]
    ]


@settings(max_examples=EXAMPLES, suppress_health_check=QUIET)
@given(case=request_cases(), seed=st.integers(0, 999))
def test_four_phases_give_the_notifications_of_the_reference(case: Case, seed: int) -> None:
    tree = Tree(random.Random(seed).sample(case.rules, len(case.rules)))
    found = []
    for fact in sorted(identified(case.events), key=lambda fact: fact.key):
        found += [(request.name, fact.ts, [part.id for _, part in parts]) for request, parts in tree.arrive(fact)]
    expected = patterns.detect(case.rules, case.events)
    assert sorted(found) == sorted((match.rule, match.ts, [part.id for part in match.parts]) for match in expected)


@settings(max_examples=EXAMPLES, suppress_health_check=QUIET)
@given(case=request_cases(), seed=st.integers(0, 999))
def test_four_phases_while_requests_come_and_go(case: Case, seed: int) -> None:
    rng = random.Random(seed)
    facts = sorted(identified(case.events), key=lambda fact: fact.key)
    fate = {request.name: rng.choice(["stays", "goes", "comes"]) for request in case.rules}
    at = rng.randint(0, 20)
    tree = Tree(request for request in case.rules if fate[request.name] != "comes")
    found = []
    changed = False
    for fact in facts:
        if fact.ts >= at and not changed:
            changed = True
            for request in case.rules:
                if fate[request.name] == "goes":
                    tree.cancel(request.name)
                elif fate[request.name] == "comes":
                    tree.add(request, since=at)
        found += [(request.name, fact.ts, [part.id for _, part in parts]) for request, parts in tree.arrive(fact)]
    expected = []
    for request in case.rules:
        since = {request.name: at} if fate[request.name] == "comes" else {}
        for match in patterns.detect([request], case.events, since):
            if fate[request.name] != "goes" or match.ts < at:
                expected.append((match.rule, match.ts, [part.id for part in match.parts]))
    assert sorted(found) == sorted(expected)


@settings(max_examples=examples(100), suppress_health_check=QUIET)
@given(case=request_cases())
def test_a_printed_request_is_read_as_the_same(case: Case) -> None:
    for request in case.rules:
        assert parse(print_rule(request)).rules == (request,)
