"""Attributes and types may be called anything, in all four languages and on every host."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

import tocsin
from tests.conformance import hosts, slots
from tests.service.serving import running
from tocsin import Event
from tocsin.errors import RuleError
from tocsin.events.types import EventType, Kind
from tocsin.language import parse, print_program, print_rule
from tocsin.language.builder import define, event, role, this
from tocsin.language.syntax.ast import Attribute, Comparison, Literal, Pattern, Program, Rule
from tocsin.language.syntax.names import IDENTIFIER, quoted
from tocsin.live import Live
from tocsin.plans.plan import column_names
from tocsin.reference import patterns

S = 1_000_000
HEADER_NAMES = ("id", "Id", "ts", "seq", "type", "rule", "parts", "role", "query", "range", "expired", "error")
ODD_NAMES = ("Solar.R", "wind speed", "größe", "温度", "from", "and", "a`b", "x:long", "100", "a[0]", "$p", "true")


def events_of(name: str) -> list[Event]:
    return [
        Event("A", 1 * S, {name: 5, "k": 1}),
        Event("A", 2 * S, {name: 6, "k": 2}),
        Event("A", 3 * S, {"k": 3}),
        Event("B", 4 * S, {name: 5, "k": 1}),
    ]


def texts_of(name: str) -> dict[str, str]:
    """A text of each language that reads an attribute, tests it, and puts out one of that name."""
    n = quoted(name)
    return {
        "tesla": f"""
            define Hot({n}: long) from A({n} > 4) where {n} = A.{n}
            define Twice(v: long) from B({n} = $v) and last A({n} = $v) within 1 min from B where v = A.{n}
            define Over({n}: long) from Hot({n} = 5) and $c = Count(A({n} > 0) within 1 min from Hot)
                where {n} = Hot.{n} + $c
        """,
        "eps": f"request Both on A({n} > 4) as a & B as b if a.{n} = b.{n}\nrequest Many on TimesDf(2, A, {n})",
        "siddhi": f"""
            define stream A ({n} long, k long); define stream B ({n} long, k long);
            @info(name='Big') from A[{n} > 4] select {n} insert into Hot;
            @info(name='Sums') from A#window.length(2) select sum({n}) as {n}, k group by k insert into Sums;
            @info(name='Chain') from every e1=A[{n} == 5] -> e2=B[{n} == e1.{n}]
            select e1.{n} as {n}, e2.{n} as other insert into Chain;
        """,
    }


def names_of(rules: Sequence[Any]) -> list[str]:
    return list(dict.fromkeys(name for rule in rules for name, _ in rule.emits.attributes))


def expected(rules: Sequence[Any], events: list[Event]) -> list[dict[str, Any]]:
    """The reference's matches, with attributes by the columns that they have in tables."""
    columns = column_names(names_of(rules))
    return [
        {"rule": match.rule, "ts": match.ts, "id": match.id}
        | {columns[name]: value for name, value in match.attributes.items() if value is not None}
        for match in patterns.detect(rules, events)
    ]


def shown(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {name: value for name, value in row.items() if value is not None and name not in ("type", "parts", "expired")}
        for row in rows
    ]


def in_order(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: row["id"])


@pytest.mark.parametrize("language", ["tesla", "eps", "siddhi"])
@pytest.mark.parametrize("name", [*HEADER_NAMES, *ODD_NAMES])
def test_an_attribute_may_be_called_anything(name: str, language: str) -> None:
    events, ruleset = events_of(name), tocsin.rules(texts_of(name)[language])
    right = in_order(expected(ruleset.rules, events))
    assert {row["rule"] for row in right} == {rule.name for rule in ruleset}
    table = ruleset.detect(events)
    assert len({column.lower() for column in table.column_names}) == len(table.column_names)
    assert in_order(shown(table.to_pylist())) == right
    assert parse(print_program(ruleset.program), language).rules == ruleset.rules


