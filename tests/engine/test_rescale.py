"""A stream gives the same matches when its state is split and joined for other partitions on the way."""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import tocsin
from tests.budget import examples
from tests.conformance.hosts import canonical_key, expected, rows_of
from tests.strategies import TYPES, streams
from tocsin.engine import detector_state
from tocsin.engine.detector import Detector
from tocsin.engine.rescale import join, narrow, split
from tocsin.errors import StateError
from tocsin.events.types import Event
from tocsin.language import parse
from tocsin.language.syntax.ast import Rule
from tocsin.reference import patterns

DECLARED = {type.name: type for type in TYPES}
QUIET = {
    "suppress_health_check": list(HealthCheck),
    "phases": [Phase.explicit, Phase.reuse, Phase.generate],
}
CONSUMING = """
define    Taken(k: string, n: long)
from      A(k=$k) and each B(k=$k, n>0) within 10 us from A
where     k = $k, n = B.n
consuming B
"""
GUARDED = """
define    Guarded(k: string, m: long)
from      A(k=$k) and last B(k=$k) within 20 us from A and not C(k=$k, f=true) between B and A
          and $m = Count(A(k=$k) within 15 us from A)
where     k = $k, m = $m
consuming B
"""
LAYERED = """
define    Low(k: string)
from      A(k=$k) and first B(k=$k) within 12 us from A
where     k = $k
consuming B

define    Middle(k: string, v: double)
from      Low(k=$k) and each C(k=$k) within 20 us from Low and $v = Sum(C(k=$k).v within 8 us from Low)
where     k = $k, v = $v

rule High1
define    High(k: string, m: long)
from      C(k=$k) and last Middle(k=$k) within 25 us from C and not Low(k=$k) between Middle and C
          and $m = Count(Middle(k=$k) within 30 us from C)
where     k = $k, m = $m
consuming Middle

rule High2
define    High(k: string, m: long)
from      B(k=$k, i>=0)
where     k = $k, m = B.seq
"""
PAIRED = """
request   Paired
on        A as a & B as b
if        a.k = b.k
within    6 us
"""
TIMED = """
request   Timed
on        A as a ; at(B, 4 us) as t
within    9 us

request   Recent
on        A as a & B as b & C as c
within    9 us
mode      recent

request   Kept
on        TimesDf(2, A as a, k) ; C as c
within    9 us
mode      chronological
"""
TEXTS = (CONSUMING, GUARDED, LAYERED, PAIRED)


def place(parts: int) -> object:
    def chosen(type: str, rows: pa.Table) -> np.ndarray:
        if "k:string" not in rows.column_names:
            return np.zeros(rows.num_rows, np.int64)
        return np.array([part_of(value, parts) for value in rows["k:string"].to_pylist()], np.int64)

    return chosen


def part_of(key: object, parts: int) -> int:
    return zlib.crc32(str(key or "").encode()) % parts


def by_identity(rows: list[dict[str, object]]) -> list[dict[str, object]]:
    return sorted(rows, key=lambda row: (row["ts"], row["rule"], row["id"]))


def batches(events: Sequence[Event], rng: random.Random) -> Iterator[Sequence[Event]]:
    at = 0
    while at < len(events):
        size = rng.choice([1, 2, 5, 20])
        yield events[at : at + size]
        at += size


def arrivals(events: Sequence[Event], delay_us: int | None, rng: random.Random) -> list[Event]:
    """Return events in an order of arrival within the delay; without one, in canonical order."""
    if delay_us is None:
        return sorted(events, key=canonical_key)
    return sorted(events, key=lambda event: event.ts + rng.randint(0, delay_us))


def started(rules: Sequence[Rule], delay_us: int | None) -> Detector:
    return Detector(rules, DECLARED, delay_us=delay_us or 0, ordered=delay_us is None)


class Partitions:
    """Detectors by key that advance together."""

    def __init__(self, rules: Sequence[Rule], parts: int, delay_us: int | None) -> None:
        self.rules, self.delay_us, self.largest = rules, delay_us or 0, -1
        self.detectors = [started(rules, delay_us) for _ in range(parts)]

    def push(self, batch: Sequence[Event]) -> list[dict[str, object]]:
        actual: list[dict[str, object]] = []
        parts = [part_of(event.attributes.get("k"), len(self.detectors)) for event in batch]
        for number, detector in enumerate(self.detectors):
            mine = [event for event, part in zip(batch, parts, strict=True) if part == number]
            actual += rows_of(detector.push(mine))
        self.largest = max(self.largest, *(event.ts for event in batch))
        for detector in self.detectors:
            actual += rows_of(detector.advance(self.largest - self.delay_us))
        return actual

    def regroup(self, parts: int, rng: random.Random) -> None:
        states = [detector.snapshot() for detector in self.detectors]
        if rng.random() < 0.5:
            regrouped = split(join(states), place(parts), parts)
        else:
            pieces = [split(state, place(parts), parts) for state in states]
            regrouped = [join(piece[part] for piece in pieces) for part in range(parts)]
        self.detectors = [Detector.restore(state, self.rules, DECLARED) for state in regrouped]

    def finish(self) -> list[dict[str, object]]:
        return [row for detector in self.detectors for row in rows_of(detector.finish())]


