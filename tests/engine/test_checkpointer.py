"""Is a state in pieces the whole state, and is only what is new written?"""

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
from tocsin.engine.checkpointer import Changes, Ledger, live
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
    """What a host has: a head and segments."""

    def __init__(self) -> None:
        self.head = b""
        self.segments: dict[int, bytes] = {}

    def apply(self, changes: Changes) -> int:
        """Takes changes over; returns how many bytes were written."""
        assert not changes.put.keys() & self.segments.keys()
        assert self.segments.keys() >= set(changes.drop)
        self.head = changes.head
        self.segments |= changes.put
        for number in changes.drop:
            del self.segments[number]
        assert set(live(self.head)) == self.segments.keys()
        return len(changes.head) + sum(map(len, changes.put.values()))


def content(detector: Detector) -> tuple[object, ...]:
    """All that a snapshot says; events that wait are in order only as far as they were put in order."""
    snapshot = detector_state.decode(detector.snapshot())
    state = snapshot.state
    waiting = [] if snapshot.waiting is None else rows_of(snapshot.waiting)
    return (
        {name: value for name, value in snapshot.header.items() if name != "waiting"},
        snapshot.numbers,
        {type: rows_of(rows) for type, rows in state.rows.items()},
        {type: rows_of(rows) for type, rows in state.pending.items()},
        {owner: rows.tolist() for owner, rows in state.left.items()},
        (state.tail, state.tail_key, state.tail_last),
        sorted(str(sorted((name, value) for name, value in row.items() if value is not None)) for row in waiting),
    )


def batches(events: Sequence[Event], chance: random.Random) -> Iterator[Sequence[Event]]:
    at = 0
    while at < len(events):
        size = chance.choice([1, 1, 1, 2, 3, 8])
        yield events[at : at + size]
        at += size


@settings(max_examples=examples(300), **QUIET)
@given(case=cases(), seed=st.integers(0, 999))
def test_head_and_segments_are_the_state(case: Case, seed: int) -> None:
    chance = random.Random(seed)
    delay_us = chance.choice([0, 1, 3, 10, None])
    if delay_us is None:
        detector = Detector(case.rules, DECLARED, ordered=True)
        arrival = sorted(case.events, key=canonical_key)
    else:
        detector = Detector(case.rules, DECLARED, delay_us=delay_us)
        arrival = sorted(case.events, key=lambda event: event.ts + chance.randint(0, delay_us))
    ledger, written = Ledger(detector), Written()
    found: list[dict[str, object]] = []
    for batch in batches(arrival, chance):
        found += rows_of(detector.push(batch))
        if chance.random() < 0.1:
            continue
        written.apply(ledger.changes())
        if chance.random() < 0.2:
            before = content(detector)
            detector, ledger = checkpointer.restore(written.head, written.segments, case.rules, DECLARED)
            for now, then in zip(content(detector), before, strict=True):
                assert now == then
    written.apply(ledger.changes())
    detector, ledger = checkpointer.restore(written.head, written.segments, case.rules, DECLARED)
    found += rows_of(detector.finish())
    written.apply(ledger.changes())
    right = expected(patterns.detect(case.rules, case.events), case.rules)
    if delay_us is None:  # what is released at once cannot be put in order within its instant
        found, right = (sorted(rows, key=lambda row: (row["ts"], row["id"])) for rows in (found, right))
    assert found == right


@settings(max_examples=examples(150), **QUIET)
@given(case=cases(), seed=st.integers(0, 999))
def test_rules_come_and_go(case: Case, seed: int) -> None:
    """A detector that is written in pieces does what one that is never written does."""
    chance = random.Random(seed)
    delay_us = chance.choice([0, 3, 10])
    arrival = sorted(case.events, key=lambda event: event.ts + chance.randint(0, delay_us))
    rules = list(case.rules)
    plain, detector = (Detector(rules, DECLARED, delay_us=delay_us) for _ in range(2))
    ledger, written = Ledger(detector), Written()
    for batch in batches(arrival, chance):
        assert rows_of(detector.push(batch)) == rows_of(plain.push(batch))
        change = chance.random()
        if change < 0.15 and rules:
            gone = unused(rules, chance)
            rules.remove(gone)
            for one in (plain, detector):
                one.remove([gone.name])
        elif change < 0.4 and (new := addable(case.rules, rules)):
            added = chance.choice(new)
            rules.append(added)
            for one in (plain, detector):
                one.add([added])
        if chance.random() < 0.8:
            written.apply(ledger.changes())
            if chance.random() < 0.3:
                detector, ledger = checkpointer.restore(written.head, written.segments, rules, DECLARED)
    assert rows_of(detector.finish()) == rows_of(plain.finish())


def used(rule: Rule) -> set[str]:
    return {pattern.type for pattern in (rule.anchor, *(clause.pattern for clause in rule.clauses))}


