"""Public names, their signatures and the options of the commands are as recorded."""

from __future__ import annotations

import difflib
from pathlib import Path

import pytest

from tests.guards.names import public_names

PATH = Path(__file__).parent / "public_api.txt"


def test_public_names_are_as_recorded(request: pytest.FixtureRequest) -> None:
    actual = public_names()
    if request.config.getoption("--rewrite-goldens"):
        PATH.write_text(actual, encoding="utf-8")
    recorded = PATH.read_text(encoding="utf-8")
    changed = difflib.unified_diff(recorded.splitlines(), actual.splitlines(), "recorded", "now", lineterm="", n=3)
    if recorded != actual:
        pytest.fail("\n".join([*changed, "if this is on purpose: --rewrite-goldens"]), pytrace=False)
