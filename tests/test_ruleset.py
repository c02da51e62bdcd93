"""The public API of rule sets."""

import random
import warnings

import pyarrow as pa
import pyarrow.compute
import pytest

import tocsin
from tocsin.errors import EventError


def test_matches_can_have_fewer_columns() -> None:
    rules = tocsin.rules("define Hot(v: int) from Temp(v > 1) where v = Temp.v")
    events = pa.table({"type": ["Temp", "Temp"], "ts": [1, 2], "v": [1, 2]})
    assert rules.detect(events, select=["v", "ts"]).to_pylist() == [{"v": 2, "ts": 2}]
    with pytest.raises(EventError, match=r"matches have no column 'w'"):
        rules.detect(events, select=["w"])


def test_tables_mappings_and_events_are_sorted_by_time() -> None:
    rules = tocsin.rules("define Pair(n: long) from B() and last A() within 5 s from B where n = A.n")
    events = [tocsin.Event("B" if n % 3 == 0 else "A", n * 1_000_000, {"n": n}) for n in range(200)]
    right = rules.detect(events)
    random.Random(3).shuffle(events)
    columns = {"type": [e.type for e in events], "ts": [e.ts for e in events], "n": [e.attributes["n"] for e in events]}
    table = pa.table(columns)
    by_type = {name: table.filter(pa.compute.equal(table["type"], name)).drop_columns(["type"]) for name in ("A", "B")}
    assert right.num_rows == 66
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for given in (events, iter(events), table, table.to_batches()[0], by_type):
            assert rules.detect(given).equals(right)
