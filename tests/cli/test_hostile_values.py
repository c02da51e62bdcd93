"""All commands escape user text for the terminal: no markup, no links, no control characters."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from tocsin import cli
from tocsin.cli import console, serve, sites
from tocsin.cli import simulate as demo
from tocsin.cli import simulate as studying
from tocsin.sites.fleet import ReplicaStatus

ESCAPE = "\x1b]0;owned\x07\x1b[31m"
HOSTILE = f"[/nope][link=http://evil]x[/link]:smile:\x9b31m\u202e{ESCAPE}"
SHOWN = "[/nope][link=http://evil]x[/link]:smile:\\x9b31m\\u202e\\x1b]0;owned\\x07\\x1b[31m"
DONE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]")

FIRE = """\
define  Fire(area: string)
from    Smoke(area=$a) and last Temp(area=$a, value>45) within 5 min from Smoke
where   area = Smoke.area
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fire.tesla").write_text(FIRE, encoding="utf-8")
    rows = [
        {"type": "Temp", "ts": "2026-07-01T12:00:00Z", "area": HOSTILE, "value": 60},
        {"type": "Smoke", "ts": "2026-07-01T12:01:00Z", "area": HOSTILE},
        {"type": "Smoke", "ts": "2026-07-01T12:02:00Z", "area": HOSTILE + "!"},
    ]
    more = [{**rows[0], "ts": f"2026-07-01T13:00:{second:02}Z"} for second in range(20)]
    lines = [json.dumps(row) for row in [*rows, *more, {**rows[0], "value": HOSTILE}]]
    (tmp_path / "e.jsonl").write_text("\n".join(lines), encoding="utf-8")
    return tmp_path


def tocsin(*arguments: str) -> Result:
    """A command as on a terminal: nothing is stripped on the way."""
    result = CliRunner().invoke(cli.app, arguments, color=True)
    assert not isinstance(result.exception, Exception), result.exception
    for text in (result.stdout, result.stderr):
        assert not DONE.search(text), repr(text)
    return result


def whole(text: str) -> str:
    """The text without frames and line breaks, in which a table folds what is long."""
    return re.sub(r"[\s│┃]+", "", text)


def test_run(folder: Path) -> None:
    result = tocsin("run", "fire.tesla", "--events", "e.jsonl", "--engine", "embedded")
    assert result.exit_code == 0
    assert SHOWN[:60] in result.stdout
    assert "value is not a whole number (1)" in result.stderr
    assert "[/nope]" in result.stderr


def test_run_as_json(folder: Path) -> None:
    result = tocsin("run", "fire.tesla", "--events", "e.jsonl", "--engine", "embedded", "--json")
    assert json.loads(result.stdout)["matches"][0]["area"] == HOSTILE


def test_why(folder: Path) -> None:
    arguments = ("why", "fire.tesla", "--events", "e.jsonl", "--at", "2026-07-01T12:02:00Z")
    result = tocsin(*arguments)
    assert result.exit_code == 0
    assert "[/nope][link=http://evil]" in result.stdout
    (reason,) = json.loads(tocsin(*arguments, "--json").stdout)
    assert reason["anchor"]["attributes"]["area"] == HOSTILE + "!"


def test_check_and_explain(folder: Path) -> None:
    (folder / "text.tesla").write_text(FIRE.replace("value>45", f'note="{HOSTILE}"'), encoding="utf-8")
    assert tocsin("check", "text.tesla").exit_code == 0
    assert "[/nope]" in tocsin("explain", "text.tesla").stdout


