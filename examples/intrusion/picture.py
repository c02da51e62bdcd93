"""Plot logins by address, with the alarms: `python picture.py` reads events.jsonl and writes picture.png."""

import json
import sys
from datetime import datetime
from pathlib import Path

import pyarrow as pa
from matplotlib.figure import Figure

import tocsin

COLOURS = {"Guessed": "tab:red", "Sprayed": "tab:purple", "Root": "tab:orange"}


def draw(events: list[dict], matches: pa.Table) -> Figure:
    """Draw one line for each address: failures as ticks, successes as dots, alarms as circles."""
    start = events[0]["ts"]
    outside = sorted({event["ip"] for event in events if event.get("external")})
    lines = {"own network": 0, **{ip: number for number, ip in enumerate(outside, start=1)}}
    figure = Figure(figsize=(9, 0.3 * len(lines) + 2.2), dpi=120, layout="constrained")
    axes = figure.subplots()
    for type, marker, colour in (("Failed", "|", "0.45"), ("Accepted", ".", "tab:green")):
        mine = [event for event in events if event["type"] == type]
        places = [lines.get(event["ip"], 0) for event in mine]
        axes.scatter(
            [hours(event["ts"], start) for event in mine], places, marker=marker, color=colour, s=30, label=type
        )
    at = {event["ts"]: lines.get(event.get("ip"), 0) for event in events}
    for rule, colour in COLOURS.items():
        mine = [row["ts"].replace(tzinfo=start.tzinfo) for row in matches.to_pylist() if row["rule"] == rule]
        axes.scatter(
            [hours(ts, start) for ts in mine], [at[ts] for ts in mine], s=130, facecolors="none", edgecolors=colour,
            linewidths=2, label=f"{rule}: {len(mine)}",
        )  # fmt: skip
    axes.set_yticks(list(lines.values()), list(lines))
    axes.set(xlabel="hours from the start", title=f"{matches.num_rows} alarms in {len(events):,} lines of a log")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.18), ncols=5, frameon=False)
    return figure


def hours(ts: datetime, start: datetime) -> float:
    return (ts - start).total_seconds() / 3_600


def main() -> None:
    events = [json.loads(line) for line in Path("events.jsonl").read_text(encoding="utf-8").splitlines()]
    for event in events:
        event["ts"] = datetime.fromisoformat(event["ts"])
    names = ("type", "ts", "user", "ip", "external")
    table = pa.table({name: pa.array([event.get(name) for event in events]) for name in names})
    matches = tocsin.rules(Path(__file__).with_name("rules.eps")).detect(table)
    draw(events, matches).savefig(sys.argv[1] if len(sys.argv) > 1 else "picture.png")


if __name__ == "__main__":
    main()
