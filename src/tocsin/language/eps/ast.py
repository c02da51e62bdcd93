"""What a request for notification says: an event expression, a condition on what occurred, and how to combine.

    Occurs ── All (&) ── Either (||) ── Then (;) ── Times (TimesEq, TimesDf)
    Moment, Period, After: timers, which are occurrences without attributes

Frozen data, as `rules` has it. `leaves` numbers the occurrences from left to right: they are the roles of a match.
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
"""The detection window of a request that does not say one."""


class Mode(StrEnum):
    """How instances are combined: all of them, or as one of Snoop's contexts has it."""

    GENERIC = "generic"
    RECENT = "recent"
    CHRONOLOGICAL = "chronological"
    CONTINUOUS = "continuous"
    CUMULATIVE = "cumulative"


@dataclass(frozen=True, slots=True)
class Occurs:
    """An event of a type, perhaps with tests of its own."""

    pattern: Pattern
    span: Span | None = no_span()


@dataclass(frozen=True, slots=True)
class Moment:
    """One moment."""

    at_us: int
    alias: str | None = None
    span: Span | None = no_span()


@dataclass(frozen=True, slots=True)
class Period:
    """Every so often, counted from `start_us` or else from 1970: from the first event of its request on.

    A request that has no other events than timers needs a start, and its timer ticks from there on.
    """

    every_us: int
    start_us: int | None = None
    alias: str | None = None
    span: Span | None = no_span()


@dataclass(frozen=True, slots=True)
class After:
    """So long after each occurrence of something."""

    event: EventExpression
    delay_us: int
    alias: str | None = None
    span: Span | None = no_span()


@dataclass(frozen=True, slots=True)
class All:
    """`A & B & …`: all of them, in any order."""

    operands: tuple[EventExpression, ...]
    span: Span | None = no_span()


@dataclass(frozen=True, slots=True)
class Either:
    """`A || B || …`: any one of them."""

    operands: tuple[EventExpression, ...]
    span: Span | None = no_span()


@dataclass(frozen=True, slots=True)
class Then:
    """`A ; B`: the last event of A is earlier than the last of B."""

    left: EventExpression
    right: EventExpression
    span: Span | None = no_span()


@dataclass(frozen=True, slots=True)
class Times:
    """`TimesEq(n, A, attr)` (`same`) and `TimesDf(n, A, attr)`: n events, of one value or of n values."""

    count: int
    pattern: Pattern
    attribute: str
    same: bool
    span: Span | None = no_span()


Timer = Moment | Period | After
EventExpression = Occurs | Moment | Period | After | All | Either | Then | Times


@dataclass(frozen=True, slots=True)
class Request:
    """A request for notification. `name` is its id, and the type of the composite event that a notification is."""

    name: str
    expression: EventExpression
    condition: tuple[Expression, ...] = ()
    window_us: int = WINDOW_US
    """The detection window Σ: no event of a notification is more than that older than the last one."""
    mode: Mode = Mode.GENERIC
    notification: str | None = None
    span: Span | None = no_span()
    source: str | None = field(default=None, compare=False, repr=False, kw_only=True)
    """The text that the spans point into."""

    @property
    def emits(self) -> EventType:
        """The composite event."""
        return EventType(self.name, (("notification", Kind.STRING),) if self.notification is not None else ())

    @property
    def uses(self) -> tuple[str, ...]:
        """The event types that it looks at."""
        return tuple(dict.fromkeys(pattern.type for pattern in _patterns(self.expression)))


@dataclass(frozen=True, slots=True)
class Clock:
    """A timer of a request at work: the type of its events, and how many timers wait for each other up to it."""

    type: str
    timer: Timer
    height: int
    """Of a moment or a period 0, else one more than that of the highest timer in what it waits for."""


def clocks(request: Request) -> tuple[Clock, ...]:
    """The timers of a request, each once, those that others wait for first."""
    found: dict[str, Clock] = {}

    def visit(node: EventExpression) -> int:
        highest = 0
        for leaf in leaves(node):
            if isinstance(leaf.node, Occurs | Times):
                continue
            height = 1 + visit(leaf.node.event) if isinstance(leaf.node, After) else 0
            type = timer_type(leaf.node, request.name)
            found.setdefault(type, Clock(type, leaf.node, height))
            highest = max(highest, height)
        return highest

    visit(request.expression)
    return tuple(found.values())


def awaited(request: Request, timer: After) -> Request:
    """The request whose notifications start a timer."""
    return replace(request, expression=timer.event, condition=(), notification=None)


def owned(request: Request) -> tuple[tuple[str, str], ...]:
    """What a request can use up: (what uses it, type), where what uses it is the request or one of its timers."""
    found: list[tuple[str, str]] = []
    parts = [(request.name, request.expression)]
    parts += [(c.type, c.timer.event) for c in clocks(request) if isinstance(c.timer, After)]
    for user, expression in parts:
        found += dict.fromkeys((user, leaf_type(leaf, request.name)) for leaf in leaves(expression))
    return tuple(found)


Statement = Rule | Request | Query
"""What a text can say."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """One event that a notification can be made of."""

    role: str
    node: Occurs | Times | Timer
    number: int = 0
    """Of the events of a `Times`, which one."""


def children(node: EventExpression) -> tuple[EventExpression, ...]:
    """The expressions that an expression combines. What a timer waits for is none of them."""
    if isinstance(node, All | Either):
        return node.operands
    return (node.left, node.right) if isinstance(node, Then) else ()


def leaves(node: EventExpression) -> Iterator[Leaf]:
    """The occurrences in an expression, from left to right."""
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
    """The type of the events that can stand at a leaf of a request."""
    node = leaf.node
    return node.pattern.type if isinstance(node, Occurs | Times) else timer_type(node, request)


_TIMER = re.compile(r"(?:at|every)\(.*\) of [A-Za-z0-9_]+\Z", re.DOTALL)
OF = " of "
"""Stands between a timer and the request whose it is."""
WITHIN = "\0"
"""Stands between a type and the operator of an interest whose it is."""


def timer_type(timer: Timer, request: str) -> str:
    """The type of a timer's events. Each request has timers of its own."""
    return timer_name(timer) + OF + request


def shown_type(type: str) -> str:
    """A type as people see it: a timer is what it is, whose ever it is.

    >>> shown_type("every(1 h) of Report"), shown_type("Smoke")
    ('every(1 h)', 'Smoke')
    """
    return type.rpartition(OF)[0] if timer_owner(type) else type.partition(WITHIN)[0]


def timer_owner(type: str) -> str | None:
    """The request whose timer an event of that type comes from."""
    return type.rpartition(OF)[2] if _TIMER.match(type) else None


def timer_name(timer: Timer) -> str:
    """The timer as text, without a name."""
    from tocsin.language.eps.text import print_timer

    return print_timer(timer)
