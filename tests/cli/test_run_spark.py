"""`tocsin run` on Spark: the same answers as in this process, and streams that stop and resume."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner, Result

from tests.spark import kafka as broker_of
from tocsin import cli
from tocsin.errors import EventError, TocsinError
from tocsin.events.reader import Columns
from tocsin.spark import connectors, kafka
from tocsin.spark.sinks import deduplicated

FIRE = """\
rule    Last
define  Fire(area: string, temp: double)
from    Smoke(area=$a) and last Temp(area=$a, value>45) within 5 min from Smoke
where   area = Smoke.area, temp = Temp.value
"""
HEAT = """\
rule    Hot
define  Heat(area: string)
from    Temp(value > 50)
where   area = Temp.area
"""
FLOOD = """\
rule    Flood
define  Flood(area: string)
from    Rain(area=$a) and last Temp(area=$a) within 5 min from Rain
where   area = Rain.area
"""
CSV = """\
type,ts,area,value
Temp,2026-07-01T12:00:00Z,A1,46.5
Temp,2026-07-01T12:01:00Z,A1,51.0
Smoke,2026-07-01T12:02:00Z,A1,
Smoke,2026-07-01T12:03:00Z,A2,n/a
"""
NOON = 1_782_907_200
WAIT_S = 240


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spark: SparkSession) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fire.tesla").write_text(FIRE + HEAT, encoding="utf-8")
    (tmp_path / "e.csv").write_text(CSV, encoding="utf-8")
    return tmp_path


def tocsin(*arguments: str) -> Result:
    return CliRunner().invoke(cli.app, arguments)


def put(name: str, rows: list[tuple[str, int, str, float | None]]) -> None:
    """A file of events, at these seconds after noon, that appears at once."""
    columns = list(zip(*rows, strict=True))
    ts = pa.array([(NOON + second) * 1_000_000 for second in columns[1]], pa.timestamp("us", "UTC"))
    table = pa.table({"type": columns[0], "ts": ts, "area": columns[2], "value": pa.array(columns[3], pa.float64())})
    Path("in").mkdir(exist_ok=True)
    pq.write_table(table, f"in/.{name}")
    Path(f"in/.{name}").rename(f"in/{name}.parquet")


def follow(*arguments: str, until: Callable[[], bool], by: int = signal.SIGTERM) -> Result:
    """`tocsin run --follow` until something is so, then stopped by a signal."""
    came: list[bool] = []

    def stop() -> None:
        begun = time.monotonic()
        while time.monotonic() - begun < WAIT_S and not ended.wait(0.2):
            if until():
                came.append(True)
                break
        if not ended.is_set():
            os.kill(os.getpid(), by)

    ended = threading.Event()
    before = signal.signal(by, lambda number, frame: None)  # it may come before the command listens, or after
    thread = threading.Thread(target=stop)
    thread.start()
    result = tocsin("run", "fire.tesla", "--events", "in", "--follow", "--slots", "2", *arguments)
    ended.set()
    thread.join()
    signal.signal(by, before)
    assert came, f"it did not come to be\n{result.output}\n{result.stderr}"
    return result


def matches(folder: str = "out") -> list[tuple[str, str]]:
    found = [row for path in sorted(Path(folder).glob("batch=*/*.parquet")) for row in pq.read_table(path).to_pylist()]
    return sorted((row["rule"], row["area"]) for row in found)


def test_the_matches_equal_those_of_this_process(folder: Path) -> None:
    embedded = json.loads(tocsin("run", "fire.tesla", "--events", "e.csv", "--engine", "embedded", "--json").stdout)
    result = tocsin("run", "fire.tesla", "--events", "e.csv", "--json")
    assert result.exit_code == 0
    report = json.loads(result.stdout)
    for part in ("counts", "by_rule", "matches", "dead_letters", "reasons", "span"):
        assert report[part] == embedded[part]
    assert len(report["matches"]) == 2
    assert result.stderr == ""


def test_every_format_gives_the_same_matches(folder: Path) -> None:
    table = pa.table(
        {
            "type": ["Temp", "Temp", "Smoke", "Smoke"],
            "ts": pa.array([NOON, NOON + 60, NOON + 120, NOON + 180], pa.timestamp("s", "UTC")).cast(
                pa.timestamp("us", "UTC")
            ),
            "area": ["A1", "A1", "A1", "A2"],
            "value": [46.5, 51.0, None, None],
        }
    )
    Path("parquet").mkdir()
    pq.write_table(table.slice(0, 2), "parquet/1.parquet")
    pq.write_table(table.slice(2).drop_columns(["value"]), "parquet/2.parquet")
    rows = [{**row, "ts": row["ts"].isoformat()} for row in table.to_pylist()]
    Path("e.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    lines = CSV.splitlines(keepends=True)
    Path("csv").mkdir()
    Path("csv/1.csv").write_text("".join(lines[:3]))
    Path("csv/2.csv").write_text("ts,type,area\n2026-07-01 12:02:00,Smoke,A1\r\n2026-07-01T14:03:00+02:00,Smoke,A2\n")
    Path("backwards.csv").write_text("".join([lines[0], *reversed(lines[1:])]))
    found = []
    for events in ("e.csv", "parquet", "e.jsonl", "csv", "backwards.csv"):
        result = tocsin("run", "fire.tesla", "--events", events, "--matches", f"{events}.m.jsonl")
        assert result.exit_code == 0
        assert "; from 2026-07-01T12:00:00Z to 2026-07-01T12:03:00Z; none rejected" in result.stderr
        found.append(Path(f"{events}.m.jsonl").read_text())
    assert found[0].count("\n") == 2
    assert found == found[:1] * 5


def test_a_folder_of_matches(folder: Path) -> None:
    result = tocsin("run", "fire.tesla", "--events", "e.csv", "--matches", "fires")
    assert result.exit_code == 0
    assert "2 matches (Hot 1, Last 1), in fires" in result.stderr
    assert pq.read_table("fires")["rule"].to_pylist() == ["Hot", "Last"]
    again = tocsin("run", "fire.tesla", "--events", "e.csv", "--matches", "fires")
    assert again.exit_code == 1
    assert again.stderr.startswith("tocsin: fires is not empty")


def test_bad_lines_are_reported_with_the_reason(folder: Path) -> None:
    good = "".join(f"Temp,2026-07-01T13:00:{second:02}Z,A1,20\n" for second in range(20))
    Path("e.csv").write_text(f"{CSV}{good}Temp,2026-07-01T13:01:00Z,A1,hot\nTemp,tomorrow,A1,60\nTemp\n")
    result = tocsin("run", "fire.tesla", "--events", "e.csv", "--dead-letters", "d.jsonl", "--json")
    report = json.loads(result.stdout)
    assert report["counts"] == {"events": 24, "late": 0, "dead": 0, "matches": 2, "bad_lines": 3}
    assert report["reasons"] == {
        "value is not a number": 1,
        "ts is not a time": 1,
        "1 values for 4 columns": 1,
    }
    strict = tocsin("run", "fire.tesla", "--events", "e.csv", "--strict")
    assert strict.exit_code == 1
    last = strict.stderr.splitlines()[-1]
    assert last.startswith("24 events in ")
    assert "; from 2026-07-01T12:00:00Z to 2026-07-01T13:00:19Z; 3 rejected: " in last
    assert last.endswith("; write them with --dead-letters PATH")
    letters = [json.loads(line) for line in Path("d.jsonl").read_text().splitlines()]
    assert sorted((letter["reason"], letter["event"]) for letter in letters) == [
        ("1 values for 4 columns", "Temp"),
        ('ts is "tomorrow", which is not a time', "Temp,tomorrow,A1,60"),
        ('value is "hot", which is not a number', "Temp,2026-07-01T13:01:00Z,A1,hot"),
    ]


def test_event_notation_and_more_matches_than_are_collected(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tocsin.spark import runs

    monkeypatch.setattr(runs, "COLLECTED_MAX", 1)
    heats = "".join(f'Temp@2026-07-01T12:00:{second}Z(area="A{second}", value=60)\n' for second in range(10, 40))
    Path("e.events").write_text(f"{heats}oops\n")
    result = tocsin("run", "fire.tesla", "--events", "e.events", "--matches", "m.csv")
    assert result.exit_code == 0
    assert "e.events, line 31: column 5: expected '@' and a time: oops" in result.stderr
    assert [line.split(",")[2][1:-1] for line in Path("m.csv").read_text().splitlines()[1:]] == [
        f"2026-07-01T12:00:{second}.000000Z" for second in range(10, 40)
    ]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("--events", "none.csv"), 1, "there is no file or folder none.csv"),
        (("--events", "e.csv", "--delay", "5 s"), 2, "needs --follow: without it, events are sorted by time"),
        (("--events", "e.csv", "--follow", "--delay", "soon"), 1, "'soon' is not a duration"),
        (("--events", "e.csv", "--matches", "m.xml"), 1, "m.xml ends in '.xml', which is no known format"),
        (("--events", "e.csv", "--matches", "e.csv"), 1, "e.csv is one of the event files"),
        (("--events", "e.csv", "--follow"), 1, "e.csv is a file, and --follow waits for new ones"),
        (("--events", ".", "--matches", "m", "--follow"), 1, "m is in the folder of events"),
        (("--events", "e.csv", "--metrics", "0"), 2, "this needs --follow"),
        (("--events", "kafka://nowhere/", "--follow"), 1, "'kafka://nowhere/' is not the address of a Kafka topic"),
    ],
)
def test_errors(folder: Path, arguments: tuple[str, ...], code: int, message: str) -> None:
    result = tocsin("run", "fire.tesla", *arguments)
    assert result.exit_code == code
    assert message in " ".join(result.stderr.replace("│", " ").split())
    assert "Traceback" not in result.stderr


def test_kafka_needs_declared_types(folder: Path) -> None:
    from tocsin.events.reader import Columns
    from tocsin.spark import connectors

    with pytest.raises(TocsinError, match="declare the types in the rules"):
        connectors.declared_kinds({}, Columns())


def test_lines_of_a_topic(spark: SparkSession) -> None:
    """What a message becomes, without a broker: the same as a line."""
    from tocsin.events.reader import Columns
    from tocsin.events.types import EventType, Kind
    from tocsin.spark import connectors

    types = {"Temp": EventType("Temp", (("area", Kind.STRING), ("value", Kind.INT)))}
    messages = ['{"type":"Temp",\n"ts":"2026-07-01T12:00:00Z","area":7,"value":46}', '{"type":"Temp","ts":"noon"}', "{"]
    messages.append('{"type":"Temp","ts":"2026-07-01T12:00:00Z","id":"mine","value":4.5}')
    lines = spark.createDataFrame([(message.encode(),) for message in messages], "_line binary")
    shape = connectors.SourceSchema("Kafka", connectors.declared_kinds(types, Columns(id="id")))
    first, *others = connectors.parse_lines(lines.coalesce(1), shape).toArrow().to_pylist()
    assert (first["area"], first["value"], first["id"], first["_unreadable"]) == ("7", 46, None, None)
    assert [row["_unreadable"]["reason"] for row in others] == [
        'ts is "noon", which is not a time',
        "invalid JSON: Expecting property name enclosed in double quotes, column 2",
        "value is 4.5, which is not a whole number",
    ]
    assert others[2]["ts"] is None


def test_follow_resumes_where_it_stopped(folder: Path) -> None:
    put("1", [("Temp", 0, "A1", 51.0), ("Smoke", 60, "A2", None)])
    put("2", [("Temp", 61, "A9", 1.0)])
    options = ("--matches", "out", "--metrics", "metrics.prom", "--dead-letters", "dead")
    result = follow(*options, until=lambda: matches() == [("Hot", "A1")])
    assert result.exit_code == 0, result.output
    assert result.stderr.startswith("checkpoint: out/.checkpoint\n")
    assert "1 match (Hot 1), in out" in result.stderr
    assert 'tocsin_matches_total{rule="Hot"} 1\n' in Path("metrics.prom").read_text()
    put("3", [("Smoke", 120, "A1", None), ("Temp", 130, "A9", 1.0)])
    result = follow(*options, until=lambda: len(matches()) > 1, by=signal.SIGINT)
    assert result.exit_code == 130
    assert matches() == [("Hot", "A1"), ("Last", "A1")]
    assert "1 match (Last 1), in out" in result.stderr
    assert "Traceback" not in result.stderr
    other = tocsin("run", "fire.tesla", "--events", "in", "--follow", "--matches", "out", "--slots", "3")
    assert other.exit_code == 1
    assert "the checkpoint keeps its state in 2 slots, not in 3" in other.stderr
    assert "Traceback" not in other.stderr
    other = tocsin("run", "fire.tesla", "--events", "in", "--follow", "--matches", "out", "--checkpoint", "new")
    assert other.exit_code == 1
    assert "out has the matches of another run" in other.stderr


def test_rules_change_while_it_follows(folder: Path) -> None:
    """A rule over a type that the query did not keep starts it again, and sees the events from then on."""
    Path("fire.tesla").write_text(FIRE)
    Path("heat.tesla").write_text(HEAT)
    Path("flood.tesla").write_text(FLOOD)
    put("1", [("Temp", 0, "A1", 51.0), ("Rain", 60, "A1", None), ("Smoke", 61, "A1", None), ("Temp", 62, "A9", 1.0)])
    flooded = [("Temp", 200, "A3", 40.0), ("Rain", 210, "A3", None), ("Temp", 220, "A9", 1.0)]
    steps: list[tuple[Callable[[], bool], Callable[[], object]]] = [
        (lambda: len(matches()) == 1, lambda: tocsin("change", "changes", "--add", "heat.tesla")),
        (lambda: changes() == 1, lambda: put("2", [("Temp", 110, "A2", 61.0), ("Temp", 120, "A9", 1.0)])),
        (lambda: ("Hot", "A2") in matches(), lambda: tocsin("change", "changes", "--add", "flood.tesla")),
        (lambda: changes() == 2, lambda: put("3", flooded)),
        (lambda: ("Flood", "A3") in matches(), lambda: None),
    ]

    def done() -> bool:
        if steps[0][0]():
            steps.pop(0)[1]()
        return not steps

    Path("changes").mkdir()
    Path("changes/wrong.json").write_text('{"add": "define nonsense"}')
    result = follow("--matches", "out", "--rules-folder", "changes", until=done)
    assert result.exit_code == 0, result.output
    assert "wrong.json was rejected: " in result.stderr
    assert "adds Hot\n" in result.stderr
    assert "adds Flood; restarted from the checkpoint, to keep Rain\n" in result.stderr
    assert matches() == [("Flood", "A3"), ("Hot", "A2"), ("Last", "A1")]


def changes() -> int:
    """How many changes of the rules are in batches that are done."""
    last = max((int(path.name) for path in Path("out/.checkpoint/commits").glob("[0-9]*")), default=-1)
    if last < 0:
        return 0
    control = Path(f"out/.checkpoint/offsets/{last}").read_text().splitlines()[-1]
    return 0 if control == "-" else json.loads(control)["logOffset"] + 1


def test_matches_without_an_output_are_printed(folder: Path) -> None:
    Path("in").mkdir()
    Path("in/1.csv").write_text(CSV)
    Path("in/2.csv").write_text("type,ts,area,value\nTemp,2026-07-01T12:09:00Z,A1,1\nnonsense\n")
    result = follow(until=lambda: len([*Path(".tocsin/fire/commits").glob("[0-9]*")]) > 1)
    assert result.exit_code == 0
    assert [json.loads(line)["rule"] for line in result.stdout.splitlines()] == ["Hot", "Last"]
    assert "checkpoint: .tocsin/fire" in result.stderr
    last = result.stderr.splitlines()[-1]
    assert last.startswith("5 events in ")  # and not the lines with the names of columns
    assert "; from 2026-07-01T12:00:00Z to 2026-07-01T12:09:00Z; 1 rejected: 1 values for 4 columns" in last


def test_demo(spark: SparkSession) -> None:
    result = tocsin("demo", "--events", "20000", "--seed", "2")
    assert result.exit_code == 0
    assert "rule    R1" in result.stdout
    assert "20,000 events of 20 areas" in result.stdout
    assert "Matches: R1 " in result.stdout
    assert "no matches" not in result.stdout
    assert result.stderr == ""


def write_messages(session: SparkSession, topic: kafka.Topic, values: list[str]) -> None:
    rows = session.createDataFrame([(value,) for value in values], "value string").coalesce(1)
    rows.write.format("kafka").options(**kafka.writing(topic)).save()


def read_messages(session: SparkSession, topic: kafka.Topic) -> list[tuple[str, str]]:
    rows = session.read.format("kafka").options(**kafka.reading(topic)).load()
    rows = deduplicated(rows.selectExpr("cast(key AS string) AS id", "cast(value AS string) AS value"))
    return [tuple(row) for row in rows.collect()]


@pytest.mark.slow
def test_from_kafka_to_kafka(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real command, with a session of its own that has the connector."""
    monkeypatch.chdir(tmp_path)
    try:
        kafka.jars()
    except TocsinError:
        broker_of.connector()
        monkeypatch.setenv(kafka.VARIABLE, broker_of.STAND_IN)
    declared = "event Temp(area: string, value: double)\nevent Smoke(area: string)\n"
    Path("fire.tesla").write_text(declared + FIRE)
    moments = [f"2026-07-01T12:0{minute}:00Z" for minute in range(3)]
    values = [
        json.dumps({"type": "Temp", "ts": moments[0], "area": "A1", "value": 50}),
        json.dumps({"type": "Smoke", "ts": moments[1], "area": "A1"}),
        json.dumps({"type": "Temp", "ts": moments[2], "area": "A2", "value": 1.5}),
        "oops",
    ]
    command = [sys.executable, "-c", "from tocsin.cli import main; main()", "run", "fire.tesla", "--master", "local[2]"]
    nowhere = subprocess.run(
        [*command, "--events", "kafka://127.0.0.1:1/t"], capture_output=True, text=True, check=False
    )
    assert nowhere.returncode == 1
    assert nowhere.stderr.startswith("tocsin: the Kafka broker does not answer: ")
    assert nowhere.stderr.count("\n") == 1
    with broker_of.broker(tmp_path / "broker") as broker:
        readings, fires = broker.topic("readings"), broker.topic("fires")
        with broker_of.session() as session:
            session.run(write_messages, readings, values)
        once = subprocess.run(
            [*command, "--events", str(readings), "--json"], capture_output=True, text=True, check=False
        )
        assert once.returncode == 0, once.stderr
        report = json.loads(once.stdout)
        assert report["counts"] == {"events": 3, "late": 0, "dead": 0, "matches": 1, "bad_lines": 1}
        options = ["--events", str(readings), "--matches", str(fires), "--follow", "--metrics", "m.prom"]
        following = subprocess.Popen([*command, *options], stderr=subprocess.PIPE, text=True)
        until = time.monotonic() + WAIT_S
        while following.poll() is None and time.monotonic() < until:
            time.sleep(0.5)
            if Path("m.prom").exists() and 'tocsin_matches_total{rule="Last"} 1\n' in Path("m.prom").read_text():
                break
        following.send_signal(signal.SIGINT)
        _, stderr = following.communicate(timeout=WAIT_S)
        assert following.returncode == 130, stderr
        assert f"1 match (Last 1), in {fires}" in stderr
        assert "Traceback" not in stderr
        with broker_of.session() as session:
            ((id, value),) = session.run(read_messages, fires)
    assert id == report["matches"][0]["id"]
    assert json.loads(value) == report["matches"][0]


