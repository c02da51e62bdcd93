"""Bind an EPS request for notification: plan one join for each event that can arrive last.

First, `||` is expanded into *alternatives*. An alternative is a set of events that must all occur, in the order that
`;` requires. Each event of an alternative that can arrive last is the *anchor* of one plan. When it arrives, it is
joined with the earlier events, one role after another. Roles that an equality connects to joined roles come first.
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
    leaf_type,
    leaves,
    request_timers,
)
from tocsin.language.syntax.ast import And, Attribute, Expression, Literal, Not, Or, Parameter, Policy
from tocsin.language.syntax.expressions import walk
from tocsin.plans.bind.patterns import key_of, located
from tocsin.plans.bind.structure import Precedence, SequencePair, connected_components, precedence_closure, precedences
from tocsin.plans.expressions import Apply, Constant, Field, Typed, at_role, comparison, ordered, roles_in
from tocsin.plans.keys import equality_classes
from tocsin.plans.rules import (
    Buffer,
    ConnectedComponent,
    ContextNode,
    Filter,
    Lookup,
    RequestJoin,
    RulePlan,
    SelectionStep,
    SnoopContext,
    TimeBounds,
)
from tocsin.plans.typing import Catalog, truth

ALTERNATIVES_MAX = 64
ALTERNATIVES_EVENTS_MAX = 640
"""The maximum number of alternatives of a request, and of events in all alternatives together."""


@dataclass(frozen=True, slots=True)
class _Alternative:
    """An alternative of a request: the numbers of the leaves that must all occur, and their order."""

    leaves: tuple[int, ...]
    sequences: tuple[SequencePair, ...] = ()


def bind_request(request: Request, catalog: Catalog) -> tuple[RulePlan, ...]:
    """Return the plans of `request`. If the request has a mistake, raise a `RuleError` with its position."""
    timers = request_timers(request)
    catalog = catalog.with_types({timer.type: EventType(timer.type) for timer in timers})
    depth = max((timer.height for timer in timers), default=0)
    plans: list[RulePlan] = []
    try:
        for timer in timers:
            if isinstance(timer.timer, After):
                starts = _bound(awaited(request, timer.timer), catalog)
                plans += [replace(plan, rule=request, timer=timer, early=depth - timer.height + 1) for plan in starts]
        ticking = tuple(timer for timer in timers if not isinstance(timer.timer, After))
        own: tuple[Filter, ...] = ()
        for timer in ticking:
            if isinstance(timer.timer, Period):
                own = own or _own(request, catalog)
                if not own and timer.timer.start_us is None:
                    hint = 'Add a start: every(1 h from "2026-07-01T12:00:00Z")'
                    raise RuleError("no event starts this timer", span=timer.timer.span, hint=hint)
        plans += [replace(plan, timers=ticking, own=own) for plan in _bound(request, catalog)]
        return tuple(plans)
    except RuleError as error:
        raise located(error, request) from None


def _own(request: Request, catalog: Catalog) -> tuple[Filter, ...]:
    """Return the filters of the events in a request's expression, and of the events that its timers wait for.

    The filters do not include the condition of the request.
    """
    expressions = [request.expression]
    expressions += [timer.timer.event for timer in request_timers(request) if isinstance(timer.timer, After)]
    filters: dict[Filter, None] = {}
    for leaf in [leaf for expression in expressions for leaf in leaves(expression)]:
        if isinstance(leaf.node, Occurs | Times):
            pattern = leaf.node.pattern

            def resolve(leaf: Attribute | Parameter, type: str = pattern.type) -> Typed:
                assert isinstance(leaf, Attribute)
                return Field(0, *catalog.field(type, leaf.name, leaf.span))

            tests = {truth(constraint, resolve) for constraint in pattern.constraints}
            filters[Filter(pattern.type, ordered(tests))] = None
    return tuple(filters)


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
        message = f"this request has {shown} alternatives, more than {ALTERNATIVES_MAX}"
        raise RuleError(message, span=request.expression.span, hint="Split it into several requests.")
    alternatives = _alternatives(request.expression, 0)
    if len(alternatives) > 1 and (events := sum(len(one.leaves) for one in alternatives)) > ALTERNATIVES_EVENTS_MAX:
        message = f"the {ways} alternatives of this request have {events:,} events"
        message = f"{message}, more than {ALTERNATIVES_EVENTS_MAX}"
        raise RuleError(message, span=request.expression.span, hint="Split it into several requests.")
    plans = []
    for alternative in sorted(alternatives, key=lambda one: one.leaves):
        binding = _Binding(request, catalog, [every[number] for number in alternative.leaves], alternative)
        plans += [
            binding.plan(role_index) for role_index in range(len(binding.leaves)) if binding.can_be_last(role_index)
        ]
    return plans


def _in_context(request: Request, catalog: Catalog, every: list[Leaf]) -> RulePlan:
    """Bind a request in one of Snoop's contexts. Its conditions do not affect which events the operators combine."""
    binding = _Binding(replace(request, condition=()), catalog, every, _Alternative(tuple(range(len(every)))))
    conditions = tuple(truth(test, binding._resolve) for test in request.condition)
    nodes: list[ContextNode] = []

    def visit(node: EventExpression, first: int) -> int:
        operands = []
        if isinstance(node, Times):
            field = binding._field(Attribute(node.attribute, span=node.span), first)
            nodes.append(ContextNode("times", first, (), node.count, field, node.same))
            return len(nodes) - 1
        at = first
        for child in children(node):
            operands.append(visit(child, at))
            at += len(list(leaves(child)))
        name = {All: "all", Then: "then", Either: "either"}.get(type(node), "leaf")
        nodes.append(ContextNode(name, first, tuple(operands), len(operands)))
        return len(nodes) - 1

    visit(request.expression, 0)
    filters = tuple(Filter(type, ordered(binding._constraints(p))) for p, type in enumerate(binding.types))
    repeated = frozenset(role_index for role_index, leaf in enumerate(every) if isinstance(leaf.node, Times))
    context = SnoopContext(request.mode, request.window_us, tuple(nodes), filters, conditions, repeated)
    names = tuple(leaf.role for leaf in every)
    return RulePlan(request, filters[0], (), (), binding.outputs, names, binding.types, binding.unseen, context=context)


