"""What runs the processor of a replica? A machine: inputs in order go in, what is sent to whom comes out.

A machine must be deterministic: the same inputs give the same outputs. `Own` is a processor of the replica's own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from tocsin.events.types import EventType
from tocsin.language.rules import Rule
from tocsin.overlay.processor import Processor
from tocsin.overlay.replicas.messages import Notice, Publication
from tocsin.overlay.snapshots import restore, snapshot
from tocsin.overlay.strategies import Strategy

Inputs = Sequence[tuple[str, Any]]
"""Who sent what; own sources' publications come from ''."""
Outputs = Mapping[str, Sequence[Any]]
"""For each neighbouring group what is sent, and for each sink (`sink:NAME`) what it gets."""
SINK = "sink:"


class Machine(Protocol):
    """What a replica runs."""

    def step(self, inputs: Inputs) -> Outputs:
        """Takes the inputs of a round."""

    def snapshot(self) -> bytes:
        """Its state."""

    def load(self, data: bytes) -> None:
        """Goes on from a state."""


class Own:
    """A processor for one replica alone."""

    def __init__(
        self,
        data: bytes,
        links: Mapping[str, int],
        strategy: Strategy,
        types: Mapping[str, EventType],
        rules: Sequence[Rule],
    ) -> None:
        self._given = (dict(links), strategy, types, rules)
        self.load(data)

    def step(self, inputs: Inputs) -> Outputs:
        return stepped(self._processor, inputs)

    def snapshot(self) -> bytes:
        return snapshot(self._processor)

    def load(self, data: bytes) -> None:
        self._processor = restore(data, *self._given)


def stepped(processor: Processor, inputs: Inputs) -> Outputs:
    """What a processor sends and hands to sinks for some inputs."""
    for sender, message in inputs:
        if isinstance(message, Publication):
            processor.publish(message.batch, message.upto)
        else:
            processor.receive(sender, message)
    outputs: dict[str, list[Any]] = {}
    sent, processor.outbox = processor.outbox, []
    for receiver, message in sent:
        outputs.setdefault(receiver, []).append(message)
    notices, processor.notices = processor.notices, []
    for sink, batch, at in notices:
        outputs.setdefault(SINK + sink, []).append(Notice(batch, at))
    return outputs
