"""Parse and print requests for notification.

    request   Cycle
    on        st as s ; rt as r
    if        s.proc = r.proc and s.msg = r.msg
    within    10 min
    notify    "a message came back"

The grammar is eps.lark, followed by terms.lark, which has the parts that the languages share.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache
from typing import Any

from tocsin.errors import RuleError, Span, nearest
from tocsin.events.types import EventType, Kind
from tocsin.language.eps.ast import (
    DAY_US,
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
    children,
    leaves,
)
from tocsin.language.syntax import expressions
from tocsin.language.syntax.ast import And, Attribute, Expression, Literal, Parameter, Pattern, Program
from tocsin.language.syntax.expressions import print_expression, print_pattern, print_window
from tocsin.language.syntax.lexer import Token
from tocsin.language.syntax.names import quoted
from tocsin.language.syntax.parsing import Declared, Parser, TermReader, declared, expression_of, grammar, reading

TIMES_MAX = 64
"""The maximum number of events of a repetition."""
EVENTS_MAX = 100
"""The maximum number of events of a request. It is limited because binding compares each pair of events."""


def parse(text: str) -> Program:
    """Parse a text into its requests and declared event types.

    >>> parse('request Both on A & B').rules[0].expression.operands[1].pattern.type
    'B'
    """
    with reading(text):
        types, requests = _automaton().read(text, "program")
    return Program(types, requests, source=text)


@cache
def _automaton() -> Parser:
    return Parser(grammar("eps"), _Reader(), ("program",))


class _Reader(TermReader):
    """Builds the nodes of requests, with one method for each production of eps.lark."""

    def program(self, items: list[Declared | Request]) -> tuple[tuple[EventType, ...], tuple[Request, ...]]:
        requests = [item for item in items if isinstance(item, Request)]
        names = Counter(request.name for request in requests)
        for request in requests:
            if names[request.name] > 1:
                raise RuleError(f"two requests are called '{request.name}'", span=request.span)
        return declared([item for item in items if isinstance(item, Declared)]), tuple(requests)

    def request(self, children: list[Any]) -> Request:
        word, name, _, expression, condition, window_us, mode, notification = children
        check(expression, condition)
        end = expression.span.end
        span = Span(word.start_pos, end)
        return Request(name.value, expression, condition, window_us, mode, notification, span=span)

    def occurs(self, children: list[Pattern]) -> Occurs:
        (pattern,) = children
        return Occurs(pattern, span=pattern.span)

    def either(self, children: list[list[EventExpression]]) -> Either:
        return Either(tuple(children[0]), span=_over(children[0]))

    def both(self, children: list[list[EventExpression]]) -> All:
        return All(tuple(children[0]), span=_over(children[0]))

    def eithers(self, children: list[Any]) -> list[EventExpression]:
        first, second = children
        return [*first, second] if isinstance(first, list) else children

    boths = eithers

    def sequence(self, children: list[EventExpression]) -> Then:
        left, right = children
        return Then(left, right, span=_over(children))

    def grouped(self, children: list[Any]) -> EventExpression:
        expression: EventExpression = children[1]
        return expression

    def times(self, children: list[Any]) -> Times:
        word, digits, pattern, attribute, end = children
        span = Span(word.start_pos, end.end_pos)
        count = expressions.whole(digits.value, digits.span)
        if not 2 <= count <= TIMES_MAX:
            raise RuleError(f"a repetition has 2 to {TIMES_MAX} events", span=digits.span)
        return Times(count, pattern, attribute.value, word.value.lower() == "timeseq", span=span)

    def after(self, children: list[Any]) -> After:
        word, expression, delay_us, end = children
        return After(expression, delay_us, span=Span(word.start_pos, end.end_pos))

    def moment(self, children: list[Any]) -> Moment:
        word, at_us, end = children
        return Moment(at_us, span=Span(word.start_pos, end.end_pos))

    def every(self, children: list[Any]) -> Period:
        word, every_us, *start, end = children
        return Period(every_us, start[0] if start else None, span=Span(word.start_pos, end.end_pos))

    def named_timer(self, children: list[Any]) -> EventExpression:
        timer, _, name = children
        named: EventExpression = replace(timer, alias=name.value, span=Span(timer.span.start, name.end_pos))
        return named

    def length(self, children: list[Token]) -> int:
        number, unit = children
        return expressions.window(number.value, unit.value, Span(number.start_pos, unit.end_pos))

    def calendar_length(self, children: list[Token]) -> int:
        years, months, days, hours, minutes, seconds = _numbers(children)
        span = Span(children[0].start_pos, children[-1].end_pos)
        if years or months:
            hint = "Write it in days: 0/0/30 0:00:00."
            raise RuleError("a month or a year has no fixed length", span=span, hint=hint)
        length_us = days * DAY_US + ((hours * 60 + minutes) * 60 + seconds) * 1_000_000
        return expressions.checked_window(length_us, span)

    def calendar_moment(self, children: list[Token]) -> int:
        span = Span(children[0].start_pos, children[-1].end_pos)
        try:
            moment = datetime(*_numbers(children), tzinfo=UTC)  # type: ignore[arg-type,misc]
        except (ValueError, OverflowError):
            hint = "Write year/month/day hours:minutes:seconds."
            raise RuleError("there is no such date or time", span=span, hint=hint) from None
        return int(expressions.timestamp(moment, span).value)

    def iso(self, children: list[Token]) -> int:
        (quoted,) = children
        moment = expressions.moment(expressions.unescape(quoted.value, quoted.span), quoted.span)
        return int(expressions.timestamp(moment, quoted.span).value)

    def condition(self, children: list[Any]) -> tuple[Expression, ...]:
        if not children:
            return ()
        return tuple(expressions.conjuncts([expressions.checked(expression_of(children[1]))]))

    def window(self, children: list[Token]) -> int:
        if not children:
            return WINDOW_US
        _, number, unit = children
        return expressions.window(number.value, unit.value, Span(number.start_pos, unit.end_pos))

    def mode(self, children: list[Token]) -> Mode:
        return Mode(children[1].value.lower()) if children else Mode.GENERIC

    def notify(self, children: list[Token]) -> str | None:
        return expressions.unescape(children[1].value, children[1].span) if children else None


def _numbers(tokens: list[Token]) -> list[int]:
    """Return the six numbers of a date or duration such as `0/0/2 0:01:05`."""
    for slash in (tokens[1], tokens[3]):
        if slash.value != "/":
            raise RuleError(f"unexpected '{slash.value}'; expected '/'", span=slash.span)
    return [expressions.whole(token.value, token.span) for token in tokens if token.type == "INT"]


def _over(parts: list[EventExpression]) -> Span:
    assert parts[0].span
    assert parts[-1].span
    return Span(parts[0].span.start, parts[-1].span.end)


def _check_size(expression: EventExpression) -> None:
    """Raise if an expression has too many events, or if it is nested too deeply for recursive functions."""
    events = 0
    waiting: list[tuple[EventExpression, int]] = [(expression, 1)]
    while waiting:
        node, depth = waiting.pop()
        events += node.count if isinstance(node, Times) else not children(node)
        if events > EVENTS_MAX:
            hint = "Split it into several requests."
            raise RuleError(f"a request has at most {EVENTS_MAX} events", span=expression.span, hint=hint)
        if depth > expressions.DEPTH_MAX:
            raise RuleError(f"this request is nested deeper than {expressions.DEPTH_MAX} levels", span=expression.span)
        inner = (node.event,) if isinstance(node, After) else children(node)
        waiting += ((child, depth + 1) for child in inner)


def check(expression: EventExpression, condition: tuple[Expression, ...]) -> None:
    """Raise if a request with this event expression and this condition is not valid.

    Two events cannot have the same name, and the condition can use only names of events in the expression.
    """
    _check_size(expression)
    roles: dict[str, Any] = {}
    for leaf in leaves(expression):
        if leaf.number:
            continue
        if leaf.role in roles:
            message = f"two events of this request are called {leaf.role}"
            raise RuleError(message, span=leaf.node.span, hint=f"Name one of them: … as {leaf.role.lower()}2.")
        roles[leaf.role] = leaf.node
    for leaf in leaves(expression):
        if isinstance(leaf.node, Occurs | Times):
            for test in leaf.node.pattern.constraints:
                _check_terms(test, None)
        if isinstance(leaf.node, After):
            check(leaf.node.event, ())
    for test in condition:
        _check_terms(test, roles)


def _check_terms(expression: Expression, roles: dict[str, Any] | None) -> None:
    for node in expressions.walk(expression):
        if isinstance(node, Parameter):
            hint = "Name the events and compare their attributes: if a.x = b.x."
            raise RuleError("a request has no parameters", span=node.span, hint=hint)
        if not isinstance(node, Attribute):
            continue
        if roles is None:
            if node.role is not None:
                message = f"a test inside an event cannot use {node.role}.{node.name}"
                raise RuleError(message, span=node.span, hint="Put it after 'if'.")
            continue
        if node.role is None:
            raise RuleError(f"'{node.name}' needs the name of its event", span=node.span, hint="Write name.attribute.")
        if node.role not in roles:
            message = f"the request has no event called {node.role}"
            raise RuleError(message, span=node.span, hint=nearest(node.role, roles))
        event = roles[node.role]
        if isinstance(event, Times) and not (event.same and node.name == event.attribute):
            message = f"{node.role} has {event.count} events, so {node.name} is not one value"
            common = f"The common value of its events is {node.role}.{event.attribute}." if event.same else None
            raise RuleError(message, span=node.span, hint=common)
        if isinstance(event, Moment | Period | After) and node.name not in ("ts", "seq", "id"):
            raise RuleError(f"a timer has no attribute {node.name}", span=node.span, hint="It has a ts.")


_EITHER, _ALL, _THEN, _ATOM = range(4)


def print_request(request: Request) -> str:
    """Return a request as text. Clauses with default values are left out."""
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
    """Return an event expression as text, with the necessary parentheses only.

    >>> from tocsin.language.syntax.ast import Pattern
    >>> a, b, c = (Occurs(Pattern(name)) for name in "ABC")
    >>> print_events(Then(All((a, b)), c))
    '(A() & B()) ; C()'
    """
    return _printed(expression, _EITHER)


def print_timer(timer: Timer) -> str:
    """Return a timer as text, without its alias."""
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
