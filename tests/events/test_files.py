"""Files and folders of events: every format gives the same table, and unreadable lines are reported, never lost."""

import csv
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tocsin.errors import EventError
from tocsin.events import lines
from tocsin.events.files import TableWriter, open_events, records
from tocsin.events.types import Kind

TIMES = pa.timestamp("us", "UTC")
NOON = datetime(2026, 7, 1, 12, tzinfo=UTC)

TABLE = pa.table(
    {
        "type": ["Temp", "Smoke", "Temp"],
        "ts": pa.array([NOON, NOON.replace(second=1, microsecond=5), NOON.replace(second=2)], TIMES),
        "area": ["A1", 'the "old" barn, north', None],
        "value": [24.5, None, 7.0],
        "count": pa.array([1, 2, None], pa.int64()),
        "wet": [True, False, None],
    }
)

CSV = """\
type,ts,area,value,count,wet
Temp,2026-07-01T12:00:00Z,A1,24.5,1,true
Smoke,2026-07-01T12:00:01.000005Z,"the ""old"" barn, north",,2,false
Temp,2026-07-01T12:00:02Z,,7.0,,
"""
NDJSON = """\
{"type": "Temp", "ts": "2026-07-01T12:00:00Z", "area": "A1", "value": 24.5, "count": 1, "wet": true}
{"type": "Smoke", "ts": "2026-07-01T12:00:01.000005Z", "area": "the \\"old\\" barn, north", "count": 2, "wet": false}

{"type": "Temp", "ts": "2026-07-01T14:00:02+02:00", "area": null, "value": 7}
"""
NOTATION = """\
Temp@2026-07-01T12:00:00Z(area="A1", value=24.5, count=1, wet=true)
Smoke@2026-07-01T12:00:01.000005Z(area="the \\"old\\" barn, north", count=2, wet=false)
# a remark
Temp@2026-07-01T12:00:02Z(value=7.0)
"""


def read(path: Path, **names: Any) -> tuple[pa.Table, list[lines.BadLine]]:
    chunks = list(open_events(path, **names).chunks())
    return pa.concat_tables([chunk.table for chunk in chunks]), [bad for chunk in chunks for bad in chunk.bad]


def file(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("name", "text"),
    [("e.csv", CSV), ("e.jsonl", NDJSON), ("e.json", NDJSON), ("e.ndjson", NDJSON), ("e.events", NOTATION)],
)
def test_every_text_format_gives_the_same_table(tmp_path: Path, name: str, text: str) -> None:
    table, bad = read(file(tmp_path / name, text))
    assert bad == []
    assert table.select(TABLE.column_names).to_pydict() == TABLE.to_pydict()
    assert table.select(TABLE.column_names).schema == TABLE.schema


def test_parquet(tmp_path: Path) -> None:
    pq.write_table(TABLE, tmp_path / "e.parquet")
    table, bad = read(tmp_path / "e.parquet")
    assert bad == []
    assert table.equals(TABLE)


def test_a_folder_is_read_in_the_order_of_names_and_files_may_lack_columns(tmp_path: Path) -> None:
    pq.write_table(TABLE.slice(1), tmp_path / "part-2.parquet")
    pq.write_table(TABLE.slice(0, 1).drop_columns(["wet"]), tmp_path / "part-1.parquet")
    (tmp_path / "_SUCCESS").touch()
    (tmp_path / ".part-1.parquet.crc").touch()
    table, _ = read(tmp_path)
    assert table["count"].to_pylist() == [1, 2, None]
    assert table["wet"].to_pylist() == [None, False, None]


def test_a_column_has_one_kind_over_all_files(tmp_path: Path) -> None:
    file(tmp_path / "1.csv", "type,ts,value\nTemp,1,20\n")
    file(tmp_path / "2.csv", "value,ts,type\n20.5,2,Temp\n")
    assert read(tmp_path)[0]["value"].to_pylist() == [20.0, 20.5]
    assert [chunk.table.schema for chunk in open_events(tmp_path).chunks()] == [open_events(tmp_path).schema] * 2


