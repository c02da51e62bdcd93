"""Binds a request for notification: it becomes rules that look back, one for each event that can arrive last.

`||` is multiplied out, so that an *alternative* is a set of events that are all there, with the order in which `;`
wants them. Of an alternative, whichever event arrives last finds the others among what came before. They are looked up
one after another, first those that an equality joins to what is found already.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise, product
from math import prod

from tocsin.errors import RuleError
from tocsin.events.types import EventType, Kind
from tocsin.language.eps.ast import (
    After,
    All,
    Either,
    EventExpression,
    Leaf,
    Mode,
    Occurs,
    Period,
    Request,
    Then,
    Times,
    awaited,
    children,
    clocks,
    leaf_type,
    leaves,
)
from tocsin.language.syntax.ast import And, Attribute, Expression, Literal, Not, Or, Parameter, Policy
from tocsin.language.syntax.expressions import walk
from tocsin.plans.bind.patterns import key_of, located
from tocsin.plans.bind.structure import Precedence, SequencePair, links, parts, precedences
from tocsin.plans.expressions import Apply, Constant, Field, Typed, comparison, moved, ordered, places_in
from tocsin.plans.keys import classes as equality_classes
from tocsin.plans.rules import Buffer, Combining, Context, Filter, Lookup, Node, Part, Reach, RulePlan, Step
from tocsin.plans.typing import Catalog, truth

ALTERNATIVES_MAX = 64
ALTERNATIVES_EVENTS_MAX = 640
"""How many ways there can be in which a request comes true, and how many events in all of them."""


@dataclass(frozen=True, slots=True)
class _Alternative:
    """Leaves, by number, that are all there."""

    leaves: tuple[int, ...]
    sequences: tuple[SequencePair, ...] = ()


def bind_request(request: Request, catalog: Catalog) -> tuple[RulePlan, ...]:
    """The plans of one request, or a `RuleError` that points at the mistake."""
    timers = clocks(request)
    catalog = catalog.with_types({clock.type: EventType(clock.type) for clock in timers})
    depth = max((clock.height for clock in timers), default=0)
    plans: list[RulePlan] = []
    try:
        for clock in timers:
            if isinstance(clock.timer, After):
                found = _bound(awaited(request, clock.timer), catalog)
                plans += [replace(plan, rule=request, clock=clock, early=depth - clock.height + 1) for plan in found]
        ticking = tuple(clock for clock in timers if not isinstance(clock.timer, After))
        own: tuple[Filter, ...] = ()
        for clock in ticking:
            if isinstance(clock.timer, Period):
                own = own or _own(request, catalog)
                if not own and clock.timer.start_us is None:
                    hint = 'Say from when it ticks: every(1 h from "2026-07-01T12:00:00Z")'
                    raise RuleError("there is no event that starts this timer", span=clock.timer.span, hint=hint)
        plans += [replace(plan, clocks=ticking, own=own) for plan in _bound(request, catalog)]
        return tuple(plans)
    except RuleError as error:
        raise located(error, request) from None


def _own(request: Request, catalog: Catalog) -> tuple[Filter, ...]:
    """What events of its own a request has, also those that its timers wait for, whatever its condition says."""
    expressions = [request.expression]
    expressions += [clock.timer.event for clock in clocks(request) if isinstance(clock.timer, After)]
    found: dict[Filter, None] = {}
    for leaf in [leaf for expression in expressions for leaf in leaves(expression)]:
        if isinstance(leaf.node, Occurs | Times):
            pattern = leaf.node.pattern

            def resolve(leaf: Attribute | Parameter, type: str = pattern.type) -> Typed:
                assert isinstance(leaf, Attribute)
                return Field(0, *catalog.field(type, leaf.name, leaf.span))

            tests = {truth(constraint, resolve) for constraint in pattern.constraints}
            found[Filter(pattern.type, ordered(tests))] = None
    return tuple(found)


def _bound(request: Request, catalog: Catalog) -> list[RulePlan]:
    every = list(leaves(request.expression))
    for leaf in every:
        if isinstance(leaf.node, Occurs | Times):
            catalog.check_type(leaf.node.pattern.type, leaf.node.pattern.span)
    if request.mode != Mode.GENERIC:
        return [_in_context(request, catalog, every)]
    ways = _ways(request.expression)
    if ways > ALTERNATIVES_MAX:
        shown = f"{ways:,}" if ways < 10**15 else "very many"
        message = f"this can happen in {shown} ways, more than {ALTERNATIVES_MAX}"
        raise RuleError(message, span=request.expression.span, hint="Make several requests of it.")
    alternatives = _alternatives(request.expression, 0)
    if len(alternatives) > 1 and (events := sum(len(one.leaves) for one in alternatives)) > ALTERNATIVES_EVENTS_MAX:
        message = f"the {ways} ways in which this can happen have {events:,} events"
        message = f"{message}, more than {ALTERNATIVES_EVENTS_MAX}"
        raise RuleError(message, span=request.expression.span, hint="Make several requests of it.")
    plans = []
    for alternative in sorted(alternatives, key=lambda one: one.leaves):
        binding = _Binding(request, catalog, [every[number] for number in alternative.leaves], alternative)
        plans += [binding.plan(place) for place in range(len(binding.leaves)) if binding.can_be_last(place)]
    return plans


def _in_context(request: Request, catalog: Catalog, every: list[Leaf]) -> RulePlan:
    """A request in one of Snoop's contexts: its conditions say nothing about what operators combine."""
    binding = _Binding(replace(request, condition=()), catalog, every, _Alternative(tuple(range(len(every)))))
    conditions = tuple(truth(test, binding._resolve) for test in request.condition)
    nodes: list[Node] = []

    def visit(node: EventExpression, first: int) -> int:
        operands = []
        if isinstance(node, Times):
            field = binding._field(Attribute(node.attribute, span=node.span), first)
            nodes.append(Node("times", first, (), node.count, field, node.same))
            return len(nodes) - 1
        at = first
        for child in children(node):
            operands.append(visit(child, at))
            at += len(list(leaves(child)))
        name = {All: "all", Then: "then", Either: "either"}.get(type(node), "leaf")
        nodes.append(Node(name, first, tuple(operands), len(operands)))
        return len(nodes) - 1

    visit(request.expression, 0)
    filters = tuple(Filter(type, ordered(binding._constraints(p))) for p, type in enumerate(binding.types))
    repeated = frozenset(place for place, leaf in enumerate(every) if isinstance(leaf.node, Times))
    context = Context(request.mode, request.window_us, tuple(nodes), filters, conditions, repeated)
    names = tuple(leaf.role for leaf in every)
    return RulePlan(request, filters[0], (), (), binding.outputs, names, binding.types, binding.unseen, context=context)


