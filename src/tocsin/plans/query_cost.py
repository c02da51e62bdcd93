"""What will a SiddhiQL query cost a node? VISIRI's cost model (Section 3.3 of its paper), for placing queries.

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
from collections.abc import Iterable, Iterator, Mapping

from tocsin.events.types import EventType
from tocsin.language.queries import Join, Query, Window, expressions
from tocsin.language.rules import And, Arithmetic, Attribute, Comparison, Expression, Negative, Not, Or
from tocsin.plans.placing.units import Input, Unit

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
