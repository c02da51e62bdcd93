"""Which bundles of a stream are kept, sent, acknowledged, taken? One queue at each end.

    Outgoing   pruned … floor | floor + 1 … last          sent and acknowledged up to: one number for each receiver
    Incoming   taken … | done + 1 … upto                  `upto`: the last one without a gap before it

The pruning frontier (`floor`) is one number: the least that all receivers have acknowledged, those left out that have
failed for ever, and never beyond what at least one has.

How does a leader, or a feed, get its bundles to every replica of a group? Sends, and sends again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tocsin.overlay.replicas.messages import Bundle, Delivered, Gap, LeaderDead, Publication, Replicated, Stream


class Outgoing:
    """What a group has to say to another."""

    def __init__(self, stream: Stream, receivers: Sequence[str], *, floor: int = -1) -> None:
        self.stream, self.receivers = stream, tuple(receivers)
        self.floor = floor
        self.kept: dict[int, Bundle] = {}
        """Bundles above the floor, in order."""
        self.last = floor
        self.upto_us: int | None = None
        """Sources' events before this have been pruned."""
        self.longest = 0
        """The most bundles that were ever kept."""
        self.acked: dict[str, tuple[int, int]] = {}
        """(incarnation, up to where) of each receiver."""
        self.sent: dict[str, int] = {}
        self.gone: set[str] = set()

    def enqueue(self, bundle: Bundle) -> None:
        """Keeps a bundle, unless it has been delivered by all already."""
        self.last = max(self.last, bundle.number)
        if bundle.number > self.floor:
            self.kept[bundle.number] = bundle
            self.longest = max(self.longest, len(self.kept))

    def prune(self, floor: int) -> None:
        """All up to here has been delivered by all."""
        if floor > self.floor:
            for number in [number for number in self.kept if number <= floor]:
                times = [part.upto for part in self.kept.pop(number).parts if isinstance(part, Publication)]
                self.upto_us = times[-1] if times else self.upto_us
            self.floor = floor

    def due(self, receiver: str) -> list[Bundle]:
        """What has not been sent to a receiver yet; it now counts as sent."""
        since = max(self.sent.get(receiver, -1), self.floor)
        if self.last <= since:
            return []
        self.sent[receiver] = self.last
        return [self.kept[number] for number in range(since + 1, self.last + 1)]

    def acknowledged(self, receiver: str, incarnation: int, upto: int, *, anew: bool = False) -> bool:
        """Takes an acknowledgement; whether it says more than was known. One of a new incarnation voids all before it.
        `anew`: sending begins again after it; but one that lacks what has been pruned is sent nothing until it has
        taken a peer's state and says so."""
        before, known = self.acked.get(receiver, (-1, -1))
        if incarnation < before:
            return False
        if incarnation == before:
            upto = max(upto, known)
        self.acked[receiver] = (incarnation, upto)
        if anew:
            self.sent[receiver] = upto if upto >= self.floor else self.last
        self.prune(self.frontier())
        return (incarnation, upto) > (before, known)

    def frontier(self) -> int:
        """Up to where all have it."""
        heard = [self.acked.get(name, (0, self.floor))[1] for name in self.receivers if name not in self.gone]
        return min(heard, default=self.floor)

    def leave_out(self, receiver: str, *, back: bool) -> None:
        """This receiver has failed for ever, or is back."""
        if back:
            self.gone.discard(receiver)
        elif receiver in self.receivers:
            self.gone.add(receiver)
            self.prune(self.frontier())

    def resend(self, receiver: str) -> None:
        """Begins again after what was acknowledged."""
        self.sent[receiver] = max(self.acked.get(receiver, (0, -1))[1], self.floor)

    def waiting(self, receiver: str) -> bool:
        """Whether something was sent that is not acknowledged."""
        return self.sent.get(receiver, -1) > max(self.acked.get(receiver, (0, -1))[1], self.floor)


