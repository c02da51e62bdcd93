"""What does a site do? It makes steps, and commits each as one folder.

    step N:  parcels, sources, time ─► replica ─► pieces          what its processor remembers, piece by piece
                                              ├─► steps/N/state   what else it remembers, how far channels are read
                                              ╰─► steps/N/outbox  what it has to say to others and to sinks
    renamed into place ─► outbox delivered ─► channels pruned ─► steps before N removed

What was not committed has not happened, as nobody has seen it. A site that starts goes on from its last step, and
delivers its outbox again: parcels and what sinks get have names, so that nothing comes twice. It starts as a new
incarnation (its *life*), since what others had acknowledged is not kept; what it had acknowledged itself is in the
step. A replica that has lost its folder takes the state of a peer.

How is a processor's state written down without writing all of it each time? As a base, and what came in since.

    pieces/B.base       the whole state
    pieces/B.rounds     the inputs of each round since, one behind the other

A machine is deterministic, as replicas need it to be: base and inputs give the state again. A new base is written when
the inputs since the last have become larger than it, so that all in all little more is written than twice what came in,
however large windows are, and a start repeats no more than that.

A step refers to a base and to so many bytes of inputs. What lies behind them belongs to a step that was not committed;
it is written over.
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
from tocsin.overlay.codec import decode, encode
from tocsin.overlay.effects import COUNTED, Meter
from tocsin.overlay.processor import Processor
from tocsin.overlay.replicas.messages import Bundle, Delivered, Gap, Notice
from tocsin.overlay.replicas.replica import Replica, group_of
from tocsin.overlay.replicas.state_machine import FEED, SINK, Inputs, Outputs, Own, stepped
from tocsin.sites.arrivals import Arrivals
from tocsin.sites.channels import OPERATOR, Channels, Parcel, Place, packed, placed, unpacked, written
from tocsin.sites.site_plan import SECOND_US, Plan
from tocsin.sites.sources import Feeding, LiveFeeding

REFERENCE = b"pieces:"
SMALL_BYTES = 64 * 1024
"""Inputs that are not worth a new base."""


class Pieces(Own):
    """A processor whose state is written into a folder, piece by piece."""

    def __init__(self, begin: Callable[[], Processor], folder: Path) -> None:
        super().__init__(begin)
        self.folder = folder
        self.written_bytes = 0
        """By this process."""
        self._base = -1
        """The last one's number; none if what came in does not follow from it."""
        self._follows = False
        self._base_bytes = self._rounds_bytes = 0
        self._new: list[bytes] = []
        """Inputs that are not written down yet."""
        self._referring = False

    def step(self, inputs: Inputs) -> Outputs:
        self._new.append(encode(tuple(inputs)))
        return super().step(inputs)

    def snapshot(self) -> bytes:
        return self._saved() if self._referring else super().snapshot()

    @contextmanager
    def referring(self) -> Iterator[None]:
        """Within, a snapshot is written into the folder, and what one gets refers to it."""
        self._referring = True
        try:
            yield
        finally:
            self._referring = False

    def load(self, data: bytes) -> None:
        self._new, self._follows = [], False
        if not data.startswith(REFERENCE):
            super().load(data)
            return
        told = json.loads(data.removeprefix(REFERENCE))
        self._base, self._rounds_bytes = told["base"], told["bytes"]
        try:
            base, rounds = self._path("base").read_bytes(), self._path("rounds").read_bytes()[: self._rounds_bytes]
        except FileNotFoundError as error:
            raise StateError(f"{error.filename} is missing, without which the last step cannot be read") from None
        super().load(base)
        for inputs in unpacked(rounds):
            stepped(self.processor, inputs)
        self._base_bytes, self._follows = len(base), True

    def clean(self) -> None:
        """A step that refers to the last base is committed: nobody needs those before."""
        for name in os.listdir(self.folder):
            if not name.startswith(f"{self._base:012}."):
                (self.folder / name).unlink()

    def _saved(self) -> bytes:
        size = sum(len(data) + 8 for data in self._new)
        if not self._follows or self._rounds_bytes + size > max(self._base_bytes, SMALL_BYTES):
            self._begin()
        elif size:
            self._append(packed(self._new))
        self._new = []
        return REFERENCE + json.dumps({"base": self._base, "bytes": self._rounds_bytes}).encode()

    def _begin(self) -> None:
        """Writes a new base."""
        self.folder.mkdir(parents=True, exist_ok=True)
        data = super().snapshot()
        self._base += 1
        written(self._path("base"), data)
        written(self._path("rounds"), b"")
        self.written_bytes += len(data)
        self._base_bytes, self._rounds_bytes, self._follows = len(data), 0, True

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
    """One replica of a site. `started_us`: the time at which it is started; `arrivals`: what a live source brings."""

    def __init__(
        self, plan: Plan, name: str, channels: Channels, started_us: int, arrivals: Arrivals | None = None
    ) -> None:
        self.plan, self.name, self.channels = plan, name, channels
        self.site = group_of(name)
        self.folder = plan.hosting.folder / "sites" / name
        live = bool(plan.hosting.live)
        self.feeding = LiveFeeding(plan, name, arrivals) if live else Feeding(plan, self.site)
        self.steps = 0
        """How many steps are committed."""
        self.positions: dict[str, Place] = {}
        self.began_us: int | None = None
        self.meter = Meter(on=True)
        self.sent_bytes: Counter[str] = Counter()
        """By neighbour, all that was sent; and what of it were bundles with events."""
        self.event_bytes: Counter[str] = Counter()
        self.notified: Counter[str] = Counter()
        """Rows for each sink."""
        self.led_us: int | None = None
        """Since when it leads."""
        self._counted: dict[str, int] = {}
        self._greeted = False
        self._now_us = 0
        self._letters: dict[str, list[bytes]] = {}
        self._notices: list[tuple[str, int, bytes]] = []
        self._seeing = ""
        self._begin(started_us)

    # ---- lives

    def _begin(self, started_us: int) -> None:
        committed = self._committed()
        state: dict[str, Any] = {}
        if committed is not None:
            state = decode((committed / "state").read_bytes())
            if state["format"] != FORMAT:
                raise StateError(f"{committed} is of format {state['format']}, and only {FORMAT} can be read")
            self.steps, self.positions, self.began_us = state["steps"], state["positions"], state["began_us"]
            self.meter.messages, self.meter.links = Counter(state["messages"]), Counter(state["links"])
            self.meter.bytes = state["bytes"]
            self.sent_bytes, self.event_bytes = Counter(state["sent_bytes"]), Counter(state["event_bytes"])
            self.notified, self._counted = Counter(state["notified"]), state["counted"]
        self.positions.pop(OPERATOR, None)
        self.life = max(state.get("life", 0) + 1, started_us // SECOND_US)
        kept = state.get("replica")
        new = committed is None and not self.channels.known(self.name)
        self.machine = Pieces(self._processor, self.folder / "pieces")
        self.replica = Replica(
            self.name, self.plan.place(self.site), self.machine, self.plan.hosting.settings,
            incarnation=self.life, begins=new or kept is not None,
        )  # fmt: skip
        if kept is not None:
            self.replica.restore(kept)
        self._follows = not new and bool(self.replica.peers)
        if committed is not None:
            self._deliver(committed)

    def _processor(self) -> Processor:
        plan, joins = self.plan, self.plan.comes(self.site)
        links = {} if joins else plan.begins.links(self.site)
        return Processor(self.site, links, plan.strategy, plan.types, plan.rules, joins=joins)

    def _committed(self) -> Path | None:
        """The last step."""
        steps = self.folder / "steps"
        names = sorted(os.listdir(steps)) if steps.is_dir() else []
        for name in [name for name in names if name[0] == "."]:
            shutil.rmtree(steps / name)
        whole = [name for name in names if name[0] != "."]
        return steps / whole[-1] if whole else None

    # ---- a step

    def step(self, now_us: int, parcels: Sequence[Parcel]) -> None:
        """Takes what has come, and the time, which never runs backwards."""
        self._now_us = now_us = max(self._now_us, now_us)
        replica = self.replica
        if not self._greeted:
            # Nobody is silent yet; and one that was away does not begin by leading.
            self._greeted = True
            replica.elections.elected(replica.peers[0] if self._follows else replica.elections.leader, now_us)
        for parcel in parcels:
            if parcel.place > self.positions.get(parcel.sender, ""):
                self.positions[parcel.sender] = parcel.place
                for message in unpacked(parcel.data):
                    replica.receive(parcel.sender, message, now_us)
        self._collect(now_us)
        self._feed(now_us)
        if now_us >= replica.next_deadline():
            replica.tick(now_us)
        self._collect(now_us)
        self._commit(now_us)

    def _feed(self, now_us: int) -> None:
        """Hands over the batches that the next rounds need."""
        replica = self.replica
        incoming = replica.incoming[FEED + self.site]
        rounds = self.plan.hosting.settings.rounds
        while replica.ready and incoming.upto * rounds <= replica.round:
            number = incoming.upto + 1
            if number == self.feeding.first and self.began_us is None:
                self.began_us = now_us
            if not self.feeding.due(number, self.began_us or 0, now_us):
                if number <= self.feeding.lost:
                    replica.receive(FEED + self.site, Gap((FEED + self.site, self.site), self.feeding.lost), now_us)
                return
            bundle = Bundle((FEED + self.site, self.site), number, self.feeding.parts(number))
            replica.receive(FEED + self.site, bundle, now_us)
            self._collect(now_us)
            incoming = replica.incoming[FEED + self.site]

    def _collect(self, now_us: int) -> None:
        """Empties the outbox. What a sink gets is written with the step, which acknowledges it."""
        replica, encoded = self.replica, dict[int, bytes]()
        while replica.outbox:
            sent, replica.outbox = replica.outbox, []
            for receiver, message in sent:
                group = group_of(receiver)
                if receiver.startswith(FEED):
                    continue
                if receiver.startswith(SINK):
                    if isinstance(message, Bundle):
                        self._notify(group.removeprefix(SINK), message)
                        replica.receive(receiver, Delivered(message.stream, message.number, 0), now_us)
                    continue
                if id(message) not in encoded:
                    encoded[id(message)] = encode(message)
                data = encoded[id(message)]
                self._letters.setdefault(receiver, []).append(data)
                self.sent_bytes[group] += len(data) + 8
                if isinstance(message, Bundle):
                    self._count(group, message, len(data))

    def _notify(self, sink: str, bundle: Bundle) -> None:
        rows = [row for part in bundle.parts if isinstance(part, Notice) for row in records(part.batch)]
        lines = [json.dumps({name: value for name, value in row.items() if value is not None}) + "\n" for row in rows]
        self.notified[sink] += len(rows)
        self._notices.append((sink, bundle.number, "".join(lines).encode()))

    def _count(self, group: str, bundle: Bundle, size: int) -> None:
        """Traffic is what the group says, however many replicas it is sent to."""
        if bundle.number <= self._counted.get(group, -1):
            return
        self._counted[group] = bundle.number
        for part in bundle.parts:
            self.meter.watch(self.site, group, part)  # type: ignore[arg-type]
        if any(type(part).__name__ in COUNTED for part in bundle.parts):
            self.event_bytes[group] += size
        self.meter.settle()

    # ---- committing

    def _commit(self, now_us: int) -> None:
        replica = self.replica
        self.led_us = (self.led_us or now_us) if replica.leading else None
        seen = f"{replica.round} {replica.ready} {replica.lacking} {self.positions}"
        if not self._letters and not self._notices and seen == self._seeing:
            return  # nothing has happened
        self._seeing = seen
        with self.machine.referring():
            kept = replica.snapshot() if replica.ready else None
        state = {
            "format": FORMAT, "steps": self.steps + 1, "life": self.life, "positions": self.positions,
            "began_us": self.began_us, "replica": kept,
            "messages": dict(self.meter.messages), "links": dict(self.meter.links), "bytes": self.meter.bytes,
            "sent_bytes": dict(self.sent_bytes), "event_bytes": dict(self.event_bytes),
            "notified": dict(self.notified), "counted": self._counted,
        }  # fmt: skip
        letters = tuple((receiver, packed(messages)) for receiver, messages in self._letters.items())
        outbox = {"place": placed(self.life, self.steps), "letters": letters, "notices": tuple(self._notices)}
        steps = self.folder / "steps"
        fresh = steps / f".{self.steps:012}"
        fresh.mkdir(parents=True)
        written(fresh / "state", encode(state))
        written(fresh / "outbox", encode(outbox))
        committed = steps / f"{self.steps:012}"
        fresh.rename(committed)
        self.steps, self._letters, self._notices = self.steps + 1, {}, []
        self._deliver(committed)
        if replica.ready:
            self.machine.clean()
            self.feeding.taken(replica.incoming[FEED + self.site].upto)

    def _deliver(self, committed: Path) -> None:
        outbox = decode((committed / "outbox").read_bytes())
        for sink, number, data in outbox["notices"]:
            folder = sink_folder(self.plan.hosting.folder, sink)
            folder.mkdir(parents=True, exist_ok=True)
            written(folder / f"{number:09}.jsonl", data, once=True)
        place = outbox["place"]
        self.channels.prune(self.name, self.positions)
        self.channels.post([Parcel(self.name, receiver, place, data) for receiver, data in outbox["letters"]])
        for name in os.listdir(committed.parent):
            if name != committed.name:
                shutil.rmtree(committed.parent / name)

    # ---- for those who watch

    def status(self, now_us: int) -> Mapping[str, Any]:
        """How it is doing."""
        replica, meter = self.replica, self.meter
        return {
            "name": self.name,
            "site": self.site,
            "now_us": now_us,
            "life": self.life,
            "steps": self.steps,
            "ready": replica.ready,
            "leading": replica.leading,
            "led_us": self.led_us,
            "round": replica.round,
            "rounds": self.feeding.rounds,
            "messages": dict(meter.messages),
            "traffic": meter.traffic,
            "links": {there: count for (_, there), count in meter.links.items()},
            "sent_bytes": dict(self.sent_bytes),
            "event_bytes": dict(self.event_bytes),
            "notified": dict(self.notified),
            "refused": self.feeding.refused,
            "written_bytes": self.machine.written_bytes,
            "queued": max((len(queue.kept) for queue in replica.outgoing.values()), default=0),
            "full": self._unheard() if replica.sending.full else [],
            "lost": str(replica.lost) if replica.lost else None,
            "waits_for": self._waits_for(),
            "lives": {name: known[0] for queue in replica.outgoing.values() for name, known in queue.acked.items()},
        }

    def _waits_for(self) -> list[str]:
        """The neighbours without whose next bundle there is no next round."""
        replica = self.replica
        return [there for there in replica.place.neighbours if replica.incoming[there].upto < replica.round - 1]

    def _unheard(self) -> list[str]:
        """Those whose acknowledgements keep queues from being pruned."""
        queues = self.replica.outgoing.values()
        return sorted(
            receiver
            for queue in queues
            for receiver in queue.receivers
            if receiver not in queue.gone and queue.acked.get(receiver, (0, queue.floor))[1] <= queue.floor < queue.last
        )


def sink_folder(folder: Path, sink: str) -> Path:
    """Where what a sink gets is written: one file of JSON lines for each bundle, by number."""
    return folder / "sinks" / sink.replace("/", "--")


def received(folder: Path, sink: str) -> list[dict[str, Any]]:
    """What a sink has got, in order."""
    files = sorted(sink_folder(folder, sink).glob("*.jsonl"))
    return [json.loads(line) for file in files for line in file.read_text(encoding="utf-8").splitlines()]
