"""Build TESLA rules in Python. A built rule equals the rule that is parsed from the same TESLA text.

`define` starts a rule, and each method of `Definition` adds one clause. Conditions are Python expressions over three
kinds of names:

- `this.value` is an attribute of the event that the condition belongs to.
- `role.Smoke.area` is an attribute of another event of the rule, which has the name `Smoke`.
- `p.a` is the parameter `$a`.

Write `this["from"]` if the name is a keyword of Python. Comparisons and arithmetic use Python's operators, and `&`, `|`
and `~` stand for `and`, `or` and `not`. A keyword argument of `event` is a condition of equality: `area=p.a` means
`this.area == p.a`.

>>> fire = (
...     define("Fire", area="string", temp="double")
...     .from_(event("Smoke", area=p.a))
...     .last(event("Temp", this.area == p.a, this.value > 45), within("5 min", "Smoke"))
...     .without(event("Rain", area=p.a), between("Temp", "Smoke"))
...     .aggregate(40 < avg(event("Temp", area=p.a), "value", within("1 h", "Smoke")).bind("t"))
...     .where(area=role.Smoke.area, temp=p.t)
...     .consuming("Temp")
...     .build()
... )
>>> from tocsin.language.syntax.expressions import print_rule
>>> print(print_rule(fire))
define    Fire(area: string, temp: double)
from      Smoke(area=$a)
          and last Temp(area=$a, value>45) within 5 min from Smoke
          and not Rain(area=$a) between Temp and Smoke
          and 40 < $t = Avg(Temp(area=$a).value within 1 h from Smoke)
where     area = Smoke.area, temp = $t
consuming Temp
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Generic, Never, TypeVar

from tocsin.errors import RuleError, nearest
from tocsin.events.types import EventType, Kind
from tocsin.language.syntax import expressions as terms
from tocsin.language.syntax.ast import (
    Aggregate,
    Arithmetic,
    Attribute,
    Between,
    Clause,
    Comparison,
    Expression,
    Function,
    Literal,
    Negation,
    Not,
    Parameter,
    Pattern,
    Policy,
    Rule,
    Scope,
    Selection,
    Test,
    Within,
)
from tocsin.language.syntax.names import IDENTIFIER, checked_name

T = TypeVar("T")
Constant = str | int | float | bool | datetime
_WINDOW = re.compile(r"\s*([0-9]*\.?[0-9]+)\s*([A-Za-z]+)\.?\s*")


class Term:
    """Wraps an expression of a rule, so that Python's operators build larger expressions from it."""

    __slots__ = ("expression",)
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, expression: Expression) -> None:
        self.expression = expression

    def __eq__(self, other: Term | Constant) -> Term:  # type: ignore[override]
        return _compare("=", self, other)

    def __ne__(self, other: Term | Constant) -> Term:  # type: ignore[override]
        return _compare("!=", self, other)

    def __lt__(self, other: Term | Constant) -> Term:
        return _compare("<", self, other)

    def __le__(self, other: Term | Constant) -> Term:
        return _compare("<=", self, other)

    def __gt__(self, other: Term | Constant) -> Term:
        return _compare(">", self, other)

    def __ge__(self, other: Term | Constant) -> Term:
        return _compare(">=", self, other)

    def __add__(self, other: Term | Constant) -> Term:
        return Term(Arithmetic("+", self.expression, expression_of(other)))

    def __radd__(self, other: Constant) -> Term:
        return Term(Arithmetic("+", expression_of(other), self.expression))

    def __sub__(self, other: Term | Constant) -> Term:
        return Term(Arithmetic("-", self.expression, expression_of(other)))

    def __rsub__(self, other: Constant) -> Term:
        return Term(Arithmetic("-", expression_of(other), self.expression))

    def __mul__(self, other: Term | Constant) -> Term:
        return Term(Arithmetic("*", self.expression, expression_of(other)))

    def __rmul__(self, other: Constant) -> Term:
        return Term(Arithmetic("*", expression_of(other), self.expression))

    def __truediv__(self, other: Term | Constant) -> Term:
        return Term(Arithmetic("/", self.expression, expression_of(other)))

    def __rtruediv__(self, other: Constant) -> Term:
        return Term(Arithmetic("/", expression_of(other), self.expression))

    def __neg__(self) -> Term:
        return Term(terms.minus(self.expression))

    def __and__(self, other: Term | Constant) -> Term:
        return Term(terms.conjunction((self.expression, expression_of(other))))

    def __or__(self, other: Term | Constant) -> Term:
        return Term(terms.disjunction((self.expression, expression_of(other))))

    def __invert__(self) -> Term:
        return Term(Not(self.expression))

    def __bool__(self) -> Never:
        raise RuleError(
            "an expression of a rule has no truth value",
            hint="Write & for 'and', | for 'or', ~ for 'not', and two comparisons for 'a < b < c'.",
        )

    def __repr__(self) -> str:
        return f"Term({self.expression!r})"


