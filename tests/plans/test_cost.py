"""The cost model orders queries as in VISIRI's Section 3.3, and gives the costs printed in the paper."""

from __future__ import annotations

import math

import pytest

from tocsin.events.types import EventType, Kind
from tocsin.language.siddhi import parser
from tocsin.language.siddhi.ast import Query
from tocsin.plans.cost import as_unit, comparisons, names, query_cost
from tocsin.studies.visiri_queries import TABLE_1


def query(text: str) -> Query:
    (found,) = parser.parse(text).rules
    assert isinstance(found, Query)
    return found


def cost(text: str) -> float:
    return query_cost(query(text))


def test_the_table_of_the_paper() -> None:
    """As in the tests of the authors' program, where input streams have three attributes."""
    costs = []
    for _, text, _ in TABLE_1:
        found = query(text)
        attributes = tuple((name, Kind.DOUBLE) for name in ("one", "two", "three"))
        costs.append(query_cost(found, {stream: EventType(stream, attributes) for stream in found.uses}))
        assert query_cost(found) == pytest.approx(costs[-1], rel=0.002)
    (_, _, first), (_, _, second), _ = TABLE_1
    assert costs[:2] == pytest.approx([first, second], rel=1e-15)
    assert [first, second] == pytest.approx([math.log(24.5), math.log(1_000_123)], rel=1e-15)
    assert costs[2] == pytest.approx(1.5 * math.log(365 * 24 * 3600 * 1000), rel=1e-12)


def test_the_printed_cost_of_a_year_is_that_of_its_32_bit_overflow() -> None:
    _, text, printed = TABLE_1[2]
    assert "1 year" in text
    left = 365 * 24 * 60 * 60_000 % 2**32
    assert left < 2**31
    assert cost(text.replace("1 year", f"{left} milliseconds")) == pytest.approx(printed, rel=1e-15)


@pytest.mark.parametrize(
    ("cheaper", "dearer"),
    [
        ("S[a > 1] select a", "S[a > 1 and b > 2] select a"),
        ("S[a > 1] select a", "S[a > 1] select a, b"),
        ("S[a > 1] select a", "S[a > 1]#window.lengthBatch(10) select max(a) as a"),
        ("S#window.lengthBatch(10) select max(a) as a", "S#window.lengthBatch(100) select max(a) as a"),
        ("S[a > 1] select a", "S[a > 1 in T] select a"),
        ("S#window.time(1 min) select max(a) as a", "S#window.time(2 min) select max(a) as a"),
        ("S#window.length(5) select a", "S#window.length(5) join T#window.length(5) on S.a == T.a select S.a as a"),
        ("every e1=S[a > 1] select e1.a as a", "every e1=S[a > 1] -> e2=T[a > 1] select e1.a as a"),
    ],
)
def test_cheaper_and_more_expensive_queries(cheaper: str, dearer: str) -> None:
    assert cost(f"from {cheaper} insert into Out") < cost(f"from {dearer} insert into Out")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("length(10)", "lengthBatch(10)"),
        ("time(1 sec)", "timeBatch(1 sec)"),
        ("length(1000)", "time(1 sec)"),
    ],
)
def test_windows_that_cost_the_same(one: str, other: str) -> None:
    first, second = (cost(f"from S#window.{window} select max(a) as a insert into Out") for window in (one, other))
    assert first == second


def test_definitions_count_all_their_attributes() -> None:
    found = query("from S select a insert into Out")
    text = "define stream S (a double, b double, c double); from S select a insert into Out"
    definitions = {stream.name: stream for stream in parser.parse(text).types}
    assert query_cost(found, definitions) > query_cost(found)


def test_all_tests_are_counted() -> None:
    found = query("from S[a > 1 and (b < 2 or not (c == 3))]#window.length(5)[a < 9] select a insert into Out")
    assert comparisons(found) == 4


@pytest.mark.parametrize(
    ("filter", "expected"),
    [
        ("price == foo.price and foo.try < 5 in foo", 6),
        ("a > 1 and a < b * 2", 3),
        ("not (a == 3) or a > 5", 2),
    ],
)
def test_names_in_a_filter(filter: str, expected: int) -> None:
    assert names(query(f"from S[{filter}] select a insert into Out")) == expected


def test_every_term_has_its_weight() -> None:
    text = "from S[a > 1]#window.length(4) join T[b < 2]#window.time(9 millisec) on S.a == T.a select S.a as a"
    streams, attributes, names, windows = 3, 4, 6, 100 + 4**1.5 + 100 + 9**1.5
    expected = math.log(10 + streams + 0.1 * attributes + 10 + 0.5 * names + windows)
    assert cost(f"{text} insert into Out") == pytest.approx(expected, rel=1e-15)


def test_a_query_as_a_unit() -> None:
    unit = as_unit(query("@info(name='q') from S#window.length(5) join T on S.a == T.a select S.a as a insert into O"))
    assert (unit.name, unit.types) == ("q", ("S", "T"))
    assert as_unit(query("@info(name='q') from S select a insert into O"), cost=7.0).cost == 7.0
