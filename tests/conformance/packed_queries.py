"""Generate SiddhiQL queries as tenants of a pack, and change their names and times."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.strategies import Case
from tests.strategies_queries import chains, definitions, events, joins, single
from tocsin.events.types import Event
from tocsin.language import parse
from tocsin.language.siddhi.ast import (
    AbsentState,
    Chain,
    Every,
    Input,
    Join,
    Pair,
    Query,
    State,
    Step,
    StreamSource,
    Window,
)
from tocsin.language.siddhi.resolve import rebuilt
from tocsin.language.syntax.ast import Expression, Parameter
from tocsin.reference import patterns

if TYPE_CHECKING:
    from tests.conformance.packs import Move

BYTES = 8192
"""More random bytes than any case consumes."""


def generated_queries(count: int, rng: random.Random) -> list[Case]:
    """Generate cases of one query with matches: a third windows, a third joins, the others patterns and sequences."""
    third = count // 3
    return [
        *_generated(single(), third, rng),
        *_generated(joins(), third, rng),
        *_generated(chains(), count - 2 * third, rng),
    ]


def _generated(queries: st.SearchStrategy[str], count: int, rng: random.Random) -> list[Case]:
    found: list[Case] = []

    @settings(database=None, suppress_health_check=list(HealthCheck))
    @given(queries, st.sampled_from(["", "all events "]), events())
    def collect(query: str, which: str, happened: tuple[Event, ...]) -> None:
        program = parse(f"{definitions()}{query} insert {which}into O;", "siddhi")
        if patterns.detect(program.rules, happened):
            found.append(Case(program.rules, happened, program.types))

    while len(found) < count:
        collect.hypothesis.fuzz_one_input(rng.randbytes(BYTES))
    return found[:count]


def moved(query: Query, move: Move) -> Query:
    """Return the query with changed names and times."""
    calls = {call.name: replace(call, argument=_moved(call.argument, move)) for call in query.aggregates}
    names = {name: Parameter(call.name) for name, call in calls.items()}

    def selected(value: Expression) -> Expression:
        return rebuilt(move.node(value), lambda leaf: names[leaf.name] if isinstance(leaf, Parameter) else leaf)

    return Query(
        move.name(query.name),
        move.node(query.emits),
        _input(query.input, move),
        tuple((move.attribute(name), selected(value)) for name, value in query.select),
        tuple(calls.values()),
        move.node(query.group_by),
        move.node(query.having),
        query.output,
    )


def _moved(expression: Expression | None, move: Move) -> Expression | None:
    return None if expression is None else move.node(expression)


def _input(given: Input, move: Move) -> Input:
    match given:
        case StreamSource():
            return _source(given, move)
        case Join(left, right):
            return replace(given, left=_source(left, move), right=_source(right, move), on=move.node(given.on))
        case Chain(parts, sequence, within_us):
            within_us = None if within_us is None else within_us * move.tick_us
            return Chain(tuple(_part(part, move) for part in parts), sequence, within_us)


def _source(source: StreamSource, move: Move) -> StreamSource:
    window = source.window
    if window is not None and window.extent.timed:
        window = Window(window.extent, window.size * move.tick_us)
    return replace(source, pattern=move.node(source.pattern), window=window, after=move.node(source.after))


def _part(part: State | Every, move: Move) -> State | Every:
    match part:
        case Every(states):
            return Every(tuple(_part(state, move) for state in states))
        case Pair(left, right, both):
            return Pair(_part(left, move), _part(right, move), both)
        case AbsentState(pattern, duration_us):
            return AbsentState(move.node(pattern), None if duration_us is None else duration_us * move.tick_us)
        case Step(pattern):
            return replace(part, pattern=move.node(pattern))
