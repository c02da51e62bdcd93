"""Windows of queries: what is kept is bounded, can be split and joined, and what cannot run says so."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest

import tocsin
from tocsin.engine import rescale
from tocsin.engine.checkpointer import Ledger
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


def drawn(count: int, first: int = 0) -> list[Event]:
    chance = random.Random(count + first)
    return [Event("S", first + ts, {"x": chance.randint(0, 9), "k": chance.choice("abcd")}) for ts in range(count)]


def test_a_window_of_a_key_is_split_and_joined() -> None:
    before, after = drawn(20), drawn(20, 20)
    right, detector = made(KEYED), made(KEYED)
    found = [*right.push([*before, *after]).to_pylist(), *right.finish().to_pylist()]
    rows = detector.push(before).to_pylist()
    rules, types = detector.plan.sources, {"S": parse(KEYED, "siddhi").types[0]}

    def place(type: str, table: pa.Table) -> np.ndarray:
        return np.array([key in "ab" for key in table["k:string"].to_pylist()], np.int64)

    parts = [Detector.restore(part, rules, types) for part in rescale.split(detector.snapshot(), place, 2)]
    joined = Detector.restore(rescale.joined([part.snapshot() for part in parts]), rules, types)
    both = [*joined.push(after).to_pylist(), *joined.finish().to_pylist()]
    assert rows + both == found
    apart = []
    for number, part in enumerate(parts):
        apart += part.push([event for event in after if (event.attributes["k"] in "ab") == number]).to_pylist()
        apart += part.finish().to_pylist()
    assert sorted(rows + apart, key=str) == sorted(found, key=str)


def test_a_window_that_counts_events_is_not_split() -> None:
    detector = made(f"{STREAM} from S#window.lengthBatch(50) select sum(x) as s insert into O;")
    detector.push(drawn(20))
    with pytest.raises(StateError, match="cannot be split"):
        rescale.split(detector.snapshot(), lambda type, table: np.zeros(table.num_rows, np.int64), 2)


def test_what_is_written_down_is_bounded_by_the_window() -> None:
    detector = made(f"{STREAM} from S#window.length(10) select sum(x) as s insert into O;")
    ledger, segments = Ledger(detector), dict[int, bytes]()
    sizes = []
    for batch in range(60):
        detector.push(drawn(1000, 1000 * batch))
        changes = ledger.changes()
        segments |= changes.put
        for number in changes.drop:
            del segments[number]
        sizes.append(sum(map(len, segments.values())))
    assert max(sizes[30:]) < 4 * max(sizes[:15])


def test_what_a_window_holds_is_found_again_when_the_store_has_moved() -> None:
    text = f"{STREAM} from S[x > 4]#window.length(300) select sum(x) as s, max(x) as m insert into O;"
    text += "from S#window.lengthBatch(1000) select min(x) as least, count() as n insert into P;"
    events, right = drawn(5000), made(text)
    found = right.push(events).to_pylist()
    detector, rows = made(text), []
    for first in range(0, 5000, 250):
        rows += detector.push(events[first : first + 250]).to_pylist()
        detector._machine.trim(first)
        if first % 1000 == 0:
            snapshot = detector.snapshot()
            detector = Detector.restore(snapshot, detector.plan.sources, {"S": parse(text, "siddhi").types[0]})
    assert detector._machine.store.size < 2500
    assert rows == found


def test_groups_without_events_are_forgotten() -> None:
    detector = made(f"{STREAM} from S#window.length(2) select k, sum(x) as s group by k insert into O;")
    detector.push([Event("S", ts, {"x": 1, "k": f"k{ts}"}) for ts in range(5000)])
    assert detector._machine.windows._counts[1] <= 3


@pytest.mark.parametrize(
    ("text", "message"),
    [],
)
def test_what_cannot_run_says_so_with_a_caret(text: str, message: str) -> None:
    with pytest.raises(RuleError, match=message) as caught:
        tocsin.rules(STREAM + text)
    assert "^" in str(caught.value)


def test_a_query_and_a_rule_do_not_fill_one_type() -> None:
    rules = (
        *parse(f"{STREAM} from S select x insert into O;").rules,
        *parse("define O(x: int) from T() where x = T.x").rules,
    )
    with pytest.raises(RuleError, match="cannot both define O"):
        tocsin.rules(rules)


def test_a_query_explains_itself() -> None:
    text = explain(
        tocsin.rules(KEYED + "from S[x > 1]#window.length(5)[x < 9] select k as k2 insert all events into P;").plan
    )
    assert "through time(5 us)" in text
    assert "can be partitioned by S.k" in text
    assert "through length(5), if x < 9" in text
    assert "cannot be partitioned: its rows depend on all of its events" in text
