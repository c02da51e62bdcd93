"""Define the syntax tree of interests, and the operators of MCEP's window model.

An *interest*, or *dynamic interest query* (MCEP, Section 3), is {T, mo, R, δ}. T are the rules. The *focal object* mo
is the object that the query follows, and its events are location updates. The *range* R is the region around the focal
object at one location. δ is the lifetime of matches.

An interest can have operators of the window model (Section 4.2) in addition to rules. A *restriction window* slides
over all streams of an operator. Inside it, a *selection window* over each stream selects events. When all selection
windows are full, a correlation function produces events from the selection:

    stream A ─► selection window ┐
    stream B ─► selection window ┴─► correlation function ─► events, at the largest time of the selection
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


class WindowUnit(StrEnum):
    """The unit of the length of a selection window: microseconds (temporal) or a number of events (counting)."""

    TEMPORAL = "temporal"
    COUNTING = "counting"


class Shift(StrEnum):
    """How a selection window moves after a correlation: not at all, to earlier events, or to later events."""

    NONE = "none"
    HISTORY = "history"
    FUTURE = "future"


class Consumption(StrEnum):
    """Which events of its stream a window cannot select again after a correlation.

    These are no events, the events in the window, or all events up to the last event in the window.
    """

    ZERO = "zero"
    WINDOW = "window"
    BEFORE = "before"


class Edge(StrEnum):
    START = "start"
    END = "end"


@dataclass(frozen=True, slots=True)
class SelectionWindow:
    """A selection window of an operator, which selects events of one stream.

    A temporal window is always full, so its shift must be `NONE`.
    """

    stream: str
    extent: WindowUnit
    length: int
    opens: Edge = Edge.END
    """The edge of the restriction window at which the selection window opens."""
    shift: Shift = Shift.NONE
    by: int = 1
    """The number of events by which the window shifts. Consumed events are not counted."""
    before: str | None = None
    """The stream of another window, which must begin after the end of this window."""
    consumption: Consumption = Consumption.ZERO


Selection = Mapping[str, Sequence[Event]]
"""The selected events of each stream, by the name of the stream. The events are in order."""


@dataclass(frozen=True, slots=True)
class WindowOperator:
    """An operator of the window model.

    For each selection, `correlate` returns the attributes of the events that the operator produces.
    """

    name: str
    windows: tuple[SelectionWindow, ...]
    restriction_us: int
    correlate: Callable[[Selection], Iterable[Mapping[str, Value]]]
    slide_us: int | None = None
    """The time (µs) by which the restriction window moves. If it is None, the window moves to the next event."""
    attributes: tuple[tuple[str, Kind], ...] = ()
    """The names and kinds of the attributes of produced events. Other operators that use these events need them."""

    def __post_init__(self) -> None:
        streams = {window.stream for window in self.windows}
        if len(streams) != len(self.windows):
            raise RuleError(f"operator {self.name} has two windows over one stream")
        for window in self.windows:
            if window.length < 1 or window.by < 1:
                raise RuleError(f"a window of operator {self.name} needs a length and a shift of at least 1")
            if window.extent is WindowUnit.TEMPORAL and window.shift is not Shift.NONE:
                raise RuleError(f"a temporal window of operator {self.name} cannot shift within the restriction window")
        if self.restriction_us < 1 or (self.slide_us is not None and self.slide_us < 1):
            raise RuleError(f"the restriction window of operator {self.name} needs a positive length and slide")
        self.order()

    @property
    def emits(self) -> EventType:
        """The type of the events that the operator produces."""
        return EventType(self.name, self.attributes)

    @property
    def uses(self) -> tuple[str, ...]:
        """The names of the event types that the operator selects."""
        return tuple(window.stream for window in self.windows)

    @property
    def consumes(self) -> bool:
        """Whether the output of the operator depends on the event at which it starts."""
        counting = any(window.extent is WindowUnit.COUNTING and window.opens is Edge.START for window in self.windows)
        return counting or any(window.consumption is not Consumption.ZERO for window in self.windows)

    def order(self) -> list[SelectionWindow]:
        """Return the selection windows, each after the window that it depends on (`before`)."""
        ordered: list[SelectionWindow] = []
        waiting = list(self.windows)
        while waiting:
            known = {window.stream for window in ordered}
            ready = [window for window in waiting if window.before is None or window.before in known]
            if not ready:
                raise RuleError(f"the windows of operator {self.name} have a cyclic or an unknown dependency")
            ordered += ready
            waiting = [window for window in waiting if window not in ready]
        return ordered

    def starting_point(self, end: int) -> int:
        """Return the time of the earliest input that the output at or after `end` can need.

        This is an estimate by Lemma 1 of the paper.
        """
        return end - self.restriction_us


LENGTH_MAX_M = 1_000_000.0
"""The maximum length in a range (m). It is limited because a plane does not approximate larger areas well."""


CORNERS_MAX = 500
"""The maximum number of corners of a polygon. It is limited because each pair of sides is compared."""


class Space(StrEnum):
    """The coordinate system of events: metres on a plane (`x`, `y`), or degrees on the Earth (`lon`, `lat`)."""

    PLANE = "plane"
    WGS84 = "wgs84"

    @property
    def coordinates(self) -> tuple[str, str]:
        """The names of the two attributes with the location of an event: first east, then north."""
        return ("x", "y") if self is Space.PLANE else ("lon", "lat")


class Semantics(StrEnum):
    """Which maximum covering sequence a query gets for a range.

    The covering sequence has the matches that are delivered for the range. With weak semantics it can be any maximum
    covering sequence. With strong semantics it is the same sequence for every query over the region.
    """

    WEAK = "weak"
    STRONG = "strong"


@dataclass(frozen=True, slots=True)
class Rectangle:
    """A rectangle with the focal object in its centre.

    `width_m` is the length from west to east, and `height_m` is the length from south to north.
    """

    width_m: float
    height_m: float


@dataclass(frozen=True, slots=True)
class Circle:
    """A circle with the focal object in its centre."""

    radius_m: float


@dataclass(frozen=True, slots=True)
class Polygon:
    """A polygon. The focal object can be outside of the polygon.

    Each corner is in metres to the east and to the north of the focal object.
    """

    corners_m: tuple[tuple[float, float], ...]


Shape = Rectangle | Circle | Polygon


@dataclass(frozen=True, slots=True)
class Each:
    """The update rule by which every location update starts a new range."""


@dataclass(frozen=True, slots=True)
class Timed:
    """The update rule by which a location update starts a new range if the current range is at least `every_us` old."""

    every_us: int


@dataclass(frozen=True, slots=True)
class Spatial:
    """The update rule by which a location update starts a new range if the focal object has moved far enough.

    It must have moved at least `every_m` since the current range started.
    """

    every_m: float


Update = Each | Timed | Spatial


@dataclass(frozen=True, slots=True)
class Interest:
    """An interest (a dynamic interest query). `rules` are exactly the rules that the types in `delivers` need."""

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
    """The operators of the window model. Only the overlay, which simulates sites, supports them."""
    span: Span | None = no_span()

    @property
    def parts(self) -> tuple[Rule | WindowOperator, ...]:
        """The rules and operators of the interest, which are the nodes of its operator tree."""
        return (*self.rules, *self.operators)

    @property
    def consumes(self) -> bool:
        """Whether the matches of a range depend on where a run starts, so that weak and strong semantics differ."""
        return any(rule.consuming for rule in self.rules) or any(one.consumes for one in self.operators)


def needed(
    delivers: Iterable[str],
    rules: Sequence[Statement],
    span: Span | None = None,
    operators: Sequence[WindowOperator] = (),
) -> tuple[Rule, ...]:
    """Return the rules that the types `delivers` need, in the order of the text.

    These are the rules that define the types, and all rules that those rules or `operators` use in turn.
    """
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
    needed_rules = [rule for rule in rules if rule.emits.name in wanted]
    for rule in needed_rules:
        if not isinstance(rule, Rule):
            raise RuleError(f"an interest can only use TESLA rules, {rule.name} is not one", span=span)
    return tuple(rule for rule in needed_rules if isinstance(rule, Rule))


def check(interest: Interest) -> Interest:
    """Return `interest`. Raise if `interest` is not valid."""
    for constraint in interest.focal.constraints:
        for node in walk(constraint):
            if isinstance(node, Parameter):
                raise RuleError("a focal object cannot have parameters", span=node.span or interest.focal.span)
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
            raise RuleError(f"operator {operator.name} of an interest cannot slide by time")
    return interest


def check_rules_alone(interests: Iterable[Interest]) -> None:
    """Raise if an interest has an operator of the window model. Engines that run only rules call this."""
    for interest in interests:
        for operator in interest.operators:
            message = f"operator {operator.name} of {interest.name} uses the window model"
            raise RuleError(message, hint="Such operators run in simulated sites only: write a rule.")


def check_length(length_m: float, span: Span | None = None) -> float:
    """Return `length_m`. Raise if `length_m` is not positive or too large."""
    if not 0 < length_m <= LENGTH_MAX_M:
        raise RuleError(f"a length must be positive and at most {LENGTH_MAX_M / 1000:g} km", span=span)
    return length_m


def _check_corners(corners: Sequence[tuple[float, float]], span: Span | None) -> None:
    if not 3 <= len(corners) <= CORNERS_MAX:
        raise RuleError(f"a polygon has 3 to {CORNERS_MAX} corners", span=span)
    if not all(math.isfinite(value) and abs(value) <= LENGTH_MAX_M for corner in corners for value in corner):
        raise RuleError(f"a corner is at most {LENGTH_MAX_M / 1000:g} km away", span=span)
    sides = list(pairwise((*corners, corners[0])))
    for (one, side), (two, other) in combinations(enumerate(sides), 2):
        joined = two - one in (1, len(sides) - 1)
        if side[0] == side[1] or other[0] == other[1] or (_cross(side, other) if not joined else _overlap(side, other)):
            raise RuleError("the sides of a polygon can meet only at its corners", span=span)


Side = tuple[tuple[float, float], tuple[float, float]]


def _turn(a: tuple[float, float], b: tuple[float, float], c: tuple[float, float]) -> float:
    return (b[0] - a[0]) * (c[1] - a[1]) - (b[1] - a[1]) * (c[0] - a[0])


def _cross(side: Side, other: Side) -> bool:
    """Return whether two sides have a common point."""
    signs = [_sign(_turn(*side, point)) for point in other], [_sign(_turn(*other, point)) for point in side]
    if signs[0] == [0, 0]:
        return any(_spans(side, other, axis) for axis in (0, 1)) and all(_spans(side, other, axis) for axis in (0, 1))
    return signs[0][0] * signs[0][1] <= 0 and signs[1][0] * signs[1][1] <= 0


def _spans(side: Side, other: Side, axis: int) -> bool:
    low, high = sorted(point[axis] for point in side)
    return max(low, min(point[axis] for point in other)) <= min(high, max(point[axis] for point in other))


def _overlap(side: Side, other: Side) -> bool:
    """Return whether two sides with a common corner overlap."""
    (shared,) = {*side} & {*other} if len({*side} & {*other}) == 1 else (None,)
    if shared is None:
        return True
    one, two = (next(point for point in ends if point != shared) for ends in (side, other))
    ahead = (one[0] - shared[0]) * (two[0] - shared[0]) + (one[1] - shared[1]) * (two[1] - shared[1])
    return _turn(shared, one, two) == 0 and ahead > 0


def _sign(value: float) -> int:
    return (value > 0) - (value < 0)
