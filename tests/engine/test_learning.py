"""Detectors learn kinds of attributes from hosts, completely or not, and from declarations."""

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


def test_learned_kinds_bind_rules_and_allow_other_attributes() -> None:
    detector = Detector(parse(HOT).rules, {}, times=True)
    detector.learn({"Temp": {"area": Kind.STRING}})
    detector.learn({"Temp": {"value": Kind.DOUBLE}})
    detector.push_batch(batch(pa.array([44.0, 46.0, 47.0])), ["Temp"])
    assert detector.finish()["value"].to_pylist() == [47.0]
    assert detector.counts["matches"] == 2
    detector.add("define Cold() from Temp(wind > 3)", at=100)
    with pytest.raises(RuleError, match="string"):
        detector.learn({"Temp": {"wind": Kind.STRING}})


def test_a_declaration_is_complete_and_must_match_earlier_events() -> None:
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
    with pytest.raises(RuleError, match="mm of Rain is double in earlier events"):
        detector.declare([EventType("Rain", (("mm", Kind.STRING),))])
