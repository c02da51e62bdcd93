"""The results as tables and a plot: rates, correctness, and ratios beside their bounds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PACED = "W1 last"
EMBEDDED, ALIKE, POLARS = "Tocsin", "Tocsin, three columns, one core", "polars, joins by hand"
STREAM, BATCH, WINDOW = "Tocsin, Spark streaming", "Tocsin, Spark batch, three columns", "Spark SQL, window function"
STREAM_ALIKE = "Tocsin, Spark streaming, three columns"
FLINK, FLINK_FILTERED = "Flink CEP", "Flink CEP, pre-filter"


@dataclass(frozen=True)
class Row:
    """The result of one engine on one workload."""

    workload: str
    engine: str
    version: str
    is_cep: bool
    events: int
    """The number of its events; a slow engine gets only the first ones."""
    seconds: float
    cpu_s: float
    matches: int
    matches_right: int
    is_right: bool
    """Whether count and checked values equal this project's."""
    peak_mb: float

    @property
    def rate(self) -> float:
        return self.events / self.seconds

    @property
    def cpu_us(self) -> float:
        """Processor time per event."""
        return self.cpu_s / self.events * 1e6


@dataclass(frozen=True)
class Pace:
    """The latency of one engine's matches."""

    engine: str
    rate: float
    p50_us: float
    p99_us: float
    matches: int


@dataclass(frozen=True)
class Bound:
    """A bound of a ratio of rates."""

    text: str
    ratio: float
    cpu_ratio: float
    """The same by processor time, which depends less on other load."""
    least: float

    @property
    def held(self) -> bool:
        return self.ratio >= self.least


@dataclass
class Report:
    """The results of a run."""

    machine: str
    rows: list[Row] = field(default_factory=list)
    paces: list[Pace] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    """Engines that failed to run, with the reasons."""

    def without(self, again: Iterable[tuple[str, str]]) -> Report:
        """Return the report without these workloads and engines. Latencies are of W1 last."""
        dropped = set(again)
        return Report(
            self.machine,
            [row for row in self.rows if (row.workload, row.engine) not in dropped],
            [pace for pace in self.paces if (PACED, pace.engine) not in dropped],
            [line for line in self.missing if not any(line.startswith(f"{w}: {e} ended") for w, e in dropped)],
        )


def report_of(values: dict[str, Any]) -> Report:
    """Read a report from JSON."""
    rows, paces = [Row(**row) for row in values["rows"]], [Pace(**pace) for pace in values["paces"]]
    return Report(values["machine"], rows, paces, values["missing"])


def bounds(rows: Iterable[Row]) -> list[Bound]:
    """Return the bounds that this run can check."""
    by_workload: dict[str, dict[str, Row]] = {}
    for row in rows:
        by_workload.setdefault(row.workload, {})[row.engine] = row
    found = []
    for workload, engines in by_workload.items():
        peers = [row for row in engines.values() if row.is_cep]
        if EMBEDDED in engines and peers:
            best = max(peers, key=lambda row: row.rate)
            text = f"{workload}: embedded to the fastest CEP engine ({best.engine})"
            found.append(_bound(text, engines[EMBEDDED], best, 10.0))
        for name, other, least in (
            (EMBEDDED, POLARS, 0.25),
            (ALIKE, POLARS, 0.25),
            (STREAM, FLINK, 5.0),
            (STREAM, FLINK_FILTERED, 1.5),
            (STREAM_ALIKE, FLINK, 5.0),
            (STREAM_ALIKE, FLINK_FILTERED, 1.5),
            (BATCH, WINDOW, 1.0),
        ):
            if name in engines and other in engines and (workload == "W1 last" or other.startswith("Flink")):
                text = f"{workload}: {name} to {other}"
                found.append(_bound(text, engines[name], engines[other], least))
    return found


def _bound(text: str, one: Row, other: Row, least: float) -> Bound:
    return Bound(text, one.rate / other.rate, other.cpu_us / one.cpu_us, least)


