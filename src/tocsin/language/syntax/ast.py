"""Define the syntax tree of rules, as frozen dataclasses.

A rule defines a composite event by one *anchor*, which is the event that completes the rule, and by earlier events. A
*role* is the name of one of these events in the rule. A *scope* is the time in which a clause looks for events.

Each node has a `Span`, which is its position in the text for error messages. Spans do not affect equality, so that a
parsed rule equals the same rule from the builder.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from tocsin.errors import Span
from tocsin.events.types import EventType, Kind

if TYPE_CHECKING:
    from tocsin.language.eps.ast import Statement
    from tocsin.language.mcep.ast import Interest


def no_span() -> Span | None:
    """Return the dataclass field for the position of a node in the text. The field does not affect equality."""
    return field(default=None, compare=False, repr=False, kw_only=True)


@dataclass(frozen=True, slots=True)
class Literal:
    """A constant. The value of a timestamp is an int, in microseconds since 1970-01-01 UTC."""

    value: str | int | float | bool
    kind: Kind
    span: Span | None = no_span()


@dataclass(frozen=True, slots=True)
class Attribute:
    """An attribute of the event with the name `role`. Without `role`, the event is the one that the condition tests."""

    name: str
    role: str | None = None
    span: Span | None = no_span()


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter, such as `$x`. Its name has no dollar sign."""

    name: str
    span: Span | None = no_span()


@dataclass(frozen=True, slots=True)
class Negative:
    """The unary minus. Its operand is never a literal, because a negative number is one literal."""

    operand: Expression
    span: Span | None = no_span()


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """An operation with `+`, `-`, `*` or `/`. The result of `/` is always a double."""

    operator: str
    left: Expression
    right: Expression
    span: Span | None = no_span()


@dataclass(frozen=True, slots=True)
class Comparison:
    """A comparison with `=`, `!=`, `<`, `<=`, `>` or `>=`. It is false if either operand is null."""

    operator: str
    left: Expression
    right: Expression
    span: Span | None = no_span()


@dataclass(frozen=True, slots=True)
class Not:
    operand: Expression
    span: Span | None = no_span()


@dataclass(frozen=True, slots=True)
class And:
    operands: tuple[Expression, ...]
    span: Span | None = no_span()


@dataclass(frozen=True, slots=True)
class Or:
    operands: tuple[Expression, ...]
    span: Span | None = no_span()


Expression = Literal | Attribute | Parameter | Negative | Arithmetic | Comparison | Not | And | Or


@dataclass(frozen=True, slots=True)
class Pattern:
    """A description of events: their type, and the constraints that they all meet.

    A subscription is a pattern without parameters. A top-level `and` is split into its operands, so that `A(x=1 and
    y=2)` and `A(x=1, y=2)` are equal patterns with two constraints.
    """

    type: str
    constraints: tuple[Expression, ...] = ()
    alias: str | None = None
    span: Span | None = no_span()

    @property
    def role(self) -> str:
        """The name of the event in the rule: the alias, or else the type."""
        return self.alias or self.type


@dataclass(frozen=True, slots=True)
class Within:
    """The scope `within W from X`: the events that precede X by less than W."""

    window_us: int
    origin: str
    span: Span | None = no_span()


@dataclass(frozen=True, slots=True)
class Between:
    """The scope `between X and Y`: the events that come after X and before Y."""

    start: str
    end: str
    span: Span | None = no_span()


Scope = Within | Between


class Policy(StrEnum):
    EACH = "each"
    FIRST = "first"
    LAST = "last"


@dataclass(frozen=True, slots=True)
class Selection:
    """A clause that selects events, such as `each B(…) within …` (`count` 0) or `3-last B(…) …` (`count` 3)."""

    policy: Policy
    pattern: Pattern
    scope: Scope
    count: int
    span: Span | None = no_span()


@dataclass(frozen=True, slots=True)
class Negation:
    """The clause `not C(…) within …`, which requires that no such event is in the scope."""

    pattern: Pattern
    scope: Scope
    span: Span | None = no_span()


class Function(StrEnum):
    AVG = "Avg"
    SUM = "Sum"
    MIN = "Min"
    MAX = "Max"
    COUNT = "Count"


@dataclass(frozen=True, slots=True)
class Test:
    """A test of the value of an aggregate. The bound is the left operand, as in `45 < Avg(…)`."""

    bound: Expression
    operator: str
    span: Span | None = no_span()


@dataclass(frozen=True, slots=True)
class Aggregate:
    """A clause such as `45 < $t = Avg(D(…).attr within …)`.

    It computes a function over the events in a scope. The parameter and the test are optional, and `Count` needs no
    attribute.
    """

    function: Function
    pattern: Pattern
    attribute: str | None
    scope: Scope
    parameter: str | None = None
    test: Test | None = None
    span: Span | None = no_span()


Clause = Selection | Negation | Aggregate


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule that defines the composite events of one type.

    `name` is the name after the word `rule` in the text, or else it is based on the type.
    """

    name: str
    emits: EventType
    anchor: Pattern
    clauses: tuple[Clause, ...] = ()
    where: tuple[tuple[str, Expression], ...] = ()
    consuming: tuple[str, ...] = ()
    span: Span | None = no_span()
    source: str | None = field(default=None, compare=False, repr=False, kw_only=True)
    """The text in which the spans are positions."""

    @property
    def roles(self) -> tuple[Pattern, ...]:
        """The patterns of the events that have a name: the anchor and then the selections, in the order of the text."""
        return (self.anchor, *(clause.pattern for clause in self.clauses if isinstance(clause, Selection)))

    @property
    def uses(self) -> tuple[str, ...]:
        """The names of the event types that the rule reads, possibly repeated."""
        return (self.anchor.type, *(clause.pattern.type for clause in self.clauses))


@dataclass(frozen=True, slots=True)
class Program:
    """The content of a text: the declared event types and the statements.

    If `types` is empty, events of all types are allowed.
    """

    types: tuple[EventType, ...] = ()
    rules: tuple[Statement, ...] = ()
    """The rules, requests for notification and queries of the text."""
    interests: tuple[Interest, ...] = ()
    """The interests (moving queries) of the text, which use its rules."""
    source: str | None = field(default=None, compare=False, repr=False)
