"""What was sent in a replicated run, how often did it arrive, and how long did queues get?"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field

from tocsin.overlay.messages import Answer, Events, Matches
from tocsin.overlay.replicas.ends import Drain, Feed
from tocsin.overlay.replicas.messages import ELECTIONS, Bundle, Notice
from tocsin.overlay.replicas.replica import Replica

Node = Replica | Feed | Drain


@dataclass
class Counts:
    """What was sent and what became of it. An event message is a row of events or matches that a replica was sent by
    another group, or a drain by its group."""

    messages: Counter[str] = field(default_factory=Counter)
    events: int = 0
    """Event messages to replicas."""
    links: int = 0
    """The same, without replicas: each row once for each link it crosses."""
    duplicates: int = 0
    """Event messages that a replica had already."""
    notices: int = 0
    """Event messages to drains."""
    situations: int = 0
    """The same, without replicas."""
    leaders: Counter[int] = field(default_factory=Counter)
    """How often a group was seen with so many leaders."""
    outgoing_longest: int = 0
    """The most bundles that an outgoing queue kept."""
    incoming_longest: int = 0
    _last: dict[tuple[str, str], int] = field(default_factory=lambda: defaultdict(lambda: -1), repr=False)
    """The last bundle that was counted, of each stream."""

    @property
    def elections(self) -> int:
        return sum(self.messages[kind.__name__] for kind in ELECTIONS)

    @property
    def leaders_mean(self) -> float:
        return sum(count * seen for count, seen in self.leaders.items()) / max(1, self.leaders.total())

    def arrived(self, node: Node, bundle: Bundle) -> None:
        """Counts the event messages of a bundle that is not from a feed."""
        rows = rows_in(bundle)
        new = bundle.number > self._last[bundle.stream]
        if new:
            self._last[bundle.stream] = bundle.number
        if isinstance(node, Drain):
            self.notices += rows
            self.situations += rows if new else 0
        elif isinstance(node, Replica):
            self.events += rows
            self.links += rows if new else 0
            had = node.ready and bundle.number <= node.incoming[bundle.stream[0]].upto
            self.duplicates += rows if had else 0

    def measured(self, node: Node) -> None:
        """Takes note of how long a node's queues have been."""
        if not isinstance(node, Drain):
            for queue in node.outgoing.values():
                self.outgoing_longest = max(self.outgoing_longest, queue.longest)
        if not isinstance(node, Feed):
            for incoming in node.incoming.values():
                self.incoming_longest = max(self.incoming_longest, incoming.longest)


def rows_in(bundle: Bundle) -> int:
    """The events and composite events in a bundle."""
    return sum(part.batch.num_rows for part in bundle.parts if isinstance(part, Events | Matches | Answer | Notice))
