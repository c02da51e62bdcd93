"""Write floating car data of a street grid, simulated by SUMO, for `tocsin.simulation.car_traces.fcd_trace`.

    pip install eclipse-sumo
    python scripts/sumo_trace.py out.csv --cars 1000 --seconds 1000 --width 1500 --height 2000 --seed 1

SUMO's own netgenerate makes the streets. Each car drives from a random street to a random street, and from there to the
next; what is written begins when all are on their way. SUMO is no dependency of Tocsin: a sample stands in
examples/data, made with `--cars 60 --seconds 90 --width 300 --height 300 --seed 7`.
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

WARM_S = 60
"""The warm-up time before data is written."""


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
    """Yield second, car, x, y, speed (m/s) and heading (degrees) of each car in each second."""
    net, trips, fcd = folder / "net.xml", folder / "trips.xml", folder / "fcd.xml"
    columns, rows = options.width // options.block + 1, options.height // options.block + 1
    grid = ["--grid", "--grid.x-number", columns, "--grid.y-number", rows, "--grid.length", options.block]
    run(programs / "netgenerate", *grid, "--no-turnarounds", "-o", net)
    write_trips(net, trips, options)
    ends = ["--begin", 0, "--end", WARM_S + options.seconds, "--seed", options.seed, "--no-step-log", "--no-warnings"]
    run(programs / "sumo", "-n", net, "-r", trips, *ends, "--device.fcd.begin", WARM_S, "--fcd-output", fcd)
    found = []
    for step in xml.parse(fcd).getroot():
        second = int(float(step.get("time", "0"))) - WARM_S
        for car in step if second >= 0 else ():
            values = (car.get(name, "") for name in ("id", "x", "y", "speed", "angle"))
            found.append((str(second), *values))
    return found


def write_trips(net: Path, trips: Path, options: argparse.Namespace) -> None:
    """Generate trips long enough that cars are always on the road."""
    edges = [edge.get("id", "") for edge in xml.parse(net).getroot().iter("edge") if edge.get("function") is None]
    chance = random.Random(options.seed)
    departures = sorted(chance.uniform(0, WARM_S / 2) for _ in range(options.cars))
    # A third of the city's width and of its height on the average, at no more than 14 m/s.
    legs = 2 + int((WARM_S + options.seconds) * 14 * 3 / (options.width + options.height))
    root = xml.Element("routes")
    for number, departure in enumerate(departures):
        begin, *between, end = (chance.choice(edges) for _ in range(legs + 1))
        attributes = {"id": f"c{number}", "depart": f"{departure:.2f}", "departPos": "random"}
        xml.SubElement(root, "trip", {**attributes, "from": begin, "via": " ".join(between), "to": end})
    xml.ElementTree(root).write(trips)


def run(*command: object) -> None:
    subprocess.run([str(part) for part in command], check=True, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
