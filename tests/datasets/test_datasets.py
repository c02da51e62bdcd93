"""Every data set of `cases` gives the same matches on every host.

In `make test` all data sets run on the hosts that need no Spark and no server, and those that are `core` on all; `make
sweeps` runs all of them on all.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.datasets import hosts
from tests.datasets.cases import CASES, WRONG
from tests.datasets.shapes import ALL, Case, Outcome, expected

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def on(host: str) -> list[object]:
    """The cases for a host: those that it cannot be given are left out, those that fail must fail."""
    parameters = []
    for case in CASES:
        if host in case.unlike:
            continue
        marks: list[pytest.MarkDecorator] = []
        if reason := WRONG.get(case.name, {}).get(host):
            marks.append(pytest.mark.xfail(reason=reason, strict=True))
        if host in ALL and host not in case.core:
            marks.append(pytest.mark.slow)
        parameters.append(pytest.param(case, id=case.name, marks=marks))
    return parameters


def check(case: Case, answer: Outcome) -> None:
    """Fails with what is missing and what is too much."""
    right = expected(case)
    if right.error is not None:
        assert answer.error is not None, f"no error; found {answer}"
        assert right.error in answer.error
        return
    assert answer.error is None, answer.error
    assert {"missing": right.matches - answer.matches, "too much": answer.matches - right.matches} == {
        "missing": {},
        "too much": {},
    }
    assert answer.dead == right.dead


@pytest.fixture(scope="module")
def few(spark: SparkSession) -> Iterator[SparkSession]:
    """Spark with as few tasks as there are slots."""
    names = {"spark.sql.shuffle.partitions": str(hosts.SLOTS)}
    before = {name: spark.conf.get(name) for name in names}
    for name, value in names.items():
        spark.conf.set(name, value)
    yield spark
    for name, kept in before.items():
        assert kept is not None
        spark.conf.set(name, kept)


@pytest.mark.parametrize("case", on("embedded"))
def test_in_this_process(case: Case, tmp_path: Path) -> None:
    check(case, hosts.embedded(case, tmp_path))


@pytest.mark.parametrize("case", on("command"))
def test_on_the_command_line(case: Case, tmp_path: Path) -> None:
    check(case, hosts.command(case, tmp_path))


@pytest.mark.parametrize("case", on("batch"))
def test_on_spark(case: Case, tmp_path: Path, few: SparkSession) -> None:
    check(case, hosts.batch(case, tmp_path, few))


@pytest.mark.parametrize("case", on("stream"))
def test_on_a_stream(case: Case, tmp_path: Path, few: SparkSession) -> None:
    check(case, hosts.stream(case, tmp_path, few))


@pytest.mark.parametrize("case", on("service"))
def test_over_http(case: Case, tmp_path: Path) -> None:
    check(case, hosts.service(case, tmp_path))


def test_there_are_enough_data_sets() -> None:
    names = [case.name for case in CASES]
    assert len(set(names)) == len(names) >= 60
    for case in CASES:
        assert case.unlike.keys() <= {"embedded", "command", *ALL}, case.name
        assert set(case.core) <= set(ALL), case.name
    assert WRONG.keys() <= set(names)
