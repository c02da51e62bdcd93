"""One replica of a processor: a state machine that its host feeds with messages and whose outbox it empties.

    bundles in ─► Incoming, by stream ─► rounds ─► machine ─► Outgoing, by stream ─► sent by leaders, kept by all

Nothing here reads a clock: `now` is the host's, and decides only when something is said, never what follows from it.
A replica that starts with nothing asks its peers for their state, one after another, and says nothing else until then.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tocsin.overlay.codec import decode, encode
from tocsin.overlay.replicas import messages as r
from tocsin.overlay.replicas.elections import Elections
from tocsin.overlay.replicas.ends import FEED
from tocsin.overlay.replicas.machines import Machine
from tocsin.overlay.replicas.queues import Incoming, Outgoing
from tocsin.overlay.replicas.sending import Sending, Settings


@dataclass(frozen=True)
class Place:
    """Where a replica stands: its group's replicas, those of neighbouring groups, and the group's sinks."""

    group: str
    replicas: tuple[str, ...]
    neighbours: Mapping[str, tuple[str, ...]]
    sinks: tuple[str, ...] = ()


class Replica:
    """A replica. `incarnation`: how often it was started before; `begins`: it has the state that all begin with."""

    Incoming = Incoming
    Outgoing = Outgoing

    def __init__(
        self,
        name: str,
        place: Place,
        machine: Machine,
        settings: Settings,
        *,
        incarnation: int = 0,
        begins: bool = True,
    ) -> None:
        self.name, self.place, self.machine, self.settings = name, place, machine, settings
        self.incarnation, self.ready = incarnation, begins
        self.peers = tuple(peer for peer in place.replicas if peer != name)
        self.outbox: list[tuple[str, r.Replicated]] = []
        self.round = 0
        self.rounds_of: dict[str, int] = {}
        """How far each peer said it was."""
        self.unanswered = 0
        """How often peers were asked for their state since something came of it."""
        self._feed = FEED + place.group
        self._neighbours = sorted(place.neighbours)
        groups = [self._feed, *self._neighbours]
        self.incoming = {group: self.Incoming((group, place.group), settings.inbox_max) for group in groups}
        targets = {**place.neighbours, **{sink: (sink,) for sink in place.sinks}}
        self.outgoing = {to: self.Outgoing((place.group, to), receivers) for to, receivers in targets.items()}
        self.sending = Sending(self.outgoing, self._send, settings)
        self.elections = Elections(
            name, self.peers, self._send, settings.suspect_us, settings.vote_us, place.replicas[0]
        )  # fmt: skip
        self._senders: dict[str, set[str]] = {group: set() for group in groups}
        """Who sent bundles since they were last acknowledged."""
        self._previous: dict[str, str] = {}
        """Who last sent bundles of a stream."""
        self._led = False
        self._lacking = False
        self._next_us = 0
        self._prunes_us = 0
        self._behind_us: int | None = None
        if not begins:
            self._announce()

    @property
    def leading(self) -> bool:
        return self.ready and self.elections.leading

    @property
    def lost(self) -> str | None:
        """What keeps it from going on, if no peer helps."""
        if self.unanswered <= 2 * len(self.peers):
            return None
        what = "what it lacks has been pruned" if self.ready else "it has no state"
        return f"{self.name}: {what}, and none of its {len(self.peers)} peers answers"

    def _send(self, receiver: str, message: r.Replicated) -> None:
        self.outbox.append((receiver, message))

    # ---- the host's side

    def receive(self, sender: str, message: r.Replicated, now: int) -> None:
        """Takes a message."""
        handler = _HANDLERS.get(type(message))
        if handler is not None and (self.ready or type(message) in _ALWAYS):
            handler(self, sender, message, now)
            self._go_on(now)

    def next_deadline(self) -> int:
        return self._next_us

    def tick(self, now: int) -> None:
        """Heartbeats, acknowledgements, elections, and what is due."""
        self._next_us = now + self.settings.beat_us
        if not self.ready or self._lacking:
            self._ask()
        if not self.ready:
            return
        self.elections.tick(now)
        self._go_on(now)
        prunes = now >= self._prunes_us
        if prunes:
            self._prunes_us = now + self.settings.prune_us
            self._acknowledge()
        self._beat(prunes)
        self._complain(now)
        if self.leading:
            self.sending.tick(now)
            self.sending.flush(now)
        if self._previous:
            self._send(
                self._previous[min(self._previous, key=lambda group: (group == self._feed, group))], r.Probe(now)
            )

    # ---- rounds

    def _go_on(self, now: int) -> None:
        """Runs the rounds that can be run; a leader sends."""
        ran = False
        while self.ready and self._complete() and not self.sending.full:
            self._run()
            ran = True
        if self.leading != self._led:
            self._led = self.leading
            if self._led:
                self.sending.begin(now)
        if self._led and ran:
            self.sending.flush(now)

    def _complete(self) -> bool:
        """Whether all that belongs to the round is there."""
        if self.round % self.settings.rounds == 0:
            feed = self.incoming[self._feed]
            if feed.upto * self.settings.rounds < self.round:
                return False
        return all(self.incoming[group].upto >= self.round - 1 for group in self._neighbours)

    def _run(self) -> None:
        inputs: list[tuple[str, Any]] = []
        if self.round % self.settings.rounds == 0:
            inputs += [("", part) for bundle in self.incoming[self._feed].take() for part in bundle.parts]
        if self.round > 0:
            for group in self._neighbours:
                inputs += [(group, part) for bundle in self.incoming[group].take() for part in bundle.parts]
        outputs = self.machine.step(inputs) if inputs else {}
        for target, queue in self.outgoing.items():
            parts = tuple(outputs.get(target, ()))
            if parts or target in self.place.neighbours:
                queue.enqueue(r.Bundle(queue.stream, queue.last + 1, parts))
        self.round += 1

    def _bundle(self, sender: str, message: r.Bundle, now: int) -> None:
        group = message.stream[0]
        self._senders[group].add(sender)
        self._previous[group] = sender
        self.incoming[group].accept(message)

    # ---- acknowledgements

    def _delivered(self, sender: str, message: r.Delivered, now: int) -> None:
        if self.sending.delivered(sender, message, now) and self.leading:
            self.sending.flush(now)

    def _acknowledge(self) -> None:
        for group, senders in self._senders.items():
            incoming = self.incoming[group]
            for sender in sorted(senders):
                self._send(sender, r.Delivered(incoming.stream, incoming.upto, self.incarnation))
            senders.clear()

    def _announce(self) -> None:
        """Tells all that may ever send to it who it is now and what it has."""
        for group, incoming in self.incoming.items():
            for sender in (group,) if group == self._feed else self.place.neighbours[group]:
                self._send(sender, r.Delivered(incoming.stream, incoming.upto, self.incarnation))

    def _gap(self, sender: str, message: r.Gap, now: int) -> None:
        if message.floor > self.incoming[message.stream[0]].upto:
            self._lacking = True

    def _gone(self, sender: str, message: r.Gone, now: int) -> None:
        for queue in self.outgoing.values():
            queue.leave_out(message.replica)

    # ---- peers

    def _beat(self, prunes: bool) -> None:
        told = self.outgoing.items() if prunes and self.leading else ()
        floors = tuple((target, queue.floor) for target, queue in told)
        beat = r.Heartbeat(self.incarnation, self.leading, self.round, self.elections.latency_us, floors)
        for peer in self.peers:
            self._send(peer, beat)

    def _heartbeat(self, sender: str, message: r.Heartbeat, now: int) -> None:
        self.rounds_of[sender] = message.round
        for target, floor in message.floors:
            self.outgoing[target].prune(floor)
        self.elections.beat(sender, message, now)

    def _complain(self, now: int) -> None:
        """One that stays behind its peers cannot receive: it says so of itself, and of those it should hear from."""
        if max(self.rounds_of.values(), default=0) <= self.round + 1:
            self._behind_us = None
            return
        self._behind_us = now if self._behind_us is None else self._behind_us
        if now - self._behind_us <= self.settings.resend_us:
            return
        self._behind_us = now
        if self.leading:
            for peer in self.peers:
                self._send(peer, r.LeaderDead(self.name))
        for group in self._neighbours:
            if self.incoming[group].upto < self.round - 1 and group in self._previous:
                accused = self._previous[group]
                for replica in self.place.neighbours[group]:
                    if replica != accused:
                        self._send(replica, r.LeaderDead(accused))

    def _probe(self, sender: str, message: r.Probe, now: int) -> None:
        self._send(sender, r.Echo(message.sent_us))

    def _echo(self, sender: str, message: r.Echo, now: int) -> None:
        measured_us = (now - message.sent_us) // 2
        known_us = self.elections.latency_us
        self.elections.latency_us = (3 * known_us + measured_us) // 4 if known_us else measured_us

    # ---- states

    def _ask(self) -> None:
        if self.peers:
            self._send(self.peers[self.unanswered % len(self.peers)], r.Rejoin(self.incarnation))
        self.unanswered += 1

    def _rejoin(self, sender: str, message: r.Rejoin, now: int) -> None:
        self._send(sender, r.State(message.incarnation, self.snapshot()))

    def snapshot(self) -> bytes:
        """All that another replica of the group needs to go on from here."""
        queued = {
            to: (queue.floor, queue.last, tuple(queue.kept.values()), tuple(sorted(queue.gone)))
            for to, queue in self.outgoing.items()
        }
        taken = {group: (one.done, tuple(one.bundles.values())) for group, one in self.incoming.items()}
        state = {"round": self.round, "machine": self.machine.snapshot(), "incoming": taken, "outgoing": queued}
        return self._write(state)

    def _state(self, sender: str, message: r.State, now: int) -> None:
        if message.incarnation != self.incarnation or (self.ready and not self._lacking):
            return
        state = self._read(message.data)
        if self.ready and state["round"] <= self.round:
            return
        self.load(state)
        self.elections.elected(sender if self.elections.leader == self.name else self.elections.leader, now)

    def _write(self, state: Mapping[str, Any]) -> bytes:
        return encode(state)

    def _read(self, data: bytes) -> Mapping[str, Any]:
        found: Mapping[str, Any] = decode(data)
        return found

    def restore(self, data: bytes) -> None:
        """Goes on from a snapshot of its own, as a new incarnation."""
        self.load(self._read(data))

    def load(self, state: Mapping[str, Any]) -> None:
        """Goes on from a state."""
        self.round = state["round"]
        self.machine.load(state["machine"])
        for group, (done, bundles) in state["incoming"].items():
            self.incoming[group] = incoming = self.Incoming(
                (group, self.place.group), self.settings.inbox_max, done=done
            )
            incoming.bundles = {bundle.number: bundle for bundle in bundles}
            incoming.upto = done + len(bundles)
        for target, (floor, last, kept, gone) in state["outgoing"].items():
            queue = self.outgoing[target]
            queue.floor, queue.last, queue.kept = floor, last, {bundle.number: bundle for bundle in kept}
            queue.gone = set(gone)
            queue.sent.clear()
        self.ready, self._lacking, self.unanswered, self._led = True, False, 0, False
        self._announce()

    # ---- elections

    def _election(self, sender: str, message: r.Election, now: int) -> None:
        self.elections.asked(sender, message)

    def _vote(self, sender: str, message: r.Vote, now: int) -> None:
        self.elections.voted(sender, message)

    def _elected(self, sender: str, message: r.Elected, now: int) -> None:
        self.elections.elected(message.leader, now)

    def _leader_dead(self, sender: str, message: r.LeaderDead, now: int) -> None:
        self.elections.accused(message, now)


def group_of(name: str) -> str:
    """The group of a replica: `3#1` is of 3; feeds and drains are groups of their own."""
    return name.partition("#")[0]


def named(group: str, count: int) -> tuple[str, ...]:
    """The names of a group's replicas."""
    return tuple(f"{group}#{number}" for number in range(count))


_HANDLERS: dict[type, Callable[[Replica, str, Any, int], None]] = {
    r.Bundle: Replica._bundle,
    r.Delivered: Replica._delivered,
    r.Gap: Replica._gap,
    r.Gone: Replica._gone,
    r.Heartbeat: Replica._heartbeat,
    r.Probe: Replica._probe,
    r.Echo: Replica._echo,
    r.Rejoin: Replica._rejoin,
    r.State: Replica._state,
    r.Election: Replica._election,
    r.Vote: Replica._vote,
    r.Elected: Replica._elected,
    r.LeaderDead: Replica._leader_dead,
}
_ALWAYS: Sequence[type] = (r.State, r.Probe)
"""What a replica without state looks at."""
