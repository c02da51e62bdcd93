"""The semantics of TESLA rules, sentence by sentence. A match is shown as the ids of its events."""

from __future__ import annotations

import math
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.budget import examples
from tests.conformance.hosts import expected, whole
from tests.strategies import KINDS, Case, cases
from tocsin.errors import EventError
from tocsin.events.formats import read_events
from tocsin.events.types import (
    LABEL,
    Event,
    EventType,
    Kind,
    Value,
    content_words,
    hexadecimal,
    match_words,
    occurrence_words,
)
from tocsin.language.syntax.ast import Negation, Policy, Rule, Selection
from tocsin.language.tesla.text import parse
from tocsin.reference.patterns import Match, MatchPart, detect

WORLD = {**KINDS, "m": Kind.LONG, "g": Kind.BOOL, "s": Kind.STRING, "missing": Kind.LONG, "none": Kind.BOOL}
"""The attributes that every event here may have."""


def run(rules: str, *events: str | Event) -> list[Match]:
    """Return the reference's matches, and check that the engine finds the same."""
    stream = [event for line in events for event in ([line] if isinstance(line, Event) else read_events(line))]
    parsed = parse(rules).rules
    matches = detect(parsed, stream)
    read = {pattern.type for rule in parsed for pattern in (rule.anchor, *(clause.pattern for clause in rule.clauses))}
    read -= {rule.emits.name for rule in parsed}
    types = {type: EventType(type, tuple(WORLD.items())) for type in read}
    assert whole(parsed, types, stream, Random(0)) == expected(matches, parsed)
    return matches


def chosen(pattern: str, *events: str | Event) -> list[str]:
    """Return the events of the matches of a rule that defines P() from the pattern, as ids."""
    return [" ".join(part.id for part in match.parts) for match in run(f"define P() from {pattern}", *events)]


def value(expression: str, pattern: str, *events: str | Event) -> Value:
    """Return the value of an attribute of the only match; `expression` begins with its kind: `long: A.n + 1`."""
    kind, expression = expression.split(": ", 1)
    (match,) = run(f"define P(x: {kind}) from {pattern} where x = {expression}", *events)
    return match.attributes["x"]


def test_an_anchor_alone_matches_each_event_of_its_type() -> None:
    assert chosen("A()", "A@1[a]()", "B@2[b]()", "A@3[c]()") == ["a", "c"]


def test_an_earlier_event_precedes() -> None:
    assert chosen("A() and each B() within 9 us from A", "B@1[b]()", "A@2[a]()", "B@3[c]()") == ["a b"]


def test_seq_orders_events_of_one_instant() -> None:
    events = ["B@5[b]()", "A@5#1[a]()", "B@5#2[c]()"]
    assert chosen("A() and each B() within 9 us from A", *events) == ["a b"]


def test_equal_ts_and_seq_are_concurrent() -> None:
    assert chosen("A() and each B() within 9 us from A", "B@5#1[b]()", "A@5#1[a]()") == []


def test_candidates_are_chosen_by_ts_then_seq_then_id() -> None:
    events = ["B@5#1[a]()", "B@5[c]()", "B@4#9[d]()", "B@5#1[b]()", "A@6[x]()"]
    assert chosen("A() and 4-last B() within 9 us from A", *events) == ["x d", "x c", "x a", "x b"]
    assert chosen("A() and last B() within 9 us from A", *events) == ["x b"]
    assert chosen("A() and first B() within 9 us from A", *events) == ["x d"]


def test_ids_are_ordered_by_code_point() -> None:
    ids = ["10", "9", "Z", "é", "！", "𝄞"]
    events = ["A@6[x]()", *(f'B@5["{id}"]()' for id in ids)]
    assert chosen("A() and each B() within 9 us from A", *events) == [f"x {id}" for id in ids]
    assert chosen("A() and 3-first B() within 9 us from A", *events) == ["x 10", "x 9", "x Z"]
    assert chosen("A() and 2-last B() within 9 us from A", *events) == ["x ！", "x 𝄞"]
    assert chosen("A() and last B() within 9 us from A", *events) == ["x 𝄞"]


