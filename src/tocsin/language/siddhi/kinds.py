"""Infer the kinds of SiddhiQL expressions by the rules of Siddhi, except that `float` is a double.

The result of arithmetic, including division, has the larger kind of its operands: int and int give an int, int and long
a long, and int and double a double. An attribute of an unknown stream has the kind None, which is allowed everywhere.
"""

from __future__ import annotations

from collections.abc import Callable

from tocsin.errors import RuleError
from tocsin.events.types import Kind
from tocsin.language.siddhi.ast import Call, Summary
from tocsin.language.syntax.ast import (
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

Known = Callable[[Attribute | Parameter], Kind | None]
"""A function that returns the kind of an attribute or an aggregate, or None if the kind is unknown."""


def kind_of(expression: Expression, known: Known) -> Kind | None:
    """Return the kind of an expression. Raise if operands in the expression have wrong kinds."""
    match expression:
        case Literal():
            return expression.kind
        case Attribute() | Parameter():
            return known(expression)
        case Negative(operand):
            return _number(operand, known, "-")
        case Arithmetic(operator, left, right):
            sign = operator.replace("//", "/")
            kinds = (_number(left, known, sign), _number(right, known, sign))
            if Kind.DOUBLE in kinds:
                return Kind.DOUBLE
            if None in kinds:
                return None
            return Kind.LONG if Kind.LONG in kinds else Kind.INT
        case Comparison():
            _compare(expression, kind_of(expression.left, known), kind_of(expression.right, known))
        case Not(operand):
            check_truth(operand, known)
        case And(operands) | Or(operands):
            for operand in operands:
                check_truth(operand, known)
    return Kind.BOOL


def check_truth(expression: Expression, known: Known) -> None:
    """Raise if an expression is known not to be a boolean."""
    kind = kind_of(expression, known)
    if kind not in (Kind.BOOL, None):
        hint = "Compare it with something: == != < <= > >="
        raise RuleError(f"a condition must be true or false, this is {_a(kind)}", span=expression.span, hint=hint)


def kind_of_call(call: Call, known: Known) -> Kind | None:
    """Return the kind of the value of an aggregate. Raise if the argument of the aggregate has a wrong kind."""
    kind = kind_of(call.argument, known) if call.argument is not None else None
    if call.function == Summary.COUNT:
        return Kind.LONG
    if kind is not None and not kind.numeric:
        raise RuleError(f"'{call.function}' needs numbers, this is {_a(kind)}", span=call.span)
    if call.function in (Summary.AVG, Summary.STD_DEV):
        return Kind.DOUBLE
    if call.function == Summary.SUM and kind == Kind.INT:
        return Kind.LONG
    return kind


def _number(operand: Expression, known: Known, sign: str) -> Kind | None:
    kind = kind_of(operand, known)
    if kind is not None and not kind.numeric:
        raise RuleError(f"'{sign}' needs numbers, this is {_a(kind)}", span=operand.span)
    return kind


def _compare(node: Comparison, left: Kind | None, right: Kind | None) -> None:
    sign = "==" if node.operator == "=" else node.operator
    if left is None or right is None:
        return
    if left != right and not (left.numeric and right.numeric):
        raise RuleError(f"{_a(left)} cannot be compared with {_a(right)}", span=node.span)
    if not left.numeric and left != Kind.TIMESTAMP and node.operator not in ("=", "!="):
        raise RuleError(f"'{sign}' needs numbers, this is {_a(left)}", span=node.span, hint="Use == or !=.")


def _a(kind: Kind | None) -> str:
    return f"an {kind}" if kind == Kind.INT else f"a {kind}"
