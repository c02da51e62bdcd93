"""Generated streams reach matches in every language, and a short stream shows a wrong engine."""

from __future__ import annotations

import re

import pytest
from hypothesis import find

import tocsin
from tocsin.errors import RuleError
from tocsin.reference import patterns
from tocsin.testing import equivalent, streams, verify

RULES = {
    "tesla": """
        define  Fire(area: string, temp: double)
        from    Smoke(area=$a) and last Temp(area=$a, value>45) within 5 min from Smoke
                and not Rain(area=$a) between Temp and Smoke
        where   area = Smoke.area, temp = Temp.value
    """,
    "aggregate": "define Hot(t: double) from Tick() and 45 < $t = Avg(Temp().value within 9 s from Tick) where t = $t",
    "eps": 'request Cycle on send as s ; receive as r if s.process = r.process within 10 min notify "back"',
    "timer": "request Late on Order as o ; at(Order, 1 ms) as t",
    "period": "request Beat on A as a ; every(10 s) as t within 1 min mode recent",
    "siddhi": """
        define stream Trade (symbol string, price double);
        @info(name='up') from every a=Trade -> b=Trade[symbol == a.symbol and price > a.price] within 1 min
        select a.symbol as symbol, b.price as price insert into Up;
        from Trade#window.time(1 min) select symbol, avg(price) as mean group by symbol insert all events into Mean;
    """,
}


@pytest.mark.parametrize("name", RULES)
def test_the_engine_is_the_reference_on_streams_that_match(name: str) -> None:
    seen = verify(RULES[name], examples=20, events_max=10)
    assert seen.streams >= 15
    assert seen.matches > 0


def test_a_wrong_engine_is_shown_by_the_shortest_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wrong is here the reference, which for this test forgets fires above 45."""
    right = patterns.detect
    monkeypatch.setattr(patterns, "detect", lambda rules, events: [m for m in right(rules, events) if m.ts < 0])
    with pytest.raises(AssertionError) as failure:
        verify(RULES["tesla"], examples=60)
    message = str(failure.value)
    assert "the reference finds 0, the engine, all events at once, 1" in message
    assert len(re.findall(r"^  (Temp|Smoke|Rain)@", message, re.MULTILINE)) == 2


def test_rules_that_cannot_match_are_found_out() -> None:
    with pytest.raises(AssertionError, match="none of 20 generated streams has a match"):
        verify("define Odd() from Temp(value > 5, value < 5)", examples=20)


def test_rules_that_differ_by_the_edge_of_a_window() -> None:
    one = "define Fire() from Smoke() and last Temp(value > 45) within 5 min from Smoke"
    with pytest.raises(AssertionError) as failure:
        equivalent(one, one.replace("45", "46"))
    assert "the first finds 1, the second 0" in str(failure.value)
    assert "value=46.0" in str(failure.value)
    with pytest.raises(AssertionError, match="only the second"):
        equivalent(one, one.replace("5 min", "6 min"))


def test_rules_that_mean_the_same() -> None:
    tesla = "define O(x: long) from B() as b and each A(n = 1) as a within 1 min from b where x = a.n"
    other = "define O(x: long) from B() as z and each A(n < 2, n > 0) as y within 60 s from z where x = y.n"
    assert equivalent(tesla, other, examples=50).matches > 0


def test_generated_events_have_the_kinds_and_the_constants_of_the_rules() -> None:
    declared = "event Temp(area: string, value: double, ok: bool)\ndefine F() from Temp(value > 45, ok = true)"
    (event,) = find(
        streams(declared), lambda events: len(events) == 1 and len(tocsin.rules(declared).detect(events)) == 1
    )
    assert event.attributes == {"value": 46.0, "ok": True}


def test_no_events_for_queries_that_move() -> None:
    rules = "define Jam() from Brake()\ninterest Ahead of Jam around P() range circle 9 m lifetime 1 s update each"
    with pytest.raises(RuleError, match="cannot generate events for interest Ahead"):
        streams(rules)
