"""Writes floating car data of a street grid, driven by SUMO, as `tocsin.simulation.traces.fcd_trace` reads it.

    pip install eclipse-sumo
    python scripts/sumo_trace.py out.csv --cars 1000 --seconds 1000 --width 1500 --height 2000 --seed 1

SUMO's own tools make the streets (netgenerate) and the trips (from a random street to a random street). It is no
dependency of Tocsin: a sample stands in examples/data.
"""

from __future__ import annotations

import argparse
import csv
import random
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as xml
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--cars", type=int, default=1000)
    parser.add_argument("--seconds", type=int, default=1000)
    parser.add_argument("--width", type=int, default=1500, help="metres")
    parser.add_argument("--height", type=int, default=2000, help="metres")
    parser.add_argument("--block", type=int, default=100, help="metres between streets")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    try:
        import sumo
    except ImportError:
        sys.exit("SUMO is not installed: pip install eclipse-sumo")
    programs = Path(sumo.SUMO_HOME) / "bin"
    with tempfile.TemporaryDirectory() as folder:
        rows = drive(options, programs, Path(folder))
    with options.out.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("second", "car", "x", "y", "speed", "heading"))
        writer.writerows(rows)


def drive(options: argparse.Namespace, programs: Path, folder: Path) -> list[tuple[str, ...]]:
    """Second, car, x, y, speed (m/s) and heading (degrees) of every car in every second."""
    net, trips, fcd = folder / "net.xml", folder / "trips.xml", folder / "fcd.xml"
    columns, rows = options.width // options.block + 1, options.height // options.block + 1
    grid = ["--grid", "--grid.x-number", columns, "--grid.y-number", rows, "--grid.length", options.block]
    run(programs / "netgenerate", *grid, "--no-turnarounds", "-o", net)
    write_trips(net, trips, options)
    ends = ["--begin", 0, "--end", options.seconds, "--seed", options.seed, "--no-step-log", "--no-warnings"]
    run(programs / "sumo", "-n", net, "-r", trips, *ends, "--fcd-output", fcd)
    found = []
    for step in xml.parse(fcd).getroot():
        for car in step:
            values = (car.get(name, "") for name in ("id", "x", "y", "speed", "angle"))
            found.append((str(int(float(step.get("time", "0")))), *values))
    return found


def write_trips(net: Path, trips: Path, options: argparse.Namespace) -> None:
    """Trips that keep about so many cars on the road."""
    edges = [edge.get("id") for edge in xml.parse(net).getroot().iter("edge") if edge.get("function") is None]
    chance = random.Random(options.seed)
    departures = sorted(chance.uniform(0, options.seconds * 0.3) for _ in range(options.cars))
    root = xml.Element("routes")
    for number, departure in enumerate(departures):
        begin, end = chance.sample(edges, 2)
        attributes = {"id": f"c{number}", "depart": f"{departure:.2f}", "from": begin or "", "to": end or ""}
        xml.SubElement(root, "trip", attributes)
    xml.ElementTree(root).write(trips)


def run(*command: object) -> None:
    subprocess.run([str(part) for part in command], check=True, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
