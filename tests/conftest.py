"""Flags and fixtures that all tests share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings

GOLDEN = Path(__file__).parent / "golden"

# A time limit for each example would fail on a busy machine, and timings are no test.
settings.register_profile("tocsin", deadline=None)
settings.load_profile("tocsin")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite-goldens", action="store_true", help="write what the tests find into tests/golden")
    parser.addoption("--slow", action="store_true", help="run the tests marked slow too")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--slow"):
        skip = pytest.mark.skip(reason="slow: run with --slow")
        for item in items:
            if "slow" in item.keywords:
                item.add_marker(skip)


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """`golden("syntax/stray.txt", actual)` compares a text with its file under tests/golden, or writes it there."""

    def compare(name: str, actual: str) -> None:
        path = GOLDEN / name
        if request.config.getoption("--rewrite-goldens"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(actual, encoding="utf-8")
            return
        assert path.exists(), f"no {path}: run with --rewrite-goldens and read what it writes"
        assert actual == path.read_text(encoding="utf-8")

    return compare
