"""Estimate the cost of rules, the rates of their matches, and the cost of queries by VISIRI's model.

`rule_cost` and `plan_cost` estimate the state and the work of rules from event rates. The estimates are used by
`explain` and to place rules. Work is the number of candidates that are examined. By default, each type has one event
per second, an equality passes one event in ten, any other test passes one event in three, and a key selects one in a
hundred events of a buffer.

`MatchProbabilities` estimates the rates of matches, and of the events that partial rules send. It assumes that the
events of each type arrive independently at a constant rate (Poisson). So a window W has an event of rate r with
probability 1 - exp(-rW). The match rate of a sequence with `last` is exact. Other rates are approximate, because they
ignore that two roles can use the same event.

`query_cost` is VISIRI's cost model for the placement of SiddhiQL queries (Section 3.3 of its paper):

    ln( 10 + streams in and out + 0.1 × attributes in and out
           + 10 + 0.5 × names in filters    if it filters
           + 100 + size^1.5                 for each window )

The terms come from the paper, and the weights from the authors' published program. Together they reproduce Table 1 of
the paper. The size of a window is its number of events or of milliseconds, whether the window slides or not. A name is
an identifier in the text: `price` counts as one name, `foo.price` as two, and the table in `in foo` as one.

For joins and patterns, all streams, attributes, tests and windows are counted, including the join condition. In
contrast, the authors' program counts only the first filter of a join or pattern.
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
from tocsin.plans.bind.structure import PatternTree, equation, parameters
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
    """The event rates per second of each type. Types that are not in `rates` have the rate `default_rate`."""

    rates: Mapping[str, float] = field(default_factory=dict)
    default_rate: float = 1.0

    def rate(self, node: Filter) -> float:
        """Return the estimated number of events per second that pass the filter `node`."""
        rate = self.rates.get(node.type, self.default_rate)
        return rate * math.prod(selectivity(condition) for condition in node.conditions)


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of rules: the number of retained events, their bytes, and the candidates examined per second."""

    rows: float
    bytes: float
    candidates: float


def selectivity(condition: Typed) -> float:
    """Return the estimated fraction of events that meet a condition."""
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


def buffered_events(lookup: Lookup, statistics: Statistics) -> float:
    """Return the estimated number of events that a buffer retains for `lookup`."""
    return statistics.rate(lookup.buffer.filter) * lookup.retention_us / SECOND_US


def window_events(plan: RulePlan, statistics: Statistics) -> float:
    """Return the estimated number of events in the windows or the runs of a query; 0 for other statements."""
    if plan.windowed is None:
        return 0.0
    joined, chained = plan.windowed.joined, plan.windowed.chained
    if chained is not None:  # each run holds at least one event
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
    """Return the estimated cost of one rule, if it shares no buffers with other rules."""
    if plan.windowed is not None:
        rate, rows = statistics.rate(plan.anchor), window_events(plan, statistics)
        # With a window, each event is processed when it arrives and when it expires.
        work = rate * (1 + len(plan.windowed.calls)) * (2 if any(plan.windowed.windows) else 1)
        if plan.windowed.joined is not None:
            work *= 1 + rows * KEY ** len(plan.windowed.joined.keys)
        elif plan.windowed.chained is not None:  # each event is tested against the runs that wait at its stages
            stages = plan.windowed.chained.stages
            waiting = [rows / len(stages) * KEY ** len(stage.keys) for stage in stages]
            work = sum(statistics.rate(stage.filter) * (1 + n) for stage, n in zip(stages, waiting, strict=True))
        return Cost(rows, rows * (ROW_BYTES + WORD_BYTES + ENTRY_BYTES), work)
    rows = sum(buffered_events(lookup, statistics) for lookup in plan.lookups)
    combinations = statistics.rate(plan.anchor)
    candidates = combinations
    if plan.context is not None:  # each event is examined once
        horizon_s = plan.context.window_us / SECOND_US
        candidates = sum(statistics.rate(filter) for filter in plan.context.filters)
        rows = candidates * horizon_s
    for step in plan.steps:
        reached = buffered_events(step.lookup, statistics) * KEY ** len(step.lookup.keys)
        if plan.request_join is not None:  # a search, which does not enumerate combinations
            candidates += combinations * reached
        elif step.policy == Policy.EACH:
            candidates += combinations * reached
            combinations *= reached
        else:
            candidates += combinations * min(reached, step.count)
            combinations *= min(reached, step.count)
        candidates += combinations * len(step.role_conditions)
    width = len({(leaf.attribute) for lookup in plan.lookups for leaf in lookup.buffer.keys})
    return Cost(rows, rows * (ROW_BYTES + WORD_BYTES * max(width, 1) + ENTRY_BYTES), candidates)