def unused(rules: Sequence[Rule], chance: random.Random) -> Rule:
    """A rule that no other one needs."""
    return chance.choice([rule for rule in rules if not any(rule.emits.name in used(other) for other in rules)])


def addable(every: Sequence[Rule], now: Sequence[Rule]) -> list[Rule]:
    known = {*DECLARED, *(rule.emits.name for rule in now)}
    names = {rule.name for rule in now}
    return [rule for rule in every if rule.name not in names and used(rule) <= known]


@settings(max_examples=examples(100), **QUIET)
@given(case=cases(), other=cases(events_max=0), seed=st.integers(0, 999))
def test_restored_under_other_rules(case: Case, other: Case, seed: int) -> None:
    chance = random.Random(seed)
    detector = Detector(case.rules, DECLARED, delay_us=3)
    arrival = sorted(case.events, key=lambda event: event.ts + chance.randint(0, 3))
    cut = chance.randint(0, len(arrival))
    ledger, written = Ledger(detector), Written()
    for batch in batches(arrival[:cut], chance):
        detector.push(batch)
        written.apply(ledger.changes())
    written.apply(ledger.changes())
    plain = Detector.restore(detector.snapshot(), other.rules, DECLARED)
    detector, ledger = checkpointer.restore(written.head, written.segments, other.rules, DECLARED)
    for batch in batches(arrival[cut:], chance):
        assert rows_of(detector.push(batch)) == rows_of(plain.push(batch))
        written.apply(ledger.changes())
        detector, ledger = checkpointer.restore(written.head, written.segments, other.rules, DECLARED)
    assert rows_of(detector.finish()) == rows_of(plain.finish())


def test_a_change_of_rules_that_is_still_to_come() -> None:
    first = tocsin.rules("define P() from B() and each A() within 1 s from B")
    second = tocsin.rules("define Q() from B() and each C() within 1 s from B")
    plain, detector = (first.detector(delay=10) for _ in range(2))
    ledger, written, found = Ledger(detector), Written(), []
    for number, batch in enumerate(
        ["A@0()", "C@5()", "B@12()", "C@25()", "B@30()", "B@45()", "A@60()\nC@61()", "B@70()"]
    ):
        for one in (plain, detector):
            if number == 2:
                one.change(add=second.rules, remove=["P"], at=20)
        found += rows_of(plain.push(read_events(batch)))
        again = rows_of(detector.push(read_events(batch)))
        assert again == found[len(found) - len(again) :]
        written.apply(ledger.changes())
        rules = detector.plan.sources
        detector, ledger = checkpointer.restore(written.head, written.segments, rules, {})
    last = rows_of(plain.finish())
    assert rows_of(detector.finish()) == last
    assert [(row["rule"], row["ts"]) for row in found + last] == [
        ("P", 12),
        ("Q", 30),
        ("Q", 45),
        ("Q", 70),
        ("Q", 70),
    ]


def test_kinds_that_are_learned_late() -> None:
    rules = tocsin.rules("define P(n: long) from B(k = $k) and each A(k = $k) within 1 s from B where n = A.n")
    detector = rules.detector(delay=5)
    ledger, written = Ledger(detector), Written()
    found = []
    for line in ['A@0(k="x")', 'B@1(k="x")', 'A@2(k="x", n=1)', 'B@3(k="x")', "A@20(n=5)", 'B@30(k="x")']:
        found += rows_of(detector.push(read_events(line)))
        written.apply(ledger.changes())
        detector, ledger = checkpointer.restore(written.head, written.segments, rules.rules, rules.types)
    found += rows_of(detector.finish())
    assert [(row["ts"], row["n"]) for row in found] == [(1, None), (3, None), (3, 1), (30, None), (30, 1)]


def test_a_ledger_of_a_restored_snapshot() -> None:
    rules = tocsin.rules(USED)
    detector = rules.detector(delay="1 s")
    detector.push(stream(3_000))
    detector = rules.restore(detector.snapshot())
    ledger, written = Ledger(detector), Written()
    written.apply(ledger.changes())
    restored, _ = checkpointer.restore(written.head, written.segments, rules.rules, rules.types)
    assert restored.snapshot() == detector.snapshot()


def test_what_is_damaged_or_missing_is_told() -> None:
    rules = tocsin.rules(USED)
    detector = rules.detector()
    detector.push(stream(100))
    written = Written()
    written.apply(Ledger(detector).changes())
    numbers = sorted(written.segments)
    for head, pieces, message in [
        (detector.snapshot(), written.segments, "not a head"),
        (written.head[:-1], written.segments, "checksum"),
        (written.head, {}, "missing"),
        (written.head, dict.fromkeys(numbers, written.segments[numbers[0]]), "another"),
        (written.head, {number: written.segments[number][:-1] for number in numbers}, "checksum"),
    ]:
        with pytest.raises(StateError, match=message):
            checkpointer.restore(head, pieces, rules.rules, rules.types)
    with pytest.raises(StateError, match="not a snapshot"):
        rules.restore(written.head)


