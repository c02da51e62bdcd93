"""The reference semantics of requests for notification, as plain Python, to check against the paper.

In generic mode, all combinations of an arriving instance and older unused instances are built. If some of them meet the
condition, there is one notification for the first of these, and its instances are used up. In Snoop's contexts, each
operator retains what its operands produced, and combines it as the context says, from the leaves up.

An *instance* is an event or a timer, and timers are facts like any other. A *combination* is a tuple of (leaf, fact)
pairs, in the order of the leaves.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, product

from tocsin.events.types import Event, Value, hexadecimal, match_words
from tocsin.language.eps.ast import (
    After,
    All,
    Either,
    EventExpression,
    Mode,
    Moment,
    Occurs,
    Period,
    Request,
    Then,
    Timer,
    Times,
    leaves,
    timer_name,
)
from tocsin.language.syntax.ast import Pattern
from tocsin.reference.patterns import Fact, Match, MatchPart, holds, identified

Combination = tuple[tuple[int, Fact], ...]


def notifications(
    request: Request, facts: Sequence[Fact], last_ts: int, since: float = -math.inf
) -> Iterator[tuple[Fact, Match]]:
    """Yield the notifications of a request.

    `facts` are in canonical order, and timers run from `since` to `last_ts`.
    """
    evaluate = _generic if request.mode == Mode.GENERIC else _in_context
    for combination in evaluate(request, with_timers(request, facts, last_ts, since)):
        yield _composed(request, combination)


def derived(request: Request, facts: Sequence[Fact], last_ts: int) -> list[Combination]:
    """Return all combinations that the request's mode derives if no notification uses instances up."""
    facts = with_timers(request, facts, last_ts)
    if request.mode != Mode.GENERIC:
        return list(_arrivals(request, facts))
    tree = _numbered(request.expression)
    return [
        combination
        for index, fact in enumerate(facts)
        for combination in _combinations(tree, _in_window(request, facts[: index + 1], fact))
        if _contains(combination, fact)
    ]


# ---- generic mode


def _generic(request: Request, facts: Sequence[Fact]) -> Iterator[Combination]:
    tree = _numbered(request.expression)
    used: set[Fact] = set()
    for index, fact in enumerate(facts):
        unused = [other for other in facts[: index + 1] if other not in used]
        fitting = [
            combination
            for combination in _combinations(tree, _in_window(request, unused, fact))
            if _contains(combination, fact) and meets(request, combination)
        ]
        if fitting:
            first = min(fitting, key=rank)
            used.update(part for _, part in first)
            yield first


def rank(combination: Combination) -> tuple[object, ...]:
    """Return the sort key of a combination: its instances in order, and then its leaves."""
    keys = [fact.key for _, fact in combination]
    return sorted(keys), keys, [leaf for leaf, _ in combination]


@dataclass(frozen=True, slots=True)
class _Node:
    """A node of the expression, with the index of its first leaf."""

    expression: EventExpression
    first: int
    operands: tuple[_Node, ...]


def _numbered(expression: EventExpression, first: int = 0) -> _Node:
    match expression:
        case All(operands) | Either(operands):
            parts: tuple[EventExpression, ...] = operands
        case Then(left, right):
            parts = (left, right)
        case _:
            parts = ()
    nodes, at = [], first
    for part in parts:
        nodes.append(_numbered(part, at))
        at += len(list(leaves(part)))
    return _Node(expression, first, tuple(nodes))


def _combinations(node: _Node, facts: Sequence[Fact]) -> Iterator[Combination]:
    """Yield every combination of the instances `facts` that an expression allows."""
    match node.expression:
        case Occurs() | Moment() | Period() | After():
            for fact in facts:
                if fits(node.expression, fact):
                    yield ((node.first, fact),)
        case Times(count, _, attribute, same):
            fitting = [fact for fact in facts if fits(node.expression, fact)]
            for chosen in combinations(fitting, count):
                if _agree([fact.value(attribute) for fact in chosen], same=same):
                    yield tuple((node.first + n, fact) for n, fact in enumerate(chosen))
        case Either():
            for operand in node.operands:
                yield from _combinations(operand, facts)
        case All() | Then():
            for parts in product(*(list(_combinations(operand, facts)) for operand in node.operands)):
                if _disjoint(parts) and (isinstance(node.expression, All) or _precedes(parts[0], parts[1])):
                    yield sum(parts, ())


