"""What does an operator say that is written in MCEP's window model (Section 4.2)? Windows over streams, and a function.

    stream A ─► selection window ┐
    stream B ─► selection window ┴─► correlation function ─► events, at the largest time of the selection

Frozen data; `engine.window_model` evaluates it, and a dynamic interest query may have such operators beside rules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from tocsin.errors import RuleError
from tocsin.events.types import Event, EventType, Kind, Value


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
class WindowOperator:
    """An operator: windows, and a function that gives the attributes of what it produces from a full selection."""

    name: str
    windows: tuple[SelectionWindow, ...]
    restriction_us: int
    correlate: Callable[[Selection], Iterable[Mapping[str, Value]]]
    slide_us: int | None = None
    """By how much time the restriction window moves; None: to the next event."""
    attributes: tuple[tuple[str, Kind], ...] = ()
    """What the events that it produces have, for operators above it."""

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
    def emits(self) -> EventType:
        """What it produces."""
        return EventType(self.name, self.attributes)

    @property
    def uses(self) -> tuple[str, ...]:
        """The types of events that it selects from."""
        return tuple(window.stream for window in self.windows)

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
