"""Keep the state of a processor in one processing tree, and process the tree's messages.

The inputs of a tree node are its children and the processor's own sources. When all inputs have reported that no events
before a time will follow, the node *releases* the events before that time. Released events of masters request events of
slaves (`pull`). After the slaves have answered, the node decides its rules (`decisions`) and reports its progress to
the parent. The results depend only on the released events, never on the order in which they arrived.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from tocsin.language.syntax.ast import Pattern, Rule
from tocsin.overlay import decisions, evaluation, partial_aggregates, pull
from tocsin.overlay.deployment import Deployment, Key, Mastery, deployment, modes
from tocsin.overlay.evaluation import Evaluator, Types, evaluators
from tocsin.overlay.messages import (
    Answer,
    Awaken,
    DeployRule,
    Done,
    Matches,
    Message,
    Progress,
    RequestedPartial,
    Rows,
    concatenate,
)
from tocsin.overlay.pull import AwakeningState
from tocsin.overlay.routes import TimedRows, Uplink
from tocsin.overlay.strategies import Strategy
from tocsin.overlay.tree_building import TreeConstruction
from tocsin.overlay.tree_parts import BEGINNING, Array, Timing, combine
from tocsin.plans.splitting import FOREVER_US, HERE, Partial

NO_DEPLOYMENT = DeployRule("", 0)
Send = Callable[[str, Message], None]
Push = Callable[[Rows, Array], None]


@dataclass
class TreeNode:
    """The state of a processor in one tree."""

    tree: str
    strategy: Strategy
    types: Types
    send: Send
    push: Push
    """Send events to the parent."""
    deliver: Callable[[Rows, Array], None]
    """Deliver matches to the sinks, called at the root."""
    ended: Callable[[], None]
    """Report that everything before `end` has been decided here."""
    start: int = BEGINNING
    """The event time of the first matches of this tree; earlier matches belong to an earlier tree (`tree_changes`)."""
    end: int = FOREVER_US
    """The event time from which on matches belong to a later tree."""
    ready: bool = True
    """Whether rules have been deployed in the tree, so that events can be processed."""
    finished: bool = False
    """Whether `ended` has been called."""
    construction: TreeConstruction = field(default_factory=TreeConstruction)
    remembered: tuple[str, ...] = ()
    """The names of the consuming rules that need their state from an earlier tree."""
    recalled: set[str] = field(default_factory=set)
    """The names of the consuming rules that have received their state."""
    parent: str | None = None
    """The neighbour on the shortest path to the root, None at the root."""
    distance_us: int = 0
    """The sum of the declared delays to the root."""
    children: set[str] = field(default_factory=set)
    advertised: dict[str, frozenset[str]] = field(default_factory=dict)
    """The event types of each child's subtree and of own sources (HERE)."""
    subscribed: dict[str, tuple[Pattern, ...]] = field(default_factory=dict)
    """The subscriptions of each child's subtree, in a single tree."""
    rules: tuple[Rule, ...] = ()
    """The rules that are decided here or below."""
    wanted: tuple[str, ...] = ()
    """The names of the rules whose matches are wanted."""
    requested: tuple[RequestedPartial, ...] = ()
    taps: tuple[Pattern, ...] = ()
    """The patterns of primary events to which sinks have subscribed, at the root."""
    version: int = 0
    """The version of the last DeployRule of the parent."""
    deployed: Deployment = field(default_factory=Deployment)
    uplink: Uplink = field(default_factory=Uplink)
    sent: dict[str, DeployRule] = field(default_factory=dict)
    """The last DeployRule that was sent to each child."""
    versions: int = 0
    progress: dict[str, Progress] = field(default_factory=dict)
    """The last Progress of each input: each child, and own sources (HERE)."""
    masters: dict[Key, Mastery] = field(default_factory=dict)
    rates: pull.MeasuredRates = field(default_factory=pull.MeasuredRates)
    evaluators: list[Evaluator] = field(default_factory=list)
    plain: list[Partial] = field(default_factory=list)
    """The partial rules that are decided here without a detector (`evaluation.is_plain`)."""
    arrivals: list[Rows] = field(default_factory=list)
    """The stored events that were not released yet."""
    history: Rows | None = None
    """The released events within the horizon of the rules, in order of time."""
    composites: list[tuple[Rows, Array]] = field(default_factory=list)
    """The matches that wait for delivery at the root, with the times at which they are ready."""
    heads: dict[Partial, Array] = field(default_factory=dict)
    """For each partial rule with blockers, the times of its last head and of the heads that are being decided."""
    awakening: AwakeningState = field(default_factory=AwakeningState)
    aggregate_state: partial_aggregates.AggregateState = field(default_factory=partial_aggregates.AggregateState)
    opened: int = BEGINNING
    """The event time before which all events have been released."""
    upto: int = BEGINNING
    """The event time before which all matches have been decided."""
    timing: Timing = field(default_factory=Timing)
    owes_progress: bool = False
    """Whether the node must send its progress to the parent as soon as all inputs have reported theirs."""

    # ---- deployment

    def redeploy(self) -> None:
        """Compute the deployment again after requests or advertisements have changed, and send it to the children."""
        old = self.deployed
        partials = [request.partial for request in self.requested]
        self.deployed = deployment(
            self.strategy, self.rules, self.wanted, partials, self.taps, self.advertised, self.types
        )
        self.aggregate_state.keep(self.deployed.aggregates_of(HERE, self.advertised, self.aggregate_state.requested))
        self.masters = {item.key: master for item in self.deployed.items if (master := self.masters.get(item.key))}
        self.uplink.simple = self.deployed.simple
        if self.deployed.items != old.items:
            self.load()
        self.send_deployments()

    def load(self) -> None:
        """Create the evaluators of the deployed items, except for plain partial rules, which need no detector."""
        items = self.deployed.items
        self.plain = [
            item.key
            for item in items
            if isinstance(item.key, Partial) and not self.strategy.pulls and evaluation.is_plain(item.key)
        ]
        self.evaluators = evaluators([None if item.key in self.plain else item for item in items], self.types)

    def send_deployments(self) -> None:
        """Send a DeployRule to each child whose part of the deployment has changed."""
        wanted = modes(self.deployed, self.requested, self.masters)
        for child in sorted(self.children):
            rules, names = self.deployed.whole.get(child, ((), ()))
            memories = tuple(name for name in names if name in self.remembered)
            aggregates = self.deployed.aggregates_of(child, self.advertised, self.aggregate_state.requested)
            new = DeployRule(self.tree, 0, rules, names, tuple(wanted.get(child, {}).values()), memories, aggregates)
            old = self.sent.get(child, NO_DEPLOYMENT if self.start == BEGINNING else None)
            if old is None or replace(old, tree=self.tree, version=0) != new:
                self.versions += 1
                self.sent[child] = replace(new, version=self.versions)
                self.progress.pop(child, None)
                self.send(child, self.sent[child])

    def take_over(self, order: DeployRule) -> None:
        """Apply a new DeployRule of the parent."""
        self.version, self.rules, self.wanted = order.version, order.rules, order.wanted
        self.requested, self.remembered, self.aggregate_state.requested = (
            order.requested,
            order.remembered,
            order.aggregates,
        )
        self.redeploy()
        rows = [*self.arrivals, *(() if self.history is None else (self.history,))]
        candidates = [(some, self.timing.at(some.ts)) for some in rows]
        for rows_due, at in self.uplink.take_over(
            order.requested, self.deployed.through, candidates, self.upto, self.types
        ):
            if rows_due is not None:
                self.push(rows_due, at)
        self._send_progress()

    @property
    def evaluated_types(self) -> frozenset[str]:
        """The event types that are evaluated here, after release."""
        types = {type for item in self.deployed.items for type in item.types}
        types |= {pattern.type for pattern in self.taps}
        if self.strategy.pulls:
            types |= {type for part in self.deployed.simple for type in part.types}
        return frozenset(types)

    # ---- messages

    def receive_progress(self, sender: str, message: Progress) -> None:
        if sender == self.parent:
            self.uplink.released(message.ts)
            self._release_children()
            return
        if sender != HERE and message.version != self.sent.get(sender, NO_DEPLOYMENT).version:
            return
        self.progress[sender] = message
        for part, count in message.generated:
            self.rates.counted(sender, part, count)
        self.advance()

    def receive_awaken(self, message: Awaken) -> None:
        child = self.deployed.through.get(message.partial)
        if child is not None:
            self.send(child, message)
            return
        assert self.parent is not None
        self.answer(
            message.partial, self.uplink.answer_requests(message.partial, message.requests, message.at, self.types)
        )
        self.send(self.parent, Done(self.tree, message.partial, message.number, message.ts, message.at))

    def answer(self, part: Partial, rows: TimedRows) -> None:
        """Send the events of `part` that the parent requested to the parent."""
        if rows[0] is not None and self.parent is not None:
            self.send(self.parent, Answer(self.tree, part, rows[0].table, rows[1]))

    def receive_answer(self, message: Answer) -> None:
        if message.partial in self.deployed.through:
            assert self.parent is not None
            self.send(self.parent, message)
            return
        self.arrivals.append(Rows(message.batch))

    def receive_done(self, sender: str, message: Done) -> None:
        if message.partial in self.deployed.through:
            assert self.parent is not None
            self.send(self.parent, message)
            return
        self.awakening.answered(sender, message)
        self.advance()

    def receive_matches(self, message: Matches) -> None:
        if self.parent is None:
            self.composites.append((message.batch, message.at))
        else:
            self.send(self.parent, message)

    # ---- changes of trees

    def _missing(self) -> bool:
        """Return whether a rule that is decided here still waits for its state from an earlier tree."""
        mine = {item.key for item in self.deployed.items if item.consuming and item.key in self.remembered}
        return not mine <= self.recalled

    def check_end(self) -> None:
        """Call `ended`, once, if everything before the end of the tree has been decided."""
        if self.upto >= self.end and not self.finished:
            self.finished = True
            self.ended()

    # ---- release and decision

    def advance(self) -> None:
        """Release events and decide rules as far as the progress of the inputs and the answers to requests allow."""
        if not self.ready or self._missing():
            return
        inputs = {HERE, *self.children}
        while True:
            waiting = self.awakening.waiting or self.aggregate_state.waiting
            if not waiting and inputs <= self.progress.keys():
                upto = min(self.progress[name].ts for name in inputs)
                if upto > self.opened:
                    self._open(upto)
            if self.awakening.waiting or self.aggregate_state.waiting or self.opened <= self.upto:
                break
            self._decide()
        if self.owes_progress:
            self._send_progress()

    def _open(self, upto: int) -> None:
        """Release the events before `upto`: move them to the history, and request events of slaves and aggregates."""
        self.opened = upto
        self.timing = combine([self.progress[name].timing for name in sorted({HERE, *self.children})]).since(
            self.upto if self.upto > BEGINNING else 0
        )
        self._take_in(upto)
        if self.masters and self.history is not None:
            for child, awaken in self.awakening.ask(
                self.tree, self.deployed.items, self.masters, self.sent, self.history, self.types, self.upto,
                self.opened, self.timing,
            ):  # fmt: skip
                self.send(child, awaken)
        partial_aggregates.query_aggregates(self)

    def _take_in(self, upto: int) -> None:
        horizon_us = max((item.horizon_us for item in self.deployed.items), default=0)
        pieces = [piece for piece in (self.history, *self.arrivals) if piece is not None and piece.num_rows]
        if not pieces:
            return
        rows = concatenate(pieces)
        ts = rows.ts
        early = ts < upto
        self.arrivals = [] if early.all() else [rows.take(~early)]
        floor = (self.upto if self.upto > BEGINNING else int(ts.min())) - horizon_us
        keep = np.nonzero(early & (ts >= floor))[0]
        order = keep[np.argsort(ts[keep], kind="stable")]
        self.history = rows.take(order)

    def _decide(self) -> None:
        """Decide all matches before `opened`, and report the progress."""
        since, upto = self.upto, self.opened
        if self.arrivals:
            self._take_in(upto)
        self.timing = self.awakening.stalled(self.timing)
        self.upto = upto
        decisions.decide(self, since, upto)
        self.uplink.forget(upto, max((item.horizon_us for item in self.deployed.items), default=0))
        self.aggregate_state.decided(min(upto, self.uplink.parent_upto) if self.parent is not None else upto)
        self._choose(upto)
        self._send_progress()
        self.check_end()

    def _choose(self, upto: int) -> None:
        """Choose new masters from the measured rates if a period is over."""
        if not self.strategy.pulls or not self.rates.due(upto):
            return

        def seen(pattern: Pattern) -> float:
            return pull.seen(pattern, self.history, upto, self.types)

        masters = self.rates.masters(self.deployed, self.advertised, self.masters, seen, eager=self.strategy.eager)
        if masters != self.masters:
            changed = {key for key in masters.keys() | self.masters.keys() if masters.get(key) != self.masters.get(key)}
            self.awakening.again(changed)
            self.masters = masters
            self.send_deployments()
        self.rates.start(upto)

    def _send_progress(self) -> None:
        if self.upto == BEGINNING:
            return
        if self.parent is not None:
            counts = dict(self.uplink.generated)
            for part, child in self.deployed.through.items():
                counts[part] = self.rates.total(child, part)
            generated = tuple(counts.items()) if self.strategy.pulls else ()
            self.owes_progress = self.opened > self.upto or not {HERE, *self.children} <= self.progress.keys()
            if not self.owes_progress:
                self.send(self.parent, Progress(self.tree, self.upto, self.version, self.timing, generated))
        self._release_children()

    def _release_children(self) -> None:
        """Send a Progress to the children that retain events, so that they can drop those before its time."""
        for child in sorted(self.children) if self.strategy.pulls or self.strategy.aggregates else ():
            order = self.sent.get(child, NO_DEPLOYMENT)
            pulled = {request.partial for request in order.requested if not request.pushed}
            if pulled or order.aggregates:
                passed = not pulled.isdisjoint(self.deployed.through) or not set(order.aggregates).isdisjoint(
                    self.aggregate_state.requested
                )
                self.send(child, Progress(self.tree, min(self.upto, self.uplink.parent_upto) if passed else self.upto))
