"""Predict the traffic and the delay of each strategy from topology and rates, without running anything.

The trees are the shortest paths. The requests to each processor are computed by `overlay.deployment`, which processors
use too, so the partial rules, masters and slaves are the same as in a run. A *partial rule* is the part of a rule that
a processor lower in the tree can decide. The events of a *master* are pushed, and the events of its *slaves* are
requested afterwards by *awakenings*.

The number of messages on each link follows from the rates (`plans.cost`). Every match waits for the farthest processor
of its tree. It also waits for the answers of slaves if its anchor (the event to which the match is bound) is their
master. In a single tree, the match also travels down to the sink. Partial aggregates and changes of the sites are
ignored.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tocsin.events.types import EventType
from tocsin.language.syntax.ast import Pattern, Rule
from tocsin.overlay.deployment import Advertised, Deployment, Key, Mastery, closure, deployment, modes
from tocsin.overlay.messages import RequestedPartial
from tocsin.overlay.pull import MeasuredRates
from tocsin.overlay.strategies import STRATEGIES, Link, Sites, Strategy, processor_of
from tocsin.plans.cost import Load, MatchProbabilities, sent
from tocsin.plans.splitting import HERE, Partial
from tocsin.simulation.runs import shortest_path_parents

SECOND_US = 1_000_000
PERIOD_S = 1000
GOALS = ("traffic", "delay")


@dataclass(frozen=True)
class Prediction:
    """The expected traffic of a strategy in messages × hops a second, and the mean delay of the notices to sinks."""

    strategy: str
    messages_per_s: float
    delay_ms: float


@dataclass
class _Traffic:
    """Messages a second.

    `relayed` has the forwarded events by link and type, where an event counts once for all trees. `others` has all
    other messages.
    """

    relayed: dict[tuple[Link, str], float] = field(default_factory=dict)
    others: float = 0.0


def predict(
    sites: Sites,
    rates: Mapping[tuple[str, str], float],
    types: Mapping[str, EventType],
    rules: Sequence[Rule],
    values: Mapping[str, Sequence[str | float]],
    strategies: Iterable[Strategy] = tuple(STRATEGIES.values()),
) -> list[Prediction]:
    """Predict the traffic and the delay of each strategy.

    `rates` has the events a second by source and type. `values` has the values of each attribute, as in a scenario.
    """
    return [_Planner(sites, rates, types, rules, values, one).prediction() for one in strategies]


def best(predictions: Sequence[Prediction], goal: str = "traffic") -> Prediction:
    """Return the prediction with the least traffic, or with the least delay if `goal` is "delay".

    The other quantity decides between equal predictions.
    """
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
            mine = self.at.setdefault(processor_of(name), {})
            mine[type] = mine.get(type, 0.0) + rate
            totals[type] = totals.get(type, 0.0) + rate
        self.matches: dict[str, float] = {}
        waiting = dict.fromkeys(rules)
        for rule in [one for wanted in waiting for one in closure(wanted, self.rules)]:
            matches = {other.emits.name: self.matches.get(other.name, 0.0) for other in rules}
            self.matches[rule.name] = MatchProbabilities(rule, Load({**matches, **totals}, values)).matches
        composites: dict[str, float] = {}
        for rule in rules:
            composites[rule.emits.name] = composites.get(rule.emits.name, 0.0) + self.matches[rule.name]
        self.load = Load({**composites, **totals}, values)
        self.traffic = _Traffic()
        self.asked_us: dict[str, int] = {}
        """The time that the slaves of the anchor of each composite type take to answer, in the current tree."""

    def prediction(self) -> Prediction:
        roots = [self._leader()] if self.strategy.single else sorted({processor_of(sink) for sink in self.sites.sinks})
        notices, waited = 0.0, 0.0
        for root in roots:
            paths = shortest_path_parents(self.sites.delays_us, root)
            farthest_us = max((distance for _, distance in paths.values()), default=0)
            mine = {
                sink: wanted
                for sink, wanted in self.sites.sinks.items()
                if self.strategy.single or processor_of(sink) == root
            }
            self._tree(root, paths, [pattern for wanted in mine.values() for pattern in wanted])
            if self.strategy.single:
                self._down(paths, mine)
            for sink, wanted in mine.items():
                away_us = paths[processor_of(sink)][1] if processor_of(sink) != root else 0
                for pattern in wanted:
                    if pattern.type not in self.types:
                        count = self.load.rate(pattern)
                        notices += count
                        waited += count * (farthest_us + away_us + self.asked_us.get(pattern.type, 0))
        total = sum(self.traffic.relayed.values()) + self.traffic.others
        return Prediction(self.strategy.name, total, waited / max(notices, 1e-12) / 1000)

    def _leader(self) -> str:
        """Return the leader that the protocol elects, by the most links, then the least total delay, then the name."""
        links: dict[str, list[int]] = {name: [] for name in self.sites.processors}
        for (here, _), delay_us in self.sites.delays_us.items():
            links[here].append(delay_us)
        return min(links, key=lambda name: (-len(links[name]), sum(links[name]), name))

    def _down(self, paths: Mapping[str, tuple[str, int]], sinks: Mapping[str, Sequence[Pattern]]) -> None:
        """Count the composite events that travel from the root to the sinks. An event crosses each link once."""
        wanted: dict[str, dict[Pattern, None]] = {}
        for sink, patterns in sinks.items():
            name = processor_of(sink)
            while name in paths:
                wanted.setdefault(name, {}).update(dict.fromkeys(patterns))
                name = paths[name][0]
        self.traffic.others += sum(self.load.rate(pattern) for patterns in wanted.values() for pattern in patterns)

    # ---- a tree, from the root down

    def _tree(self, root: str, paths: Mapping[str, tuple[str, int]], wanted: Sequence[Pattern]) -> None:
        children: dict[str, list[str]] = {}
        for name, (parent, _) in paths.items():
            children.setdefault(parent, []).append(name)
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
        requested: tuple[RequestedPartial, ...],
        taps: tuple[Pattern, ...],
        pulls: Mapping[Partial, tuple[float, float]],
    ) -> None:
        """Count the traffic of the processor `name`, and of the processors below it, in one tree.

        `pulls` has, for each pulled partial rule, the awakenings a second and the fraction of the time that they
        request.
        """
        advertised: dict[str, frozenset[str]] = {HERE: frozenset(self.at.get(name, ()))}
        advertised |= {child: frozenset(below[child]) for child in children.get(name, ())}
        partials = [request.partial for request in requested]
        here = deployment(self.strategy, rules, wanted, partials, taps, advertised, self.types)
        masters = self._masters(here, advertised, name) if self.strategy.pulls else {}
        requests = modes(here, requested, masters)
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
            child_rules, names = here.whole.get(child, ((), ()))
            self.traffic.others += sum(self.matches[one] for one in names)
            aggregates = here.aggregates_of(child, advertised, ())
            if theirs or names or aggregates:
                self._visit(child, children, below, child_rules, names, theirs, (), asking)

    def _masters(self, here: Deployment, advertised: Advertised, name: str) -> dict[Key, Mastery]:
        """Return the masters that the processor `name` would choose when it has measured the rates."""
        rates = MeasuredRates()
        rates.elapsed_s = PERIOD_S
        for item in here.items:
            for use in item.uses:
                rates.counted(use.child, use.partial, round(self._sent_rate(use.partial) * PERIOD_S))

        def seen(pattern: Pattern) -> float:
            return self.at.get(name, {}).get(pattern.type, 0.0) * self.load.share(pattern)

        return rates.masters(here, advertised, {}, seen, eager=self.strategy.eager)

    def _away_us(self, name: str, child: str, part: Partial, children: Mapping[str, list[str]]) -> int:
        """Return the distance from `name` to the farthest processor below `child` that has events for `part`."""
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
        """Return the awakenings a second for `part` at `child`, and the fraction of the time that they request."""
        if part in pulls and here.through.get(part) == child:
            return pulls[part]
        awakenings, missed = 0.0, 1.0
        for item in here.items:
            master = masters.get(item.key)
            for use in master.pulled if master is not None else ():
                assert master is not None
                if (use.child, use.partial) == (child, part):
                    rate = MatchProbabilities(item.rules[-1], self.load).rate(master.node)
                    awakenings += rate
                    missed *= math.exp(-rate * sum(item.shape.time_bounds_us(use.node, master.node)) / SECOND_US)
        return awakenings, 1 - missed

    def _count(
        self,
        link: Link,
        rates: Mapping[str, float],
        requested: Sequence[RequestedPartial],
        asking: Mapping[Partial, tuple[float, float]],
    ) -> None:
        """Count the messages on `link` from a child. An event is one message, even if several requests match it."""
        relayed: dict[str, dict[tuple[object, ...], float]] = {}
        probabilities: dict[str, float] = {}
        for request in requested:
            if request.pushed and request.partial.bare:
                pattern = request.partial.rule.anchor
                relayed.setdefault(pattern.type, {})[pattern.constraints] = self.load.share(pattern)
        shares = {type: _union(known) for type, known in relayed.items()}
        for type, share in shares.items():
            known = self.traffic.relayed.get((link, type), 0.0)
            self.traffic.relayed[link, type] = max(known, share * rates.get(type, 0.0))
        for request in requested:
            if request.pushed and not request.partial.bare:
                for type, chance in sent(request.partial, self.load).items():
                    probabilities[type] = 1 - (1 - probabilities.get(type, 0.0)) * (1 - chance)
            elif not request.pushed:
                awakenings, covered = asking[request.partial]
                self.traffic.others += awakenings
                for type, chance in sent(request.partial, self.load).items():
                    probabilities[type] = 1 - (1 - probabilities.get(type, 0.0)) * (1 - chance * covered)
        for type, chance in probabilities.items():
            self.traffic.others += rates.get(type, 0.0) * chance * (1 - shares.get(type, 0.0))


def _union(shares: Mapping[tuple[object, ...], float]) -> float:
    """Return the fraction of events that meet at least one of several sets of constraints.

    `shares` has the fraction for each set. The sets are assumed to exclude each other, like equality with different
    constants.
    """
    if () in shares:
        return 1.0
    return min(1.0, sum(shares.values()))
