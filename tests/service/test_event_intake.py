"""Which events of a body are accepted, and what is said of the others?"""

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
from tocsin.service.event_intake import ARROW_STREAM, JSON, NDJSON, TYPES_MAX, Bounds, Intake, Kinds, Registry, Taken
from tocsin.service.records import Events, decode

NOW = 1_800_000_000_000_000
ALWAYS = Bounds(-(2**61), 2**61)


def intake(known: Kinds | None = None, defined: tuple[str, ...] = ()) -> Intake:
    registry = Registry()
    registry.learn(known or {})
    return Intake(registry, lambda: defined)


def ndjson(*rows: Mapping[str, Any] | str) -> bytes:
    return "\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows).encode()


def arrow(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return bytes(sink.getvalue())


def take(body: bytes, format: str, into: Intake | None = None, bounds: Bounds = ALWAYS, **options: Any) -> Taken:
    return (into or intake()).read(body, format, now_us=NOW, bounds=bounds, columns=Columns(**options))


def rows(taken: Taken) -> list[dict[str, Any]]:
    """The accepted events, with their types by name, without nulls."""
    return [
        {name.rpartition(":")[0] or name: value for name, value in row.items() if value is not None}
        | {"type": taken.types[row["type"]]}
        for row in taken.batch.to_pylist()
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
    taken = take(body, format)
    assert rows(taken) == [{**TEMP, "seq": 0}]
    assert taken.rejected == {}
    assert taken.news == {"Temp": {"area": Kind.STRING, "value": Kind.DOUBLE}}


def test_each_rejected_event_is_told_by_its_place() -> None:
    body = ndjson(
        TEMP, "{broken", {"ts": NOW}, {**TEMP, "value": "hot"}, [1], {**TEMP, "ts": "noon"},
        {**TEMP, "area": ["A"]}, TEMP,
    )  # fmt: skip
    taken = take(body, NDJSON)
    assert taken.accepted == 2
    assert {place: reason.split(":")[0] for place, reason in taken.rejected.items()} == {
        1: "invalid JSON",
        2: "there is no type",
        3: "value should be a double, it is 'hot'",
        4: "not a JSON object",
        5: "ts is not a time",
        6: "area holds a list; it can be a string, a number or a boolean",
    }


def test_types_may_give_one_name_different_kinds() -> None:
    body = ndjson(TEMP, {"type": "Door", "ts": NOW, "value": "open"}, {**TEMP, "value": 20})
    taken = take(body, NDJSON)
    assert [row["value"] for row in rows(taken)] == [46.5, "open", 20.0]
    assert taken.rejected == {}


def test_whole_numbers_of_json_do_not_make_a_type_whole() -> None:
    into = intake()
    for value in (20, 20.5, 21):
        assert take(ndjson({**TEMP, "value": value}), NDJSON, into).rejected == {}
        assert take(json.dumps({**TEMP, "value": value}).encode(), JSON, into).rejected == {}
    assert into.registry.kinds["Temp"]["value"] is Kind.DOUBLE


def test_a_rule_that_needs_whole_numbers_gets_them() -> None:
    def check(news: Kinds) -> None:
        if news.get("Temp", {}).get("value") is Kind.DOUBLE:
            raise RuleError("value must be a long")

    into = Intake(Registry(), tuple, check)
    taken = take(ndjson({**TEMP, "value": 20}, {"type": "Smoke", "n": 1}), NDJSON, into)
    assert taken.rejected == {}
    assert into.registry.kinds == {
        "Temp": {"area": Kind.STRING, "value": Kind.LONG},
        "Smoke": {"n": Kind.DOUBLE},
    }
    refused = take(
        ndjson({"type": "Smoke", "n": 1}, {"type": "Temp", "value": 2.5}), NDJSON, Intake(Registry(), tuple, check)
    )
    assert refused.rejected == {1: "value must be a long"}
    assert refused.accepted == 1


def test_kinds_stay_as_the_first_event_had_them() -> None:
    into = intake({"Temp": {"value": Kind.LONG}})
    taken = take(ndjson({**TEMP, "value": 3}, {**TEMP, "value": 3.5}), NDJSON, into)
    assert taken.rejected == {1: "value should be a long, it is 3.5"}
    table = pa.table({"type": ["Temp", "Temp"], "ts": [NOW, NOW], "value": ["4", "x"]})
    taken = take(arrow(table), ARROW_STREAM, into)
    assert taken.rejected == {1: "value should be a long, it is 'x'"}
    assert rows(taken)[0]["value"] == 4


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
def test_an_event_without_a_time_happens_now_whatever_comes_with_it(ts: Any, unit: str | None, format: str) -> None:
    events = [{"type": "A", "ts": ts}, {"type": "A"}, {"type": "A", "ts": None}]
    body = ndjson(*events) if format == NDJSON else json.dumps(events).encode()
    taken = take(body, format, ts_unit=unit)
    assert taken.rejected == {}
    assert taken.batch["ts"].to_pylist() == [1_782_907_200_000_000, NOW, NOW]


@pytest.mark.parametrize(("number", "unit"), [(1_782_907_201_000_000, None), (1_782_907_201, "s")])
@pytest.mark.parametrize("first", [0, 1])
def test_times_as_text_and_as_numbers_come_together(number: int, unit: str | None, first: int) -> None:
    events = [
        {"type": "A", "ts": "2026-07-01T12:00:00Z"},
        {"type": "A", "ts": number},
        {"type": "A", "ts": "2026-13-01"},
    ]
    events = events[first:] + events[:first]
    taken = take(json.dumps(events).encode(), JSON, ts_unit=unit)
    assert sorted(taken.batch["ts"].to_pylist()) == [1_782_907_200_000_000, 1_782_907_201_000_000]
    assert taken.rejected == {2 - first: "ts is not a time: '2026-13-01'"}


def test_types_that_are_all_null_are_rejected() -> None:
    taken = take(arrow(pa.table({"type": pa.nulls(2), "ts": [NOW, NOW]})), ARROW_STREAM)
    assert taken.rejected == {0: "type is null", 1: "type is null"}


def test_late_and_early_events_are_rejected() -> None:
    body = ndjson(*({"type": "A", "ts": NOW + offset} for offset in (-1, 0, 10, 11)))
    taken = take(body, NDJSON, bounds=Bounds(NOW, NOW + 10))
    assert {place: reason.split(":")[0] for place, reason in taken.rejected.items()} == {
        0: "late",
        3: "ts is 11 us ahead of the clock; at most 10 us is accepted",
    }
    assert taken.times == {0: NOW - 1, 3: NOW + 11}
    assert [row["ts"] - NOW for row in rows(taken)] == [0, 10]


@pytest.mark.parametrize("format", [JSON, NDJSON, ARROW_STREAM])
def test_only_accepted_events_register_types_and_attributes(format: str) -> None:
    objects = [{"type": f"Late{number}", "ts": NOW - 1, "x": 1.5} for number in range(9)]
    objects += [{"type": "Good", "ts": NOW, "x": 1.5}, {"type": "Good", "ts": NOW - 1, "x": 1.5, "y": 2.5}]
    tables = {name: [one.get(name) for one in objects] for name in ("type", "ts", "x", "y")}
    bodies = {JSON: json.dumps(objects).encode(), NDJSON: ndjson(*objects), ARROW_STREAM: arrow(pa.table(tables))}
    into = intake()
    taken = take(bodies[format], format, into, Bounds(NOW, NOW))
    assert (taken.accepted, len(taken.rejected)) == (1, 10)
    assert into.registry.kinds == taken.news == {"Good": {"x": Kind.DOUBLE}}
    assert rows(taken) == [{"type": "Good", "ts": NOW, "seq": 0, "x": 1.5}]


def test_a_full_registry_refuses_new_types_only() -> None:
    into = intake({f"T{number}": {"x": Kind.DOUBLE} for number in range(TYPES_MAX - 1)})
    objects = [{"type": type, "ts": NOW, "x": 1.5} for type in ("T5", "New", "Newer", "Newest")]
    taken = take(ndjson(*objects), NDJSON, into)
    assert taken.accepted == 2
    assert set(taken.rejected.values()) == {f"there are more than {TYPES_MAX} types of events"}
    assert set(into.registry.kinds) >= {taken.types[number] for number in taken.batch["type"].to_pylist()}


def test_what_rules_define_does_not_come_from_outside() -> None:
    taken = take(ndjson({"type": "Fire", "ts": NOW}, TEMP), NDJSON, intake(defined=("Fire",)))
    assert taken.rejected == {0: "Fire is defined by a rule"}
    assert taken.types[taken.batch["type"][0].as_py()] == "Temp"


def test_a_type_has_a_name() -> None:
    taken = take(ndjson({"type": "../etc", "ts": NOW}, {"type": "", "ts": NOW}, TEMP), NDJSON)
    assert set(taken.rejected) == {0, 1}
    assert "is no name of a type" in taken.rejected[0]


@pytest.mark.parametrize(
    ("body", "format", "said"),
    [
        (b"", ARROW_STREAM, "empty"),
        (b"", NDJSON, "empty"),
        (b"", JSON, "not JSON"),
        (b"ARROW1 nonsense", ARROW_STREAM, "no Arrow stream"),
        (arrow(pa.table({"type": ["A"] * 9, "ts": [NOW] * 9}))[:-40], ARROW_STREAM, "no Arrow stream"),
        (arrow(pa.table({"ts": [NOW]})), ARROW_STREAM, "no 'type'"),
        (arrow(pa.table({"type": [1], "ts": [NOW]})), ARROW_STREAM, "names of event types"),
        (arrow(pa.table({"type": ["A"], "ts": [1.5]})), ARROW_STREAM, "ts is double: say what it counts"),
        (arrow(pa.table({"type": ["A"], "ts": [True]})), ARROW_STREAM, "ts must hold times or numbers, it is bool"),
        (b"17", JSON, "must be an event"),
        (b"[" * 100_000, JSON, "nested too deeply"),
        (b"\xff\xfe", JSON, "the body is not"),
        (b"", NDJSON, "the body is empty"),
        (b"a,b", "text/csv", "events come as"),
    ],
)  # fmt: skip
def test_what_is_no_body_at_all_is_said_so(body: bytes, format: str, said: str) -> None:
    with pytest.raises(EventError, match=said):
        take(body, format)


def test_seconds_can_be_said() -> None:
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
def test_every_event_is_accepted_or_rejected_and_the_log_keeps_it(objects: list[Any]) -> None:
    for body, format in ((json.dumps(objects).encode(), JSON), (ndjson(*map(json.dumps, objects)), NDJSON)):
        taken = take(body, format)
        assert taken.accepted + len(taken.rejected) == len(objects)
        assert all(0 <= place < len(objects) for place in taken.rejected)
        record = Events(taken.batch, taken.types, taken.news, "key", len(taken.rejected), taken.letters, NOW)
        again = decode(memoryview(record.encode()))
        assert isinstance(again, Events)
        assert again.batch.equals(taken.batch.combine_chunks())
        assert (again.types, again.news, again.key) == (taken.types, taken.news, "key")
        assert again.letters == taken.letters


@pytest.mark.parametrize("line", [b"null", b'{"a":' * 50_000 + b"1" + b"}" * 50_000, b"[" * 9 + b"]" * 9, b"NaN"])
def test_lines_that_crash_arrows_reader_do_not_reach_it(line: bytes) -> None:
    assert take(line, NDJSON).rejected.keys() == {0}
    assert take(line + b"\n" + ndjson(TEMP), NDJSON).rejected.keys() == {0}


def test_times_are_read_as_on_every_host() -> None:
    """Numbers with a fraction and numbers as text count if a unit says what; a whole number counts microseconds."""
    seconds = NOW // 10**6
    for format, body in ((NDJSON, ndjson), (JSON, lambda *rows: json.dumps(rows).encode())):
        told = [{"type": "A", "ts": seconds + 0.5}, {"type": "B", "ts": str(seconds)}, {"type": "C", "ts": seconds}]
        assert [row["ts"] for row in rows(take(body(*told), format, ts_unit="s"))] == [NOW + 500_000, NOW, NOW]
        taken = take(body(*told), format)
        assert [row["ts"] for row in rows(taken)] == [seconds]
        assert taken.rejected[0] == f"ts is {seconds}.5: say what it counts, with ts_unit='s', 'ms', 'us' or 'ns'"
        assert taken.rejected[1] == f"ts is not a time: '{seconds}'"
        taken = take(body({"type": "A", "ts": "2027-01-15T08:00:00.123456789"}, {"type": "A", "ts": 2**62}), format)
        assert [row["ts"] for row in rows(taken)] == [NOW + 123_456]
    far = pa.array([NOW * 1_000 + 999, None], pa.timestamp("ns"))
    taken = take(arrow(pa.table({"type": ["A", "A"], "ts": far})), ARROW_STREAM)
    assert [row["ts"] for row in rows(taken)] == [NOW, NOW]
    taken = take(arrow(pa.table({"type": ["A"], "ts": pa.array([2**62], pa.timestamp("s"))})), ARROW_STREAM)
    assert taken.rejected == {0: "ts is out of range"}


def test_attributes_that_rules_cannot_read_are_left_out() -> None:
    there = {**TEMP, "tags": ["a"], "at": {"x": 1}}
    for format, body in ((NDJSON, ndjson(there)), (JSON, json.dumps(there).encode())):
        assert rows(take(body, format)) == rows(take(ndjson(TEMP), NDJSON))
    table = pa.table({"type": ["A"], "ts": [NOW], "n": [1], "x": [[1]], "y": [b"x"], "z": [{"a": 1}]})
    assert rows(take(arrow(table), ARROW_STREAM)) == rows(take(arrow(table.select(["type", "ts", "n"])), ARROW_STREAM))
