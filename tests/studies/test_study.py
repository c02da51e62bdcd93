from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession

from tocsin.errors import TocsinError
from tocsin.studies import named
from tocsin.studies import study as running
from tocsin.studies.study import Claim, Figure, Row, Scale, Settings, Study


def square(settings: Settings) -> list[Row]:
    return [{"square": int(settings["x"]) ** 2}]


def draw(rows: Sequence[Row], canvas: Any) -> None:
    canvas.subplots().plot([row["x"] for row in rows], [row["square"] for row in rows])


def judge(rows: Sequence[Row]) -> list[Claim]:
    total = sum(int(row["square"]) for row in rows)
    return [Claim("S1", total == 14, f"sum {total}"), Claim("S2", total > 14, f"sum {total}")]


def study(*, alone: bool) -> Study:
    def runs(scale: Scale) -> list[Settings]:
        return [{"x": x} for x in range(scale.pick(2, 4, 8))]

    return Study("squares", "Squares", (Figure("1", "squares", ("S1", "S2"), runs, square, draw, judge, alone),))


def test_rows_pictures_and_claims(tmp_path: Path) -> None:
    reported: list[tuple[str, int, int]] = []
    claims = running.run(study(alone=True), Scale(), tmp_path, lambda *what: reported.append(what))
    assert [str(claim) for claim in claims] == [
        "CLAIM S1  holds  measured sum 14",
        "CLAIM S2  fails  measured sum 14",
    ]
    assert (tmp_path / "squares_1.csv").read_text().split() == ["x,square", "0,0", "1,1", "2,4", "3,9"]
    assert (tmp_path / "squares_1.png").stat().st_size > 1000
    assert reported == [("1", done, 4) for done in range(5)]


def test_unknown_names(tmp_path: Path) -> None:
    with pytest.raises(TocsinError, match=r"no figure '9'.*Known here: 1"):
        running.run(study(alone=True), Scale(), tmp_path, lambda *what: None, "9")
    with pytest.raises(TocsinError, match=r"no study 'esp'. Did you mean 'eps'"):
        named("esp")


def test_runs_as_spark_tasks_in_order(spark: SparkSession, tmp_path: Path) -> None:
    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import a test
    claims = running.run(study(alone=False), Scale(), tmp_path, lambda *what: None)
    assert claims[0].holds
    assert (tmp_path / "squares_1.csv").read_text().split()[1:] == ["0,0", "1,1", "2,4", "3,9"]
