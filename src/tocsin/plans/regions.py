"""Where is a range, and what lies in it? Shapes laid around a place, on a plane or on the Earth.

On the Earth a shape is laid on a flat map of the surroundings of its focal object: degrees times the length of a degree
there. At 50° north, distances from the object on that map are right to a centimetre at 500 m, to 4 m at 10 km. Circles
are great circles (haversine) on a sphere of the Earth's mean radius. Borders belong to a region.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from tocsin.events.types import Value
from tocsin.language.interests import Circle, Polygon, Rectangle, Shape, Space

EARTH_RADIUS_M = 6_371_008.8
DEGREE_M = math.radians(EARTH_RADIUS_M)
"""The length of a degree of latitude."""

Place = tuple[float, float]
"""East and north: metres on a plane, or longitude and latitude."""
Box = tuple[float, float, float, float]
"""West, south, east, north."""


def place_of(attributes: Mapping[str, Value], space: Space) -> Place | None:
    """Where an event is; None if it does not say, or says what is no place."""
    east, north = (attributes.get(name) for name in space.coordinates)
    if isinstance(east, bool) or isinstance(north, bool):
        return None
    if not isinstance(east, int | float) or not isinstance(north, int | float):
        return None
    if space is Space.WGS84 and not (-180 <= east <= 180 and -90 <= north <= 90):
        return None
    return float(east), float(north)


def distance_m(one: Place, two: Place, space: Space) -> float:
    """How far two places are from each other.

    >>> distance_m((0, 0), (3, 4), Space.PLANE)
    5.0
    >>> round(distance_m((9.18, 48.78), (13.4, 52.52), Space.WGS84) / 1000)
    511
    """
    if space is Space.PLANE:
        east, north = two[0] - one[0], two[1] - one[1]
        return math.sqrt(east * east + north * north)
    south, north = math.radians(one[1]), math.radians(two[1])
    turned = math.radians(two[0] - one[0])
    half = math.sin((north - south) / 2) ** 2 + math.cos(south) * math.cos(north) * math.sin(turned / 2) ** 2
    return 2 * EARTH_RADIUS_M * math.asin(min(1.0, math.sqrt(half)))


@dataclass(frozen=True)
class Region:
    """A shape around a place."""

    shape: Shape
    centre: Place
    space: Space = Space.PLANE

    def contains(self, place: Place) -> bool:
        """Whether a place lies in the region or on its border.

        >>> Region(Rectangle(10, 4), (100, 100)).contains((105, 102))
        True
        """
        if isinstance(self.shape, Circle):
            return distance_m(self.centre, place, self.space) <= self.shape.radius_m
        east, north = self.offset(place)
        if isinstance(self.shape, Rectangle):
            return 2 * abs(east) <= self.shape.width_m and 2 * abs(north) <= self.shape.height_m
        return _inside(self.shape, east, north)

    def offset(self, place: Place) -> Place:
        """How far to the east and to the north of the centre a place is, in metres."""
        east, north = place[0] - self.centre[0], place[1] - self.centre[1]
        if self.space is Space.PLANE:
            return east, north
        return _turned(east) * DEGREE_M * self._shrinking, north * DEGREE_M

    @cached_property
    def boxes(self) -> tuple[Box, ...]:
        """Boxes, in the coordinates of places, that hold all of the region: two where it crosses longitude 180."""
        west, south, east, north = self._extent
        x, y = self.centre
        if self.space is Space.PLANE:
            return ((x + west, y + south, x + east, y + north),)
        # A circle of haversines reaches a little beyond one of the flat map, and rounding must leave nothing out.
        slack = 1.01
        low = max(-90.0, y + south * slack / DEGREE_M)
        high = min(90.0, y + north * slack / DEGREE_M)
        widest = math.cos(math.radians(min(90.0, max(abs(low), abs(high)))))
        shrinking = min(widest, self._shrinking) * DEGREE_M
        if shrinking * 170 < max(-west, east):
            return ((-180.0, low, 180.0, high),)
        left, right = x + west * slack / shrinking, x + east * slack / shrinking
        if right - left >= 360:
            return ((-180.0, low, 180.0, high),)
        if left < -180:
            return ((-180.0, low, right, high), (left + 360, low, 180.0, high))
        if right > 180:
            return ((left, low, 180.0, high), (-180.0, low, right - 360, high))
        return ((left, low, right, high),)

    @cached_property
    def outline(self) -> tuple[Place, ...]:
        """Corners on a plane, for pictures; a circle has 48."""
        match self.shape:
            case Rectangle(width, height):
                offsets = tuple((a * width / 2, b * height / 2) for a, b in ((-1, -1), (1, -1), (1, 1), (-1, 1)))
            case Circle(radius):
                turns = [math.tau * number / 48 for number in range(48)]
                offsets = tuple((radius * math.cos(turn), radius * math.sin(turn)) for turn in turns)
            case Polygon(corners):
                offsets = corners
        return tuple((self.centre[0] + east, self.centre[1] + north) for east, north in offsets)

    @cached_property
    def _extent(self) -> Box:
        match self.shape:
            case Rectangle(width, height):
                return -width / 2, -height / 2, width / 2, height / 2
            case Circle(radius):
                return -radius, -radius, radius, radius
            case Polygon(corners):
                easts, norths = zip(*corners, strict=True)
                return min(easts), min(norths), max(easts), max(norths)

    @cached_property
    def _shrinking(self) -> float:
        return max(math.cos(math.radians(self.centre[1])), 1e-9)


def _turned(degrees: float) -> float:
    """A difference of longitudes the short way round."""
    return (degrees + 180.0) % 360.0 - 180.0 if abs(degrees) > 180 else degrees


def _inside(polygon: Polygon, east: float, north: float) -> bool:
    """Whether a ray to the east crosses an odd number of sides, or the point lies on one."""
    corners = polygon.corners_m
    odd = False
    for (ax, ay), (bx, by) in zip(corners, (*corners[1:], corners[0]), strict=True):
        turn = (bx - ax) * (north - ay) - (by - ay) * (east - ax)
        if turn == 0 and min(ax, bx) <= east <= max(ax, bx) and min(ay, by) <= north <= max(ay, by):
            return True
        if (ay > north) != (by > north) and (turn > 0) == (by > ay):
            odd = not odd
    return odd


Cell = tuple[int, int]
"""Column and row."""


@dataclass(frozen=True)
class Grid:
    """A box cut into cells. What lies outside belongs to the nearest cell at the edge, so that every place has one.

    >>> grid = Grid((0, 0, 100, 100), 4, 4)
    >>> grid.cell((30, 99)), grid.cell((-5, 1000))
    ((1, 3), (0, 3))
    """

    box: Box
    columns: int
    rows: int

    def cell(self, place: Place) -> Cell:
        """The cell of a place."""
        west, south, east, north = self.box
        column = math.floor((place[0] - west) / (east - west) * self.columns)
        row = math.floor((place[1] - south) / (north - south) * self.rows)
        return min(max(column, 0), self.columns - 1), min(max(row, 0), self.rows - 1)

    def cells(self, region: Region) -> Iterator[Cell]:
        """Every cell that can hold a place of the region, each once, in order."""
        found = set()
        for west, south, east, north in region.boxes:
            low, high = self.cell((west, south)), self.cell((east, north))
            found |= {(c, r) for c in range(low[0], high[0] + 1) for r in range(low[1], high[1] + 1)}
        yield from sorted(found)
