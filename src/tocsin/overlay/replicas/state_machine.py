"""Where do a group's events come from, where do its notices go?

A *feed* stands for the sources of one processor. It keeps a batch until every replica has it, and what it keeps
outlives it, as a file or a topic does: a feed that fails goes on where it was. A *drain* stands for a sink: it takes
each bundle of notices once, in order. A sink has as many drains as a group has replicas, and one that has failed
catches up from another.

What runs the processor of a replica? A machine: inputs in order go in, what is sent to whom comes out.

A machine must be deterministic: the same inputs give the same outputs. `Own` is a processor of the replica's own.
What a host does with a processor, such as advertising what a source publishes, is an input like others: a `Command`.

What is asked of the groups until rules are deployed?

Replicas begin with nothing but rules, types and links. Trees, tables and partial rules come about as everywhere else,
by what processors say to each other, here in rounds and among failures. The host's part is commands, which feeds hand
over like events:

    start, if there is a single tree ─► lead ─► advertise ─► subscribe          or root ─► advertise ─► subscribe

Rounds are the same everywhere, so a host knows without asking when a flood has come to its end: after as many rounds as
the longest of the shortest ways has links.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from tocsin.overlay.codec import decode, encode, restore, snapshot
from tocsin.overlay.processor import Processor
from tocsin.overlay.replicas import messages as r
from tocsin.overlay.replicas.catch_up import STATES, Handler, Member
from tocsin.overlay.replicas.messages import Command, Notice, Publication
from tocsin.overlay.replicas.queues import Outgoing, Sending, Settings
from tocsin.overlay.strategies import Sites, Strategy, place

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


Commands = Mapping[str, tuple[Command, ...]]
"""By group."""


def stages(sites: Sites, strategy: Strategy) -> list[Commands]:
    """What hosts ask of their processors, one after another."""
    sinks: dict[str, list[Command]] = {}
    for sink, wanted in sorted(sites.sinks.items()):
        sinks.setdefault(place(sink), []).append(Command("subscribe", (sink, wanted)))
    everywhere = sites.processors
    if strategy.single:
        trees: list[Commands] = [{name: (Command(word),) for name in everywhere} for word in ("start", "lead")]
    else:
        trees = [{name: (Command("root"),) for name in sorted(sinks)}]
    offers = {
        name: (Command("advertise", ("", tuple(sorted(types)))),) for name, types in sorted(sites.sources.items())
    }
    return [*trees, offers, {name: tuple(wishes) for name, wishes in sinks.items()}]


def deploying(sites: Sites, strategy: Strategy, rounds: int) -> list[Commands]:
    """The stages with pauses, for so many rounds an epoch: down a tree, up and down again, and acknowledgements."""
    pause = -(-(3 * sites.reach + 2) // rounds) - 1
    return [commands for stage in stages(sites, strategy) for commands in (stage, *({},) * pause)]
