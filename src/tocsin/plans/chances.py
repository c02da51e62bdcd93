"""How often will a rule match, and how many events will a partial rule send? From rates alone, with events by chance.

Events of each type come by themselves at a steady rate (Poisson). Then an event of rate r is within a window W with
probability 1 - exp(-rW), for one type independently of another, and that is all that is used: the number of matches a
second of a sequence with `last` is exact, other figures leave out that the same event may be wanted twice.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from tocsin.events.types import Kind
from tocsin.language.rules import (
    Aggregate,
    Attribute,
    Comparison,
    Expression,
    Literal,
    Negation,
    Pattern,
    Policy,
    Rule,
    Selection,
)
from tocsin.plans.cost import EQUALITY, OTHER
from tocsin.plans.shape import Shape, equation, parameters
from tocsin.plans.splitting import FOREVER_US, Partial

SECOND_US = 1_000_000


@dataclass(frozen=True)
class Load:
    """What is known of the events: how many of each type come a second, and the values of attributes: texts to choose
    from, or the least and the largest number."""

    rates: Mapping[str, float]
    values: Mapping[str, Sequence[str | float]] = field(default_factory=dict)

    def share(self, pattern: Pattern, binds: Callable[[Expression], bool] = lambda _: True) -> float:
        """The share of the events of its type that meet a pattern; `binds`: of constraints with parameters, those
        that let everything pass."""
        found = 1.0
        for constraint in pattern.constraints:
            if parameters(constraint):
                both = equation(constraint)
                if both is None:
                    found *= OTHER
                elif not binds(constraint):
                    known = self.values.get(both[0], ())
                    found *= 1 / len(known) if known and isinstance(known[0], str) else EQUALITY
            else:
                found *= self._passing(constraint)
        return found

    def _passing(self, constraint: Expression) -> float:
        match constraint:
            case Comparison(operator, Attribute(name), Literal(value, kind)) if name in self.values:
                known = self.values[name]
                if isinstance(known[0], str):
                    same = sum(text == value for text in known) / len(known)
                    return same if operator == "=" else 1 - same if operator == "!=" else OTHER
                low, high = (float(number) for number in known)
                whole = kind is not Kind.DOUBLE
                if operator in ("=", "!="):
                    same = 1 / max(high - low, 1) if whole else 0.0
                    return same if operator == "=" else 1 - same
                assert not isinstance(value, str | None)
                below = min(1.0, max(0.0, (float(value) - low) / max(high - low, 1e-9)))
                return below if operator in ("<", "<=") else 1 - below
            case Comparison("=", _, _):
                return EQUALITY
        return OTHER

    def rate(self, pattern: Pattern) -> float:
        """How many events a second meet a pattern by themselves."""
        return self.rates.get(pattern.type, 0.0) * self.share(pattern)


class Chances:
    """The chances of a rule's patterns."""

    def __init__(self, rule: Rule, load: Load) -> None:
        self.shape, self.load = Shape(rule), load
        self.children: dict[str, list[str]] = {}
        for node in self.shape.patterns:
            parent = self.shape.parent(node)
            if parent is not None:
                self.children.setdefault(parent, []).append(node)

    def rate(self, node: str) -> float:
        """How many candidates for a node there are a second, once those above it are chosen."""
        pattern = self.shape.patterns[node]
        before: set[str] = set()

        def binds(constraint: Expression) -> bool:
            return self.shape.binds(node, constraint, before)

        return self.load.rates.get(pattern.type, 0.0) * self.load.share(pattern, binds)

    def _expected(self, node: str) -> float:
        """How many candidates lie in the window of a node."""
        return self.rate(node) * self.shape.window_us(node) / SECOND_US

    def _factor(self, node: str, *, number: bool) -> float:
        """By how much a clause multiplies matches, or the chance that there is one."""
        clause = self.shape.clauses[node]
        expected = self._expected(node)
        if isinstance(clause, Negation):
            return math.exp(-expected)
        if isinstance(clause, Aggregate):
            return 0.5 if clause.test is not None else 1.0
        if number and clause.policy is Policy.EACH:
            return expected
        some = 1 - math.exp(-expected)
        return max(some, min(float(clause.count), expected)) if number and clause.count > 1 else some

    @property
    def matches(self) -> float:
        """Matches a second."""
        return self.rate(self.shape.anchor) * math.prod(self._factor(node, number=True) for node in self.shape.clauses)

    def _below(self, node: str, but: str | None = None) -> float:
        """The chance that all that hangs on an event is there."""
        return math.prod(
            self._factor(child, number=False) * self._below(child)
            for child in self.children.get(node, ())
            if child != but
        )

    def used(self, node: str) -> float:
        """The chance that a candidate for a role is part of a match."""
        return self._above(node) * self._below(node)

    def _above(self, node: str) -> float:
        parent = self.shape.parent(node)
        if parent is None:
            return 1.0
        wanting = self.rate(parent) * self._above(parent) * self._below(parent, node)
        window_s, own = self.shape.window_us(node) / SECOND_US, self.rate(node)
        clause = self.shape.clauses[node]
        if isinstance(clause, Selection) and clause.policy is Policy.LAST and clause.count <= 1:
            both = wanting + own
            return wanting / both * (1 - math.exp(-both * window_s)) if both else 0.0
        return 1 - math.exp(-wanting * window_s)


def sent(part: Partial, load: Load) -> dict[str, float]:
    """The chance of an event of each type to be sent for a partial rule."""
    chances = Chances(part.rule, load)
    found: dict[str, float] = {}
    for role in part.sends:
        pattern = chances.shape.patterns[role]
        used = chances.used(role)
        if role == chances.shape.anchor and part.blocks_us:
            heads = chances.rate(role) * used
            behind = 1.0 if part.blocks_us >= FOREVER_US else 1 - math.exp(-heads * part.blocks_us / SECOND_US)
            used += (1 - used) * behind
        meets = used * load.share(pattern)
        found[pattern.type] = 1 - (1 - found.get(pattern.type, 0.0)) * (1 - meets)
    return found
