"""Check that state is evicted: keys that never return pass through a window of two micro-batches."""

from __future__ import annotations

import tocsin
from on_spark.bench import SLOTS, Bench, Report, batch_ms, matches_of, slot_metrics
from on_spark.sources import STATE_BATCHES

RULE = """
    define Pair(k: long)
    from   A(k=$k) and last B(k=$k) within 5 min from A
    where  k = A.k
"""
FILLED = 4
"""The number of micro-batches that fill the window."""
GROWTH_MOST = 1.1


def measure(bench: Bench) -> Report:
    """Measure the bytes of state after each micro-batch, by the slots and by Spark's state store."""
    bench.spark.conf.set("spark.sql.streaming.noDataMicroBatches.enabled", "false")
    folder = bench.sources.ever_new_keys()
    keys = bench.sources.events // 2 // STATE_BATCHES * STATE_BATCHES
    bench.say(f"state: {keys:,} keys, each seen twice and never again, in {STATE_BATCHES} micro-batches")
    reader = bench.spark.readStream.schema("type string, ts timestamp, k bigint").option("maxFilesPerTrigger", 1)
    reports = bench.progress(tocsin.rules(RULE).detect(reader.parquet(str(folder)), slots=SLOTS))
    stores = [progress["stateOperators"][0] for progress in reports]
    curves = {
        "ours": [sum(slot["state_bytes"] for slot in slot_metrics(progress)) for progress in reports],
        "store memory": [store["memoryUsedBytes"] for store in stores],
        "store files": [store["customMetrics"].get("rocksdbSstFileSize", 0) for store in stores],
        "store rows": [store["numRowsTotal"] for store in stores],
        "ms": batch_ms(reports),
    }
    bench.say("  batch     our bytes   store memory    store files   store rows       ms")
    for number in (*range(0, STATE_BATCHES, 5), STATE_BATCHES - 1):
        ours, memory, files, rows, ms = (curve[number] for curve in curves.values())
        bench.say(f"  {number:5}  {ours:12,}   {memory:12,}   {files:12,}   {rows:10,}   {ms:6,.0f}")
    bench.check("the stream", matches_of(reports), bench.sources.ever_new_matches())
    early, late = curves["ours"][FILLED : STATE_BATCHES // 2], curves["ours"][STATE_BATCHES // 2 :]
    growth = bench.bound("state in the second half to the first", max(late) / max(early), most=GROWTH_MOST)
    bench.say(f"  {_plot(bench, curves)}\n")
    return {"keys": keys, **curves, "growth": growth}


def _plot(bench: Bench, curves: dict[str, list[float]]) -> str:
    from on_spark.plots import axes, save

    figure, ax = axes("micro-batch", "MB")
    for name in ("ours", "store memory", "store files"):
        ax.plot([size / 1e6 for size in curves[name]], label=name)
    ax.set_ylim(bottom=0)
    ax.legend(frameon=False)
    return save(figure, bench.figures / "spark-state.png")
