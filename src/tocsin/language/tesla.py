"""What does a TESLA text say? `parse` reads rules and event declarations, `parse_pattern` a subscription.

The automaton of tesla.lark runs over the tokens of tokens.py and calls a method of `_Reader` for each production as
soon as it is complete, so that no tree is built in between.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

from tocsin.errors import RuleError, Span
from tocsin.events.types import EventType, Kind
from tocsin.language import terms
from tocsin.language.automaton import Automaton
from tocsin.language.chains import comparison_of, constraints_of, expression_of
from tocsin.language.rules import (
    Aggregate,
    Attribute,
    Between,
    Clause,
    Expression,
    Function,
    Literal,
    Negation,
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
from tocsin.language.tokens import Token

_FUNCTIONS = {function.lower(): function for function in Function}


def parse(text: str) -> Program:
    """The rules and event types of a text.

    >>> program = parse("define Hot(area: string) from Temp(value > 45) where area = Temp.area")
    >>> program.rules[0].anchor.constraints[0].operator
    '>'
    """
    types, rules = _read(text, "program")
    return Program(types, rules, text)


def parse_pattern(text: str) -> Pattern:
    """A subscription.

    >>> parse_pattern('Temp(area = "A1", value >= 12)').type
    'Temp'
    """
    pattern: Pattern = _read(text, "role")
    return pattern


def parse_expression(text: str) -> Expression:
    """An expression as it stands in a constraint or, in parentheses, after `where`.

    >>> parse_expression("$x + 1").operator
    '+'
    """
    expression: Expression = _read(text, "expression")
    return expression


def _read(text: str, start: str) -> Any:
    try:
        with _collector_paused():
            return _automaton().read(text, start)
    except RuleError as error:
        raise error.within(text) from None


@cache
def _automaton() -> Automaton:
    grammar = resources.files(__package__).joinpath("tesla.lark").read_text("utf-8")
    return Automaton(grammar, _Reader(), ("program", "role", "expression"))


@contextmanager
def _collector_paused() -> Iterator[None]:
    """What a parse makes is kept and has no cycles: without looking for them, thousands of rules take half the time."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


class _Declared(NamedTuple):
    """`event Temp(…)`."""

    name: Token
    type: EventType


class _Defined(NamedTuple):
    """A rule that has no name yet: other rules of the text may have taken it."""

    label: Token | None
    emits: EventType
    anchor: Pattern
    clauses: tuple[Clause, ...]
    where: tuple[tuple[str, Expression], ...]
    consuming: tuple[str, ...]
    span: Span


class _Call(NamedTuple):
    """`Avg(D(…).attr within …)`."""

    function: Function
    pattern: Pattern
    attribute: str | None
    scope: Scope
    span: Span