def _ways(node: EventExpression) -> int:
    """Return the number of alternatives of an expression, without building the alternatives."""
    if isinstance(node, Either):
        return sum(map(_ways, node.operands))
    return prod(map(_ways, children(node)))


def _alternatives(node: EventExpression, first: int) -> list[_Alternative]:
    match node:
        case Times(count):
            return [_Alternative(tuple(range(first, first + count)))]
        case Either(operands):
            alternatives = []
            for operand in operands:
                alternatives += _alternatives(operand, first)
                first += len(list(leaves(operand)))
            return alternatives
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
    """Binds one alternative of a request. The role index of an event is the position of its leaf in the alternative."""

    def __init__(self, request: Request, catalog: Catalog, leaves: list[Leaf], alternative: _Alternative) -> None:
        self.request, self.catalog, self.leaves = request, catalog, leaves
        role_index = {number: role_index for role_index, number in enumerate(alternative.leaves)}
        self.sequences = tuple(
            (tuple(role_index[n] for n in left), tuple(role_index[n] for n in right))
            for left, right in alternative.sequences
        )
        self.types = tuple(leaf_type(leaf, request.name) for leaf in leaves)
        self.ascending = tuple((p, p + 1) for p, leaf in enumerate(leaves[1:]) if leaf.number)
        self.unseen = False
        self._role_indexes: dict[str, int] = {}
        for p, leaf in enumerate(leaves):
            self._role_indexes.setdefault(leaf.role, p)
        own: list[list[Typed]] = [[] for _ in leaves]
        self.tests: list[Typed] = []
        links: list[tuple[Field, Field]] = []
        for test in [*self._conditions(), *self._repetitions()]:
            role_indexes = roles_in(test)
            if len(role_indexes) == 1:
                own[role_indexes.pop()].append(at_role(test, 0))
            elif (link := _equal_attributes(test)) is not None:
                links.append(link)
            else:
                self.tests.append(test)
        self._tested = [frozenset(roles_in(test)) for test in self.tests]
        kinds = {(field.role_index, field.attribute): field.kind for link in links for field in link}
        attributes = [((one.role_index, one.attribute), (other.role_index, other.attribute)) for one, other in links]
        self.classes = [
            [Field(*attribute_of, kinds[attribute_of]) for attribute_of in sorted(members)]
            for members in equality_classes(attributes)
        ]
        """The equivalence classes of attributes that must be equal."""
        self.filters = [
            Filter(type, ordered((*tests, *self._constraints(p))))
            for p, (type, tests) in enumerate(zip(self.types, own, strict=True))
        ]

    @property
    def outputs(self) -> tuple[tuple[str, Kind, Typed], ...]:
        """The attributes of a notification, which are its text, if it has one."""
        text = self.request.notification
        return (("notification", Kind.STRING, Constant(text, Kind.STRING)),) if text is not None else ()

    def can_be_last(self, role_index: int) -> bool:
        """Return whether the event of `role_index` can arrive last, because no other event must follow it."""
        if any(before == role_index for before, _ in self.ascending):
            return False
        return not any(role_index in left for left, _ in self.sequences)

    def plan(self, anchor: int) -> RulePlan:
        """Return the plan of the alternative if the event of the role `anchor` arrives last."""
        request = self.request
        order = precedences(self.sequences, self.ascending, anchor)
        groups = [
            *(_role_indexes(members) for members in self.classes if anchor not in _role_indexes(members)),
            *(roles_in(test) for test in self.tests),
            *(one.role_indexes for one in order),
        ]
        components = sorted(
            (
                self._component(anchor, role_indexes, order)
                for role_indexes in connected_components(groups, self.filters, anchor)
            ),
            key=lambda component: not component.lookups[0].keys,
        )
        steps = tuple(
            SelectionStep(lookup, Policy.EACH, 0, (), consumed=False)
            for component in components
            for lookup in component.lookups
        )
        ready = [test for test in self.tests if roles_in(test) <= {anchor}]
        for members in self.classes:
            own = [field for field in members if field.role_index == anchor]
            ready += [comparison("=", own[0], other) for other in own[1:]]
        return RulePlan(
            request, self.filters[anchor], (), steps, self.outputs, tuple(leaf.role for leaf in self.leaves),
            self.types, self.unseen,
            RequestJoin(anchor, request.window_us, self.sequences, self.ascending, tuple(ready), tuple(components)),
        )  # fmt: skip

    def _component(
        self, anchor: int, role_indexes: list[int], precedences: tuple[Precedence, ...]
    ) -> ConnectedComponent:
        lookups = self._lookups(anchor, role_indexes, precedences, None)
        orders = [self._lookups(anchor, role_indexes, precedences, one.role_index) for one in lookups]
        before = precedence_closure(precedences)
        in_time = [all((x.role_index, y.role_index) in before for x, y in pairwise(order)) for order in orders]
        return ConnectedComponent(lookups, tuple(orders), in_time.index(True) if True in in_time else None)

    def _lookups(
        self, anchor: int, role_indexes: list[int], precedences: tuple[Precedence, ...], first: int | None
    ) -> tuple[Lookup, ...]:
        """Return the lookups of a component in join order. If `first` is given, the order begins with this role."""
        order, lookups = [anchor], list[Lookup]()
        mine = {*role_indexes}
        missing: dict[int, int] = {}
        tests_of: dict[int, list[int]] = {role_index: [] for role_index in role_indexes}
        for number, some in enumerate(self._tested):
            others = some - {anchor}
            if others and others <= mine:
                missing[number] = len(others)
                for role_index in others:
                    tests_of[role_index].append(number)
        compared = [dict.fromkeys(one.role_indexes, 1) for one in precedences]
        equal = [Counter(field.role_index for field in members) for members in self.classes]
        tests = [dict.fromkeys(some, 1) for some in self._tested]
        far, near = (_Connectedness(equal, [*compared, *tests]) for _ in range(2))
        far.add(anchor)
        while len(lookups) < len(role_indexes):
            role_index = first if first is not None and not lookups else _next(role_indexes, order, near, far)
            near.add(role_index)
            keys: dict[Field, Typed] = {}
            conditions: list[Typed] = []
            for here, there in self._joined(role_index, order):
                if keys.setdefault(here, there) is not there:
                    conditions.append(comparison("=", Field(role_index, here.attribute, here.kind), there))
            order.append(role_index)
            for number in tests_of[role_index]:
                missing[number] -= 1
            for test in [self.tests[number] for number in tests_of[role_index] if not missing[number]]:
                key = key_of(test, role_index)
                if key is not None and key[0] not in keys:
                    keys[key[0]] = key[1]
                else:
                    conditions.append(test)
            fields = sorted(keys, key=lambda field: field.attribute)
            buffer = Buffer(self.filters[role_index], tuple(fields))
            retention_us = self.request.window_us + 1
            values = tuple(keys[field] for field in fields)
            bounds = TimeBounds(anchor, window_us=retention_us)
            lookups.append(Lookup(role_index, buffer, values, bounds, tuple(conditions), retention_us))
        return tuple(lookups)

    def _joined(self, role_index: int, order: list[int]) -> list[tuple[Field, Field]]:
        """Return pairs of attributes that must be equal: one of `role_index`, and one of a role in `order`.

        If an attribute must be equal to attributes of several roles in `order`, the earliest role is chosen.
        """
        pairs = []
        for members in self.classes:
            if not any(field.role_index == role_index for field in members):
                continue
            first = {field.role_index: field for field in reversed(members)}
            there = next((first[known] for known in order if known in first), None)
            for field in members:
                if field.role_index == role_index and there is not None:
                    pairs.append((Field(0, field.attribute, field.kind), there))
        return pairs

    # ---- conditions

    def _conditions(self) -> list[Typed]:
        return [truth(self._here(test), self._resolve) for test in self.request.condition]

    def _here(self, test: Expression) -> Expression:
        """Replace each comparison that uses an event of another alternative by false, because this event is null."""
        if isinstance(test, And | Or):
            return type(test)(tuple(self._here(operand) for operand in test.operands), span=test.span)
        if isinstance(test, Not):
            return Not(self._here(test.operand), span=test.span)
        absent = any(isinstance(node, Attribute) and node.role not in self._role_indexes for node in walk(test))
        return Literal(False, Kind.BOOL, span=test.span) if absent else test

    def _resolve(self, leaf: Attribute | Parameter) -> Typed:
        assert isinstance(leaf, Attribute)
        assert leaf.role is not None
        return self._field(leaf, self._role_indexes[leaf.role])

    def _field(self, attribute: Attribute, role_index: int) -> Field:
        field = Field(role_index, *self.catalog.field(self.types[role_index], attribute.name, attribute.span))
        self.unseen = self.unseen or field.kind is None
        return field

    def _repetitions(self) -> list[Typed]:
        """Return the conditions of `TimesEq` and `TimesDf` on their repeated events.

        The values of `TimesEq` equal the first value, and the values of `TimesDf` are all different. None may be null.
        """
        conditions: list[Typed] = []
        for p, leaf in enumerate(self.leaves):
            node = leaf.node
            if not isinstance(node, Times):
                continue
            here = self._field(Attribute(node.attribute, span=node.span), p)
            for other in [p - leaf.number] if node.same else range(p - leaf.number, p):
                if other != p:
                    there = Field(other, here.attribute, here.kind)
                    conditions.append(comparison("=" if node.same else "!=", here, there))
        return conditions

    def _constraints(self, role_index: int) -> list[Typed]:
        node = self.leaves[role_index].node
        if not isinstance(node, Occurs | Times):
            return []

        def resolve(leaf: Attribute | Parameter) -> Typed:
            assert isinstance(leaf, Attribute)
            return self._field(leaf, role_index)

        return [at_role(truth(constraint, resolve), 0) for constraint in node.pattern.constraints]