def test_events_that_share_a_key_are_ordered_by_their_content() -> None:
    events = [Event("B", 5, {"n": n}, id="b") for n in range(6)]
    expected = max(range(6), key=lambda n: content_words("B", 5, 0, {"n": n}))
    for stream in (events, events[::-1]):
        matches = run("define P(n: long) from A() and last B() within 9 us from A where n = B.n", *stream, "A@6[a]()")
        assert [match.attributes["n"] for match in matches] == [expected]


def test_an_event_without_an_id_is_known_by_its_content_and_occurrence() -> None:
    (first, second, third) = run("define P() from A()", "A@1(n=1)", "A@1(n=1, k=null)", "A@2(n=1)")
    content = content_words("A", 1, 0, {"n": 1})
    assert sorted([first.parts[0].id, second.parts[0].id]) == sorted(
        hexadecimal(occurrence_words(content, n)) for n in (0, 1)
    )
    assert third.parts[0].id == hexadecimal(content_words("A", 2, 0, {"n": 1}))


def test_ts_seq_and_id_are_used_like_attributes() -> None:
    events = ["B@1#1[x]()", "B@2#1[y]()", "B@2#2[y]()", "A@5[y]()"]
    assert chosen("A(id=$i) and each B(seq=1, id=$i) within 9 us from A", *events) == ["y y"]
    assert chosen("A(ts=$t) and each B(ts = $t - 4) within 9 us from A", *events) == ["y x"]
    assert value("long: A.ts - B.ts + B.seq", "A() and first B() within 9 us from A", *events) == 5


def test_a_composite_event_is_at_its_anchor_and_known_by_rule_and_parts() -> None:
    (match,) = run("rule R define P() from A() and each B() within 9 us from A", "B@1#7[b]()", "A@2#1(n=1)")
    a = content_words("A", 2, 1, {"n": 1})
    assert (match.rule, match.type, match.ts, match.seq) == ("R", "P", 2, 1)
    assert match.parts == (MatchPart("A", "A", 2, 1, hexadecimal(a)), MatchPart("B", "B", 1, 7, "b"))
    assert match.id == hexadecimal(match_words("R", [a, content_words("B", 1, 7, {LABEL: "b"})]))


def test_matches_come_out_by_time_rule_and_parts() -> None:
    rules = """
    rule S define P() from A() and each C() within 9 us from A
    rule R define Q() from A() and each B() as b within 9 us from A
    """
    events = ["A@5#1[v]()", "A@5[w]()", "A@4[x]()", "B@3[b]()", "B@2[c]()", "C@1[d]()"]
    found = [(match.rule, " ".join(part.id for part in match.parts)) for match in run(rules, *events)]
    assert found == [
        ("R", "x c"), ("R", "x b"), ("S", "x d"),
        ("R", "w c"), ("R", "w b"), ("S", "w d"),
        ("R", "v c"), ("R", "v b"), ("S", "v d"),
    ]  # fmt: skip


def test_a_rule_sees_events_since_its_start() -> None:
    rules = parse("define P() from A() and each B() within 9 us from A; define Q() from P()").rules
    events = read_events("B@1()\nB@2()\nA@3()\nA@1#1()")
    assert [(match.rule, match.ts) for match in detect(rules, events, since={"P": 2})] == [("P", 3), ("Q", 3)]
    found = detect(rules, events, since={"Q": 2})
    assert [(match.rule, match.ts) for match in found] == [("P", 1), ("P", 3), ("P", 3), ("Q", 3), ("Q", 3)]


@pytest.mark.parametrize("form", ["selection", "negation", "aggregate"])
@pytest.mark.parametrize(
    ("scope", "inside", "outside"),
    [
        ("within 5 us from A", ["C@6()", "C@9#9()", "C@10()"], ["C@5()", "C@5#9()", "C@10#1()", "C@10#2()", "C@11()"]),
        ("within 3 us from B", ["C@5()", "C@7()"], ["C@4()", "C@7#1()", "C@8()"]),
        ("between B and A", ["C@7#2()", "C@8()", "C@10()"], ["C@7()", "C@7#1()", "C@10#1()", "C@11()"]),
    ],
)
def test_scopes(form: str, scope: str, inside: list[str], outside: list[str]) -> None:
    clause = {"selection": f"each C() {scope}", "negation": f"not C() {scope}", "aggregate": f"1 = Count(C() {scope})"}
    for event in inside + outside:
        found = chosen(f"A() and last B() within 9 us from A and {clause[form]}", "A@10#1()", "B@7#1()", event)
        assert len(found) == ((event in inside) != (form == "negation")), event


