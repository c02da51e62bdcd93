"""A processor: a state machine that its host feeds with messages and whose outbox it empties.

    receive(message) ─► trees: father and children
                     ─► tables: what is advertised below, what sinks want
                     ─► events: relayed to fathers as they come, or looked at when they are released (`membership`)

Trees are shortest paths by declared delay (T-Rex, 3.1): CreateTree is flooded with the sum of the delays so far, and a
neighbour that offers a shorter way becomes the father. In a single tree the root is the leader, the least in rank: the
most links first. Rules and declared types are known to every processor (3.4); events, subscriptions and partial
rules go along the trees only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tocsin.errors import EventError, RuleError, nearest
from tocsin.events.types import EventType, Kind
from tocsin.language.rules import Pattern, Rule
from tocsin.overlay import messages as m
from tocsin.overlay.deployment import closure
from tocsin.overlay.evaluation import passing
from tocsin.overlay.membership import Membership
from tocsin.overlay.strategies import Strategy
from tocsin.overlay.timing import Array, Timing
from tocsin.plans.splitting import HERE

RESERVED = ("rule", "parts")
"""Columns of matches that events cannot have as attributes."""
TREES_MAX = 64
"""An event's label has one bit for each tree."""


@dataclass
class _Routes:
    """What happens to events of each type as they arrive: bits of trees."""

    always: dict[str, int] = field(default_factory=dict)
    tested: dict[str, list[tuple[Pattern, int]]] = field(default_factory=dict)
    looked: dict[str, int] = field(default_factory=dict)
    fathers: dict[str, int] = field(default_factory=dict)


