"""Dynamic interest queries are parsed, printed and built to equal objects."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tocsin.errors import RuleError
from tocsin.language.builder import define, event, role, this
from tocsin.language.mcep.ast import Circle, Each, Interest, Polygon, Rectangle, Semantics, Space, Spatial, Timed
from tocsin.language.mcep.builder import circle, interest, polygon, rectangle
from tocsin.language.mcep.text import parse, print_interest
from tocsin.language.syntax.ast import Pattern, Program
from tocsin.language.syntax.expressions import print_program

TEXT = """
event Brake(car: string, x: double, y: double)
interest  Accidents
of        Accident
around    Position(car="c7")
range     rectangle 1 km by 500 m
space     plane
lifetime  15 min
update    every 10 s
semantics strong

define    Stop(car: string)
from      Brake(car=$c)
where     car = $c

define    Accident()
from      Stop() as one and each Stop(car != "x") as two within 10 s from one
consuming two

define    Unused()
from      Brake()
"""


def test_all_clauses_of_an_interest() -> None:
    (found,) = parse(TEXT).interests
    assert (found.name, found.delivers, found.focal.type) == ("Accidents", ("Accident",), "Position")
    assert found.shape == Rectangle(1000.0, 500.0)
    assert (found.space, found.lifetime_us, found.update) == (Space.PLANE, 900_000_000, Timed(10_000_000))
    assert found.semantics is Semantics.STRONG
    assert found.consumes


def test_an_interest_has_the_rules_that_its_types_need() -> None:
    (found,) = parse(TEXT).interests
    assert [rule.name for rule in found.rules] == ["Stop", "Accident"]
    assert len(parse(TEXT).rules) == 3


def test_defaults() -> None:
    (found,) = parse("define P() from A() interest I of P around A range circle 2.5 m").interests
    assert (found.space, found.lifetime_us, found.update) == (Space.PLANE, 0, Each())
    assert found.semantics is Semantics.WEAK
    assert found.shape == Circle(2.5)
    assert not found.consumes


def test_keywords_can_be_names() -> None:
    text = "define range(of: long) from circle(update = 3) where of = circle.every interest of of range around space"
    (found,) = parse(text + " range circle 1 m").interests
    assert (found.name, found.delivers, found.focal.type) == ("of", ("range",), "space")


def test_a_built_interest_equals_its_text() -> None:
    rule = define("P").from_(event("A", this.v > 3)).build()
    built = interest(
        "I",
        of=["P"],
        around=event("Me", car="c"),
        range=polygon((0, 0), (100, 0), (0, 100)),
        rules=[rule],
        space="wgs84",
        lifetime="5 s",
        every=20,
        semantics="strong",
    )
    text = print_program(Program((), (rule,), (built,)))
    assert parse(text).interests == (built,)
    assert interest("I", of=["P"], around=event("Me"), range=rectangle(5), rules=[rule], every="3 s").update == Timed(
        3_000_000
    )


def test_invalid_interests_cannot_be_built() -> None:
    rule = define("P", a="long").from_(event("A")).where(a=role.A.a).build()
    for wrong in (
        {"of": ["Q"]},
        {"of": []},
        {"of": ["P", "P"]},
        {"range": circle(-1)},
        {"range": polygon((0, 0), (1, 1))},
        {"space": "mars"},
        {"semantics": "so so"},
        {"every": 0},
        {"around": "Me"},
    ):
        with pytest.raises(RuleError):
            interest(**({"name": "I", "of": ["P"], "around": event("Me"), "range": circle(1), "rules": [rule]} | wrong))


_LENGTHS = st.floats(0.001, 1e6) | st.integers(1, 1000).map(float)
_SHAPES = st.one_of(
    st.builds(Rectangle, _LENGTHS, _LENGTHS),
    st.builds(Circle, _LENGTHS),
    st.tuples(_LENGTHS, _LENGTHS, _LENGTHS).map(lambda at: Polygon(((-at[0], 0.0), (at[1], 0.0), (0.0, at[2])))),
)
_UPDATES = st.one_of(st.just(Each()), st.integers(1, 10**12).map(Timed), st.builds(Spatial, _LENGTHS))


@given(_SHAPES, st.sampled_from(Space), st.integers(0, 10**12), _UPDATES, st.sampled_from(Semantics))
def test_a_printed_interest_parses_to_an_equal_interest(shape, space, lifetime_us, update, semantics) -> None:
    rule = define("P").from_(event("A")).build()
    one = Interest("I", ("P",), Pattern("Me"), shape, (rule,), space, lifetime_us, update, semantics)
    text = print_program(Program((), (rule,), (one,)))
    assert parse(text).interests == (one,)
    assert print_interest(parse(text).interests[0]) == print_interest(one)
