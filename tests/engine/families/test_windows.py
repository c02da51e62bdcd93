"""State of windows: limits, splitting and joining, saved state; and errors for unsupported queries."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest

import tocsin
from tocsin.engine import rescale
from tocsin.engine.checkpointer import Checkpointer
from tocsin.engine.detector import Detector
from tocsin.errors import RuleError, StateError
from tocsin.events.types import Event
from tocsin.language import parse
from tocsin.plans.explain import explain

STREAM = "define stream S (x int, k string);"
KEYED = f"{STREAM} from S#window.time(5 us) select k, sum(x) as s, max(x) as m group by k insert into O;"


def made(text: str) -> Detector:
    program = parse(text, "siddhi")
    return Detector(program.rules, {type.name: type for type in program.types})


def random_events(count: int, first: int = 0) -> list[Event]:
    rng = random.Random(count + first)
    return [Event("S", first + ts, {"x": rng.randint(0, 9), "k": rng.choice("abcd")}) for ts in range(count)]


def test_a_window_of_a_key_is_split_and_joined() -> None:
    before, after = random_events(20), random_events(20, 20)
    expected_rows, detector = made(KEYED), made(KEYED)
    actual = [*expected_rows.push([*before, *after]).to_pylist(), *expected_rows.finish().to_pylist()]
    rows = detector.push(before).to_pylist()
    rules, types = detector.plan.sources, {"S": parse(KEYED, "siddhi").types[0]}

    def place(type: str, table: pa.Table) -> np.ndarray:
        return np.array([key in "ab" for key in table["k:string"].to_pylist()], np.int64)

    parts = [Detector.restore(part, rules, types) for part in rescale.split(detector.snapshot(), place, 2)]
    joined = Detector.restore(rescale.join([part.snapshot() for part in parts]), rules, types)
    both = [*joined.push(after).to_pylist(), *joined.finish().to_pylist()]
    assert rows + both == actual
    apart = []
    for number, part in enumerate(parts):
        apart += part.push([event for event in after if (event.attributes["k"] in "ab") == number]).to_pylist()
        apart += part.finish().to_pylist()
    assert sorted(rows + apart, key=str) == sorted(actual, key=str)


def test_a_count_window_is_not_split() -> None:
    detector = made(f"{STREAM} from S#window.lengthBatch(50) select sum(x) as s insert into O;")
    detector.push(random_events(20))
    with pytest.raises(StateError, match="cannot be split"):
        rescale.split(detector.snapshot(), lambda type, table: np.zeros(table.num_rows, np.int64), 2)


def test_saved_state_is_bounded_by_the_window() -> None:
    detector = made(f"{STREAM} from S#window.length(10) select sum(x) as s insert into O;")
    checkpoints, segments = Checkpointer(detector), dict[int, bytes]()
    sizes = []
    for batch in range(60):
        detector.push(random_events(1000, 1000 * batch))
        changes = checkpoints.delta()
        segments |= changes.put
        for number in changes.drop:
            del segments[number]
        sizes.append(sum(map(len, segments.values())))
    assert max(sizes[30:]) < 4 * max(sizes[:15])


def test_window_entries_follow_rows_that_move() -> None:
    text = f"{STREAM} from S[x > 4]#window.length(300) select sum(x) as s, max(x) as m insert into O;"
    text += "from S#window.lengthBatch(1000) select min(x) as least, count() as n insert into P;"
    events, expected_rows = random_events(5000), made(text)
    actual = expected_rows.push(events).to_pylist()
    detector, rows = made(text), []
    for first in range(0, 5000, 250):
        rows += detector.push(events[first : first + 250]).to_pylist()
        detector._pipeline.evict(first)
        if first % 1000 == 0:
            snapshot = detector.snapshot()
            detector = Detector.restore(snapshot, detector.plan.sources, {"S": parse(text, "siddhi").types[0]})
    assert detector._pipeline.store.size < 2500
    assert rows == actual


def test_groups_without_events_are_removed() -> None:
    detector = made(f"{STREAM} from S#window.length(2) select k, sum(x) as s group by k insert into O;")
    detector.push([Event("S", ts, {"x": 1, "k": f"k{ts}"}) for ts in range(5000)])
    assert detector._pipeline.windows._counts[1] <= 3


@pytest.mark.parametrize(
    ("text", "message"),
    [],
)
def test_unsupported_queries_are_reported_with_a_caret(text: str, message: str) -> None:
    with pytest.raises(RuleError, match=message) as caught:
        tocsin.rules(STREAM + text)
    assert "^" in str(caught.value)


def test_a_query_and_a_rule_cannot_emit_one_type() -> None:
    rules = (
        *parse(f"{STREAM} from S select x insert into O;").rules,
        *parse("define O(x: int) from T() where x = T.x").rules,
    )
    with pytest.raises(RuleError, match="cannot both define O"):
        tocsin.rules(rules)


def test_explain_a_query() -> None:
    text = explain(
        tocsin.rules(KEYED + "from S[x > 1]#window.length(5)[x < 9] select k as k2 insert all events into P;").plan
    )
    assert "through time(5 us)" in text
    assert "can be partitioned by S.k" in text
    assert "through length(5), if x < 9" in text
    assert "cannot be partitioned: its rows depend on all of its events" in text
