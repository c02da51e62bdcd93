"""What does a text of dynamic interest queries say? `parse` reads them with the rules that they are made of.

interest  Accidents
of        Accident
around    Position(car="c7")
range     rectangle 500 m by 500 m
lifetime  15 min
update    every 10 s
semantics strong

Beside the interests stand TESLA rules and declarations, in any order: the grammar is TESLA's with one more statement.
"""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Any, NamedTuple

from tocsin.errors import RuleError, Span
from tocsin.language import terms
from tocsin.language.automaton import Automaton
from tocsin.language.interests import (
    Circle,
    Each,
    Interest,
    Polygon,
    Rectangle,
    Semantics,
    Shape,
    Space,
    Spatial,
    Timed,
    Update,
    check,
    check_length,
    needed,
)
from tocsin.language.mistakes_interests import unexpected
from tocsin.language.reading import grammar, reading
from tocsin.language.rules import Pattern, Program
from tocsin.language.tesla import TeslaReader
from tocsin.language.tokens import Token
from tocsin.language.tokens_interests import LENGTHS_M, InterestLexer


def parse(text: str) -> Program:
    """The interests, rules and event types of a text.

    >>> text = "define Hot() from Temp(value > 45) interest Near of Hot around Me range circle 100 m"
    >>> parse(text).interests[0].shape
    Circle(radius_m=100.0)
    """
    with reading(text):
        types, rules, stated = _automaton().read(text, "interests")
        names: set[str] = set()
        interests = []
        for one in stated:
            if one.name.value in names:
                raise RuleError(f"two interests are called '{one.name.value}'", span=one.name.span)
            names.add(one.name.value)
            interests.append(_interest(one, rules))
    return Program(types, rules, tuple(interests), source=text)


@cache
def _automaton() -> Automaton:
    own = resources.files(__package__).joinpath("mcep.lark").read_text("utf-8")
    return Automaton(own + grammar("tesla"), _Reader(), ("interests",), InterestLexer, unexpected)


class _Stated(NamedTuple):
    """An interest whose rules have not been looked up yet."""

    name: Token
    delivers: list[Token]
    focal: Pattern
    shape: Shape
    space: Space
    lifetime_us: int
    update: Update
    semantics: Semantics
    span: Span


def _interest(stated: _Stated, rules: Any) -> Interest:
    for token in stated.delivers:
        needed([token.value], rules, token.span)
    names = tuple(token.value for token in stated.delivers)
    interest = Interest(
        stated.name.value,
        names,
        stated.focal,
        stated.shape,
        needed(names, rules, stated.name.span),
        stated.space,
        stated.lifetime_us,
        stated.update,
        stated.semantics,
        span=stated.name.span,
    )
    return check(interest)


class _Reader(TeslaReader):
    """One method for each production that only interests have; each gets what its parts became."""

    def interests(self, items: list[Any]) -> tuple[Any, ...]:
        stated = [item for item in items if isinstance(item, _Stated)]
        types, rules = self.program([item for item in items if not isinstance(item, _Stated)])
        return types, rules, stated

    def interest(self, children: list[Any]) -> _Stated:
        word, name, types, focal, shape, space, lifetime_us, update, semantics = children
        span = Span(word.start_pos, focal.span.end)
        return _Stated(name, types, focal, shape, space, lifetime_us, update, semantics, span)

    types = points = TeslaReader.listed

    def rectangle(self, children: list[float]) -> Rectangle:
        return Rectangle(*children)

    def circle(self, children: list[float]) -> Circle:
        return Circle(children[0])

    def polygon(self, children: list[list[tuple[float, float]]]) -> Polygon:
        return Polygon(tuple(children[0]))

    def point(self, children: list[Any]) -> tuple[float, float]:
        east, north, _ = children
        return east, north

    def length(self, children: list[Token]) -> float:
        number, unit = children
        span = Span(number.start_pos, unit.end_pos)
        return check_length(_metres(number, unit), span)

    def offset(self, children: list[Token]) -> float:
        number, unit = children[-2:]
        return (-1 if len(children) == 3 else 1) * _metres(number, unit) + 0.0

    def space(self, children: list[Token]) -> Space:
        return Space(children[0].value.lower()) if children else Space.PLANE

    def lifetime(self, children: list[Token]) -> int:
        if not children:
            return 0
        _, number, unit = children
        return terms.window(number.value, unit.value, Span(number.start_pos, unit.end_pos))

    def update(self, children: list[Token]) -> Update:
        return Each()

    def timed(self, children: list[Token]) -> Timed:
        number, unit = children
        return Timed(terms.window(number.value, unit.value, Span(number.start_pos, unit.end_pos)))

    def spatial(self, children: list[float]) -> Spatial:
        return Spatial(children[0])

    def semantics(self, children: list[Token]) -> Semantics:
        return Semantics(children[0].value.lower()) if children else Semantics.WEAK


def _metres(number: Token, unit: Token) -> float:
    span = Span(number.start_pos, unit.end_pos)
    return float(terms.double(float(number.value), span).value) * LENGTHS_M[unit.value.lower()]
