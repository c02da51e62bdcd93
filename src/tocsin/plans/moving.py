"""Of what is a query that moves made? Its operator tree: a rule for each path from what is delivered to primary events,
or an operator of the window model.

    delivery ◄─ rule ◄─ rule ◄─ primary events of the range

`ranged` writes its rules so that many ranges run side by side in one detector: each event comes once for each range
that it lies in, with the range's number, and all events of a match have the same number.

Where is a range, and what lies in it? Shapes laid around a place, on a plane or on the Earth.

On the Earth a shape is laid on a flat map of the surroundings of its focal object: degrees times the length of a degree
there. At 50° north, distances from the object on that map are right to a centimetre at 500 m, to 4 m at 10 km. Circles
are great circles (haversine) on a sphere of the Earth's mean radius. Borders belong to a region.
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


RANGE = "\0range"
"""The attribute of events and composite events with the number of the range."""
AGE = "\0age"
"""How much later than the first moment of the range's lifetime they are, where it matters from when on a rule sees."""


@dataclass(frozen=True)
class Operator:
    """A rule or operator of the window model at one place of the tree, or the delivery at its root, which has none."""

    key: str
    """The path from the root: unique in a query."""
    rule: Rule | WindowOperator | None
    children: tuple[Operator, ...]
    sources: tuple[str, ...]
    """The types of primary events that it sees."""

    def walk(self) -> Iterator[Operator]:
        """It and all below it."""
        yield self
        for child in self.children:
            yield from child.walk()

    @cached_property
    def restriction_us(self) -> int:
        """The restriction window: the longest of `reaches_us`."""
        if isinstance(self.rule, WindowOperator):
            return self.rule.restriction_us
        return max(1, *self.reaches_us.values()) if self.rule else 0

    @cached_property
    def reaches_us(self) -> Mapping[str, int]:
        """How far behind its anchor it looks for events of each type."""
        assert self.rule is not None
        if isinstance(self.rule, WindowOperator):
            return dict.fromkeys(self.rule.uses, self.rule.restriction_us)
        back = {self.rule.anchor.role: 0}
        reaches = {self.rule.anchor.type: 0}
        for clause in self.rule.clauses:
            scope = clause.scope
            reach = back[scope.origin] + scope.window_us if isinstance(scope, Within) else back[scope.start]
            if isinstance(clause, Selection):
                back[clause.pattern.role] = reach
            reaches[clause.pattern.type] = max(reach, reaches.get(clause.pattern.type, 0))
        return reaches

    @cached_property
    def windows_us(self) -> int:
        """The longest sum of restriction windows from here down to a source."""
        return self.restriction_us + max((child.windows_us for child in self.children), default=0)

    @cached_property
    def preserves_locality(self) -> bool:
        """Whether more input never means that something is not found: `each` selections all the way down."""
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
    """The operators of a query: its delivery, and under it a rule for each path."""

    def of_types(types: Iterable[str], path: str) -> tuple[Operator, ...]:
        return tuple(of_rule(rule, path) for type in types for rule in interest.parts if rule.emits.name == type)

    def of_rule(rule: Rule | WindowOperator, path: str) -> Operator:
        key = f"{path}/{rule.name}"
        uses = tuple(dict.fromkeys(rule.uses))
        return Operator(key, rule, of_types(uses, key), tuple(use for use in uses if use not in defined))

    defined = {rule.emits.name for rule in interest.parts}
    return Operator(interest.name, None, of_types(interest.delivers, interest.name), ())


def reaches_us(root: Operator) -> dict[str, int]:
    """How far behind the first moment of what is delivered each type of primary events is needed: refined points."""
    found: dict[str, int] = {}

    def visit(operator: Operator, back: int) -> None:
        for type, reach in operator.reaches_us.items():
            needed = back + reach if back else max(1, reach)
            if type in operator.sources:
                found[type] = max(needed, found.get(type, 0))
            for child in operator.children:
                if child.rule is not None and child.rule.emits.name == type:
                    visit(child, needed)

    for child in root.children:
        visit(child, 0)
    return found


def shared(interests: Iterable[Interest]) -> dict[Interest, tuple[str, ...]]:
    """Queries of which one can do the work for others: these names follow the same object in the same way."""
    found: dict[Interest, list[str]] = {}
    first: dict[Interest, Interest] = {}
    for interest in interests:
        one = first.setdefault(replace(interest, name=""), interest)
        found.setdefault(one, [])
        if one is not interest:
            found[one].append(interest.name)
    return {one: tuple(names) for one, names in found.items()}


def is_exact(interest: Interest) -> bool:
    """Whether answers depend on where operators start, so that points are not refined and all start anew."""
    return interest.consumes


def is_strong(interest: Interest) -> bool:
    """Whether ranges start at quiet points."""
    return interest.consumes and interest.semantics is Semantics.STRONG


def ranged(interest: Interest) -> tuple[Rule, ...]:
    """The rules of a query, for events that have the number of their range.

    Where rules consume, it matters from when on each sees events: then each operator of the tree is a rule of its own,
    that sees no more than its restriction windows reach. The types that it defines say whose they are.
    """
    if not interest.consumes:
        return tuple(_ranged(rule, rule.name, rule.emits.name, {}, ()) for rule in interest.rules)
    root = tree(interest)
    found: list[Rule] = []

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
        found.append(_ranged(rule, f"{rule.name}{WITHIN}{operator.key}", emits, own, (seen,)))
        for child in operator.children:
            visit(child, operator, reach_us)

    for child in root.children:
        visit(child, root, 0)
    return tuple(found)


def delivered(interest: Interest) -> tuple[str, ...]:
    """The types that a query delivers, as `ranged` calls them."""
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
