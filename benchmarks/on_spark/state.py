"""Does state end? Keys that are never seen again pass through a window that covers two micro-batches."""

from __future__ import annotations

import tocsin
from on_spark.bench import SLOTS, Bench, Report, batch_ms, matches_told, slots_told
from on_spark.sources import STATE_BATCHES

RULE = """
    define Pair(k: long)
    from   A(k=$k) and last B(k=$k) within 5 min from A
    where  k = A.k
"""
FILLED = 4
"""After so many micro-batches the window is full."""
GROWTH_MOST = 1.1


def measure(bench: Bench) -> Report:
    """Bytes of state after each micro-batch, as the slots count them and as Spark's state store does."""
    bench.spark.conf.set("spark.sql.streaming.noDataMicroBatches.enabled", "false")
    folder = bench.sources.ever_new_keys()
    keys = bench.sources.events // 2 // STATE_BATCHES * STATE_BATCHES
    bench.say(f"state: {keys:,} keys, each seen twice and never again, in {STATE_BATCHES} micro-batches")
    reader = bench.spark.readStream.schema("type string, ts timestamp, k bigint").option("maxFilesPerTrigger", 1)
    told = bench.progress(tocsin.rules(RULE).detect(reader.parquet(str(folder)), slots=SLOTS))
    stores = [progress["stateOperators"][0] for progress in told]
    curves = {
        "ours": [sum(slot["state_bytes"] for slot in slots_told(progress)) for progress in told],
        "store memory": [store["memoryUsedBytes"] for store in stores],
        "store files": [store["customMetrics"].get("rocksdbSstFileSize", 0) for store in stores],
        "store rows": [store["numRowsTotal"] for store in stores],
        "ms": batch_ms(told),
    }
    bench.say("  batch     our bytes   store memory    store files   store rows       ms")
    for number in (*range(0, STATE_BATCHES, 5), STATE_BATCHES - 1):
        ours, memory, files, rows, ms = (curve[number] for curve in curves.values())
        bench.say(f"  {number:5}  {ours:12,}   {memory:12,}   {files:12,}   {rows:10,}   {ms:6,.0f}")
    bench.check("the stream", matches_told(told), bench.sources.ever_new_matches())
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
