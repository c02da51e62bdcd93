"""Where do a group's events come from, where do its notices go?

A *feed* stands for the sources of one processor. It keeps a batch until every replica has it, and what it keeps
outlives it, as a file or a topic does: a feed that fails goes on where it was. A *drain* stands for a sink: it takes
each bundle of notices once, in order. A sink has as many drains as a group has replicas, and one that has failed
catches up from another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tocsin.overlay.codec import decode, encode
from tocsin.overlay.replicas import messages as r
from tocsin.overlay.replicas.members import STATES, Handler, Member
from tocsin.overlay.replicas.queues import Outgoing
from tocsin.overlay.replicas.sending import Sending, Settings

FEED = "feed:"


class Feed:
    """The sources of a group, and what its host asks of it."""

    def __init__(self, group: str, receivers: Sequence[str], settings: Settings) -> None:
        self.name, self.settings = FEED + group, settings
        self.outbox: list[tuple[str, r.Replicated]] = []
        self.queue = Outgoing((self.name, group), receivers)
        self.outgoing = {group: self.queue}
        self.sending = Sending(self.outgoing, lambda to, message: self.outbox.append((to, message)), settings)
        self._next_us = 0

    def publish(self, parts: Sequence[r.Part], now: int) -> bool:
        """Takes a batch, unless the queue is full: then the source has to wait."""
        if self.sending.full:
            return False
        self.queue.enqueue(r.Bundle(self.queue.stream, self.queue.last + 1, tuple(parts)))
        self.sending.flush(now)
        return True

    def receive(self, sender: str, message: r.Replicated, now: int) -> None:
        if isinstance(message, r.Delivered):
            self.sending.delivered(sender, message, now)
            if message.anew:
                self.sending.flush(now)
        elif isinstance(message, r.Probe):
            self.outbox.append((sender, r.Echo(message.sent_us)))
        elif isinstance(message, r.Gone):
            self.queue.leave_out(message.replica, back=message.back)

    def tick(self, now: int) -> None:
        self._next_us = now + self.settings.beat_us
        self.sending.tick(now)
        self.sending.flush(now)

    def next_deadline(self) -> int:
        return self._next_us

    def snapshot(self) -> bytes:
        """What it keeps. Who has acknowledged what, and who is gone, is learnt anew."""
        queue = self.queue
        return encode((queue.floor, queue.last, queue.upto_us, tuple(queue.kept.values())))

    def restore(self, data: bytes) -> None:
        """Goes on from a snapshot; what it keeps is sent again with the next tick."""
        queue = self.queue
        queue.floor, queue.last, queue.upto_us, kept = decode(data)
        queue.kept = {bundle.number: bundle for bundle in kept}


class Drain(Member):
    """One that stands for a sink: what it got, and when."""

    def __init__(
        self,
        name: str,
        drains: Sequence[str],
        group: str,
        replicas: Sequence[str],
        settings: Settings,
        *,
        incarnation: int = 0,
        begins: bool = True,
    ) -> None:
        self._from, self.settings = group, settings
        super().__init__(
            name, drains, {group: replicas}, settings.inbox_max, incarnation=incarnation, begins=begins
        )  # fmt: skip
        self.got: list[tuple[r.Notice, int]] = []
        self.count = 0
        """How many rows that is."""
        self._next_us = 0

    def _bundle(self, sender: str, message: r.Bundle, now: int) -> None:
        incoming = self.incoming[self._from]
        if incoming.accept(message):
            for bundle in incoming.take():
                notices = [part for part in bundle.parts if isinstance(part, r.Notice)]
                self.got += [(notice, now) for notice in notices]
                self.count += sum(notice.batch.num_rows for notice in notices)
        self.send(sender, r.Delivered(message.stream, incoming.upto, self.incarnation))

    def tick(self, now: int) -> None:
        self._next_us = now + self.settings.beat_us
        self.ask()

    def next_deadline(self) -> int:
        return self._next_us

    @property
    def position(self) -> int:
        return self.incoming[self._from].upto

    def state(self) -> dict[str, Any]:
        return {"got": tuple(self.got)}

    def load(self, state: Mapping[str, Any]) -> None:
        self.got = list(state["got"])
        self.count = sum(notice.batch.num_rows for notice, _ in self.got)

    HANDLERS: Mapping[type, Handler] = {**STATES, r.Bundle: _bundle}
