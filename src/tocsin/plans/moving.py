"""Plan moving queries (*interests*): their operator trees, their rules over ranges, and the geometry of ranges.

A moving query evaluates rules on the events around a moving *focal object*. A *range* is the region around the object
while the object is at one position.

The operator tree of a query has a rule, or an operator of the window model, for each path from a type that the query
delivers to primary events:

    delivery ◄─ rule ◄─ rule ◄─ primary events of the range

`ranged` rewrites the rules so that one detector can evaluate many ranges. Each event is given to the detector once for
each range that contains it, with the number of the range. All events of a match must have the same number.

A `Region` is a shape around a centre, on a plane or on the Earth. On the Earth, a shape is mapped to a plane around its
centre, by multiplying degrees with the length of a degree at the centre. At 50° north, distances from the centre on
this plane are exact to a centimetre at 500 m, and to 4 m at 10 km. Circles use great-circle distances (haversine) on a
sphere of the Earth's mean radius. A region includes its border.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from tocsin.events.types import EventType, Kind, Value
from tocsin.language.eps.ast import WITHIN
from tocsin.language.mcep.ast import Circle, Interest, Polygon, Rectangle, Semantics, Shape, Space, WindowOperator
from tocsin.language.syntax.ast import (
    Attribute,
    Clause,
    Comparison,
    Expression,
    Literal,
    Parameter,
    Pattern,
    Policy,
    Rule,
    Selection,
    Within,
)

EARTH_RADIUS_M = 6_371_008.8
DEGREE_M = math.radians(EARTH_RADIUS_M)
"""The length of a degree of latitude in metres."""

Coordinates = tuple[float, float]
"""The coordinates of a point to the east and to the north: metres on a plane, or longitude and latitude."""
Box = tuple[float, float, float, float]
"""A box, given by the coordinates of its west, south, east and north sides."""


def coordinates_of(attributes: Mapping[str, Value], space: Space) -> Coordinates | None:
    """Return the coordinates in the attributes of an event; None if they are missing or invalid."""
    east, north = (attributes.get(name) for name in space.coordinates)
    if isinstance(east, bool) or isinstance(north, bool):
        return None
    if not isinstance(east, int | float) or not isinstance(north, int | float):
        return None
    if space is Space.WGS84 and not (-180 <= east <= 180 and -90 <= north <= 90):
        return None
    return float(east), float(north)


def distance_m(one: Coordinates, two: Coordinates, space: Space) -> float:
    """Return the distance between two points in metres.

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
    """A region, which is a shape around a centre."""

    shape: Shape
    centre: Coordinates
    space: Space = Space.PLANE

    def contains(self, point: Coordinates) -> bool:
        """Return whether `point` is in the region or on its border.

        >>> Region(Rectangle(10, 4), (100, 100)).contains((105, 102))
        True
        """
        if isinstance(self.shape, Circle):
            return distance_m(self.centre, point, self.space) <= self.shape.radius_m
        east, north = self.offset(point)
        if isinstance(self.shape, Rectangle):
            return 2 * abs(east) <= self.shape.width_m and 2 * abs(north) <= self.shape.height_m
        return _inside(self.shape, east, north)

    def offset(self, point: Coordinates) -> Coordinates:
        """Return how far `point` is to the east and to the north of the centre, in metres."""
        east, north = point[0] - self.centre[0], point[1] - self.centre[1]
        if self.space is Space.PLANE:
            return east, north
        return _wrap_longitude(east) * DEGREE_M * self._shrinking, north * DEGREE_M

    @cached_property
    def boxes(self) -> tuple[Box, ...]:
        """The boxes that cover the region, in the coordinates of events: two boxes if it crosses longitude 180."""
        west, south, east, north = self._extent
        x, y = self.centre
        if self.space is Space.PLANE:
            return ((x + west, y + south, x + east, y + north),)
        # A great circle extends a little beyond a circle on the plane, and rounding must not lose points.
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
    def outline(self) -> tuple[Coordinates, ...]:
        """The corners of the region on a plane, for pictures. A circle is approximated by 48 corners."""
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


def _wrap_longitude(degrees: float) -> float:
    """Convert a difference of longitudes to the equal difference between -180 and 180 degrees."""
    return (degrees + 180.0) % 360.0 - 180.0 if abs(degrees) > 180 else degrees


