"""Detect in one slot, from its shuffle blocks to its report.

`SlotReport` and `push_events` serve tables and streams; `batch_detector` is for tables. The detector itself rejects no
event as late, because its caller advances the watermark only at the end of a batch. So the order of arrival within a
batch, which Spark does not keep, does not matter.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any

import pyarrow as pa

from tocsin.engine.detector import Detector, needs_ids
from tocsin.events.dead_letters import count_reasons, dead_letter_table
from tocsin.process import freezing_gc
from tocsin.spark.blocks import (
    EVENTS,
    REJECTED,
    WATERMARK,
    Batches,
    ShuffleBlock,
    count_by_rule,
    decode,
    decode_events,
    report,
    report_fields,
)
from tocsin.spark.job import Job, SentJob

REASONS_MAX = 16
"""The largest number of different reasons of dead letters that the metrics of a slot list."""


class SlotReport:
    """Collects the matches and dead letters of one slot in one batch, and counts them."""

    def __init__(self, matches: pa.Schema, slot: int) -> None:
        self.columns = report_fields(matches)
        self._slot = slot
        self._by_rule: Counter[str] = Counter()
        self._matches: list[pa.Table] = []
        self._rejected: list[pa.Table] = []
        self._rejected_total = 0
        self._reasons: Counter[str] = Counter()

    def add_matches(self, matches: pa.Table) -> None:
        if matches.num_rows:
            self._matches.append(matches)
            self._by_rule.update(count_by_rule(matches))

    def reject(self, dead: pa.Table) -> None:
        """Add the dead letters `dead`."""
        if dead.num_rows:
            self._rejected.append(dead)
            self._rejected_total += dead.num_rows
            self._reasons.update(count_reasons(dead))

    def take_rows(self) -> pa.Table:
        """Return the matches and dead letters that were added since the last call, as rows of the report."""
        nothing = dead_letter_table([])
        matches = pa.concat_tables(self._matches, promote_options="default") if self._matches else nothing
        dead = pa.concat_tables(self._rejected) if self._rejected else nothing
        self._matches, self._rejected = [], []
        return report(self.columns, matches, dead, None)

    def finish(self, metrics: dict[str, Any]) -> pa.Table:
        """Return the remaining rows of the report, and a last row with `metrics` and the counts of this slot."""
        rest = self.take_rows()
        nothing = self.columns.empty_table()
        dead = {"letters": self._rejected_total, "reasons": dict(self._reasons.most_common(REASONS_MAX))}
        metrics = {"slot": self._slot, **metrics, **dead, "by_rule": dict(self._by_rule)}
        return pa.concat_tables([rest, report(self.columns, nothing, dead_letter_table([]), metrics)])


def push_events(detector: Detector, block: ShuffleBlock, slot_report: SlotReport) -> None:
    """Push the events of `block` into `detector`, which holds each event until the watermark passes its time."""
    assert block.payload is not None
    slot_report.add_matches(detector.push_batch(*decode_events(block.payload, without_ids=detector.without_ids)))


def batch_detector(sent: SentJob[Job]) -> Any:
    """Return the function that detects in one partition of a table, and yields the report of its slot.

    The blocks of the partition must be sorted by their least ts. Before the function reads a block, it processes all
    events that are older than the least ts of the block. So the windows of the rules and the disorder of the source
    bound the memory.
    """

    @freezing_gc
    def detect(batches: Batches) -> Batches:
        job = sent.job
        shuffle_blocks = blocks_of(batches)
        first = next(shuffle_blocks, None)
        if first is None:
            return
        slot = job.labels.index(first.slot)
        detector, slot_report = job.detector(slot), SlotReport(job.matches, slot)
        detector.without_ids, detector.plan_cache = not needs_ids(detector.plan, job.select), job.plan_cache(slot)
        last: int | None = None
        for block, following in pairwise(_with_end(first, shuffle_blocks)):
            if block.what == WATERMARK:
                last = block.largest
            if block.what == EVENTS:
                push_events(detector, block, slot_report)
            elif block.what == REJECTED:
                slot_report.reject(decode(block.payload or b""))
            if following is None:
                slot_report.add_matches(detector.finish() if last is None else detector.advance(last + 1))
            elif following.least is not None and following.least > (detector.watermark or -(2**62)):
                slot_report.add_matches(detector.advance(following.least))
            slot_report.reject(detector.dead_letters())
            yield from slot_report.take_rows().to_batches()
        yield from slot_report.finish(detector.counts).to_batches()

    return detect


def _with_end(first: ShuffleBlock, rest: Iterable[ShuffleBlock]) -> Iterator[Any]:
    yield first
    yield from rest
    yield None


def blocks_of(batches: Batches) -> Iterator[ShuffleBlock]:
    """Convert the rows of a partition to shuffle blocks."""
    for batch in batches:
        for row in range(batch.num_rows):
            slot, what, least, largest, payload = (batch.column(n)[row] for n in range(5))
            yield ShuffleBlock(slot.as_py(), what.as_py(), least.as_py(), largest.as_py(), payload.as_buffer())
