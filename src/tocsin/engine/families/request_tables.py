"""Compile requests: the steps of their searches, the events that complete them, and the operators of Snoop's contexts.

Each step of a search chooses the event for one role. The *conflict set* of a step is the set of later steps that depend
on it, which `kernels.requests.search` calls its subtree. If the later steps cannot be filled after a choice, the search
remembers the chosen event as a *no-good*. A no-good holds whatever other steps have chosen, with one possible
exception: the *context* of a conflict set is one other earlier step on which the set may depend. If a conflict set
depends on more earlier steps, no-goods are not remembered.
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
from tocsin.plans.bind.structure import exclusive, precedence_closure, precedences
from tocsin.plans.expressions import Apply, Field, at_role, roles_in
from tocsin.plans.rules import Buffer, Lookup, RequestJoin, RulePlan, SnoopContext

if TYPE_CHECKING:
    from tocsin.engine.compile import LoadedRule, RuleTables


@dataclass(frozen=True, slots=True)
class ConflictSet:
    """The later steps of a search that depend on a step."""

    number: int = NONE
    """The number of the conflict set, which is equal for steps that share their no-goods."""
    context: int = NONE
    """The one other earlier step on which the conflict set depends, or NONE."""
    age: int = 0
    """OLDER if the events of the later steps must be older, YOUNGER if they must be younger, 0 otherwise.

    If they must be older, no new event can resolve the conflict.
    """
    roles: frozenset[int] = frozenset()


class ConflictSets:
    """Computes the conflict sets of one variant of a request, which is one of its alternatives."""

    def __init__(self, plan: RulePlan, combining: RequestJoin, since: int, numbers: dict[object, int]) -> None:
        self.precedences = precedences(combining.sequences, combining.ascending, combining.anchor)
        self._anchor, self._numbers = combining.anchor, numbers
        self._before = precedence_closure(self.precedences)
        self._whole = plan.consumer, plan.names, plan.types, since

    def of(self, lookups: Sequence[Lookup]) -> list[ConflictSet]:
        """Return the conflict set of each step of a search. `lookups` has the steps in order."""
        earlier = [self._earlier(lookups, step) for step in range(len(lookups))]
        return [self._branch(lookups, earlier, step) for step in range(len(lookups))]

    def detached(self, lookups: Sequence[Lookup]) -> int:
        """Return the number of a component if it does not depend on the arriving event, otherwise NONE.

        A component that does not depend on the arriving event always has the same candidates.
        """
        roles = {lookup.role_index for lookup in lookups}
        values = [value for lookup in lookups for value in (*lookup.keys, *lookup.conditions)]
        if any(self._anchor in roles_in(value) for value in values):
            return NONE
        inside = tuple(one for one in self.precedences if roles & one.role_indexes)
        if any(self._anchor in one.role_indexes for one in inside):
            return NONE
        what = frozenset((one.role_index, one.buffer, one.keys, one.conditions) for one in lookups)
        return self._numbers.setdefault((self._whole, what, inside), len(self._numbers))

    def _earlier(self, lookups: Sequence[Lookup], step: int) -> set[int]:
        """Return the indexes of the earlier steps on which the step with the index `step` depends."""
        here = lookups[step]
        compared = {
            role for one in self.precedences if here.role_index in one.role_indexes for role in one.role_indexes
        }
        compared |= {role for value in (*here.keys, *here.conditions) for role in roles_in(value)}
        return {
            other
            for other, lookup in enumerate(lookups[:step])
            if lookup.role_index in compared or not exclusive(lookup.buffer.filter, here.buffer.filter)
        }

    def _branch(self, lookups: Sequence[Lookup], earlier: list[set[int]], step: int) -> ConflictSet:
        depends: set[int] = set()
        for later in range(step + 1, len(lookups)):
            if earlier[later] & {step, *depends}:
                depends.add(later)
        context = {other for later in depends for other in earlier[later] if other < step}
        if len(context) > 1 or (not depends and lookups[step].keys):
            return ConflictSet()
        beside = next(iter(context), NONE)
        roles = {lookups[later].role_index for later in depends}
        known = {lookups[other].role_index for other in {step, *context}}
        inside = tuple(one for one in self.precedences if roles & one.role_indexes)
        anchored = any(self._anchor in one.role_indexes for one in inside) or any(
            self._anchor in roles_in(value)
            for later in depends
            for value in (*lookups[later].keys, *lookups[later].conditions)
        )
        age = 0
        if not anchored and all(any((role, other) in self._before for other in known) for role in roles):
            age = OLDER
        elif all((lookups[step].role_index, role) in self._before for role in roles):
            age = YOUNGER
        what = frozenset(
            (one.role_index, one.buffer, one.keys, one.conditions) for one in (lookups[later] for later in depends)
        )
        own = self._anchor if anchored else NONE
        around = None if beside == NONE else lookups[beside].role_index
        identity = self._whole, own, lookups[step].role_index, around, what, inside
        return ConflictSet(self._numbers.setdefault(identity, len(self._numbers)), beside, age, frozenset(roles))


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


class Completions:
    """Maps filters to pairs (request, variant) that an event may complete if it passes the filter."""

    def __init__(self) -> None:
        self._by_filter: dict[int, list[tuple[int, int]]] = {}
        self._table: tuple[Array, Array] | None = None

    def add(self, filter: int, request: int, variant: int) -> None:
        """Add a variant of a request that events which pass `filter` may complete."""
        self._by_filter.setdefault(filter, []).append((request, variant))
        self._table = None

    def table(self, filters: int) -> tuple[Array, Array]:
        """Return the index of the first pair of each filter, and all pairs. `filters` is the number of filters."""
        if self._table is None or len(self._table[0]) <= filters:
            counts = np.zeros(filters + 1, np.int64)
            for filter, pairs in self._by_filter.items():
                counts[filter + 1] = len(pairs)
            ordered = [pair for _, pairs in sorted(self._by_filter.items()) for pair in pairs]
            self._table = np.cumsum(counts), np.array(ordered, np.int64)
        return self._table


@dataclass(frozen=True, slots=True)
class LoadedContext:
    """A compiled request in one of Snoop's contexts, in the form that its kernel reads."""

    rule: LoadedRule
    since: int
    mode: int
    window_us: int
    nodes: Array
    operands: Array
    lists: int
    """The number of lists of combinations that the operators of the request keep."""
    bits: Mapping[int, int]
    """The leaves that an event matches if it passes a filter, as bits, by number of the filter."""
    conditions: int
    condition_count: int
    roles: Array
    """The leaves to which conditions refer."""
    repeated: Array