HEAD = b"type,ts,n,s\n"
DAY = b'{"type":"A","ts":"2024-01-01",'
ODD = {
    "bom.csv": b"\xef\xbb\xbftype,ts,n,s\r\nA,2024-01-01,1,x\r\nA,2024-01-02,2,\r\n",
    "quotes.csv": HEAD + b'A,2024-01-01,1,"a ""b"", c"\nA,2024-01-02,2,"x\ny"\nA,2024-01-03,3,"z"\n',
    "returns.csv": HEAD + b'A,2024-01-01,1,a\rb\nA,2024-01-02,2,"c\rd"\n',
    "numbers.csv": HEAD + b"A,2024-01-01,7,x\n" * 20 + b"A,2024-01-01,1.0,x\nA,2024-01-01,1e3,x\n",
    "words.csv": HEAD + b"A,2024-01-01,NaN,true\nA,2024-01-01,-inf,False\nA,2024-01-02,1,TRUE\n",
    "large.csv": HEAD + b"A,2024-01-01,9223372036854775808,x\nA,2024-01-02,9223372036854775807,x\n",
    "nulls.csv": HEAD + b'A,2024-01-01,,""\nA,2024-01-02,null,NULL\nA,2024-01-03,n/a,NaN\nA,,1,\n,2024-01-01,1,\n',
    "latin.csv": HEAD + b"A,2024-01-01,1,\xff\xfe\nA,2024-01-02,2,\xc3\xa4\n",
    "nanos.csv": HEAD + b"A,2024-01-01T12:00:00+01:00,2,y\nA,2024-01-01 12:00:00.123456789,1,x\nA,soon,3,z\n",
    "far.csv": HEAD + b"A,0000-12-31,1,x\nA,0001-01-01,2,x\nA,9999-12-31T23:59:59.999999,3,x\nA,10000-01-01,4,x\n",
    "no_name.csv": b",type,ts,n,s,\n0,A,2024-01-01,1,x,\n1,A,2024-01-02,2,x,\n",
    "names.csv": 'type,ts,n,s,Solar.R,"a ""b""",c`d,e:f,ü,Type\nA,2024-01-01,1,x,1,2,3,4,5,6\n'.encode(),
    "missing.jsonl": DAY + b'"n":1}\n' + DAY + b'"s":"x"}\n{"type":"A","n":3}\n',
    "nested.jsonl": DAY + b'"n":1,"s":"x","o":{"a":1},"l":[1]}\n' + DAY + b'"n":{},"s":null}\n',
    "broken.jsonl": DAY + b'"n":1,"s":"x"}\n{"type":\n[]\nnull\n7\n\n  \n' + DAY + b'"n":1,"s":"\xff"}\n',
    "mixed.jsonl": DAY + b'"n":1,"s":1}\n' + DAY + b'"n":2.5,"s":true}\n{"type":"A","ts":5,"n":1e400,"s":"z"}\n',
    "bom.jsonl": b"\xef\xbb\xbf" + DAY + b'"n":1,"s":"x"}\r\n' + DAY + b'"n":18446744073709551616,"s":"x"}\r\n',
}


