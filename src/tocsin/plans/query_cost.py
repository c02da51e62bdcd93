"""What will a SiddhiQL query cost a node? VISIRI's cost model (Section 3.3 of its paper), for placing queries.

    ln( streams in and out + attributes in and out + tests of filters + window )

The paper names these terms and prints the costs of three queries (its Table 1), ln 24.5, ln 1,000,123 and 31.664, but
no weights. The weights here are round numbers with which the first two come out, and the rate that time windows are
taken to have is one with which the third comes close; none of them is a prediction.

A sliding window weighs its events to the power of 1.5, "exponential" as the paper puts it, and one that fills up and
empties just their number, as jumping windows take far less work. Joins and patterns get what their filters, streams and
attributes give, as in the paper.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping

from tocsin.events.types import SECOND_US, EventType
from tocsin.language.queries import Join, Query, Window, expressions
from tocsin.language.rules import And, Arithmetic, Attribute, Comparison, Expression, Negative, Not, Or
from tocsin.plans.placing.units import Input, Unit

STREAM = 10.0
ATTRIBUTE = 0.375
TEST = 1.5
WINDOW = 100.0
SLIDING_POWER = 1.5
EVENTS_PER_S = 50.0
"""How many events a second a time window is taken to hold."""


def query_cost(query: Query, definitions: Mapping[str, EventType] | None = None) -> float:
    """The cost of a query. Of a stream that is not defined, the attributes that the query speaks of are counted."""
    total = STREAM * (len(query.uses) + 1)
    total += ATTRIBUTE * (_attributes_in(query, definitions or {}) + len(query.emits.attributes))
    total += TEST * comparisons(query)
    total += sum(window_cost(source.window) for source in query.sources if source.window is not None)
    return math.log(total)


def window_cost(window: Window) -> float:
    """What a window adds to the sum of which a query's cost is the logarithm."""
    events = window.size / SECOND_US * EVENTS_PER_S if window.extent.timed else float(window.size)
    return WINDOW + (events if window.extent.batched else events**SLIDING_POWER)


def comparisons(query: Query) -> int:
    """How many comparisons its filters make, and its join."""
    given = [test for pattern in query.patterns for test in pattern.constraints]
    given += [test for source in query.sources for test in source.after]
    given += query.input.on if isinstance(query.input, Join) else ()
    return sum(isinstance(node, Comparison) for test in given for node in _nodes(test))


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


def _attributes_in(query: Query, definitions: Mapping[str, EventType]) -> int:
    defined = sum(len(definitions[type].attributes) for type in query.uses if type in definitions)
    unknown = {pattern.role for pattern in query.patterns if pattern.type not in definitions}
    alone = len(query.patterns) == 1
    spoken = {
        (node.role, node.name)
        for expression in (*_constraints(query), *expressions(query))
        for node in _nodes(expression)
        if isinstance(node, Attribute) and (node.role in unknown or (node.role is None and alone and unknown))
    }
    return defined + len(spoken)


def _constraints(query: Query) -> Iterator[Expression]:
    """The tests of patterns, where an attribute without a role is of the pattern's own event."""
    for pattern in query.patterns:
        yield from pattern.constraints


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