class _Connectedness:
    """Counts the relations that connect each role with the added roles.

    `of` returns two numbers for a role: its equalities, and its tests and orders.
    """

    def __init__(self, equal: list[Counter[int]], compared: list[dict[int, int]]) -> None:
        """Store groups of related roles. Each group has the number of times that each role is in the group."""
        self._groups: list[tuple[int, Mapping[int, int]]] = [(0, one) for one in equal] + [(1, one) for one in compared]
        self._counted = [False] * len(self._groups)
        self._of: dict[int, list[int]] = {}
        for number, (_, group) in enumerate(self._groups):
            for role_index in group:
                self._of.setdefault(role_index, []).append(number)
        self._counts: tuple[Counter[int], Counter[int]] = Counter(), Counter()

    def add(self, role_index: int) -> None:
        for number in self._of.get(role_index, ()):
            if not self._counted[number]:
                self._counted[number] = True
                which, group = self._groups[number]
                self._counts[which].update(group)

    def of(self, role_index: int) -> tuple[int, int]:
        return self._counts[0][role_index], self._counts[1][role_index]


def _next(role_indexes: list[int], order: list[int], near: _Connectedness, far: _Connectedness) -> int:
    """Return the role to join next: the role with the most relations to the roles already in `order`.

    This keeps the conflict sets of the search small. Equalities count most, and relations to the anchor (`far`) break
    ties.
    """

    def rank(role_index: int) -> tuple[object, ...]:
        (equal, compared), (equal_far, compared_far) = near.of(role_index), far.of(role_index)
        return (equal, compared) == (0, 0), (-equal, -compared), (-equal_far, -compared_far), role_index

    known = {*order}
    return min((role_index for role_index in role_indexes if role_index not in known), key=rank)


def _role_indexes(members: list[Field]) -> set[int]:
    return {field.role_index for field in members}


def _equal_attributes(test: Typed) -> tuple[Field, Field] | None:
    """Return the attributes that `test` compares, if it is an equality of attributes of the same kind, else None."""
    if isinstance(test, Apply) and test.operator == "=":
        left, right = test.operands
        fields = isinstance(left, Field) and isinstance(right, Field) and left.kind == right.kind
        if fields and left.is_own and right.is_own:  # type: ignore[union-attr]
            return left, right  # type: ignore[return-value]
    return None