def compared(file: str, rule: str) -> dict[str, int]:
    """The counts of a run, if both engines have the same answer and reject the same rows for the same reasons."""
    Path("all.tesla").write_text(rule)
    compared_runs = []
    for engine in ("embedded", "spark"):
        written = ("--matches", f"{engine}.jsonl", "--dead-letters", f"dead-{engine}.jsonl")
        result = tocsin("run", "all.tesla", "--events", file, "--engine", engine, "--json", *written)
        assert result.exit_code == 0, result.stderr
        matches = sorted(Path(f"{engine}.jsonl").read_text().splitlines())
        dead = [json.loads(line) for line in Path(f"dead-{engine}.jsonl").read_text().splitlines()]
        reasons = sorted((re.sub(rf"^{file}, line \d+: ", "", one["reason"]), one["event"]) for one in dead)
        compared_runs.append((json.loads(result.stdout)["counts"], matches, reasons))
    assert compared_runs[0] == compared_runs[1]
    counts: dict[str, int] = compared_runs[0][0]
    return counts


@pytest.mark.parametrize("file", ODD)
def test_text_is_parsed_as_in_this_process(folder: Path, file: str) -> None:
    Path(file).write_bytes(ODD[file])
    whole = file in ("bom.csv", "numbers.csv", "words.csv", "large.csv", "nulls.csv")
    rule = "define Seen(n: double, s: string) from A() where n = A.n, s = A.s\n"
    assert compared(file, "define Seen() from A()\n" if whole else rule)["matches"] > 0


