"""The decisions of a tree node do not depend on where event time starts."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tocsin.language import parse
from tocsin.overlay.evaluation import Evaluator, passing
from tocsin.overlay.messages import Rows

PROGRAM = parse("""
event Temp(value: double)
define Two() from Temp(value > 1) and last Temp(value > 1) as before within 1 min from Temp
""")
TYPES = {type.name: type for type in PROGRAM.types}


@pytest.mark.parametrize("begin_us", [0, 900_000_000, 10**12])
def test_event_time_may_start_anywhere(begin_us: int) -> None:
    """Some of these starts would look like times in seconds or milliseconds."""
    times = [begin_us + 1_000_000, begin_us + 2_000_000]
    rows = Rows(pa.table({"type": ["Temp"] * 2, "ts": times, "seq": [0, 0], "id": ["a", "b"], "value": [2.0, 3.0]}))
    for ordered in (True, False):
        evaluator = Evaluator(PROGRAM.rules, TYPES, 60_000_000, ordered=ordered, wanted=frozenset({"Two"}))
        assert evaluator.detect(rows, rows, begin_us, begin_us + 5_000_000).num_rows == 1
    assert passing(PROGRAM.rules[0].anchor, rows, TYPES).all()


@pytest.mark.parametrize(
    ("kind", "values", "test"),
    [
        ("long", [2**53 + 2, 2**53 + 1, None], "x > 9007199254740992.0"),
        ("double", [2.0**53 + 2, 2.0**53, None], "x > 9007199254740993"),
    ],
)
def test_integers_that_doubles_cannot_represent(kind: str, values: list[float | None], test: str) -> None:
    program = parse(f"event A(x: {kind})\ndefine X() from A({test})")
    types = {type.name: type for type in program.types}
    columns = {"type": ["A"] * 3, "ts": [1, 2, 3], "seq": [0] * 3, "id": ["a", "b", "c"], "x": values}
    arrow = pa.int64() if kind == "long" else pa.float64()
    rows = Rows(pa.table(columns).set_column(4, "x", pa.array(values, arrow)))
    assert passing(program.rules[0].anchor, rows, types).tolist() == [True, False, False]
