"""Every constraint becomes part of a filter, a key, or a condition on a candidate."""

from __future__ import annotations

import pytest

from tocsin.errors import RuleError
from tocsin.events.types import EventType, Kind
from tocsin.language import parse
from tocsin.language.builder import define, event, p, within
from tocsin.plans.bind.patterns import bind
from tocsin.plans.expressions import Computed, Field, show
from tocsin.plans.rules import AggregateCondition, Lookup, NegationCondition, RulePlan, TimeBounds
from tocsin.plans.typing import Catalog

KINDS = (("k", Kind.STRING), ("n", Kind.INT), ("v", Kind.DOUBLE), ("f", Kind.BOOL), ("at", Kind.TIMESTAMP))
CATALOG = Catalog({name: EventType(name, KINDS) for name in "ABC"}, closed=True)
SECOND = 1_000_000


def bound(text: str, catalog: Catalog = CATALOG) -> RulePlan:
    return bind(parse(text).rules[0], catalog)


def parts(lookup: Lookup, names: tuple[str, ...] = ()) -> tuple[list[str], dict[str, str], list[str]]:
    """Return filter, keys and conditions of a lookup as text."""
    keys = zip(lookup.buffer.keys, lookup.keys, strict=True)
    return (
        [show(condition) for condition in lookup.buffer.filter.conditions],
        {here.attribute: show(there, names) for here, there in keys},
        [show(condition, names) for condition in lookup.conditions],
    )


def test_constraints_become_filters_keys_or_conditions() -> None:
    rule = bound(
        "define X() from A(k = $k, v = $v, n > 2) "
        'and last B(n < 5, k = $k, v > $v, f, k != "x", $v + 1 = n) within 5 s from A'
    )
    assert [show(condition) for condition in rule.anchor.conditions] == ["n > 2"]
    filter_, keys, conditions = parts(rule.steps[0].lookup, rule.names)
    assert sorted(filter_) == ["f = True", 'k != "x"', "n < 5"]
    assert keys == {"k": "A.k"}
    assert sorted(conditions) == ["(1.0 + A.v) = B.n", "A.v < B.v"]


def test_one_of_two_equalities_of_an_attribute_is_the_key() -> None:
    rule = bound(
        "define X() from A(k = $k) and last B(k = $k2) within 5 s from A and last C(k = $k, k = $k2) within 5 s from B"
    )
    assert parts(rule.steps[1].lookup, rule.names)[1:] == ({"k": "A.k"}, ["B.k = C.k"])


def test_a_binding_is_not_a_test() -> None:
    rule = bound(
        "define X() from A($k = k) and last B(n = $n, $v = v) within 5 s from A and last C(n = $n) within 5 s from A"
    )
    assert parts(rule.steps[0].lookup) == ([], {}, [])
    assert parts(rule.steps[1].lookup, rule.names) == ([], {"n": "B.n"}, [])


def test_a_parameter_bound_and_tested_in_one_pattern_is_a_filter() -> None:
    rule = bound("define X() from A(n = $n, v > $n)")
    assert [show(condition) for condition in rule.anchor.conditions] in (["n < v"], ["v > n"])


def test_equality_with_a_computed_value_is_a_key_but_not_with_its_own_event() -> None:
    rule = bound("define X() from A(n = $n) and last B(n = $n + 1, v = n * $n) within 5 s from A")
    _, keys, conditions = parts(rule.steps[0].lookup, rule.names)
    assert keys == {"n": "1 + A.n"}
    assert len(conditions) == 1


def test_times_and_ids_are_no_keys() -> None:
    rule = bound("define X() from A(at = $t, id = $i) and last B(ts = $t, id = $i, at = $t) within 5 s from A")
    _, keys, conditions = parts(rule.steps[0].lookup, rule.names)
    assert keys == {"at": "A.at"}
    assert len(conditions) == 2


def test_an_integer_key_meets_a_double_as_a_condition_or_widened() -> None:
    rule = bound("define X() from A(n = $n) and last B(v = $n) within 5 s from A")
    lookup = rule.steps[0].lookup
    assert [key.kind for key in lookup.buffer.keys] == [Kind.DOUBLE]
    assert [value.kind for value in lookup.keys] == [Kind.DOUBLE]