def test_chunks_are_bounded_and_tell_how_far_they_are(tmp_path: Path) -> None:
    pq.write_table(pa.concat_tables([TABLE] * 10), tmp_path / "e.parquet")
    events = open_events(tmp_path / "e.parquet")
    chunks = list(events.chunks(rows=4))
    assert [chunk.table.num_rows for chunk in chunks] == [4, 4, 4, 4, 4, 4, 4, 2]
    assert [chunk.bytes_read for chunk in chunks] == sorted(chunk.bytes_read for chunk in chunks)
    assert chunks[-1].bytes_read == events.bytes_total


@pytest.mark.parametrize("size", [1, 50, 100, 130, 1000])
def test_blocks_cut_no_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(lines, "BLOCK_BYTES", size)
    for name, text in (("e.csv", CSV), ("e.jsonl", NDJSON), ("e.events", NOTATION.rstrip("\n"))):
        path = file(tmp_path / name, text)
        table, bad = read(path)
        assert bad == []
        assert table.select(TABLE.column_names).to_pydict() == TABLE.to_pydict()
        assert list(open_events(path).chunks())[-1].bytes_read == path.stat().st_size


@pytest.mark.parametrize("small", [1, 100, 1 << 16])
def test_bad_lines_are_found_in_any_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small: int) -> None:
    monkeypatch.setattr(lines, "SMALL_BYTES", small)
    good = [f"Temp,{ts},{ts}.5" for ts in range(100)]
    path = file(
        tmp_path / "e.csv", "\n".join(["type,ts,value", *good[:70], "x", *good[70:80], "Temp,1,hot", *good[80:]])
    )
    table, bad = read(path)
    assert table["ts"].to_pylist() == list(range(100))
    assert [line.line for line in bad] == [72, 83]


def test_bad_csv_lines_come_with_number_reason_and_text(tmp_path: Path) -> None:
    good = "".join(f"Temp,{ts},A1,{ts}.5\n" for ts in range(20))
    path = file(tmp_path / "e.csv", f'type,ts,area,value\n{good}Temp,21,A1\nTemp,22,"A1,1.5\nTemp,23,A1,hot\n{good}')
    table, bad = read(path)
    assert table.num_rows == 40
    assert [(line.line, line.reason, line.text) for line in bad] == [
        (22, "3 values for 4 columns", "Temp,21,A1"),
        (23, "a quote is left open; a value cannot hold a line break", 'Temp,22,"A1,1.5'),
        (24, 'value is "hot", which is not a number', "Temp,23,A1,hot"),
    ]


def test_bad_json_lines_come_with_number_reason_and_text(tmp_path: Path) -> None:
    good = "".join(f'{{"type": "Temp", "ts": {ts}, "value": {ts}}}\n' for ts in range(20))
    wrong = (
        '{"type": "Temp", \n[1]\n{"type": "Temp", "ts": 1, "value": "hot"}\n{"type": "Temp", "ts": 1, "value": [1]}\n'
    )
    table, bad = read(file(tmp_path / "e.jsonl", good + wrong + good))
    assert table.num_rows == 40
    assert [(line.line, line.reason) for line in bad] == [
        (21, "invalid JSON: Expecting property name enclosed in double quotes, column 18"),
        (22, "not a JSON object"),
        (23, 'value is "hot", which is not a whole number'),
        (24, "value holds a list"),
    ]


def test_bad_lines_of_the_notation_and_of_no_text(tmp_path: Path) -> None:
    path = tmp_path / "e.events"
    path.write_bytes(b'Temp@1(value=2.5)\nTemp@(value=3.5)\nTemp@2(area="\xff")\nTemp@3(value=4)\n')
    table, bad = read(path)
    assert table["value"].to_pylist() == [2.5, 4.0]
    assert [line.line for line in bad] == [2, 3]
    assert "expected a time" in bad[0].reason
    assert bad[1].reason == "not UTF-8"


def test_no_line_is_lost_to_an_open_quote(tmp_path: Path) -> None:
    path = file(tmp_path / "e.csv", 'type,ts,area\nTemp,1,"A1\nTemp,2,A2"\nTemp,3,A3\n')
    table, bad = read(path)
    assert table["ts"].to_pylist() == [3]
    assert [line.line for line in bad] == [2, 3]


