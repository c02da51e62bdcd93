"""What will it take? Estimates of a rule's state and work from the rates of its events, for `explain` and for placing
rules.

Work is counted in candidates looked at. Without statistics every type is taken to come once a second, an equality to
let one event in ten pass, any other test one in three, and a chain to hold one in a hundred of its buffer.

How often will a rule match, and how many events will a partial rule send? From rates alone, with events by chance.

Events of each type come by themselves at a steady rate (Poisson). Then an event of rate r is within a window W with
probability 1 - exp(-rW), for one type independently of another, and that is all that is used: the number of matches a
second of a sequence with `last` is exact, other figures leave out that the same event may be wanted twice.

What will a SiddhiQL query cost a node? VISIRI's cost model (Section 3.3 of its paper), for placing queries.

    ln( 10 + streams in and out + 0.1 × attributes in and out
           + 10 + 0.5 × names in filters    if it filters
           + 100 + size^1.5                 for each window )

The paper names these terms, the authors' published program has the weights, and with them the paper's Table 1 comes
out. A window's size is its events, or its milliseconds; whether it slides does not matter. A name is an identifier of
the text: `price` of the own event is one, `foo.price` two, and the table of `in foo` one more.

Joins and patterns get what their streams, attributes, tests and windows give. The program looks at their first filter
only; here all tests count, wherever they stand, and a join's condition too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tocsin.events.types import EventType, Kind
from tocsin.language.siddhi.ast import Join, Query, Window, expressions
from tocsin.language.syntax.ast import (
    Aggregate,
    And,
    Arithmetic,
    Attribute,
    Comparison,
    Expression,
    Literal,
    Negation,
    Negative,
    Not,
    Or,
    Pattern,
    Policy,
    Rule,
    Selection,
)
from tocsin.plans.bind.structure import Shape, equation, parameters
from tocsin.plans.expressions import Apply, Typed
from tocsin.plans.placement import Input, Unit
from tocsin.plans.plan import Plan
from tocsin.plans.rules import Filter, Lookup, RulePlan
from tocsin.plans.splitting import FOREVER_US, Partial

EQUALITY, OTHER, KEY = 0.1, 0.33, 0.01
ROW_BYTES, WORD_BYTES, ENTRY_BYTES = 48, 9, 16
SECOND_US = 1_000_000


@dataclass(frozen=True, slots=True)
class Statistics:
    """What is known about a stream: events a second by type."""

    rates: Mapping[str, float] = field(default_factory=dict)
    default_rate: float = 1.0

    def rate(self, node: Filter) -> float:
        """How many events a second pass a filter."""
        rate = self.rates.get(node.type, self.default_rate)
        return rate * math.prod(selectivity(condition) for condition in node.conditions)


@dataclass(frozen=True, slots=True)
class Cost:
    """Events kept in the steady state, their bytes, and candidates looked at a second."""

    rows: float
    bytes: float
    candidates: float


def selectivity(condition: Typed) -> float:
    """The share of events that a condition is taken to let pass."""
    if not isinstance(condition, Apply):
        return OTHER
    if condition.operator == "=":
        return EQUALITY
    if condition.operator == "!=":
        return 1 - EQUALITY
    if condition.operator == "and":
        return math.prod(selectivity(operand) for operand in condition.operands)
    if condition.operator == "or":
        return 1 - math.prod(1 - selectivity(operand) for operand in condition.operands)
    if condition.operator == "not":
        return 1 - selectivity(condition.operands[0])
    return OTHER


def kept(lookup: Lookup, statistics: Statistics) -> float:
    """How many events a lookup's buffer holds for it."""
    return statistics.rate(lookup.buffer.filter) * lookup.horizon_us / SECOND_US


def held(plan: RulePlan, statistics: Statistics) -> float:
    """How many events a query's windows, or its attempts, hold."""
    if plan.windowed is None:
        return 0.0
    joined, chained = plan.windowed.joined, plan.windowed.chained
    if chained is not None:  # attempts, of which each holds one event at least
        horizon_s = (chained.within_us or SECOND_US) / SECOND_US
        return sum(statistics.rate(stage.filter) * horizon_s for stage in chained.stages if not stage.absent)
    sides = [(plan.anchor, plan.windowed.window)]
    if joined is not None:
        sides = [(side.filter, side.window) for side in joined.sides]
    return sum(
        statistics.rate(filter) * window.size / SECOND_US if window.extent.timed else float(window.size)
        for filter, window in sides
        if window is not None
    )


