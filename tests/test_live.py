"""Requests with callbacks, by the wall clock."""

from __future__ import annotations

import logging
import threading
import time

import pytest

from tocsin import Event, RuleError
from tocsin.live import Live, Notification

LATE = 'request Late on Order as o ; at(Order, 10 us) as t notify "late"'


def test_timers_fire_by_the_clock_alone() -> None:
    clock = [100]
    live, received = Live(now=lambda: clock[0]), []
    live.request(LATE, received.append)
    live.publish([Event("Order", 100, {"n": 1})])
    clock[0] = 110
    live.tick()
    assert received == []
    clock[0] = 111
    live.tick()
    assert [str(one) for one in received] == ["Late at 110: late (Order@100, at(Order(), 10 us)@110)"]


def test_a_request_sees_what_comes_after_it_until_it_is_cancelled() -> None:
    live = Live(now=lambda: 0)
    first, second = [], []
    live.request("request First on A", first.append)
    live.publish([Event("A", 1)])
    live.request("request Second on A", second.append)
    live.publish([Event("A", 2)])
    live.tick(3)
    live.cancel("First")
    assert live.requests == ("Second",)
    live.publish([Event("A", 4)])
    live.tick(5)
    assert [one.ts for one in first] == [1, 2]
    assert [one.ts for one in second] == [2, 4]
    with pytest.raises(RuleError, match="Did you mean 'Second'"):
        live.cancel("Secnd")
    with pytest.raises(RuleError, match="one request has one callback"):
        live.request("request X on A request Y on B", print)


def test_rules_have_callbacks_too() -> None:
    live, received = Live(now=lambda: 0), []
    live.request("define Fire(area: string) from Smoke() where area = Smoke.area", received.append)
    live.publish([Event("Smoke", 7, {"area": "A1"})])
    live.tick(8)
    assert [(one.request, one.attributes["area"]) for one in received] == [("Fire", "A1")]


def test_a_failing_callback_does_not_affect_others(caplog: pytest.LogCaptureFixture) -> None:
    live, received = Live(now=lambda: 0), []

    def fail(_: Notification) -> None:
        raise ValueError("no")

    live.request("request Bad on A", fail)
    live.request("request Good on A", received.append)
    with caplog.at_level(logging.ERROR, "tocsin.live"):
        live.publish([Event("A", 1)])
        live.tick(2)
    assert [one.request for one in received] == ["Good"]
    assert "the callback of Bad failed" in caplog.text


def test_time_passes_by_itself() -> None:
    received = threading.Event()
    with Live() as live:
        live.request("request Late on Order as o ; at(Order, 50 ms) as t", lambda _: received.set())
        live.publish([Event("Order", time.time_ns() // 1_000)])
        assert received.wait(20)


def test_what_comes_too_late_is_a_dead_letter() -> None:
    live = Live(now=lambda: 0, delay_us=5)
    live.request("request R on A", print)
    live.publish([Event("A", 100)])
    live.publish([Event("A", 94)])
    assert live.dead_letters()["reason"].to_pylist() == ["late"]


def test_one_fast_clock_does_not_make_others_late() -> None:
    clock = [1_800_000_000_000_000]
    live, received = Live(now=lambda: clock[0]), []
    live.request("request R on A", received.append)
    hour = 3_600_000_000
    live.publish([Event("A", clock[0] + 90 * hour, {"n": 1}), Event("Other", clock[0] + 90 * hour)])
    live.publish([Event("A", clock[0] - hour, {"n": 2})])  # old times are no mistake
    live.publish([Event("A", clock[0] + 60_000_000, {"n": 3}), Event("A", clock[0] + 60_000_001, {"n": 4})])
    live.tick(clock[0] + hour)
    assert [one.ts - clock[0] for one in received] == [-hour, 60_000_000]
    dead = live.dead_letters()
    assert dead["reason"].to_pylist() == ["ts is 3 d ahead of the clock; at most 1 min is accepted"] * 2 + [
        "ts is 60 s ahead of the clock; at most 1 min is accepted"
    ]
    assert dead["type"].to_pylist() == ["A", None, "A"]


def test_how_far_ahead_of_the_clock_is_an_option() -> None:
    live, received = Live(now=lambda: 0, ahead_us=10), []
    live.request("request R on A", received.append)
    live.publish([Event("A", 11), Event("A", 10)])
    live.tick(100)
    assert [one.ts for one in received] == [10]
