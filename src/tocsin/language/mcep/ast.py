"""What does a query say that moves? Rules, an object that it follows, a range around it, and how to follow.

A *dynamic interest query* (MCEP, Section 3) is {T, mo, R, δ}: the rules T, the focal object mo, whose events are its
location updates, the range R relative to it, and the lifetime δ of what the rules find. Frozen data, as `rules` has it.

What does an operator say that is written in MCEP's window model (Section 4.2)? Windows over streams, and a function.

    stream A ─► selection window ┐
    stream B ─► selection window ┴─► correlation function ─► events, at the largest time of the selection

Frozen data; `engine.window_model` evaluates it, and a dynamic interest query may have such operators beside rules.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import combinations, pairwise

from tocsin.errors import RuleError, Span, nearest
from tocsin.events.types import Event, EventType, Kind, Value
from tocsin.language.eps.ast import Statement
from tocsin.language.syntax.ast import Parameter, Pattern, Rule, no_span
from tocsin.language.syntax.expressions import walk


class Extent(StrEnum):
    """What a window's length counts: microseconds or events."""

    TEMPORAL = "temporal"
    COUNTING = "counting"


class Shift(StrEnum):
    """Where a window goes after a correlation."""

    NONE = "none"
    HISTORY = "history"
    FUTURE = "future"


class Consumption(StrEnum):
    """What cannot be selected again: nothing, the window's events, or all up to the window's end."""

    ZERO = "zero"
    WINDOW = "window"
    BEFORE = "before"


class Edge(StrEnum):
    START = "start"
    END = "end"


@dataclass(frozen=True, slots=True)
class SelectionWindow:
    """Which events of a stream are selected. Of a temporal window only `NONE` shifts, as it is full at once."""

    stream: str
    extent: Extent
    length: int
    opens: Edge = Edge.END
    """At which edge of the restriction window it opens."""
    shift: Shift = Shift.NONE
    by: int = 1
    """By how many unconsumed events it shifts."""
    before: str | None = None
    """The stream whose window must begin after this one ends."""
    consumption: Consumption = Consumption.ZERO


Selection = Mapping[str, Sequence[Event]]
"""The events selected of each stream, in order."""


@dataclass(frozen=True, slots=True)
class WindowOperator:
    """An operator: windows, and a function that gives the attributes of what it produces from a full selection."""

    name: str
    windows: tuple[SelectionWindow, ...]
    restriction_us: int
    correlate: Callable[[Selection], Iterable[Mapping[str, Value]]]
    slide_us: int | None = None
    """By how much time the restriction window moves; None: to the next event."""
    attributes: tuple[tuple[str, Kind], ...] = ()
    """What the events that it produces have, for operators above it."""

    def __post_init__(self) -> None:
        streams = {window.stream for window in self.windows}
        if len(streams) != len(self.windows):
            raise RuleError(f"operator {self.name} has two windows over one stream")
        for window in self.windows:
            if window.length < 1 or window.by < 1:
                raise RuleError(
                    f"a window of operator {self.name} is longer than nothing and shifts by an event or more"
                )
            if window.extent is Extent.TEMPORAL and window.shift is not Shift.NONE:
                raise RuleError(f"a temporal window of operator {self.name} cannot shift within the restriction window")
        if self.restriction_us < 1 or (self.slide_us is not None and self.slide_us < 1):
            raise RuleError(f"the restriction window of operator {self.name} is longer than nothing and moves on")
        self.order()

    @property
    def emits(self) -> EventType:
        """What it produces."""
        return EventType(self.name, self.attributes)

    @property
    def uses(self) -> tuple[str, ...]:
        """The types of events that it selects from."""
        return tuple(window.stream for window in self.windows)

    @property
    def consumes(self) -> bool:
        """Whether what it finds depends on where it starts."""
        counting = any(window.extent is Extent.COUNTING and window.opens is Edge.START for window in self.windows)
        return counting or any(window.consumption is not Consumption.ZERO for window in self.windows)

    def order(self) -> list[SelectionWindow]:
        """The windows, each after the one it depends on."""
        placed: list[SelectionWindow] = []
        waiting = list(self.windows)
        while waiting:
            known = {window.stream for window in placed}
            ready = [window for window in waiting if window.before is None or window.before in known]
            if not ready:
                raise RuleError(f"the windows of operator {self.name} depend on each other, or on none there is")
            placed += ready
            waiting = [window for window in waiting if window not in ready]
        return placed

    def starting_point(self, end: int) -> int:
        """From where on inputs are needed so that nothing at or after `end` is missed (an estimate, by Lemma 1)."""
        return end - self.restriction_us