def fits(leaf: Occurs | Times | Timer, fact: Fact) -> bool:
    """Return whether an instance can fill a leaf, apart from its relation to other instances."""
    if isinstance(leaf, Moment | Period | After):
        return fact.type == timer_name(leaf)
    return _admitted(leaf.pattern, fact)


def _admitted(pattern: Pattern, fact: Fact) -> bool:
    return fact.type == pattern.type and all(holds(test, {None: fact}, {}) for test in pattern.constraints)


def _agree(values: Sequence[Value], *, same: bool) -> bool:
    if None in values:
        return False
    return len(set(values)) == (1 if same else len(values))


def _disjoint(parts: Iterable[Combination]) -> bool:
    """Return whether no two of the combinations share an instance.

    One combination may have the same instance at several leaves, in the cumulative context.
    """
    sets = [{fact for _, fact in part} for part in parts]
    return all(one.isdisjoint(other) for one, other in combinations(sets, 2))


def _disjoint_from_each(others: Iterable[Combination], one: Combination) -> bool:
    """Return whether combination `one` shares no instance with any of `others`.

    These may share instances with each other.
    """
    return all(_disjoint([other, one]) for other in others)


def _precedes(left: Combination, right: Combination) -> bool:
    return latest(left) < latest(right)


def latest(combination: Combination) -> tuple[int, int]:
    """Return the time (ts, seq) of a combination, which is the time of its last instance."""
    return max((fact.ts, fact.seq) for _, fact in combination)


def _contains(combination: Combination, fact: Fact) -> bool:
    return any(part is fact for _, part in combination)


def _in_window(request: Request, facts: Iterable[Fact], now: Fact) -> list[Fact]:
    return [fact for fact in facts if now.ts - fact.ts <= request.window_us]


def meets(request: Request, combination: Combination) -> bool:
    """Return whether a combination meets the condition of the request.

    In Snoop's contexts a role can have several instances. The condition must then hold for some choice of one of them.
    """
    roles = [leaf.role for leaf in leaves(request.expression)]
    filled: dict[str, list[Fact]] = {role: [] for role in roles}
    for leaf, fact in combination:
        filled[roles[leaf]].append(fact)
    times = {leaf.role for leaf in leaves(request.expression) if isinstance(leaf.node, Times)}
    choices = [filled[role][:1] if role in times else filled[role] for role in filled]
    nothing = Fact("", 0, 0, "", (0, 0), {})
    for chosen in product(*(choice or [nothing] for choice in choices)):
        events = {role: fact if fact is not nothing else _Absent() for role, fact in zip(filled, chosen, strict=True)}
        if all(holds(test, events, {}) for test in request.condition):  # type: ignore[arg-type]
            return True
    return False


class _Absent:
    """The missing instance at a leaf that a combination does not fill. All its values are null."""

    def value(self, name: str) -> Value:
        return None


def _composed(request: Request, combination: Combination) -> tuple[Fact, Match]:
    roles = [leaf.role for leaf in leaves(request.expression)]
    ts, seq = latest(combination)
    attributes: Mapping[str, Value] = {"notification": request.notification} if request.emits.attributes else {}
    parts = tuple(
        MatchPart(roles[leaf], fact.type, fact.ts, fact.seq, fact.id, fact.words) for leaf, fact in combination
    )
    words = match_words(request.name, (fact.words for _, fact in combination))
    match = Match(request.name, request.name, ts, seq, hexadecimal(words), attributes, parts)
    return Fact(match.type, ts, seq, match.id, words, attributes), match


# ---- timers


