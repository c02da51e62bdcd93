"""Rules as tables: turns bound rules into the words that the kernels interpret.

Loading a rule appends to the tables; what an earlier rule brought (a filter, a buffer, a column) is found by hashing
and used again. Nothing is compiled.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from tocsin.engine.families.request_tables import Arriving, LoadedContext, load_context, load_variant
from tocsin.engine.families.window_tables import (
    LoadedPlain,
    LoadedWindow,
    is_plain,
    load_plain,
    load_window,
    reads_in_place,
)
from tocsin.engine.predicate_index import FilterIndex
from tocsin.engine.programs import Labels, Programs, Words
from tocsin.engine.strings import Texts
from tocsin.errors import RuleError
from tocsin.events.types import SEQ, TS, Kind, text_words
from tocsin.kernels import Array, layout
from tocsin.language.eps.ast import shown_type
from tocsin.language.syntax.ast import Function, Policy
from tocsin.plans.expressions import Apply, Constant, Field, Typed, leaves
from tocsin.plans.plan import needed_columns
from tocsin.plans.rules import Absence, Buffer, Filter, Guard, Lookup, RulePlan

FOREVER, NEVER = -(2**62), 2**62
"""The `since` of a rule that sees everything, and of one that sees nothing any more."""

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
class Loaded:
    """A rule in the tables: its number, where its record is, the filter of its anchor."""

    plan: RulePlan
    number: int
    offset: int
    anchor: int
    level: int


class Tables:
    """The tables of all loaded rules."""

    def __init__(self, texts: Texts) -> None:
        self.texts = texts
        self.code = Words()
        self.filters = FilterIndex()
        self.types: dict[str, int] = {}
        self.slots: dict[str, dict[str, tuple[int, Kind | None]]] = {}
        self.width = 0
        self.rules: list[Loaded] = []
        self.anchored: dict[int, list[Loaded]] = {}
        self.requests: dict[str, int] = {}
        """The numbers of the requests."""
        self.branches: dict[object, int] = {}
        """The numbers of what depends on the steps of searches."""
        self.arriving: dict[int, Arriving] = {}
        """For a level, what events may complete."""
        self.contexts: list[LoadedContext] = []
        self.windows: list[LoadedWindow] = []
        self.plain: list[LoadedPlain] = []
        self.tells_expired = False
        """Whether matches say which of them are of events that left a window."""
        self.queues = 0
        """How many queues go through the entries of a window."""
        self.places = 1
        self.computed = 0
        self.outputs = 0
        self._filter_ids: dict[Filter, int] = {}
        self.buffer_ids: dict[Buffer, int] = {}
        self._buffers_of = Words()
        self._fan_out = Words()
        self._is_anchor = Words()
        self._is_held = Words()
        self._is_stored = Words()
        self._type_words = Words()
        self._slots_of: dict[tuple[str, Kind], Array | None] = {}
        self._buffer_next = Words()
        self._buffer_keys = Words()
        self._horizons = Words()
        self._rule_words = Words()
        self._role_counts = Words()
        self._labels = Labels(())
        self.expressions = Programs(self.code, texts, self.slots)
        self._programs = Words()
        self._program_starts = Words()
        self._program_starts.extend([0])

    @property
    def labels(self) -> Labels:
        """What the rules are called; valid until another rule is loaded."""
        if len(self._labels) != len(self.rules):
            self._labels = Labels([loaded.plan for loaded in self.rules])
        return self._labels

    # ---- what the kernels read

    @property
    def horizons(self) -> Array:
        """How long each buffer keeps its events, in microseconds."""
        return self._horizons.view

    @property
    def buffer_chains(self) -> tuple[Array, Array, Array]:
        """For a filter the number of its buffers and the first of them, for a buffer the next one of its filter."""
        return self._fan_out.view, self._buffers_of.view, self._buffer_next.view

    @property
    def buffer_keys(self) -> Array:
        """For a buffer, where the slots of its key stand."""
        return self._buffer_keys.view

    @property
    def rule_words(self) -> Array:
        """The identity words of rule names."""
        return self._rule_words.view.view(np.uint64).reshape(-1, 2)

    @property
    def role_counts(self) -> Array:
        """How many parts a match of each rule has."""
        return self._role_counts.view

    @property
    def programs(self) -> tuple[Array, Array]:
        """The programs of the rules' attributes: where each rule's begin, and their offsets."""
        return self._program_starts.view, self._programs.view

    @property
    def type_words(self) -> Array:
        """The identity words of type names."""
        return self._type_words.view.view(np.uint64).reshape(-1, 2)

    @property
    def is_anchor(self) -> Array:
        """Whether a filter is that of some rule's anchor."""
        return self._is_anchor.view

    @property
    def is_held(self) -> Array:
        """Whether events that pass a filter are held by some window."""
        return self._is_held.view

    @property
    def is_stored(self) -> Array:
        """Whether events that pass a filter are taken into the store; plain queries alone read them where they are."""
        return self._is_stored.view

    def hold(self, filter: int) -> None:
        """Says that some window holds the events that pass a filter."""
        self._is_held.data[filter] = 1

    def programs_of(self, rule: int) -> list[int]:
        """Where the programs of a rule's attributes stand."""
        first, last = self._program_starts.data[rule : rule + 2]
        return [int(offset) for offset in self._programs.data[first:last]]

    def slots_of(self, attribute: str, kind: Kind) -> Array | None:
        """Where each type keeps an attribute of that kind (-1: nowhere); None if no rule reads it."""
        if (attribute, kind) not in self._slots_of:
            slots = np.full(len(self.types), layout.NONE, np.int64)
            for type, number in self.types.items():
                slot, wanted = self.slots[type].get(attribute, (layout.NONE, None))
                if wanted == kind:
                    slots[number] = slot
            self._slots_of[attribute, kind] = slots if (slots >= 0).any() else None
        return self._slots_of[attribute, kind]

    # ---- loading

    def load(self, plan: RulePlan, level: int, since: int = FOREVER) -> Loaded:
        """Appends a rule; it sees events from `since` on."""
        if len(plan.names) > layout.MAX_PLACES:
            raise RuleError(f"{plan.rule.name} has more than {layout.MAX_PLACES} clauses", span=plan.rule.span)
        self._slots_of.clear()
        for type in plan.types:
            self.enter(type, {})
        for type, columns in needed_columns(plan).items():
            self.enter(type, columns)
        if plan.windowed is not None and is_plain(plan):
            self.filter(plan.anchor, stored=not reads_in_place(plan))
            return load_plain(self, plan, plan.windowed, level, since)
        for filter in (plan.anchor, *plan.own):
            self.filter(filter)
        if plan.windowed is not None:
            return load_window(self, plan, plan.windowed, level, since)
        if plan.context is not None:
            return load_context(self, plan, plan.context, level, since)
        if plan.combining is not None:
            return load_variant(self, plan, plan.combining, level, since)
        guards = self._guards(plan, plan.guards)
        steps: list[int] = []
        for step in plan.steps:
            lookup = self.code.extend(self._lookup(plan, step.lookup))
            count, at = len(step.guards), self._guards(plan, step.guards, step.lookup.place)
            steps += [lookup, _POLICIES[step.policy], step.count, count, at, int(step.consumed)]
        first_step = self.code.extend(steps)
        computed = sum(not isinstance(guard, Absence) for guard in plan.guards) + sum(
            not isinstance(guard, Absence) for step in plan.steps for guard in step.guards
        )
        consumes = any(step.consumed for step in plan.steps)
        record = [since, len(plan.steps), first_step, len(plan.guards), guards, computed, int(consumes)]
        loaded = self.note(plan, self.code.extend(record), level)
        self.anchored.setdefault(loaded.anchor, []).append(loaded)
        self._is_anchor.data[loaded.anchor] = 1
        self.computed = max(self.computed, computed)
        return loaded

    def silence(self, loaded: Loaded) -> None:
        """Lets a rule, or one way in which a request can be met, see no more events."""
        self.code.data[loaded.offset] = NEVER

    def note(self, plan: RulePlan, offset: int, level: int) -> Loaded:
        """Notes a rule whose record is written."""
        programs = [self.expressions.add(plan.types, value, kind) for _, kind, value in plan.outputs]
        loaded = Loaded(plan, len(self.rules), offset, self._filter_ids[plan.anchor], level)
        self.rules.append(loaded)
        self._programs.extend(programs)
        self._program_starts.extend([self._programs.size])
        self.outputs = max(self.outputs, len(programs))
        roles = 1 + len(plan.steps) if plan.context is None and plan.windowed is None else 0
        self.places = max(self.places, roles)
        self._rule_words.extend(_signed(text_words(shown_type(plan.rule.name))))
        self._role_counts.extend([roles])
        return loaded

    def slot(self, type: str, attribute: str) -> int:
        """Where a value of an event stands; its time has no slot."""
        return _NO_SLOT[attribute] if attribute in _NO_SLOT else self.slots[type][attribute][0]

    def enter(self, type: str, columns: Mapping[str, Kind | None]) -> None:
        """Gives a type its number, and each needed attribute a slot of its own among those it does not use yet."""
        if type not in self.types:
            self.types[type] = len(self.types)
            self._type_words.extend(_signed(text_words(shown_type(type))))
        mine = self.slots.setdefault(type, {})
        for name, kind in columns.items():
            if name in mine:
                if mine[name][1] is None:
                    mine[name] = (mine[name][0], kind)
                continue
            taken = {slot for slot, _ in mine.values()}
            preferred = next((other[name][0] for other in self.slots.values() if name in other), None)
            slot = preferred if preferred is not None and preferred not in taken else 0
            while slot in taken:
                slot += 1
            mine[name] = (slot, kind)
            self.width = max(self.width, slot + 1)

    def filter(self, node: Filter, *, stored: bool = True) -> int:
        """The number of a filter, which is loaded if it is new. `stored`: what passes it is read from the store."""
        number = self._filter_ids.get(node)
        if number is None:
            number = self._filter_ids[node] = len(self._filter_ids)
            self._buffers_of.extend([layout.NONE])
            self._fan_out.extend([0])
            self._is_anchor.extend([0])
            self._is_held.extend([0])
            self._is_stored.extend([0])
            tests: list[tuple[int, bool, int, int]] = []
            rest: list[Typed] = []
            for condition in node.conditions:
                test = self._axis_test(node.type, condition)
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
        """Lets go of what only more filters would need."""
        self.filters.close(len(self.types))
        self._filter_ids.clear()

    def _axis_test(self, type: str, condition: Typed) -> tuple[int, bool, int, int] | None:
        """A condition as (slot, double, relation, constant), if it compares one attribute with a constant."""
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
        """The number of a buffer that keeps events at least so long; it is made if it is new."""
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

    def _lookup(self, plan: RulePlan, lookup: Lookup) -> list[int]:
        buffer = self.buffer(lookup.buffer, lookup.horizon_us)
        keys = [self.expressions.add(plan.types, key) for key in lookup.keys]
        conditions = [self.expressions.add(plan.types, condition) for condition in lookup.conditions]
        if len(keys) > 1:  # chains of several attributes are found by a mixture of them, which others may share
            for key, value in zip(lookup.buffer.keys, lookup.keys, strict=True):
                here = Field(lookup.place, key.attribute, key.kind)
                conditions.append(self.expressions.add(plan.types, Apply("=", (here, value), Kind.BOOL)))
        reach = lookup.reach
        return [
            lookup.place,
            buffer,
            len(keys),
            self.code.extend(keys),
            reach.end,
            layout.NONE if reach.window_us is None else reach.window_us,
            layout.NONE if reach.start is None else reach.start,
            len(conditions),
            self.code.extend(conditions),
        ]

    def _guards(self, plan: RulePlan, guards: Iterable[Guard], place: int = 0) -> int:
        """Writes the guards of the role at that place."""
        words: list[int] = []
        for guard in guards:
            lookup = self.code.extend(self._lookup(plan, guard.lookup))
            if isinstance(guard, Absence):
                words += [layout.ABSENCE, lookup, int(_bars_earlier(guard.lookup, place)), 0, 0, 0, layout.NONE]
                continue
            argument, double = layout.NONE, False
            if isinstance(guard.argument, Field):
                name, double = guard.argument.attribute, guard.argument.kind == Kind.DOUBLE
                type = plan.types[guard.argument.place]
                argument = self.slot(type, name)
            test = layout.NONE if guard.test is None else self.expressions.add(plan.types, guard.test)
            words += [layout.REDUCTION, lookup, _FUNCTIONS[guard.function], argument, int(double), guard.index, test]
        return self.code.extend(words)


def _bars_earlier(lookup: Lookup, place: int) -> bool:
    """Whether nothing but its time says which events may not be there after the event at a place.

    What was there after one event was then there after all before it.
    """
    free = not lookup.conditions and len(lookup.keys) < 2 and lookup.reach.start == place != lookup.reach.end
    return free and all(
        isinstance(leaf, Constant) or (isinstance(leaf, Field) and leaf.place != place)
        for key in lookup.keys
        for leaf in leaves(key)
    )


def _signed(words: Iterable[int]) -> list[int]:
    return [word - (1 << 64) if word >> 63 else word for word in words]
