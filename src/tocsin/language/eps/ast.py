"""Define the syntax tree of requests for notification, as frozen dataclasses.

A request has an event expression, a condition on the events of the expression, and a mode. An event expression consists
of these nodes:

    Occurs ── All (&) ── Either (||) ── Then (;) ── Times (TimesEq, TimesDf)
    Moment, Period, After: timers, which are events without attributes

`leaves` yields the single events of an expression from left to right. Each of these events is a *role*, which is a name
for one event of a match.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum

from tocsin.errors import Span
from tocsin.events.types import EventType, Kind
from tocsin.language.siddhi.ast import Query
from tocsin.language.syntax.ast import Expression, Pattern, Rule, no_span

DAY_US = 86_400_000_000
WINDOW_US = DAY_US
"""The default detection window of a request, in microseconds."""


class Mode(StrEnum):
    """How the events of a request are combined to matches: in all ways, or as in one of Snoop's contexts."""

    GENERIC = "generic"
    RECENT = "recent"
    CHRONOLOGICAL = "chronological"
    CONTINUOUS = "continuous"
    CUMULATIVE = "cumulative"


@dataclass(frozen=True, slots=True)
class Occurs:
    """The occurrence of one event that matches a pattern."""

    pattern: Pattern
    span: Span | None = no_span()


@dataclass(frozen=True, slots=True)
class Moment:
    """A timer that fires once, at a fixed time."""

    at_us: int
    alias: str | None = None
    span: Span | None = no_span()


@dataclass(frozen=True, slots=True)
class Period:
    """A timer that fires at multiples of `every_us` after `start_us`. The default of `start_us` is 1970-01-01.

    The timer starts with the first event that its request reads. If a request reads no events except timers, its period
    needs `start_us`, and the timer starts at this time.
    """

    every_us: int
    start_us: int | None = None
    alias: str | None = None
    span: Span | None = no_span()


@dataclass(frozen=True, slots=True)
class After:
    """A timer that fires `delay_us` after each occurrence of the event expression `event`."""

    event: EventExpression
    delay_us: int
    alias: str | None = None
    span: Span | None = no_span()


@dataclass(frozen=True, slots=True)
class All:
    """The expression `A & B & …`, which occurs when all operands have occurred in any order."""

    operands: tuple[EventExpression, ...]
    span: Span | None = no_span()


@dataclass(frozen=True, slots=True)
class Either:
    """The expression `A || B || …`, which occurs when any one operand occurs."""

    operands: tuple[EventExpression, ...]
    span: Span | None = no_span()


@dataclass(frozen=True, slots=True)
class Then:
    """The expression `A ; B`: the last event of A is earlier than the last event of B."""

    left: EventExpression
    right: EventExpression
    span: Span | None = no_span()


@dataclass(frozen=True, slots=True)
class Times:
    """A repetition: `TimesEq(n, A, attr)` if `same` is true, else `TimesDf(n, A, attr)`.

    It occurs with n events of A. In `TimesEq` their values of the attribute are equal, in `TimesDf` they are distinct.
    """

    count: int
    pattern: Pattern
    attribute: str
    same: bool
    span: Span | None = no_span()


Timer = Moment | Period | After
EventExpression = Occurs | Moment | Period | After | All | Either | Then | Times


@dataclass(frozen=True, slots=True)
class Request:
    """A request for notification. Its `name` identifies it, and is the type of the composite events that it defines."""

    name: str
    expression: EventExpression
    condition: tuple[Expression, ...] = ()
    window_us: int = WINDOW_US
    """The detection window Σ (µs): the maximum age of the events of a match, relative to the last of these events."""
    mode: Mode = Mode.GENERIC
    notification: str | None = None
    span: Span | None = no_span()
    source: str | None = field(default=None, compare=False, repr=False, kw_only=True)
    """The text in which the spans are positions."""

    @property
    def emits(self) -> EventType:
        """The type of the composite events that the request defines, with the text of `notify` as an attribute."""
        return EventType(self.name, (("notification", Kind.STRING),) if self.notification is not None else ())

    @property
    def uses(self) -> tuple[str, ...]:
        """The distinct names of the event types that the request reads. Types of timers are not included."""
        return tuple(dict.fromkeys(pattern.type for pattern in _patterns(self.expression)))


