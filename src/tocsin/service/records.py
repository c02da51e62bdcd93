"""Define the records of the ingest log, write them in groups, and remember the acknowledgements of requests.

The ingest log has all inputs of detection in order. A record has one byte for its kind, seven bytes that keep Arrow
buffers aligned, and a body. The body of an `EventsRecord` is an Arrow stream, and its schema has the type names, the
new kinds and the request's key. The bodies of `RulesRecord` and `TimeRecord` are JSON.

Requests submit records to `GroupCommit`. One thread writes all waiting records with one fsync, and then resolves their
futures. While the disk is busy, further records wait for the next group, so groups grow with the load.

`Acks` has the last acknowledgements by idempotency key, so that a request counts once even if it is sent again.
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


class RejectedEvent(NamedTuple):
    """A rejected event: the reason, its type and time (µs) if known, and the start of its text."""

    reason: str
    type: str | None
    ts: int | None
    event: str


@dataclass(slots=True)
class EventsRecord:
    """The events of one request.

    The type codes in `batch` index `types`. `new_kinds` has the kinds of attributes that appear for the first time.
    """

    batch: pa.Table
    types: tuple[str, ...]
    new_kinds: Mapping[str, Mapping[str, Kind]] = field(default_factory=dict)
    key: str | None = None
    """The idempotency key of the request, which counts once even if it is sent again."""
    rejected: int = 0
    dead_letters: Sequence[RejectedEvent] = ()
    """The first rejected events of the request."""
    at_us: int = 0
    """The arrival time of the request by the wall clock (µs)."""
    span: tuple[int, int] = (0, 0)
    """The start and end position of the record in the log."""

    def encode(self) -> bytes:
        new_kinds = {type: dict(named) for type, named in self.new_kinds.items()}
        meta = {
            "types": self.types,
            "news": new_kinds,
            "key": self.key,
            "rejected": self.rejected,
            "letters": self.dead_letters,
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
    """The text of rules to deploy, and its language."""

    text: str
    language: str


@dataclass(frozen=True, slots=True)
class RulesRecord:
    """A change of the deployed rules: remove the rules `remove`, then add the rules of `deploy`.

    `by` is the name of the token that requested the change.
    """

    remove: tuple[str, ...] = ()
    deploy: Deploy | None = None
    ticket: str = ""
    """The correlation id of the request that waits for the result."""
    by: str = ""
    at_us: int = 0

    def encode(self) -> bytes:
        return b"C".ljust(HEAD_BYTES, b"\0") + json.dumps(asdict(self)).encode()


@dataclass(frozen=True, slots=True)
class TimeRecord:
    """A record that advances time to `ts` (µs), so that earlier events are late."""

    ts: int

    def encode(self) -> bytes:
        return b"T".ljust(HEAD_BYTES, b"\0") + json.dumps({"ts": self.ts}).encode()


def decode(payload: memoryview) -> EventsRecord | RulesRecord | TimeRecord:
    """Decode the payload of a log record."""
    kind, body = bytes(payload[:1]), payload[HEAD_BYTES:]
    if kind == b"E":
        with pa.ipc.open_stream(pa.py_buffer(body)) as stream:
            table = stream.read_all()
        meta = json.loads(table.schema.metadata[_META])
        new_kinds = {type: {name: Kind(kind) for name, kind in named.items()} for type, named in meta["news"].items()}
        plain = table.replace_schema_metadata(None)
        dead_letters = [RejectedEvent(*dead_letter) for dead_letter in meta.get("letters", ())]
        return EventsRecord(
            plain, tuple(meta["types"]), new_kinds, meta["key"], meta["rejected"], dead_letters, meta["at"]
        )
    if kind == b"T":
        return TimeRecord(json.loads(bytes(body))["ts"])
    if kind == b"C":
        fields = json.loads(bytes(body))
        deploy = fields.pop("deploy")
        return RulesRecord(tuple(fields.pop("remove")), None if deploy is None else Deploy(**deploy), **fields)
    raise StateError(f"unknown record kind {kind!r} in the log: it was written by a newer version")


KEYS_MAX = 10_000
REASONS_CHARACTERS = 16 << 20
"""The limit of the characters of all stored reasons together. The oldest reasons are dropped first."""


@dataclass(frozen=True, slots=True)
class EventsAck:
    """The result of a publish request."""

    accepted: int
    rejected: int
    reasons: tuple[tuple[int, str], ...] = ()
    """The index and the reason of rejected events. Reasons are forgotten after a restart or a long time."""
    repeated: bool = False
    """Whether a request with the same key was answered before."""


class Acks:
    """The last acknowledgements by idempotency key, also for requests that are not answered yet.

    Any thread may use this object.
    """

    def __init__(self) -> None:
        self._by_key: OrderedDict[str, Future[EventsAck]] = OrderedDict()
        self._with_reasons: deque[tuple[str, int]] = deque()
        """The keys of acknowledgements with reasons, and the number of characters of each one's reasons."""
        self._characters = 0
        self._lock = threading.Lock()

    def claim(self, key: str, ack: Future[EventsAck]) -> Future[EventsAck] | None:
        """Claim `key` for a new request, which will be answered by `ack`.

        If `key` is claimed already, return the acknowledgement of the first request.
        """
        with self._lock:
            if (first := self._by_key.get(key)) is not None:
                return _repeated(first)
            self._by_key[key] = ack
            while len(self._by_key) > KEYS_MAX:
                self._by_key.popitem(last=False)
        ack.add_done_callback(partial(self._weigh, key))
        return None

    def _weigh(self, key: str, ack: Future[EventsAck]) -> None:
        """Count the characters of the reasons in `ack`, and forget the oldest reasons above the limit."""
        if ack.exception() is not None or not (reasons := ack.result().reasons):
            return
        with self._lock:
            size = sum(len(reason) for _, reason in reasons)
            self._with_reasons.append((key, size))
            self._characters += size
            while self._characters > REASONS_CHARACTERS:
                oldest, size = self._with_reasons.popleft()
                self._characters -= size
                if (old := self._by_key.get(oldest)) is not None and old.done() and not old.exception():
                    short: Future[EventsAck] = Future()
                    short.set_result(replace(old.result(), reasons=()))
                    self._by_key[oldest] = short

    def find(self, key: str) -> Future[EventsAck] | None:
        """Return the acknowledgement of the request with `key`, or None if the key is unknown."""
        with self._lock:
            first = self._by_key.get(key)
        return None if first is None else _repeated(first)

    def drop(self, key: str) -> None:
        """Release `key`, because its request failed and may be sent again."""
        with self._lock:
            self._by_key.pop(key, None)

    def note(self, key: str, accepted: int, rejected: int) -> None:
        """Restore the acknowledgement of a request from before a restart."""
        ack: Future[EventsAck] = Future()
        ack.set_result(EventsAck(accepted, rejected))
        self.claim(key, ack)

    def all(self) -> list[tuple[str, int, int]]:
        """Return the key, the accepted count and the rejected count of each answered request."""
        with self._lock:
            done = [(key, one.result()) for key, one in self._by_key.items() if one.done() and not one.exception()]
        return [(key, ack.accepted, ack.rejected) for key, ack in done]


