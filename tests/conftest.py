"""Flags and fixtures that all tests share."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from tests import budget

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GOLDEN = Path(__file__).parent / "golden"

# `make test` generates the same cases on every machine: they depend on the test alone, and nothing is remembered.
# A time limit for each example would fail on a busy machine, and timings are no test.
settings.register_profile("same", deadline=None, derandomize=True, database=None)
settings.load_profile("same")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite-goldens", action="store_true", help="write what the tests find into tests/golden")
    parser.addoption("--sweep-seed", type=int, metavar="SEED", help="generate other cases than usual, from this seed")
    parser.addoption("--examples", type=int, metavar="N", help="generate N cases for each test (on Spark: N queries)")


@pytest.hookimpl(tryfirst=True)  # before Hypothesis reads its own option
def pytest_configure(config: pytest.Config) -> None:
    seed, examples = config.getoption("--sweep-seed"), config.getoption("--examples")
    budget.configure(seed, examples)
    same = seed is None
    number = settings.get_profile("same").max_examples if examples is None else examples
    settings.register_profile("chosen", settings.get_profile("same"), derandomize=same, max_examples=number)
    settings.load_profile("chosen")
    if not same:
        config.option.hypothesis_seed = seed


@pytest.hookimpl(tryfirst=True)  # before markers select tests, and before xdist looks at the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.spark)
            item.add_marker(pytest.mark.xdist_group("spark"))  # one session is enough for the machine


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add to what fails in a sweep how to run it again."""
    report = yield
    options = _sweep_options(item.config)
    if report.failed and options:
        report.sections.append(("again", f".venv/bin/pytest {shlex.quote(item.nodeid)} -m '' {options}"))
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if options := _sweep_options(config):
        terminalreporter.write_line(f"generated with {options}")


def _sweep_options(config: pytest.Config) -> str:
    given = {name: config.getoption(name) for name in ("--sweep-seed", "--examples")}
    return " ".join(f"{name} {value}" for name, value in given.items() if value is not None)


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