def test_numbers_are_read_as_such_beside_text(tmp_path: Path) -> None:
    rows = ["Temp,1,7,A1", "Temp,2,n/a,7", "Temp,3,8.25,7"]
    table, bad = read(file(tmp_path / "e.csv", "\n".join(["type,ts,value,area", *rows])))
    assert bad == []
    assert table["value"].to_pylist() == [7.0, None, 8.25]
    assert table["area"].to_pylist() == ["A1", "7", "7"]


def test_what_is_declared_is_not_guessed(tmp_path: Path) -> None:
    path = file(tmp_path / "e.csv", "type,ts,value,area\nTemp,1,hot,1\nTemp,2,7,2\n")
    (chunk,) = open_events(path, declared={"value": Kind.DOUBLE, "area": Kind.STRING, "rain": Kind.BOOL}).chunks()
    assert chunk.table.to_pydict() == {"type": ["Temp"], "ts": [2], "value": [7.0], "area": ["2"]}
    assert [line.reason for line in chunk.bad] == ['value is "hot", which is not a number']


def test_windows_files_are_read(tmp_path: Path) -> None:
    path = tmp_path / "e.csv"
    path.write_bytes(b"\xef\xbb\xbftype,ts,value\r\nTemp,1,2.5\r\nTemp,2,3.5\r\n")
    table, bad = read(path)
    assert bad == []
    assert table.to_pydict() == {"type": ["Temp", "Temp"], "ts": [1, 2], "value": [2.5, 3.5]}


def test_times_without_an_offset_are_utc(tmp_path: Path) -> None:
    table, _ = read(file(tmp_path / "e.csv", "type,ts\nTemp,2026-07-01 12:00:00\n"))
    assert table["ts"].to_pylist() == [NOON]


def test_a_header_alone_is_no_events(tmp_path: Path) -> None:
    assert read(file(tmp_path / "e.csv", "type,ts,value\n"))[0].num_rows == 0


@pytest.mark.parametrize(
    ("files", "path", "message"),
    [
        ({"fires.csv": CSV}, "fire.csv", "there is no file or folder {path}\nDid you mean 'fires.csv'?"),
        ({}, ".", "the folder {path} has no files in it"),
        ({"e.xml": ""}, "e.xml", "e.xml ends in '.xml', which is no known format"),
        ({"events": ""}, "events", "events has no ending, which is no known format"),
        ({"a.csv": CSV, "b.json": NDJSON}, ".", "the folder {path} mixes formats: a.csv (CSV), b.json (NDJSON)"),
        ({"e.parquet": "no parquet"}, "e.parquet", "{path} cannot be read as Parquet: Parquet"),
        ({"e.csv": "type,time\nTemp,1\n"}, "e.csv", "{path} has no column 'ts' with the time of each event"),
        ({"e.jsonl": '{"ts": 1}\n'}, "e.jsonl", "{path} has no column 'type' with the type of each event"),
        ({"e.csv": "type,ts\nTemp,noon\n"}, "e.csv", "column 'ts' of {path} holds text that is no time"),
        ({"e.csv": "type,ts,ts\n"}, "e.csv", "{path}, line 1: two columns are called 'ts'"),
        ({"e.json": '[{"type": "Temp"}]'}, "e.json", "{path} holds a JSON array: write one JSON object a line instead"),
        ({"e.jsonl": "\n\n"}, "e.jsonl", "{path} is empty: there are no events to read"),
        ({"e.jsonl": '\n{"type"\n'}, "e.jsonl", "{path}, line 2: invalid JSON: Expecting ':' delimiter, column 8"),
        ({"e.events": "Temp(value=3)\n"}, "e.events", "{path}, line 1: column 5: expected '@' and a time"),
    ],
)
def test_what_cannot_be_read_is_said(tmp_path: Path, files: dict[str, str], path: str, message: str) -> None:
    for name, text in files.items():
        file(tmp_path / name, text)
    with pytest.raises(EventError) as caught:
        read(tmp_path / path)
    assert str(caught.value).startswith(message.format(path=tmp_path / path))