@pytest.mark.parametrize("name", ["ts", "id", "seq", "Solar.R"])
@pytest.mark.parametrize("language", ["tesla", "eps", "siddhi"])
@pytest.mark.parametrize("host", hosts.HOSTS)
def test_the_hosts_agree_on_an_attribute_that_hides_a_header_field(host: str, language: str, name: str) -> None:
    events, program = events_of(name), parse(texts_of(name)[language])
    types = {type.name: type for type in program.types}
    found = hosts.HOSTS[host](program.rules, types, events, random.Random(1))
    assert sorted(row["id"] for row in found) == sorted(row["id"] for row in expected(program.rules, events))


@pytest.mark.parametrize("name", ["rule", "Solar.R", "Id"])
@pytest.mark.parametrize("run", [slots.slots, slots.micro_batches])
def test_the_slots_of_spark_agree(run: hosts.Host, name: str) -> None:
    events, rules = events_of(name), parse(texts_of(name)["tesla"]).rules
    types = {type: EventType(type, ((name, Kind.LONG), ("k", Kind.LONG))) for type in "AB"}
    found = run(rules, types, events, random.Random(1))
    assert sorted(row["id"] for row in found) == sorted(row["id"] for row in expected(rules, events))


def test_a_name_means_the_header_field_where_no_event_has_such_an_attribute() -> None:
    late = 'define Late(at: timestamp) from A(ts > timestamp("1970-01-01T00:00:02Z")) where at = A.ts'
    events = [Event("A", 1 * S), Event("A", 3 * S)]
    assert tocsin.rules(late).detect(events).num_rows == 1
    with pytest.raises(RuleError, match="a timestamp cannot be compared with an int"):
        tocsin.rules("define Late() from A(ts > 2)").detect(events)
    with pytest.raises(RuleError, match="a timestamp cannot be compared with an int"):
        tocsin.rules("event A(x: long)\ndefine Late() from A(ts > 2)")


def test_a_declared_attribute_hides_the_header_field() -> None:
    declared = "event A(ts: long)\nevent B(x: long)\n"
    rules = tocsin.rules(f"{declared}define O(mine: long, other: timestamp) from A(ts > 2) and last B() within 1 min"
                         " from A where mine = A.ts, other = B.ts")  # fmt: skip
    events = [Event("B", 1 * S, {"x": 1}), Event("A", 2 * S, {"ts": 1}), Event("A", 3 * S, {"ts": 3})]
    (row,) = rules.detect(events).to_pylist()
    assert (row["mine"], row["other"].timestamp()) == (3, 1.0)


def test_a_table_with_a_time_column_of_another_name_has_an_attribute_ts() -> None:
    table = pa.table({"type": ["A", "A"], "when": [1, 2], "ts": ["early", "late"], "id": [7, 8]})
    rules = tocsin.rules('define O(ts: string, id: long) from A(ts = "late", id > 7) where ts = A.ts, id = A.id')
    (row,) = rules.detect(table, ts="when").to_pylist()
    assert (row["ts"], row["ts_1"], row["id_1"]) == (2, "late", 8)
    (same,) = rules.detect(table, ts="when", select=["ts_1", "id_1"]).to_pylist()
    assert same == {"ts_1": "late", "id_1": 8}


def test_columns_of_attributes_are_unique_whatever_their_case() -> None:
    names = column_names(["ID", "Area", "area", "area_1", "AREA"])
    assert names == {"ID": "ID_1", "Area": "Area", "area": "area_1", "area_1": "area_1_1", "AREA": "AREA_2"}


