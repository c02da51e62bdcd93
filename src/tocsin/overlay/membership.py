"""What does a processor remember and do in one tree?

Its inputs are its children and its own sources. When all of them have said that nothing before a time will come any
more, the events before it are *released*: masters' events awaken slaves, and once those have answered the rules are
decided, what partial rules found is sent to the father or kept for him, and progress is told. Each step depends on
released events alone, never on when they arrived.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tocsin.language.rules import Pattern, Rule
from tocsin.overlay import mastery
from tocsin.overlay.deployment import Deployment, Key, deployment, modes
from tocsin.overlay.evaluation import Evaluator, Types, passing
from tocsin.overlay.messages import Answer, Asked, Awaken, DeployRule, Done, Matches, Message, Progress
from tocsin.overlay.pulling import Kept
from tocsin.overlay.strategies import Strategy
from tocsin.overlay.timing import Array, Timing, together
from tocsin.plans.splitting import FOREVER_US, HERE, Partial

BEGINNING = -(2**61)
NONE = np.zeros(0, np.int64)
AT = "\0at"
"""The column with the times at which matches are ready."""
NOTHING = DeployRule("", 0)
Send = Callable[[str, Message], None]
Push = Callable[[pa.Table, Array], None]


@dataclass
class Membership:
    """A processor's place in a tree."""

    tree: str
    strategy: Strategy
    types: Types
    send: Send
    push: Push
    """Sends events to the father."""
    deliver: Callable[[pa.Table, Array], None]
    """Hands what reached the root, in order, to the sinks."""
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
    sent: dict[str, DeployRule] = field(default_factory=dict)
    versions: int = 0
    progress: dict[str, Progress] = field(default_factory=dict)
    masters: dict[Key, str] = field(default_factory=dict)
    rates: mastery.Rates = field(default_factory=mastery.Rates)
    generated: dict[Partial, int] = field(default_factory=dict)
    evaluators: list[Evaluator] = field(default_factory=list)
    arrivals: list[pa.Table] = field(default_factory=list)
    """Events that were not looked at yet."""
    history: pa.Table | None = None
    """Released events within the horizon, in order of time."""
    composites: list[pa.Table] = field(default_factory=list)
    """Matches from below that wait for their turn at the root."""
    forwarded: dict[str, int] = field(default_factory=dict)
    """Events that were sent up because a partial rule was met, by id, with their time: none is sent twice."""
    relaying: dict[Partial, int] = field(default_factory=dict)
    """From which event time on events of a partial rule go up as they come, if not always."""
    heads: dict[Partial, Array] = field(default_factory=dict)
    """The times of heads that partial rules found: the last one, and those of the events that are being decided."""
    kept: dict[Partial, Kept] = field(default_factory=dict)
    awakened: dict[tuple[Key, str, Partial], tuple[int, int]] = field(default_factory=dict)
    """For each use of a slave: up to which master's event, and up to which time, it was asked."""
    waiting: dict[tuple[str, Partial], int] = field(default_factory=dict)
    """The Awaken that each child has still to answer."""
    awakenings: int = 0
    stalls: list[tuple[Array, Array]] = field(default_factory=list)
    opened: int = BEGINNING
    """Events before this are in the history."""
    upto: int = BEGINNING
    """Events before this have been decided."""
    timing: Timing = field(default_factory=Timing)
    needless: int = BEGINNING
    """The father will not ask for anything before this, apart from what has to be kept."""
    owing: bool = False
    """Whether the father is to be told how far it is as soon as the children have said so."""

    # ---- what is decided here

    def redeploy(self) -> None:
        """Works out what follows from what is asked and advertised, and tells the children."""
        old = self.deployed
        partials = [request.partial for request in self.asked]
        self.deployed = deployment(self.strategy, self.rules, self.wanted, partials, self.taps, self.advertised)
        self.masters = {item.key: node for item in self.deployed.items if (node := self.masters.get(item.key))}
        if self.deployed.items != old.items:
            self.load()
        self.tell()

    def load(self) -> None:
        """Makes evaluators for the items: one for those whose events come in order, one for the others."""
        self.evaluators = []
        for ordered in (True, False):
            rules: dict[str, Rule] = {}
            wanted: set[str] = set()
            horizon_us = 0
            for number, item in enumerate(self.deployed.items):
                if item.ordered == ordered:
                    for rule in item.rules:
                        name = f"partial_{number}" if isinstance(item.key, Partial) else rule.name
                        rules[name] = replace(rule, name=name)
                    horizon_us = max(horizon_us, item.horizon_us)
                    wanted |= {item.key} if isinstance(item.key, str) else set()
            if rules:
                new = Evaluator(rules.values(), self.types, horizon_us, ordered=ordered, wanted=frozenset(wanted))
                self.evaluators.append(new)

    def tell(self) -> None:
        """Sends each child what is asked of it, where that has changed."""
        wanted = modes(self.deployed, self.asked, self.masters)
        for child in sorted(self.children):
            rules, names = self.deployed.whole.get(child, ((), ()))
            new = DeployRule(self.tree, 0, rules, names, tuple(wanted.get(child, {}).values()))
            old = self.sent.get(child, NOTHING)
            if replace(old, tree=self.tree, version=0) != new:
                self.versions += 1
                self.sent[child] = replace(new, version=self.versions)
                self.progress.pop(child, None)
                self.send(child, self.sent[child])

    def take_over(self, order: DeployRule) -> None:
        """The father asks for something else than before."""
        before = {request.partial: request for request in self.asked}
        self.version, self.rules, self.wanted, self.asked = order.version, order.rules, order.wanted, order.asked
        self.redeploy()
        for request in self.asked:
            old = before.get(request.partial)
            if old is not None and old.pushed != request.pushed and request.partial not in self.deployed.through:
                self._switch(request)
        local = {request.partial for request in self.asked if not request.pushed} - set(self.deployed.through)
        self.kept = {part: self.kept.get(part) or Kept() for part in local}
        self._tell_progress()

    def _switch(self, request: Asked) -> None:
        """A partial rule is pushed from now on, and what was kept or has just arrived too; or it is not any more."""
        part = request.partial
        if request.pushed and part in self.kept:
            events, at = self.kept[part].everything()
            if events is not None:
                self._forward(events, at, but=part)
        if not part.bare:
            return
        since = self.relaying.get(part, BEGINNING)
        self.relaying[part] = self.upto
        for rows in (*self.arrivals, *(() if request.pushed or self.history is None else (self.history,))):
            met = rows.filter(pa.array(self._passing(part.rule.anchor, rows)))
            if request.pushed:
                self._forward(met, self.timing.at(met["ts"].to_numpy()), but=part)
                continue
            for id, ts in zip(met["id"].to_pylist(), met["ts"].to_pylist(), strict=True):
                if ts >= since:
                    self.forwarded[id] = ts

    @property
    def looked_at(self) -> frozenset[str]:
        """The types whose events are needed here when they are released."""
        found = {type for item in self.deployed.items for type in item.types}
        found |= {pattern.type for pattern in self.taps}
        if self.strategy.pulls:
            found |= {type for part in self.deployed.simple for type in part.types}
        return frozenset(found)

    @property
    def pushed_simply(self) -> list[Partial]:
        """The partial rules whose events go up as they come."""
        pushed = {request.partial for request in self.asked if request.pushed}
        return [part for part in self.deployed.simple if part in pushed]

    # ---- what arrives

    def receive_progress(self, sender: str, message: Progress) -> None:
        if sender == self.father:
            for request in self.asked:
                if request.partial in self.kept:
                    self.kept[request.partial].forget(message.ts - request.keep_us)
            self.needless = message.ts
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
        kept = self.kept.get(message.partial)
        if kept is not None:
            self._answer(message.partial, *kept.asked(message.requests, message.at))
        self.send(self.father, Done(self.tree, message.partial, message.number, message.ts, message.at))

    def receive_answer(self, message: Answer) -> None:
        if message.partial in self.deployed.through:
            assert self.father is not None
            self.send(self.father, message)
            return
        self.arrivals.append(message.batch)

    def receive_done(self, sender: str, message: Done) -> None:
        if message.partial in self.deployed.through:
            assert self.father is not None
            self.send(self.father, message)
            return
        if self.waiting.get((sender, message.partial)) == message.number:
            del self.waiting[sender, message.partial]
            self.stalls.append((message.ts, message.at))
        self.advance()

    def receive_matches(self, message: Matches) -> None:
        if self.father is None:
            self.composites.append(message.batch.append_column(AT, pa.array(message.at)))
        else:
            self.send(self.father, message)

    # ---- what is released

    def advance(self) -> None:
        """Releases what can be released, and decides what can be decided."""
        inputs = {HERE, *self.children}
        while True:
            if not self.waiting and inputs <= self.progress.keys():
                upto = min(self.progress[name].ts for name in inputs)
                if upto > self.opened:
                    self._open(upto)
            if self.waiting or self.opened <= self.upto:
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
        if self.masters:
            self._awaken()

    def _take_in(self, upto: int) -> None:
        horizon_us = max((item.horizon_us for item in self.deployed.items), default=0)
        pieces = [piece for piece in (self.history, *self.arrivals) if piece is not None and piece.num_rows]
        if not pieces:
            return
        rows = pieces[0] if len(pieces) == 1 else pa.concat_tables(pieces, promote_options="default")
        ts = rows["ts"].to_numpy()
        early = ts < upto
        self.arrivals = [] if early.all() else [rows.filter(pa.array(~early))]
        floor = (self.upto if self.upto > BEGINNING else int(ts.min())) - horizon_us
        keep = np.nonzero(early & (ts >= floor))[0]
        order = keep[np.argsort(ts[keep], kind="stable")]
        self.history = rows.take(order)

    def _awaken(self) -> None:
        history = self.history
        if history is None:
            return
        for item in self.deployed.items:
            master = self.masters.get(item.key)
            if master is None:
                continue
            for use in item.uses:
                if use.node == master or self.sent[use.child].asked == ():
                    continue
                key = (item.key, use.child, use.partial)
                since, covered = self.awakened.get(key, (self.upto - item.horizon_us, BEGINNING))
                blocks_us = item.key.blocks_us if isinstance(item.key, Partial) else 0
                plea = mastery.requests(item.shape, master, use, history, self.types, since, covered, blocks_us)
                self.awakened[key] = (self.opened, plea.covered)
                if plea.requests:
                    self.awakenings += 1
                    self.waiting[use.child, use.partial] = self.awakenings
                    at = self.timing.at(plea.ts)
                    self.send(
                        use.child,
                        Awaken(self.tree, use.partial, self.awakenings, plea.requests, plea.ts, at),
                    )

    def _decide(self) -> None:
        """Decides all that is known for the events before `opened`."""
        since, upto = self.upto, self.opened
        if self.arrivals:
            self._take_in(upto)
        for ts, at in self.stalls:
            self.timing = self.timing.stalled(ts, at)
        self.stalls = []
        self.upto = upto
        if self.history is not None and self.history.num_rows:
            times = self.history["ts"].to_numpy()
            fresh = self.history.slice(int(np.searchsorted(times, since)))
            for evaluator in self.evaluators:
                found = evaluator.detect(self.history, fresh, max(since, int(times[0]) if len(times) else since), upto)
                if found.num_rows:
                    self._found(found, evaluator.wanted)
            if self.strategy.pulls:
                self.rates.since = int(times[0]) if self.rates.since is None else self.rates.since
                for value in fresh["type"].value_counts().to_pylist():
                    self.rates.own[value["values"]] = self.rates.own.get(value["values"], 0) + value["counts"]
            for part in self.deployed.simple if self.strategy.pulls else ():
                self._simply(part, fresh)
            for item in self.deployed.items:
                if isinstance(item.key, Partial) and item.key.blocks_us:
                    self._block(item.key, fresh)
            if self.father is None:
                self._tap(fresh)
        if self.father is None:
            self._deliver()
        for kept in self.kept.values():
            kept.close(upto)
        self._forget(upto)
        self._choose(upto)
        self._tell_progress()

    def _found(self, found: pa.Table, wanted: frozenset[str]) -> None:
        """Sends matches of whole rules up, and the events of partial rules."""
        names = pc.starts_with(found["rule"], "partial_").combine_chunks().to_numpy(zero_copy_only=False)
        if not names.all():
            found = found.append_column("seq", pa.array(self._seq(found)))
            whole = found.filter(pa.array(~names & np.isin(found["rule"].to_pylist(), [*wanted])))
            if whole.num_rows:
                self._up(whole)
        if names.any():
            found = found.filter(pa.array(names))
            for name in pc.unique(found["rule"]).to_pylist():
                key = self.deployed.items[int(name.removeprefix("partial_"))].key
                assert isinstance(key, Partial)
                self._participants(key, found.filter(pc.equal(found["rule"], name)))

    def _seq(self, found: pa.Table) -> Array:
        """The `seq` of matches: their anchors', which may be matches themselves."""
        assert self.history is not None
        parts = found["parts"].combine_chunks()
        anchors = parts.flatten().field("id").take(parts.offsets[:-1])
        rows = pc.index_in(anchors, value_set=self.history["id"].combine_chunks())
        seq: Array = self.history["seq"].take(rows).combine_chunks().fill_null(0).to_numpy().copy()
        inner = pc.index_in(anchors, value_set=found["id"].combine_chunks()).fill_null(-1).to_numpy()
        unknown = rows.is_null().to_numpy(zero_copy_only=False)
        for _ in range(len(self.rules)):
            seq[unknown] = seq[inner[unknown]]
        return seq

    def _up(self, whole: pa.Table) -> None:
        at = self.timing.at(whole["ts"].to_numpy())
        if self.father is None:
            self.composites.append(whole.append_column(AT, pa.array(at)))
        else:
            self.send(self.father, Matches(self.tree, whole, at))

    def _participants(self, part: Partial, found: pa.Table) -> None:
        """The events that fill the roles of a partial rule's matches."""
        assert self.history is not None
        parts = found["parts"].combine_chunks()
        flat = parts.flatten()
        counts = np.diff(parts.offsets.to_numpy())
        heads = np.repeat(found["ts"].to_numpy(), counts)
        chosen = np.ones(len(flat), bool)
        if len(part.sends) < len(part.rule.roles):
            chosen = np.isin(flat.field("role").to_pylist(), part.sends)
        ids = flat.field("id").filter(pa.array(chosen))
        rows = pc.index_in(ids, value_set=self.history["id"].combine_chunks()).to_numpy(zero_copy_only=False)
        if part.blocks_us:
            self.heads[part] = np.concatenate([self.heads.get(part, NONE), np.unique(heads)])
        self._generated(part, rows.astype(np.int64), heads[chosen])

    def _generated(self, part: Partial, rows: Array, heads: Array) -> None:
        """Sends events of the history that a partial rule found, or keeps them."""
        assert self.history is not None
        _, first = np.unique(rows, return_index=True)
        self.generated[part] = self.generated.get(part, 0) + len(first)
        at = self.timing.at(heads)
        request = next((request for request in self.asked if request.partial == part), None)
        if request is None:
            return
        if request.pushed:
            first = np.sort(first)
            self._forward(self.history.take(rows[first]), at[first])
        else:
            new = self.kept[part].add(self.history.take(rows), heads, at)
            self._answer(part, *new)

    def _simply(self, part: Partial, fresh: pa.Table) -> None:
        """Partial rules without clauses: counted, and kept if they are pulled; pushed ones went up as they came."""
        rows = np.nonzero(self._passing(part.rule.anchor, fresh))[0]
        request = next(request for request in self.asked if request.partial == part)
        self.generated[part] = self.generated.get(part, 0) + len(rows)
        if not request.pushed and len(rows):
            events = fresh.take(rows)
            ts = events["ts"].to_numpy()
            self._answer(part, *self.kept[part].add(events, ts, self.timing.at(ts)))

    def _block(self, part: Partial, fresh: pa.Table) -> None:
        """Heads that come within the window after one that was found are needed too: they stand in front of it."""
        rows = np.nonzero(self._passing(part.rule.anchor, fresh))[0]
        if part.blocks_us < FOREVER_US and len(rows):
            ts = fresh["ts"].to_numpy()[rows]
            heads = np.concatenate([[BEGINNING], self.heads.get(part, NONE)])
            rows = rows[ts - heads[np.searchsorted(heads, ts, "right") - 1] < part.blocks_us]
        self.heads[part] = self.heads.get(part, NONE)[-1:]
        if len(rows) and self.history is not None:
            start = self.history.num_rows - fresh.num_rows
            ts = fresh["ts"].to_numpy()[rows]
            self._generated(part, rows + start, ts)

    def _tap(self, fresh: pa.Table) -> None:
        """Events that sinks want as they are."""
        wanted = np.zeros(fresh.num_rows, bool)
        for pattern in self.taps:
            wanted |= self._passing(pattern, fresh)
        if wanted.any():
            rows = fresh.filter(pa.array(wanted))
            rows = rows.append_column("rule", pa.array([""] * rows.num_rows, pa.string()))
            self.composites.append(rows.append_column(AT, pa.array(self.timing.at(rows["ts"].to_numpy()))))

    def _passing(self, pattern: Pattern, rows: pa.Table) -> Array:
        own: Array = pc.equal(rows["type"], pattern.type).combine_chunks().to_numpy(zero_copy_only=False)
        if pattern.constraints and own.any():
            at = np.nonzero(own)[0]
            own = np.zeros(len(own), bool)
            own[at[passing(pattern, rows.take(at), self.types)]] = True
        return own

    def _forward(self, events: pa.Table, at: Array, but: Partial | None = None) -> None:
        """Pushes events up that were not sent before; `but`: for this partial rule none went as they came."""
        new = self._unsent(events, [part for part in self.pushed_simply if part != but])
        if len(new):
            self.push(events.take(new), at[new])

    def _answer(self, part: Partial, events: pa.Table | None, at: Array) -> None:
        """Sends events up that were asked for, and not sent before."""
        if events is not None and self.father is not None:
            new = self._unsent(events, self.pushed_simply)
            if len(new):
                self.send(self.father, Answer(self.tree, part, events.take(new), at[new]))

    def _unsent(self, events: pa.Table, simply: Iterable[Partial]) -> list[int]:
        """The rows that did not go up before, which they do now; others went as they came."""
        relayed = np.zeros(events.num_rows, bool)
        for part in simply:
            met = self._passing(part.rule.anchor, events)
            relayed |= met & (events["ts"].to_numpy() >= self.relaying.get(part, BEGINNING))
        new = []
        for row, (id, ts) in enumerate(zip(events["id"].to_pylist(), events["ts"].to_pylist(), strict=True)):
            if not relayed[row] and id not in self.forwarded:
                self.forwarded[id] = ts
                new.append(row)
        return new

    def _deliver(self) -> None:
        """At the root: matches before `upto`, from here and from below, in order."""
        if not self.composites:
            return
        rows = pa.concat_tables(self.composites, promote_options="default")
        ready = rows["ts"].to_numpy() < self.upto
        self.composites = [] if ready.all() else [rows.filter(pa.array(~ready))]
        rows = rows.filter(pa.array(ready))
        if rows.num_rows:
            at = rows[AT].to_numpy()
            self.deliver(rows.drop_columns([AT]), np.maximum(at, self.timing.at(rows["ts"].to_numpy())))

    def _forget(self, upto: int) -> None:
        """Drops what no later event can need."""
        horizon_us = max((item.horizon_us for item in self.deployed.items), default=0)
        horizon_us += max((request.keep_us for request in self.asked), default=0)
        if len(self.forwarded) > 1024:
            self.forwarded = {id: ts for id, ts in self.forwarded.items() if ts >= upto - 2 * horizon_us}

    def _choose(self, upto: int) -> None:
        """Chooses masters anew from the rates, when enough has been seen."""
        if not self.strategy.pulls or not self.rates.due(upto):
            return
        masters = self.rates.masters(self.deployed, self.advertised, self.masters, eager=self.strategy.eager)
        if masters != self.masters:
            changed = {key for key in masters.keys() | self.masters.keys() if masters.get(key) != self.masters.get(key)}
            self.awakened = {key: value for key, value in self.awakened.items() if key[0] not in changed}
            self.masters = masters
            self.tell()
        self.rates.start(upto)

    def _tell_progress(self) -> None:
        if self.upto == BEGINNING:
            return
        if self.father is not None:
            counts = dict(self.generated)
            for part, child in self.deployed.through.items():
                counts[part] = self.rates.total(child, part)
            generated = tuple(counts.items()) if self.strategy.pulls else ()
            self.owing = self.opened > self.upto or not {HERE, *self.children} <= self.progress.keys()
            if not self.owing:
                self.send(self.father, Progress(self.tree, self.upto, self.version, self.timing, generated))
        self._release_children()

    def _release_children(self) -> None:
        """Tells children that keep events for pulling from when on they may still be asked for."""
        for child in sorted(self.children) if self.strategy.pulls else ():
            pulled = {request.partial for request in self.sent.get(child, NOTHING).asked if not request.pushed}
            if pulled:
                passed = not pulled.isdisjoint(self.deployed.through)
                self.send(child, Progress(self.tree, min(self.upto, self.needless) if passed else self.upto))
