"""How is something told exactly once? Numbered lines of JSON, written down before anyone hears of them.

A feed is a log whose records are groups of lines. Each says up to which position of the ingest log it was found: a
group is there wholly or not at all, so that after a crash what was found further on is found again, and nothing else.
Readers keep a number and ask for what comes after it; the last lines are at hand in memory, older ones on the disk.

The last events at hand, for dry runs and for questions.
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
from tocsin.service.records import Events
from tocsin.storage import Log

AT_HAND = 20_000
KEEP_BYTES = 1 << 30
_HEAD = struct.Struct("<QQI")
_RULES = re.compile(rb'"(?:rule|query)":"(\w+)"')


class Line(NamedTuple):
    """A number from 1, and the JSON object that it is of."""

    number: int
    text: bytes


class Feed:
    """Written by one thread, read by any."""

    def __init__(self, folder: str | Path, *, keep_bytes: int = KEEP_BYTES, at_hand: int = AT_HAND) -> None:
        self._log = Log(folder, segment_bytes=max(1 << 16, min(64 << 20, keep_bytes // 4)))
        self._keep_bytes = keep_bytes
        self._at_hand: deque[Line] = deque(maxlen=at_hand)
        self._groups: list[tuple[int, int]] = []
        """Of each group on the disk, the number of its first line and its position."""
        self._rules: list[frozenset[bytes]] = []
        """The names of the rules that occur in each group."""
        self._lock = threading.Lock()
        self.listeners: list[Callable[[], None]] = []
        """Called after each group, by the thread that writes."""
        self.last = 0
        """The number of the last line."""
        self.upto = 0
        """The position of the ingest log up to which everything found is in here."""
        for record in self._log.read(self._log.begin):
            first, upto, count = _HEAD.unpack_from(record.payload)
            self._groups.append((first, record.position))
            self._rules.append(self._names(bytes(record.payload[_HEAD.size :])))
            self.last, self.upto = first + count - 1, upto
            self._at_hand.extend(_lines(record.payload))

    @property
    def first(self) -> int:
        """The number of the first line that is still there."""
        return self._groups[0][0] if self._groups else self.last + 1

    @property
    def size_bytes(self) -> int:
        return self._log.size_bytes

    def write(self, objects: Sequence[Mapping[str, Any]], upto: int = 0) -> None:
        """Numbers some objects and puts them on the disk, then tells the listeners. None of them: nothing happens."""
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
            self._at_hand.extend(lines)
            self.last, self.upto = lines[-1].number, upto
        self._trim()
        for listener in self.listeners:
            listener()

    def after(self, number: int, limit: int) -> list[Line]:
        """The next lines after a number, at most so many."""
        with self._lock:
            at_hand = self._at_hand
            if number >= self.last:
                return []
            if at_hand and number + 1 >= at_hand[0].number:
                start = number + 1 - at_hand[0].number
                return [at_hand[k] for k in range(start, min(len(at_hand), start + limit))]
        found: list[Line] = []
        for line in self._on_disk(number):
            found.append(line)
            if len(found) >= limit:
                break
        return found

    def latest(self, limit: int) -> list[Line]:
        """The last lines, oldest first."""
        return self.after(max(0, self.last - limit), limit)

    def backwards(self, rule: str | None = None) -> Iterator[Line]:
        """The lines that are kept, newest first; of a rule, all of its lines and perhaps others.

        On the disk only the groups with lines of the rule are read.
        """
        with self._lock:
            at_hand, groups, rules = list(self._at_hand), list(self._groups), list(self._rules)
        name = None if rule is None else rule.encode()
        needles = () if name is None else (b'"rule":"%s"' % name, b'"query":"%s"' % name)

        def wanted(lines: Sequence[Line], before: int) -> Iterator[Line]:
            for line in reversed(lines):
                if line.number < before and (not needles or any(needle in line.text for needle in needles)):
                    yield line

        yield from wanted(at_hand, 1 << 62)
        oldest = at_hand[0].number if at_hand else 1 << 62
        for (first, position), names in zip(reversed(groups), reversed(rules), strict=True):
            if first < oldest and (name is None or name in names):
                if position < self._log.begin:  # deleted in the meantime
                    return
                yield from wanted(list(_lines(self._log.at(position).payload)), oldest)

    def get(self, number: int) -> Line | None:
        """The line of a number, if it is still there."""
        found = self.after(number - 1, 1) if number >= 1 else []
        return found[0] if found and found[0].number == number else None

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

    def _trim(self) -> None:
        if self._log.size_bytes <= self._keep_bytes:
            return
        self._log.trim(self._log.end - self._keep_bytes)
        with self._lock:
            gone = bisect_right(self._groups, self._log.begin - 1, key=lambda group: group[1])
            del self._groups[:gone], self._rules[:gone]

    def _names(self, body: bytes) -> frozenset[bytes]:
        """The names of the rules in a group."""
        names = frozenset(_RULES.findall(body))
        same = self._rules and self._rules[-1] == names
        return self._rules[-1] if same else names  # groups that follow each other mostly share one set


def _lines(payload: memoryview) -> Iterator[Line]:
    first, _, _ = _HEAD.unpack_from(payload)
    for number, text in enumerate(bytes(payload[_HEAD.size :]).split(b"\n"), first):
        yield Line(number, text)


EVENTS = 100_000
BYTES = 128 << 20


class Recent:
    """Noted by one thread, looked at by any."""

    def __init__(self) -> None:
        self._records: deque[Events] = deque()
        self._rows = self._bytes = 0

    def note(self, record: Events) -> None:
        """Adds a record, and lets go of the oldest where there is too much."""
        self._records.append(replace(record, letters=()))
        self._rows += record.batch.num_rows
        self._bytes += record.batch.nbytes
        while True:
            first = self._records[0].batch
            if self._rows - first.num_rows < EVENTS and self._bytes - first.nbytes < BYTES:
                return
            self._records.popleft()
            self._rows -= first.num_rows
            self._bytes -= first.nbytes

    def records(self, types: Iterable[str] | None = None) -> list[Events]:
        """Oldest first; records without any of these types may be left out."""
        wanted = None if types is None else set(types)
        return [one for one in list(self._records) if wanted is None or not wanted.isdisjoint(one.types)]
