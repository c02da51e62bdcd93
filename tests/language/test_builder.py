"""A rule built in Python equals the rule parsed from its text."""

from __future__ import annotations

import copy
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from tests.language.test_tesla import PAPER
from tocsin.errors import RuleError
from tocsin.events.types import Kind
from tocsin.language.builder import (
    Term,
    avg,
    between,
    count,
    define,
    event,
    expression_of,
    max_,
    min_,
    p,
    role,
    sum_,
    this,
    within,
)
from tocsin.language.tesla.text import parse, parse_expression

FIRE = define("Fire", area="string", measuredTemp="double")
COMP_EVENT = define("CompEvent")
HOT = event("Temp", this.area == p.a, this.value > 45)

BUILT = {
    "R1": FIRE.from_(event("Smoke", area=p.a))
    .each(HOT, within("5 min", "Smoke"))
    .where(area=role.Smoke.area, measuredTemp=role.Temp.value),
    "R2": FIRE.from_(HOT)
    .without(event("Rain", area=p.a), within("5 min.", "Temp"))
    .where(area=role.Temp.area, measuredTemp=role.Temp.value),
    "R3": FIRE.from_(event("Smoke", area=p.a))
    .aggregate(avg(event("Temp", area=p.a), "value", within(timedelta(minutes=5), "Smoke")).bind("t") > 45)
    .where(area=role.Smoke.area, measuredTemp=p.t),
    "R4": COMP_EVENT.from_(event("A"))
    .last(event("B"), within("5 min", "A"))
    .last(event("C"), within("5 min", "B"))
    .last(event("D"), within("5 min", "C"))
    .last(event("E"), within("5 min", "D")),
    "R5": COMP_EVENT.from_(event("A", v=p.x))
    .last(event("B", v=p.x), within("300s", "A"))
    .last(event("C"), within("5min", "B")),
    "R6": COMP_EVENT.from_(event("A"))
    .last(event("B"), within("5 min", "A"))
    .last(event("C"), within("5 min", "B"))
    .without(event("D"), between("C", "B")),
}


@pytest.mark.parametrize("rule", PAPER.values(), ids=lambda rule: rule.name)
def test_the_rules_of_the_paper(rule: Any) -> None:
    assert BUILT[rule.name].named(rule.name).build() == rule


def test_every_kind_of_clause() -> None:
    built = (
        define("X", a=Kind.INT)
        .from_(event("A", this["from"] <= 3), as_="a")
        .first(event("B"), within("1.5 h", "a"), 3, as_="b")
        .each(event("C", (this.x == 1) & (this.y | ~this.z)), between("b", "a"))
        .aggregate(sum_(event("D"), "v", within("1 s", "a")) <= p.q + 1)
        .aggregate(min_(event("D"), "v", within("1 s", "a")).bind("m"))
        .aggregate(max_(event("D"), "v", within("1 s", "a")) == p.q)
        .aggregate(count(event("D"), between("b", "a")) > 3)
        .aggregate(count(event("D"), between("b", "a"), attribute="v").bind("n"))
        .where(a=1 - role.a.x * 2)
        .consuming("b", "C")
        .build()
    )
    text = """
        define X(a: int)
        from A(from <= 3) as a
        and 3-first B() as b within 1.5 h from a
        and each C(x = 1, y or not z) between b and a
        and $q + 1 >= Sum(D().v within 1 s from a)
        and $m = Min(D().v within 1 s from a)
        and Max(D().v within 1 s from a) = $q
        and Count(D() between b and a) > 3
        and $n = Count(D().v between b and a)
        where a = 1 - a.x * 2
        consuming b, C
    """
    assert built == parse(text).rules[0]


