"""What does a query that moves deliver? For each range the maximum covering sequence, found anew from all events.

The focal object's location updates cut the query's life into ranges. For each, the rules run over the events that lie
in its region, an operator at a time: an operator is a rule on one path of the tree, and sees what is later than the
range's start minus the lifetime minus the restriction windows from the root down to it. A match is kept if its time is
in [start − δ, end]. With consumption, strong semantics begins at a quiet point instead: the answer of a run from the
beginning of time. Slow and plain; nothing is shared with the protocol but regions and the classes of rules.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tocsin.engine.reference import Fact, Match, Part, holds, identified
from tocsin.engine.reference import matches_of as found_by
from tocsin.engine.window_model import Evaluation, produced_words
from tocsin.errors import EventError
from tocsin.events.ids import Words, fold, hexadecimal, text_words
from tocsin.events.types import Event
from tocsin.language.interests import Each, Interest, Semantics, Spatial, Timed
from tocsin.language.rules import Rule, Selection, Within
from tocsin.language.window_model import WindowOperator
from tocsin.plans.regions import Place, Region, distance_m, place_of


@dataclass(frozen=True, slots=True)
class Range:
    """The region of interest from one location update to the next, both times included (µs)."""

    number: int
    """From 1."""
    start: int
    end: float
    """Infinite for the last."""
    region: Region


@dataclass(frozen=True, slots=True)
class Delivered:
    """A match in a range; its id tells it from the same match in another."""

    id: str
    match: Match


@dataclass(frozen=True, slots=True)
class Covering:
    """What is delivered for a range, in order; after it comes a marker. Or why it cannot be."""

    range: Range
    delivered: tuple[Delivered, ...] = ()
    error: str | None = None


def coverings(interest: Interest, events: Iterable[Event], history_us: int | None = None) -> list[Covering]:
    """What a query delivers, range by range. `history_us`: how far back from a range's start events are kept."""
    facts = sorted(identified(events), key=lambda fact: fact.key)
    for fact in facts:
        if any(fact.type == rule.emits.name for rule in interest.parts):
            raise EventError(f"events of type {fact.type} come from a rule, they are not accepted from outside")
    return [covering(interest, range, facts, history_us) for range in cut(interest, facts)]


def cut(interest: Interest, facts: Sequence[Fact]) -> list[Range]:
    """The ranges into which location updates cut a query's life; facts are in canonical order."""
    begins: list[tuple[int, Place]] = []
    for fact in facts:
        place = place_of(fact.attributes, interest.space)
        if place is None or fact.type != interest.focal.type:
            continue
        if all(holds(test, {None: fact}, {}) for test in interest.focal.constraints) and (
            not begins or updates(interest, begins[-1], (fact.ts, place))
        ):
            begins.append((fact.ts, place))
    ends = [*(start for start, _ in begins), math.inf][1:]
    return [
        Range(number, start, end, Region(interest.shape, place, interest.space))
        for number, ((start, place), end) in enumerate(zip(begins, ends, strict=True), 1)
    ]


def updates(interest: Interest, last: tuple[int, Place], new: tuple[int, Place]) -> bool:
    """Whether a location update begins a new range, given that at which the present one began."""
    match interest.update:
        case Each():
            return True
        case Timed(every_us):
            return new[0] - last[0] >= every_us
        case Spatial(every_m):
            return distance_m(last[1], new[1], interest.space) >= every_m


def restriction_us(rule: Rule | WindowOperator) -> int:
    """The restriction window: the longest sum of windows from the anchor, and no less than an instant."""
    if isinstance(rule, WindowOperator):
        return rule.restriction_us
    reach = {rule.anchor.role: 0}
    longest = 1
    for clause in rule.clauses:
        scope = clause.scope
        back = reach[scope.origin] + scope.window_us if isinstance(scope, Within) else reach[scope.start]
        if isinstance(clause, Selection):
            reach[clause.pattern.role] = back
        longest = max(longest, back)
    return longest


