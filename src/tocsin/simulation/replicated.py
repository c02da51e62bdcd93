"""Sites whose processors are replicated, under virtual time, while faults happen.

The sites are deployed without replicas first; every replica begins with the state its processor then has. Links
between replicas are as long as those between their sites, and a little longer by chance, the same in each run. What
is on its way to a replica that crashes is lost; what meets a cut link is lost too, or waits until it has healed.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from tocsin.events.types import EventType
from tocsin.language.rules import Rule
from tocsin.overlay.messages import Answer, Events, Matches
from tocsin.overlay.replicas.ends import FEED, Drain, Feed
from tocsin.overlay.replicas.machines import SINK, Machine, Own
from tocsin.overlay.replicas.messages import ELECTIONS, Bundle, Gone, LeaderDead, Notice, Publication
from tocsin.overlay.replicas.replica import Place, Replica, group_of, named
from tocsin.overlay.replicas.sending import Settings
from tocsin.overlay.snapshots import restore, snapshot
from tocsin.overlay.strategies import Strategy
from tocsin.simulation.deployment import Sites, deployed, place
from tocsin.simulation.faults import ALL, Fault, Script
from tocsin.simulation.flaws import FLAWS
from tocsin.simulation.sharing import History, Shared, SharedReplica

Node = Replica | Feed | Drain
USUAL = Settings()
WITHIN_US = 500
"""The delay between replicas of one group, and to feeds and drains."""
RETRY_US = 10_000
"""When a fault that would be one too many is tried again."""
RETRIES = 50


@dataclass
class Counts:
    """What was sent and what became of it."""

    messages: Counter[str] = field(default_factory=Counter)
    events: int = 0
    """Rows of events and matches that replicas were sent by other groups."""
    links: int = 0
    """The same, without replicas: each row once for each link it crosses."""
    duplicates: int = 0
    """Rows that a receiver had already."""
    notices: int = 0
    """Rows that drains were sent."""
    leaders: Counter[int] = field(default_factory=Counter)
    """How often a group was seen with so many leaders."""

    @property
    def elections(self) -> int:
        return sum(self.messages[kind.__name__] for kind in ELECTIONS)

    @property
    def leaders_mean(self) -> float:
        return sum(count * seen for count, seen in self.leaders.items()) / max(1, self.leaders.total())


@dataclass(frozen=True)
class Beginning:
    """Sites that are deployed: the state with which each group's replicas begin. Runs can share one."""

    sites: Sites
    strategy: Strategy
    types: Mapping[str, EventType]
    rules: Sequence[Rule]
    states: Mapping[str, bytes]
    _histories: dict[str, History] = field(default_factory=dict)

    def links(self, group: str) -> dict[str, int]:
        return {there: delay for (here, there), delay in self.sites.delays_us.items() if here == group}

    def given(self, group: str) -> tuple[Any, ...]:
        """What a processor is restored from."""
        return (self.states[group], self.links(group), self.strategy, self.types, self.rules)

    def history(self, group: str) -> History:
        """The group's processor for all replicas that share one."""
        if group not in self._histories:
            self._histories[group] = History(lambda: restore(*self.given(group)))
        return self._histories[group]


def begun(sites: Sites, strategy: Strategy, types: Mapping[str, EventType], rules: Sequence[Rule]) -> Beginning:
    """Deploys rules at sites."""
    plain = deployed(sites, strategy, types, rules)
    states = {name: snapshot(processor) for name, processor in plain.processors.items()}
    return Beginning(sites, strategy, types, rules, states)


