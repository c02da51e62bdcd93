"""Plot the road against time, with speeds, the ambulance, its ranges and the delivered jams, into picture.png."""

import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
from matplotlib.figure import Figure

import tocsin

REACH_M, LIFETIME_S = 700, 60


def draw(events: pa.Table, locations: pa.Table, matches: pa.Table) -> Figure:
    """Draw a dot for each reading, coloured by speed, a box for each third range, and a ring for each delivered jam."""
    figure = Figure(figsize=(9, 5.5), dpi=120, layout="constrained")
    axes = figure.subplots()
    start = events["ts"][0].value
    dots = axes.scatter(
        minutes(events["ts"], start), kilometres(events["x"]), c=events["kmh"].to_numpy(), s=3, cmap="RdYlGn"
    )
    figure.colorbar(dots, label="km/h", shrink=0.7)
    axes.plot(minutes(locations["ts"], start), kilometres(locations["x"]), color="black", lw=2, label="ambulance")
    begun = [row for row in matches.to_pylist() if row["type"] == "Marker"]
    places = dict(zip(minutes(locations["ts"], start), kilometres(locations["x"]), strict=True))
    for number, row in enumerate(begun):
        minute = (row["ts"].timestamp() * 1e6 - start) / 60e6
        if number % 3 == 0 and minute in places:
            low, left = places[minute] - REACH_M / 1e3, minute - LIFETIME_S / 60
            axes.add_patch(rectangle(left, low, LIFETIME_S / 60 + 1 / 6, 2 * REACH_M / 1e3))
    jams = matches.filter(pa.compute.equal(matches["type"], "Jam"))
    axes.scatter(
        minutes(jams["ts"], start), kilometres(jams["x"]), s=9, facecolors="none", edgecolors="tab:blue",
        linewidths=0.4, label=f"delivered to the ambulance ({jams.num_rows})",
    )  # fmt: skip
    axes.set(
        xlabel="minutes", ylabel="kilometre", title="A moving query: jams are delivered when they are near, not before"
    )
    axes.legend(loc="lower right")
    return figure


def rectangle(left: float, low: float, width: float, height: float):
    from matplotlib.patches import Rectangle

    return Rectangle((left, low), width, height, fill=False, color="0.3", lw=0.8, ls="--")


def minutes(ts: pa.ChunkedArray, start: int) -> list[float]:
    return [(value - start) / 60e6 for value in ts.cast(pa.timestamp("us")).cast(pa.int64()).to_pylist()]


def kilometres(x: pa.ChunkedArray) -> list[float]:
    return [value / 1_000 for value in x.to_pylist()]


def main() -> None:
    tables = [pa.csv.read_csv(name) for name in ("events.csv", "locations.csv")]
    events, locations = (table.set_column(1, "ts", table["ts"].cast(pa.timestamp("us", "UTC"))) for table in tables)
    matches = tocsin.rules(Path(__file__).with_name("rules.mcep")).detect(events, locations=locations)
    draw(events, locations, matches).savefig(sys.argv[1] if len(sys.argv) > 1 else "picture.png")


if __name__ == "__main__":
    main()
