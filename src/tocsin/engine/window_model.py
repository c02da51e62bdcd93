"""How does an operator choose events? The partitioned window model of MCEP, Section 4.2, as data and an evaluator.

    stream A ─► selection window ┐
    stream B ─► selection window ┴─► correlation function ─► events, at the largest time of the selection

A *restriction window* slides over all streams; a *selection window* for each stream, temporal or counting, is opened at
the start or the end of it, as far as its *dependency* on another window allows. When all are full, the function is
applied, *consumption* marks events that cannot be selected again, and the windows *shift* into history or future. When
they cannot, the restriction window moves on and they open anew (Fig. 3 of the paper).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from tocsin.errors import RuleError
from tocsin.events.types import Event, Value


class Extent(StrEnum):
    """What a window's length counts: microseconds or events."""

    TEMPORAL = "temporal"
    COUNTING = "counting"


class Shift(StrEnum):
    """Where a window goes after a correlation."""

    NONE = "none"
    HISTORY = "history"
    FUTURE = "future"


class Consumption(StrEnum):
    """What cannot be selected again: nothing, the window's events, or all up to the window's end."""

    ZERO = "zero"
    WINDOW = "window"
    BEFORE = "before"


class Edge(StrEnum):
    START = "start"
    END = "end"


@dataclass(frozen=True, slots=True)
class SelectionWindow:
    """Which events of a stream are selected. Of a temporal window only `NONE` shifts, as it is full at once."""

    stream: str
    extent: Extent
    length: int
    opens: Edge = Edge.END
    """At which edge of the restriction window it opens."""
    shift: Shift = Shift.NONE
    by: int = 1
    """By how many unconsumed events it shifts."""
    before: str | None = None
    """The stream whose window must begin after this one ends."""
    consumption: Consumption = Consumption.ZERO


Selection = Mapping[str, Sequence[Event]]
"""The events selected of each stream, in order."""


@dataclass(frozen=True, slots=True)
class Operator:
    """An operator: windows, and a function that gives the attributes of what it produces from a full selection."""

    name: str
    windows: tuple[SelectionWindow, ...]
    restriction_us: int
    correlate: Callable[[Selection], Iterable[Mapping[str, Value]]]
    slide_us: int | None = None
    """By how much time the restriction window moves; None: to the next event."""

    def __post_init__(self) -> None:
        streams = {window.stream for window in self.windows}
        if len(streams) != len(self.windows):
            raise RuleError(f"operator {self.name} has two windows over one stream")
        for window in self.windows:
            if window.length < 1 or window.by < 1:
                raise RuleError(
                    f"a window of operator {self.name} is longer than nothing and shifts by an event or more"
                )
            if window.extent is Extent.TEMPORAL and window.shift is not Shift.NONE:
                raise RuleError(f"a temporal window of operator {self.name} cannot shift within the restriction window")
        if self.restriction_us < 1 or (self.slide_us is not None and self.slide_us < 1):
            raise RuleError(f"the restriction window of operator {self.name} is longer than nothing and moves on")
        self.order()

    @property
    def consumes(self) -> bool:
        """Whether what it finds depends on where it starts."""
        counting = any(window.extent is Extent.COUNTING and window.opens is Edge.START for window in self.windows)
        return counting or any(window.consumption is not Consumption.ZERO for window in self.windows)

    def order(self) -> list[SelectionWindow]:
        """The windows, each after the one it depends on."""
        placed: list[SelectionWindow] = []
        waiting = list(self.windows)
        while waiting:
            known = {window.stream for window in placed}
            ready = [window for window in waiting if window.before is None or window.before in known]
            if not ready:
                raise RuleError(f"the windows of operator {self.name} depend on each other, or on none there is")
            placed += ready
            waiting = [window for window in waiting if window not in ready]
        return placed

    def starting_point(self, end: int) -> int:
        """From where on inputs are needed so that nothing at or after `end` is missed (an estimate, by Lemma 1)."""
        return end - self.restriction_us


def run(operator: Operator, events: Iterable[Event], after: int | None = None) -> list[Event]:
    """What an operator produces from events of its streams (by type) that are later than `after`.

    >>> pair = Operator(
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
    streams = {window.stream for window in operator.windows}
    merged = sorted((e for e in events if e.type in streams and (after is None or e.ts > after)), key=_key)
    return list(_Run(operator, merged).produced())


def _key(event: Event) -> tuple[int, int, str, str]:
    return event.ts, event.seq, event.type, event.id or ""


def _precedes(one: Event, two: Event) -> bool:
    return (one.ts, one.seq) < (two.ts, two.seq)


@dataclass
class _Run:
    """One pass over a finite stream. Positions are places in the merged stream, so that instants can be shared."""

    operator: Operator
    merged: list[Event]
    consumed: set[int] = field(default_factory=set)
    count: int = 0

    def produced(self) -> Iterable[Event]:
        slide = self.operator.slide_us
        if slide is None:
            for at, event in enumerate(self.merged):
                yield from self._restricted(event.ts, at)
            return
        end = self.merged[0].ts if self.merged else 0
        while self.merged and end < self.merged[-1].ts + slide:
            last = max((at for at, event in enumerate(self.merged) if event.ts <= end), default=-1)
            yield from self._restricted(end, last)
            end += slide

    def _restricted(self, end: int, last: int) -> Iterable[Event]:
        """All correlations while the restriction window ends at a time, with the events up to a position."""
        begin = end - self.operator.restriction_us
        inside = [at for at in range(last + 1) if self.merged[at].ts > begin]
        chosen = self._opened(inside, begin, end)
        while chosen is not None:
            yield from self._correlated(chosen)
            for window in self.operator.windows:
                self._consume(window, chosen[window.stream], inside)
            chosen = self._shifted(chosen, inside)

    def _correlated(self, chosen: Mapping[str, list[int]]) -> Iterable[Event]:
        selection = {stream: [self.merged[at] for at in places] for stream, places in chosen.items()}
        everything = [event for events in selection.values() for event in events]
        if not everything:
            return
        latest = max(everything, key=_key)
        for attributes in self.operator.correlate(selection):
            self.count += 1
            name = f"{self.operator.name}{self.count}"
            yield Event(self.operator.name, latest.ts, attributes, latest.seq, name)

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