def test_time_bounds_and_retention() -> None:
    rule = bound(
        "define X() from A() and last B() within 5 s from A and each C() as c within 3 s from B "
        "and first C() as d between c and A and not A() between c and B and $n = Count(B() within 10 s from d)"
    )
    b, c, d = (step.lookup for step in rule.steps)
    assert (b.bounds, b.retention_us) == (TimeBounds(0, window_us=5 * SECOND), 5 * SECOND)
    assert (c.bounds, c.retention_us) == (TimeBounds(1, window_us=3 * SECOND), 8 * SECOND)
    assert (d.bounds, d.retention_us) == (TimeBounds(0, start=2), 8 * SECOND)
    (absence,), (count,) = rule.steps[1].role_conditions, rule.steps[2].role_conditions
    assert isinstance(absence, NegationCondition)
    assert (absence.lookup.bounds, absence.lookup.retention_us) == (TimeBounds(1, start=2), 8 * SECOND)
    assert isinstance(count, AggregateCondition)
    assert count.lookup.retention_us == 18 * SECOND
    assert rule.retention_us == 18 * SECOND
    assert rule.names == ("A", "B", "c", "d", "", "")
    assert rule.types == ("A", "B", "C", "C", "A", "B")


def test_negations_and_aggregates_belong_to_the_latest_role_that_they_mention() -> None:
    rule = bound(
        "define X() from A(k = $k) and last B(v = $v) within 5 s from A "
        "and not C(k = $k) within 5 s from A and not C(v > $v) within 5 s from A "
        "and $m = Avg(C(v < $v).v within 5 s from A) and not C(v = $m) within 1 s from A"
    )
    assert len(rule.role_conditions) == 1
    assert [type(role_condition) for role_condition in rule.steps[0].role_conditions] == [
        NegationCondition,
        AggregateCondition,
        NegationCondition,
    ]
    assert parts(rule.steps[0].role_conditions[2].lookup, rule.names)[1] == {"v": "aggregate 1"}


@pytest.mark.parametrize(
    ("aggregate", "kind"),
    [
        ("Avg(B().n", Kind.DOUBLE),
        ("Sum(B().n", Kind.LONG),
        ("Sum(B().v", Kind.DOUBLE),
        ("Min(B().n", Kind.INT),
        ("Max(B().at", Kind.TIMESTAMP),
        ("Count(B().k", Kind.LONG),
        ("Count(B()", Kind.LONG),
    ],
)
def test_kinds_of_aggregates(aggregate: str, kind: Kind) -> None:
    (role_condition,) = bound(f"define X() from A() and $p = {aggregate} within 5 s from A)").role_conditions
    assert isinstance(role_condition, AggregateCondition)
    assert role_condition.kind == kind


def test_the_values_of_where() -> None:
    rule = bound(
        "define X(a: double, b: long, c: string) from A(n = $n) and 0 < $c = Count(B() within 1 s from A) "
        "where c = A.k, a = $n, b = $c"
    )
    assert [name for name, _, _ in rule.outputs] == ["a", "b", "c"]
    a, b, c = (value for _, _, value in rule.outputs)
    assert a.kind == Kind.DOUBLE
    assert show(a, rule.names) == "A.n"
    assert b == Computed(0, Kind.LONG)
    assert c == Field(0, "k", Kind.STRING)


def test_only_a_consumed_role_has_its_own_buffer() -> None:
    rule = bound("rule R define X() from A() and last B() within 5 s from A and last C() within 5 s from A consuming B")
    assert [step.lookup.buffer.owner for step in rule.steps] == [("R", 1), None]
    assert [step.consumed for step in rule.steps] == [True, False]


def test_unknown_kinds_fit_everything() -> None:
    rule = bound('define X() from A(q > 3, q = "x")', Catalog())
    assert rule.unseen
    assert not bound("define X() from A(n > 3, ts > at)").unseen
    assert bound("define X() from A(ts - q > 3, ts - q > ts, q - ts > 3)", Catalog()).unseen


def test_an_error_in_a_built_rule_has_no_position() -> None:
    rule = define("X").from_(event("A")).last(event("B", k=p.k), within("5 s", "Z")).build()
    with pytest.raises(RuleError, match=r"^rule X: the rule has no event called Z") as caught:
        bind(rule, CATALOG)
    assert caught.value.line is None


def test_a_negated_event_cannot_be_mentioned_in_where() -> None:
    with pytest.raises(RuleError, match="no event called B"):
        bound("define X(k: string) from A() and not B() within 5 s from A where k = B.k")