def _inside(polygon: Polygon, east: float, north: float) -> bool:
    """Return whether a point is in `polygon` or on one of its sides.

    `east` and `north` are the offsets of the point from the centre, in metres. The point is inside if a ray from it to
    the east crosses an odd number of sides.
    """
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
"""The column and the row of a cell."""


@dataclass(frozen=True)
class Grid:
    """A grid of cells in a box. A point outside the box belongs to the nearest cell, so every point has a cell.

    >>> grid = Grid((0, 0, 100, 100), 4, 4)
    >>> grid.cell((30, 99)), grid.cell((-5, 1000))
    ((1, 3), (0, 3))
    """

    box: Box
    columns: int
    rows: int

    def cell(self, point: Coordinates) -> Cell:
        """Return the cell to which `point` belongs."""
        west, south, east, north = self.box
        column = math.floor((point[0] - west) / (east - west) * self.columns)
        row = math.floor((point[1] - south) / (north - south) * self.rows)
        return min(max(column, 0), self.columns - 1), min(max(row, 0), self.rows - 1)

    def cells(self, region: Region) -> Iterator[Cell]:
        """Yield the cells that can contain points of `region`, in order and without duplicates."""
        cells = set()
        for west, south, east, north in region.boxes:
            low, high = self.cell((west, south)), self.cell((east, north))
            cells |= {(c, r) for c in range(low[0], high[0] + 1) for r in range(low[1], high[1] + 1)}
        yield from sorted(cells)


RANGE = "\0range"
"""The attribute with the number of the range, in primary and composite events."""
AGE = "\0age"
"""The attribute with the time since the start of the range's lifetime, for queries that consume."""


@dataclass(frozen=True)
class Operator:
    """A node of the operator tree of a query: a rule, or an operator of the window model.

    The root of the tree is the delivery of the query, which has no rule.
    """

    key: str
    """The path from the root to the operator, which is unique in a query."""
    rule: Rule | WindowOperator | None
    children: tuple[Operator, ...]
    sources: tuple[str, ...]
    """The types of primary events that the operator reads."""

    def walk(self) -> Iterator[Operator]:
        """Yield this operator and all of its descendants."""
        yield self
        for child in self.children:
            yield from child.walk()

    @cached_property
    def restriction_us(self) -> int:
        """The length of the restriction window, which is the largest value of `lookback_us`, in microseconds."""
        if isinstance(self.rule, WindowOperator):
            return self.rule.restriction_us
        return max(1, *self.lookback_us.values()) if self.rule else 0

    @cached_property
    def lookback_us(self) -> Mapping[str, int]:
        """How much older than the anchor an event of a match can be, in microseconds, by type of the event."""
        assert self.rule is not None
        if isinstance(self.rule, WindowOperator):
            return dict.fromkeys(self.rule.uses, self.rule.restriction_us)
        back = {self.rule.anchor.role: 0}
        lookbacks = {self.rule.anchor.type: 0}
        for clause in self.rule.clauses:
            scope = clause.scope
            lookback = back[scope.origin] + scope.window_us if isinstance(scope, Within) else back[scope.start]
            if isinstance(clause, Selection):
                back[clause.pattern.role] = lookback
            lookbacks[clause.pattern.type] = max(lookback, lookbacks.get(clause.pattern.type, 0))
        return lookbacks

    @cached_property
    def windows_us(self) -> int:
        """The largest sum of restriction windows (µs) on a path from this operator to its sources."""
        return self.restriction_us + max((child.windows_us for child in self.children), default=0)

    @cached_property
    def preserves_locality(self) -> bool:
        """Whether additional events never remove matches, because all rules in this subtree use only `each`."""
        if isinstance(self.rule, WindowOperator):
            return False
        clauses = self.rule.clauses if self.rule else ()
        grows = all(isinstance(clause, Selection) and clause.policy is Policy.EACH for clause in clauses)
        return (
            grows
            and not (self.rule and self.rule.consuming)
            and all(child.preserves_locality for child in self.children)
        )


def tree(interest: Interest) -> Operator:
    """Return the root of the operator tree of a query."""

    def of_types(types: Iterable[str], path: str) -> tuple[Operator, ...]:
        return tuple(of_rule(rule, path) for type in types for rule in interest.parts if rule.emits.name == type)

    def of_rule(rule: Rule | WindowOperator, path: str) -> Operator:
        key = f"{path}/{rule.name}"
        uses = tuple(dict.fromkeys(rule.uses))
        return Operator(key, rule, of_types(uses, key), tuple(use for use in uses if use not in defined))

    defined = {rule.emits.name for rule in interest.parts}
    return Operator(interest.name, None, of_types(interest.delivers, interest.name), ())


