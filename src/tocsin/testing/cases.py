"""What do these rules find in these events? All at once (`given`), or piece by piece as time passes (`Stream`).

>>> rules = "define Fire(temp: double) from Smoke() and last Temp() within 5 min from Smoke where temp = Temp.value"
>>> given(rules, '''
...     Temp@0s(value=51.5)
...     Smoke@90s()
... ''').expect("Fire@90s(temp=51.5)")
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tocsin.api
from tocsin.api import Duration, RuleSet, duration_us
from tocsin.errors import EventError
from tocsin.events.notation import read_events, write_event
from tocsin.events.types import Event
from tocsin.testing.matches import Row, clock, difference, line, read_expected, rows_of

Rules = RuleSet | str | Path
Events = str | list[Event]

SHOWN_MAX = 20
"""Of more events than that, a failure shows only the first."""


def given(rules: Rules, events: Events) -> Found:
    """What the rules (a `RuleSet`, their text, or a file) find in these events, in any order.

    An event that cannot be used is a mistake in the test and raises `EventError`.
    """
    ruleset, listed = ruleset_of(rules), events_of(events)
    detector = ruleset.detector(delay=2**60)
    rows = rows_of(detector.push(listed)) + rows_of(detector.finish())
    _check_alive(detector)
    return Found(listed, rows)


class Found:
    """The matches of a case. `rows`: each as a dict, as the table of matches has it, with times in microseconds."""

    def __init__(self, events: list[Event], rows: list[Row]) -> None:
        self._events = events
        self.rows = rows

    def __str__(self) -> str:
        return "\n".join(map(line, self.rows))

    def expect(self, matches: str = "") -> None:
        """Fails unless these are the matches: as many, each once. Attributes that are not named are not looked at."""
        __tracebackhide__ = True
        told = difference(read_expected(matches), self.rows)
        if told:
            raise AssertionError("\n".join([told, *shown(self._events)]))


class Clock:
    """Time that passes only when told to. Called, it gives the time in µs: `tocsin.Live(now=clock)`.

    >>> clock = Clock("2026-07-01T12:00:00Z")
    >>> clock.wait("5 min")
    >>> str(clock)
    '2026-07-01T12:05:00Z'
    """

    def __init__(self, at: str | int = 0) -> None:
        """`at`: microseconds, or a time as events have it (`90s`, `2026-07-01T12:00:00Z`)."""
        self._now = moment(at)

    def __call__(self) -> int:
        return self._now

    def wait(self, duration: Duration) -> None:
        """Lets so much time pass."""
        self._now += duration_us(duration)

    def until(self, at: str | int) -> None:
        """Lets time pass up to a moment; a moment that is over changes nothing."""
        self._now = max(self._now, moment(at))

    def __str__(self) -> str:
        return clock(self._now)


class Stream:
    """Rules over a stream, one step of the test after another.

    >>> stream = Stream("define Calm() from Temp() as t and not Smoke() within 1 min from t", delay="5 s")
    >>> stream.push("Temp@10s()")
    >>> stream.expect("")  # smoke of before may still come
    >>> stream.wait("6 s")
    >>> stream.expect("Calm@10s()")
    """

    def __init__(self, rules: Rules, *, delay: Duration = 0, at: str | int = 0) -> None:
        """`delay`: how late events may come. `at`: when the clock begins."""
        self.clock = Clock(at)
        self._delay_us = duration_us(delay)
        self._detector = ruleset_of(rules).detector(delay=delay)
        self._events: list[Event] = []
        self._rows: list[Row] = []

    def push(self, events: Events) -> None:
        """Events arrive, in this order; the clock goes on to the newest."""
        for event in events_of(events):
            self._events.append(event)
            self.clock.until(event.ts)
            self._rows += rows_of(self._detector.push([event]))

    def wait(self, duration: Duration) -> None:
        """Lets so much time pass without an event: what can no longer be changed by a late one is told."""
        self.clock.wait(duration)
        self._tick()

    def until(self, at: str | int) -> None:
        """Lets time pass up to a moment."""
        self.clock.until(at)
        self._tick()

    def expect(self, matches: str = "") -> None:
        """Fails unless these are the matches that came since the last `expect`."""
        __tracebackhide__ = True
        rows, self._rows = self._rows, []
        told = difference(read_expected(matches), rows)
        if told:
            raise AssertionError("\n".join([f"at {self.clock}: {told}", *shown(self._events)]))

    def expect_dead(self, *reasons: str) -> None:
        """Fails unless so many events were set aside since the last time, for these reasons ("late", …), in order."""
        __tracebackhide__ = True
        dead = self._detector.dead_letters().to_pylist()
        found = [row["reason"] for row in dead]
        if len(found) != len(reasons) or any(mine not in other for mine, other in zip(reasons, found, strict=True)):
            listed = "\n".join(f"  {row['reason']}: {row['event']}" for row in dead) or "  none"
            raise AssertionError(f"set aside were to be {list(reasons)}, but were:\n{listed}")

    def _tick(self) -> None:
        self._rows += rows_of(self._detector.advance(self.clock() - self._delay_us))


def ruleset_of(rules: Rules) -> RuleSet:
    """Rules, however they were given."""
    return rules if isinstance(rules, RuleSet) else tocsin.api.rules(rules)


def events_of(events: Events) -> list[Event]:
    """Events, however they were given."""
    return read_events(events) if isinstance(events, str) else list(events)


def moment(at: str | int) -> int:
    """A time in microseconds.

    >>> moment("90s"), moment(7)
    (90000000, 7)
    """
    return at if isinstance(at, int) else read_events(f"T@{at.replace(' ', '')}()")[0].ts


def _check_alive(detector: Any) -> None:
    dead = detector.dead_letters().to_pylist()
    if dead:
        raise EventError(f"an event cannot be used: {dead[0]['reason']}: {dead[0]['event']}")


def shown(events: list[Event]) -> list[str]:
    """The events of a case for a message."""
    lines = [f"  {write_event(event).replace(f'@{event.ts}', f'@{clock(event.ts)}', 1)}"
             for event in events[:SHOWN_MAX]]  # fmt: skip
    more = [f"  and {len(events) - SHOWN_MAX} more"] if len(events) > SHOWN_MAX else []
    return ["events:", *lines, *more]