@pytest.mark.parametrize(
    ("term", "text"),
    [
        (this.a + 1 - 2 * this.b / 4, "a + 1 - 2 * b / 4"),
        (1 + this.a, "1 + a"),
        (8 / this.a, "8 / a"),
        (-this.a * -3, "-a * -3"),
        (-(this.a + 1), "-(a + 1)"),
        (this.a > 3, "a > 3"),
        (this.a != "x", "a != 'x'"),
        (this.a >= 1.5, "a >= 1.5"),
        (this.ok == True, "ok = true"),  # noqa: E712
        (this.n == 2**40, "n = 1099511627776"),
        (this.at < datetime(2024, 1, 1), 'at < timestamp("2024-01-01")'),
        (this.at < datetime(2024, 1, 1, 1, tzinfo=timezone(timedelta(hours=1))), 'at < timestamp("2024-01-01T00:00Z")'),
        (this.at - datetime(2024, 1, 1, tzinfo=UTC) > 0, 'at - timestamp("2024-01-01") > 0'),
        ((this.a == 1) & (this.b == 2) & ~this.c, "a = 1 and b = 2 and not c"),
        ((this.a == 1) | (this.b == 2) & this.c, "a = 1 or b = 2 and c"),
        (this.a == role.Temp.value, "a = Temp.value"),
        (role["Temp"]["value"] == p["x"], "Temp.value = $x"),
    ],
)
def test_an_expression(term: Term, text: str) -> None:
    assert expression_of(term) == parse_expression(text)


def test_a_definition_can_be_reused() -> None:
    base = COMP_EVENT.from_(event("A"))
    one, two = base.last(event("B"), within("1 s", "A")), base.last(event("C"), within("1 s", "A"))
    assert [len(definition.build().clauses) for definition in (base, one, two)] == [0, 1, 1]


def test_the_names_can_be_copied_and_printed() -> None:
    assert isinstance(copy.copy(this).x, Term)
    assert "value" in repr(this.value)
    assert this._make.expression == expression_of(this["_make"])


A = COMP_EVENT.from_(event("A"))
SECOND = within("1 s", "A")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: bool(this.a), "no truth value"),
        (lambda: 1 < this.a < 3, "no truth value"),
        (lambda: 1 < avg(event("A"), "x", SECOND) < 3, "no truth value"),
        (lambda: (avg(event("A"), "x", SECOND) < 3) > 1, "one test"),
        (lambda: this.a == None, "None cannot be used in a rule"),  # noqa: E711
        (lambda: this.a + object(), "cannot be used in a rule"),
        (lambda: this.a == 2**63, "64 bits"),
        (lambda: this.a == float("nan"), "too large for a double"),
        (lambda: this.a == "\ud800", "surrogates"),
        (lambda: -Term(expression_of("x")), "a string cannot be negated"),
        (lambda: this[" "], "a name cannot be blank"),
        (lambda: event(7), "7 is not a name"),
        (lambda: event("A", **{"a\nb": 1}), "printable characters"),
        (lambda: p["a b"], "'a b' is not a name"),
        (lambda: within("5 parsecs", "A"), "unknown unit 'parsecs'"),
        (lambda: within("5", "A"), "is not a window"),
        (lambda: within(5, "A"), "is not a window"),
        (lambda: within("0 s", "A"), "must be positive"),
        (lambda: within(timedelta(seconds=-1), "A"), "must be positive"),
        (lambda: define("X", a="strng"), "unknown kind of attribute 'strng'"),
        (lambda: define("X").build(), "has no anchor"),
        (lambda: define("X").last(event("B"), SECOND), "the anchor comes before"),
        (lambda: A.from_(event("B")), "one anchor"),
        (lambda: A.last("B", SECOND), "'B' is not an event"),
        (lambda: A.last(event("B"), "5 min"), "is not a scope"),
        (lambda: A.last(event("B"), SECOND, 0), "0 is not a number of events"),
        (lambda: A.aggregate(event("B")), "not an aggregate"),
        (lambda: A.consuming("a.b"), "is not a name"),
    ],
)
def test_wrong_use_raises_an_error(wrong: Callable[[], Any], message: str) -> None:
    with pytest.raises(RuleError, match=message):
        wrong()