LENGTH_MAX_M = 1_000_000.0
"""How far a range can reach: beyond that no flat map of its surroundings is good."""


CORNERS_MAX = 500
"""How many corners a polygon can have: each side is compared with each."""


class Space(StrEnum):
    """What locations are: metres on a plane (`x`, `y`), or degrees on the Earth (`lon`, `lat`)."""

    PLANE = "plane"
    WGS84 = "wgs84"

    @property
    def coordinates(self) -> tuple[str, str]:
        """The attributes that hold an event's location: to the east, then to the north."""
        return ("x", "y") if self is Space.PLANE else ("lon", "lat")


class Semantics(StrEnum):
    """Weak: some maximum covering sequence. Strong: the same one for every query over a region."""

    WEAK = "weak"
    STRONG = "strong"


@dataclass(frozen=True, slots=True)
class Rectangle:
    """Its middle is the focal object; its sides run east and north."""

    width_m: float
    height_m: float


@dataclass(frozen=True, slots=True)
class Circle:
    """Its middle is the focal object."""

    radius_m: float


@dataclass(frozen=True, slots=True)
class Polygon:
    """Corners in metres to the east and to the north of the focal object, which may lie outside."""

    corners_m: tuple[tuple[float, float], ...]


Shape = Rectangle | Circle | Polygon


@dataclass(frozen=True, slots=True)
class Each:
    """Every location update begins a new range."""


@dataclass(frozen=True, slots=True)
class Timed:
    """An update begins a new range if the range is so old."""

    every_us: int


@dataclass(frozen=True, slots=True)
class Spatial:
    """An update begins a new range if the object is so far from where the range began."""

    every_m: float


Update = Each | Timed | Spatial


@dataclass(frozen=True, slots=True)
class Interest:
    """A dynamic interest query. `rules` are those that its delivered types need, and no others."""

    name: str
    delivers: tuple[str, ...]
    focal: Pattern
    shape: Shape
    rules: tuple[Rule, ...]
    space: Space = Space.PLANE
    lifetime_us: int = 0
    update: Update = Each()
    semantics: Semantics = Semantics.WEAK
    operators: tuple[WindowOperator, ...] = ()
    """Those that are written in the window model; only the overlay runs them."""
    span: Span | None = no_span()

    @property
    def parts(self) -> tuple[Rule | WindowOperator, ...]:
        """Rules and operators: all that its tree is made of."""
        return (*self.rules, *self.operators)

    @property
    def consumes(self) -> bool:
        """Whether what it finds depends on where it starts: then weak and strong semantics differ."""
        return any(rule.consuming for rule in self.rules) or any(one.consumes for one in self.operators)


def needed(
    delivers: Iterable[str],
    rules: Sequence[Statement],
    span: Span | None = None,
    operators: Sequence[WindowOperator] = (),
) -> tuple[Rule, ...]:
    """The rules that find events of these types, with those that these and operators use, in the order of the text."""
    defined = {one.emits.name for one in (*rules, *operators)}
    wanted: set[str] = set()
    waiting = list(delivers)
    for name in waiting:
        if name not in defined:
            raise RuleError(f"no rule defines {name}", span=span, hint=nearest(name, defined) if defined else None)
    while waiting:
        name = waiting.pop()
        if name in wanted or name not in defined:
            continue
        wanted.add(name)
        waiting += [use for one in (*rules, *operators) if one.emits.name == name for use in one.uses]
    found = [rule for rule in rules if rule.emits.name in wanted]
    for rule in found:
        if not isinstance(rule, Rule):
            raise RuleError(f"a query that moves is made of TESLA rules, {rule.name} is none", span=span)
    return tuple(rule for rule in found if isinstance(rule, Rule))


