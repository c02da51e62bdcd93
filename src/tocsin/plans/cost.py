"""What will it take? Estimates of a rule's state and work from the rates of its events, for `explain` and for placing
rules.

Work is counted in candidates looked at. Without statistics every type is taken to come once a second, an equality to
let one event in ten pass, any other test one in three, and a chain to hold one in a hundred of its buffer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from tocsin.language.rules import Policy
from tocsin.plans.expressions import Apply, Typed
from tocsin.plans.graph import Filter, Lookup, RulePlan
from tocsin.plans.plan import Plan

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
