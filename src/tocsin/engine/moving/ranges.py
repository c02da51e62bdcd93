"""Track the ranges of moving queries, and find the events in their regions.

A *range* is the region around an object that a query follows, from one location update to the next. It also covers the
query's *lifetime* before it starts. An *emission* is a part of a range that can be delivered: the matches with
`lo` <= ts <= `hi`, which are detected in events later than `begin` (MCEP, Lemma 1). For a table, an emission is a whole
range. In a stream, each advance of the watermark during a range gives an emission. Equal updates and watermarks give
equal emissions on every host.

To find the events in a region, a grid selects candidates, and an exact test decides as `plans.moving.Region.contains`
does. Events are numbered in order of time, so that two binary searches find the events of a grid cell in an interval of
time.
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

UNBOUNDED_US = 2**60
HISTORY_US = 3_600_000_000
"""How long (µs) a stream retains events for rules that consume, by default."""
UPDATE = np.dtype([("query", "i4"), ("ts", "i8"), ("east", "f8"), ("north", "f8")])
"""The type of arrays of location updates, one for each query that follows the object."""
EMISSION = np.dtype(
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
"""The type of arrays of emissions.

`number` is the number of the range within its query, and `first` the first time of the range's lifetime. `fresh` says
if a marker, which announces a new range, precedes the emission. `error` is an index in `ERRORS`.
"""
ERRORS = (
    None,
    "the history kept is shorter than the lifetime and the windows",
    "there is no quiescent point within the history kept",
    "the range lasts longer than the history kept, and its rules consume",
)
TOO_SHORT, NOT_QUIESCENT, TOO_LONG = 1, 2, 3


@dataclass(frozen=True)
class RangeParameters:
    """The parameters on which emissions depend.

    Events are kept for `history_us` before the start of a range, or as long as needed if it is None.
    """

    interests: tuple[Interest, ...]
    history_us: int | None = None

    @cached_property
    def lifetimes(self) -> Array:
        return np.array([one.lifetime_us for one in self.interests], np.int64)

    @cached_property
    def windows(self) -> Array:
        """The sum (µs) of the restriction windows of each query."""
        windows_of: dict[object, int] = {}
        for one in self.interests:
            if (key := (one.rules, one.delivers)) not in windows_of:
                windows_of[key] = tree(one).windows_us
        return np.array([windows_of[one.rules, one.delivers] for one in self.interests], np.int64)

    @cached_property
    def exact(self) -> Array:
        return np.array([is_exact(one) for one in self.interests], bool)

    @cached_property
    def strong(self) -> Array:
        return np.array([is_strong(one) for one in self.interests], bool)


class RangeTracker:
    """Keeps the current range of each query, and computes emissions when updates arrive or the watermark advances."""

    def __init__(self, parameters: RangeParameters) -> None:
        self.parameters = parameters
        count = len(parameters.interests)
        self.upto = -UNBOUNDED_US
        """The time (µs) before which all emissions have been returned."""
        self.number = np.zeros(count, np.int64)
        """The number of the current range of each query, or 0 before its first range."""
        self.start = np.zeros(count, np.int64)
        self.east, self.north = np.zeros(count), np.zeros(count)
        self.error = np.zeros(count, np.int8)

    def advance(self, updates: Array, upto: int | None) -> Array:
        """Return the emissions before the time `upto` (µs), or all remaining emissions if it is None.

        `updates` are the new location updates, in order.
        """
        until = UNBOUNDED_US if upto is None else upto
        if until <= self.upto:
            return np.zeros(0, EMISSION)
        updates = updates[np.argsort(updates["query"], kind="stable")]
        updates = updates[self._begins(updates)]
        queries = updates["query"]
        first = np.concatenate([[True], queries[1:] != queries[:-1]])[: len(queries)]
        ends = np.full(len(self.number), UNBOUNDED_US, np.int64)
        ends[queries[first]] = updates["ts"][first]
        current = self._current_emissions(ends, until)
        new = self._new_emissions(updates, first, until)
        self._update(new, current)
        self.upto = until
        emissions = np.concatenate([current, new])
        return emissions[np.lexsort((emissions["number"], emissions["query"]))]

    def needed_from(self) -> int:
        """Return the time (µs) up to which no event is needed for later emissions."""
        parameters, history = self.parameters, self.parameters.history_us
        if not len(self.number):
            return self.upto
        back = parameters.lifetimes + parameters.windows
        if parameters.strong.any():
            back = np.where(parameters.strong, UNBOUNDED_US if history is None else history, back)
        floor = int((self.upto - back).min())
        alive = parameters.exact & (self.number > 0) & (self.error == 0)
        if alive.any():
            floor = min(floor, int((self.start - back)[alive].min()))
        return max(floor, -UNBOUNDED_US)

    # ---- updates

    def _begins(self, updates: Array) -> Array:
        """Return a mask of the updates that begin a new range. `updates` must be sorted by query."""
        begins = np.zeros(len(updates), bool)
        queries, starts = np.unique(updates["query"], return_index=True)
        stops = [*starts.tolist(), len(updates)][1:]
        for query, low, high in zip(queries.tolist(), starts.tolist(), stops, strict=True):
            interest = self.parameters.interests[query]
            has_range = self.number[query] > 0
            match interest.update:
                case Each():
                    begins[low:high] = True
                case Timed(every_us):
                    times = updates["ts"][low:high]
                    at = int(np.searchsorted(times, self.start[query] + every_us)) if has_range else 0
                    while at < len(times):
                        begins[low + at] = True
                        at = max(at + 1, int(np.searchsorted(times, times[at] + every_us)))
                case Spatial(every_m):
                    last = (self.east[query], self.north[query]) if has_range else None
                    for row in range(low, high):
                        position = (float(updates["east"][row]), float(updates["north"][row]))
                        if last is None or distance_m(last, position, interest.space) >= every_m:
                            begins[row], last = True, position
        return begins

    def _current_emissions(self, ends: Array, until: int) -> Array:
        """Return the emissions of the current ranges, which end at `ends`, before the time `until` (µs)."""
        hi = np.minimum(ends, until - 1)
        alive = np.flatnonzero((self.number > 0) & (self.error == 0))
        emissions = self._emissions(alive, self.number[alive], self.start[alive], self.east[alive], self.north[alive])
        emissions["lo"] = np.maximum(emissions["first"], self.upto)
        emissions["hi"] = hi[alive]
        plain = ~self.parameters.exact[alive]
        emissions["begin"] = np.where(plain, emissions["lo"] - self.parameters.windows[alive], emissions["begin"])
        history = self.parameters.history_us
        if history is not None:
            long = ~plain & (emissions["hi"] < UNBOUNDED_US - 1) & (emissions["hi"] - emissions["start"] > history)
            emissions["error"][long], emissions["fresh"][long] = TOO_LONG, True
        return emissions[emissions["lo"] <= emissions["hi"]]

    def _new_emissions(self, updates: Array, first: Array, until: int) -> Array:
        """Return the emissions of the ranges that `updates` begin, before the time `until` (µs).

        `first` is a mask of the first update of each query.
        """
        queries, count = updates["query"].astype(np.int64), len(updates)
        position = np.arange(count)
        order_in_query = position - np.maximum.accumulate(np.where(first, position, 0)) if count else position
        emissions = self._emissions(
            queries, self.number[queries] + 1 + order_in_query, updates["ts"], updates["east"], updates["north"]
        )
        emissions["lo"], emissions["fresh"] = emissions["first"], True
        emissions["hi"] = UNBOUNDED_US
        emissions["hi"][:-1] = np.where(first[1:], UNBOUNDED_US, updates["ts"][1:])
        emissions["hi"] = np.minimum(emissions["hi"], until - 1)
        history = self.parameters.history_us
        if history is not None:
            back = self.parameters.lifetimes[queries] + self.parameters.windows[queries]
            emissions["error"][back > history] = TOO_SHORT
        return emissions

    def _emissions(self, queries: Array, number: Array, start: Array, east: Array, north: Array) -> Array:
        parameters = self.parameters
        emissions = np.zeros(len(queries), EMISSION)
        emissions["query"], emissions["number"], emissions["start"] = queries, number, start
        emissions["east"], emissions["north"] = east, north
        emissions["first"] = start - parameters.lifetimes[queries]
        emissions["begin"] = emissions["first"] - parameters.windows[queries]
        history = UNBOUNDED_US if parameters.history_us is None else parameters.history_us
        strong = parameters.strong[queries]
        emissions["begin"][strong] = np.maximum(start[strong] - history, -UNBOUNDED_US)
        return emissions

    def _update(self, new: Array, current: Array) -> None:
        failed = current["query"][current["error"] > 0]
        self.error[failed] = current["error"][current["error"] > 0]
        # If a query has several new ranges, the last assignment, that of the latest range, takes effect.
        queries = new["query"]
        self.number[queries], self.start[queries] = new["number"], new["start"]
        self.east[queries], self.north[queries] = new["east"], new["north"]
        self.error[queries] = new["error"]

    # ---- state

    def as_data(self) -> str:
        """Return the current ranges as JSON text."""
        arrays = {name: getattr(self, name).tolist() for name in ("number", "start", "east", "north", "error")}
        return json.dumps({"upto": self.upto, "names": [one.name for one in self.parameters.interests], **arrays})

    def restore(self, text: str, names: Collection[str] | None = None) -> None:
        """Restore the state from `text`, the result of `as_data`.

        Only the queries in `names`, or all queries if it is None, get their saved ranges. A new query has no range yet,
        and the range of a removed query is dropped.
        """
        data = json.loads(text)
        self.upto = data["upto"]
        indexes = {name: index for index, name in enumerate(data["names"]) if names is None or name in names}
        for query, interest in enumerate(self.parameters.interests):
            if (at := indexes.get(interest.name)) is not None:
                for name in ("number", "start", "east", "north", "error"):
                    getattr(self, name)[query] = data[name][at]


CELL_MAX = 2**31 - 2
"""The largest index of a grid cell in each direction. Positions beyond it belong to the last cell."""
BORDER_TOLERANCE = 1e-9
"""The distance from the border of a circle on the Earth, relative to its radius, below which a scalar test decides."""


def boxes(shape: Shape, space: Space, east: Array, north: Array) -> Array:
    """Return a bounding box of each region, or two boxes if the region crosses longitude 180.

    The columns are the index of the region's centre, west, south, east and north.
    """
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
    boxes_ = np.array(rows, np.float64).reshape(-1, 5)
    boxes_[:, 1:3] -= 1e-9
    boxes_[:, 3:5] += 1e-9
    return boxes_


def inside(shape: Shape, space: Space, centres: tuple[Array, Array], positions: tuple[Array, Array]) -> Array:
    """Return whether each position is in the region that `shape` has around the centre with the same index."""
    (cx, cy), (x, y) = centres, positions
    if isinstance(shape, Circle):
        return _in_circle(shape.radius_m, space, centres, positions)
    east, north = x - cx, y - cy
    if space is Space.WGS84:
        east = np.where(np.abs(east) > 180, (east + 180.0) % 360.0 - 180.0, east)
        some, which = np.unique(cy, return_inverse=True)
        shrinking = np.array([max(math.cos(math.radians(lat)), 1e-9) for lat in some.tolist()])
        east, north = east * DEGREE_M * shrinking[which], north * DEGREE_M
    if isinstance(shape, Rectangle):
        in_rectangle: Array = (2 * np.abs(east) <= shape.width_m) & (2 * np.abs(north) <= shape.height_m)
        return in_rectangle
    return _in_polygon(shape, east, north)


def _in_circle(radius_m: float, space: Space, centres: tuple[Array, Array], positions: tuple[Array, Array]) -> Array:
    (cx, cy), (x, y) = centres, positions
    if space is Space.PLANE:
        east, north = x - cx, y - cy
        in_circle: Array = np.sqrt(east * east + north * north) <= radius_m
        return in_circle
    south, north = np.radians(cy), np.radians(y)
    turned = np.radians(x - cx)
    half = np.sin((north - south) / 2) ** 2 + np.cos(south) * np.cos(north) * np.sin(turned / 2) ** 2
    distance = 2 * EARTH_RADIUS_M * np.arcsin(np.minimum(1.0, np.sqrt(half)))
    in_circle = distance <= radius_m
    # Vectorised and scalar sines may differ in the last bit.
    for row in np.flatnonzero(np.abs(distance - radius_m) <= BORDER_TOLERANCE * radius_m + 1e-6).tolist():
        in_circle[row] = Region(Circle(radius_m), (cx[row], cy[row]), space).contains((x[row], y[row]))
    return in_circle


def _in_polygon(polygon: Polygon, east: Array, north: Array) -> Array:
    odd, border = np.zeros(len(east), bool), np.zeros(len(east), bool)
    corners = polygon.corners_m
    for (ax, ay), (bx, by) in zip(corners, (*corners[1:], corners[0]), strict=True):
        turn = (bx - ax) * (north - ay) - (by - ay) * (east - ax)
        beside = (min(ax, bx) <= east) & (east <= max(ax, bx)) & (min(ay, by) <= north) & (north <= max(ay, by))
        border |= (turn == 0) & beside
        odd ^= ((ay > north) != (by > north)) & ((turn > 0) == (by > ay))
    return border | odd


class NearbyEvents(NamedTuple):
    """Intervals of events in grid cells near centres, in the order of the centres.

    The events of an interval are `counts` consecutive events from `starts` on, in the order of the grid.
    """

    of: Array
    """The index of the centre of each interval."""
    starts: Array
    counts: Array

    def some(self, low: int, high: int) -> NearbyEvents:
        """Return the intervals of the centres with indexes in [low, high)."""
        here = slice(*np.searchsorted(self.of, [low, high]))
        return NearbyEvents(self.of[here], self.starts[here], self.counts[here])


class GridIndex:
    """Finds events by the cells of a grid. `east` and `north` are the coordinates of events, in order of time."""

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
        steps: Array = np.clip(np.floor(along / step), -CELL_MAX, CELL_MAX).astype(np.int64)
        return steps

    @staticmethod
    def _keys(column: Array, row: Array) -> Array:
        keys: Array = (column << 32) + (row & 0xFFFFFFFF)
        return keys

    def near(self, shape: Shape, space: Space, centres: tuple[Array, Array], low: Array, high: Array) -> NearbyEvents:
        """Return the events in the cells near each centre whose indexes are in [low, high).

        `low` and `high` have one element per centre.
        """
        if not len(self._east) or not len(low):
            nothing = np.zeros(0, np.int64)
            return NearbyEvents(nothing, nothing, nothing)
        of, cells = self._near(boxes(shape, space, *centres))
        base = cells * self._size
        starts = np.searchsorted(self._sorted, base + low[of])
        counts = np.maximum(np.searchsorted(self._sorted, base + high[of]) - starts, 0)
        return NearbyEvents(of, starts, counts)

    def pairs(
        self, shape: Shape, space: Space, centres: tuple[Array, Array], near: NearbyEvents
    ) -> tuple[Array, Array]:
        """Return the pairs (centre, event) in `near` whose event is in the region around the centre."""
        ends = np.cumsum(near.counts)
        centre = np.repeat(near.of, near.counts)
        offsets = np.repeat(near.starts - (ends - near.counts), near.counts)
        event = self._order[offsets + np.arange(len(centre))]
        positions = self._east[event], self._north[event]
        is_inside = inside(shape, space, (centres[0][centre], centres[1][centre]), positions)
        return centre[is_inside], event[is_inside]

    def _near(self, regions: Array) -> tuple[Array, Array]:
        """Return the distinct pairs (centre, index of a cell with events) for boxes, which have the form of `boxes`."""
        columns, rows = self._steps(self._east, self._width), self._steps(self._north, self._height)
        west = np.maximum(self._steps(regions[:, 1], self._width), columns.min())
        south = np.maximum(self._steps(regions[:, 2], self._height), rows.min())
        across = np.maximum(np.minimum(self._steps(regions[:, 3], self._width), columns.max()) - west + 1, 0)
        up = np.maximum(np.minimum(self._steps(regions[:, 4], self._height), rows.max()) - south + 1, 0)
        counts = across * up
        row = np.repeat(np.arange(len(regions)), counts)
        number = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)
        keys = self._keys(west[row] + number // up[row], south[row] + number % up[row])
        cells = np.minimum(np.searchsorted(self._cells, keys), len(self._cells) - 1)
        occupied = self._cells[cells] == keys
        pairs = np.unique(regions[row[occupied], 0].astype(np.int64) * len(self._cells) + cells[occupied])
        return pairs // len(self._cells), pairs % len(self._cells)


def cell_size(shape: Shape, space: Space, north: Array) -> tuple[float, float]:
    """Return the width and height of grid cells, about half the size of the region of `shape`.

    `north` has the coordinates of centres, because the width of a degree depends on the latitude.
    """
    west, south, east, top = Region(shape, (0.0, 0.0)).boxes[0]
    width, height = (east - west) / 2, (top - south) / 2
    if space is Space.PLANE:
        return width, height
    widest = max((abs(lat) for lat in (north.min(), north.max())), default=0.0) if len(north) else 0.0
    return width / DEGREE_M / max(math.cos(math.radians(min(widest, 89.0))), 0.01), height / DEGREE_M
