"""Ways to run rules over events.

Each must give the reference's answer. Add a function here for a new host of the engine.
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


def whole(rules: Sequence[Rule], types: dict[str, EventType], events: list[Event], rng: random.Random) -> list[dict]:
    """Push all events at once, in any order."""
    shuffled = rng.sample(events, len(events))
    detector = Detector(rules, types, delay_us=2**60)
    return [*rows_of(detector.push(shuffled)), *rows_of(detector.finish())]


def cut(rules: Sequence[Rule], types: dict[str, EventType], events: list[Event], rng: random.Random) -> list[dict]:
    """Push random batches, out of order within the delay, with snapshots and restores in between."""
    delay_us = rng.choice([0, 1, 3, 10])
    arrival = sorted(events, key=lambda event: event.ts + rng.randint(0, delay_us))
    return _run(Detector(rules, types, delay_us=delay_us), rules, types, arrival, rng)


def ordered(rules: Sequence[Rule], types: dict[str, EventType], events: list[Event], rng: random.Random) -> list[dict]:
    """Push random batches of events in canonical order, released at once."""
    return _run(Detector(rules, types, ordered=True), rules, types, sorted(events, key=canonical_key), rng)


def canonical_key(event: Event) -> tuple[object, ...]:
    """Return the sort key of an event in canonical order; equal events have equal keys."""
    content = content_words(event.type, event.ts, event.seq, event.attributes)
    return event.ts, event.seq, event.type, event.id or hexadecimal(content), content


def _run(
    detector: Detector, rules: Sequence[Rule], types: dict[str, EventType], arrival: list[Event], rng: random.Random
) -> list[dict]:
    found: list[dict] = []
    at = 0
    while at < len(arrival):
        size = rng.choice([1, 1, 2, 3, 5, 8, 40])
        found += rows_of(detector.push(arrival[at : at + size]))
        at += size
        if rng.random() < 0.2:
            detector = Detector.restore(detector.snapshot(), rules, types)
    if rng.random() < 0.5:
        detector = Detector.restore(detector.snapshot(), rules, types)
    found += rows_of(detector.finish())
    assert detector.counts["dead"] == 0, detector.dead_letters().to_pylist()
    assert detector.counts["matches"] == len(found)
    return found


HOSTS: dict[str, Host] = {"whole": whole, "cut": cut, "ordered": ordered}


def expected(matches: list[Match], rules: Sequence[Rule]) -> list[dict[str, object]]:
    """Convert the reference's matches to rows of the engine's table."""
    names = dict.fromkeys(name for rule in rules for name, _ in rule.emits.attributes)
    with_expired = {rule.name for rule in rules if isinstance(rule, Query) and rule.output != Output.CURRENT}
    return [
        {
            "rule": match.rule,
            "type": match.type,
            "ts": match.ts,
            "id": match.id,
            **({"expired": match.expired if match.rule in with_expired else None} if with_expired else {}),
            **{name: dict(match.attributes).get(name) for name in names},
            "parts": [{"role": p.role, "type": p.type, "ts": p.ts, "id": p.id} for p in match.parts],
        }
        for match in matches
    ]


def rows_of(table: pa.Table) -> list[dict[str, object]]:
    """Convert a table of matches to rows, with integer times as in the reference."""
    for number, field in enumerate(table.schema):
        if pa.types.is_timestamp(field.type):
            table = table.set_column(number, field.name, table[field.name].cast(pa.int64()))
    return table.to_pylist()
