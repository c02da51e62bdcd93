"""Generate two hours of a production hierarchy: `python generate.py [facilities] [seed]`.

It writes events.csv and stalls.csv. Each facility finishes parts (`Produced`), consumes parts for its assembly
(`Consumed`), and reports its store (`Stored`) and the price of storage (`Price`). Every facility stalls once, for five
to fifteen minutes; stalls.csv has these times, to compare the alarms with.
"""

import sys

import numpy as np
import pyarrow as pa
import pyarrow.csv

START = np.datetime64("2026-07-01T08:00:00", "us")
LENGTH_S = 7_200


def make(facilities: int = 6, seed: int = 1) -> tuple[pa.Table, pa.Table]:
    """Return the events ordered by time, and the stalls: facility, from, to (seconds from the start)."""
    random = np.random.default_rng(seed)
    rows, stalls = [], []
    for number in range(facilities):
        name, pace_s = f"F{number + 1}", float(random.uniform(8, 25))
        begin = float(random.uniform(1_200, LENGTH_S - 1_800))
        stall = (begin, begin + float(random.uniform(300, 900)))
        stalls.append({"facility": name, "from_s": stall[0], "to_s": stall[1]})
        second, store = 0.0, 20.0
        while (second := second + float(random.gamma(9, pace_s / 9))) < LENGTH_S:
            if stall[0] <= second < stall[1]:
                second = stall[1]
            rows.append((second, "Produced", name, 1.0))
        for second in np.arange(float(random.uniform(0, 30)), LENGTH_S, 30):
            stalled = stall[0] <= second < stall[1]
            taken = float(random.poisson(30 / pace_s))
            store = float(np.clip(store + (0 if stalled else 30 / pace_s) - taken + random.normal(0, 0.5), 0, 60))
            rows += [(second, "Consumed", name, taken), (second + 1, "Stored", name, round(store, 1))]
            if second % 300 < 30:
                rows.append((second + 2, "Price", name, round(float(random.uniform(0.8, 1.6)), 2)))
    rows.sort()
    ts = START + np.array([round(row[0] * 1e6) for row in rows], "timedelta64[us]")
    names = ("type", "facility", "amount")
    events = {name: [row[place] for row in rows] for place, name in enumerate(names, start=1)}
    return pa.table({"ts": ts, **events}), pa.Table.from_pylist(stalls)


if __name__ == "__main__":
    events, stalls = make(*map(int, sys.argv[1:3]))
    pyarrow.csv.write_csv(events, "events.csv")
    pyarrow.csv.write_csv(stalls, "stalls.csv")
    print(f"{events.num_rows:,} events in events.csv, {stalls.num_rows} stalls in stalls.csv")
