"""Detectors read events in every format, add and remove rules, and evict what they do not need."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import tocsin
from tests.budget import examples
from tests.conformance.hosts import expected, rows_of
from tests.strategies import TYPES, Case, cases
from tocsin.engine import detector as detector_module
from tocsin.engine.detector import Detector
from tocsin.errors import RuleError
from tocsin.events.formats import read_events
from tocsin.events.types import Event
from tocsin.language.syntax.ast import Rule
from tocsin.reference import patterns

DECLARED = {type.name: type for type in TYPES}
FIRE = """
define Fire(area: string, temp: double)
from   Smoke(area = $a) and last Temp(area = $a, value > 45) within 5 s from Smoke
where  area = $a, temp = Temp.value
"""
EVENTS = read_events("""
Temp@1s(area="A1", value=50.0)
Temp@2s(area="A2", value=40.0)
Smoke@3s(area="A1")
Smoke@4s(area="A2")
Temp@5s(area="A2", value=60.5)
Smoke@6s(area="A2")
Smoke@7s(area="A1")
""")
FIRES = [("A1", 50.0, 3_000_000), ("A2", 60.5, 6_000_000)]


def fires(*tables: pa.Table) -> list[tuple[object, ...]]:
    return [(row["area"], row["temp"], row["ts"]) for table in tables for row in rows_of(table)]


# ---- push


def as_table(events: Sequence[Event]) -> pa.Table:
    columns: dict[str, list[object]] = {"type": [], "ts": [], "area": [], "value": []}
    for event in events:
        for name, value in {"type": event.type, "ts": event.ts}.items():
            columns[name].append(value)
        for name in ("area", "value"):
            columns[name].append(event.attributes.get(name))
    return pa.table(columns)


def as_mapping(events: Sequence[Event]) -> dict[str, pa.Table]:
    smoke = as_table([event for event in events if event.type == "Smoke"]).select(["ts", "area"])
    return {"Smoke": smoke, "Temp": as_table([event for event in events if event.type == "Temp"]).drop_columns("type")}


@pytest.mark.parametrize(
    "form",
    [
        list,
        tuple,
        iter,
        as_table,
        as_mapping,
        lambda events: as_table(events).to_batches()[0],
        lambda events: as_table(events).cast(
            pa.schema(
                [
                    ("type", pa.dictionary(pa.int8(), pa.string())),
                    ("ts", pa.int64()),
                    ("area", pa.large_string()),
                    ("value", pa.float32()),
                ]
            )
        ),
        lambda events: pa.concat_tables([as_table(events[:2]), as_table(events[2:])]),
    ],
)
def test_events_in_every_format(form: object) -> None:
    assert callable(form)
    rules = tocsin.rules(FIRE)
    assert fires(rules.detect(form(EVENTS))) == FIRES
    detector = rules.detector()
    assert fires(detector.push(form(EVENTS)), detector.finish()) == FIRES
    assert detector.counts == {"events": 7, "late": 0, "dead": 0, "matches": 2}


def test_formats_may_change() -> None:
    detector = tocsin.rules(FIRE).detector()
    pieces = [EVENTS[:3], as_table(EVENTS[3:5]), EVENTS[5], as_table(EVENTS[6:]).to_batches()[0]]
    assert fires(*(detector.push(piece) for piece in pieces), detector.finish()) == FIRES


def test_timestamps_keep_their_type() -> None:
    rules = tocsin.rules(FIRE)
    table = as_table(EVENTS)
    assert rules.detect(table).schema.field("ts").type == pa.int64()
    times = table.set_column(1, "ts", table["ts"].cast(pa.timestamp("us", tz="UTC")))
    actual = rules.detect(times)
    assert actual.schema.field("ts").type == pa.timestamp("us", tz="UTC")
    assert fires(actual) == FIRES
    seconds = table.set_column(1, "ts", pa.array([event.ts // 1_000_000 for event in EVENTS]))
    assert fires(rules.detect(seconds, ts_unit="s")) == FIRES


def test_empty_pushes() -> None:
    detector = tocsin.rules(FIRE).detector()
    assert detector.push(as_table(EVENTS)[:0]).num_rows == 0
    assert detector.push([]).num_rows == 0
    assert detector.watermark is None
    assert detector.finish().num_rows == 0
    assert fires(detector.push(EVENTS), detector.finish()) == FIRES


def test_a_first_push_without_events() -> None:
    detector = tocsin.rules(FIRE).detector()
    assert detector.push([]).num_rows == 0
    assert fires(detector.push(EVENTS), detector.finish()) == FIRES


def test_certain_matches_are_returned_at_once() -> None:
    detector = tocsin.rules(FIRE).detector(delay="2 s")
    assert fires(detector.push(EVENTS[:3])) == []
    assert detector.watermark == 1_000_000
    assert fires(detector.advance(3_000_000)) == []
    assert fires(detector.advance(3_000_001)) == FIRES[:1]
    assert fires(detector.push(EVENTS[3:])) == []
    assert fires(detector.finish()) == FIRES[1:]


# ---- changes of rules


def filled(rows: list[dict[str, object]], names: Sequence[str]) -> list[dict[str, object]]:
    """Return rows with all columns: a table lacks those of rules that were added later."""
    return [{**dict.fromkeys(names), **row} for row in rows]


def names_of(rules: Sequence[Rule]) -> list[str]:
    return [name for rule in rules for name, _ in rule.emits.attributes]


def closed_under_use(rules: Sequence[Rule], wanted: set[str]) -> list[Rule]:
    """Return the wanted rules and those that they read, in order."""
    while True:
        used = {
            pattern.type
            for rule in rules
            if rule.name in wanted
            for pattern in (rule.anchor, *(clause.pattern for clause in rule.clauses))
        }
        more = {rule.name for rule in rules if rule.emits.name in used} - wanted
        if not more:
            return [rule for rule in rules if rule.name in wanted]
        wanted = wanted | more


def arrivals(events: Sequence[Event], delay_us: int, rng: random.Random) -> list[Event]:
    return sorted(events, key=lambda event: event.ts + rng.randint(0, delay_us))


QUIET = {
    "suppress_health_check": list(HealthCheck),
    "phases": [Phase.explicit, Phase.reuse, Phase.generate],
}


@settings(max_examples=examples(150), **QUIET)
@given(case=cases(events_max=30), seed=st.integers(0, 999))
def test_an_added_rule_sees_later_events(case: Case, seed: int) -> None:
    rng = random.Random(seed)
    first = closed_under_use(case.rules, {rule.name for rule in case.rules if rng.random() < 0.5})
    rest = [rule for rule in case.rules if rule not in first]
    delay_us = rng.choice([0, 3, 10])
    arrival = arrivals(case.events, delay_us, rng)
    cut = rng.randint(0, len(arrival))
    detector = Detector(first, DECLARED, delay_us=delay_us)
    actual = rows_of(detector.push(arrival[:cut]))
    if rng.random() < 0.3:
        detector = Detector.restore(detector.snapshot(), first, DECLARED)
    since = dict.fromkeys((rule.name for rule in rest), detector.add(rest))
    for number, event in enumerate(arrival[cut:]):
        actual += rows_of(detector.push([event]))
        if number == 3 and rng.random() < 0.3:
            detector = Detector.restore(detector.snapshot(), [*first, *rest], DECLARED)
    actual += rows_of(detector.finish())
    expected_rows = expected(patterns.detect(case.rules, case.events, since), case.rules)
    assert filled(actual, names_of(case.rules)) == expected_rows


@settings(max_examples=examples(100), **QUIET)
@given(case=cases(events_max=30), seed=st.integers(0, 999))
def test_a_removed_rule_does_not_affect_others(case: Case, seed: int) -> None:
    rng = random.Random(seed)
    staying = closed_under_use(case.rules, {rule.name for rule in case.rules if rng.random() < 0.5})
    types = {rule.emits.name for rule in staying}
    going = [rule for rule in case.rules if rule not in staying and rule.emits.name not in types]
    staying = [rule for rule in case.rules if rule not in going]
    staying = closed_under_use(case.rules, {rule.name for rule in staying})
    going = [rule.name for rule in case.rules if rule not in staying]
    arrival = arrivals(case.events, 5, rng)
    cut = rng.randint(0, len(arrival))
    detector = Detector(case.rules, DECLARED, delay_us=5)
    actual = rows_of(detector.push(arrival[:cut]))
    detector.remove(going)
    for event in arrival[cut:]:
        actual += rows_of(detector.push([event]))
    actual += rows_of(detector.finish())
    names = names_of(case.rules)
    expected_rows = expected(patterns.detect(staying, case.events), case.rules)
    assert [row for row in filled(actual, names) if row["rule"] not in going] == expected_rows


@settings(max_examples=examples(100), **QUIET)
@given(case=cases(events_max=30), other=cases(events_max=0), seed=st.integers(0, 999))
def test_a_rule_changed_at_a_snapshot_sees_later_events(case: Case, other: Case, seed: int) -> None:
    rng = random.Random(seed)
    before, after = case.rules, other.rules
    if rng.random() < 0.7 and len(case.rules) > 1:  # some rules stay unchanged
        after = tuple(closed_under_use(case.rules, {rng.choice(case.rules).name}))
    arrival = arrivals(case.events, 5, rng)
    cut = rng.randint(0, len(arrival))
    detector = Detector(before, DECLARED, delay_us=5)
    detector.push(arrival[:cut])
    start = max((event.ts for event in arrival[:cut]), default=-1) + 1
    watermark = detector.watermark
    detector = Detector.restore(detector.snapshot(), after, DECLARED)
    actual: list[dict[str, object]] = []
    for event in arrival[cut:]:
        actual += rows_of(detector.push([event]))
    actual += rows_of(detector.finish())
    known = {rule.name: rule for rule in before}
    since = {rule.name: start for rule in after if known.get(rule.name) != rule and start > 0}
    expected_rows = expected(patterns.detect(after, case.events, since), after)
    out = [row for row in expected_rows if watermark is None or row["ts"] >= watermark]  # type: ignore[operator]
    if any(rule.consuming for rule in after):  # earlier consumption depends on removed rules
        actual, out = ([row for row in rows if row["rule"] in since] for rows in (actual, out))
    assert actual == out


def test_a_snapshot_right_after_a_rule_that_reads_more() -> None:
    detector = tocsin.rules(
        "event A(n: long, k: string)\nevent B()\ndefine P() from B() and each A() within 10 us from B"
    ).detector()
    detector.push(read_events("A@0(n=1)\nB@1()\nA@2(n=2)\nB@3()"))
    detector.add('define Q() from B() and last A(n = 2, k != "x") within 15 us from B')
    detector.snapshot()


def test_rules_added_as_text_and_removed() -> None:
    detector = tocsin.rules(FIRE).detector()
    detector.push(EVENTS[:3])
    assert detector.add("define Alarm(area: string) from Smoke() where area = Smoke.area") == 3_000_001
    actual = rows_of(detector.push(EVENTS[3:]))
    assert [(row["rule"], row["ts"]) for row in actual] == [
        ("Fire", 3_000_000),
        ("Alarm", 4_000_000),
        ("Alarm", 6_000_000),
        ("Fire", 6_000_000),
    ]
    detector.remove(["Fire"])
    assert [row["rule"] for row in rows_of(detector.finish())] == ["Alarm"]
    detector.remove(["Alarm"])
    assert detector.push(EVENTS).num_rows == 0


def test_a_rule_added_before_any_event_sees_all() -> None:
    detector = tocsin.rules("define Other() from Wind()").detector()
    detector.add(FIRE)
    assert fires(detector.push(EVENTS), detector.finish()) == FIRES


def test_a_rule_added_for_a_later_time() -> None:
    detector = tocsin.rules("define Other() from Wind()").detector()
    detector.push(EVENTS[:1])
    assert detector.add(FIRE, at=5_000_000) == 5_000_000
    assert fires(detector.push(EVENTS[1:]), detector.finish()) == FIRES[1:]


def test_an_error_leaves_the_detector_unchanged() -> None:
    detector = tocsin.rules("event Smoke()\ndefine Fire() from Smoke()").detector()
    detector.push([Event("Smoke", 1)])
    detector.add("define Alarm() from Fire()")
    before = detector.snapshot()
    for attempt in (
        lambda: detector.add("define Fire() from Smoke()"),
        lambda: detector.add("define Fine() from Smoke()\ndefine Wrong() from Steam()"),
        lambda: detector.add("define Smoke() from Fire()"),
        lambda: detector.remove(["Fire"]),
        lambda: detector.remove(["Alarm", "Unknown"]),
    ):
        with pytest.raises(RuleError):
            attempt()
        assert detector.snapshot() == before


def test_a_failed_removal_changes_nothing() -> None:
    text = "event Smoke()\nevent Temp()\ndefine Alarm() from Smoke() and each Temp() within 1 h from Smoke"
    detector = tocsin.rules(text).detector()
    detector.push([Event("Temp", 1)])
    detector.add("define Fire() from Smoke() and each Temp() within 1 h from Smoke\ndefine Blaze() from Fire()")
    with pytest.raises(RuleError):
        detector.remove(["Fire"])
    detector.remove(["Alarm"])  # the pipeline is rebuilt
    detector.push([Event("Smoke", 5)])
    assert detector.finish().num_rows == 0


# ---- state


def stream(count: int, start: int = 0) -> pa.Table:
    """A hundred events a second in a hundred areas."""
    at = np.arange(start, start + count)
    return pa.table(
        {
            "type": pa.array(np.where(at % 10 == 0, "Smoke", np.where(at % 37 == 5, "Rain", "Temp"))),
            "ts": pa.array(at * 10_000),
            "area": pa.array([f"A{number:02}" for number in at * 7919 // 13 % 100]),
            "value": pa.array((at * 31 % 600) / 10.0),
        }
    )


STREAMED = """
define Fire(area: string, temp: double)
from   Smoke(area = $a) and last Temp(area = $a, value > 45) within 5 s from Smoke
       and not Rain(area = $a) between Temp and Smoke
