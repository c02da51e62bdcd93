"""The page about the service does what it says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.service.serving import running

PAGE = Path(__file__).parents[2] / "docs" / "service.md"


def test_the_pages_python_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert blocks
    with running(tmp_path) as web:
        monkeypatch.setenv("TOCSIN_URL", web.url)
        monkeypatch.setenv("TOCSIN_TOKEN", web.tokens["all"])
        for block in blocks:
            exec(compile(block, str(PAGE), "exec"), {})
    assert capsys.readouterr().out.startswith("Fire 2026-07-01T12:01:00")
