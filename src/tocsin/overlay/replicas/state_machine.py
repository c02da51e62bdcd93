"""Run the processor of a replica as a state machine, and define the source queues and the sink replicas.

A `SourceQueue` stands for the sources of one processor. It retains a batch until all replicas of the processor have
acknowledged it, and its contents survive a crash, as in a file or a topic. A `SinkReplica` stands for a sink: it takes
each batch of matches once, in order. A sink has as many replicas as a group. A sink replica that has failed restores
the state of another one.

A `StateMachine` runs the processor of a replica. It takes the inputs of a round and returns the outputs for each
receiver, and it must be deterministic. `ProcessorMachine` runs a processor for one replica. When a host calls a method
of a processor, for example to advertise the types of a source, the call is an input, too (`Command`).

Replicas start with rules, types and links only. They build trees and deploy rules by messages between processors, as
without replicas. The host sends the commands for this through the source queues, in these stages:

    start, if there is a single tree ─► lead ─► advertise ─► subscribe          or root ─► advertise ─► subscribe

All groups run the same rounds. So a host knows how many rounds a stage takes: a message reaches all processors after as
many rounds as the network's diameter has links.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from tocsin.overlay.codec import decode, encode, restore, snapshot
from tocsin.overlay.processor import Processor
from tocsin.overlay.replicas import messages as r
from tocsin.overlay.replicas.catch_up import MEMBER_HANDLERS, Handler, Member
from tocsin.overlay.replicas.messages import Command, Notice, Publication
from tocsin.overlay.replicas.queues import Outgoing, Sending, Settings
from tocsin.overlay.strategies import Sites, Strategy, processor_of

SOURCE = "feed:"


class SourceQueue:
    """The queue of the batches that the sources and the host of a group publish."""

    def __init__(self, group: str, receivers: Sequence[str], settings: Settings) -> None:
        self.name, self.settings = SOURCE + group, settings
        self.outbox: list[tuple[str, r.Replicated]] = []
        self.queue = Outgoing((self.name, group), receivers)
        self.outgoing = {group: self.queue}
        self.sending = Sending(self.outgoing, lambda to, message: self.outbox.append((to, message)), settings)
        self._next_us = 0

    def publish(self, parts: Sequence[r.Content], now: int) -> bool:
        """Queue and send a batch; return False if the queue is full, so that the source has to try again later."""
        if self.sending.full:
            return False
        self.queue.enqueue(r.RoundBatch(self.queue.stream, self.queue.last + 1, tuple(parts)))
        self.sending.flush(now)
        return True

    def receive(self, sender: str, message: r.Replicated, now: int) -> None:
        if isinstance(message, r.Acknowledgement):
            self.sending.delivered(sender, message, now)
            if message.restarted:
                self.sending.flush(now)
        elif isinstance(message, r.Probe):
            self.outbox.append((sender, r.Echo(message.sent_us)))
        elif isinstance(message, r.Decommissioned):
            self.queue.leave_out(message.replica, back=message.back)

    def tick(self, now: int) -> None:
        self._next_us = now + self.settings.beat_us
        self.sending.tick(now)
        self.sending.flush(now)

    def next_deadline(self) -> int:
        return self._next_us

    def snapshot(self) -> bytes:
        """Return the retained batches as bytes, without acknowledgements and decommissioned receivers."""
        queue = self.queue
        return encode((queue.floor, queue.last, queue.upto_us, tuple(queue.kept.values())))

    def restore(self, data: bytes) -> None:
        """Restore the bytes that `snapshot` returned; all batches are sent again with the next tick."""
        queue = self.queue
        queue.floor, queue.last, queue.upto_us, kept = decode(data)
        queue.kept = {batch.number: batch for batch in kept}


class SinkReplica(Member):
    """A replica of a sink, which stores the received matches in `got`, each batch with the time of its arrival."""

    def __init__(
        self,
        name: str,
        sink_replicas: Sequence[str],
        group: str,
        replicas: Sequence[str],
        settings: Settings,
        *,
        incarnation: int = 0,
        begins: bool = True,
    ) -> None:
        self._from, self.settings = group, settings
        super().__init__(
            name, sink_replicas, {group: replicas}, settings.inbox_max, incarnation=incarnation, begins=begins
        )  # fmt: skip
        self.got: list[tuple[r.Notice, int]] = []
        self.count = 0
        """The number of received matches."""
        self._next_us = 0

    def _receive_batch(self, sender: str, message: r.RoundBatch, now: int) -> None:
        incoming = self.incoming[self._from]
        if incoming.accept(message):
            for batch in incoming.take():
                notices = [part for part in batch.parts if isinstance(part, r.Notice)]
                self.got += [(notice, now) for notice in notices]
                self.count += sum(notice.batch.num_rows for notice in notices)
        self.send(sender, r.Acknowledgement(message.stream, incoming.upto, self.incarnation))

    def tick(self, now: int) -> None:
        self._next_us = now + self.settings.beat_us
        self.request_state()

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

    HANDLERS: Mapping[type, Handler] = {**MEMBER_HANDLERS, r.RoundBatch: _receive_batch}


Inputs = Sequence[tuple[str, Any]]
"""The inputs of a round, as pairs of sender and message; events of own sources and commands have the sender ''."""
Outputs = Mapping[str, Sequence[Any]]
"""The outputs of a round: the messages for each neighbouring group, and the matches for each sink (`sink:NAME`)."""
SINK = "sink:"


class StateMachine(Protocol):
    """The interface of the deterministic machine that a replica runs."""

    def step(self, inputs: Inputs) -> Outputs:
        """Process the inputs of a round; return its outputs."""

    def snapshot(self) -> bytes:
        """Return the state as bytes."""

    def load(self, data: bytes) -> None:
        """Load a state that `snapshot` returned."""


class ProcessorMachine:
    """Run a processor as the state machine of one replica."""

    def __init__(self, begin: Callable[[], Processor]) -> None:
        self.processor = begin()

    def step(self, inputs: Inputs) -> Outputs:
        return run_processor(self.processor, inputs)

    def snapshot(self) -> bytes:
        return snapshot(self.processor)

    def load(self, data: bytes) -> None:
        now = self.processor
        self.processor = restore(data, now.links, now.strategy, now.types, now.rules)


def run_processor(processor: Processor, inputs: Inputs) -> Outputs:
    """Pass `inputs` to a processor; return the messages and matches that it then sends."""
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
    """Build the single tree if `processor` was elected as its root."""
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
"""The function for each name of a `Command`."""


Commands = Mapping[str, tuple[Command, ...]]
"""The commands for each group."""


def deployment_stages(sites: Sites, strategy: Strategy) -> list[Commands]:
    """Return the stages in which hosts deploy a strategy: for each stage, the commands for each processor."""
    sinks: dict[str, list[Command]] = {}
    for sink, wanted in sorted(sites.sinks.items()):
        sinks.setdefault(processor_of(sink), []).append(Command("subscribe", (sink, wanted)))
    everywhere = sites.processors
    if strategy.single:
        trees: list[Commands] = [{name: (Command(word),) for name in everywhere} for word in ("start", "lead")]
    else:
        trees = [{name: (Command("root"),) for name in sorted(sinks)}]
    offers = {
        name: (Command("advertise", ("", tuple(sorted(types)))),) for name, types in sorted(sites.sources.items())
    }
    return [*trees, offers, {name: tuple(wishes) for name, wishes in sinks.items()}]


def deployment_batches(sites: Sites, strategy: Strategy, rounds: int) -> list[Commands]:
    """Return the stages of `deployment_stages` as batches of the sources, with empty batches after each stage.

    `rounds` is the number of rounds from one batch to the next. The empty batches last until messages have passed
    through a tree three times (down, up and down again) and have been acknowledged.
    """
    pause = -(-(3 * sites.diameter + 2) // rounds) - 1
    return [commands for stage in deployment_stages(sites, strategy) for commands in (stage, *({},) * pause)]
