"""Carry messages between processors in virtual time.

Messages wait in a heap until they arrive. Messages on the same link stay in order. Sources publish their events in
*epochs*, which are stretches of event time. The length of epochs changes neither answers nor traffic nor delays. The
reason is that each row carries the time at which it is sent, and links add their delays to this time
(`overlay.tree_parts`).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from tocsin.overlay import messages as m
from tocsin.overlay.messages import Rows
from tocsin.overlay.processor import Processor
from tocsin.overlay.strategies import Link

Watch = Callable[[str, str, m.Message], None]


@dataclass
class Network:
    """The processors, and the delay of each link between them in each direction, in microseconds."""

    processors: dict[str, Processor]
    delays_us: Mapping[Link, int]
    watch: Watch = lambda sender, receiver, message: None
    """A function that is called with the sender, the receiver and the message, for each message that is sent."""
    through: Callable[[m.Message], m.Message] = lambda message: message
    """A function that transforms each message on a link, for example by encoding and decoding it."""
    jitter_us: Callable[[], int] = lambda: 0
    """A function that returns the additional delay of a message."""
    now_us: int = 0
    _heap: list[tuple[int, int, str, str, m.Message]] = field(default_factory=list)
    _count: int = 0
    _latest: dict[Link, int] = field(default_factory=dict)

    def run(self, steps: int | None = None) -> None:
        """Carry messages until there are none left, or at most `steps` messages."""
        for name in sorted(self.processors):
            self._collect(name)
        while self._heap and steps != 0:
            steps = None if steps is None else steps - 1
            self.now_us, _, sender, receiver, message = heapq.heappop(self._heap)
            self.processors[receiver].receive(sender, message, self.now_us)
            self._collect(receiver)

    def _collect(self, name: str) -> None:
        processor = self.processors[name]
        sent, processor.outbox = processor.outbox, []
        for receiver, message in sent:
            self.watch(name, receiver, message)
            delay_us = self.delays_us[name, receiver]
            carried = self.through(message)
            if isinstance(carried, m.Timed):
                carried = carried.delayed(delay_us)
            self._count += 1
            arrival_us = max(self.now_us + delay_us + self.jitter_us(), self._latest.get((name, receiver), 0))
            self._latest[name, receiver] = arrival_us
            heapq.heappush(self._heap, (arrival_us, self._count, name, receiver, carried))

    def publish(self, batches: Mapping[str, pa.Table | Rows], empty: pa.Table, upto: int) -> None:
        """Publish the next events of all sources, which are before `upto`, and carry messages until there are none.

        `batches` has the events of each processor. Other processors publish the table `empty`.
        """
        self.now_us = max(self.now_us, upto)
        for name in sorted(self.processors):
            if self.processors[name].successor is None:
                self.processors[name].publish(batches.get(name, empty), upto)
            self._collect(name)
        self.run()
