"""One replica of a processor: a state machine that its host feeds with messages and whose outbox it empties.

    bundles in ─► Incoming, by stream ─► rounds ─► machine ─► Outgoing, by stream ─► sent by leaders, kept by all

Nothing here reads a clock: `now` is the host's, and decides only when something is said, never what follows from it.
How a replica that starts with nothing gets a state is told in `members`.

Who leads? A failure detector by heartbeats, and a vote: least latency to the previous node, then least name.

There may be no leader for a while, and there may be several: replicas need not agree. What is needed is that a correct
replica that hears of no leader votes again, and leads if nobody better answers. Two leaders that hear each other's
heartbeats become one. Of two elections the one whose starter has the lesser name goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tocsin.overlay.replicas import messages as r
from tocsin.overlay.replicas.catch_up import STATES, Handler, Member
from tocsin.overlay.replicas.messages import Elected, Election, Heartbeat, LeaderDead, Replicated, Vote
from tocsin.overlay.replicas.queues import Outgoing, Sending, Settings
from tocsin.overlay.replicas.state_machine import FEED, Machine

Rank = tuple[int, str]


@dataclass
class Elections:
    """One replica's view."""

    name: str
    peers: Sequence[str]
    send: Callable[[str, Replicated], None]
    suspect_us: int
    vote_us: int
    leader: str
    latency_us: int = 0
    heard_us: dict[str, int] = field(default_factory=dict)
    """When each peer was last heard to lead."""
    held: int = 0
    """How many elections were started here."""
    _votes: dict[str, Rank] = field(default_factory=dict)
    _excluded: str | None = None
    _closes_us: int | None = None

    @property
    def leading(self) -> bool:
        return self.leader == self.name

    def start(self, now: int, excluded: str | None) -> None:
        """Asks for votes, for somebody else than the one who is thought dead."""
        if self._closes_us is not None:
            return
        self.held += 1
        self._votes = {self.name: (self.latency_us, self.name)}
        self._excluded, self._closes_us = excluded, now + self.vote_us
        for peer in self.peers:
            self.send(peer, Election(self.held))

    def asked(self, sender: str, message: Election) -> None:
        """Somebody asks for votes; he who has the lesser name goes on."""
        if self._closes_us is not None and self.name < sender:
            return
        self._closes_us = None
        self.send(sender, Vote(message.number, self.latency_us))

    def voted(self, sender: str, message: Vote) -> None:
        if self._closes_us is not None and message.number == self.held:
            self._votes[sender] = (message.latency_us, sender)

    def elected(self, leader: str, now: int) -> None:
        self._closes_us = None
        self.leader = leader
        self.heard_us[leader] = now

    def accused(self, message: LeaderDead, now: int) -> None:
        """Somebody thinks the leader is dead."""
        if message.accused == self.leader:
            self.start(now, message.accused)

    def beat(self, sender: str, message: Heartbeat, now: int) -> None:
        """A peer lives; of two leaders the worse stops."""
        if not message.leading:
            if self.leader == sender and self.silent(sender, now):
                self.start(now, None)
            return
        self.heard_us[sender] = now
        mine = self.leading and (self.latency_us, self.name) < (message.latency_us, sender)
        if sender != self.leader and not mine and (self.leading or self.silent(self.leader, now)):
            self.leader = sender

    def silent(self, peer: str, now: int) -> bool:
        return now - self.heard_us.get(peer, 0) > self.suspect_us

    def tick(self, now: int) -> None:
        """Closes an election, or starts one if the leader is silent."""
        if self._closes_us is not None and now >= self._closes_us:
            fit = {name: rank for name, rank in self._votes.items() if name != self._excluded} or self._votes
            best = min(fit, key=lambda name: fit[name])
            for peer in self.peers:
                self.send(peer, Elected(best))
            self.elected(best, now)
        elif self._closes_us is None and not self.leading and self.silent(self.leader, now):
            self.start(now, self.leader)


@dataclass(frozen=True)
class Place:
    """Where a replica stands: its group's replicas, those of neighbouring groups, and the group's sinks, each with
    those that stand for it."""

    group: str
    replicas: tuple[str, ...]
    neighbours: Mapping[str, tuple[str, ...]]
    sinks: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


