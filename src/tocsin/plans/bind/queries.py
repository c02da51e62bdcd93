"""Bind a SiddhiQL query to a catalog: filters, windows, joins, automata, aggregates and selected values.

The aggregates of a query are its first `Computed` values. The values of a row, which `having` uses, are the `Computed`
values after the aggregates.

A pattern or a sequence, together called a *chain*, becomes an automaton. Each stage of the automaton has a role index
for its event. If a step is repeated, the next role indexes are for the events of this step that the query uses:
`e1[0]`, `e1[2]`, …, then `e1[last]`, `e1[last-1]`, ….
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from tocsin.errors import RuleError
from tocsin.events.types import Kind
from tocsin.language.siddhi.ast import (
    AbsentState,
    Chain,
    Every,
    Join,
    Output,
    Pair,
    Query,
    Step,
    StreamSource,
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
from tocsin.plans.rules import AggregateCall, ChainAutomaton, Filter, JoinSide, QueryPlan, RulePlan, Stage, StreamJoin
from tocsin.plans.typing import Catalog, Resolve, truth, typed, widened, with_article

STAGES_MAX = 60
"""The maximum number of stages of a chain, which are its steps and absences."""


@dataclass(frozen=True, slots=True)
class ChainRoles:
    """The role indexes of the events of a chain.

    `names` and `types` are the names and types by role index. `roles` has the role index of each name, such as `e1` or
    `e1[0]`.
    """

    names: tuple[str, ...]
    types: tuple[str, ...]
    roles: dict[str, int]
    own: tuple[int, ...]
    """The role index of the event of each stage."""
    fronts: tuple[tuple[int, ...], ...]
    """For each stage, the indexes `i` of the events `e[i]` that the query uses."""
    backs: tuple[int, ...]
    """For each stage, the number of events `e[last]`, `e[last-1]`, … that the query uses."""


def chain_roles(query: Query, chain: Chain) -> ChainRoles:
    """Return the role indexes of the events of `chain`, including the events of repeated steps that `query` uses."""
    tests = [test for leaf in chain.leaves for test in leaf.pattern.constraints]
    mentioned = {
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
        indexes = {index for name, index in mentioned if name == role and index is not None and _several(leaf)}
        own.append(len(names))
        fronts.append(tuple(sorted(index for index in indexes if index >= 0)))
        backs.append(max((-index for index in indexes if index < 0), default=0))
        if backs[-1] > STAGES_MAX:
            message = f"a query can use the last {STAGES_MAX} events of {role}"
            raise RuleError(f"{message}, this one uses the last but {backs[-1] - 1}", span=leaf.span)
        names.append(role if isinstance(leaf, Step) and leaf.single else "")
        names += [f"{role}[{index}]" for index in fronts[-1]]
        names += [f"{role}[last-{back}]" if back else f"{role}[last]" for back in range(backs[-1])]
        types += [leaf.pattern.type] * (len(names) - len(types))
    roles = {name: role_index for role_index, name in enumerate(names) if name}
    return ChainRoles(tuple(names), tuple(types), roles, tuple(own), tuple(fronts), tuple(backs))


def bind_chain(
    chain: Chain, roles: ChainRoles, alone: Sequence[Resolve], together: Sequence[Resolve]
) -> ChainAutomaton:
    """Return the automaton of `chain`.

    For each stage, `alone` has the function that resolves names in tests of only the event of the stage, and `together`
    has the function for tests that also use other events.
    """
    leaves = chain.leaves
    if len(leaves) > STAGES_MAX:
        raise RuleError(f"a pattern can have {STAGES_MAX} events, this one has {len(leaves)}", span=chain.span)
    states = _states(chain)
    following = {number: after[0] for before, after in pairwise(states) for number in before}
    repeat_at: dict[int, int] = {}
    every_start: dict[int, int] = {}
    at = 0
    for part in chain.parts:
        size = len(part.states) if isinstance(part, Every) else 1
        if isinstance(part, Every):
            repeat_at |= dict.fromkeys(states[at + size - 1], states[at][0])
            every_start |= {number: states[at][0] for state in states[at : at + size] for number in state}
        at += size
    stages: list[Stage] = []
    pairs = {number: state for state in states if len(state) == 2 for number in state}
    both = {states[n][0]: state.both for n, state in enumerate(chain.states) if isinstance(state, Pair)}
    for number, leaf in enumerate(leaves):
        own, others = _split_tests(leaf.pattern.constraints)
        pair = pairs.get(number)
        filter = Filter(leaf.pattern.type, ordered(truth(test, alone[number]) for test in own))
        tests = tuple(truth(test, together[number]) for test in others)
        first = number if pair is None else pair[0]
        fixed = {roles.own[n] for n in range(first) if isinstance(step := leaves[n], Step) and step.single}
        keyed = isinstance(leaf, Step) and leaf.single and not chain.sequence
        keys = {test: key for test in tests if keyed and (key := _key(test, roles.own[number], fixed)) is not None}
        stages.append(
            Stage(
                filter,
                tuple(test for test in tests if test not in keys),
                tuple(keys.values()),
                roles.own[number],
                leaf.least if isinstance(leaf, Step) else 0,
                leaf.most if isinstance(leaf, Step) else 0,
                roles.fronts[number],
                roles.backs[number],
                absent=isinstance(leaf, AbsentState),
                duration_us=leaf.duration_us if isinstance(leaf, AbsentState) else None,
                partner=None if pair is None else pair[0] + pair[1] - number,
                both=pair is not None and both[pair[0]],
                next=following.get(number),
                repeat_at=repeat_at.get(number),
                every_start=every_start.get(number),
                starts=number in states[0],
            )
        )
    return ChainAutomaton(tuple(stages), chain.sequence, chain.within_us)


def _key(test: Typed, own: int, fixed: set[int]) -> tuple[Field, Field] | None:
    """Return the attributes that `test` compares, if it is an equality of an earlier event with the event of the stage.

    `own` is the role index of the event of the stage. `fixed` are the role indexes of earlier events that cannot change
    while a run waits at this stage. Return None for any other test.
    """
    fields = equal_fields(test)
    if fields is None:
        return None
    there, here = fields if fields[1].role_index == own else fields[::-1]
    return (there, here) if here.role_index == own and there.role_index in fixed else None


def _several(leaf: Step | AbsentState) -> bool:
    return isinstance(leaf, Step) and not leaf.single


def _states(chain: Chain) -> list[tuple[int, ...]]:
    """Return the numbers of the stages of each state. A state has two stages if it is a pair, else one."""
    states: list[tuple[int, ...]] = []
    number = 0
    for state in chain.states:
        size = 2 if isinstance(state, Pair) else 1
        states.append(tuple(range(number, number + size)))
        number += size
    return states


def _split_tests(tests: Sequence[Expression]) -> tuple[list[Expression], list[Expression]]:
    """Split tests into the tests of the own event alone, and the tests that use other events."""
    alone: list[Expression] = []
    together: list[Expression] = []
    for test in conjuncts(tests):
        others = any(isinstance(node, Attribute) and node.role is not None for node in walk(test))
        (together if others else alone).append(test)
    return alone, together


COMPUTED_MAX = 64
"""The maximum number of aggregates and selected values of a query together."""


def bind_query(query: Query, catalog: Catalog) -> RulePlan:
    """Return the plan of `query`. If the query has a mistake, raise a `RuleError` with its position."""
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
            case StreamSource() as source:
                return self._windowed(source)

    def _windowed(self, source: StreamSource) -> RulePlan:
        anchor, resolve = self._filter(source), self._resolve_roles((source.pattern,))
        after = tuple(truth(test, resolve) for test in source.after)
        return self._plan((source.role,), (source.pattern.type,), resolve, anchor, source.window, after)

    def _joined(self, join: Join) -> RulePlan:
        patterns = (join.left.pattern, join.right.pattern)
        sides: list[JoinSide] = []
        for source, own in ((join.left, Outer.LEFT), (join.right, Outer.RIGHT)):
            looks, outer = join.triggers in (own, Outer.BOTH), join.outer in (own, Outer.BOTH)
            sides.append(JoinSide(self._filter(source), source.window, looks, outer))
        resolve = self._resolve_roles(patterns)
        on = {truth(test, resolve): None for test in join.on}
        keys = {test: key for test in on if (key := equal_fields(test)) is not None}
        rest = tuple(test for test in on if test not in keys)
        pairs = tuple((one, other) if one.role_index == 0 else (other, one) for one, other in keys.values())
        joined = StreamJoin((sides[0], sides[1]), rest, pairs)
        names, types = tuple(pattern.role for pattern in patterns), tuple(pattern.type for pattern in patterns)
        return self._plan(names, types, resolve, sides[0].filter, joined=joined)

    def _chained(self, chain: Chain) -> RulePlan:
        for leaf in chain.leaves:
            self.catalog.check_type(leaf.pattern.type, leaf.pattern.span)
        roles = chain_roles(self.query, chain)
        alone = [self._resolve((leaf.pattern.type,), {}, 0) for leaf in chain.leaves]
        own = [self._resolve(roles.types, roles.roles, role_index) for role_index in roles.own]
        chained = bind_chain(chain, roles, alone, own)
        anchor = chained.stages[0].filter
        return self._plan(
            roles.names,
            roles.types,
            self._resolve(roles.types, roles.roles),
            anchor,
            chained=chained,
        )

    def _filter(self, source: StreamSource) -> Filter:
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
        joined: StreamJoin | None = None,
        chained: ChainAutomaton | None = None,
    ) -> RulePlan:
        query = self.query
        calls = tuple(self._call(call, resolve) for call in query.aggregates)
        outputs = self._outputs(calls, resolve)
        windowed = QueryPlan(
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
        """Return a function that resolves names. A name without a role belongs to the event of the first pattern."""
        roles = {pattern.role: role_index for role_index, pattern in enumerate(patterns)}
        return self._resolve(tuple(pattern.type for pattern in patterns), roles)

    def _resolve(self, types: tuple[str, ...], roles: Mapping[str, int], own: int = 0) -> Resolve:
        """Return a function that resolves names. A name without a role belongs to the event with role index `own`."""

        def resolve(leaf: Attribute | Parameter) -> Typed:
            assert isinstance(leaf, Attribute)
            role_index = own if leaf.role is None else roles[leaf.role]
            field = Field(role_index, *self.catalog.field(types[role_index], leaf.name, leaf.span))
            self.unseen = self.unseen or field.kind is None
            return field

        return resolve

    def _key(self, attribute: Attribute, resolve: Resolve) -> Field:
        key = resolve(attribute)
        assert isinstance(key, Field)
        return key

    def _call(self, call: Called, resolve: Resolve) -> AggregateCall:
        argument = None if call.argument is None else typed(call.argument, resolve)
        kind = None if argument is None else argument.kind
        if call.function == Summary.COUNT:
            return AggregateCall(call.function, None, Kind.LONG)
        if kind is not None and not kind.numeric:
            raise RuleError(f"'{call.function}' needs numbers, this is {with_article(kind)}", span=call.span)
        if call.function in (Summary.AVG, Summary.STD_DEV):
            kind = Kind.DOUBLE
        elif call.function == Summary.SUM and kind == Kind.INT:
            kind = Kind.LONG
        return AggregateCall(call.function, argument, kind)

    def _outputs(self, calls: tuple[AggregateCall, ...], resolve: Resolve) -> tuple[tuple[str, Kind, Typed], ...]:
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
            typed_value = typed(expression, value)
            integral = typed_value.kind is not None and typed_value.kind.integral
            if typed_value.kind not in (kind, None) and not (integral and kind.numeric):
                message = (
                    f"{query.emits.name}.{name} is {with_article(kind)}, its value is {with_article(typed_value.kind)}"
                )
                raise RuleError(message, span=expression.span)
            outputs.append((name, kind, widened(typed_value, kind)))
        return tuple(outputs)

    @staticmethod
    def _row(calls: int, outputs: tuple[tuple[str, Kind, Typed], ...]) -> Resolve:
        """Return a function that resolves the names of output values in a test of a row."""
        values: dict[str, Typed] = {
            name: Computed(calls + number, kind) for number, (name, kind, _) in enumerate(outputs)
        }
        return lambda leaf: values[leaf.name]
