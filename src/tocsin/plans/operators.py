"""Of what is a query that moves made? Its operator tree: a rule for each path from what is delivered to primary events,
or an operator of the window model.

    delivery ◄─ rule ◄─ rule ◄─ primary events of the range

`ranged` writes its rules so that many ranges run side by side in one detector: each event comes once for each range
that it lies in, with the range's number, and all events of a match have the same number.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from tocsin.events.types import EventType, Kind
from tocsin.language.interests import Interest, Semantics
from tocsin.language.requests import WITHIN
from tocsin.language.rules import (
    Attribute,
    Clause,
    Comparison,
    Expression,
    Literal,
    Parameter,
    Pattern,
    Policy,
    Rule,
    Selection,
    Within,
)
from tocsin.language.window_model import WindowOperator

RANGE = "\0range"
"""The attribute of events and composite events with the number of the range."""
AGE = "\0age"
"""How much later than the first moment of the range's lifetime they are, where it matters from when on a rule sees."""


@dataclass(frozen=True)
class Operator:
    """A rule or operator of the window model at one place of the tree, or the delivery at its root, which has none."""

    key: str
    """The path from the root: unique in a query."""
    rule: Rule | WindowOperator | None
    children: tuple[Operator, ...]
    sources: tuple[str, ...]
    """The types of primary events that it sees."""

    def walk(self) -> Iterator[Operator]:
        """It and all below it."""
        yield self
        for child in self.children:
            yield from child.walk()

    @cached_property
    def restriction_us(self) -> int:
        """The restriction window: the longest of `reaches_us`."""
        if isinstance(self.rule, WindowOperator):
            return self.rule.restriction_us
        return max(1, *self.reaches_us.values()) if self.rule else 0

    @cached_property
    def reaches_us(self) -> Mapping[str, int]:
        """How far behind its anchor it looks for events of each type."""
        assert self.rule is not None
        if isinstance(self.rule, WindowOperator):
            return dict.fromkeys(self.rule.uses, self.rule.restriction_us)
        back = {self.rule.anchor.role: 0}
        reaches = {self.rule.anchor.type: 0}
        for clause in self.rule.clauses:
            scope = clause.scope
            reach = back[scope.origin] + scope.window_us if isinstance(scope, Within) else back[scope.start]
            if isinstance(clause, Selection):
                back[clause.pattern.role] = reach
            reaches[clause.pattern.type] = max(reach, reaches.get(clause.pattern.type, 0))
        return reaches

    @cached_property
    def windows_us(self) -> int:
        """The longest sum of restriction windows from here down to a source."""
        return self.restriction_us + max((child.windows_us for child in self.children), default=0)

    @cached_property
    def preserves_locality(self) -> bool:
        """Whether more input never means that something is not found: `each` selections all the way down."""
        if isinstance(self.rule, WindowOperator):
            return False
        clauses = self.rule.clauses if self.rule else ()
        grows = all(isinstance(clause, Selection) and clause.policy is Policy.EACH for clause in clauses)
        return (
            grows
            and not (self.rule and self.rule.consuming)
            and all(child.preserves_locality for child in self.children)
        )


def tree(interest: Interest) -> Operator:
    """The operators of a query: its delivery, and under it a rule for each path."""

    def of_types(types: Iterable[str], path: str) -> tuple[Operator, ...]:
        return tuple(of_rule(rule, path) for type in types for rule in interest.parts if rule.emits.name == type)

    def of_rule(rule: Rule | WindowOperator, path: str) -> Operator:
        key = f"{path}/{rule.name}"
        uses = tuple(dict.fromkeys(rule.uses))
        return Operator(key, rule, of_types(uses, key), tuple(use for use in uses if use not in defined))

    defined = {rule.emits.name for rule in interest.parts}
    return Operator(interest.name, None, of_types(interest.delivers, interest.name), ())


