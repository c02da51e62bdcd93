"""Does the cost model order queries as VISIRI's Section 3.3 does, and give the costs that are printed?"""

from __future__ import annotations

import math

import pytest

from tocsin.language import siddhi
from tocsin.language.queries import Query
from tocsin.plans.query_cost import as_unit, comparisons, query_cost
from tocsin.studies.visiri.queries import TABLE_1


def query(text: str) -> Query:
    (found,) = siddhi.parse(text).rules
    assert isinstance(found, Query)
    return found


def cost(text: str) -> float:
    return query_cost(query(text))


def test_the_table_of_the_paper() -> None:
    first, second, third = (cost(text) for _, text, _ in TABLE_1)
    assert first == pytest.approx(math.log(24.5), rel=0.01)
    assert second == pytest.approx(math.log(1_000_123), rel=0.01)
    assert first < second < third


@pytest.mark.parametrize(
    ("cheaper", "dearer"),
    [
        ("S[a > 1] select a", "S[a > 1 and b > 2] select a"),
        ("S[a > 1] select a", "S[a > 1] select a, b"),
        ("S[a > 1] select a", "S[a > 1]#window.lengthBatch(10) select max(a) as a"),
        ("S#window.lengthBatch(10) select max(a) as a", "S#window.lengthBatch(100) select max(a) as a"),
        ("S#window.lengthBatch(10) select max(a) as a", "S#window.length(10) select max(a) as a"),
        ("S#window.timeBatch(1 min) select max(a) as a", "S#window.time(1 min) select max(a) as a"),
        ("S#window.time(1 min) select max(a) as a", "S#window.time(2 min) select max(a) as a"),
        ("S#window.length(5) select a", "S#window.length(5) join T#window.length(5) on S.a == T.a select S.a as a"),
        ("every e1=S[a > 1] select e1.a as a", "every e1=S[a > 1] -> e2=T[a > 1] select e1.a as a"),
    ],
)
def test_what_costs_more(cheaper: str, dearer: str) -> None:
    assert cost(f"from {cheaper} insert into Out") < cost(f"from {dearer} insert into Out")


def test_definitions_count_all_their_attributes() -> None:
    found = query("from S select a insert into Out")
    text = "define stream S (a double, b double, c double); from S select a insert into Out"
    definitions = {stream.name: stream for stream in siddhi.parse(text).types}
    assert query_cost(found, definitions) > query_cost(found)


def test_tests_are_counted_wherever_they_stand() -> None:
    found = query("from S[a > 1 and (b < 2 or not (c == 3))]#window.length(5)[a < 9] select a insert into Out")
    assert comparisons(found) == 4


def test_a_query_as_a_unit() -> None:
    unit = as_unit(query("@info(name='q') from S#window.length(5) join T on S.a == T.a select S.a as a insert into O"))
    assert (unit.name, unit.types) == ("q", ("S", "T"))
    assert as_unit(query("@info(name='q') from S select a insert into O"), cost=7.0).cost == 7.0
