"""Compare two stateful operators of Spark: one stores its state in parts, one as a whole.

Two slots have a state of some megabytes each, of which a micro-batch changes one. `transformWithStateInPandas` writes
that one, an entry of a map; `applyInPandasWithState` is given the whole state and writes it again. Both keep it in
RocksDB, with changelog checkpointing.
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median
from typing import Any

import numpy as np
import pandas as pd
from pyspark.sql import DataFrame
from pyspark.sql.streaming import StatefulProcessor
from pyspark.sql.streaming.state import GroupStateTimeout

from on_spark.bench import RUNS, Bench, Report, batch_ms
from on_spark.sources import EMPTY_FULL_FILES
from on_spark.streams import a_row_for_each_slot
from tocsin.spark.blocks import BLOCK_DDL

SIZES_MB = (1, 10, 50)
MB = 1 << 20
BATCHES = 8
SKIPPED = 2


def _megabyte(seed: int) -> bytes:
    """Return incompressible bytes."""
    return np.random.default_rng(seed).bytes(MB)


class Parts(StatefulProcessor):  # type: ignore[misc]
    """State in parts of a megabyte."""

    def __init__(self, size_mb: int) -> None:
        self._size_mb = size_mb

    def init(self, handle: Any) -> None:
        self._turn = handle.getValueState("turn", "turn bigint")
        self._parts = handle.getMapState("parts", "number bigint", "part binary")

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:
        for _ in rows:
            pass
        held = self._turn.get()
        turn = 0 if held is None else held[0]
        for number in range(self._size_mb) if held is None else [turn % self._size_mb]:
            self._parts.updateValue((number,), (_megabyte(turn + number),))
        self._turn.update((turn + 1,))
        yield pd.DataFrame({"turn": [turn]})

    def close(self) -> None:
        pass


def in_parts(rows: DataFrame, size_mb: int) -> DataFrame:
    return rows.groupBy("slot").transformWithStateInPandas(Parts(size_mb), "turn bigint", "Append", "None")


def whole(rows: DataFrame, size_mb: int) -> DataFrame:
    def turn(key: Any, frames: Iterator[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
        for _ in frames:
            pass
        if state.exists:
            number, blob = state.get
            at = number % size_mb * MB
            blob = bytes(blob[:at]) + _megabyte(number) + bytes(blob[at + MB :])
        else:
            number, blob = 0, b"".join(_megabyte(part) for part in range(size_mb))
        state.update((number + 1, blob))
        yield pd.DataFrame({"turn": [number]})

    return rows.groupBy("slot").applyInPandasWithState(
        turn, "turn bigint", "turn bigint, blob binary", "append", GroupStateTimeout.NoTimeout
    )


def measure(bench: Bench) -> Report:
    """Measure the time of a micro-batch by operator and size of state."""
    bench.spark.conf.set("spark.sql.streaming.noDataMicroBatches.enabled", "false")
    folder = str(bench.sources.fire_empty())
    schema = bench.spark.read.parquet(folder).schema
    reader = bench.spark.readStream.schema(schema).option("maxFilesPerTrigger", 1)
    last = f"{EMPTY_FULL_FILES + BATCHES:03}.parquet"
    names = "{" + ",".join(f"{number:03}.parquet" for number in range(EMPTY_FULL_FILES, int(last[:3]))) + "}"
    rows = reader.parquet(f"{folder}/{names}").mapInArrow(a_row_for_each_slot, BLOCK_DDL)
    bench.say("operators: ms of a micro-batch, two slots, of whose state each changes a megabyte")
    report: Report = {}
    for size_mb in SIZES_MB:
        taken: dict[str, list[float]] = {"transformWithStateInPandas": [], "applyInPandasWithState": []}
        for _ in range(RUNS):
            for name, frame in zip(taken, (in_parts(rows, size_mb), whole(rows, size_mb)), strict=True):
                taken[name].append(median(batch_ms(bench.progress(frame)[SKIPPED:])))
        report[f"{size_mb} MB"] = ms = {name: median(found) for name, found in taken.items()}
        cells = "   ".join(f"{name} {found:8,.0f}" for name, found in ms.items())
        bench.say(f"  {size_mb:3} MB a slot   {cells}")
    bench.say()
    return report
