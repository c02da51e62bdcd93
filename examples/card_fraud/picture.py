"""Plot the payments of the day and the alarms: `python picture.py` reads events.csv and writes picture.png.

The upper plot has all payments, with a ring around those that caused an alarm. The lower one has, for each alarm, the
events of its card in the two hours before.
"""

import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import tocsin

COLOURS = {"Tried": "tab:red", "Apart": "tab:blue", "Taken": "tab:green"}
SAID = {
    "Tried": "tiny payments, then a dear one",
    "Apart": "two countries within 30 min",
    "Taken": "a new card to a new address that nobody confirmed",
}

HOURS = 2
LABEL = {"fontsize": 6, "xytext": (0, 3), "textcoords": "offset points", "ha": "center"}


def draw(events: pa.Table, matches: pa.Table) -> Figure:
    figure = Figure(figsize=(9, 8), dpi=120, layout="constrained")
    day, before = figure.subplots(2, height_ratios=(2, 3))
    _draw_day(day, events.to_pylist(), matches.to_pylist())
    _draw_before(before, events.to_pylist(), matches.to_pylist())
    return figure


def _draw_day(axes: Axes, events: list[dict], matches: list[dict]) -> None:
    """Draw payments in grey by time and amount, and alarms in colour; the legend counts planted and detected thefts."""
    paid = [event for event in events if event["type"] == "Payment"]
    axes.scatter([hour(one) for one in paid], [one["amount"] for one in paid], s=2, color="lightgrey")
    amounts = {(one["card"], one["ts"]): one["amount"] for one in paid}
    for rule, colour in COLOURS.items():
        mine = [row for row in matches if row["rule"] == rule]
        planted = {event["card"] for event in events if event["theft"] == rule}
        found = {row["card"] for row in mine}
        axes.scatter(
            [hour(row) for row in mine], [amounts.get((row["card"], row["ts"]), 0.3) for row in mine], s=60,
            facecolors="none", edgecolors=colour, linewidths=1.8,
            label=f"{SAID[rule]}: {len(planted & found)} of {len(planted)} thefts, {len(found - planted)} false",
        )  # fmt: skip
    axes.set(yscale="log", xlabel="hour of the day", ylabel="amount", xlim=(0, 24))
    axes.set_title(f"{len(matches)} alarms in {len(events):,} events (an order of a card has no amount)", fontsize=10)
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.1), frameon=False)


def _draw_before(axes: Axes, events: list[dict], matches: list[dict]) -> None:
    """Draw a line for each alarm, by rule; time runs to the right, up to the alarm."""
    lines = sorted(matches, key=lambda row: (list(COLOURS).index(row["rule"]), row["ts"]))
    for number, row in enumerate(lines):
        for event in events:
            minutes = (event["ts"] - row["ts"]).total_seconds() / 60
            if event["card"] == row["card"] and -HOURS * 60 <= minutes <= 0:
                said = event["type"] if event["amount"] is None else f"{event['amount']:g} {event['country']}"
                size = 25 if event["amount"] is None else 12 + event["amount"] / 8
                marker = "s" if event["amount"] is None else "o"
                axes.scatter(minutes, -number, s=size, color=COLOURS[row["rule"]], alpha=0.45, marker=marker)
                if event["amount"] is None or event["amount"] > 2:
                    axes.annotate(said, (minutes, -number), **LABEL)
    axes.set_yticks([-number for number in range(len(lines))], [row["card"] for row in lines], fontsize=7)
    axes.set_xlabel("minutes before the alarm")


def hour(row: dict) -> float:
    ts = row["ts"]
    return ts.hour + ts.minute / 60 + ts.second / 3_600


def main() -> None:
    events = pyarrow.csv.read_csv("events.csv")
    events = events.set_column(0, "ts", pc.assume_timezone(events["ts"].cast(pa.timestamp("us")), "UTC"))
    matches = tocsin.rules(Path(__file__).with_name("rules.tesla")).detect(events)
    draw(events, matches).savefig(sys.argv[1] if len(sys.argv) > 1 else "picture.png")


if __name__ == "__main__":
    main()
