"""How are VISIRI's figures drawn? A panel for each number of queries, a line for each placer over the nodes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tocsin.studies.study import Row

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

STYLES: Mapping[str, Mapping[str, Any]] = {
    "random": {"color": "#999999", "marker": "^"},
    "SCTXPF": {"color": "#e08214", "marker": "s", "markersize": 9},  # seen also where VISIRI is on top of it
    "VISIRI": {"color": "#2166ac", "marker": "o"},
    "VISIRI, cost slack 40": {"color": "#67a9cf", "marker": "o", "linestyle": "--", "markerfacecolor": "white"},
    "VISIRI, filtering": {"color": "#2166ac", "marker": "o", "linestyle": ":", "markerfacecolor": "white"},
    "even": {"color": "#1b7837", "marker": "D"},
    "even, all at once": {"color": "#1b7837", "marker": "D", "linestyle": ":", "markerfacecolor": "white"},
    "even, rebalanced": {"color": "#1b7837", "marker": "D", "linestyle": "--", "markerfacecolor": "white"},
}
"""The order is that of the legend."""


def means(rows: Sequence[Row], value: str) -> dict[tuple[int, int, str], float]:
    """The mean over the seeds by (queries, nodes, placer)."""
    found: dict[tuple[int, int, str], list[float]] = defaultdict(list)
    for row in rows:
        found[int(row["queries"]), int(row["nodes"]), str(row["placer"])].append(float(row[value]))
    return {key: sum(values) / len(values) for key, values in found.items()}


def panels(
    rows: Sequence[Row],
    canvas: Canvas,
    values: Sequence[tuple[str, str]],
    *,
    logarithmic: Sequence[str] = (),
    share: bool = True,
) -> None:
    """A row of panels for each value and its name, one panel for each number of queries; `share`: on one scale."""
    sizes = sorted({int(row["queries"]) for row in rows})
    shown = [placer for placer in STYLES if any(row["placer"] == placer for row in rows)]
    across = len(sizes) == 1
    shape = (1, len(values)) if across else (len(values), len(sizes))
    canvas.set_size_inches(max(6.5, 3.7 * shape[1]), 0.9 + 3.2 * shape[0])
    grid = canvas.subplots(*shape, sharey="row" if share and not across else False, squeeze=False)
    for (value, label), line in zip(values, grid.T if across else grid, strict=True):
        points = means(rows, value)
        for size, axes in zip(sizes, line, strict=True):
            for placer in shown:
                nodes = sorted(nodes for queries, nodes, name in points if (queries, name) == (size, placer))
                heights = [points[size, node, placer] for node in nodes]
                axes.plot(nodes, heights, label=placer, linewidth=1.6, **{"markersize": 5, **STYLES[placer]})
            axes.set_title(f"{size:,} queries", fontsize=10)
            axes.set_xlabel("nodes")
            axes.set_xticks(sorted({int(row["nodes"]) for row in rows}))
            axes.tick_params(labelsize=8)
            axes.grid(alpha=0.3)
            if value in logarithmic:
                axes.set_yscale("log")
        for axes in () if value in logarithmic else line:  # after all is drawn: this fixes the upper end too
            axes.set_ylim(bottom=0)
        line[0].set_ylabel(label)
    handles, labels = grid[0][0].get_legend_handles_labels()
    canvas.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)


def bars(rows: Sequence[Row], canvas: Canvas) -> None:
    """The costs of Table 1: the paper's, ours, and ours as 32 bits would have them."""
    canvas.set_size_inches(8, 4.2)
    axes = canvas.subplots()
    drawn_as = (
        ("paper", "the paper", "#2166ac"),
        ("cost", "this model", "#1b7837"),
        ("cost_32_bits", "this model, milliseconds in 32 bits", "#a6dba0"),
    )
    for place, (value, label, color) in enumerate(drawn_as, -1):
        at = [n + 0.27 * place for n in range(len(rows))]
        drawn = axes.barh(at, [float(row[value]) for row in rows], 0.25, color=color)
        axes.bar_label(drawn, [f"{float(row[value]):.3f}" for row in rows], padding=3, fontsize=9)
        drawn.set_label(label)
    axes.set_yticks(range(len(rows)), [str(row["says"]) for row in rows])
    axes.invert_yaxis()
    axes.margins(x=0.12)
    axes.set_xlabel("cost of the query (a logarithm)")
    axes.legend(frameon=False, loc="upper right")