def test_nothing_is_between_roles_in_the_wrong_order() -> None:
    pattern = "A() and each B() within 9 us from A and each C() within 9 us from A and not D() between B and C"
    assert chosen(pattern, "B@1[b]()", "D@2()", "C@3[c]()", "A@9[a]()") == []
    assert chosen(pattern, "C@1[c]()", "D@2()", "B@3[b]()", "A@9[a]()") == ["a b c"]


def test_a_negation_belongs_to_the_latest_role_of_its_scope() -> None:
    events = ["B@1[b]()", "B@3[c]()", "D@4[d]()", "A@9[a]()"]
    assert chosen("A() and last B() within 9 us from A and not D() within 2 us from B", *events) == ["a c"]
    assert chosen("A() and last B() within 9 us from A and not D() between B and A", *events) == []
    events.insert(1, "D@2[e]()")
    assert chosen("A() and last B() within 9 us from A and not D() within 2 us from B", *events) == ["a b"]


def test_a_negation_belongs_to_the_role_that_binds_its_parameter() -> None:
    events = ['B@1[b](k="x")', 'B@2[c](k="y")', 'D@3(k="y")', "A@9[a]()"]
    assert chosen("A() and last B(k=$k) within 9 us from A and not D(k=$k) within 9 us from A", *events) == ["a b"]


def test_an_aggregate_belongs_to_the_latest_role_it_mentions() -> None:
    events = ["D@1()", "B@2[b](n=1)", "D@3()", "B@4[c](n=1)", "A@9[a]()"]
    assert chosen("A() and last B() within 9 us from A and 2 > Count(D() within 9 us from B)", *events) == ["a b"]
    assert chosen("A() and first B() within 9 us from A and 1 < Count(D() within 9 us from B)", *events) == ["a c"]
    assert chosen("A() and last B(n=$n) within 9 us from A and $n < Count(D() within 9 us from A)", *events) == ["a c"]
    events[3] = "B@4[c](n=2)"
    assert chosen("A() and last B(n=$n) within 9 us from A and $n < Count(D() within 9 us from A)", *events) == ["a b"]


def test_an_aggregates_parameter_counts_as_its_role() -> None:
    pattern = """A() and last B() within 9 us from A and $c = Count(D() within 9 us from B)
                 and not E(n=$c) within 9 us from A"""
    assert chosen(pattern, "B@1[b]()", "D@2()", "B@3[c]()", "E@4(n=1)", "A@9[a]()") == ["a b"]


def test_conditions_of_the_anchor_rule_out_the_anchor() -> None:
    pattern = "A() and each B() within 9 us from A and not D() within 9 us from A and 0 = Count(E() within 9 us from A)"
    assert chosen(pattern, "B@1[b]()", "A@2[a]()") == ["a b"]
    assert chosen(pattern, "B@1[b]()", "D@1()", "A@2[a]()") == []
    assert chosen(pattern, "B@1[b]()", "E@1()", "A@2[a]()") == []


def test_conditions_are_tried_in_the_order_of_the_text() -> None:
    pattern = """A() and $x = Sum(D().n within 9 us from A) and $y = Count(E(n=$x) within 9 us from A)
                 and 1 = Count(C(n=$y) within 9 us from A)"""
    assert chosen(pattern, "D@1(n=2)", "D@1(n=3)", "E@2(n=5)", "E@2(n=5)", "E@2(n=4)", "C@3(n=2)", "A@9[a]()") == ["a"]


