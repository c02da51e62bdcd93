"""Compute aggregates in the network, and split them from the rules that use them.

    45 < $t = Avg(Temp(area=$a).value within 5 min from Smoke)       Smoke(…, 45 < tally0, tally0 = $t)

For each anchor, every site computes the count, the exact sum, the minimum and the maximum of its events in the scope of
the aggregate. Processors merge these *partial results* on the way to the processor of the anchor, so each link carries
one partial result instead of the events. Then the anchor is tested as if the aggregate were one of its attributes.

Sums are integer multiples of the smallest double. So the result is rounded only once, and does not depend on how events
are distributed over sites.

The scope must end at the anchor and must not depend on other events. The aggregate must be `Count` or have a test. The
reason is that an aggregate over no events is null. Null fails every test, but a parameter that is bound to null would
not prevent a match.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from tocsin.events.types import EventType, Kind
from tocsin.language.syntax.ast import Aggregate, Attribute, Comparison, Function, Parameter, Rule, Within
from tocsin.plans.bind.structure import PatternTree, equation, parameters
from tocsin.plans.splitting import Partial, bare

SCALE = 2**1074
"""The inverse of the smallest double. The product of this number and any finite double is an integer."""
_NUMBERS = (Kind.INT, Kind.LONG, Kind.DOUBLE)
_EQUAL_KINDS = (Kind.STRING, Kind.INT, Kind.LONG, Kind.BOOL)

Accumulator = tuple[int, int, int | float | None, int | float | None]
"""A partial result, which consists of the count, the exact sum, the minimum and the maximum of values."""
EMPTY: Accumulator = (0, 0, None, None)


@dataclass(frozen=True)
class PartialAggregate:
    """An aggregate that is computed in the network, for each anchor.

    `column` is the attribute of the anchor that gets the value of the aggregate. `events` is the partial rule for the
    aggregated events, which are up to `window_us` older than the anchor. `equal` are pairs of an attribute of these
    events and an attribute of the anchor that must be equal.
    """

    column: str
    function: Function
    events: Partial
    attribute: str | None
    double: bool
    window_us: int
    equal: tuple[tuple[str, str], ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "function", Function(self.function))  # decoding gives a plain string

    @property
    def kind(self) -> Kind:
        if self.function is Function.COUNT:
            return Kind.LONG
        return Kind.DOUBLE if self.double or self.function is Function.AVG else Kind.LONG


def split_aggregates(
    rule: Rule, types: Mapping[str, EventType]
) -> tuple[Rule, Rule, tuple[PartialAggregate, ...]] | None:
    """Split a rule from its aggregates that sites can compute. Return None if there are no such aggregates.

    Otherwise, return the rule without these aggregates, the rule that tests their values as attributes of the anchor,
    and the aggregates.
    """
    tree = PatternTree(rule)
    names = {name for type in types.values() for name, _ in type.attributes}
    aggregates: list[PartialAggregate] = []
    tests: list[Comparison] = []
    clauses = []
    for number, clause in enumerate(rule.clauses):
        column = f"tally{number}"
        aggregate = (
            _partial_aggregate(tree, clause, column, types)
            if isinstance(clause, Aggregate) and column not in names
            else None
        )
        if aggregate is None:
            clauses.append(clause)
            continue
        assert isinstance(clause, Aggregate)
        aggregates.append(aggregate)
        if clause.test is not None:
            tests.append(Comparison(clause.test.operator, clause.test.bound, Attribute(column)))
        if clause.parameter is not None:
            tests.append(Comparison("=", Attribute(column), Parameter(clause.parameter)))
    if not aggregates:
        return None
    without = replace(rule, clauses=tuple(clauses))
    anchor = replace(rule.anchor, constraints=(*rule.anchor.constraints, *tests))
    return without, replace(without, anchor=anchor), tuple(aggregates)


def _partial_aggregate(
    tree: PatternTree, clause: Aggregate, column: str, types: Mapping[str, EventType]
) -> PartialAggregate | None:
    scope, rule, pattern = clause.scope, tree.rule, clause.pattern
    if not isinstance(scope, Within) or scope.origin != tree.anchor or rule.consuming:
        return None
    others = [node for node, other in tree.patterns.items() if other.type == pattern.type]
    if pattern.type not in types or len(others) > 1 or (clause.test is None and clause.function is not Function.COUNT):
        return None
    kind = types[pattern.type].kind(clause.attribute) if clause.attribute is not None else Kind.LONG
    if kind not in _NUMBERS:
        return None
    anchor_attributes: dict[str, str] = {}
    for constraint in rule.anchor.constraints:
        if bound := equation(constraint):
            anchor_attributes.setdefault(bound[1], bound[0])
    if clause.test is not None and not parameters(clause.test.bound) <= anchor_attributes.keys():
        return None
    equal = []
    for constraint in pattern.constraints:
        if not parameters(constraint):
            continue
        bound = equation(constraint)
        if bound is None or bound[1] not in anchor_attributes or rule.anchor.type not in types:
            return None
        kinds = types[pattern.type].kind(bound[0]), types[rule.anchor.type].kind(anchor_attributes[bound[1]])
        if kinds[0] != kinds[1] or kinds[0] not in _EQUAL_KINDS:
            return None
        equal.append((bound[0], anchor_attributes[bound[1]]))
    node = next(node for node, other in tree.clauses.items() if other is clause)
    double = kind is Kind.DOUBLE
    return PartialAggregate(
        column, clause.function, bare(tree, node), clause.attribute, double, scope.window_us, tuple(equal)
    )


def accumulate(values: Iterable[int | float | None], aggregate: PartialAggregate) -> Accumulator:
    """Return the partial result for `values`. Nulls are ignored, unless the aggregate counts events."""
    known = list(values)
    if aggregate.attribute is None:
        return (len(known), 0, None, None)
    numbers = [value for value in known if value is not None]
    if not numbers:
        return EMPTY
    return (len(numbers), sum(map(_scaled, numbers)), min(numbers), max(numbers))


def _scaled(value: float) -> int:
    if isinstance(value, int):
        return value
    above, below = value.as_integer_ratio()
    return above * (SCALE // below)


def merge(shares: Iterable[Accumulator]) -> Accumulator:
    """Merge partial results into the partial result of all their values.

    >>> merge([(1, 5, 5, 5), (0, 0, None, None), (2, 9, 4, 5)])
    (3, 14, 4, 5)
    """
    count, total = 0, 0
    least: int | float | None = None
    most: int | float | None = None
    for number, sum_, low, high in shares:
        count, total = count + number, total + sum_
        if low is not None and high is not None:
            least = low if least is None else min(least, low)
            most = high if most is None else max(most, high)
    return count, total, least, most


def value(aggregate: PartialAggregate, of: Accumulator) -> int | float | None:
    """Return the value of `aggregate` for the partial result `of`, rounded once; None without values or on overflow."""
    count, total, least, most = of
    if aggregate.function is Function.COUNT:
        return count
    if not count or aggregate.function in (Function.MIN, Function.MAX):
        return least if aggregate.function is Function.MIN else most
    if aggregate.function is Function.SUM and not aggregate.double:
        return total if -(2**63) <= total < 2**63 else None
    try:
        rounded = total / SCALE if aggregate.double else float(total)
    except OverflowError:
        return None
    result = rounded if aggregate.function is Function.SUM else rounded / count
    return result + 0.0 if math.isfinite(result) else None