def windows_us(interest: Interest, type: str) -> int:
    """The longest sum of restriction windows on a path from events of this type down to primary events."""
    rules = [rule for rule in interest.parts if rule.emits.name == type]
    return max(
        (restriction_us(rule) + max(windows_us(interest, use) for use in rule.uses) for rule in rules), default=0
    )


def quiet_point(times: Sequence[int], latest: int, windows: int) -> int:
    """The latest point up to `latest` with no event in (point − windows, point]; `times` are sorted."""
    point = latest
    for ts in reversed(times):
        if ts <= point:
            if ts <= point - windows:
                return point
            point = ts - 1
    return point


def match_id(query: str, number: int, words: Words) -> str:
    """The identity of a match in a range of a query."""
    state = text_words(query)
    for word in (number, *words):
        state = fold(state, word)
    return hexadecimal(state)


def covering(interest: Interest, range: Range, facts: Sequence[Fact], history_us: int | None) -> Covering:
    """What is delivered for one range, given all events in canonical order."""
    located = []
    for fact in facts:
        place = place_of(fact.attributes, interest.space)
        if place is not None and range.region.contains(place) and fact.ts <= range.end:
            located.append(fact)
    first = range.start - interest.lifetime_us
    windows = max(windows_us(interest, type) for type in interest.delivers)
    kept_from = -math.inf if history_us is None else range.start - history_us
    if first - windows < kept_from:
        return Covering(range, error="the history kept is shorter than the lifetime and the windows")
    quiet = None
    if interest.consumes and interest.semantics == Semantics.STRONG:
        seen = {use for rule in interest.parts for use in rule.uses}
        quiet = quiet_point([fact.ts for fact in located if fact.type in seen], first - windows, windows)
        if quiet - windows < kept_from:
            return Covering(range, error="there is no quiet point within the history kept")

    def composites(type: str, after: int) -> list[tuple[Fact, Match]]:
        """What rules find of a type, from inputs that are later than `after` minus their restriction window."""
        found: list[tuple[Fact, Match]] = []
        for rule in interest.parts:
            if rule.emits.name != type:
                continue
            begin = after - restriction_us(rule) if quiet is None else quiet
            inputs = sorted((fact for use in {*rule.uses} for fact in visible(use, begin)), key=lambda fact: fact.key)
            found += selected_by(rule, inputs) if isinstance(rule, WindowOperator) else found_by(rule, inputs)
        return found

    def visible(type: str, begin: int) -> list[Fact]:
        """The events of a type later than `begin`, primary or composite."""
        facts = [fact for fact in located if fact.type == type]
        facts += [fact for fact, _ in composites(type, begin)]
        return [fact for fact in facts if fact.ts > begin]

    kept = [
        (fact, match)
        for type in interest.delivers
        for fact, match in composites(type, first)
        if first <= match.ts <= range.end
    ]
    kept.sort(key=lambda pair: order_key(pair[1]))
    return Covering(
        range, tuple(Delivered(match_id(interest.name, range.number, fact.words), match) for fact, match in kept)
    )


def selected_by(operator: WindowOperator, facts: Sequence[Fact]) -> list[tuple[Fact, Match]]:
    """What an operator of the window model produces."""
    named = {(fact.type, fact.id): fact for fact in facts}
    events = [Event(fact.type, fact.ts, fact.attributes, fact.seq, fact.id) for fact in facts]
    found = []
    for one in Evaluation(operator).push(events):
        parts = [named[event.type, event.id or ""] for event in one.parts]
        words = produced_words(operator.name, [fact.words for fact in parts], one.number)
        event, id = one.event, hexadecimal(words)
        fact = Fact(event.type, event.ts, event.seq, id, words, event.attributes)
        told = tuple(Part(part.type, part.type, part.ts, part.seq, part.id) for part in parts)
        found.append((fact, Match(operator.name, event.type, event.ts, event.seq, id, event.attributes, told)))
    return found


def order_key(match: Match) -> tuple[object, ...]:
    """The place of a match within its range."""
    return match.ts, match.seq, match.rule, [(part.ts, part.seq, part.type, part.id) for part in match.parts]
