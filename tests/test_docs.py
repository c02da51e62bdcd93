"""The documentation is correct: its code runs, its options and metrics exist, and the site builds without a warning."""

from __future__ import annotations

import re
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
from typer.testing import CliRunner

import tocsin
from tests.pages import ROOT, blocks, helped, run
from tests.service.serving import running
from tocsin.cli import app
from tocsin.spark.listener import Counters

DOCS = ROOT / "docs"
PAGES = sorted(path.relative_to(DOCS).as_posix() for path in [*DOCS.glob("*.md"), *DOCS.glob("languages/*.md")])
NOT_RUN = {"sites.md"}
"""Its commands start several applications; `tests/sites/test_sites.py` covers them."""
ON_SPARK = {name for name in PAGES if any("tocsin.spark import session" in block.text for block in blocks(DOCS / name))}


@pytest.mark.parametrize("name", [name for name in PAGES if name not in NOT_RUN])
def test_code_of_page(
    name: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = DOCS / name
    if name in ON_SPARK:
        request.getfixturevalue("spark")
    monkeypatch.chdir(tmp_path)
    with ExitStack() as stack:
        if name == "service.md":
            web = stack.enter_context(running(tmp_path / "data"))
            monkeypatch.setenv("TOCSIN_URL", web.url)
            monkeypatch.setenv("TOCSIN_TOKEN", web.tokens["all"])
        run(page, tmp_path)


def test_error_message_on_first_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run(DOCS / "index.md", tmp_path)
    Path("typo.tesla").write_text(Path("fire.tesla").read_text().replace("value>45", "valu>45"), encoding="utf-8")
    command = ["run", "typo.tesla", "--events", "readings.csv", "--engine", "embedded"]
    (shown,) = [block.text for block in blocks(DOCS / "index.md") if block.text.startswith("tocsin: ")]
    assert CliRunner().invoke(app, command).stderr == shown


def test_pages_have_python() -> None:
    python = {name for name in PAGES if any(block.language == "python" for block in blocks(DOCS / name))}
    assert {"index.md", "spark.md", "testing.md", "migrating.md"} <= python
    assert {f"languages/{name}.md" for name in ("index", "tesla", "eps", "siddhi", "mcep")} <= python


def test_options_exist() -> None:
    known = helped()
    for name in PAGES:
        for block in blocks(DOCS / name):
            lines = [line for line in block.text.splitlines() if "tocsin " in line or line.startswith("    --")]
            if block.language in ("sh", "console"):
                for option in re.findall(r"(?<!\S)--[a-z-]+", " ".join(lines)):
                    assert option in known, f"{name}: {option}"


def test_metrics_exist() -> None:
    known = set(re.findall(r"^# TYPE (\w+)", Counters().text(), re.MULTILINE))
    for name in PAGES:
        for metric in re.findall(r"\btocsin_\w+", (DOCS / name).read_text(encoding="utf-8")):
            assert metric in known, f"{name}: {metric}"


def test_site_builds(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    api = (tmp_path / "site" / "api.html").read_text(encoding="utf-8")
    docstring = re.match(r"[\w ]+", tocsin.RuleSet.detect.__doc__ or "")
    assert docstring
    assert docstring[0] in api
    for page in [*PAGES, *(f"design/{path.name}" for path in DOCS.glob("design/*.md"))]:
        assert f'href="{page.removesuffix("md")}html"' in api, f"{page} is not in the navigation"
    assert (tmp_path / "site" / "examples" / "card_fraud" / "picture.png").exists()
