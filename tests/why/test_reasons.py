"""Explanations of rules, against the reference: the tests before the failed clause are met, and the clause is not."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, event, given, settings

from tests.budget import examples
from tests.strategies import TYPES, Case, cases
from tocsin.errors import EventError, RuleError
from tocsin.events.formats import read_events
from tocsin.events.reader import Columns
from tocsin.language import parse
from tocsin.language.syntax.ast import Rule, Selection
from tocsin.plans.plan import plan
from tocsin.plans.typing import Catalog
from tocsin.reference import patterns
from tocsin.reference.patterns import conditions_of
from tocsin.why.evidence import Evidence

DECLARED = {type.name: type for type in TYPES}


def evidence(case: Case) -> Evidence:
    bound = plan(case.rules, Catalog(types=DECLARED, closed=True))
    return Evidence(bound, DECLARED, list(case.events), Columns())


def truncated(rule: Rule, roles: int) -> Rule:
    """Return the rule with its first roles only, and the conditions that belong to these."""
    names = [pattern.role for pattern in rule.roles[:roles]]
    belonging = [clause for name in names for clause in conditions_of(rule)[name]]
    retained = (*(clause.pattern for clause in rule.clauses if isinstance(clause, Selection)),)[: roles - 1]
    clauses = tuple(
        clause
        for clause in rule.clauses
        if (clause.pattern in retained if isinstance(clause, Selection) else any(clause is one for one in belonging))
    )
    return replace(rule, clauses=clauses, where=(), consuming=(), emits=replace(rule.emits, attributes=()))


@settings(max_examples=examples(500), suppress_health_check=list(HealthCheck))
@given(case=cases(events_max=25, ids_shared=False))
def test_why_and_why_not_agree_with_the_reference(case: Case) -> None:
    matches = patterns.detect(case.rules, case.events)
    explainer = evidence(case)
    facts = patterns.identified(case.events)
    by_anchor: dict[tuple[str, str, int], list[patterns.Match]] = {}
    for match in matches:
        by_anchor.setdefault((match.rule, match.parts[0].id, match.ts), []).append(match)
    for match in matches[:5]:
        reason = explainer.why(match.id)
        assert reason.matched
        assert reason.rule == match.rule
        assert reason.parts == match.parts
    composites = {match.type for match in matches}
    for rule in case.rules:
        anchors = [fact for fact in facts if fact.type == rule.anchor.type]
        for anchor in anchors[:4]:
            (reason,) = explainer.why_not(anchor.id, None, rule.name)
            assert reason.matched == ((rule.name, anchor.id, anchor.ts) in by_anchor)
            failed = reason.failed
            if failed is None:
                event("matched")
                continue
            roles = [pattern.role for pattern in rule.roles]
            position = roles.index(failed.role)
            assert [part.role for part in reason.parts] == roles[:position]
            if rule.consuming or composites & set(rule.uses):
                event("not matched, among composites or with consumption")
                continue
            event(f"not matched at role {position}")

            def matched(roles: int, rule: Rule = rule, anchor: patterns.Fact = anchor) -> bool:
                found = patterns.detect([truncated(rule, roles)], [e for e in case.events if e.type in rule.uses])
                return any(one.parts[0].id == anchor.id and one.ts == anchor.ts for one in found)

            assert position == 0 or matched(position)
            assert not matched(position + 1)


FIRE = """
define    Fire(area: string)
from      Smoke(area = $a)
          and last Temp(area = $a, value > 45) within 5 s from Smoke
          and not Rain(area = $a) between Temp and Smoke
where     area = Smoke.area
"""


def explain(events: str, rules: str = FIRE) -> str:
    program = parse(rules)
    bound = plan(program.rules, Catalog())
    found = Evidence(bound, {}, read_events(events), Columns())
    (reason,) = found.why_not(None, 10_000_000, None)
    return str(reason)


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ("", "there is no Temp around"),
        ('Temp@9s(area="A", value=44.0)', "✗ value>45: value is 44.0"),
        ('Temp@9s(area="B", value=50.0)\nTemp@8s(area="A", value=30.0)', "✗ value>45: value is 30.0"),
        ('Temp@9s(area="A", value=50.0)\nRain@9500ms(area="A")', '✗ there is Rain@9500000(area="A")'),
        ('Temp@9s(area="A", value=50.0)\nRain@9500ms(area="B")', "✓ there is none"),
    ],
)
def test_explanations(events: str, expected: str) -> None:
    assert expected in explain(f'{events}\nSmoke@10s(area="A")')


def test_a_consumed_event_is_explained_by_the_match_that_consumed_it() -> None:
    rules = "define P() from B() and last A() within 20 s from B consuming A"
    report = explain("A@1s()\nB@2s()\nB@10s()", rules)
    assert "✗ not consumed before: used up by the match " in report


def test_unknown_ids_times_and_rules_are_errors() -> None:
    program = parse(FIRE)
    evidence_of_fire = Evidence(plan(program.rules, Catalog()), {}, read_events('Smoke@10s(area="A")'), Columns())
    with pytest.raises(EventError, match="no match has the id x"):
        evidence_of_fire.why("x")
    with pytest.raises(EventError, match="no event has the id x"):
        evidence_of_fire.why_not("x", None, None)
    with pytest.raises(EventError, match="no event came at 7"):
        evidence_of_fire.why_not(None, 7, None)
    with pytest.raises(RuleError, match="there is no rule Water"):
        evidence_of_fire.why_not(None, 10_000_000, "Water")
