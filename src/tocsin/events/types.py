"""Define events, event types, and the identities of events and matches.

Times are event time: int64 microseconds since the epoch in UTC. All integers are computed with 64 bits, so the kinds
`int` and `long` differ only in the columns of input and output. Doubles are finite: NaN and the infinities are read as
null.

An *identity* is a 128-bit hash that is the same on every host. It consists of two 64-bit words. To *fold* a 64-bit word
into an identity is to hash the word and both words of the identity with SplitMix64's finaliser. A text is folded as its
UTF-8 bytes in zero-padded little-endian words of eight bytes, followed by its length in bytes.

This module computes identities in plain Python for one event at a time. `kernels` computes the same identities for
whole columns.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache

Value = str | int | float | bool | None

SECOND_US = 1_000_000
UNITS_US = {
    "us": 1,
    "ms": 1_000,
    "s": SECOND_US,
    "sec": SECOND_US,
    "min": 60 * SECOND_US,
    "h": 3_600 * SECOND_US,
    "d": 86_400 * SECOND_US,
}
"""The length of each unit of time in microseconds, by name."""


class Kind(StrEnum):
    """The kind of an attribute's values."""

    STRING = "string"
    INT = "int"
    LONG = "long"
    DOUBLE = "double"
    BOOL = "bool"
    TIMESTAMP = "timestamp"

    @property
    def numeric(self) -> bool:
        return self in (Kind.INT, Kind.LONG, Kind.DOUBLE)

    @property
    def integral(self) -> bool:
        return self in (Kind.INT, Kind.LONG)


HEADER: Mapping[str, Kind] = {"ts": Kind.TIMESTAMP, "seq": Kind.LONG, "id": Kind.STRING}
"""The kinds of the header fields, which every event has besides its attributes. Rules use header fields like
attributes. An attribute with the name of a header field hides this field."""
FIELDS: Mapping[str, str] = {name: f"\0\0{name}" for name in HEADER}
"""The name of each header field in plans. It differs from the user's name, because attributes may have that name."""
TS, SEQ, ID = FIELDS.values()


def shown_name(name: str) -> str:
    """Return the name that users see for `name`, the name of an attribute or header field in a plan."""
    return name.removeprefix("\0\0")


LABEL = "\0id"
"""The attribute that holds the id that the source gave an event. The id is part of the event's content, so two events
may have the same id. It is shown in matches that contain the event."""


@dataclass(frozen=True, slots=True)
class EventType:
    """An event type: its name, and the names and kinds of its attributes in order.

    >>> str(EventType("Temp", (("area", Kind.STRING), ("value", Kind.DOUBLE))))
    'Temp(area: string, value: double)'
    """

    name: str
    attributes: tuple[tuple[str, Kind], ...] = ()

    def kind(self, attribute: str) -> Kind | None:
        """Return the kind of `attribute`, or None if the type has no such attribute."""
        return dict(self.attributes).get(attribute)

    def __str__(self) -> str:
        return f"{self.name}({', '.join(f'{name}: {kind}' for name, kind in self.attributes)})"


@dataclass(frozen=True, slots=True)
class Event:
    """One event as a Python object, as used in tests, at edge sites and by the reference implementation.

    `id` is the id that the source gave the event, if any. A timestamp attribute is an int in microseconds. A missing
    attribute means the same as an attribute that is null.
    """

    type: str
    ts: int
    attributes: Mapping[str, Value] = field(default_factory=dict)
    seq: int = 0
    id: str | None = None


Words128 = tuple[int, int]

MASK = (1 << 64) - 1
SEED: Words128 = (0x746F6373696E2D61, 0x746F6373696E2D62)
GAMMA = 0x9E3779B97F4A7C15


def mix(word: int) -> int:
    """Apply SplitMix64's finaliser, a bijection of 64-bit words in which every input bit affects every output bit."""
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & MASK
    return word ^ (word >> 31)


def fold(state: Words128, word: int) -> Words128:
    """Return the identity that results from folding the 64-bit `word` into the identity `state`."""
    word &= MASK
    high = mix(state[0] ^ word)
    low = mix((state[1] + word * GAMMA + high) & MASK)
    return high, low


@lru_cache(maxsize=65536)
def text_words(text: str) -> Words128:
    """Return the identity of a text."""
    data = text.encode()
    state = SEED
    for start in range(0, len(data), 8):
        state = fold(state, int.from_bytes(data[start : start + 8].ljust(8, b"\0"), "little"))
    return fold(state, len(data))


def value_words(value: str | int | float | bool) -> tuple[int, ...]:
    """Return the 64-bit words that represent a value in an identity.

    A text has the two words of its identity. An integer has one word in two's complement, and a double has its bits.
    """
    if isinstance(value, str):
        return text_words(value)
    if isinstance(value, float):
        return (int(struct.unpack("<Q", struct.pack("<d", value + 0.0))[0]),)
    return (int(value) & MASK,)


def content_words(type: str, ts: int, seq: int, attributes: Mapping[str, Value]) -> Words128:
    """Return the identity of the content of an event: its type, ts, seq, and non-null attributes in order of name."""
    state = SEED
    for word in (*text_words(type), ts, seq):
        state = fold(state, word)
    for name in sorted(attributes):
        value = attributes[name]
        if value is None:
            continue
        for word in (*text_words(name), *value_words(value)):
            state = fold(state, word)
    return state


def occurrence_words(content: Words128, occurrence: int) -> Words128:
    """Return the identity of one of several events with equal content, which are numbered by `occurrence` from 0.

    It is the sum of the identity `content`, as a 128-bit number, and `occurrence`.
    """
    number = ((content[0] << 64 | content[1]) + occurrence) & ((1 << 128) - 1)
    return number >> 64, number & MASK


def match_words(rule: str, parts: Iterable[Words128]) -> Words128:
    """Return the identity of a composite event, from its rule and the identities of its parts in role order."""
    state = SEED
    for word in text_words(rule):
        state = fold(state, word)
    for part in parts:
        state = fold(fold(state, part[0]), part[1])
    return state


def hexadecimal(words: Words128) -> str:
    """Return an identity as text of 32 hexadecimal digits."""
    return f"{words[0]:016x}{words[1]:016x}"
