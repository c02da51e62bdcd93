"""Log the number of rejected rows of a table, soon after the rows were rejected.

Slots count the dead letters (rejected rows) that they write in an accumulator, which Spark sends to the driver with
each completed task. When no more rejected rows have arrived for a moment, the driver logs the count as a warning of the
logger `tocsin`. Spark Connect has no accumulators, so nothing is logged there. `blocks.dead_letters` returns all
rejected rows with their reasons.
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
"""How long (s) the driver waits for further rejected rows before it logs a line."""

WHERE = "tocsin.spark.dead_letters(rules.report(events)) has all of them"

Batches = Iterator[pa.RecordBatch]
log = logging.getLogger("tocsin")


@dataclass
class Rejected:
    """The number of rejected rows by reason, and one rejected row as an example."""

    reasons: Counter[str] = field(default_factory=Counter)
    first: str = ""

    def plus(self, other: Rejected) -> Rejected:
        return Rejected(self.reasons + other.reasons, self.first or other.first)


class _RejectedParam(AccumulatorParam[Rejected]):  # type: ignore[misc]
    """Adds up the counts of rejected rows in workers."""

    def zero(self, value: Rejected) -> Rejected:
        return Rejected()

    def addInPlace(self, value1: Rejected, value2: Rejected) -> Rejected:
        return value1.plus(value2)


class _LoggingParam(_RejectedParam):
    """Logs the counts on the driver and then resets them, so that each Spark action has its own line."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting = Rejected()
        self._timer: threading.Timer | None = None
        atexit.register(self.log_waiting)

    def __reduce__(self) -> Any:
        return _RejectedParam, ()

    def addInPlace(self, value1: Rejected, value2: Rejected) -> Rejected:
        with self._lock:
            self._waiting = self._waiting.plus(value2)
            if self._timer is not None:
                self._timer.cancel()
            self._timer = threading.Timer(QUIET_S, self.log_waiting)
            self._timer.daemon = True
            self._timer.start()
        return value1

    def log_waiting(self) -> None:
        """Log the rows that were rejected since the last call, if there are any."""
        with self._lock:
            rejected, self._waiting = self._waiting, Rejected()
        if rejected.reasons:
            log.warning("%s. %s", rejected_text(rejected.reasons.total(), rejected.reasons, rejected.first), WHERE)


def rejected_accumulator(session: SparkSession) -> Accumulator[Rejected] | None:
    """Return the accumulator for the rejected rows of one detection; None if accumulators are not available."""
    if getattr(session, "_sc", None) is None:
        return None
    return session.sparkContext.accumulator(Rejected(), _LoggingParam())


def count_rejected(
    function: Callable[[Batches], Batches], rejected: Accumulator[Rejected] | None
) -> Callable[[Batches], Batches]:
    """Wrap `function` so that the dead letters in its output are added to `rejected`, if that is given."""
    if rejected is None:
        return function
    accumulator = rejected

    def run(batches: Batches) -> Batches:
        for batch in function(batches):
            if batch["_reason"].null_count < batch.num_rows:
                dead = batch.filter(batch["_reason"].is_valid())
                first = f"{dead['_reason'][0].as_py()}: {dead['_event'][0].as_py()}"
                accumulator.add(Rejected(count_reasons(pa.table({"reason": dead["_reason"]})), first))
            yield batch

    return run
