"""Run one replica of a site in steps, and commit each step as a folder.

    step N:  messages, sources, time ─► replica ─► pieces          snapshot and input log of its processor
                                             ├─► steps/N/state   the rest of its state, positions of channels
                                             ╰─► steps/N/outbox  messages to replicas and to sinks
    renamed into place ─► outbox delivered ─► channels pruned ─► steps before N deleted

The outbox of a step is delivered only after the step was committed, so other steps have no effect. A replica that
starts continues from its last committed step, and delivers the outbox of that step again. Nothing is duplicated,
because batches and outputs of sinks have names. The replica starts as a new incarnation (its incarnations are
numbered), because the acknowledgements that it received are not stored. A replica that has lost its folder takes the
state of a peer.

The state of the processor is stored as a snapshot and an input log:

    pieces/B.base       the snapshot
    pieces/B.rounds     the inputs of each round after the snapshot, concatenated

A processor is deterministic, so the snapshot and the inputs give its state again. A new snapshot is written when the
input log would be larger than the last snapshot. So, however large windows are, little more than twice the input is
written in total. The log that a start repeats is not larger than the snapshot, or than 64 KiB.

A step refers to a snapshot and to a length of the input log. Data after this length belongs to a step that was not
committed, and is overwritten.
"""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tocsin.errors import StateError
from tocsin.events.files import records
from tocsin.overlay.codec import decode, encode, kind_of
from tocsin.overlay.effects import COUNTED, Meter
from tocsin.overlay.processor import Processor
from tocsin.overlay.replicas.messages import Acknowledgement, Gap, Notice, RoundBatch
from tocsin.overlay.replicas.replica import Replica, group_of
from tocsin.overlay.replicas.state_machine import SINK, SOURCE, Inputs, Outputs, ProcessorMachine, run_processor
from tocsin.sites.arrivals import Arrivals
from tocsin.sites.channels import (
    OPERATOR,
    Channels,
    MessageBatch,
    Position,
    pack_messages,
    step_position,
    unpack_messages,
    write_file,
)
from tocsin.sites.site_plan import SECOND_US, SitePlan
from tocsin.sites.sources import LiveBatches, PlannedBatches

REFERENCE = b"pieces:"
SMALL_BYTES = 64 * 1024
"""The size of the input log up to which no new snapshot is written."""


class DurableMachine(ProcessorMachine):
    """A processor whose state is stored in `folder` as a snapshot and an input log."""

    def __init__(self, begin: Callable[[], Processor], folder: Path) -> None:
        super().__init__(begin)
        self.folder = folder
        self.written_bytes = 0
        """The number of bytes that this process has written."""
        self._base = -1
        """The number of the last snapshot, which is B in the file names."""
        self._log_follows = False
        self._base_bytes = self._rounds_bytes = 0
        self._new: list[bytes] = []
        """Encoded inputs of rounds that are not stored yet."""
        self._by_reference = False

    def step(self, inputs: Inputs) -> Outputs:
        self._new.append(encode(tuple(inputs)))
        return super().step(inputs)

    def snapshot(self) -> bytes:
        return self._saved() if self._by_reference else super().snapshot()

    @contextmanager
    def by_reference(self) -> Iterator[None]:
        """Make `snapshot` write the state into the folder and return only a reference, while the context is active."""
        self._by_reference = True
        try:
            yield
        finally:
            self._by_reference = False

    def load(self, data: bytes) -> None:
        self._new, self._log_follows = [], False
        if not data.startswith(REFERENCE):
            super().load(data)
            return
        reference = json.loads(data.removeprefix(REFERENCE))
        self._base, self._rounds_bytes = reference["base"], reference["bytes"]
        try:
            base, rounds = self._path("base").read_bytes(), self._path("rounds").read_bytes()[: self._rounds_bytes]
        except FileNotFoundError as error:
            raise StateError(f"{error.filename} is missing: the last step cannot be read without it") from None
        super().load(base)
        for inputs in unpack_messages(rounds):
            run_processor(self.processor, inputs)
        self._base_bytes, self._log_follows = len(base), True

    def delete_old(self) -> None:
        """Delete all snapshots except the last. A step that refers to the last snapshot must have been committed."""
        for name in os.listdir(self.folder):
            if not name.startswith(f"{self._base:012}."):
                (self.folder / name).unlink()

    def _saved(self) -> bytes:
        size = sum(len(data) + 8 for data in self._new)
        if not self._log_follows or self._rounds_bytes + size > max(self._base_bytes, SMALL_BYTES):
            self._begin()
        elif size:
            self._append(pack_messages(self._new))
        self._new = []
        return REFERENCE + json.dumps({"base": self._base, "bytes": self._rounds_bytes}).encode()

    def _begin(self) -> None:
        """Write a new snapshot and an empty input log."""
        self.folder.mkdir(parents=True, exist_ok=True)
        data = super().snapshot()
        self._base += 1
        write_file(self._path("base"), data)
        write_file(self._path("rounds"), b"")
        self.written_bytes += len(data)
        self._base_bytes, self._rounds_bytes, self._log_follows = len(data), 0, True

    def _append(self, data: bytes) -> None:
        with self._path("rounds").open("r+b") as file:
            file.seek(self._rounds_bytes)
            file.write(data)
            file.truncate()
            file.flush()
            os.fsync(file.fileno())
        self._rounds_bytes += len(data)
        self.written_bytes += len(data)

    def _path(self, kind: str) -> Path:
        return self.folder / f"{self._base:012}.{kind}"


