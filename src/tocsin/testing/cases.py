"""Test whether rules have the expected matches.

`given` runs rules on all events at once, and `Stream` runs them step by step as time passes:

>>> rules = "define Fire(temp: double) from Smoke() and last Temp() within 5 min from Smoke where temp = Temp.value"
>>> given(rules, '''
...     Temp@0s(value=51.5)
...     Smoke@90s()
... ''').expect("Fire@90s(temp=51.5)")

Expected matches are written like events, one per line, as in `Fire@90s(area="A1", temp=51.5)`. Only the named
attributes are compared, and the id only if it is given. A line can end with the events of the match, as in
`from Smoke@90s Temp@60s`. They are named by role or by type, in any order. Each match must be expected once, and each
expected match must occur once. Expected and actual matches are paired so that as many as possible fit. Doubles are
equal if they agree to nine digits.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import networkx as nx
import pyarrow as pa

import tocsin.ruleset
from tocsin.errors import EventError
from tocsin.events.formats import read_event, read_events, write_event
from tocsin.events.types import UNITS_US, Event
from tocsin.ruleset import Duration, RuleSet, duration_us

Row = dict[str, Any]

_HEADER = ("rule", "type", "ts", "id", "parts")
_DATED_US = 20 * 365 * UNITS_US["d"]
"""The time (µs) from which times are written as dates."""
_FROM = re.compile(r"\)([ \t]+)from[ \t]+(?=[^\W\d]\w*@)")


@dataclass(frozen=True)
class Expected:
    """A match that a test expects.

    `parts` has the role or type and the `ts` of each event of the match, if the test lists them. `text` is the line of
    the test.
    """

    event: Event
    parts: tuple[tuple[str, int], ...] | None
    text: str

    def differences(self, row: Row) -> list[str]:
        """Describe how the match `row` differs from this expected match. The result is empty if `row` fits."""
        found = []
        if row["type"] != self.event.type:
            found.append(f"it is a {row['type']}, not a {self.event.type}")
        if row["ts"] != self.event.ts:
            found.append(f"it is at {clock(row['ts'])}, not at {clock(self.event.ts)}")
        if self.event.id is not None and row["id"] != self.event.id:
            found.append(f"its id is {row['id']}")
        for name, value in self.event.attributes.items():
            if name not in row:
                found.append(f"it has no {name}")
            elif not _same(row[name], value):
                found.append(f"{name} is {_written(row[name])}, not {_written(value)}")
        if self.parts is not None and not self._is_made_of(row["parts"]):
            found.append(f"it is made of {_made_of(row)}")
        return found

    def _is_made_of(self, parts: Sequence[Row]) -> bool:
        left = list(parts)
        for name, ts in self.parts or ():
            fitting = [part for part in left if part["ts"] == ts and name in (part["role"], part["type"])]
            if not fitting:
                return False
            left.remove(fitting[0])
        return not left


def read_expected(text: str) -> list[Expected]:
    """Parse the expected matches in `text`, one per line.

    >>> [(one.event.ts, one.parts) for one in read_expected('Fire@2s(area="A1") from Smoke@2s Temp@1s')]
    [(2000000, (('Smoke', 2000000), ('Temp', 1000000)))]
    """
    lines = text.split("\n")
    plain = [_FROM.sub(lambda found: f"){found[1]}-- " + " " * (len(found[0]) - len(found[1]) - 4), line)
             for line in lines]  # fmt: skip
    read_events("\n".join(plain))  # for an error with its line
    expected = []
    for line, bare in zip(lines, plain, strict=True):
        for event in read_events(bare):
            if event.seq:
                raise EventError(f"a match has no seq: {line.strip()}")
            expected.append(Expected(event, _parts(line), line.strip()))
    return expected


def _parts(line: str) -> tuple[tuple[str, int], ...] | None:
    found = _FROM.search(line)
    if found is None:
        return None
    words = re.split(r"[ \t]+(?:--|#)", line[found.end() :])[0].split()
    events = [read_event(f"{word}()") for word in words]
    return tuple((event.type, event.ts) for event in events)


def rows_of(table: pa.Table) -> list[Row]:
    """Convert a table of matches to a list of dicts, with times in microseconds."""
    for number, field in enumerate(table.schema):
        if pa.types.is_timestamp(field.type):
            table = table.set_column(number, field.name, table[field.name].cast(pa.int64()))
    rows: list[Row] = table.to_pylist()
    return rows


def difference(expected: Sequence[Expected], rows: Sequence[Row]) -> str:
    """Describe missing and surplus matches in a few lines. The result is empty if `rows` are as expected."""
    fitting = _pairs(expected, rows)
    missing = [one for number, one in enumerate(expected) if number not in fitting]
    surplus = [row for number, row in enumerate(rows) if number not in fitting.values()]
    if not missing and not surplus:
        return ""
    lines = [
        f"{_count(len(expected))} expected, {len(rows) or 'none'} found: "
        f"{len(fitting)} as expected, {len(missing)} missing, {len(surplus)} too many"
    ]
    for one in missing:
        lines.append(f"  missing   {one.text}")
        row, differing = _nearest(one, surplus)
        if row is not None:
            lines += [f"    nearest {line(row)}", f"            {'; '.join(differing)}"]
    lines += [f"  too many  {line(row)}" for row in surplus]
    return "\n".join(lines)


def _pairs(expected: Sequence[Expected], rows: Sequence[Row]) -> dict[int, int]:
    """Pair as many expected matches as possible with fitting rows, and return the pairs of indices."""
    graph = nx.Graph()
    mine = [("expected", number) for number in range(len(expected))]
    graph.add_nodes_from(mine)
    for number, one in enumerate(expected):
        for other, row in enumerate(rows):
            if not one.differences(row):
                graph.add_edge(("expected", number), ("found", other))
    pairs = nx.bipartite.maximum_matching(graph, top_nodes=mine)
    return {left[1]: right[1] for left, right in pairs.items() if left[0] == "expected"}


def _nearest(one: Expected, rows: Sequence[Row]) -> tuple[Row | None, list[str]]:
    """Return the row of the same type that differs least from `one`, and the differences."""
    ranked = [(len(differing := one.differences(row)), abs(row["ts"] - one.event.ts), number, differing)
              for number, row in enumerate(rows) if row["type"] == one.event.type]  # fmt: skip
    if not ranked:
        return None, []
    *_, number, differing = min(ranked)
    return rows[number], differing


def line(row: Row) -> str:
    """Write a match as one line of text, with its events.

    >>> part = {"role": "Smoke", "type": "Smoke", "ts": 90_000_000, "id": "x"}
    >>> line({"rule": "R1", "type": "Fire", "ts": 90_000_000, "id": "y", "area": "A1", "parts": [part]})
    'Fire@90s(area="A1") from Smoke@90s'
    """
    named = {name: value for name, value in row.items() if name not in _HEADER and value is not None}
    attributes = ", ".join(f"{name}={_written(value)}" for name, value in named.items())
    made = _made_of(row)
    return f"{row['type']}@{clock(row['ts'])}({attributes})" + (f" from {made}" if made else "")


def _made_of(row: Row) -> str:
    return " ".join(f"{part['role']}@{clock(part['ts'])}" for part in row["parts"] or ())


def clock(ts: int) -> str:
    """Write the time `ts` with the largest unit of which it is a multiple, or as a date.

    >>> clock(90_000_000), clock(300_000_000), clock(1_782_907_200_000_000)
    ('90s', '5min', '2026-07-01T12:00:00Z')
    """
    if abs(ts) >= _DATED_US:
        date = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=ts)
        return date.isoformat().replace("+00:00", "Z")
    unit = next(unit for unit in ("h", "min", "s", "ms", "us") if ts % UNITS_US[unit] == 0)
    return f"{ts // UNITS_US[unit]}{unit}" if ts else "0s"


def _same(found: Any, expected: Any) -> bool:
    if isinstance(found, float) and isinstance(expected, int | float) and not isinstance(expected, bool):
        return math.isclose(found, expected, rel_tol=1e-9)
    return isinstance(found, bool) is isinstance(expected, bool) and bool(found == expected)


def _written(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return f'"{value}"' if isinstance(value, str) else repr(value)


def _count(number: int) -> str:
    return "no match" if not number else "1 match" if number == 1 else f"{number} matches"


Rules = RuleSet | str | Path
Events = str | list[Event]

UNIT = "us"
"""The unit of times in events. It is fixed, so that 15 minutes in µs are not mistaken for seconds since 1970."""

SHOWN_MAX = 20
"""The largest number of events that a failure shows."""


def given(rules: Rules, events: Events) -> CaseResult:
    """Run rules on events and return the result, on which `expect` can be called.

    `rules` is a `RuleSet`, the text of rules, or a file. `events` may be in any order. An invalid event is a mistake in
    the test and raises `EventError`.
    """
    ruleset, listed = ruleset_of(rules), events_of(events)
    detector = ruleset.detector(delay=2**60, ts_unit=UNIT)
    rows = rows_of(detector.push(listed)) + rows_of(detector.finish())
    _check_alive(detector)
    return CaseResult(listed, rows)


class CaseResult:
    """The matches that `given` has found. `rows` are the matches as dicts, with times in microseconds."""

    def __init__(self, events: list[Event], rows: list[Row]) -> None:
        self._events = events
        self.rows = rows

    def __str__(self) -> str:
        return "\n".join(map(line, self.rows))

    def expect(self, matches: str = "") -> None:
        """Raise `AssertionError` unless the rules have exactly `matches`, each once.

        Attributes that `matches` does not name are not compared.
        """
        __tracebackhide__ = True
        text = difference(read_expected(matches), self.rows)
        if text:
            raise AssertionError("\n".join([text, *shown(self._events)]))


class Clock:
    """A clock that only moves when the test moves it.

    Calling the clock returns its time in µs, so it can be used as in `tocsin.Live(now=clock)`.

    >>> clock = Clock("2026-07-01T12:00:00Z")
    >>> clock.wait("5 min")
    >>> str(clock)
    '2026-07-01T12:05:00Z'
    """

    def __init__(self, at: str | int = 0) -> None:
        """Set the clock to `at`: microseconds, or a time as in events, such as `90s` or `2026-07-01T12:00:00Z`."""
        self._now = moment(at)

    def __call__(self) -> int:
        return self._now

    def wait(self, duration: Duration) -> None:
        """Advance the clock by `duration`."""
        self._now += duration_us(duration)

    def until(self, at: str | int) -> None:
        """Advance the clock to the time `at`. A past time has no effect."""
        self._now = max(self._now, moment(at))

    def __str__(self) -> str:
        return clock(self._now)


class Stream:
    """Runs rules on a stream step by step.

    >>> stream = Stream("define Calm() from Temp() as t and not Smoke() within 1 min from t", delay="5 s")
    >>> stream.push("Temp@10s()")
    >>> stream.expect("")  # earlier smoke may still arrive
    >>> stream.wait("6 s")
    >>> stream.expect("Calm@10s()")
    """

    def __init__(self, rules: Rules, *, delay: Duration = 0, at: str | int = 0) -> None:
        """Start a stream whose events may be late by `delay`, with the clock at `at`."""
        self.clock = Clock(at)
        self._delay_us = duration_us(delay)
        self._detector = ruleset_of(rules).detector(delay=delay, ts_unit=UNIT)
        self._events: list[Event] = []
        self._rows: list[Row] = []

    def push(self, events: Events) -> None:
        """Push events in the given order. The clock advances to the newest event."""
        for event in events_of(events):
            self._events.append(event)
            self.clock.until(event.ts)
            self._rows += rows_of(self._detector.push([event]))

    def wait(self, duration: Duration) -> None:
        """Advance the clock by `duration` without an event.

        Matches that a late event can no longer change are emitted.
        """
        self.clock.wait(duration)
        self._tick()

    def until(self, at: str | int) -> None:
        """Advance the clock to the time `at` without an event, and emit matches as `wait` does."""
        self.clock.until(at)
        self._tick()

    def expect(self, matches: str = "") -> None:
        """Raise `AssertionError` unless `matches` are exactly the matches since the last call of `expect`."""
        __tracebackhide__ = True
        rows, self._rows = self._rows, []
        text = difference(read_expected(matches), rows)
        if text:
            raise AssertionError("\n".join([f"at {self.clock}: {text}", *shown(self._events)]))

    def expect_dead(self, *reasons: str) -> None:
        """Raise `AssertionError` unless exactly these events were rejected since the last call of `expect_dead`.

        `reasons` has a part of the reason for each rejected event, such as "late", in the order of rejection.
        """
        __tracebackhide__ = True
        dead = self._detector.dead_letters().to_pylist()
        found = [row["reason"] for row in dead]
        if len(found) != len(reasons) or any(mine not in other for mine, other in zip(reasons, found, strict=True)):
            listed = "\n".join(f"  {row['reason']}: {row['event']}" for row in dead) or "  none"
            raise AssertionError(f"expected rejected events {list(reasons)}, but got:\n{listed}")

    def _tick(self) -> None:
        self._rows += rows_of(self._detector.advance(self.clock() - self._delay_us))


def ruleset_of(rules: Rules) -> RuleSet:
    """Return `rules` as a `RuleSet`, and compile them first if they are a text or a file."""
    return rules if isinstance(rules, RuleSet) else tocsin.ruleset.rules(rules)


def events_of(events: Events) -> list[Event]:
    """Return `events` as a list, and parse them first if they are a text."""
    return read_events(events) if isinstance(events, str) else list(events)


def moment(at: str | int) -> int:
    """Return the time `at` in microseconds. A number is in microseconds already.

    >>> moment("90s"), moment(7)
    (90000000, 7)
    """
    return at if isinstance(at, int) else read_events(f"T@{at.replace(' ', '')}()")[0].ts


def _check_alive(detector: Any) -> None:
    dead = detector.dead_letters().to_pylist()
    if dead:
        raise EventError(f"invalid event: {dead[0]['reason']}: {dead[0]['event']}")


def shown(events: list[Event]) -> list[str]:
    """Return the lines of a failure message that list the events of a case."""
    lines = [f"  {write_event(event).replace(f'@{event.ts}', f'@{clock(event.ts)}', 1)}"
             for event in events[:SHOWN_MAX]]  # fmt: skip
    more = [f"  and {len(events) - SHOWN_MAX} more"] if len(events) > SHOWN_MAX else []
    return ["events:", *lines, *more]
