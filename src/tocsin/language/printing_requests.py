"""How is a request for notification written as text? `eps.parse` gives the request back."""

from __future__ import annotations

from tocsin.events.types import Kind
from tocsin.language.names import quoted
from tocsin.language.printing import print_expression, print_pattern, print_window
from tocsin.language.requests import (
    WINDOW_US,
    After,
    All,
    Either,
    EventExpression,
    Mode,
    Moment,
    Occurs,
    Period,
    Request,
    Then,
    Timer,
    Times,
)
from tocsin.language.rules import And, Literal

_EITHER, _ALL, _THEN, _ATOM = range(4)


def print_request(request: Request) -> str:
    """A request as text; what is as usual is not said."""
    lines = [f"request   {request.name}", f"on        {print_events(request.expression)}"]
    if request.condition:
        whole = request.condition[0] if len(request.condition) == 1 else And(request.condition)
        lines.append(f"if        {print_expression(whole)}")
    if request.window_us != WINDOW_US:
        lines.append(f"within    {print_window(request.window_us)}")
    if request.mode != Mode.GENERIC:
        lines.append(f"mode      {request.mode}")
    if request.notification is not None:
        lines.append(f"notify    {print_expression(Literal(request.notification, Kind.STRING))}")
    return "\n".join(lines)


def print_events(expression: EventExpression) -> str:
    """An event expression with no more parentheses than it needs.

    >>> from tocsin.language.rules import Pattern
    >>> a, b, c = (Occurs(Pattern(name)) for name in "ABC")
    >>> print_events(Then(All((a, b)), c))
    '(A() & B()) ; C()'
    """
    return _printed(expression, _EITHER)


def print_timer(timer: Timer) -> str:
    """A timer as text, without its name."""
    match timer:
        case Moment(at_us):
            return f"at({_moment(at_us)})"
        case Period(every_us, None):
            return f"every({print_window(every_us)})"
        case Period(every_us, start_us):
            assert start_us is not None
            return f"every({print_window(every_us)} from {_moment(start_us)})"
        case After(event, delay_us):
            return f"at({print_events(event)}, {print_window(delay_us)})"


def _printed(node: EventExpression, level: int) -> str:
    text, own = _text(node)
    return text if own >= level else f"({text})"


def _text(node: EventExpression) -> tuple[str, int]:
    match node:
        case Occurs(pattern):
            return print_pattern(pattern), _ATOM
        case Times(count, pattern, attribute, same):
            return f"{'TimesEq' if same else 'TimesDf'}({count}, {print_pattern(pattern)}, {quoted(attribute)})", _ATOM
        case Either(operands):
            return " || ".join(_printed(operand, _ALL) for operand in operands), _EITHER
        case All(operands):
            return " & ".join(_printed(operand, _THEN) for operand in operands), _ALL
        case Then(left, right):
            return f"{_printed(left, _THEN)} ; {_printed(right, _ATOM)}", _THEN
        case Moment() | Period() | After():
            return print_timer(node) + (f" as {quoted(node.alias)}" if node.alias else ""), _ATOM


def _moment(us: int) -> str:
    return print_expression(Literal(us, Kind.TIMESTAMP)).removeprefix("timestamp(").removesuffix(")")
