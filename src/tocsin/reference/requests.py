"""What do requests for notification mean? Event expressions as plain Python, to be held against the paper.

Generic mode: for each arriving instance, all combinations of it and older unused instances are built; if some meet the
condition, there is one notification, for the first of them, and its instances are used up. Snoop's contexts: each
operator keeps what its operands brought and combines it as the context says, from the leaves up.

A *combination* is a tuple of (leaf, fact), in the order of the leaves. Timers are facts like any other.
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
from tocsin.reference.patterns import Fact, Match, Part, holds, identified

Combination = tuple[tuple[int, Fact], ...]


def notifications(
    request: Request, facts: Sequence[Fact], last_ts: int, since: float = -math.inf
) -> Iterator[tuple[Fact, Match]]:
    """The notifications of one request over events in canonical order; timers run from `since` to `last_ts`."""
    found = _generic if request.mode == Mode.GENERIC else _snoop
    for combination in found(request, with_timers(request, facts, last_ts, since)):
        yield _composed(request, combination)


def derived(request: Request, facts: Sequence[Fact], last_ts: int) -> list[Combination]:
    """All combinations that the request's mode derives while no notification uses instances up."""
    facts = with_timers(request, facts, last_ts)
    if request.mode != Mode.GENERIC:
        return list(_arrivals(request, facts))
    tree = _numbered(request.expression)
    return [
        combination
        for place, fact in enumerate(facts)
        for combination in _combinations(tree, _in_window(request, facts[: place + 1], fact))
        if _contains(combination, fact)
    ]


# ---- generic mode


def _generic(request: Request, facts: Sequence[Fact]) -> Iterator[Combination]:
    tree = _numbered(request.expression)
    used: set[Fact] = set()
    for place, fact in enumerate(facts):
        unused = [other for other in facts[: place + 1] if other not in used]
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
    """Which combination comes first: by its instances in order; if they are the same, by leaves."""
    keys = [fact.key for _, fact in combination]
    return sorted(keys), keys, [leaf for leaf, _ in combination]


@dataclass(frozen=True, slots=True)
class _Node:
    """A node of the expression, with the number of its first leaf."""

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
    """Every combination of these instances that an expression allows."""
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
                if _apart(parts) and (isinstance(node.expression, All) or _precedes(parts[0], parts[1])):
                    yield sum(parts, ())


def fits(leaf: Occurs | Times | Timer, fact: Fact) -> bool:
    """Whether an instance can fill a leaf by itself."""
    if isinstance(leaf, Moment | Period | After):
        return fact.type == timer_name(leaf)
    return _admitted(leaf.pattern, fact)


def _admitted(pattern: Pattern, fact: Fact) -> bool:
    return fact.type == pattern.type and all(holds(test, {None: fact}, {}) for test in pattern.constraints)


def _agree(values: Sequence[Value], *, same: bool) -> bool:
    if None in values:
        return False
    return len(set(values)) == (1 if same else len(values))


def _apart(parts: Iterable[Combination]) -> bool:
    """Whether no two of these share an instance. One part may have an instance at several leaves (cumulative)."""
    sets = [{fact for _, fact in part} for part in parts]
    return all(one.isdisjoint(other) for one, other in combinations(sets, 2))


def _apart_from_each(others: Iterable[Combination], one: Combination) -> bool:
    """Whether it shares no instance with any of the others, which may share some with each other."""
    return all(_apart([other, one]) for other in others)


def _precedes(left: Combination, right: Combination) -> bool:
    return latest(left) < latest(right)


def latest(combination: Combination) -> tuple[int, int]:
    """The time of a combination: that of its last instance."""
    return max((fact.ts, fact.seq) for _, fact in combination)


def _contains(combination: Combination, fact: Fact) -> bool:
    return any(part is fact for _, part in combination)


def _in_window(request: Request, facts: Iterable[Fact], now: Fact) -> list[Fact]:
    return [fact for fact in facts if now.ts - fact.ts <= request.window_us]