def markdown(report: Report) -> str:
    """Return the report as text."""
    versions = dict.fromkeys(row.version for row in report.rows)
    parts = [f"{report.machine} {'; '.join(versions)}.\n"]
    for workload in sorted({row.workload for row in report.rows}, key=_order):
        rows = sorted((row for row in report.rows if row.workload == workload), key=lambda row: -row.rate)
        ours = next((row for row in rows if row.engine == EMBEDDED), None)
        lines = [_rate_line(row, ours) for row in rows]
        head = ("engine", "events/s", "of Tocsin's", "CPU µs an event", "matches", "events", "peak MB")
        parts.append(f"### {workload}\n\n{table(head, lines)}")
    if report.paces:
        rows_ = [
            (pace.engine, f"{pace.rate:,.0f}", ms(pace.p50_us), ms(pace.p99_us), f"{pace.matches:,}")
            for pace in report.paces
        ]
        head = ("engine", "events/s handed over", "p50 ms", "p99 ms", "matches")
        parts.append(f"### From event to match, W1 last\n\n{table(head, rows_)}")
    if held := bounds(report.rows):
        lines = [
            (
                bound.text,
                f"{bound.ratio:.2f}",
                f"{bound.cpu_ratio:.2f}",
                f"{bound.least:g}",
                "yes" if bound.held else "**no**",
            )
            for bound in held
        ]
        parts.append(f"### Bounds\n\n{table(('ratio of rates', 'found', 'by CPU time', 'at least', 'held'), lines)}")
    if report.missing:
        parts.append("### Not measured\n\n" + "".join(f"- {line}\n" for line in report.missing))
    return "\n".join(parts)


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """Return a Markdown table; the first column to the left, the others to the right."""
    lines = [head, ("---", *["---:"] * (len(head) - 1)), *rows]
    return "".join(f"| {' | '.join(_cell(cell) for cell in line)} |\n" for line in lines)


def _order(workload: str) -> tuple[bool, str]:
    """Sort workloads, with W1 last first, as it has the most engines."""
    return workload != PACED, workload


def ms(us: float) -> str:
    """Format microseconds as milliseconds, with two significant digits."""
    value = us / 1e3
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _rate_line(row: Row, ours: Row | None) -> tuple[str, ...]:
    share = f"{row.rate / ours.rate:.3g}" if ours else ""
    if row.is_right:
        matches = f"{row.matches:,}"
    elif row.matches == row.matches_right:
        matches = f"{row.matches:,}: as many as right, but **others**"
    else:
        matches = f"{row.matches:,}: **wrong**, {row.matches_right:,} are right"
    return row.engine, f"{row.rate:,.0f}", share, f"{row.cpu_us:.2f}", matches, f"{row.events:,}", f"{row.peak_mb:,.0f}"


def plot(report: Report, path: Path) -> None:
    """Plot the rates of all engines on all workloads; wrong counts are hatched."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot as plt

    workloads = sorted({row.workload for row in report.rows}, key=_order)
    heights = [sum(row.workload == workload for row in report.rows) for workload in workloads]
    figure, panels = plt.subplots(
        len(workloads), 1, figsize=(7, 0.6 * len(workloads) + 0.24 * sum(heights)), sharex=True, squeeze=False,
        gridspec_kw={"height_ratios": heights}, layout="constrained",
    )  # fmt: skip
    for panel, workload in zip(panels[:, 0], workloads, strict=True):
        rows = sorted((row for row in report.rows if row.workload == workload), key=lambda row: row.rate)
        colours = ["#1f77b4" if row.engine.startswith("Tocsin") else "#999999" for row in rows]
        bars = panel.barh([row.engine for row in rows], [row.rate for row in rows], color=colours)
        for bar, row in zip(bars, rows, strict=True):
            if not row.is_right:
                bar.set_hatch("///")
        panel.set_xscale("log")
        panel.set_title(workload, loc="left", fontsize=9)
        panel.tick_params(labelsize=8)
        panel.spines[["top", "right"]].set_visible(False)
    panels[-1, 0].set_xlabel("events/s (hatched: not the same matches)")
    figure.savefig(path, dpi=150)
    plt.close(figure)
