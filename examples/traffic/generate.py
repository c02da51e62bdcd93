"""Generate ten minutes on a road of six kilometres: `python generate.py [cars] [seed]`.

It writes events.csv and locations.csv. A jam begins at 4 km after three minutes, grows against the traffic, and clears.
Cars report their speed every ten seconds. An ambulance drives through at 72 km/h, and its positions, one every five
seconds, are in locations.csv.
"""

import sys

import numpy as np
import pyarrow as pa
import pyarrow.csv

START = np.datetime64("2026-07-01T17:00:00", "us")
ROAD_M, LENGTH_S, EVERY_S = 6_000.0, 600, 10


def jammed(second: float, x: float) -> bool:
    """Return whether a position is in the jam, whose end moves backwards at 4 m/s."""
    return 180 <= second < 480 and 4_000 - 4 * (second - 180) <= x < 4_100 - 4 * max(0.0, second - 360)


def make(cars: int = 250, seed: int = 1) -> tuple[pa.Table, pa.Table]:
    """Return the speeds of the cars and the positions of the ambulance, ordered by time."""
    random = np.random.default_rng(seed)
    rows = []
    for number in range(cars):
        x, free = float(random.uniform(-2.5 * ROAD_M, ROAD_M)), float(random.normal(95, 8)) / 3.6
        offset = int(random.integers(0, EVERY_S))
        for second in range(LENGTH_S):
            speed = float(random.uniform(1, 5)) if jammed(second, x) else free
            x += speed
            if second % EVERY_S == offset and 0 <= x <= ROAD_M:
                rows.append((second, f"c{number}", round(x, 1), float(random.choice([-3, 3])), round(speed * 3.6, 1)))
    rows.sort()
    events = {name: [row[place] for row in rows] for place, name in enumerate(("car", "x", "y", "kmh"), start=1)}
    seconds = np.arange(120, 420, 5)
    drive = {"car": ["ambulance"] * len(seconds), "x": 20.0 * (seconds - 120), "y": np.zeros(len(seconds))}
    return (
        pa.table({"type": ["Speed"] * len(rows), "ts": times([row[0] for row in rows]), **events}),
        pa.table({"type": ["Position"] * len(seconds), "ts": times(seconds), **drive}),
    )


def times(seconds: object) -> np.ndarray:
    return START + (np.asarray(seconds) * 1_000_000).astype("timedelta64[us]")


if __name__ == "__main__":
    events, locations = make(*map(int, sys.argv[1:3]))
    pyarrow.csv.write_csv(events, "events.csv")
    pyarrow.csv.write_csv(locations, "locations.csv")
    print(f"{events.num_rows:,} events in events.csv, {locations.num_rows} positions in locations.csv")
