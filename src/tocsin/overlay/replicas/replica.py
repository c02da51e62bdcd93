"""Run a replica of a processor in rounds, and elect the leaders of its group.

    batches in ─► Incoming, by stream ─► rounds ─► state machine ─► Outgoing, by stream ─► sent by leaders, kept by all

The host passes messages to `receive`, calls `tick` regularly, and sends the messages in `outbox`. The module reads no
clock: the host passes the time as `now`, which decides only when a message is sent, never its content. `catch_up`
restores a replica that starts without state.

Failures of leaders are detected by missing heartbeats. A new leader is elected by votes: the replica with the lowest
latency to the previous node wins, and with equal latencies the one with the lowest name. For a while there may be no
leader or several leaders, because replicas need not agree. A replica that hears of no leader starts an election, and
becomes the leader if no better replica answers. If two leaders hear each other's heartbeats, one of them stops. If two
replicas start elections, that of the replica with the lower name continues.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tocsin.overlay.replicas import messages as r
from tocsin.overlay.replicas.catch_up import MEMBER_HANDLERS, Handler, Member
from tocsin.overlay.replicas.messages import Elected, Election, Heartbeat, LeaderDead, Replicated, Vote
from tocsin.overlay.replicas.queues import Outgoing, Sending, Settings
from tocsin.overlay.replicas.state_machine import SOURCE, StateMachine

Rank = tuple[int, str]


@dataclass
class Elections:
    """The election of a leader, as one replica sees it."""

    name: str
    peers: Sequence[str]
    send: Callable[[str, Replicated], None]
    suspect_us: int
    vote_us: int
    leader: str
    latency_us: int = 0
    heard_us: dict[str, int] = field(default_factory=dict)
    """The time at which each peer was last known to lead."""
    started: int = 0
    """The number of elections that this replica has started."""
    _votes: dict[str, Rank] = field(default_factory=dict)
    _excluded: str | None = None
    _closes_us: int | None = None

    @property
    def leading(self) -> bool:
        return self.leader == self.name

    def start(self, now: int, excluded: str | None) -> None:
        """Ask all peers for votes; the suspected replica `excluded` is not elected if another one has voted."""
        if self._closes_us is not None:
            return
        self.started += 1
        self._votes = {self.name: (self.latency_us, self.name)}
        self._excluded, self._closes_us = excluded, now + self.vote_us
        for peer in self.peers:
            self.send(peer, Election(self.started))

    def asked(self, sender: str, message: Election) -> None:
        """Vote in the election of `sender`; ignore it if an own election runs and this replica has the lower name."""
        if self._closes_us is not None and self.name < sender:
            return
        self._closes_us = None
        self.send(sender, Vote(message.number, self.latency_us))

    def voted(self, sender: str, message: Vote) -> None:
        if self._closes_us is not None and message.number == self.started:
            self._votes[sender] = (message.latency_us, sender)

    def elected(self, leader: str, now: int) -> None:
        self._closes_us = None
        self.leader = leader
        self.heard_us[leader] = now

    def accused(self, message: LeaderDead, now: int) -> None:
        """Start an election if the replica that a peer suspects is the leader."""
        if message.accused == self.leader:
            self.start(now, message.accused)

    def beat(self, sender: str, message: Heartbeat, now: int) -> None:
        """Process a heartbeat of a peer; if both lead, the replica with the higher latency stops."""
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
        """Announce the result of a running election when its time is over; start one if the leader is silent."""
        if self._closes_us is not None and now >= self._closes_us:
            fit = {name: rank for name, rank in self._votes.items() if name != self._excluded} or self._votes
            best = min(fit, key=lambda name: fit[name])
            for peer in self.peers:
                self.send(peer, Elected(best))
            self.elected(best, now)
        elif self._closes_us is None and not self.leading and self.silent(self.leader, now):
            self.start(now, self.leader)


@dataclass(frozen=True)
class GroupTopology:
    """The names of the replicas of a group, of each neighbouring group, and of each sink of the group."""

    group: str
    replicas: tuple[str, ...]
    neighbours: Mapping[str, tuple[str, ...]]
    sinks: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


class Replica(Member):
    """A replica of a processor, which runs `machine` in rounds and sends its outputs while it is the leader."""

    Outgoing = Outgoing

    def __init__(
        self,
        name: str,
        topology: GroupTopology,
        machine: StateMachine,
        settings: Settings,
        *,
        incarnation: int = 0,
        begins: bool = True,
    ) -> None:
        self._source = SOURCE + topology.group
        self._neighbours = sorted(topology.neighbours)
        senders = {self._source: (self._source,), **{group: topology.neighbours[group] for group in self._neighbours}}
        super().__init__(
            name, topology.replicas, senders, settings.inbox_max, incarnation=incarnation, begins=begins
        )  # fmt: skip
        self.topology, self.machine, self.settings = topology, machine, settings
        self.round = 0
        self.peer_rounds: dict[str, int] = {}
        """The round that each peer last reported."""
        targets = {**topology.neighbours, **topology.sinks}
        self.outgoing = {to: self.Outgoing((topology.group, to), receivers) for to, receivers in targets.items()}
        self.sending = Sending(self.outgoing, self.send, settings)
        self.elections = Elections(
            name, self.peers, self.send, settings.suspect_us, settings.vote_us, topology.replicas[0]
        )  # fmt: skip
        self._recent: dict[str, set[str]] = {group: set() for group in senders}
        """For each sending group, the replicas whose batches were not acknowledged yet."""
        self._previous: dict[str, str] = {}
        """For each sending group, the replica that sent the last batch."""
        self._led = False
        self._next_us = 0
        self._prunes_us = 0
        self._behind_us: int | None = None

    @property
    def leading(self) -> bool:
        return self.ready and self.elections.leading

    # ---- called by the host

    def receive(self, sender: str, message: r.Replicated, now: int) -> None:
        """Process a message, then run all rounds that have become possible."""
        super().receive(sender, message, now)
        self._go_on(now)

    def next_deadline(self) -> int:
        return self._next_us

    def tick(self, now: int) -> None:
        """Send heartbeats, acknowledgements and due batches; advance elections; ask for a state if one is needed."""
        self._next_us = now + self.settings.beat_us
        self.request_state()
        if not self.ready:
            return
        self.elections.tick(now)
        self._go_on(now)
        prunes = now >= self._prunes_us
        if prunes:
            self._prunes_us = now + self.settings.prune_us
            self._acknowledge()
        self._beat(prunes)
        self._report_lag(now)
        if self.leading:
            self.sending.tick(now)
            self.sending.flush(now)
        if self._previous and prunes:
            self.send(
                self._previous[min(self._previous, key=lambda group: (group == self._source, group))], r.Probe(now)
            )

    # ---- rounds

    def _go_on(self, now: int) -> None:
        """Run all rounds whose inputs are complete; as a leader, send the new batches."""
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
        """Return whether all inputs of the next round have come."""
        if self.round % self.settings.rounds == 0:
            feed = self.incoming[self._source]
            if feed.upto * self.settings.rounds < self.round:
                return False
        return all(self.incoming[group].upto >= self.round - 1 for group in self._neighbours)

    def _run(self) -> None:
        inputs: list[tuple[str, Any]] = []
        if self.round % self.settings.rounds == 0:
            inputs += [("", part) for batch in self.incoming[self._source].take() for part in batch.parts]
        if self.round > 0:
            for group in self._neighbours:
                inputs += [(group, part) for batch in self.incoming[group].take() for part in batch.parts]
        outputs = self.machine.step(inputs) if inputs else {}
        for target, queue in self.outgoing.items():
            parts = tuple(outputs.get(target, ()))
            if parts or target in self.topology.neighbours:
                queue.enqueue(r.RoundBatch(queue.stream, queue.last + 1, parts))
        self.round += 1

    def _receive_batch(self, sender: str, message: r.RoundBatch, now: int) -> None:
        group = message.stream[0]
        self._recent[group].add(sender)
        self._previous[group] = sender
        self.incoming[group].accept(message)

    # ---- acknowledgements

    def _delivered(self, sender: str, message: r.Acknowledgement, now: int) -> None:
        self.sending.delivered(sender, message, now)
        if message.restarted and self.leading:
            self.sending.flush(now)

    def _acknowledge(self) -> None:
        for group, senders in self._recent.items():
            incoming = self.incoming[group]
            for sender in sorted(senders):
                self.send(sender, r.Acknowledgement(incoming.stream, incoming.upto, self.incarnation))
            senders.clear()

    def _gone(self, sender: str, message: r.Decommissioned, now: int) -> None:
        for queue in self.outgoing.values():
            queue.leave_out(message.replica, back=message.back)

    # ---- peers

    def _beat(self, prunes: bool) -> None:
        """Send a heartbeat to all peers: leaders always, followers only if `prunes`."""
        if not prunes and not self.leading:
            return
        reported = self.outgoing.items() if prunes and self.leading else ()
        floors = tuple((target, queue.floor) for target, queue in reported)
        beat = r.Heartbeat(self.incarnation, self.leading, self.round, self.elections.latency_us, floors)
        for peer in self.peers:
            self.send(peer, beat)

    def _heartbeat(self, sender: str, message: r.Heartbeat, now: int) -> None:
        self.peer_rounds[sender] = message.round
        for target, floor in message.floors:
            self.outgoing[target].prune(floor)
        self.elections.beat(sender, message, now)

    def _report_lag(self, now: int) -> None:
        """If this replica lags behind its peers for too long, report suspected failures.

        A leader reports itself to its peers. A replica that lacks batches of a group reports the last sender of that
        group to the sender's peers.
        """
        if max(self.peer_rounds.values(), default=0) <= self.round + 1:
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
                for replica in self.topology.neighbours[group]:
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
            queue.floor, queue.last, queue.kept = floor, last, {batch.number: batch for batch in kept}
            queue.sent.clear()
        self._led = False

    def on_caught_up(self, peer: str, now: int) -> None:
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
        **MEMBER_HANDLERS,
        r.RoundBatch: _receive_batch,
        r.Acknowledgement: _delivered,
        r.Decommissioned: _gone,
        r.Heartbeat: _heartbeat,
        r.Echo: _echo,
        r.Election: _election,
        r.Vote: _vote,
        r.Elected: _elected,
        r.LeaderDead: _leader_dead,
    }


def group_of(name: str) -> str:
    """Return the group of a replica, for example `3` for `3#1`, and `sink:3/door` for `sink:3/door#1`.

    A source queue (`feed:3`) is a group of its own.
    """
    return name.partition("#")[0]


def replica_names(group: str, count: int) -> tuple[str, ...]:
    """Return the names of the `count` replicas of a group."""
    return tuple(f"{group}#{number}" for number in range(count))
