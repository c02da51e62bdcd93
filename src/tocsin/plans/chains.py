"""Binds a pattern or a sequence: a chain of states becomes an automaton, whose stages say where attempts go.

Every stage has a place for its event. Of a step that takes several, those that the query speaks of have places too:
`e1[0]`, `e1[2]`, …, and as many of the last as `e1[last-1]`, … reach back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from tocsin.errors import RuleError
from tocsin.language.queries import Absence, Chain, Every, Pair, Query, Step, expressions, indexed
from tocsin.language.rules import Attribute, Expression
from tocsin.language.terms import conjuncts, walk
from tocsin.plans.expressions import Field, Typed, equal_fields, ordered
from tocsin.plans.graph import Chained, Filter, Stage
from tocsin.plans.typing import Resolve, truth

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