def test_types_may_be_called_anything() -> None:
    text = """
        event `Lord of Rings`(`from`: long)
        event `every(1 h) of X y`(x: long)
        define `wind alarm`(`a b`: long) from `Lord of Rings`(`from` > 1)
            and not `every(1 h) of X y`() within 1 s from `Lord of Rings`
            where `a b` = `Lord of Rings`.`from` consuming `Lord of Rings`
        define Next(v: long) from `wind alarm`() as w where v = w.`a b`
    """
    rules = tocsin.rules(text)
    assert parse(print_program(rules.program)) == rules.program
    rows = rules.detect([Event("Lord of Rings", S, {"from": 2})]).to_pylist()
    assert [(row["type"], row["a b"], row["v"]) for row in rows] == [("Next", None, 2), ("wind alarm", 2, None)]
    assert rows[1]["parts"][0]["type"] == "Lord of Rings"


def test_names_in_interests() -> None:
    text = """
        define `hot spot`(`Solar.R`: double, range: long) from A(`Solar.R` > 1)
        where `Solar.R` = A.`Solar.R`, range = A.ts
        interest Near of `hot spot` around Me(`car id` = 7) range circle 10 m
    """
    rules = tocsin.rules(text)
    assert parse(print_program(rules.program), "mcep") == rules.program
    rows = rules.detect(
        [
            Event("Me", 1 * S, {"car id": 7, "x": 0.0, "y": 0.0}),
            Event("A", 2 * S, {"Solar.R": 2.0, "ts": 9, "x": 1.0, "y": 1.0}),
        ]
    ).to_pylist()
    (match,) = (row for row in rows if row["rule"])
    assert (match["range"], match["range_1"], match["Solar.R"]) == (1, 9, 2.0)


def test_the_builder_takes_any_name() -> None:
    built = (
        define("wind alarm", **{"Solar.R": "long"})
        .from_(event("A b", this["Solar.R"] > 4))
        .where(**{"Solar.R": role["A b"]["Solar.R"]})
        .build()
    )
    (parsed,) = parse(print_rule(built)).rules
    assert parsed == built


def test_a_callback_gets_attributes_by_their_names() -> None:
    live, got = Live(now=lambda: 0), []
    live.request("define O(id: long, ts: long) from A(ts > 1) where id = A.id, ts = A.ts", got.append)
    live.publish([Event("A", 5, {"id": 3, "ts": 4})])
    live.tick(9)
    assert [(one.ts, dict(one.attributes)) for one in got] == [(5, {"id": 3, "ts": 4})]


def test_matches_of_the_service_have_attributes_in_an_object_of_their_own(tmp_path: Path) -> None:
    with running(tmp_path) as started:
        client = started.client()
        client.deploy("define O(id: double, rule: string) from A(id > 1) where id = A.id, rule = A.`the rule`")
        client.publish([{"type": "A", "ts": 1 * S, "id": 3.5, "the rule": "r"}, {"type": "Clock", "ts": 3 * S}])
        found: list[Any] = []
        for _ in range(1_500):
            found = list(client.matches())
            if found:
                break
        (match,) = found
        assert match["attributes"] == {"id": 3.5, "rule": "r"}
        assert match["rule"] == "O"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("define O() from `A", "this name does not end"),
        ("define O() from ``()", "a name cannot be blank"),
        ("define O() from A(`" + "x" * 300 + "` = 1)", "a name has at most 200 characters"),
        ("rule `a b` define O() from A()", "unexpected"),
        ("define O() from A(`a\tb` = 1)", "printable characters only"),
    ],
)
def test_a_quoted_name_that_is_none(text: str, message: str) -> None:
    with pytest.raises(RuleError) as refused:
        parse(text)
    assert message in str(refused.value)


def test_between_sites_no_attribute_is_called_as_a_column_of_events() -> None:
    from tocsin.overlay.processor import check_types

    for name in ("ts", "id", "type", "seq", "rule", "parts"):
        with pytest.raises(tocsin.EventError, match=f"cannot have an attribute called {name}"):
            check_types({"A": EventType("A", ((name, Kind.LONG),))})


any_name = st.sampled_from(
    [*HEADER_NAMES, *ODD_NAMES, "last", "Count", "at", "within", "timestamp", "s", "m"]
) | st.text(st.characters(codec="utf-8", categories=("L", "N", "P", "S", "Zs")), min_size=1, max_size=8).filter(
    lambda name: name.strip() != "" and name.isprintable()
)