def rule_cost(plan: RulePlan, statistics: Statistics) -> Cost:
    """The cost of one rule by itself."""
    if plan.windowed is not None:
        rate, rows = statistics.rate(plan.anchor), held(plan, statistics)
        # An event comes, and leaves again if there is a window.
        work = rate * (1 + len(plan.windowed.calls)) * (2 if any(plan.windowed.windows) else 1)
        if plan.windowed.joined is not None:
            work *= 1 + rows * KEY ** len(plan.windowed.joined.keys)
        elif plan.windowed.chained is not None:  # an event is shown to what waits at its stages
            stages = plan.windowed.chained.stages
            waiting = [rows / len(stages) * KEY ** len(stage.keys) for stage in stages]
            work = sum(statistics.rate(stage.filter) * (1 + n) for stage, n in zip(stages, waiting, strict=True))
        return Cost(rows, rows * (ROW_BYTES + WORD_BYTES + ENTRY_BYTES), work)
    rows = sum(kept(lookup, statistics) for lookup in plan.lookups)
    combinations = statistics.rate(plan.anchor)
    candidates = combinations
    if plan.context is not None:  # each event is looked at once
        horizon_s = plan.context.window_us / SECOND_US
        candidates = sum(statistics.rate(filter) for filter in plan.context.filters)
        rows = candidates * horizon_s
    for step in plan.steps:
        reached = kept(step.lookup, statistics) * KEY ** len(step.lookup.keys)
        if plan.combining is not None:  # searched, not multiplied
            candidates += combinations * reached
        elif step.policy == Policy.EACH:
            candidates += combinations * reached
            combinations *= reached
        else:
            candidates += combinations * min(reached, step.count)
            combinations *= min(reached, step.count)
        candidates += combinations * len(step.guards)
    width = len({(leaf.attribute) for lookup in plan.lookups for leaf in lookup.buffer.keys})
    return Cost(rows, rows * (ROW_BYTES + WORD_BYTES * max(width, 1) + ENTRY_BYTES), candidates)


def plan_cost(plan: Plan, statistics: Statistics) -> Cost:
    """The cost of all rules, each buffer counted once."""
    rows = sum(statistics.rate(buffer.filter) * horizon / SECOND_US for buffer, horizon in plan.buffers.items())
    rows += sum(held(rule, statistics) for rule in plan.rules)
    width = max((len(columns) for columns in plan.columns.values()), default=0)
    candidates = sum(rule_cost(rule, statistics).candidates for rule in plan.rules)
    return Cost(rows, rows * (ROW_BYTES + WORD_BYTES * width + ENTRY_BYTES), candidates)


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


QUERY = 10.0
STREAM = 1.0
ATTRIBUTE = 0.1
FILTER, NAME = 10.0, 0.5
WINDOW, WINDOW_POWER = 100.0, 1.5
MS_US = 1_000


def query_cost(query: Query, definitions: Mapping[str, EventType] | None = None) -> float:
    """The cost of a query. Of a stream that is not defined, the attributes that the query speaks of are counted."""
    total = QUERY + STREAM * _streams(query)
    total += ATTRIBUTE * (_attributes_in(query, definitions or {}) + len(query.emits.attributes))
    if found := names(query):
        total += FILTER + NAME * found
    total += sum(window_cost(source.window) for source in query.sources if source.window is not None)
    return math.log(total)


def window_cost(window: Window) -> float:
    """What a window adds to the sum of which a query's cost is the logarithm."""
    size = window.size / MS_US if window.extent.timed else float(window.size)
    return WINDOW + math.pow(size, WINDOW_POWER)


def names(query: Query) -> int:
    """How many names stand in its filters."""
    spoken = (node for test in _tests(query) for node in _nodes(test) if isinstance(node, Attribute))
    return sum(1 if node.role is None else 2 for node in spoken) + sum(len(source.tables) for source in query.sources)


def comparisons(query: Query) -> int:
    """How many comparisons its filters make, and its join."""
    return sum(isinstance(node, Comparison) for test in _tests(query) for node in _nodes(test))


def as_unit(
    query: Query,
    definitions: Mapping[str, EventType] | None = None,
    *,
    cost: float | None = None,
    inputs: Iterable[Input] | None = None,
) -> Unit:
    """A query as something that can be placed: with the model's cost and whole streams, or what was measured."""
    types = tuple(Input(type) for type in query.uses) if inputs is None else tuple(inputs)
    return Unit(query.name, query_cost(query, definitions) if cost is None else cost, types)


def _streams(query: Query) -> int:
    """Streams in, and the one out; without `insert into` that has the query's own name, and is none."""
    return len(query.uses) + (query.emits.name != query.name)


def _attributes_in(query: Query, definitions: Mapping[str, EventType]) -> int:
    defined = sum(len(definitions[type].attributes) for type in query.uses if type in definitions)
    unknown = {pattern.role for pattern in query.patterns if pattern.type not in definitions}
    alone = query.patterns[0].role if len(query.patterns) == 1 else None
    spoken = _spoken(expressions(query), alone)
    spoken |= {said for pattern in query.patterns for said in _spoken(pattern.constraints, pattern.role)}
    return defined + sum(role in unknown for role, _ in spoken)


def _spoken(said: Iterable[Expression], own: str | None) -> set[tuple[str | None, str]]:
    """Roles and names of the attributes in expressions; one without a role is of the event called `own`."""
    nodes = (node for expression in said for node in _nodes(expression))
    return {(node.role or own, node.name) for node in nodes if isinstance(node, Attribute)}


def _tests(query: Query) -> Iterator[Expression]:
    """All tests of events: of its patterns, behind its windows, and of its join."""
    for pattern in query.patterns:
        yield from pattern.constraints
    for source in query.sources:
        yield from source.after
    if isinstance(query.input, Join):
        yield from query.input.on


def _nodes(expression: Expression) -> Iterator[Expression]:
    yield expression
    match expression:
        case Negative(operand) | Not(operand):
            yield from _nodes(operand)
        case Arithmetic(_, left, right) | Comparison(_, left, right):
            yield from _nodes(left)
            yield from _nodes(right)
        case And(operands) | Or(operands):
            for operand in operands:
                yield from _nodes(operand)