def check(interest: Interest) -> Interest:
    """The interest, if a query can follow it."""
    for constraint in interest.focal.constraints:
        for node in walk(constraint):
            if isinstance(node, Parameter):
                raise RuleError("a focal object is found without parameters", span=node.span or interest.focal.span)
    for name in {*interest.delivers}:
        if interest.delivers.count(name) > 1:
            raise RuleError(f"{name} is delivered twice", span=interest.span)
    match interest.shape:
        case Polygon(corners):
            _check_corners(corners, interest.span)
        case shape:
            for length in (shape.radius_m,) if isinstance(shape, Circle) else (shape.width_m, shape.height_m):
                check_length(length, interest.span)
    if isinstance(interest.update, Spatial):
        check_length(interest.update.every_m, interest.span)
    for operator in interest.operators:
        if operator.slide_us is not None:
            raise RuleError(f"operator {operator.name} of a query that moves goes on with events, not by time")
    return interest


def check_rules_alone(interests: Iterable[Interest]) -> None:
    """Fails if there is an operator of the window model, where only rules run."""
    for interest in interests:
        for operator in interest.operators:
            message = f"operator {operator.name} of {interest.name} is written in the window model"
            raise RuleError(message, hint="Such operators run in simulated sites only: write a rule.")


def check_length(length_m: float, span: Span | None = None) -> float:
    """The length, if it is longer than nothing and not beyond all maps."""
    if not 0 < length_m <= LENGTH_MAX_M:
        raise RuleError(f"a length is more than nothing and at most {LENGTH_MAX_M / 1000:g} km", span=span)
    return length_m


def _check_corners(corners: Sequence[tuple[float, float]], span: Span | None) -> None:
    if not 3 <= len(corners) <= CORNERS_MAX:
        raise RuleError(f"a polygon has 3 to {CORNERS_MAX} corners", span=span)
    if not all(math.isfinite(value) and abs(value) <= LENGTH_MAX_M for corner in corners for value in corner):
        raise RuleError(f"a corner is at most {LENGTH_MAX_M / 1000:g} km away", span=span)
    sides = list(pairwise((*corners, corners[0])))
    for (one, side), (two, other) in combinations(enumerate(sides), 2):
        joined = two - one in (1, len(sides) - 1)
        if side[0] == side[1] or other[0] == other[1] or (_cross(side, other) if not joined else _folded(side, other)):
            raise RuleError("the sides of a polygon meet only at its corners", span=span)


Side = tuple[tuple[float, float], tuple[float, float]]


def _turn(a: tuple[float, float], b: tuple[float, float], c: tuple[float, float]) -> float:
    return (b[0] - a[0]) * (c[1] - a[1]) - (b[1] - a[1]) * (c[0] - a[0])


def _cross(side: Side, other: Side) -> bool:
    """Whether two sides have a point in common."""
    signs = [_sign(_turn(*side, point)) for point in other], [_sign(_turn(*other, point)) for point in side]
    if signs[0] == [0, 0]:
        return any(_spans(side, other, axis) for axis in (0, 1)) and all(_spans(side, other, axis) for axis in (0, 1))
    return signs[0][0] * signs[0][1] <= 0 and signs[1][0] * signs[1][1] <= 0


def _spans(side: Side, other: Side, axis: int) -> bool:
    low, high = sorted(point[axis] for point in side)
    return max(low, min(point[axis] for point in other)) <= min(high, max(point[axis] for point in other))


def _folded(side: Side, other: Side) -> bool:
    """Whether of two sides with a common corner one lies on the other."""
    (shared,) = {*side} & {*other} if len({*side} & {*other}) == 1 else (None,)
    if shared is None:
        return True
    one, two = (next(point for point in ends if point != shared) for ends in (side, other))
    ahead = (one[0] - shared[0]) * (two[0] - shared[0]) + (one[1] - shared[1]) * (two[1] - shared[1])
    return _turn(shared, one, two) == 0 and ahead > 0


def _sign(value: float) -> int:
    return (value > 0) - (value < 0)
