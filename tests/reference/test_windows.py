"""The semantics of SiddhiQL queries: each file of tests/golden/siddhi is a case that Siddhi 5.1.30 answered.

A file has definitions and queries, events, and the rows that Siddhi emitted when its clock ticked every millisecond.
docs/design says where we differ from Siddhi on purpose, and why; the tests below say what we do.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from hypothesis import given, settings

from tests.budget import examples
from tests.conftest import GOLDEN
from tests.strategies_queries import Case, cases
from tocsin.errors import RuleError
from tocsin.events.formats import read_events
from tocsin.events.types import Event, Value
from tocsin.language import parse
from tocsin.language.siddhi.ast import Query
from tocsin.reference.patterns import Fact, detect, identified
from tocsin.reference.windows import QueryRow, composed, rows

NAMES = sorted(path.stem for path in (GOLDEN / "siddhi").glob("*.txt"))


def answers(text: str, events: Sequence[Event]) -> list[tuple[Query, QueryRow]]:
    """Return the rows of all queries of a text, query by query."""
    facts: list[Fact] = identified(events)
    last_ts = max(event.ts for event in events)
    found = []
    for query in parse(text, "siddhi").rules:
        assert isinstance(query, Query)
        facts.sort(key=lambda fact: fact.key)
        found += [(query, row) for row in rows(query, facts, last_ts)]
        facts += [fact for fact, _ in composed(query, facts, last_ts)]
    return found


def shown(query: Query, row: QueryRow) -> str:
    values = zip((name for name, _ in query.select), row.values, strict=True)
    listed = ", ".join(f"{name}={_literal(value)}" for name, value in values)
    return f"{row.query} {row.ts} {'expired' if row.expired else 'current'} {listed}"


def _literal(value: Value) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return f'"{value}"' if isinstance(value, str) else repr(value)


@pytest.mark.parametrize("name", NAMES)
def test_answers_equal_those_of_siddhi(name: str) -> None:
    text, events, expected = (GOLDEN / "siddhi" / f"{name}.txt").read_text("utf-8").split("---\n")
    found = [shown(query, row) for query, row in answers(text, read_events(events))]
    assert found == expected.splitlines()


def test_there_are_many_cases() -> None:
    assert len(NAMES) >= 150


def values(text: str, events: str) -> list[tuple[int, tuple[Value, ...]]]:
    stream = "define stream S (x int, k string); define stream T (y int, k string); define stream D (d double);"
    return [(row.ts, row.values) for _, row in answers(f"{stream}{text}", read_events(events))]


def test_sums_are_exact() -> None:
    found = values(
        "from D#window.length(2) select sum(d) as s, avg(d) as a insert into O",
        "D@1(d=1e100) D@2(d=1.0) D@3(d=0.1) D@4(d=0.2)".replace(" D", "\nD"),
    )
    assert [row for _, row in found] == [
        (1e100, 1e100),
        (1e100, 5e99),
        (1.1, 0.55),
        (math.fsum((0.1, 0.2)), 0.15000000000000002),
    ]


def test_a_deviation_is_never_negative() -> None:
    events = "\n".join(f"D@{ts}(d={value})" for ts, value in enumerate((0.1, 0.1, 0.1, 1e9, 0.1, 0.1, 0.1)))
    found = values("from D#window.length(3) select stdDev(d) as s insert into O", events)
    assert found[-1] == (6, (0.0,))


def test_a_minimum_is_over_the_events_in_the_window() -> None:
    events = "D@0(d=1.5)\nD@0#1(d=1.0)\nD@3(d=1.5)\nD@5(d=9.0)"
    found = values("from D#window.time(4 us) select d, min(d) as m insert expired events into O", events)
    assert found == [(4, (1.0, 1.5))]


def test_a_batch_ends_even_if_its_first_event_fails_the_test_after_the_window() -> None:
    events = "\n".join(f"S@{ts}(x={x})" for ts, x in enumerate((5, 6, 1, 7)))
    found = values("from S#window.lengthBatch(2)[x > 1] select sum(x) as s insert into O", events)
    assert found == [(1, (11,)), (3, (7,))]


def test_a_join_sees_only_the_last_batch() -> None:
    events = "S@1(x=1)\nS@2(x=2)\nT@3(y=0)"
    found = values(
        "from S#window.lengthBatch(1) as a join T#window.length(1) as b select a.x as x insert into O", events
    )
    assert found == [(3, (2,))]


def test_the_events_of_a_pair_come_in_any_order() -> None:
    events = "T@1(y=1)\nS@2(x=2)\nS@3(x=3)\nT@4(y=4)"
    found = values("from every (e1=S and e2=T) select e1.x as x, e2.y as y insert into O", events)
    assert found == [(2, (2, 1)), (4, (3, 4))]


def test_within_ends_the_runs_of_every() -> None:
    events = "S@0(x=1)\nT@1(y=1)\nT@3(y=3)\nT@4(y=4)"
    found = values("from e1=S -> every e2=T within 3 us select e2.y as y insert into O", events)
    assert found == [(1, (1,)), (3, (3,))]


def test_complete_runs_do_not_expire() -> None:
    events = "S@0(x=1)\nS@5(x=2)\nT@10(y=3)"
    found = values("from every (e1=S or e2=T) within 3 us select e1.x as x, e2.y as y insert into O", events)
    assert found == [(0, (1, None)), (5, (2, None)), (10, (None, 3))]


def test_a_sequence_can_end_with_a_count_or_need_two() -> None:
    events = "S@1(x=1)\nT@2(y=2)\nT@3(y=3)\nS@4(x=4)"
    last = values("from every e1=S, e2=T+ select e1.x as x, e2[last].y as y insert into O", events)
    two = values("from every e1=S, e2=T<2>, e3=S select e1.x as x, e2[1].y as y, e3.x as z insert into O", events)
    assert last == [(2, (1, 2))]
    assert two == [(4, (1, 3, 4))]


def test_an_absence_at_the_start_waits_until_it_is_quiet() -> None:
    events = "S@0(x=1)\nS@2(x=2)\nT@4(y=3)\nT@5(y=4)"
    found = values("from not S for 3 us -> e=T select e.y as y insert into O", events)
    assert found == [(5, (4,))]


def test_rows_of_batches_have_the_time_of_their_emission() -> None:
    found = values("from S#window.lengthBatch(2) select x insert into O", "S@1(x=1)\nS@5(x=2)")
    assert found == [(5, (1,)), (5, (2,))]


def test_a_query_with_a_table_cannot_run() -> None:
    with pytest.raises(RuleError, match="there are no tables") as caught:
        values("from S[x == foo.x in foo] select x insert into O", "S@1(x=1)")
    assert caught.value.span is not None


def test_queries_beside_rules() -> None:
    queries = parse("define stream S (x int); from S#window.length(2) select sum(x) as s insert into Sum")
    rules = parse("define Large(s: long) from Sum(s > 4) where s = Sum.s")
    events = [Event("S", ts, {"x": ts}) for ts in range(1, 5)]
    found = detect([*rules.rules, *queries.rules], events)
    assert [(match.type, match.ts, match.attributes["s"]) for match in found if match.type == "Large"] == [
        ("Large", 3, 5),
        ("Large", 4, 7),
    ]
    assert len({match.id for match in found}) == len(found)


@settings(max_examples=examples(60))
@given(cases())
def test_events_in_any_order_give_the_same_rows(case: Case) -> None:
    """Arrival order never matters: only ts and seq do."""
    assert answers(case.text, case.events[::-1]) == answers(case.text, case.events)


@settings(max_examples=examples(60))
@given(cases())
def test_rows_come_in_order_and_later_events_change_none_of_them(case: Case) -> None:
    for query in parse(case.text, "siddhi").rules:
        assert isinstance(query, Query)
        facts = sorted(identified(case.events), key=lambda fact: fact.key)
        whole = rows(query, facts, case.events[-1].ts)
        assert [(row.ts, row.seq) for row in whole] == sorted((row.ts, row.seq) for row in whole)
        assert len({row.id for row in whole}) == len(whole)
        for split in range(1, len(facts)):
            cut_ts = facts[split].ts - 1
            before = rows(query, [fact for fact in facts if fact.ts <= cut_ts], cut_ts)
            assert before == [row for row in whole if row.ts <= cut_ts]


@settings(max_examples=examples(60))
@given(cases())
def test_all_events_are_the_current_and_the_expired_events(case: Case) -> None:
    """Without aggregates and groups, of which a chunk has one row, no row is lost between the two kinds of output."""
    for query in parse(case.text, "siddhi").rules:
        assert isinstance(query, Query)
        if query.aggregates or query.group_by:
            continue
        found = {}
        for kind in ("current", "expired", "all"):
            found[kind] = [(row.ts, row.expired, row.values) for _, row in answers(case.inserting(kind), case.events)]
        assert sorted(found["current"] + found["expired"], key=repr) == sorted(found["all"], key=repr)