def _ways(node: EventExpression) -> int:
    """How many alternatives an expression has, without making them."""
    if isinstance(node, Either):
        return sum(map(_ways, node.operands))
    return prod(map(_ways, children(node)))


def _alternatives(node: EventExpression, first: int) -> list[_Alternative]:
    match node:
        case Times(count):
            return [_Alternative(tuple(range(first, first + count)))]
        case Either(operands):
            found = []
            for operand in operands:
                found += _alternatives(operand, first)
                first += len(list(leaves(operand)))
            return found
        case All() | Then():
            parts = []
            for operand in node.operands if isinstance(node, All) else (node.left, node.right):
                parts.append(_alternatives(operand, first))
                first += len(list(leaves(operand)))
            joined = []
            for chosen in product(*parts):
                sequences = tuple(sequence for one in chosen for sequence in one.sequences)
                if isinstance(node, Then):
                    sequences += ((chosen[0].leaves, chosen[1].leaves),)
                joined.append(_Alternative(tuple(leaf for one in chosen for leaf in one.leaves), sequences))
            return joined
        case _:
            return [_Alternative((first,))]


class _Binding:
    """One alternative at work; places are the numbers of its leaves among themselves."""

    def __init__(self, request: Request, catalog: Catalog, leaves: list[Leaf], alternative: _Alternative) -> None:
        self.request, self.catalog, self.leaves = request, catalog, leaves
        place = {number: place for place, number in enumerate(alternative.leaves)}
        self.sequences = tuple(
            (tuple(place[n] for n in left), tuple(place[n] for n in right)) for left, right in alternative.sequences
        )
        self.types = tuple(leaf_type(leaf, request.name) for leaf in leaves)
        self.ascending = tuple((p, p + 1) for p, leaf in enumerate(leaves[1:]) if leaf.number)
        self.unseen = False
        self._places: dict[str, int] = {}
        for p, leaf in enumerate(leaves):
            self._places.setdefault(leaf.role, p)
        own: list[list[Typed]] = [[] for _ in leaves]
        self.tests: list[Typed] = []
        links: list[tuple[Field, Field]] = []
        for test in [*self._conditions(), *self._repetitions()]:
            places = places_in(test)
            if len(places) == 1:
                own[places.pop()].append(moved(test, 0))
            elif (link := _link(test)) is not None:
                links.append(link)
            else:
                self.tests.append(test)
        self._tested = [frozenset(places_in(test)) for test in self.tests]
        kinds = {(field.place, field.attribute): field.kind for link in links for field in link}
        joints = [((one.place, one.attribute), (other.place, other.attribute)) for one, other in links]
        self.classes = [
            [Field(*joint, kinds[joint]) for joint in sorted(members)] for members in equality_classes(joints)
        ]
        """Attributes that equalities make one value."""
        self.filters = [
            Filter(type, ordered((*tests, *self._constraints(p))))
            for p, (type, tests) in enumerate(zip(self.types, own, strict=True))
        ]

    @property
    def outputs(self) -> tuple[tuple[str, Kind, Typed], ...]:
        """The attributes of a notification."""
        text = self.request.notification
        return (("notification", Kind.STRING, Constant(text, Kind.STRING)),) if text is not None else ()

    def can_be_last(self, place: int) -> bool:
        """Whether the event at a place can be the last to arrive: not before another that must follow it."""
        if any(before == place for before, _ in self.ascending):
            return False
        return not any(place in left for left, _ in self.sequences)

    def plan(self, anchor: int) -> RulePlan:
        """The alternative when this place is filled last."""
        request = self.request
        order = precedences(self.sequences, self.ascending, anchor)
        groups = [
            *(_places(members) for members in self.classes if anchor not in _places(members)),
            *(places_in(test) for test in self.tests),
            *(one.places for one in order),
        ]
        found = sorted(
            (self._part(anchor, places, order) for places in parts(groups, self.filters, anchor)),
            key=lambda part: not part.lookups[0].keys,
        )
        steps = tuple(Step(lookup, Policy.EACH, 0, (), consumed=False) for part in found for lookup in part.lookups)
        ready = [test for test in self.tests if places_in(test) <= {anchor}]
        for members in self.classes:
            own = [field for field in members if field.place == anchor]
            ready += [comparison("=", own[0], other) for other in own[1:]]
        return RulePlan(
            request, self.filters[anchor], (), steps, self.outputs, tuple(leaf.role for leaf in self.leaves),
            self.types, self.unseen,
            Combining(anchor, request.window_us, self.sequences, self.ascending, tuple(ready), tuple(found)),
        )  # fmt: skip

    def _part(self, anchor: int, places: list[int], precedences: tuple[Precedence, ...]) -> Part:
        lookups = self._lookups(anchor, places, precedences, None)
        orders = [self._lookups(anchor, places, precedences, one.place) for one in lookups]
        before = links(precedences)
        in_time = [all((x.place, y.place) in before for x, y in pairwise(order)) for order in orders]
        return Part(lookups, tuple(orders), in_time.index(True) if True in in_time else None)

    def _lookups(
        self, anchor: int, places: list[int], precedences: tuple[Precedence, ...], first: int | None
    ) -> tuple[Lookup, ...]:
        """How the places of a part are filled, one after another; perhaps with a given one first."""
        order, found = [anchor], list[Lookup]()
        mine = {*places}
        missing: dict[int, int] = {}
        tests_of: dict[int, list[int]] = {place: [] for place in places}
        for number, some in enumerate(self._tested):
            others = some - {anchor}
            if others and others <= mine:
                missing[number] = len(others)
                for place in others:
                    tests_of[place].append(number)
        compared = [dict.fromkeys(one.places, 1) for one in precedences]
        equal = [Counter(field.place for field in members) for members in self.classes]
        tests = [dict.fromkeys(some, 1) for some in self._tested]
        far, near = (_Ties(equal, [*compared, *tests]) for _ in range(2))
        far.add(anchor)
        while len(found) < len(places):
            place = first if first is not None and not found else _next(places, order, near, far)
            near.add(place)
            keys: dict[Field, Typed] = {}
            conditions: list[Typed] = []
            for here, there in self._joined(place, order):
                if keys.setdefault(here, there) is not there:
                    conditions.append(comparison("=", Field(place, here.attribute, here.kind), there))
            order.append(place)
            for number in tests_of[place]:
                missing[number] -= 1
            for test in [self.tests[number] for number in tests_of[place] if not missing[number]]:
                key = key_of(test, place)
                if key is not None and key[0] not in keys:
                    keys[key[0]] = key[1]
                else:
                    conditions.append(test)
            fields = sorted(keys, key=lambda field: field.attribute)
            buffer = Buffer(self.filters[place], tuple(fields))
            horizon_us = self.request.window_us + 1
            values = tuple(keys[field] for field in fields)
            reach = Reach(anchor, window_us=horizon_us)
            found.append(Lookup(place, buffer, values, reach, tuple(conditions), horizon_us))
        return tuple(found)

    def _joined(self, place: int, order: list[int]) -> list[tuple[Field, Field]]:
        """The attributes of a place that must equal one of a place that is bound: the first such in that order."""
        found = []
        for members in self.classes:
            if not any(field.place == place for field in members):
                continue
            first = {field.place: field for field in reversed(members)}
            there = next((first[known] for known in order if known in first), None)
            for field in members:
                if field.place == place and there is not None:
                    found.append((Field(0, field.attribute, field.kind), there))
        return found

    # ---- what must hold

    def _conditions(self) -> list[Typed]:
        return [truth(self._here(test), self._resolve) for test in self.request.condition]

    def _here(self, test: Expression) -> Expression:
        """A condition with every comparison that speaks of an event that is not here put to false, as null would."""
        if isinstance(test, And | Or):
            return type(test)(tuple(self._here(operand) for operand in test.operands), span=test.span)
        if isinstance(test, Not):
            return Not(self._here(test.operand), span=test.span)
        absent = any(isinstance(node, Attribute) and node.role not in self._places for node in walk(test))
        return Literal(False, Kind.BOOL, span=test.span) if absent else test

    def _resolve(self, leaf: Attribute | Parameter) -> Typed:
        assert isinstance(leaf, Attribute)
        assert leaf.role is not None
        return self._field(leaf, self._places[leaf.role])

    def _field(self, attribute: Attribute, place: int) -> Field:
        field = Field(place, *self.catalog.field(self.types[place], attribute.name, attribute.span))
        self.unseen = self.unseen or field.kind is None
        return field

    def _repetitions(self) -> list[Typed]:
        """What `TimesEq` and `TimesDf` say: values that are equal to the first, or all different. None is null."""
        found: list[Typed] = []
        for p, leaf in enumerate(self.leaves):
            node = leaf.node
            if not isinstance(node, Times):
                continue
            here = self._field(Attribute(node.attribute, span=node.span), p)
            for other in [p - leaf.number] if node.same else range(p - leaf.number, p):
                if other != p:
                    there = Field(other, here.attribute, here.kind)
                    found.append(comparison("=" if node.same else "!=", here, there))
        return found

    def _constraints(self, place: int) -> list[Typed]:
        node = self.leaves[place].node
        if not isinstance(node, Occurs | Times):
            return []

        def resolve(leaf: Attribute | Parameter) -> Typed:
            assert isinstance(leaf, Attribute)
            return self._field(leaf, place)

        return [moved(truth(constraint, resolve), 0) for constraint in node.pattern.constraints]


