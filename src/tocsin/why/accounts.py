"""Why did a request for notification or a query of SiddhiQL put something out at an event, or why not?

The same answers as `reasons` gives for rules of TESLA: each thing that the statement asks of the event, and what was
found, up to the first that is not met. A request is looked at with the events of its detection window. A query depends
on all events before, so the reference replays it, event by event.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, product
from typing import Any

from tocsin.errors import RuleError
from tocsin.events.types import Value, hexadecimal, match_words, occurrence_words, text_words
from tocsin.language.eps.ast import (
    All,
    Either,
    EventExpression,
    Leaf,
    Mode,
    Occurs,
    Request,
    Then,
    Times,
    children,
    leaves,
)
from tocsin.language.eps.text import print_events
from tocsin.language.siddhi.ast import Chain, Join, Query, Side, Source
from tocsin.language.siddhi.printer import print_source, print_state, print_term
from tocsin.language.syntax.ast import Attribute, Expression, Parameter
from tocsin.language.syntax.expressions import print_expression, print_window, walk
from tocsin.reference.patterns import Fact, Part, holds
from tocsin.reference.requests import Combination, _combinations, _contains, _numbered, fits
from tocsin.reference.sequences import Automaton
from tocsin.reference.windows import NOTHING, Chosen, Chunk, Machine, Sign, _Joined, _machine, _Selection, _Single
from tocsin.why.reasons import Check, Reason, shown_value, written

REPLAYED_MAX = 200_000
"""How many events before the one in question a query is replayed over."""
CANDIDATES_MAX = 12
"""How many events of a leaf are combined with others, the latest ones."""
COMBINATIONS_MAX = 20_000

Printed = Callable[[Expression], str]


def _tested(
    tests: Sequence[Expression], events: Mapping[str | None, Fact], clause: str, role: str, printed: Printed
) -> Iterator[Check]:
    """Each test, up to the first that fails."""
    fact = events.get(None)
    for test in tests:
        right = holds(test, events, {})
        yield Check(clause, printed(test), _found(test, events), right, role, fact)
        if not right:
            return


def _found(test: Expression, events: Mapping[str | None, Fact]) -> str:
    """What the attributes of a test are."""
    told: dict[str, None] = {}
    for leaf in walk(test):
        if isinstance(leaf, Attribute):
            name = leaf.name if leaf.role is None else f"{leaf.role}.{leaf.name}"
            told[f"{name} is {shown_value(events[leaf.role].value(leaf.name))}"] = None
        elif isinstance(leaf, Parameter):
            told[f"{leaf.name} is not looked at"] = None
    return ", ".join(told) or "never"


def _part(role: str, fact: Fact) -> Part:
    return Part(role, fact.type, fact.ts, fact.seq, fact.id)


# ---- requests for notification


def notified(request: Request, parts: Sequence[tuple[str, Fact]]) -> Reason:
    """What made a notification, of these events by role."""
    by_role: dict[str, list[Fact]] = {leaf.role: [] for leaf in leaves(request.expression)}
    for role, fact in parts:
        by_role[role].append(fact)
    checks: list[Check] = []
    for leaf in _each(request):
        for fact in by_role[leaf.role]:
            checks += _leaf_checks(leaf, fact)
    checks += _conditions(request, by_role)
    anchor = max((fact for _, fact in parts), key=lambda fact: (fact.ts, fact.seq))
    return Reason(request.name, anchor, tuple(checks), tuple(_part(role, fact) for role, fact in parts))


def not_notified(request: Request, event: Fact, near: Sequence[Fact], used: Mapping[Fact, str]) -> Reason:
    """Why an event is in no notification. `near`: the events of the detection window up to it, in canonical order;
    `used`: those that a notification before it has used up, by the id of that."""

    def ended(checks: Iterable[Check], role: str | None = None) -> Reason:
        return Reason(request.name, event, tuple(checks), () if role is None else (_part(role, event),))

    own = [leaf for leaf in _each(request) if _of_type(leaf, event)]
    if not own:
        text = print_events(request.expression)
        return ended([Check(text, text, "an event of this type only starts a timer of it", False, "", event)])
    tried = [list(_leaf_checks(leaf, event)) for leaf in own]
    fitting = [(leaf, checks) for leaf, checks in zip(own, tried, strict=True) if all(c.holds for c in checks)]
    if not fitting:
        furthest = max(tried, key=len)
        return ended(furthest)
    leaf, checks = fitting[0]
    free = [fact for fact in near if fact is event or request.mode != Mode.GENERIC or fact not in used]
    lacking = _lacking(request.expression, free)
    if lacking is not None:
        return ended([*checks, _missing(request, lacking, event, near, used)], leaf.role)
    clause = print_events(request.expression)
    if any(not isinstance(one.node, Occurs | Times) for one in leaves(request.expression)):
        told = "no timer ran with it within the detection window"
        return ended([*checks, Check(clause, clause, told, False, leaf.role)], leaf.role)
    found = list(islice(_with(request, event, free), COMBINATIONS_MAX))
    if not found:
        told = "the events that fit are not in this order, or do not have such values"
        return ended([*checks, Check(clause, clause, told, False, leaf.role)], leaf.role)
    roles = [one.role for one in leaves(request.expression)]
    best: list[Check] = []
    for combination in found:
        by_role: dict[str, list[Fact]] = {role: [] for role in roles}
        for place, fact in combination:
            by_role[roles[place]].append(fact)
        asked = list(_conditions(request, by_role))
        best = asked if len(asked) >= len(best) else best
    if all(check.holds for check in best):
        best = [*best, Check(clause, f"mode {request.mode}", "other events were combined", False, leaf.role)]
    return ended([*checks, *best], leaf.role)


def _each(request: Request) -> Iterator[Leaf]:
    """The leaves; those of a `Times` once."""
    return (leaf for leaf in leaves(request.expression) if leaf.number == 0)


def _of_type(leaf: Leaf, fact: Fact) -> bool:
    return isinstance(leaf.node, Occurs | Times) and leaf.node.pattern.type == fact.type


def _leaf_checks(leaf: Leaf, fact: Fact) -> Iterator[Check]:
    clause = print_events(leaf.node)
    tests = leaf.node.pattern.constraints if isinstance(leaf.node, Occurs | Times) else ()
    yield Check(clause, leaf.role, f"it is {written(fact)}", True, leaf.role, fact)
    yield from _tested(tests, {None: fact}, clause, leaf.role, print_expression)
    if isinstance(leaf.node, Times):
        value = fact.value(leaf.node.attribute)
        told = f"{leaf.node.attribute} is {shown_value(value)}"
        yield Check(clause, leaf.node.attribute, told, value is not None, leaf.role, fact)


def _conditions(request: Request, by_role: Mapping[str, Sequence[Fact]]) -> list[Check]:
    """The condition, for the choice of events that meets most of it."""
    best: list[Check] = []
    for chosen in islice(product(*(facts or [NOTHING] for facts in by_role.values())), COMBINATIONS_MAX):
        events: dict[str | None, Fact] = dict(zip(by_role, chosen, strict=True))
        checks = list(_tested(request.condition, events, "if", "", print_expression))
        if all(check.holds for check in checks):
            return checks
        best = checks if len(checks) > len(best) else best
    return best


def _lacking(node: EventExpression, facts: Sequence[Fact]) -> EventExpression | None:
    """The first part of an expression for which there are not enough events."""
    match node:
        case Occurs():
            return None if any(fits(node, fact) for fact in facts) else node
        case Times(count):
            return None if sum(fits(node, fact) for fact in facts) >= count else node
        case Either(operands):
            return node if all(_lacking(operand, facts) is not None for operand in operands) else None
        case All() | Then():
            found = (_lacking(operand, facts) for operand in children(node))
            return next((one for one in found if one is not None), None)
    return None


def _missing(
    request: Request, node: EventExpression, event: Fact, near: Sequence[Fact], used: Mapping[Fact, str]
) -> Check:
    clause, asked = print_events(node), f"{print_window(request.window_us)} before it"
    role = next(leaf.role for leaf in leaves(node))
    patterns = [leaf.node for leaf in leaves(node) if isinstance(leaf.node, Occurs | Times)]
    taken = [fact for fact in used if any(fits(one, fact) for one in patterns)]
    if taken and request.mode == Mode.GENERIC:
        last = max(taken, key=lambda fact: fact.key)
        return Check(clause, asked, f"{written(last)} is used up by the match {used[last]}", False, role, last)
    others = [fact for fact in near if fact is not event and fact.type in {one.pattern.type for one in patterns}]
    if isinstance(node, Times):
        fitting = sum(fits(node, fact) for fact in near)
        return Check(clause, asked, f"there are {fitting} that fit", False, role)
    if not others:
        return Check(clause, asked, "there is none", False, role)
    return Check(clause, asked, f"none fits, as {written(others[-1])} does not", False, role, others[-1])


def _with(request: Request, event: Fact, facts: Sequence[Fact]) -> Iterator[Combination]:
    """Combinations that have the event in them, of the latest events that fit."""
    kept: set[Fact] = {event}
    for leaf in _each(request):
        if isinstance(leaf.node, Occurs | Times):
            kept.update([fact for fact in facts if fits(leaf.node, fact)][-CANDIDATES_MAX:])
    some = [fact for fact in facts if fact in kept]
    tree = _numbered(request.expression)
    return (one for one in _combinations(tree, some) if _contains(one, event))


# ---- queries of SiddhiQL


class _Watched(_Selection):
    """The selection of a query that keeps the rows which `having` was asked about."""

    def __init__(self, query: Query) -> None:
        super().__init__(query)
        self.tried: list[tuple[Value, ...]] = []

    def _passes(self, values: tuple[Value, ...]) -> bool:
        self.tried.append(values)
        return super()._passes(values)


@dataclass(frozen=True, slots=True)
class Turn:
    """What an event, or a timer (`event` None), brought about."""

    ts: int
    event: Fact | None
    chunks: list[Chunk]
    rows: list[tuple[str, tuple[Value, ...]]]
    """The ids and the values of the rows that came out."""
    tried: list[tuple[Value, ...]]
    """The values of the rows that `having` was asked about."""
    machine: Machine
    steps: list[list[Check]]
    """Of a pattern and the event in question: what each attempt that waited for such an event asked of it."""


def turns(query: Query, facts: Sequence[Fact], last_ts: int, asked: Fact | None = None) -> Iterator[Turn]:
    """The query over events in canonical order, as the reference runs it. `asked`: the event in question."""
    if len(facts) > REPLAYED_MAX:
        raise RuleError(
            f"why replays the query {query.name} over all events up to the one in question, and these are "
            f"{len(facts):,}: it does so for up to {REPLAYED_MAX:,}",
            hint="Give it a part of the events, which begins before the window or pattern in question.",
        )
    machine, selection = _machine(query), _Watched(query)

    def turn(ts: int, event: Fact | None, chunks: list[Chunk], steps: list[list[Check]]) -> Turn:
        words = match_words(query.name, [text_words(f"timer {ts}") if event is None else event.words])
        selection.tried = []
        rows = [row for chunk in chunks for row in selection.rows(chunk)]
        named = [(hexadecimal(occurrence_words(words, number)), values) for number, (_, values) in enumerate(rows)]
        return Turn(ts, event, chunks, named, selection.tried, machine, steps)

    def timers(until: int) -> Iterator[Turn]:
        while (due := machine.due()) is not None and due <= until:
            yield turn(due, None, machine.fire(due), [])

    for fact in facts:
        yield from timers(fact.ts)
        steps = list(_step_checks(machine, fact)) if fact is asked and isinstance(machine, Automaton) else []
        yield turn(fact.ts, fact, machine.arrive(fact), steps)
    yield from timers(last_ts)


def put_out(query: Query, facts: Sequence[Fact], ts: int, id: str) -> Reason | None:
    """What made the row of that id; `facts`: the events of its streams up to it, in canonical order."""
    for turn in turns(query, facts, ts):
        for row, values in turn.rows:
            if row == id:
                return _row_reason(query, turn, values)
    return None


def at_event(query: Query, facts: Sequence[Fact], event: Fact) -> Reason:
    """What became of the query at an event, one of `facts`."""
    turn = next(turn for turn in turns(query, facts, event.ts, event) if turn.event is event)
    if turn.rows:
        return _row_reason(query, turn, turn.rows[-1][1])
    checks = list(_refused(query, turn, event))
    if all(check.holds for check in checks):
        checks.append(Check("output", f"{query.output} events", "no row came out with it", False, "", event))
    return Reason(query.name, event, tuple(checks), ())


def _row_reason(query: Query, turn: Turn, values: tuple[Value, ...]) -> Reason:
    checks: list[Check] = []
    anchor = turn.event
    if anchor is None:
        anchor = Fact("timer", turn.ts, 0, "", (0, 0), {})
        checks.append(Check("a window or an absence", "its end", f"it ended at {turn.ts}", True, ""))
    elif not isinstance(query.input, Chain):
        checks += _source_checks(query, anchor)
    made: list[tuple[str, Fact]] = []
    for source, window in _windows(query, turn.machine):
        if query.aggregates and source.window is not None:
            clause, told = print_source(source), f"it holds {len(window.held)} events"
            checks.append(Check(clause, str(source.window.extent), told, True, source.role))
            made += [(source.role, fact) for fact in window.held]
    for chunk in turn.chunks:
        for sign, events in chunk:
            if sign != Sign.RESET:
                made += _filled(query, events)
    parts = {(role, fact.id): (role, fact) for role, fact in made}
    for role, fact in list(parts.values()) if isinstance(query.input, Chain | Join) else ():
        checks.append(Check("made of", role, f"it is {written(fact)}", True, role, fact))
    checks += _having(query, values)
    return Reason(query.name, anchor, tuple(checks), tuple(_part(role, fact) for role, fact in parts.values()))


def _refused(query: Query, turn: Turn, event: Fact) -> Iterator[Check]:
    """What is asked of an event that brought no row, up to what is not met."""
    if isinstance(query.input, Chain):
        yield from _pattern_checks(query.input, turn, event)
        return
    checks = _source_checks(query, event)
    yield from checks
    if not checks[-1].holds:
        return
    if turn.tried:
        yield from _having(query, turn.tried[-1])
        return
    if isinstance(query.input, Join):
        yield from _partner_checks(query.input, turn.machine, event)
        return
    source = query.input
    clause, role = print_source(source), source.role
    if source.window is not None and source.window.extent.batched:
        asked, told = f"a whole {source.window.extent}", "the batch that it is in has not ended with it"
        yield Check(clause, asked, told, False, role, event)
        return
    after = list(_tested(source.after, {None: event}, clause, role, print_term))
    yield from after
    if all(check.holds for check in after):
        yield Check("output", f"{query.output} events", "its row comes when it leaves the window", False, role, event)


def _source_checks(query: Query, event: Fact) -> list[Check]:
    """The tests of the stream that an event comes by; of two streams, those of the one whose tests it meets."""
    tried: list[list[Check]] = []
    for source in query.sources:
        if source.pattern.type == event.type:
            clause, role = print_source(source), source.role
            tested = _tested(source.pattern.constraints, {None: event}, clause, role, print_term)
            tried.append([Check(clause, role, f"it is {written(event)}", True, role, event), *tested])
    return max(tried, key=lambda checks: (checks[-1].holds, len(checks)))


def _partner_checks(join: Join, machine: Machine, event: Fact) -> Iterator[Check]:
    assert isinstance(machine, _Joined)
    sides = (join.left, join.right)
    for side, source in enumerate(sides):
        if source.pattern.type != event.type:
            continue
        other, clause = sides[1 - side], print_source(sides[1 - side])
        if join.triggers not in ((Side.LEFT, Side.RIGHT)[side], Side.BOTH):
            yield Check("join", "unidirectional", f"only events of {other.role} look for partners", False, source.role)
            return
        held = machine._windows[1 - side].held
        if not held:
            yield Check(clause, "a partner", "its window holds no event", False, other.role)
            return
        best: list[Check] = []
        for partner in held:
            events = Chosen({source.role: event, other.role: partner})
            asked = list(_tested(join.on, events, f"on, with {written(partner)}", other.role, print_term))
            best = asked if len(asked) >= len(best) else best
        yield from best
        return


def _step_checks(automaton: Automaton, event: Fact) -> Iterator[list[Check]]:
    """What each attempt that waits for such an event asks of it."""
    for node in automaton._nodes:
        pattern = node.leaf.pattern
        if pattern.type != event.type:
            continue
        clause, role = print_state(node.leaf), pattern.role
        for attempt in (*node.waiting, *node.fresh):
            events = automaton._chosen(attempt, event)
            so_far = [one for facts in attempt.events.values() for one in facts]
            told = f"after {written(so_far[-1])}" if so_far else "it can be the first"
            tested = _tested(pattern.constraints, events, clause, role, print_term)
            yield [Check(clause, role, told, True, role, event), *tested]


def _pattern_checks(chain: Chain, turn: Turn, event: Fact) -> Iterator[Check]:
    """Of a pattern that was not complete with the event."""
    assert isinstance(turn.machine, Automaton)
    for node in turn.machine._nodes:
        for attempt in (*node.waiting, *node.fresh):
            number = next((number for number, facts in attempt.events.items() if event in facts), None)
            if number is not None:
                taken = turn.machine._nodes[number].leaf
                clause, role = print_state(taken), taken.pattern.role
                yield Check(clause, role, f"it is {written(event)}", True, role, event)
                clause, role = print_state(node.leaf), node.leaf.pattern.role
                yield Check(clause, role, "it has not come up to this event", False, role)
                return
    if turn.steps:
        best = max(turn.steps, key=len)
        yield from best
        if best[-1].holds:
            found = "what it is in was given up: an absence was broken, or within is over"
            yield Check(best[-1].clause, "a pattern that goes on", found, False, best[-1].role, event)
        return
    waits = next((leaf for leaf in chain.leaves if leaf.pattern.type == event.type), None)
    assert waits is not None
    clause, role = print_state(waits), waits.pattern.role
    yield Check(clause, "the steps before it", "they have not come, so nothing waits for it", False, role, event)


def _having(query: Query, values: tuple[Value, ...]) -> list[Check]:
    row = {name: value for (name, _), value in zip(query.select, values, strict=True)}
    return list(_tested(query.having, {None: Fact("", 0, 0, "", (0, 0), row)}, "having", "", print_term))


def _windows(query: Query, machine: Machine) -> list[tuple[Source, Any]]:
    if isinstance(machine, _Single):
        return list(zip(query.sources, [machine._window], strict=True))
    return list(zip(query.sources, machine._windows, strict=True)) if isinstance(machine, _Joined) else []


def _filled(query: Query, events: Chosen) -> list[tuple[str, Fact]]:
    """The events by role, in the order of their roles."""
    alone = query.sources[0].role if query.sources else ""
    single = [(role or alone, fact) for role, fact in events.items()]
    return single + [(role, fact) for role, facts in events._several.items() for fact in facts]
