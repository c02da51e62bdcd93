"""Compute the initialisation points of moving queries, and the operators that a move affects (MCEP, Section 5.1).

A *range* is the region of interest while the moving (focal) object is at one location. An *initialisation point*, or
point, is a time: for a new range, an operator needs the inputs that are later than its point. Lemma 1 gives the point
from which a source must stream events, and Lemma 2 the operators that a move of the range affects. A *quiescent point*
is a time before which the region had no events for the length of all windows together.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tocsin.events.types import Event
from tocsin.language.mcep.ast import Each, Interest, Spatial, Timed
from tocsin.plans.moving import Coordinates, Operator, Region, coordinates_of, distance_m

BusyInterval = tuple[int, int]
"""The first and the last time of the events between two quiescent points."""


def lemma_1(start: int, lifetime_us: int, restrictions_us: Iterable[int]) -> int:
    """Return the latest point from which a source may stream events for a range that starts at `start`.

    `restrictions_us` are the restriction windows of the operators on the path from the source to the root: how far each
    operator looks back from its anchor.

    >>> lemma_1(1000, 100, [30, 20])
    850
    """
    return start - lifetime_us - sum(restrictions_us)


def lemma_2(
    events: Iterable[tuple[Event, Coordinates]],
    types: Sequence[str],
    old: Region | None,
    new: Region | None,
    after: int,
) -> bool:
    """Return whether the move from the region `old` to `new` affects an operator that uses `types`.

    It does if an event of these types, later than the point `after`, lies in exactly one of the two regions.
    """
    for event, location in events:
        if event.ts > after and event.type in types:
            was, is_now = old is not None and old.contains(location), new is not None and new.contains(location)
            if was != is_now:
                return True
    return False


def refine_points(operator: Operator, first: int, *, exact: bool, point: int | None = None) -> dict[str, int]:
    """Return the point of each type that an operator uses.

    `first` is the earliest time of the matches that are delivered for the range. `point` is the point from which the
    parent needs the operator's own events, or None for an operator directly below the root. If answers depend on the
    start (`exact`), each type needs the whole restriction window; otherwise its own time bound is enough.
    """
    if operator.rule is None:
        return {child.rule.emits.name: first - 1 for child in operator.children if child.rule is not None}
    base = first if point is None else point
    least = 1 if point is None else 0
    whole = operator.restriction_us
    return {type: base - (whole if exact else max(least, reach)) for type, reach in operator.lookback_us.items()}


def initialisation_points(
    root: Operator, first: int, *, exact: bool, quiet: int | None = None
) -> dict[str, dict[str, int]]:
    """Return the points of all operators in a tree, by the operator's key and by type.

    If there is a quiescent point (`quiet`), it is the point of all operators.
    """
    found: dict[str, dict[str, int]] = {}

    def visit(operator: Operator, point: int | None) -> None:
        own = refine_points(operator, first, exact=exact, point=point)
        found[operator.key] = own if quiet is None else dict.fromkeys(own, quiet)
        for child in operator.children:
            assert child.rule is not None
            visit(child, found[operator.key].get(child.rule.emits.name) if operator.rule else None)

    visit(root, None)
    return found


def busy_intervals(times: Iterable[int], windows_us: int) -> tuple[BusyInterval, ...]:
    """Merge sorted event times into intervals with gaps longer than `windows_us` between them.

    >>> busy_intervals([1, 4, 20], 5)
    ((1, 4), (20, 20))
    """
    found: list[BusyInterval] = []
    for ts in times:
        if found and ts - found[-1][1] <= windows_us:
            found[-1] = (found[-1][0], ts)
        else:
            found.append((ts, ts))
    return tuple(found)


def quiescent_point(busy: Iterable[BusyInterval], latest: int, windows_us: int) -> int:
    """Return the latest point, at most `latest`, before which there were no events for `windows_us`."""
    point = latest
    for low, high in sorted(busy, reverse=True):
        if low <= point < high + windows_us:
            point = low - 1
    return point


@dataclass
class FocalObject:
    """The object that a query follows; it starts a new range when the query's update condition is met.

    `last` has the time and the location of the update that started the last range, and `number` is its number.
    """

    interest: Interest
    last: tuple[int, Coordinates] | None = None
    number: int = 0

    def moved(self, event: Event) -> tuple[int, int, Coordinates] | None:
        """Return number, start and location of the range that a location update starts, or None if it starts none."""
        location = coordinates_of(event.attributes, self.interest.space)
        if location is None or (self.last is not None and not self._far(event.ts, location)):
            return None
        self.last = (event.ts, location)
        self.number += 1
        return self.number, event.ts, location

    def _far(self, ts: int, location: Coordinates) -> bool:
        assert self.last is not None
        match self.interest.update:
            case Timed(every_us):
                return ts >= self.last[0] + every_us
            case Spatial(every_m):
                return distance_m(location, self.last[1], self.interest.space) >= every_m
            case Each():
                return True