@pytest.mark.parametrize("text", TEXTS)
@settings(max_examples=examples(120), **QUIET)
@given(events=streams("ABC", 60), seed=st.integers(0, 999))
def test_rescaled_partitions_agree_with_the_reference(text: str, events: list[Event], seed: int) -> None:
    rng = random.Random(seed)
    rules = parse(text).rules
    events = events[:25] if text == PAIRED else events
    delay_us = rng.choice([0, 3, 10, None])
    partitions = Partitions(rules, rng.randint(1, 4), delay_us)
    actual: list[dict[str, object]] = []
    for batch in batches(arrivals(events, delay_us, rng), rng):
        actual += partitions.push(batch)
        if rng.random() < 0.3:
            partitions.regroup(rng.randint(1, 4), rng)
    events_seen = sum(detector.counts["events"] for detector in partitions.detectors)
    actual += partitions.finish()
    assert events_seen == len(events)
    assert by_identity(actual) == by_identity(expected(patterns.detect(rules, events), rules))


@settings(max_examples=examples(120), **QUIET)
@given(events=streams("ABC", 60), seed=st.integers(0, 999))
def test_states_of_different_rules_are_joined(events: list[Event], seed: int) -> None:
    rng = random.Random(seed)
    groups = [parse(text).rules for text in (CONSUMING, GUARDED, PAIRED, TIMED)]
    rules = [rule for group in groups for rule in group]
    events = events[:15]  # the reference tries all combinations
    delay_us = rng.choice([0, 3, 10])
    arrival = arrivals(events, delay_us, rng)
    cut = rng.randint(0, len(arrival))
    detector = started(rules, delay_us)
    actual = rows_of(detector.push(arrival[:cut]))
    if rng.random() < 0.5:
        states = [narrow(detector.snapshot(), group, DECLARED) for group in groups]
    else:
        alone = [started(group, delay_us) for group in groups]
        for one in alone:
            one.push(arrival[:cut])
        states = [one.snapshot() for one in alone]
    detector = Detector.restore(join(states), rules, DECLARED)
    actual += rows_of(detector.push(arrival[cut:])) + rows_of(detector.finish())
    assert by_identity(actual) == by_identity(expected(patterns.detect(rules, events), rules))


@settings(max_examples=examples(80), **QUIET)
@given(events=streams("ABC", 60), parts=st.integers(1, 5), text=st.sampled_from(TEXTS))
def test_join_is_the_inverse_of_split(events: list[Event], parts: int, text: str) -> None:
    rules = parse(text).rules
    detector = Detector(rules, DECLARED, delay_us=5)
    detector.push(sorted(events, key=lambda event: event.ts))
    before = detector_state.decode(detector.snapshot())
    after = detector_state.decode(join(split(detector.snapshot(), place(parts), parts)))
    assert after.numbers == before.numbers
    assert {type: rows_of(rows) for type, rows in after.state.rows.items()} == {
        type: rows_of(rows) for type, rows in before.state.rows.items()
    }
    assert {owner: rows.tolist() for owner, rows in after.state.left.items()} == {
        owner: rows.tolist() for owner, rows in before.state.left.items()
    }
    assert {owner: rows.tolist() for owner, rows in after.state.used.items() if len(rows)} == {
        owner: rows.tolist() for owner, rows in before.state.used.items()
    }
    assert events_in(after.waiting) == events_in(before.waiting)


def events_in(waiting: pa.Table | None) -> list[str]:
    return sorted(repr(sorted(row.items())) for row in ([] if waiting is None else rows_of(waiting)))


def test_a_narrowed_state_is_smaller() -> None:
    rules = [*parse(CONSUMING).rules, *parse(GUARDED).rules]
    detector = Detector(rules, DECLARED)
    detector.push([Event("A", 1, {"k": "x"}), Event("B", 1, {"k": "x", "n": 1}), Event("B", 3, {"k": "x", "n": 1})])
    state = detector_state.decode(narrow(detector.snapshot(), rules[:1], DECLARED)).state
    assert set(state.rows) == {"B"}
    assert set(state.left) == {("Taken", 1)}


# ---- errors


def state_of(text: str, events: Sequence[Event], **options: object) -> bytes:
    detector = tocsin.rules(text).detector(**options)  # type: ignore[arg-type]
    detector.push(list(events))
    return detector.snapshot()


def test_incompatible_states_are_not_joined() -> None:
    text, other = CONSUMING, CONSUMING.replace("10 us", "11 us")
    events = [Event("B", ts, {"k": "x", "n": 1}) for ts in range(3)]
    later = [Event("B", ts, {"k": "x", "n": 1}) for ts in range(50, 53)]
    doubles = [Event("B", ts, {"k": "x", "n": 1.5}) for ts in range(3)]
    for states, message in [
        ([], "no state"),
        ([state_of(text, events), state_of(other, events)], "rule Taken"),
        ([state_of(text, events), state_of(text, events, delay=3)], "delay_us"),
        ([state_of(text, events), state_of(text, later)], "different watermarks"),
        ([state_of(CONSUMING, events), state_of(GUARDED, doubles)], "attribute n"),
    ]:
        with pytest.raises(StateError, match=message):
            join(states)


def test_each_event_needs_a_partition() -> None:
    state = state_of(CONSUMING, [Event("B", ts, {"k": "x", "n": 1}) for ts in range(3)])
    with pytest.raises(StateError, match="each B must be assigned to one of 2 parts"):
        split(state, lambda type, rows: np.full(rows.num_rows, 2), 2)
