"""A processor: a state machine that its host feeds with messages and whose outbox it empties.

    receive(message) ─► trees: father and children (`trees`)
                     ─► tables: what is advertised below, what sinks want
                     ─► events: relayed to fathers as they come (`routing`), or looked at when they are released
                        (`membership`)
                     ─► changes: trees that take over from others at an event time (`versions`)

Rules and declared types are known to every processor (T-Rex, 3.4); events, subscriptions and partial rules go along
the trees only.
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
from tocsin.overlay.partial_aggregates import receive_shares, receive_survey
from tocsin.overlay.routes import Routes, relabelled, routes
from tocsin.overlay.strategies import Strategy
from tocsin.overlay.tree_building import number_of
from tocsin.overlay.tree_changes import Change
from tocsin.overlay.tree_node import Membership
from tocsin.overlay.tree_parts import BEGINNING, Array, Timing
from tocsin.plans.bind.structure import Shape
from tocsin.plans.splitting import FOREVER_US, HERE

RESERVED = ("rule", "type", "ts", "seq", "id", "parts")
"""Columns of matches that events cannot have as attributes."""


class Processor:
    """What runs at a site. `links`: its neighbours, with the declared delay of the link to each.

    `joins`: the number of the change with which it comes, if others were there before it.
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
        self.types, self.rules = checked(types), tuple(rules)
        self.period_us = period_us
        self.outbox: list[tuple[str, m.Message]] = []
        self.notices: list[tuple[str, Rows, Array]] = []
        """For the sinks: whose, what, and when."""
        self.memberships: dict[str, Membership] = {}
        first = Change(joins - 1, BEGINNING) if joins else Change(0, BEGINNING, dict(links), {}, {})
        self.changes = {first.number: first}
        """What was announced and entered, by number."""
        self.pending: list[Change] = []
        self.held: list[tuple[str, m.Message]] = []
        """What came for changes that are not entered here yet."""
        self.handed: set[tuple[int, str]] = set()
        """Who has handed over, with which change."""
        self.unbuilt: dict[int, set[str]] = {}
        """The roots of trees that belong to entered changes and are not deployed here yet."""
        self.heir: str | None = None
        self.leads = False
        """Whether this is the root of the single tree."""
        self.wanted: tuple[str, ...] = ()
        """The rules that were wanted in the last tree with its root here."""
        self.recent: list[tuple[int, Rows]] = []
        """Events of own sources that windows may still reach, and those of which this is the heir: from which change
        on."""
        self.published = BEGINNING
        self.memories: list[m.Memory] = []
        self.served = joins
        """The number of the tree that sinks are served from, and what came too early for them."""
        self.later: list[tuple[str, Rows, Array]] = []
        self.leader = (-len(links), sum(links.values()), name)
        self.refused = 0
        """Events of types that nobody advertised."""
        self.horizon_us = _horizon_us(self.rules)
        self._routes: Routes | None = None

    # ---- the host's side

    @property
    def number(self) -> int:
        """The change that was entered last."""
        return next(reversed(self.changes))

    @property
    def links(self) -> Mapping[str, int]:
        return self.changes[self.number].links

    @property
    def offers(self) -> Mapping[str, frozenset[str]]:
        """The types of each source."""
        return self.changes[self.number].offers

    @property
    def interests(self) -> Mapping[str, tuple[Pattern, ...]]:
        """What each sink wants."""
        return self.changes[self.number].interests

    def start(self) -> None:
        """Begins the election of a leader, or the own tree if there are many."""
        tree_building.start(self)

    def root(self) -> None:
        """Builds the first tree whose root is here."""
        self.leads = self.strategy.single
        tree_building.plant(self, self.name)

    def advertise(self, source: str, types: Iterable[str]) -> None:
        """A source says what it will publish, before events flow."""
        names = frozenset(types)
        for name in sorted(names):
            if name not in self.types:
                raise EventError(f"there is no event type {name}. {nearest(name, self.types) or ''}".rstrip())
        self._first({source: names}, {})
        for membership in self.memberships.values():
            self.advertised_below(membership)

    def subscribe(self, sink: str, wanted: Iterable[Pattern]) -> None:
        """A sink says what it wants, instead of what it wanted before, before events flow."""
        wanted = tuple(wanted)
        defined = {rule.emits.name for rule in self.rules}
        for pattern in wanted:
            if pattern.type not in defined and pattern.type not in self.types:
                known = [*defined, *self.types]
                raise RuleError(f"no rule defines {pattern.type}, and no source can", hint=nearest(pattern.type, known))
        self._first({}, {sink: wanted})
        for membership in self.memberships.values():
            self.wanted_below(membership)

    def _first(self, offers: Mapping[str, frozenset[str]], interests: Mapping[str, tuple[Pattern, ...]]) -> None:
        first = self.changes[self.number]
        if first.at > BEGINNING:
            raise EventError("sources and sinks that come while events flow are announced by a change")
        new = Change(first.number, first.at, first.links, {**first.offers, **offers}, {**first.interests, **interests})
        self.changes[first.number] = new

    def change(self, change: Change) -> None:
        """Announces how things are here from an event time on."""
        tree_changes.enter(self, change)

    def publish(self, events: pa.Table | Rows, upto: int) -> None:
        """Own sources' events, and that none before `upto` will come any more. Only their order of time counts."""
        batch = events if isinstance(events, Rows) else Rows(events)
        if batch.num_rows:
            known = (self.changes[self.number], *self.pending)
            offered = {type for change in known for types in change.offers.values() for type in types}
            names, codes = batch.types
            fits = np.array([name in offered for name in names], bool)[codes]
            if not fits.all():
                self.refused += int((~fits).sum())
                batch = batch.take(fits)
        tree_changes.remember(self, batch)
        self.published = max(upto, self.published)
        if batch.num_rows:
            ts = batch.ts
            labels = np.zeros(batch.num_rows, np.uint64)
            for bit, tree in enumerate(self._order):
                membership = self.memberships[tree]
                if membership.ready:
                    labels[ts < membership.end if membership.end < FOREVER_US else ...] |= np.uint64(1 << bit)
            self.own(batch, labels, ts)
        for membership in list(self.memberships.values()):
            if membership.ready:
                told = m.Progress(membership.tree, min(upto, membership.end), timing=Timing())
                membership.receive_progress(HERE, told)

    def receive(self, sender: str, message: m.Message, now: int = 0) -> None:
        """Takes a message from a neighbour. Nothing depends on `now` (µs); it is there for hosts that keep timers."""
        tree = getattr(message, "tree", None)
        if tree is not None and tree_changes.early(self, message):
            self.held.append((sender, message))
        elif tree is None or tree in self.memberships or isinstance(message, m.CreateTree):
            _HANDLERS[type(message)](self, sender, message)

    def tick(self, now: int) -> None:
        """Does what is due; a processor without replicas has no timers."""

    def next_deadline(self) -> int | None:
        """When `tick` should be called next."""
        return None

    # ---- what the parts of a processor need of each other

    def send(self, neighbour: str, message: m.Message) -> None:
        self.outbox.append((neighbour, message))

    def rerouted(self) -> None:
        """Something is deployed, or a tree has come or gone."""
        self._routes = None

    def change_of(self, tree: str) -> Change:
        """How things are for a tree."""
        return self.changes[number_of(tree)]

    @property
    def _order(self) -> list[str]:
        """The trees, by the bits of labels."""
        return sorted(self.memberships)

    def add(self, tree: str) -> None:
        """Takes a place in a tree."""
        start, end = tree_changes.bounds(self, tree)
        membership = Membership(
            tree,
            self.strategy,
            self.types,
            self.send,
            lambda batch, at: self._push(tree, batch, at),
            lambda batch, at: decisions.hand_down(self, self.memberships[tree], *decisions.in_order(batch, at)),
            lambda: tree_changes.ended(self, membership),
            start=start,
            end=end,
            ready=not number_of(tree),
        )
        membership.rates.period_us = self.period_us
        self.memberships[tree] = membership
        self.rerouted()

    # ---- tables

    def advertised_below(self, membership: Membership) -> None:
        """Own types and those of the children go up, and what is decided here may change."""
        own = {type for types in self.change_of(membership.tree).offers.values() for type in types}
        if number_of(membership.tree):
            for rows in tree_changes.reached(self, membership):
                names, codes = rows.types
                own |= {names[code] for code in np.unique(codes).tolist()}
        membership.advertised[HERE] = frozenset(own)
        if membership.father is not None:
            types = sorted({type for known in membership.advertised.values() for type in known})
            self.send(membership.father, m.Advertise(membership.tree, tuple(types)))
        self._redeploy(membership)

    def _advertised(self, sender: str, message: m.Advertise) -> None:
        membership = self.memberships[message.tree]
        if sender not in membership.children:
            return
        changed = membership.advertised.get(sender) != frozenset(message.types)
        membership.advertised[sender] = frozenset(message.types)
        if not membership.ready:
            tree_building.gathered(self, membership)
        elif changed:
            self.advertised_below(membership)

    def wanted_below(self, membership: Membership) -> None:
        """What is wanted here and below goes up in a single tree; a root finds the rules that make it."""
        interests = self.change_of(membership.tree).interests
        wanted = dict.fromkeys(pattern for patterns in interests.values() for pattern in patterns)
        if self.strategy.single:
            wanted.update(dict.fromkeys(p for patterns in membership.subscribed.values() for p in patterns))
        if membership.father is not None:
            if self.strategy.single:
                self.send(membership.father, m.Subscribe(membership.tree, tuple(wanted)))
            return
        types = {pattern.type for pattern in wanted}
        named = [rule for rule in self.rules if rule.emits.name in types]
        needed = dict.fromkeys(rule for wanted_rule in named for rule in closure(wanted_rule, self.rules))
        membership.rules = tuple(needed)
        membership.wanted = tuple(rule.name for rule in named)
        membership.taps = tuple(pattern for pattern in wanted if pattern.type in self.types)
        if not number_of(membership.tree):
            self.wanted = membership.wanted
        self._redeploy(membership)

    def _subscribed(self, sender: str, message: m.Subscribe) -> None:
        membership = self.memberships[message.tree]
        if sender in membership.children and membership.subscribed.get(sender) != message.wanted:
            membership.subscribed[sender] = message.wanted
            if membership.ready:
                self.wanted_below(membership)

    def _redeploy(self, membership: Membership) -> None:
        if membership.ready:
            membership.redeploy()
            self.rerouted()

    def begin(self, membership: Membership) -> None:
        """A new tree stands, and this is its root: rules go down."""
        membership.remembered = tuple(name for name in membership.wanted if name in self.wanted)
        self.wanted = membership.wanted
        membership.ready = True
        self._redeploy(membership)
        tree_changes.begun(self, membership)

    def _deploy(self, sender: str, message: m.DeployRule) -> None:
        membership = self.memberships[message.tree]
        if sender == membership.father:
            self.rerouted()
            new = not membership.ready
            membership.ready = True
            membership.take_over(message)
            self.rerouted()
            if new:
                tree_changes.begun(self, membership)

    # ---- events

    def _push(self, tree: str, batch: Rows, at: Array) -> None:
        father = self.memberships[tree].father
        if father is not None and batch.num_rows:
            self.send(father, m.Events((tree,), batch, np.ones(batch.num_rows, np.uint64), at))

    def _events(self, sender: str, message: m.Events) -> None:
        self.arrive(message.batch, relabelled(message.labels, message.trees, self._order), message.at)

    def own(self, batch: Rows, labels: Array, at: Array) -> None:
        """Events of own sources, which aggregates may ask for."""
        for bit, tree in enumerate(self._order):
            tallying = self.memberships[tree].tallying
            if tallying.kept:
                mine = labels & np.uint64(1 << bit) != 0
                tallying.add(batch.take(mine), self.types)
        self.arrive(batch, labels, at)

    def arrive(self, batch: Rows, labels: Array, at: Array) -> None:
        """Relays events that need no more than a look, and lays by those that do."""
        if self._routes is None:
            self._routes = routes(self.memberships[tree] for tree in self._order)
        always, looked = self._routes.sort(batch, labels, self.types)
        for father, bits in self._routes.fathers.items():
            mine = always & np.uint64(bits)
            rows = np.nonzero(mine)[0]
            if len(rows):
                whole = len(rows) == len(mine)
                out = (batch, mine, at) if whole else (batch.take(rows), mine[rows], at[rows])
                self.send(father, m.Events(tuple(self._order), *out))
        if not looked.any():
            return
        for bit, tree in enumerate(self._order):
            rows = np.nonzero(looked & np.uint64(1 << bit))[0]
            if len(rows):
                self.memberships[tree].arrivals.append(batch if len(rows) == len(looked) else batch.take(rows))

    # ---- the rest goes to the memberships

    def _progress(self, sender: str, message: m.Progress) -> None:
        membership = self.memberships[message.tree]
        if sender in membership.children or sender == membership.father:
            membership.receive_progress(sender, message)


