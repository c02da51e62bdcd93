"""Runs a study: every run of its figures, then a CSV, a PNG and the claims of each."""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from pathlib import Path

from tocsin.errors import TocsinError, nearest
from tocsin.studies.study import Claim, Figure, Row, Scale, Settings, Study

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
        from tocsin.spark.tasks import fan_out

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
