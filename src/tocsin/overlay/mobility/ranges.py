"""What does a query that moves ask of its operators? Initialisation points, and who must be told.

*Points* are exclusive: an input is needed if it is later. Lemma 1 says
from which point a source must stream, Lemma 2 whom a move of the range concerns (MCEP, Section 5.1).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tocsin.events.types import Event
from tocsin.language.mcep.ast import Each, Interest, Spatial, Timed
from tocsin.plans.moving import Operator, Place, Region, distance_m, place_of

Stretch = tuple[int, int]
"""First and last time of events that follow each other without a quiet point in between."""


def lemma_1(start: int, lifetime_us: int, restrictions_us: Iterable[int]) -> int:
    """The latest point from which a source may stream into a range: its restriction windows are those on its path.

    >>> lemma_1(1000, 100, [30, 20])
    850
    """
    return start - lifetime_us - sum(restrictions_us)


def lemma_2(
    events: Iterable[tuple[Event, Place]], types: Sequence[str], old: Region | None, new: Region | None, after: int
) -> bool:
    """Whether a move of the range concerns an operator that sees these types: some event of the symmetric difference,
    later than its point, comes or goes."""
    for event, place in events:
        if event.ts > after and event.type in types:
            was, is_now = old is not None and old.contains(place), new is not None and new.contains(place)
            if was != is_now:
                return True
    return False


def refined(operator: Operator, first: int, *, exact: bool, point: int | None = None) -> dict[str, int]:
    """For each type that an operator sees, the point from which it needs it.

    `first` is the first time of what is delivered, `point` that from which the operator's own events are needed, None
    at the root. `exact`: where answers depend on where one starts, each gets the whole restriction window; elsewhere
    each type's own reach is enough.
    """
    if operator.rule is None:
        return {child.rule.emits.name: first - 1 for child in operator.children if child.rule is not None}
    base = first if point is None else point
    least = 1 if point is None else 0
    whole = operator.restriction_us
    return {type: base - (whole if exact else max(least, reach)) for type, reach in operator.reaches_us.items()}


def points(root: Operator, first: int, *, exact: bool, quiet: int | None = None) -> dict[str, dict[str, int]]:
    """Every operator's points, by its key: what a Collect comes to on its way down."""
    found: dict[str, dict[str, int]] = {}

    def visit(operator: Operator, point: int | None) -> None:
        own = refined(operator, first, exact=exact, point=point)
        found[operator.key] = own if quiet is None else dict.fromkeys(own, quiet)
        for child in operator.children:
            assert child.rule is not None
            visit(child, found[operator.key].get(child.rule.emits.name) if operator.rule else None)

    visit(root, None)
    return found


def stretches(times: Iterable[int], windows_us: int) -> tuple[Stretch, ...]:
    """Sorted times as stretches between which there are quiet points.

    >>> stretches([1, 4, 20], 5)
    ((1, 4), (20, 20))
    """
    found: list[Stretch] = []
    for ts in times:
        if found and ts - found[-1][1] <= windows_us:
            found[-1] = (found[-1][0], ts)
        else:
            found.append((ts, ts))
    return tuple(found)


def quiet(busy: Iterable[Stretch], latest: int, windows_us: int) -> int:
    """The latest point up to `latest` before which nothing happened for `windows_us`."""
    point = latest
    for low, high in sorted(busy, reverse=True):
        if low <= point < high + windows_us:
            point = low - 1
    return point


@dataclass
class Focal:
    """A moving object: its location updates that begin a new range, by the query's update condition."""

    interest: Interest
    last: tuple[int, Place] | None = None
    number: int = 0

    def moved(self, event: Event) -> tuple[int, int, Place] | None:
        """Number, start and place of the range that a location update begins, if it does."""
        place = place_of(event.attributes, self.interest.space)
        if place is None or (self.last is not None and not self._far(event.ts, place)):
            return None
        self.last = (event.ts, place)
        self.number += 1
        return self.number, event.ts, place

    def _far(self, ts: int, place: Place) -> bool:
        assert self.last is not None
        match self.interest.update:
            case Timed(every_us):
                return ts >= self.last[0] + every_us
            case Spatial(every_m):
                return distance_m(place, self.last[1], self.interest.space) >= every_m
            case Each():
                return True
