"""How does an operator choose events? The partitioned window model of MCEP, Section 4.2, evaluated.

A *restriction window* slides over all streams; a *selection window* for each stream, temporal or counting, is opened at
the start or the end of it, as far as its *dependency* on another window allows. When all are full, the function is
applied, *consumption* marks events that cannot be selected again, and the windows *shift* into history or future. When
they cannot, the restriction window moves on and they open anew (Fig. 3 of the paper). The function is applied to a
selection when its last event comes, so that what is produced is in the order of time.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tocsin.events.ids import Words, fold, match_words
from tocsin.events.types import Event
from tocsin.language.window_model import Consumption, Edge, Extent, SelectionWindow, Shift, WindowOperator


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
