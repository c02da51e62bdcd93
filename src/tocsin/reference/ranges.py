"""The reference semantics of moving queries (MCEP).

The location updates of the focal object split the life of a query into *ranges*. For each range, the answer is the
maximum covering sequence over all events. The rules run over the events in the region of the range, operator by
operator. An operator is a rule on one path of the tree. It sees events that are later than the start of the range minus
the lifetime and minus the restriction windows from the root down to the operator. A match is delivered if its time is
in [start − δ, end]. With consumption, strong semantics starts at a quiescent point instead, which gives the answer of a
run from the beginning of time.

The code is slow and plain. It shares nothing with the protocol but regions and the classes of rules.

Window operators are evaluated by the partitioned window model of MCEP, Section 4.2. A *restriction window* slides over
all streams. For each stream, a temporal or counting *selection window* opens at the start or the end of the restriction
window, as far as its *dependency* on another window allows. When all selection windows are full, the function is
applied. Then *consumption* marks events that cannot be selected again, and the windows *shift* into history or future.
When they cannot shift, the restriction window moves on and they open again (Fig. 3 of the paper). The function is
applied to a selection when the last event of the selection comes, so that results are in the order of time.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tocsin.errors import EventError
from tocsin.events.types import Event, Words128, fold, hexadecimal, match_words, text_words
from tocsin.language.mcep.ast import (
    Consumption,
    Each,
    Edge,
    Interest,
    SelectionWindow,
    Semantics,
    Shift,
    Spatial,
    Timed,
    WindowOperator,
    WindowUnit,
)
from tocsin.language.syntax.ast import Rule, Selection, Within
from tocsin.plans.moving import Coordinates, Region, coordinates_of, distance_m
from tocsin.reference.patterns import Fact, Match, MatchPart, holds, identified
from tocsin.reference.patterns import matches_of as rule_matches


def run(operator: WindowOperator, events: Iterable[Event], after: int | None = None) -> list[Event]:
    """Return the events that an operator produces from those of `events` that are of its streams (types).

    Only events later than `after` are used, or all if `after` is None.

    >>> pair = WindowOperator(
    ...     "Pair",
    ...     (
    ...         SelectionWindow("B", WindowUnit.COUNTING, 1, consumption=Consumption.BEFORE),
    ...         SelectionWindow("A", WindowUnit.COUNTING, 1, before="B"),
    ...     ),
    ...     10,
    ...     lambda chosen: [{"a": chosen["A"][0].ts, "b": chosen["B"][0].ts}],
    ... )
    >>> [event.attributes for event in run(pair, [Event("A", 1), Event("A", 2), Event("B", 5), Event("B", 6)])]
    [{'a': 2, 'b': 5}, {'a': 2, 'b': 6}]
    """
    later = (event for event in events if event.type in operator.uses and (after is None or event.ts > after))
    return [one.event for one in Evaluation(operator).push(sorted(later, key=_key), finished=True)]


def produced_words(name: str, parts: Iterable[Words128], number: int) -> Words128:
    """Return the identity of the n-th event that an operator produces from the events with the identities `parts`."""
    words = match_words(name, parts)
    return fold(words, number) if number else words


def _key(event: Event) -> tuple[int, int, str, str]:
    return event.ts, event.seq, event.type, event.id or ""


def _precedes(one: Event, two: Event) -> bool:
    return (one.ts, one.seq) < (two.ts, two.seq)


@dataclass(frozen=True, slots=True)
class Correlated:
    """An event that an operator produced, and the events of the selection that it was produced from.

    `number` counts the events that were produced from the same selection before.
    """

    event: Event
    parts: tuple[Event, ...]
    number: int


@dataclass
class Evaluation:
    """The evaluation of an operator over a stream. Positions are indexes into `merged`, the events in order of time."""

    operator: WindowOperator
    merged: list[Event] = field(default_factory=list)
    times: list[int] = field(default_factory=list)
    consumed: set[int] = field(default_factory=set)
    count: int = 0

    def push(self, events: Sequence[Event], *, finished: bool = False) -> list[Correlated]:
        """Process the next events, which come in order, and return the events that these complete.

        An operator that slides by time produces all its events in the last call, which has `finished` set.
        """
        first = len(self.merged)
        self.merged += events
        self.times += [event.ts for event in events]
        slide = self.operator.slide_us
        if slide is None:
            return [
                each
                for at in range(first, len(self.merged))
                for each in self._restricted(self.times[at], at, whole=False)
            ]
        correlated: list[Correlated] = []
        end = self.times[0] if finished and self.merged else None
        while end is not None and end < self.times[-1] + slide:
            correlated += self._restricted(end, bisect_right(self.times, end) - 1, whole=True)
            end += slide
        return correlated

    def _restricted(self, end: int, last: int, *, whole: bool) -> Iterator[Correlated]:
        """Yield the correlations of a restriction window that ends at the time `end`.

        The window contains the events up to position `last`. Unless `whole` is true, only selections that contain the
        last event are new, and all others are skipped.
        """
        begin = end - self.operator.restriction_us
        inside = list(range(bisect_right(self.times, begin), last + 1))
        chosen = self._opened(inside, begin, end)
        while chosen is not None:
            if whole or any(last in positions for positions in chosen.values()):
                yield from self._correlated(chosen)
                for window in self.operator.windows:
                    self._consume(window, chosen[window.stream], inside)
            chosen = self._shifted(chosen, inside)

    def _correlated(self, chosen: Mapping[str, list[int]]) -> Iterator[Correlated]:
        selection = {stream: [self.merged[at] for at in positions] for stream, positions in chosen.items()}
        everything = tuple(event for stream in self.operator.uses for event in selection[stream])
        if not everything:
            return
        latest = max(everything, key=_key)
        for number, attributes in enumerate(self.operator.correlate(selection)):
            self.count += 1
            name = f"{self.operator.name}{self.count}"
            yield Correlated(Event(self.operator.name, latest.ts, attributes, latest.seq, name), everything, number)

    def _candidates(self, window: SelectionWindow, inside: list[int], chosen: Mapping[str, list[int]]) -> list[int]:
        limit = chosen[window.before][:1] if window.before is not None else []
        return [
            at
            for at in inside
            if self.merged[at].type == window.stream
            and at not in self.consumed
            and all(_precedes(self.merged[at], self.merged[first]) for first in limit)
        ]

    def _opened(self, inside: list[int], begin: int, end: int) -> dict[str, list[int]] | None:
        """Return the selection with which the windows open, or None if a window is not full."""
        chosen: dict[str, list[int]] = {}
        for window in self.operator.order():
            positions = self._candidates(window, inside, chosen)
            if window.extent is WindowUnit.TEMPORAL:
                low, high = (end - window.length, end) if window.opens is Edge.END else (begin, begin + window.length)
                chosen[window.stream] = [at for at in positions if low < self.merged[at].ts <= high]
                continue
            if len(positions) < window.length:
                return None
            latest = window.opens is Edge.END
            chosen[window.stream] = positions[-window.length :] if latest else positions[: window.length]
        return chosen

    def _consume(self, window: SelectionWindow, positions: list[int], inside: list[int]) -> None:
        if window.consumption is Consumption.WINDOW:
            self.consumed.update(positions)
        elif window.consumption is Consumption.BEFORE and positions:
            stream = [at for at in range(positions[-1] + 1) if self.merged[at].type == window.stream]
            self.consumed.update(stream)

    def _shifted(self, chosen: Mapping[str, list[int]], inside: list[int]) -> dict[str, list[int]] | None:
        """Return the next selection, or None if a window cannot shift or nothing has changed."""
        shifted: dict[str, list[int]] = {}
        for window in self.operator.order():
            old = chosen[window.stream]
            if window.shift is Shift.NONE:
                if any(at in self.consumed for at in old):
                    return None
                limit = shifted[window.before][:1] if window.before is not None else []
                if not all(_precedes(self.merged[at], self.merged[first]) for at in old for first in limit):
                    return None
                shifted[window.stream] = old
                continue
            positions = self._candidates(window, inside, shifted)
            if window.shift is Shift.FUTURE:
                rest = [at for at in positions if at > old[0]][window.by - 1 :][: window.length]
            else:
                ending = [at for at in positions if at < old[-1]]
                rest = ending[: len(ending) - window.by + 1][-window.length :]
            if len(rest) < window.length:
                return None
            shifted[window.stream] = rest
        return shifted if shifted != dict(chosen) else None


@dataclass(frozen=True, slots=True)
class QueryRange:
    """The region of interest from one location update to the next. Both times (µs) are included."""

    number: int
    """The number of the range in its query, counted from 1."""
    start: int
    end: float
    """The time (µs) of the next location update, or infinity for the last range."""
    region: Region


@dataclass(frozen=True, slots=True)
class DeliveredMatch:
    """A match in a range. Its id differs from the id of the same match in another range."""

    id: str
    match: Match


@dataclass(frozen=True, slots=True)
class Covering:
    """The matches delivered for a range, in order, or the error that says why the range has no answer.

    In the output, a *marker* separates these matches from those of the next range.
    """

    range: QueryRange
    delivered: tuple[DeliveredMatch, ...] = ()
    error: str | None = None


def coverings(interest: Interest, events: Iterable[Event], history_us: int | None = None) -> list[Covering]:
    """Return what a query delivers, range by range. Events are retained for `history_us` before a range."""
    facts = sorted(identified(events), key=lambda fact: fact.key)
    for fact in facts:
        if any(fact.type == rule.emits.name for rule in interest.parts):
            raise EventError(f"events of type {fact.type} come from a rule, they are not accepted from outside")
    return [covering(interest, range, facts, history_us) for range in split_ranges(interest, facts)]


def split_ranges(interest: Interest, facts: Sequence[Fact]) -> list[QueryRange]:
    """Return the ranges into which location updates split the life of a query. `facts` are in canonical order."""
    starts: list[tuple[int, Coordinates]] = []
    for fact in facts:
        coordinates = coordinates_of(fact.attributes, interest.space)
        if coordinates is None or fact.type != interest.focal.type:
            continue
        if all(holds(test, {None: fact}, {}) for test in interest.focal.constraints) and (
            not starts or updates(interest, starts[-1], (fact.ts, coordinates))
        ):
            starts.append((fact.ts, coordinates))
    ends = [*(start for start, _ in starts), math.inf][1:]
    return [
        QueryRange(number, start, end, Region(interest.shape, coordinates, interest.space))
        for number, ((start, coordinates), end) in enumerate(zip(starts, ends, strict=True), 1)
    ]


def updates(interest: Interest, last: tuple[int, Coordinates], new: tuple[int, Coordinates]) -> bool:
    """Return whether the location update `new` begins a new range.

    `last` is the update that began the current range.
    """
    match interest.update:
        case Each():
            return True
        case Timed(every_us):
            return new[0] - last[0] >= every_us
        case Spatial(every_m):
            return distance_m(last[1], new[1], interest.space) >= every_m


def restriction_us(rule: Rule | WindowOperator) -> int:
    """Return the restriction window of a rule: the longest sum of windows from the anchor, but at least 1 µs."""
    if isinstance(rule, WindowOperator):
        return rule.restriction_us
    lookback = {rule.anchor.role: 0}
    longest = 1
    for clause in rule.clauses:
        scope = clause.scope
        back = lookback[scope.origin] + scope.window_us if isinstance(scope, Within) else lookback[scope.start]
        if isinstance(clause, Selection):
            lookback[clause.pattern.role] = back
        longest = max(longest, back)
    return longest


def windows_us(interest: Interest, type: str) -> int:
    """Return the longest sum of restriction windows on a path from events of `type` down to primary events."""
    rules = [rule for rule in interest.parts if rule.emits.name == type]
    return max(
        (restriction_us(rule) + max(windows_us(interest, use) for use in rule.uses) for rule in rules), default=0
    )


def quiescent_point(times: Sequence[int], latest: int, windows: int) -> int:
    """Return the latest point up to `latest` with no event in (point − windows, point]. `times` must be sorted."""
    point = latest
    for ts in reversed(times):
        if ts <= point:
            if ts <= point - windows:
                return point
            point = ts - 1
    return point


def match_id(query: str, number: int, words: Words128) -> str:
    """Return the id of a match in range `number` of a query."""
    state = text_words(query)
    for word in (number, *words):
        state = fold(state, word)
    return hexadecimal(state)


def covering(interest: Interest, range: QueryRange, facts: Sequence[Fact], history_us: int | None) -> Covering:
    """Return what is delivered for one range, given all events in canonical order."""
    located = []
    for fact in facts:
        coordinates = coordinates_of(fact.attributes, interest.space)
        if coordinates is not None and range.region.contains(coordinates) and fact.ts <= range.end:
            located.append(fact)
    first = range.start - interest.lifetime_us
    windows = max(windows_us(interest, type) for type in interest.delivers)
    retained_from = -math.inf if history_us is None else range.start - history_us
    if first - windows < retained_from:
        return Covering(range, error="the history kept is shorter than the lifetime and the windows")
    quiescent = None
    if interest.consumes and interest.semantics == Semantics.STRONG:
        seen = {use for rule in interest.parts for use in rule.uses}
        quiescent = quiescent_point([fact.ts for fact in located if fact.type in seen], first - windows, windows)
        if quiescent - windows < retained_from:
            return Covering(range, error="there is no quiescent point within the history kept")

    def composites(type: str, after: int) -> list[tuple[Fact, Match]]:
        composites_found: list[tuple[Fact, Match]] = []
        for rule in interest.parts:
            if rule.emits.name != type:
                continue
            begin = after - restriction_us(rule) if quiescent is None else quiescent
            inputs = sorted((fact for use in {*rule.uses} for fact in visible(use, begin)), key=lambda fact: fact.key)
            composites_found += (
                operator_matches(rule, inputs) if isinstance(rule, WindowOperator) else rule_matches(rule, inputs)
            )
        return composites_found

    def visible(type: str, begin: int) -> list[Fact]:
        """Return the events of a type, primary or composite, that are later than `begin`."""
        facts = [fact for fact in located if fact.type == type]
        facts += [fact for fact, _ in composites(type, begin)]
        return [fact for fact in facts if fact.ts > begin]

    in_range = [
        (fact, match)
        for type in interest.delivers
        for fact, match in composites(type, first)
        if first <= match.ts <= range.end
    ]
    in_range.sort(key=lambda pair: order_key(pair[1]))
    return Covering(
        range,
        tuple(DeliveredMatch(match_id(interest.name, range.number, fact.words), match) for fact, match in in_range),
    )


def operator_matches(operator: WindowOperator, facts: Sequence[Fact]) -> list[tuple[Fact, Match]]:
    """Return what an operator of the window model produces from `facts`, as events and as matches."""
    named = {(fact.type, fact.id): fact for fact in facts}
    events = [Event(fact.type, fact.ts, fact.attributes, fact.seq, fact.id) for fact in facts]
    matches = []
    for correlated in Evaluation(operator).push(events):
        sources = [named[event.type, event.id or ""] for event in correlated.parts]
        words = produced_words(operator.name, [fact.words for fact in sources], correlated.number)
        event, id = correlated.event, hexadecimal(words)
        fact = Fact(event.type, event.ts, event.seq, id, words, event.attributes)
        parts = tuple(MatchPart(part.type, part.type, part.ts, part.seq, part.id) for part in sources)
        matches.append((fact, Match(operator.name, event.type, event.ts, event.seq, id, event.attributes, parts)))
    return matches


def order_key(match: Match) -> tuple[object, ...]:
    """Return the sort key of a match within its range."""
    return match.ts, match.seq, match.rule, [(part.ts, part.seq, part.type, part.id) for part in match.parts]
