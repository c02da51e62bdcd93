"""The last events at hand, for dry runs and for questions."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import replace

from tocsin.service.records import Events

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
