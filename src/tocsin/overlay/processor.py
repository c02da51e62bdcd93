"""Run the processor of a site as a state machine.

The host passes messages to `receive`, and sends the messages that it then finds in `outbox`.

    receive(message) ─► trees: parents and children (`tree_building`)
                     ─► tables: the types that subtrees advertise, and the subscriptions of sinks
                     ─► events: forwarded to parents at once (`routes`), or processed when released (`tree_node`)
                     ─► changes: trees that replace others at an event time (`tree_changes`)

Each processor knows all rules and declared types (T-Rex, 3.4). Events, subscriptions and partial rules travel only
along the trees. A processor has one *tree node* in each tree (`TreeNode`). A *change* is an event time at which links,
sources or sinks change; changes are numbered, and 0 is the topology at the beginning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from tocsin.errors import EventError, RuleError, nearest
from tocsin.events.types import EventType, Kind
from tocsin.language.syntax.ast import Pattern, Rule
from tocsin.overlay import decisions, tree_building, tree_changes
from tocsin.overlay import messages as m
from tocsin.overlay.deployment import closure
from tocsin.overlay.messages import Rows
from tocsin.overlay.partial_aggregates import receive_partials, receive_query
from tocsin.overlay.routes import Routes, relabelled, routes
from tocsin.overlay.strategies import Strategy
from tocsin.overlay.tree_building import number_of
from tocsin.overlay.tree_changes import TopologyChange
from tocsin.overlay.tree_node import TreeNode
from tocsin.overlay.tree_parts import BEGINNING, Array, Timing
from tocsin.plans.bind.structure import PatternTree
from tocsin.plans.splitting import FOREVER_US, HERE

RESERVED = ("rule", "type", "ts", "seq", "id", "parts")
"""The columns of a table of matches, which cannot be names of attributes."""


class Processor:
    """The processor of a site.

    `links` maps each neighbour to the declared delay (µs) of the link. `period_us` is the time between two choices of
    masters. `joins` is the number of the change with which the processor joins, or 0 for the beginning.
    """

    def __init__(
        self,
        name: str,
        links: Mapping[str, int],
        strategy: Strategy,
        types: Mapping[str, EventType],
        rules: Sequence[Rule],
        *,
        period_us: int = 60_000_000,
        joins: int = 0,
    ) -> None:
        if "@" in name:
            raise EventError(f"a processor's name has no @: {name}")
        self.name, self.strategy = name, strategy
        self.types, self.rules = check_types(types), tuple(rules)
        self.period_us = period_us
        self.outbox: list[tuple[str, m.Message]] = []
        self.notices: list[tuple[str, Rows, Array]] = []
        """The deliveries that the host passes to sinks: the sink, the matches, and the time at which each is ready."""
        self.tree_nodes: dict[str, TreeNode] = {}
        first = TopologyChange(joins - 1, BEGINNING) if joins else TopologyChange(0, BEGINNING, dict(links), {}, {})
        self.changes = {first.number: first}
        """The past changes and the current one, by number."""
        self.pending: list[TopologyChange] = []
        self.early_messages: list[tuple[str, m.Message]] = []
        """The received messages, with their senders, for changes that have not taken effect here yet."""
        self.handed_over: set[tuple[int, str]] = set()
        """The neighbours that have sent a Handover because they leave, each with the number of the change."""
        self.unbuilt: dict[int, set[str]] = {}
        """For each change, the roots of the trees that are not deployed here yet."""
        self.successor: str | None = None
        self.leads = False
        """Whether this processor is the root of the single tree."""
        self.wanted: tuple[str, ...] = ()
        """The names of the rules that were wanted in the last tree rooted here."""
        self.retained: list[tuple[int, Rows]] = []
        """The published events that windows of later trees may still need.

        The events are from own sources, or from a processor that has left and whose successor this is. The number is
        that of the first change whose trees get the events.
        """
        self.published = BEGINNING
        self.memories: list[m.Memory] = []
        self.served = joins
        """The number of the change whose tree serves the sinks; matches of later trees wait in `early_matches`."""
        self.early_matches: list[tuple[str, Rows, Array]] = []
        self.leader = (-len(links), sum(links.values()), name)
        self.refused = 0
        """The number of events that were refused because no source advertises their type."""
        self.horizon_us = _horizon_us(self.rules)
        self._routes: Routes | None = None

    # ---- called by the host

    @property
    def number(self) -> int:
        """The number of the current change, which is the latest that has taken effect here."""
        return next(reversed(self.changes))

    @property
    def links(self) -> Mapping[str, int]:
        return self.changes[self.number].links

    @property
    def offers(self) -> Mapping[str, frozenset[str]]:
        """The types that each source publishes."""
        return self.changes[self.number].offers

    @property
    def interests(self) -> Mapping[str, tuple[Pattern, ...]]:
        """The subscriptions of each sink."""
        return self.changes[self.number].interests

    def start(self) -> None:
        """Start the election of a leader; with many trees, build the tree of this processor if it has sinks."""
        tree_building.start(self)

    def root(self) -> None:
        """Build the first tree whose root is this processor."""
        self.leads = self.strategy.single
        tree_building.build_tree(self, self.name)

    def advertise(self, source: str, types: Iterable[str]) -> None:
        """Declare the event types that `source` will publish; call this before the first event."""
        names = frozenset(types)
        for name in sorted(names):
            if name not in self.types:
                raise EventError(f"there is no event type {name}. {nearest(name, self.types) or ''}".rstrip())
        self._first({source: names}, {})
        for node in self.tree_nodes.values():
            self.advertised_below(node)

    def subscribe(self, sink: str, wanted: Iterable[Pattern]) -> None:
        """Replace the subscriptions of `sink` by `wanted`; call this before the first event."""
        wanted = tuple(wanted)
        defined = {rule.emits.name for rule in self.rules}
        for pattern in wanted:
            if pattern.type not in defined and pattern.type not in self.types:
                hint = nearest(pattern.type, [*defined, *self.types])
                raise RuleError(f"no rule defines {pattern.type}, and no source can", hint=hint)
        self._first({}, {sink: wanted})
        for node in self.tree_nodes.values():
            self.wanted_below(node)

    def _first(self, offers: Mapping[str, frozenset[str]], interests: Mapping[str, tuple[Pattern, ...]]) -> None:
        first = self.changes[self.number]
        if first.at > BEGINNING:
            raise EventError("sources and sinks that come while events flow are announced by a change")
        new = TopologyChange(
            first.number, first.at, first.links, {**first.offers, **offers}, {**first.interests, **interests}
        )
        self.changes[first.number] = new

    def change(self, change: TopologyChange) -> None:
        """Announce a change of links, sources and sinks before its event time."""
        tree_changes.announce(self, change)

    def publish(self, events: pa.Table | Rows, upto: int) -> None:
        """Publish events of own sources, and promise that no events before `upto` will follow.

        The result depends on the times of the events, not on how they are divided into calls.
        """
        batch = events if isinstance(events, Rows) else Rows(events)
        if batch.num_rows:
            changes = (self.changes[self.number], *self.pending)
            offered = {type for change in changes for types in change.offers.values() for type in types}
            names, codes = batch.types
            fits = np.array([name in offered for name in names], bool)[codes]
            if not fits.all():
                self.refused += int((~fits).sum())
                batch = batch.take(fits)
        tree_changes.retain(self, batch)
        self.published = max(upto, self.published)
        if batch.num_rows:
            ts = batch.ts
            labels = np.zeros(batch.num_rows, np.uint64)
            for bit, tree in enumerate(self._order):
                node = self.tree_nodes[tree]
                if node.ready:
                    labels[ts < node.end if node.end < FOREVER_US else ...] |= np.uint64(1 << bit)
            self.own(batch, labels, ts)
        for node in list(self.tree_nodes.values()):
            if node.ready:
                progress = m.Progress(node.tree, min(upto, node.end), timing=Timing())
                node.receive_progress(HERE, progress)

    def receive(self, sender: str, message: m.Message, now: int = 0) -> None:
        """Process a message that the neighbour `sender` sent. No result depends on `now` (µs)."""
        tree = getattr(message, "tree", None)
        if tree is not None and tree_changes.is_early(self, message):
            self.early_messages.append((sender, message))
        elif tree is None or tree in self.tree_nodes or isinstance(message, m.CreateTree):
            _HANDLERS[type(message)](self, sender, message)

    def tick(self, now: int) -> None:
        """Run the timers that are due at the time `now`; a processor without replicas has no timers."""

    def next_deadline(self) -> int | None:
        """Return the time at which `tick` must be called next, or None."""
        return None

    # ---- shared by the parts of a processor

    def send(self, neighbour: str, message: m.Message) -> None:
        self.outbox.append((neighbour, message))

    def rerouted(self) -> None:
        """Discard the routing table, because a deployment has changed or a tree was added or removed."""
        self._routes = None

    def change_of(self, tree: str) -> TopologyChange:
        """Return the change that `tree` was built for."""
        return self.changes[number_of(tree)]

    @property
    def _order(self) -> list[str]:
        """The names of the trees, in the order of the bits in the labels of events."""
        return sorted(self.tree_nodes)

    def add(self, tree: str) -> None:
        """Create the node of this processor in `tree`."""
        start, end = tree_changes.time_bounds(self, tree)
        node = TreeNode(
            tree,
            self.strategy,
            self.types,
            self.send,
            lambda batch, at: self._push(tree, batch, at),
            lambda batch, at: decisions.send_down(self, self.tree_nodes[tree], *decisions.sort_matches(batch, at)),
            lambda: tree_changes.tree_ended(self, node),
            start=start,
            end=end,
            ready=not number_of(tree),
        )
        node.rates.period_us = self.period_us
        self.tree_nodes[tree] = node
        self.rerouted()

    # ---- tables

    def advertised_below(self, node: TreeNode) -> None:
        """Advertise the types of own sources and of all children to the parent, and redeploy."""
        own = {type for types in self.change_of(node.tree).offers.values() for type in types}
        if number_of(node.tree):
            for rows in tree_changes.retained_events(self, node):
                names, codes = rows.types
                own |= {names[code] for code in np.unique(codes).tolist()}
        node.advertised[HERE] = frozenset(own)
        if node.parent is not None:
            types = sorted({type for offered in node.advertised.values() for type in offered})
            self.send(node.parent, m.Advertise(node.tree, tuple(types)))
        self._redeploy(node)

    def _advertised(self, sender: str, message: m.Advertise) -> None:
        node = self.tree_nodes[message.tree]
        if sender not in node.children:
            return
        changed = node.advertised.get(sender) != frozenset(message.types)
        node.advertised[sender] = frozenset(message.types)
        if not node.ready:
            tree_building.check_gathered(self, node)
        elif changed:
            self.advertised_below(node)

    def wanted_below(self, node: TreeNode) -> None:
        """Process changed subscriptions of a tree node and its subtree.

        In a single tree, send the subscriptions to the parent. At the root, select the rules that produce the wanted
        types, and redeploy.
        """
        interests = self.change_of(node.tree).interests
        wanted = dict.fromkeys(pattern for patterns in interests.values() for pattern in patterns)
        if self.strategy.single:
            wanted.update(dict.fromkeys(p for patterns in node.subscribed.values() for p in patterns))
        if node.parent is not None:
            if self.strategy.single:
                self.send(node.parent, m.Subscribe(node.tree, tuple(wanted)))
            return
        types = {pattern.type for pattern in wanted}
        named = [rule for rule in self.rules if rule.emits.name in types]
        needed = dict.fromkeys(rule for wanted_rule in named for rule in closure(wanted_rule, self.rules))
        node.rules = tuple(needed)
        node.wanted = tuple(rule.name for rule in named)
        node.taps = tuple(pattern for pattern in wanted if pattern.type in self.types)
        if not number_of(node.tree):
            self.wanted = node.wanted
        self._redeploy(node)

    def _subscribed(self, sender: str, message: m.Subscribe) -> None:
        node = self.tree_nodes[message.tree]
        if sender in node.children and node.subscribed.get(sender) != message.wanted:
            node.subscribed[sender] = message.wanted
            if node.ready:
                self.wanted_below(node)

    def _redeploy(self, node: TreeNode) -> None:
        if node.ready:
            node.redeploy()
            self.rerouted()

    def begin(self, node: TreeNode) -> None:
        """Deploy the rules of a new tree from its root, `node`."""
        node.remembered = tuple(name for name in node.wanted if name in self.wanted)
        self.wanted = node.wanted
        node.ready = True
        self._redeploy(node)
        tree_changes.tree_ready(self, node)

    def _deploy(self, sender: str, message: m.DeployRule) -> None:
        node = self.tree_nodes[message.tree]
        if sender == node.parent:
            self.rerouted()
            new = not node.ready
            node.ready = True
            node.take_over(message)
            self.rerouted()
            if new:
                tree_changes.tree_ready(self, node)

    # ---- events

    def _push(self, tree: str, batch: Rows, at: Array) -> None:
        parent = self.tree_nodes[tree].parent
        if parent is not None and batch.num_rows:
            self.send(parent, m.Events((tree,), batch, np.ones(batch.num_rows, np.uint64), at))

    def _events(self, sender: str, message: m.Events) -> None:
        self.arrive(message.batch, relabelled(message.labels, message.trees, self._order), message.at)

    def own(self, batch: Rows, labels: Array, at: Array) -> None:
        """Process events of own sources: retain those that aggregates may query, then forward or store them."""
        for bit, tree in enumerate(self._order):
            aggregate_state = self.tree_nodes[tree].aggregate_state
            if aggregate_state.retained:
                mine = labels & np.uint64(1 << bit) != 0
                aggregate_state.add(batch.take(mine), self.types)
        self.arrive(batch, labels, at)

    def arrive(self, batch: Rows, labels: Array, at: Array) -> None:
        """Forward the events that need no evaluation to parents, and store those that are evaluated here."""
        if self._routes is None:
            self._routes = routes(self.tree_nodes[tree] for tree in self._order)
        always, evaluated = self._routes.sort(batch, labels, self.types)
        for parent, bits in self._routes.parents.items():
            mine = always & np.uint64(bits)
            rows = np.nonzero(mine)[0]
            if len(rows):
                whole = len(rows) == len(mine)
                out = (batch, mine, at) if whole else (batch.take(rows), mine[rows], at[rows])
                self.send(parent, m.Events(tuple(self._order), *out))
        if not evaluated.any():
            return
        for bit, tree in enumerate(self._order):
            rows = np.nonzero(evaluated & np.uint64(1 << bit))[0]
            if len(rows):
                self.tree_nodes[tree].arrivals.append(batch if len(rows) == len(evaluated) else batch.take(rows))

    # ---- messages for tree nodes

    def _progress(self, sender: str, message: m.Progress) -> None:
        node = self.tree_nodes[message.tree]
        if sender in node.children or sender == node.parent:
            node.receive_progress(sender, message)


@lru_cache(maxsize=64)
def _horizon_us(rules: tuple[Rule, ...]) -> int:
    """Return the longest time that a rule looks back, including the rules whose composite events it uses."""
    return max((sum(PatternTree(one).retention_us for one in closure(rule, rules)) for rule in rules), default=0)


def check_names(types: Iterable[EventType]) -> None:
    """Raise an error if an attribute has a reserved name: a column of the tables that are sent between sites."""
    for type in types:
        for name, _ in type.attributes:
            if name.lower() in RESERVED:
                raise EventError(f"{type.name} cannot have an attribute called {name} where events go between sites")


def check_types(types: Mapping[str, EventType]) -> dict[str, EventType]:
    """Check that events of all types fit into one table, and return the types as a new dictionary.

    Raise an error if an attribute has a reserved name, or different kinds in two types.
    """
    check_names(types.values())
    kinds: dict[str, Kind] = {}
    for type in types.values():
        for name, kind in type.attributes:
            if kinds.setdefault(name, kind) != kind:
                raise EventError(
                    f"{type.name}.{name} is of kind {kind}, in another type {name} is of kind {kinds[name]}"
                )
    return dict(types)


_HANDLERS: dict[type, Callable[[Processor, str, Any], None]] = {
    m.Elect: tree_building.receive_elect,
    m.CreateTree: tree_building.receive_create,
    m.Ack: tree_building.receive_ack,
    m.Nack: tree_building.receive_nack,
    m.Completed: tree_building.receive_completed,
    m.Gather: tree_building.receive_gather,
    m.Retire: tree_changes.receive_retire,
    m.Handover: tree_changes.receive_handover,
    m.Memory: tree_changes.receive_memory,
    m.Advertise: Processor._advertised,
    m.Subscribe: Processor._subscribed,
    m.DeployRule: Processor._deploy,
    m.Events: Processor._events,
    m.Matches: decisions.receive_matches,
    m.Progress: Processor._progress,
    m.Awaken: lambda processor, _, message: processor.tree_nodes[message.tree].receive_awaken(message),
    m.Answer: lambda processor, _, message: processor.tree_nodes[message.tree].receive_answer(message),
    m.Done: lambda processor, sender, message: processor.tree_nodes[message.tree].receive_done(sender, message),
    m.AggregateQuery: lambda processor, _, message: receive_query(processor.tree_nodes[message.tree], message),
    m.AggregatePartials: lambda processor, sender, message: receive_partials(
        processor.tree_nodes[message.tree], sender, message
    ),
}