class Replica(Member):
    """A replica of a processor."""

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
        self._feed = FEED + place.group
        self._neighbours = sorted(place.neighbours)
        senders = {self._feed: (self._feed,), **{group: place.neighbours[group] for group in self._neighbours}}
        super().__init__(
            name, place.replicas, senders, settings.inbox_max, incarnation=incarnation, begins=begins
        )  # fmt: skip
        self.place, self.machine, self.settings = place, machine, settings
        self.round = 0
        self.rounds_of: dict[str, int] = {}
        """How far each peer said it was."""
        targets = {**place.neighbours, **place.sinks}
        self.outgoing = {to: self.Outgoing((place.group, to), receivers) for to, receivers in targets.items()}
        self.sending = Sending(self.outgoing, self.send, settings)
        self.elections = Elections(
            name, self.peers, self.send, settings.suspect_us, settings.vote_us, place.replicas[0]
        )  # fmt: skip
        self._recent: dict[str, set[str]] = {group: set() for group in senders}
        """Who sent bundles since they were last acknowledged."""
        self._previous: dict[str, str] = {}
        """Who last sent bundles of a stream."""
        self._led = False
        self._next_us = 0
        self._prunes_us = 0
        self._behind_us: int | None = None

    @property
    def leading(self) -> bool:
        return self.ready and self.elections.leading

    # ---- the host's side

    def receive(self, sender: str, message: r.Replicated, now: int) -> None:
        """Takes a message."""
        super().receive(sender, message, now)
        self._go_on(now)

    def next_deadline(self) -> int:
        return self._next_us

    def tick(self, now: int) -> None:
        """Heartbeats, acknowledgements, elections, and what is due."""
        self._next_us = now + self.settings.beat_us
        self.ask()
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
        if self._previous and prunes:
            self.send(self._previous[min(self._previous, key=lambda group: (group == self._feed, group))], r.Probe(now))

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
        self._recent[group].add(sender)
        self._previous[group] = sender
        self.incoming[group].accept(message)

    # ---- acknowledgements

    def _delivered(self, sender: str, message: r.Delivered, now: int) -> None:
        self.sending.delivered(sender, message, now)
        if message.anew and self.leading:
            self.sending.flush(now)

    def _acknowledge(self) -> None:
        for group, senders in self._recent.items():
            incoming = self.incoming[group]
            for sender in sorted(senders):
                self.send(sender, r.Delivered(incoming.stream, incoming.upto, self.incarnation))
            senders.clear()

    def _gone(self, sender: str, message: r.Gone, now: int) -> None:
        for queue in self.outgoing.values():
            queue.leave_out(message.replica, back=message.back)

    # ---- peers

    def _beat(self, prunes: bool) -> None:
        """A leader says that it lives; now and then followers say so too."""
        if not prunes and not self.leading:
            return
        told = self.outgoing.items() if prunes and self.leading else ()
        floors = tuple((target, queue.floor) for target, queue in told)
        beat = r.Heartbeat(self.incarnation, self.leading, self.round, self.elections.latency_us, floors)
        for peer in self.peers:
            self.send(peer, beat)

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
                self.send(peer, r.LeaderDead(self.name))
        for group in self._neighbours:
            if self.incoming[group].upto < self.round - 1 and group in self._previous:
                accused = self._previous[group]
                for replica in self.place.neighbours[group]:
                    if replica != accused:
                        self.send(replica, r.LeaderDead(accused))

    def _echo(self, sender: str, message: r.Echo, now: int) -> None:
        measured_us = (now - message.sent_us) // 2
        known_us = self.elections.latency_us
        self.elections.latency_us = (3 * known_us + measured_us) // 4 if known_us else measured_us

    # ---- states

    @property
    def position(self) -> int:
        return self.round

    def state(self) -> dict[str, Any]:
        queued = {to: (queue.floor, queue.last, tuple(queue.kept.values())) for to, queue in self.outgoing.items()}
        return {"machine": self.machine.snapshot(), "outgoing": queued}

    def load(self, state: Mapping[str, Any]) -> None:
        self.round = state["position"]
        self.machine.load(state["machine"])
        for target, (floor, last, kept) in state["outgoing"].items():
            queue = self.outgoing[target]
            queue.floor, queue.last, queue.kept = floor, last, {bundle.number: bundle for bundle in kept}
            queue.sent.clear()
        self._led = False

    def caught_up(self, peer: str, now: int) -> None:
        self.elections.elected(peer if self.elections.leader == self.name else self.elections.leader, now)

    # ---- elections

    def _election(self, sender: str, message: r.Election, now: int) -> None:
        self.elections.asked(sender, message)

    def _vote(self, sender: str, message: r.Vote, now: int) -> None:
        self.elections.voted(sender, message)

    def _elected(self, sender: str, message: r.Elected, now: int) -> None:
        self.elections.elected(message.leader, now)

    def _leader_dead(self, sender: str, message: r.LeaderDead, now: int) -> None:
        self.elections.accused(message, now)

    HANDLERS: Mapping[type, Handler] = {
        **STATES,
        r.Bundle: _bundle,
        r.Delivered: _delivered,
        r.Gone: _gone,
        r.Heartbeat: _heartbeat,
        r.Echo: _echo,
        r.Election: _election,
        r.Vote: _vote,
        r.Elected: _elected,
        r.LeaderDead: _leader_dead,
    }


def group_of(name: str) -> str:
    """The group of a replica: `3#1` is of 3, `sink:3/door#1` of sink:3/door; a feed is a group of its own."""
    return name.partition("#")[0]


def named(group: str, count: int) -> tuple[str, ...]:
    """The names of a group's replicas."""
    return tuple(f"{group}#{number}" for number in range(count))