@dataclass(frozen=True, slots=True)
class RequestTimer:
    """A timer of a request, with the type of the events that the timer produces."""

    type: str
    timer: Timer
    height: int
    """How many `After` timers are nested in the timer, including itself. A moment or a period has height 0."""


def request_timers(request: Request) -> tuple[RequestTimer, ...]:
    """Return the distinct timers of a request. Each timer comes after the timers in its own event expression."""
    timers: dict[str, RequestTimer] = {}

    def visit(node: EventExpression) -> int:
        highest = 0
        for leaf in leaves(node):
            if isinstance(leaf.node, Occurs | Times):
                continue
            height = 1 + visit(leaf.node.event) if isinstance(leaf.node, After) else 0
            type = timer_type(leaf.node, request.name)
            timers.setdefault(type, RequestTimer(type, leaf.node, height))
            highest = max(highest, height)
        return highest

    visit(request.expression)
    return tuple(timers.values())


def awaited(request: Request, timer: After) -> Request:
    """Return the part of `request` that starts `timer`: a request for the event expression that the timer waits for."""
    return replace(request, expression=timer.event, condition=(), notification=None)


def owned(request: Request) -> tuple[tuple[str, str], ...]:
    """Return which event types a request and its timers read, as pairs of (reader, type).

    The reader is the name of the request, or the type of a timer that waits for an event expression.
    """
    pairs: list[tuple[str, str]] = []
    parts = [(request.name, request.expression)]
    parts += [(c.type, c.timer.event) for c in request_timers(request) if isinstance(c.timer, After)]
    for consumer, expression in parts:
        pairs += dict.fromkeys((consumer, leaf_type(leaf, request.name)) for leaf in leaves(expression))
    return tuple(pairs)


Statement = Rule | Request | Query
"""A statement of a text: a rule, a request or a query."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """A single event of an event expression, with its role in a match."""

    role: str
    node: Occurs | Times | Timer
    number: int = 0
    """The index of the event in its repetition (`Times`), or 0."""


def children(node: EventExpression) -> tuple[EventExpression, ...]:
    """Return the operands of an expression. A timer has none, not even the expression that it waits for."""
    if isinstance(node, All | Either):
        return node.operands
    return (node.left, node.right) if isinstance(node, Then) else ()


def leaves(node: EventExpression) -> Iterator[Leaf]:
    """Yield the single events of an expression, from left to right."""
    match node:
        case Occurs(pattern):
            yield Leaf(pattern.role, node)
        case Times(count, pattern):
            for number in range(count):
                yield Leaf(pattern.role, node, number)
        case Moment() | Period() | After():
            yield Leaf(node.alias or timer_name(node), node)
        case _:
            for child in children(node):
                yield from leaves(child)


def _patterns(node: EventExpression) -> Iterator[Pattern]:
    if isinstance(node, Occurs | Times):
        yield node.pattern
    for child in (node.event,) if isinstance(node, After) else children(node):
        yield from _patterns(child)


def leaf_type(leaf: Leaf, request: str) -> str:
    """Return the event type of a leaf of the request with the name `request`."""
    node = leaf.node
    return node.pattern.type if isinstance(node, Occurs | Times) else timer_type(node, request)


_TIMER = re.compile(r"(?:at|every)\(.*\) of [A-Za-z0-9_]+\Z", re.DOTALL)
OF = " of "
"""The text between the timer and the name of its request, in the type of the timer's events."""
WITHIN = "\0"
"""The text between a type and its owner, in the name of a type that only one operator or interest has."""


def timer_type(timer: Timer, request: str) -> str:
    """Return the type of the events of `timer`. It has the name of the request that the timer belongs to."""
    return timer_name(timer) + OF + request


def shown_type(type: str) -> str:
    """Return the name of a type as users know it, without the request of a timer or the operator of a type.

    >>> shown_type("every(1 h) of Report"), shown_type("Smoke")
    ('every(1 h)', 'Smoke')
    """
    return type.rpartition(OF)[0] if timer_owner(type) else type.partition(WITHIN)[0]


def timer_owner(type: str) -> str | None:
    """Return the name of the request that a timer belongs to, given the type of the timer's events.

    Return None if `type` is not the type of a timer.
    """
    return type.rpartition(OF)[2] if _TIMER.match(type) else None


def timer_name(timer: Timer) -> str:
    """Return the timer as text, without its alias."""
    from tocsin.language.eps.text import print_timer

    return print_timer(timer)
