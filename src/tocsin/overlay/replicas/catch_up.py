"""How does a replica that has no state, or lacks what has been pruned, catch up? It takes the state of a peer.

    announce (who it is now, what it has) ─► senders send on from there, or say what they cannot send any more (`Gap`)
    ask (`Rejoin`) ─► one peer after another ─► its state (`State`)

If more than f of a group have failed there may be nobody to ask. Then the replica says what is lost unless one that has
it returns (`lost`), and goes on asking.
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
class Range:
    """Bundles of a stream that nobody can send any more; events of sources among them are before `upto_us`."""

    stream: r.Stream
    first: int
    last: int
    upto_us: int | None = None

    def __str__(self) -> str:
        events = "" if self.upto_us is None else f" (events before {self.upto_us} µs)"
        return f"{self.first} to {self.last} from {self.stream[0]}{events}"


@dataclass(frozen=True)
class Lost:
    """What a replica lacks for ever, unless a peer that has it returns."""

    replica: str
    ranges: tuple[Range, ...]

    def __str__(self) -> str:
        return f"{self.replica}: no peer answers; lost unless one returns: " + ", ".join(map(str, self.ranges))


class Member(ABC):
    """One of a group that are all in the same state. `incarnation`: how often it was started before; `begins`: it has
    the state that all begin with."""

    Incoming = Incoming
    HANDLERS: Mapping[type, Handler] = {}
    """What it understands; what is not among `ALWAYS` only once it has a state."""

    def __init__(self, name: str, members: Sequence[str], senders: Mapping[str, Sequence[str]], inbox_max: int,
                 *, incarnation: int, begins: bool) -> None:  # fmt: skip
        self.name, self.incarnation, self.ready = name, incarnation, begins
        self.peers = tuple(peer for peer in members if peer != name)
        self.group = name.partition("#")[0]
        self.senders = senders
        """All that may ever send, by their group."""
        self.inbox_max = inbox_max
        self.outbox: list[tuple[str, r.Replicated]] = []
        self.incoming = {group: self.Incoming((group, self.group), inbox_max) for group in senders}
        self.lacking = False
        """Whether it lacks what has been pruned."""
        self.unanswered = 0
        """How often peers were asked for their state since something came of it."""
        self._gaps: dict[str, r.Gap] = {}
        if not begins:
            self.announce()

    def send(self, receiver: str, message: r.Replicated) -> None:
        self.outbox.append((receiver, message))

    def receive(self, sender: str, message: r.Replicated, now: int) -> None:
        """Takes a message."""
        handler = self.HANDLERS.get(type(message))
        if handler is not None and (self.ready or type(message) in ALWAYS):
            handler(self, sender, message, now)

    @property
    def lost(self) -> Lost | None:
        """What it lacks, if no peer helps."""
        if self.unanswered <= 2 * len(self.peers):
            return None
        found = [
            Range(gap.stream, self.incoming[group].upto + 1, gap.floor, gap.upto_us)
            for group, gap in sorted(self._gaps.items())
            if gap.floor > self.incoming[group].upto
        ]
        return Lost(self.name, tuple(found))

    # ---- what it has

    def announce(self) -> None:
        """Tells all that may ever send to it who it is now and what it has."""
        for group, incoming in self.incoming.items():
            for sender in self.senders[group]:
                self.send(sender, r.Delivered(incoming.stream, incoming.upto, self.incarnation, anew=True))

    def told_of_gap(self, sender: str, message: r.Gap, now: int) -> None:
        group = message.stream[0]
        if message.floor > self.incoming[group].upto:
            self.lacking = True
            if group not in self._gaps or self._gaps[group].floor < message.floor:
                self._gaps[group] = message

    # ---- states

    def ask(self) -> None:
        """Asks the next peer for its state, if that is needed."""
        if self.ready and not self.lacking:
            return
        if self.peers:
            self.send(self.peers[self.unanswered % len(self.peers)], r.Rejoin(self.incarnation))
        self.unanswered += 1

    def asked(self, sender: str, message: r.Rejoin, now: int) -> None:
        self.send(sender, r.State(message.incarnation, self.snapshot()))

    def answered(self, sender: str, message: r.State, now: int) -> None:
        if message.incarnation != self.incarnation or (self.ready and not self.lacking):
            return
        state = self.read(message.data)
        if self.ready and state["position"] <= self.position:
            return
        self.restore(message.data)
        self.caught_up(sender, now)

    def caught_up(self, peer: str, now: int) -> None:  # noqa: B027
        """A peer's state was taken over. Most have nothing to do then."""

    @property
    @abstractmethod
    def position(self) -> int:
        """How far it is; of two states the one that is further has all that the other has."""

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """All that a peer needs to go on from here, apart from what has come in."""

    @abstractmethod
    def load(self, state: Mapping[str, Any]) -> None:
        """Goes on from a state."""

    def snapshot(self) -> bytes:
        """All that another of the group needs to go on from here."""
        taken = {group: (one.done, tuple(one.bundles.values())) for group, one in self.incoming.items()}
        return self.write({"position": self.position, "incoming": taken, **self.state()})

    def restore(self, data: bytes) -> None:
        """Goes on from a snapshot, of its own or a peer's. Of a stream it keeps what it has beyond that, as it has
        acknowledged it."""
        state = self.read(data)
        for group, (done, bundles) in state["incoming"].items():
            had = self.incoming[group]
            self.incoming[group] = incoming = self.Incoming((group, self.group), self.inbox_max, done=done)
            more = [bundle for bundle in had.bundles.values() if bundle.number > done + len(bundles)]
            incoming.bundles = {bundle.number: bundle for bundle in (*bundles, *more)}
            incoming.upto = done + len(incoming.bundles)
            incoming.longest = max(had.longest, len(incoming.bundles))
        self.load(state)
        self.ready, self.lacking, self.unanswered = True, False, 0
        self._gaps = {}
        self.announce()

    def write(self, state: Mapping[str, Any]) -> bytes:
        return encode(state)

    def read(self, data: bytes) -> Mapping[str, Any]:
        found: Mapping[str, Any] = decode(data)
        return found

    def probed(self, sender: str, message: r.Probe, now: int) -> None:
        self.send(sender, r.Echo(message.sent_us))


STATES: Mapping[type, Handler] = {
    r.Gap: Member.told_of_gap,
    r.Rejoin: Member.asked,
    r.State: Member.answered,
    r.Probe: Member.probed,
}
"""What every member understands."""
ALWAYS: Sequence[type] = (r.State, r.Probe, r.Gap, r.Gone)
"""What one without state looks at."""
