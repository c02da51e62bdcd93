"""What a SiddhiQL query says: where its events come from, what it selects of them, and the stream it puts that into.

    Source   S[…]#window.time(1 min)[…]            one stream, perhaps through a window
    Join     S#window.… as a join T#window.… as b  two of them
    Chain    every e1=A[…] -> e2=B[…] within 1 min a pattern; with commas for arrows, a sequence

Frozen data, as `rules` has it, with the same expressions. What SiddhiQL has besides:

- An aggregate stands in `Query.aggregates`, and the expressions of `select` speak of it as a `Parameter` with the name
  `Call.name`, as in `avg(price)`.
- `e1[0].price` and `e1[last-1].price`, of a step that takes several events, are attributes of the roles `e1[0]` and
  `e1[last-1]`; `indexed` takes such a role apart.
- `x is null` is `not x = x`: a comparison with null is false. `e2 is null` asks that of the `ts` of e2.
- Division is `//`, of two integers an integer, rounded towards zero; `%` is its remainder.
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
    """What a window is measured in, and whether it slides or fills up and empties."""

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
    """`#window.length(5)`: `size` is a number of events or, if the extent is timed, of microseconds."""

    extent: Extent
    size: int
    span: Span | None = no_span()


@dataclass(frozen=True, slots=True)
class Source:
    """Events of a stream that meet the tests before the window, the window, and the tests after it.

    Without a window an event is gone as soon as it was looked at.
    """

    pattern: Pattern
    window: Window | None = None
    after: tuple[Expression, ...] = ()
    tables: tuple[str, ...] = ()
    """What `… in foo` asks for. There are no tables: such a query can be read and costed, and is an error when run."""
    span: Span | None = no_span()

    @property
    def role(self) -> str:
        return self.pattern.role


class Side(StrEnum):
    """Which side of a join comes out alone if it finds no partner (`left outer join`, …)."""

    NEITHER = "inner"
    LEFT = "left"
    RIGHT = "right"
    BOTH = "full"


@dataclass(frozen=True, slots=True)
class Join:
    """An event that comes into, or leaves, the window of one side meets all that the other side's window holds."""

    left: Source
    right: Source
    on: tuple[Expression, ...] = ()
    outer: Side = Side.NEITHER
    triggers: Side = Side.BOTH
    """Whose events look for partners: `unidirectional` leaves that to one side."""
    span: Span | None = no_span()


@dataclass(frozen=True, slots=True)
class Step:
    """`e1=A[…]`; `e1=A[…]<2:5>` takes 2 to 5 events, without `most` any number."""

    pattern: Pattern
    least: int = 1
    most: int | None = 1
    span: Span | None = no_span()

    @property
    def single(self) -> bool:
        return self.least == self.most == 1


@dataclass(frozen=True, slots=True)
class Absence:
    """`not A[…] for 5 sec`; beside `and` it has no time: until the other one came."""

    pattern: Pattern
    duration_us: int | None = None
    span: Span | None = no_span()


@dataclass(frozen=True, slots=True)
class Pair:
    """`e1=A and e2=B` (`both`), in any order, or `e1=A or e2=B`."""

    left: Step | Absence
    right: Step | Absence
    both: bool
    span: Span | None = no_span()


State = Step | Absence | Pair


@dataclass(frozen=True, slots=True)
class Every:
    """`every (…)`: begins anew whenever it is complete."""

    states: tuple[State, ...]
    span: Span | None = no_span()


@dataclass(frozen=True, slots=True)
class Chain:
    """States one after another: events between them are skipped in a pattern and end a sequence."""

    parts: tuple[State | Every, ...]
    sequence: bool = False
    within_us: int | None = None
    span: Span | None = no_span()

    @property
    def states(self) -> tuple[State, ...]:
        """The states, without their `every`."""
        return tuple(state for part in self.parts for state in (part.states if isinstance(part, Every) else (part,)))

    @property
    def leaves(self) -> tuple[Step | Absence, ...]:
        """The steps and absences, with those of pairs, from left to right."""
        return tuple(
            leaf
            for state in self.states
            for leaf in ((state.left, state.right) if isinstance(state, Pair) else (state,))
        )


Input = Source | Join | Chain


class Summary(StrEnum):
    """What an aggregate makes of the values in a window."""

    SUM = "sum"
    AVG = "avg"
    MIN = "min"
    MAX = "max"
    COUNT = "count"
    STD_DEV = "stdDev"


@dataclass(frozen=True, slots=True)
class Call:
    """`avg(price * 2)`; `count()` may go without an argument."""

    function: Summary
    argument: Expression | None = None
    span: Span | None = no_span()

    @property
    def name(self) -> str:
        """The parameter by which expressions speak of it: the call as text."""
        from tocsin.language.siddhi.printer import print_call

        return print_call(self)


class Output(StrEnum):
    """Which rows come out: those of events that arrive, of events that leave their window, or both."""

    CURRENT = "current"
    EXPIRED = "expired"
    ALL = "all"


@dataclass(frozen=True, slots=True)
class Query:
    """One query. `name` is what `@info(name='…')` says, or `query1`, `query2`, … by its place in the text."""

    name: str
    emits: EventType
    """The stream that it fills. Where the text does not tell the kind of an attribute, it is a double."""
    input: Input
    select: tuple[tuple[str, Expression], ...]
    """Names and values, in order; `*` is written out."""
    aggregates: tuple[Call, ...] = ()
    """What `select` speaks of, each once."""
    group_by: tuple[Attribute, ...] = ()
    having: tuple[Expression, ...] = ()
    """Tests on a row: attributes are names of `select`."""
    output: Output = Output.CURRENT
    span: Span | None = no_span()
    source: str | None = field(default=None, compare=False, repr=False, kw_only=True)
    """The text that the spans point into."""

    @property
    def patterns(self) -> tuple[Pattern, ...]:
        """The events that it looks at, from left to right."""
        match self.input:
            case Source(pattern):
                return (pattern,)
            case Join(left, right):
                return (left.pattern, right.pattern)
            case Chain():
                return tuple(leaf.pattern for leaf in self.input.leaves)

    @property
    def sources(self) -> tuple[Source, ...]:
        """Its windowed streams; a pattern has none."""
        match self.input:
            case Source():
                return (self.input,)
            case Join(left, right):
                return (left, right)
            case Chain():
                return ()

    @property
    def uses(self) -> tuple[str, ...]:
        """The event types that it looks at."""
        return tuple(dict.fromkeys(pattern.type for pattern in self.patterns))


_INDEXED = re.compile(r"(\w+)\[(?:(\d+)|last(?:-(\d+))?)\]")


def indexed(role: str) -> tuple[str, int | None]:
    """A role's name and which of its events is meant: 0 is the first, -1 the last, None where none is said.

    >>> indexed("e1[last-1]"), indexed("e1[0]"), indexed("e1")
    (('e1', -2), ('e1', 0), ('e1', None))
    """
    match = _INDEXED.fullmatch(role)
    if match is None:
        return role, None
    name, first, last = match.groups()
    return name, int(first) if first is not None else -1 - int(last or 0)


def expressions(query: Query) -> Iterator[Expression]:
    """All expressions of a query but the tests of its patterns."""
    for source in query.sources:
        yield from source.after
    if isinstance(query.input, Join):
        yield from query.input.on
    yield from (value for _, value in query.select)
    yield from (call.argument for call in query.aggregates if call.argument is not None)
    yield from query.group_by
    yield from query.having