where  area = $a, temp = Temp.value
rule Used define Used(area: string)
from   Smoke(area = $a) and first Temp(area = $a, value > 20) within 3 s from Smoke
where  area = $a
consuming Temp
rule Many define Many(n: long)
from   Fire(area = $a) and $n = Count(Fire() within 8 s from Fire)
where  n = $n
"""


@pytest.mark.parametrize("options", [{"delay": "1 s"}, {"delay": 0}, {"ordered": True}])
@pytest.mark.parametrize(("count", "chunk"), [(150_000, 5_000), (2_000_000, 100_000)])
def test_a_long_stream_leaves_no_more_than_its_last_window(options: dict[str, object], count: int, chunk: int) -> None:
    rules = tocsin.rules(STREAMED)
    detector, recent = (rules.detector(ts_unit="us", **options) for _ in range(2))  # type: ignore[arg-type]
    events = stream(count)
    for start in range(0, count, chunk):
        detector.push(events.slice(start, chunk))
    recent.push(events.slice(count - 4_000))  # 40 s: more than all windows together
    assert detector.counts["matches"] > 10_000
    assert detector.state_bytes == recent.state_bytes


def test_the_state_does_not_grow_with_the_stream() -> None:
    detector = tocsin.rules(STREAMED).detector()
    sizes = []
    for start in range(0, 100_000, 10_000):
        detector.push(stream(10_000, start))
        sizes.append(detector.state_bytes)
    assert max(sizes[2:]) - min(sizes[2:]) < 0.1 * max(sizes)


def test_dead_letters_are_bounded_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(detector_module, "DEAD_LETTERS_MAX", 10)
    detector = tocsin.rules(FIRE).detector()
    detector.push(EVENTS[-1:])
    for _ in range(4):
        detector.push(EVENTS[:6])
    assert detector.counts["dead"] == detector.counts["late"] == 24
    assert detector.dead_letters().num_rows == 10
    assert detector.dead_letters().num_rows == 0
    detector.push(EVENTS[:6])
    assert detector.dead_letters()["reason"].to_pylist() == ["late"] * 6


def strings_after(text: str, events: int = 300_000) -> int:
    """Return the largest size of the string dictionary while every event has a new string."""
    detector = tocsin.rules(text).detector()
    most = 0
    for start in range(0, events, 20_000):
        at = np.arange(start, start + 20_000)
        names = pa.array([f"s{number}" for number in at])
        detector.push(pa.table({"type": pa.array(["A", "B"] * 10_000), "ts": pa.array(at * 1000), "k": names}))
        most = max(most, len(detector._pipeline.strings))
    return most


def test_unused_strings_are_removed() -> None:
    assert strings_after("define X() from A(k = $k) and last B(k = $k) within 1 s from A") < 150_000


@pytest.mark.parametrize("text", ['define X() from A(k = "x")', 'define X(k: string) from A(k < "s2") where k = A.k'])
def test_strings_of_unbuffered_events_are_removed(text: str) -> None:
    assert strings_after(text) < 150_000


def test_snapshots_are_equal_and_resume() -> None:
    rules = tocsin.rules(STREAMED)
    detector = rules.detector(delay="1 s")
    detector.push(stream(3_000))
    snapshot = detector.snapshot()
    assert detector.snapshot() == snapshot
    other = rules.restore(snapshot)
    assert other.snapshot() == snapshot
    assert other.counts == detector.counts
    assert other.watermark == detector.watermark
    more = stream(3_000, 3_000)
    assert rows_of(other.push(more)) == rows_of(detector.push(more))
    assert rows_of(other.finish()) == rows_of(detector.finish())
    assert other.snapshot() == detector.snapshot()


def test_a_constraint_may_be_long() -> None:
    either = " or ".join(f"n = {n}" for n in range(0, 400, 2))
    events = [Event("A", ts, {"n": ts}) for ts in range(10)]
    actual = tocsin.rules(f"define P(n: long) from A({either}) where n = A.n").detect(events)
    assert actual["n"].to_pylist() == [0, 2, 4, 6, 8]
