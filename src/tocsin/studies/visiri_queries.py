"""Generate the random queries of VISIRI's evaluation (Section 4.1) from a seed.

A query filters a stream, or aggregates a window of the stream, or both, and puts the result into one of the output
streams. The numbers are those of the authors' published program, which has a parameter *complexity* c. There are five
kinds of queries, all equally likely:

    two filter only            int(2c) conditions, int(3c) conditions
    one has a window only      5 to 4 + int(300c) events
    two have both              int(2c) conditions

*Mixed* queries have c = 4.1, as in the program. They have 8 or 12 conditions (the paper's samples have 8), and windows
of up to 1,234 events, of which 12 in 100 slide. The paper says that *simple* queries have "around two" conditions, and
smaller windows that fill up and empty. Here they have c = 1.

Two things differ from the program. Input streams have five attributes, where the program has three to five; in the cost
model, an attribute adds a tenth to a sum of more than 20. And a window gives the maximum, the sum or the average, as
the paper says, where the program only has the maximum.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass

from tocsin.datasets import ATTRIBUTES, VALUE_MAX, stream_types
from tocsin.events.types import EventType, Kind
from tocsin.language.siddhi.ast import Call, Extent, Query, StreamSource, Summary, Window
from tocsin.language.siddhi.printer import print_definition, print_query
from tocsin.language.syntax.ast import Attribute, Comparison, Expression, Literal, Parameter, Pattern

INPUTS = 1_000
OUTPUTS = 500
OUTPUT_ATTRIBUTES_MAX = 3
SUMMARIES = (Summary.MAX, Summary.SUM, Summary.AVG)


LENGTH_MIN, LENGTHS, LENGTHS_MAX = 5, 300, 2_000
KINDS = ((2, False), (3, False), (0, True), (2, True), (2, True))
"""The five kinds of queries: the number of conditions per unit of complexity, and whether the query has a window."""


@dataclass(frozen=True, slots=True)
class QueryShape:
    """The complexity of generated queries, and the share of their windows that slide."""

    complexity: float
    sliding: float

    def conditions(self, by: int) -> int:
        """Return the number of conditions of a filter that has `by` conditions per unit of complexity."""
        return int(by * self.complexity)

    @property
    def lengths(self) -> range:
        """The possible numbers of events in a window."""
        return range(LENGTH_MIN, LENGTH_MIN + min(int(LENGTHS * self.complexity), LENGTHS_MAX))


SHAPES = {"simple": QueryShape(1.0, 0.0), "mixed": QueryShape(4.1, 0.12)}


def output_types(outputs: int = OUTPUTS) -> tuple[EventType, ...]:
    """Return the definitions of the output streams, which have one to three attributes each.

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
    """Return `queries` random queries of the given shape. The same arguments give the same queries."""
    rng = random.Random(f"{shape} {inputs} {outputs} {seed}")
    into = output_types(outputs)
    return [
        _query(f"q{number}", f"stream{rng.randint(1, inputs)}", rng.choice(into), SHAPES[shape], rng)
        for number in range(1, queries + 1)
    ]


def as_text(queries: Iterable[Query], *, inputs: int = INPUTS, outputs: int = OUTPUTS) -> str:
    """Print the definitions of all streams, then the queries, as SiddhiQL."""
    defined = [print_definition(stream) for stream in (*stream_types(inputs), *output_types(outputs))]
    return "\n".join((*defined, *(print_query(query).split("\n", 1)[1] for query in queries))) + "\n"


def _query(name: str, stream: str, into: EventType, shape: QueryShape, rng: random.Random) -> Query:
    by, windowed = rng.choice(KINDS)
    tests = tuple(_test(rng) for _ in range(shape.conditions(by)))
    attributes = [name for name, _ in into.attributes]
    if not windowed:
        select: list[tuple[str, Expression]] = [(name, Attribute(name)) for name in attributes]
        return Query(name, into, StreamSource(Pattern(stream, tests)), tuple(select))
    extent = Extent.LENGTH if rng.random() < shape.sliding else Extent.LENGTH_BATCH
    window = Window(extent, rng.choice(shape.lengths))
    function = rng.choice(SUMMARIES)
    calls = tuple(Call(function, Attribute(name)) for name in attributes)
    select = [(name, Parameter(call.name)) for name, call in zip(attributes, calls, strict=True)]
    return Query(name, into, StreamSource(Pattern(stream, tests), window), tuple(select), calls)


def _test(rng: random.Random) -> Comparison:
    bound = Literal(rng.randint(0, VALUE_MAX * 100) / 100, Kind.DOUBLE)
    return Comparison(rng.choice("<>"), Attribute(rng.choice(ATTRIBUTES)), bound)


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
"""The sample queries of the paper's Table 1: a short label, the text as printed, and the printed cost."""
