"""Slots come and go: do placed queries take their windows along, with no row lost and none twice?"""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from tests.budget import examples
from tests.conformance.hosts import expected
from tests.conformance.packs import settled
from tests.conformance.slots import moving
from tests.spark.test_exactly_once import events_of
from tests.spark.test_stream import Stream
from tests.strategies_queries import STREAMS, definitions
from tocsin.events.types import Event
from tocsin.language import parse
from tocsin.reference import patterns
from tocsin.ruleset import rules as rules_of
from tocsin.spark import matches

QUERIES = """
@info(name='summed') from A#window.length(3) select sum(x) as s insert into Summed;
@info(name='again') from Summed#window.lengthBatch(2) select max(s) as most insert into Again;
@info(name='batched') from A[x > 0]#window.lengthBatch(3) select k, min(x) as least group by k insert all events into P;
@info(name='recent') from B[y > 1]#window.time(5 us) select k, count() as n group by k insert into Recent;
@info(name='timed') from C#window.timeBatch(4 us) select avg(z) as mean insert all events into Timed;
@info(name='ever') from C select sum(z) as total insert into Ever;
@info(name='met') from A join B#window.length(2) as b on A.k == b.k select A.x as a, b.y as b insert into Met;
"""
QUIET: dict[str, Any] = {
    "suppress_health_check": list(HealthCheck),
    "phases": [Phase.explicit, Phase.reuse, Phase.generate],
    "deadline": None,
}
FIRE = """
define stream Temp (area string, value double);
define stream Smoke (area string);
@info(name='mean') from Temp#window.length(50) select avg(value) as mean insert into Mean;
@info(name='hottest') from Temp[value > 40]#window.lengthBatch(20) select max(value) as hottest insert into Hottest;
@info(name='areas') from Temp#window.length(30) select area, count() as n group by area insert all events into Areas;
@info(name='smokes') from Smoke#window.timeBatch(300 milliseconds) select count() as smokes insert into Smokes;
@info(name='ever') from Smoke select count() as ever insert into Ever;
"""


def generated(seed: int, count: int) -> list[Event]:
    chance = random.Random(seed)
    ts, events = 0, []
    for seq in range(count):
        name = chance.choice(sorted(STREAMS))
        number, kind = STREAMS[name]
        value = chance.choice([None, 0, 1, 2, 3, 4])
        held = value if kind != "double" or value is None else value / 2
        events.append(Event(name, ts, {number: held, "k": chance.choice("ab")}, seq))
        ts += chance.randint(0, 3)
    return events


@settings(max_examples=examples(10), **QUIET)
@given(seed=st.integers(0, 9999), count=st.integers(10, 60))
def test_moving_slots_give_the_rows_of_the_reference(seed: int, count: int) -> None:
    program = parse(definitions() + QUERIES, "siddhi")
    types = {type.name: type for type in program.types}
    events = generated(seed, count)
    found = moving(program.rules, types, events, random.Random(seed))
    assert settled(found) == settled(expected(patterns.detect(program.rules, events), program.rules))


def test_queries_move_with_their_windows_when_a_slot_comes_and_goes(spark: SparkSession, tmp_path: Path) -> None:
    events = events_of(random.Random(4), 3_000)
    rules = rules_of(FIRE, language="siddhi")
    options: dict[str, Any] = {"ts_unit": "us", "delay": "2 s"}
    slots = 2
    stream = Stream(
        spark, tmp_path, lambda events, changes: rules.report(events, slots=slots, control=changes, **options)
    )
    for piece, slots in enumerate((2, 3, 2)):
        if piece:
            there = tmp_path / f"checkpoint{piece}"
            rules.rekey(stream.events(), stream.checkpoint, there, slots=slots, **options)
            stream.checkpoint = there
        stream.put(events.slice(1_000 * piece, 1_000))
        stream.run()
    stream.order(advance=4_000_000_000_000_000)
    stream.run()
    right = patterns.detect(rules.rules, _as_events(events))
    names = ["mean", "hottest", "area", "n", "smokes", "ever", "expired"]
    found = [(row["rule"], row["ts"], *(row[name] for name in names)) for row in matches(stream.report()).collect()]
    wanted = expected(right, rules.rules)
    last = max(events["ts"].to_pylist())
    # The advance lets timers run that the reference, which ends with the last event, leaves.
    assert Counter(row for row in found if row[1] <= last) == Counter(
        (row["rule"], row["ts"], *(row.get(name) for name in names)) for row in wanted
    )
    assert {row[0] for row in found} == {"mean", "hottest", "areas", "smokes", "ever"}


def _as_events(table: pa.Table) -> list[Event]:
    """What the reference reads, in canonical order."""
    rows = sorted(table.to_pylist(), key=lambda row: row["ts"])
    held = {"Temp": ("area", "value"), "Smoke": ("area",), "Rain": ("area",)}
    return [Event(row["type"], row["ts"], {name: row[name] for name in held[row["type"]]}) for row in rows]
