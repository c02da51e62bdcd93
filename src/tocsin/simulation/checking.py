"""Check the matches of sinks, and count messages.

The expected matches are the matches of the same rules over all events at one place. The properties are those of
Definition 1 in *strong reliability*: 1 no false positives, 2 no false negatives, 3 no duplication, 4 no false ordering,
5 completeness. A false negative is an expected match that is missing although a later match has come. Completeness
means that at the end of a run a sink has all expected matches. `replicated` uses these checks for whole runs.
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
from tocsin.overlay.replicas.messages import ELECTIONS, Notice, RoundBatch
from tocsin.overlay.replicas.replica import Replica
from tocsin.overlay.replicas.state_machine import SinkReplica, SourceQueue
from tocsin.overlay.strategies import Sites
from tocsin.simulation.network import Network

PROPERTIES = ("false positive", "false negative", "duplicate", "false order", "incomplete")


@dataclass(frozen=True)
class Violation:
    """A property that does not hold at a sink.

    `id` is the first composite event that violates the property, and `count` the number of such events.
    """

    property: str
    sink: str
    id: str
    count: int = 1

    def __str__(self) -> str:
        return f"{self.property} at {self.sink}: {self.id} ({self.count} in all)"


def expected_ids(
    rules: Sequence[Rule],
    types: Mapping[str, EventType],
    sinks: Mapping[str, Sequence[Pattern]],
    events: pa.Table,
    upto_us: int,
) -> dict[str, list[str]]:
    """Return the ids of the matches that each sink should get, by running `rules` over all events at one place."""
    detector = Detector(rules, types, columns=Columns(id="id"))
    matches = pa.concat_tables([detector.push(events), detector.advance(upto_us)], promote_options="default")
    pairs = list(zip(matches["type"].to_pylist(), matches["id"].to_pylist(), strict=True))
    wanted = {sink: {pattern.type for pattern in patterns} for sink, patterns in sinks.items()}
    return {sink: [id for type, id in pairs if type in names] for sink, names in wanted.items()}


def violations(
    got: Mapping[str, Sequence[str]], expected: Mapping[str, Sequence[str]], *, ended: bool = True
) -> list[Violation]:
    """Compare the matches that sinks have got with the expected matches, and return all violations.

    If `ended` is true, each sink should have all expected matches.

    >>> [str(one) for one in violations({"s": ["a", "c", "c"]}, {"s": ["a", "b", "c"]})]
    ['false negative at s: b (1 in all)', 'duplicate at s: c (1 in all)', 'incomplete at s: b (1 in all)']
    """
    result: list[Violation] = []

    def add(which: int, sink: str, ids: Sequence[str]) -> None:
        if ids:
            result.append(Violation(PROPERTIES[which], sink, ids[0], len(ids)))

    for sink, should in expected.items():
        mine = list(got.get(sink, ()))
        position = {id: number for number, id in enumerate(should)}
        have = set(mine)
        add(0, sink, [id for id in mine if id not in position])
        valid = [id for id in mine if id in position]
        latest = max((position[id] for id in valid), default=-1)
        add(1, sink, [id for id in should[: max(latest, 0)] if id not in have])
        add(2, sink, [id for id, count in Counter(mine).items() if count > 1])
        first = list(dict.fromkeys(valid))
        add(3, sink, [later for before, later in pairwise(first) if position[later] < position[before]])
        if ended:
            add(4, sink, [id for id in should if id not in have])
    return result


Node = Replica | SourceQueue | SinkReplica


@dataclass
class MessageCounts:
    """Counts of the messages in a run.

    An event message is a row of events or matches. It goes to a replica from another group, or to a sink replica from
    the group of its site.
    """

    messages: Counter[str] = field(default_factory=Counter)
    events: int = 0
    """The number of event messages to replicas."""
    links: int = 0
    """The number of event messages to replicas without replication: each row once for each link that it crosses."""
    duplicates: int = 0
    """The number of event messages to replicas that already had the row."""
    notices: int = 0
    """The number of event messages to sink replicas."""
    situations: int = 0
    """The number of event messages to sinks without replication: each row once for each sink."""
    leaders: Counter[int] = field(default_factory=Counter)
    """The number of observations of a group, by the number of leaders that it had."""
    outgoing_longest: int = 0
    """The largest number of batches in an outgoing queue."""
    incoming_longest: int = 0
    """The largest number of batches in an incoming queue."""
    _last: dict[tuple[str, str], int] = field(default_factory=lambda: defaultdict(lambda: -1), repr=False)
    """The number of the last batch that was counted in each stream."""

    @property
    def elections(self) -> int:
        return sum(self.messages[kind.__name__] for kind in ELECTIONS)

    @property
    def leaders_mean(self) -> float:
        return sum(count * seen for count, seen in self.leaders.items()) / max(1, self.leaders.total())

    def arrived(self, node: Node, batch: RoundBatch) -> None:
        """Count the event messages of `batch`, which `node` receives from a node that is not a source."""
        rows = rows_in(batch)
        new = batch.number > self._last[batch.stream]
        if new:
            self._last[batch.stream] = batch.number
        if isinstance(node, SinkReplica):
            self.notices += rows
            self.situations += rows if new else 0
        elif isinstance(node, Replica):
            self.events += rows
            self.links += rows if new else 0
            had = node.ready and batch.number <= node.incoming[batch.stream[0]].upto
            self.duplicates += rows if had else 0

    def measured(self, node: Node) -> None:
        """Record the greatest lengths that the queues of `node` have had."""
        if not isinstance(node, SinkReplica):
            for queue in node.outgoing.values():
                self.outgoing_longest = max(self.outgoing_longest, queue.longest)
        if not isinstance(node, SourceQueue):
            for incoming in node.incoming.values():
                self.incoming_longest = max(self.incoming_longest, incoming.longest)


def rows_in(batch: RoundBatch) -> int:
    """Return the number of events and composite events in a batch."""
    return sum(part.batch.num_rows for part in batch.parts if isinstance(part, Events | Matches | Answer | Notice))


def wrong_sinks(
    network: Network,
    sites: Sites,
    types: Mapping[str, EventType],
    rules: Sequence[Rule],
    events: pa.Table,
    upto_us: int,
    changes: Sequence[tuple[float, Sites]] = (),
) -> list[str]:
    """Return the sinks that did not get exactly the expected matches, once each and in order."""
    got: dict[str, list[str]] = {}
    for processor in network.processors.values():
        for sink, batch, _ in processor.notices:
            pairs = zip(batch["rule"].to_pylist(), batch["id"].to_pylist(), strict=True)
            got.setdefault(sink, []).extend(id for rule, id in pairs if rule)
    expected = expected_matches(sites, types, rules, events, upto_us, changes)
    return [sink for sink, ids in expected.items() if got.get(sink, []) != ids]


def expected_matches(
    sites: Sites,
    types: Mapping[str, EventType],
    rules: Sequence[Rule],
    events: pa.Table,
    upto_us: int,
    changes: Sequence[tuple[float, Sites]] = (),
) -> dict[str, list[str]]:
    """Return the ids of the expected matches of each sink, in order.

    `changes` has the sites from each time (s) on. Sinks with constraints on composite events are left out. If there are
    changes, sinks that want a consuming rule, or a rule that needs one, are left out too.
    """
    detector = Detector(rules, types, columns=Columns(id="id"))
    matches = pa.concat_tables([detector.push(events), detector.advance(upto_us)], promote_options="default")
    matches_by_type = list(
        zip(matches["type"].to_pylist(), matches["id"].to_pylist(), matches["ts"].to_pylist(), strict=True)
    )
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
        ids = [
            id for mine, start, end in names for type, id, ts in matches_by_type if type in mine and start <= ts < end
        ]
        expected[sink] = ids
    return expected