@lru_cache(maxsize=64)
def _horizon_us(rules: tuple[Rule, ...]) -> int:
    """How far any of the rules looks back, through those whose composite events it uses."""
    return max((sum(Shape(one).horizon_us for one in closure(rule, rules)) for rule in rules), default=0)


def check_names(types: Iterable[EventType]) -> None:
    """Fails if an attribute is called as a column of the tables that go between sites."""
    for type in types:
        for name, _ in type.attributes:
            if name.lower() in RESERVED:
                raise EventError(f"{type.name} cannot have an attribute called {name} where events go between sites")


def checked(types: Mapping[str, EventType]) -> dict[str, EventType]:
    """Declared types, if their events can share one table with each other and with matches."""
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
    m.Elect: tree_building.elect,
    m.CreateTree: tree_building.create,
    m.Ack: tree_building.ack,
    m.Nack: tree_building.nack,
    m.Settled: tree_building.settled,
    m.Gather: tree_building.gather,
    m.Retire: tree_changes.retire,
    m.Handover: tree_changes.hand_over,
    m.Memory: tree_changes.remembered,
    m.Advertise: Processor._advertised,
    m.Subscribe: Processor._subscribed,
    m.DeployRule: Processor._deploy,
    m.Events: Processor._events,
    m.Matches: decisions.receive,
    m.Progress: Processor._progress,
    m.Awaken: lambda processor, _, message: processor.memberships[message.tree].receive_awaken(message),
    m.Answer: lambda processor, _, message: processor.memberships[message.tree].receive_answer(message),
    m.Done: lambda processor, sender, message: processor.memberships[message.tree].receive_done(sender, message),
    m.Survey: lambda processor, _, message: receive_survey(processor.memberships[message.tree], message),
    m.Shares: lambda processor, sender, message: receive_shares(processor.memberships[message.tree], sender, message),
}