FORMAT = 2


class Host:
    """Runs the replica `name` of a site.

    `started_us` is the time at which the replica starts. `arrivals` reads the live source of the site, if it has one.
    """

    def __init__(
        self, plan: SitePlan, name: str, channels: Channels, started_us: int, arrivals: Arrivals | None = None
    ) -> None:
        self.plan, self.name, self.channels = plan, name, channels
        self.site = group_of(name)
        self.folder = plan.hosting.folder / "sites" / name
        live = bool(plan.hosting.live)
        self.source = LiveBatches(plan, name, arrivals) if live else PlannedBatches(plan, self.site)
        self.steps = 0
        """The number of steps that this replica has committed, in all incarnations."""
        self.positions: dict[str, Position] = {}
        self.started_at_us: int | None = None
        self.meter = Meter(on=True)
        self.sent_bytes: Counter[str] = Counter()
        """The number of bytes that were sent to each group of replicas."""
        self.event_bytes: Counter[str] = Counter()
        """The number of bytes of batches with events that were sent to each group of replicas."""
        self.notified: Counter[str] = Counter()
        """The number of rows that were written for each sink."""
        self.leading_since_us: int | None = None
        """The time since which this replica leads its group, or None if it does not lead."""
        self._counted: dict[str, int] = {}
        self._started = False
        self._now_us = 0
        self._messages: dict[str, list[bytes]] = {}
        self._notifications: list[tuple[str, int, bytes]] = []
        self._last_seen = ""
        self._begin(started_us)

    # ---- incarnations

    def _begin(self, started_us: int) -> None:
        committed = self._committed()
        state: dict[str, Any] = {}
        if committed is not None:
            state = decode((committed / "state").read_bytes())
            if state["format"] != FORMAT:
                raise StateError(f"{committed} has format {state['format']}, but only {FORMAT} is supported")
            self.steps, self.positions, self.started_at_us = state["steps"], state["positions"], state["began_us"]
            self.meter.messages, self.meter.links = Counter(state["messages"]), Counter(state["links"])
            self.meter.bytes = state["bytes"]
            self.sent_bytes, self.event_bytes = Counter(state["sent_bytes"]), Counter(state["event_bytes"])
            self.notified, self._counted = Counter(state["notified"]), state["counted"]
        self.positions.pop(OPERATOR, None)
        self.incarnation = max(state.get("life", 0) + 1, started_us // SECOND_US)
        snapshot = state.get("replica")
        new = committed is None and not self.channels.known(self.name)
        self.machine = DurableMachine(self._processor, self.folder / "pieces")
        self.replica = Replica(
            self.name, self.plan.topology(self.site), self.machine, self.plan.hosting.settings,
            incarnation=self.incarnation, begins=new or snapshot is not None,
        )  # fmt: skip
        if snapshot is not None:
            self.replica.restore(snapshot)
        self._is_follower = not new and bool(self.replica.peers)
        if committed is not None:
            self._deliver(committed)

    def _processor(self) -> Processor:
        plan, joins = self.plan, self.plan.joins_with(self.site)
        links = {} if joins else plan.initial_sites.links(self.site)
        return Processor(self.site, links, plan.strategy, plan.types, plan.rules, joins=joins)

    def _committed(self) -> Path | None:
        """Return the folder of the last committed step, and delete the folders of steps that were not committed."""
        steps = self.folder / "steps"
        names = sorted(os.listdir(steps)) if steps.is_dir() else []
        for name in [name for name in names if name[0] == "."]:
            shutil.rmtree(steps / name)
        whole = [name for name in names if name[0] != "."]
        return steps / whole[-1] if whole else None

    # ---- steps

    def step(self, now_us: int, batches: Sequence[MessageBatch]) -> None:
        """Process message batches at the time `now_us`, or at the time of the last step if that was later."""
        self._now_us = now_us = max(self._now_us, now_us)
        replica = self.replica
        if not self._started:
            # At the start no peer is overdue. A replica that was away does not start as leader.
            self._started = True
            replica.elections.elected(replica.peers[0] if self._is_follower else replica.elections.leader, now_us)
        for message_batch in batches:
            if message_batch.position > self.positions.get(message_batch.sender, ""):
                self.positions[message_batch.sender] = message_batch.position
                for message in unpack_messages(message_batch.data):
                    replica.receive(message_batch.sender, message, now_us)
        self._collect(now_us)
        self._push_source_batches(now_us)
        if now_us >= replica.next_deadline():
            replica.tick(now_us)
        self._collect(now_us)
        self._commit(now_us)

    def _push_source_batches(self, now_us: int) -> None:
        """Pass the source batches that the next rounds need to the replica."""
        replica = self.replica
        incoming = replica.incoming[SOURCE + self.site]
        rounds = self.plan.hosting.settings.rounds
        while replica.ready and incoming.upto * rounds <= replica.round:
            number = incoming.upto + 1
            if number == self.source.first and self.started_at_us is None:
                self.started_at_us = now_us
            if not self.source.due(number, self.started_at_us or 0, now_us):
                if number <= self.source.lost:
                    replica.receive(SOURCE + self.site, Gap((SOURCE + self.site, self.site), self.source.lost), now_us)
                return
            batch = RoundBatch((SOURCE + self.site, self.site), number, self.source.contents(number))
            replica.receive(SOURCE + self.site, batch, now_us)
            self._collect(now_us)
            incoming = replica.incoming[SOURCE + self.site]

    def _collect(self, now_us: int) -> None:
        """Move the replica's outbox to the step's messages and notifications.

        Outputs of sinks are acknowledged at once, because they are committed with the step.
        """
        replica, encoded = self.replica, dict[int, bytes]()
        while replica.outbox:
            sent, replica.outbox = replica.outbox, []
            for receiver, message in sent:
                group = group_of(receiver)
                if receiver.startswith(SOURCE):
                    continue
                if receiver.startswith(SINK):
                    if isinstance(message, RoundBatch):
                        self._notify(group.removeprefix(SINK), message)
                        replica.receive(receiver, Acknowledgement(message.stream, message.number, 0), now_us)
                    continue
                if id(message) not in encoded:
                    encoded[id(message)] = encode(message)
                data = encoded[id(message)]
                self._messages.setdefault(receiver, []).append(data)
                self.sent_bytes[group] += len(data) + 8
                if isinstance(message, RoundBatch):
                    self._count(group, message, len(data))

    def _notify(self, sink: str, batch: RoundBatch) -> None:
        rows = [row for part in batch.parts if isinstance(part, Notice) for row in records(part.batch)]
        lines = [json.dumps({name: value for name, value in row.items() if value is not None}) + "\n" for row in rows]
        self.notified[sink] += len(rows)
        self._notifications.append((sink, batch.number, "".join(lines).encode()))

    def _count(self, group: str, batch: RoundBatch, size: int) -> None:
        """Count the traffic of a batch once for each receiving group, however many replicas the group has."""
        if batch.number <= self._counted.get(group, -1):
            return
        self._counted[group] = batch.number
        for part in batch.parts:
            self.meter.watch(self.site, group, part)  # type: ignore[arg-type]
        if any(kind_of(part) in COUNTED for part in batch.parts):
            self.event_bytes[group] += size
        self.meter.count_pushed()

    # ---- committing

    def _commit(self, now_us: int) -> None:
        replica = self.replica
        self.leading_since_us = (self.leading_since_us or now_us) if replica.leading else None
        seen = f"{replica.round} {replica.ready} {replica.lacking} {self.positions}"
        if not self._messages and not self._notifications and seen == self._last_seen:
            return  # nothing has changed since the last step
        self._last_seen = seen
        with self.machine.by_reference():
            snapshot = replica.snapshot() if replica.ready else None
        state = {
            "format": FORMAT, "steps": self.steps + 1, "life": self.incarnation, "positions": self.positions,
            "began_us": self.started_at_us, "replica": snapshot,
            "messages": dict(self.meter.messages), "links": dict(self.meter.links), "bytes": self.meter.bytes,
            "sent_bytes": dict(self.sent_bytes), "event_bytes": dict(self.event_bytes),
            "notified": dict(self.notified), "counted": self._counted,
        }  # fmt: skip
        letters = tuple((receiver, pack_messages(messages)) for receiver, messages in self._messages.items())
        outbox = {
            "place": step_position(self.incarnation, self.steps),
            "letters": letters,
            "notices": tuple(self._notifications),
        }
        steps = self.folder / "steps"
        temporary = steps / f".{self.steps:012}"
        temporary.mkdir(parents=True)
        write_file(temporary / "state", encode(state))
        write_file(temporary / "outbox", encode(outbox))
        committed = steps / f"{self.steps:012}"
        temporary.rename(committed)
        self.steps, self._messages, self._notifications = self.steps + 1, {}, []
        self._deliver(committed)
        if replica.ready:
            self.machine.delete_old()
            self.source.committed(replica.incoming[SOURCE + self.site].upto)

    def _deliver(self, committed: Path) -> None:
        outbox = decode((committed / "outbox").read_bytes())
        for sink, number, data in outbox["notices"]:
            folder = sink_folder(self.plan.hosting.folder, sink)
            folder.mkdir(parents=True, exist_ok=True)
            write_file(folder / f"{number:09}.jsonl", data, once=True)
        position = outbox["place"]
        self.channels.prune(self.name, self.positions)
        self.channels.post([MessageBatch(self.name, receiver, position, data) for receiver, data in outbox["letters"]])
        for name in os.listdir(committed.parent):
            if name != committed.name:
                shutil.rmtree(committed.parent / name)

    # ---- status

    def status(self, now_us: int) -> Mapping[str, Any]:
        """Return the status of the replica at `now_us`, as it is written to `status.json`."""
        replica, meter = self.replica, self.meter
        return {
            "name": self.name,
            "site": self.site,
            "now_us": now_us,
            "life": self.incarnation,
            "steps": self.steps,
            "ready": replica.ready,
            "leading": replica.leading,
            "led_us": self.leading_since_us,
            "round": replica.round,
            "rounds": self.source.rounds,
            "messages": dict(meter.messages),
            "traffic": meter.traffic,
            "links": {there: count for (_, there), count in meter.links.items()},
            "sent_bytes": dict(self.sent_bytes),
            "event_bytes": dict(self.event_bytes),
            "notified": dict(self.notified),
            "refused": self.source.rejected,
            "written_bytes": self.machine.written_bytes,
            "queued": max((len(queue.kept) for queue in replica.outgoing.values()), default=0),
            "full": self._unacknowledged() if replica.sending.full else [],
            "lost": str(replica.lost) if replica.lost else None,
            "waits_for": self._waits_for(),
            "lives": {name: known[0] for queue in replica.outgoing.values() for name, known in queue.acked.items()},
        }

    def _waits_for(self) -> list[str]:
        """Return the neighbours from which the next round needs a batch that has not arrived."""
        replica = self.replica
        return [there for there in replica.topology.neighbours if replica.incoming[there].upto < replica.round - 1]

    def _unacknowledged(self) -> list[str]:
        """Return the replicas whose missing acknowledgements prevent queues from being pruned."""
        queues = self.replica.outgoing.values()
        return sorted(
            receiver
            for queue in queues
            for receiver in queue.receivers
            if receiver not in queue.gone and queue.acked.get(receiver, (0, queue.floor))[1] <= queue.floor < queue.last
        )


def sink_folder(folder: Path, sink: str) -> Path:
    """Return the folder of a sink's output. It has a file of JSON lines for each batch, named by its number."""
    return folder / "sinks" / sink.replace("/", "--")


def received(folder: Path, sink: str) -> list[dict[str, Any]]:
    """Read the output of a sink, in order. `folder` is the folder of the plan."""
    files = sorted(sink_folder(folder, sink).glob("*.jsonl"))
    return [json.loads(line) for file in files for line in file.read_text(encoding="utf-8").splitlines()]