def plan_cost(plan: Plan, statistics: Statistics) -> Cost:
    """Return the estimated cost of all rules. A buffer that rules share is counted once."""
    rows = sum(
        statistics.rate(buffer.filter) * retention_us / SECOND_US for buffer, retention_us in plan.buffers.items()
    )
    rows += sum(window_events(rule, statistics) for rule in plan.rules)
    width = max((len(columns) for columns in plan.columns.values()), default=0)
    candidates = sum(rule_cost(rule, statistics).candidates for rule in plan.rules)
    return Cost(rows, rows * (ROW_BYTES + WORD_BYTES * width + ENTRY_BYTES), candidates)


@dataclass(frozen=True)
class Load:
    """The events per second of each type, and the values of attributes.

    `values` has all values of an attribute with strings, or the smallest and the largest value of one with numbers.
    """

    rates: Mapping[str, float]
    values: Mapping[str, Sequence[str | float]] = field(default_factory=dict)

    def share(self, pattern: Pattern, binds: Callable[[Expression], bool] = lambda _: True) -> float:
        """Return the fraction of the events of a pattern's type that meet the constraints of the pattern.

        `binds` returns whether a constraint with a parameter only binds the parameter, and so passes every event.
        """
        fraction = 1.0
        for constraint in pattern.constraints:
            if parameters(constraint):
                both = equation(constraint)
                if both is None:
                    fraction *= OTHER
                elif not binds(constraint):
                    known = self.values.get(both[0], ())
                    fraction *= 1 / len(known) if known and isinstance(known[0], str) else EQUALITY
            else:
                fraction *= self._passing(constraint)
        return fraction

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
        """Return the number of events per second that meet the constraints of a pattern."""
        return self.rates.get(pattern.type, 0.0) * self.share(pattern)


class MatchProbabilities:
    """The probabilities that the patterns of a rule have events. Methods identify a pattern by its node in the tree."""

    def __init__(self, rule: Rule, load: Load) -> None:
        self.tree, self.load = PatternTree(rule), load
        self.children: dict[str, list[str]] = {}
        for node in self.tree.patterns:
            parent = self.tree.parent(node)
            if parent is not None:
                self.children.setdefault(parent, []).append(node)

    def rate(self, node: str) -> float:
        """Return the number of candidates per second for `node`, given the events of its ancestors."""
        pattern = self.tree.patterns[node]
        before: set[str] = set()

        def binds(constraint: Expression) -> bool:
            return self.tree.binds(node, constraint, before)

        return self.load.rates.get(pattern.type, 0.0) * self.load.share(pattern, binds)

    def _expected(self, node: str) -> float:
        """Return the expected number of candidates in the window of `node`."""
        return self.rate(node) * self.tree.window_us(node) / SECOND_US

    def _factor(self, node: str, *, number: bool) -> float:
        """Return the factor by which the clause of `node` changes the number of matches (if `number`).

        Otherwise, return the probability that the clause is met.
        """
        clause = self.tree.clauses[node]
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
        """The number of matches per second."""
        return self.rate(self.tree.anchor) * math.prod(self._factor(node, number=True) for node in self.tree.clauses)

    def _below(self, node: str, but: str | None = None) -> float:
        """Return the probability that all descendants of `node` have events, except those below the child `but`."""
        return math.prod(
            self._factor(child, number=False) * self._below(child)
            for child in self.children.get(node, ())
            if child != but
        )

    def used(self, node: str) -> float:
        """Return the probability that a candidate for the role `node` is in a match."""
        return self._above(node) * self._below(node)

    def _above(self, node: str) -> float:
        parent = self.tree.parent(node)
        if parent is None:
            return 1.0
        wanting = self.rate(parent) * self._above(parent) * self._below(parent, node)
        window_s, own = self.tree.window_us(node) / SECOND_US, self.rate(node)
        clause = self.tree.clauses[node]
        if isinstance(clause, Selection) and clause.policy is Policy.LAST and clause.count <= 1:
            both = wanting + own
            return wanting / both * (1 - math.exp(-both * window_s)) if both else 0.0
        return 1 - math.exp(-wanting * window_s)


