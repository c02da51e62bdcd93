"""Fires in a million events: made up, written as Parquet, and found by Spark."""

from __future__ import annotations

import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import perf_counter

from tocsin.cli.showing import console, count, rate, show

WARM_ROWS = 20_000


def demo(events: int, seed: int, master: str) -> None:
    """Makes events, starts Spark, and shows what three rules find."""
    import pyarrow.parquet as pq

    import tocsin
    from tocsin.events.batches import Columns
    from tocsin.events.scenarios import fire_events, fire_rules
    from tocsin.spark import errors, runs, sources

    out = console()
    text = fire_rules()
    out.print(text, markup=False, highlight=False)
    ruleset = tocsin.rules(text)
    areas = max(1, min(1_000, events // 1_000))
    with (
        errors.plainly(),
        tempfile.TemporaryDirectory(prefix="tocsin-demo-") as folder,
        ThreadPoolExecutor(1) as beside,
        console(stderr=True).status("starting Spark, compiling kernels"),
    ):
        begun = perf_counter()
        starting = beside.submit(runs.connect, master, None, ())
        table = fire_events(events, areas=areas, rate=areas / 10, seed=seed)
        first, all_of_it = Path(folder) / "first.parquet", Path(folder) / "events.parquet"
        pq.write_table(table.slice(0, WARM_ROWS), first)
        pq.write_table(table, all_of_it, row_group_size=max(1, events // 8))
        # Kernels that are compiled here are found on the disk by Spark's workers.
        warm = ruleset.detector()
        warm.push(table.slice(0, WARM_ROWS))
        warm.snapshot()
        session = starting.result()
        runs.once(ruleset, sources.table(session, str(first), Columns(), {}), Columns(), limit=1)
        ready_s = perf_counter() - begun
        found = runs.once(ruleset, sources.table(session, str(all_of_it), Columns(), {}), Columns(), limit=10)
    hours = (table["ts"][-1].value - table["ts"][0].value) / 3_600e6
    out.print(f"{events:,} events of {count(areas, 'area')} over {hours:.1f} hours, made from seed {seed}.")
    assert found.shown is not None
    show(found.shown, found.counts["matches"])
    out.print("Matches: " + ", ".join(f"{rule.name} {found.by_rule[rule.name]:,}" for rule in ruleset.rules))
    out.print(f"Spark {session.version} on {master}, ready after {ready_s:.1f} s.", highlight=False)
    out.print(f"{events:,} events in {found.seconds:.2f} s: {rate(events, found.seconds)}")