def load_variant(tables: RuleTables, plan: RulePlan, combining: RequestJoin, stratum: int, since: int) -> LoadedRule:
    """Compile one variant of a request, which sees the events from the time `since` (µs) on."""
    types, parts = plan.types, list[int]()
    branches = ConflictSets(plan, combining, since, tables.conflict_sets)
    for part in combining.components:
        default = step_words(tables, plan, combining, branches, part.lookups)
        orders = [
            step_words(tables, plan, combining, branches, lookups) if len(part.lookups) > 1 else default
            for lookups in part.orders
        ]
        parts += [len(part.lookups), default, tables.code.extend(orders)]
        parts += [layout.NONE if part.time_order is None else orders[part.time_order], branches.detached(part.lookups)]
    conditions = tables.code.extend([tables.expressions.add(types, condition) for condition in combining.conditions])
    record = [since, combining.window_us, len(tables.rules), combining.anchor, len(plan.steps)]
    record += [len(combining.conditions), conditions, len(combining.components), tables.code.extend(parts)]
    offset = tables.code.extend(record)
    loaded = tables.append_rule(plan, offset, stratum)
    request = tables.requests.setdefault(plan.consumer, len(tables.requests))
    tables.completions.setdefault(stratum, Completions()).add(loaded.anchor, request, offset)
    return loaded


def load_context(tables: RuleTables, plan: RulePlan, context: SnoopContext, stratum: int, since: int) -> LoadedRule:
    """Compile a request in one of Snoop's contexts, which sees the events from the time `since` (µs) on."""
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
    for role, filter in enumerate(context.filters):
        tables.buffer(Buffer(filter), context.window_us + 1)
        bits[tables.filter(filter)] = bits.get(tables.filter(filter), 0) | 1 << role
    conditions = tables.code.extend([tables.expressions.add(plan.types, condition) for condition in context.conditions])
    roles = sorted({role for condition in context.conditions for role in roles_in(condition)})
    loaded = tables.append_rule(plan, layout.NONE, stratum)
    repeated = np.array([role in context.repeated for role in roles], np.uint8)
    loaded_context = LoadedContext(
        loaded, since, _MODES[context.mode], context.window_us, np.array(nodes, np.int64),
        np.array([*operands, 0], np.int64), lists, bits, conditions, len(context.conditions),
        np.array(roles, np.int64), repeated,
    )  # fmt: skip
    tables.contexts.append(loaded_context)
    return loaded


def step_words(
    tables: RuleTables, plan: RulePlan, combining: RequestJoin, branches: ConflictSets, lookups: Sequence[Lookup]
) -> int:
    """Compile the steps `lookups`, a join order of a component, and return their offset in the code."""
    types, bound, words = plan.types, {combining.anchor}, list[int]()
    steps = {lookup.role_index: number for number, lookup in enumerate(lookups)}

    def mask(roles: Iterable[int], here: int) -> int:
        return sum(1 << steps[role] for role in {*roles} - {here, combining.anchor})

    for lookup, branch in zip(lookups, branches.of(lookups), strict=True):
        role, filter = lookup.role_index, lookup.buffer.filter
        bound.add(role)
        tests = [at_role(condition, role) for condition in filter.conditions]
        for key, value in zip(lookup.buffer.keys, lookup.keys, strict=True):
            tests.append(Apply("=", (Field(role, key.attribute, key.kind), value), Kind.BOOL))
        pairs: list[int] = []
        sequences: list[tuple[int, ...]] = []
        for one in branches.precedences:
            if role in one.role_indexes and bound >= one.role_indexes:
                if len(one.after) > 1:
                    sequences.append((one.before, *one.after))
                    continue
                other = one.after[0] if role == one.before else one.before
                pairs += [other, steps.get(other, layout.NONE), int(role != one.before), int(one.strictly)]
        in_order = [role for roles in sequences for role in roles]
        of_conditions = [role for condition in lookup.conditions for role in roles_in(condition)]
        words += [
            role,
            tables.buffer(lookup.buffer, lookup.retention_us),
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
            tables.code.extend([n for roles in sequences for n in (len(roles) - 1, *roles)]),
            mask((role for key in lookup.keys for role in roles_in(key)), role),
            mask((*of_conditions, *in_order), role),
            branch.number,
            branch.context,
            branch.age,
            sum(1 << role for role in branch.roles),
            sum(1 << before for before in {one.before for one in branches.precedences if one.after == (role,)}),
        ]
    return tables.code.extend(words)
