"""Where are the ranges, and what is to be delivered of them now? Location updates and the watermark in, pieces out.

A *piece* is what can be delivered of a range: its matches with `lo` <= ts <= `hi`, found from inputs later than `begin`
(MCEP, Lemma 1). Over a table a piece is a whole range; in a stream there is one for each time that the watermark moves
while the range is there. All who have seen the same updates and watermarks make the same pieces.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from tocsin.language.interests import Each, Interest, Spatial, Timed
from tocsin.plans.operators import is_exact, is_strong, tree
from tocsin.plans.regions import distance_m

Array = np.ndarray[Any, Any]

FOREVER = 2**60
HISTORY_US = 3_600_000_000
"""How long a stream keeps events for rules that consume, if nobody says."""
UPDATE = np.dtype([("query", "i4"), ("ts", "i8"), ("east", "f8"), ("north", "f8")])
"""A location update of a query's focal object."""
PIECE = np.dtype(
    [
        ("query", "i4"),
        ("number", "i8"),
        ("start", "i8"),
        ("east", "f8"),
        ("north", "f8"),
        ("first", "i8"),
        ("begin", "i8"),
        ("lo", "i8"),
        ("hi", "i8"),
        ("fresh", "?"),
        ("error", "i1"),
    ]
)
"""`fresh`: a marker stands before it. `first`: the first moment of the lifetime. `error`: in `ERRORS`."""
ERRORS = (
    None,
    "the history kept is shorter than the lifetime and the windows",
    "there is no quiet point within the history kept",
    "the range lasts longer than the history kept, and its rules consume",
)
TOO_SHORT, NOT_QUIET, TOO_LONG = 1, 2, 3


@dataclass(frozen=True)
class Followed:
    """What of the interests decides their pieces. `history_us`: how far back from a range's start events are kept."""

    interests: tuple[Interest, ...]
    history_us: int | None = None

    @cached_property
    def lifetimes(self) -> Array:
        return np.array([one.lifetime_us for one in self.interests], np.int64)

    @cached_property
    def windows(self) -> Array:
        """The sum of the restriction windows, for each query."""
        known: dict[object, int] = {}
        for one in self.interests:
            if (key := (one.rules, one.delivers)) not in known:
                known[key] = tree(one).windows_us
        return np.array([known[one.rules, one.delivers] for one in self.interests], np.int64)

    @cached_property
    def exact(self) -> Array:
        return np.array([is_exact(one) for one in self.interests], bool)

    @cached_property
    def strong(self) -> Array:
        return np.array([is_strong(one) for one in self.interests], bool)


