"""Binds a query of SiddhiQL to what is known of its events: filter, window, tests behind it, what is selected. Patterns
and sequences are bound in `chains`.

Aggregates become `Computed` values by their number, and what `having` speaks of, the values of a row, `Computed` ones
behind these.

Binds a pattern or a sequence: a chain of states becomes an automaton, whose stages say where attempts go.

Every stage has a place for its event. Of a step that takes several, those that the query speaks of have places too:
`e1[0]`, `e1[2]`, …, and as many of the last as `e1[last-1]`, … reach back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from tocsin.errors import RuleError
from tocsin.events.types import Kind
from tocsin.language.siddhi.ast import (
    Absence,
    Chain,
    Every,
    Join,
    Output,
    Pair,
    Query,
    Source,
    Step,
    Summary,
    Window,
    expressions,
    indexed,
)
from tocsin.language.siddhi.ast import Call as Called
from tocsin.language.siddhi.ast import Side as Outer
from tocsin.language.syntax.ast import Attribute, Expression, Parameter, Pattern
from tocsin.language.syntax.expressions import conjuncts, walk
from tocsin.plans.bind.patterns import located
from tocsin.plans.expressions import Computed, Field, Typed, equal_fields, ordered
from tocsin.plans.rules import Call, Chained, Filter, Joined, RulePlan, Side, Stage, Windowed
from tocsin.plans.typing import Catalog, Resolve, a, truth, typed, widened

STAGES_MAX = 60
"""How many steps and absences a chain can have."""


@dataclass(frozen=True, slots=True)
class Places:
    """Where the events of a chain stand: names and types by place, and the places of roles, `e1[0]` among them."""

    names: tuple[str, ...]
    types: tuple[str, ...]
    roles: dict[str, int]
    own: tuple[int, ...]
    """The place of each stage's own event."""
    fronts: tuple[tuple[int, ...], ...]
    backs: tuple[int, ...]


def placed(query: Query, chain: Chain) -> Places:
    """The places of a chain's events."""
    tests = [test for leaf in chain.leaves for test in leaf.pattern.constraints]
    spoken = {
        indexed(node.role)
        for expression in (*tests, *expressions(query))
        for node in walk(expression)
        if isinstance(node, Attribute) and node.role is not None
    }
    names: list[str] = []
    types: list[str] = []
    own: list[int] = []
    fronts: list[tuple[int, ...]] = []
    backs: list[int] = []
    for leaf in chain.leaves:
        role = leaf.pattern.role
        said = {index for name, index in spoken if name == role and index is not None and _several(leaf)}
        own.append(len(names))
        fronts.append(tuple(sorted(index for index in said if index >= 0)))
        backs.append(max((-index for index in said if index < 0), default=0))
        if backs[-1] > STAGES_MAX:
            message = f"a query can look back at the last {STAGES_MAX} events of {role}"
            raise RuleError(f"{message}, this one asks for the last but {backs[-1] - 1}", span=leaf.span)
        names.append(role if isinstance(leaf, Step) and leaf.single else "")
        names += [f"{role}[{index}]" for index in fronts[-1]]
        names += [f"{role}[last-{back}]" if back else f"{role}[last]" for back in range(backs[-1])]
        types += [leaf.pattern.type] * (len(names) - len(types))
    roles = {name: place for place, name in enumerate(names) if name}
    return Places(tuple(names), tuple(types), roles, tuple(own), tuple(fronts), tuple(backs))


def bind_chain(chain: Chain, places: Places, alone: Sequence[Resolve], together: Sequence[Resolve]) -> Chained:
    """The automaton of a chain.

    For each stage, what names stand for in tests of its event alone, and in those that speak of others too.
    """
    leaves = chain.leaves
    if len(leaves) > STAGES_MAX:
        raise RuleError(f"a pattern can have {STAGES_MAX} events, this one has {len(leaves)}", span=chain.span)
    states = _states(chain)
    following = {number: after[0] for before, after in pairwise(states) for number in before}
    again: dict[int, int] = {}
    home: dict[int, int] = {}
    at = 0
    for part in chain.parts:
        size = len(part.states) if isinstance(part, Every) else 1
        if isinstance(part, Every):
            again |= dict.fromkeys(states[at + size - 1], states[at][0])
            home |= {number: states[at][0] for state in states[at : at + size] for number in state}
        at += size
    stages: list[Stage] = []
    pairs = {number: state for state in states if len(state) == 2 for number in state}
    both = {states[n][0]: state.both for n, state in enumerate(chain.states) if isinstance(state, Pair)}
    for number, leaf in enumerate(leaves):
        own, others = _divided(leaf.pattern.constraints)
        pair = pairs.get(number)
        filter = Filter(leaf.pattern.type, ordered(truth(test, alone[number]) for test in own))
        tests = tuple(truth(test, together[number]) for test in others)
        first = number if pair is None else pair[0]
        settled = {places.own[n] for n in range(first) if isinstance(step := leaves[n], Step) and step.single}
        keyed = isinstance(leaf, Step) and leaf.single and not chain.sequence
        keys = {test: key for test in tests if keyed and (key := _key(test, places.own[number], settled)) is not None}
        stages.append(
            Stage(
                filter,
                tuple(test for test in tests if test not in keys),
                tuple(keys.values()),
                places.own[number],
                leaf.least if isinstance(leaf, Step) else 0,
                leaf.most if isinstance(leaf, Step) else 0,
                places.fronts[number],
                places.backs[number],
                absent=isinstance(leaf, Absence),
                duration_us=leaf.duration_us if isinstance(leaf, Absence) else None,
                partner=None if pair is None else pair[0] + pair[1] - number,
                both=pair is not None and both[pair[0]],
                next=following.get(number),
                again=again.get(number),
                home=home.get(number),
                starts=number in states[0],
            )
        )
    return Chained(tuple(stages), chain.sequence, chain.within_us)


