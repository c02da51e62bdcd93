"""Which queries does VISIRI's evaluation run? Its random generator (Section 4.1), seeded.

A query filters a stream, or aggregates a window of it, or both, and puts that into one of the output streams. *Simple*
queries have one or two conditions and short windows that fill up and empty; *mixed* ones up to ten conditions, as the
paper's samples have eight, and longer windows, sliding ones too. The paper does not say how long windows are: its
samples have 104 and 210 events.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass

from tocsin.events.streams import ATTRIBUTES, VALUE_MAX, stream_types
from tocsin.events.types import EventType, Kind
from tocsin.language.printing_queries import print_definition, print_query
from tocsin.language.queries import Call, Extent, Query, Source, Summary, Window
from tocsin.language.rules import Attribute, Comparison, Expression, Literal, Parameter, Pattern

INPUTS = 1_000
OUTPUTS = 500
OUTPUT_ATTRIBUTES_MAX = 3
SUMMARIES = (Summary.MAX, Summary.SUM, Summary.AVG)


@dataclass(frozen=True, slots=True)
class Shape:
    """How complex queries get: the most conditions, the least and greatest length of windows, and their extents."""

    conditions_max: int
    lengths: tuple[int, int]
    extents: tuple[Extent, ...]


SHAPES = {
    "simple": Shape(2, (5, 50), (Extent.LENGTH_BATCH,)),
    "mixed": Shape(10, (5, 500), (Extent.LENGTH, Extent.LENGTH_BATCH)),
}


def output_types(outputs: int = OUTPUTS) -> tuple[EventType, ...]:
    """The definitions of the output streams, of one to three attributes.

    >>> str(output_types(2)[1])
    'output2(attr1: double, attr2: double)'
    """
    return tuple(
        EventType(
            f"output{number}",
            tuple((name, Kind.DOUBLE) for name in ATTRIBUTES[: 1 + (number - 1) % OUTPUT_ATTRIBUTES_MAX]),
        )
        for number in range(1, outputs + 1)
    )


def generated(
    queries: int, shape: str = "mixed", *, inputs: int = INPUTS, outputs: int = OUTPUTS, seed: int = 1
) -> list[Query]:
    """So many random queries, the same for the same arguments."""
    chance = random.Random(f"{shape} {inputs} {outputs} {seed}")
    into = output_types(outputs)
    return [
        _query(f"q{number}", f"stream{chance.randint(1, inputs)}", chance.choice(into), SHAPES[shape], chance)
        for number in range(1, queries + 1)
    ]


def as_text(queries: Iterable[Query], *, inputs: int = INPUTS, outputs: int = OUTPUTS) -> str:
    """Definitions of all streams, then the queries, as SiddhiQL."""
    defined = [print_definition(stream) for stream in (*stream_types(inputs), *output_types(outputs))]
    return "\n".join((*defined, *(print_query(query).split("\n", 1)[1] for query in queries))) + "\n"


def _query(name: str, stream: str, into: EventType, shape: Shape, chance: random.Random) -> Query:
    filtered, windowed = chance.choice(((True, False), (False, True), (True, True)))
    tests = tuple(_test(chance) for _ in range(chance.randint(1, shape.conditions_max))) if filtered else ()
    attributes = [name for name, _ in into.attributes]
    if not windowed:
        select: list[tuple[str, Expression]] = [(name, Attribute(name)) for name in attributes]
        return Query(name, into, Source(Pattern(stream, tests)), tuple(select))
    window = Window(chance.choice(shape.extents), chance.randint(*shape.lengths))
    function = chance.choice(SUMMARIES)
    calls = tuple(Call(function, Attribute(name)) for name in attributes)
    select = [(name, Parameter(call.name)) for name, call in zip(attributes, calls, strict=True)]
    return Query(name, into, Source(Pattern(stream, tests), window), tuple(select), calls)


def _test(chance: random.Random) -> Comparison:
    bound = Literal(chance.randint(0, VALUE_MAX * 100) / 100, Kind.DOUBLE)
    return Comparison(chance.choice("<>"), Attribute(chance.choice(ATTRIBUTES)), bound)


TABLE_1: tuple[tuple[str, str, float], ...] = (
    (
        "two conditions",
        "from cseEventStream[price==foo.price and foo.try <5 in foo] select symbol, avg(price) as avgPrice",
        3.1986731175506815,
    ),
    (
        "length(10000)",
        "from car [Id >=10]#window.length(10000) select brand,Id insert into filterCar;",
        13.815633550400394,
    ),
    (
        "time(1 year)",
        "from StockExchangeStream[symbol == IBM]#window.time( 1 year ) select max(price) as maxPrice, "
        "avg(price) as avgPrice, min(price) as minPrice insert into IBMStockQuote for all-events",
        31.664045840884167,
    ),
)
"""The sample queries of the paper's Table 1: in short, as printed, and the cost that is printed beside them."""