class ReplicatedNetwork:
    """Replicas, feeds and drains, and the links between them."""

    def __init__(
        self,
        beginning: Beginning,
        script: Script,
        *,
        settings: Settings = USUAL,
        seed: int = 0,
        shared: bool = False,
        flaw: str = "none",
        within_limit: bool = True,
    ) -> None:
        sites = beginning.sites
        self.script, self.settings, self.shared, self.flaw = script, settings, shared, flaw
        self.within_limit = within_limit
        """Whether crashes that would leave a group without enough correct replicas are put off."""
        self.now_us = 0
        self.counts = Counts()
        self.counted: dict[tuple[str, str], int] = defaultdict(lambda: -1)
        """The last bundle that was counted, of each stream and of each receiver."""
        self.applied: list[Fault] = []
        self.nodes: dict[str, Node] = {}
        self.down: set[str] = set()
        self.groups = {name: named(name, script.replicas) for name in sites.processors}
        self._chance = random.Random(f"network {seed}")
        self._places: dict[str, Place] = {}
        self._machines: dict[str, Callable[[], Machine]] = {}
        self._lives: Counter[str] = Counter()
        self._kept: dict[str, bytes] = {}
        self._heap: list[tuple[int, int, Callable[[], None]]] = []
        self._count = 0
        self._latest: dict[tuple[str, str], int] = {}
        self._cuts: list[Fault] = []
        self._enough: Callable[[], bool] = lambda: False
        self._over = False
        self._waiting: dict[str, deque[Publication]] = defaultdict(deque)
        """Batches for feeds that are full."""
        self._gone: set[str] = set()
        self._recovering: set[str] = set()
        self._floors: dict[tuple[str, str], int] = defaultdict(lambda: -1)
        self._delays = dict(sites.delays_us)
        self._extra: dict[str, int] = {}
        self._kind = type("Run", (SharedReplica if shared else Replica,), {**FLAWS[flaw], "states": []})
        self._build(beginning)

    def _build(self, beginning: Beginning) -> None:
        sites = beginning.sites
        sinks: dict[str, list[str]] = {name: [] for name in self.groups}
        for sink in sites.sinks:
            sinks[place(sink)].append(SINK + sink)
        drain = type(
            "RunDrain", (Drain,), {name: kind for name, kind in FLAWS[self.flaw].items() if name == "Incoming"}
        )
        for group, replicas in self.groups.items():
            links = beginning.links(group)
            if self.shared:
                history = beginning.history(group)
                self._machines[group] = lambda history=history: Shared(history)  # type: ignore[misc]
            else:
                given = beginning.given(group)
                self._machines[group] = lambda given=given: Own(*given)  # type: ignore[misc]
            neighbours = {there: self.groups[there] for there in links}
            self._places[group] = Place(group, replicas, neighbours, tuple(sinks[group]))
            self._add(Feed(group, replicas, self.settings))
            for sink in sinks[group]:
                self._add(drain(sink, group, self.settings))
            for name in replicas:
                self._extra[name] = self._chance.randrange(1000)
                self._add(self._kind(name, self._places[group], self._machines[group](), self.settings))
        for fault in self.script.faults:
            self._at(fault.at_us, lambda fault=fault: self._fault(fault, 0))  # type: ignore[misc]
        self._at(self.settings.beat_us, self._look)

    # ---- time

    def _at(self, at_us: int, what: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._heap, (at_us, self._count, what))

    def run(self, until_us: int, enough: Callable[[], bool] = lambda: False) -> None:
        """Lets time pass, until a time or until it is enough, which is asked with every heartbeat."""
        self._enough = enough
        self._over = False
        while self._heap and self._heap[0][0] <= until_us and not self._over:
            self.now_us, _, what = heapq.heappop(self._heap)
            what()

    def _add(self, node: Node) -> None:
        self.nodes[node.name] = node
        self._lives[node.name] += 1
        self._collect(node)
        if not isinstance(node, Drain):
            self._tick(node.name, self._lives[node.name], first=True)

    def _tick(self, name: str, life: int, *, first: bool = False) -> None:
        if self._lives[name] != life or name in self.down:
            return
        node = self.nodes[name]
        if first:
            at_us = self.now_us + self._chance.randrange(self.settings.beat_us)
        else:
            node.tick(self.now_us)
            self._collect(node)
            at_us = node.next_deadline() or 0
        self._at(at_us, lambda: self._tick(name, life))

    def _look(self) -> None:
        for replicas in self.groups.values():
            self.counts.leaders[sum(self.leads(name) for name in replicas)] += 1
        self._recover()
        self._over = self._enough()
        self._at(self.now_us + self.settings.beat_us, self._look)

    def leads(self, name: str) -> bool:
        return name not in self.down and self.replica(name).leading

    def replica(self, name: str) -> Replica:
        node = self.nodes[name]
        assert isinstance(node, Replica)
        return node

    # ---- messages

    def _collect(self, node: Node) -> None:
        sent, node.outbox = node.outbox, []
        for receiver, message in sent:
            self.counts.messages[type(message).__name__] += 1
            self._carry(node.name, receiver, message)

    def _carry(self, sender: str, receiver: str, message: Any) -> None:
        here, there = group_of(sender), group_of(receiver)
        delay_us = self._delays.get((here, there), WITHIN_US) + self._chance.randrange(200)
        delay_us += self._extra.get(sender, 0) + self._extra.get(receiver, 0)
        at_us = self.now_us + delay_us
        for fault in self._cuts:
            if fault.until_us > self.now_us and _touches(fault, sender, receiver):
                if fault.kind == "cut" and not fault.kept:
                    return
                at_us = max(at_us, fault.until_us + delay_us) if fault.kind == "cut" else at_us + fault.by_us
        at_us = max(at_us, self._latest.get((sender, receiver), 0))
        self._latest[sender, receiver] = at_us
        self._at(at_us, lambda: self._arrive(sender, receiver, message))

    def _arrive(self, sender: str, receiver: str, message: Any) -> None:
        if receiver in self.down:
            return
        node = self.nodes[receiver]
        if isinstance(message, Bundle) and message.parts and not sender.startswith(FEED):
            rows = rows_in(message)
            if isinstance(node, Drain):
                self.counts.notices += rows
            elif isinstance(node, Replica):
                self.counts.events += rows
                had = self.counted[receiver, message.stream[0]]
                self.counted[receiver, message.stream[0]] = max(had, message.number)
                if message.number <= had:
                    self.counts.duplicates += rows
                if message.number > self.counted[message.stream]:
                    self.counted[message.stream] = message.number
                    self.counts.links += rows
        node.receive(sender, message, self.now_us)
        self._collect(node)

    # ---- faults

    def _fault(self, fault: Fault, tried: int) -> None:
        if fault.kind == "crash" and fault.who not in self.down and fault.who not in self._gone:
            if self.within_limit and not self._bearable(fault.who):
                if tried < RETRIES:
                    self._at(self.now_us + RETRY_US, lambda: self._fault(fault, tried + 1))
                return
            self._crash(fault.who)
        elif fault.kind in ("restart", "gone"):
            if fault.who not in self.down:
                if tried < RETRIES:
                    self._at(self.now_us + RETRY_US, lambda: self._fault(fault, tried + 1))
                return
            if fault.kind == "restart" and fault.who not in self._gone:
                self.restart(fault.who, kept=fault.kept)
            elif fault.kind == "gone":
                self._gone.add(fault.who)
                for name in [name for name in self.nodes if name not in self.down]:
                    self._at(self.now_us, lambda name=name: self._arrive("", name, Gone(fault.who)))  # type: ignore[misc]
        elif fault.kind in ("cut", "slow"):
            self._cuts.append(fault)
        elif fault.kind == "suspect":
            self._at(self.now_us, lambda: self._arrive("", fault.other, LeaderDead(fault.who)))
        self.applied.append(fault)

    def _crash(self, name: str) -> None:
        replica = self.replica(name)
        for queue in replica.outgoing.values():
            self._floors[queue.stream] = max(self._floors[queue.stream], queue.floor)
        if replica.ready:
            self._kept[name] = replica.snapshot()
        self.down.add(name)
        self._recovering.add(name)

    def restart(self, name: str, *, kept: bool = False) -> None:
        """A replica comes back: with nothing, or with what it had."""
        group = group_of(name)
        self.down.discard(name)
        begins = kept and name in self._kept
        new = self._kind(
            name, self._places[group], self._machines[group](), self.settings,
            incarnation=self._lives[name], begins=begins,
        )  # fmt: skip
        if begins:
            new.restore(self._kept[name])
        self._add(new)
        for gone in self._gone:
            self._arrive("", name, Gone(gone))

    def _bearable(self, name: str) -> bool:
        """Whether a group has another correct replica: one that never failed, or has recovered."""
        self._recover()
        peers = [peer for peer in self.groups[group_of(name)] if peer != name and peer not in self.down]
        return any(peer not in self._recovering for peer in peers)

    def _recover(self) -> None:
        self._recovering = {name for name in self._recovering if not self.recovered(name)}

    def recovered(self, name: str) -> bool:
        """Whether a restarted replica has its state, all correct replicas that send to it know its incarnation, and
        none that ever was has pruned what it lacks."""
        if name in self.down or not self.replica(name).ready:
            return False
        replica, group = self.replica(name), group_of(name)
        for source, incoming in replica.incoming.items():
            if self._floors[incoming.stream] > incoming.upto:
                return False
            for sender in [source] if source.startswith(FEED) else self.groups[source]:
                node = self.nodes[sender]
                if sender in self.down or isinstance(node, Drain):
                    continue
                queue = node.queue if isinstance(node, Feed) else node.outgoing[group]
                known = queue.acked.get(name)
                if queue.floor > incoming.upto or (known is not None and known[0] < replica.incarnation):
                    return False
        return True

    # ---- sources and sinks

    def publish(self, publications: Mapping[str, Publication], at_us: int) -> None:
        """Has all sources hand over a batch at a time; one whose feed is full waits."""
        for group in self.groups:
            self._at(at_us, lambda group=group: self._publish(group, publications[group]))  # type: ignore[misc]

    def _publish(self, group: str, publication: Publication) -> None:
        feed = self.nodes[FEED + group]
        assert isinstance(feed, Feed)
        waiting = self._waiting[group]
        waiting.append(publication)
        while waiting and feed.publish(waiting[0], self.now_us):
            waiting.popleft()
        self._collect(feed)
        if waiting:
            self._at(self.now_us + RETRY_US, lambda: self._publish_again(group))

    def _publish_again(self, group: str) -> None:
        if self._waiting[group]:
            self._publish(group, self._waiting[group].pop())

    def notices(self) -> dict[str, list[tuple[Notice, int]]]:
        """What each sink got, and when."""
        return {node.name.removeprefix(SINK): node.got for node in self.nodes.values() if isinstance(node, Drain)}

    def notices_count(self) -> int:
        return sum(notice.batch.num_rows for got in self.notices().values() for notice, _ in got)

    def got(self) -> dict[str, list[str]]:
        """The composite events that each sink got."""
        found = {}
        for sink, notices in self.notices().items():
            pairs = [pair for notice, _ in notices for pair in _named(notice)]
            found[sink] = [id for rule, id in pairs if rule]
        return found

    @property
    def lost(self) -> list[str]:
        """What replicas say that keeps them from going on."""
        said = [self.replica(name).lost for names in self.groups.values() for name in names if name not in self.down]
        return [words for words in said if words]


