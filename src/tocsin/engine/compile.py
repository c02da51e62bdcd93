"""Compile bound rules into the tables that the kernels interpret.

Loading a rule appends to the tables. Rules share filters, buffers and columns: if an earlier rule already needs one, it
is found by hashing. No machine code is generated.

A *filter* is a type of events with conditions on their attributes. A *slot* is the number of the store column in which
events of a type keep an attribute; types share slots. The *record* of a rule is its description in the code, an array
of 64-bit words.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from tocsin.engine.families.request_tables import Completions, LoadedContext, load_context, load_variant
from tocsin.engine.families.window_tables import (
    LoadedProjection,
    LoadedQuery,
    is_projection,
    load_projection,
    load_query,
    reads_in_place,
)
from tocsin.engine.predicate_index import PredicateIndex
from tocsin.engine.programs import GrowingArray, ProgramWriter, RuleLabels
from tocsin.engine.strings import StringDictionary
from tocsin.errors import RuleError
from tocsin.events.types import SEQ, TS, Kind, text_words
from tocsin.kernels import Array, layout
from tocsin.language.eps.ast import shown_type
from tocsin.language.syntax.ast import Function, Policy
from tocsin.plans.expressions import Apply, Constant, Field, Typed, leaves
from tocsin.plans.plan import needed_columns
from tocsin.plans.rules import Buffer, Filter, Lookup, NegationCondition, RoleCondition, RulePlan

BEFORE_ALL, AFTER_ALL = -(2**62), 2**62
"""The `since` (µs) of a rule that sees all events, and of a disabled rule, which sees no events."""

_FUNCTIONS = {
    Function.AVG: layout.AVG,
    Function.SUM: layout.SUM,
    Function.MIN: layout.MIN,
    Function.MAX: layout.MAX,
    Function.COUNT: layout.COUNT,
}
_POLICIES = {Policy.EACH: layout.EACH, Policy.FIRST: layout.FIRST, Policy.LAST: layout.LAST}
_NO_SLOT = {TS: layout.ARGUMENT_TS, SEQ: layout.ARGUMENT_SEQ}


@dataclass(frozen=True, slots=True)
class LoadedRule:
    """A compiled rule, with its number, the offset of its record, the filter of its anchor and its stratum."""

    plan: RulePlan
    number: int
    offset: int
    anchor: int
    stratum: int


class RuleTables:
    """Holds the tables of all loaded rules."""

    def __init__(self, strings: StringDictionary) -> None:
        self.strings = strings
        self.code = GrowingArray()
        self.filters = PredicateIndex()
        self.types: dict[str, int] = {}
        self.slots: dict[str, dict[str, tuple[int, Kind | None]]] = {}
        self.width = 0
        self.rules: list[LoadedRule] = []
        self.anchored: dict[int, list[LoadedRule]] = {}
        self.requests: dict[str, int] = {}
        """The number of each request, by name."""
        self.conflict_sets: dict[object, int] = {}
        """The number of each conflict set; see `request_tables`."""
        self.completions: dict[int, Completions] = {}
        """The requests that an event may complete, by stratum."""
        self.contexts: list[LoadedContext] = []
        self.windows: list[LoadedQuery] = []
        self.projections: list[LoadedProjection] = []
        self.reports_expired = False
        """Whether some query also outputs the events that leave its window."""
        self.queues = 0
        """The largest number of queues that a window needs. A queue serves a running minimum or maximum."""
        self.roles_max = 1
        self.computed = 0
        self.outputs = 0
        self._filter_ids: dict[Filter, int] = {}
        self.buffer_ids: dict[Buffer, int] = {}
        self._buffers_of = GrowingArray()
        self._fan_out = GrowingArray()
        self._is_anchor = GrowingArray()
        self._is_windowed = GrowingArray()
        self._is_stored = GrowingArray()
        self._type_words = GrowingArray()
        self._slots_of: dict[tuple[str, Kind], Array | None] = {}
        self._buffer_next = GrowingArray()
        self._buffer_keys = GrowingArray()
        self._horizons = GrowingArray()
        self._rule_words = GrowingArray()
        self._role_counts = GrowingArray()
        self._labels = RuleLabels(())
        self.expressions = ProgramWriter(self.code, strings, self.slots)
        self._programs = GrowingArray()
        self._program_starts = GrowingArray()
        self._program_starts.extend([0])

    @property
    def labels(self) -> RuleLabels:
        """The names of rules, roles and attributes. Valid until another rule is loaded."""
        if len(self._labels) != len(self.rules):
            self._labels = RuleLabels([loaded.plan for loaded in self.rules])
        return self._labels

    # ---- tables for the kernels

    @property
    def retentions(self) -> Array:
        """How long (µs) each buffer retains events."""
        return self._horizons.view

    @property
    def buffer_chains(self) -> tuple[Array, Array, Array]:
        """The number of buffers of each filter, the first buffer of each filter, and the next buffer of each buffer.

        The buffers of a filter form a linked list.
        """
        return self._fan_out.view, self._buffers_of.view, self._buffer_next.view

    @property
    def buffer_keys(self) -> Array:
        """The offset of the key slots of each buffer."""
        return self._buffer_keys.view

    @property
    def rule_words(self) -> Array:
        """The 128-bit hash of each rule's name, as two words."""
        return self._rule_words.view.view(np.uint64).reshape(-1, 2)

    @property
    def role_counts(self) -> Array:
        """The number of parts in a match of each rule."""
        return self._role_counts.view

    @property
    def programs(self) -> tuple[Array, Array]:
        """The index of each rule's first program, and the offsets of all programs, which compute attributes."""
        return self._program_starts.view, self._programs.view

    @property
    def type_words(self) -> Array:
        """The 128-bit hash of each type's name, as two words."""
        return self._type_words.view.view(np.uint64).reshape(-1, 2)

    @property
    def is_anchor(self) -> Array:
        """Whether each filter is that of a rule's anchor."""
        return self._is_anchor.view

    @property
    def is_windowed(self) -> Array:
        """Whether a window holds the events that pass each filter."""
        return self._is_windowed.view

    @property
    def is_stored(self) -> Array:
        """Whether events that pass each filter enter the store. If only projections need them, they do not."""
        return self._is_stored.view

    def mark_windowed(self, filter: int) -> None:
        """Note that a window holds the events that pass the filter with this number."""
        self._is_windowed.data[filter] = 1

    def programs_of(self, rule: int) -> list[int]:
        """Return the offsets of the programs that compute the attributes of a rule, given by its number."""
        first, last = self._program_starts.data[rule : rule + 2]
        return [int(offset) for offset in self._programs.data[first:last]]

    def slots_of(self, attribute: str, kind: Kind) -> Array | None:
        """Return the slot of the attribute in each type, or None if no rule reads it.

        The slot is -1 for types that have no such attribute of kind `kind`.
        """
        if (attribute, kind) not in self._slots_of:
            slots = np.full(len(self.types), layout.NONE, np.int64)
            for type, number in self.types.items():
                slot, wanted = self.slots[type].get(attribute, (layout.NONE, None))
                if wanted == kind:
                    slots[number] = slot
            self._slots_of[attribute, kind] = slots if (slots >= 0).any() else None
        return self._slots_of[attribute, kind]

    # ---- compiling

    def load(self, plan: RulePlan, stratum: int, since: int = BEFORE_ALL) -> LoadedRule:
        """Compile a rule that sees the events from the time `since` (µs) on."""
        if len(plan.names) > layout.MAX_ROLES:
            raise RuleError(f"{plan.rule.name} has more than {layout.MAX_ROLES} clauses", span=plan.rule.span)
        self._slots_of.clear()
        for type in plan.types:
            self.add_type(type, {})
        for type, columns in needed_columns(plan).items():
            self.add_type(type, columns)
        if plan.windowed is not None and is_projection(plan):
            self.filter(plan.anchor, stored=not reads_in_place(plan))
            return load_projection(self, plan, plan.windowed, stratum, since)
        for filter in (plan.anchor, *plan.own):
            self.filter(filter)
        if plan.windowed is not None:
            return load_query(self, plan, plan.windowed, stratum, since)
        if plan.context is not None:
            return load_context(self, plan, plan.context, stratum, since)
        if plan.request_join is not None:
            return load_variant(self, plan, plan.request_join, stratum, since)
        conditions = self._compile_conditions(plan, plan.role_conditions)
        steps: list[int] = []
        for step in plan.steps:
            lookup = self.code.extend(self._compile_lookup(plan, step.lookup))
            count, at = (
                len(step.role_conditions),
                self._compile_conditions(plan, step.role_conditions, step.lookup.role_index),
            )
            steps += [lookup, _POLICIES[step.policy], step.count, count, at, int(step.consumed)]
        first_step = self.code.extend(steps)
        computed = sum(not isinstance(condition, NegationCondition) for condition in plan.role_conditions) + sum(
            not isinstance(condition, NegationCondition) for step in plan.steps for condition in step.role_conditions
        )
        consumes = any(step.consumed for step in plan.steps)
        record = [since, len(plan.steps), first_step, len(plan.role_conditions), conditions, computed, int(consumes)]
        loaded = self.append_rule(plan, self.code.extend(record), stratum)
        self.anchored.setdefault(loaded.anchor, []).append(loaded)
        self._is_anchor.data[loaded.anchor] = 1
        self.computed = max(self.computed, computed)
        return loaded

    def disable(self, loaded: LoadedRule) -> None:
        """Stop delivering events to a rule, or to one variant of a request."""
        self.code.data[loaded.offset] = AFTER_ALL

    def append_rule(self, plan: RulePlan, offset: int, stratum: int) -> LoadedRule:
        """Register a rule whose record is at `offset` in the code, and compile the programs of its attributes."""
        programs = [self.expressions.add(plan.types, value, kind) for _, kind, value in plan.outputs]
        loaded = LoadedRule(plan, len(self.rules), offset, self._filter_ids[plan.anchor], stratum)
        self.rules.append(loaded)
        self._programs.extend(programs)
        self._program_starts.extend([self._programs.size])
        self.outputs = max(self.outputs, len(programs))
        roles = 1 + len(plan.steps) if plan.context is None and plan.windowed is None else 0
        self.roles_max = max(self.roles_max, roles)
        self._rule_words.extend(_signed(text_words(shown_type(plan.rule.name))))
        self._role_counts.extend([roles])
        return loaded

    def slot(self, type: str, attribute: str) -> int:
        """Return the slot of an attribute of a type, or a code if the attribute is `ts` or `seq`."""
        return _NO_SLOT[attribute] if attribute in _NO_SLOT else self.slots[type][attribute][0]

    def add_type(self, type: str, columns: Mapping[str, Kind | None]) -> None:
        """Assign a number to the type, and a free slot to each attribute in `columns`."""
        if type not in self.types:
            self.types[type] = len(self.types)
            self._type_words.extend(_signed(text_words(shown_type(type))))
        type_slots = self.slots.setdefault(type, {})
        for name, kind in columns.items():
            if name in type_slots:
                if type_slots[name][1] is None:
                    type_slots[name] = (type_slots[name][0], kind)
                continue
            used = {slot for slot, _ in type_slots.values()}
            preferred = next((other[name][0] for other in self.slots.values() if name in other), None)
            slot = preferred if preferred is not None and preferred not in used else 0
            while slot in used:
                slot += 1
            type_slots[name] = (slot, kind)
            self.width = max(self.width, slot + 1)

    def filter(self, node: Filter, *, stored: bool = True) -> int:
        """Return the number of a filter, and add the filter if it is new.

        If `stored`, events that pass the filter enter the store.
        """
        number = self._filter_ids.get(node)
        if number is None:
            number = self._filter_ids[node] = len(self._filter_ids)
            self._buffers_of.extend([layout.NONE])
            self._fan_out.extend([0])
            self._is_anchor.extend([0])
            self._is_windowed.extend([0])
            self._is_stored.extend([0])
            tests: list[tuple[int, bool, int, int]] = []
            rest: list[Typed] = []
            for condition in node.conditions:
                test = self._constant_test(node.type, condition)
                if test is None:
                    rest.append(condition)
                else:
                    tests.append(test)
            residual = layout.NONE
            if rest:
                whole = rest[0] if len(rest) == 1 else Apply("and", tuple(rest), Kind.BOOL)
                residual = self.expressions.add((node.type,), whole)
            self.filters.add(self.types[node.type], number, tests, residual)
        if stored:
            self._is_stored.data[number] = 1
        return number

    def close(self) -> None:
        """Free the data that is needed only to add filters."""
        self.filters.freeze(len(self.types))
        self._filter_ids.clear()

    def _constant_test(self, type: str, condition: Typed) -> tuple[int, bool, int, int] | None:
        """Return a comparison with a constant as (slot, is double, relation, constant).

        Return None if the condition is not a comparison with a constant.
        """
        if not isinstance(condition, Apply) or condition.operator not in layout.RELATIONS:
            return None
        left, right = condition.operands
        if not isinstance(left, Field) or not isinstance(right, Constant) or left.attribute in _NO_SLOT:
            return None
        if right.kind == Kind.STRING and condition.operator not in ("=", "!="):
            return None
        slot = self.slots[type][left.attribute][0]
        return slot, right.kind == Kind.DOUBLE, layout.RELATIONS[condition.operator], self.expressions.constant(right)

    def buffer(self, node: Buffer, horizon_us: int) -> int:
        """Return the number of a buffer, and add the buffer if it is new.

        The buffer retains events for at least `horizon_us`.
        """
        number = self.buffer_ids.get(node)
        if number is None:
            filter = self.filter(node.filter)
            number = self.buffer_ids[node] = len(self.buffer_ids)
            slots = [self.slots[node.filter.type][key.attribute][0] for key in node.keys]
            self._buffer_keys.extend([self.code.extend([len(slots), *slots])])
            self._buffer_next.extend([int(self._buffers_of.data[filter])])
            self._buffers_of.data[filter] = number
            self._fan_out.data[filter] += 1
            self._horizons.extend([0])
        self._horizons.data[number] = max(int(self._horizons.data[number]), horizon_us)
        return number

    def _compile_lookup(self, plan: RulePlan, lookup: Lookup) -> list[int]:
        buffer = self.buffer(lookup.buffer, lookup.retention_us)
        keys = [self.expressions.add(plan.types, key) for key in lookup.keys]
        conditions = [self.expressions.add(plan.types, condition) for condition in lookup.conditions]
        if len(keys) > 1:  # buffers find several keys by a common hash, so the keys are compared, too
            for key, value in zip(lookup.buffer.keys, lookup.keys, strict=True):
                here = Field(lookup.role_index, key.attribute, key.kind)
                conditions.append(self.expressions.add(plan.types, Apply("=", (here, value), Kind.BOOL)))
        reach = lookup.bounds
        return [
            lookup.role_index,
            buffer,
            len(keys),
            self.code.extend(keys),
            reach.end,
            layout.NONE if reach.window_us is None else reach.window_us,
            layout.NONE if reach.start is None else reach.start,
            len(conditions),
            self.code.extend(conditions),
        ]

    def _compile_conditions(self, plan: RulePlan, conditions: Iterable[RoleCondition], role_index: int = 0) -> int:
        """Write the conditions on the role with the index `role_index`, and return their offset."""
        words: list[int] = []
        for condition in conditions:
            lookup = self.code.extend(self._compile_lookup(plan, condition.lookup))
            if isinstance(condition, NegationCondition):
                words += [
                    layout.NEGATION,
                    lookup,
                    int(_bars_earlier(condition.lookup, role_index)),
                    0,
                    0,
                    0,
                    layout.NONE,
                ]
                continue
            argument, double = layout.NONE, False
            if isinstance(condition.argument, Field):
                name, double = condition.argument.attribute, condition.argument.kind == Kind.DOUBLE
                type = plan.types[condition.argument.role_index]
                argument = self.slot(type, name)
            test = layout.NONE if condition.test is None else self.expressions.add(plan.types, condition.test)
            words += [
                layout.AGGREGATE,
                lookup,
                _FUNCTIONS[condition.function],
                argument,
                int(double),
                condition.index,
                test,
            ]
        return self.code.extend(words)


def _bars_earlier(lookup: Lookup, role_index: int) -> bool:
    """Return whether an event that rules out one candidate for a role also rules out all earlier candidates.

    This holds if a negation forbids events after the role's event, and nothing but time relates them to this event.
    """
    free = not lookup.conditions and len(lookup.keys) < 2 and lookup.bounds.start == role_index != lookup.bounds.end
    return free and all(
        isinstance(leaf, Constant) or (isinstance(leaf, Field) and leaf.role_index != role_index)
        for key in lookup.keys
        for leaf in leaves(key)
    )


def _signed(words: Iterable[int]) -> list[int]:
    return [word - (1 << 64) if word >> 63 else word for word in words]