class _Reader:
    """One method for each production of the grammar; each gets what its parts became."""

    def program(self, items: list[_Declared | _Defined]) -> tuple[tuple[EventType, ...], tuple[Rule, ...]]:
        types: dict[str, EventType] = {}
        for item in items:
            if isinstance(item, _Declared):
                if item.type.name in types:
                    raise RuleError(f"the event type '{item.type.name}' is declared twice", span=item.name.span)
                types[item.type.name] = item.type
        return tuple(types.values()), tuple(_named([item for item in items if isinstance(item, _Defined)]))

    def event(self, children: list[Any]) -> _Declared:
        _, name, attributes = children
        return _Declared(name, EventType(name.value, attributes))

    def rule(self, children: list[Any]) -> _Defined:
        header, define, name, attributes, anchor, clauses, where, consuming = children
        last = clauses[-1] if clauses else anchor
        if where:
            last = where[-1][1]
        end = consuming[-1].end_pos if consuming else last.span.end
        return _Defined(
            header[1] if header else None,
            EventType(name.value, attributes),
            anchor,
            tuple(clauses),
            tuple(where),
            tuple(role.value for role in consuming),
            Span((header[0] if header else define).start_pos, end),
        )

    def header(self, children: list[Token]) -> list[Token]:
        return children

    def signature(self, children: list[list[tuple[Token, Kind]]]) -> tuple[tuple[str, Kind], ...]:
        attributes: dict[str, Kind] = {}
        for name, kind in children[0] if children else ():
            if name.value in attributes:
                raise RuleError(f"the attribute '{name.value}' is declared twice", span=name.span)
            attributes[name.value] = kind
        return tuple(attributes.items())

    def field(self, children: list[Token]) -> tuple[Token, Kind]:
        name, kind = children
        return name, Kind(kind.value.lower())

    def listed(self, children: list[Any]) -> list[Any]:
        """A list that is empty, has its first item, or has a list and the next one."""
        if len(children) < 2:
            return children
        items: list[Any] = children[0]
        items.extend(children[1:])
        return items

    fields = clauses = items = roles = test = sum = nots = listed

    def where(self, children: list[Any]) -> list[Any]:
        return children[0] if children else []

    consuming = where

    def item(self, children: list[Any]) -> tuple[str, Expression]:
        name, _, value = children
        return name.value, terms.checked(expression_of(value))

    def selection(self, children: list[Any]) -> Selection:
        *policies, pattern, scope = children
        policy, count = _policy(policies[0]) if policies else (Policy.EACH, 0)
        start = policies[0].start_pos if policies else pattern.span.start
        return Selection(policy, pattern, scope, count, span=Span(start, scope.span.end))

    def negation(self, children: list[Any]) -> Negation:
        word, pattern, scope = children
        return Negation(pattern, scope, span=Span(word.start_pos, scope.span.end))

    def aggregate(self, children: list[list[Any]]) -> Aggregate:
        parts = [terms.checked(expression_of(part)) if isinstance(part, list) else part for part in children[0]]
        return _aggregate(parts)

    def call(self, children: list[Any]) -> _Call:
        name, pattern, *attributes, scope, end = children
        function = _FUNCTIONS[name.value.lower()]
        if not attributes and function is not Function.COUNT:
            hint = f"Write {function}({pattern.type}(…).attribute …)."
            raise RuleError(f"{function} needs an attribute", span=Span(name.start_pos, pattern.span.end), hint=hint)
        attribute = attributes[0].value if attributes else None
        return _Call(function, pattern, attribute, scope, Span(name.start_pos, end.end_pos))

    def role(self, children: list[Any]) -> Pattern:
        first, last = children[0], children[-1]
        constraints = constraints_of(children[1]) if len(children) > 1 and isinstance(children[1], list) else ()
        alias = last.value if last.type == "ROLE" else None
        return Pattern(first.value, constraints, alias, span=Span(first.start_pos, last.end_pos))

    pattern = role

    def within(self, children: list[Token]) -> Within:
        word, *signs, number, unit, origin = children
        span = Span((signs or [number])[0].start_pos, unit.end_pos)
        if signs:
            raise RuleError("a window must be longer than nothing", span=span)
        window_us = terms.window(number.value, unit.value, span)
        return Within(window_us, origin.value, span=Span(word.start_pos, origin.end_pos))

    def between(self, children: list[Token]) -> Between:
        word, start, end = children
        return Between(start.value, end.value, span=Span(word.start_pos, end.end_pos))

    def expression(self, children: list[list[Any]]) -> Expression:
        return terms.checked(expression_of(children[0]))

    def chain(self, children: list[Any]) -> list[Any]:
        chain, *more = children
        if not isinstance(chain, list):
            return children
        for child in more:
            if isinstance(child, list):
                chain += child
            else:
                chain.append(child)
        return chain

    def attribute(self, children: list[Token]) -> Attribute:
        (name,) = children
        return Attribute(name.value, None, span=Span(name.start_pos, name.end_pos))

    def qualified(self, children: list[Token]) -> Attribute:
        role, name = children
        return Attribute(name.value, role.value, span=Span(role.start_pos, name.end_pos))

    def parameter(self, children: list[Token]) -> Parameter:
        (name,) = children
        return Parameter(name.value[1:], span=Span(name.start_pos, name.end_pos))

    def integer(self, children: list[Token]) -> Literal:
        (digits,) = children
        span = Span(digits.start_pos, digits.end_pos)
        return terms.integer(terms.whole(digits.value, span), span)

    def double(self, children: list[Token]) -> Literal:
        (digits,) = children
        return terms.double(float(digits.value), digits.span)

    def string(self, children: list[Token]) -> Literal:
        (quoted,) = children
        span = Span(quoted.start_pos, quoted.end_pos)
        return Literal(terms.unescape(quoted.value, span), Kind.STRING, span=span)

    def boolean(self, children: list[Token]) -> Literal:
        (word,) = children
        return Literal(word.value.lower() == "true", Kind.BOOL, span=word.span)

    def timestamp(self, children: list[Token]) -> Literal:
        word, quoted, end = children
        moment = terms.moment(terms.unescape(quoted.value, quoted.span), quoted.span)
        return terms.timestamp(moment, Span(word.start_pos, end.end_pos))

    def parenthesised(self, children: list[Any]) -> Expression:
        start, chain, end = children
        return replace(expression_of(chain), span=Span(start.start_pos, end.end_pos))

    def minus(self, children: list[Any]) -> Expression:
        sign, operand = children
        return terms.minus(operand, Span(sign.start_pos, operand.span.end))


