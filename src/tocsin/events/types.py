"""What an event is: a type, a time, and typed attributes.

Times are event time, int64 microseconds since the epoch, UTC. Integers are 64-bit everywhere inside; `int` differs from
`long` only in the columns that come in and go out. Doubles are finite: NaN and the infinities are read as null.

Which event is it? Stable 128-bit identities, the same on every host.

An identity is two 64-bit words. Words are *folded* into a pair of 64-bit lanes by SplitMix64's finaliser; text is
folded as its UTF-8 bytes in little-endian words of eight, zero-padded, then its length in bytes. This module says the
meaning in plain Python, one event at a time; `engine.kernels` does the same over columns.
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
"""What a unit of time is worth, in microseconds."""


class Kind(StrEnum):
    """What an attribute holds."""

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
"""What every event has besides its own attributes. Rules use them like attributes; an attribute of the same name hides
the header field."""
FIELDS: Mapping[str, str] = {name: f"\0\0{name}" for name in HEADER}
"""What header fields are called in plans, where an attribute can be called ts, seq or id."""
TS, SEQ, ID = FIELDS.values()


def shown_name(name: str) -> str:
    """What an attribute or header field of a plan is called by people."""
    return name.removeprefix("\0\0")


LABEL = "\0id"
"""The attribute that holds a source's own id of an event. It is part of the event's content, so that two events that
share an id stay two, and is shown where the event is part of a match."""


@dataclass(frozen=True, slots=True)
class EventType:
    """A name and the attributes of its events, in order.

    >>> str(EventType("Temp", (("area", Kind.STRING), ("value", Kind.DOUBLE))))
    'Temp(area: string, value: double)'
    """

    name: str
    attributes: tuple[tuple[str, Kind], ...] = ()

    def kind(self, attribute: str) -> Kind | None:
        """The kind of an attribute, or None if the type has none of that name."""
        return dict(self.attributes).get(attribute)

    def __str__(self) -> str:
        return f"{self.name}({', '.join(f'{name}: {kind}' for name, kind in self.attributes)})"


@dataclass(frozen=True, slots=True)
class Event:
    """One event as a Python object: for tests, the edge and the reference. `id` is the source's, if it has one.

    Timestamp attributes are int microseconds. A missing attribute and a null are the same.
    """

    type: str
    ts: int
    attributes: Mapping[str, Value] = field(default_factory=dict)
    seq: int = 0
    id: str | None = None


Words = tuple[int, int]

MASK = (1 << 64) - 1
SEED: Words = (0x746F6373696E2D61, 0x746F6373696E2D62)
LANE = 0x9E3779B97F4A7C15


def mix(word: int) -> int:
    """SplitMix64's finaliser: a bijection of 64-bit words in which every input bit moves every output bit."""
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & MASK
    return word ^ (word >> 31)


def fold(state: Words, word: int) -> Words:
    """Takes one more 64-bit word into the state."""
    word &= MASK
    first = mix(state[0] ^ word)
    second = mix((state[1] + word * LANE + first) & MASK)
    return first, second


@lru_cache(maxsize=65536)
def text_words(text: str) -> Words:
    """The identity of a text."""
    data = text.encode()
    state = SEED
    for start in range(0, len(data), 8):
        state = fold(state, int.from_bytes(data[start : start + 8].ljust(8, b"\0"), "little"))
    return fold(state, len(data))


def value_words(value: str | int | float | bool) -> tuple[int, ...]:
    """The words that stand for a value: two for text, else one (two's complement, or the bits of a double)."""
    if isinstance(value, str):
        return text_words(value)
    if isinstance(value, float):
        return (int(struct.unpack("<Q", struct.pack("<d", value + 0.0))[0]),)
    return (int(value) & MASK,)


def content_words(type: str, ts: int, seq: int, attributes: Mapping[str, Value]) -> Words:
    """The identity of an event's content: type, ts, seq and its non-null attributes by name."""
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


def occurrence_words(content: Words, occurrence: int) -> Words:
    """The identity of the n-th (from 0) among events of equal content: as a 128-bit number, n more."""
    number = ((content[0] << 64 | content[1]) + occurrence) & ((1 << 128) - 1)
    return number >> 64, number & MASK


def match_words(rule: str, parts: Iterable[Words]) -> Words:
    """The identity of a composite event: its rule and the identities of its parts in role order."""
    state = SEED
    for word in text_words(rule):
        state = fold(state, word)
    for part in parts:
        state = fold(fold(state, part[0]), part[1])
    return state


def hexadecimal(words: Words) -> str:
    """An identity as it is printed: 32 hexadecimal digits."""
    return f"{words[0]:016x}{words[1]:016x}"
