"""A data set: data in the form in which a user has it, rules, reading options, and the expected matches.

The matches are written out by hand, or computed by a few lines of Python or pandas without the engine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias

import pyarrow as pa

SECOND = 1_000_000
NOON = datetime(2026, 7, 1, 12, tzinfo=UTC)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

NO_LINE = "the line is no event"
ALL = ("batch", "stream", "service")
BOTH = ("batch", "service")
"""Hosts that need Spark or a server; a stream takes longest."""


@dataclass(frozen=True)
class Files:
    """Files as they lie on a disk: the content by the name. Several are a folder."""

    content: Mapping[str, bytes]

    @property
    def suffix(self) -> str:
        return next(iter(self.content)).rpartition(".")[2]


Data: TypeAlias = pa.Table | Mapping[str, pa.Table] | Files
Match: TypeAlias = tuple[str, int, dict[str, Any]]
"""Rule, time in microseconds, and the attributes that are not null."""


def us(moment: datetime) -> int:
    """A moment in microseconds."""
    return (moment - EPOCH) // timedelta(microseconds=1)


def at(seconds: float) -> int:
    """That many seconds after noon, in microseconds."""
    return us(NOON) + round(seconds * SECOND)


def times(*seconds: float) -> pa.Array:
    """Moments after noon as a column of timestamps."""
    return pa.array([at(one) for one in seconds], pa.timestamp("us", "UTC"))


def text(name: str, content: str) -> Files:
    """One file of text."""
    return Files({name: content.encode()})


@dataclass(frozen=True)
class Case:
    """One data set."""

    name: str
    rules: str
    data: Data
    matches: Sequence[Match] = ()
    dead: Sequence[str] = ()
    """The reasons of the rejected rows, one for each, as `reason` shortens them."""
    error: str | None = None
    """A part of the error message, if nothing is to run at all."""
    options: Mapping[str, str] = field(default_factory=dict)
    """What the columns are called: `type`, `ts`, `seq`, `id`; and `ts_unit`."""
    core: Collection[str] = ()
    """Which of `ALL` run it in `make test`; the others run it in `make sweeps` only."""
    unlike: Mapping[str, str] = field(default_factory=dict)
    """Hosts that cannot be given this data, by name, and why."""
    until: int | None = None
    """Up to which time timers run, where the rules have timers."""


@dataclass(frozen=True)
class Outcome:
    """What a host answered."""

    matches: Counter[Hashable] = field(default_factory=Counter)
    dead: Counter[str] = field(default_factory=Counter)
    error: str | None = None


def expected(case: Case) -> Outcome:
    """What every host must answer."""
    return Outcome(Counter(frozen(*match) for match in case.matches), Counter(case.dead), case.error)


def frozen(rule: str, ts: int, attributes: Mapping[str, Any]) -> Hashable:
    """A match that can be counted. Nulls are left out, and doubles stay apart from booleans."""
    kept = {name: value for name, value in attributes.items() if value is not None}
    shown = {name: value if isinstance(value, int | float) and value is not True and value is not False else repr(value)
             for name, value in kept.items()}  # fmt: skip
    return rule, ts, tuple(sorted(shown.items()))
