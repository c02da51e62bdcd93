"""Requests as tables: the steps of their searches, and what an event may complete."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from tocsin.engine.branches import Branches
from tocsin.engine.kernels import Array, layout
from tocsin.events.types import Kind
from tocsin.plans.expressions import Apply, Field, moved, places_in
from tocsin.plans.graph import Combining, Lookup, RulePlan

if TYPE_CHECKING:
    from tocsin.engine.tables import Tables


class Arriving:
    """For each filter, the (request, variant) that an event which passes it may complete."""

    def __init__(self) -> None:
        self._by_filter: dict[int, list[tuple[int, int]]] = {}
        self._table: tuple[Array, Array] | None = None

    def add(self, filter: int, request: int, variant: int) -> None:
        """Takes one more variant."""
        self._by_filter.setdefault(filter, []).append((request, variant))
        self._table = None

    def table(self, filters: int) -> tuple[Array, Array]:
        """Where the pairs of each of so many filters begin, and the pairs."""
        if self._table is None or len(self._table[0]) <= filters:
            counts = np.zeros(filters + 1, np.int64)
            for filter, pairs in self._by_filter.items():
                counts[filter + 1] = len(pairs)
            ordered = [pair for _, pairs in sorted(self._by_filter.items()) for pair in pairs]
            self._table = np.cumsum(counts), np.array(ordered, np.int64)
        return self._table


def step_words(
    tables: Tables, plan: RulePlan, combining: Combining, branches: Branches, lookups: Sequence[Lookup]
) -> int:
    """Appends how the places of a part are filled in one order; returns where."""
    types, bound, words = plan.types, {combining.anchor}, list[int]()
    steps = {lookup.place: number for number, lookup in enumerate(lookups)}

    def mask(places: Iterable[int], here: int) -> int:
        return sum(1 << steps[place] for place in {*places} - {here, combining.anchor})

    for lookup, branch in zip(lookups, branches.of(lookups), strict=True):
        place, filter = lookup.place, lookup.buffer.filter
        bound.add(place)
        tests = [moved(condition, place) for condition in filter.conditions]
        for key, value in zip(lookup.buffer.keys, lookup.keys, strict=True):
            tests.append(Apply("=", (Field(place, key.attribute, key.kind), value), Kind.BOOL))
        pairs: list[int] = []
        sequences: list[tuple[int, ...]] = []
        for one in branches.precedences:
            if place in one.places and bound >= one.places:
                if len(one.after) > 1:
                    sequences.append((one.before, *one.after))
                    continue
                other = one.after[0] if place == one.before else one.before
                pairs += [other, steps.get(other, layout.NONE), int(place != one.before), int(one.strictly)]
        in_order = [place for places in sequences for place in places]
        of_conditions = [place for condition in lookup.conditions for place in places_in(condition)]
        words += [
            place,
            tables._buffer(lookup.buffer, lookup.horizon_us),
            tables.types[filter.type],
            len(lookup.keys),
            tables.code.extend([tables.expressions.add(types, key) for key in lookup.keys]),
            len(tests),
            tables.code.extend([tables.expressions.add(types, test) for test in tests]),
            len(lookup.conditions),
            tables.code.extend([tables.expressions.add(types, condition) for condition in lookup.conditions]),
            len(pairs) // 4,
            tables.code.extend(pairs),
            len(sequences),
            tables.code.extend([n for places in sequences for n in (len(places) - 1, *places)]),
            mask((place for key in lookup.keys for place in places_in(key)), place),
            mask((*of_conditions, *in_order), place),
            branch.number,
            branch.context,
            branch.age,
            sum(1 << place for place in branch.places),
            sum(1 << before for before in {one.before for one in branches.precedences if one.after == (place,)}),
        ]
    return tables.code.extend(words)
