"""Plot the rate, the accepted parts and the stalls of each facility: `python picture.py` writes picture.png."""

import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
from matplotlib.figure import Figure

import tocsin

HERE = Path(__file__).parent


def draw(events: pa.Table, stalls: pa.Table, matches: pa.Table, stalled: pa.Table) -> Figure:
    """Draw one plot for each facility: situations A and B as lines, planted stalls shaded, alarms as red lines."""
    start = events["ts"][0].value
    facilities = sorted(set(events["facility"].to_pylist()))
    figure = Figure(figsize=(9, 1.4 * len(facilities) + 1), dpi=120, layout="constrained")
    strips = figure.subplots(len(facilities), sharex=True, squeeze=False)[:, 0]
    for axes, name in zip(strips, facilities, strict=True):
        rate = [row for row in rows(matches, start) if row["type"] == "Rate" and row["facility"] == name]
        store = [row for row in rows(matches, start) if row["type"] == "Accept" and row["facility"] == name]
        axes.plot(*broken([(row["min"], 5 * row["made"]) for row in rate]), lw=1, label="A: parts in ten minutes")
        wanted = [(row["min"], min(row["room"], row["wanted"])) for row in store]
        axes.plot(*broken(wanted), lw=1, color="tab:orange", label="B: parts to accept")
        for one in stalls.to_pylist():
            if one["facility"] == name:
                axes.axvspan(one["from_s"] / 60, one["to_s"] / 60, color="0.88", label="planted stall")
        for row in rows(stalled, start):
            if row["facility"] == name:
                axes.axvline(row["min"], color="tab:red", lw=2, label="alarm: 4 min without a part")
        axes.set_ylabel(name, rotation=0, labelpad=12)
        axes.set_ylim(bottom=0)
    handles = dict(zip(*reversed(strips[0].get_legend_handles_labels()), strict=True))
    figure.legend(handles.values(), handles.keys(), loc="outside upper center", ncols=4, frameon=False)
    strips[-1].set_xlabel("minutes from the start")
    return figure


def rows(matches: pa.Table, start: int) -> list[dict]:
    return [{**row, "min": (row["ts"].timestamp() * 1e6 - start) / 60e6} for row in matches.to_pylist()]


def broken(points: list[tuple[float, float]]) -> tuple[list[float], list[float]]:
    """Insert a gap into a line where three minutes have no points."""
    xs, ys = [], []
    for number, (x, y) in enumerate(points):
        if number and x - points[number - 1][0] > 3:
            xs.append(x)
            ys.append(float("nan"))
        xs.append(x)
        ys.append(y)
    return xs, ys


def main() -> None:
    events, stalls = pa.csv.read_csv("events.csv"), pa.csv.read_csv("stalls.csv")
    events = events.set_column(0, "ts", events["ts"].cast(pa.timestamp("us", "UTC")))
    produced = events.filter(pa.compute.equal(events["type"], "Produced"))
    found = (tocsin.rules(HERE / "rules.tesla").detect(events), tocsin.rules(HERE / "stalls.siddhi").detect(produced))
    draw(events, stalls, *found).savefig(sys.argv[1] if len(sys.argv) > 1 else "picture.png")


if __name__ == "__main__":
    main()
