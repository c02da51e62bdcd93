"""SiddhiQL is parsed, and parsing a printed query gives an equal query."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.budget import examples
from tests.strategies_queries import definitions, queries
from tocsin.errors import RuleError
from tocsin.events.types import EventType, Kind
from tocsin.language import guess, parse, print_program, print_rule
from tocsin.language.siddhi.ast import (
    AbsentState,
    Call,
    Chain,
    Every,
    Extent,
    Join,
    Output,
    Pair,
    Query,
    Side,
    Step,
    StreamSource,
    Summary,
    Window,
    expressions,
    indexed,
)
from tocsin.language.syntax.ast import Arithmetic, Attribute, Comparison, Literal, Not, Parameter, Pattern

TABLE_1 = (
    "from cseEventStream[price==foo.price and foo.try <5 in foo] select symbol, avg(price) as avgPrice",
    "from car [Id >=10]#window.length(10000) select brand,Id insert into filterCar;",
    """from StockExchangeStream[symbol == IBM]#window.time( 1 year ) select max(price) as maxPrice,
    avg(price) as avgPrice, min(price) as minPrice insert into IBMStockQuote for all-events""",
)
"""The queries of Table 1 of the paper on VISIRI, as it prints them."""

GENERATED = (
    """from stream2[attr3 < 45.18 and attr1 > 71.6 and attr5 > 63.37 and attr4 > 35.71] select attr1
    insert into stream46""",
    """from stream2[attr4 < 94.05 and attr1 > 83.05]#window.lengthBatch(104) select max(attr1) as attr1,
    max(attr2) as attr2 insert into stream3""",
    "from stream2#window.lengthBatch(210) select max(attr1) as attr1, max(attr2) as attr2 insert into stream14",
)
"""Queries such as the paper's generator makes."""

STREAMS = "define stream S (x int, k string); define stream T (y double, k string);"


def one(text: str, streams: str = STREAMS) -> Query:
    (query,) = parse(streams + text, "siddhi").rules
    assert isinstance(query, Query)
    return query


@pytest.mark.parametrize("text", [*TABLE_1, *GENERATED])
def test_the_papers_queries(text: str) -> None:
    query = one(text, "")
    assert one(print_rule(query), "") == query
    assert guess(text) == "siddhi"


def test_table_1() -> None:
    first, second, third = (one(text, "") for text in TABLE_1)
    assert isinstance(first.input, StreamSource)
    assert first.input.tables == ("foo",)
    assert len(first.input.pattern.constraints) == 2
    assert first.aggregates == (Call(Summary.AVG, Attribute("price")),)
    assert first.emits.name == first.name == "query1"
    assert second.sources[0].window == Window(Extent.LENGTH, 10_000)
    assert third.sources[0].window == Window(Extent.TIME, 365 * 86_400_000_000)
    assert third.output == Output.ALL
    assert [name for name, _ in third.select] == ["maxPrice", "avgPrice", "minPrice"]


@settings(max_examples=examples(200))
@given(st.lists(queries(), min_size=1, max_size=3))
def test_a_printed_query_parses_to_an_equal_query(texts: list[str]) -> None:
    numbered = [text.replace("into O", f"into O{number}") for number, text in enumerate(texts)]
    program = parse(definitions() + ";\n".join(numbered), "siddhi")
    printed = print_program(program)
    assert guess(printed) == "siddhi"
    assert parse(printed) == program
    for rule in program.rules:
        assert one(print_rule(rule), definitions()) == rule


VOCABULARY = (
    *(
        "from",
        "every",
        "not",
        "for",
        "and",
        "or",
        "join",
        "as",
        "on",
        "within",
        "select",
        "group by",
        "having",
        "insert",
    ),
    *(
        "into",
        "define stream",
        "#window.time(1 sec)",
        "[",
        "]",
        "(",
        ")",
        "<2:3>",
        "->",
        ",",
        ";",
        "=",
        "==",
        "*",
        "+",
        "?",
    ),
    *(
        "e1",
        "e1.x",
        "e1[last].x",
        "sum(x)",
        "count()",
        "is null",
        "in foo",
        "1",
        "2L",
        "0.5",
        "'a'",
        "@info(",
        "--",
        "/*",
    ),
)


