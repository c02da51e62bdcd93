"""Explanations of requests and queries, against the reference: matches, their events, and the test that failed."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, event, given, settings

import tocsin
from tests.budget import examples
from tests.strategies import TYPES, Case
from tests.strategies_queries import chains, definitions, joins, single
from tests.strategies_queries import events as query_events
from tests.strategies_requests import request_cases
from tocsin.errors import RuleError
from tocsin.events.formats import read_events
from tocsin.events.reader import Columns
from tocsin.events.types import Event
from tocsin.language import parse
from tocsin.language.eps.ast import Mode
from tocsin.plans.plan import plan
from tocsin.plans.typing import Catalog
from tocsin.reference import patterns
from tocsin.why import accounts
from tocsin.why.evidence import Evidence
from tocsin.why.reasons import Reason

QUIET = list(HealthCheck)
DECLARED = {type.name: type for type in TYPES}


@settings(max_examples=examples(60), suppress_health_check=QUIET, deadline=None)
@given(case=request_cases(modes=(Mode.GENERIC, Mode.RECENT, Mode.CUMULATIVE)))
def test_requests(case: Case) -> None:
    matches = patterns.detect(case.rules, case.events)
    evidence = Evidence(plan(case.rules, Catalog(types=DECLARED, closed=True)), DECLARED, list(case.events), Columns())
    for match in matches[:4]:
        reason = evidence.why(match.id)
        assert reason.matched
        same = [one for one in matches if one.id == match.id]  # an event in two roles is two matches of one id
        assert {(part.role, part.ts, part.id) for part in reason.parts} in [
            {(part.role, part.ts, part.id) for part in one.parts} for one in same
        ]
    rule = case.rules[-1]
    inside = {part.words for match in matches if match.rule == rule.name for part in match.parts}
    for fact in [fact for fact in patterns.identified(case.events) if fact.type in rule.uses][:6]:
        reasons = evidence.why_not(fact.identity, None, rule.name)
        assert all(reason.matched == (fact.words in inside) for reason in reasons)
        event("matched" if reasons[0].matched else f"not matched: {reasons[0].checks[-1].found[:20]}")


@settings(max_examples=examples(40), suppress_health_check=QUIET, deadline=None)
@given(case=request_cases(timers=True, events_max=6))
def test_requests_with_timers(case: Case) -> None:
    evidence = Evidence(plan(case.rules, Catalog(types=DECLARED, closed=True)), DECLARED, list(case.events), Columns())
    for row in evidence.found.to_pylist()[:4]:
        assert evidence.why(row["id"]).matched
    rule = case.rules[-1]
    for fact in [fact for fact in patterns.identified(case.events) if fact.type in rule.uses][:4]:
        assert evidence.why_not(fact.identity, None, rule.name)


@settings(max_examples=examples(60), suppress_health_check=QUIET, deadline=None)
@given(query=single() | joins() | chains(), stream=query_events())
def test_queries(query: str, stream: tuple[Event, ...]) -> None:
    program = parse(f"{definitions()}{query} insert into O;", "siddhi")
    declared = {type.name: type for type in program.types}
    evidence = Evidence(plan(program.rules, Catalog(types=declared, closed=True)), declared, list(stream), Columns())
    rows = evidence.found.to_pylist()
    for row in rows[:4]:
        assert evidence.why(row["id"]).matched
    (rule,) = program.rules
    for fact in [fact for fact in patterns.identified(stream) if fact.type in rule.uses][:6]:
        for reason in evidence.why_not(fact.identity, None, rule.name):
            by_event = {accounts.hexadecimal(accounts.match_words(rule.name, [fact.words]))}
            emitted = any(row["id"] in by_event for row in rows)
            assert reason.matched == emitted
            event("matched" if emitted else f"not matched: {reason.checks[-1].found[:30]}")


def explain(rules: str, events: str, at: int = 10_000_000) -> Reason:
    program = parse(rules)
    found = Evidence(plan(program.rules, Catalog()), {}, read_events(events), Columns())
    (reason,) = found.why_not(None, at, None)
    return reason


PAIR = "request Pair on A(x > 1) as a ; B() as b if a.y = b.y within 5 s"


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ("B@10s(y=1)", "✗ 5 s before it: there is none"),
        ("A@9s(x=1, y=1)\nB@10s(y=1)", "none fits, as A@9000000(x=1, y=1) does not"),
        ("A@9s(x=2, y=2)\nB@10s(y=1)", "✗ a.y=b.y: a.y is 2, b.y is 1"),
        ("A@9s(x=2, y=1)\nB@9500ms(y=1)\nB@10s(y=1)", "is used up by the match "),
        ("A@9s(x=2, y=1)\nB@10s(y=1)", "✓ a.y=b.y: a.y is 1, b.y is 1"),
        ("A@10s(x=0, y=1)\nB@11s(y=1)", "✗ x>1: x is 0"),
    ],
)
def test_explanations_of_requests(events: str, expected: str) -> None:
    assert expected in str(explain(PAIR, events))


STREAM = "define stream A (x int, y int);\ndefine stream B (y int);\n"


@pytest.mark.parametrize(
    ("query", "events", "expected"),
    [
        ("from A[x > 5] select x insert into O;", "A@10s(x=3, y=1)", "✗ x > 5: x is 3"),
        ("from A[x > 5] select x insert into O;", "A@10s(x=7, y=1)", "✓ x > 5: x is 7"),
        ("from A select x having x > 5 insert into O;", "A@10s(x=3, y=1)", "✗ x > 5: x is 3"),
        (
            "from A#window.length(5) select avg(x) as m having m > 5.0 insert into O;",
            "A@9s(x=1, y=1)\nA@10s(x=3, y=1)",
            "✗ m > 5.0: m is 2.0",
        ),
        (
            "from A#window.length(5) select avg(x) as m insert into O;",
            "A@9s(x=1, y=1)\nA@10s(x=3, y=1)",
            "✓ length: it holds 2 events",
        ),
        ("from A#window.lengthBatch(3) select x insert into O;", "A@10s(x=1, y=1)", "its batch has not ended with it"),
        (
            "from A#window.length(2) as a join B#window.length(2) as b on a.y == b.y select a.x insert into O;",
            "B@9s(y=2)\nA@10s(x=1, y=1)",
            "a.y is 1, b.y is 2",
        ),
        (
            "from A#window.length(2) as a join B#window.length(2) as b on a.y == b.y select a.x insert into O;",
            "A@10s(x=1, y=1)",
            "its window is empty",
        ),
        (
            "from every e1=A[x > 1] -> e2=B[y == e1.y] select e1.x insert into O;",
            "A@9s(x=2, y=1)\nB@10s(y=2)",
            "y is 2, e1.y is 1",
        ),
        (
            "from every e1=A[x > 1] -> e2=B[y == e1.y] select e1.x insert into O;",
            "A@9s(x=2, y=1)\nB@10s(y=1)",
            "✓ e1: it is A@9000000(x=2, y=1)",
        ),
        (
            "from every e1=A[x > 1] -> e2=B[y == e1.y] select e1.x insert into O;",
            "B@10s(y=1)",
            "they have not come, so no run waits for it",
        ),
        (
            "from every e1=A[x > 1] -> e2=B[y == e1.y] select e1.x insert into O;",
            "A@10s(x=2, y=1)",
            "it has not come yet",
        ),
    ],
)
def test_explanations_of_queries(query: str, events: str, expected: str) -> None:
    assert expected in str(explain(STREAM + query, events))


def test_rules_over_rows_of_queries_are_refused_by_name() -> None:
    rules = STREAM + "@info(name='q') from A[x > 1] select x insert into O;\n"
    rules_of_both = tocsin.rules([*parse(rules).rules, *parse("define Seen() from O()").rules])
    with pytest.raises(RuleError, match="Seen uses rows of the query q, which why cannot explain"):
        rules_of_both.why_not(read_events("A@10s(x=2, y=1)"), at=10_000_000, rule="Seen")


def test_other_statements_do_not_interfere() -> None:
    rules = STREAM + "@info(name='q') from A[x > 1] select x insert into O;\n"
    rules_of_both = tocsin.rules([*parse(rules).rules, *parse("define Seen() from A(x > 5)").rules])
    outcomes = {
        reason.rule: reason.matched for reason in rules_of_both.why_not(read_events("A@10s(x=2, y=1)"), at=10_000_000)
    }
    assert outcomes == {"q": True, "Seen": False}


def test_a_query_over_too_many_events_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accounts, "REPLAYED_MAX", 2)
    with pytest.raises(RuleError, match="why replays at most 2 events, and the query query1 depends on 3 events"):
        explain(STREAM + "from A select x insert into O;", "A@1s(x=1, y=1)\nA@2s(x=1, y=1)\nA@10s(x=1, y=1)")