def sent(part: Partial, load: Load) -> dict[str, float]:
    """Return the probability that an event is sent to the parent for the partial rule `part`, by event type."""
    chances = MatchProbabilities(part.rule, load)
    probabilities: dict[str, float] = {}
    for role in part.sends:
        pattern = chances.tree.patterns[role]
        used = chances.used(role)
        if role == chances.tree.anchor and part.blocks_us:
            heads = chances.rate(role) * used
            blocked = 1.0 if part.blocks_us >= FOREVER_US else 1 - math.exp(-heads * part.blocks_us / SECOND_US)
            used += (1 - used) * blocked
        meets = used * load.share(pattern)
        probabilities[pattern.type] = 1 - (1 - probabilities.get(pattern.type, 0.0)) * (1 - meets)
    return probabilities


QUERY = 10.0
STREAM = 1.0
ATTRIBUTE = 0.1
FILTER, NAME = 10.0, 0.5
WINDOW, WINDOW_POWER = 100.0, 1.5
MS_US = 1_000


def query_cost(query: Query, definitions: Mapping[str, EventType] | None = None) -> float:
    """Return the cost of a query by VISIRI's model.

    If a stream is not in `definitions`, only the attributes that the query uses are counted.
    """
    total = QUERY + STREAM * _streams(query)
    total += ATTRIBUTE * (_attributes_in(query, definitions or {}) + len(query.emits.attributes))
    if count := names(query):
        total += FILTER + NAME * count
    total += sum(window_cost(source.window) for source in query.sources if source.window is not None)
    return math.log(total)


def window_cost(window: Window) -> float:
    """Return the term for `window` in the sum whose logarithm is the cost of a query."""
    size = window.size / MS_US if window.extent.timed else float(window.size)
    return WINDOW + math.pow(size, WINDOW_POWER)


def names(query: Query) -> int:
    """Return the number of names in the filters of a query."""
    attributes = (node for test in _tests(query) for node in _nodes(test) if isinstance(node, Attribute))
    return sum(1 if node.role is None else 2 for node in attributes) + sum(
        len(source.tables) for source in query.sources
    )


def comparisons(query: Query) -> int:
    """Return the number of comparisons in the filters and the join condition of a query."""
    return sum(isinstance(node, Comparison) for test in _tests(query) for node in _nodes(test))


def as_unit(
    query: Query,
    definitions: Mapping[str, EventType] | None = None,
    *,
    cost: float | None = None,
    inputs: Iterable[Input] | None = None,
) -> Unit:
    """Return a query as a unit for placement.

    `cost` and `inputs` are measured values. By default, the cost comes from the model, and the inputs are all events of
    the streams.
    """
    types = tuple(Input(type) for type in query.uses) if inputs is None else tuple(inputs)
    return Unit(query.name, query_cost(query, definitions) if cost is None else cost, types)


def _streams(query: Query) -> int:
    """Return the number of input and output streams.

    Without `insert into`, the output has the name of the query and does not count.
    """
    return len(query.uses) + (query.emits.name != query.name)


def _attributes_in(query: Query, definitions: Mapping[str, EventType]) -> int:
    defined = sum(len(definitions[type].attributes) for type in query.uses if type in definitions)
    unknown = {pattern.role for pattern in query.patterns if pattern.type not in definitions}
    alone = query.patterns[0].role if len(query.patterns) == 1 else None
    attributes = _mentioned(expressions(query), alone)
    attributes |= {
        attribute for pattern in query.patterns for attribute in _mentioned(pattern.constraints, pattern.role)
    }
    return defined + sum(role in unknown for role, _ in attributes)


def _mentioned(terms: Iterable[Expression], own: str | None) -> set[tuple[str | None, str]]:
    """Return the role and name of each attribute in `terms`. An attribute without a role belongs to the role `own`."""
    nodes = (node for expression in terms for node in _nodes(expression))
    return {(node.role or own, node.name) for node in nodes if isinstance(node, Attribute)}


def _tests(query: Query) -> Iterator[Expression]:
    """Yield all tests of events in a query: those of patterns, after windows, and of the join condition."""
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
