"""What time is it, and how far are the channels? Spark's offset log says so: for each batch once, also when it replays.

An offset is the time (µs) and the last parcel of each channel that a batch may read. A batch comes when there is a new
parcel, or when a while has passed without one.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, SimpleDataSourceStreamReader

from tocsin.spark.sites import inboxes

NAME = "tocsin_ticks"
LOOK_S = 0.004
Offset = dict[str, Any]


class Ticks(DataSource):  # type: ignore[misc]
    """Rows of time and heads; options `inbox` and `wait` (seconds)."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> str:
        return "now bigint, heads string"

    def simpleStreamReader(self, schema: Any) -> TickReader:
        return TickReader(self.options["inbox"], float(self.options["wait"]))


class TickReader(SimpleDataSourceStreamReader):  # type: ignore[misc]
    """Looks at the clock and at the channels."""

    def __init__(self, inbox: str, wait_s: float) -> None:
        self.inbox, self.wait_s = inbox, wait_s

    def initialOffset(self) -> Offset:
        return {"now": 0, "heads": {}}

    def read(self, start: Offset) -> tuple[Iterator[tuple[int, str]], Offset]:
        until_s = time.time() + self.wait_s
        before = start["heads"]
        while True:
            heads = inboxes.heads(self.inbox)
            if time.time() >= until_s or any(last > before.get(sender, "") for sender, last in heads.items()):
                break
            time.sleep(LOOK_S)
        reached = {sender: max(heads.get(sender, ""), before.get(sender, "")) for sender in {**before, **heads}}
        # A clock that is set back must not make time run backwards.
        end = {"now": max(round(time.time() * 1_000_000), start["now"] + 1), "heads": reached}
        return self.readBetweenOffsets(start, end), end

    def readBetweenOffsets(self, start: Offset, end: Offset) -> Iterator[tuple[int, str]]:
        return iter([(end["now"], json.dumps(end["heads"]))])

    def commit(self, end: Offset) -> None:
        """Channels are pruned by the host."""


def stream(spark: SparkSession, inbox: str, wait_s: float) -> DataFrame:
    """One row a batch."""
    import tocsin.spark.sites.ticks as here

    # The process that reads would otherwise import all of this package, in each site.
    for module in (here, inboxes):
        cloudpickle.register_pickle_by_value(module)
    spark.dataSource.register(Ticks)
    return spark.readStream.format(NAME).option("inbox", inbox).option("wait", str(wait_s)).load()
