"""What follows from a choice? For each step of a search for a request's events, the later steps that depend on it.

If an event at a step turns out to be a dead end for the *branch* that depends on it, it is so whatever stands
elsewhere, and need not be tried again. A branch may have to do with one earlier step besides, its context; with more,
dead ends are not remembered.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tocsin.engine.kernels.layout import NONE, OLDER, YOUNGER
from tocsin.plans.expressions import places_in
from tocsin.plans.graph import Combining, Lookup, RulePlan
from tocsin.plans.parts import exclusive
from tocsin.plans.precedence import links, precedences


@dataclass(frozen=True, slots=True)
class Branch:
    """What depends on a step."""

    number: int = NONE
    """The same for what has the same dead ends."""
    context: int = NONE
    """The step with which it has to do besides."""
    age: int = 0
    """OLDER if it can only hold older events: then no new event makes it possible. YOUNGER if only younger ones."""
    places: frozenset[int] = frozenset()


class Branches:
    """The branches of one way in which a request can be met."""

    def __init__(self, plan: RulePlan, combining: Combining, since: int, numbers: dict[object, int]) -> None:
        self.precedences = precedences(combining.sequences, combining.ascending, combining.anchor)
        self._anchor, self._numbers = combining.anchor, numbers
        self._before = links(self.precedences)
        self._whole = plan.user, plan.names, plan.types, since

    def of(self, lookups: Sequence[Lookup]) -> list[Branch]:
        """The branch of each step."""
        earlier = [self._earlier(lookups, step) for step in range(len(lookups))]
        return [self._branch(lookups, earlier, step) for step in range(len(lookups))]

    def detached(self, lookups: Sequence[Lookup]) -> int:
        """The number of a part that has nothing to do with the arriving event: what there is of it is the same for
        whatever arrives. NONE for others.
        """
        places = {lookup.place for lookup in lookups}
        values = [value for lookup in lookups for value in (*lookup.keys, *lookup.conditions)]
        if any(self._anchor in places_in(value) for value in values):
            return NONE
        inside = tuple(one for one in self.precedences if places & one.places)
        if any(self._anchor in one.places for one in inside):
            return NONE
        what = frozenset((one.place, one.buffer, one.keys, one.conditions) for one in lookups)
        return self._numbers.setdefault((self._whole, what, inside), len(self._numbers))

    def _earlier(self, lookups: Sequence[Lookup], step: int) -> set[int]:
        """The earlier steps with which a step has to do."""
        here = lookups[step]
        compared = {place for one in self.precedences if here.place in one.places for place in one.places}
        compared |= {place for value in (*here.keys, *here.conditions) for place in places_in(value)}
        return {
            other
            for other, lookup in enumerate(lookups[:step])
            if lookup.place in compared or not exclusive(lookup.buffer.filter, here.buffer.filter)
        }

    def _branch(self, lookups: Sequence[Lookup], earlier: list[set[int]], step: int) -> Branch:
        depends: set[int] = set()
        for later in range(step + 1, len(lookups)):
            if earlier[later] & {step, *depends}:
                depends.add(later)
        context = {other for later in depends for other in earlier[later] if other < step}
        if len(context) > 1 or (not depends and lookups[step].keys):
            return Branch()
        beside = next(iter(context), NONE)
        places = {lookups[later].place for later in depends}
        known = {lookups[other].place for other in {step, *context}}
        inside = tuple(one for one in self.precedences if places & one.places)
        anchored = any(self._anchor in one.places for one in inside) or any(
            self._anchor in places_in(value)
            for later in depends
            for value in (*lookups[later].keys, *lookups[later].conditions)
        )
        age = 0
        if not anchored and all(any((place, other) in self._before for other in known) for place in places):
            age = OLDER
        elif all((lookups[step].place, place) in self._before for place in places):
            age = YOUNGER
        what = frozenset(
            (one.place, one.buffer, one.keys, one.conditions) for one in (lookups[later] for later in depends)
        )
        own = self._anchor if anchored else NONE
        around = None if beside == NONE else lookups[beside].place
        identity = self._whole, own, lookups[step].place, around, what, inside
        return Branch(self._numbers.setdefault(identity, len(self._numbers)), beside, age, frozenset(places))
