"""Virtual time: messages wait in a heap until they arrive, links are first in, first out.

Sources hand over their events in *epochs*, stretches of event time. How long these are changes neither answers nor
traffic nor delays: rows carry the times at which they are sent, and links add to them (`overlay.timing`).
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
    """Processors and the delays of the links between them, in microseconds, one for each direction."""

    processors: dict[str, Processor]
    delays_us: Mapping[Link, int]
    watch: Watch = lambda sender, receiver, message: None
    """Told of every message that is sent."""
    through: Callable[[m.Message], m.Message] = lambda message: message
    """What a link does to a message, such as writing and reading it."""
    jitter_us: Callable[[], int] = lambda: 0
    """How much longer a message takes; those on one link stay in order."""
    now_us: int = 0
    _heap: list[tuple[int, int, str, str, m.Message]] = field(default_factory=list)
    _count: int = 0
    _latest: dict[Link, int] = field(default_factory=dict)

    def run(self, steps: int | None = None) -> None:
        """Carries messages until there are none, or so many."""
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
        """All sources' events before `upto`, by processor."""
        self.now_us = max(self.now_us, upto)
        for name in sorted(self.processors):
            if self.processors[name].heir is None:
                self.processors[name].publish(batches.get(name, empty), upto)
            self._collect(name)
        self.run()
