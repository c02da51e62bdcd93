"""Does what a membership decides depend on where event time begins?"""

from __future__ import annotations

import pyarrow as pa
import pytest

from tocsin.language import parse
from tocsin.overlay.evaluation import Evaluator, passing
from tocsin.overlay.rows import Rows

PROGRAM = parse("""
event Temp(value: double)
define Two() from Temp(value > 1) and last Temp(value > 1) as before within 1 min from Temp
""")
TYPES = {type.name: type for type in PROGRAM.types}


@pytest.mark.parametrize("begin_us", [0, 900_000_000, 10**12])
def test_it_may_begin_anywhere(begin_us: int) -> None:
    """Some of these would look like seconds or milliseconds to one who did not know."""
    times = [begin_us + 1_000_000, begin_us + 2_000_000]
    rows = Rows(pa.table({"type": ["Temp"] * 2, "ts": times, "seq": [0, 0], "id": ["a", "b"], "value": [2.0, 3.0]}))
    for ordered in (True, False):
        evaluator = Evaluator(PROGRAM.rules, TYPES, 60_000_000, ordered=ordered, wanted=frozenset({"Two"}))
        assert evaluator.detect(rows, rows, begin_us, begin_us + 5_000_000).num_rows == 1
    assert passing(PROGRAM.rules[0].anchor, rows, TYPES).all()