def lookback_us(root: Operator) -> dict[str, int]:
    """Return how long before the first delivered event (µs) primary events are needed, by type.

    These are the refined starting points of operators.
    """
    lookbacks: dict[str, int] = {}

    def visit(operator: Operator, back: int) -> None:
        for type, lookback in operator.lookback_us.items():
            needed = back + lookback if back else max(1, lookback)
            if type in operator.sources:
                lookbacks[type] = max(needed, lookbacks.get(type, 0))
            for child in operator.children:
                if child.rule is not None and child.rule.emits.name == type:
                    visit(child, needed)

    for child in root.children:
        visit(child, 0)
    return lookbacks


def shared(interests: Iterable[Interest]) -> dict[Interest, tuple[str, ...]]:
    """Group queries that differ only in their name.

    Return the first query of each group, with the names of the other queries in the group.
    """
    groups: dict[Interest, list[str]] = {}
    first: dict[Interest, Interest] = {}
    for interest in interests:
        one = first.setdefault(replace(interest, name=""), interest)
        groups.setdefault(one, [])
        if one is not interest:
            groups[one].append(interest.name)
    return {one: tuple(names) for one, names in groups.items()}


def is_exact(interest: Interest) -> bool:
    """Return whether the starting points of operators must not be refined, because matches depend on them."""
    return interest.consumes


def is_strong(interest: Interest) -> bool:
    """Return whether the ranges of a query must start at quiescent points (strong semantics)."""
    return interest.consumes and interest.semantics is Semantics.STRONG


def ranged(interest: Interest) -> tuple[Rule, ...]:
    """Return the rules of a query, rewritten for events that have the number of their range.

    If rules consume, matches depend on the first event that each operator reads. So each operator of the tree becomes
    a separate rule with types of its own, which reads only the events in its restriction windows.
    """
    if not interest.consumes:
        return tuple(_ranged(rule, rule.name, rule.emits.name, {}, ()) for rule in interest.rules)
    root = tree(interest)
    rules: list[Rule] = []

    def visit(operator: Operator, parent: Operator, reach_us: int) -> None:
        rule = operator.rule
        assert isinstance(rule, Rule)
        reach_us += operator.restriction_us
        seen: Expression = Comparison(">", Attribute(AGE), Literal(-reach_us, Kind.LONG))
        own = {
            child.rule.emits.name: f"{child.rule.emits.name}{WITHIN}{operator.key}"
            for child in operator.children
            if child.rule
        }
        emits = f"{rule.emits.name}{WITHIN}{parent.key}"
        rules.append(_ranged(rule, f"{rule.name}{WITHIN}{operator.key}", emits, own, (seen,)))
        for child in operator.children:
            visit(child, operator, reach_us)

    for child in root.children:
        visit(child, root, 0)
    return tuple(rules)


def delivered(interest: Interest) -> tuple[str, ...]:
    """Return the types that a query delivers, by their names in the rules from `ranged`."""
    return tuple(f"{name}{WITHIN}{interest.name}" if interest.consumes else name for name in interest.delivers)


def _ranged(rule: Rule, name: str, emits: str, types: Mapping[str, str], tests: tuple[Expression, ...]) -> Rule:
    joined: Expression = Comparison("=", Attribute(RANGE), Parameter(RANGE))

    def pattern(one: Pattern, alias: str | None) -> Pattern:
        constraints = (*one.constraints, joined, *tests)
        return replace(one, type=types.get(one.type, one.type), constraints=constraints, alias=alias)

    clauses: tuple[Clause, ...] = tuple(
        replace(clause, pattern=pattern(clause.pattern, clause.pattern.role if isinstance(clause, Selection) else None))
        for clause in rule.clauses
    )
    more: list[tuple[str, Expression]] = [(RANGE, Parameter(RANGE))]
    more += [(AGE, Attribute(AGE, rule.anchor.role))] if tests else []
    kinds = (*rule.emits.attributes, *((attribute, Kind.LONG) for attribute, _ in more))
    return replace(
        rule,
        name=name,
        emits=EventType(emits, kinds),
        anchor=pattern(rule.anchor, rule.anchor.role),
        clauses=clauses,
        where=(*rule.where, *more),
    )