class _Names(Generic[T]):
    """Calls `make` with the name that is looked up, either as an attribute or as an item."""

    def __init__(self, make: Callable[[str], T]) -> None:
        self.__make = make

    def __getitem__(self, name: str) -> T:
        return self.__make(checked_name(name))

    def __getattr__(self, name: str) -> T:
        # Python looks up such names when it copies or inspects an object.
        if name.startswith("__"):
            raise AttributeError(name)
        return self[name]


this = _Names(lambda name: Term(Attribute(name)))
"""`this.value` is the attribute `value` of the event that the condition belongs to."""

p = _Names(lambda name: Term(Parameter(name_of(name))))
"""`p.a` is the parameter `$a`."""

role = _Names(lambda owner: _Names(lambda name: Term(Attribute(name, owner))))
"""`role.Smoke.area` is the attribute `area` of the event that the rule calls `Smoke`."""


def event(type: str, /, *constraints: Term, **equal: Term | Constant) -> Pattern:
    """Return a pattern for the events of `type` that meet all conditions.

    Conditions are terms such as `this.value > 45`, or keyword arguments such as `area=p.a`, which require equality.
    """
    expressions = [expression_of(constraint) for constraint in constraints]
    expressions += [
        Comparison("=", Attribute(checked_name(name)), expression_of(value)) for name, value in equal.items()
    ]
    return Pattern(checked_name(type), tuple(terms.conjuncts(map(terms.checked, expressions))))


def within(window: str | timedelta, origin: str) -> Within:
    """Return the scope of the events that precede the event `origin` by less than `window`.

    `window` is a `timedelta` or a text such as "5 min".
    """
    return Within(window_of(window), checked_name(origin))


