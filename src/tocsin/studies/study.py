"""What is a study made of? Figures; each of these of independent runs that are measured, drawn and judged.

A run is plain data (`Settings`) and what is measured is plain data too (`Row`), so that runs can be sent anywhere and
the CSV of a figure has all that its picture and its claims are made from.

Runs a study: every run of its figures, then a CSV, a PNG and the claims of each.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from tocsin.errors import TocsinError, nearest

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

T = TypeVar("T")
Value = str | int | float | bool
Settings = Mapping[str, Value]
Row = Mapping[str, Value]


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is run: `quick` for a look, `full` for the paper's own sizes, neither for what lies between."""

    quick: bool = False
    full: bool = False
    seeds: int = 3
    trace: str | None = None
    """A file with the ways of cars, where a study would draw them."""

    def pick(self, quick: T, usual: T, full: T) -> T:
        """The one of three that this scale asks for."""
        return quick if self.quick else full if self.full else usual


@dataclass(frozen=True, slots=True)
class Claim:
    """Something that a paper, or this project, says, and what was measured."""

    id: str
    holds: bool
    measured: str

    def __str__(self) -> str:
        return f"CLAIM {self.id}  {'holds' if self.holds else 'fails'}  measured {self.measured}"


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure: its runs, how one is measured, and what its rows are drawn and judged as.

    `measure` is a function of a module, so that workers can find it. `alone`: it takes times, so nothing runs beside
    it; others are spread over Spark's tasks.
    """

    name: str
    title: str
    claims: tuple[str, ...]
    runs: Callable[[Scale], Sequence[Settings]]
    measure: Callable[[Settings], Sequence[Row]]
    draw: Callable[[Sequence[Row], Canvas], None]
    judge: Callable[[Sequence[Row]], Iterable[Claim]]
    alone: bool = False


@dataclass(frozen=True, slots=True)
class Study:
    """The evaluation of one paper."""

    name: str
    title: str
    figures: tuple[Figure, ...]


Progress = Callable[[str, int, int], None]
"""Told (figure, runs done, runs in all)."""


def run(study: Study, scale: Scale, out: Path, progress: Progress, only: str | None = None) -> list[Claim]:
    """Measures, writes and judges the figures of a study, or one of them."""
    out.mkdir(parents=True, exist_ok=True)
    claims: list[Claim] = []
    for figure in _chosen(study, only):
        rows = _measured(figure, figure.runs(scale), progress)
        base = out / f"{study.name}_{figure.name}"
        write(rows, base.with_suffix(".csv"))
        _draw(figure, rows, base.with_suffix(".png"))
        claims += figure.judge(rows)
    return claims


def _chosen(study: Study, only: str | None) -> Sequence[Figure]:
    if only is None:
        return study.figures
    found = [figure for figure in study.figures if figure.name == only or only in figure.claims]
    if not found:
        names = [figure.name for figure in study.figures]
        raise TocsinError(f"study {study.name} has no figure '{only}'. {nearest(only, names)}")
    return found


def _measured(figure: Figure, runs: Sequence[Settings], progress: Progress) -> list[Row]:
    progress(figure.name, 0, len(runs))
    pieces: list[Sequence[Row]] = []
    if figure.alone or len(runs) < 2:
        for done, settings in enumerate(runs, 1):
            pieces.append(figure.measure(settings))
            progress(figure.name, done, len(runs))
    else:
        from tocsin.spark.sessions import fan_out

        pieces = fan_out(figure.measure, runs, lambda done: progress(figure.name, done, len(runs)))
    return [{**settings, **row} for settings, piece in zip(runs, pieces, strict=True) for row in piece]


def write(rows: Sequence[Row], path: Path) -> None:
    """The rows as CSV, with every column that some row has."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, names, restval="")
        writer.writeheader()
        writer.writerows(rows)


def _draw(figure: Figure, rows: Sequence[Row], path: Path) -> None:
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure as Canvas
    except ImportError:
        raise TocsinError("pictures of studies need matplotlib: pip install 'tocsin[studies]'") from None
    canvas = Canvas(figsize=(7.5, 4.5), dpi=120, layout="constrained")
    FigureCanvasAgg(canvas)
    figure.draw(rows, canvas)
    if not canvas.get_suptitle():
        canvas.suptitle(figure.title)
    canvas.savefig(path)