class _Ties:
    """How much each place has to do with the places that were added: equalities first, then tests and orders."""

    def __init__(self, equal: list[Counter[int]], compared: list[dict[int, int]]) -> None:
        """Groups of places that have to do with each other, each with how often a place is in the group."""
        self._groups: list[tuple[int, Mapping[int, int]]] = [(0, one) for one in equal] + [(1, one) for one in compared]
        self._counted = [False] * len(self._groups)
        self._of: dict[int, list[int]] = {}
        for number, (_, group) in enumerate(self._groups):
            for place in group:
                self._of.setdefault(place, []).append(number)
        self._counts: tuple[Counter[int], Counter[int]] = Counter(), Counter()

    def add(self, place: int) -> None:
        for number in self._of.get(place, ()):
            if not self._counted[number]:
                self._counted[number] = True
                which, group = self._groups[number]
                self._counts[which].update(group)

    def of(self, place: int) -> tuple[int, int]:
        return self._counts[0][place], self._counts[1][place]


def _next(places: list[int], order: list[int], near: _Ties, far: _Ties) -> int:
    """The place that has most to do with those that are found already: so that each has to do with few of them.

    Equalities count most. As long as only the anchor is found, its own count (`far`); later, what the others say.
    """

    def rank(place: int) -> tuple[object, ...]:
        (equal, compared), (equal_far, compared_far) = near.of(place), far.of(place)
        return (equal, compared) == (0, 0), (-equal, -compared), (-equal_far, -compared_far), place

    known = {*order}
    return min((place for place in places if place not in known), key=rank)


def _places(members: list[Field]) -> set[int]:
    return {field.place for field in members}


def _link(test: Typed) -> tuple[Field, Field] | None:
    """The two attributes that a test wants to be equal."""
    if isinstance(test, Apply) and test.operator == "=":
        left, right = test.operands
        fields = isinstance(left, Field) and isinstance(right, Field) and left.kind == right.kind
        if fields and left.is_own and right.is_own:  # type: ignore[union-attr]
            return left, right  # type: ignore[return-value]
    return None
