"""How is a rule written as TESLA text? One clause a line, laid out as the papers do; `parse` gives the rule back.

An expression gets parentheses only where it would be read differently without them.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from tocsin.errors import RuleError
from tocsin.events.types import EventType, Kind
from tocsin.language.names import quoted, quoted_type
from tocsin.language.queries import Query
from tocsin.language.requests import Request, Statement
from tocsin.language.rules import (
    Aggregate,
    And,
    Arithmetic,
    Attribute,
    Clause,
    Comparison,
    Expression,
    Literal,
    Negation,
    Negative,
    Not,
    Or,
    Parameter,
    Pattern,
    Policy,
    Program,
    Scope,
    Selection,
    Within,
)

_UNITS = (("d", 86_400_000_000), ("h", 3_600_000_000), ("min", 60_000_000), ("s", 1_000_000), ("ms", 1_000), ("us", 1))
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_ESCAPES = {"\\": r"\\", '"': r"\"", "\n": r"\n", "\r": r"\r", "\t": r"\t"}

_OR, _AND, _NOT, _COMPARISON, _SUM, _PRODUCT, _MINUS, _ATOM = range(1, 9)


def print_program(program: Program) -> str:
    """All event types, rules and interests of a program.

    >>> from tocsin.language.tesla import parse
    >>> print(print_program(parse("define Hot() from Temp(value>45) event Temp(value: double)")), end="")
    event Temp(value: double)
    <BLANKLINE>
    define    Hot()
    from      Temp(value>45)
    """
    if any(isinstance(rule, Query) for rule in program.rules):
        from tocsin.language.printing_queries import print_definition

        types = "\n".join(map(print_definition, program.types))
    else:
        types = "\n".join(f"event {print_type(event_type)}" for event_type in program.types)
    parts = [types] if types else []
    parts += [print_rule(rule) for rule in program.rules]
    if program.interests:
        from tocsin.language.printing_interests import print_interest

        parts += [print_interest(interest) for interest in program.interests]
    return "\n\n".join(parts) + "\n" if parts else ""


def print_type(event_type: EventType) -> str:
    """A type and its attributes, as texts declare and define it."""
    attributes = ", ".join(f"{quoted(name)}: {kind}" for name, kind in event_type.attributes)
    return f"{quoted_type(event_type.name)}({attributes})"


def print_rule(rule: Statement) -> str:
    """A rule as text, with its name in front where that is not the type that it defines; or a request, or a query."""
    if isinstance(rule, Query):
        from tocsin.language.printing_queries import print_query

        return print_query(rule)
    if isinstance(rule, Request):
        from tocsin.language.printing_requests import print_request

        return print_request(rule)
    lines = [] if rule.name == rule.emits.name else [f"rule {rule.name}"]
    lines += [f"define    {print_type(rule.emits)}", f"from      {print_pattern(rule.anchor)}"]
    lines += [f"          and {print_clause(clause)}" for clause in rule.clauses]
    if rule.where:
        values = (f"{quoted(name)} = {_expression(value, _SUM)}" for name, value in rule.where)
        lines.append(f"where     {', '.join(values)}")
    if rule.consuming:
        lines.append(f"consuming {', '.join(map(quoted, rule.consuming))}")
    return "\n".join(lines)


def print_pattern(pattern: Pattern) -> str:
    """A pattern, which is also a subscription.

    >>> print_pattern(Pattern("Temp", (Comparison(">=", Attribute("value"), Literal(12, Kind.INT)),), "t"))
    'Temp(value>=12) as t'
    """
    alias = f" as {quoted(pattern.alias)}" if pattern.alias else ""
    return f"{quoted_type(pattern.type)}({', '.join(map(print_expression, pattern.constraints))}){alias}"


def print_expression(expression: Expression) -> str:
    """An expression with no more parentheses than it needs."""
    return _expression(expression, _OR)


def print_window(window_us: int) -> str:
    """A length of time in the largest unit that has a whole number of it.

    >>> print_window(300_000_000)
    '5 min'
    """
    unit, worth = next((unit, worth) for unit, worth in _UNITS if window_us % worth == 0)
    return f"{window_us // worth} {unit}"


def print_clause(clause: Clause) -> str:
    """One clause of a rule, as it stands behind `and`."""
    if isinstance(clause, Aggregate):
        return _aggregate(clause)
    scoped = f"{print_pattern(clause.pattern)} {print_scope(clause.scope)}"
    if isinstance(clause, Negation):
        return f"not {scoped}"
    return f"{_policy(clause)} {scoped}"


def _policy(selection: Selection) -> str:
    if selection.policy is Policy.EACH or selection.count == 1:
        return selection.policy
    return f"{selection.count}-{selection.policy}"


def print_scope(scope: Scope) -> str:
    """Where a clause looks."""
    if isinstance(scope, Within):
        return f"within {print_window(scope.window_us)} from {quoted(scope.origin)}"
    return f"between {quoted(scope.start)} and {quoted(scope.end)}"


def _aggregate(clause: Aggregate) -> str:
    attribute = f".{quoted(clause.attribute)}" if clause.attribute else ""
    text = f"{clause.function}({print_pattern(clause.pattern)}{attribute} {print_scope(clause.scope)})"
    if clause.parameter:
        text = f"${clause.parameter} = {text}"
    if clause.test is None:
        return text
    bound, operator = _expression(clause.test.bound, _SUM), clause.test.operator
    if operator == "=" and isinstance(clause.test.bound, Parameter) and not clause.parameter:
        # `$x = Avg(…)` would bind $x.
        return f"{text} = {bound}"
    return f"{bound} {operator} {text}"


def _expression(node: Expression, level: int) -> str:
    """The text of an expression where operators bind at least as tightly as `level`, else in parentheses."""
    text, own = _text(node)
    return text if own >= level else f"({text})"


def _text(node: Expression) -> tuple[str, int]:
    """The text of an expression and how tightly its outermost operator binds."""
    match node:
        case Literal():
            return _literal(node), _ATOM
        case Parameter(name):
            return f"${name}", _ATOM
        case Attribute(name, role):
            return f"{quoted(role)}.{quoted(name)}" if role else quoted(name), _ATOM
        case Negative(operand):
            # Two minuses would begin a comment.
            return f"-{_expression(operand, _ATOM)}", _MINUS
        case Arithmetic(operator, left, right):
            own = _SUM if operator in "+-" else _PRODUCT
            return f"{_expression(left, own)} {operator} {_expression(right, own + 1)}", own
        case Comparison(operator, left, right):
            sides = _expression(left, _SUM), _expression(right, _SUM)
            atoms = not any(isinstance(side, Arithmetic) for side in (left, right))
            return (operator if atoms else f" {operator} ").join(sides), _COMPARISON
        case Not(operand):
            return f"not {_expression(operand, _NOT)}", _NOT
        case And(operands):
            return " and ".join(_expression(operand, _NOT) for operand in operands), _AND
        case Or(operands):
            return " or ".join(_expression(operand, _AND) for operand in operands), _OR


def _literal(literal: Literal) -> str:
    value = literal.value
    match literal.kind:
        case Kind.STRING:
            return '"' + "".join(map(_character, str(value))) + '"'
        case Kind.BOOL:
            return "true" if value else "false"
        case Kind.DOUBLE:
            return repr(float(value))
        case Kind.TIMESTAMP:
            try:
                moment = _EPOCH + timedelta(microseconds=int(value))
            except OverflowError:
                raise RuleError(f"the timestamp {value} is outside the years 1 to 9999") from None
            return f'timestamp("{moment.replace(tzinfo=None).isoformat()}Z")'
        case _:
            return str(int(value))


def _character(character: str) -> str:
    if character in _ESCAPES:
        return _ESCAPES[character]
    if character.isprintable():
        return character
    point = ord(character)
    return f"\\u{point:04x}" if point < 0x10000 else f"\\U{point:08x}"
