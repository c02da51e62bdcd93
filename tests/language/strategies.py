"""Hypothesis strategies for anything that can be written: rules that parse, whether or not they mean something."""

from __future__ import annotations

import re

from hypothesis import strategies as st

from tocsin.events.types import EventType, Kind
from tocsin.language.rules import (
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

KEYWORDS = (
    "define from where consuming and or not as within between each first last event rule true false timestamp "
    "Avg sum MIN max count string int s min h d"
).split()
RESERVED = {"not", "true", "false"}
YEAR_1_US = -62_135_596_800_000_000
YEAR_10000_US = 253_402_300_800_000_000

names = st.one_of(
    st.sampled_from(["A", "B", "Temp", "area", "value", "_", "x1"]),
    st.sampled_from(KEYWORDS),
    st.from_regex(re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,6}"), fullmatch=True),
)
bare_names = names.filter(lambda name: name.lower() not in RESERVED)


def integer(value: int) -> Literal:
    return Literal(value, Kind.INT if -(2**31) <= value < 2**31 else Kind.LONG)


literals = st.one_of(
    st.integers(-(2**63), 2**63 - 1).map(integer),
    st.integers(-5, 50).map(integer),
    st.floats(allow_nan=False, allow_infinity=False).map(lambda value: Literal(value, Kind.DOUBLE)),
    st.text(max_size=8).map(lambda value: Literal(value, Kind.STRING)),
    st.text(alphabet="\"'\\\n\r\t\0-#é😀", max_size=8).map(lambda value: Literal(value, Kind.STRING)),
    st.booleans().map(lambda value: Literal(value, Kind.BOOL)),
    st.integers(YEAR_1_US, YEAR_10000_US - 1).map(lambda value: Literal(value, Kind.TIMESTAMP)),
)
parameters = names.map(Parameter)
bare_attributes = bare_names.map(Attribute)
qualified_attributes = st.builds(Attribute, names, names)
comparators = st.sampled_from(["=", "!=", "<", "<=", ">", ">="])


def larger(smaller: st.SearchStrategy[Expression]) -> st.SearchStrategy[Expression]:
    def several(excluded: type) -> st.SearchStrategy[tuple[Expression, ...]]:
        fitting = smaller.filter(lambda node: not isinstance(node, excluded))
        return st.lists(fitting, min_size=2, max_size=3).map(tuple)

    return st.one_of(
        st.builds(Negative, smaller.filter(lambda node: not isinstance(node, Literal))),
        st.builds(Arithmetic, st.sampled_from("+-*/"), smaller, smaller),
        st.builds(Comparison, comparators, smaller, smaller),
        st.builds(Not, smaller),
        st.builds(And, several(And)),
        st.builds(Or, several(Or)),
    )


expressions = st.recursive(
    st.one_of(literals, parameters, bare_attributes, qualified_attributes), larger, max_leaves=10
)
bounds = st.recursive(st.one_of(literals, parameters, qualified_attributes), larger, max_leaves=5)
constraints = st.one_of(
    st.builds(Comparison, comparators, bare_attributes, st.one_of(literals, parameters)),
    expressions.filter(lambda node: not isinstance(node, And)),
)


def patterns(alias: st.SearchStrategy[str | None]) -> st.SearchStrategy[Pattern]:
    return st.builds(Pattern, names, st.lists(constraints, max_size=3).map(tuple), alias)


nameless_patterns = patterns(st.none())
named_patterns = patterns(st.one_of(st.none(), names))
scopes: st.SearchStrategy[Scope] = st.one_of(
    st.builds(
        Within,
        st.one_of(
            st.integers(1, 2**63 - 1),
            st.builds(
                lambda count, unit: count * unit, st.integers(1, 500), st.sampled_from([1, 1_000, 60_000_000, 86_400_000_000])
            ),
        ),
        names,
    ),
    st.builds(Between, names, names),
)


@st.composite
def selections(draw: st.DrawFn) -> Selection:
    policy = draw(st.sampled_from(Policy))
    count = 0 if policy is Policy.EACH else draw(st.one_of(st.just(1), st.integers(1, 2**31 - 1)))
    return Selection(policy, draw(named_patterns), draw(scopes), count)


@st.composite
def aggregates(draw: st.DrawFn) -> Aggregate:
    function = draw(st.sampled_from(Function))
    attribute = draw(st.one_of(names, st.none()) if function is Function.COUNT else names)
    test = draw(st.one_of(st.none(), st.builds(Test, bounds, comparators)))
    parameter = draw(st.one_of(st.none(), names))
    return Aggregate(function, draw(nameless_patterns), attribute, draw(scopes), parameter, test)


clauses: st.SearchStrategy[Clause] = st.one_of(selections(), st.builds(Negation, nameless_patterns, scopes), aggregates())
event_types = st.builds(
    EventType,
    names,
    st.lists(st.tuples(names, st.sampled_from(Kind)), max_size=3, unique_by=lambda item: item[0]).map(tuple),
)


@st.composite
def rules(draw: st.DrawFn) -> Rule:
    emits = draw(event_types)
    return Rule(
        draw(st.one_of(st.just(emits.name), names)),
        emits,
        draw(named_patterns),
        tuple(draw(st.lists(clauses, max_size=3))),
        tuple(draw(st.lists(st.tuples(names, expressions), max_size=3))),
        tuple(draw(st.lists(names, max_size=2))),
    )


programs = st.builds(
    Program,
    st.lists(event_types, max_size=2, unique_by=lambda item: item.name).map(tuple),
    st.lists(rules(), max_size=3, unique_by=lambda item: item.name).map(tuple),
)