def test_an_error_in_rules(folder: Path) -> None:
    (folder / "wrong.tesla").write_text(f'define Fire() from Smoke(a="{HOSTILE}" and', encoding="utf-8")
    result = tocsin("check", "wrong.tesla")
    assert result.exit_code == 1
    assert SHOWN in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("check", HOSTILE),
        ("run", "fire.tesla", "--events", HOSTILE, "--engine", "embedded"),
        ("run", "fire.tesla", "--events", "e.jsonl", "--matches", HOSTILE, "--engine", "embedded"),
        ("why", "fire.tesla", "--events", "e.jsonl", "--id", HOSTILE),
        ("why", "fire.tesla", "--events", "e.jsonl", "--at", "12", "--rule", HOSTILE),
        ("simulate", HOSTILE),
        ("site", "status", HOSTILE),
        ("study", HOSTILE),
        ("serve", "--no-tokens", "--host", HOSTILE),
        ("serve", "--delay", HOSTILE),
    ],
)
def test_messages_that_quote(folder: Path, arguments: tuple[str, ...]) -> None:
    result = tocsin(*arguments)
    assert result.exit_code == 1
    assert "\ntocsin: " in f"\n{result.stderr}"


@pytest.mark.parametrize(
    "arguments",
    [
        (HOSTILE,),
        ("check", f"--{HOSTILE}"),
        ("why", "fire.tesla", "--events", "e.jsonl", "--at", HOSTILE),
        ("run", "fire.tesla", "--events", "e.jsonl", "--engine", HOSTILE),
        ("site", HOSTILE),
    ],
)
def test_wrong_usage_that_is_quoted(folder: Path, arguments: tuple[str, ...]) -> None:
    result = tocsin(*arguments)
    assert result.exit_code == 2
    assert "[/nope]" in whole(result.stderr)


def test_change(folder: Path) -> None:
    result = tocsin("change", "c[/nope]\x1b[31m", "--remove", HOSTILE)
    assert result.exit_code == 0
    assert result.stderr.startswith("change written to c[/nope]\\x1b[31m/")


def test_simulate(folder: Path) -> None:
    name = "hill[/nope]\\e[31m"
    (folder / "s.yaml").write_text(
        f"""
topology: {{links: [["{name}", town, 5]]}}
rules: |
  event Temp(value: double)
  define Hot(value: double) from Temp(value > 50) where value = Temp.value
sources: {{"{name}": {{Temp: 1}}}}
sinks: {{"{name}/[/nope]": [Hot]}}
seconds: 2
warm_up: 1
strategies: [Centr]
""",
        encoding="utf-8",
    )
    result = tocsin("simulate", "s.yaml")
    assert result.exit_code in (0, 1), result.stderr


def test_watched_sites(capsys: pytest.CaptureFixture[str]) -> None:
    console.say(sites._line(ReplicaStatus(HOSTILE, True, {}, HOSTILE)), err=True)
    assert f"{SHOWN} starting ({SHOWN})" in capsys.readouterr().err


def test_tables_show_text(capsys: pytest.CaptureFixture[str]) -> None:
    """What simulate, site and study show goes through this console."""
    from rich.table import Table

    table = Table(HOSTILE, title=HOSTILE)
    table.add_row(HOSTILE)
    console.console().print(HOSTILE, table)
    text = capsys.readouterr().out
    assert not DONE.search(text)
    assert text.count(SHOWN) == 4
    for module in (demo, sites, studying):
        assert module.console is console.console  # type: ignore[attr-defined]


def test_status_lines_show_text() -> None:
    assert console.status_text(HOSTILE).plain == SHOWN
    assert not console.status_text(HOSTILE).spans


def test_log_lines_of_the_service() -> None:
    record = logging.LogRecord("x", logging.WARNING, "", 1, "%s", (HOSTILE,), None)
    assert serve.EscapingFormatter("%(message)s").format(record) == SHOWN


def test_all_output_goes_through_the_console_module() -> None:
    """Text goes to the terminal through `console`, and nowhere else."""
    for path in Path(cli.__file__).parent.glob("*.py"):
        if path.name != "console.py":
            source = path.read_text(encoding="utf-8")
            assert not re.search(r"(?<![.\w])print\(|typer\.echo|click\.echo|import Console", source), path.name
