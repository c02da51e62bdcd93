"""Sites whose processors are replicated, under virtual time, while faults happen.

Links between replicas are as long as those between their sites, and a little longer by chance, the same in each run.
What is on its way to a node that crashes is lost; what meets a cut link is lost too, or waits until it has healed. A
crash that would leave a group without a correct replica is put off, unless a run is to go beyond that limit.

One replicated run, from commands that deploy through epochs of events to a verdict.

Every run is judged: the five properties for each drain, the limits of all queues, and, if nothing went wrong, that each
event crossed each link once for each replica.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from tocsin.overlay.replicas.catch_up import Lost, Member
from tocsin.overlay.replicas.messages import Bundle, Gone, LeaderDead, Part, Publication
from tocsin.overlay.replicas.queues import Settings
from tocsin.overlay.replicas.replica import Place, Replica, group_of, named
from tocsin.overlay.replicas.state_machine import FEED, SINK, Drain, Feed, Machine, Own
from tocsin.overlay.strategies import place
from tocsin.simulation.checking import Counts, Node, Violation, violations
from tocsin.simulation.faults import ALL, FLAWS, Fault, Script
from tocsin.simulation.replica_groups import Setup, Shared, SharedReplica

USUAL = Settings()
WITHIN_US = 500
"""The delay between replicas of one group, and to feeds and drains."""
JITTER_US = 200
RETRY_US = 10_000
"""When a fault that would be one too many is tried again."""
RETRIES = 50


class ReplicatedNetwork:
    """Replicas, feeds and drains, and the links between them."""

    def __init__(
        self,
        setup: Setup,
        script: Script,
        *,
        settings: Settings = USUAL,
        seed: int = 0,
        shared: bool = False,
        flaw: str = "none",
        within_limit: bool = True,
        watch: Callable[[str, str, Any], None] = lambda sender, receiver, message: None,
    ) -> None:
        """`watch`: called with the sender, the receiver and the message of each message that is sent."""
        sites = setup.sites
        self.setup, self.script, self.settings, self.shared = setup, script, settings, shared
        self.within_limit, self.watch = within_limit, watch
        self.now_us = 0
        self.begins_us = 0
        """When event time begins."""
        self.published_us = 0
        """When the last batch is handed over."""
        self.batches = 0
        self.counts = Counts()
        self.applied: list[Fault] = []
        self.nodes: dict[str, Node] = {}
        self.down: set[str] = set()
        self.groups = {name: named(name, script.replicas) for name in sites.processors}
        self.sinks = {sink: named(SINK + sink, script.replicas) for sink in sites.sinks}
        """The drains of each sink."""
        self._members = {**self.groups, **{SINK + sink: drains for sink, drains in self.sinks.items()}}
        self._chance = random.Random(f"network {seed}")
        self._lives: Counter[str] = Counter()
        self._kept: dict[str, bytes] = {}
        self._kept_us: dict[str, int] = {}
        self._heap: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0
        self._usual: dict[tuple[str, str], int] = {}
        """The delay of a link without chance and faults."""
        self._latest: dict[tuple[str, str], int] = {}
        self._cuts: list[Fault] = []
        self._enough: Callable[[], bool] = lambda: False
        self._over = False
        self._waiting: dict[str, deque[Sequence[Part]]] = defaultdict(deque)
        """Batches for feeds that are full or down."""
        self._gone: set[str] = set()
        self._recovering: set[str] = set()
        self._floors: dict[tuple[str, str], int] = defaultdict(lambda: -1)
        self._delays = dict(sites.delays_us)
        self._extra: dict[str, int] = {}
        flaws = FLAWS[flaw]
        self._kind = type("Run", (SharedReplica if shared else Replica,), {**flaws, "states": []})
        self._drain = type("RunDrain", (Drain,), {name: flaws[name] for name in flaws if name == "Incoming"})
        for name in [name for names in self._members.values() for name in names]:
            self._extra[name] = self._chance.randrange(1000)
            self._add(self._made(name))
        for group in self.groups:
            self._add(self._made(FEED + group))
        for fault in script.faults:
            self._at(fault.at_us, self._fault, fault, 0)
        self._at(settings.beat_us, self._look)

    def _made(self, name: str, *, begins: bool = True) -> Node:
        """A node that starts, perhaps not for the first time."""
        group, settings, incarnation = group_of(name), self.settings, self._lives[name]
        if name.startswith(FEED):
            group = group.removeprefix(FEED)
            return Feed(group, self.groups[group], settings)
        if name.startswith(SINK):
            site = place(group.removeprefix(SINK))
            drain: Drain = self._drain(
                name, self._members[group], site, self.groups[site], settings, incarnation=incarnation, begins=begins
            )
            return drain
        neighbours = {there: self.groups[there] for there in self.setup.links(group)}
        sinks = {SINK + sink: drains for sink, drains in self.sinks.items() if place(sink) == group}
        machine: Machine = Shared(self.setup.history(group)) if self.shared else Own(self.setup.begin(group))
        replica: Replica = self._kind(
            name, Place(group, self.groups[group], neighbours, sinks), machine, settings,
            incarnation=incarnation, begins=begins,
        )  # fmt: skip
        return replica

    # ---- time

    def _at(self, at_us: int, what: Callable[..., None], *given: Any) -> None:
        self._count += 1
        heapq.heappush(self._heap, (at_us, self._count, what, given))

    def run(self, until_us: int, enough: Callable[[], bool] = lambda: False) -> None:
        """Lets time pass, until a time or until it is enough, which is asked with every heartbeat."""
        self._enough = enough
        self._over = False
        heap = self._heap
        while heap and heap[0][0] <= until_us and not self._over:
            self.now_us, _, what, given = heapq.heappop(heap)
            what(*given)

    def _add(self, node: Node) -> None:
        self.nodes[node.name] = node
        self._lives[node.name] += 1
        self._collect(node)
        self._tick(node.name, self._lives[node.name], first=True)

    def _tick(self, name: str, life: int, first: bool = False) -> None:
        if self._lives[name] != life or name in self.down:
            return
        node = self.nodes[name]
        if first:
            at_us = self.now_us + self._chance.randrange(self.settings.beat_us)
        else:
            node.tick(self.now_us)
            self._collect(node)
            at_us = node.next_deadline()
        self._at(at_us, self._tick, name, life)

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
        if not node.outbox:
            return
        sent, node.outbox = node.outbox, []
        messages, name = self.counts.messages, node.name
        for receiver, message in sent:
            messages[type(message).__name__] += 1
            self.watch(name, receiver, message)
            self._carry(name, receiver, message)

    def _carry(self, sender: str, receiver: str, message: Any) -> None:
        link = (sender, receiver)
        if link not in self._usual:
            delay_us = self._delays.get((group_of(sender), group_of(receiver)), WITHIN_US)
            self._usual[link] = delay_us + self._extra.get(sender, 0) + self._extra.get(receiver, 0)
        delay_us = self._usual[link] + int(self._chance.random() * JITTER_US)
        at_us = self.now_us + delay_us
        for fault in self._cuts:
            if fault.until_us > self.now_us and _touches(fault, sender, receiver):
                if fault.kind == "cut" and not fault.kept:
                    return
                at_us = max(at_us, fault.until_us + delay_us) if fault.kind == "cut" else at_us + fault.by_us
        self._latest[link] = at_us = max(at_us, self._latest.get(link, 0))
        self._at(at_us, self._arrive, sender, receiver, message)

    def _arrive(self, sender: str, receiver: str, message: Any) -> None:
        if receiver in self.down:
            return
        node = self.nodes[receiver]
        if isinstance(message, Bundle) and message.parts and not sender.startswith(FEED):
            self.counts.arrived(node, message)
        node.receive(sender, message, self.now_us)
        self._collect(node)

    # ---- faults

    def _fault(self, fault: Fault, tried: int) -> None:
        if not self._possible(fault):
            if tried < RETRIES and not (fault.kind == "crash" and fault.who in self.down):
                self._at(self.now_us + RETRY_US, self._fault, fault, tried + 1)
            return
        self.applied.append(fault)
        match fault.kind:
            case "crash":
                self._crash(fault.who)
            case "restart":
                self.restart(fault.who, kept=fault.kept)
            case "gone":
                self._gone.add(fault.who)
                self._tell(Gone(fault.who))
            case "cut" | "slow":
                self._cuts.append(fault)
            case "suspect":
                self._arrive("", fault.other, LeaderDead(fault.who))

    def _possible(self, fault: Fault) -> bool:
        """Whether a fault can happen now."""
        if fault.kind == "crash":
            return fault.who not in self.down and (not self.within_limit or self._bearable(fault.who))
        return fault.who in self.down if fault.kind in ("restart", "gone") else True

    def _tell(self, verdict: Gone) -> None:
        for name in [name for name in self.nodes if name not in self.down and name != verdict.replica]:
            self._arrive("", name, verdict)

    def _crash(self, name: str) -> None:
        node = self.nodes[name]
        if not isinstance(node, Drain):
            for queue in node.outgoing.values():
                self._floors[queue.stream] = max(self._floors[queue.stream], queue.floor)
        if isinstance(node, Feed) or node.ready:
            self._kept[name], self._kept_us[name] = node.snapshot(), self.now_us
        self.counts.measured(node)
        self.down.add(name)
        self._recovering.add(name)

    def restart(self, name: str, *, kept: bool = False) -> None:
        """A node comes back: with nothing, or with what it had, as feeds always do."""
        self.down.discard(name)
        if name in self._gone:
            self._gone.discard(name)
            self._tell(Gone(name, back=True))
        begins = (kept or name.startswith(FEED)) and name in self._kept
        new = self._made(name, begins=begins)
        if begins:
            new.restore(self._kept[name])
        self._add(new)
        for gone in self._gone:
            self._arrive("", name, Gone(gone))

    def revive(self) -> None:
        """One of each group that has nobody with a state left comes back with what it had, and so do all feeds."""
        for name in [name for name in self.down if name.startswith(FEED)]:
            self.restart(name)
        for names in self._members.values():
            nodes = [self.nodes[name] for name in names if name not in self.down]
            if not any(isinstance(node, Member) and node.ready and not node.lacking for node in nodes):
                last = max((name for name in names if name in self._kept), key=lambda name: self._kept_us[name])
                self.down.add(last)
                self.restart(last, kept=True)

    def _bearable(self, name: str) -> bool:
        """Whether a group has another correct replica: one that never failed, or has recovered. Feeds go on where they
        were, so that nothing depends on another."""
        self._recover()
        if name.startswith(FEED):
            return True
        peers = [peer for peer in self._members[group_of(name)] if peer != name and peer not in self.down]
        return any(peer not in self._recovering for peer in peers)

    def _recover(self) -> None:
        self._recovering = {name for name in self._recovering if not self.recovered(name)}

    def recovered(self, name: str) -> bool:
        """Whether a restarted node has its state, all correct ones that send to it know its incarnation, and none that
        ever was has pruned what it lacks."""
        if name in self.down:
            return False
        node = self.nodes[name]
        if isinstance(node, Feed):
            return True
        if not node.ready:
            return False
        for group, incoming in node.incoming.items():
            if self._floors[incoming.stream] > incoming.upto:
                return False
            for sender in [sender for sender in node.senders[group] if sender not in self.down]:
                other = self.nodes[sender]
                assert not isinstance(other, Drain)
                queue = other.outgoing[node.group]
                known = queue.acked.get(name)
                if queue.floor > incoming.upto or (known is not None and known[0] < node.incarnation):
                    return False
        return True

    # ---- sources and sinks

    def publish(self, batches: Mapping[str, Sequence[Part]], at_us: int) -> None:
        """Has all feeds take a batch at a time; one that is full or down takes it later."""
        self.published_us = max(self.published_us, at_us)
        self.batches += 1
        for group, parts in batches.items():
            self._at(at_us, self._publish, group, parts)

    def _publish(self, group: str, *batches: Sequence[Part]) -> None:
        feed, waiting = self.nodes[FEED + group], self._waiting[group]
        assert isinstance(feed, Feed)
        first = not waiting or not batches
        waiting.extend(batches)
        if feed.name not in self.down:
            while waiting and feed.publish(waiting[0], self.now_us):
                waiting.popleft()
            self._collect(feed)
        if waiting and first:
            self._at(self.now_us + RETRY_US, self._publish, group)

    def behind(self) -> dict[str, int]:
        """The replicas that have not run all rounds, and how many they have."""
        rounds = self.batches * self.settings.rounds
        replicas = [self.replica(name) for names in self.groups.values() for name in names if name not in self.down]
        return {replica.name: replica.round for replica in replicas if replica.round < rounds}

    def drains(self) -> Iterator[tuple[str, Drain]]:
        """All drains, with their sinks."""
        for sink, names in self.sinks.items():
            for name in names:
                drain = self.nodes[name]
                assert isinstance(drain, Drain)
                yield sink, drain

    def got(self, drain: str) -> list[str]:
        """The composite events that a drain got."""
        node = self.nodes[drain]
        assert isinstance(node, Drain)
        pairs = [
            pair
            for notice, _ in node.got
            for pair in zip(notice.batch["rule"].to_pylist(), notice.batch["id"].to_pylist(), strict=True)
        ]
        return [id for rule, id in pairs if rule]

    def measured(self) -> Counts:
        """The counts, with how long queues have been so far."""
        for node in self.nodes.values():
            self.counts.measured(node)
        return self.counts

    @property
    def lost(self) -> list[Lost]:
        """What nodes say that they lack."""
        nodes = [self.nodes[name] for names in self._members.values() for name in names if name not in self.down]
        return [lost for node in nodes if isinstance(node, Member) and (lost := node.lost)]


def _touches(fault: Fault, sender: str, receiver: str) -> bool:
    ends = {sender, receiver}
    return fault.who in ends and (fault.other == ALL or fault.other in ends)


Epoch = Mapping[str, Publication]
"""By group."""


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
    publications: Sequence[Epoch],
    *,
    epoch_us: int,
    limit_us: int,
    expected: Mapping[str, Sequence[str]],
) -> list[Violation]:
    """Deploys, publishes epochs, and waits until all rounds have been run, sinks have as many notices as expected and
    no more faults come, and a little longer; then says what is wrong."""
    deploying = network.setup.deploying(network.settings.rounds)
    network.begins_us = len(deploying) * epoch_us
    for number, commands in enumerate(deploying):
        network.publish({group: commands.get(group, ()) for group in network.groups}, (number + 1) * epoch_us)
    for number, epoch in enumerate(publications):
        at_us = network.begins_us + (number + 1) * epoch_us
        network.publish({group: (epoch[group],) for group in network.groups}, at_us)
    return continued(network, limit_us=limit_us, expected=expected)


def continued(network: ReplicatedNetwork, *, limit_us: int, expected: Mapping[str, Sequence[str]]) -> list[Violation]:
    """Lets time pass until all is there; then says what is wrong."""
    last_us = max([network.published_us, *(max(one.at_us, one.until_us) for one in network.script.faults)])
    last_us += 10 * network.settings.beat_us

    def enough() -> bool:
        if network.now_us <= last_us or network.behind():
            return False
        return all(
            drain.count >= len(expected[sink]) for sink, drain in network.drains() if drain.name not in network.down
        )

    network.run(limit_us, enough)
    return judged(network, expected)


def judged(network: ReplicatedNetwork, expected: Mapping[str, Sequence[str]]) -> list[Violation]:
    """All that is wrong with a run. A drain that is down need not have everything, if another has."""
    found: list[Violation] = []
    for sink, names in network.sinks.items():
        up = [name for name in names if name not in network.down] or names
        for name in names:
            found += violations({name: network.got(name)}, {name: expected[sink]}, ended=name in up)
    found += [Violation("incomplete", name, f"round {rounds}") for name, rounds in network.behind().items()]
    counts, settings = network.measured(), network.settings
    for what, longest, limit in (
        ("outgoing", counts.outgoing_longest, settings.queue_max),
        ("incoming", counts.incoming_longest, settings.inbox_max),
    ):
        if longest > limit:
            found.append(Violation("queue over its limit", what, f"{longest} of {limit}"))
    if not network.applied:
        replicas = network.script.replicas
        for what, sent, once in (("links", counts.events, counts.links), ("sinks", counts.notices, counts.situations)):
            if sent != replicas * once:
                found.append(Violation("more than f + 1 messages", what, f"{sent} for {once} events"))
    return found
