"""The command line: its output and exit codes."""

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner, Result

from tocsin import cli
from tocsin.cli import commands
from tocsin.cli import run as outcomes
from tocsin.events import lines
from tocsin.events.reorder import Scheduler

FIRE = """\
rule    Last
define  Fire(area: string, temp: double)
from    Smoke(area=$a) and last Temp(area=$a, value>45) within 5 min from Smoke
where   area = Smoke.area, temp = Temp.value

rule    Hot
define  Heat(area: string)
from    Temp(value > 50)
where   area = Temp.area
"""
CSV = """\
type,ts,area,value
Temp,2026-07-01T12:00:00Z,A1,46.5
Temp,2026-07-01T12:01:00Z,A1,51.0
Smoke,2026-07-01T12:02:00Z,A1,
Smoke,2026-07-01T12:03:00Z,A2,
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fire.tesla").write_text(FIRE, encoding="utf-8")
    (tmp_path / "e.csv").write_text(CSV, encoding="utf-8")
    return tmp_path


def tocsin(*arguments: str) -> Result:
    return CliRunner().invoke(cli.app, arguments)


def run(*arguments: str) -> Result:
    """`tocsin run` in this process; `spark/test_cli_spark.py` has the same on Spark."""
    return tocsin("run", *arguments, "--engine", "embedded")


def test_check(folder: Path) -> None:
    result = tocsin("check", "fire.tesla")
    assert result.exit_code == 0
    assert result.stdout == "Last: Fire(area: string, temp: double)\nHot: Heat(area: string)\n"
    assert result.stderr == "fire.tesla: 2 rules, no errors\n"


def test_an_invalid_rule_is_reported_with_a_caret(folder: Path) -> None:
    (folder / "wrong.tesla").write_text("define Fire()\nfrom Smoke(area=$a) and lst Temp() within 5 min from Smoke\n")
    result = tocsin("check", "wrong.tesla")
    assert result.exit_code == 1
    assert result.stdout == ""
    first, text, caret, *_ = result.stderr.splitlines()
    assert first.startswith("tocsin: wrong.tesla: line 2, column ")
    assert text == "  from Smoke(area=$a) and lst Temp() within 5 min from Smoke"
    assert set(caret) == {" ", "^"}
    assert "Traceback" not in result.stderr


def test_check_against_events(folder: Path) -> None:
    result = tocsin("check", "fire.tesla", "--events", "e.csv")
    assert result.exit_code == 0
    assert result.stderr == "fire.tesla: 2 rules, no errors; 4 events of 2 types in e.csv\n"


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
@pytest.mark.parametrize("declared", ["", "event Temp(area: string, value: double)\nevent Smoke(area: string)\n"])
def test_check_finds_attributes_that_events_do_not_have(folder: Path, suffix: str, declared: str) -> None:
    table = shuffled(6).rename_columns(["kind", "at", "area", "values"])
    write(table.rename_columns(["type", "ts", "area", "value"]), Path(f"e.{suffix}"))
    if suffix == "parquet":
        pq.write_table(table, "e.parquet")
    else:
        text = Path(f"e.{suffix}").read_text()
        for one, other in (("type", "kind"), ("ts", "at"), ("value", "values")):
            text = text.replace(f'"{one}":', f'"{other}":')
        Path(f"e.{suffix}").write_text(text.replace("type,ts,area,value", "kind,at,area,values"))
    Path("fire.tesla").write_text(declared + FIRE)
    result = tocsin("check", "fire.tesla", "--events", f"e.{suffix}", "--type-column", "kind", "--ts-column", "at")
    assert result.exit_code == 1
    first, text, caret, hint = result.stderr.splitlines()
    line = 3 + declared.count("\n")
    assert first.startswith(f"tocsin: fire.tesla: line {line}, column 47: Temp has no attribute value")
    assert text == "  from    Smoke(area=$a) and last Temp(area=$a, value>45) within 5 min from Smoke"
    assert caret.strip() == "^^^^^"
    assert hint == f"Did you mean 'values'? These rules were checked against e.{suffix}."


def test_check_reports_incompatible_kinds(folder: Path) -> None:
    Path("e.csv").write_text("type,ts,area,value\nTemp,1,A1,warm\nSmoke,2,A1,\n")
    result = tocsin("check", "fire.tesla", "--events", "e.csv")
    assert result.exit_code == 1
    assert result.stderr.startswith("tocsin: fire.tesla: line 3, column ")
    assert "string" in result.stderr


def test_check_warns_of_types_and_attributes_that_no_event_has(folder: Path) -> None:
    Path("e.csv").write_text("type,ts,area,value\nTemps,1,A1,5\nSmoke,2,A1,\n")
    result = tocsin("check", "fire.tesla", "--events", "e.csv")
    assert result.exit_code == 0
    warnings = [line for line in result.stderr.splitlines() if line.startswith("warning: ")]
    assert warnings == [
        "warning: fire.tesla: line 3, column 33: no event of e.csv matches this: there is no event type Temp",
        "warning: fire.tesla: line 8, column 9: no event of e.csv matches this: there is no event type Temp",
    ]
    assert "Did you mean 'Temps'?" in result.stderr
    assert "Last may never match." in result.stderr
    Path("e.csv").write_text("type,ts,area,value\nTemp,1,A1,\nSmoke,2,A1,7\n")
    result = tocsin("check", "fire.tesla", "--events", "e.csv")
    assert result.exit_code == 0
    assert "no event of e.csv matches this: Temp has no attribute value" in result.stderr


def test_a_missing_rules_file(folder: Path) -> None:
    result = tocsin("check", "fir.tesla")
    assert result.exit_code == 1
    assert result.stderr == "tocsin: there is no file fir.tesla\nDid you mean 'fire.tesla'?\n"


def test_a_rules_file_that_is_not_text(folder: Path) -> None:
    (folder / "binary.tesla").write_bytes(b"\xff\xfe\x00")
    result = tocsin("check", "binary.tesla")
    assert result.exit_code == 1
    assert "binary.tesla" in result.stderr
    assert "UTF-8" in result.stderr


def test_explain(folder: Path) -> None:
    result = tocsin("explain", "fire.tesla")
    assert result.exit_code == 0
    assert "Smoke" in result.stdout


def test_explain_as_a_drawing(folder: Path) -> None:
    assert tocsin("explain", "fire.tesla", "--svg", "plan.svg").exit_code == 0
    assert "<svg" in (folder / "plan.svg").read_text(encoding="utf-8")
    result = tocsin("explain", "fire.tesla", "--svg", "nowhere/plan.svg")
    assert result.exit_code == 1
    assert result.stderr == "tocsin: nowhere/plan.svg cannot be written: No such file or directory\n"


def test_run_shows_the_first_matches(folder: Path) -> None:
    result = run("fire.tesla", "--events", "e.csv", "--limit", "1")
    assert result.exit_code == 0
    assert "first 1 of 2 matches" in result.stdout
    assert "Heat" in result.stdout
    assert "Last" not in result.stdout
    assert "4 events in" in result.stderr
    assert "2 matches (Hot 1, Last 1)" in result.stderr


def test_limit_0_prints_no_matches(folder: Path) -> None:
    result = run("fire.tesla", "--events", "e.csv", "--limit", "0")
    assert result.exit_code == 0
    assert result.stdout == ""
    assert "2 matches (Hot 1, Last 1)" in result.stderr


def test_run_writes_the_matches(folder: Path) -> None:
    result = run("fire.tesla", "--events", "e.csv", "--matches", "m.parquet")
    assert result.exit_code == 0
    assert result.stdout == ""
    assert "2 matches (Hot 1, Last 1), in m.parquet" in result.stderr
    matches = pq.read_table("m.parquet")
    assert matches.select(["rule", "area", "temp"]).to_pylist() == [
        {"rule": "Hot", "area": "A1", "temp": None},
        {"rule": "Last", "area": "A1", "temp": 51.0},
    ]
    assert [part["role"] for part in matches["parts"][1].as_py()] == ["Smoke", "Temp"]


def test_run_as_json(folder: Path) -> None:
    result = run("fire.tesla", "--events", "e.csv", "--json")
    assert result.exit_code == 0
    report = json.loads(result.stdout)
    assert report["counts"] == {"events": 4, "late": 0, "dead": 0, "matches": 2, "bad_lines": 0}
    assert report["by_rule"] == {"Hot": 1, "Last": 1}
    assert report["events_per_second"] > 0
    assert [(match["rule"], match["ts"]) for match in report["matches"]] == [
        ("Hot", "2026-07-01T12:01:00.000000Z"),
        ("Last", "2026-07-01T12:02:00.000000Z"),
    ]
    written = run("fire.tesla", "--events", "e.csv", "--json", "--matches", "m.jsonl")
    assert json.loads(written.stdout)["matches"] == "m.jsonl"
    assert [json.loads(line) for line in Path("m.jsonl").read_text().splitlines()] == report["matches"]


def test_every_format_gives_the_same_matches(folder: Path) -> None:
    run("fire.tesla", "--events", "e.csv", "--matches", "1.jsonl")
    table = pa.table(
        {
            "type": ["Temp", "Temp", "Smoke", "Smoke"],
            "ts": pa.array([1782907200, 1782907260, 1782907320, 1782907380], pa.timestamp("s", "UTC")),
            "area": ["A1", "A1", "A1", "A2"],
            "value": [46.5, 51.0, None, None],
        }
    )
    pq.write_table(table, "e.parquet")
    rows = [{**row, "ts": row["ts"].isoformat()} for row in table.to_pylist()]
    Path("e.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    run("fire.tesla", "--events", "e.parquet", "--matches", "2.jsonl")
    run("fire.tesla", "--events", "e.jsonl", "--matches", "3.jsonl")
    first = Path("1.jsonl").read_text()
    assert first.count("\n") == 2
    assert Path("2.jsonl").read_text() == first
    assert Path("3.jsonl").read_text() == first


def test_dead_letters_are_written(folder: Path) -> None:
    good = "".join(f"Temp,2026-07-01T13:00:{second:02}Z,A1,20\n" for second in range(20))
    Path("e.csv").write_text(f"{CSV}{good}Temp,2026-07-01T13:01:00Z,A1,hot\nTemp\n")
    result = run("fire.tesla", "--events", "e.csv", "--dead-letters", "d.jsonl", "--json")
    assert result.exit_code == 0
    report = json.loads(result.stdout)
    assert report["counts"] == {"events": 24, "late": 0, "dead": 0, "matches": 2, "bad_lines": 2}
    letters = [json.loads(line) for line in Path("d.jsonl").read_text().splitlines()]
    assert [(letter["reason"], letter["event"]) for letter in letters] == [
        ('e.csv, line 26: value is "hot", which is not a number', "Temp,2026-07-01T13:01:00Z,A1,hot"),
        ("e.csv, line 27: 1 values for 4 columns", "Temp"),
    ]


def shuffled(rows: int = 400) -> pa.Table:
    """Readings and smoke in a random order of time."""
    times = [1_782_907_200_000_000 + 20_000_000 * number for number in range(rows)]
    random.Random(7).shuffle(times)
    return pa.table(
        {
            "type": ["Smoke" if number % 3 == 0 else "Temp" for number in range(rows)],
            "ts": pa.array(times, pa.timestamp("us", "UTC")),
            "area": [f"A{number % 5}" for number in range(rows)],
            "value": [None if number % 3 == 0 else 40.0 + number % 13 for number in range(rows)],
        }
    )


def write(table: pa.Table, path: Path) -> None:
    """A table as a file of events, in the format that its name says."""
    if path.suffix == ".parquet":
        pq.write_table(table, path, row_group_size=50)
        return
    rows = [{**row, "ts": row["ts"].isoformat()} for row in table.to_pylist()]
    if path.suffix == ".jsonl":
        lines = [json.dumps(row) for row in rows]
    elif path.suffix == ".events":
        lines = [
            f'{row["type"]}@{row["ts"]}(area="{row["area"]}"' + (f", value={row['value']})" if row["value"] else ")")
            for row in rows
        ]
    else:
        lines = ["type,ts,area,value", *(f"{r['type']},{r['ts']},{r['area']},{r['value'] or ''}" for r in rows)]
    path.write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet", "events"])
@pytest.mark.parametrize("files", [1, 3])
def test_files_in_any_order_lose_no_event(
    folder: Path, monkeypatch: pytest.MonkeyPatch, suffix: str, files: int
) -> None:
    monkeypatch.setattr(outcomes, "CHUNK_ROWS", 30)
    monkeypatch.setattr(lines, "BLOCK_BYTES", 1_000)
    table = shuffled()
    write(table.sort_by("ts"), Path(f"sorted.{suffix}"))
    Path("in").mkdir()
    for number in range(files):
        part = table.num_rows // files + 1
        write(table.slice(number * part, part), Path(f"in/{number}.{suffix}"))
    right, found = (
        json.loads(run("fire.tesla", "--events", path, "--json", "--limit", "1000").stdout)
        for path in (f"sorted.{suffix}", "in")
    )
    assert found["counts"] == {"events": 400, "late": 0, "dead": 0, "matches": len(right["matches"]), "bad_lines": 0}
    assert found["by_rule"] == right["by_rule"]
    assert found["by_rule"]["Last"] > 20
    assert found["matches"] == right["matches"]


def test_a_sorted_file_is_not_held_in_memory(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outcomes, "CHUNK_ROWS", 30)
    write(shuffled().sort_by("ts"), Path("e.parquet"))
    held: list[int] = []
    push = Scheduler.push

    def watched(self: Scheduler, batch: pa.Table) -> Any:
        result = push(self, batch)
        held.append(0 if self.waiting is None else self.waiting.num_rows)
        return result

    monkeypatch.setattr(Scheduler, "push", watched)
    assert run("fire.tesla", "--events", "e.parquet").exit_code == 0
    assert len(held) > 10
    assert max(held) == 1


LINES = "".join(f"Temp,2026-07-01T13:00:{second:02}Z,A1,20\n" for second in range(30))


def test_the_last_line_counts_what_was_rejected_and_why(folder: Path) -> None:
    bad = "Temp,2026-07-01T13:01:00Z,A1,hot\nTemp,2026-07-01T13:01:01Z,A1,cold\nTemp\n"
    Path("e.csv").write_text(f"{CSV}{LINES}{bad}")
    result = run("fire.tesla", "--events", "e.csv")
    assert result.exit_code == 0
    last = result.stderr.splitlines()[-1]
    assert last.startswith("34 events in ")
    assert last.endswith(
        "3 rejected: value is not a number (2), 1 values for 4 columns (1); write them with --dead-letters PATH"
    )
    kept = run("fire.tesla", "--events", "e.csv", "--dead-letters", "d.csv")
    assert kept.stderr.splitlines()[-1].endswith("(1); see d.csv")
    report = json.loads(run("fire.tesla", "--events", "e.csv", "--json").stdout)
    assert report["reasons"] == {"value is not a number": 2, "1 values for 4 columns": 1}


def test_events_that_the_engine_rejects_are_counted(folder: Path) -> None:
    table = pa.table({"type": ["Temp", None, "Heat"], "ts": [1, 2, None], "area": ["A"] * 3, "value": [60.0] * 3})
    pq.write_table(table, "e.parquet")
    result = run("fire.tesla", "--events", "e.parquet", "--strict")
    assert result.exit_code == 1
    assert "2 rejected: type is null (1), ts is null (1)" in result.stderr.splitlines()[-1]


def test_strict(folder: Path) -> None:
    assert run("fire.tesla", "--events", "e.csv", "--strict").exit_code == 0
    Path("e.csv").write_text(f"{CSV}Temp\n")
    result = run("fire.tesla", "--events", "e.csv", "--strict", "--matches", "m.csv")
    assert result.exit_code == 1
    assert "1 rejected: 1 values for 4 columns (1)" in result.stderr
    assert Path("m.csv").exists()


def test_the_last_line_shows_the_time_span_of_the_events(folder: Path) -> None:
    last = run("fire.tesla", "--events", "e.csv").stderr.splitlines()[-1]
    assert last.endswith("; from 2026-07-01T12:00:00Z to 2026-07-01T12:03:00Z; none rejected")
    Path("s.csv").write_text("type,ts,area,value\nTemp,1782907200,A1,51\nTemp,1782907100,A1,51\n")
    seconds = ("fire.tesla", "--events", "s.csv", "--ts-unit", "s")
    assert "from 2026-07-01T11:58:20Z to 2026-07-01T12:00:00Z" in run(*seconds).stderr
    wrong = ("fire.tesla", "--events", "s.csv", "--ts-unit", "us")
    assert "from 1970-01-01T00:29:42.907100Z to 1970-01-01T00:29:42.907200Z" in run(*wrong).stderr


def test_a_delay_needs_follow(folder: Path) -> None:
    result = run("fire.tesla", "--events", "e.csv", "--delay", "5 s")
    assert result.exit_code == 2
    assert "needs --follow: without it, events are sorted by time" in " ".join(result.stderr.replace("│", " ").split())


def test_columns_of_other_names(folder: Path) -> None:
    Path("e.csv").write_text("kind,at,area,value\nTemp,1782907200,A1,51\n")
    names = ("--type-column", "kind", "--ts-column", "at", "--ts-unit", "s")
    report = json.loads(run("fire.tesla", "--events", "e.csv", "--json", *names).stdout)
    assert [match["ts"] for match in report["matches"]] == [1782907200000000]
    assert "Temp 1782907200000000" in run("fire.tesla", "--events", "e.csv", *names).stdout


def test_declared_types_are_not_guessed(folder: Path) -> None:
    Path("fire.tesla").write_text(f"event Temp(area: string, value: double)\nevent Smoke(area: string)\n{FIRE}")
    Path("e.csv").write_text(CSV.replace("A1", "1").replace("A2", "2").replace("46.5", "hot"))
    report = json.loads(run("fire.tesla", "--events", "e.csv", "--json").stdout)
    assert [match["area"] for match in report["matches"]] == ["1", "1"]
    assert report["counts"]["bad_lines"] == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--events", "none.csv"), "there is no file or folder none.csv"),
        (("--events", "e.csv", "--ts-column", "tz"), "e.csv has no column 'tz' with the time of each event"),
        (("--events", "e.csv", "--matches", "m.xml"), "m.xml ends in '.xml', which is no known format"),
        (("--events", "e.csv", "--matches", "e.csv"), "e.csv is one of the event files; choose another output"),
    ],
)
def test_errors_exit_with_1_and_a_message(folder: Path, arguments: tuple[str, ...], message: str) -> None:
    result = run("fire.tesla", *arguments)
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr.startswith(f"tocsin: {message}")


def test_a_rule_that_does_not_fit_the_events(folder: Path) -> None:
    Path("e.csv").write_text(CSV.replace("value", "degrees"))
    result = run("fire.tesla", "--events", "e.csv", "--matches", "m.csv")
    assert result.exit_code == 1
    assert result.stderr.startswith("tocsin: fire.tesla: line 3, column 47: Temp has no attribute value")
    assert "^^^^^" in result.stderr
    assert not Path("m.csv").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ("run", "fire.tesla"),
        ("run", "fire.tesla", "--events", "e.csv", "--engine", "flink"),
        ("run", "fire.tesla", "--events", "e.csv", "--engine", "embedded", "--follow"),
        ("run", "fire.tesla", "--events", "e.csv", "--engine", "embedded", "--slots", "2"),
        ("run", "fire.tesla", "--events", "e.csv", "--rules-folder", "changes"),
        ("change", "changes"),
        ("change", "changes", "--remove", "Last", "--at", "noon"),
        ("run", "fire.tesla", "--events", "e.csv", "--ts-unit", "days"),
        ("check",),
        ("ring",),
    ],
)
def test_wrong_usage_exits_with_2(folder: Path, arguments: tuple[str, ...]) -> None:
    assert tocsin(*arguments).exit_code == 2


def test_ctrl_c_ends_quietly(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(path: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(commands, "rules_of", interrupted)
    result = tocsin("check", "fire.tesla")
    assert result.exit_code == 130
    assert result.output == ""


def test_kafka_needs_spark(folder: Path) -> None:
    result = run("fire.tesla", "--events", "kafka://localhost:9092/readings")
    assert result.exit_code == 1
    assert result.stderr.startswith("tocsin: kafka://localhost:9092/readings needs Spark: --engine embedded reads")


def test_change(folder: Path) -> None:
    result = tocsin("change", "changes", "--add", "fire.tesla", "--remove", "Old", "--at", "2026-07-01T12:00:00Z")
    assert result.exit_code == 0
    (file,) = Path("changes").iterdir()
    assert result.stderr == f"change written to {file}\n"
    assert file.suffix == ".json"
    assert json.loads(file.read_text()) == {"add": FIRE, "remove": ["Old"], "at": 1_782_907_200_000_000}
    assert tocsin("change", "changes", "--remove", "Last", "--remove", "Hot", "--at", "17").exit_code == 0
    later = max(Path("changes").iterdir())
    assert later != file
    assert json.loads(later.read_text()) == {"remove": ["Last", "Hot"], "at": 17}


def test_a_change_to_wrong_rules_is_not_written(folder: Path) -> None:
    Path("wrong.tesla").write_text("define Fire() from")
    result = tocsin("change", "changes", "--add", "wrong.tesla")
    assert result.exit_code == 1
    assert result.stderr.startswith("tocsin: wrong.tesla: line 1, column ")
    assert not Path("changes").exists()
    Path("file").touch()
    assert tocsin("change", "file", "--remove", "Last").stderr == "tocsin: file cannot be written: File exists\n"


@pytest.mark.parametrize("command", ["check", "explain", "run", "change", "demo"])
def test_help_has_an_example(command: str) -> None:
    assert f"tocsin {command}" in tocsin(command, "--help").stdout.split("Options")[0]


def test_the_real_command(folder: Path) -> None:
    command = [sys.executable, "-c", "from tocsin.cli import main; main()"]
    done = subprocess.run(
        [*command, "run", "fire.tesla", "--events", "e.csv", "--engine", "embedded"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0
    assert "2 matches" in done.stdout
    assert "Traceback" not in done.stderr
    version = subprocess.run([*command, "--version"], capture_output=True, text=True, check=True)
    assert version.stdout.startswith("tocsin ")


def test_help_imports_nothing_slow() -> None:
    code = """
