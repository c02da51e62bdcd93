"""Incremental checkpoints restore the whole state and contain only what is new."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import tocsin
from tests.budget import examples
from tests.conformance.hosts import canonical_key, expected, rows_of
from tests.strategies import TYPES, Case, cases
from tocsin.engine import checkpointer, detector_state
from tocsin.engine.checkpointer import Checkpointer, Delta, live_segments
from tocsin.engine.detector import Detector
from tocsin.errors import StateError
from tocsin.events.formats import read_events
from tocsin.events.types import Event
from tocsin.language.syntax.ast import Rule
from tocsin.reference import patterns

DECLARED = {type.name: type for type in TYPES}
QUIET = {
    "suppress_health_check": list(HealthCheck),
    "phases": [Phase.explicit, Phase.reuse, Phase.generate],
}


class Written:
    """A manifest and segments, as a host stores them."""

    def __init__(self) -> None:
        self.manifest = b""
        self.segments: dict[int, bytes] = {}

    def apply(self, delta: Delta) -> int:
        """Apply a delta, and return the number of bytes written."""
        assert not delta.put.keys() & self.segments.keys()
        assert self.segments.keys() >= set(delta.drop)
        self.manifest = delta.manifest
        self.segments |= delta.put
        for number in delta.drop:
            del self.segments[number]
        assert set(live_segments(self.manifest)) == self.segments.keys()
        return len(delta.manifest) + sum(map(len, delta.put.values()))


def content(detector: Detector) -> tuple[object, ...]:
    """Return the content of a snapshot, with waiting events in canonical order."""
    snapshot = detector_state.decode(detector.snapshot())
    state = snapshot.state
    waiting = [] if snapshot.waiting is None else rows_of(snapshot.waiting)
    return (
        {name: value for name, value in snapshot.header.items() if name != "waiting"},
        snapshot.numbers,
        {type: rows_of(rows) for type, rows in state.rows.items()},
        {type: rows_of(rows) for type, rows in state.buffered.items()},
        {owner: rows.tolist() for owner, rows in state.left.items()},
        (state.tail, state.tail_key, state.tail_last),
        sorted(str(sorted((name, value) for name, value in row.items() if value is not None)) for row in waiting),
    )


def batches(events: Sequence[Event], rng: random.Random) -> Iterator[Sequence[Event]]:
    at = 0
    while at < len(events):
        size = rng.choice([1, 1, 1, 2, 3, 8])
        yield events[at : at + size]
        at += size


@settings(max_examples=examples(300), **QUIET)
@given(case=cases(), seed=st.integers(0, 999))
def test_manifest_and_segments_are_the_state(case: Case, seed: int) -> None:
    rng = random.Random(seed)
    delay_us = rng.choice([0, 1, 3, 10, None])
    if delay_us is None:
        detector = Detector(case.rules, DECLARED, ordered=True)
        arrival = sorted(case.events, key=canonical_key)
    else:
        detector = Detector(case.rules, DECLARED, delay_us=delay_us)
        arrival = sorted(case.events, key=lambda event: event.ts + rng.randint(0, delay_us))
    checkpoints, written = Checkpointer(detector), Written()
    actual: list[dict[str, object]] = []
    for batch in batches(arrival, rng):
        actual += rows_of(detector.push(batch))
        if rng.random() < 0.1:
            continue
        written.apply(checkpoints.delta())
        if rng.random() < 0.2:
            before = content(detector)
            detector, checkpoints = checkpointer.restore(written.manifest, written.segments, case.rules, DECLARED)
            for now, then in zip(content(detector), before, strict=True):
                assert now == then
    written.apply(checkpoints.delta())
    detector, checkpoints = checkpointer.restore(written.manifest, written.segments, case.rules, DECLARED)
    actual += rows_of(detector.finish())
    written.apply(checkpoints.delta())
    expected_rows = expected(patterns.detect(case.rules, case.events), case.rules)
    if delay_us is None:  # an ordered source fixes the order within an instant
        actual, expected_rows = (
            sorted(rows, key=lambda row: (row["ts"], row["id"])) for rows in (actual, expected_rows)
        )
    assert actual == expected_rows


@settings(max_examples=examples(150), **QUIET)
@given(case=cases(), seed=st.integers(0, 999))
def test_rules_are_added_and_removed(case: Case, seed: int) -> None:
    """A detector with checkpoints and restores gives the matches of one without."""
    rng = random.Random(seed)
    delay_us = rng.choice([0, 3, 10])
    arrival = sorted(case.events, key=lambda event: event.ts + rng.randint(0, delay_us))
    rules = list(case.rules)
    plain, detector = (Detector(rules, DECLARED, delay_us=delay_us) for _ in range(2))
    checkpoints, written = Checkpointer(detector), Written()
    for batch in batches(arrival, rng):
        assert rows_of(detector.push(batch)) == rows_of(plain.push(batch))
        change = rng.random()
        if change < 0.15 and rules:
            removed = unused(rules, rng)
            rules.remove(removed)
            for one in (plain, detector):
                one.remove([removed.name])
        elif change < 0.4 and (new := addable(case.rules, rules)):
            added = rng.choice(new)
            rules.append(added)
            for one in (plain, detector):
                one.add([added])
        if rng.random() < 0.8:
            written.apply(checkpoints.delta())
            if rng.random() < 0.3:
                detector, checkpoints = checkpointer.restore(written.manifest, written.segments, rules, DECLARED)
    assert rows_of(detector.finish()) == rows_of(plain.finish())


def used(rule: Rule) -> set[str]:
    return {pattern.type for pattern in (rule.anchor, *(clause.pattern for clause in rule.clauses))}


def unused(rules: Sequence[Rule], rng: random.Random) -> Rule:
    """Return a rule that no other rule reads."""
    return rng.choice([rule for rule in rules if not any(rule.emits.name in used(other) for other in rules)])


def addable(every: Sequence[Rule], now: Sequence[Rule]) -> list[Rule]:
    known = {*DECLARED, *(rule.emits.name for rule in now)}
    names = {rule.name for rule in now}
    return [rule for rule in every if rule.name not in names and used(rule) <= known]


@settings(max_examples=examples(100), **QUIET)
@given(case=cases(), other=cases(events_max=0), seed=st.integers(0, 999))
def test_restore_with_other_rules(case: Case, other: Case, seed: int) -> None:
    rng = random.Random(seed)
    detector = Detector(case.rules, DECLARED, delay_us=3)
    arrival = sorted(case.events, key=lambda event: event.ts + rng.randint(0, 3))
    cut = rng.randint(0, len(arrival))
    checkpoints, written = Checkpointer(detector), Written()
    for batch in batches(arrival[:cut], rng):
        detector.push(batch)
        written.apply(checkpoints.delta())
    written.apply(checkpoints.delta())
    plain = Detector.restore(detector.snapshot(), other.rules, DECLARED)
    detector, checkpoints = checkpointer.restore(written.manifest, written.segments, other.rules, DECLARED)
    for batch in batches(arrival[cut:], rng):
        assert rows_of(detector.push(batch)) == rows_of(plain.push(batch))
        written.apply(checkpoints.delta())
        detector, checkpoints = checkpointer.restore(written.manifest, written.segments, other.rules, DECLARED)
    assert rows_of(detector.finish()) == rows_of(plain.finish())


def test_a_scheduled_change_of_rules() -> None:
    first = tocsin.rules("define P() from B() and each A() within 1 s from B")
    second = tocsin.rules("define Q() from B() and each C() within 1 s from B")
    plain, detector = (first.detector(delay=10) for _ in range(2))
    checkpoints, written, actual = Checkpointer(detector), Written(), []
    for number, batch in enumerate(
        ["A@0()", "C@5()", "B@12()", "C@25()", "B@30()", "B@45()", "A@60()\nC@61()", "B@70()"]
    ):
        for one in (plain, detector):
            if number == 2:
                one.change(add=second.rules, remove=["P"], at=20)
        actual += rows_of(plain.push(read_events(batch)))
        again = rows_of(detector.push(read_events(batch)))
        assert again == actual[len(actual) - len(again) :]
        written.apply(checkpoints.delta())
        rules = detector.plan.sources
        detector, checkpoints = checkpointer.restore(written.manifest, written.segments, rules, {})
    last = rows_of(plain.finish())
    assert rows_of(detector.finish()) == last
    assert [(row["rule"], row["ts"]) for row in actual + last] == [
        ("P", 12),
        ("Q", 30),
        ("Q", 45),
        ("Q", 70),
        ("Q", 70),
    ]


def test_kinds_learned_late() -> None:
    rules = tocsin.rules("define P(n: long) from B(k = $k) and each A(k = $k) within 1 s from B where n = A.n")
    detector = rules.detector(delay=5)
    checkpoints, written = Checkpointer(detector), Written()
    actual = []
    for line in ['A@0(k="x")', 'B@1(k="x")', 'A@2(k="x", n=1)', 'B@3(k="x")', "A@20(n=5)", 'B@30(k="x")']:
        actual += rows_of(detector.push(read_events(line)))
        written.apply(checkpoints.delta())
        detector, checkpoints = checkpointer.restore(written.manifest, written.segments, rules.rules, rules.types)
    actual += rows_of(detector.finish())
    assert [(row["ts"], row["n"]) for row in actual] == [(1, None), (3, None), (3, 1), (30, None), (30, 1)]


def test_a_checkpointer_of_a_restored_snapshot() -> None:
    rules = tocsin.rules(USED)
    detector = rules.detector(delay="1 s")
    detector.push(stream(3_000))
    detector = rules.restore(detector.snapshot())
    checkpoints, written = Checkpointer(detector), Written()
    written.apply(checkpoints.delta())
    restored, _ = checkpointer.restore(written.manifest, written.segments, rules.rules, rules.types)
    assert restored.snapshot() == detector.snapshot()


def test_damaged_or_missing_segments_are_reported() -> None:
    rules = tocsin.rules(USED)
    detector = rules.detector()
    detector.push(stream(100))
    written = Written()
    written.apply(Checkpointer(detector).delta())
    numbers = sorted(written.segments)
    for manifest, pieces, message in [
        (detector.snapshot(), written.segments, "not a manifest"),
        (written.manifest[:-1], written.segments, "checksum"),
        (written.manifest, {}, "missing"),
        (written.manifest, dict.fromkeys(numbers, written.segments[numbers[0]]), "has the number"),
        (written.manifest, {number: written.segments[number][:-1] for number in numbers}, "checksum"),
    ]:
        with pytest.raises(StateError, match=message):
            checkpointer.restore(manifest, pieces, rules.rules, rules.types)
    with pytest.raises(StateError, match="not a snapshot"):
        rules.restore(written.manifest)


# ---- sizes

USED = """
define Fire(area: string, temp: double)
from   Smoke(area = $a) and last Temp(area = $a, value > 45) within WINDOW from Smoke
where  area = $a, temp = Temp.value
rule Used define Used(area: string)
from   Smoke(area = $a) and first Temp(area = $a, value > 20) within WINDOW from Smoke
where  area = $a
consuming Temp
rule Many define Many(n: long)
from   Fire(area = $a) and $n = Count(Fire() within 8 s from Fire)
where  n = $n
""".replace("WINDOW", "3 s")
LONG = USED.replace("within 3 s", "within 1 h")


def stream(count: int, start: int = 0) -> pa.Table:
    """A hundred events a second in ten areas."""
    at = np.arange(start, start + count)
    return pa.table(
        {
            "type": pa.array(np.where(at % 10 == 0, "Smoke", "Temp")),
            "ts": pa.array(at * 10_000),
            "area": pa.array([f"A{number}" for number in at * 7919 // 13 % 10]),
            "value": pa.array((at * 31 % 600) / 10.0),
        }
    )


@pytest.mark.parametrize("delay", [0, "2 s"])
def test_deltas_do_not_grow_with_the_state(delay: object) -> None:
    rules = tocsin.rules(LONG)
    detector = rules.detector(delay=delay)  # type: ignore[arg-type]
    checkpoints, written, sizes, heads = Checkpointer(detector), Written(), [], []
    for start in range(0, 64 * 500, 500):
        detector.push(stream(500, start))
        sizes.append(written.apply(checkpoints.delta()))
        heads.append(len(written.manifest))
    whole = sum(map(len, written.segments.values()))
    assert whole > 20 * sizes[10]
    assert max(heads) < 2_000
    # Each batch is written once, again in its first merge, and again by the 64th, which merges all.
    assert sum(sizes[32:63]) < 1.2 * sum(sizes[:31])
    assert sum(sizes) < 4 * whole
    restored, _ = checkpointer.restore(written.manifest, written.segments, rules.rules, rules.types)
    assert restored.snapshot() == detector.snapshot()


@pytest.mark.parametrize("delay", [0, "2 s"])
def test_segments_follow_the_window(delay: object) -> None:
    rules = tocsin.rules(USED)
    detector = rules.detector(delay=delay)  # type: ignore[arg-type]
    checkpoints, written, sizes = Checkpointer(detector), Written(), []
    for start in range(0, 300 * 100, 100):
        detector.push(stream(100, start))
        written.apply(checkpoints.delta())
        sizes.append(sum(map(len, written.segments.values())))
    assert max(sizes[250:]) < 1.2 * max(sizes[20:100])
    assert len(written.segments) < 30
    restored, _ = checkpointer.restore(written.manifest, written.segments, rules.rules, rules.types)
    assert restored.snapshot() == detector.snapshot()


def test_expired_rows_among_live_ones_are_dropped() -> None:
    """A few rows with a long retention do not retain the many rows of a type with a short one."""
    rules = tocsin.rules("""
        define P() from C() and each A() within 1 h from C
        define Q() from C() and each B() within 1 s from C
    """)
    detector = rules.detector()
    checkpoints, written, sizes = Checkpointer(detector), Written(), []
    for second in range(0, 200, 2):
        types = pa.array(["A", *["B"] * 999])
        detector.push(pa.table({"type": types, "ts": pa.array(second * 1_000_000 + np.arange(1000))}))
        written.apply(checkpoints.delta())
        sizes.append(sum(map(len, written.segments.values())))
    assert max(sizes) < 20 * sizes[0]


def test_rules_are_written_once() -> None:
    rules = tocsin.rules(
        "\n".join(f"rule R{n} define P{n}() from A(k = {n}) and last B(k = {n}) within 1 s from A" for n in range(500))
    )
    detector = rules.detector(delay=10)
    checkpoints, written, sizes = Checkpointer(detector), Written(), []
    for ts in range(5):
        detector.push([Event("B", ts, {"k": ts})])
        sizes.append(written.apply(checkpoints.delta()))
        detector, checkpoints = checkpointer.restore(written.manifest, written.segments, rules.rules, rules.types)
    assert sizes[0] > 20_000
    assert all(size < 5_000 for size in sizes[1:])


def test_nothing_new_gives_no_segment() -> None:
    rules = tocsin.rules(USED)
    detector = rules.detector()
    checkpoints = Checkpointer(detector)
    first = checkpoints.delta()
    assert len(first.put) == 1  # the rules
    detector.push(stream(100))
    checkpoints.delta()
    assert not checkpoints.delta().put
    detector.advance(10**9)
    removed = checkpoints.delta()
    assert not removed.put
    assert len(removed.drop) == 1
    assert len(live_segments(removed.manifest)) == 1


def test_buffered_rows_stay_although_a_count_window_is_empty() -> None:
    rules = tocsin.rules("define Fire() from Smoke() and last Temp(value>45) within 5 min from Smoke").rules
    query = tocsin.rules("from Temp[value > 100]#window.length(3) select count() as n insert into Hot;").rules
    detector = Detector((*rules, *query), {})
    checkpoints = Checkpointer(detector)
    stored: dict[int, bytes] = {}

    def save() -> bytes:
        delta = checkpoints.delta()
        stored.update(delta.put)
        for number in delta.drop:
            stored.pop(number, None)
        return delta.manifest

    detector.push([Event("Temp", 1, {"value": 20.0})])
    save()
    detector.push([Event("Temp", 2, {"value": 50.0}), Event("Temp", 3, {"value": 20.0})])
    again, _ = checkpointer.restore(save(), stored, (*rules, *query), {})
    again.push([Event("Smoke", 4, {})])
    assert again.finish().num_rows == 1
