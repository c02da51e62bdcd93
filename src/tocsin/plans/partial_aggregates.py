"""Which aggregates can be worked out where the events are? Those that look back from the anchor, and at nothing else.

    45 < $t = Avg(Temp(area=$a).value within 5 min from Smoke)       Smoke(…, 45 < tally0, tally0 = $t)

The anchor then asks every site for its share: number, exact sum, least and largest value of the events in the scope.
Shares are added up on the way, so one number goes over each link instead of the events, and the anchor is tested as if
the aggregate were an attribute of it. Sums are integers (of the smallest double's size), so the result does not
depend on how the events are spread: it is rounded once, as it is at one place.

It must be `Count` or have a test: an aggregate over nothing is null, which no test lets pass, while a parameter that is
only bound to it would let the match stand.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from tocsin.events.types import EventType, Kind
from tocsin.language.syntax.ast import Aggregate, Attribute, Comparison, Function, Parameter, Rule, Within
from tocsin.plans.bind.structure import Shape, equation, parameters
from tocsin.plans.splitting import Partial, bare

SCALE = 2**1074
"""The inverse of the smallest double: every finite double times this is an integer."""
_NUMBERS = (Kind.INT, Kind.LONG, Kind.DOUBLE)
_ASKED = (Kind.STRING, Kind.INT, Kind.LONG, Kind.BOOL)

Share = tuple[int, int, int | float | None, int | float | None]
"""How many events, the exact sum, the least and the largest value."""
NOTHING: Share = (0, 0, None, None)


@dataclass(frozen=True)
class Tally:
    """An aggregate that sites work out: of which events, of which attribute, how far back, and the name of the anchor's
    attribute that it becomes. `equal`: attributes of the events that must equal attributes of the anchor."""

    column: str
    function: Function
    events: Partial
    attribute: str | None
    double: bool
    window_us: int
    equal: tuple[tuple[str, str], ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "function", Function(self.function))  # a text where it was read

    @property
    def kind(self) -> Kind:
        if self.function is Function.COUNT:
            return Kind.LONG
        return Kind.DOUBLE if self.double or self.function is Function.AVG else Kind.LONG


def tallied(rule: Rule, types: Mapping[str, EventType]) -> tuple[Rule, Rule, tuple[Tally, ...]] | None:
    """The rule without the aggregates that sites can work out, the rule that tests them at the anchor, and what they
    are; None if there are none."""
    shape = Shape(rule)
    taken = {name for type in types.values() for name, _ in type.attributes}
    found: list[Tally] = []
    tests: list[Comparison] = []
    clauses = []
    for number, clause in enumerate(rule.clauses):
        column = f"tally{number}"
        tally = _tally(shape, clause, column, types) if isinstance(clause, Aggregate) and column not in taken else None
        if tally is None:
            clauses.append(clause)
            continue
        assert isinstance(clause, Aggregate)
        found.append(tally)
        if clause.test is not None:
            tests.append(Comparison(clause.test.operator, clause.test.bound, Attribute(column)))
        if clause.parameter is not None:
            tests.append(Comparison("=", Attribute(column), Parameter(clause.parameter)))
    if not found:
        return None
    without = replace(rule, clauses=tuple(clauses))
    anchor = replace(rule.anchor, constraints=(*rule.anchor.constraints, *tests))
    return without, replace(without, anchor=anchor), tuple(found)


def _tally(shape: Shape, clause: Aggregate, column: str, types: Mapping[str, EventType]) -> Tally | None:
    scope, rule, pattern = clause.scope, shape.rule, clause.pattern
    if not isinstance(scope, Within) or scope.origin != shape.anchor or rule.consuming:
        return None
    others = [node for node, other in shape.patterns.items() if other.type == pattern.type]
    if pattern.type not in types or len(others) > 1 or (clause.test is None and clause.function is not Function.COUNT):
        return None
    kind = types[pattern.type].kind(clause.attribute) if clause.attribute is not None else Kind.LONG
    if kind not in _NUMBERS:
        return None
    given: dict[str, str] = {}
    for constraint in rule.anchor.constraints:
        if bound := equation(constraint):
            given.setdefault(bound[1], bound[0])
    if clause.test is not None and not parameters(clause.test.bound) <= given.keys():
        return None
    equal = []
    for constraint in pattern.constraints:
        if not parameters(constraint):
            continue
        bound = equation(constraint)
        if bound is None or bound[1] not in given or rule.anchor.type not in types:
            return None
        kinds = types[pattern.type].kind(bound[0]), types[rule.anchor.type].kind(given[bound[1]])
        if kinds[0] != kinds[1] or kinds[0] not in _ASKED:
            return None
        equal.append((bound[0], given[bound[1]]))
    node = next(node for node, other in shape.clauses.items() if other is clause)
    double = kind is Kind.DOUBLE
    return Tally(column, clause.function, bare(shape, node), clause.attribute, double, scope.window_us, tuple(equal))


def share(values: Iterable[int | float | None], tally: Tally) -> Share:
    """What some events have, of which these are the values: nulls do not count, unless the events are counted."""
    known = list(values)
    if tally.attribute is None:
        return (len(known), 0, None, None)
    numbers = [value for value in known if value is not None]
    if not numbers:
        return NOTHING
    return (len(numbers), sum(map(_scaled, numbers)), min(numbers), max(numbers))


def _scaled(value: float) -> int:
    if isinstance(value, int):
        return value
    above, below = value.as_integer_ratio()
    return above * (SCALE // below)


def merged(shares: Iterable[Share]) -> Share:
    """Several shares as one.

    >>> merged([(1, 5, 5, 5), (0, 0, None, None), (2, 9, 4, 5)])
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


def value(tally: Tally, of: Share) -> int | float | None:
    """The aggregate of a share: rounded once, null where there is none or where it does not fit."""
    count, total, least, most = of
    if tally.function is Function.COUNT:
        return count
    if not count or tally.function in (Function.MIN, Function.MAX):
        return least if tally.function is Function.MIN else most
    if tally.function is Function.SUM and not tally.double:
        return total if -(2**63) <= total < 2**63 else None
    try:
        rounded = total / SCALE if tally.double else float(total)
    except OverflowError:
        return None
    result = rounded if tally.function is Function.SUM else rounded / count
    return result + 0.0 if math.isfinite(result) else None
