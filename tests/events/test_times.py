"""A column of times is read the same, whatever its form."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

import tocsin
from tocsin.errors import EventError
from tocsin.events.columns import convert
from tocsin.events.files import iso, open_events
from tocsin.events.reader import Columns, ReadResult, TypeInfo, read
from tocsin.events.times import TS_MAX, TS_MIN, micros
from tocsin.events.types import Kind
from tocsin.testing.times import REFUSED, SPELLINGS

KNOWN = TypeInfo({"A": 0})
NOON = 1_704_110_400_000_000
"""2024-01-01T12:00:00Z"""
OUT, NO_TIME = "ts is out of range", "ts is not a time"


def seen(ts: pa.Array, unit: str | None = None) -> ReadResult:
    return read(pa.table({"type": ["A"] * len(ts), "ts": ts}), Columns(ts_unit=unit), KNOWN)


@pytest.mark.parametrize(
    ("ts", "unit", "expected"),
    [
        # Whole numbers count microseconds, however large they are, unless a unit is given.
        (pa.array([1_700_000_000, 1_700_000_000_000]), None, [1_700_000_000, 1_700_000_000_000]),
        (pa.array([5], pa.int8()), "s", [5_000_000]),
        (pa.array([5], pa.int16()), "ms", [5_000]),
        (pa.array([5], pa.int32()), None, [5]),
        (pa.array([5], pa.uint8()), None, [5]),
        (pa.array([2**32 - 1], pa.uint32()), "s", [(2**32 - 1) * 1_000_000]),
        (pa.array([-1_001, -1, 1_999]), "ns", [-2, -1, 1]),
        (pa.array([7, 2**63, 2**64 - 1], pa.uint64()), None, [7, OUT, OUT]),
        (pa.array([2**63 - 1, -(2**63)]), None, [OUT, OUT]),
        (pa.array([2**63 - 1, -(2**63), 2**50]), "s", [OUT, OUT, OUT]),
        (pa.array([TS_MIN, TS_MIN - 1, TS_MAX, TS_MAX + 1]), None, [TS_MIN, OUT, TS_MAX, OUT]),
        # Numbers with a fraction are rounded to the nearest microsecond.
        (pa.array([1_704_110_400.123456, 0.0000004, -0.0000006]), "s", [NOON + 123_456, 0, -1]),
        (pa.array([1.5], pa.float32()), "ms", [1_500]),
        (pa.array([1.4, 1.6]), "us", [1, 2]),
        (pa.array([1_600.0]), "ns", [2]),
        (pa.array([float("nan"), float("inf"), -float("inf"), None]), "s", [NO_TIME, NO_TIME, NO_TIME, "ts is null"]),
        (pa.array([1e300, -1e300]), "s", [OUT, OUT]),
        (pa.array([Decimal("1704110400.123456"), Decimal("-0.0000015")]), "s", [NOON + 123_456, -2]),
        (pa.array([Decimal(5)], pa.decimal128(20, 0)), None, [5]),
        (pa.array([Decimal(10) ** 37], pa.decimal128(38, 0)), None, [OUT]),
        # Times, with a zone and without.
        (pa.array([1_704_110_400], pa.timestamp("s")), None, [NOON]),
        (pa.array([1_704_110_400_001], pa.timestamp("ms", tz="Asia/Tokyo")), "s", [NOON + 1_000]),
        (pa.array([NOON * 1_000 + 999, -1], pa.timestamp("ns")), None, [NOON, -1]),
        (pa.array([2**62, -(2**62)], pa.timestamp("s", tz="UTC")), None, [OUT, OUT]),
        (pa.array([2**63 - 1, -(2**63)], pa.timestamp("us")), None, [OUT, OUT]),
        (pa.array([19_723, 2**31 - 1], pa.int32()).cast(pa.date32()), None, [NOON - 43_200_000_000, OUT]),
        (pa.array([19_723 * 86_400_000], pa.int64()).cast(pa.date64()), None, [NOON - 43_200_000_000]),
        (pa.array([None, None], pa.null()), None, ["ts is null", "ts is null"]),
        # Text that is a number counts if a unit says what.
        (pa.array(["1704110400", "1704110400.5", "-3", "x"]), "s", [NOON, NOON + 500_000, -3_000_000, NO_TIME]),
        (pa.array(["1704110400", "2024-01-01"]), "s", [NOON, NOON - 43_200_000_000]),
        (pa.array(["1704110400", "1704110400.5", ""]), None, [NO_TIME, NO_TIME, NO_TIME]),
        (pa.array(["2024-01-01T12:00:00Z"]).dictionary_encode(), None, [NOON]),
        (pa.array(["2024-01-01T12:00:00Z"], pa.large_string()), None, [NOON]),
        (pa.array(["2024-01-01T12:00:00Z"], pa.string_view()), None, [NOON]),
    ],
)
def test_forms_of_ts(ts: pa.Array, unit: str | None, expected: list[int | str]) -> None:
    result = seen(ts, unit)
    assert result.batch["ts"].to_pylist() == [one for one in expected if isinstance(one, int)]
    wrong = [(row, reason) for row, reason in enumerate(expected) if isinstance(reason, str)]
    assert [(row, reason.split(":")[0]) for row, reason in sorted(result.reasons.items())] == wrong
    assert len(result.rejected) == len(wrong)


@pytest.mark.parametrize("alone", [True, False])
def test_spellings_of_times(alone: bool) -> None:
    """Text is read alike, whether Arrow can read the whole column or not."""
    texts = [*SPELLINGS, *REFUSED]
    found = (
        [micros(pa.array([text]))[0][0].as_py() for text in texts] if alone else micros(pa.array(texts))[0].to_pylist()
    )
    assert dict(zip(texts, found, strict=True)) == {**SPELLINGS, **dict.fromkeys(REFUSED)}


@pytest.mark.parametrize(
    "ts", [pa.array([1.5]), pa.array([1.5], pa.float32()), pa.array([Decimal("1.5")]), pa.array([1.0])]
)
def test_fractions_need_a_unit(ts: pa.Array) -> None:
    with pytest.raises(EventError, match="say what it counts, with ts_unit='s', 'ms', 'us' or 'ns'"):
        seen(ts)


@pytest.mark.parametrize("ts", [pa.array([True]), pa.array([b"x"]), pa.array([[1]]), pa.array([{"a": 1}])])
def test_what_cannot_be_a_time(ts: pa.Array) -> None:
    with pytest.raises(EventError, match="ts must hold times or numbers, it is "):
        seen(ts, "s")


def test_units_have_names() -> None:
    with pytest.raises(EventError, match="ts_unit is one of s, ms, us, ns, not 'h'"):
        seen(pa.array([1]), "h")


def test_times_as_attributes_are_null_outside_of_the_range() -> None:
    """As infinity is of doubles."""
    for array in (
        pa.array([NOON, TS_MAX + 1, 2**63 - 1, -(2**63), None], pa.timestamp("us")),
        pa.array([NOON // 10**6, 2**62, -(2**62), 2**40, None], pa.timestamp("s", tz="UTC")),
        pa.array([NOON, TS_MAX + 1, 2**63 - 1, -(2**63), None], pa.int64()),
    ):
        found, failed = convert(array, Kind.TIMESTAMP)
        assert found.cast(pa.int64()).to_pylist() == [NOON, None, None, None, None]
        assert failed == []


def test_a_time_is_one_text_whatever_its_unit_and_zone() -> None:
    text = "2024-01-01 12:00:00.000000Z"
    for type in (pa.timestamp("s"), pa.timestamp("us", tz="UTC"), pa.timestamp("ns", tz="Asia/Tokyo")):
        array = pa.array([NOON], pa.timestamp("us")).cast(type)
        assert convert(array, Kind.STRING)[0].to_pylist() == [text]


RULE = "define Late(until: timestamp, n: long) from A(n > 0) where until = A.until, n = A.n"


def test_extreme_times_are_shown() -> None:
    """Matches, dead letters and messages, where Python's own times would overflow."""
    far = pa.array([2**63 - 1, -(2**63), TS_MIN, TS_MAX], pa.timestamp("us", tz="UTC"))
    events = pa.table({"type": ["A"] * 4, "ts": far, "until": far, "n": [1, 2, 3, 4]})
    with pytest.warns(tocsin.DeadLetterWarning, match="2 events could not be used; the first: ts is out of range"):
        found = tocsin.rules(RULE).detect(events)
    assert found["n"].to_pylist() == [3, 4]
    assert iso(found)["until"].to_pylist() == ["0001-01-01T00:00:00.000000Z", "9999-12-31T23:59:59.999999Z"]
    assert found["ts"].to_pylist()[1] == dt.datetime.max.replace(tzinfo=dt.UTC)


