"""Explain why a request for notification or a SiddhiQL query produced something at an event, or why it did not.

The answers have the form of those for TESLA rules in `reasons`: each test that the statement makes of the event, and
what the test found, up to the first that fails. A request is evaluated over the events of its detection window. A query
depends on all earlier events, so the reference runs it again, event by event.
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
from tocsin.language.siddhi.ast import Chain, Join, Query, Side, StreamSource
from tocsin.language.siddhi.printer import print_source, print_state, print_term
from tocsin.language.syntax.ast import Attribute, Expression, Parameter
from tocsin.language.syntax.expressions import print_expression, print_window, walk
from tocsin.reference.patterns import Fact, MatchPart, holds
from tocsin.reference.requests import Combination, _combinations, _contains, _numbered, fits
from tocsin.reference.sequences import ReferenceAutomaton
from tocsin.reference.windows import (
    MISSING,
    Chunk,
    IndexedFacts,
    QueryEvaluator,
    Sign,
    _evaluator,
    _Joined,
    _Selection,
    _Single,
)
from tocsin.why.reasons import Check, Reason, event_text, value_text

REPLAYED_MAX = 200_000
"""The largest number of events, up to the event in question, over which a query is replayed."""
CANDIDATES_MAX = 12
"""How many events of a leaf are combined with other events. The latest ones are taken."""
COMBINATIONS_MAX = 20_000

Printed = Callable[[Expression], str]


def _tested(
    tests: Sequence[Expression], events: Mapping[str | None, Fact], clause: str, role: str, printed: Printed
) -> Iterator[Check]:
    """Yield the result of each test, up to the first that fails."""
    fact = events.get(None)
    for test in tests:
        passed = holds(test, events, {})
        yield Check(clause, printed(test), _found(test, events), passed, role, fact)
        if not passed:
            return


def _found(test: Expression, events: Mapping[str | None, Fact]) -> str:
    """Return the values of the attributes in a test as text."""
    findings: dict[str, None] = {}
    for leaf in walk(test):
        if isinstance(leaf, Attribute):
            name = leaf.name if leaf.role is None else f"{leaf.role}.{leaf.name}"
            findings[f"{name} is {value_text(events[leaf.role].value(leaf.name))}"] = None
        elif isinstance(leaf, Parameter):
            findings[f"{leaf.name} is not evaluated"] = None
    return ", ".join(findings) or "constant"


def _part(role: str, fact: Fact) -> MatchPart:
    return MatchPart(role, fact.type, fact.ts, fact.seq, fact.id)


# ---- requests for notification


def explain_notification(request: Request, parts: Sequence[tuple[str, Fact]]) -> Reason:
    """Explain a notification from its events by role."""
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


def explain_no_notification(request: Request, event: Fact, near: Sequence[Fact], used: Mapping[Fact, str]) -> Reason:
    """Explain why an event is in no notification.

    `near` has the events of the detection window up to `event`, in canonical order. `used` has the events that earlier
    notifications have used up, each with the id of the notification.
    """

    def ended(checks: Iterable[Check], role: str | None = None) -> Reason:
        return Reason(request.name, event, tuple(checks), () if role is None else (_part(role, event),))

    own = [leaf for leaf in _each(request) if _of_type(leaf, event)]
    if not own:
        text = print_events(request.expression)
        return ended([Check(text, text, "events of this type only start one of its timers", False, "", event)])
    checked = [list(_leaf_checks(leaf, event)) for leaf in own]
    fitting = [(leaf, checks) for leaf, checks in zip(own, checked, strict=True) if all(c.holds for c in checks)]
    if not fitting:
        furthest = max(checked, key=len)
        return ended(furthest)
    leaf, checks = fitting[0]
    free = [fact for fact in near if fact is event or request.mode != Mode.GENERIC or fact not in used]
    lacking = _lacking(request.expression, free)
    if lacking is not None:
        return ended([*checks, _missing(request, lacking, event, near, used)], leaf.role)
    clause = print_events(request.expression)
    if any(not isinstance(one.node, Occurs | Times) for one in leaves(request.expression)):
        finding = "no timer ran within the detection window of the event"
        return ended([*checks, Check(clause, clause, finding, False, leaf.role)], leaf.role)
    found = list(islice(_with(request, event, free), COMBINATIONS_MAX))
    if not found:
        finding = "the events that fit are in another order or have other values"
        return ended([*checks, Check(clause, clause, finding, False, leaf.role)], leaf.role)
    roles = [one.role for one in leaves(request.expression)]
    best: list[Check] = []
    for combination in found:
        by_role: dict[str, list[Fact]] = {role: [] for role in roles}
        for position, fact in combination:
            by_role[roles[position]].append(fact)
        asked = list(_conditions(request, by_role))
        best = asked if len(asked) >= len(best) else best
    if all(check.holds for check in best):
        best = [*best, Check(clause, f"mode {request.mode}", "other events were combined", False, leaf.role)]
    return ended([*checks, *best], leaf.role)


def _each(request: Request) -> Iterator[Leaf]:
    """Return the leaves of a request. A `Times`, which has several leaves, counts once."""
    return (leaf for leaf in leaves(request.expression) if leaf.number == 0)


def _of_type(leaf: Leaf, fact: Fact) -> bool:
    return isinstance(leaf.node, Occurs | Times) and leaf.node.pattern.type == fact.type


def _leaf_checks(leaf: Leaf, fact: Fact) -> Iterator[Check]:
    clause = print_events(leaf.node)
    tests = leaf.node.pattern.constraints if isinstance(leaf.node, Occurs | Times) else ()
    yield Check(clause, leaf.role, f"it is {event_text(fact)}", True, leaf.role, fact)
    yield from _tested(tests, {None: fact}, clause, leaf.role, print_expression)
    if isinstance(leaf.node, Times):
        value = fact.value(leaf.node.attribute)
        finding = f"{leaf.node.attribute} is {value_text(value)}"
        yield Check(clause, leaf.node.attribute, finding, value is not None, leaf.role, fact)


def _conditions(request: Request, by_role: Mapping[str, Sequence[Fact]]) -> list[Check]:
    """Return the checks of the condition for the choice of events that passes the most tests."""
    best: list[Check] = []
    for chosen in islice(product(*(facts or [MISSING] for facts in by_role.values())), COMBINATIONS_MAX):
        events: dict[str | None, Fact] = dict(zip(by_role, chosen, strict=True))
        checks = list(_tested(request.condition, events, "if", "", print_expression))
        if all(check.holds for check in checks):
            return checks
        best = checks if len(checks) > len(best) else best
    return best


def _lacking(node: EventExpression, facts: Sequence[Fact]) -> EventExpression | None:
    """Return the first operand of an expression for which there are not enough events, or None."""
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
    consumed = [fact for fact in used if any(fits(one, fact) for one in patterns)]
    if consumed and request.mode == Mode.GENERIC:
        last = max(consumed, key=lambda fact: fact.key)
        return Check(clause, asked, f"{event_text(last)} is used up by the match {used[last]}", False, role, last)
    others = [fact for fact in near if fact is not event and fact.type in {one.pattern.type for one in patterns}]
    if isinstance(node, Times):
        fitting = sum(fits(node, fact) for fact in near)
        return Check(clause, asked, f"there are {fitting} that fit", False, role)
    if not others:
        return Check(clause, asked, "there is none", False, role)
    return Check(clause, asked, f"none fits, as {event_text(others[-1])} does not", False, role, others[-1])


def _with(request: Request, event: Fact, facts: Sequence[Fact]) -> Iterator[Combination]:
    """Yield combinations that contain `event`, made of the latest events that fit each leaf."""
    candidates: set[Fact] = {event}
    for leaf in _each(request):
        if isinstance(leaf.node, Occurs | Times):
            candidates.update([fact for fact in facts if fits(leaf.node, fact)][-CANDIDATES_MAX:])
    some = [fact for fact in facts if fact in candidates]
    tree = _numbered(request.expression)
    return (one for one in _combinations(tree, some) if _contains(one, event))


# ---- queries of SiddhiQL


class _RecordingSelection(_Selection):
    """The selection of a query, which also records the rows that `having` tests."""

    def __init__(self, query: Query) -> None:
        super().__init__(query)
        self.rows_tested: list[tuple[Value, ...]] = []

    def _passes(self, values: tuple[Value, ...]) -> bool:
        self.rows_tested.append(values)
        return super()._passes(values)


@dataclass(frozen=True, slots=True)
class ReplayStep:
    """The effects of an event in a replay, or of a timer if `event` is None."""

    ts: int
    event: Fact | None
    chunks: list[Chunk]
    rows: list[tuple[str, tuple[Value, ...]]]
    """The ids and the values of the rows emitted."""
    rows_tested: list[tuple[Value, ...]]
    """The values of the rows that `having` tested."""
    evaluator: QueryEvaluator
    steps: list[list[Check]]
    """The tests that each run of a pattern made of the event to explain, if the run waited for an event of its type."""


def replay(query: Query, facts: Sequence[Fact], last_ts: int, asked: Fact | None = None) -> Iterator[ReplayStep]:
    """Replay a query over events in canonical order, as the reference runs it. `asked` is the event to explain."""
    if len(facts) > REPLAYED_MAX:
        raise RuleError(
            f"why replays at most {REPLAYED_MAX:,} events, and the query {query.name} depends on {len(facts):,} events "
            "up to the given one",
            hint="Pass only a part of the events, which begins before the window or pattern in question.",
        )
    evaluator, selection = _evaluator(query), _RecordingSelection(query)

    def step(ts: int, event: Fact | None, chunks: list[Chunk], steps: list[list[Check]]) -> ReplayStep:
        words = match_words(query.name, [text_words(f"timer {ts}") if event is None else event.words])
        selection.rows_tested = []
        rows = [row for chunk in chunks for row in selection.rows(chunk)]
        named = [(hexadecimal(occurrence_words(words, number)), values) for number, (_, values) in enumerate(rows)]
        return ReplayStep(ts, event, chunks, named, selection.rows_tested, evaluator, steps)

    def timers(until: int) -> Iterator[ReplayStep]:
        while (due := evaluator.due()) is not None and due <= until:
            yield step(due, None, evaluator.fire(due), [])

    for fact in facts:
        yield from timers(fact.ts)
        steps = (
            list(_step_checks(evaluator, fact)) if fact is asked and isinstance(evaluator, ReferenceAutomaton) else []
        )
        yield step(fact.ts, fact, evaluator.arrive(fact), steps)
    yield from timers(last_ts)


def explain_row(query: Query, facts: Sequence[Fact], ts: int, id: str) -> Reason | None:
    """Explain the row with the id `id`, or return None if there is no such row.

    `facts` are the events of the query's streams up to the row, in canonical order.
    """
    for step in replay(query, facts, ts):
        for row, values in step.rows:
            if row == id:
                return _row_reason(query, step, values)
    return None


def explain_event(query: Query, facts: Sequence[Fact], event: Fact) -> Reason:
    """Explain what the query did at `event`, which is one of `facts`."""
    step = next(step for step in replay(query, facts, event.ts, event) if step.event is event)
    if step.rows:
        return _row_reason(query, step, step.rows[-1][1])
    checks = list(_refused(query, step, event))
    if all(check.holds for check in checks):
        checks.append(Check("output", f"{query.output} events", "no row came out with it", False, "", event))
    return Reason(query.name, event, tuple(checks), ())


def _row_reason(query: Query, step: ReplayStep, values: tuple[Value, ...]) -> Reason:
    checks: list[Check] = []
    anchor = step.event
    if anchor is None:
        anchor = Fact("timer", step.ts, 0, "", (0, 0), {})
        checks.append(Check("a window or an absence", "its end", f"it ended at {step.ts}", True, ""))
    elif not isinstance(query.input, Chain):
        checks += _source_checks(query, anchor)
    members: list[tuple[str, Fact]] = []
    for source, window in _windows(query, step.evaluator):
        if query.aggregates and source.window is not None:
            clause, finding = print_source(source), f"it holds {len(window.contents)} events"
            checks.append(Check(clause, str(source.window.extent), finding, True, source.role))
            members += [(source.role, fact) for fact in window.contents]
    for chunk in step.chunks:
        for sign, events in chunk:
            if sign != Sign.RESET:
                members += _filled(query, events)
    parts = {(role, fact.id): (role, fact) for role, fact in members}
    for role, fact in list(parts.values()) if isinstance(query.input, Chain | Join) else ():
        checks.append(Check("made of", role, f"it is {event_text(fact)}", True, role, fact))
    checks += _having(query, values)
    return Reason(query.name, anchor, tuple(checks), tuple(_part(role, fact) for role, fact in parts.values()))


def _refused(query: Query, step: ReplayStep, event: Fact) -> Iterator[Check]:
    """Yield the tests of an event that produced no row, up to the test that fails."""
    if isinstance(query.input, Chain):
        yield from _pattern_checks(query.input, step, event)
        return
    checks = _source_checks(query, event)
    yield from checks
    if not checks[-1].holds:
        return
    if step.rows_tested:
        yield from _having(query, step.rows_tested[-1])
        return
    if isinstance(query.input, Join):
        yield from _partner_checks(query.input, step.evaluator, event)
        return
    source = query.input
    clause, role = print_source(source), source.role
    if source.window is not None and source.window.extent.batched:
        asked, finding = f"a whole {source.window.extent}", "its batch has not ended with it"
        yield Check(clause, asked, finding, False, role, event)
        return
    after = list(_tested(source.after, {None: event}, clause, role, print_term))
    yield from after
    if all(check.holds for check in after):
        yield Check(
            "output", f"{query.output} events", "its row is emitted when it leaves the window", False, role, event
        )


def _source_checks(query: Query, event: Fact) -> list[Check]:
    """Return the checks of an event by the tests of its stream.

    Of two streams, take the one whose tests the event meets.
    """
    checked: list[list[Check]] = []
    for source in query.sources:
        if source.pattern.type == event.type:
            clause, role = print_source(source), source.role
            tests = _tested(source.pattern.constraints, {None: event}, clause, role, print_term)
            checked.append([Check(clause, role, f"it is {event_text(event)}", True, role, event), *tests])
    return max(checked, key=lambda checks: (checks[-1].holds, len(checks)))


def _partner_checks(join: Join, evaluator: QueryEvaluator, event: Fact) -> Iterator[Check]:
    assert isinstance(evaluator, _Joined)
    sides = (join.left, join.right)
    for side, source in enumerate(sides):
        if source.pattern.type != event.type:
            continue
        other, clause = sides[1 - side], print_source(sides[1 - side])
        if join.triggers not in ((Side.LEFT, Side.RIGHT)[side], Side.BOTH):
            yield Check("join", "unidirectional", f"only events of {other.role} look for partners", False, source.role)
            return
        contents = evaluator._windows[1 - side].contents
        if not contents:
            yield Check(clause, "a partner", "its window is empty", False, other.role)
            return
        best: list[Check] = []
        for partner in contents:
            events = IndexedFacts({source.role: event, other.role: partner})
            asked = list(_tested(join.on, events, f"on, with {event_text(partner)}", other.role, print_term))
            best = asked if len(asked) >= len(best) else best
        yield from best
        return


def _step_checks(automaton: ReferenceAutomaton, event: Fact) -> Iterator[list[Check]]:
    """Yield, for each run that waits for an event of this type, the tests that the run makes of the event."""
    for node in automaton._nodes:
        pattern = node.leaf.pattern
        if pattern.type != event.type:
            continue
        clause, role = print_state(node.leaf), pattern.role
        for run in (*node.waiting, *node.new):
            events = automaton._chosen(run, event)
            so_far = [one for facts in run.events.values() for one in facts]
            finding = f"after {event_text(so_far[-1])}" if so_far else "it can be the first"
            tested = _tested(pattern.constraints, events, clause, role, print_term)
            yield [Check(clause, role, finding, True, role, event), *tested]


def _pattern_checks(chain: Chain, step: ReplayStep, event: Fact) -> Iterator[Check]:
    """Explain why an event did not complete a pattern."""
    assert isinstance(step.evaluator, ReferenceAutomaton)
    for node in step.evaluator._nodes:
        for run in (*node.waiting, *node.new):
            number = next((number for number, facts in run.events.items() if event in facts), None)
            if number is not None:
                state = step.evaluator._nodes[number].leaf
                clause, role = print_state(state), state.pattern.role
                yield Check(clause, role, f"it is {event_text(event)}", True, role, event)
                clause, role = print_state(node.leaf), node.leaf.pattern.role
                yield Check(clause, role, "it has not come yet", False, role)
                return
    if step.steps:
        best = max(step.steps, key=len)
        yield from best
        if best[-1].holds:
            finding = "the run has ended: an absence was violated, or it is older than within"
            yield Check(best[-1].clause, "a pattern that goes on", finding, False, best[-1].role, event)
        return
    waits = next((leaf for leaf in chain.leaves if leaf.pattern.type == event.type), None)
    assert waits is not None
    clause, role = print_state(waits), waits.pattern.role
    yield Check(clause, "the steps before it", "they have not come, so no run waits for it", False, role, event)


def _having(query: Query, values: tuple[Value, ...]) -> list[Check]:
    row = {name: value for (name, _), value in zip(query.select, values, strict=True)}
    return list(_tested(query.having, {None: Fact("", 0, 0, "", (0, 0), row)}, "having", "", print_term))


def _windows(query: Query, evaluator: QueryEvaluator) -> list[tuple[StreamSource, Any]]:
    if isinstance(evaluator, _Single):
        return list(zip(query.sources, [evaluator._window], strict=True))
    return list(zip(query.sources, evaluator._windows, strict=True)) if isinstance(evaluator, _Joined) else []


def _filled(query: Query, events: IndexedFacts) -> list[tuple[str, Fact]]:
    """Return the events with their roles, in the order of the roles."""
    alone = query.sources[0].role if query.sources else ""
    single = [(role or alone, fact) for role, fact in events.items()]
    return single + [(role, fact) for role, facts in events._indexed.items() for fact in facts]