def _repeated(first: Future[EventsAck]) -> Future[EventsAck]:
    again: Future[EventsAck] = Future()

    def resolve(first: Future[EventsAck]) -> None:
        if (error := first.exception()) is not None:
            again.set_exception(error)
        else:
            again.set_result(replace(first.result(), repeated=True))

    first.add_done_callback(resolve)
    return again


GROUP_BYTES = 32 << 20
"""The size in bytes at which a group takes no further record."""


class GroupCommit:
    """Append records to `log` in groups, from a separate thread. `committed` is called after each group."""

    def __init__(self, log: Log, committed: Callable[[], None]) -> None:
        self._log, self._committed = log, committed
        self._waiting: list[tuple[bytes, Future[int]]] = []
        self._changed = threading.Condition()
        self._closing = False
        self.groups = 0
        """The number of written groups."""
        self._thread = threading.Thread(target=self._run, name="tocsin-committer", daemon=True)
        self._thread.start()

    def submit(self, payload: bytes) -> Future[int]:
        """Submit the payload of a record. The future resolves to its end position in the log once it is on disk."""
        future: Future[int] = Future()
        with self._changed:
            if self._closing:
                raise TocsinError("the service is stopping")
            self._waiting.append((payload, future))
            self._changed.notify()
        return future

    def close(self) -> None:
        """Write the waiting records and stop."""
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
