"""Choose masters, and request the events of their slaves: push-pull deployment (T-Rex, 3.5).

The events of the *master* of a rule are pushed; those of its *slaves* are retained by children until they are
requested. When an event of the master is released, it requests from each slave the events that can be in a match with
it. These lie within the time bounds of the rule, and have the values of shared parameters that the master's event
determines. The request is an Awaken message. No event is requested twice, and none that is pushed anyway. The rule is
not decided before each Awaken has been answered by Done. The time until then is a *stall*.

Masters are chosen from measured rates. The paper takes the partial rule with the lowest rate. Here the master with the
fewest expected messages is taken, which is the same one if rates differ much. Messages are pushed events, one Awaken
for each event of the master, and the requested events. Events that are sent for other rules anyway cost nothing. If
pulling a slave costs more than pushing its events, they are pushed. If pushing everything is cheapest, the rule has no
master.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from tocsin.events.types import Kind
from tocsin.language.syntax.ast import Pattern
from tocsin.overlay.deployment import Advertised, Deployment, Item, Key, Mastery, local_nodes
from tocsin.overlay.evaluation import Types, meeting
from tocsin.overlay.messages import Awaken, DeployRule, Done, Rows, WindowRequest
from tocsin.overlay.tree_parts import BEGINNING, Array, Timing
from tocsin.plans.bind.structure import PatternTree, equation
from tocsin.plans.splitting import Partial, Use, bare

SECOND_US = 1_000_000
SWITCH_BELOW = 0.9
"""A new master replaces the old one only if it costs less than this fraction of the old master's cost."""
_COMPARABLE = (Kind.STRING, Kind.INT, Kind.LONG, Kind.DOUBLE, Kind.BOOL)


@dataclass(frozen=True)
class SlaveRequests:
    """The requests to one slave.

    `ts` has the time of the master's event for each request. Up to the time `covered`, all events of the slave have
    been requested.
    """

    requests: tuple[WindowRequest, ...]
    ts: Array
    covered: int


def requests(
    shape: PatternTree, master: str, use: Use, history: Rows, types: Types, since: int, covered: int, blocks_us: int
) -> SlaveRequests:
    """Return the requests of the master's events from `since` on to the slave `use`.

    `covered` is the time up to which all events of the slave have been requested already. `blocks_us` is that of the
    partial rule that is decided, or 0 for a rule.
    """
    pattern = bare(shape, master).rule.anchor
    events = history.take((history.ts >= since) & meeting(pattern, history, types))
    past_us, future_us = shape.time_bounds_us(use.node, master)
    if use.node == shape.anchor:
        future_us += blocks_us
    past_us, future_us = max(past_us, 1), max(future_us, 1)
    named = _shared(shape, master, use, types)
    result: list[WindowRequest] = []
    times: list[int] = []
    columns = [events[source].to_pylist() for source, _ in named]
    for row, at in enumerate(events["ts"].to_pylist()):
        start, end = at - past_us, at + future_us
        if named:
            values = tuple((target, column[row]) for (_, target), column in zip(named, columns, strict=True))
            if any(value is None for _, value in values):
                continue
            result.append(WindowRequest(start, end, values))
        else:
            if end <= covered:
                continue
            result.append(WindowRequest(max(start, covered - 1), end))
            covered = end
        times.append(at)
    return SlaveRequests(tuple(result), np.array(times, np.int64), covered)


def _shared(shape: PatternTree, master: str, use: Use, types: Types) -> list[tuple[str, str]]:
    """Return the pairs of attributes, of the master's event and of the slave's event, that must have equal values."""
    if not use.partial.bare:
        return []
    pairs: list[tuple[str, str]] = []
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
        if kinds[0] == kinds[1] and kinds[0] in _COMPARABLE:
            pairs.append((source, target))
    return pairs


def seen(pattern: Pattern, history: Rows | None, upto: int, types: Types) -> float:
    """Return the number of events per second that meet `pattern` in a history that ends at `upto`."""
    if history is None or not history.num_rows:
        return 0.0
    span_us = upto - int(history.ts[0])
    return float(meeting(pattern, history, types).sum()) / max(span_us, 1) * SECOND_US


