"""Sort events that arrive out of order, within the allowed delay.

The *watermark* is the largest `ts` that has arrived, minus the delay (EPS's scheduler time). An event is *late* if its
`ts` is below the watermark when it arrives. All other events wait, and are released in order of (ts, seq) when the
watermark is above their `ts`.

Waiting events are stored in a few sorted tables, called *runs*. Runs of similar size are merged, so that each event is
moved only a logarithmic number of times.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from tocsin.events.columns import concat

Array = np.ndarray[Any, Any]

BEGINNING = -(2**62)


class Scheduler:
    """Holds events until the watermark is above their `ts`.

    If `ordered`, the source sends events in order, so no event waits, and an event that is out of order is late.
    """

    def __init__(self, delay_us: int = 0, *, ordered: bool = False) -> None:
        self.delay_us = delay_us
        self.ordered = ordered
        self.watermark = BEGINNING
        """The smallest `ts` that an event can have from now on without being late."""
        self.last_seq = BEGINNING
        """The largest `seq` of an event whose `ts` is the watermark, if `ordered`."""
        self.largest = BEGINNING
        """The largest `ts` that has arrived."""
        self._runs: list[pa.Table] = []

    @property
    def waiting(self) -> pa.Table | None:
        """The waiting events whose type a rule needs, in order; None if no event waits."""
        if not self._runs:
            return None
        concatenated = concat(self._runs)
        return _sorted(concatenated.filter(pa.array(concatenated["type"].to_numpy() >= 0)))

    @property
    def next_ts(self) -> int | None:
        """The `ts` of the earliest waiting event; None if no event waits."""
        return min((run["ts"][0].as_py() for run in self._runs), default=None)

    def wait(self, batch: pa.Table) -> None:
        """Add a batch to the waiting events. None of its events is late."""
        if batch.num_rows:
            self._runs.append(_sorted(batch))

    def renumber(self, waiting: pa.Table, numbers: list[int]) -> None:
        """Replace the waiting events by `waiting`, with new numbers of their types.

        `numbers` has the new number for each old number, or -1 if the type is not needed any more.
        """
        types = np.array(numbers, np.int32)[waiting["type"].to_numpy()]
        self._runs = []
        self.wait(waiting.set_column(0, "type", pa.array(types)).filter(pa.array(types >= 0)))

    def push(self, batch: pa.Table) -> tuple[pa.Table, Array]:
        """Add a batch, whose rows are in the order of arrival.

        Return the events that are released now, in order, and the row numbers of the late events in the batch.
        """
        ts = batch["ts"].to_numpy()
        if not len(ts):
            return batch, np.zeros(0, np.int64)
        if self.ordered:
            return self._push_ordered(batch, ts)
        late = np.zeros(0, np.int64)
        if ts[0] < self.watermark or not _ascending(ts):
            before = np.maximum.accumulate(np.concatenate([[self.largest], ts[:-1]]))
            late = np.nonzero(ts < np.maximum(before - self.delay_us, self.watermark))[0]
            self.largest = max(int(before[-1]), int(ts[-1]))
        else:
            self.largest = max(self.largest, int(ts[-1]))
        needed = batch["type"].to_numpy() >= 0
        needed[late] = False
        if len(late) or 2 * np.count_nonzero(needed) < len(needed):
            batch = batch.filter(pa.array(needed))
        self.wait(batch)
        self.watermark = max(self.watermark, self.largest - self.delay_us)
        return self._release(batch.schema), late

    def advance(self, ts: int) -> pa.Table | None:
        """Advance the watermark to `ts`, because no earlier event will arrive. Return the events that are released."""
        if ts > self.watermark:
            self.watermark = ts
            self.last_seq = BEGINNING
        self.largest = max(self.largest, ts)
        return self.release()

    def release(self) -> pa.Table | None:
        """Remove the waiting events below the watermark and return them, in order."""
        return self._release(None) if self._runs else None

    def finish(self) -> pa.Table | None:
        """Advance the watermark past all events. Return the events that are released."""
        return self.advance(self.largest + 1) if self.largest > BEGINNING else None

    def _push_ordered(self, batch: pa.Table, ts: Array) -> tuple[pa.Table, Array]:
        seq = batch["seq"].to_numpy()
        late: list[int] = []
        key = (self.watermark, self.last_seq)
        if (ts[0], seq[0]) < key or not _in_order(ts, seq):
            for row, pair in enumerate(zip(ts.tolist(), seq.tolist(), strict=True)):
                if pair < key:
                    late.append(row)
                else:
                    key = pair
            batch = batch.take(np.delete(np.arange(len(ts)), late))
        else:
            key = (int(ts[-1]), int(seq[-1]))
        self.watermark, self.last_seq = key
        self.largest = max(self.largest, self.watermark)
        return batch, np.array(late, np.int64)

    def _release(self, schema: pa.Schema | None) -> pa.Table:
        ready: list[pa.Table] = []
        rest: list[pa.Table] = []
        for run in self._runs:
            count = int(np.searchsorted(run["ts"].to_numpy(), self.watermark, "left"))
            if count:
                ready.append(run.slice(0, count))
            if count < run.num_rows:
                left = run.slice(count)
                rest.append(left if count < left.num_rows else left.take(np.arange(left.num_rows)))
        while len(rest) > 1 and rest[-2].num_rows <= 2 * rest[-1].num_rows:
            rest[-2:] = [_sorted(concat(rest[-2:]))]
        self._runs = rest
        if not ready:
            return schema.empty_table() if schema is not None else pa.table({})
        return ready[0] if len(ready) == 1 else _sorted(concat(ready))


def _ascending(ts: Array) -> bool:
    return not (ts[1:] < ts[:-1]).any()


def _in_order(ts: Array, seq: Array) -> bool:
    if not _ascending(ts):
        return False
    back = seq[1:] < seq[:-1]
    return not (back.any() and (back & (ts[1:] == ts[:-1])).any())


def _sorted(batch: pa.Table) -> pa.Table:
    ts, seq = batch["ts"].to_numpy(), batch["seq"].to_numpy()
    return batch if _in_order(ts, seq) else batch.take(np.lexsort((seq, ts)))
