"""Gives kinds to expressions: what may be compared, added and divided, and where an integer is made a double."""

from __future__ import annotations

from collections.abc import Callable

from tocsin.errors import RuleError, Span
from tocsin.events.types import Kind
from tocsin.language.rules import (
    And,
    Arithmetic,
    Attribute,
    Comparison,
    Expression,
    Literal,
    Negative,
    Not,
    Or,
    Parameter,
)
from tocsin.plans.expressions import Apply, Constant, Typed, commuted, comparison

Resolve = Callable[[Attribute | Parameter], Typed]


def typed(expression: Expression, resolve: Resolve) -> Typed:
    """The expression with kinds; `resolve` says what an attribute or a parameter stands for.

    Kinds that are not known yet (None) fit everything.
    """
    match expression:
        case Literal():
            return Constant(expression.value, expression.kind)
        case Attribute() | Parameter():
            return resolve(expression)
        case Comparison():
            left, right = typed(expression.left, resolve), typed(expression.right, resolve)
            return _comparison(expression, left, right)
        case And() | Or():
            operator = "and" if isinstance(expression, And) else "or"
            operands = tuple(truth(operand, resolve) for operand in expression.operands)
            return commuted(operator, operands, Kind.BOOL)
        case Not():
            return Apply("not", (truth(expression.operand, resolve),), Kind.BOOL)
        case Negative():
            operand = typed(expression.operand, resolve)
            _need_number(operand, expression.span, "-")
            integral = operand.kind is not None and operand.kind.integral
            return Apply("negative", (operand,), Kind.LONG if integral else operand.kind)
        case Arithmetic():
            return _arithmetic(expression, typed(expression.left, resolve), typed(expression.right, resolve))


def truth(expression: Expression, resolve: Resolve) -> Typed:
    """An expression that must be true or false. A bare boolean is compared with true, so that null counts as false."""
    result = typed(expression, resolve)
    if isinstance(result, Apply) and result.kind == Kind.BOOL:
        return result
    if result.kind not in (Kind.BOOL, None):
        message = f"a constraint must be true or false, this is {a(result.kind)}"
        raise RuleError(message, span=expression.span, hint="Compare it with something: = != < <= > >=")
    return comparison("=", result, Constant(True, Kind.BOOL))


def widened(expression: Typed, kind: Kind | None) -> Typed:
    """The expression as a double, if that is what is asked for and it is an integer."""
    if kind == Kind.DOUBLE and expression.kind is not None and expression.kind.integral:
        if isinstance(expression, Constant):
            return Constant(float(expression.value), Kind.DOUBLE)
        return Apply("double", (expression,), Kind.DOUBLE)
    return expression


def _comparison(node: Comparison, left: Typed, right: Typed) -> Typed:
    kinds = {left.kind, right.kind} - {None}
    if len(kinds) == 2 and not all(kind is not None and kind.numeric for kind in kinds):
        hint = None
        if Kind.TIMESTAMP in kinds:
            hint = 'Write a time as timestamp("2024-01-01T00:00:00Z").'
        raise RuleError(f"{a(left.kind)} cannot be compared with {a(right.kind)}", span=node.span, hint=hint)
    if kinds == {Kind.BOOL} and node.operator not in ("=", "!="):
        raise RuleError(f"booleans cannot be compared with {node.operator}", span=node.span, hint="Use = or !=.")
    if Kind.DOUBLE in kinds:
        left, right = widened(left, Kind.DOUBLE), widened(right, Kind.DOUBLE)
    return comparison(node.operator, left, right)


def _arithmetic(node: Arithmetic, left: Typed, right: Typed) -> Typed:
    kinds = (left.kind, right.kind)
    if Kind.TIMESTAMP in kinds and node.operator in "+-":
        return _time_arithmetic(node, left, right)
    _need_number(left, node.span, node.operator)
    _need_number(right, node.span, node.operator)
    if node.operator == "/" or Kind.DOUBLE in kinds:
        kind: Kind | None = Kind.DOUBLE
        left, right = widened(left, Kind.DOUBLE), widened(right, Kind.DOUBLE)
    else:
        kind = None if None in kinds else Kind.LONG
    if node.operator in "+*":
        return commuted(node.operator, (left, right), kind)
    return Apply(node.operator, (left, right), kind)


def _time_arithmetic(node: Arithmetic, left: Typed, right: Typed) -> Typed:
    if left.kind == right.kind == Kind.TIMESTAMP and node.operator == "-":
        return Apply("-", (left, right), Kind.LONG)
    times = (left.kind == Kind.TIMESTAMP) + (right.kind == Kind.TIMESTAMP)
    other = right if left.kind == Kind.TIMESTAMP else left
    if times == 2 or (other.kind is not None and not other.kind.integral):
        raise RuleError(f"{a(left.kind)} {node.operator} {a(right.kind)} has no meaning", span=node.span)
    if node.operator == "-" and other.kind is None:
        return Apply("-", (left, right), None if other is right else Kind.LONG)
    if node.operator == "-" and right.kind == Kind.TIMESTAMP:
        raise RuleError("a timestamp cannot be taken from a number", span=node.span)
    if node.operator == "+":
        return commuted("+", (left, right), Kind.TIMESTAMP)
    return Apply("-", (left, right), Kind.TIMESTAMP)


def _need_number(operand: Typed, span: Span | None, operator: str) -> None:
    if operand.kind is not None and not operand.kind.numeric:
        raise RuleError(f"'{operator}' needs numbers, this is {a(operand.kind)}", span=span)


def a(kind: Kind | None) -> str:
    """A kind with its article."""
    return f"an {kind}" if kind == Kind.INT else f"a {kind}"
