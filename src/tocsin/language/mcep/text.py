"""What does a text of dynamic interest queries say? `parse` reads them with the rules that they are made of.

interest  Accidents
of        Accident
around    Position(car="c7")
range     rectangle 500 m by 500 m
lifetime  15 min
update    every 10 s
semantics strong

Beside the interests stand TESLA rules and declarations, in any order: the grammar is TESLA's with one more statement.

How is a dynamic interest query written as text? `mcep.parse` gives it back.

What words do texts of dynamic interest queries have besides those of rules?

What is wrong where a text of dynamic interest queries cannot be read on?
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from typing import Any, ClassVar, NamedTuple

from tocsin.errors import RuleError, Span, nearest
from tocsin.language.mcep.ast import (
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
from tocsin.language.syntax import expressions, lexer
from tocsin.language.syntax.ast import Pattern, Program
from tocsin.language.syntax.expressions import print_pattern, print_window
from tocsin.language.syntax.lexer import END, SPELLINGS, Lexer, Token, shown, slip
from tocsin.language.syntax.names import IDENTIFIER, quoted_type
from tocsin.language.syntax.parsing import Automaton, grammar, reading
from tocsin.language.tesla.text import TeslaReader


def print_interest(interest: Interest) -> str:
    """An interest as text, without its rules; what is as usual is not said."""
    lines = [
        f"interest  {interest.name}",
        f"of        {', '.join(map(quoted_type, interest.delivers))}",
        f"around    {print_pattern(interest.focal)}",
        f"range     {print_shape(interest.shape)}",
    ]
    if interest.space != Space.PLANE:
        lines.append(f"space     {interest.space}")
    if interest.lifetime_us:
        lines.append(f"lifetime  {print_window(interest.lifetime_us)}")
    match interest.update:
        case Timed(every_us):
            lines.append(f"update    every {print_window(every_us)}")
        case Spatial(every_m):
            lines.append(f"update    every {_length(every_m)}")
        case Each():
            pass
    if interest.semantics != Semantics.WEAK:
        lines.append(f"semantics {interest.semantics}")
    return "\n".join(lines)


def print_shape(shape: Shape) -> str:
    """A shape as text.

    >>> print_shape(Rectangle(1500.0, 12.5))
    'rectangle 1500 m by 12.5 m'
    """
    match shape:
        case Rectangle(width, height):
            return f"rectangle {_length(width)} by {_length(height)}"
        case Circle(radius):
            return f"circle {_length(radius)}"
        case Polygon(corners):
            return "polygon " + ", ".join(f"({_length(east)}, {_length(north)})" for east, north in corners)


def _length(length_m: float) -> str:
    text = repr(length_m)
    return (text[:-2] if text.endswith(".0") else text) + " m"


LENGTHS_M = {"m": 1.0, "km": 1000.0, "metre": 1.0, "metres": 1.0, "meter": 1.0, "meters": 1.0}
"""Every spelling of a unit of length, in metres."""

WORDS: Mapping[str, tuple[str, ...]] = {
    "LENGTH": tuple(LENGTHS_M),
    "COORDINATES": tuple(Space),
    "DELIVERY": tuple(Semantics),
}


class InterestLexer(Lexer):
    """Finds the tokens of a text of interests."""

    spellings: ClassVar[Mapping[str, tuple[str, ...]]] = {**SPELLINGS, **WORDS}


_KEYWORDS = (
    "interest",
    "of",
    "around",
    "range",
    "rectangle",
    "circle",
    "polygon",
    "by",
    "space",
    "lifetime",
    "update",
    "each",
    "every",
    "semantics",
)
_OTHERS = {
    "LENGTH": "a unit of length (m, km)",
    "COORDINATES": "a space (" + ", ".join(WORDS["COORDINATES"]) + ")",
    "DELIVERY": "a semantics (" + ", ".join(WORDS["DELIVERY"]) + ")",
}
_WHAT = {"LENGTH": "unit of length", "COORDINATES": "space", "DELIVERY": "semantics"}


def unexpected(token: Token, terminals: set[str], stack: Sequence[Any]) -> RuleError:
    """The error for a token that does not fit, given the terminals that would and what the parser had read."""
    own = [word for word in _KEYWORDS if word.upper() in terminals and word != "interest"]
    units = [name for name in _OTHERS if name in terminals]
    if not own and not units:
        return lexer.unexpected(token, terminals, stack)
    if len(terminals) == 1 and units and IDENTIFIER.fullmatch(token.value):
        (name,) = units
        return RuleError(
            f"unknown {_WHAT[name]} '{token.value}'", span=token.span, hint=nearest(token.value, WORDS[name])
        )
    words = [f"'{word}'" for word in own] + [_OTHERS[name] for name in units]
    if "UNIT" in terminals:
        words.append("a unit of time (us, ms, s, sec, min, h, d)")
    if "INT" in terminals:
        words.append("a number")
    if "LPAR" in terminals:
        words.append("'('")
    if "COMMA" in terminals:
        words.append("','")
    if "DEFINE" in terminals:
        words.append("the next interest or rule")
    expected = words[0] if len(words) == 1 else ", ".join(words[:-1]) + " or " + words[-1]
    if token.type == END:
        return RuleError(f"the text ends too early; expected {expected}", span=token.span)
    hint = slip(token.value, [*own, *(word for name in units for word in WORDS[name])])
    return RuleError(f"unexpected {shown(token)}; expected {expected}", span=token.span, hint=hint)


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
        return expressions.window(number.value, unit.value, Span(number.start_pos, unit.end_pos))

    def update(self, children: list[Token]) -> Update:
        return Each()

    def timed(self, children: list[Token]) -> Timed:
        number, unit = children
        return Timed(expressions.window(number.value, unit.value, Span(number.start_pos, unit.end_pos)))

    def spatial(self, children: list[float]) -> Spatial:
        return Spatial(children[0])

    def semantics(self, children: list[Token]) -> Semantics:
        return Semantics(children[0].value.lower()) if children else Semantics.WEAK


def _metres(number: Token, unit: Token) -> float:
    span = Span(number.start_pos, unit.end_pos)
    return float(expressions.double(float(number.value), span).value) * LENGTHS_M[unit.value.lower()]
