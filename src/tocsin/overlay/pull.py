"""Which partial rule of a rule is the master, and what do its events ask of the slaves? (T-Rex, 3.5)

An event of the master asks each slave for all that can have a say in a match with it: the events within
`Shape.reach_us`, with the values of shared parameters where the master's event gives them. What was asked before is
not asked again.

The master is chosen from measured rates. The paper takes the partial rule with the lowest rate; here the expected
number of messages decides, which is the same where rates differ much: what is pushed, an Awaken for each master's
event, what slaves then send. What comes anyhow, for other rules, costs nothing. A slave that would cost more than
pushing its events does is pushed, and where nothing is cheaper than pushing everything, there is no master.

What does a processor ask of slaves, and what does it still wait for? (T-Rex, 3.5)

When events are released, those of masters ask for what can meet them (`mastery.requests`). Nothing is decided before
every Awaken was answered by Done; the time that took is a stall. What is pushed anyhow is not asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from tocsin.events.types import Kind
from tocsin.language.syntax.ast import Pattern
from tocsin.overlay.deployment import Advertised, Deployment, Item, Key, Mastery, local_nodes
from tocsin.overlay.evaluation import Types, meeting
from tocsin.overlay.messages import Awaken, DeployRule, Done, Request, Rows
from tocsin.overlay.tree_parts import BEGINNING, Array, Timing
from tocsin.plans.bind.structure import Shape, equation
from tocsin.plans.splitting import Partial, Use, bare

SECOND_US = 1_000_000
STAY = 0.9
"""A new master must cost less than this share of the old one."""
_SENT = (Kind.STRING, Kind.INT, Kind.LONG, Kind.DOUBLE, Kind.BOOL)


@dataclass(frozen=True)
class Plea:
    """What masters' events ask of a slave, with their times, and up to which time it has been asked now."""

    requests: tuple[Request, ...]
    ts: Array
    covered: int


def requests(
    shape: Shape, master: str, use: Use, history: Rows, types: Types, since: int, covered: int, blocks_us: int
) -> Plea:
    """What the master's events from `since` on ask of a use; `blocks_us`: of the partial rule that is decided."""
    pattern = bare(shape, master).rule.anchor
    events = history.take((history.ts >= since) & meeting(pattern, history, types))
    past_us, future_us = shape.reach_us(use.node, master)
    if use.node == shape.anchor:
        future_us += blocks_us
    past_us, future_us = max(past_us, 1), max(future_us, 1)
    named = _shared(shape, master, use, types)
    found: list[Request] = []
    times: list[int] = []
    columns = [events[source].to_pylist() for source, _ in named]
    for row, at in enumerate(events["ts"].to_pylist()):
        start, end = at - past_us, at + future_us
        if named:
            values = tuple((target, column[row]) for (_, target), column in zip(named, columns, strict=True))
            if any(value is None for _, value in values):
                continue
            found.append(Request(start, end, values))
        else:
            if end <= covered:
                continue
            found.append(Request(max(start, covered - 1), end))
            covered = end
        times.append(at)
    return Plea(tuple(found), np.array(times, np.int64), covered)


def _shared(shape: Shape, master: str, use: Use, types: Types) -> list[tuple[str, str]]:
    """Attributes of the master's event that the slave's must be equal to: (the master's, the slave's)."""
    if not use.partial.bare:
        return []
    found: list[tuple[str, str]] = []
    first: dict[str, str] = {}
    for constraint in shape.patterns[master].constraints:
        if both := equation(constraint):
            first.setdefault(both[1], both[0])
    for constraint in shape.patterns[use.node].constraints:
        both = equation(constraint)
        if both is None or shape.binds(use.node, constraint, set()) or shape.binders.get(both[1]) != master:
            continue
        source, target = first[both[1]], both[0]
        kinds = types[shape.patterns[master].type].kind(source), types[shape.patterns[use.node].type].kind(target)
        if kinds[0] == kinds[1] and kinds[0] in _SENT:
            found.append((source, target))
    return found


def seen(pattern: Pattern, history: Rows | None, upto: int, types: Types) -> float:
    """How many events a second of a pattern are in a history that ends at a time."""
    if history is None or not history.num_rows:
        return 0.0
    span_us = upto - int(history.ts[0])
    return float(meeting(pattern, history, types).sum()) / max(span_us, 1) * SECOND_US


@dataclass
class Rates:
    """How many events partial rules of children, and own sources, had, and since when that is counted."""

    period_us: int = 60 * SECOND_US
    since: int | None = None
    totals: dict[tuple[str, Partial], int] = field(default_factory=dict)
    marks: dict[tuple[str, Partial], int] = field(default_factory=dict)
    elapsed_s: float = 1.0

    def counted(self, child: str, part: Partial, total: int) -> None:
        self.totals[child, part] = total

    def total(self, child: str, part: Partial) -> int:
        return self.totals.get((child, part), 0)

    def due(self, upto: int) -> bool:
        """Whether a period is over."""
        if self.since is None:
            return False
        self.elapsed_s = max(upto - self.since, 1) / SECOND_US
        return upto - self.since >= self.period_us

    def start(self, upto: int) -> None:
        """Begins a new period."""
        self.since, self.marks = upto, dict(self.totals)

    def rate(self, use: Use) -> float:
        """Events a second that a use would push."""
        key = (use.child, use.partial)
        return (self.totals.get(key, 0) - self.marks.get(key, 0)) / self.elapsed_s

    def masters(
        self,
        deployment: Deployment,
        advertised: Advertised,
        old: Mapping[Key, Mastery],
        seen: Callable[[Pattern], float],
        *,
        eager: bool,
    ) -> dict[Key, Mastery]:
        """The master of each item that has one; `eager`: always the one with the lowest rate.

        `seen`: how many events a second of a pattern there were here, for whatever reason they came.
        """
        pushed = {(use.child, use.partial) for use in deployment.direct}
        pushed |= {(use.child, use.partial) for item in deployment.items if not item.pullable for use in item.uses}
        chosen: dict[Key, Mastery] = {}
        for item in sorted((item for item in deployment.items if item.pullable), key=lambda item: str(item.key)):
            choice = _Choice(self, item, advertised, pushed, seen)
            master = choice.lowest() if eager else choice.cheapest(old.get(item.key))
            if master is not None:
                chosen[item.key] = master
            pulled = master.pulled if master is not None else ()
            pushed |= {(use.child, use.partial) for use in item.uses if use not in pulled}
        return chosen