MANY = ["B@1[b1](n=1)", "B@2[b2](n=2)", "B@3[b3](n=1)", "C@2#1[c]()", "A@9[a]()"]


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("", ["a b1", "a b2", "a b3"]),
        ("each", ["a b1", "a b2", "a b3"]),
        ("first", ["a b1"]),
        ("last", ["a b3"]),
        ("2-first", ["a b1", "a b2"]),
        ("2-last", ["a b2", "a b3"]),
        ("7-last", ["a b1", "a b2", "a b3"]),
    ],
)
def test_policies(policy: str, expected: list[str]) -> None:
    assert chosen(f"A() and {policy} B() within 9 us from A", *MANY) == expected


def test_an_event_that_fails_a_constraint_is_no_candidate() -> None:
    assert chosen("A() and last B(n=2) within 9 us from A", *MANY) == ["a b2"]
    assert chosen("A() and 2-first B(n=1) within 9 us from A", *MANY) == ["a b1", "a b3"]


def test_conditions_never_change_the_selection() -> None:
    assert chosen("A() and first B() within 9 us from A and last C() within 9 us from B", *MANY) == []
    assert chosen("A() and last B() within 9 us from A and last C() within 9 us from B", *MANY) == ["a b3 c"]
    assert chosen("A() and 2-first B() within 9 us from A and last C() within 9 us from B", *MANY) == []
    assert chosen("A() and each B() within 9 us from A and last C() within 9 us from B", *MANY) == ["a b3 c"]


def test_choices_multiply() -> None:
    pattern = "A() and 2-last B() within 9 us from A and each B() as c within 9 us from A"
    assert chosen(pattern, *MANY) == [f"a {one} {other}" for one in ("b2", "b3") for other in ("b1", "b2", "b3")]


def test_each_choice_goes_on_with_its_own_parameters() -> None:
    pattern = "A() and each B(n=$n) within 9 us from A and last B(n=$n) as c within 9 us from A"
    assert chosen(pattern, *MANY) == ["a b1 b3", "a b2 b2", "a b3 b3"]


def test_one_event_may_fill_two_roles() -> None:
    assert chosen("A() and last B() as x within 9 us from A and last B() as y within 9 us from A", *MANY) == ["a b3 b3"]


@pytest.mark.parametrize("constraint", ["n=$p", "$p=n"])
def test_the_first_equation_binds_and_the_second_tests(constraint: str) -> None:
    assert chosen(f"A({constraint}, m=$p)", "A@1[a](n=1, m=1)", "A@2[b](n=1, m=2)") == ["a"]
    assert chosen(f"A({constraint}) and each B({constraint}) within 9 us from A", *MANY, "A@9[d](n=2)") == ["d b2"]


def test_a_bound_parameter_can_be_compared_and_calculated_with() -> None:
    events = ["B@1[b](n=1)", "B@1[c](n=2)", "B@1[d](n=3)", "A@2[a](n=2)"]
    assert chosen("A(n=$p) and each B(n < $p) within 9 us from A", *events) == ["a b"]
    assert chosen("A(n=$p) and each B(n = $p + 1 or n * 2 = $p) within 9 us from A", *events) == ["a b", "a d"]


def test_binding_is_not_a_test_and_null_is_bound_too() -> None:
    events = ["B@1[b]()", "B@1[c](n=1)", "A@2[a]()"]
    assert chosen("A(n=$p)", *events) == ["a"]
    assert chosen("A(n=$p) and each B(n=$p) within 9 us from A", *events) == []
    assert chosen("A(n=$p) and each B(n!=$p) within 9 us from A", *events) == []
    assert chosen("A(n=$p) and each B(not n=$p) within 9 us from A", *events) == ["a b", "a c"]
    assert chosen("A(n=$p) and not B(n=$p) within 9 us from A", *events) == ["a"]


READINGS = ["D@1(n=5, v=0.5, at=7)", "D@2(n=2, v=2.5, at=9)", "D@3(k=1)", "A@9[a]()"]