@dataclass
class MeasuredRates:
    """Measure the rates of the partial rules of children, and choose masters from them.

    A period begins at the event time `since` and lasts `period_us` or longer. `totals` counts the events of each
    partial rule of each child, and `baseline` has these counts at the beginning of the period.
    """

    period_us: int = 60 * SECOND_US
    since: int | None = None
    totals: dict[tuple[str, Partial], int] = field(default_factory=dict)
    baseline: dict[tuple[str, Partial], int] = field(default_factory=dict)
    elapsed_s: float = 1.0

    def counted(self, child: str, part: Partial, total: int) -> None:
        self.totals[child, part] = total

    def total(self, child: str, part: Partial) -> int:
        return self.totals.get((child, part), 0)

    def due(self, upto: int) -> bool:
        """Return whether the period is over at the event time `upto`; set `elapsed_s` to its length so far."""
        if self.since is None:
            return False
        self.elapsed_s = max(upto - self.since, 1) / SECOND_US
        return upto - self.since >= self.period_us

    def start(self, upto: int) -> None:
        """Start a new period at the event time `upto`."""
        self.since, self.baseline = upto, dict(self.totals)

    def rate(self, use: Use) -> float:
        """Return the number of events per second that the partial rule of `use` selected in this period."""
        key = (use.child, use.partial)
        return (self.totals.get(key, 0) - self.baseline.get(key, 0)) / self.elapsed_s

    def masters(
        self,
        deployment: Deployment,
        advertised: Advertised,
        old: Mapping[Key, Mastery],
        seen: Callable[[Pattern], float],
        *,
        eager: bool,
    ) -> dict[Key, Mastery]:
        """Choose a master for each pullable item; return the masters of the items that should have one.

        If `eager`, the node with the lowest rate is always chosen. `old` are the present masters. `seen` returns the
        number of events per second that meet a pattern in the history of the tree node.
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
    """Compare the costs of the possible masters of one item."""

    def __init__(
        self,
        rates: MeasuredRates,
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
        """Return the node with the lowest rate as the master, and all other nodes as its slaves."""
        node = min(self.nodes, key=lambda node: (self.nodes[node], node))
        return Mastery(node, tuple(use for use in self.item.uses if use.node != node))

    def cheapest(self, old: Mastery | None) -> Mastery | None:
        """Return the master with the fewest expected messages, or None if pushing everything is cheapest."""
        best, cost = self._with(None)
        for node in sorted(self.nodes):
            master, total = self._with(node)
            if total < cost:
                best, cost = master, total
        if old is not None and old.node in self.nodes:
            same, total = self._with(old.node)
            if cost >= SWITCH_BELOW * total:
                return same
        return best

    def _with(self, node: str | None) -> tuple[Mastery | None, float]:
        """Return `node` as the master with the slaves that are worth pulling, and the expected messages per second.

        If `node` is None or no slave is worth pulling, the master is None.
        """
        total = 0.0
        pulled: list[Use] = []
        for use in self.item.uses:
            if (use.child, use.partial) in self.pushed:
                continue
            cost = rate = self.rates.rate(use)
            if node is not None and use.node != node:
                past_us, future_us = self.shape.time_bounds_us(use.node, node)
                window_s = (past_us + future_us) / SECOND_US
                requested = self.nodes[node] + rate * min(1.0, self.nodes[node] * window_s)
                if requested < rate:
                    cost = requested
                    pulled.append(use)
            total += cost
        return (Mastery(node, tuple(pulled)) if node is not None and pulled else None), total


@dataclass
class AwakeningState:
    """The requests that a tree node has sent to slaves, and the answers that it waits for."""

    awakened: dict[tuple[Key, str, Partial], tuple[int, int]] = field(default_factory=dict)
    """For each slave, two times: since when master events have sent no requests, and `SlaveRequests.covered`."""
    waiting: dict[tuple[str, Partial], int] = field(default_factory=dict)
    """The number of the last Awaken for each child and partial rule that was not answered yet."""
    count: int = 0
    stalls: list[tuple[Array, Array]] = field(default_factory=list)
    """The event times and the end times of stalls that are not in the timing yet."""

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
        """Return new Awaken messages, each with the child that it is for.

        They are for the master events before `opened` that have not sent requests yet. Events before `upto` are decided
        already.
        """
        awakens: list[tuple[str, Awaken]] = []
        for item in items:
            master = masters.get(item.key)
            for use in master.pulled if master is not None else ():
                assert master is not None
                key = (item.key, use.child, use.partial)
                if any(request.partial == use.partial and request.pushed for request in sent[use.child].requested):
                    self.awakened.pop(key, None)
                    continue
                since, covered = self.awakened.get(key, (upto - item.horizon_us, BEGINNING))
                blocks_us = item.key.blocks_us if isinstance(item.key, Partial) else 0
                slave = requests(item.shape, master.node, use, history, types, since, covered, blocks_us)
                self.awakened[key] = (opened, slave.covered)
                if slave.requests:
                    self.count += 1
                    self.waiting[use.child, use.partial] = self.count
                    at = timing.at(slave.ts)
                    awakens.append((use.child, Awaken(tree, use.partial, self.count, slave.requests, slave.ts, at)))
        return awakens

    def answered(self, sender: str, message: Done) -> None:
        """Record that the child `sender` has answered an Awaken with Done."""
        if self.waiting.get((sender, message.partial)) == message.number:
            del self.waiting[sender, message.partial]
            self.stalls.append((message.ts, message.at))

    def stalled(self, timing: Timing) -> Timing:
        """Return `timing` with the new stalls, and clear these."""
        for ts, at in self.stalls:
            timing = timing.stalled(ts, at)
        self.stalls = []
        return timing

    def again(self, changed: Iterable[Key]) -> None:
        """Forget the requests for the items in `changed`, whose masters have changed."""
        keys = set(changed)
        self.awakened = {key: value for key, value in self.awakened.items() if key[0] not in keys}
