"""Runs of patterns and sequences: limits, expiry and saved state."""

from __future__ import annotations

import pytest

import tocsin
from tests.conformance.hosts import expected, rows_of
from tocsin.engine.checkpointer import Checkpointer
from tocsin.engine.detector import Detector
from tocsin.engine.families import windows
from tocsin.errors import RuleError, StateError
from tocsin.events.types import Event
from tocsin.language import parse
from tocsin.plans.explain import explain
from tocsin.plans.plan import plan
from tocsin.reference import patterns

STREAMS = "define stream A (x int); define stream B (y int);"


def made(text: str) -> Detector:
    program = parse(STREAMS + text, "siddhi")
    return Detector(program.rules, {type.name: type for type in program.types})


def waiting_runs(detector: Detector) -> int:
    """Return the number of waiting runs."""
    return int(detector._pipeline.windows._states[0, 2])


def a(first: int, count: int) -> list[Event]:
    return [Event("A", ts, {"x": ts % 7}) for ts in range(first, first + count)]


def test_expired_runs_are_removed() -> None:
    detector = made("from every e1=A -> e2=B within 10 us select e1.x as v insert into O;")
    detector.push(a(0, 50_000))
    assert waiting_runs(detector) <= 13
    assert detector._pipeline.windows._counts[0] < 100_000  # words of memory in use
    actual = detector.push([Event("B", 50_000, {"y": 1}), Event("A", 50_001, {"x": 1})])
    assert actual.num_rows == 10


def test_too_many_runs_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(windows, "RUNS_MAX", 1000)
    detector = made("@info(name='many') from every e1=A -> e2=B select e1.x as v insert into O;")
    detector.push(a(0, 900))
    with pytest.raises(StateError, match=r"query many: more than 1,000 runs .* 'within'"):
        detector.push(a(900, 900))


def test_saved_state_is_bounded_by_within() -> None:
    detector = made("from every e1=A[x > 2] -> e2=B within 10 us select e1.x as v insert into O;")
    checkpoints, segments = Checkpointer(detector), dict[int, bytes]()
    sizes = []
    for batch in range(60):
        detector.push(a(1000 * batch, 1000))
        changes = checkpoints.delta()
        segments |= changes.put
        for number in changes.drop:
            del segments[number]
        sizes.append(len(changes.manifest) + sum(map(len, segments.values())))
    assert max(sizes[30:]) < 4 * max(sizes[:15])


def test_a_row_of_a_pattern_is_an_event_of_the_next_query() -> None:
    text = """@info(name='z') from every e1=A -> e2=B[y > e1.x] select e1.x as v, e2.y as w insert into P;
    @info(name='a') from every e1=P, e2=P select e1.v as v1, e2.v as v2 insert into Q;
    from P#window.length(3) select sum(v) as s insert into R;"""
    program = parse(STREAMS + text, "siddhi")
    happened = [Event("A", n, {"x": n % 3}) if n % 5 in (0, 1, 3) else Event("B", n, {"y": n % 4}) for n in range(40)]
    detector = Detector(program.rules, {type.name: type for type in program.types}, delay_us=2**60)
    actual = rows_of(detector.push(happened)) + rows_of(detector.finish())
    assert actual == expected(patterns.detect(program.rules, happened), program.rules)
    assert {row["rule"] for row in actual} == {"z", "a", "query3"}


def test_explain_an_automaton() -> None:
    text = (
        "from every e1=A[x > 1]<2:3> -> not B[y > e1[last].x] for 3 sec within 1 min select e1[0].x as v insert into O;"
    )
    explained = explain(plan(parse(STREAMS + text, "siddhi").rules, made(text).plan.catalog))
    assert "1: several in f1, 2 to 3, then 2, and a new run from 1" in explained
    assert "for 3 s, e1[last].x < y, then a row" in explained
    assert "other events are skipped, within 1 min" in explained


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("from every e1=A<2:> -> e2=B select e1[last-70].x as v insert into O;", "the last 60 events of e1"),
        (f"from {' -> '.join(f'e{n}=A' for n in range(61))} select e1.x as v insert into O;", "can have 60 events"),
    ],
)
def test_limits_are_reported_with_a_caret(text: str, message: str) -> None:
    with pytest.raises(RuleError, match=message) as caught:
        tocsin.rules(STREAMS + text)
    assert "^" in str(caught.value)