@pytest.mark.parametrize(
    ("aggregate", "expected"),
    [
        ("long: Count(D()", 3),
        ("long: Count(D().n", 2),
        ("long: Count(D(n=5)", 1),
        ("long: Sum(D().n", 7),
        ("double: Sum(D().v", 3.0),
        ("double: Avg(D().n", 3.5),
        ("double: Avg(D().v", 1.5),
        ("long: Min(D().n", 2),
        ("double: Max(D().v", 2.5),
        ("timestamp: Min(D().at", 7),
        ("timestamp: Max(D().ts", 3),
        ("long: Count(D(n=9)", 0),
        ("long: Count(D(n=9).n", 0),
        ("long: Sum(D(n=9).n", None),
        ("double: Avg(D(n=9).n", None),
        ("long: Min(D(n=-1).n", None),
        ("long: Max(D(n=-1).n", None),
    ],
)
def test_aggregates(aggregate: str, expected: Value) -> None:
    kind, call = aggregate.split(": ")
    found = value(f"{kind}: $t", f"A() and $t = {call} within 9 us from A)", *READINGS)
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize("operator", ["<", "<=", "=", "!=", ">=", ">"])
def test_a_test_of_null_fails(operator: str) -> None:
    assert chosen(f"A() and 0 {operator} Sum(D(n=9).n within 9 us from A)", *READINGS) == []


def test_a_test_compares_the_bound_with_the_value() -> None:
    assert chosen("A() and 6 < Sum(D().n within 9 us from A)", *READINGS) == ["a"]
    assert chosen("A() and 7 < Sum(D().n within 9 us from A)", *READINGS) == []
    assert chosen("A() and 7 <= $s = Sum(D().n within 9 us from A)", *READINGS) == ["a"]


def test_an_aggregates_parameter_serves_later_clauses() -> None:
    pattern = "A() and $s = Avg(D().v within 9 us from A) and last D(v < $s) within 9 us from A"
    assert value("double: D.v + $s", pattern, *READINGS) == 2.0


def test_sums_are_exact_and_rounded_once() -> None:
    def total(kind: str, function: str, values: list[Value]) -> Value:
        name = "v" if isinstance(values[0], float) else "n"
        events = [Event("D", ts, {name: v}) for ts, v in enumerate(values)]
        return value(f"{kind}: $t", f"A() and $t = {function}(D().{name} within 999 us from A)", *events, "A@99()")

    assert total("double", "Sum", [0.1] * 10) == 1.0
    assert total("double", "Sum", [1e16, 1.0, -1e16]) == 1.0
    assert total("double", "Avg", [1e16, 1.0, 1.0, -1e16]) == 0.5
    assert total("double", "Sum", [1e308, 1e308, -1e308]) == 1e308
    assert total("double", "Sum", [1e308, 1e308]) is None
    assert total("double", "Avg", [1e308, 1e308]) is None
    assert total("long", "Sum", [2**62, 2**62, -1]) == 2**63 - 1
    assert total("long", "Sum", [2**62, 2**62]) is None
    assert total("double", "Avg", [2**62, 2**62]) == 2.0**62
    assert total("double", "Avg", [2**53, 1, 0]) == 2.0**53 / 3