def _key(test: Typed, own: int, settled: set[int]) -> tuple[Field, Field] | None:
    """The attributes of an earlier event and of the own one, if the test is that they are equal.

    Of the earlier states a single event does not change any more while an attempt waits here.
    """
    fields = equal_fields(test)
    if fields is None:
        return None
    there, here = fields if fields[1].place == own else fields[::-1]
    return (there, here) if here.place == own and there.place in settled else None


def _several(leaf: Step | Absence) -> bool:
    return isinstance(leaf, Step) and not leaf.single


def _states(chain: Chain) -> list[tuple[int, ...]]:
    """The numbers of the stages of each state."""
    states: list[tuple[int, ...]] = []
    number = 0
    for state in chain.states:
        size = 2 if isinstance(state, Pair) else 1
        states.append(tuple(range(number, number + size)))
        number += size
    return states


def _divided(tests: Sequence[Expression]) -> tuple[list[Expression], list[Expression]]:
    """The tests of an event by itself, and those that speak of others."""
    alone: list[Expression] = []
    together: list[Expression] = []
    for test in conjuncts(tests):
        others = any(isinstance(node, Attribute) and node.role is not None for node in walk(test))
        (together if others else alone).append(test)
    return alone, together


COMPUTED_MAX = 64
"""How many aggregates and selected values a query can have together."""


def bind_query(query: Query, catalog: Catalog) -> RulePlan:
    """The plan of one query, or a `RuleError` that points at the mistake."""
    try:
        return _Binding(query, catalog).plan()
    except RuleError as error:
        raise located(error, query) from None


