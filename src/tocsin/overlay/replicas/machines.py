"""What runs the processor of a replica? A machine: inputs in order go in, what is sent to whom comes out.

A machine must be deterministic: the same inputs give the same outputs. `Own` is a processor of the replica's own.
What a host does with a processor, such as advertising what a source publishes, is an input like others: a `Command`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from tocsin.overlay.processor import Processor
from tocsin.overlay.replicas.messages import Command, Notice, Publication
from tocsin.overlay.snapshots import restore, snapshot

Inputs = Sequence[tuple[str, Any]]
"""Who sent what; own sources' publications and the host's commands come from ''."""
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

    def __init__(self, begin: Callable[[], Processor]) -> None:
        self.processor = begin()

    def step(self, inputs: Inputs) -> Outputs:
        return stepped(self.processor, inputs)

    def snapshot(self) -> bytes:
        return snapshot(self.processor)

    def load(self, data: bytes) -> None:
        now = self.processor
        self.processor = restore(data, now.links, now.strategy, now.types, now.rules)


def stepped(processor: Processor, inputs: Inputs) -> Outputs:
    """What a processor sends and hands to sinks for some inputs."""
    for sender, message in inputs:
        if isinstance(message, Publication):
            processor.publish(message.batch, message.upto)
        elif isinstance(message, Command):
            COMMANDS[message.name](processor, *message.arguments)
        else:
            processor.receive(sender, message)
    outputs: dict[str, list[Any]] = {}
    sent, processor.outbox = processor.outbox, []
    for receiver, message in sent:
        outputs.setdefault(receiver, []).append(message)
    notices, processor.notices = processor.notices, []
    for sink, batch, at in notices:
        outputs.setdefault(SINK + sink, []).append(Notice(batch.table, at))
    return outputs


def _lead(processor: Processor) -> None:
    """Builds the single tree, if the election of its leader has ended here."""
    if processor.leader[-1] == processor.name:
        processor.root()


COMMANDS: Mapping[str, Callable[..., None]] = {
    "start": Processor.start,
    "lead": _lead,
    "root": Processor.root,
    "advertise": Processor.advertise,
    "subscribe": Processor.subscribe,
    "change": Processor.change,
}
"""What hosts may ask of a processor."""
