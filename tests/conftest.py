"""Flags and fixtures that all tests share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GOLDEN = Path(__file__).parent / "golden"

# A time limit for each example would fail on a busy machine, and timings are no test.
settings.register_profile("tocsin", deadline=None)
settings.load_profile("tocsin")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite-goldens", action="store_true", help="write what the tests find into tests/golden")
    parser.addoption("--slow", action="store_true", help="run the tests marked slow too")
    parser.addoption("--long", action="store_true", help="run the tests marked long too: many minutes each")
    parser.addoption("--sweep", type=int, default=0, metavar="N", help="run N more Spark queries of drawn cases")
    parser.addoption("--sweep-seed", type=int, default=0, metavar="SEED", help="where the sweep starts (default 0)")


@pytest.hookimpl(tryfirst=True)  # before xdist looks at the groups
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--slow"):
        skip = pytest.mark.skip(reason="slow: run with --slow")
        for item in items:
            if "slow" in item.keywords:
                item.add_marker(skip)
    if not config.getoption("--long"):
        for item in items:
            if "long" in item.keywords:
                item.add_marker(pytest.mark.skip(reason="many minutes; run with --long"))
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):  # one session is enough for the machine
            item.add_marker(pytest.mark.xdist_group("spark"))


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A Spark session on this machine, of two cores. Tests that use it run in one process."""
    import tocsin.spark

    session = tocsin.spark.session("local[2]")
    yield session
    session.stop()


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