class Processor:
    """What runs at a site. `links`: its neighbours, with the declared delay of the link to each."""

    def __init__(
        self,
        name: str,
        links: Mapping[str, int],
        strategy: Strategy,
        types: Mapping[str, EventType],
        rules: Sequence[Rule],
        *,
        period_us: int = 60_000_000,
    ) -> None:
        self.name, self.links, self.strategy = name, dict(links), strategy
        self.types, self.rules = checked(types), tuple(rules)
        self.period_us = period_us
        self.outbox: list[tuple[str, m.Message]] = []
        self.notices: list[tuple[str, pa.Table, Array]] = []
        """For the sinks: whose, what, and when."""
        self.memberships: dict[str, Membership] = {}
        self.leader = self._rank()
        self.offers: dict[str, frozenset[str]] = {}
        """The types of each source."""
        self.interests: dict[str, tuple[Pattern, ...]] = {}
        """What each sink wants."""
        self.refused = 0
        """Events of types that nobody advertised."""
        self._routes: _Routes | None = None

    def _rank(self) -> tuple[int, int, str]:
        return (-len(self.links), sum(self.links.values()), self.name)

    # ---- the host's side

    def start(self) -> None:
        """Begins the election of a leader, or the own tree if there are many."""
        if self.strategy.single:
            for link in sorted(self.links):
                self._send(link, m.Elect(self.leader))
        elif self.interests:
            self.root()

    def root(self) -> None:
        """Builds the tree whose root is here."""
        self.join(self.name)
        for link in sorted(self.links):
            self._send(link, m.CreateTree(self.name, 0))

    def advertise(self, source: str, types: Iterable[str]) -> None:
        """A source says what it will publish."""
        names = frozenset(types)
        for name in sorted(names):
            if name not in self.types:
                raise EventError(f"there is no event type {name}. {nearest(name, self.types) or ''}".rstrip())
        self.offers[source] = names
        for membership in self.memberships.values():
            self._advertise(membership)

    def subscribe(self, sink: str, wanted: Iterable[Pattern]) -> None:
        """A sink says what it wants, instead of what it wanted before."""
        wanted = tuple(wanted)
        defined = {rule.emits.name for rule in self.rules}
        for pattern in wanted:
            if pattern.type not in defined and pattern.type not in self.types:
                known = [*defined, *self.types]
                raise RuleError(f"no rule defines {pattern.type}, and no source can", hint=nearest(pattern.type, known))
        self.interests[sink] = wanted
        for membership in self.memberships.values():
            self._subscribe(membership)

    def publish(self, batch: pa.Table, upto: int) -> None:
        """Own sources' events, and that none before `upto` will come any more. Only their order of time counts."""
        if batch.num_rows:
            offered = {type for types in self.offers.values() for type in types}
            fits = pc.is_in(batch["type"], pa.array(sorted(offered), pa.string())).to_numpy()
            if not fits.all():
                self.refused += int((~fits).sum())
                batch = batch.filter(pa.array(fits))
        if batch.num_rows:
            trees = len(self._order)
            labels = np.full(batch.num_rows, (1 << trees) - 1 if trees < TREES_MAX else ~np.uint64(0), np.uint64)
            self._arrive(batch, labels, batch["ts"].to_numpy())
        for membership in list(self.memberships.values()):
            membership.receive_progress(HERE, m.Progress(membership.tree, upto, timing=Timing()))

    def receive(self, sender: str, message: m.Message, now: int = 0) -> None:
        """Takes a message from a neighbour. Nothing depends on `now` (µs); it is there for hosts that keep timers."""
        _HANDLERS[type(message)](self, sender, message)

    def tick(self, now: int) -> None:
        """Does what is due; a processor without replicas has no timers."""

    def next_deadline(self) -> int | None:
        """When `tick` should be called next."""
        return None

    # ---- trees

    def _send(self, neighbour: str, message: m.Message) -> None:
        self.outbox.append((neighbour, message))

    @property
    def _order(self) -> list[str]:
        """The trees, by the bits of labels."""
        return sorted(self.memberships)

    def join(self, tree: str) -> Membership:
        """The processor's place in a tree, which it takes if it had none."""
        if tree not in self.memberships:
            if len(self.memberships) == TREES_MAX:
                raise RuleError(
                    f"there can be at most {TREES_MAX} trees: have fewer processors with sinks, or one tree"
                )
            membership = Membership(
                tree,
                self.strategy,
                self.types,
                self._send,
                lambda batch, at: self._push(tree, batch, at),
                lambda batch, at: self._spread(tree, batch, at),
            )
            membership.rates.period_us = self.period_us
            self.memberships[tree] = membership
            self._routes = None
        return self.memberships[tree]

    def _elect(self, sender: str, message: m.Elect) -> None:
        if message.rank < self.leader:
            self.leader = message.rank
            for link in sorted(self.links):
                if link != sender:
                    self._send(link, m.Elect(self.leader))

    def _create(self, sender: str, message: m.CreateTree) -> None:
        tree, distance_us = message.tree, message.distance_us + self.links[sender]
        if tree == self.name:
            self._send(sender, m.Nack(tree))
            return
        known = self.memberships.get(tree)
        if (
            known is not None
            and known.father is not None
            and (known.distance_us, known.father) <= (distance_us, sender)
        ):
            self._send(sender, m.Nack(tree))
            return
        membership = self.join(tree)
        if membership.father is not None and membership.father != sender:
            self._send(membership.father, m.Nack(tree))
        shorter = membership.father is None or distance_us < membership.distance_us
        membership.father, membership.distance_us = sender, distance_us
        self._routes = None
        self._send(sender, m.Ack(tree))
        if shorter:
            for link in sorted(self.links):
                if link != sender:
                    self._send(link, m.CreateTree(tree, distance_us))
        self._advertise(membership)
        self._subscribe(membership)

    def _ack(self, sender: str, message: m.Ack) -> None:
        self.join(message.tree).children.add(sender)

    def _nack(self, sender: str, message: m.Nack) -> None:
        membership = self.join(message.tree)
        if sender in membership.children:
            membership.children.discard(sender)
            for table in (membership.advertised, membership.subscribed, membership.sent, membership.progress):
                table.pop(sender, None)
            self._advertise(membership)
            self._subscribe(membership)

    # ---- tables

    def _advertise(self, membership: Membership) -> None:
        """Own types and those of the children go up, and what is decided here may change."""
        own = frozenset(type for types in self.offers.values() for type in types)
        membership.advertised[HERE] = own
        if membership.father is not None:
            types = sorted({type for known in membership.advertised.values() for type in known})
            self._send(membership.father, m.Advertise(membership.tree, tuple(types)))
        self._redeploy(membership)

    def _advertised(self, sender: str, message: m.Advertise) -> None:
        membership = self.join(message.tree)
        if sender in membership.children and membership.advertised.get(sender) != frozenset(message.types):
            membership.advertised[sender] = frozenset(message.types)
            self._advertise(membership)

    def _subscribe(self, membership: Membership) -> None:
        """What is wanted here and below goes up in a single tree; a root finds the rules that make it."""
        wanted = dict.fromkeys(pattern for patterns in self.interests.values() for pattern in patterns)
        if self.strategy.single:
            wanted.update(dict.fromkeys(p for patterns in membership.subscribed.values() for p in patterns))
        if membership.father is not None:
            if self.strategy.single:
                self._send(membership.father, m.Subscribe(membership.tree, tuple(wanted)))
            return
        types = {pattern.type for pattern in wanted}
        named = [rule for rule in self.rules if rule.emits.name in types]
        needed = dict.fromkeys(rule for wanted_rule in named for rule in closure(wanted_rule, self.rules))
        membership.rules = tuple(needed)
        membership.wanted = tuple(rule.name for rule in named)
        membership.taps = tuple(pattern for pattern in wanted if pattern.type in self.types)
        self._redeploy(membership)

    def _subscribed(self, sender: str, message: m.Subscribe) -> None:
        membership = self.join(message.tree)
        if sender in membership.children and membership.subscribed.get(sender) != message.wanted:
            membership.subscribed[sender] = message.wanted
            self._subscribe(membership)

    def _redeploy(self, membership: Membership) -> None:
        membership.redeploy()
        self._routes = None

    def _deploy(self, sender: str, message: m.DeployRule) -> None:
        membership = self.join(message.tree)
        if sender == membership.father:
            self._routes = None
            membership.take_over(message)
            self._routes = None

    # ---- events

    def _push(self, tree: str, batch: pa.Table, at: Array) -> None:
        father = self.memberships[tree].father
        if father is not None and batch.num_rows:
            self._send(father, m.Events((tree,), batch, np.ones(batch.num_rows, np.uint64), at))

    def _table(self) -> _Routes:
        """Where events go, by their type; the same until something is deployed."""
        if self._routes is not None:
            return self._routes
        routes = _Routes()
        for bit, tree in enumerate(self._order):
            membership, mine = self.memberships[tree], 1 << bit
            if membership.father is not None:
                routes.fathers[membership.father] = routes.fathers.get(membership.father, 0) | mine
                for type in membership.deployed.through_types:
                    routes.always[type] = routes.always.get(type, 0) | mine
                for part in membership.uplink.relayed:
                    pattern = part.rule.anchor
                    if pattern.constraints:
                        routes.tested.setdefault(pattern.type, []).append((pattern, mine))
                    else:
                        routes.always[pattern.type] = routes.always.get(pattern.type, 0) | mine
            for type in membership.looked_at:
                routes.looked[type] = routes.looked.get(type, 0) | mine
        self._routes = routes
        return routes

    def _events(self, sender: str, message: m.Events) -> None:
        labels, order = message.labels, self._order
        if list(message.trees) != order:
            moved = np.zeros(len(labels), np.uint64)
            for bit, tree in enumerate(message.trees):
                if tree in self.memberships:
                    there = (labels >> np.uint64(bit)) & np.uint64(1)
                    moved |= there << np.uint64(order.index(tree))
            labels = moved
        self._arrive(message.batch, labels, message.at)

    def _arrive(self, batch: pa.Table, labels: Array, at: Array) -> None:
        """Relays events that need no more than a look, and lays by those that do."""
        routes = self._table()
        coded = batch["type"].combine_chunks().dictionary_encode()
        if isinstance(coded, pa.ChunkedArray):
            coded = coded.combine_chunks()
        names = coded.dictionary.to_pylist()
        codes = coded.indices.to_numpy()
        always = np.array([routes.always.get(name, 0) for name in names], np.uint64)[codes]
        for number, name in enumerate(names):
            if name in routes.tested:
                rows = np.nonzero(codes == number)[0]
                some = batch.take(rows)
                for pattern, bit in routes.tested[name]:
                    always[rows[passing(pattern, some, self.types)]] |= np.uint64(bit)
        always &= labels
        for father, bits in routes.fathers.items():
            mine = always & np.uint64(bits)
            rows = np.nonzero(mine)[0]
            if len(rows):
                whole = len(rows) == len(mine)
                out = (batch, mine, at) if whole else (batch.take(rows), mine[rows], at[rows])
                self._send(father, m.Events(tuple(self._order), *out))
        looked = np.array([routes.looked.get(name, 0) for name in names], np.uint64)[codes] & labels
        if not looked.any():
            return
        for bit, tree in enumerate(self._order):
            rows = np.nonzero(looked & np.uint64(1 << bit))[0]
            if len(rows):
                self.memberships[tree].arrivals.append(batch if len(rows) == len(looked) else batch.take(rows))

    # ---- matches

    def _matches(self, sender: str, message: m.Matches) -> None:
        membership = self.join(message.tree)
        if sender == membership.father:
            self._hand_down(membership, message.batch, message.at)
        else:
            membership.receive_matches(message)

    def _spread(self, tree: str, batch: pa.Table, at: Array) -> None:
        """What the root of a tree has found, in order."""
        plain = pc.equal(batch["rule"], "").combine_chunks()
        keys = pa.table(
            {
                "ts": batch["ts"],
                "seq": batch["seq"],
                "rule": batch["rule"],
                "type": pc.if_else(plain, batch["type"].combine_chunks(), ""),
                "id": pc.if_else(plain, batch["id"].combine_chunks(), ""),
                "row": pa.array(np.arange(batch.num_rows)),
            }
        )
        order = pc.sort_indices(keys, [(name, "ascending") for name in keys.column_names]).to_numpy()
        at = np.maximum.accumulate(at[order])
        self._hand_down(self.memberships[tree], batch.take(order), at)

    def _hand_down(self, membership: Membership, batch: pa.Table, at: Array) -> None:
        """Hands matches to own sinks, and in a single tree to the children below which somebody wants them."""
        for sink, wanted in sorted(self.interests.items()):
            rows = self._fitting(wanted, batch)
            if len(rows):
                self.notices.append((sink, batch.take(rows), at[rows]))
        for child in sorted(membership.children) if self.strategy.single else ():
            rows = self._fitting(membership.subscribed.get(child, ()), batch)
            if len(rows):
                self._send(child, m.Matches(membership.tree, batch.take(rows), at[rows]))

    def _fitting(self, wanted: Iterable[Pattern], batch: pa.Table) -> Array:
        fits = np.zeros(batch.num_rows, bool)
        by_type: dict[str, list[Pattern]] = {}
        for pattern in wanted:
            by_type.setdefault(pattern.type, []).append(pattern)
        coded = batch["type"].combine_chunks().dictionary_encode()
        names, codes = coded.dictionary.to_pylist(), coded.indices.to_numpy()
        for number, name in enumerate(names):
            if name not in by_type:
                continue
            rows = np.nonzero(codes == number)[0]
            if not all(pattern.constraints for pattern in by_type[name]):
                fits[rows] = True
                continue
            some = batch.take(rows)
            for pattern in by_type[name]:
                fits[rows[passing(pattern, some, self._known)]] = True
        return np.nonzero(fits)[0]

    @property
    def _known(self) -> dict[str, EventType]:
        return {**self.types, **{rule.emits.name: rule.emits for rule in self.rules}}

    # ---- the rest goes to the memberships

    def _progress(self, sender: str, message: m.Progress) -> None:
        membership = self.join(message.tree)
        if sender in membership.children or sender == membership.father:
            membership.receive_progress(sender, message)

    def _awaken(self, sender: str, message: m.Awaken) -> None:
        self.join(message.tree).receive_awaken(message)

    def _answer(self, sender: str, message: m.Answer) -> None:
        self.join(message.tree).receive_answer(message)

    def _done(self, sender: str, message: m.Done) -> None:
        self.join(message.tree).receive_done(sender, message)


def checked(types: Mapping[str, EventType]) -> dict[str, EventType]:
    """Declared types, if their events can share one table with each other and with matches."""
    kinds: dict[str, Kind] = {}
    for type in types.values():
        for name, kind in type.attributes:
            if name in RESERVED:
                raise EventError(f"{type.name} cannot have an attribute called {name} where events go between sites")
            if kinds.setdefault(name, kind) != kind:
                raise EventError(
                    f"{type.name}.{name} is of kind {kind}, in another type {name} is of kind {kinds[name]}"
                )
    return dict(types)


_HANDLERS: dict[type, Callable[[Processor, str, Any], None]] = {
    m.Elect: Processor._elect,
    m.CreateTree: Processor._create,
    m.Ack: Processor._ack,
    m.Nack: Processor._nack,
    m.Advertise: Processor._advertised,
    m.Subscribe: Processor._subscribed,
    m.DeployRule: Processor._deploy,
    m.Events: Processor._events,
    m.Matches: Processor._matches,
    m.Progress: Processor._progress,
    m.Awaken: Processor._awaken,
    m.Answer: Processor._answer,
    m.Done: Processor._done,
}
