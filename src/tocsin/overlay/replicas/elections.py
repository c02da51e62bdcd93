"""Who leads? A failure detector by heartbeats, and a vote: least latency to the previous node, then least name.

There may be no leader for a while, and there may be several: replicas need not agree. What is needed is that a correct
replica that hears of no leader votes again, and leads if nobody better answers. Two leaders that hear each other's
heartbeats become one. Of two elections the one whose starter has the lesser name goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tocsin.overlay.replicas.messages import Elected, Election, Heartbeat, LeaderDead, Replicated, Vote

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
