"""What stands in the ingest log? Everything that detection depends on, in the order in which it happened.

A record is one byte for what it is, seven to keep Arrow's buffers aligned, and the rest: `Events`, an Arrow stream with
the names of types, new kinds and the request's key in its schema; a `Change` of rules and a `Tick` of time as JSON.

Was this request answered before? What became of requests, by the keys that their publishers gave them.

How do many requests share one fsync? Each hands in its record; one thread writes all that have come, then answers.

While the disk is busy with one group the next one gathers, so that groups are as large as the load needs and a single
request waits for no one.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import NamedTuple

import pyarrow as pa

from tocsin.errors import StateError, TocsinError
from tocsin.events.types import Kind
from tocsin.storage import Log

HEAD_BYTES = 8
_META = b"tocsin"


class Letter(NamedTuple):
    """An event that was rejected: why, its type and time (µs), if they are known, and the start of its text."""

    reason: str
    type: str | None
    ts: int | None
    event: str


@dataclass(slots=True)
class Events:
    """Events of one request: a batch, the names of its types by number, and what it showed of kinds."""

    batch: pa.Table
    types: tuple[str, ...]
    news: Mapping[str, Mapping[str, Kind]] = field(default_factory=dict)
    key: str | None = None
    """What the publisher calls the request, so that it counts once if it is sent again."""
    rejected: int = 0
    letters: Sequence[Letter] = ()
    """The first of those that were rejected."""
    at_us: int = 0
    """When it came, by the clock on the wall."""
    place: tuple[int, int] = (0, 0)
    """Where the record starts and ends, if it stands in the log."""

    def encode(self) -> bytes:
        news = {type: dict(named) for type, named in self.news.items()}
        meta = {
            "types": self.types,
            "news": news,
            "key": self.key,
            "rejected": self.rejected,
            "letters": self.letters,
            "at": self.at_us,
        }
        table = self.batch.replace_schema_metadata({_META: json.dumps(meta).encode()})
        sink = pa.BufferOutputStream()
        sink.write(b"E".ljust(HEAD_BYTES, b"\0"))
        with pa.ipc.new_stream(sink, table.schema) as stream:
            stream.write_table(table.combine_chunks())
        encoded: bytes = sink.getvalue().to_pybytes()
        return encoded


@dataclass(frozen=True, slots=True)
class Deploy:
    """The text of rules, in a language."""

    text: str
    language: str


@dataclass(frozen=True, slots=True)
class Change:
    """Rules that go, then a text of rules that come. `by`: the name of the token that asked for it."""

    remove: tuple[str, ...] = ()
    deploy: Deploy | None = None
    ticket: str = ""
    """Who waits for the outcome."""
    by: str = ""
    at_us: int = 0

    def encode(self) -> bytes:
        return b"C".ljust(HEAD_BYTES, b"\0") + json.dumps(asdict(self)).encode()


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has reached this moment (µs): no event before it will come any more."""

    ts: int

    def encode(self) -> bytes:
        return b"T".ljust(HEAD_BYTES, b"\0") + json.dumps({"ts": self.ts}).encode()


def decode(payload: memoryview) -> Events | Change | Tick:
    """The record that a payload of the log holds."""
    kind, body = bytes(payload[:1]), payload[HEAD_BYTES:]
    if kind == b"E":
        with pa.ipc.open_stream(pa.py_buffer(body)) as stream:
            table = stream.read_all()
        meta = json.loads(table.schema.metadata[_META])
        news = {type: {name: Kind(kind) for name, kind in named.items()} for type, named in meta["news"].items()}
        plain = table.replace_schema_metadata(None)
        letters = [Letter(*letter) for letter in meta.get("letters", ())]
        return Events(plain, tuple(meta["types"]), news, meta["key"], meta["rejected"], letters, meta["at"])
    if kind == b"T":
        return Tick(json.loads(bytes(body))["ts"])
    if kind == b"C":
        given = json.loads(bytes(body))
        deploy = given.pop("deploy")
        return Change(tuple(given.pop("remove")), None if deploy is None else Deploy(**deploy), **given)
    raise StateError(f"a record of the log is of an unknown kind {kind!r}: it was written by a newer version")


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
