"""One slot at work: parcels in, a report out. What batch and streaming have in common.

Time is told from outside: the detector itself never takes an event for late, its host does, by moving the watermark
at the end of a batch. So within a batch the order of arrival, which Spark does not keep, does not matter.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any

import pyarrow as pa

from tocsin.engine.detector import Detector, identifies
from tocsin.events.dead_letters import count_reasons, letters
from tocsin.process import settling
from tocsin.spark.blocks import EVENTS, LETTERS, TICK, Batches, Parcel, count_by_rule, decode, events_of, report, schema
from tocsin.spark.job import Job, Sent

REASONS_MAX = 16
"""How many different reasons of dead letters a slot counts by name."""


class Tally:
    """What a slot found in one batch, and what it counted."""

    def __init__(self, matches: pa.Schema, slot: int) -> None:
        self.columns = schema(matches)
        self._slot = slot
        self._by_rule: Counter[str] = Counter()
        self._matches: list[pa.Table] = []
        self._letters: list[pa.Table] = []
        self._letters_total = 0
        self._reasons: Counter[str] = Counter()

    def take(self, found: pa.Table) -> None:
        """Takes matches."""
        if found.num_rows:
            self._matches.append(found)
            self._by_rule.update(count_by_rule(found))

    def bury(self, dead: pa.Table) -> None:
        """Takes dead letters."""
        if dead.num_rows:
            self._letters.append(dead)
            self._letters_total += dead.num_rows
            self._reasons.update(count_reasons(dead))

    def rows(self) -> pa.Table:
        """What was taken since the last call."""
        nothing = letters([])
        found = pa.concat_tables(self._matches, promote_options="default") if self._matches else nothing
        dead = pa.concat_tables(self._letters) if self._letters else nothing
        self._matches, self._letters = [], []
        return report(self.columns, found, dead, None)

    def closing(self, counted: dict[str, Any]) -> pa.Table:
        """The last rows, with what was counted."""
        rest = self.rows()
        nothing = self.columns.empty_table()
        dead = {"letters": self._letters_total, "reasons": dict(self._reasons.most_common(REASONS_MAX))}
        counted = {"slot": self._slot, **counted, **dead, "by_rule": dict(self._by_rule)}
        return pa.concat_tables([rest, report(self.columns, nothing, letters([]), counted)])


def take_events(detector: Detector, parcel: Parcel, tally: Tally) -> None:
    """Gives a parcel of events to the detector, which keeps them until time has come that far."""
    assert parcel.payload is not None
    tally.take(detector.push_batch(*events_of(parcel.payload, nameless=detector.nameless)))


def batch_detector(sent: Sent[Job]) -> Any:
    """The function that detects in one partition of a batch, whose parcels come in the order of their least ts.

    What is older than the next parcel's least ts is done with before that is read, so that memory follows the windows
    and the disorder of the source.
    """

    @settling
    def detect(batches: Batches) -> Batches:
        job = sent.job
        parcels = parcels_of(batches)
        first = next(parcels, None)
        if first is None:
            return
        slot = job.labels.index(first.slot)
        detector, tally = job.detector(slot), Tally(job.matches, slot)
        detector.nameless, detector.shelf = not identifies(detector.plan, job.select), job.shelf(slot)
        last: int | None = None
        for parcel, following in pairwise(_ended(first, parcels)):
            if parcel.what == TICK:
                last = parcel.largest
            if parcel.what == EVENTS:
                take_events(detector, parcel, tally)
            elif parcel.what == LETTERS:
                tally.bury(decode(parcel.payload or b""))
            if following is None:
                tally.take(detector.finish() if last is None else detector.advance(last + 1))
            elif following.least is not None and following.least > (detector.watermark or -(2**62)):
                tally.take(detector.advance(following.least))
            tally.bury(detector.dead_letters())
            yield from tally.rows().to_batches()
        yield from tally.closing(detector.counts).to_batches()

    return detect


def _ended(first: Parcel, rest: Iterable[Parcel]) -> Iterator[Any]:
    yield first
    yield from rest
    yield None


def parcels_of(batches: Batches) -> Iterator[Parcel]:
    """The parcels of a partition."""
    for batch in batches:
        for row in range(batch.num_rows):
            slot, what, least, largest, payload = (batch.column(n)[row] for n in range(5))
            yield Parcel(slot.as_py(), what.as_py(), least.as_py(), largest.as_py(), payload.as_buffer())
