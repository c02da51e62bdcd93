"""How does a leader, or a feed, get its bundles to every replica of a group? Sends, and sends again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tocsin.overlay.replicas.messages import Delivered, Gap, LeaderDead, Replicated
from tocsin.overlay.replicas.queues import Outgoing

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
