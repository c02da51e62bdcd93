"""Parse texts of TESLA.

`parse` reads rules and event declarations, `parse_pattern` a subscription, and `parse_expression` an expression. The
grammar is tesla.lark, followed by terms.lark, which has the parts that the languages share.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple

from tocsin.errors import RuleError, Span
from tocsin.events.types import EventType
from tocsin.language.syntax import expressions
from tocsin.language.syntax.ast import (
    Aggregate,
    Attribute,
    Between,
    Clause,
    Expression,
    Function,
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
from tocsin.language.syntax.lexer import Token
from tocsin.language.syntax.parsing import (
    Declared,
    Parser,
    TermReader,
    comparison_of,
    declared,
    expression_of,
    grammar,
    reading,
)

_FUNCTIONS = {function.lower(): function for function in Function}


def parse(text: str) -> Program:
    """Parse a text into its rules and declared event types.

    >>> program = parse("define Hot(area: string) from Temp(value > 45) where area = Temp.area")
    >>> program.rules[0].anchor.constraints[0].operator
    '>'
    """
    types, rules = _read(text, "program")
    return Program(types, rules, source=text)


def parse_pattern(text: str) -> Pattern:
    """Parse a subscription.

    >>> parse_pattern('Temp(area = "A1", value >= 12)').type
    'Temp'
    """
    pattern: Pattern = _read(text, "role")
    return pattern


def parse_expression(text: str) -> Expression:
    """Parse an expression, as it can be written in a constraint or, in parentheses, in `where`.

    >>> parse_expression("$x + 1").operator
    '+'
    """
    expression: Expression = _read(text, "expression")
    return expression


def _read(text: str, start: str) -> Any:
    with reading(text):
        return _automaton().read(text, start)


@cache
def _automaton() -> Parser:
    return Parser(grammar("tesla"), TeslaReader(), ("program", "role", "expression"))


class _UnnamedRule(NamedTuple):
    """A parsed rule that has no name yet, because its name depends on the other rules of the text."""

    label: Token | None
    emits: EventType
    anchor: Pattern
    clauses: tuple[Clause, ...]
    where: tuple[tuple[str, Expression], ...]
    consuming: tuple[str, ...]
    span: Span


class _Call(NamedTuple):
    """The call of an aggregate function, such as `Avg(D(…).attr within …)`."""

    function: Function
    pattern: Pattern
    attribute: str | None
    scope: Scope
    span: Span


class TeslaReader(TermReader):
    """Builds the nodes of rules, with one method for each production of tesla.lark."""

    def program(self, items: list[Declared | _UnnamedRule]) -> tuple[tuple[EventType, ...], tuple[Rule, ...]]:
        types = declared(item for item in items if isinstance(item, Declared))
        return types, tuple(_name_rules([item for item in items if isinstance(item, _UnnamedRule)]))

    def rule(self, children: list[Any]) -> _UnnamedRule:
        header, define, name, attributes, anchor, clauses, where, consuming = children
        last = clauses[-1] if clauses else anchor
        if where:
            last = where[-1][1]
        end = consuming[-1].end_pos if consuming else last.span.end
        return _UnnamedRule(
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

    clauses = items = roles = test = TermReader.listed

    def where(self, children: list[Any]) -> list[Any]:
        return children[0] if children else []

    consuming = where

    def item(self, children: list[Any]) -> tuple[str, Expression]:
        name, _, value = children
        return name.value, expressions.checked(expression_of(value))

    def selection(self, children: list[Any]) -> Selection:
        *policies, pattern, scope = children
        policy, count = _policy(policies[0]) if policies else (Policy.EACH, 0)
        start = policies[0].start_pos if policies else pattern.span.start
        return Selection(policy, pattern, scope, count, span=Span(start, scope.span.end))

    def negation(self, children: list[Any]) -> Negation:
        word, pattern, scope = children
        return Negation(pattern, scope, span=Span(word.start_pos, scope.span.end))

    def aggregate(self, children: list[list[Any]]) -> Aggregate:
        parts = [expressions.checked(expression_of(part)) if isinstance(part, list) else part for part in children[0]]
        return _aggregate(parts)

    def call(self, children: list[Any]) -> _Call:
        name, pattern, *attributes, scope, end = children
        function = _FUNCTIONS[name.value.lower()]
        if not attributes and function is not Function.COUNT:
            hint = f"Write {function}({pattern.type}(…).attribute …)."
            raise RuleError(f"{function} needs an attribute", span=Span(name.start_pos, pattern.span.end), hint=hint)
        attribute = attributes[0].value if attributes else None
        return _Call(function, pattern, attribute, scope, Span(name.start_pos, end.end_pos))

    def within(self, children: list[Token]) -> Within:
        word, *signs, number, unit, origin = children
        span = Span((signs or [number])[0].start_pos, unit.end_pos)
        if signs:
            raise RuleError("a window must be positive", span=span)
        window_us = expressions.window(number.value, unit.value, span)
        return Within(window_us, origin.value, span=Span(word.start_pos, origin.end_pos))

    def between(self, children: list[Token]) -> Between:
        word, start, end = children
        return Between(start.value, end.value, span=Span(word.start_pos, end.end_pos))


def _name_rules(definitions: Sequence[_UnnamedRule]) -> Iterator[Rule]:
    """Give each rule its name, and yield the named rules.

    A rule without a name in the text gets the name of the type that it defines, with a number if this name is in use.
    """
    names: set[str] = set()
    for definition in definitions:
        if definition.label:
            if definition.label.value in names:
                raise RuleError(f"two rules are called '{definition.label.value}'", span=definition.label.span)
            names.add(definition.label.value)
    numbers: dict[str, int] = {}
    for label, emits, anchor, clauses, where, consuming, span in definitions:
        name = label.value if label else emits.name
        if not label:
            number = numbers.get(name, 1)
            while name in names:
                number += 1
                name = f"{emits.name}_{number}"
            numbers[emits.name] = number
            names.add(name)
        yield Rule(name, emits, anchor, clauses, where, consuming, span=span)


def _policy(token: Token) -> tuple[Policy, int]:
    word = token.value.lower()
    if token.type == "POLICY":
        return Policy(word), 0 if word == Policy.EACH else 1
    policy = Policy.FIRST if word.endswith("first") else Policy.LAST
    count = expressions.whole(word[: len(word) - len(word.lstrip("0123456789"))], token.span)
    if not count or count not in expressions.INTS:
        raise RuleError(f"'{policy}' can select from 1 to {expressions.INTS[-1]} events", span=token.span)
    return policy, count


def _aggregate(parts: list[Any]) -> Aggregate:
    """Build an aggregate from the operands and operators of `bound < $p = Avg(…)` or `$p = Avg(…) > bound`."""
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
        raise RuleError("an aggregate can have only one test", span=span)
    for node in (node for part in (*before, *after) if not isinstance(part, Token) for node in expressions.walk(part)):
        if isinstance(node, Attribute) and node.role is None:
            raise RuleError(f"'{node.name}' needs the name of its event", span=node.span, hint="Write Role.attribute.")
    test = None
    if before:
        bound, operator = before
        test = Test(bound, comparison_of(operator), span=Span(bound.span.start, operator.end_pos))
    elif after:
        operator, bound = after
        test = Test(bound, expressions.FLIPPED[comparison_of(operator)], span=Span(operator.start_pos, bound.span.end))
    return Aggregate(call.function, call.pattern, call.attribute, call.scope, parameter, test, span=span)