import importlib.util, sys, types
package = types.ModuleType("tocsin")
package.__path__ = importlib.util.find_spec("tocsin").submodule_search_locations
sys.modules["tocsin"] = package
import tocsin.cli
print([name for name in ("numba", "numpy", "pyarrow", "pyspark", "lark", "tocsin.ruleset") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_why_a_match(folder: Path) -> None:
    matches = json.loads(run("fire.tesla", "--events", "e.csv", "--json").stdout)["matches"]
    fire = next(match for match in matches if match["rule"] == "Last")
    result = tocsin("why", "fire.tesla", "--events", "e.csv", "--id", fire["id"])
    assert result.exit_code == 0
    assert result.stdout.startswith("Last matched at Smoke@")
    assert "✓ value>45: value is 51.0" in result.stdout
    assert "✓ last: it is the last that fits" in result.stdout


def test_why_no_match(folder: Path) -> None:
    result = tocsin("why", "fire.tesla", "--events", "e.csv", "--at", "2026-07-01T12:03:00Z")
    assert result.exit_code == 0
    assert '✗ area=$a: area is "A1", $a is "A2"' in result.stdout
    (reason,) = json.loads(
        tocsin("why", "fire.tesla", "--events", "e.csv", "--at", "2026-07-01T12:03:00Z", "--json").stdout
    )
    assert not reason["matched"]
    assert reason["checks"][-1]["event"]["attributes"]["value"] == 51.0


def test_why_of_a_request_and_of_a_query(folder: Path) -> None:
    Path("pair.eps").write_text(
        'request Pair on Temp(value > 45) as t ; Smoke() as s if t.area = s.area within 5 min notify "!"\n'
    )
    Path("hot.siddhi").write_text(
        "define stream Temp (area string, value double);\n"
        "@info(name='Hot') from Temp[value > 50.0] select area insert into Out;\n"
    )
    (match,) = json.loads(run("pair.eps", "--events", "e.csv", "--json").stdout)["matches"]
    result = tocsin("why", "pair.eps", "--events", "e.csv", "--id", match["id"])
    assert result.exit_code == 0, result.stderr
    assert result.stdout.startswith("Pair matched at Smoke@")
    assert '✓ t.area=s.area: t.area is "A1", s.area is "A1"' in result.stdout
    result = tocsin("why", "pair.eps", "--events", "e.csv", "--at", "2026-07-01T12:03:00Z")
    assert '✗ t.area=s.area: t.area is "A1", s.area is "A2"' in result.stdout
    (match,) = json.loads(run("hot.siddhi", "--events", "e.csv", "--json").stdout)["matches"]
    result = tocsin("why", "hot.siddhi", "--events", "e.csv", "--id", match["id"])
    assert "✓ value > 50.0: value is 51.0" in result.stdout
    result = tocsin("why", "hot.siddhi", "--events", "e.csv", "--at", "2026-07-01T12:00:00Z")
    assert "✗ value > 50.0: value is 46.5" in result.stdout


def test_why_reports_rejected_rows(folder: Path) -> None:
    Path("e.csv").write_text(f"{CSV}Temp\n")
    result = tocsin("why", "fire.tesla", "--events", "e.csv", "--at", "2026-07-01T12:02:00Z")
    assert result.exit_code == 0
    assert result.stderr == "1 row of e.csv rejected; see the reasons with tocsin run --dead-letters\n"


def test_why_without_an_event(folder: Path) -> None:
    assert tocsin("why", "fire.tesla", "--events", "e.csv").exit_code == 2
    result = tocsin("why", "fire.tesla", "--events", "e.csv", "--id", "x")
    assert result.exit_code == 1
    assert "no event has the id x" in result.stderr
