"""Requests as tables: the steps of their searches, what an event may complete, and the operators of contexts.

What follows from a choice? For each step of a search for a request's events, the later steps that depend on it.

If an event at a step turns out to be a dead end for the *branch* that depends on it, it is so whatever stands
elsewhere, and need not be tried again. A branch may have to do with one earlier step besides, its context; with more,
dead ends are not remembered.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tocsin.events.types import Kind
from tocsin.kernels import Array, layout
from tocsin.kernels.layout import NONE, OLDER, YOUNGER
from tocsin.language.eps.ast import Mode
from tocsin.plans.bind.structure import exclusive, links, precedences
from tocsin.plans.expressions import Apply, Field, moved, places_in
from tocsin.plans.rules import Buffer, Combining, Context, Lookup, RulePlan

if TYPE_CHECKING:
    from tocsin.engine.compile import Loaded, Tables


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


_OPERATORS = {
    "leaf": layout.N_LEAF,
    "all": layout.N_ALL,
    "then": layout.N_THEN,
    "either": layout.N_EITHER,
    "times": layout.N_TIMES,
}
_MODES = {
    Mode.RECENT: layout.RECENT,
    Mode.CHRONOLOGICAL: layout.CHRONOLOGICAL,
    Mode.CONTINUOUS: layout.CONTINUOUS,
    Mode.CUMULATIVE: layout.CUMULATIVE,
}


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


@dataclass(frozen=True, slots=True)
class LoadedContext:
    """A request in one of Snoop's contexts, as its kernel reads it."""

    rule: Loaded
    since: int
    mode: int
    window_us: int
    nodes: Array
    operands: Array
    lists: int
    """How many lists of combinations its operators keep."""
    bits: Mapping[int, int]
    """For a filter, the leaves that an event which passes it fits, as bits."""
    conditions: int
    condition_count: int
    places: Array
    """The leaves that conditions speak of."""
    repeated: Array


def load_variant(tables: Tables, plan: RulePlan, combining: Combining, level: int, since: int) -> Loaded:
    """Appends one way in which a request can be met."""
    types, parts = plan.types, list[int]()
    branches = Branches(plan, combining, since, tables.branches)
    for part in combining.parts:
        default = step_words(tables, plan, combining, branches, part.lookups)
        orders = [
            step_words(tables, plan, combining, branches, lookups) if len(part.lookups) > 1 else default
            for lookups in part.orders
        ]
        parts += [len(part.lookups), default, tables.code.extend(orders)]
        parts += [layout.NONE if part.row is None else orders[part.row], branches.detached(part.lookups)]
    conditions = tables.code.extend([tables.expressions.add(types, condition) for condition in combining.conditions])
    record = [since, combining.window_us, len(tables.rules), combining.anchor, len(plan.steps)]
    record += [len(combining.conditions), conditions, len(combining.parts), tables.code.extend(parts)]
    offset = tables.code.extend(record)
    loaded = tables.note(plan, offset, level)
    request = tables.requests.setdefault(plan.user, len(tables.requests))
    tables.arriving.setdefault(level, Arriving()).add(loaded.anchor, request, offset)
    return loaded


def load_context(tables: Tables, plan: RulePlan, context: Context, level: int, since: int) -> Loaded:
    """Takes a request in one of Snoop's contexts."""
    nodes: list[list[int]] = []
    operands: list[int] = []
    lists = 0
    for node in context.nodes:
        attribute = layout.NONE if node.attribute is None else tables.expressions.add(plan.types, node.attribute)
        words = [_OPERATORS[node.operator], node.first, node.count, lists, len(operands), attribute, int(node.same)]
        nodes.append(words)
        operands += node.operands
        lists += {"all": node.count, "then": 1, "times": 1}.get(node.operator, 0)
    bits: dict[int, int] = {}
    for place, filter in enumerate(context.filters):
        tables.buffer(Buffer(filter), context.window_us + 1)
        bits[tables.filter(filter)] = bits.get(tables.filter(filter), 0) | 1 << place
    conditions = tables.code.extend([tables.expressions.add(plan.types, condition) for condition in context.conditions])
    places = sorted({place for condition in context.conditions for place in places_in(condition)})
    loaded = tables.note(plan, layout.NONE, level)
    repeated = np.array([place in context.repeated for place in places], np.uint8)
    found = LoadedContext(
        loaded, since, _MODES[context.mode], context.window_us, np.array(nodes, np.int64),
        np.array([*operands, 0], np.int64), lists, bits, conditions, len(context.conditions),
        np.array(places, np.int64), repeated,
    )  # fmt: skip
    tables.contexts.append(found)
    return loaded


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
            tables.buffer(lookup.buffer, lookup.horizon_us),
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