def with_timers(
    request: Request, facts: Sequence[Fact], last_ts: int, since: float = -math.inf, begin: float | None = None
) -> list[Fact]:
    """Return the events together with the events of the request's timers, in canonical order.

    Periods tick from the time `begin`. By default, this is the first event that can be part of the request, or `since`
    if the request has only timers.
    """
    if begin is None:
        own = list(_occurrences(request.expression))
        first = (fact.ts for fact in facts if any(fits(node, fact) for node in own))
        begin = next(first, math.inf) if own else since
    timers = {timer_name(timer): timer for timer in _timers(request.expression)}
    events = [
        Event(name, ts)
        for name, timer in timers.items()
        for ts in _timer_times(request, timer, facts, last_ts, since, begin)
        if since <= ts <= last_ts
    ]
    return sorted([*facts, *identified(events)], key=lambda fact: fact.key)


def _occurrences(expression: EventExpression) -> Iterator[Occurs | Times]:
    for leaf in leaves(expression):
        if isinstance(leaf.node, After):
            yield from _occurrences(leaf.node.event)
        elif isinstance(leaf.node, Occurs | Times):
            yield leaf.node


def _timers(expression: EventExpression) -> Iterator[Timer]:
    for leaf in leaves(expression):
        if isinstance(leaf.node, Moment | Period | After):
            yield leaf.node