def test_parquet_of_every_type_is_parsed_as_in_this_process(folder: Path) -> None:
    """Nanoseconds as pandas writes them, types that Spark cannot read, and names that differ only in case."""
    nanos = [1_704_110_400_123_456_789, -1, 1_704_110_400_000_000_000]
    table = pa.table(
        {
            "type": pa.array(["A", "A", "A"]).dictionary_encode(),
            "ts": pa.array(nanos, pa.timestamp("ns")).take(pa.array([1, 2, 0])),
            "at": pa.array([nanos[0], None, nanos[1]], pa.timestamp("ns", tz="Europe/Berlin")),
            "n": pa.array([1, 2, 3], pa.uint64()),
            "clock": pa.array([1, 2, 3], pa.time64("us")),
            "took": pa.array([1, 2, 3], pa.duration("us")),
            "bytes": pa.array([b"ab", b"cd", None], pa.binary(2)),
            "nothing": pa.nulls(3),
            "price": pa.array([1, 2, 3], pa.decimal128(7, 2)),
            "small": pa.array([1, 2, 3], pa.uint8()),
            "day": pa.array([1, 2, 3], pa.int32()).cast(pa.date32()),
            "list": [[1], [2], None],
            "Id": [1, 2, 3],
            "id": [4, 5, 6],
            "Solar.R": [1.0, None, 3.0],
        }
    )
    pq.write_table(table, "e.parquet")
    rule = "define Seen(Id: long, at: timestamp, n: long) from A(n > 0) where Id = A.Id, at = A.at, n = A.n\n"
    assert compared("e.parquet", rule)["matches"] == 3
    shown = tocsin("run", "all.tesla", "--events", "e.parquet")
    assert shown.exit_code == 0, shown.stderr
    assert "the first" not in shown.stdout
    assert "2024-01-01T12:00:00.123456Z" in shown.stdout


def test_parquet_files_of_different_types_are_not_followed(spark: SparkSession, tmp_path: Path) -> None:
    for name, type in (("a", pa.timestamp("us")), ("b", pa.timestamp("ns"))):
        table = pa.table({"type": ["Temp"], "ts": pa.array([NOON], pa.timestamp("s")).cast(type)})
        pq.write_table(table, tmp_path / f"{name}.parquet")
    with pytest.raises(EventError, match=r"the same columns: 'ts' of .* is timestamp\[us\], timestamp\[ns\]"):
        connectors.infer_schema(spark, str(tmp_path), Columns(), {})
