"""`tocsin run` with moving queries: in this process, on Spark over existing events, and following."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner, Result

from tocsin import cli

JAMS = """\
event Brake(car: string, x: double, y: double)
event Position(car: string, x: double, y: double)

define   Jam(n: long)
from     Brake() and $n = Count(Brake() within 10 s from Brake)
where    n = $n

interest Near
of       Jam
around   Position(car="c1")
range    rectangle 100 m by 100 m
lifetime 5 s
"""
EVENTS = """\
type,ts,id,car,x,y
Brake,2026-01-01T00:00:01Z,b1,c2,10,10
Brake,2026-01-01T00:00:03Z,b2,c3,20,10
Brake,2026-01-01T00:00:08Z,b3,c3,500,10
Brake,2026-01-01T00:00:12Z,b4,c4,510,10
Brake,2026-01-01T00:00:13Z,b5,c4,900,10
"""
LOCATIONS = """\
ts,car,x,y
2026-01-01T00:00:02Z,c1,0,0
2026-01-01T00:00:05Z,c1,nan,0
2026-01-01T00:00:10Z,c1,500,0
"""
RIGHT = [
    (1, "Marker", "00:00:02", None),
    (1, "Jam", "00:00:01", 0),
    (1, "Jam", "00:00:03", 1),
    (2, "Marker", "00:00:10", None),
    (2, "Jam", "00:00:08", 0),
    (2, "Jam", "00:00:12", 1),
]
LATER = """\
type,ts,id,car,x,y
Brake,2026-01-01T00:00:14Z,b6,c5,505,10
Brake,2026-01-01T00:00:30Z,b7,c4,900,10
"""
WAIT_S = 240


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name, text in (("jams.mcep", JAMS), ("e.csv", EVENTS), ("l.csv", LOCATIONS)):
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


def tocsin(*arguments: str) -> Result:
    return CliRunner().invoke(cli.app, arguments)


def seen(rows: list[dict[str, Any]]) -> list[tuple[object, ...]]:
    return [(row["range"], row["type"], str(row["ts"])[11:19], row["n"]) for row in rows]


def test_check(folder: Path) -> None:
    result = tocsin("check", "jams.mcep")
    assert "Near: Jam around Position" in result.stdout
    assert "1 rule and 1 interest, no errors" in result.stderr


def test_in_this_process(folder: Path) -> None:
    arguments = ("run", "jams.mcep", "--events", "e.csv", "--locations", "l.csv", "--engine", "embedded", "--json")
    found = json.loads(tocsin(*arguments).stdout)
    assert seen(found["matches"]) == RIGHT
    assert found["counts"]["matches"] == 4
    assert found["dead_letters"] == ["x and y are not a position: Position@1767225605000000(y=0.0)"]


def test_wrong_options(folder: Path) -> None:
    (folder / "plain.tesla").write_text("define Hot() from Brake()", encoding="utf-8")
    result = tocsin("run", "plain.tesla", "--events", "e.csv", "--locations", "l.csv", "--engine", "embedded")
    assert result.exit_code == 2
    assert "has no interest" in result.stderr
    result = tocsin("run", "jams.mcep", "--events", "e.csv", "--follow", "--rules-folder", "changes")
    assert result.exit_code == 2
    assert "moving queries" in result.stderr


def test_on_spark(folder: Path, spark: SparkSession) -> None:
    found = json.loads(tocsin("run", "jams.mcep", "--events", "e.csv", "--locations", "l.csv", "--json").stdout)
    assert seen(found["matches"]) == RIGHT
    assert found["dead_letters"] == ["x and y are not a position: Position@1767225605000000(y=0.0)"]


def follow(*arguments: str, rows: int) -> str:
    """Follows until so many rows are written; what was said."""
    ended = threading.Event()

    def stop() -> None:
        until = time.monotonic() + WAIT_S
        while time.monotonic() < until and not ended.wait(0.2):
            # What is at the watermark waits for more; all before it is certain.
            if len(delivered()) >= rows:
                break
        os.kill(os.getpid(), signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, lambda number, frame: None)
    thread = threading.Thread(target=stop)
    thread.start()
    places = ("--events", "events", "--locations", "locations", "--matches", "out")
    result = tocsin("run", "jams.mcep", *places, "--follow", *arguments)
    ended.set()
    thread.join()
    signal.signal(signal.SIGTERM, before)
    return result.output


def delivered() -> list[dict[str, Any]]:
    paths = sorted(Path("out").glob("batch=*/*.parquet"))
    return [row for path in paths for row in pq.read_table(path).to_pylist()]


def test_a_followed_run_resumes_with_another_number_of_slots(folder: Path, spark: SparkSession) -> None:
    for name, text in (("events", EVENTS), ("locations", LOCATIONS)):
        (folder / name).mkdir()
        (folder / name / "1.csv").write_text(text, encoding="utf-8")
    said = follow("--slots", "2", "--checkpoint", "old", rows=len(RIGHT))
    assert seen(delivered()) == RIGHT, said
    moved = tocsin("rekey", "jams.mcep", "--checkpoint", "old", "--to", "new", "--slots", "3")
    assert "2 slots before, 3 now" in moved.stderr
    (folder / "events" / "2.csv").write_text(LATER, encoding="utf-8")
    said = follow("--checkpoint", "new", rows=len(RIGHT) + 1)
    assert seen(delivered()) == [*RIGHT, (2, "Jam", "00:00:14", 2)], said
