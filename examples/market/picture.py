"""Plot prices, their averages, dips and blocks: `python picture.py` reads events.parquet and writes picture.png."""

import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from matplotlib.figure import Figure

import tocsin


def draw(events: pa.Table, matches: pa.Table) -> Figure:
    """Draw one plot for each symbol."""
    start = pc.min(events["ts"]).value
    symbols = sorted(set(events["symbol"].to_pylist()))
    figure = Figure(figsize=(9, 2.3 * len(symbols)), dpi=120, layout="constrained")
    strips = figure.subplots(len(symbols), sharex=True, squeeze=False)[:, 0]
    for axes, symbol in zip(strips, symbols, strict=True):
        mine = events.filter(pc.equal(events["symbol"], symbol))
        axes.plot(minutes(mine["ts"], start), mine["price"].to_numpy(), lw=0.5, color="0.55", label="price")
        found = matches.filter(pc.equal(matches["symbol"], symbol))
        mean = found.filter(pc.equal(found["type"], "Mean"))
        axes.plot(minutes(mean["ts"], start), mean["mean"].to_numpy(), lw=1.2, label="Mean: over a minute")
        dip = found.filter(pc.equal(found["type"], "Dip"))
        axes.plot(minutes(dip["ts"], start), dip["low"].to_numpy(), "v", color="tab:red", ms=9, label="Dip, and back")
        block = found.filter(pc.equal(found["type"], "Block"))
        axes.plot(minutes(block["ts"], start), block["price"].to_numpy(), "*", color="tab:green", ms=9, label="Block")
        axes.set_ylabel(symbol)
    strips[0].legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=4, frameon=False)
    strips[-1].set_xlabel("minutes from the start")
    return figure


def minutes(ts: pa.ChunkedArray, start: int) -> list[float]:
    return [(value - start) / 60e6 for value in ts.cast(pa.int64()).to_pylist()]


def main() -> None:
    events = pq.read_table("events.parquet")
    matches = tocsin.rules(Path(__file__).with_name("rules.siddhi")).detect(events)
    draw(events, matches).savefig(sys.argv[1] if len(sys.argv) > 1 else "picture.png")


if __name__ == "__main__":
    main()
