"""Where do a group's events come from, where do its notices go? Two ends that are taken to be reliable.

A feed stands for the sources of one processor: it keeps a batch until every replica has it. A drain stands for one
sink: it takes each bundle of notices once, in order.
"""

from __future__ import annotations

from collections.abc import Sequence

from tocsin.overlay.replicas.messages import Bundle, Delivered, Echo, Gone, Notice, Probe, Publication, Replicated
from tocsin.overlay.replicas.queues import Incoming, Outgoing
from tocsin.overlay.replicas.sending import Sending, Settings

FEED = "feed:"


class Feed:
    """The sources of a group."""

    def __init__(self, group: str, receivers: Sequence[str], settings: Settings) -> None:
        self.name, self.settings = FEED + group, settings
        self.outbox: list[tuple[str, Replicated]] = []
        self.queue = Outgoing((self.name, group), receivers)
        self.sending = Sending({group: self.queue}, lambda to, message: self.outbox.append((to, message)), settings)
        self._next_us = 0

    def publish(self, publication: Publication, now: int) -> bool:
        """Takes a batch, unless the queue is full: then the source has to wait."""
        if self.sending.full:
            return False
        self.queue.enqueue(Bundle(self.queue.stream, self.queue.last + 1, (publication,)))
        self.sending.flush(now)
        return True

    def receive(self, sender: str, message: Replicated, now: int) -> None:
        if isinstance(message, Delivered):
            if self.sending.delivered(sender, message, now):
                self.sending.flush(now)
        elif isinstance(message, Probe):
            self.outbox.append((sender, Echo(message.sent_us)))
        elif isinstance(message, Gone):
            self.queue.leave_out(message.replica)

    def tick(self, now: int) -> None:
        self._next_us = now + self.settings.beat_us
        self.sending.tick(now)
        self.sending.flush(now)

    def next_deadline(self) -> int:
        return self._next_us


class Drain:
    """A sink: what it got, and when."""

    Incoming = Incoming

    def __init__(self, name: str, group: str, settings: Settings) -> None:
        self.name = name
        self.outbox: list[tuple[str, Replicated]] = []
        self.incoming = self.Incoming((group, name), settings.inbox_max)
        self.got: list[tuple[Notice, int]] = []

    def receive(self, sender: str, message: Replicated, now: int) -> None:
        if isinstance(message, Bundle):
            if self.incoming.accept(message):
                for bundle in self.incoming.take():
                    self.got += [(part, now) for part in bundle.parts if isinstance(part, Notice)]
            self.outbox.append((sender, Delivered(message.stream, self.incoming.upto, 0)))
        elif isinstance(message, Probe):
            self.outbox.append((sender, Echo(message.sent_us)))

    def tick(self, now: int) -> None:
        """A drain has no timers."""

    def next_deadline(self) -> None:
        return None
