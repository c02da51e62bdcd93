"""What does a slave keep? The events that a push would have sent, until the father will not ask for them any more."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tocsin.overlay.messages import Request
from tocsin.overlay.rows import Rows
from tocsin.overlay.timing import Array

Found = tuple[Rows | None, Array]
"""Events to be sent, and at which times."""
NOTHING: Found = (None, np.zeros(0, np.int64))


@dataclass
class Kept:
    """Events by the time of the head that they were found with, and requests whose time is not over."""

    events: pa.Table | None = None
    heads: Array = field(default_factory=lambda: np.zeros(0, np.int64))
    at: Array = field(default_factory=lambda: np.zeros(0, np.int64))
    open: list[tuple[Request, int]] = field(default_factory=list)
    """With the time at which each was received."""

    def add(self, events: Rows, heads: Array, at: Array) -> Found:
        """Keeps new events; returns those that were asked for already."""
        before = len(self.heads)
        self.events = events.table if self.events is None else pa.concat_tables([self.events, events.table])
        self.heads, self.at = np.concatenate([self.heads, heads]), np.concatenate([self.at, at])
        return self._wanted(self.open, before)

    def asked(self, requests: Iterable[Request], at: Array) -> Found:
        """The kept events that requests ask for; the requests stay open."""
        new = list(zip(requests, at.tolist(), strict=True))
        self.open += new
        return self._wanted(new, 0)

    def _wanted(self, requests: list[tuple[Request, int]], start: int) -> Found:
        if self.events is None or start >= len(self.heads) or not requests:
            return NOTHING
        heads = self.heads[start:]
        when = np.full(len(heads), np.iinfo(np.int64).max)
        order = np.argsort(heads, kind="stable")
        ordered = heads[order]
        for request, received in requests:
            first = np.searchsorted(ordered, request.since, "right")
            rows = order[first : np.searchsorted(ordered, request.until, "left")]
            for name, value in request.values if len(rows) else ():
                column = self.events[name].take(rows + start)
                rows = rows[pc.equal(column, value).combine_chunks().fill_null(False).to_numpy(zero_copy_only=False)]
            when[rows] = np.minimum(when[rows], received)
        rows = np.nonzero(when < np.iinfo(np.int64).max)[0]
        if not len(rows):
            return NOTHING
        return Rows(self.events.take(rows + start)), np.maximum(when[rows], self.at[rows + start])

    def forget(self, ts: int) -> None:
        """Drops what was found with heads before a time, and requests that end before it."""
        stay = self.heads >= ts
        if self.events is not None and not stay.all():
            self.events = self.events.filter(pa.array(stay))
            self.heads, self.at = self.heads[stay], self.at[stay]

    def close(self, ts: int) -> None:
        """Drops requests for what came before a time: there will be no more of it."""
        self.open = [(request, at) for request, at in self.open if request.until > ts]