@settings(max_examples=examples(300))
@given(queries(), st.randoms(use_true_random=False))
def test_a_query_with_typos_parses_or_raises_a_rule_error(query: str, chance: random.Random) -> None:
    text = definitions() + query
    for _ in range(chance.randint(1, 3)):
        start = chance.randint(0, len(text))
        end = min(len(text), start + chance.randint(0, 5))
        text = text[:start] + chance.choice(["", " ", "\n", *VOCABULARY, text[start:end] * 2]) + text[end:]
    try:
        program, mistake = parse(text, "siddhi"), None
    except RuleError as error:
        program, mistake = None, error
    if mistake is not None:
        assert mistake.span is not None
        assert 0 <= mistake.span.start <= mistake.span.end <= len(text)
    if program is not None and program.rules:  # definitions alone are printed as TESLA has them
        assert parse(print_program(program), "siddhi") == program


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"])), st.integers(-(2**63), 2**63 - 1), st.floats())
def test_constants_are_printed_unchanged(text: str, whole: int, real: float) -> None:
    if not abs(real) < float("inf"):
        real = 0.5
    long = Literal(whole, Kind.LONG)
    tests = (Comparison("=", Attribute("k"), Literal(text, Kind.STRING)), Comparison("<", Attribute("x"), long))
    tests += (Comparison(">=", Attribute("x"), Literal(real + 0.0, Kind.DOUBLE)),)
    emits = EventType("O", (("x", Kind.DOUBLE),))
    query = Query("q", emits, StreamSource(Pattern("S", tests)), (("x", Attribute("x")),))
    assert one(print_rule(query), "") == query


def test_kinds_of_streams() -> None:
    program = parse("define stream A (a int, b long, c float, d double, e string, f bool)")
    kinds = (Kind.INT, Kind.LONG, Kind.DOUBLE, Kind.DOUBLE, Kind.STRING, Kind.BOOL)
    assert program.types == (EventType("A", tuple(zip("abcdef", kinds, strict=True))),)


def test_kinds_of_selected_values() -> None:
    query = one(
        """from S select x, x + 1 as a, x / 2 as b, x + 1L as c, x * 0.5 as d, sum(x) as e, avg(x) as f, min(x) as g,
        count() as h, stdDev(x) as i, x > 1 as j, sum(x * 2.0) as l insert into O"""
    )
    short, long, double = Kind.INT, Kind.LONG, Kind.DOUBLE
    expected = [short, short, short, long, double, long, double, short, long, double, Kind.BOOL, double]
    assert [kind for _, kind in query.emits.attributes] == expected


def test_the_output_stream_of_a_query_is_not_a_declared_type() -> None:
    program = parse(STREAMS + "define stream O (x int); from S select x insert into O; from O select x insert into P")
    assert [type.name for type in program.types] == ["S", "T"]
    assert program.rules[1].emits == EventType("P", (("x", Kind.INT),))


def test_queries_can_be_in_any_order() -> None:
    program = parse(STREAMS + "from O select z insert into P; from T select y as z insert into O")
    assert program.rules[0].emits == EventType("P", (("z", Kind.DOUBLE),))


def test_names_of_queries() -> None:
    program = parse(STREAMS + "@info(name='first') from S select x insert into A; from S select x insert into B;")
    assert [rule.name for rule in program.rules] == ["first", "query2"]
    program = parse(STREAMS + "from S select x insert into A; @info(name='query1') from S select x insert into B;")
    assert [rule.name for rule in program.rules] == ["query1_", "query1"]


