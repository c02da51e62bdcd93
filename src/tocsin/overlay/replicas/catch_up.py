"""Restore a member of a group that has no state, or lacks pruned batches, from the state of a peer.

    announce (incarnation, position) ─► senders continue from there, or report what they cannot send any more (`Gap`)
    request_state (`Rejoin`) ─► one peer after another ─► its state (`PeerState`)

A *member* is a replica of a processor or of a sink. Its *incarnation* is the number of times that it was started
before. Its *position* says how far its state has advanced.

If more than f replicas of a group have failed, there may be no peer to ask. Then the member reports in `lost` which
batches it cannot get unless a peer returns, and continues to ask.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tocsin.overlay.codec import decode, encode
from tocsin.overlay.replicas import messages as r
from tocsin.overlay.replicas.queues import Incoming

Handler = Callable[[Any, str, Any, int], None]


@dataclass(frozen=True)
class LostRange:
    """Some batches of a stream, from number `first` to `last`, that no replica can send any more.

    If the stream comes from a source, the batches have its events before `upto_us`.
    """

    stream: r.Stream
    first: int
    last: int
    upto_us: int | None = None

    def __str__(self) -> str:
        events = "" if self.upto_us is None else f" (events before {self.upto_us} µs)"
        return f"{self.first} to {self.last} from {self.stream[0]}{events}"


@dataclass(frozen=True)
class Lost:
    """The batches that a replica cannot get unless a peer that has them in its state returns."""

    replica: str
    ranges: tuple[LostRange, ...]

    def __str__(self) -> str:
        return f"{self.replica}: no peer answers; lost unless a peer returns: " + ", ".join(map(str, self.ranges))


class Member(ABC):
    """A member of a group whose members all compute the same state.

    `senders` has the possible senders of each group that the member receives from. `incarnation` is the number of times
    that the member was started before. If `begins`, the member starts with the initial state, otherwise without a
    state.
    """

    Incoming = Incoming
    HANDLERS: Mapping[type, Handler] = {}
    """The handler of each class of messages; a member without state uses only the handlers of `WITHOUT_STATE`."""

    def __init__(self, name: str, members: Sequence[str], senders: Mapping[str, Sequence[str]], inbox_max: int,
                 *, incarnation: int, begins: bool) -> None:  # fmt: skip
        self.name, self.incarnation, self.ready = name, incarnation, begins
        self.peers = tuple(peer for peer in members if peer != name)
        self.group = name.partition("#")[0]
        self.senders = senders
        """The possible senders of each group."""
        self.inbox_max = inbox_max
        self.outbox: list[tuple[str, r.Replicated]] = []
        self.incoming = {group: self.Incoming((group, self.group), inbox_max) for group in senders}
        self.lacking = False
        """Whether the member lacks batches that all senders have pruned."""
        self.unanswered = 0
        """The number of requests for a peer's state since the last one that was successful."""
        self._gaps: dict[str, r.Gap] = {}
        if not begins:
            self.announce()

    def send(self, receiver: str, message: r.Replicated) -> None:
        self.outbox.append((receiver, message))

    def receive(self, sender: str, message: r.Replicated, now: int) -> None:
        """Process a message; ignore it if the member needs a state for that and has none."""
        handler = self.HANDLERS.get(type(message))
        if handler is not None and (self.ready or type(message) in WITHOUT_STATE):
            handler(self, sender, message, now)

    @property
    def lost(self) -> Lost | None:
        """The batches that this member lacks, if each peer was asked at least twice without success, else None."""
        if self.unanswered <= 2 * len(self.peers):
            return None
        found = [
            LostRange(gap.stream, self.incoming[group].upto + 1, gap.floor, gap.upto_us)
            for group, gap in sorted(self._gaps.items())
            if gap.floor > self.incoming[group].upto
        ]
        return Lost(self.name, tuple(found))

    # ---- position

    def announce(self) -> None:
        """Send an acknowledgement to all possible senders, so that they continue after the last accepted batch."""
        for group, incoming in self.incoming.items():
            for sender in self.senders[group]:
                self.send(sender, r.Acknowledgement(incoming.stream, incoming.upto, self.incarnation, restarted=True))

    def receive_gap(self, sender: str, message: r.Gap, now: int) -> None:
        group = message.stream[0]
        if message.floor > self.incoming[group].upto:
            self.lacking = True
            if group not in self._gaps or self._gaps[group].floor < message.floor:
                self._gaps[group] = message

    # ---- states

    def request_state(self) -> None:
        """Ask the next peer for its state, if this member has none or lacks pruned batches."""
        if self.ready and not self.lacking:
            return
        if self.peers:
            self.send(self.peers[self.unanswered % len(self.peers)], r.Rejoin(self.incarnation))
        self.unanswered += 1

    def receive_rejoin(self, sender: str, message: r.Rejoin, now: int) -> None:
        self.send(sender, r.PeerState(message.incarnation, self.snapshot()))

    def receive_state(self, sender: str, message: r.PeerState, now: int) -> None:
        if message.incarnation != self.incarnation or (self.ready and not self.lacking):
            return
        state = self.read(message.data)
        if self.ready and state["position"] <= self.position:
            return
        self.restore(message.data)
        self.on_caught_up(sender, now)

    def on_caught_up(self, peer: str, now: int) -> None:  # noqa: B027
        """Update the member after the state of `peer` was restored; the default does nothing."""

    @property
    @abstractmethod
    def position(self) -> int:
        """The position of the state: a state with a greater position includes one with a smaller position."""

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """Return everything that a peer needs to continue from here, except the incoming queues."""

    @abstractmethod
    def load(self, state: Mapping[str, Any]) -> None:
        """Load a state that `state` returned."""

    def snapshot(self) -> bytes:
        """Return everything that a peer needs to continue from here, as bytes."""
        received = {group: (one.done, tuple(one.batches.values())) for group, one in self.incoming.items()}
        return self.write({"position": self.position, "incoming": received, **self.state()})

    def restore(self, data: bytes) -> None:
        """Restore a snapshot of this member or of a peer.

        Accepted batches that are newer than the snapshot stay in the incoming queues, because they were acknowledged.
        """
        state = self.read(data)
        for group, (done, batches) in state["incoming"].items():
            had = self.incoming[group]
            self.incoming[group] = incoming = self.Incoming((group, self.group), self.inbox_max, done=done)
            more = [batch for batch in had.batches.values() if batch.number > done + len(batches)]
            incoming.batches = {batch.number: batch for batch in (*batches, *more)}
            incoming.upto = done + len(incoming.batches)
            incoming.longest = max(had.longest, len(incoming.batches))
        self.load(state)
        self.ready, self.lacking, self.unanswered = True, False, 0
        self._gaps = {}
        self.announce()

    def write(self, state: Mapping[str, Any]) -> bytes:
        return encode(state)

    def read(self, data: bytes) -> Mapping[str, Any]:
        found: Mapping[str, Any] = decode(data)
        return found

    def receive_probe(self, sender: str, message: r.Probe, now: int) -> None:
        self.send(sender, r.Echo(message.sent_us))


MEMBER_HANDLERS: Mapping[type, Handler] = {
    r.Gap: Member.receive_gap,
    r.Rejoin: Member.receive_rejoin,
    r.PeerState: Member.receive_state,
    r.Probe: Member.receive_probe,
}
"""The handlers that all members share."""
WITHOUT_STATE: Sequence[type] = (r.PeerState, r.Probe, r.Gap, r.Decommissioned)
"""The classes of messages that a member without state processes."""
