"""Define and run studies, which repeat the evaluations of papers.

A study has figures, and a figure has independent runs. The runs are measured, and the measurements are plotted and
checked against claims. A run (`Settings`) and a measurement (`Row`) are plain data. So runs can be sent to any worker,
and the CSV of a figure has everything that its plot and its claims need. The function `run` writes a CSV and a PNG for
each figure and returns its claims.
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
    """The size of the runs. `quick` is for a first look, `full` for the paper's sizes.

    If both are false, the size is in between. `seeds` is the number of seeds for each point.
    """

    quick: bool = False
    full: bool = False
    seeds: int = 3
    trace: str | None = None
    """The path of a file with car traces, for studies that would otherwise generate the traces."""

    def pick(self, quick: T, usual: T, full: T) -> T:
        """Return the argument that is named like this scale; `usual` is for the size in between."""
        return quick if self.quick else full if self.full else usual


@dataclass(frozen=True, slots=True)
class Claim:
    """A claim of a paper or of this project, whether it holds, and the measured values as text."""

    id: str
    holds: bool
    measured: str

    def __str__(self) -> str:
        return f"CLAIM {self.id}  {'holds' if self.holds else 'fails'}  measured {self.measured}"


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure of a study: its runs, and the functions that measure a run, plot the rows and check the claims.

    `measure` is a module-level function, so that workers can import it. If `alone` is true, the figure measures times,
    so its runs are executed one by one. Otherwise they are distributed over Spark's tasks.
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
"""A function that is called with the figure's name, the number of finished runs and the number of all runs."""


def run(study: Study, scale: Scale, out: Path, progress: Progress, only: str | None = None) -> list[Claim]:
    """Measure, plot and check the figures of `study`, write CSV and PNG files to `out`, and return the claims.

    If `only` is given, do this for one figure, which is given by its name or by one of its claims.
    """
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
    chosen = [figure for figure in study.figures if figure.name == only or only in figure.claims]
    if not chosen:
        names = [figure.name for figure in study.figures]
        raise TocsinError(f"study {study.name} has no figure '{only}'. {nearest(only, names)}")
    return chosen


def _measured(figure: Figure, runs: Sequence[Settings], progress: Progress) -> list[Row]:
    progress(figure.name, 0, len(runs))
    results: list[Sequence[Row]] = []
    if figure.alone or len(runs) < 2:
        for done, settings in enumerate(runs, 1):
            results.append(figure.measure(settings))
            progress(figure.name, done, len(runs))
    else:
        from tocsin.spark.sessions import fan_out

        results = fan_out(figure.measure, runs, lambda done: progress(figure.name, done, len(runs)))
    return [{**settings, **row} for settings, rows in zip(runs, results, strict=True) for row in rows]


def write(rows: Sequence[Row], path: Path) -> None:
    """Write `rows` as CSV, with every column that occurs in any row."""
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
