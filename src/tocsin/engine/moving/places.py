"""Which events lie in which ranges? A join by cells: a grid over the events, and then the exact test.

All answers are those of `plans.regions.Region.contains`, over columns. The events are numbered in the order of time, so
that a stretch of time is a stretch of numbers, and those of a cell that are in time for a range are found by two binary
searches.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from tocsin.language.interests import Circle, Polygon, Rectangle, Shape, Space
from tocsin.plans.regions import DEGREE_M, EARTH_RADIUS_M, Region

Array = np.ndarray[Any, Any]

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