@pytest.mark.parametrize(
    ("constraint", "true", "false"),
    [
        ("n = 2", ["n=2"], ["n=1", "n=null", ""]),
        ("n != 2", ["n=1"], ["n=2", ""]),
        ("n < 2", ["n=1"], ["n=2", ""]),
        ("n >= 2", ["n=2"], ["n=1", ""]),
        ("not (n > 3)", ["n=3", "", "n=null"], ["n=4"]),
        ("not (n = m)", ["n=1", "n=1, m=2", ""], ["n=1, m=1"]),
        ("n = n", ["n=1"], [""]),
        ("f", ["f=true"], ["f=false", ""]),
        ("not f", ["f=false", ""], ["f=true"]),
        ("f = g", ["f=true, g=true", "f=false, g=false"], ["f=true, g=false", ""]),
        ("f != true", ["f=false"], ["f=true", ""]),
        ("n = 1 or m = 1", ["n=1", "m=1", "n=1, m=1"], ["n=2, m=2", ""]),
        ("n = 1 and m = 1", ["n=1, m=1"], ["n=1", "m=1", "n=1, m=2"]),
        ("n = 1, m = 1", ["n=1, m=1"], ["n=1", "m=1"]),
        ("not (n = 1 and m = 1)", ["n=1", ""], ["n=1, m=1"]),
        ("n / 2 = 1.5", ["n=3"], ["n=2", ""]),
        ("n / 3 = 3002399751580330.5", ["n=9007199254740993"], ["n=9007199254740994"]),
        ("1 / n < 9 or not (1 / n < 9)", ["n=0", "n=1", ""], []),
        ("1 / n < 9 or 1 / n >= 9", ["n=1", "n=-1"], ["n=0", "v=1.0", ""]),
        ("n + 1 > 0 or n + 1 <= 0", ["n=9223372036854775806"], ["n=9223372036854775807", ""]),
        ("-n > 0 or -n <= 0", ["n=-9223372036854775807"], ["n=-9223372036854775808", ""]),
        ("v * 2 > 0 or v * 2 <= 0", ["v=8e307"], ["v=1e308", "v=-1e308", ""]),
        ("v / 1e-5 > 0", ["v=1.0"], ["v=1e305", ""]),
        ("n = 9007199254740992.0", ["n=9007199254740992", "n=9007199254740993"], ["n=9007199254740994"]),
        ("n = m", ["n=9007199254740993, m=9007199254740993"], ["n=9007199254740992, m=9007199254740993"]),
        ("n + 0.0 = 9007199254740992", ["n=9007199254740993"], ["n=9007199254740994"]),
        ('s < "a"', ['s="Z"', 's=""', 's="B"'], ['s="a"', 's="é"', ""]),
        ('s < "𝄞"', ['s="！"'], ['s="𝄞"']),
        ("at - ts = 4", ["at=5"], ["at=6", ""]),
        ("at + 2 > ts", ["at=0"], ["at=-1", ""]),
        ("missing = 1", [], ["n=1"]),
        ("not missing = 1", ["n=1"], []),
    ],
)
def test_constraints(constraint: str, true: list[str], false: list[str]) -> None:
    for attributes in true + false:
        assert len(chosen(f"A({constraint})", f"A@1({attributes})")) == (attributes in true), attributes


def test_not_finite_doubles_are_read_as_null_and_negative_zero_as_zero() -> None:
    for number in (math.nan, math.inf, -math.inf):
        assert chosen("A(not v = v)", Event("A", 1, {"v": number}, id="a")) == ["a"]
        assert value("double: A.v", "A()", Event("A", 1, {"v": number})) is None
    zero = value("double: A.v", "A()", Event("A", 1, {"v": -0.0}))
    assert math.copysign(1, zero) == 1  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("double: A.n", 7.0),
        ("double: 3", 3.0),
        ("double: A.n / 2", 3.5),
        ("long: A.n * 2 - 1", 13),
        ("long: -A.n", -7),
        ("long: A.at - A.ts", 6),
        ("timestamp: A.at + 1", 8),
        ("timestamp: A.at - A.n", 0),
        ("int: A.n * 306783378", 2147483646),
        ("int: A.n * 306783378 + 1", 2147483647),
        ("int: A.n * 306783378 + 2", None),
        ("int: -A.n * 306783378 - 2", -(2**31)),
        ("int: -A.n * 306783378 - 3", None),
        ("long: A.n * 9223372036854775807", None),
        ("double: A.n / (A.n - 7)", None),
        ("string: A.s", "x"),
        ("bool: A.f", True),
        ("bool: (A.n > 7)", False),
        ("bool: (not A.none)", True),
        ("bool: A.none", None),
        ("string: A.id", "a"),
    ],
)
def test_attributes_of_a_composite_event(expression: str, expected: Value) -> None:
    found = value(expression, "A()", 'A@1[a](n=7, at=7, s="x", f=true)')
    assert found == expected
    assert type(found) is type(expected)


TWICE = ["B@1[b1]()", "B@2[b2]()", "A@3[a1]()", "A@4[a2]()"]


def test_a_consumed_event_is_not_chosen_again() -> None:
    pattern = "A() and last B() within 9 us from A"
    assert chosen(pattern, *TWICE) == ["a1 b2", "a2 b2"]
    assert chosen(f"{pattern} consuming B", *TWICE) == ["a1 b2", "a2 b1"]


def test_matches_of_one_anchor_share_consumed_events() -> None:
    pattern = "A() and each B() within 9 us from A and each B() as c within 9 us from A consuming B"
    assert chosen(pattern, *TWICE) == ["a1 b1 b1", "a1 b1 b2", "a1 b2 b1", "a1 b2 b2"]


