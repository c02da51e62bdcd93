"""Which queries does VISIRI's evaluation run? Its random generator (Section 4.1), seeded.

A query filters a stream, or aggregates a window of it, or both, and puts that into one of the output streams. The
numbers are those of the authors' published program, which has a *complexity* c. Of five kinds, all equally likely,

    two filter only            int(2c) conditions, int(3c) conditions
    one has a window only      5 to 4 + int(300c) events
    two have both              int(2c) conditions

*Mixed* queries have c = 4.1, as the program: 8 or 12 conditions (the paper's samples have 8), and windows of up to
1,234 events, of which 12 in 100 slide. What the paper calls *simple*, "around two" conditions and smaller windows that
fill up and empty, is taken to be c = 1.

Two things differ. Input streams have five attributes, where the program has three to five; to the cost model an
attribute is a tenth in a sum of more than 20. And a window gives the maximum, the sum or the average, as the paper
says; the program knows the maximum only.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass

from tocsin.datasets import ATTRIBUTES, VALUE_MAX, stream_types
from tocsin.events.types import EventType, Kind
from tocsin.language.siddhi.ast import Call, Extent, Query, Source, Summary, Window
from tocsin.language.siddhi.printer import print_definition, print_query
from tocsin.language.syntax.ast import Attribute, Comparison, Expression, Literal, Parameter, Pattern

INPUTS = 1_000
OUTPUTS = 500
OUTPUT_ATTRIBUTES_MAX = 3
SUMMARIES = (Summary.MAX, Summary.SUM, Summary.AVG)


LENGTH_MIN, LENGTHS, LENGTHS_MAX = 5, 300, 2_000
KINDS = ((2, False), (3, False), (0, True), (2, True), (2, True))
"""Conditions for each unit of complexity, and whether there is a window."""


@dataclass(frozen=True, slots=True)
class Shape:
    """How complex queries are, and which share of the windows slides."""

    complexity: float
    sliding: float

    def conditions(self, by: int) -> int:
        """How many conditions a filter has."""
        return int(by * self.complexity)

    @property
    def lengths(self) -> range:
        """How many events a window may have."""
        return range(LENGTH_MIN, LENGTH_MIN + min(int(LENGTHS * self.complexity), LENGTHS_MAX))


SHAPES = {"simple": Shape(1.0, 0.0), "mixed": Shape(4.1, 0.12)}


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
    by, windowed = chance.choice(KINDS)
    tests = tuple(_test(chance) for _ in range(shape.conditions(by)))
    attributes = [name for name, _ in into.attributes]
    if not windowed:
        select: list[tuple[str, Expression]] = [(name, Attribute(name)) for name in attributes]
        return Query(name, into, Source(Pattern(stream, tests)), tuple(select))
    extent = Extent.LENGTH if chance.random() < shape.sliding else Extent.LENGTH_BATCH
    window = Window(extent, chance.choice(shape.lengths))
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
