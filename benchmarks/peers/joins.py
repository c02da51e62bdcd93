"""W1 by hand, without a CEP engine: as-of joins of polars and of DuckDB, on one thread, over tables in memory.

`last` is an as-of join of each Smoke with the hot Temps of its area; `not` a second one with its Rains, of which the
last must not be after that Temp; `each` a join on the area and a range of times.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["POLARS_MAX_THREADS"] = "1"

import duckdb
import polars as pl
import pyarrow as pa

from peers import files
from peers.orders import Found, checked, serve

WITHIN_US = {"last": 300_000_000, "each": 30_000_000, "not": 300_000_000}

DUCKDB = {
    "last": """
        select s.ts, s.area, t.value as temp
        from (select ts, area from events where type = 'Smoke') s
        asof join (select ts, area, value from events where type = 'Temp' and value > 45) t
          on s.area = t.area and s.ts > t.ts
        where s.ts - t.ts < interval 5 minutes
    """,
    "each": """
        select s.ts, s.area, t.value as temp
        from (select ts, area from events where type = 'Smoke') s
        join (select ts, area, value from events where type = 'Temp' and value > 45) t
          on s.area = t.area and t.ts < s.ts and t.ts > s.ts - interval 30 seconds
    """,
    "not": """
        select s.ts, s.area, t.value as temp
        from (select ts, area from events where type = 'Smoke') s
        asof join (select ts, area, value from events where type = 'Temp' and value > 45) t
          on s.area = t.area and s.ts > t.ts
        asof left join (select ts, area from events where type = 'Rain') r
          on s.area = r.area and s.ts > r.ts
        where s.ts - t.ts < interval 5 minutes and (r.ts is null or r.ts <= t.ts)
    """,
}


def with_polars(events: pl.DataFrame, rule: str) -> pl.DataFrame:
    """Return the matches of a rule of W1, by polars."""
    rows = events.lazy()
    smoke = rows.filter(pl.col("type") == "Smoke").select("ts", "area")
    hot = rows.filter((pl.col("type") == "Temp") & (pl.col("value") > 45))
    if rule == "each":
        temp = hot.select(temp_ts="ts", area="area", temp="value")
        age = pl.col("ts") - pl.col("temp_ts")
        near = (age > pl.duration(microseconds=0)) & (age < pl.duration(microseconds=WITHIN_US[rule]))
        return smoke.join(temp, on="area").filter(near).select("ts", "area", "temp").collect()
    before = {"on": "ts", "by": "area", "allow_exact_matches": False, "check_sortedness": False}
    # polars takes what is exactly as old as its tolerance
    tolerance = f"{WITHIN_US[rule] - 1}us"
    temp = hot.select("ts", "area", pl.col("value").alias("temp"), pl.col("ts").alias("temp_ts"))
    matched = smoke.join_asof(temp, tolerance=tolerance, **before).filter(pl.col("temp").is_not_null())
    if rule == "not":
        rain = rows.filter(pl.col("type") == "Rain").select("ts", "area", pl.col("ts").alias("rain_ts"))
        dry = pl.col("rain_ts").is_null() | (pl.col("rain_ts") <= pl.col("temp_ts"))
        matched = matched.join_asof(rain, **before).filter(dry)
    return matched.select("ts", "area", "temp").collect()


def main() -> None:
    path, workload, way, _ = sys.argv[1:]
    rule = workload.split()[1]
    table = files.read(Path(path), files.layout(workload))

    def on_polars(count: int) -> Callable[[], Any]:
        events = pl.from_arrow(table.slice(0, count))
        assert isinstance(events, pl.DataFrame)
        return lambda: with_polars(events, rule)

    def on_duckdb(count: int) -> Callable[[], Any]:
        connection = duckdb.connect(config={"threads": 1})
        connection.register("given", table.slice(0, count))
        connection.execute("create table events as select * from given")
        return lambda: connection.execute(DUCKDB[rule]).to_arrow_table()

    def found(out: Any) -> Found:
        rows: pa.Table = out.to_arrow() if isinstance(out, pl.DataFrame) else out
        return rows.num_rows, checked(rows["temp"])

    run, version = {
        "polars": (on_polars, f"polars {pl.__version__}"),
        "duckdb": (on_duckdb, f"DuckDB {duckdb.__version__}"),
    }[way]
    serve(version, run, found)


if __name__ == "__main__":
    main()