def test_bad_times_in_a_file_are_bad_lines(tmp_path) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "events.csv"
    path.write_text("type,ts\nA,2024-01-01 12:00:00.123456789\nA,soon\nA,later\nA,0000-01-01\n")
    chunks = list(open_events(path).chunks())
    result = read(chunks[0].table, Columns(), KNOWN)
    assert result.batch["ts"].to_pylist() == [NOON + 123_456]
    assert list(result.reasons.values()) == [OUT]
    assert [(bad.line, bad.reason) for bad in chunks[0].bad] == [
        (3, 'ts is "soon", which is not a time'),
        (4, 'ts is "later", which is not a time'),
    ]


def test_numbers_as_text_in_a_file_need_a_unit(tmp_path) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "events.jsonl"
    path.write_text('{"type": "A", "ts": "1704110400"}\n')
    with pytest.raises(EventError, match="holds text that is no time"):
        _ = open_events(path).schema
    (chunk,) = open_events(path, ts_unit="s").chunks()
    assert read(chunk.table, Columns(ts_unit="s"), KNOWN).batch["ts"].to_pylist() == [NOON]


def test_many_nanoseconds_are_read_at_once() -> None:
    texts = np.char.add("2024-01-01T12:00:00.", np.arange(100_000_000, 100_050_000).astype(str))
    found, failed = micros(pa.array(texts.tolist()))
    assert not failed
    assert found.to_numpy().tolist() == (NOON + np.arange(100_000_000, 100_050_000) // 1_000).tolist()
