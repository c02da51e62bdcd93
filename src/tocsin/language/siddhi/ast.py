"""Define the syntax tree of SiddhiQL queries, as frozen dataclasses.

A query has an input, the values that it selects, and an output stream. There are three kinds of input:

    StreamSource   S[…]#window.time(1 min)[…]            one stream, optionally with a window
    Join           S#window.… as a join T#window.… as b  two streams
    Chain          every e1=A[…] -> e2=B[…] within 1 min a pattern; with commas instead of arrows, a sequence

A *role* is the name of an input event in the query, such as `e1`. Expressions are the nodes of `syntax.ast`, with these
conventions:

- Aggregates are in `Query.aggregates`. The expressions of `select` refer to an aggregate by a `Parameter` with the name
  `Call.name`, such as `avg(price)`.
- If a step has several events, `e1[0].price` and `e1[last-1].price` are attributes of the roles `e1[0]` and
  `e1[last-1]`. `indexed` splits such a role.
- `x is null` becomes `not x = x`, because a comparison with null is false. `e2 is null` tests the `ts` of e2.
- The operator of a division is `//`, which truncates towards zero for two integers. `%` is the remainder of this
  division.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from tocsin.errors import Span
from tocsin.events.types import EventType
from tocsin.language.syntax.ast import Attribute, Expression, Pattern, no_span


class Extent(StrEnum):
    """The type of a window. Its size is a number of events or a time, and it slides or has batches."""

    LENGTH = "length"
    LENGTH_BATCH = "lengthBatch"
    TIME = "time"
    TIME_BATCH = "timeBatch"

    @property
    def timed(self) -> bool:
        return self in (Extent.TIME, Extent.TIME_BATCH)

    @property
    def batched(self) -> bool:
        return self in (Extent.LENGTH_BATCH, Extent.TIME_BATCH)


@dataclass(frozen=True, slots=True)
class Window:
    """A window, such as `#window.length(5)`. Its size is in events or, if `extent` is timed, in microseconds."""

    extent: Extent
    size: int
    span: Span | None = no_span()


@dataclass(frozen=True, slots=True)
class StreamSource:
    """A stream as the input of a query.

    `pattern` has the tests before the window, and `after` the tests after the window. Without a window, an event
    expires immediately.
    """

    pattern: Pattern
    window: Window | None = None
    after: tuple[Expression, ...] = ()
    tables: tuple[str, ...] = ()
    """The names of the tables of filters such as `[… in foo]`.

    Tables are not supported: the cost of such a query can be estimated, but the query cannot run.
    """
    span: Span | None = no_span()

    @property
    def role(self) -> str:
        return self.pattern.role


class Side(StrEnum):
    """A side of a join, for example the side whose events are emitted even without a partner (`left outer join`)."""

    NEITHER = "inner"
    LEFT = "left"
    RIGHT = "right"
    BOTH = "full"


@dataclass(frozen=True, slots=True)
class Join:
    """A join of two streams.

    An event that enters or leaves the window of one side is combined with all events in the window of the other side.
    """

    left: StreamSource
    right: StreamSource
    on: tuple[Expression, ...] = ()
    outer: Side = Side.NEITHER
    triggers: Side = Side.BOTH
    """The sides whose events look for partners. With `unidirectional`, this is only one side."""
    span: Span | None = no_span()


@dataclass(frozen=True, slots=True)
class Step:
    """A state that matches from `least` to `most` events, such as `e1=A[…]` or `e1=A[…]<2:5>`.

    If `most` is None, the number of events has no upper limit.
    """

    pattern: Pattern
    least: int = 1
    most: int | None = 1
    span: Span | None = no_span()

    @property
    def single(self) -> bool:
        return self.least == self.most == 1


@dataclass(frozen=True, slots=True)
class AbsentState:
    """A state in which no event of a pattern occurs, such as `not A[…] for 5 sec`.

    As an operand of `and`, the state has no duration. It ends when the other operand matches.
    """

    pattern: Pattern
    duration_us: int | None = None
    span: Span | None = no_span()


@dataclass(frozen=True, slots=True)
class Pair:
    """A state with two operands: `e1=A and e2=B`, in any order, if `both` is true, else `e1=A or e2=B`."""

    left: Step | AbsentState
    right: Step | AbsentState
    both: bool
    span: Span | None = no_span()


State = Step | AbsentState | Pair


@dataclass(frozen=True, slots=True)
class Every:
    """States in `every (…)`. Whenever they are complete, they start to match again from the first of them."""

    states: tuple[State, ...]
    span: Span | None = no_span()


@dataclass(frozen=True, slots=True)
class Chain:
    """The consecutive states of a pattern or of a sequence.

    An event that does not fit the next state is skipped in a pattern, but it ends a sequence.
    """

    parts: tuple[State | Every, ...]
    sequence: bool = False
    within_us: int | None = None
    span: Span | None = no_span()

    @property
    def states(self) -> tuple[State, ...]:
        """The states of the chain, including the states in `every (…)`."""
        return tuple(state for part in self.parts for state in (part.states if isinstance(part, Every) else (part,)))

    @property
    def leaves(self) -> tuple[Step | AbsentState, ...]:
        """The steps and absent states of the chain, from left to right. A pair is replaced by its two operands."""
        return tuple(
            leaf
            for state in self.states
            for leaf in ((state.left, state.right) if isinstance(state, Pair) else (state,))
        )


Input = StreamSource | Join | Chain


class Summary(StrEnum):
    """The function of an aggregate."""

    SUM = "sum"
    AVG = "avg"
    MIN = "min"
    MAX = "max"
    COUNT = "count"
    STD_DEV = "stdDev"


@dataclass(frozen=True, slots=True)
class Call:
    """An aggregate, such as `avg(price * 2)`. Only `count()` needs no argument."""

    function: Summary
    argument: Expression | None = None
    span: Span | None = no_span()

    @property
    def name(self) -> str:
        """The call as text, which is also the name of the parameters that refer to the aggregate."""
        from tocsin.language.siddhi.printer import print_call

        return print_call(self)


class Output(StrEnum):
    """Which rows a query emits: for events that arrive, for events that leave their window, or for both."""

    CURRENT = "current"
    EXPIRED = "expired"
    ALL = "all"


@dataclass(frozen=True, slots=True)
class Query:
    """A SiddhiQL query.

    `name` is the name in `@info(name='…')`. Without it, the queries of a text are called `query1`, `query2`, … by their
    positions.
    """

    name: str
    emits: EventType
    """The type of the output stream. An attribute whose kind is unknown is a double."""
    input: Input
    select: tuple[tuple[str, Expression], ...]
    """The selected values with their names, in order. `*` is already replaced by all attributes."""
    aggregates: tuple[Call, ...] = ()
    """The distinct aggregates in `select`."""
    group_by: tuple[Attribute, ...] = ()
    having: tuple[Expression, ...] = ()
    """The tests that an output row must meet. Attributes in these tests are names of `select`."""
    output: Output = Output.CURRENT
    span: Span | None = no_span()
    source: str | None = field(default=None, compare=False, repr=False, kw_only=True)
    """The text in which the spans are positions."""

    @property
    def patterns(self) -> tuple[Pattern, ...]:
        """The patterns of the input of the query, from left to right."""
        match self.input:
            case StreamSource(pattern):
                return (pattern,)
            case Join(left, right):
                return (left.pattern, right.pattern)
            case Chain():
                return tuple(leaf.pattern for leaf in self.input.leaves)

    @property
    def sources(self) -> tuple[StreamSource, ...]:
        """The streams of the input of the query. A chain has no `StreamSource`, so the result is empty."""
        match self.input:
            case StreamSource():
                return (self.input,)
            case Join(left, right):
                return (left, right)
            case Chain():
                return ()

    @property
    def uses(self) -> tuple[str, ...]:
        """The distinct names of the event types that the query reads."""
        return tuple(dict.fromkeys(pattern.type for pattern in self.patterns))


_INDEXED = re.compile(r"(\w+)\[(?:(\d+)|last(?:-(\d+))?)\]")


def indexed(role: str) -> tuple[str, int | None]:
    """Split a role such as `e1[0]` into its name and the index of the event.

    Index 0 is the first event, and -1 is the last event. Without an index in the role, the index is None.

    >>> indexed("e1[last-1]"), indexed("e1[0]"), indexed("e1")
    (('e1', -2), ('e1', 0), ('e1', None))
    """
    match = _INDEXED.fullmatch(role)
    if match is None:
        return role, None
    name, first, last = match.groups()
    return name, int(first) if first is not None else -1 - int(last or 0)


def expressions(query: Query) -> Iterator[Expression]:
    """Yield all expressions of a query except the tests in its patterns."""
    for source in query.sources:
        yield from source.after
    if isinstance(query.input, Join):
        yield from query.input.on
    yield from (value for _, value in query.select)
    yield from (call.argument for call in query.aggregates if call.argument is not None)
    yield from query.group_by
    yield from query.having
