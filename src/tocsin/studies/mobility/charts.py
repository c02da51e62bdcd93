"""MCEP's figures, drawn from the rows of runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tocsin.studies.mobility.runs import DEVIATIONS_M, MODES
from tocsin.studies.study import Row

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas


def draw_streams(rows: Sequence[Row], canvas: Canvas) -> None:
    """Figures 7 and 8: events, then control messages, by the edge of the range."""
    left, right = canvas.subplots(1, 2)
    for deviation in DEVIATIONS_M:
        chosen = [row for row in rows if row.get("deviation_m") == deviation]
        left.plot(*_series(chosen, "streamed"), marker="o", markersize=3, label=f"predeployed, {deviation} m")
    moving = [row for row in rows if row["mode"] == "MCEP"]
    left.plot(*_series(moving, "streamed"), marker="s", color="black", linewidth=2, label="MCEP")
    left.set(yscale="log", xlabel="edge of the range (m)", ylabel="events streamed", title="Figure 7")
    bottom, top = left.get_ylim()
    left.set_ylim(bottom, top * 30)
    left.legend(frameon=False, fontsize=7, ncols=2, loc="upper left")
    right.plot(*_series(moving, "streamed"), marker="s", color="black", label="events")
    right.plot(*_series(moving, "control"), marker="^", color="tab:red", label="control messages")
    right.set(xlabel="edge of the range (m)", ylabel="messages of MCEP", title="Figure 8", ylim=(0, None))
    right.legend(frameon=False, fontsize=8)


def draw_incremental(rows: Sequence[Row], canvas: Canvas) -> None:
    """Figure 9: events streamed in three ways to move."""
    axes = canvas.subplots()
    for mode, marker in zip(MODES, "so^", strict=True):
        axes.plot(*_series([row for row in rows if row["mode"] == mode], "streamed"), marker=marker, label=mode)
    axes.set(yscale="log", xlabel="edge of the range (m)", ylabel="events streamed")
    axes.legend(frameon=False)


def draw_answers(rows: Sequence[Row], canvas: Canvas) -> None:
    """Ranges of each run, and how many were wrong."""
    axes = canvas.subplots()
    labels = []
    for number, row in enumerate(rows, 1):
        consuming = "consuming, " if row["consuming"] else ""
        labels.append(f"{number}: {str(row['shape']).split()[0]}, {row['update']}, {consuming}{row['semantics']}")
    axes.barh(labels, [int(row["ranges"]) for row in rows], color="tab:green", label="ranges")
    axes.barh(labels, [int(row["wrong"]) for row in rows], color="tab:red", label="wrong")
    axes.tick_params(axis="y", labelsize=6)
    axes.invert_yaxis()
    axes.legend(frameon=False)


def _series(rows: Sequence[Row], name: str) -> tuple[list[int], list[float]]:
    """Edges, and the mean over seeds."""
    edges = sorted({int(row["edge_m"]) for row in rows})
    means = []
    for edge in edges:
        values = [float(row[name]) for row in rows if row["edge_m"] == edge]
        means.append(sum(values) / len(values))
    return edges, means
