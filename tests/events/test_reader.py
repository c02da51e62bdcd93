"""User data becomes batches, and every bad row is rejected with its reason."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import pyarrow as pa
import pytest

from tocsin.errors import EventError
from tocsin.events.columns import ARROW, concat, convert, kind_of
from tocsin.events.dead_letters import dead_letter_table
from tocsin.events.reader import DEFINED, LABEL_COLUMN, Columns, ReadResult, TypeInfo, read
from tocsin.events.types import Event, Kind

KNOWN = TypeInfo({"A": 0, "B": 1, "P": DEFINED})
NOON = dt.datetime(2024, 1, 1, 12, tzinfo=dt.UTC)
NOON_US = 1_704_110_400_000_000


def seen(data: object, known: TypeInfo = KNOWN, **columns: str) -> ReadResult:
    return read(data, Columns(**columns), known)  # type: ignore[arg-type]


def rows(result: ReadResult) -> list[dict[str, object]]:
    return result.batch.to_pylist()


@pytest.mark.parametrize(
    ("type", "kind"),
    [
        (pa.string(), Kind.STRING),
        (pa.large_string(), Kind.STRING),
        (pa.string_view(), Kind.STRING),
        (pa.dictionary(pa.int8(), pa.string()), Kind.STRING),
        (pa.dictionary(pa.int32(), pa.int64()), Kind.LONG),
        (pa.bool_(), Kind.BOOL),
        (pa.int8(), Kind.INT),
        (pa.uint16(), Kind.INT),
        (pa.int32(), Kind.INT),
        (pa.uint32(), Kind.LONG),
        (pa.int64(), Kind.LONG),
        (pa.uint64(), Kind.LONG),
        (pa.float16(), Kind.DOUBLE),
        (pa.float32(), Kind.DOUBLE),
        (pa.float64(), Kind.DOUBLE),
        (pa.decimal128(10, 2), Kind.DOUBLE),
        (pa.timestamp("ns"), Kind.TIMESTAMP),
        (pa.timestamp("s", tz="Europe/Berlin"), Kind.TIMESTAMP),
        (pa.date32(), Kind.TIMESTAMP),
        (pa.date64(), Kind.TIMESTAMP),
        (pa.list_(pa.int8()), None),
        (pa.struct([("x", pa.int8())]), None),
        (pa.binary(), None),
        (pa.duration("us"), None),
        (pa.time64("us"), None),
        (pa.null(), None),
    ],
)
def test_kinds_of_columns(type: pa.DataType, kind: Kind | None) -> None:
    assert kind_of(type) == kind


@pytest.mark.parametrize(
    ("values", "kind", "converted", "failed"),
    [
        (pa.array([1, None, 3], pa.int8()), Kind.INT, [1, None, 3], []),
        (pa.array([1, 2**40], pa.int64()), Kind.INT, [1, None], [1]),
        (pa.array([1, 2**63], pa.uint64()), Kind.LONG, [1, None], [1]),
        (pa.array([1.0, 2.5], pa.float64()), Kind.LONG, [1, None], [1]),
        (pa.array([1.5], pa.float32()), Kind.DOUBLE, [1.5], []),
        (pa.array([Decimal("1.25")], pa.decimal128(5, 2)), Kind.DOUBLE, [1.25], []),
        (pa.array(["2.5", "x", None]), Kind.DOUBLE, [2.5, None, None], [1]),
        (pa.array(["7", "7.5"]), Kind.INT, [7, None], [1]),
        (pa.array(["true", "ja"]), Kind.BOOL, [True, None], [1]),
        (pa.array([7, None]), Kind.STRING, ["7", None], []),
        (pa.array(["a", "b", "a"]).dictionary_encode(), Kind.STRING, ["a", "b", "a"], []),
        (pa.array(["a"], pa.large_string()), Kind.STRING, ["a"], []),
        (pa.array([5], pa.int64()), Kind.TIMESTAMP, [dt.datetime(1970, 1, 1, 0, 0, 0, 5, dt.UTC)], []),
        (pa.array([5.0]), Kind.TIMESTAMP, [None], [0]),
        (pa.array([True]), Kind.TIMESTAMP, [None], [0]),
        (pa.array([NOON], pa.timestamp("ns", tz="Asia/Tokyo")), Kind.TIMESTAMP, [NOON], []),
        (pa.array([NOON.replace(tzinfo=None)], pa.timestamp("ms")), Kind.TIMESTAMP, [NOON], []),
        (pa.array([dt.date(2024, 1, 1)]), Kind.TIMESTAMP, [NOON.replace(hour=0)], []),
        (pa.array(["2024-01-01T12:00:00Z", "noon"]), Kind.TIMESTAMP, [NOON, None], [1]),
        (pa.array([NOON], pa.timestamp("s", tz="UTC")), Kind.LONG, [NOON_US], []),
        (pa.array([], pa.int8()), Kind.STRING, [], []),
    ],
)
def test_conversions(values: pa.Array, kind: Kind, converted: list[object], failed: list[int]) -> None:
    for column in (values, pa.chunked_array([values]), pa.chunked_array([values[:1], values[1:]])):
        array, wrong = convert(column, kind)
        assert array.type == ARROW[kind]
        assert array.to_pylist() == converted
        assert wrong == failed


@pytest.mark.parametrize(
    ("column", "unit", "ts", "times"),
    [
        (pa.array([7]), None, 7, False),
        (pa.array([-7], pa.int32()), None, -7, False),
        (pa.array([7]), "us", 7, False),
        (pa.array([7]), "ms", 7_000, False),
        (pa.array([-7]), "s", -7_000_000, False),
        (pa.array([7_999]), "ns", 7, False),
        (pa.array([-1]), "ns", -1, False),
        (pa.array([1_700_000_000]), "us", 1_700_000_000, False),
        (pa.array([1_700_000_000]), "s", 1_700_000_000_000_000, False),
        (pa.array([NOON], pa.timestamp("s", tz="UTC")), None, NOON_US, True),
        (pa.array([NOON], pa.timestamp("ns", tz="Asia/Tokyo")), None, NOON_US, True),
        (pa.array([NOON], pa.timestamp("ms", tz="UTC")), "s", NOON_US, True),
        (pa.array([dt.date(2024, 1, 1)]), None, NOON_US - 12 * 3_600_000_000, True),
        (pa.array(["2024-01-01T12:00:00Z"]), None, NOON_US, True),
    ],
)
def test_units_of_ts(column: pa.Array, unit: str | None, ts: int, times: bool) -> None:
    result = read(pa.table({"type": ["A"], "ts": column}), Columns(ts_unit=unit), KNOWN)
    assert result.batch["ts"].to_pylist() == [ts]
    assert result.times == times
    assert result.rejected == []


def test_a_table_of_many_types() -> None:
    result = seen(pa.table({"type": ["A", "Z", "B"], "ts": [3, 1, 2], "n": [1, 2, 3], "skipped": [[1], [2], [3]]}))
    assert rows(result) == [
        {"type": 0, "ts": 3, "seq": 0, "n:long": 1},
        {"type": -1, "ts": 1, "seq": 0, "n:long": 2},
        {"type": 1, "ts": 2, "seq": 0, "n:long": 3},
    ]
    assert result.shared == {"n": Kind.LONG}
    assert (result.rows, result.complete, result.by_type) == (3, True, {})


def test_types_may_be_a_dictionary_and_batches_single() -> None:
    table = pa.table({"type": pa.array(["B", "A", "B"]).dictionary_encode(), "ts": [1, 2, 3]})
    assert seen(table).batch["type"].to_pylist() == [1, 0, 1]
    assert seen(table.to_batches()[0]).batch["type"].to_pylist() == [1, 0, 1]
    assert seen(pa.concat_tables([table, table])).batch["type"].to_pylist() == [1, 0, 1] * 2


def test_columns_of_other_names() -> None:
    table = pa.table({"kind": ["A"], "when": [5], "order": [2], "key": [77], "type": ["x"], "ts": [1.5]})
    result = seen(table, type="kind", ts="when", seq="order", id="key")
    assert rows(result) == [{"type": 0, "ts": 5, "seq": 2, LABEL_COLUMN: "77", "type:string": "x", "ts:double": 1.5}]


def test_a_mapping_is_put_in_the_order_of_time() -> None:
    result = seen({"A": pa.table({"ts": [3, 1], "n": [1, 2]}), "B": pa.table({"ts": [2], "m": ["x"]})})
    assert rows(result) == [
        {"type": 0, "ts": 1, "seq": 0, "n:long": 2, "m:string": None},
        {"type": 1, "ts": 2, "seq": 0, "n:long": None, "m:string": "x"},
        {"type": 0, "ts": 3, "seq": 0, "n:long": 1, "m:string": None},
    ]
    assert result.by_type == {"A": {"n": Kind.LONG}, "B": {"m": Kind.STRING}}


def test_a_mapping_whose_types_have_one_name_for_two_kinds() -> None:
    result = seen({"A": pa.table({"ts": [1], "n": [1]}), "B": pa.table({"ts": [2], "n": ["x"]})})
    assert rows(result) == [
        {"type": 0, "ts": 1, "seq": 0, "n:long": 1, "n:string": None},
        {"type": 1, "ts": 2, "seq": 0, "n:long": None, "n:string": "x"},
    ]
    assert result.by_type == {"A": {"n": Kind.LONG}, "B": {"n": Kind.STRING}}


def test_a_mapping_keeps_the_order_of_arrival_among_equal_times() -> None:
    result = seen({"A": pa.table({"ts": [1, 1, 1], "n": [3, 1, 2]})})
    assert result.batch["n:long"].to_pylist() == [3, 1, 2]


def test_declared_kinds_win_over_columns() -> None:
    known = TypeInfo({"A": 0, "B": 1}, exact={"A": {"n": Kind.DOUBLE}})
    result = seen(pa.table({"type": ["A", "B", "A"], "ts": [1, 2, 3], "n": ["1.5", "x", "y"]}), known)
    assert [(row["type"], row.get("n:double"), row.get("n:string")) for row in rows(result)] == [
        (0, 1.5, None),
        (1, None, "x"),
    ]
    assert result.rejected == [("n should be a double, it is 'y'", "A", 3, 'A@3(n="y")')]


def test_columns_that_a_declared_type_has_not_are_left_alone() -> None:
    known = TypeInfo({"A": 0}, exact={"A": {"n": Kind.LONG}})
    result = seen(pa.table({"type": ["A"], "ts": [1], "n": [1], "other": ["x"]}), known)
    assert rows(result)[0]["n:long"] == 1
    assert result.rejected == []


@pytest.mark.parametrize("type", [pa.null(), pa.string(), pa.float64()])
def test_columns_of_nothing_but_nulls(type: pa.DataType) -> None:
    known = TypeInfo({"A": 0}, exact={"A": {"n": Kind.LONG}})
    table = pa.table({"type": ["A"], "ts": [1], "n": pa.nulls(1, type)})
    for result in (seen(table), seen(table, known)):
        assert result.rejected == []
        assert all(value is None for name, value in rows(result)[0].items() if ":" in name)


def test_a_header_of_nulls() -> None:
    table = pa.table({"type": ["A"], "ts": [1], "seq": pa.nulls(1, pa.string())})
    assert rows(seen(table)) == [{"type": 0, "ts": 1, "seq": 0}]
    table = pa.table({"type": ["A", "A"], "ts": [1, 2], "seq": [None, 4]})
    assert seen(table).batch["seq"].to_pylist() == [0, 4]


def test_bad_rows_are_set_aside_with_the_first_reason() -> None:
    table = pa.table(
        {
            "type": ["A", "P", "A", "A"],
            "ts": [None, 2, 3, 2**62],
            "id": [None, "b", None, "d"],
            "n": [1, 2, 3, 4],
        }
    )
    result = seen(table)
    assert rows(result) == [{"type": 0, "ts": 3, "seq": 0, "id:string": None, "n:long": 3}]
    assert result.rows == 4
    assert [letter[0] for letter in result.rejected] == ["ts is null", "P is defined by a rule", "ts is out of range"]
    assert result.rejected[1][1:] == ("P", 2, 'P@2(id="b", n=2)')


def test_an_empty_table() -> None:
    table = pa.table({"type": pa.array([], pa.string()), "ts": pa.array([], pa.int64()), "n": pa.array([], pa.int8())})
    result = seen(table)
    assert (result.rows, result.batch.num_rows, result.rejected) == (0, 0, [])


def test_events_keep_the_order_in_which_they_came() -> None:
    events = [Event("B", 5, {"m": "x"}), Event("A", 3, {"n": 1}), Event("B", 4, {"m": "y", "f": True}), Event("Z", 1)]
    result = seen(events)
    assert [(row["type"], row["ts"]) for row in rows(result)] == [(1, 5), (0, 3), (1, 4), (-1, 1)]
    assert not result.complete
    assert result.by_type["B"] == {"f": Kind.BOOL, "m": Kind.STRING}
    assert seen(iter(events)).batch == result.batch
    assert rows(seen(events[0]))[0]["m:string"] == "x"


def test_events_with_integers_and_doubles_have_doubles() -> None:
    result = seen([Event("A", 1, {"v": 1}), Event("A", 2, {"v": 1.5}), Event("A", 3)])
    assert result.batch["v:double"].to_pylist() == [1.0, 1.5, None]


def test_no_events() -> None:
    assert seen([]).rows == 0


def test_events_with_ids_and_seqs() -> None:
    result = seen([Event("A", 1, seq=4, id="x"), Event("B", 2, id="y")])
    assert [(row["seq"], row[LABEL_COLUMN]) for row in rows(result)] == [(4, "x"), (0, "y")]


def test_a_column_called_id_is_an_attribute_unless_the_user_names_it() -> None:
    table = pa.table({"type": ["A", "A"], "ts": [1, 2], "id": ["x", None]})
    assert [row["id:string"] for row in rows(seen(table))] == ["x", None]
    assert [row[LABEL_COLUMN] for row in rows(seen(table, id="id"))] == ["x", None]
    with pytest.raises(EventError, match="no column 'key'"):
        seen(table, id="key")


def test_batches_one_after_another() -> None:
    one = pa.table({"type": pa.array([0], pa.int32()), "a:long": [1]})
    other = pa.table({"type": pa.array([1], pa.int32()), "b:string": ["x"]})
    assert concat([one]) is one
    assert concat([one, other]).to_pylist() == [
        {"type": 0, "a:long": 1, "b:string": None},
        {"type": 1, "a:long": None, "b:string": "x"},
    ]


def test_no_dead_letters() -> None:
    assert dead_letter_table([]).to_pylist() == []
    assert dead_letter_table([("why", None, None, "A@1()")]).to_pylist() == [
        {"reason": "why", "type": None, "ts": None, "event": "A@1()"}
    ]
