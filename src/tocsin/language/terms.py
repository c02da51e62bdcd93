"""How is each value and expression of a rule written down, so that equal meanings of a text are equal objects?

The parser and the builder make their nodes here: an integer is an int if it fits 32 bits, else a long; a minus before a
number is part of the number; `and` in `and` is flat. Where a text or a value has no such form, a `RuleError` says so.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta

from tocsin.errors import RuleError, Span, nearest
from tocsin.events.types import UNITS_US, Kind
from tocsin.language.rules import (
    And,
    Arithmetic,
    Comparison,
    Expression,
    Literal,
    Negative,
    Not,
    Or,
)

INTS = range(-(1 << 31), 1 << 31)
LONGS = range(-(1 << 63), 1 << 63)
"""What 32 and 64 bits can hold."""

DEPTH_MAX = 100
"""How deep an expression can be nested: what reads expressions may call itself for each level."""

UNITS = UNITS_US | {
    spelling: UNITS_US[unit]
    for unit, spellings in {
        "s": "secs second seconds",
        "min": "mins minute minutes",
        "h": "hour hours",
        "d": "day days",
    }.items()
    for spelling in spellings.split()
}
"""Every spelling of a unit of time, in microseconds."""

FLIPPED = {"=": "=", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
"""What an operator becomes when its sides change places."""

# A shorter text has no number beyond 64 bits and cannot be nested too deeply.
_LENGTH_DANGEROUS = 19

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_TOO_FINE = re.compile(r"[.,][0-9]{7}")
_ESCAPE = re.compile(r"\\(x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4}|U[0-9A-Fa-f]{8}|.)", re.DOTALL)
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "\\": "\\", '"': '"', "'": "'"}


def integer(value: int, span: Span | None = None) -> Literal:
    """An integer in its kind. `checked` looks at its range: 2⁶³ is allowed as long as a minus can come."""
    return Literal(value, Kind.INT if value in INTS else Kind.LONG, span=span)


def double(value: float, span: Span | None = None) -> Literal:
    """A finite double; −0.0 is 0.0."""
    if not math.isfinite(value):
        raise RuleError("this number is too large for a double", span=span)
    return Literal(value + 0.0, Kind.DOUBLE, span=span)


def whole(digits: str, span: Span | None = None) -> int:
    """The number that the digits write.

    >>> whole("0042")
    42
    """
    if len(digits) > 19 and len(digits.lstrip("0")) > 19:
        raise RuleError("this number does not fit 64 bits", span=span)
    return int(digits.lstrip("0") or "0")


def string(value: str, span: Span | None = None) -> Literal:
    """A text of whole characters: half of a surrogate pair is none."""
    if any("\ud800" <= character <= "\udfff" for character in value):
        raise RuleError("a string is made of Unicode characters", span=span)
    return Literal(value, Kind.STRING, span=span)


def unescape(quoted: str, span: Span) -> str:
    """The text that a quoted string stands for."""

    def character(match: re.Match[str]) -> str:
        code = match[1]
        if len(code) == 1:
            if code in _ESCAPED:
                return _ESCAPED[code]
        elif (point := int(code[1:], 16)) <= 0x10FFFF and not 0xD800 <= point <= 0xDFFF:
            return chr(point)
        start = span.start + 1 + match.start()
        raise RuleError(
            f"no such escape: {match[0]}",
            span=Span(start, start + len(match[0])),
            hint=r"Known here: \n \t \r \0 \\ \" \' \x41 \u0041 \U00000041.",
        )

    return _ESCAPE.sub(character, quoted[1:-1])


def timestamp(moment: datetime, span: Span | None = None) -> Literal:
    """A moment as int microseconds; without an offset it is UTC."""
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return Literal((aware - _EPOCH) // _MICROSECOND, Kind.TIMESTAMP, span=span)


def moment(text: str, span: Span | None = None) -> datetime:
    """The moment that an ISO 8601 text names."""
    try:
        if _TOO_FINE.search(text):
            raise ValueError(text)
        return datetime.fromisoformat(text)
    except ValueError:
        raise RuleError(
            f"'{text}' is not a timestamp", span=span, hint='Write timestamp("2024-01-31T12:30:00.250Z").'
        ) from None


def window(number: str, unit: str, span: Span | None = None, unit_span: Span | None = None) -> int:
    """A length of time in microseconds.

    >>> window("1.5", "Min")
    90000000
    """
    worth = UNITS.get(unit.lower())
    if worth is None:
        raise RuleError(f"unknown unit '{unit}'", span=unit_span or span, hint=nearest(unit, UNITS_US))
    before, _, after = number.partition(".")
    after = after.rstrip("0")
    if not (before + after).isdigit() or len(after) > 19:
        raise RuleError("a window is a whole number or a decimal fraction of its unit", span=span)
    length_us, rest = divmod(whole(before + after, span) * worth, int(10 ** len(after)))
    if rest:
        raise RuleError("a window is a whole number of microseconds", span=span)
    return checked_window(length_us, span)


def checked_window(window_us: int, span: Span | None = None) -> int:
    """The window, if it is longer than nothing and fits 64 bits."""
    if window_us <= 0:
        raise RuleError("a window must be longer than nothing", span=span)
    if window_us not in LONGS:
        raise RuleError("this window does not fit 64 bits of microseconds", span=span)
    return window_us


def minus(operand: Expression, span: Span | None = None) -> Expression:
    """Unary minus; of a number, the negative number."""
    if not isinstance(operand, Literal):
        return Negative(operand, span=span)
    value = operand.value
    if isinstance(value, float):
        return double(-value, span)
    if operand.kind.integral:
        return integer(-int(value), span)
    raise RuleError(f"a {operand.kind} has no minus", span=span)


def conjuncts(operands: Iterable[Expression]) -> Iterator[Expression]:
    """The operands, with those of any `and` among them in its place."""
    for operand in operands:
        if isinstance(operand, And):
            yield from operand.operands
        else:
            yield operand


def conjunction(joined: Iterable[Expression], span: Span | None = None) -> And:
    return And(tuple(conjuncts(joined)), span=span)


def disjunction(joined: Iterable[Expression], span: Span | None = None) -> Or:
    operands: list[Expression] = []
    for operand in joined:
        operands += operand.operands if isinstance(operand, Or) else (operand,)
    return Or(tuple(operands), span=span)


def children(node: Expression) -> tuple[Expression, ...]:
    """The expressions that an expression is made of."""
    if isinstance(node, Arithmetic | Comparison):
        return (node.left, node.right)
    if isinstance(node, And | Or):
        return node.operands
    if isinstance(node, Not | Negative):
        return (node.operand,)
    return ()


def walk(expression: Expression) -> Iterator[Expression]:
    """The expression and all that it is made of."""
    waiting = [expression]
    while waiting:
        node = waiting.pop()
        yield node
        waiting += reversed(children(node))


def checked(expression: Expression) -> Expression:
    """The expression, unless a number in it is beyond 64 bits or it is nested deeper than `DEPTH_MAX`."""
    if expression.span and expression.span.end - expression.span.start < _LENGTH_DANGEROUS:
        return expression
    for node in walk(expression):
        if isinstance(node, Literal) and node.kind.integral and node.value not in LONGS:
            raise RuleError("this number does not fit 64 bits", span=node.span)
    level = [expression]
    for _ in range(DEPTH_MAX):
        level = [child for node in level for child in children(node)]
        if not level:
            return expression
    raise RuleError(f"this expression is nested deeper than {DEPTH_MAX} levels", span=expression.span)
