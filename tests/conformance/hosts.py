"""Ways to run rules over events.

Each must give the reference's answer; a new host of the engine is one more function here.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pyarrow as pa

from tocsin.engine.detector import Detector
from tocsin.events.types import Event, EventType, content_words, hexadecimal
from tocsin.language.siddhi.ast import Output, Query
from tocsin.language.syntax.ast import Rule
from tocsin.reference.patterns import Match

Host = Callable[[Sequence[Rule], dict[str, EventType], list[Event], random.Random], list[dict[str, object]]]


def whole(rules: Sequence[Rule], types: dict[str, EventType], events: list[Event], chance: random.Random) -> list[dict]:
    """All events at once, in any order."""
    shuffled = chance.sample(events, len(events))
    detector = Detector(rules, types, delay_us=2**60)
    return [*rows_of(detector.push(shuffled)), *rows_of(detector.finish())]


def cut(rules: Sequence[Rule], types: dict[str, EventType], events: list[Event], chance: random.Random) -> list[dict]:
    """Random batches, arrival out of order within the delay, snapshots and restores in between."""
    delay_us = chance.choice([0, 1, 3, 10])
    arrival = sorted(events, key=lambda event: event.ts + chance.randint(0, delay_us))
    return _run(Detector(rules, types, delay_us=delay_us), rules, types, arrival, chance)


def ordered(
    rules: Sequence[Rule], types: dict[str, EventType], events: list[Event], chance: random.Random
) -> list[dict]:
    """Random batches of events in canonical order, released at once."""
    return _run(Detector(rules, types, ordered=True), rules, types, sorted(events, key=canonical_key), chance)


def canonical_key(event: Event) -> tuple[object, ...]:
    """The place of an event in the canonical order; equal events may stand in any."""
    content = content_words(event.type, event.ts, event.seq, event.attributes)
    return event.ts, event.seq, event.type, event.id or hexadecimal(content), content


def _run(
    detector: Detector, rules: Sequence[Rule], types: dict[str, EventType], arrival: list[Event], chance: random.Random
) -> list[dict]:
    found: list[dict] = []
    at = 0
    while at < len(arrival):
        size = chance.choice([1, 1, 2, 3, 5, 8, 40])
        found += rows_of(detector.push(arrival[at : at + size]))
        at += size
        if chance.random() < 0.2:
            detector = Detector.restore(detector.snapshot(), rules, types)
    if chance.random() < 0.5:
        detector = Detector.restore(detector.snapshot(), rules, types)
    found += rows_of(detector.finish())
    assert detector.counts["dead"] == 0, detector.dead_letters().to_pylist()
    assert detector.counts["matches"] == len(found)
    return found


HOSTS: dict[str, Host] = {"whole": whole, "cut": cut, "ordered": ordered}


def expected(matches: list[Match], rules: Sequence[Rule]) -> list[dict[str, object]]:
    """The reference's matches as rows of the engine's table."""
    names = dict.fromkeys(name for rule in rules for name, _ in rule.emits.attributes)
    told = {rule.name for rule in rules if isinstance(rule, Query) and rule.output != Output.CURRENT}
    return [
        {
            "rule": match.rule,
            "type": match.type,
            "ts": match.ts,
            "id": match.id,
            **({"expired": match.expired if match.rule in told else None} if told else {}),
            **{name: dict(match.attributes).get(name) for name in names},
            "parts": [{"role": p.role, "type": p.type, "ts": p.ts, "id": p.id} for p in match.parts],
        }
        for match in matches
    ]


def rows_of(table: pa.Table) -> list[dict[str, object]]:
    """A table of matches as rows, times as integers, as the reference has them."""
    for number, field in enumerate(table.schema):
        if pa.types.is_timestamp(field.type):
            table = table.set_column(number, field.name, table[field.name].cast(pa.int64()))
    return table.to_pylist()
