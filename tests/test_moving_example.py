"""The example of a moving range runs, with a generated trace and with SUMO's, and draws its picture."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[1] / "examples" / "moving_range.py"


@pytest.mark.parametrize("option", [(), ("--sumo",)], ids=["generated", "sumo"])
def test_accidents_in_a_range_that_moves(
    option: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "range.png"
    runpy.run_path(str(EXAMPLE))["main"]([*option, str(picture)])
    said = capsys.readouterr().out
    assert "interest  Accidents" in said
    assert said.count("--- range") > 8
    assert said.count("accident at") > 8
    assert picture.read_bytes().startswith(b"\x89PNG")
