"""How does a user learn that rows of a table were rejected? From a line in the log soon after they were.

Slots count the dead letters that they write in an accumulator, which Spark brings to the driver with each task that
ends. There they are logged (`tocsin`, as a warning) when no more have come for a moment. Spark Connect has no
accumulators: there, and for all rows with their reasons, see `reports.dead_letters`.
"""

from __future__ import annotations

import atexit
import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyspark.accumulators import Accumulator, AccumulatorParam
from pyspark.sql import SparkSession

from tocsin.events.dead_letters import count_reasons, rejected_text

QUIET_S = 0.5
"""For how long no more must have come before a line is logged."""

WHERE = "tocsin.spark.dead_letters(rules.report(events)) has all of them"

Batches = Iterator[pa.RecordBatch]
log = logging.getLogger("tocsin")


@dataclass
class Rejected:
    """Rows that were rejected: how many for each reason, and one of them."""

    reasons: Counter[str] = field(default_factory=Counter)
    first: str = ""

    def plus(self, other: Rejected) -> Rejected:
        return Rejected(self.reasons + other.reasons, self.first or other.first)


class _Adding(AccumulatorParam[Rejected]):  # type: ignore[misc]
    """How slots count."""

    def zero(self, value: Rejected) -> Rejected:
        return Rejected()

    def addInPlace(self, value1: Rejected, value2: Rejected) -> Rejected:
        return value1.plus(value2)


class _Telling(_Adding):
    """How the driver does: what came is logged, and then forgotten, so that each action has its own line."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting = Rejected()
        self._timer: threading.Timer | None = None
        atexit.register(self.tell)

    def __reduce__(self) -> Any:
        return _Adding, ()

    def addInPlace(self, value1: Rejected, value2: Rejected) -> Rejected:
        with self._lock:
            self._waiting = self._waiting.plus(value2)
            if self._timer is not None:
                self._timer.cancel()
            self._timer = threading.Timer(QUIET_S, self.tell)
            self._timer.daemon = True
            self._timer.start()
        return value1

    def tell(self) -> None:
        """Logs what has come since the last time."""
        with self._lock:
            told, self._waiting = self._waiting, Rejected()
        if told.reasons:
            log.warning("%s. %s", rejected_text(told.reasons.total(), told.reasons, told.first), WHERE)


def counter(session: SparkSession) -> Accumulator[Rejected] | None:
    """What counts the rejected rows of one detection; None where there are no accumulators."""
    if getattr(session, "_sc", None) is None:
        return None
    return session.sparkContext.accumulator(Rejected(), _Telling())


def counted(
    function: Callable[[Batches], Batches], rejected: Accumulator[Rejected] | None
) -> Callable[[Batches], Batches]:
    """The function, whose dead letters are counted on their way into the report."""
    if rejected is None:
        return function
    kept = rejected

    def run(batches: Batches) -> Batches:
        for batch in function(batches):
            if batch["_reason"].null_count < batch.num_rows:
                dead = batch.filter(batch["_reason"].is_valid())
                first = f"{dead['_reason'][0].as_py()}: {dead['_event'][0].as_py()}"
                kept.add(Rejected(count_reasons(pa.table({"reason": dead["_reason"]})), first))
            yield batch

    return run
