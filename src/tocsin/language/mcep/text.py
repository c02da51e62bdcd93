"""Parse and print interests (moving queries).

    interest  Accidents
    of        Accident
    around    Position(car="c7")
    range     rectangle 500 m by 500 m
    lifetime  15 min
    update    every 10 s
    semantics strong

A text has interests, rules and declarations in any order. The grammar is mcep.lark, which adds interests to the grammar
of TESLA. `InterestLexer` adds the keywords and units of interests to the lexer, and `unexpected` describes their syntax
errors.
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
from tocsin.language.syntax.parsing import Parser, grammar, reading
from tocsin.language.tesla.text import TeslaReader


def print_interest(interest: Interest) -> str:
    """Return an interest as text. Its rules and the clauses with default values are left out."""
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
    """Return a shape as text.

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
"""The length of each unit in metres, by the spelling of the unit."""

WORDS: Mapping[str, tuple[str, ...]] = {
    "LENGTH": tuple(LENGTHS_M),
    "COORDINATES": tuple(Space),
    "DELIVERY": tuple(Semantics),
}


class InterestLexer(Lexer):
    """Splits a text with interests into tokens."""

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
    """Return the error for an unexpected token.

    `terminals` are the terminals that the parser expected, and `stack` has the tokens and values that it has read.
    Outside of interests, the error is the same as in TESLA.
    """
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
    """Parse a text into its interests, rules and declared event types.

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
            interests.append(_resolve_interest(one, rules))
    return Program(types, rules, tuple(interests), source=text)


@cache
def _automaton() -> Parser:
    own = resources.files(__package__).joinpath("mcep.lark").read_text("utf-8")
    return Parser(own + grammar("tesla"), _Reader(), ("interests",), InterestLexer, unexpected)


class _UnresolvedInterest(NamedTuple):
    """A parsed interest without its rules, which are known only after the whole text is parsed."""

    name: Token
    delivers: list[Token]
    focal: Pattern
    shape: Shape
    space: Space
    lifetime_us: int
    update: Update
    semantics: Semantics
    span: Span


def _resolve_interest(stated: _UnresolvedInterest, rules: Any) -> Interest:
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
    """Builds the nodes of interests, with one method for each production of mcep.lark."""

    def interests(self, items: list[Any]) -> tuple[Any, ...]:
        stated = [item for item in items if isinstance(item, _UnresolvedInterest)]
        types, rules = self.program([item for item in items if not isinstance(item, _UnresolvedInterest)])
        return types, rules, stated

    def interest(self, children: list[Any]) -> _UnresolvedInterest:
        word, name, types, focal, shape, space, lifetime_us, update, semantics = children
        span = Span(word.start_pos, focal.span.end)
        return _UnresolvedInterest(name, types, focal, shape, space, lifetime_us, update, semantics, span)

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
