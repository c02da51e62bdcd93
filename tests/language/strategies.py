"""Hypothesis strategies for syntactically valid rules, which may be semantically invalid."""

from __future__ import annotations

import math
import re

from hypothesis import strategies as st

from tocsin.events.types import EventType, Kind
from tocsin.language.syntax.ast import (
    Aggregate,
    And,
    Arithmetic,
    Attribute,
    Between,
    Clause,
    Comparison,
    Expression,
    Function,
    Literal,
    Negation,
    Negative,
    Not,
    Or,
    Parameter,
    Pattern,
    Policy,
    Program,
    Rule,
    Scope,
    Selection,
    Test,
    Within,
)

KEYWORDS = [
    *("define", "from", "where", "consuming", "and", "or", "not", "as", "within", "between", "each", "first", "last"),
    *("event", "rule", "true", "false", "timestamp", "Avg", "sum", "MIN", "max", "count", "string", "int", "s", "min"),
]
RESERVED = {"not", "true", "false"}
LEAVES = [Literal, Parameter, Attribute]
FORMS = [Negative, Not, Arithmetic, Comparison, And, Or]
YEAR_1_US = -62_135_596_800_000_000
YEAR_10000_US = 253_402_300_800_000_000

_NAMES = st.one_of(
    st.sampled_from(["A", "B", "Temp", "area", "value", "_", "x1"]),
    st.sampled_from(KEYWORDS),
    st.from_regex(re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,6}"), fullmatch=True),
)
_COMPARATORS = st.sampled_from(["=", "!=", "<", "<=", ">", ">="])
_LITERALS = st.one_of(
    st.integers(-(2**63), 2**63 - 1).map(lambda value: integer(value)),
    st.integers(-5, 50).map(lambda value: integer(value)),
    st.floats(allow_nan=False, allow_infinity=False).map(lambda value: Literal(value, Kind.DOUBLE)),
    st.text(max_size=8).map(lambda value: Literal(value, Kind.STRING)),
    st.text(alphabet="\"'\\\n\r\t\0-#é😀", max_size=8).map(lambda value: Literal(value, Kind.STRING)),
    st.booleans().map(lambda value: Literal(value, Kind.BOOL)),
    st.integers(YEAR_1_US, YEAR_10000_US - 1).map(lambda value: Literal(value, Kind.TIMESTAMP)),
)
_WINDOWS_US = st.one_of(
    st.integers(1, 2**63 - 1),
    st.tuples(st.integers(1, 500), st.sampled_from([1, 1_000, 60_000_000, 86_400_000_000])).map(math.prod),
)


def integer(value: int) -> Literal:
    return Literal(value, Kind.INT if -(2**31) <= value < 2**31 else Kind.LONG)


# Composite strategies, where values would do: Hypothesis prints those in full, at length.


@st.composite
def names(draw: st.DrawFn) -> str:
    return draw(_NAMES)


@st.composite
def attributes(draw: st.DrawFn, bare: bool = True) -> Attribute:
    if bare and draw(st.booleans()):
        return Attribute(draw(_NAMES.filter(lambda name: name.lower() not in RESERVED)))
    return Attribute(draw(_NAMES), draw(_NAMES))


@st.composite
def expressions(draw: st.DrawFn, depth: int = 3, bare: bool = True) -> Expression:
    """Generate expressions; without `bare`, each attribute has a role."""
    smaller = expressions(depth - 1, bare)
    form = draw(st.sampled_from(LEAVES if depth == 0 else LEAVES + FORMS))
    if form is Literal:
        return draw(_LITERALS)
    if form is Parameter:
        return Parameter(draw(_NAMES))
    if form is Attribute:
        return draw(attributes(bare))
    if form is Negative:
        return Negative(draw(smaller.filter(lambda node: not isinstance(node, Literal))))
    if form is Not:
        return Not(draw(smaller))
    if form is Arithmetic:
        return Arithmetic(draw(st.sampled_from("+-*/")), draw(smaller), draw(smaller))
    if form is Comparison:
        return Comparison(draw(_COMPARATORS), draw(smaller), draw(smaller))
    operands = st.lists(smaller.filter(lambda node: not isinstance(node, form)), min_size=2, max_size=3)
    return form(tuple(draw(operands)))


@st.composite
def constraints(draw: st.DrawFn) -> Expression:
    if draw(st.booleans()):
        return Comparison(draw(_COMPARATORS), draw(attributes()), draw(expressions(0)))
    return draw(expressions().filter(lambda node: not isinstance(node, And)))


@st.composite
def patterns(draw: st.DrawFn, named: bool = False) -> Pattern:
    alias = draw(st.none() | _NAMES) if named else None
    return Pattern(draw(_NAMES), tuple(draw(st.lists(constraints(), max_size=3))), alias)


@st.composite
def scopes(draw: st.DrawFn) -> Scope:
    if draw(st.booleans()):
        return Within(draw(_WINDOWS_US), draw(_NAMES))
    return Between(draw(_NAMES), draw(_NAMES))


@st.composite
def clauses(draw: st.DrawFn) -> Clause:
    form = draw(st.sampled_from([Selection, Negation, Aggregate]))
    if form is Selection:
        policy = draw(st.sampled_from(Policy))
        count = 0 if policy is Policy.EACH else draw(st.just(1) | st.integers(1, 2**31 - 1))
        return Selection(policy, draw(patterns(named=True)), draw(scopes()), count)
    if form is Negation:
        return Negation(draw(patterns()), draw(scopes()))
    function = draw(st.sampled_from(Function))
    attribute = draw(st.none() | _NAMES if function is Function.COUNT else _NAMES)
    test = Test(draw(expressions(2, bare=False)), draw(_COMPARATORS)) if draw(st.booleans()) else None
    return Aggregate(function, draw(patterns()), attribute, draw(scopes()), draw(st.none() | _NAMES), test)


@st.composite
def event_types(draw: st.DrawFn) -> EventType:
    kinds = draw(st.dictionaries(_NAMES, st.sampled_from(Kind), max_size=3))
    return EventType(draw(_NAMES), tuple(kinds.items()))


@st.composite
def rules(draw: st.DrawFn) -> Rule:
    emits = draw(event_types())
    return Rule(
        draw(st.just(emits.name) | _NAMES),
        emits,
        draw(patterns(named=True)),
        tuple(draw(st.lists(clauses(), max_size=3))),
        tuple(draw(st.lists(st.tuples(names(), expressions()), max_size=3))),
        tuple(draw(st.lists(names(), max_size=2))),
    )


@st.composite
def programs(draw: st.DrawFn) -> Program:
    types = draw(st.lists(event_types(), max_size=2, unique_by=lambda item: item.name))
    return Program(tuple(types), tuple(draw(st.lists(rules(), max_size=3, unique_by=lambda item: item.name))))