def _named(notice: Notice) -> list[tuple[str, str]]:
    return list(zip(notice.batch["rule"].to_pylist(), notice.batch["id"].to_pylist(), strict=True))


def _touches(fault: Fault, sender: str, receiver: str) -> bool:
    ends = {sender, receiver}
    return fault.who in ends and (fault.other == ALL or fault.other in ends)


def rows_in(bundle: Bundle) -> int:
    """The events and composite events in a bundle."""
    return sum(part.batch.num_rows for part in bundle.parts if isinstance(part, Events | Matches | Answer | Notice))


def epochs(
    groups: Iterable[str], events: pa.Table, where: Sequence[str], *, epoch_us: int, count: int, spare: int = 4
) -> list[dict[str, Publication]]:
    """Events, in order of time and `where` they happen, cut into epochs; then some that are empty."""
    ts, homes = events["ts"].to_numpy(), np.asarray(where)
    found = []
    for number in range(count + spare):
        upto = (number + 1) * epoch_us
        first, last = np.searchsorted(ts, [number * epoch_us, upto])
        rows, mine = events.slice(first, last - first), homes[first:last]
        found.append({group: Publication(rows.filter(pa.array(mine == group)), upto) for group in groups})
    return found


def played(
    network: ReplicatedNetwork,
    publications: Sequence[Mapping[str, Publication]],
    *,
    epoch_us: int,
    limit_us: int,
    expected: int | None = None,
) -> None:
    """Publishes epochs, until sinks have as many notices as expected and no more faults come, and a little longer."""
    last_us = max([len(publications) * epoch_us, *(max(one.at_us, one.until_us) for one in network.script.faults)])
    last_us += 10 * network.settings.beat_us

    def enough() -> bool:
        return expected is not None and network.now_us > last_us and network.notices_count() >= expected

    for number, publication in enumerate(publications):
        network.publish(publication, (number + 1) * epoch_us)
    network.run(limit_us, enough)
