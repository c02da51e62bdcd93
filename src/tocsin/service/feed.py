"""Store matches and dead letters as numbered lines of JSON, and keep the most recent events in memory.

A feed is a log on disk. Each of its records is a group of lines, which is written atomically. A group also has the
position in the ingest log (the service's log of inputs) up to which its lines were produced. After a crash, only
records after that position produce lines again. A reader remembers a number and asks for the lines after this number.
The last lines are cached in memory.

`RecentEvents` has the events for dry runs and explanations.
"""

from __future__ import annotations

import re
import struct
import threading
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from tocsin.service.encoding import to_json
from tocsin.service.records import EventsRecord
from tocsin.storage import Log

CACHED_LINES = 20_000
KEEP_BYTES = 1 << 30
_HEAD = struct.Struct("<QQI")
_RULES = re.compile(rb'"(?:rule|query)":"(\w+)"')


class Line(NamedTuple):
    """A line of a feed: its number, which counts from 1, and its JSON object as text."""

    number: int
    text: bytes


class Feed:
    """A durable sequence of numbered lines. One thread writes lines, and any thread reads them."""

    def __init__(self, folder: str | Path, *, keep_bytes: int = KEEP_BYTES, cached: int = CACHED_LINES) -> None:
        self._log = Log(folder, segment_bytes=max(1 << 16, min(64 << 20, keep_bytes // 4)))
        self._keep_bytes = keep_bytes
        self._cached: deque[Line] = deque(maxlen=cached)
        self._groups: list[tuple[int, int]] = []
        """For each group, the number of its first line and its position on disk."""
        self._rules: list[frozenset[bytes]] = []
        """For each group, the names of the rules whose matches it has."""
        self._lock = threading.Lock()
        self.listeners: list[Callable[[], None]] = []
        """Functions that the writing thread calls after each group."""
        self.last = 0
        """The number of the last line."""
        self.upto = 0
        """The position of the ingest log up to which all output is in this feed."""
        for record in self._log.read(self._log.begin):
            first, upto, count = _HEAD.unpack_from(record.payload)
            self._groups.append((first, record.position))
            self._rules.append(self._names(bytes(record.payload[_HEAD.size :])))
            self.last, self.upto = first + count - 1, upto
            self._cached.extend(_lines(record.payload))

    @property
    def first(self) -> int:
        """The number of the first line that is still stored."""
        return self._groups[0][0] if self._groups else self.last + 1

    @property
    def size_bytes(self) -> int:
        return self._log.size_bytes

    def write(self, objects: Sequence[Mapping[str, Any]], upto: int = 0) -> None:
        """Number `objects`, write them to disk as one group and notify the listeners.

        `upto` is the position in the ingest log up to which the objects were produced. Do nothing without objects.
        """
        if not objects:
            return
        first = self.last + 1
        lines = [Line(number, to_json({"number": number, **one})) for number, one in enumerate(objects, first)]
        body = b"\n".join(line.text for line in lines)
        position, names = self._log.end, self._names(body)
        self._log.append([_HEAD.pack(first, upto, len(lines)) + body])
        with self._lock:
            self._groups.append((first, position))
            self._rules.append(names)
            self._cached.extend(lines)
            self.last, self.upto = lines[-1].number, upto
        self._delete_old()
        for listener in self.listeners:
            listener()

    def after(self, number: int, limit: int) -> list[Line]:
        """Return at most `limit` lines, starting after the line with number `number`."""
        with self._lock:
            cached = self._cached
            if number >= self.last:
                return []
            if cached and number + 1 >= cached[0].number:
                start = number + 1 - cached[0].number
                return [cached[k] for k in range(start, min(len(cached), start + limit))]
        lines: list[Line] = []
        for line in self._on_disk(number):
            lines.append(line)
            if len(lines) >= limit:
                break
        return lines

    def latest(self, limit: int) -> list[Line]:
        """Return the last `limit` lines, oldest first."""
        return self.after(max(0, self.last - limit), limit)

    def backwards(self, rule: str | None = None) -> Iterator[Line]:
        """Yield the stored lines, newest first.

        If `rule` is given, yield all lines of the rule, and possibly lines of other rules. On disk, only groups with
        lines of the rule are read.
        """
        with self._lock:
            cached, groups, rules = list(self._cached), list(self._groups), list(self._rules)
        name = None if rule is None else rule.encode()
        needles = () if name is None else (b'"rule":"%s"' % name, b'"query":"%s"' % name)

        def wanted(lines: Sequence[Line], before: int) -> Iterator[Line]:
            for line in reversed(lines):
                if line.number < before and (not needles or any(needle in line.text for needle in needles)):
                    yield line

        yield from wanted(cached, 1 << 62)
        oldest = cached[0].number if cached else 1 << 62
        for (first, position), names in zip(reversed(groups), reversed(rules), strict=True):
            if first < oldest and (name is None or name in names):
                if position < self._log.begin:  # deleted in the meantime
                    return
                yield from wanted(list(_lines(self._log.at(position).payload)), oldest)

    def get(self, number: int) -> Line | None:
        """Return the line with number `number`, or None if it is not stored."""
        lines = self.after(number - 1, 1) if number >= 1 else []
        return lines[0] if lines and lines[0].number == number else None

    def close(self) -> None:
        self._log.close()

    def _on_disk(self, number: int) -> Iterator[Line]:
        with self._lock:
            if not self._groups:
                return
            index = max(0, bisect_right(self._groups, (number + 1, 1 << 62)) - 1)
            position = self._groups[index][1]
        for record in self._log.read(position):
            for line in _lines(record.payload):
                if line.number > number:
                    yield line

    def _delete_old(self) -> None:
        if self._log.size_bytes <= self._keep_bytes:
            return
        self._log.delete_before(self._log.end - self._keep_bytes)
        with self._lock:
            deleted = bisect_right(self._groups, self._log.begin - 1, key=lambda group: group[1])
            del self._groups[:deleted], self._rules[:deleted]

    def _names(self, body: bytes) -> frozenset[bytes]:
        """Return the names of the rules whose matches are in a group with the text `body`."""
        names = frozenset(_RULES.findall(body))
        same = self._rules and self._rules[-1] == names
        return self._rules[-1] if same else names  # adjacent groups mostly share one set


def _lines(payload: memoryview) -> Iterator[Line]:
    first, _, _ = _HEAD.unpack_from(payload)
    for number, text in enumerate(bytes(payload[_HEAD.size :]).split(b"\n"), first):
        yield Line(number, text)


EVENTS = 100_000
BYTES = 128 << 20


class RecentEvents:
    """The most recent events, as records. One thread adds records, and any thread reads them."""

    def __init__(self) -> None:
        self._records: deque[EventsRecord] = deque()
        self._rows = self._bytes = 0

    def note(self, record: EventsRecord) -> None:
        """Add a record, and remove the oldest records if there are too many events or bytes."""
        self._records.append(replace(record, dead_letters=()))
        self._rows += record.batch.num_rows
        self._bytes += record.batch.nbytes
        while True:
            first = self._records[0].batch
            if self._rows - first.num_rows < EVENTS and self._bytes - first.nbytes < BYTES:
                return
            self._records.popleft()
            self._rows -= first.num_rows
            self._bytes -= first.nbytes

    def records(self, types: Iterable[str] | None = None) -> list[EventsRecord]:
        """Return the records, oldest first. If `types` is given, leave out records with none of these types."""
        wanted = None if types is None else set(types)
        return [one for one in list(self._records) if wanted is None or not wanted.isdisjoint(one.types)]