def window_of(window: str | timedelta) -> int:
    """Convert `window` to microseconds."""
    if isinstance(window, timedelta):
        return terms.checked_window(window // timedelta(microseconds=1))
    match = _WINDOW.fullmatch(window) if isinstance(window, str) else None
    if match is None:
        raise RuleError(f"{window!r} is not a window", hint='Write "5 min" or a timedelta.')
    return terms.window(match[1], match[2])


def between(start: str, end: str) -> Between:
    """Return the scope of the events that lie between the event `start` and the event `end`."""
    return Between(checked_name(start), checked_name(end))


@dataclass(frozen=True, slots=True, eq=False)
class Measure:
    """An aggregate, such as `avg(…)`. Compare it to add a test, and call `bind` to store its value in a parameter."""

    clause: Aggregate

    def bind(self, parameter: str) -> Measure:
        """Return a copy of the aggregate that binds its value to `parameter`."""
        return Measure(replace(self.clause, parameter=name_of(parameter)))

    def _tested(self, operator: str, bound: Term | Constant) -> Measure:
        if self.clause.test:
            raise RuleError("an aggregate can have only one test")
        return Measure(replace(self.clause, test=Test(expression_of(bound), terms.FLIPPED[operator])))

    def __eq__(self, bound: Term | Constant) -> Measure:  # type: ignore[override]
        return self._tested("=", bound)

    def __ne__(self, bound: Term | Constant) -> Measure:  # type: ignore[override]
        return self._tested("!=", bound)

    def __lt__(self, bound: Term | Constant) -> Measure:
        return self._tested("<", bound)

    def __le__(self, bound: Term | Constant) -> Measure:
        return self._tested("<=", bound)

    def __gt__(self, bound: Term | Constant) -> Measure:
        return self._tested(">", bound)

    def __ge__(self, bound: Term | Constant) -> Measure:
        return self._tested(">=", bound)

    def __bool__(self) -> Never:
        raise RuleError("an aggregate has no truth value", hint="Write one test: avg(…) > 45.")


def avg(pattern: Pattern, attribute: str, scope: Scope) -> Measure:
    return _measure(Function.AVG, pattern, attribute, scope)


def sum_(pattern: Pattern, attribute: str, scope: Scope) -> Measure:
    return _measure(Function.SUM, pattern, attribute, scope)


def min_(pattern: Pattern, attribute: str, scope: Scope) -> Measure:
    return _measure(Function.MIN, pattern, attribute, scope)


def max_(pattern: Pattern, attribute: str, scope: Scope) -> Measure:
    return _measure(Function.MAX, pattern, attribute, scope)


def count(pattern: Pattern, scope: Scope, *, attribute: str | None = None) -> Measure:
    """Return an aggregate that counts the events in a scope.

    With `attribute`, only the events in which this attribute is not null are counted.
    """
    return _measure(Function.COUNT, pattern, attribute, scope)


@dataclass(frozen=True, slots=True)
class Definition:
    """A rule under construction. Each method returns a copy with one more clause, and `build` returns the rule."""

    emits: EventType
    anchor: Pattern | None = None
    clauses: tuple[Clause, ...] = ()
    values: tuple[tuple[str, Expression], ...] = ()
    consumed: tuple[str, ...] = ()
    name: str | None = None

    def named(self, name: str) -> Definition:
        """Set the name of the rule. The default is the name of the event type that the rule defines."""
        return replace(self, name=name_of(name))

    def from_(self, anchor: Pattern, *, as_: str | None = None) -> Definition:
        """Set the pattern of the anchor, which is the event that completes the rule.

        Each event that matches `anchor` can cause a composite event. `as_` gives this event another name than its type.
        """
        if self.anchor:
            raise RuleError("a rule has one anchor", hint="Add other events with each, first or last.")
        return replace(self, anchor=_pattern(anchor, as_))

    def each(self, pattern: Pattern, scope: Scope, *, as_: str | None = None) -> Definition:
        """Select every event that matches `pattern` in `scope`."""
        return self._with(Selection(Policy.EACH, _pattern(pattern, as_), _scope(scope), 0))

    def first(self, pattern: Pattern, scope: Scope, n: int = 1, *, as_: str | None = None) -> Definition:
        """Select the first `n` events that match `pattern` in `scope`."""
        return self._with(Selection(Policy.FIRST, _pattern(pattern, as_), _scope(scope), _number(n)))

    def last(self, pattern: Pattern, scope: Scope, n: int = 1, *, as_: str | None = None) -> Definition:
        """Select the last `n` events that match `pattern` in `scope`."""
        return self._with(Selection(Policy.LAST, _pattern(pattern, as_), _scope(scope), _number(n)))

    def without(self, pattern: Pattern, scope: Scope) -> Definition:
        """Require that no event in `scope` matches `pattern`."""
        return self._with(Negation(_pattern(pattern), _scope(scope)))

    def aggregate(self, measure: Measure) -> Definition:
        """Add an aggregate such as `avg(…) > 45`, which the rule tests or binds to a parameter."""
        if not isinstance(measure, Measure):
            raise RuleError("this is not an aggregate", hint="Write avg, sum_, min_, max_ or count.")
        return self._with(measure.clause)

    def where(self, **values: Term | Constant) -> Definition:
        """Set attributes of the composite event, each by its name and value."""
        added = tuple((checked_name(name), terms.checked(expression_of(value))) for name, value in values.items())
        return replace(self, values=self.values + added)

    def consuming(self, *roles: str) -> Definition:
        """Consume the events of `roles`, so that the rule uses each of these events for one anchor only."""
        return replace(self, consumed=self.consumed + tuple(map(name_of, roles)))

    def build(self) -> Rule:
        """Return the finished rule. Raise if it has no anchor."""
        if self.anchor is None:
            raise RuleError(f"the rule that defines '{self.emits.name}' has no anchor", hint="Add .from_(event(…)).")
        name = self.name or self.emits.name
        return Rule(name, self.emits, self.anchor, self.clauses, self.values, self.consumed)

    def _with(self, clause: Clause) -> Definition:
        if self.anchor is None:
            raise RuleError("the anchor comes before the other clauses", hint="Start with .from_(event(…)).")
        return replace(self, clauses=(*self.clauses, clause))


def define(type: str, /, **attributes: str | Kind) -> Definition:
    """Start a rule that defines composite events of `type`.

    Each keyword argument is an attribute of these events with its kind, for example `area="string"`.
    """
    return Definition(
        EventType(checked_name(type), tuple((checked_name(name), _kind(kind)) for name, kind in attributes.items()))
    )


def expression_of(value: Any) -> Expression:
    """Convert `value` to an expression. A `Term` is unwrapped, and a Python value becomes a literal."""
    match value:
        case Term():
            return value.expression
        case bool():
            return Literal(value, Kind.BOOL)
        case int():
            return terms.checked(terms.integer(value))
        case float():
            return terms.double(value)
        case str():
            return terms.string(value)
        case datetime():
            return terms.timestamp(value)
    raise RuleError(f"{value!r} cannot be used in a rule", hint="Use strings, numbers, booleans or datetimes.")


def _compare(operator: str, left: Term, right: Term | Constant) -> Term:
    if isinstance(right, Measure):
        return NotImplemented
    return Term(Comparison(operator, left.expression, expression_of(right)))


def _measure(function: Function, pattern: Pattern, attribute: str | None, scope: Scope) -> Measure:
    return Measure(
        Aggregate(function, _pattern(pattern), None if attribute is None else checked_name(attribute), _scope(scope))
    )


def _pattern(pattern: Pattern, alias: str | None = None) -> Pattern:
    if not isinstance(pattern, Pattern):
        raise RuleError(f"{pattern!r} is not an event", hint='Write event("Temp", …).')
    return replace(pattern, alias=name_of(alias)) if alias is not None else pattern


def _scope(scope: Scope) -> Scope:
    if not isinstance(scope, Scope):
        raise RuleError(f"{scope!r} is not a scope", hint='Write within("5 min", "A") or between("A", "B").')
    return scope


def _number(n: int) -> int:
    if isinstance(n, bool) or not isinstance(n, int) or not 1 <= n < 2**31:
        raise RuleError(f"{n!r} is not a number of events", hint="Write 1 or more.")
    return n


def _kind(kind: str | Kind) -> Kind:
    if kind not in tuple(Kind):
        raise RuleError(f"unknown kind of attribute {kind!r}", hint=nearest(str(kind), tuple(Kind)))
    return Kind(kind)


def name_of(name: str) -> str:
    """Return `name`. Raise if `name` is not an identifier."""
    if not isinstance(name, str) or not IDENTIFIER.fullmatch(name):
        raise RuleError(f"{name!r} is not a name", hint="A name is made of the letters A to Z, digits and '_'.")
    return name
