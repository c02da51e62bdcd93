"""Which partial rule of a rule is the master, and what do its events ask of the slaves? (T-Rex, 3.5)

An event of the master asks each slave for all that can have a say in a match with it: the events within
`Shape.reach_us`, with the values of shared parameters where the master's event gives them. What was asked before is
not asked again.

The master is chosen from measured rates. The paper takes the partial rule with the lowest rate; here the expected
number of messages decides, which is the same where rates differ much: what is pushed, an Awaken for each master's
event, what slaves then send. What comes anyhow, for other rules, costs nothing. Where nothing is cheaper than pushing
everything, everything is pushed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tocsin.events.types import Kind
from tocsin.overlay.deployment import Advertised, Deployment, Item, Key, local_nodes
from tocsin.overlay.evaluation import Types, passing
from tocsin.overlay.messages import Request
from tocsin.overlay.timing import Array
from tocsin.plans.shape import Shape, equation
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
    shape: Shape, master: str, use: Use, history: pa.Table, types: Types, since: int, covered: int, blocks_us: int
) -> Plea:
    """What the master's events from `since` on ask of a use; `blocks_us`: of the partial rule that is decided."""
    pattern = bare(shape, master).rule.anchor
    ts = history["ts"].to_numpy()
    rows = np.nonzero(
        (ts >= since) & pc.equal(history["type"], pattern.type).combine_chunks().to_numpy(zero_copy_only=False)
    )[0]
    events = history.take(rows)
    events = events.filter(pa.array(passing(pattern, events, types)))
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


@dataclass
class Rates:
    """How many events partial rules of children, and own sources, had, and since when that is counted."""

    period_us: int = 60 * SECOND_US
    since: int | None = None
    totals: dict[tuple[str, Partial], int] = field(default_factory=dict)
    marks: dict[tuple[str, Partial], int] = field(default_factory=dict)
    own: dict[str, int] = field(default_factory=dict)
    """Released events by type since the last choice."""
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
        self.since, self.marks, self.own = upto, dict(self.totals), {}

    def rate(self, use: Use) -> float:
        """Events a second that a use would push."""
        key = (use.child, use.partial)
        return (self.totals.get(key, 0) - self.marks.get(key, 0)) / self.elapsed_s

    def masters(
        self, deployment: Deployment, advertised: Advertised, old: Mapping[Key, str], *, eager: bool
    ) -> dict[Key, str]:
        """The master of each item that has one; `eager`: always the one with the lowest rate."""
        pushed = {(use.child, use.partial) for use in deployment.direct}
        pushed |= {(use.child, use.partial) for item in deployment.items if not item.pullable for use in item.uses}
        chosen: dict[Key, str] = {}
        for item in sorted((item for item in deployment.items if item.pullable), key=lambda item: str(item.key)):
            master = self._best(item, advertised, pushed, old.get(item.key), eager)
            if master is not None:
                chosen[item.key] = master
            pushed |= {(use.child, use.partial) for use in item.uses if master in (None, use.node)}
        return chosen

    def _best(
        self, item: Item, advertised: Advertised, pushed: set[tuple[str, Partial]], old: str | None, eager: bool
    ) -> str | None:
        shape = item.shape
        rates: dict[str, float] = {
            node: self.own.get(shape.patterns[node].type, 0) / self.elapsed_s for node in local_nodes(shape, advertised)
        }
        for use in item.uses:
            if use.decides:
                rates[use.node] = rates.get(use.node, 0.0) + self.rate(use)

        if eager:
            return min(rates, key=lambda node: (rates[node], node))

        def cost(master: str | None) -> float:
            total = 0.0
            for use in item.uses:
                if (use.child, use.partial) in pushed:
                    continue
                rate = self.rate(use)
                if master is None or use.node == master:
                    total += rate
                    continue
                past_us, future_us = shape.reach_us(use.node, master)
                window_s = (past_us + future_us) / SECOND_US
                total += rates[master] + rate * min(1.0, rates[master] * window_s)
            return total

        best = min([None, *rates], key=lambda node: (cost(node), str(node)))
        if best != old and (old is None or old in rates) and cost(best) >= STAY * cost(old):
            return old
        return best
