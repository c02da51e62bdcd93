"""What does a processor remember and do in one tree?

Its inputs are its children and its own sources. When all of them have said that nothing before a time will come any
more, the events before it are *released*: masters' events awaken slaves, and once those have answered the rules are
decided (`deciding`) and progress is told. Each step depends on released events alone, never on when they arrived.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from tocsin.language.syntax.ast import Pattern, Rule
from tocsin.overlay import decisions, evaluation, partial_aggregates, pull
from tocsin.overlay.deployment import Deployment, Key, Mastery, deployment, modes
from tocsin.overlay.evaluation import Evaluator, Types, evaluators
from tocsin.overlay.messages import Answer, Asked, Awaken, DeployRule, Done, Matches, Message, Progress, Rows, joined
from tocsin.overlay.pull import Asking
from tocsin.overlay.routes import Found, Uplink
from tocsin.overlay.strategies import Strategy
from tocsin.overlay.tree_building import Building
from tocsin.overlay.tree_parts import BEGINNING, Array, Timing, together
from tocsin.plans.splitting import FOREVER_US, HERE, Partial

NOTHING = DeployRule("", 0)
Send = Callable[[str, Message], None]
Push = Callable[[Rows, Array], None]


@dataclass
class Membership:
    """A processor's place in a tree."""

    tree: str
    strategy: Strategy
    types: Types
    send: Send
    push: Push
    """Sends events to the father."""
    deliver: Callable[[Rows, Array], None]
    """Hands what reached the root, in order, to the sinks."""
    ended: Callable[[], None]
    """Told when everything before the end of the tree's time has been decided here."""
    start: int = BEGINNING
    """Matches before this are another tree's (`versions`); the same for those that are not before `end`."""
    end: int = FOREVER_US
    ready: bool = True
    """Whether something was deployed, so that events can come."""
    over: bool = False
    building: Building = field(default_factory=Building)
    remembered: tuple[str, ...] = ()
    """The rules that consume and for which another tree's memory comes, and those for which it has come."""
    recalled: set[str] = field(default_factory=set)
    father: str | None = None
    distance_us: int = 0
    children: set[str] = field(default_factory=set)
    advertised: dict[str, frozenset[str]] = field(default_factory=dict)
    subscribed: dict[str, tuple[Pattern, ...]] = field(default_factory=dict)
    rules: tuple[Rule, ...] = ()
    wanted: tuple[str, ...] = ()
    asked: tuple[Asked, ...] = ()
    taps: tuple[Pattern, ...] = ()
    version: int = 0
    """That of the father's deployment that was taken over."""
    deployed: Deployment = field(default_factory=Deployment)
    uplink: Uplink = field(default_factory=Uplink)
    sent: dict[str, DeployRule] = field(default_factory=dict)
    versions: int = 0
    progress: dict[str, Progress] = field(default_factory=dict)
    masters: dict[Key, Mastery] = field(default_factory=dict)
    rates: pull.Rates = field(default_factory=pull.Rates)
    evaluators: list[Evaluator] = field(default_factory=list)
    plain: list[Partial] = field(default_factory=list)
    arrivals: list[Rows] = field(default_factory=list)
    """Events that were not looked at yet."""
    history: Rows | None = None
    """Released events within the horizon, in order of time."""
    composites: list[tuple[Rows, Array]] = field(default_factory=list)
    """Matches that wait for their turn at the root, with the times at which they are ready."""
    heads: dict[Partial, Array] = field(default_factory=dict)
    """The times of heads that partial rules found: the last one, and those of the events that are being decided."""
    asking: Asking = field(default_factory=Asking)
    tallying: partial_aggregates.Tallying = field(default_factory=partial_aggregates.Tallying)
    opened: int = BEGINNING
    """Events before this are in the history."""
    upto: int = BEGINNING
    """Events before this have been decided."""
    timing: Timing = field(default_factory=Timing)
    owing: bool = False
    """Whether the father is to be told how far it is as soon as the children have said so."""

    # ---- what is decided here

    def redeploy(self) -> None:
        """Works out what follows from what is asked and advertised, and tells the children."""
        old = self.deployed
        partials = [request.partial for request in self.asked]
        self.deployed = deployment(
            self.strategy, self.rules, self.wanted, partials, self.taps, self.advertised, self.types
        )
        self.tallying.keep(self.deployed.tallied_by(HERE, self.advertised, self.tallying.asked))
        self.masters = {item.key: master for item in self.deployed.items if (master := self.masters.get(item.key))}
        self.uplink.simple = self.deployed.simple
        if self.deployed.items != old.items:
            self.load()
        self.tell()

    def load(self) -> None:
        """Makes evaluators for the items; what plain partial rules push is found without."""
        items = self.deployed.items
        self.plain = [
            item.key
            for item in items
            if isinstance(item.key, Partial) and not self.strategy.pulls and evaluation.plain(item.key)
        ]
        self.evaluators = evaluators([None if item.key in self.plain else item for item in items], self.types)

    def tell(self) -> None:
        """Sends each child what is asked of it, where that has changed."""
        wanted = modes(self.deployed, self.asked, self.masters)
        for child in sorted(self.children):
            rules, names = self.deployed.whole.get(child, ((), ()))
            memories = tuple(name for name in names if name in self.remembered)
            tallies = self.deployed.tallied_by(child, self.advertised, self.tallying.asked)
            new = DeployRule(self.tree, 0, rules, names, tuple(wanted.get(child, {}).values()), memories, tallies)
            old = self.sent.get(child, NOTHING if self.start == BEGINNING else None)
            if old is None or replace(old, tree=self.tree, version=0) != new:
                self.versions += 1
                self.sent[child] = replace(new, version=self.versions)
                self.progress.pop(child, None)
                self.send(child, self.sent[child])

    def take_over(self, order: DeployRule) -> None:
        """The father asks for something else than before."""
        self.version, self.rules, self.wanted = order.version, order.rules, order.wanted
        self.asked, self.remembered, self.tallying.asked = order.asked, order.remembered, order.tallies
        self.redeploy()
        rows = [*self.arrivals, *(() if self.history is None else (self.history,))]
        known = [(some, self.timing.at(some.ts)) for some in rows]
        for found, at in self.uplink.take_over(order.asked, self.deployed.through, known, self.upto, self.types):
            if found is not None:
                self.push(found, at)
        self._tell_progress()

    @property
    def looked_at(self) -> frozenset[str]:
        """The types whose events are needed here when they are released."""
        found = {type for item in self.deployed.items for type in item.types}
        found |= {pattern.type for pattern in self.taps}
        if self.strategy.pulls:
            found |= {type for part in self.deployed.simple for type in part.types}
        return frozenset(found)

    # ---- what arrives

    def receive_progress(self, sender: str, message: Progress) -> None:
        if sender == self.father:
            self.uplink.released(message.ts)
            self._release_children()
            return
        if sender != HERE and message.version != self.sent.get(sender, NOTHING).version:
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
        assert self.father is not None
        self.answer(message.partial, self.uplink.awakened(message.partial, message.requests, message.at, self.types))
        self.send(self.father, Done(self.tree, message.partial, message.number, message.ts, message.at))

    def answer(self, part: Partial, found: Found) -> None:
        """Sends the father events that he asked for."""
        if found[0] is not None and self.father is not None:
            self.send(self.father, Answer(self.tree, part, found[0].table, found[1]))

    def receive_answer(self, message: Answer) -> None:
        if message.partial in self.deployed.through:
            assert self.father is not None
            self.send(self.father, message)
            return
        self.arrivals.append(Rows(message.batch))

    def receive_done(self, sender: str, message: Done) -> None:
        if message.partial in self.deployed.through:
            assert self.father is not None
            self.send(self.father, message)
            return
        self.asking.answered(sender, message)
        self.advance()

    def receive_matches(self, message: Matches) -> None:
        if self.father is None:
            self.composites.append((message.batch, message.at))
        else:
            self.send(self.father, message)

    # ---- what takes over from another tree, and is taken over

    def _missing(self) -> bool:
        """Whether a rule that is decided here has not been told yet what it remembers."""
        mine = {item.key for item in self.deployed.items if item.consuming and item.key in self.remembered}
        return not mine <= self.recalled

    def check_end(self) -> None:
        """Says once that the time of the tree is over."""
        if self.upto >= self.end and not self.over:
            self.over = True
            self.ended()

    # ---- what is released

    def advance(self) -> None:
        """Releases what can be released, and decides what can be decided."""
        if not self.ready or self._missing():
            return
        inputs = {HERE, *self.children}
        while True:
            waiting = self.asking.waiting or self.tallying.waiting
            if not waiting and inputs <= self.progress.keys():
                upto = min(self.progress[name].ts for name in inputs)
                if upto > self.opened:
                    self._open(upto)
            if self.asking.waiting or self.tallying.waiting or self.opened <= self.upto:
                break
            self._decide()
        if self.owing:
            self._tell_progress()

    def _open(self, upto: int) -> None:
        """Takes events before a time into the history, and awakens slaves."""
        self.opened = upto
        self.timing = together([self.progress[name].timing for name in sorted({HERE, *self.children})]).since(
            self.upto if self.upto > BEGINNING else 0
        )
        self._take_in(upto)
        if self.masters and self.history is not None:
            for child, awaken in self.asking.ask(
                self.tree, self.deployed.items, self.masters, self.sent, self.history, self.types, self.upto,
                self.opened, self.timing,
            ):  # fmt: skip
                self.send(child, awaken)
        partial_aggregates.survey(self)

    def _take_in(self, upto: int) -> None:
        horizon_us = max((item.horizon_us for item in self.deployed.items), default=0)
        pieces = [piece for piece in (self.history, *self.arrivals) if piece is not None and piece.num_rows]
        if not pieces:
            return
        rows = joined(pieces)
        ts = rows.ts
        early = ts < upto
        self.arrivals = [] if early.all() else [rows.take(~early)]
        floor = (self.upto if self.upto > BEGINNING else int(ts.min())) - horizon_us
        keep = np.nonzero(early & (ts >= floor))[0]
        order = keep[np.argsort(ts[keep], kind="stable")]
        self.history = rows.take(order)

    def _decide(self) -> None:
        """Decides all that is known for the events before `opened`."""
        since, upto = self.upto, self.opened
        if self.arrivals:
            self._take_in(upto)
        self.timing = self.asking.stalled(self.timing)
        self.upto = upto
        decisions.decide(self, since, upto)
        self.uplink.forget(upto, max((item.horizon_us for item in self.deployed.items), default=0))
        self.tallying.decided(min(upto, self.uplink.needless) if self.father is not None else upto)
        self._choose(upto)
        self._tell_progress()
        self.check_end()

    def _choose(self, upto: int) -> None:
        """Chooses masters anew from the rates, when enough has been seen."""
        if not self.strategy.pulls or not self.rates.due(upto):
            return

        def seen(pattern: Pattern) -> float:
            return pull.seen(pattern, self.history, upto, self.types)

        masters = self.rates.masters(self.deployed, self.advertised, self.masters, seen, eager=self.strategy.eager)
        if masters != self.masters:
            changed = {key for key in masters.keys() | self.masters.keys() if masters.get(key) != self.masters.get(key)}
            self.asking.again(changed)
            self.masters = masters
            self.tell()
        self.rates.start(upto)

    def _tell_progress(self) -> None:
        if self.upto == BEGINNING:
            return
        if self.father is not None:
            counts = dict(self.uplink.found)
            for part, child in self.deployed.through.items():
                counts[part] = self.rates.total(child, part)
            generated = tuple(counts.items()) if self.strategy.pulls else ()
            self.owing = self.opened > self.upto or not {HERE, *self.children} <= self.progress.keys()
            if not self.owing:
                self.send(self.father, Progress(self.tree, self.upto, self.version, self.timing, generated))
        self._release_children()

    def _release_children(self) -> None:
        """Tells children that keep events for pulling from when on they may still be asked for."""
        for child in sorted(self.children) if self.strategy.pulls or self.strategy.tallies else ():
            order = self.sent.get(child, NOTHING)
            pulled = {request.partial for request in order.asked if not request.pushed}
            if pulled or order.tallies:
                passed = not pulled.isdisjoint(self.deployed.through) or not set(order.tallies).isdisjoint(
                    self.tallying.asked
                )
                self.send(child, Progress(self.tree, min(self.upto, self.uplink.needless) if passed else self.upto))
