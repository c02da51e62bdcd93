"""Run sites with replicated processors in virtual time while faults happen, and check the run.

The *nodes* of a run are replicas of processors, sources and replicas of sinks. The delay between two replicas is the
delay between their sites plus a small random delay, which is the same in each run. Messages to a node that has crashed
are lost. Messages on a cut link are lost, or wait until the link has healed. A crash that would leave a group without a
correct replica is postponed, unless the run may exceed this limit.

Every run is checked for the five properties (`checking`) at each sink replica, and for the limits of all queues. In a
run without faults, each event must cross each link once for each replica.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from tocsin.overlay.codec import kind_of
from tocsin.overlay.replicas.catch_up import Lost, Member
from tocsin.overlay.replicas.messages import Content, Decommissioned, LeaderDead, Publication, RoundBatch
from tocsin.overlay.replicas.queues import Settings
from tocsin.overlay.replicas.replica import GroupTopology, Replica, group_of, replica_names
from tocsin.overlay.replicas.state_machine import SINK, SOURCE, ProcessorMachine, SinkReplica, SourceQueue, StateMachine
from tocsin.overlay.strategies import processor_of
from tocsin.simulation.checking import MessageCounts, Node, Violation, violations
from tocsin.simulation.faults import ALL, FLAWS, Fault, Script
from tocsin.simulation.replica_groups import ReplicatedSetup, SharedMachine, SharedReplica

DEFAULTS = Settings()
WITHIN_US = 500
"""The delay (µs) between replicas of one group, and between a replica and its source or sink replicas."""
JITTER_US = 200
RETRY_US = 10_000
"""The time (µs) after which a fault that was postponed is tried again."""
RETRIES = 50


class ReplicatedNetwork:
    """Replicas, sources and sink replicas, and the links between these nodes."""

    def __init__(
        self,
        setup: ReplicatedSetup,
        script: Script,
        *,
        settings: Settings = DEFAULTS,
        seed: int = 0,
        shared: bool = False,
        flaw: str = "none",
        within_limit: bool = True,
        watch: Callable[[str, str, Any], None] = lambda sender, receiver, message: None,
    ) -> None:
        """Start all nodes of `setup`, and plan the faults of `script`.

        If `shared` is true, the replicas of a group share a processor (`replica_groups`). `flaw` is one of FLAWS. If
        `within_limit` is true, crashes leave a correct replica in each group. `watch` is called with the sender, the
        receiver and the message, for each message that is sent.
        """
        sites = setup.sites
        self.setup, self.script, self.settings, self.shared = setup, script, settings, shared
        self.within_limit, self.watch = within_limit, watch
        self.now_us = 0
        self.begins_us = 0
        """The virtual time at which event time starts."""
        self.published_us = 0
        """The virtual time at which the last batch is published."""
        self.batches = 0
        self.counts = MessageCounts()
        self.applied: list[Fault] = []
        self.nodes: dict[str, Node] = {}
        self.down: set[str] = set()
        self.groups = {name: replica_names(name, script.replicas) for name in sites.processors}
        self.sinks = {sink: replica_names(SINK + sink, script.replicas) for sink in sites.sinks}
        """The names of the replicas of each sink."""
        self._members = {**self.groups, **{SINK + sink: sink_replicas for sink, sink_replicas in self.sinks.items()}}
        self._rng = random.Random(f"network {seed}")
        self._incarnations: Counter[str] = Counter()
        self._snapshots: dict[str, bytes] = {}
        self._snapshots_us: dict[str, int] = {}
        self._heap: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0
        self._base_delays_us: dict[tuple[str, str], int] = {}
        """The delay of each link without jitter and faults."""
        self._latest: dict[tuple[str, str], int] = {}
        self._cuts: list[Fault] = []
        self._enough: Callable[[], bool] = lambda: False
        self._over = False
        self._waiting: dict[str, deque[Sequence[Content]]] = defaultdict(deque)
        """The batches that wait because their source is full or down, by group."""
        self._decommissioned: set[str] = set()
        self._recovering: set[str] = set()
        self._floors: dict[tuple[str, str], int] = defaultdict(lambda: -1)
        self._delays = dict(sites.delays_us)
        self._extra: dict[str, int] = {}
        flaws = FLAWS[flaw]
        self._replica_class = type("Run", (SharedReplica if shared else Replica,), {**flaws, "states": []})
        self._sink_class = type(
            "RunSinkReplica", (SinkReplica,), {name: flaws[name] for name in flaws if name == "Incoming"}
        )
        for name in [name for names in self._members.values() for name in names]:
            self._extra[name] = self._rng.randrange(1000)
            self._add(self._create(name))
        for group in self.groups:
            self._add(self._create(SOURCE + group))
        for fault in script.faults:
            self._at(fault.at_us, self._fault, fault, 0)
        self._at(settings.beat_us, self._observe)

    def _create(self, name: str, *, begins: bool = True) -> Node:
        """Create the node `name` in its current incarnation. If `begins` is false, it needs the state of a peer."""
        group, settings, incarnation = group_of(name), self.settings, self._incarnations[name]
        if name.startswith(SOURCE):
            group = group.removeprefix(SOURCE)
            return SourceQueue(group, self.groups[group], settings)
        if name.startswith(SINK):
            site = processor_of(group.removeprefix(SINK))
            sink_replica: SinkReplica = self._sink_class(
                name, self._members[group], site, self.groups[site], settings, incarnation=incarnation, begins=begins
            )
            return sink_replica
        neighbours = {there: self.groups[there] for there in self.setup.links(group)}
        sinks = {
            SINK + sink: sink_replicas for sink, sink_replicas in self.sinks.items() if processor_of(sink) == group
        }
        machine: StateMachine = (
            SharedMachine(self.setup.history(group)) if self.shared else ProcessorMachine(self.setup.begin(group))
        )
        replica: Replica = self._replica_class(
            name, GroupTopology(group, self.groups[group], neighbours, sinks), machine, settings,
            incarnation=incarnation, begins=begins,
        )  # fmt: skip
        return replica

    # ---- time

    def _at(self, at_us: int, what: Callable[..., None], *arguments: Any) -> None:
        self._count += 1
        heapq.heappush(self._heap, (at_us, self._count, what, arguments))

    def run(self, until_us: int, enough: Callable[[], bool] = lambda: False) -> None:
        """Run until the time `until_us`, or until `enough`, which is called with every heartbeat, returns true."""
        self._enough = enough
        self._over = False
        heap = self._heap
        while heap and heap[0][0] <= until_us and not self._over:
            self.now_us, _, what, arguments = heapq.heappop(heap)
            what(*arguments)

    def _add(self, node: Node) -> None:
        self.nodes[node.name] = node
        self._incarnations[node.name] += 1
        self._collect(node)
        self._tick(node.name, self._incarnations[node.name], first=True)

    def _tick(self, name: str, incarnation: int, first: bool = False) -> None:
        if self._incarnations[name] != incarnation or name in self.down:
            return
        node = self.nodes[name]
        if first:
            at_us = self.now_us + self._rng.randrange(self.settings.beat_us)
        else:
            node.tick(self.now_us)
            self._collect(node)
            at_us = node.next_deadline()
        self._at(at_us, self._tick, name, incarnation)

    def _observe(self) -> None:
        for replicas in self.groups.values():
            self.counts.leaders[sum(self.leads(name) for name in replicas)] += 1
        self._recover()
        self._over = self._enough()
        self._at(self.now_us + self.settings.beat_us, self._observe)

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
            messages[kind_of(message)] += 1
            self.watch(name, receiver, message)
            self._carry(name, receiver, message)

    def _carry(self, sender: str, receiver: str, message: Any) -> None:
        link = (sender, receiver)
        if link not in self._base_delays_us:
            delay_us = self._delays.get((group_of(sender), group_of(receiver)), WITHIN_US)
            self._base_delays_us[link] = delay_us + self._extra.get(sender, 0) + self._extra.get(receiver, 0)
        delay_us = self._base_delays_us[link] + int(self._rng.random() * JITTER_US)
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
        if isinstance(message, RoundBatch) and message.parts and not sender.startswith(SOURCE):
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
                self._decommissioned.add(fault.who)
                self._broadcast(Decommissioned(fault.who))
            case "cut" | "slow":
                self._cuts.append(fault)
            case "suspect":
                self._arrive("", fault.other, LeaderDead(fault.who))

    def _possible(self, fault: Fault) -> bool:
        """Return whether `fault` can happen now."""
        if fault.kind == "crash":
            return fault.who not in self.down and (not self.within_limit or self._tolerable(fault.who))
        return fault.who in self.down if fault.kind in ("restart", "gone") else True

    def _broadcast(self, verdict: Decommissioned) -> None:
        for name in [name for name in self.nodes if name not in self.down and name != verdict.replica]:
            self._arrive("", name, verdict)

    def _crash(self, name: str) -> None:
        node = self.nodes[name]
        if not isinstance(node, SinkReplica):
            for queue in node.outgoing.values():
                self._floors[queue.stream] = max(self._floors[queue.stream], queue.floor)
        if isinstance(node, SourceQueue) or node.ready:
            self._snapshots[name], self._snapshots_us[name] = node.snapshot(), self.now_us
        self.counts.measured(node)
        self.down.add(name)
        self._recovering.add(name)

    def restart(self, name: str, *, kept: bool = False) -> None:
        """Restart the node `name` without its state, or with the state that it had if `kept` is true.

        Sources always keep their state.
        """
        self.down.discard(name)
        if name in self._decommissioned:
            self._decommissioned.discard(name)
            self._broadcast(Decommissioned(name, back=True))
        begins = (kept or name.startswith(SOURCE)) and name in self._snapshots
        new = self._create(name, begins=begins)
        if begins:
            new.restore(self._snapshots[name])
        self._add(new)
        for decommissioned in self._decommissioned:
            self._arrive("", name, Decommissioned(decommissioned))

    def revive(self) -> None:
        """Restart all sources that are down, and recover groups in which no running node has a complete state.

        In such a group, the node that crashed last restarts with the state that it had.
        """
        for name in [name for name in self.down if name.startswith(SOURCE)]:
            self.restart(name)
        for names in self._members.values():
            nodes = [self.nodes[name] for name in names if name not in self.down]
            if not any(isinstance(node, Member) and node.ready and not node.lacking for node in nodes):
                last = max(
                    (name for name in names if name in self._snapshots), key=lambda name: self._snapshots_us[name]
                )
                self.down.add(last)
                self.restart(last, kept=True)

    def _tolerable(self, name: str) -> bool:
        """Return whether the run tolerates a crash of the node `name`.

        Its group must have another correct replica, which has never failed or has recovered. A source can always crash,
        because it keeps its state.
        """
        self._recover()
        if name.startswith(SOURCE):
            return True
        peers = [peer for peer in self._members[group_of(name)] if peer != name and peer not in self.down]
        return any(peer not in self._recovering for peer in peers)

    def _recover(self) -> None:
        self._recovering = {name for name in self._recovering if not self.recovered(name)}

    def recovered(self, name: str) -> bool:
        """Return whether the node `name`, which has restarted, counts as correct again.

        It must have its state, all running senders must know its incarnation, and no sender may have dropped a batch
        that the node lacks.
        """
        if name in self.down:
            return False
        node = self.nodes[name]
        if isinstance(node, SourceQueue):
            return True
        if not node.ready:
            return False
        for group, incoming in node.incoming.items():
            if self._floors[incoming.stream] > incoming.upto:
                return False
            for sender in [sender for sender in node.senders[group] if sender not in self.down]:
                other = self.nodes[sender]
                assert not isinstance(other, SinkReplica)
                queue = other.outgoing[node.group]
                acknowledged = queue.acked.get(name)
                if queue.floor > incoming.upto or (acknowledged is not None and acknowledged[0] < node.incarnation):
                    return False
        return True

    # ---- sources and sinks

    def publish(self, batches: Mapping[str, Sequence[Content]], at_us: int) -> None:
        """Publish the batch of each group at its source, at the time `at_us`.

        A source that is full or down takes its batch later.
        """
        self.published_us = max(self.published_us, at_us)
        self.batches += 1
        for group, parts in batches.items():
            self._at(at_us, self._publish, group, parts)

    def _publish(self, group: str, *batches: Sequence[Content]) -> None:
        source, waiting = self.nodes[SOURCE + group], self._waiting[group]
        assert isinstance(source, SourceQueue)
        first = not waiting or not batches
        waiting.extend(batches)
        if source.name not in self.down:
            while waiting and source.publish(waiting[0], self.now_us):
                waiting.popleft()
            self._collect(source)
        if waiting and first:
            self._at(self.now_us + RETRY_US, self._publish, group)

    def lagging(self) -> dict[str, int]:
        """Return the running replicas that have not processed all rounds, with the number of rounds processed."""
        rounds = self.batches * self.settings.rounds
        replicas = [self.replica(name) for names in self.groups.values() for name in names if name not in self.down]
        return {replica.name: replica.round for replica in replicas if replica.round < rounds}

    def sink_replicas(self) -> Iterator[tuple[str, SinkReplica]]:
        """Yield each sink with each of its replicas."""
        for sink, names in self.sinks.items():
            for name in names:
                sink_replica = self.nodes[name]
                assert isinstance(sink_replica, SinkReplica)
                yield sink, sink_replica

    def got(self, sink_replica: str) -> list[str]:
        """Return the ids of the composite events that the sink replica received, in order."""
        node = self.nodes[sink_replica]
        assert isinstance(node, SinkReplica)
        pairs = [
            pair
            for notice, _ in node.got
            for pair in zip(notice.batch["rule"].to_pylist(), notice.batch["id"].to_pylist(), strict=True)
        ]
        return [id for rule, id in pairs if rule]

    def measured(self) -> MessageCounts:
        """Update the greatest lengths of queues in `counts`, and return `counts`."""
        for node in self.nodes.values():
            self.counts.measured(node)
        return self.counts

    @property
    def lost(self) -> list[Lost]:
        """What running nodes have lost and cannot recover, as they report it."""
        nodes = [self.nodes[name] for names in self._members.values() for name in names if name not in self.down]
        return [lost for node in nodes if isinstance(node, Member) and (lost := node.lost)]


def _touches(fault: Fault, sender: str, receiver: str) -> bool:
    ends = {sender, receiver}
    return fault.who in ends and (fault.other == ALL or fault.other in ends)


SourceBatches = Mapping[str, Publication]
"""The batch of the source of each group, for one epoch."""


def source_batches(
    groups: Iterable[str], events: pa.Table, where: Sequence[str], *, epoch_us: int, count: int, spare: int = 4
) -> list[dict[str, Publication]]:
    """Split `events` into `count` epochs with a batch for each group, and add `spare` empty epochs.

    `events` must be in order of time. `where` has the processor of each event.
    """
    ts, homes = events["ts"].to_numpy(), np.asarray(where)
    result = []
    for number in range(count + spare):
        upto = (number + 1) * epoch_us
        first, last = np.searchsorted(ts, [number * epoch_us, upto])
        rows, mine = events.slice(first, last - first), homes[first:last]
        result.append({group: Publication(rows.filter(pa.array(mine == group)), upto) for group in groups})
    return result


def play(
    network: ReplicatedNetwork,
    publications: Sequence[SourceBatches],
    *,
    epoch_us: int,
    limit_us: int,
    expected: Mapping[str, Sequence[str]],
) -> list[Violation]:
    """Deploy the rules, publish `publications`, run until nothing is missing, and return all violations.

    The run ends when all faults have happened, all rounds have run and each sink replica has as many matches as
    expected. It ends at `limit_us` at the latest.
    """
    deploying = network.setup.deploying(network.settings.rounds)
    network.begins_us = len(deploying) * epoch_us
    for number, commands in enumerate(deploying):
        network.publish({group: commands.get(group, ()) for group in network.groups}, (number + 1) * epoch_us)
    for number, epoch in enumerate(publications):
        at_us = network.begins_us + (number + 1) * epoch_us
        network.publish({group: (epoch[group],) for group in network.groups}, at_us)
    return finish(network, limit_us=limit_us, expected=expected)


def finish(network: ReplicatedNetwork, *, limit_us: int, expected: Mapping[str, Sequence[str]]) -> list[Violation]:
    """Run until all faults have happened and no match is missing, but at most to `limit_us`; return all violations."""
    last_us = max([network.published_us, *(max(one.at_us, one.until_us) for one in network.script.faults)])
    last_us += 10 * network.settings.beat_us

    def enough() -> bool:
        if network.now_us <= last_us or network.lagging():
            return False
        return all(
            sink_replica.count >= len(expected[sink])
            for sink, sink_replica in network.sink_replicas()
            if sink_replica.name not in network.down
        )

    network.run(limit_us, enough)
    return check(network, expected)


def check(network: ReplicatedNetwork, expected: Mapping[str, Sequence[str]]) -> list[Violation]:
    """Return all violations in a run.

    A sink replica that is down may be incomplete, unless all replicas of its sink are down.
    """
    result: list[Violation] = []
    for sink, names in network.sinks.items():
        up = [name for name in names if name not in network.down] or names
        for name in names:
            result += violations({name: network.got(name)}, {name: expected[sink]}, ended=name in up)
    result += [Violation("incomplete", name, f"round {rounds}") for name, rounds in network.lagging().items()]
    counts, settings = network.measured(), network.settings
    for what, longest, limit in (
        ("outgoing", counts.outgoing_longest, settings.queue_max),
        ("incoming", counts.incoming_longest, settings.inbox_max),
    ):
        if longest > limit:
            result.append(Violation("queue over its limit", what, f"{longest} of {limit}"))
    if not network.applied:
        replicas = network.script.replicas
        for what, sent, once in (("links", counts.events, counts.links), ("sinks", counts.notices, counts.situations)):
            if sent != replicas * once:
                result.append(Violation("more than f + 1 messages", what, f"{sent} for {once} events"))
    return result
