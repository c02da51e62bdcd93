"""How do many requests share one fsync? Each hands in its record; one thread writes all that have come, then answers.

While the disk is busy with one group the next one gathers, so that groups are as large as the load needs and a single
request waits for no one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future

from tocsin.errors import TocsinError
from tocsin.service.log import Log

GROUP_BYTES = 32 << 20
"""How much is written at a time at most."""


class Committer:
    """Appends to a log in groups. `committed` is called after each group."""

    def __init__(self, log: Log, committed: Callable[[], None]) -> None:
        self._log, self._committed = log, committed
        self._waiting: list[tuple[bytes, Future[int]]] = []
        self._changed = threading.Condition()
        self._closing = False
        self.groups = 0
        """How many times the disk was waited for."""
        self._thread = threading.Thread(target=self._run, name="tocsin-committer", daemon=True)
        self._thread.start()

    def submit(self, payload: bytes) -> Future[int]:
        """Hands in a record. The result is where it ends in the log, once it is on the disk."""
        future: Future[int] = Future()
        with self._changed:
            if self._closing:
                raise TocsinError("the service is stopping")
            self._waiting.append((payload, future))
            self._changed.notify()
        return future

    def close(self) -> None:
        """Writes what has come, and ends."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._waiting and not self._closing:
                    self._changed.wait()
                if not self._waiting:
                    return
                size = count = 0
                for payload, _ in self._waiting:
                    size, count = size + len(payload), count + 1
                    if size >= GROUP_BYTES:
                        break
                group, self._waiting = self._waiting[:count], self._waiting[count:]
            self._commit(group)

    def _commit(self, group: list[tuple[bytes, Future[int]]]) -> None:
        try:
            ends = self._log.append(payload for payload, _ in group)
        except Exception as error:
            for _, future in group:
                future.set_exception(error)
            return
        self.groups += 1
        self._committed()
        for (_, future), end in zip(group, ends, strict=True):
            future.set_result(end)
