"""What a user calls."""

import pyarrow as pa
import pytest

import tocsin
from tocsin.errors import EventError


def test_matches_can_have_fewer_columns() -> None:
    rules = tocsin.rules("define Hot(v: int) from Temp(v > 1) where v = Temp.v")
    events = pa.table({"type": ["Temp", "Temp"], "ts": [1, 2], "v": [1, 2]})
    assert rules.detect(events, select=["v", "ts"]).to_pylist() == [{"v": 2, "ts": 2}]
    with pytest.raises(EventError, match=r"matches have no column 'w'"):
        rules.detect(events, select=["w"])
