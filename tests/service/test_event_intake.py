"""Event intake: which events of a body are accepted, and the reasons of rejected ones."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tocsin.errors import EventError, RuleError
from tocsin.events.reader import Columns
from tocsin.events.types import Kind
from tocsin.service.event_intake import (
    ARROW_STREAM,
    JSON,
    NDJSON,
    TYPES_MAX,
    Bounds,
    EventIntake,
    Kinds,
    ParsedEvents,
    Registry,
)
from tocsin.service.records import EventsRecord, decode

NOW = 1_800_000_000_000_000
ALWAYS = Bounds(-(2**61), 2**61)


def intake(known: Kinds | None = None, defined: tuple[str, ...] = ()) -> EventIntake:
    registry = Registry()
    registry.learn(known or {})
    return EventIntake(registry, lambda: defined)


def ndjson(*rows: Mapping[str, Any] | str) -> bytes:
    return "\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows).encode()


def arrow(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return bytes(sink.getvalue())


def take(
    body: bytes, format: str, into: EventIntake | None = None, bounds: Bounds = ALWAYS, **options: Any
) -> ParsedEvents:
    return (into or intake()).read(body, format, now_us=NOW, bounds=bounds, columns=Columns(**options))


def rows(parsed: ParsedEvents) -> list[dict[str, Any]]:
    """The accepted events, with their types by name, without nulls."""
    return [
        {name.rpartition(":")[0] or name: value for name, value in row.items() if value is not None}
        | {"type": parsed.types[row["type"]]}
        for row in parsed.batch.to_pylist()
    ]


TEMP = {"type": "Temp", "ts": NOW, "area": "A", "value": 46.5}


@pytest.mark.parametrize(
    ("body", "format"),
    [
        (json.dumps(TEMP).encode(), JSON),
        (json.dumps([TEMP]).encode(), JSON),
        (ndjson(TEMP), NDJSON),
        (ndjson("", TEMP, ""), NDJSON),
        (arrow(pa.table({name: [value] for name, value in TEMP.items()})), ARROW_STREAM),
    ],
)
def test_every_format_gives_the_same_event(body: bytes, format: str) -> None:
    parsed = take(body, format)
    assert rows(parsed) == [{**TEMP, "seq": 0}]
    assert parsed.rejected == {}
    assert parsed.new_kinds == {"Temp": {"area": Kind.STRING, "value": Kind.DOUBLE}}


def test_each_rejected_event_is_reported_by_its_index() -> None:
    body = ndjson(
        TEMP, "{broken", {"ts": NOW}, {**TEMP, "value": "hot"}, [1], {**TEMP, "ts": "noon"},
        {**TEMP, "area": ["A"]}, TEMP,
    )  # fmt: skip
    parsed = take(body, NDJSON)
    assert parsed.accepted == 2
    assert {index: reason.split(":")[0] for index, reason in parsed.rejected.items()} == {
        1: "invalid JSON",
        2: "the type is missing",
        3: "value should be a double, it is 'hot'",
        4: "not a JSON object",
        5: "ts is not a time",
        6: "area must be a string, a number or a boolean, it is a list",
    }


def test_types_may_give_one_name_different_kinds() -> None:
    body = ndjson(TEMP, {"type": "Door", "ts": NOW, "value": "open"}, {**TEMP, "value": 20})
    parsed = take(body, NDJSON)
    assert [row["value"] for row in rows(parsed)] == [46.5, "open", 20.0]
    assert parsed.rejected == {}


def test_json_integers_are_doubles_by_default() -> None:
    into = intake()
    for value in (20, 20.5, 21):
        assert take(ndjson({**TEMP, "value": value}), NDJSON, into).rejected == {}
        assert take(json.dumps({**TEMP, "value": value}).encode(), JSON, into).rejected == {}
    assert into.registry.kinds["Temp"]["value"] is Kind.DOUBLE


def test_json_integers_are_integers_if_a_rule_needs_them() -> None:
    def check(new_kinds: Kinds) -> None:
        if new_kinds.get("Temp", {}).get("value") is Kind.DOUBLE:
            raise RuleError("value must be a long")

    into = EventIntake(Registry(), tuple, check)
    parsed = take(ndjson({**TEMP, "value": 20}, {"type": "Smoke", "n": 1}), NDJSON, into)
    assert parsed.rejected == {}
    assert into.registry.kinds == {
        "Temp": {"area": Kind.STRING, "value": Kind.LONG},
        "Smoke": {"n": Kind.DOUBLE},
    }
    refused = take(
        ndjson({"type": "Smoke", "n": 1}, {"type": "Temp", "value": 2.5}), NDJSON, EventIntake(Registry(), tuple, check)
    )
    assert refused.rejected == {1: "value must be a long"}
    assert refused.accepted == 1


def test_the_first_event_sets_the_kinds() -> None:
    into = intake({"Temp": {"value": Kind.LONG}})
    parsed = take(ndjson({**TEMP, "value": 3}, {**TEMP, "value": 3.5}), NDJSON, into)
    assert parsed.rejected == {1: "value should be a long, it is 3.5"}
    table = pa.table({"type": ["Temp", "Temp"], "ts": [NOW, NOW], "value": ["4", "x"]})
    parsed = take(arrow(table), ARROW_STREAM, into)
    assert parsed.rejected == {1: "value should be a long, it is 'x'"}
    assert rows(parsed)[0]["value"] == 4


def test_an_event_without_a_time_happens_now() -> None:
    assert rows(take(b'{"type": "A"}', JSON))[0]["ts"] == NOW
    assert rows(take(ndjson({"type": "A"}, {"type": "A", "ts": 5}), NDJSON))[0]["ts"] == NOW


@pytest.mark.parametrize("format", [JSON, NDJSON])
@pytest.mark.parametrize(
    ("ts", "unit"),
    [
        ("2026-07-01T12:00:00Z", None),
        ("2026-07-01T14:00:00+02:00", None),
        (1_782_907_200_000_000, None),
        (1_782_907_200, "s"),
        (1_782_907_200.0, "s"),
        ("1782907200", "s"),
    ],
)
def test_a_missing_time_is_now_in_every_format(ts: Any, unit: str | None, format: str) -> None:
    events = [{"type": "A", "ts": ts}, {"type": "A"}, {"type": "A", "ts": None}]
    body = ndjson(*events) if format == NDJSON else json.dumps(events).encode()
    parsed = take(body, format, ts_unit=unit)
    assert parsed.rejected == {}
    assert parsed.batch["ts"].to_pylist() == [1_782_907_200_000_000, NOW, NOW]


@pytest.mark.parametrize(("number", "unit"), [(1_782_907_201_000_000, None), (1_782_907_201, "s")])
@pytest.mark.parametrize("first", [0, 1])
def test_times_may_be_text_and_numbers_in_one_request(number: int, unit: str | None, first: int) -> None:
    events = [
        {"type": "A", "ts": "2026-07-01T12:00:00Z"},
        {"type": "A", "ts": number},
        {"type": "A", "ts": "2026-13-01"},
    ]
    events = events[first:] + events[:first]
    parsed = take(json.dumps(events).encode(), JSON, ts_unit=unit)
    assert sorted(parsed.batch["ts"].to_pylist()) == [1_782_907_200_000_000, 1_782_907_201_000_000]
    assert parsed.rejected == {2 - first: "ts is not a time: '2026-13-01'"}


def test_types_that_are_all_null_are_rejected() -> None:
    parsed = take(arrow(pa.table({"type": pa.nulls(2), "ts": [NOW, NOW]})), ARROW_STREAM)
    assert parsed.rejected == {0: "type is null", 1: "type is null"}


def test_late_and_early_events_are_rejected() -> None:
    body = ndjson(*({"type": "A", "ts": NOW + offset} for offset in (-1, 0, 10, 11)))
    parsed = take(body, NDJSON, bounds=Bounds(NOW, NOW + 10))
    assert {index: reason.split(":")[0] for index, reason in parsed.rejected.items()} == {
        0: "late",
        3: "ts is 11 us ahead of the clock; at most 10 us is accepted",
    }
    assert parsed.times == {0: NOW - 1, 3: NOW + 11}
    assert [row["ts"] - NOW for row in rows(parsed)] == [0, 10]


@pytest.mark.parametrize("format", [JSON, NDJSON, ARROW_STREAM])
def test_only_accepted_events_register_types_and_attributes(format: str) -> None:
    objects = [{"type": f"Late{number}", "ts": NOW - 1, "x": 1.5} for number in range(9)]
    objects += [{"type": "Good", "ts": NOW, "x": 1.5}, {"type": "Good", "ts": NOW - 1, "x": 1.5, "y": 2.5}]
    tables = {name: [one.get(name) for one in objects] for name in ("type", "ts", "x", "y")}
    bodies = {JSON: json.dumps(objects).encode(), NDJSON: ndjson(*objects), ARROW_STREAM: arrow(pa.table(tables))}
    into = intake()
    parsed = take(bodies[format], format, into, Bounds(NOW, NOW))
    assert (parsed.accepted, len(parsed.rejected)) == (1, 10)
    assert into.registry.kinds == parsed.new_kinds == {"Good": {"x": Kind.DOUBLE}}
    assert rows(parsed) == [{"type": "Good", "ts": NOW, "seq": 0, "x": 1.5}]


def test_a_full_registry_refuses_new_types_only() -> None:
    into = intake({f"T{number}": {"x": Kind.DOUBLE} for number in range(TYPES_MAX - 1)})
    objects = [{"type": type, "ts": NOW, "x": 1.5} for type in ("T5", "New", "Newer", "Newest")]
    parsed = take(ndjson(*objects), NDJSON, into)
    assert parsed.accepted == 2
    assert set(parsed.rejected.values()) == {f"there are more than {TYPES_MAX} event types"}
    assert set(into.registry.kinds) >= {parsed.types[number] for number in parsed.batch["type"].to_pylist()}


def test_events_of_defined_types_are_rejected() -> None:
    parsed = take(ndjson({"type": "Fire", "ts": NOW}, TEMP), NDJSON, intake(defined=("Fire",)))
    assert parsed.rejected == {0: "Fire is defined by a rule"}
    assert parsed.types[parsed.batch["type"][0].as_py()] == "Temp"


def test_a_type_must_be_a_name() -> None:
    parsed = take(ndjson({"type": "../etc", "ts": NOW}, {"type": "", "ts": NOW}, TEMP), NDJSON)
    assert set(parsed.rejected) == {0, 1}
    assert "is not a type name" in parsed.rejected[0]


@pytest.mark.parametrize(
    ("body", "format", "message"),
    [
        (b"", ARROW_STREAM, "empty"),
        (b"", NDJSON, "empty"),
        (b"", JSON, "not JSON"),
        (b"ARROW1 nonsense", ARROW_STREAM, "not a valid Arrow stream"),
        (arrow(pa.table({"type": ["A"] * 9, "ts": [NOW] * 9}))[:-40], ARROW_STREAM, "not a valid Arrow stream"),
        (arrow(pa.table({"ts": [NOW]})), ARROW_STREAM, "no 'type'"),
        (arrow(pa.table({"type": [1], "ts": [NOW]})), ARROW_STREAM, "a column of strings"),
        (arrow(pa.table({"type": ["A"], "ts": [1.5]})), ARROW_STREAM, "ts is double: say what it counts"),
        (arrow(pa.table({"type": ["A"], "ts": [True]})), ARROW_STREAM, "ts must hold times or numbers, it is bool"),
        (b"17", JSON, "must be an event"),
        (b"[" * 100_000, JSON, "nested too deeply"),
        (b"\xff\xfe", JSON, "the body is not"),
        (b"", NDJSON, "the body is empty"),
        (b"a,b", "text/csv", "the format must be one of"),
    ],
)  # fmt: skip
def test_invalid_bodies_are_refused_with_a_message(body: bytes, format: str, message: str) -> None:
    with pytest.raises(EventError, match=message):
        take(body, format)


def test_ts_unit_sets_the_unit_of_times() -> None:
    assert rows(take(ndjson({"type": "A", "ts": 1_700_000_000}), NDJSON, ts_unit="s"))[0]["ts"] == 1_700_000_000_000_000


VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(), st.text(max_size=5),
    st.just("2026-07-01T12:00:00Z"), st.lists(st.integers(), max_size=1), st.just({}),
)  # fmt: skip
OBJECTS = st.one_of(
    st.fixed_dictionaries(
        {"type": st.sampled_from(["A", "B", "1", ""])}, optional=dict.fromkeys(("ts", "x", "id", "seq"), VALUES)
    ),
    VALUES,
)  # fmt: skip


@given(st.lists(OBJECTS, min_size=1, max_size=8))
def test_every_event_is_accepted_or_rejected_and_survives_the_log(objects: list[Any]) -> None:
    for body, format in ((json.dumps(objects).encode(), JSON), (ndjson(*map(json.dumps, objects)), NDJSON)):
        parsed = take(body, format)
        assert parsed.accepted + len(parsed.rejected) == len(objects)
        assert all(0 <= index < len(objects) for index in parsed.rejected)
        record = EventsRecord(
            parsed.batch, parsed.types, parsed.new_kinds, "key", len(parsed.rejected), parsed.dead_letters, NOW
        )
        again = decode(memoryview(record.encode()))
        assert isinstance(again, EventsRecord)
        assert again.batch.equals(parsed.batch.combine_chunks())
        assert (again.types, again.new_kinds, again.key) == (parsed.types, parsed.new_kinds, "key")
        assert again.dead_letters == parsed.dead_letters


@pytest.mark.parametrize("line", [b"null", b'{"a":' * 50_000 + b"1" + b"}" * 50_000, b"[" * 9 + b"]" * 9, b"NaN"])
def test_lines_that_crash_arrows_reader_do_not_reach_it(line: bytes) -> None:
    assert take(line, NDJSON).rejected.keys() == {0}
    assert take(line + b"\n" + ndjson(TEMP), NDJSON).rejected.keys() == {0}


def test_times_are_parsed_as_on_every_host() -> None:
    """Numbers with a fraction and numbers as text count if a unit says what; a whole number counts microseconds."""
    seconds = NOW // 10**6
    for format, body in ((NDJSON, ndjson), (JSON, lambda *rows: json.dumps(rows).encode())):
        answer = [{"type": "A", "ts": seconds + 0.5}, {"type": "B", "ts": str(seconds)}, {"type": "C", "ts": seconds}]
        assert [row["ts"] for row in rows(take(body(*answer), format, ts_unit="s"))] == [NOW + 500_000, NOW, NOW]
        parsed = take(body(*answer), format)
        assert [row["ts"] for row in rows(parsed)] == [seconds]
        assert parsed.rejected[0] == f"ts is {seconds}.5: say what it counts, with ts_unit='s', 'ms', 'us' or 'ns'"
        assert parsed.rejected[1] == f"ts is not a time: '{seconds}'"
        parsed = take(body({"type": "A", "ts": "2027-01-15T08:00:00.123456789"}, {"type": "A", "ts": 2**62}), format)
        assert [row["ts"] for row in rows(parsed)] == [NOW + 123_456]
    far = pa.array([NOW * 1_000 + 999, None], pa.timestamp("ns"))
    parsed = take(arrow(pa.table({"type": ["A", "A"], "ts": far})), ARROW_STREAM)
    assert [row["ts"] for row in rows(parsed)] == [NOW, NOW]
    parsed = take(arrow(pa.table({"type": ["A"], "ts": pa.array([2**62], pa.timestamp("s"))})), ARROW_STREAM)
    assert parsed.rejected == {0: "ts is out of range"}


def test_attributes_that_rules_cannot_read_are_left_out() -> None:
    there = {**TEMP, "tags": ["a"], "at": {"x": 1}}
    for format, body in ((NDJSON, ndjson(there)), (JSON, json.dumps(there).encode())):
        assert rows(take(body, format)) == rows(take(ndjson(TEMP), NDJSON))
    table = pa.table({"type": ["A"], "ts": [NOW], "n": [1], "x": [[1]], "y": [b"x"], "z": [{"a": 1}]})
    assert rows(take(arrow(table), ARROW_STREAM)) == rows(take(arrow(table.select(["type", "ts", "n"])), ARROW_STREAM))
