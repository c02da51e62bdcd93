"""Check the kinds of values in expressions, with a catalog of the known event types.

The operands of comparisons and of arithmetic must have matching kinds. Integers are converted to doubles where the
other operand is a double. A kind that is not known yet is accepted everywhere.

An event type in the catalog is *exact* if it is declared, has a table of its own, or is defined by a rule. All other
types share the columns of the tables that have a type column. These columns are unknown before the first events. So
rules are first checked with the known columns, and bound again later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tocsin.errors import RuleError, Span, nearest
from tocsin.events.types import FIELDS, HEADER, EventType, Kind
from tocsin.language.syntax.ast import (
    And,
    Arithmetic,
    Attribute,
    Comparison,
    Expression,
    Literal,
    Negative,
    Not,
    Or,
    Parameter,
)
from tocsin.plans.expressions import Apply, Constant, Typed, commuted, comparison

READABLE = "strings, numbers, booleans or times"
"""The kinds of columns that rules can read, as text for messages. Other columns are dropped."""


@dataclass(frozen=True, slots=True)
class Catalog:
    """The known event types and the kinds of their attributes.

    `types` are the exact types. `shared` has the kinds of the columns that all other types share. If `closed`, there
    are no other types.
    """

    types: Mapping[str, EventType] = field(default_factory=dict)
    shared: Mapping[str, Kind] = field(default_factory=dict)
    seen: Mapping[str, Mapping[str, Kind]] = field(default_factory=dict)
    """The kinds of attributes of `Event` objects, by type. The types may have further attributes."""
    empty: frozenset[str] = frozenset()
    """The names of columns without any value so far, whose kinds are unknown."""
    complete: bool = False
    """Whether `shared` has all shared columns, so that any other name is a mistake."""
    closed: bool = False
    by_kind: bool = False
    """Whether columns of matches are named `name:kind`, so that rules may give one name different kinds."""

    expects: bool = False
    """Whether a name of a header field means an attribute, for types that are not exact."""

    def check_type(self, name: str, span: Span | None) -> None:
        """Raise if no event can have the type `name`."""
        if self.closed and name not in self.types:
            raise RuleError(f"there is no event type {name}", span=span, hint=nearest(name, self.types))

    def field(self, type: str, name: str, span: Span | None = None) -> tuple[str, Kind | None]:
        """Return the field that `name` means for events of `type`, and its kind.

        The field is an attribute if the type has an attribute of this name, else a header field by its name in plans.
        """
        if name in HEADER and not self._has(type, name):
            if self.expects and type not in self.types:
                return name, None
            return FIELDS[name], HEADER[name]
        return name, self.kind(type, name, span)

    @property
    def blank(self) -> bool:
        """Whether the catalog has no columns of events yet."""
        return not (self.shared or self.seen or self.empty or self.complete)

    def _has(self, type: str, attribute: str) -> bool:
        """Return whether events of `type` have `attribute`. All types that are not exact have the same attributes."""
        exact = self.types.get(type)
        if exact is not None:
            return exact.kind(attribute) is not None
        seen = any(attribute in kinds for kinds in self.seen.values())
        return seen or attribute in self.shared or attribute in self.empty

    def kind(self, type: str, attribute: str, span: Span | None = None) -> Kind | None:
        """Return the kind of `attribute` in events of `type`; None if the kind is not known yet.

        Raise if the type has no such attribute.
        """
        exact = self.types.get(type)
        if exact is not None:
            kind = exact.kind(attribute)
            if kind is None:
                names = [name for name, _ in exact.attributes]
                if attribute in self.empty:
                    return None
                hint = nearest(attribute, names) or f"{type} has no attributes."
                raise RuleError(f"{type} has no attribute {attribute}", span=span, hint=hint)
            return kind
        kind = self.seen.get(type, {}).get(attribute) or self.shared.get(attribute)
        if kind is None and self.complete and attribute not in self.empty:
            message = f"{type} has no attribute {attribute}: the events have no such column of {READABLE}"
            raise RuleError(message, span=span, hint=nearest(attribute, self.shared))
        return kind

    def learned(
        self,
        shared: Mapping[str, Kind],
        by_type: Mapping[str, Mapping[str, Kind]],
        empty: frozenset[str],
        *,
        complete: bool,
    ) -> Catalog:
        """Return this catalog with the columns of a batch, or the same object if nothing is new.

        `shared`, `by_type`, `empty` and `complete` describe the batch, as in `ReadResult`. Known kinds do not change,
        because later batches are converted to these kinds.
        """
        new_shared = {name: kind for name, kind in shared.items() if name not in self.shared}
        types, seen = dict(self.types), dict(self.seen)
        for name, kinds in by_type.items():
            if name in self.types:
                continue
            known = {**kinds, **self.seen.get(name, {})}
            if complete:
                types[name] = EventType(name, tuple(known.items()))
            elif known != self.seen.get(name):
                seen[name] = known
        whole = self.complete or (complete and not by_type)
        empty |= self.empty
        if not new_shared and (types, seen, empty, whole) == (self.types, self.seen, self.empty, self.complete):
            return self
        return replace(self, types=types, shared={**self.shared, **new_shared}, seen=seen, empty=empty, complete=whole)

    def declaring(self, types: Iterable[EventType]) -> Catalog:
        """Return this catalog with the declared `types`, or the same object if nothing is new.

        Raise if a declaration contradicts another declaration or earlier events.
        """
        new = {type.name: type for type in types if self.types.get(type.name) != type}
        for name, type in new.items():
            if name in self.types:
                raise RuleError(f"{self.types[name]} is declared already, this declaration is {type}")
            for attribute, kind in self.seen.get(name, {}).items():
                if (declared := type.kind(attribute)) not in (kind, None):
                    raise RuleError(f"{attribute} of {name} is {kind} in earlier events, the declaration is {declared}")
        return self.with_types(new) if new else self

    def with_types(self, types: Mapping[str, EventType]) -> Catalog:
        """Return this catalog with additional exact `types`."""
        return replace(self, types={**self.types, **types})

    def as_data(self) -> dict[str, Any]:
        """Return this catalog as a dict that can be written as JSON."""
        return {
            "exact": {name: dict(type.attributes) for name, type in self.types.items()},
            "shared": dict(self.shared),
            "seen": {name: dict(kinds) for name, kinds in self.seen.items()},
            "empty": sorted(self.empty),
            "complete": self.complete,
            "closed": self.closed,
            "by_kind": self.by_kind,
        }

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Catalog:
        """Return the catalog that `as_data` converted to `data`."""

        def kinds(of: Mapping[str, str]) -> dict[str, Kind]:
            return {name: Kind(kind) for name, kind in of.items()}

        return cls(
            {name: EventType(name, tuple(kinds(one).items())) for name, one in data["exact"].items()},
            kinds(data["shared"]),
            {name: kinds(one) for name, one in data["seen"].items()},
            frozenset(data["empty"]),
            data["complete"],
            data["closed"],
            data.get("by_kind", False),
        )


Resolve = Callable[[Attribute | Parameter], Typed]


def typed(expression: Expression, resolve: Resolve) -> Typed:
    """Convert `expression` to a typed expression, and check the kinds of its operands.

    `resolve` returns the typed expression of an attribute or a parameter. A kind that is not known yet (None) is
    accepted everywhere.
    """
    match expression:
        case Literal():
            return Constant(expression.value, expression.kind)
        case Attribute() | Parameter():
            return resolve(expression)
        case Comparison():
            left, right = typed(expression.left, resolve), typed(expression.right, resolve)
            return _comparison(expression, left, right)
        case And() | Or():
            operator = "and" if isinstance(expression, And) else "or"
            operands = tuple(truth(operand, resolve) for operand in expression.operands)
            return commuted(operator, operands, Kind.BOOL)
        case Not():
            return Apply("not", (truth(expression.operand, resolve),), Kind.BOOL)
        case Negative():
            operand = typed(expression.operand, resolve)
            _need_number(operand, expression.span, "-")
            integral = operand.kind is not None and operand.kind.integral
            return Apply("negative", (operand,), Kind.LONG if integral else operand.kind)
        case Arithmetic():
            return _arithmetic(expression, typed(expression.left, resolve), typed(expression.right, resolve))


def truth(expression: Expression, resolve: Resolve) -> Typed:
    """Convert `expression` to a typed condition, and raise if its kind is not boolean.

    A boolean value that is not a comparison is compared with true, so that null counts as false.
    """
    result = typed(expression, resolve)
    if isinstance(result, Apply) and result.kind == Kind.BOOL:
        return result
    if result.kind not in (Kind.BOOL, None):
        message = f"a constraint must be true or false, this is {with_article(result.kind)}"
        raise RuleError(message, span=expression.span, hint="Compare it with something: = != < <= > >=")
    return comparison("=", result, Constant(True, Kind.BOOL))


def widened(expression: Typed, kind: Kind | None) -> Typed:
    """Convert `expression` to a double if it is an integer and `kind` is double; else return it unchanged."""
    if kind == Kind.DOUBLE and expression.kind is not None and expression.kind.integral:
        if isinstance(expression, Constant):
            return Constant(float(expression.value), Kind.DOUBLE)
        return Apply("double", (expression,), Kind.DOUBLE)
    return expression


def _comparison(node: Comparison, left: Typed, right: Typed) -> Typed:
    kinds = {left.kind, right.kind} - {None}
    if len(kinds) == 2 and not all(kind is not None and kind.numeric for kind in kinds):
        hint = None
        if Kind.TIMESTAMP in kinds:
            hint = 'Write a time as timestamp("2024-01-01T00:00:00Z").'
        raise RuleError(
            f"{with_article(left.kind)} cannot be compared with {with_article(right.kind)}", span=node.span, hint=hint
        )
    if kinds == {Kind.BOOL} and node.operator not in ("=", "!="):
        raise RuleError(f"booleans cannot be compared with {node.operator}", span=node.span, hint="Use = or !=.")
    if Kind.DOUBLE in kinds:
        left, right = widened(left, Kind.DOUBLE), widened(right, Kind.DOUBLE)
    return comparison(node.operator, left, right)


def _arithmetic(node: Arithmetic, left: Typed, right: Typed) -> Typed:
    kinds = (left.kind, right.kind)
    if Kind.TIMESTAMP in kinds and node.operator in "+-":
        return _time_arithmetic(node, left, right)
    _need_number(left, node.span, node.operator)
    _need_number(right, node.span, node.operator)
    if node.operator == "/" or Kind.DOUBLE in kinds:
        kind: Kind | None = Kind.DOUBLE
        left, right = widened(left, Kind.DOUBLE), widened(right, Kind.DOUBLE)
    else:
        kind = None if None in kinds else Kind.LONG
    if node.operator in "+*":
        return commuted(node.operator, (left, right), kind)
    return Apply(node.operator, (left, right), kind)


def _time_arithmetic(node: Arithmetic, left: Typed, right: Typed) -> Typed:
    if left.kind == right.kind == Kind.TIMESTAMP and node.operator == "-":
        return Apply("-", (left, right), Kind.LONG)
    times = (left.kind == Kind.TIMESTAMP) + (right.kind == Kind.TIMESTAMP)
    other = right if left.kind == Kind.TIMESTAMP else left
    if times == 2 or (other.kind is not None and not other.kind.integral):
        raise RuleError(
            f"{with_article(left.kind)} {node.operator} {with_article(right.kind)} has no meaning", span=node.span
        )
    if node.operator == "-" and other.kind is None:
        return Apply("-", (left, right), None if other is right else Kind.LONG)
    if node.operator == "-" and right.kind == Kind.TIMESTAMP:
        raise RuleError("a timestamp cannot be subtracted from a number", span=node.span)
    if node.operator == "+":
        return commuted("+", (left, right), Kind.TIMESTAMP)
    return Apply("-", (left, right), Kind.TIMESTAMP)


def _need_number(operand: Typed, span: Span | None, operator: str) -> None:
    if operand.kind is not None and not operand.kind.numeric:
        raise RuleError(f"'{operator}' needs numbers, this is {with_article(operand.kind)}", span=span)


def with_article(kind: Kind | None) -> str:
    """Return the name of `kind` with its indefinite article."""
    return f"an {kind}" if kind == Kind.INT else f"a {kind}"
