"""What a detector is told about types without being shown a table: kinds that may not be all, and declarations."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tocsin import Detector, EventType, Kind, RuleError
from tocsin.language import parse

HOT = "define Hot(value: double) from Temp(value > 45) where value = Temp.value"


def batch(value: pa.Array) -> pa.Table:
    count = len(value)
    columns = {
        "type": pa.array([0] * count, pa.int32()),
        "ts": pa.array([*range(1, count + 1)]),
        "seq": pa.array([0] * count),
    }
    return pa.table({**columns, "value:double": value})


def test_what_is_learned_binds_rules_and_leaves_other_attributes_open() -> None:
    detector = Detector(parse(HOT).rules, {}, times=True)
    detector.learn({"Temp": {"area": Kind.STRING}})
    detector.learn({"Temp": {"value": Kind.DOUBLE}})
    detector.push_batch(batch(pa.array([44.0, 46.0, 47.0])), ["Temp"])
    assert detector.finish()["value"].to_pylist() == [47.0]
    assert detector.counts["matches"] == 2
    detector.add("define Cold() from Temp(wind > 3)", at=100)
    with pytest.raises(RuleError, match="string"):
        detector.learn({"Temp": {"wind": Kind.STRING}})


def test_a_declaration_says_all_and_must_fit_what_came() -> None:
    detector = Detector(parse(HOT).rules, {}, times=True)
    temp = EventType("Temp", (("value", Kind.DOUBLE),))
    detector.learn({"Temp": {"value": Kind.DOUBLE}})
    detector.declare([temp])
    detector.declare([temp])
    with pytest.raises(RuleError, match="declared already"):
        detector.declare([EventType("Temp", (("value", Kind.LONG),))])
    with pytest.raises(RuleError, match="no attribute wind"):
        detector.add("define Cold() from Temp(wind > 3)")
    detector.learn({"Rain": {"mm": Kind.DOUBLE}})
    with pytest.raises(RuleError, match="mm of Rain is double in the events"):
        detector.declare([EventType("Rain", (("mm", Kind.STRING),))])