class Incoming:
    """What a replica has from a group."""

    def __init__(self, stream: Stream, limit: int, *, done: int = -1) -> None:
        self.stream, self.limit = stream, limit
        self.done = self.upto = done
        self.bundles: dict[int, Bundle] = {}
        self.late: list[Bundle] = []
        """Taken a second time; always empty, as the filter sees to it."""
        self.duplicates = 0
        self.longest = 0

    def accept(self, bundle: Bundle) -> bool:
        """Takes the next bundle if there is room; drops what it has, and what comes after a gap."""
        if bundle.number <= self.upto:
            self.duplicates += 1
            return False
        if bundle.number != self.upto + 1 or len(self.bundles) >= self.limit:
            return False
        self.upto = bundle.number
        self.bundles[bundle.number] = bundle
        self.longest = max(self.longest, len(self.bundles))
        return True

    def take(self) -> Iterable[Bundle]:
        """The next bundle, for good."""
        self.done += 1
        late, self.late = self.late, []
        return (*late, self.bundles.pop(self.done))


Send = Callable[[str, Replicated], None]


@dataclass(frozen=True)
class Settings:
    """Times in microseconds, and limits. `rounds`: how many follow each batch of the sources; enough for what it causes
    to reach the sinks, else that takes until later batches."""

    rounds: int = 8
    beat_us: int = 10_000
    """Between a leader's heartbeats."""
    prune_us: int = 0
    """Between acknowledgements, measurements of latency, followers' heartbeats, and those that tell frontiers; 0: with
    each heartbeat. The longer, the fewer acknowledgements, and the more a new leader sends again."""
    suspect_us: int = 40_000
    """A leader that is silent for so long is thought dead."""
    vote_us: int = 15_000
    """How long votes are waited for."""
    resend_us: int = 80_000
    """After how long without acknowledgement bundles are sent again, and the receiver is said to be dead."""
    queue_max: int = 100_000
    """Bundles in an outgoing queue; a replica whose queue is full waits."""
    inbox_max: int = 100_000
    """Bundles of a stream that wait to be taken; more are not acknowledged."""


@dataclass
class Sending:
    """The outgoing queues of a replica or feed."""

    queues: Mapping[str, Outgoing]
    send: Send
    settings: Settings
    _heard_us: dict[tuple[str, str], int] = field(default_factory=dict)
    """When a receiver last acknowledged, or was last sent something after having acknowledged all."""
    _moved_us: dict[tuple[str, str], int] = field(default_factory=dict)
    """The same, but only acknowledgements that say more than those before."""

    @property
    def full(self) -> bool:
        return any(len(queue.kept) >= self.settings.queue_max for queue in self.queues.values())

    def flush(self, now: int) -> None:
        """Sends what has not been sent."""
        for target, queue in self.queues.items():
            for receiver in queue.receivers:
                if receiver in queue.gone or queue.sent.get(receiver, -1) >= queue.last:
                    continue
                if not queue.waiting(receiver):
                    self._heard_us[target, receiver] = self._moved_us[target, receiver] = now
                for bundle in queue.due(receiver):
                    self.send(receiver, bundle)

    def delivered(self, sender: str, message: Delivered, now: int) -> None:
        """Takes an acknowledgement. A receiver that lacks what has been pruned is told so."""
        target = message.stream[1]
        queue = self.queues[target]
        moved = queue.acknowledged(sender, message.incarnation, message.upto, anew=message.anew)
        self._heard_us[target, sender] = now
        if moved or message.anew:
            self._moved_us[target, sender] = now
        if message.upto < queue.floor:
            self.send(sender, Gap(message.stream, queue.floor, queue.upto_us))

    def tick(self, now: int) -> None:
        """Sends again to those who have got no further for long; of those who are silent it tells their peers."""
        for target, queue in self.queues.items():
            for receiver in queue.receivers:
                link = (target, receiver)
                if receiver in queue.gone or not queue.waiting(receiver):
                    continue
                if now - self._moved_us.get(link, now) > self.settings.resend_us:
                    self._moved_us[link] = now
                    queue.resend(receiver)
                if now - self._heard_us.get(link, now) > self.settings.resend_us:
                    self._heard_us[link] = now
                    for peer in queue.receivers:
                        if peer != receiver:
                            self.send(peer, LeaderDead(receiver))

    def begin(self, now: int) -> None:
        """A new leader does not know what others have sent."""
        self._heard_us.clear()
        self._moved_us.clear()
        for queue in self.queues.values():
            for receiver in queue.receivers:
                queue.resend(receiver)
        self.flush(now)
