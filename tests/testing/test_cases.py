"""The kit for users' own tests: cases that hold, and what a failure says."""

from __future__ import annotations

from pathlib import Path

import pytest

import tocsin
from tocsin.errors import EventError
from tocsin.testing import Clock, Stream, given
from tocsin.testing.cases import read_expected

FIRE = """
    define  Fire(area: string, temp: double)
    from    Smoke(area=$a) and each Temp(area=$a, value>45) within 5 min from Smoke
    where   area = Smoke.area, temp = Temp.value
"""
READINGS = """
    Temp@0s(area="A1", value=51.5)
    Temp@30s(area="A1", value=46.0)
    Temp@40s(area="A2", value=80.0)  -- elsewhere
    Smoke@1min(area="A1")
"""
LATE = 'request Late on Order as o ; at(Order, 5 min) as t notify "late"'
PAIRS = """
    define stream Trade (symbol string, price double);
    from Trade#window.length(2) select symbol, price insert all events into Last;
"""


def test_tesla() -> None:
    given(FIRE, READINGS).expect("""
        Fire@60s(area="A1", temp=46)  -- an integer is a double too
        Fire@60s(temp=51.5) from Smoke@60s Temp@0s
    """)


def test_eps() -> None:
    given(LATE, "Order@0s()\nOrder@6min()").expect('Late@5min(notification="late") from o@0s t@5min')


def test_siddhi() -> None:
    events = """
        Trade@1s(symbol="X", price=10.0)
        Trade@2s(symbol="X", price=20.0)
        Trade@3s(symbol="X", price=30.0)
    """
    given(PAIRS, events).expect("""
        Last@1s(price=10.0, expired=false)
        Last@2s(price=20.0)
        Last@3s(price=10.0, expired=true)
        Last@3s(price=30.0, expired=false)
    """)


def test_queries_that_move() -> None:
    rules = """
        define Jam() from Brake()
        interest Ahead of Jam around Position() range circle 100 m lifetime 10 s update each
    """
    given(rules, "Position@0s(x=0.0, y=0.0)\nBrake@1s(x=50.0, y=0.0)\nBrake@2s(x=500.0, y=0.0)").expect("""
        Marker@0s(query="Ahead", range=1)
        Jam@1s(range=1)
    """)


def test_rules_come_as_text_file_or_set(tmp_path: Path) -> None:
    path = tmp_path / "fire.tesla"
    path.write_text(FIRE, encoding="utf-8")
    for rules in (path, tocsin.rules(FIRE), FIRE):
        assert len(given(rules, READINGS).rows) == 2


def test_times_that_could_be_seconds_are_what_they_say() -> None:
    """A quarter of an hour is as many microseconds as there were seconds from 1970 to 1998."""
    given("define O() from A()", "A@15min()").expect("O@15min()")
    stream = Stream("define O() from A()")
    stream.push("A@15min()")
    stream.until("16min")
    stream.expect("O@15min()")


def test_a_failure_says_what_was_expected_found_and_different() -> None:
    with pytest.raises(AssertionError) as failure:
        given(FIRE, READINGS).expect("""
            Fire@60s(area="A1", temp=51.5)
            Fire@60s(area="A1", temp=47.0)
        """)
    assert str(failure.value) == "\n".join(
        [
            "2 matches expected, 2 found: 1 as expected, 1 missing, 1 too many",
            '  missing   Fire@60s(area="A1", temp=47.0)',
            '    nearest Fire@1min(area="A1", temp=46.0) from Smoke@1min Temp@30s',
            "            temp is 46.0, not 47.0",
            '  too many  Fire@1min(area="A1", temp=46.0) from Smoke@1min Temp@30s',
            "events:",
            '  Temp@0s(area="A1", value=51.5)',
            '  Temp@30s(area="A1", value=46.0)',
            '  Temp@40s(area="A2", value=80.0)',
            '  Smoke@1min(area="A1")',
        ]
    )


@pytest.mark.parametrize(
    ("expected", "said"),
    [
        ("", "no match expected, 2 found: 0 as expected, 0 missing, 2 too many"),
        ("Fire@60s()", "1 match expected, 2 found"),
        ("Fire@60s()\nFire@60s()\nFire@60s()", "1 missing, 0 too many"),
        ("Fire@60s()\nFire@61s()", "it is at 1min, not at 61s"),
        ("Fire@60s()\nFire@60s(zone=1)", "it has no zone"),
        ("Fire@60s()\nFire@60s() from Smoke@60s", "it is made of Smoke@1min Temp@"),
        ("Fire@60s()\nFire@60s(temp=true)", "not true"),
        ("Fire@60s()\nFlood@60s()", "missing   Flood@60s()"),
    ],
)
def test_a_failure_says(expected: str, said: str) -> None:
    with pytest.raises(AssertionError) as failure:
        given(FIRE, READINGS).expect(expected)
    assert said in str(failure.value)


def test_as_many_as_possible_fit() -> None:
    """The first line fits both matches, the second only one of them: the first must take the other."""
    for lines in (["Fire@60s()", "Fire@60s(temp=46.0)"], ["Fire@60s(temp=46.0)", "Fire@60s()"]):
        given(FIRE, READINGS).expect("\n".join(lines))


@pytest.mark.parametrize("text", ["Fire@60s(", "Fire@60s(area=A1)\n", "Fire@60s#1()", "Fire@60s() from Smoke@"])
def test_expectations_that_cannot_be_read(text: str) -> None:
    with pytest.raises(EventError):
        read_expected(text)


def test_a_mistake_is_shown_with_its_line() -> None:
    with pytest.raises(EventError, match="line 2, column 13"):
        read_expected("Fire@60s() from Smoke@60s\nFire@60s(oh no)")


def test_text_that_looks_like_parts() -> None:
    (one,) = read_expected('Fire@1s(area="x) from Smoke")')
    assert one.parts is None
    assert one.event.attributes == {"area": "x) from Smoke"}


def test_an_invalid_event_is_a_mistake_in_the_test() -> None:
    with pytest.raises(EventError, match="invalid event"):
        given(FIRE, [tocsin.Event("Fire", 0)])


def test_a_stream_by_its_own_clock() -> None:
    stream = Stream(FIRE, delay="5 s")
    stream.push('Temp@0s(area="A1", value=51.5)\nSmoke@60s(area="A1")')
    stream.expect("")
    stream.push('Temp@57s(area="A1", value=60.0)')  # late, but not too late
    stream.push('Temp@20s(area="A1", value=70.0)')  # too late
    stream.expect_dead("late")
    stream.wait("5 s")
    stream.expect("")
    stream.wait("1 ms")
    stream.expect("Fire@60s(temp=51.5)\nFire@60s(temp=60.0)")
    stream.expect("")
    assert str(stream.clock) == "65001ms"
    with pytest.raises(AssertionError, match="at 65001ms: 1 match expected, none found"):
        stream.expect("Fire@60s()")
    with pytest.raises(AssertionError, match="but got:\n  none"):
        stream.expect_dead("late")


def test_timers_of_a_stream_ring_when_the_clock_says_so() -> None:
    stream = Stream(LATE)
    stream.push("Order@10s()")
    stream.until("5 min")
    stream.expect("")
    stream.until("6min")
    stream.expect("Late@310s()")


def test_live_by_a_virtual_clock() -> None:
    clock, messages = Clock("2026-07-01"), []
    live = tocsin.Live(now=clock)
    live.request(LATE, messages.append)
    live.publish([tocsin.Event("Order", clock())])
    clock.wait("5 min")
    clock.wait("1 us")
    live.tick()
    assert [one.text for one in messages] == ["late"]
