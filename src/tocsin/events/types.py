"""What an event is: a type, a time, and typed attributes.

Times are event time, int64 microseconds since the epoch, UTC. Integers are 64-bit everywhere inside; `int` differs from
`long` only in the columns that come in and go out. Doubles are finite: NaN and the infinities are read as null.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

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
