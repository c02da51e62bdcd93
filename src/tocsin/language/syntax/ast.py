"""What a rule says, whichever language said it: frozen data with no behaviour but printing.

A rule binds a composite event to one *anchor* event and looks back from it. `Span`s point into the rule's text for
error messages and take no part in equality, so that a parsed, a printed-and-parsed and a built rule are equal.
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
    """A field for the place in the text, which takes no part in equality."""
    return field(default=None, compare=False, repr=False, kw_only=True)


@dataclass(frozen=True, slots=True)
class Literal:
    """A constant. A timestamp is int microseconds."""

    value: str | int | float | bool
    kind: Kind
    span: Span | None = no_span()


@dataclass(frozen=True, slots=True)
class Attribute:
    """An attribute of the event that a constraint is about (`role` None), or of a named role (in `where`)."""

    name: str
    role: str | None = None
    span: Span | None = no_span()


@dataclass(frozen=True, slots=True)
class Parameter:
    """`$name`, kept without the dollar."""

    name: str
    span: Span | None = no_span()


@dataclass(frozen=True, slots=True)
class Negative:
    """Unary minus of something that is not a literal."""

    operand: Expression
    span: Span | None = no_span()


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """`+ - * /`. Division always gives a double."""

    operator: str
    left: Expression
    right: Expression
    span: Span | None = no_span()


@dataclass(frozen=True, slots=True)
class Comparison:
    """`= != < <= > >=`; false if either side is null."""

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
    """Events of a type that meet every constraint. A subscription is a pattern without parameters.

    A top-level `and` is split: `A(x=1 and y=2)` and `A(x=1, y=2)` are one pattern of two constraints.
    """

    type: str
    constraints: tuple[Expression, ...] = ()
    alias: str | None = None
    span: Span | None = no_span()

    @property
    def role(self) -> str:
        """The name under which the rule speaks of this event."""
        return self.alias or self.type


@dataclass(frozen=True, slots=True)
class Within:
    """`within W from X`: events that precede X and are less than W older."""

    window_us: int
    origin: str
    span: Span | None = no_span()


@dataclass(frozen=True, slots=True)
class Between:
    """`between X and Y`: events that X precedes and that precede Y."""

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
    """`each B(…) within …`; `3-last B(…) …` has count 3. `each` has count 0."""

    policy: Policy
    pattern: Pattern
    scope: Scope
    count: int
    span: Span | None = no_span()


@dataclass(frozen=True, slots=True)
class Negation:
    """`not C(…) within …`."""

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
    """`bound operator value`, as in `45 < Avg(…)`: the bound stands on the left."""

    bound: Expression
    operator: str
    span: Span | None = no_span()


@dataclass(frozen=True, slots=True)
class Aggregate:
    """`45 < $t = Avg(D(…).attr within …)`. `Count` may go without an attribute."""

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
    """One event definition rule. `name` is the word after `rule`, or the type it defines."""

    name: str
    emits: EventType
    anchor: Pattern
    clauses: tuple[Clause, ...] = ()
    where: tuple[tuple[str, Expression], ...] = ()
    consuming: tuple[str, ...] = ()
    span: Span | None = no_span()
    source: str | None = field(default=None, compare=False, repr=False, kw_only=True)
    """The text that the spans point into."""

    @property
    def roles(self) -> tuple[Pattern, ...]:
        """The anchor and the selected patterns, in the order they are named."""
        return (self.anchor, *(clause.pattern for clause in self.clauses if isinstance(clause, Selection)))

    @property
    def uses(self) -> tuple[str, ...]:
        """The event types that it looks at."""
        return (self.anchor.type, *(clause.pattern.type for clause in self.clauses))


@dataclass(frozen=True, slots=True)
class Program:
    """All that one text says: declared event types and rules.

    An empty `types` declares nothing and allows everything.
    """

    types: tuple[EventType, ...] = ()
    rules: tuple[Statement, ...] = ()
    """Rules and requests for notification."""
    interests: tuple[Interest, ...] = ()
    """Queries that move, made of these rules."""
    source: str | None = field(default=None, compare=False, repr=False)
