"""Generate an hour of trades with three dips: `python generate.py [trades] [seed]` writes events.parquet."""

import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet

START = np.datetime64("2026-07-01T14:30:00", "us")
SYMBOLS = ("ALP", "BRE", "CIM")


def make(trades: int = 3_000, seed: int = 1) -> pa.Table:
    """Return trades of three symbols, each a random walk with one dip that recovers within seconds."""
    random = np.random.default_rng(seed)
    second = np.sort(random.uniform(0, 3_600, trades))
    symbol = random.integers(0, len(SYMBOLS), trades)
    price, volume = np.empty(trades), random.geometric(0.004, trades)
    volume[random.random(trades) < 0.001] = 12_000
    for number in range(len(SYMBOLS)):
        mine = np.flatnonzero(symbol == number)
        walk = 100 * (1 + number) * np.exp(np.cumsum(random.normal(0, 0.0006, len(mine))))
        low = int(random.integers(len(mine) // 4, 3 * len(mine) // 4))
        before, here, back = mine[low - 1 : low + 2]
        second[here] = min(second[here], second[before] + 3)
        second[back] = min(second[back], second[here] + 5)
        walk[low] *= 0.96
        price[mine] = walk
    order = np.argsort(second, kind="stable")
    return pa.table(
        {
            "type": pa.array(["Trade"] * trades),
            "ts": START + (second[order] * 1e6).astype("timedelta64[us]"),
            "symbol": pa.array(SYMBOLS).take(symbol[order]),
            "price": np.round(price[order], 2),
            "volume": volume[order],
        }
    )


if __name__ == "__main__":
    table = make(*map(int, sys.argv[1:3]))
    pyarrow.parquet.write_table(table, "events.parquet")
    print(f"{table.num_rows:,} trades in events.parquet")
