"""Which strategy should it be? Traffic and delay of each, worked out from topology and rates, without running anything.

The trees are the shortest paths, and what each processor is asked follows from `overlay.deployment`, the same function
that processors use; so partial rules, masters and slaves are those that will be there. What goes over each link is
then expected from rates (`plans.chances`). Every match waits for the farthest processor of its tree, for slaves to be
asked where its anchor is their master, and in a single tree goes down to the sink from there. Aggregates on the way and
changes are not looked at.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tocsin.events.types import EventType
from tocsin.language.syntax.ast import Pattern, Rule
from tocsin.overlay.deployment import Advertised, Deployment, Key, Mastery, closure, deployment, modes
from tocsin.overlay.messages import Asked
from tocsin.overlay.pull import Rates
from tocsin.overlay.strategies import STRATEGIES, Link, Sites, Strategy, place
from tocsin.plans.cost import Chances, Load, sent
from tocsin.plans.splitting import HERE, Partial
from tocsin.simulation.runs import fathers

SECOND_US = 1_000_000
PERIOD_S = 1000
GOALS = ("traffic", "delay")


@dataclass(frozen=True)
class Prediction:
    """Expected messages × hops a second and the mean delay of notices."""

    strategy: str
    messages_per_s: float
    delay_ms: float


@dataclass
class _Traffic:
    """Messages a second: events that leave as they come, once for all trees, by link and type; and all others."""

    relayed: dict[tuple[Link, str], float] = field(default_factory=dict)
    others: float = 0.0


def predicted(
    sites: Sites,
    rates: Mapping[tuple[str, str], float],
    types: Mapping[str, EventType],
    rules: Sequence[Rule],
    values: Mapping[str, Sequence[str | float]],
    strategies: Iterable[Strategy] = tuple(STRATEGIES.values()),
) -> list[Prediction]:
    """What each strategy will take. `rates`: events a second by processor and type; `values`: those of attributes."""
    return [_Planner(sites, rates, types, rules, values, one).prediction() for one in strategies]


def best(predictions: Sequence[Prediction], goal: str = "traffic") -> Prediction:
    """The one with the least traffic, or the least delay; the other of these where they are alike."""
    if goal == "delay":
        return min(predictions, key=lambda one: (round(one.delay_ms, 3), one.messages_per_s))
    return min(predictions, key=lambda one: (one.messages_per_s, one.delay_ms))


class _Planner:
    def __init__(
        self,
        sites: Sites,
        rates: Mapping[tuple[str, str], float],
        types: Mapping[str, EventType],
        rules: Sequence[Rule],
        values: Mapping[str, Sequence[str | float]],
        strategy: Strategy,
    ) -> None:
        self.sites, self.types, self.rules, self.strategy = sites, types, tuple(rules), strategy
        self.at: dict[str, dict[str, float]] = {}
        totals: dict[str, float] = {}
        for (name, type), rate in rates.items():
            mine = self.at.setdefault(place(name), {})
            mine[type] = mine.get(type, 0.0) + rate
            totals[type] = totals.get(type, 0.0) + rate
        self.matches: dict[str, float] = {}
        waiting = dict.fromkeys(rules)
        for rule in [one for wanted in waiting for one in closure(wanted, self.rules)]:
            known = {other.emits.name: self.matches.get(other.name, 0.0) for other in rules}
            self.matches[rule.name] = Chances(rule, Load({**known, **totals}, values)).matches
        made: dict[str, float] = {}
        for rule in rules:
            made[rule.emits.name] = made.get(rule.emits.name, 0.0) + self.matches[rule.name]
        self.load = Load({**made, **totals}, values)
        self.traffic = _Traffic()
        self.asked_us: dict[str, int] = {}
        """By composite type: how long the slaves of its anchor take to answer, in the tree at hand."""

    def prediction(self) -> Prediction:
        roots = [self._leader()] if self.strategy.single else sorted({place(sink) for sink in self.sites.sinks})
        notices, waited = 0.0, 0.0
        for root in roots:
            paths = fathers(self.sites.delays_us, root)
            farthest_us = max((distance for _, distance in paths.values()), default=0)
            mine = {
                sink: wanted for sink, wanted in self.sites.sinks.items() if self.strategy.single or place(sink) == root
            }
            self._tree(root, paths, [pattern for wanted in mine.values() for pattern in wanted])
            if self.strategy.single:
                self._down(paths, mine)
            for sink, wanted in mine.items():
                away_us = paths[place(sink)][1] if place(sink) != root else 0
                for pattern in wanted:
                    if pattern.type not in self.types:
                        count = self.load.rate(pattern)
                        notices += count
                        waited += count * (farthest_us + away_us + self.asked_us.get(pattern.type, 0))
        total = sum(self.traffic.relayed.values()) + self.traffic.others
        return Prediction(self.strategy.name, total, waited / max(notices, 1e-12) / 1000)

    def _leader(self) -> str:
        """As the protocol elects: the most links, the least delay, the name."""
        links: dict[str, list[int]] = {name: [] for name in self.sites.processors}
        for (here, _), delay_us in self.sites.delays_us.items():
            links[here].append(delay_us)
        return min(links, key=lambda name: (-len(links[name]), sum(links[name]), name))

    def _down(self, paths: Mapping[str, tuple[str, int]], sinks: Mapping[str, Sequence[Pattern]]) -> None:
        """Composite events go from the root to the sinks, over each link once."""
        wanted: dict[str, dict[Pattern, None]] = {}
        for sink, patterns in sinks.items():
            name = place(sink)
            while name in paths:
                wanted.setdefault(name, {}).update(dict.fromkeys(patterns))
                name = paths[name][0]
        self.traffic.others += sum(self.load.rate(pattern) for patterns in wanted.values() for pattern in patterns)

    # ---- a tree, from the root down

    def _tree(self, root: str, paths: Mapping[str, tuple[str, int]], wanted: Sequence[Pattern]) -> None:
        children: dict[str, list[str]] = {}
        for name, (father, _) in paths.items():
            children.setdefault(father, []).append(name)
        below: dict[str, dict[str, float]] = {}
        for name in sorted([root, *paths], key=lambda one: -self._depth(one, paths)):
            mine = dict(self.at.get(name, {}))
            for child in children.get(name, ()):
                for type, rate in below[child].items():
                    mine[type] = mine.get(type, 0.0) + rate
            below[name] = mine
        self.asked_us, self.paths = {}, paths
        types = {pattern.type for pattern in wanted}
        named = [rule for rule in self.rules if rule.emits.name in types]
        needed = tuple(dict.fromkeys(one for rule in named for one in closure(rule, self.rules)))
        taps = tuple(dict.fromkeys(pattern for pattern in wanted if pattern.type in self.types))
        self._visit(root, children, below, needed, tuple(rule.name for rule in named), (), taps, {})

    def _depth(self, name: str, paths: Mapping[str, tuple[str, int]]) -> int:
        depth = 0
        while name in paths:
            name, depth = paths[name][0], depth + 1
        return depth

    def _visit(
        self,
        name: str,
        children: Mapping[str, list[str]],
        below: Mapping[str, Mapping[str, float]],
        rules: tuple[Rule, ...],
        wanted: tuple[str, ...],
        asked: tuple[Asked, ...],
        taps: tuple[Pattern, ...],
        pulls: Mapping[Partial, tuple[float, float]],
    ) -> None:
        """`pulls`: of what is pulled, awakenings a second and the share of the time that is asked for."""
        advertised: dict[str, frozenset[str]] = {HERE: frozenset(self.at.get(name, ()))}
        advertised |= {child: frozenset(below[child]) for child in children.get(name, ())}
        partials = [request.partial for request in asked]
        here = deployment(self.strategy, rules, wanted, partials, taps, advertised, self.types)
        masters = self._masters(here, advertised, name) if self.strategy.pulls else {}
        requests = modes(here, asked, masters)
        for item in here.items:
            master = masters.get(item.key)
            if isinstance(item.key, str) and master is not None and master.node == item.shape.anchor:
                away_us = max(self._away_us(name, use.child, use.partial, children) for use in master.pulled)
                self.asked_us[item.rules[-1].emits.name] = 2 * away_us
        for child in children.get(name, ()):
            theirs = tuple(requests.get(child, {}).values())
            asking: dict[Partial, tuple[float, float]] = {}
            for request in theirs:
                if not request.pushed:
                    asking[request.partial] = self._pulled(request.partial, child, here, masters, pulls)
            self._count((child, name), below[child], theirs, asking)
            given, names = here.whole.get(child, ((), ()))
            self.traffic.others += sum(self.matches[one] for one in names)
            tallied = here.tallied_by(child, advertised, ())
            if theirs or names or tallied:
                self._visit(child, children, below, given, names, theirs, (), asking)

    def _masters(self, here: Deployment, advertised: Advertised, name: str) -> dict[Key, Mastery]:
        """As a processor would choose them after a while."""
        rates = Rates()
        rates.elapsed_s = PERIOD_S
        for item in here.items:
            for use in item.uses:
                rates.counted(use.child, use.partial, round(self._sent_rate(use.partial) * PERIOD_S))

        def seen(pattern: Pattern) -> float:
            return self.at.get(name, {}).get(pattern.type, 0.0) * self.load.share(pattern)

        return rates.masters(here, advertised, {}, seen, eager=self.strategy.eager)

    def _away_us(self, name: str, child: str, part: Partial, children: Mapping[str, list[str]]) -> int:
        """How far the farthest processor is that has events of a partial rule, below a child."""
        waiting, farthest_us = [child], 0
        while waiting:
            one = waiting.pop()
            waiting += children.get(one, ())
            if part.types & self.at.get(one, {}).keys():
                farthest_us = max(farthest_us, self.paths[one][1])
        return farthest_us - (self.paths[name][1] if name in self.paths else 0)

    def _sent_rate(self, part: Partial) -> float:
        return sum(chance * self.load.rates.get(type, 0.0) for type, chance in sent(part, self.load).items())

    def _pulled(
        self,
        part: Partial,
        child: str,
        here: Deployment,
        masters: Mapping[Key, Mastery],
        pulls: Mapping[Partial, tuple[float, float]],
    ) -> tuple[float, float]:
        """Awakenings a second, and the share of the time that is asked for."""
        if part in pulls and here.through.get(part) == child:
            return pulls[part]
        awakenings, missed = 0.0, 1.0
        for item in here.items:
            master = masters.get(item.key)
            for use in master.pulled if master is not None else ():
                assert master is not None
                if (use.child, use.partial) == (child, part):
                    rate = Chances(item.rules[-1], self.load).rate(master.node)
                    awakenings += rate
                    missed *= math.exp(-rate * sum(item.shape.reach_us(use.node, master.node)) / SECOND_US)
        return awakenings, 1 - missed

    def _count(
        self,
        link: Link,
        rates: Mapping[str, float],
        asked: Sequence[Asked],
        asking: Mapping[Partial, tuple[float, float]],
    ) -> None:
        """What is asked of a child goes over the link to it: one share of each type, as one event is sent once."""
        relayed: dict[str, dict[tuple[object, ...], float]] = {}
        found: dict[str, float] = {}
        for request in asked:
            if request.pushed and request.partial.bare:
                pattern = request.partial.rule.anchor
                relayed.setdefault(pattern.type, {})[pattern.constraints] = self.load.share(pattern)
        shares = {type: _union(known) for type, known in relayed.items()}
        for type, share in shares.items():
            known = self.traffic.relayed.get((link, type), 0.0)
            self.traffic.relayed[link, type] = max(known, share * rates.get(type, 0.0))
        for request in asked:
            if request.pushed and not request.partial.bare:
                for type, chance in sent(request.partial, self.load).items():
                    found[type] = 1 - (1 - found.get(type, 0.0)) * (1 - chance)
            elif not request.pushed:
                awakenings, covered = asking[request.partial]
                self.traffic.others += awakenings
                for type, chance in sent(request.partial, self.load).items():
                    found[type] = 1 - (1 - found.get(type, 0.0)) * (1 - chance * covered)
        for type, chance in found.items():
            self.traffic.others += rates.get(type, 0.0) * chance * (1 - shares.get(type, 0.0))


def _union(shares: Mapping[tuple[object, ...], float]) -> float:
    """Of events that meet some of several tests; tests for equality with different constants exclude each other."""
    if () in shares:
        return 1.0
    return min(1.0, sum(shares.values()))
