"""What do replicas say to each other? Frozen data; `codec` writes and reads it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from tocsin.overlay import codec
from tocsin.overlay.messages import Message
from tocsin.overlay.tree_parts import Array

Stream = tuple[str, str]
"""The group that sends, the group that receives."""


@dataclass(frozen=True)
class Publication:
    """Sources' events, and that none before `upto` will come any more."""

    batch: pa.Table
    upto: int


@dataclass(frozen=True)
class Command:
    """What a host asks of a processor, by its name in `machines.COMMANDS`."""

    name: str
    arguments: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Notice:
    """What a sink gets."""

    batch: pa.Table
    at: Array


Part = Message | Publication | Command | Notice


@dataclass(frozen=True)
class Bundle:
    """All that a group sends to another in one round. `number`: the stream's logical time, without gaps."""

    stream: Stream
    number: int
    parts: tuple[Part, ...] = ()


@dataclass(frozen=True)
class Delivered:
    """The receiver has all bundles up to `upto`; as `incarnation`, which voids what an earlier one said. `anew`: it has
    started, or has taken a peer's state, and what comes next should be sent, again if need be."""

    stream: Stream
    upto: int
    incarnation: int
    anew: bool = False


@dataclass(frozen=True)
class Gap:
    """What the receiver lacks has been delivered by all and pruned up to `floor`; sources' events up to a time (µs)."""

    stream: Stream
    floor: int
    upto_us: int | None = None


@dataclass(frozen=True)
class Heartbeat:
    """A replica lives. A leader tells up to where each of its streams has been delivered by all."""

    incarnation: int
    leading: bool
    round: int
    latency_us: int
    floors: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True)
class LeaderDead:
    """Somebody thinks that this replica, if it leads, can no longer send or receive."""

    accused: str


@dataclass(frozen=True)
class Election:
    """Asks for votes."""

    number: int


@dataclass(frozen=True)
class Vote:
    """What the voter has to offer: its latency to the previous node."""

    number: int
    latency_us: int


@dataclass(frozen=True)
class Elected:
    """The outcome of an election."""

    leader: str


@dataclass(frozen=True)
class Probe:
    """Asks for an echo, to measure latency."""

    sent_us: int


@dataclass(frozen=True)
class Echo:
    """Answers a probe."""

    sent_us: int


@dataclass(frozen=True)
class Rejoin:
    """A replica without state asks a peer for its own."""

    incarnation: int


@dataclass(frozen=True)
class State:
    """A peer's state for the replica that asked as `incarnation`."""

    incarnation: int
    data: bytes


@dataclass(frozen=True)
class Gone:
    """The host's verdict: this replica has failed for ever, or is back all the same."""

    replica: str
    back: bool = False


Replicated = (
    Bundle | Delivered | Gap | Heartbeat | LeaderDead | Election | Vote | Elected | Probe | Echo | Rejoin | State | Gone
)
ELECTIONS = (LeaderDead, Election, Vote, Elected)
"""What is said for the sake of elections."""

codec.known(
    Publication, Command, Notice, Bundle, Delivered, Gap, Heartbeat, LeaderDead, Election, Vote, Elected, Probe, Echo,
    Rejoin, State, Gone,
)  # fmt: skip
