"""Was this request answered before? What became of requests, by the keys that their publishers gave them."""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial

KEPT = 10_000
REASONS_CHARACTERS = 16 << 20
"""How many characters of reasons are kept for all keys together; those of the oldest go first."""


@dataclass(frozen=True, slots=True)
class Receipt:
    """What became of a request's events."""

    accepted: int
    rejected: int
    reasons: tuple[tuple[int, str], ...] = ()
    """Of rejected events, the place in the request and why; not known any more after a restart or a long time."""
    repeated: bool = False
    """Whether the request had been answered before, under the same key."""


class Receipts:
    """The last receipts by key, also those that are still to come. Used from any thread."""

    def __init__(self) -> None:
        self._by_key: OrderedDict[str, Future[Receipt]] = OrderedDict()
        self._with_reasons: deque[tuple[str, int]] = deque()
        """The keys of receipts that have reasons, with their characters."""
        self._characters = 0
        self._lock = threading.Lock()

    def claim(self, key: str, receipt: Future[Receipt]) -> Future[Receipt] | None:
        """Takes a key for a request that has just come; if it is taken, the first one's receipt."""
        with self._lock:
            if (known := self._by_key.get(key)) is not None:
                return _repeated(known)
            self._by_key[key] = receipt
            while len(self._by_key) > KEPT:
                self._by_key.popitem(last=False)
        receipt.add_done_callback(partial(self._weigh, key))
        return None

    def _weigh(self, key: str, receipt: Future[Receipt]) -> None:
        """Counts the reasons of a receipt, and forgets those of the oldest where there are too many."""
        if receipt.exception() is not None or not (reasons := receipt.result().reasons):
            return
        with self._lock:
            size = sum(len(reason) for _, reason in reasons)
            self._with_reasons.append((key, size))
            self._characters += size
            while self._characters > REASONS_CHARACTERS:
                oldest, size = self._with_reasons.popleft()
                self._characters -= size
                if (known := self._by_key.get(oldest)) is not None and known.done() and not known.exception():
                    short: Future[Receipt] = Future()
                    short.set_result(replace(known.result(), reasons=()))
                    self._by_key[oldest] = short

    def find(self, key: str) -> Future[Receipt] | None:
        """What a key's request got, if there was one."""
        with self._lock:
            known = self._by_key.get(key)
        return None if known is None else _repeated(known)

    def drop(self, key: str) -> None:
        """Lets go of a key whose request failed: it may be sent again."""
        with self._lock:
            self._by_key.pop(key, None)

    def note(self, key: str, accepted: int, rejected: int) -> None:
        """Notes what became of a request before a restart."""
        receipt: Future[Receipt] = Future()
        receipt.set_result(Receipt(accepted, rejected))
        self.claim(key, receipt)

    def all(self) -> list[tuple[str, int, int]]:
        """Key, accepted and rejected of every request that was answered."""
        with self._lock:
            done = [(key, one.result()) for key, one in self._by_key.items() if one.done() and not one.exception()]
        return [(key, receipt.accepted, receipt.rejected) for key, receipt in done]


def _repeated(first: Future[Receipt]) -> Future[Receipt]:
    again: Future[Receipt] = Future()

    def tell(first: Future[Receipt]) -> None:
        if (error := first.exception()) is not None:
            again.set_exception(error)
        else:
            again.set_result(replace(first.result(), repeated=True))

    first.add_done_callback(tell)
    return again