def test_only_complete_matches_consume() -> None:
    pattern = "A(n=$n) and each B() within 9 us from A and last C(n=$n) within 9 us from B consuming B"
    events = ["C@1[c](n=1)", "B@2[b]()", "A@3[a1](n=2)", "A@4[a2](n=1)", "A@5[a3](n=1)"]
    assert chosen(pattern, *events) == ["a2 b c"]
    part = "A() and 2-last B() within 9 us from A and last C() within 9 us from B consuming B"
    assert chosen(part, "B@1[b1]()", "C@2[c]()", "B@3[b2]()", "A@4[a1]()", "C@0[d]()", "A@5[a2]()") == [
        "a1 b1 d",
        "a1 b2 c",
    ]
    assert chosen(part, "B@1[b1]()", "C@2[c]()", "B@3[b2]()", "A@4[a1]()", "A@5[a2]()") == ["a1 b2 c"]


def test_consumed_events_serve_other_roles_rules_negations_and_aggregates() -> None:
    same = "A() and last B() within 9 us from A and last B() as c within 9 us from A consuming B"
    assert chosen(same, *TWICE) == ["a1 b2 b2", "a2 b1 b2"]
    counted = "A() and last B() within 9 us from A and 2 = Count(B() within 9 us from A) consuming B"
    assert chosen(counted, *TWICE) == ["a1 b2", "a2 b1"]
    negated = "A() and last B() within 9 us from A and not B() between B and A consuming B"
    assert chosen(negated, *TWICE) == ["a1 b2"]
    rules = """define P() from A() and last B() within 9 us from A consuming B
               define Q() from A() and last B() within 9 us from A consuming B"""
    assert [(match.rule, match.parts[1].id) for match in run(rules, *TWICE)] == [
        ("P", "b2"), ("Q", "b2"), ("P", "b1"), ("Q", "b1")
    ]  # fmt: skip


def test_anchors_consume_in_canonical_order() -> None:
    pattern = "A() and last B() within 9 us from A consuming B"
    assert chosen(pattern, "A@2[y]()", "A@2[x]()", "B@1[b]()", "A@2#-1[z]()") == ["z b"]
    assert chosen(pattern, "A@2[y]()", "A@2[x]()", "B@1[b]()") == ["x b"]


def test_equal_events_are_consumed_one_by_one() -> None:
    pattern = "A() and last B() within 9 us from A consuming B"
    assert len(chosen(pattern, "B@1()", "B@1()", "A@2()", "A@3()", "A@4()")) == 2
    assert len(chosen(pattern, "B@1[b]()", "B@1[b]()", "A@2()", "A@3()", "A@4()")) == 2


def test_rules_use_composite_events_whatever_their_order() -> None:
    rules = """define R() from Q()
               define Q(n: long) from P(n > 1) where n = P.n + 1
               define P(n: long) from A() where n = A.n"""
    matches = run(rules, "A@1[a](n=1)", "A@2[b](n=2)")
    assert [(match.type, match.ts, dict(match.attributes)) for match in matches] == [
        ("P", 1, {"n": 1}),
        ("P", 2, {"n": 2}),
        ("Q", 2, {"n": 3}),
        ("R", 2, {}),
    ]
    p, q, r = matches[1:]
    assert [part.id for part in (*q.parts, *r.parts)] == [p.id, q.id]
    b = content_words("A", 2, 0, {"n": 2, LABEL: "b"})
    assert p.id == hexadecimal(match_words("P", [b]))
    assert q.id == hexadecimal(match_words("Q", [match_words("P", [b])]))


def test_a_composite_event_is_concurrent_with_its_anchor() -> None:
    rules = """define P() from A()
               define Q() from A() and each P() within 9 us from A"""
    found = [match for match in run(rules, "A@1[a]()", "A@2[b]()") if match.type == "Q"]
    assert [(match.ts, match.parts[1].ts) for match in found] == [(2, 1)]


