"""The README does what it says: its Python runs, its shell lines run on its own rule and events, its targets exist."""

import re
import shlex
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from tests import pages
from tests.pages import ROOT, helped
from tocsin.cli import app

README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = pages.blocks(ROOT / "README.md")


def blocks(language: str) -> list[str]:
    return [block.text for block in BLOCKS if block.language == language]


def test_python(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {}
    for text in blocks("python"):
        exec(compile(text, "README.md", "exec"), names)
    assert "Row(rule='Fire'" in capsys.readouterr().out
    assert names["fires"].count() == 1


def test_shell(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (rule,), (events,), (shown,) = blocks("tesla"), blocks("events"), blocks("text")
    Path("fire.tesla").write_text(rule, encoding="utf-8")
    Path("readings.events").write_text(events, encoding="utf-8")
    commands = [line for text in blocks("sh") for line in text.splitlines() if line.startswith("tocsin ")]
    assert len(commands) == 4
    for command in commands:
        result = CliRunner().invoke(app, shlex.split(command)[1:])
        assert result.exit_code == 0, f"{command}\n{result.output}"
    assert shown.strip() in result.stdout
    assert pq.read_table("fires.parquet").select(["area", "temp"]).to_pylist() == [{"area": "A1", "temp": 51.5}]


def test_targets_and_links_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"\bmake (\w+)", README))
    assert {"demo", "test"} <= targets
    assert targets <= set(re.findall(r"^(\w+):", makefile, re.MULTILINE))
    for link in re.findall(r"\]\(([^)#]+)\)", README):
        assert (ROOT / link).exists(), link


def test_the_two_commands_stand_at_the_top() -> None:
    first = blocks("sh")[0].splitlines()
    assert [line.split("#")[0].split() for line in first] == [["make", "demo"], ["make", "test"]]


def test_options_exist() -> None:
    text = helped()
    options = set(re.findall(r"--[a-z-]+", README)) - {"---"}
    assert len(options) > 3
    assert {option for option in options if option not in text} == set()


def test_it_is_short() -> None:
    assert README.count("\n") <= 150