def test_comments_keywords_and_semicolons() -> None:
    text = "-- streams\nDEFINE STREAM S (x int);; /* and\nqueries */ FROM S -- all\nSELECT x INSERT INTO O;;"
    assert one(text, "").select == (("x", Attribute("x")),)


def test_words_are_keywords_only_where_keywords_are_possible() -> None:
    query = one(
        "from from[select > 1] select select as as, last insert into into", "define stream from (select int, last int);"
    )
    assert query.emits == EventType("into", (("as", Kind.INT), ("last", Kind.INT)))


def test_aggregates_are_separate() -> None:
    query = one("from S select sum(x) * 2 as a, sum(x) as b, count() as n insert into O")
    assert query.aggregates == (Call(Summary.SUM, Attribute("x")), Call(Summary.COUNT))
    assert query.select[0][1] == Arithmetic("*", Parameter("sum(x)"), Literal(2, Kind.INT))
    assert query.select[2][1] == Parameter(query.aggregates[1].name)


def test_durations() -> None:
    query = one("from S#window.time(1 hour 30 min 5 sec 7 milliseconds) select x insert into O")
    assert query.sources[0].window == Window(Extent.TIME, ((90 * 60 + 5) * 1000 + 7) * 1000)
    assert one("from S#window.timeBatch(250) select x insert into O").sources[0].window == Window(
        Extent.TIME_BATCH, 250_000
    )


def test_a_join() -> None:
    query = one(
        "from S#window.length(2) as a unidirectional left outer join T as b on a.k == b.k select x, y insert into O"
    )
    assert isinstance(query.input, Join)
    assert (query.input.outer, query.input.triggers) == (Side.LEFT, Side.LEFT)
    assert query.select == (("x", Attribute("x", "a")), ("y", Attribute("y", "b")))
    assert query.uses == ("S", "T")


def test_a_pattern() -> None:
    query = one(
        """from every (e1=S[x > 1] -> e2=T[y > e1.x]<2:>) -> not S[k == e1.k] for 5 sec -> e3=S and not T within 1 min
        select e1.x, e2[last-1].y, e3 is null as n insert into O"""
    )
    chain = query.input
    assert isinstance(chain, Chain)
    assert not chain.sequence
    assert chain.within_us == 60_000_000
    every, absence, pair = chain.parts
    assert isinstance(every, Every)
    assert isinstance(absence, AbsentState)
    assert isinstance(pair, Pair)
    assert absence.duration_us == 5_000_000
    second = every.states[1]
    assert isinstance(second, Step)
    assert (second.least, second.most) == (2, None)
    assert second.pattern.constraints == (Comparison(">", Attribute("y"), Attribute("x", "e1")),)
    assert query.select[1] == ("y", Attribute("y", "e2[last-1]"))
    there = Attribute("ts", "e3")
    assert query.select[2] == ("n", Not(Comparison("=", there, there)))
    assert query.uses == ("S", "T")


def test_roles_with_an_index() -> None:
    assert [indexed(role) for role in ("e", "e[3]", "e[last]", "e[last-2]")] == [
        ("e", None),
        ("e", 3),
        ("e", -1),
        ("e", -3),
    ]


def test_all_expressions_of_a_query() -> None:
    query = one("from S#window.length(2)[x > 1] select k, sum(x) as s group by k having s > 2 insert into O")
    assert len(list(expressions(query))) == 6


@pytest.mark.parametrize(
    "text", ["define Hot() from Temp(value > 45)", "event Temp(value: double)", "request R on A & B"]
)
def test_other_languages_are_not_guessed_as_siddhi(text: str) -> None:
    assert guess(text) != "siddhi"


def test_unknown_streams_are_allowed_if_none_is_defined() -> None:
    assert one("from Anything select whatever insert into O", "").uses == ("Anything",)
    with pytest.raises(RuleError, match="are not known"):
        one("from Anything select * insert into O", "")
