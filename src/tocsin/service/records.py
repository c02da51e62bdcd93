"""What stands in the ingest log? Everything that detection depends on, in the order in which it happened.

A record is one byte for what it is, seven to keep Arrow's buffers aligned, and the rest: `Events`, an Arrow stream with
the names of types, new kinds and the request's key in its schema; a `Change` of rules and a `Tick` of time as JSON.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import NamedTuple

import pyarrow as pa

from tocsin.errors import StateError
from tocsin.events.types import Kind

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