@dataclass(slots=True)
class _Binding:
    query: Query
    catalog: Catalog
    unseen: bool = False

    def plan(self) -> RulePlan:
        query = self.query
        match query.input:
            case Join() as join:
                return self._joined(join)
            case Chain() as chain:
                return self._chained(chain)
            case Source() as source:
                return self._windowed(source)

    def _windowed(self, source: Source) -> RulePlan:
        anchor, resolve = self._filter(source), self._resolve_roles((source.pattern,))
        after = tuple(truth(test, resolve) for test in source.after)
        return self._plan((source.role,), (source.pattern.type,), resolve, anchor, source.window, after)

    def _joined(self, join: Join) -> RulePlan:
        patterns = (join.left.pattern, join.right.pattern)
        sides: list[Side] = []
        for source, own in ((join.left, Outer.LEFT), (join.right, Outer.RIGHT)):
            looks, outer = join.triggers in (own, Outer.BOTH), join.outer in (own, Outer.BOTH)
            sides.append(Side(self._filter(source), source.window, looks, outer))
        resolve = self._resolve_roles(patterns)
        on = {truth(test, resolve): None for test in join.on}
        keys = {test: key for test in on if (key := equal_fields(test)) is not None}
        rest = tuple(test for test in on if test not in keys)
        pairs = tuple((one, other) if one.place == 0 else (other, one) for one, other in keys.values())
        joined = Joined((sides[0], sides[1]), rest, pairs)
        names, types = tuple(pattern.role for pattern in patterns), tuple(pattern.type for pattern in patterns)
        return self._plan(names, types, resolve, sides[0].filter, joined=joined)

    def _chained(self, chain: Chain) -> RulePlan:
        for leaf in chain.leaves:
            self.catalog.check_type(leaf.pattern.type, leaf.pattern.span)
        places = placed(self.query, chain)
        alone = [self._resolve((leaf.pattern.type,), {}, 0) for leaf in chain.leaves]
        own = [self._resolve(places.types, places.roles, place) for place in places.own]
        chained = bind_chain(chain, places, alone, own)
        anchor = chained.stages[0].filter
        return self._plan(
            places.names, places.types, self._resolve(places.types, places.roles), anchor, chained=chained
        )

    def _filter(self, source: Source) -> Filter:
        pattern = source.pattern
        if source.tables:
            raise RuleError("there are no tables: a query with 'in' cannot run", span=source.span)
        self.catalog.check_type(pattern.type, pattern.span)
        resolve = self._resolve_roles((pattern,))
        return Filter(pattern.type, ordered(truth(test, resolve) for test in pattern.constraints))

    def _plan(
        self,
        names: tuple[str, ...],
        types: tuple[str, ...],
        resolve: Resolve,
        anchor: Filter,
        window: Window | None = None,
        after: tuple[Typed, ...] = (),
        joined: Joined | None = None,
        chained: Chained | None = None,
    ) -> RulePlan:
        query = self.query
        calls = tuple(self._call(call, resolve) for call in query.aggregates)
        outputs = self._outputs(calls, resolve)
        windowed = Windowed(
            window,
            after,
            calls,
            tuple(self._key(attribute, resolve) for attribute in query.group_by),
            tuple(truth(test, self._row(len(calls), outputs)) for test in query.having),
            current=query.output != Output.EXPIRED,
            expired=query.output != Output.CURRENT,
            joined=joined,
            chained=chained,
        )
        return RulePlan(query, anchor, (), (), outputs, names, types, self.unseen, windowed=windowed)

    def _resolve_roles(self, patterns: tuple[Pattern, ...]) -> Resolve:
        """What a name stands for; without a role it is of the only event."""
        roles = {pattern.role: place for place, pattern in enumerate(patterns)}
        return self._resolve(tuple(pattern.type for pattern in patterns), roles)

    def _resolve(self, types: tuple[str, ...], roles: Mapping[str, int], own: int = 0) -> Resolve:
        """What a name stands for; `own` is the place of what has no role."""

        def resolve(leaf: Attribute | Parameter) -> Typed:
            assert isinstance(leaf, Attribute)
            place = own if leaf.role is None else roles[leaf.role]
            field = Field(place, *self.catalog.field(types[place], leaf.name, leaf.span))
            self.unseen = self.unseen or field.kind is None
            return field

        return resolve

    def _key(self, attribute: Attribute, resolve: Resolve) -> Field:
        key = resolve(attribute)
        assert isinstance(key, Field)
        return key

    def _call(self, call: Called, resolve: Resolve) -> Call:
        argument = None if call.argument is None else typed(call.argument, resolve)
        kind = None if argument is None else argument.kind
        if call.function == Summary.COUNT:
            return Call(call.function, None, Kind.LONG)
        if kind is not None and not kind.numeric:
            raise RuleError(f"'{call.function}' needs numbers, this is {a(kind)}", span=call.span)
        if call.function in (Summary.AVG, Summary.STD_DEV):
            kind = Kind.DOUBLE
        elif call.function == Summary.SUM and kind == Kind.INT:
            kind = Kind.LONG
        return Call(call.function, argument, kind)

    def _outputs(self, calls: tuple[Call, ...], resolve: Resolve) -> tuple[tuple[str, Kind, Typed], ...]:
        query = self.query
        numbers = {call.name: number for number, call in enumerate(query.aggregates)}
        if len(calls) + len(query.select) > COMPUTED_MAX:
            message = f"a query can have {COMPUTED_MAX} aggregates and selected values together"
            raise RuleError(f"{message}, this one has {len(calls) + len(query.select)}", span=query.span)

        def value(leaf: Attribute | Parameter) -> Typed:
            if isinstance(leaf, Parameter):
                number = numbers[leaf.name]
                return Computed(number, calls[number].kind)
            return resolve(leaf)

        kinds, outputs = dict(query.emits.attributes), list[tuple[str, Kind, Typed]]()
        for name, expression in query.select:
            kind = kinds[name]
            found = typed(expression, value)
            integral = found.kind is not None and found.kind.integral
            if found.kind not in (kind, None) and not (integral and kind.numeric):
                message = f"{query.emits.name}.{name} is {a(kind)}, its value is {a(found.kind)}"
                raise RuleError(message, span=expression.span)
            outputs.append((name, kind, widened(found, kind)))
        return tuple(outputs)

    @staticmethod
    def _row(calls: int, outputs: tuple[tuple[str, Kind, Typed], ...]) -> Resolve:
        """What a name stands for in a test of a row."""
        values: dict[str, Typed] = {
            name: Computed(calls + number, kind) for number, (name, kind, _) in enumerate(outputs)
        }
        return lambda leaf: values[leaf.name]