class _Choice:
    """What each master of an item would cost."""

    def __init__(
        self,
        rates: Rates,
        item: Item,
        advertised: Advertised,
        pushed: set[tuple[str, Partial]],
        seen: Callable[[Pattern], float],
    ) -> None:
        self.rates, self.item, self.shape, self.pushed = rates, item, item.shape, pushed
        self.nodes: dict[str, float] = dict.fromkeys(local_nodes(self.shape, advertised), 0.0)
        for use in item.uses:
            if use.decides:
                self.nodes[use.node] = self.nodes.get(use.node, 0.0) + rates.rate(use)
        for node, rate in self.nodes.items():
            self.nodes[node] = max(rate, seen(bare(self.shape, node).rule.anchor))

    def lowest(self) -> Mastery:
        """The node with the lowest rate as the master, all others as slaves."""
        node = min(self.nodes, key=lambda node: (self.nodes[node], node))
        return Mastery(node, tuple(use for use in self.item.uses if use.node != node))

    def cheapest(self, old: Mastery | None) -> Mastery | None:
        """The master with the fewest expected messages, None if that is to push everything."""
        best, cost = self._with(None)
        for node in sorted(self.nodes):
            master, total = self._with(node)
            if total < cost:
                best, cost = master, total
        if old is not None and old.node in self.nodes:
            same, total = self._with(old.node)
            if cost >= STAY * total:
                return same
        return best

    def _with(self, node: str | None) -> tuple[Mastery | None, float]:
        """A master with the slaves that are worth while, and the messages a second."""
        total = 0.0
        pulled: list[Use] = []
        for use in self.item.uses:
            if (use.child, use.partial) in self.pushed:
                continue
            cost = rate = self.rates.rate(use)
            if node is not None and use.node != node:
                past_us, future_us = self.shape.reach_us(use.node, node)
                window_s = (past_us + future_us) / SECOND_US
                asked = self.nodes[node] + rate * min(1.0, self.nodes[node] * window_s)
                if asked < rate:
                    cost = asked
                    pulled.append(use)
            total += cost
        return (Mastery(node, tuple(pulled)) if node is not None and pulled else None), total


@dataclass
class Asking:
    """The asking side of a membership."""

    awakened: dict[tuple[Key, str, Partial], tuple[int, int]] = field(default_factory=dict)
    """For each use of a slave: up to which master's event, and up to which time, it was asked."""
    waiting: dict[tuple[str, Partial], int] = field(default_factory=dict)
    """The Awaken that each child has still to answer."""
    count: int = 0
    stalls: list[tuple[Array, Array]] = field(default_factory=list)

    def ask(
        self,
        tree: str,
        items: Iterable[Item],
        masters: Mapping[Key, Mastery],
        sent: Mapping[str, DeployRule],
        history: Rows,
        types: Types,
        upto: int,
        opened: int,
        timing: Timing,
    ) -> list[tuple[str, Awaken]]:
        """What masters' events before `opened` ask for that was not asked for; they have been decided up to `upto`."""
        found: list[tuple[str, Awaken]] = []
        for item in items:
            master = masters.get(item.key)
            for use in master.pulled if master is not None else ():
                assert master is not None
                key = (item.key, use.child, use.partial)
                if any(request.partial == use.partial and request.pushed for request in sent[use.child].asked):
                    self.awakened.pop(key, None)
                    continue
                since, covered = self.awakened.get(key, (upto - item.horizon_us, BEGINNING))
                blocks_us = item.key.blocks_us if isinstance(item.key, Partial) else 0
                plea = requests(item.shape, master.node, use, history, types, since, covered, blocks_us)
                self.awakened[key] = (opened, plea.covered)
                if plea.requests:
                    self.count += 1
                    self.waiting[use.child, use.partial] = self.count
                    at = timing.at(plea.ts)
                    found.append((use.child, Awaken(tree, use.partial, self.count, plea.requests, plea.ts, at)))
        return found

    def answered(self, sender: str, message: Done) -> None:
        """A child has sent all that it had."""
        if self.waiting.get((sender, message.partial)) == message.number:
            del self.waiting[sender, message.partial]
            self.stalls.append((message.ts, message.at))

    def stalled(self, timing: Timing) -> Timing:
        """The timing with what had to be waited for."""
        for ts, at in self.stalls:
            timing = timing.stalled(ts, at)
        self.stalls = []
        return timing

    def again(self, changed: Iterable[Key]) -> None:
        """The masters of some items have changed: everything is asked anew."""
        keys = set(changed)
        self.awakened = {key: value for key, value in self.awakened.items() if key[0] not in keys}
