"""The examples do what their READMEs say: every command runs, and the rules find the planted matches."""

from __future__ import annotations

import json
import re
import runpy
import shlex
import shutil
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from tocsin.cli import app

EXAMPLES = Path(__file__).parent.parent / "examples"
NAMES = sorted(path.parent.name for path in EXAMPLES.glob("*/README.md") if (path.parent / "generate.py").exists())
SIZES = {"card_fraud": 3_000, "factory": 2, "intrusion": 300, "market": 900, "traffic": 150}


def commands(name: str) -> list[list[str]]:
    text = (EXAMPLES / name / "README.md").read_text(encoding="utf-8")
    return [
        shlex.split(line)
        for block in re.findall(r"^```sh\n(.*?)^```$", text, re.M | re.S)
        for line in block.splitlines()
    ]


def run(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch, engine: str = "embedded") -> list[dict[str, Any]]:
    """Run the commands of the README with a small input in `folder`, and return the matches."""
    shutil.copytree(EXAMPLES / name, folder, dirs_exist_ok=True)
    (folder / "picture.png").unlink()
    monkeypatch.chdir(folder)
    matches: list[dict[str, Any]] = []
    for number, words in enumerate(commands(name)):
        if words[0] == "python":
            size = [str(SIZES[name])] if words[1] == "generate.py" else []
            monkeypatch.setattr("sys.argv", [words[1], *size])
            runpy.run_path(words[1], run_name="__main__")
        else:
            assert words[0] == "tocsin"
            words[words.index("embedded")] = engine
            result = CliRunner().invoke(app, [*words[1:], "--matches", f"matches{number}.jsonl"])
            assert result.exit_code == 0, result.output
            lines = Path(f"matches{number}.jsonl").read_text(encoding="utf-8").splitlines()
            matches += [json.loads(line) for line in lines]
    return matches


def test_examples_are_listed() -> None:
    assert sorted(SIZES) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_example(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    matches = run(name, tmp_path, monkeypatch)
    CHECKS[name](matches, tmp_path)
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")
    assert (EXAMPLES / name / "picture.png").exists()


def check_card_fraud(matches: list[dict[str, Any]], folder: Path) -> None:
    planted = {tuple(line.split(",")[i].strip('"') for i in (2, 6)) for line in _lines(folder / "events.csv")}
    planted = {(card, theft) for card, theft in planted if theft}
    assert len(planted) >= 6
    assert {(row["card"], row["rule"]) for row in matches} == planted


def check_factory(matches: list[dict[str, Any]], folder: Path) -> None:
    stalls = {line.split(",")[0].strip('"') for line in _lines(folder / "stalls.csv")}
    stalled = [row["facility"] for row in matches if row["rule"] == "Stalled"]
    assert sorted(stalled) == sorted(stalls) == ["F1", "F2"]
    assert {row["rule"] for row in matches} == {"A", "B", "Stalled"}


def check_intrusion(matches: list[dict[str, Any]], folder: Path) -> None:
    assert Counter(row["rule"] for row in matches) == {"Guessed": 2, "Sprayed": 1, "Root": 1}


def check_market(matches: list[dict[str, Any]], folder: Path) -> None:
    assert {row["symbol"] for row in matches if row["rule"] == "Dip"} == {"ALP", "BRE", "CIM"}
    assert sum(row["rule"] == "Mean" for row in matches) == SIZES["market"]


def check_traffic(matches: list[dict[str, Any]], folder: Path) -> None:
    jams = [row for row in matches if row["type"] == "Jam"]
    assert jams
    assert all(2_000 < row["x"] < 4_200 for row in jams)


CHECKS = {name.removeprefix("check_"): value for name, value in globals().items() if name.startswith("check_")}


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()[1:]


@pytest.mark.slow
def test_example_on_spark(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_card_fraud(run("card_fraud", tmp_path, monkeypatch, engine="spark"), tmp_path)


def test_notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cells run, the rules find exactly the planted thefts, and no stored output is an error."""
    notebook = json.loads((EXAMPLES / "card_fraud" / "notebook.ipynb").read_text(encoding="utf-8"))
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert all(output["output_type"] != "error" for cell in cells for output in cell["outputs"])
    shutil.copytree(EXAMPLES / "card_fraud", tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("generate", "picture"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    names: dict[str, Any] = {}
    for cell in cells:
        source = "".join(cell["source"]).replace("from IPython.display import Image\n", "Image = str\n")
        exec(compile(source.replace(", width=700", ""), "notebook.ipynb", "exec"), names)
    assert names["planted"] == names["found"]
    assert Path("notebook.png").exists()
    for name in ("generate", "picture"):
        sys.modules.pop(name, None)
