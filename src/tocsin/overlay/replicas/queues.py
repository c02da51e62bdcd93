"""Queue the batches of a stream: number, retain, send, acknowledge and accept them in order.

    Outgoing   pruned … floor | floor + 1 … last          sent and acknowledged up to: one number for each receiver
    Incoming   processed … done | done + 1 … upto         accepted without a gap up to `upto`

A sender retains a batch until all receivers have acknowledged it. The *frontier* is the number up to which this is
true; decommissioned receivers do not count. `floor` is the number up to which batches are pruned. `Sending` sends the
batches of the outgoing queues to all replicas of the receiving groups, and sends them again if acknowledgements fail to
come.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tocsin.overlay.replicas.messages import (
    Acknowledgement,
    Gap,
    LeaderDead,
    Publication,
    Replicated,
    RoundBatch,
    Stream,
)


class Outgoing:
    """The queue of batches from one group to another, at a sender."""

    def __init__(self, stream: Stream, receivers: Sequence[str], *, floor: int = -1) -> None:
        self.stream, self.receivers = stream, tuple(receivers)
        self.floor = floor
        self.kept: dict[int, RoundBatch] = {}
        """The retained batches, which are those after `floor`, by number."""
        self.last = floor
        self.upto_us: int | None = None
        """The time before which all events of sources have been pruned, if this is the queue of a source."""
        self.longest = 0
        """The largest number of batches that were retained at the same time."""
        self.acked: dict[str, tuple[int, int]] = {}
        """The incarnation of each receiver, and the number of the last batch that it acknowledged."""
        self.sent: dict[str, int] = {}
        """The number of the last batch that was sent to each receiver."""
        self.gone: set[str] = set()
        """The decommissioned receivers."""

    def enqueue(self, batch: RoundBatch) -> None:
        """Add a batch to the queue, unless all receivers have acknowledged it already."""
        self.last = max(self.last, batch.number)
        if batch.number > self.floor:
            self.kept[batch.number] = batch
            self.longest = max(self.longest, len(self.kept))

    def prune(self, floor: int) -> None:
        """Drop the batches up to number `floor`, which all receivers have acknowledged."""
        if floor > self.floor:
            for number in [number for number in self.kept if number <= floor]:
                times = [part.upto for part in self.kept.pop(number).parts if isinstance(part, Publication)]
                self.upto_us = times[-1] if times else self.upto_us
            self.floor = floor

    def due(self, receiver: str) -> list[RoundBatch]:
        """Return the batches that have not been sent to `receiver`, and mark them as sent."""
        since = max(self.sent.get(receiver, -1), self.floor)
        if self.last <= since:
            return []
        self.sent[receiver] = self.last
        return [self.kept[number] for number in range(since + 1, self.last + 1)]

    def acknowledged(self, receiver: str, incarnation: int, upto: int, *, restarted: bool = False) -> bool:
        """Process an acknowledgement of all batches up to `upto`; return whether it is new.

        An acknowledgement of a new incarnation voids those of earlier incarnations. If the receiver has `restarted`,
        the batches after `upto` will be sent again. If these have been pruned, the receiver gets no batches until it
        has restored the state of a peer.
        """
        before, number = self.acked.get(receiver, (-1, -1))
        if incarnation < before:
            return False
        if incarnation == before:
            upto = max(upto, number)
        self.acked[receiver] = (incarnation, upto)
        if restarted:
            self.sent[receiver] = upto if upto >= self.floor else self.last
        self.prune(self.frontier())
        return (incarnation, upto) > (before, number)

    def frontier(self) -> int:
        """Return the number up to which all receivers, except decommissioned ones, have acknowledged."""
        heard = [self.acked.get(name, (0, self.floor))[1] for name in self.receivers if name not in self.gone]
        return min(heard, default=self.floor)

    def leave_out(self, receiver: str, *, back: bool) -> None:
        """Ignore the missing acknowledgements of a decommissioned receiver, or, if `back`, wait for them again."""
        if back:
            self.gone.discard(receiver)
        elif receiver in self.receivers:
            self.gone.add(receiver)
            self.prune(self.frontier())

    def resend(self, receiver: str) -> None:
        """Mark the batches that `receiver` has not acknowledged as not sent."""
        self.sent[receiver] = max(self.acked.get(receiver, (0, -1))[1], self.floor)

    def waiting(self, receiver: str) -> bool:
        """Return whether `receiver` has been sent batches that it has not acknowledged."""
        return self.sent.get(receiver, -1) > max(self.acked.get(receiver, (0, -1))[1], self.floor)


class Incoming:
    """The queue of batches from a group, at a receiver, which holds at most `limit` batches.

    All batches up to `done` have been processed, and all up to `upto` have been accepted.
    """

    def __init__(self, stream: Stream, limit: int, *, done: int = -1) -> None:
        self.stream, self.limit = stream, limit
        self.done = self.upto = done
        self.batches: dict[int, RoundBatch] = {}
        self.late: list[RoundBatch] = []
        """The duplicates that were accepted; always empty, unless a test breaks the filter of duplicates."""
        self.duplicates = 0
        self.longest = 0

    def accept(self, batch: RoundBatch) -> bool:
        """Accept `batch` if it is the next one and there is room, else drop it; return whether it was accepted."""
        if batch.number <= self.upto:
            self.duplicates += 1
            return False
        if batch.number != self.upto + 1 or len(self.batches) >= self.limit:
            return False
        self.upto = batch.number
        self.batches[batch.number] = batch
        self.longest = max(self.longest, len(self.batches))
        return True

    def take(self) -> Iterable[RoundBatch]:
        """Remove and return the next batch, as a sequence of batches."""
        self.done += 1
        late, self.late = self.late, []
        return (*late, self.batches.pop(self.done))


Send = Callable[[str, Replicated], None]


@dataclass(frozen=True)
class Settings:
    """Timeouts (µs) and limits of replicas.

    `rounds` is the number of rounds from one batch of the sources to the next. It should be enough for the matches of a
    batch to reach the sinks, because otherwise the matches wait for later batches.
    """

    rounds: int = 8
    beat_us: int = 10_000
    """The time between two heartbeats of a leader."""
    prune_us: int = 0
    """The time between two acknowledgements; 0 to acknowledge with each heartbeat of a leader.

    Latency measurements, heartbeats of followers, and reports of the frontier have the same interval. With a longer
    time there are fewer messages, but a new leader sends more batches again.
    """
    suspect_us: int = 40_000
    """The time without a heartbeat after which a leader is suspected."""
    vote_us: int = 15_000
    """The time for which votes of an election are collected."""
    resend_us: int = 80_000
    """The time without an acknowledgement after which batches are sent again and the receiver is suspected."""
    queue_max: int = 100_000
    """The largest number of batches in an outgoing queue; a replica with a full queue runs no further round."""
    inbox_max: int = 100_000
    """The largest number of batches in an incoming queue; further batches are dropped and not acknowledged."""


@dataclass
class Sending:
    """Send the batches of the outgoing queues of a replica or of a source, by receiving group."""

    queues: Mapping[str, Outgoing]
    send: Send
    settings: Settings
    _heard_us: dict[tuple[str, str], int] = field(default_factory=dict)
    """For each group and receiver, the time since which an acknowledgement is awaited.

    It is the time of the last acknowledgement or, if that covered all batches, of the next batch that was sent.
    """
    _moved_us: dict[tuple[str, str], int] = field(default_factory=dict)
    """Like `_heard_us`, but without acknowledgements that were not new."""

    @property
    def full(self) -> bool:
        return any(len(queue.kept) >= self.settings.queue_max for queue in self.queues.values())

    def flush(self, now: int) -> None:
        """Send all batches that have not been sent."""
        for target, queue in self.queues.items():
            for receiver in queue.receivers:
                if receiver in queue.gone or queue.sent.get(receiver, -1) >= queue.last:
                    continue
                if not queue.waiting(receiver):
                    self._heard_us[target, receiver] = self._moved_us[target, receiver] = now
                for batch in queue.due(receiver):
                    self.send(receiver, batch)

    def delivered(self, sender: str, message: Acknowledgement, now: int) -> None:
        """Process an acknowledgement; if the receiver lacks pruned batches, send it a Gap."""
        target = message.stream[1]
        queue = self.queues[target]
        moved = queue.acknowledged(sender, message.incarnation, message.upto, restarted=message.restarted)
        self._heard_us[target, sender] = now
        if moved or message.restarted:
            self._moved_us[target, sender] = now
        if message.upto < queue.floor:
            self.send(sender, Gap(message.stream, queue.floor, queue.upto_us))

    def tick(self, now: int) -> None:
        """Mark batches to be sent again to receivers without progress, and report silent receivers to their peers."""
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
        """Start as a new leader: send all batches without an acknowledgement, as others may not have sent them."""
        self._heard_us.clear()
        self._moved_us.clear()
        for queue in self.queues.values():
            for receiver in queue.receivers:
                queue.resend(receiver)
        self.flush(now)
