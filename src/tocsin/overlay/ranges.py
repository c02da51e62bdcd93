"""What does a query that moves ask of its operators? The operator tree, initialisation points, and who must be told.

    delivery ◄─ rule ◄─ rule ◄─ brokers that hold the range's cells

An operator is a rule on one path of the tree. *Points* are exclusive: an input is needed if it is later. Lemma 1 says
from which point a source must stream, Lemma 2 whom a move of the range concerns (MCEP, Section 5.1).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from tocsin.events.types import Event
from tocsin.language.interests import Each, Interest, Semantics, Spatial, Timed
from tocsin.language.rules import Policy, Rule, Selection, Within
from tocsin.plans.regions import Place, Region, distance_m, place_of

Stretch = tuple[int, int]
"""First and last time of events that follow each other without a quiet point in between."""


@dataclass(frozen=True)
class Operator:
    """A rule at one place of the tree, or the delivery at its root, which has none."""

    key: str
    """The path from the root: unique in a query."""
    rule: Rule | None
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
        return max(1, *self.reaches_us.values()) if self.rule else 0

    @cached_property
    def reaches_us(self) -> Mapping[str, int]:
        """How far behind its anchor it looks for events of each type."""
        assert self.rule is not None
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
        return tuple(of_rule(rule, path) for type in types for rule in interest.rules if rule.emits.name == type)

    def of_rule(rule: Rule, path: str) -> Operator:
        key = f"{path}/{rule.name}"
        uses = tuple(dict.fromkeys(rule.uses))
        return Operator(key, rule, of_types(uses, key), tuple(use for use in uses if use not in defined))

    defined = {rule.emits.name for rule in interest.rules}
    return Operator(interest.name, None, of_types(interest.delivers, interest.name), ())


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


def is_exact(interest: Interest) -> bool:
    """Whether answers depend on where operators start, so that points are not refined and all start anew."""
    return interest.consumes


def is_strong(interest: Interest) -> bool:
    """Whether ranges start at quiet points."""
    return interest.consumes and interest.semantics is Semantics.STRONG