def meets(request: Request, combination: Combination) -> bool:
    """Whether the condition holds: for some choice where a role has several instances, which Snoop's may."""
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
    """What stands at a leaf that a combination does not have: every value of it is null."""

    def value(self, name: str) -> Value:
        return None


def _composed(request: Request, combination: Combination) -> tuple[Fact, Match]:
    roles = [leaf.role for leaf in leaves(request.expression)]
    ts, seq = latest(combination)
    attributes: Mapping[str, Value] = {"notification": request.notification} if request.emits.attributes else {}
    parts = tuple(Part(roles[leaf], fact.type, fact.ts, fact.seq, fact.id, fact.words) for leaf, fact in combination)
    words = match_words(request.name, (fact.words for _, fact in combination))
    match = Match(request.name, request.name, ts, seq, hexadecimal(words), attributes, parts)
    return Fact(match.type, ts, seq, match.id, words, attributes), match


# ---- timers


def with_timers(
    request: Request, facts: Sequence[Fact], last_ts: int, since: float = -math.inf, begin: float | None = None
) -> list[Fact]:
    """The events with those of the request's timers, in canonical order.

    Periods tick from `begin` on: from the first event that can be part of the request, unless it has only timers.
    """
    if begin is None:
        own = list(_occurrences(request.expression))
        first = (fact.ts for fact in facts if any(fits(node, fact) for node in own))
        begin = next(first, math.inf) if own else since
    timers = {timer_name(timer): timer for timer in _timers(request.expression)}
    events = [
        Event(name, ts)
        for name, timer in timers.items()
        for ts in _moments(request, timer, facts, last_ts, since, begin)
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


def _moments(
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
            found = _generic if request.mode == Mode.GENERIC else _snoop
            for combination in found(inner, with_timers(inner, facts, last_ts, since, begin)):
                yield latest(combination)[0] + delay_us


# ---- Snoop's contexts


def _snoop(request: Request, facts: Sequence[Fact]) -> Iterator[Combination]:
    for combination in _arrivals(request, facts):
        if meets(request, combination):
            yield combination


def _arrivals(request: Request, facts: Sequence[Fact]) -> Iterator[Combination]:
    operator = _Operator(_numbered(request.expression), request.mode)
    for fact in facts:
        operator.forget(fact.ts - request.window_us)
        yield from operator.take(fact)


@dataclass(slots=True)
class _Operator:
    """A node at work: what its operands brought and it has not combined yet."""

    node: _Node
    mode: Mode
    operands: list[_Operator] = field(init=False)
    kept: list[list[Combination]] = field(init=False)

    def __post_init__(self) -> None:
        self.operands = [_Operator(operand, self.mode) for operand in self.node.operands]
        self.kept = [[] for _ in range(max(1, len(self.operands)))]

    def forget(self, before_ts: int) -> None:
        for operand in self.operands:
            operand.forget(before_ts)
        self.kept = [[one for one in kept if all(fact.ts >= before_ts for _, fact in one)] for kept in self.kept]

    def take(self, fact: Fact) -> list[Combination]:
        """What this node makes of an instance."""
        expression, first = self.node.expression, self.node.first
        if isinstance(expression, Times):
            return self._repeated(expression, fact) if fits(expression, fact) else []
        if isinstance(expression, Occurs | Moment | Period | After):
            return [((first, fact),)] if fits(expression, fact) else []
        brought = [operand.take(fact) for operand in self.operands]
        if isinstance(expression, Either):
            return [one for operand in brought for one in operand]
        join = self._sequence if isinstance(expression, Then) else self._conjunction
        return [made for place, ones in enumerate(brought) for one in ones for made in join(place, one)]

    def _conjunction(self, place: int, new: Combination) -> list[Combination]:
        others = [other for other in range(len(self.kept)) if other != place]
        if self.mode == Mode.RECENT:
            self.kept[place].clear()
        self.kept[place].append(new)
        chosen: dict[int, list[Combination]] = {}
        if self.mode == Mode.CUMULATIVE:
            seen = [new]
            for other in others:
                chosen[other] = [one for one in self.kept[other] if _apart_from_each(seen, one)]
                seen += chosen[other]
            chosen[place] = [one for one in self.kept[place] if one is new or _apart_from_each(seen[1:], one)]
            made = [_joined(one for ones in chosen.values() for one in ones)]
        elif self.mode == Mode.CONTINUOUS:
            chosen = {other: [one for one in self.kept[other] if _apart([new, one])] for other in others}
            made = [_joined([new, *ones]) for ones in product(*chosen.values()) if _apart([new, *ones])]
        else:
            seen = [new] if self.mode == Mode.RECENT else []
            for other in range(len(self.kept)):
                if self.mode == Mode.RECENT and other == place:
                    chosen[other] = [new]
                    continue
                free = [one for one in self.kept[other] if _apart([*seen, one])]
                chosen[other] = free[:1]
                seen += free[:1]
            made = [_joined(seen)] if new in seen else []
        if not all(chosen.values()) or not made:
            return []
        for other, ones in chosen.items():
            self.kept[other] = [one for one in self.kept[other] if one not in ones]
        if self.mode == Mode.CHRONOLOGICAL:
            self.kept = [[one for one in kept if _apart([*made, one])] for kept in self.kept]
        return made

    def _sequence(self, place: int, new: Combination) -> list[Combination]:
        if place == 0:
            if self.mode == Mode.RECENT:
                self.kept[0].clear()
            self.kept[0].append(new)
            return []
        before = [one for one in self.kept[0] if _precedes(one, new) and _apart([one, new])]
        if not before:
            return []
        if self.mode == Mode.RECENT:
            before = before[-1:]
        elif self.mode == Mode.CHRONOLOGICAL:
            before = before[:1]
        self.kept[0] = [one for one in self.kept[0] if one not in before]
        return [_joined([*before, new])] if self.mode == Mode.CUMULATIVE else [_joined([one, new]) for one in before]

    def _repeated(self, times: Times, fact: Fact) -> list[Combination]:
        value = fact.value(times.attribute)
        if value is None:
            return []
        held = [one[0][1] for one in self.kept[0]]
        if self.mode == Mode.RECENT and not times.same:
            held = [other for other in held if other.value(times.attribute) != value]
        if times.same:
            groups = [[other] for other in held if other.value(times.attribute) == value]
        else:
            values = list(dict.fromkeys(other.value(times.attribute) for other in held))
            groups = [
                [other for other in held if other.value(times.attribute) == one] for one in values if one != value
            ]
        needed = times.count - 1
        made: list[list[Fact]] = []
        if len(groups) >= needed:
            if self.mode == Mode.CONTINUOUS:
                made = [list(ones) for chosen in combinations(groups, needed) for ones in product(*chosen)]
            elif self.mode == Mode.CUMULATIVE:
                made = [[other for group in groups for other in group]]
                if not times.same:
                    made = [list(held)]
            elif self.mode == Mode.RECENT:
                latest_ones = sorted((group[-1] for group in groups), key=lambda other: other.key)
                made = [latest_ones[len(latest_ones) - needed :]]
            else:
                made = [sorted((group[0] for group in groups), key=lambda other: other.key)[:needed]]
        used = {other for ones in made for other in ones}
        held = [other for other in held if other not in used]
        if not made or self.mode == Mode.CONTINUOUS:
            held.append(fact)
        self.kept[0] = [((self.node.first, other),) for other in held]
        return [self._numbered_parts(sorted([*ones, fact], key=lambda other: other.key)) for ones in made]

    def _numbered_parts(self, facts: Sequence[Fact]) -> Combination:
        """The leaves of a `Times` in order; if there are more instances than leaves, the last leaf has several."""
        assert isinstance(self.node.expression, Times)
        last = self.node.expression.count - 1
        return tuple((self.node.first + min(n, last), fact) for n, fact in enumerate(facts))


def _joined(parts: Iterable[Combination]) -> Combination:
    """All instances of some combinations, by leaf, those of one leaf in canonical order."""
    return tuple(sorted((pair for part in parts for pair in part), key=lambda pair: (pair[0], pair[1].key)))
