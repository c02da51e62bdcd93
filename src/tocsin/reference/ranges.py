"""What does a query that moves deliver? For each range the maximum covering sequence, found anew from all events.

The focal object's location updates cut the query's life into ranges. For each, the rules run over the events that lie
in its region, an operator at a time: an operator is a rule on one path of the tree, and sees what is later than the
range's start minus the lifetime minus the restriction windows from the root down to it. A match is kept if its time is
in [start − δ, end]. With consumption, strong semantics begins at a quiet point instead: the answer of a run from the
beginning of time. Slow and plain; nothing is shared with the protocol but regions and the classes of rules.

How does an operator choose events? The partitioned window model of MCEP, Section 4.2, evaluated.

A *restriction window* slides over all streams; a *selection window* for each stream, temporal or counting, is opened at
the start or the end of it, as far as its *dependency* on another window allows. When all are full, the function is
applied, *consumption* marks events that cannot be selected again, and the windows *shift* into history or future. When
they cannot, the restriction window moves on and they open anew (Fig. 3 of the paper). The function is applied to a
selection when its last event comes, so that what is produced is in the order of time.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tocsin.errors import EventError
from tocsin.events.types import Event, Words, fold, hexadecimal, match_words, text_words
from tocsin.language.mcep.ast import (
    Consumption,
    Each,
    Edge,
    Extent,
    Interest,
    SelectionWindow,
    Semantics,
    Shift,
    Spatial,
    Timed,
    WindowOperator,
)
from tocsin.language.syntax.ast import Rule, Selection, Within
from tocsin.plans.moving import Place, Region, distance_m, place_of
from tocsin.reference.patterns import Fact, Match, Part, holds, identified
from tocsin.reference.patterns import matches_of as found_by


def run(operator: WindowOperator, events: Iterable[Event], after: int | None = None) -> list[Event]:
    """What an operator produces from events of its streams (by type) that are later than `after`.

    >>> pair = WindowOperator(
    ...     "Pair",
    ...     (
    ...         SelectionWindow("B", Extent.COUNTING, 1, consumption=Consumption.BEFORE),
    ...         SelectionWindow("A", Extent.COUNTING, 1, before="B"),
    ...     ),
    ...     10,
    ...     lambda chosen: [{"a": chosen["A"][0].ts, "b": chosen["B"][0].ts}],
    ... )
    >>> [event.attributes for event in run(pair, [Event("A", 1), Event("A", 2), Event("B", 5), Event("B", 6)])]
    [{'a': 2, 'b': 5}, {'a': 2, 'b': 6}]
    """
    later = (event for event in events if event.type in operator.uses and (after is None or event.ts > after))
    return [one.event for one in Evaluation(operator).push(sorted(later, key=_key), finished=True)]


def produced_words(name: str, parts: Iterable[Words], number: int) -> Words:
    """The identity of what an operator produces from events of these identities, as the first, second, … of them."""
    words = match_words(name, parts)
    return fold(words, number) if number else words


def _key(event: Event) -> tuple[int, int, str, str]:
    return event.ts, event.seq, event.type, event.id or ""


def _precedes(one: Event, two: Event) -> bool:
    return (one.ts, one.seq) < (two.ts, two.seq)


@dataclass(frozen=True, slots=True)
class Correlated:
    """What was produced, from which events, and as which one of those that are produced from them."""

    event: Event
    parts: tuple[Event, ...]
    number: int


@dataclass
class Evaluation:
    """A pass over a stream. Positions are places in the merged stream, so that instants can be shared."""

    operator: WindowOperator
    merged: list[Event] = field(default_factory=list)
    times: list[int] = field(default_factory=list)
    consumed: set[int] = field(default_factory=set)
    count: int = 0

    def push(self, events: Sequence[Event], *, finished: bool = False) -> list[Correlated]:
        """What the next events, in order, complete. An operator that slides by time tells at the end."""
        first = len(self.merged)
        self.merged += events
        self.times += [event.ts for event in events]
        slide = self.operator.slide_us
        if slide is None:
            return [
                one
                for at in range(first, len(self.merged))
                for one in self._restricted(self.times[at], at, whole=False)
            ]
        found: list[Correlated] = []
        end = self.times[0] if finished and self.merged else None
        while end is not None and end < self.times[-1] + slide:
            found += self._restricted(end, bisect_right(self.times, end) - 1, whole=True)
            end += slide
        return found

    def _restricted(self, end: int, last: int, *, whole: bool) -> Iterator[Correlated]:
        """All correlations while the restriction window ends at a time, with the events up to a position.

        Unless `whole`, the last of these events is new, and a selection without it is none that has changed.
        """
        begin = end - self.operator.restriction_us
        inside = list(range(bisect_right(self.times, begin), last + 1))
        chosen = self._opened(inside, begin, end)
        while chosen is not None:
            if whole or any(last in places for places in chosen.values()):
                yield from self._correlated(chosen)
                for window in self.operator.windows:
                    self._consume(window, chosen[window.stream], inside)
            chosen = self._shifted(chosen, inside)

    def _correlated(self, chosen: Mapping[str, list[int]]) -> Iterator[Correlated]:
        selection = {stream: [self.merged[at] for at in places] for stream, places in chosen.items()}
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
        """The selection with which the windows open; None if one of them is not full."""
        chosen: dict[str, list[int]] = {}
        for window in self.operator.order():
            places = self._candidates(window, inside, chosen)
            if window.extent is Extent.TEMPORAL:
                low, high = (end - window.length, end) if window.opens is Edge.END else (begin, begin + window.length)
                chosen[window.stream] = [at for at in places if low < self.merged[at].ts <= high]
                continue
            if len(places) < window.length:
                return None
            latest = window.opens is Edge.END
            chosen[window.stream] = places[-window.length :] if latest else places[: window.length]
        return chosen

    def _consume(self, window: SelectionWindow, places: list[int], inside: list[int]) -> None:
        if window.consumption is Consumption.WINDOW:
            self.consumed.update(places)
        elif window.consumption is Consumption.BEFORE and places:
            stream = [at for at in range(places[-1] + 1) if self.merged[at].type == window.stream]
            self.consumed.update(stream)

    def _shifted(self, chosen: Mapping[str, list[int]], inside: list[int]) -> dict[str, list[int]] | None:
        """The next selection; None if a window cannot shift, or nothing has changed."""
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
            places = self._candidates(window, inside, shifted)
            if window.shift is Shift.FUTURE:
                rest = [at for at in places if at > old[0]][window.by - 1 :][: window.length]
            else:
                ending = [at for at in places if at < old[-1]]
                rest = ending[: len(ending) - window.by + 1][-window.length :]
            if len(rest) < window.length:
                return None
            shifted[window.stream] = rest
        return shifted if shifted != dict(chosen) else None


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