def _timer_times(
    request: Request, timer: Timer, facts: Sequence[Fact], last_ts: int, since: float, begin: float
) -> Iterator[int]:
    match timer:
        case Moment(at_us):
            yield at_us
        case Period(every_us, start_us):
            first = start_us or 0
            if begin < math.inf and (start_us is None or begin > start_us):
                first += -(-(int(begin) - first) // every_us) * every_us
            if begin < math.inf:
                yield from range(first, last_ts + 1, every_us)
        case After(event, delay_us):
            inner = Request("", event, window_us=request.window_us, mode=request.mode)
            evaluate = _generic if request.mode == Mode.GENERIC else _in_context
            for combination in evaluate(inner, with_timers(inner, facts, last_ts, since, begin)):
                yield latest(combination)[0] + delay_us


# ---- Snoop's contexts


def _in_context(request: Request, facts: Sequence[Fact]) -> Iterator[Combination]:
    for combination in _arrivals(request, facts):
        if meets(request, combination):
            yield combination


def _arrivals(request: Request, facts: Sequence[Fact]) -> Iterator[Combination]:
    operator = _Operator(_numbered(request.expression), request.mode)
    for fact in facts:
        operator.expire(fact.ts - request.window_us)
        yield from operator.push(fact)


@dataclass(slots=True)
class _Operator:
    """A node of the expression, and the combinations of its operands that it has not combined yet."""

    node: _Node
    mode: Mode
    operands: list[_Operator] = field(init=False)
    retained: list[list[Combination]] = field(init=False)

    def __post_init__(self) -> None:
        self.operands = [_Operator(operand, self.mode) for operand in self.node.operands]
        self.retained = [[] for _ in range(max(1, len(self.operands)))]

    def expire(self, before_ts: int) -> None:
        for operand in self.operands:
            operand.expire(before_ts)
        self.retained = [
            [one for one in retained if all(fact.ts >= before_ts for _, fact in one)] for retained in self.retained
        ]

    def push(self, fact: Fact) -> list[Combination]:
        """Return the combinations that this node produces when an instance arrives."""
        expression, first = self.node.expression, self.node.first
        if isinstance(expression, Times):
            return self._repeated(expression, fact) if fits(expression, fact) else []
        if isinstance(expression, Occurs | Moment | Period | After):
            return [((first, fact),)] if fits(expression, fact) else []
        inputs = [operand.push(fact) for operand in self.operands]
        if isinstance(expression, Either):
            return [one for operand in inputs for one in operand]
        combine = self._sequence if isinstance(expression, Then) else self._conjunction
        return [produced for index, ones in enumerate(inputs) for one in ones for produced in combine(index, one)]

    def _conjunction(self, index: int, new: Combination) -> list[Combination]:
        others = [other for other in range(len(self.retained)) if other != index]
        if self.mode == Mode.RECENT:
            self.retained[index].clear()
        self.retained[index].append(new)
        chosen: dict[int, list[Combination]] = {}
        if self.mode == Mode.CUMULATIVE:
            used = [new]
            for other in others:
                chosen[other] = [one for one in self.retained[other] if _disjoint_from_each(used, one)]
                used += chosen[other]
            chosen[index] = [one for one in self.retained[index] if one is new or _disjoint_from_each(used[1:], one)]
            produced = [_joined(one for ones in chosen.values() for one in ones)]
        elif self.mode == Mode.CONTINUOUS:
            chosen = {other: [one for one in self.retained[other] if _disjoint([new, one])] for other in others}
            produced = [_joined([new, *ones]) for ones in product(*chosen.values()) if _disjoint([new, *ones])]
        else:
            used = [new] if self.mode == Mode.RECENT else []
            for other in range(len(self.retained)):
                if self.mode == Mode.RECENT and other == index:
                    chosen[other] = [new]
                    continue
                free = [one for one in self.retained[other] if _disjoint([*used, one])]
                chosen[other] = free[:1]
                used += free[:1]
            produced = [_joined(used)] if new in used else []
        if not all(chosen.values()) or not produced:
            return []
        for other, ones in chosen.items():
            self.retained[other] = [one for one in self.retained[other] if one not in ones]
        if self.mode == Mode.CHRONOLOGICAL:
            self.retained = [[one for one in retained if _disjoint([*produced, one])] for retained in self.retained]
        return produced

    def _sequence(self, index: int, new: Combination) -> list[Combination]:
        if index == 0:
            if self.mode == Mode.RECENT:
                self.retained[0].clear()
            self.retained[0].append(new)
            return []
        before = [one for one in self.retained[0] if _precedes(one, new) and _disjoint([one, new])]
        if not before:
            return []
        if self.mode == Mode.RECENT:
            before = before[-1:]
        elif self.mode == Mode.CHRONOLOGICAL:
            before = before[:1]
        self.retained[0] = [one for one in self.retained[0] if one not in before]
        return [_joined([*before, new])] if self.mode == Mode.CUMULATIVE else [_joined([one, new]) for one in before]

    def _repeated(self, times: Times, fact: Fact) -> list[Combination]:
        value = fact.value(times.attribute)
        if value is None:
            return []
        candidates = [one[0][1] for one in self.retained[0]]
        if self.mode == Mode.RECENT and not times.same:
            candidates = [other for other in candidates if other.value(times.attribute) != value]
        if times.same:
            groups = [[other] for other in candidates if other.value(times.attribute) == value]
        else:
            values = list(dict.fromkeys(other.value(times.attribute) for other in candidates))
            groups = [
                [other for other in candidates if other.value(times.attribute) == one] for one in values if one != value
            ]
        needed = times.count - 1
        produced: list[list[Fact]] = []
        if len(groups) >= needed:
            if self.mode == Mode.CONTINUOUS:
                produced = [list(ones) for chosen in combinations(groups, needed) for ones in product(*chosen)]
            elif self.mode == Mode.CUMULATIVE:
                produced = [[other for group in groups for other in group]]
                if not times.same:
                    produced = [list(candidates)]
            elif self.mode == Mode.RECENT:
                latest_ones = sorted((group[-1] for group in groups), key=lambda other: other.key)
                produced = [latest_ones[len(latest_ones) - needed :]]
            else:
                produced = [sorted((group[0] for group in groups), key=lambda other: other.key)[:needed]]
        used = {other for ones in produced for other in ones}
        candidates = [other for other in candidates if other not in used]
        if not produced or self.mode == Mode.CONTINUOUS:
            candidates.append(fact)
        self.retained[0] = [((self.node.first, other),) for other in candidates]
        return [self._numbered_parts(sorted([*ones, fact], key=lambda other: other.key)) for ones in produced]

    def _numbered_parts(self, facts: Sequence[Fact]) -> Combination:
        """Assign instances to the leaves of a `Times`, in order.

        If there are too many, the last leaf gets all that remain.
        """
        assert isinstance(self.node.expression, Times)
        last = self.node.expression.count - 1
        return tuple((self.node.first + min(n, last), fact) for n, fact in enumerate(facts))


def _joined(parts: Iterable[Combination]) -> Combination:
    """Return all instances of the combinations `parts`, by leaf and then in canonical order."""
    return tuple(sorted((pair for part in parts for pair in part), key=lambda pair: (pair[0], pair[1].key)))