@settings(max_examples=300)
@given(any_name, any_name, any_name, any_name)
def test_what_is_printed_is_read_as_the_same(type: str, attribute: str, emits: str, other: str) -> None:
    pattern = Pattern(type, (Comparison(">", Attribute(attribute), Literal(1, Kind.INT)),))
    rule = Rule(emits, EventType(emits, ((other, Kind.LONG),)), pattern, (), ((other, Attribute(attribute, type)),))
    assert parse(print_program(Program((), (rule,))), "tesla").rules == (rule,)


@settings(max_examples=100)
@given(any_name)
def test_a_quoted_name_is_read_in_all_languages(name: str) -> None:
    n = quoted(name)
    for language, text in (
        ("eps", f"request R on A({n} > 1) as a & B as b if a.{n} = b.{n}"),
        ("siddhi", f"define stream A ({n} long); from A[{n} > 1] select {n} insert into O;"),
        ("mcep", f"define O() from A({n} > 1) interest I of O around M({n} = 1) range circle 1 m"),
    ):
        program = parse(text, language)
        assert parse(print_program(program), language) == program


def test_plain_names_are_printed_as_they_are() -> None:
    for name in ("area", "value", "ts", "id", "x", "min", "last", "at", "s"):
        assert IDENTIFIER.fullmatch(name)
        assert quoted(name) == name


def test_spark_batch_and_stream_name_columns_alike(spark: SparkSession, tmp_path: Path) -> None:
    text = """
        define O(id: long, Id: long, ts: string, `Solar.R`: double) from A(ts != "x", `Solar.R` > 1, id > 0)
            where id = A.id, Id = A.id + 1, ts = A.ts, `Solar.R` = A.`Solar.R`
        define P(ID: long) from O(ts = "late") as o and last A(id = $i) within 1 min from o where ID = o.id
        define Q(v: long) from B(id = $i) and last A(id = $i) within 1 min from B where v = A.id
    """
    table = pa.table(
        {
            "type": ["A", "A", "B"],
            "when": [1 * S, 2 * S, 3 * S],
            "ts": ["early", "late", None],
            "id": pa.array([7, 8, 7], pa.int64()),
            "Solar.R": [2.5, 3.5, None],
        }
    )
    rules = tocsin.rules(text)
    right = rules.detect(table, ts="when", ts_unit="us")
    assert len(right) == 4
    names = ["rule", "type", "ts", "id", "id_1", "Id_2", "ts_1", "Solar.R", "ID_3", "v", "parts"]
    assert right.column_names == names

    def kept(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return in_order([{name: row[name] for name in names if name not in ("ts", "parts")} for row in rows])

    batch = rules.detect(spark.createDataFrame(table), ts="when", ts_unit="us", slots=3)
    assert batch.columns == names
    assert kept([row.asDict() for row in batch.collect()]) == kept(right.to_pylist())
    (tmp_path / "events").mkdir()
    (tmp_path / "control").mkdir()
    pa.parquet.write_table(table, tmp_path / "events" / "1.parquet")
    (tmp_path / "control" / "end.json").write_text(json.dumps({"advance": 9 * S}))
    schema = "type string, when long, ts string, id long, `Solar.R` double"
    events = spark.readStream.schema(schema).parquet(str(tmp_path / "events"))
    control = spark.readStream.schema("advance long").json(str(tmp_path / "control"))
    found = rules.detect(events, ts="when", ts_unit="us", slots=3, control=control)
    writer = found.writeStream.format("parquet").option("path", str(tmp_path / "out"))
    writer.option("checkpointLocation", str(tmp_path / "check")).trigger(availableNow=True).start().awaitTermination()
    rows = [row.asDict() for row in spark.read.parquet(str(tmp_path / "out")).collect()]
    assert kept(rows) == kept(right.to_pylist())
