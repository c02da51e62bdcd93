"""Where are the ranges, and what is to be delivered of them now? Location updates and the watermark in, pieces out.

A *piece* is what can be delivered of a range: its matches with `lo` <= ts <= `hi`, found from inputs later than `begin`
(MCEP, Lemma 1). Over a table a piece is a whole range; in a stream there is one for each time that the watermark moves
while the range is there. All who have seen the same updates and watermarks make the same pieces.

Which events lie in which ranges? A join by cells: a grid over the events, and then the exact test.

All answers are those of `plans.regions.Region.contains`, over columns. The events are numbered in the order of time, so
that a stretch of time is a stretch of numbers, and those of a cell that are in time for a range are found by two binary
searches.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from tocsin.language.mcep.ast import Circle, Each, Interest, Polygon, Rectangle, Shape, Space, Spatial, Timed
from tocsin.plans.moving import DEGREE_M, EARTH_RADIUS_M, Region, distance_m, is_exact, is_strong, tree

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


FAR = 2**31 - 2
"""Cells beyond this one are one."""
DOUBT = 1e-9
"""How near to the border of a circle on the Earth, in proportion, the plain test decides."""


def boxes(shape: Shape, space: Space, east: Array, north: Array) -> Array:
    """For each centre a box that holds its region, and where that crosses longitude 180 one more: rows of the centre's
    number, west, south, east, north."""
    if space is Space.PLANE:
        west, south, right, top = Region(shape, (0.0, 0.0)).boxes[0]
        slack = 1e-6 * (right - west + top - south) + 1e-9 * (np.abs(east) + np.abs(north))
        sides = (east + west - slack, north + south - slack, east + right + slack, north + top + slack)
        return np.column_stack([np.arange(len(east)), *sides])
    rows = [
        (number, *box)
        for number, centre in enumerate(zip(east.tolist(), north.tolist(), strict=True))
        for box in Region(shape, centre, space).boxes
    ]
    found = np.array(rows, np.float64).reshape(-1, 5)
    found[:, 1:3] -= 1e-9
    found[:, 3:5] += 1e-9
    return found


def inside(shape: Shape, space: Space, centres: tuple[Array, Array], places: tuple[Array, Array]) -> Array:
    """Whether each place lies in the region around the centre beside it."""
    (cx, cy), (x, y) = centres, places
    if isinstance(shape, Circle):
        return _in_circle(shape.radius_m, space, centres, places)
    east, north = x - cx, y - cy
    if space is Space.WGS84:
        east = np.where(np.abs(east) > 180, (east + 180.0) % 360.0 - 180.0, east)
        some, which = np.unique(cy, return_inverse=True)
        shrinking = np.array([max(math.cos(math.radians(lat)), 1e-9) for lat in some.tolist()])
        east, north = east * DEGREE_M * shrinking[which], north * DEGREE_M
    if isinstance(shape, Rectangle):
        found: Array = (2 * np.abs(east) <= shape.width_m) & (2 * np.abs(north) <= shape.height_m)
        return found
    return _in_polygon(shape, east, north)


def _in_circle(radius_m: float, space: Space, centres: tuple[Array, Array], places: tuple[Array, Array]) -> Array:
    (cx, cy), (x, y) = centres, places
    if space is Space.PLANE:
        east, north = x - cx, y - cy
        found: Array = np.sqrt(east * east + north * north) <= radius_m
        return found
    south, north = np.radians(cy), np.radians(y)
    turned = np.radians(x - cx)
    half = np.sin((north - south) / 2) ** 2 + np.cos(south) * np.cos(north) * np.sin(turned / 2) ** 2
    distance = 2 * EARTH_RADIUS_M * np.arcsin(np.minimum(1.0, np.sqrt(half)))
    found = distance <= radius_m
    # Sines of columns and of single numbers may differ in the last bit.
    for row in np.flatnonzero(np.abs(distance - radius_m) <= DOUBT * radius_m + 1e-6).tolist():
        found[row] = Region(Circle(radius_m), (cx[row], cy[row]), space).contains((x[row], y[row]))
    return found


def _in_polygon(polygon: Polygon, east: Array, north: Array) -> Array:
    odd, border = np.zeros(len(east), bool), np.zeros(len(east), bool)
    corners = polygon.corners_m
    for (ax, ay), (bx, by) in zip(corners, (*corners[1:], corners[0]), strict=True):
        turn = (bx - ax) * (north - ay) - (by - ay) * (east - ax)
        beside = (min(ax, bx) <= east) & (east <= max(ax, bx)) & (min(ay, by) <= north) & (north <= max(ay, by))
        border |= (turn == 0) & beside
        odd ^= ((ay > north) != (by > north)) & ((turn > 0) == (by > ay))
    return border | odd


class Near(NamedTuple):
    """Stretches of events by cell that are near centres, in the order of these."""

    of: Array
    """The centre."""
    starts: Array
    counts: Array

    def some(self, low: int, high: int) -> Near:
        """Those of the centres in [low, high)."""
        here = slice(*np.searchsorted(self.of, [low, high]))
        return Near(self.of[here], self.starts[here], self.counts[here])


class Cells:
    """Events by the cells of a grid. `east` and `north` are those of events in the order of time."""

    def __init__(self, east: Array, north: Array, width: float, height: float) -> None:
        self._east, self._north = east, north
        self._width, self._height = width, height
        self._size = max(1, len(east))
        keys = self._keys(self._steps(east, width), self._steps(north, height))
        self._order = np.argsort(keys, kind="stable")
        self._cells, ranks = np.unique(keys, return_inverse=True)
        self._sorted = ranks[self._order] * self._size + self._order

    @staticmethod
    def _steps(along: Array, step: float) -> Array:
        found: Array = np.clip(np.floor(along / step), -FAR, FAR).astype(np.int64)
        return found

    @staticmethod
    def _keys(column: Array, row: Array) -> Array:
        found: Array = (column << 32) + (row & 0xFFFFFFFF)
        return found

    def near(self, shape: Shape, space: Space, centres: tuple[Array, Array], low: Array, high: Array) -> Near:
        """The events in the cells near each centre, with a number in [low, high)."""
        if not len(self._east) or not len(low):
            nothing = np.zeros(0, np.int64)
            return Near(nothing, nothing, nothing)
        of, cells = self._near(boxes(shape, space, *centres))
        base = cells * self._size
        starts = np.searchsorted(self._sorted, base + low[of])
        counts = np.maximum(np.searchsorted(self._sorted, base + high[of]) - starts, 0)
        return Near(of, starts, counts)

    def pairs(self, shape: Shape, space: Space, centres: tuple[Array, Array], near: Near) -> tuple[Array, Array]:
        """Pairs (centre, event) of what lies in the region of a centre."""
        ends = np.cumsum(near.counts)
        centre = np.repeat(near.of, near.counts)
        offsets = np.repeat(near.starts - (ends - near.counts), near.counts)
        event = self._order[offsets + np.arange(len(centre))]
        places = self._east[event], self._north[event]
        kept = inside(shape, space, (centres[0][centre], centres[1][centre]), places)
        return centre[kept], event[kept]

    def _near(self, found: Array) -> tuple[Array, Array]:
        """Pairs (centre, number of a cell that has events), each once."""
        columns, rows = self._steps(self._east, self._width), self._steps(self._north, self._height)
        west = np.maximum(self._steps(found[:, 1], self._width), columns.min())
        south = np.maximum(self._steps(found[:, 2], self._height), rows.min())
        across = np.maximum(np.minimum(self._steps(found[:, 3], self._width), columns.max()) - west + 1, 0)
        up = np.maximum(np.minimum(self._steps(found[:, 4], self._height), rows.max()) - south + 1, 0)
        counts = across * up
        row = np.repeat(np.arange(len(found)), counts)
        number = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)
        keys = self._keys(west[row] + number // up[row], south[row] + number % up[row])
        cells = np.minimum(np.searchsorted(self._cells, keys), len(self._cells) - 1)
        there = self._cells[cells] == keys
        pairs = np.unique(found[row[there], 0].astype(np.int64) * len(self._cells) + cells[there])
        return pairs // len(self._cells), pairs % len(self._cells)


def cell_size(shape: Shape, space: Space, north: Array) -> tuple[float, float]:
    """How wide and high cells are for regions of this shape around these latitudes: half a region."""
    west, south, east, top = Region(shape, (0.0, 0.0)).boxes[0]
    width, height = (east - west) / 2, (top - south) / 2
    if space is Space.PLANE:
        return width, height
    widest = max((abs(lat) for lat in (north.min(), north.max())), default=0.0) if len(north) else 0.0
    return width / DEGREE_M / max(math.cos(math.radians(min(widest, 89.0))), 0.01), height / DEGREE_M