def _named(definitions: Sequence[_Defined]) -> Iterator[Rule]:
    """Rules with the names that the text gives, else the type that is defined, numbered where that is taken."""
    taken: set[str] = set()
    for definition in definitions:
        if definition.label:
            if definition.label.value in taken:
                raise RuleError(f"two rules are called '{definition.label.value}'", span=definition.label.span)
            taken.add(definition.label.value)
    numbers: dict[str, int] = {}
    for label, emits, anchor, clauses, where, consuming, span in definitions:
        name = label.value if label else emits.name
        if not label:
            number = numbers.get(name, 1)
            while name in taken:
                number += 1
                name = f"{emits.name}_{number}"
            numbers[emits.name] = number
            taken.add(name)
        yield Rule(name, emits, anchor, clauses, where, consuming, span=span)


def _policy(token: Token) -> tuple[Policy, int]:
    word = token.value.lower()
    if token.type == "POLICY":
        return Policy(word), 0 if word == Policy.EACH else 1
    policy = Policy.FIRST if word.endswith("first") else Policy.LAST
    count = terms.whole(word[: len(word) - len(word.lstrip("0123456789"))], token.span)
    if not count or count not in terms.INTS:
        raise RuleError(f"'{policy}' can pick from 1 to {terms.INTS[-1]} events", span=token.span)
    return policy, count


def _aggregate(parts: list[Any]) -> Aggregate:
    """`bound < $p = Avg(…)` or `$p = Avg(…) > bound`, from the parts of such a chain."""
    span = Span(parts[0].span.start, parts[-1].span.end)
    calls = [index for index, part in enumerate(parts) if isinstance(part, _Call)]
    if len(calls) != 1:
        raise RuleError(
            "a comparison among the clauses must test one aggregate",
            span=span,
            hint="Write 45 < Avg(Temp(…).value within 5 min from Smoke), or put the comparison into an event's (…).",
        )
    at = calls[0]
    call, before, after = parts[at], parts[:at], parts[at + 1 :]
    parameter = None
    if before and before[-1].type == "EQUAL" and isinstance(before[-2], Parameter):
        parameter, before = before[-2].name, before[:-2]
    if len(before) + len(after) > 2:
        raise RuleError("an aggregate has one test", span=span)
    for node in (node for part in (*before, *after) if not isinstance(part, Token) for node in terms.walk(part)):
        if isinstance(node, Attribute) and node.role is None:
            raise RuleError(f"say whose '{node.name}' is meant", span=node.span, hint="Write Role.attribute.")
    test = None
    if before:
        bound, operator = before
        test = Test(bound, comparison_of(operator), span=Span(bound.span.start, operator.end_pos))
    elif after:
        operator, bound = after
        test = Test(bound, terms.FLIPPED[comparison_of(operator)], span=Span(operator.start_pos, bound.span.end))
    return Aggregate(call.function, call.pattern, call.attribute, call.scope, parameter, test, span=span)