# ---- how much is written

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
    """A hundred events a second, ten areas."""
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
def test_what_is_written_does_not_grow_with_the_state(delay: object) -> None:
    rules = tocsin.rules(LONG)
    detector = rules.detector(delay=delay)  # type: ignore[arg-type]
    ledger, written, sizes, heads = Ledger(detector), Written(), [], []
    for start in range(0, 64 * 500, 500):
        detector.push(stream(500, start))
        sizes.append(written.apply(ledger.changes()))
        heads.append(len(written.head))
    whole = sum(map(len, written.segments.values()))
    assert whole > 20 * sizes[10]
    assert max(heads) < 2_000
    # Each batch is written once, once more in the first merge, and the 64th merges all.
    assert sum(sizes[32:63]) < 1.2 * sum(sizes[:31])
    assert sum(sizes) < 4 * whole
    restored, _ = checkpointer.restore(written.head, written.segments, rules.rules, rules.types)
    assert restored.snapshot() == detector.snapshot()


@pytest.mark.parametrize("delay", [0, "2 s"])
def test_what_is_kept_follows_the_window(delay: object) -> None:
    rules = tocsin.rules(USED)
    detector = rules.detector(delay=delay)  # type: ignore[arg-type]
    ledger, written, kept = Ledger(detector), Written(), []
    for start in range(0, 300 * 100, 100):
        detector.push(stream(100, start))
        written.apply(ledger.changes())
        kept.append(sum(map(len, written.segments.values())))
    assert max(kept[250:]) < 1.2 * max(kept[20:100])
    assert len(written.segments) < 30
    restored, _ = checkpointer.restore(written.head, written.segments, rules.rules, rules.types)
    assert restored.snapshot() == detector.snapshot()


def test_rows_that_died_among_the_living_are_left_behind() -> None:
    """A few rows of a type that is kept long do not keep the many of a type that is not."""
    rules = tocsin.rules("""
        define P() from C() and each A() within 1 h from C
        define Q() from C() and each B() within 1 s from C
    """)
    detector = rules.detector()
    ledger, written, kept = Ledger(detector), Written(), []
    for second in range(0, 200, 2):
        types = pa.array(["A", *["B"] * 999])
        detector.push(pa.table({"type": types, "ts": pa.array(second * 1_000_000 + np.arange(1000))}))
        written.apply(ledger.changes())
        kept.append(sum(map(len, written.segments.values())))
    assert max(kept) < 20 * kept[0]


def test_the_rules_are_written_once() -> None:
    rules = tocsin.rules(
        "\n".join(f"rule R{n} define P{n}() from A(k = {n}) and last B(k = {n}) within 1 s from A" for n in range(500))
    )
    detector = rules.detector(delay=10)
    ledger, written, sizes = Ledger(detector), Written(), []
    for ts in range(5):
        detector.push([Event("B", ts, {"k": ts})])
        sizes.append(written.apply(ledger.changes()))
        detector, ledger = checkpointer.restore(written.head, written.segments, rules.rules, rules.types)
    assert sizes[0] > 20_000
    assert all(size < 5_000 for size in sizes[1:])


def test_nothing_new_is_no_segment() -> None:
    rules = tocsin.rules(USED)
    detector = rules.detector()
    ledger = Ledger(detector)
    first = ledger.changes()
    assert len(first.put) == 1  # the rules
    detector.push(stream(100))
    ledger.changes()
    assert not ledger.changes().put
    detector.advance(10**9)
    gone = ledger.changes()
    assert not gone.put
    assert len(gone.drop) == 1
    assert len(live(gone.head)) == 1


def test_what_a_rule_buffers_stays_although_a_window_that_counts_holds_nothing() -> None:
    rules = tocsin.rules("define Fire() from Smoke() and last Temp(value>45) within 5 min from Smoke").rules
    query = tocsin.rules("from Temp[value > 100]#window.length(3) select count() as n insert into Hot;").rules
    detector = Detector((*rules, *query), {})
    ledger = Ledger(detector)
    stored: dict[int, bytes] = {}

    def save() -> bytes:
        changes = ledger.changes()
        stored.update(changes.put)
        for number in changes.drop:
            stored.pop(number, None)
        return changes.head

    detector.push([Event("Temp", 1, {"value": 20.0})])
    save()
    detector.push([Event("Temp", 2, {"value": 50.0}), Event("Temp", 3, {"value": 20.0})])
    again, _ = checkpointer.restore(save(), stored, (*rules, *query), {})
    again.push([Event("Smoke", 4, {})])
    assert again.finish().num_rows == 1
