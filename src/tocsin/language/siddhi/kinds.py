"""What kind of value does an expression of a query have? As Siddhi has it, with `float` taken for a double.

int with int is an int, with long a long, with double a double, also for division. Where nothing is known of an
attribute, its kind is None, which fits everything.
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
"""What is known of an attribute or an aggregate."""


def kind_of(expression: Expression, known: Known) -> Kind | None:
    """The kind of an expression, or a `RuleError` if it makes no sense."""
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
    """Fails if an expression is neither true nor false."""
    kind = kind_of(expression, known)
    if kind not in (Kind.BOOL, None):
        hint = "Compare it with something: == != < <= > >="
        raise RuleError(f"a condition must be true or false, this is {_a(kind)}", span=expression.span, hint=hint)


def kind_of_call(call: Call, known: Known) -> Kind | None:
    """The kind of an aggregate, or a `RuleError` if there is no such aggregate of such values."""
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