def test_several_rules_define_one_type() -> None:
    rules = """rule one define P() from A()
               rule two define P() from B()
               define Q() from C() and each P() within 9 us from C and 2 = Count(P() within 9 us from C)"""
    found = run(rules, "A@1()", "B@1()", "C@2()")
    assert [match.rule for match in found] == ["one", "two", "Q", "Q"]
    assert [match.parts[1].id for match in found[2:]] == sorted(match.id for match in found[:2])


def test_composite_events_can_be_negated_and_consumed() -> None:
    rules = """define P(n: long) from A() where n = A.n
               define Q() from C(n=$n) and not P(n=$n) within 9 us from C
               define R() from C() and first P() within 9 us from C consuming P"""
    found = run(rules, "A@1(n=1)", "C@2(n=1)", "C@3(n=2)")
    assert [(match.rule, match.ts) for match in found] == [("P", 1), ("R", 2), ("Q", 3)]


def test_events_of_a_defined_type_are_not_accepted_from_outside() -> None:
    with pytest.raises(EventError, match="events of type P come from a rule"):
        run("define P() from A()", "A@1()", "P@1()")


def lone(case: Case, *, policy: Policy | None = None) -> Rule:
    """Return a rule without composite events and consumption; with `policy`, every selection has that policy."""
    rule = replace(next(rule for rule in case.rules if rule.name == "P"), consuming=())
    if policy is None:
        return rule
    clauses = tuple(
        replace(clause, policy=policy, count=0) if isinstance(clause, Selection) else clause for clause in rule.clauses
    )
    return replace(rule, clauses=clauses)


def keys(matches: list[Match]) -> list[tuple[MatchPart, ...]]:
    return [match.parts for match in matches]


@settings(max_examples=examples(50))
@given(cases(), st.randoms(use_true_random=False))
def test_input_order_never_matters(case: Case, random: Random) -> None:
    shuffled = list(case.events)
    random.shuffle(shuffled)
    assert detect(case.rules, shuffled) == detect(case.rules, case.events)
    assert detect(case.rules[::-1], shuffled) == detect(case.rules, case.events)


@settings(max_examples=examples(50))
@given(cases(), st.integers(0, 30))
def test_later_events_change_nothing(case: Case, ts: int) -> None:
    early = [event for event in case.events if event.ts <= ts]
    assert detect(case.rules, early) == [match for match in detect(case.rules, case.events) if match.ts <= ts]


@settings(max_examples=examples(50))
@given(cases())
def test_matches_are_sorted_and_have_distinct_ids(case: Case) -> None:
    matches = detect(case.rules, case.events)
    assert sorted(matches, key=lambda match: (match.ts, match.seq, match.rule)) == matches
    assert len({match.id for match in matches}) == len(matches)
    for match in matches:
        assert (match.ts, match.seq) == max((part.ts, part.seq) for part in match.parts)


@settings(max_examples=examples(50))
@given(cases())
def test_each_finds_all_that_other_policies_find(case: Case) -> None:
    some, all = detect([lone(case)], case.events), detect([lone(case, policy=Policy.EACH)], case.events)
    assert {match.id for match in some} <= {match.id for match in all}


@settings(max_examples=examples(50))
@given(cases())
def test_a_negation_never_adds_a_match_of_each(case: Case) -> None:
    rule = lone(case, policy=Policy.EACH)
    without = replace(rule, clauses=tuple(clause for clause in rule.clauses if not isinstance(clause, Negation)))
    assert set(keys(detect([rule], case.events))) <= set(keys(detect([without], case.events)))


@settings(max_examples=examples(50))
@given(cases())
def test_consuming_never_adds_a_match_of_each(case: Case) -> None:
    rule = lone(case, policy=Policy.EACH)
    consuming = replace(rule, consuming=tuple(pattern.role for pattern in rule.roles))
    assert set(keys(detect([consuming], case.events))) <= set(keys(detect([rule], case.events)))


@settings(max_examples=examples(50))
@given(cases(), st.integers(0, 30))
def test_since_drops_earlier_events(case: Case, ts: int) -> None:
    rule = lone(case)
    late = [event for event in case.events if event.ts >= ts]
    assert detect([rule], case.events, since={rule.name: ts}) == detect([rule], late)