def reaches_us(root: Operator) -> dict[str, int]:
    """How far behind the first moment of what is delivered each type of primary events is needed: refined points."""
    found: dict[str, int] = {}

    def visit(operator: Operator, back: int) -> None:
        for type, reach in operator.reaches_us.items():
            needed = back + reach if back else max(1, reach)
            if type in operator.sources:
                found[type] = max(needed, found.get(type, 0))
            for child in operator.children:
                if child.rule is not None and child.rule.emits.name == type:
                    visit(child, needed)

    for child in root.children:
        visit(child, 0)
    return found


def shared(interests: Iterable[Interest]) -> dict[Interest, tuple[str, ...]]:
    """Queries of which one can do the work for others: these names follow the same object in the same way."""
    found: dict[Interest, list[str]] = {}
    first: dict[Interest, Interest] = {}
    for interest in interests:
        one = first.setdefault(replace(interest, name=""), interest)
        found.setdefault(one, [])
        if one is not interest:
            found[one].append(interest.name)
    return {one: tuple(names) for one, names in found.items()}


def is_exact(interest: Interest) -> bool:
    """Whether answers depend on where operators start, so that points are not refined and all start anew."""
    return interest.consumes


def is_strong(interest: Interest) -> bool:
    """Whether ranges start at quiet points."""
    return interest.consumes and interest.semantics is Semantics.STRONG


def ranged(interest: Interest) -> tuple[Rule, ...]:
    """The rules of a query, for events that have the number of their range.

    Where rules consume, it matters from when on each sees events: then each operator of the tree is a rule of its own,
    that sees no more than its restriction windows reach. The types that it defines say whose they are.
    """
    if not interest.consumes:
        return tuple(_ranged(rule, rule.name, rule.emits.name, {}, ()) for rule in interest.rules)
    root = tree(interest)
    found: list[Rule] = []

    def visit(operator: Operator, parent: Operator, reach_us: int) -> None:
        rule = operator.rule
        assert isinstance(rule, Rule)
        reach_us += operator.restriction_us
        seen: Expression = Comparison(">", Attribute(AGE), Literal(-reach_us, Kind.LONG))
        own = {
            child.rule.emits.name: f"{child.rule.emits.name}{WITHIN}{operator.key}"
            for child in operator.children
            if child.rule
        }
        emits = f"{rule.emits.name}{WITHIN}{parent.key}"
        found.append(_ranged(rule, f"{rule.name}{WITHIN}{operator.key}", emits, own, (seen,)))
        for child in operator.children:
            visit(child, operator, reach_us)

    for child in root.children:
        visit(child, root, 0)
    return tuple(found)


def delivered(interest: Interest) -> tuple[str, ...]:
    """The types that a query delivers, as `ranged` calls them."""
    return tuple(f"{name}{WITHIN}{interest.name}" if interest.consumes else name for name in interest.delivers)


def _ranged(rule: Rule, name: str, emits: str, types: Mapping[str, str], tests: tuple[Expression, ...]) -> Rule:
    joined: Expression = Comparison("=", Attribute(RANGE), Parameter(RANGE))

    def pattern(one: Pattern, alias: str | None) -> Pattern:
        constraints = (*one.constraints, joined, *tests)
        return replace(one, type=types.get(one.type, one.type), constraints=constraints, alias=alias)

    clauses: tuple[Clause, ...] = tuple(
        replace(clause, pattern=pattern(clause.pattern, clause.pattern.role if isinstance(clause, Selection) else None))
        for clause in rule.clauses
    )
    more: list[tuple[str, Expression]] = [(RANGE, Parameter(RANGE))]
    more += [(AGE, Attribute(AGE, rule.anchor.role))] if tests else []
    kinds = (*rule.emits.attributes, *((attribute, Kind.LONG) for attribute, _ in more))
    return replace(
        rule,
        name=name,
        emits=EventType(emits, kinds),
        anchor=pattern(rule.anchor, rule.anchor.role),
        clauses=clauses,
        where=(*rule.where, *more),
    )