def test_columns_may_have_other_names(tmp_path: Path) -> None:
    path = file(tmp_path / "e.csv", "kind,at\nTemp,1\n")
    assert read(path, type="kind", ts="at")[0].num_rows == 1
    with pytest.raises(EventError, match="has no column 'number' with the seq of each event"):
        read(path, type="kind", ts="at", seq="number")
    assert read(file(tmp_path / "e.events", "Temp@1#2[x]()"), ts="at", id="key")[0].to_pydict() == {
        "type": ["Temp"],
        "at": [datetime(1970, 1, 1, 0, 0, 0, 1, tzinfo=UTC)],
        "seq": [2],
        "key": ["x"],
    }


PARTS = pa.list_(pa.struct([("role", pa.string()), ("type", pa.string()), ("ts", TIMES), ("id", pa.string())]))
MATCHES = pa.table(
    {
        "rule": ["R1", "R1"],
        "ts": pa.array([NOON, NOON], TIMES),
        "temp": [46.5, None],
        "parts": pa.array([[{"role": "Temp", "type": "Temp", "ts": NOON, "id": "a"}], []], PARTS),
    }
)
NOON_TEXT = "2026-07-01T12:00:00.000000Z"
RECORDS: list[dict[str, Any]] = [
    {
        "rule": "R1",
        "ts": NOON_TEXT,
        "temp": 46.5,
        "parts": [{"role": "Temp", "type": "Temp", "ts": NOON_TEXT, "id": "a"}],
    },
    {"rule": "R1", "ts": NOON_TEXT, "temp": None, "parts": []},
]


def test_records() -> None:
    assert records(MATCHES) == RECORDS
    assert records(MATCHES.slice(1)) == RECORDS[1:]
    assert records(MATCHES.slice(2)) == []


def test_matches_are_written_in_every_format(tmp_path: Path) -> None:
    for name in ("m.parquet", "m.jsonl", "m.csv"):
        with TableWriter(tmp_path / name) as writer:
            for table in (MATCHES.slice(0, 0), MATCHES.slice(0, 1), MATCHES.slice(1)):
                writer.write(table)
            assert not (tmp_path / name).exists()
        assert writer.rows == 2
    assert pq.read_table(tmp_path / "m.parquet").equals(MATCHES)
    assert [json.loads(line) for line in (tmp_path / "m.jsonl").read_text().splitlines()] == RECORDS
    with (tmp_path / "m.csv").open(newline="") as text:
        rows = list(csv.DictReader(text))
    assert [row | {"parts": json.loads(row["parts"])} for row in rows] == [
        {**record, "temp": temp} for record, temp in zip(RECORDS, ("46.5", ""), strict=True)
    ]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.csv", "m.jsonl", "m.parquet"]


@pytest.mark.parametrize("name", ["m.parquet", "m.jsonl", "m.csv"])
def test_no_matches_still_make_a_file(tmp_path: Path, name: str) -> None:
    with TableWriter(tmp_path / name) as writer:
        writer.write(MATCHES.slice(0, 0))
    assert (tmp_path / name).exists()
    if name == "m.parquet":
        assert pq.read_table(tmp_path / name).equals(MATCHES.slice(0, 0))


def test_a_write_that_fails_leaves_what_was_there(tmp_path: Path) -> None:
    path = file(tmp_path / "m.jsonl", "before")
    writer = TableWriter(path)
    writer.write(MATCHES)
    writer.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


def test_what_cannot_be_written_is_said(tmp_path: Path) -> None:
    with pytest.raises(EventError, match="cannot be written: No such file or directory"):
        TableWriter(tmp_path / "nowhere" / "m.csv")
    (tmp_path / "m.csv").mkdir()
    with pytest.raises(EventError, match="is a folder: name a file"):
        TableWriter(tmp_path / "m.csv")
    with pytest.raises(EventError, match=r"matches are written as \.parquet, \.jsonl or \.csv"):
        TableWriter(tmp_path / "m.events")