class Follower:
    """The present range of each query."""

    def __init__(self, followed: Followed) -> None:
        self.followed = followed
        count = len(followed.interests)
        self.upto = -FOREVER
        """Up to there, exclusive, everything is known."""
        self.number = np.zeros(count, np.int64)
        """Of the present range; 0: there is none yet."""
        self.start = np.zeros(count, np.int64)
        self.east, self.north = np.zeros(count), np.zeros(count)
        self.error = np.zeros(count, np.int8)

    def advance(self, updates: Array, upto: int | None) -> Array:
        """The pieces up to `upto`, exclusive; None: to the end. `updates` are those since the last time, in order."""
        until = FOREVER if upto is None else upto
        if until <= self.upto:
            return np.zeros(0, PIECE)
        updates = updates[np.argsort(updates["query"], kind="stable")]
        updates = updates[self._begins(updates)]
        queries = updates["query"]
        first = np.concatenate([[True], queries[1:] != queries[:-1]])[: len(queries)]
        ends = np.full(len(self.number), FOREVER, np.int64)
        ends[queries[first]] = updates["ts"][first]
        going = self._going(ends, until)
        new = self._new(updates, first, until)
        self._remember(new, going)
        self.upto = until
        pieces = np.concatenate([going, new])
        return pieces[np.lexsort((pieces["number"], pieces["query"]))]

    def needed_from(self) -> int:
        """Later pieces need no event up to this time."""
        followed, history = self.followed, self.followed.history_us
        if not len(self.number):
            return self.upto
        back = followed.lifetimes + followed.windows
        if followed.strong.any():
            back = np.where(followed.strong, FOREVER if history is None else history, back)
        floor = int((self.upto - back).min())
        alive = followed.exact & (self.number > 0) & (self.error == 0)
        if alive.any():
            floor = min(floor, int((self.start - back)[alive].min()))
        return max(floor, -FOREVER)

    # ---- what becomes of the updates

    def _begins(self, updates: Array) -> Array:
        """Which of the updates, sorted by query, begin a new range."""
        begins = np.zeros(len(updates), bool)
        queries, starts = np.unique(updates["query"], return_index=True)
        stops = [*starts.tolist(), len(updates)][1:]
        for query, low, high in zip(queries.tolist(), starts.tolist(), stops, strict=True):
            interest = self.followed.interests[query]
            there = self.number[query] > 0
            match interest.update:
                case Each():
                    begins[low:high] = True
                case Timed(every_us):
                    times = updates["ts"][low:high]
                    at = int(np.searchsorted(times, self.start[query] + every_us)) if there else 0
                    while at < len(times):
                        begins[low + at] = True
                        at = max(at + 1, int(np.searchsorted(times, times[at] + every_us)))
                case Spatial(every_m):
                    last = (self.east[query], self.north[query]) if there else None
                    for row in range(low, high):
                        place = (float(updates["east"][row]), float(updates["north"][row]))
                        if last is None or distance_m(last, place, interest.space) >= every_m:
                            begins[row], last = True, place
        return begins

    def _going(self, ends: Array, until: int) -> Array:
        """The pieces of the present ranges."""
        hi = np.minimum(ends, until - 1)
        alive = np.flatnonzero((self.number > 0) & (self.error == 0))
        pieces = self._pieces(alive, self.number[alive], self.start[alive], self.east[alive], self.north[alive])
        pieces["lo"] = np.maximum(pieces["first"], self.upto)
        pieces["hi"] = hi[alive]
        plain = ~self.followed.exact[alive]
        pieces["begin"] = np.where(plain, pieces["lo"] - self.followed.windows[alive], pieces["begin"])
        history = self.followed.history_us
        if history is not None:
            long = ~plain & (pieces["hi"] < FOREVER - 1) & (pieces["hi"] - pieces["start"] > history)
            pieces["error"][long], pieces["fresh"][long] = TOO_LONG, True
        return pieces[pieces["lo"] <= pieces["hi"]]

    def _new(self, updates: Array, first: Array, until: int) -> Array:
        """The pieces of the ranges that begin."""
        queries, count = updates["query"].astype(np.int64), len(updates)
        position = np.arange(count)
        behind = position - np.maximum.accumulate(np.where(first, position, 0)) if count else position
        pieces = self._pieces(
            queries, self.number[queries] + 1 + behind, updates["ts"], updates["east"], updates["north"]
        )
        pieces["lo"], pieces["fresh"] = pieces["first"], True
        pieces["hi"] = FOREVER
        pieces["hi"][:-1] = np.where(first[1:], FOREVER, updates["ts"][1:])
        pieces["hi"] = np.minimum(pieces["hi"], until - 1)
        history = self.followed.history_us
        if history is not None:
            back = self.followed.lifetimes[queries] + self.followed.windows[queries]
            pieces["error"][back > history] = TOO_SHORT
        return pieces

    def _pieces(self, queries: Array, number: Array, start: Array, east: Array, north: Array) -> Array:
        followed = self.followed
        pieces = np.zeros(len(queries), PIECE)
        pieces["query"], pieces["number"], pieces["start"] = queries, number, start
        pieces["east"], pieces["north"] = east, north
        pieces["first"] = start - followed.lifetimes[queries]
        pieces["begin"] = pieces["first"] - followed.windows[queries]
        history = FOREVER if followed.history_us is None else followed.history_us
        strong = followed.strong[queries]
        pieces["begin"][strong] = np.maximum(start[strong] - history, -FOREVER)
        return pieces

    def _remember(self, new: Array, going: Array) -> None:
        failed = going["query"][going["error"] > 0]
        self.error[failed] = going["error"][going["error"] > 0]
        # Of several rows of a query the last one stays.
        queries = new["query"]
        self.number[queries], self.start[queries] = new["number"], new["start"]
        self.east[queries], self.north[queries] = new["east"], new["north"]
        self.error[queries] = new["error"]

    # ---- state

    def as_data(self) -> str:
        """What is remembered, as text."""
        arrays = {name: getattr(self, name).tolist() for name in ("number", "start", "east", "north", "error")}
        return json.dumps({"upto": self.upto, "names": [one.name for one in self.followed.interests], **arrays})

    def restore(self, text: str, names: Collection[str] | None = None) -> None:
        """Goes on from there. A query that was not there has no range yet, and one that is gone has none any more.

        `names`: the queries that are still the same, if not all of those that were there.
        """
        data = json.loads(text)
        self.upto = data["upto"]
        places = {name: place for place, name in enumerate(data["names"]) if names is None or name in names}
        for query, interest in enumerate(self.followed.interests):
            if (at := places.get(interest.name)) is not None:
                for name in ("number", "start", "east", "north", "error"):
                    getattr(self, name)[query] = data[name][at]
