"""Define the messages that replicas send each other, as frozen dataclasses that `codec` encodes and decodes.

A *stream* has the batches from one group of replicas to another. The *incarnation* of a replica is the number of times
that it was started before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from tocsin.overlay import codec
from tocsin.overlay.messages import Message
from tocsin.overlay.tree_parts import Array

Stream = tuple[str, str]
"""The name of a stream: the group that sends, and the group that receives."""


@dataclass(frozen=True)
class Publication:
    """Publish events of the group's sources, and promise that no events before `upto` will follow."""

    batch: pa.Table
    upto: int


@dataclass(frozen=True)
class Command:
    """Call a method of a processor, named as in `state_machine.COMMANDS`, on behalf of the host."""

    name: str
    arguments: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Notice:
    """Deliver matches to a sink; `at` has the time at which each match was ready."""

    batch: pa.Table
    at: Array


Content = Message | Publication | Command | Notice


@dataclass(frozen=True)
class RoundBatch:
    """Everything that one group sends to another in one round.

    Batches of a stream are numbered without gaps; `number` is the logical time of the stream.
    """

    stream: Stream
    number: int
    parts: tuple[Content, ...] = ()


@dataclass(frozen=True)
class Acknowledgement:
    """Acknowledge all batches of a stream up to number `upto`.

    An acknowledgement voids all those of the receiver's earlier incarnations. `restarted` says that the receiver has
    just started or restored a state, so that all batches after `upto` must be sent again.
    """

    stream: Stream
    upto: int
    incarnation: int
    restarted: bool = False


@dataclass(frozen=True)
class Gap:
    """Inform a receiver that batches which it lacks have been pruned, because all had acknowledged them.

    All batches up to number `floor` are pruned. If the stream comes from a source, they have its events before
    `upto_us`.
    """

    stream: Stream
    floor: int
    upto_us: int | None = None


@dataclass(frozen=True)
class Heartbeat:
    """Show the peers that the sender is alive.

    `latency_us` is the sender's latency to the previous node. A leader reports in `floors`, for each group that it
    sends to, the number of the last batch that all receivers have acknowledged.
    """

    incarnation: int
    leading: bool
    round: int
    latency_us: int
    floors: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True)
class LeaderDead:
    """Report the suspicion that replica `accused`, if it leads, can no longer send or receive."""

    accused: str


@dataclass(frozen=True)
class Election:
    """Ask the peers for votes in the sender's election `number`."""

    number: int


@dataclass(frozen=True)
class Vote:
    """Vote in election `number` by reporting the sender's latency to the previous node."""

    number: int
    latency_us: int


@dataclass(frozen=True)
class Elected:
    """Announce the result of an election."""

    leader: str


@dataclass(frozen=True)
class Probe:
    """Ask for an Echo, to measure the latency of the link."""

    sent_us: int


@dataclass(frozen=True)
class Echo:
    """Answer a Probe with its send time."""

    sent_us: int


@dataclass(frozen=True)
class Rejoin:
    """Ask a peer for its state, which the sender will restore."""

    incarnation: int


@dataclass(frozen=True)
class PeerState:
    """Answer the Rejoin of `incarnation` with the sender's state."""

    incarnation: int
    data: bytes


@dataclass(frozen=True)
class Decommissioned:
    """Announce the host's decision that `replica` has failed for ever, or, if `back`, that it has returned."""

    replica: str
    back: bool = False


Replicated = (
    RoundBatch
    | Acknowledgement
    | Gap
    | Heartbeat
    | LeaderDead
    | Election
    | Vote
    | Elected
    | Probe
    | Echo
    | Rejoin
    | PeerState
    | Decommissioned
)
ELECTIONS = (LeaderDead, Election, Vote, Elected)
"""The classes of messages that elections use."""

codec.register(
    Publication, Command, Notice, Gap, Heartbeat, LeaderDead, Election, Vote, Elected, Probe, Echo, Rejoin,
    Bundle=RoundBatch, Delivered=Acknowledgement, State=PeerState, Gone=Decommissioned,
)  # fmt: skip
