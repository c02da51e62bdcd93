"""Build expressions in canonical form, and print rules as TESLA text.

The parsers and the builder create all expressions with the functions of this module, so that expressions with the same
meaning are equal. An integer that fits 32 bits is an int, and any other integer is a long. A minus before a number is
part of the number. Nested `and` is flattened, and so is nested `or`. Invalid values raise a `RuleError`.

A rule is printed with one clause per line, as in the papers, and with the necessary parentheses only. `parse` converts
the text back to an equal rule.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta

from tocsin.errors import RuleError, Span, nearest
from tocsin.events.types import UNITS_US, EventType, Kind
from tocsin.language.eps.ast import Request, Statement
from tocsin.language.siddhi.ast import Query
from tocsin.language.syntax.ast import (
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
from tocsin.language.syntax.names import quoted, quoted_type

_UNITS = (("d", 86_400_000_000), ("h", 3_600_000_000), ("min", 60_000_000), ("s", 1_000_000), ("ms", 1_000), ("us", 1))
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_ESCAPES = {"\\": r"\\", '"': r"\"", "\n": r"\n", "\r": r"\r", "\t": r"\t"}

_OR, _AND, _NOT, _COMPARISON, _SUM, _PRODUCT, _MINUS, _ATOM = range(1, 9)


def print_program(program: Program) -> str:
    """Return a program as text, with its event types, then its rules, then its interests.

    >>> from tocsin.language.tesla.text import parse
    >>> print(print_program(parse("define Hot() from Temp(value>45) event Temp(value: double)")), end="")
    event Temp(value: double)
    <BLANKLINE>
    define    Hot()
    from      Temp(value>45)
    """
    if any(isinstance(rule, Query) for rule in program.rules):
        from tocsin.language.siddhi.printer import print_definition

        types = "\n".join(map(print_definition, program.types))
    else:
        types = "\n".join(f"event {print_type(event_type)}" for event_type in program.types)
    parts = [types] if types else []
    parts += [print_rule(rule) for rule in program.rules]
    if program.interests:
        from tocsin.language.mcep.text import print_interest

        parts += [print_interest(interest) for interest in program.interests]
    return "\n\n".join(parts) + "\n" if parts else ""


def print_type(event_type: EventType) -> str:
    """Return a type with its attributes as text, for example `Temp(value: double)`."""
    attributes = ", ".join(f"{quoted(name)}: {kind}" for name, kind in event_type.attributes)
    return f"{quoted_type(event_type.name)}({attributes})"


def print_rule(rule: Statement) -> str:
    """Return a rule, a request or a query as text.

    A rule begins with its name only if the name differs from the type that the rule defines.
    """
    if isinstance(rule, Query):
        from tocsin.language.siddhi.printer import print_query

        return print_query(rule)
    if isinstance(rule, Request):
        from tocsin.language.eps.text import print_request

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
    """Return a pattern or a subscription as text.

    >>> print_pattern(Pattern("Temp", (Comparison(">=", Attribute("value"), Literal(12, Kind.INT)),), "t"))
    'Temp(value>=12) as t'
    """
    alias = f" as {quoted(pattern.alias)}" if pattern.alias else ""
    return f"{quoted_type(pattern.type)}({', '.join(map(print_expression, pattern.constraints))}){alias}"


def print_expression(expression: Expression) -> str:
    """Return an expression as text, with the necessary parentheses only."""
    return _expression(expression, _OR)


def print_window(window_us: int) -> str:
    """Return the length of a window as text, in the largest unit that gives a whole number.

    >>> print_window(300_000_000)
    '5 min'
    """
    unit, worth = next((unit, worth) for unit, worth in _UNITS if window_us % worth == 0)
    return f"{window_us // worth} {unit}"


def print_clause(clause: Clause) -> str:
    """Return a clause of a rule as text, without the `and` before it."""
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
    """Return a scope as text, such as `within 5 min from Smoke`."""
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
    """Return the text of an expression, in parentheses if its precedence is lower than `level`."""
    text, own = _text(node)
    return text if own >= level else f"({text})"


def _text(node: Expression) -> tuple[str, int]:
    """Return the text of an expression and the precedence of its outermost operator."""
    match node:
        case Literal():
            return _literal(node), _ATOM
        case Parameter(name):
            return f"${name}", _ATOM
        case Attribute(name, role):
            return f"{quoted(role)}.{quoted(name)}" if role else quoted(name), _ATOM
        case Negative(operand):
            # Two minus signs would start a comment.
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


INTS = range(-(1 << 31), 1 << 31)
LONGS = range(-(1 << 63), 1 << 63)
"""The range of integers with 64 bits. `INTS` is the range with 32 bits."""

DEPTH_MAX = 100
"""The maximum depth of an expression. It is limited because functions over expressions are recursive."""

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
"""The length of each unit of time in microseconds, by the spelling of the unit."""

FLIPPED = {"=": "=", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
"""The operator that is equivalent to each comparison operator if the operands are swapped."""

# An expression with a shorter text cannot have an integer beyond 64 bits, and cannot be nested too deeply.
_LENGTH_DANGEROUS = 19

_MICROSECOND = timedelta(microseconds=1)
_TOO_FINE = re.compile(r"[.,][0-9]{7}")
_ESCAPE = re.compile(r"\\(x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4}|U[0-9A-Fa-f]{8}|.)", re.DOTALL)
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "\\": "\\", '"': '"', "'": "'"}


def integer(value: int, span: Span | None = None) -> Literal:
    """Return an integer literal.

    Integers beyond 64 bits are allowed here, because a minus before 2⁶³ makes it fit. `checked` rejects the others
    later.
    """
    return Literal(value, Kind.INT if value in INTS else Kind.LONG, span=span)


def double(value: float, span: Span | None = None) -> Literal:
    """Return a double literal. −0.0 becomes 0.0. Raise if `value` is not finite."""
    if not math.isfinite(value):
        raise RuleError("this number is too large for a double", span=span)
    return Literal(value + 0.0, Kind.DOUBLE, span=span)


def whole(digits: str, span: Span | None = None) -> int:
    """Return the integer that decimal digits stand for. Raise if it has more than 19 digits.

    >>> whole("0042")
    42
    """
    if len(digits) > 19 and len(digits.lstrip("0")) > 19:
        raise RuleError("this number does not fit 64 bits", span=span)
    return int(digits.lstrip("0") or "0")


def string(value: str, span: Span | None = None) -> Literal:
    """Return a string literal. Raise if `value` has lone surrogates."""
    if any("\ud800" <= character <= "\udfff" for character in value):
        raise RuleError("a string cannot have lone surrogates", span=span)
    return Literal(value, Kind.STRING, span=span)


def unescape(quoted: str, span: Span) -> str:
    """Return the value of a string literal from its text, which has quotes and escapes."""

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
            hint=r"Valid escapes: \n \t \r \0 \\ \" \' \x41 \u0041 \U00000041.",
        )

    return _ESCAPE.sub(character, quoted[1:-1])


def timestamp(moment: datetime, span: Span | None = None) -> Literal:
    """Return a timestamp literal in microseconds. A time without an offset is taken as UTC."""
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return Literal((aware - _EPOCH) // _MICROSECOND, Kind.TIMESTAMP, span=span)


def moment(text: str, span: Span | None = None) -> datetime:
    """Parse an ISO 8601 text to a time. Raise if it has parts of a microsecond."""
    try:
        if _TOO_FINE.search(text):
            raise ValueError(text)
        return datetime.fromisoformat(text)
    except ValueError:
        raise RuleError(
            f"'{text}' is not a timestamp", span=span, hint='Write timestamp("2024-01-31T12:30:00.250Z").'
        ) from None


def window(number: str, unit: str, span: Span | None = None, unit_span: Span | None = None) -> int:
    """Convert the length of a window, such as 5 min, to microseconds.

    >>> window("1.5", "Min")
    90000000
    """
    worth = UNITS.get(unit.lower())
    if worth is None:
        raise RuleError(f"unknown unit '{unit}'", span=unit_span or span, hint=nearest(unit, UNITS_US))
    before, _, after = number.partition(".")
    after = after.rstrip("0")
    if not (before + after).isdigit() or len(after) > 19:
        raise RuleError("a window must be a whole number or a decimal fraction of its unit", span=span)
    length_us, rest = divmod(whole(before + after, span) * worth, int(10 ** len(after)))
    if rest:
        raise RuleError("a window must be a whole number of microseconds", span=span)
    return checked_window(length_us, span)


def checked_window(window_us: int, span: Span | None = None) -> int:
    """Return `window_us`. Raise if `window_us` is not positive or does not fit 64 bits."""
    if window_us <= 0:
        raise RuleError("a window must be positive", span=span)
    if window_us not in LONGS:
        raise RuleError("this window does not fit 64 bits of microseconds", span=span)
    return window_us


def minus(operand: Expression, span: Span | None = None) -> Expression:
    """Return the unary minus of `operand`. If `operand` is a number, this is a literal with the negative number."""
    if not isinstance(operand, Literal):
        return Negative(operand, span=span)
    value = operand.value
    if isinstance(value, float):
        return double(-value, span)
    if operand.kind.integral:
        return integer(-int(value), span)
    raise RuleError(f"a {operand.kind} cannot be negated", span=span)


def conjuncts(operands: Iterable[Expression]) -> Iterator[Expression]:
    """Yield the operands. Instead of an operand that is an `and`, yield the operands of this `and`."""
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
    """Return the operands of an expression; a literal, an attribute or a parameter has none."""
    if isinstance(node, Arithmetic | Comparison):
        return (node.left, node.right)
    if isinstance(node, And | Or):
        return node.operands
    if isinstance(node, Not | Negative):
        return (node.operand,)
    return ()


def walk(expression: Expression) -> Iterator[Expression]:
    """Yield `expression` and all expressions in it, each before its operands."""
    waiting = [expression]
    while waiting:
        node = waiting.pop()
        yield node
        waiting += reversed(children(node))


def checked(expression: Expression) -> Expression:
    """Return `expression`. Raise if it has an integer beyond 64 bits, or if it is deeper than `DEPTH_MAX` levels."""
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
