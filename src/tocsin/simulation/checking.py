"""Did every sink get what it should? The same rules over all events at one place, as nothing were apart.

Does the paper's Definition 1 hold of a run? Five properties of what each sink got, against what it should have got.

1 no false positives, 2 no false negatives, 3 no duplication, 4 no false ordering, 5 completeness. The second is about
what was passed over: something right that is missing although something later has come. The fifth is about the end: a
sink has all that the reference has. (`trials` judges whole runs.)

What was sent in a replicated run, how often did it arrive, and how long did queues get?
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import pyarrow as pa

from tocsin.engine.detector import Detector
from tocsin.events.reader import Columns
from tocsin.events.types import EventType
from tocsin.language.syntax.ast import Pattern, Rule
from tocsin.overlay.deployment import closure
from tocsin.overlay.messages import Answer, Events, Matches
from tocsin.overlay.replicas.messages import ELECTIONS, Bundle, Notice
from tocsin.overlay.replicas.replica import Replica
from tocsin.overlay.replicas.state_machine import Drain, Feed
from tocsin.overlay.strategies import Sites
from tocsin.simulation.network import Network

PROPERTIES = ("false positive", "false negative", "duplicate", "false order", "incomplete")


@dataclass(frozen=True)
class Violation:
    """A property that does not hold at a sink, and the first composite event that shows it."""

    property: str
    sink: str
    id: str
    count: int = 1

    def __str__(self) -> str:
        return f"{self.property} at {self.sink}: {self.id} ({self.count} in all)"


def right(
    rules: Sequence[Rule],
    types: Mapping[str, EventType],
    sinks: Mapping[str, Sequence[Pattern]],
    events: pa.Table,
    upto_us: int,
) -> dict[str, list[str]]:
    """What each sink should get: the rules over all events at one place, without failures."""
    detector = Detector(rules, types, columns=Columns(id="id"))
    found = pa.concat_tables([detector.push(events), detector.advance(upto_us)], promote_options="default")
    pairs = list(zip(found["type"].to_pylist(), found["id"].to_pylist(), strict=True))
    wanted = {sink: {pattern.type for pattern in patterns} for sink, patterns in sinks.items()}
    return {sink: [id for type, id in pairs if type in names] for sink, names in wanted.items()}


def violations(
    got: Mapping[str, Sequence[str]], expected: Mapping[str, Sequence[str]], *, ended: bool = True
) -> list[Violation]:
    """All that is wrong with what sinks got; `ended`: they should have everything by now.

    >>> [str(one) for one in violations({"s": ["a", "c", "c"]}, {"s": ["a", "b", "c"]})]
    ['false negative at s: b (1 in all)', 'duplicate at s: c (1 in all)', 'incomplete at s: b (1 in all)']
    """
    found: list[Violation] = []

    def add(which: int, sink: str, ids: Sequence[str]) -> None:
        if ids:
            found.append(Violation(PROPERTIES[which], sink, ids[0], len(ids)))

    for sink, should in expected.items():
        mine = list(got.get(sink, ()))
        place = {id: number for number, id in enumerate(should)}
        have = set(mine)
        add(0, sink, [id for id in mine if id not in place])
        known = [id for id in mine if id in place]
        latest = max((place[id] for id in known), default=-1)
        add(1, sink, [id for id in should[: max(latest, 0)] if id not in have])
        add(2, sink, [id for id, count in Counter(mine).items() if count > 1])
        first = list(dict.fromkeys(known))
        add(3, sink, [later for before, later in pairwise(first) if place[later] < place[before]])
        if ended:
            add(4, sink, [id for id in should if id not in have])
    return found


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


def wrong_sinks(
    network: Network,
    sites: Sites,
    types: Mapping[str, EventType],
    rules: Sequence[Rule],
    events: pa.Table,
    upto_us: int,
    changes: Sequence[tuple[float, Sites]] = (),
) -> list[str]:
    """The sinks that did not get exactly the matches they want, once each and in order."""
    got: dict[str, list[str]] = {}
    for processor in network.processors.values():
        for sink, batch, _ in processor.notices:
            pairs = zip(batch["rule"].to_pylist(), batch["id"].to_pylist(), strict=True)
            got.setdefault(sink, []).extend(id for rule, id in pairs if rule)
    right = due(sites, types, rules, events, upto_us, changes)
    return [sink for sink, ids in right.items() if got.get(sink, []) != ids]


def due(
    sites: Sites,
    types: Mapping[str, EventType],
    rules: Sequence[Rule],
    events: pa.Table,
    upto_us: int,
    changes: Sequence[tuple[float, Sites]] = (),
) -> dict[str, list[str]]:
    """The matches that each sink should get. Subscriptions with content constraints are not looked at, nor rules that
    consume and that were not wanted from the beginning."""
    detector = Detector(rules, types, columns=Columns(id="id"))
    found = pa.concat_tables([detector.push(events), detector.advance(upto_us)], promote_options="default")
    right = list(zip(found["type"].to_pylist(), found["id"].to_pylist(), found["ts"].to_pylist(), strict=True))
    lives = [(0, sites), *((round(at_s * 1_000_000), later) for at_s, later in changes), (upto_us, sites)]
    consuming = {rule.emits.name for rule in rules if any(one.consuming for one in closure(rule, rules))}
    expected = {}
    for sink in dict.fromkeys(sink for _, some in lives for sink in some.sinks):
        wanted = [(some.sinks.get(sink, ()), start, end) for (start, some), (end, _) in pairwise(lives)]
        if any(p.constraints and p.type not in types for patterns, _, _ in wanted for p in patterns):
            continue
        names = [({p.type for p in patterns if not p.constraints}, start, end) for patterns, start, end in wanted]
        if changes and any(mine & consuming for mine, _, _ in names):
            continue
        ids = [id for mine, start, end in names for type, id, ts in right if type in mine and start <= ts < end]
        expected[sink] = ids
    return expected
