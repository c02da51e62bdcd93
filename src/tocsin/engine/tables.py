"""Rules as tables: turns bound rules into the words that the kernels interpret.

Loading a rule appends to the tables; what an earlier rule brought (a filter, a buffer, a column) is found by hashing
and used again. Nothing is compiled.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from tocsin.engine.branches import Branches
from tocsin.engine.filters import FilterIndex
from tocsin.engine.kernels import Array, layout
from tocsin.engine.kernels.groups import call_words
from tocsin.engine.programs import Programs, Words
from tocsin.engine.query_tables import EXTENTS, side_words, stage_words
from tocsin.engine.request_tables import Arriving, step_words
from tocsin.engine.texts import Texts
from tocsin.errors import RuleError
from tocsin.events.ids import text_words
from tocsin.events.types import Kind
from tocsin.language.queries import Summary
from tocsin.language.requests import Mode, shown_type
from tocsin.language.rules import Function, Policy
from tocsin.plans.expressions import Apply, Constant, Field, Typed, places_in
from tocsin.plans.graph import (
    Absence,
    Buffer,
    Combining,
    Context,
    Filter,
    Guard,
    Lookup,
    RulePlan,
    Windowed,
)
from tocsin.plans.plan import needed_columns

FOREVER, NEVER = -(2**62), 2**62
"""The `since` of a rule that sees everything."""

_FUNCTIONS = {
    Function.AVG: layout.AVG,
    Function.SUM: layout.SUM,
    Function.MIN: layout.MIN,
    Function.MAX: layout.MAX,
    Function.COUNT: layout.COUNT,
}
_SUMMARIES = {
    Summary.AVG: layout.AVG,
    Summary.SUM: layout.SUM,
    Summary.MIN: layout.MIN,
    Summary.MAX: layout.MAX,
    Summary.COUNT: layout.COUNT,
    Summary.STD_DEV: layout.STD_DEV,
}
_POLICIES = {Policy.EACH: layout.EACH, Policy.FIRST: layout.FIRST, Policy.LAST: layout.LAST}
_NO_SLOT = {"ts": layout.ARGUMENT_TS, "seq": layout.ARGUMENT_SEQ}


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


@dataclass(frozen=True, slots=True)
class Loaded:
    """A rule in the tables: its number, where its record is, the filter of its anchor."""

    plan: RulePlan
    number: int
    offset: int
    anchor: int
    level: int


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


@dataclass(frozen=True, slots=True)
class LoadedWindow:
    """A query, as its kernel reads it."""

    rule: Loaded
    windowed: Windowed
    number: int
    """Of its state; those of a join's sides, and of an automaton's stages, are behind it."""
    offset: int
    start: int
    """Where the aggregates stand in the record of a group."""
    record: int
    """How long that is."""
    bits: Mapping[int, int]
    """For a filter, the sides or stages that an event which passes it comes to, as bits; none for a window."""
    lanes: tuple[int, ...]
    """Where in the record of a group lists of values begin."""

    @property
    def following(self) -> int:
        """The number of the next query's state."""
        if self.windowed.chained is not None:
            return self.number + 1 + len(self.windowed.chained.stages)
        return self.number + (1 if self.windowed.joined is None else 3)


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
        self._type_words = Words()
        self._slots_of: dict[tuple[str, Kind], Array | None] = {}
        self._buffer_next = Words()
        self._buffer_keys = Words()
        self._horizons = Words()
        self._rule_words = Words()
        self._role_counts = Words()
        self.expressions = Programs(self.code, texts, self.slots)
        self._programs = Words()
        self._program_starts = Words()
        self._program_starts.extend([0])

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
        for filter in plan.own:
            self.filter(filter)
        if plan.windowed is not None:
            return self._load_window(plan, plan.windowed, level, since)
        if plan.context is not None:
            return self._load_context(plan, plan.context, level, since)
        if plan.combining is not None:
            return self._load_variant(plan, plan.combining, level, since)
        guards = self._guards(plan, plan.guards)
        steps: list[int] = []
        for step in plan.steps:
            lookup = self.code.extend(self._lookup(plan, step.lookup))
            count, at = len(step.guards), self._guards(plan, step.guards)
            steps += [lookup, _POLICIES[step.policy], step.count, count, at, int(step.consumed)]
        first_step = self.code.extend(steps)
        computed = sum(not isinstance(guard, Absence) for guard in plan.guards) + sum(
            not isinstance(guard, Absence) for step in plan.steps for guard in step.guards
        )
        consumes = any(step.consumed for step in plan.steps)
        record = [since, len(plan.steps), first_step, len(plan.guards), guards, computed, int(consumes)]
        loaded = self._loaded(plan, self.code.extend(record), level)
        self.anchored.setdefault(loaded.anchor, []).append(loaded)
        self._is_anchor.data[loaded.anchor] = 1
        self.computed = max(self.computed, computed)
        return loaded

    def silence(self, loaded: Loaded) -> None:
        """Lets a rule, or one way in which a request can be met, see no more events."""
        self.code.data[loaded.offset] = NEVER

    def _loaded(self, plan: RulePlan, offset: int, level: int) -> Loaded:
        """Notes a rule whose record is written."""
        programs = [self.expressions.add(plan.types, value, kind) for _, kind, value in plan.outputs]
        loaded = Loaded(plan, len(self.rules), offset, self.filter(plan.anchor), level)
        self.rules.append(loaded)
        self._programs.extend(programs)
        self._program_starts.extend([self._programs.size])
        self.outputs = max(self.outputs, len(programs))
        roles = 1 + len(plan.steps) if plan.context is None and plan.windowed is None else 0
        self.places = max(self.places, roles)
        self._rule_words.extend(_signed(text_words(shown_type(plan.rule.name))))
        self._role_counts.extend([roles])
        return loaded

    def _load_variant(self, plan: RulePlan, combining: Combining, level: int, since: int) -> Loaded:
        """Appends one way in which a request can be met."""
        types, parts = plan.types, list[int]()
        branches = Branches(plan, combining, since, self.branches)
        for part in combining.parts:
            default = step_words(self, plan, combining, branches, part.lookups)
            orders = [
                step_words(self, plan, combining, branches, lookups) if len(part.lookups) > 1 else default
                for lookups in part.orders
            ]
            parts += [len(part.lookups), default, self.code.extend(orders)]
            parts += [layout.NONE if part.row is None else orders[part.row], branches.detached(part.lookups)]
        conditions = self.code.extend([self.expressions.add(types, condition) for condition in combining.conditions])
        record = [since, combining.window_us, len(self.rules), combining.anchor, len(plan.steps)]
        record += [len(combining.conditions), conditions, len(combining.parts), self.code.extend(parts)]
        offset = self.code.extend(record)
        loaded = self._loaded(plan, offset, level)
        request = self.requests.setdefault(plan.user, len(self.requests))
        self.arriving.setdefault(level, Arriving()).add(loaded.anchor, request, offset)
        return loaded

    def _load_context(self, plan: RulePlan, context: Context, level: int, since: int) -> Loaded:
        """Takes a request in one of Snoop's contexts."""
        nodes: list[list[int]] = []
        operands: list[int] = []
        lists = 0
        for node in context.nodes:
            attribute = layout.NONE if node.attribute is None else self.expressions.add(plan.types, node.attribute)
            words = [_OPERATORS[node.operator], node.first, node.count, lists, len(operands), attribute, int(node.same)]
            nodes.append(words)
            operands += node.operands
            lists += {"all": node.count, "then": 1, "times": 1}.get(node.operator, 0)
        bits: dict[int, int] = {}
        for place, filter in enumerate(context.filters):
            self._buffer(Buffer(filter), context.window_us + 1)
            bits[self.filter(filter)] = bits.get(self.filter(filter), 0) | 1 << place
        conditions = self.code.extend([self.expressions.add(plan.types, condition) for condition in context.conditions])
        places = sorted({place for condition in context.conditions for place in places_in(condition)})
        loaded = self._loaded(plan, layout.NONE, level)
        repeated = np.array([place in context.repeated for place in places], np.uint8)
        found = LoadedContext(
            loaded, since, _MODES[context.mode], context.window_us, np.array(nodes, np.int64),
            np.array([*operands, 0], np.int64), lists, bits, conditions, len(context.conditions),
            np.array(places, np.int64), repeated,
        )  # fmt: skip
        self.contexts.append(found)
        return loaded

    def _load_window(self, plan: RulePlan, windowed: Windowed, level: int, since: int) -> Loaded:
        """Takes a query."""
        window, types, code = windowed.window, plan.types, self.code
        keys = [n for key in windowed.group_by for n in (key.place, self._slot(types[key.place], key.attribute))]
        start = at = layout.G_KEY + 1 + len(windowed.group_by)
        calls: list[int] = []
        lanes: list[int] = []
        queues = 0
        for call in windowed.calls:
            function = _SUMMARIES[call.function]
            double = call.argument is not None and call.argument.kind == Kind.DOUBLE
            queue = layout.NONE
            if call.function in (Summary.MIN, Summary.MAX):
                if window is not None:
                    queue, queues = queues, queues + 1
                elif windowed.joined is not None:
                    queue = layout.IN_LANES
                    lanes.append(at)
            argument = layout.NONE if call.argument is None else self.expressions.add(types, call.argument)
            calls += [function, argument, int(double), at, queue]
            at += call_words(function, double=double, ordered=queue != layout.IN_LANES)
        self.queues = max(self.queues, queues)
        loaded = self._loaded(plan, code.size, level)
        first, last = self._program_starts.data[loaded.number], self._program_starts.data[loaded.number + 1]
        after, having = (
            code.extend([self.expressions.add(types, test) for test in tests])
            for tests in (windowed.after, windowed.having)
        )
        grouped = windowed.grouped
        number = self.windows[-1].following if self.windows else 0
        record = [since, loaded.number, number * layout.STATE_WORDS]
        record += [EXTENTS[window.extent] if window else layout.NO_WINDOW, window.size if window else 0]
        record += [
            len(windowed.after),
            after,
            len(windowed.group_by),
            code.extend(keys),
            len(windowed.calls),
            code.extend(calls),
        ]
        record += [int(last - first), code.extend(self._programs.data[first:last].tolist())]
        record += [len(windowed.having), having, int(windowed.current), int(windowed.expired), int(grouped), at]
        bits: dict[int, int] = {}
        if windowed.joined is not None:
            record += [layout.JOIN, *side_words(self, types, windowed.joined, number, bits)]
        elif windowed.chained is not None:
            record += [layout.AUTOMATON, *stage_words(self, types, windowed.chained, number, bits)]
        else:
            record += [layout.WINDOW]
        loaded = self.rules[-1] = replace(loaded, offset=code.extend(record))
        self.tells_expired = self.tells_expired or windowed.expired
        if window is not None:
            self._is_held.data[loaded.anchor] = 1
        self.windows.append(LoadedWindow(loaded, windowed, number, loaded.offset, start, at, bits, tuple(lanes)))
        return loaded

    def _slot(self, type: str, attribute: str) -> int:
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

    def filter(self, node: Filter) -> int:
        """The number of a filter, which is loaded if it is new."""
        number = self._filter_ids.get(node)
        if number is None:
            number = self._filter_ids[node] = len(self._filter_ids)
            self._buffers_of.extend([layout.NONE])
            self._fan_out.extend([0])
            self._is_anchor.extend([0])
            self._is_held.extend([0])
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
        return number

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

    def _buffer(self, node: Buffer, horizon_us: int) -> int:
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
        buffer = self._buffer(lookup.buffer, lookup.horizon_us)
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

    def _guards(self, plan: RulePlan, guards: Iterable[Guard]) -> int:
        words: list[int] = []
        for guard in guards:
            lookup = self.code.extend(self._lookup(plan, guard.lookup))
            if isinstance(guard, Absence):
                words += [layout.ABSENCE, lookup, 0, 0, 0, 0, layout.NONE]
                continue
            argument, double = layout.NONE, False
            if isinstance(guard.argument, Field):
                name, double = guard.argument.attribute, guard.argument.kind == Kind.DOUBLE
                type = plan.types[guard.argument.place]
                argument = self._slot(type, name)
            test = layout.NONE if guard.test is None else self.expressions.add(plan.types, guard.test)
            words += [layout.REDUCTION, lookup, _FUNCTIONS[guard.function], argument, int(double), guard.index, test]
        return self.code.extend(words)


def _signed(words: Iterable[int]) -> list[int]:
    return [word - (1 << 64) if word >> 63 else word for word in words]
