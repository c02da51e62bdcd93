"""Derive what a processor evaluates in a tree from the requests of its parent and the advertisements of its children.

    requested by the parent ──► passed through to the one child that can decide it
                            └─► decided here, from partial rules requested of the children

A rule is decided by a child if that child alone advertises all types of the rule; otherwise the rule is decided here. A
partial rule that one child can decide is passed through to that child, unless a rule here uses one of the same types.
So all events of a type either go through to the parent or are processed here, and no event is sent twice.

The deployment is computed again when its inputs change. A child gets a new DeployRule if its part has changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from tocsin.events.types import EventType
from tocsin.language.syntax.ast import Pattern, Rule
from tocsin.overlay.messages import RequestedPartial
from tocsin.overlay.strategies import Strategy
from tocsin.plans.bind.structure import PatternTree
from tocsin.plans.partial_aggregates import PartialAggregate, split_aggregates
from tocsin.plans.splitting import FOREVER_US, HERE, Partial, Use, bare, partial, split

Key = str | Partial
Advertised = Mapping[str, AbstractSet[str]]


@dataclass(frozen=True)
class Item:
    """A rule or a partial rule that is decided here.

    `key` is the name of the rule, or the partial rule. `rules` ends with the rule itself, after all rules whose
    composite events the rule uses. `uses` are the partial rules that children decide for the rule.
    """

    key: Key
    rules: tuple[Rule, ...]
    uses: tuple[Use, ...]
    ordered: bool
    """Whether all events of the rule come in order of time; partial rules may send older events after newer ones."""
    pullable: bool
    aggregates: tuple[PartialAggregate, ...] = ()
    """The aggregates that several processors compute together; the rule reads their values from its anchor."""
    asks: Pattern | None = None
    """The pattern of the possible anchors, for which aggregates are queried; None without aggregates."""

    @property
    def shape(self) -> PatternTree:
        return PatternTree(self.rules[-1])

    @property
    def types(self) -> frozenset[str]:
        return frozenset(type for rule in self.rules for type in rule.uses)

    @property
    def consuming(self) -> bool:
        """Whether some rule of the item consumes events."""
        return any(rule.consuming for rule in self.rules)

    @property
    def horizon_us(self) -> int:
        """The time (µs) that the item looks back from an anchor, added up over all of its rules."""
        return sum(PatternTree(rule).retention_us for rule in self.rules)


@dataclass(frozen=True)
class Mastery:
    """The choice of a master for one item.

    The events of pattern node `node` are the master's. The events of `pulled` are requested for each of them.
    """

    node: str
    pulled: tuple[Use, ...]


@dataclass(frozen=True)
class Deployment:
    """The rules and partial rules that a processor decides in one tree, and those that it requests of its children."""

    items: tuple[Item, ...] = ()
    whole: Mapping[str, tuple[tuple[Rule, ...], tuple[str, ...]]] = field(default_factory=dict)
    """For each child, the rules that the child decides, and the names of those whose matches are wanted."""
    through: Mapping[Partial, str] = field(default_factory=dict)
    """The child that decides each partial rule that is passed through."""
    simple: tuple[Partial, ...] = ()
    """The requested partial rules without clauses, which are decided here for each event alone."""
    direct: tuple[Use, ...] = ()
    """The partial rules that children push for sinks, for the root or for `simple`, not for items."""

    def aggregates_of(
        self, child: str, advertised: Advertised, requested: Iterable[PartialAggregate]
    ) -> tuple[PartialAggregate, ...]:
        """Return the aggregates for which `child` advertises events.

        The aggregates are those of items here, and those that the parent has requested.
        """
        wanted = dict.fromkeys((*(aggregate for item in self.items for aggregate in item.aggregates), *requested))
        return tuple(aggregate for aggregate in wanted if aggregate.events.types & advertised.get(child, set()))

    @property
    def through_types(self) -> frozenset[str]:
        return frozenset(type for requested in self.through for type in requested.types)


def deployment(
    strategy: Strategy,
    rules: Sequence[Rule],
    wanted: Iterable[str],
    requested: Iterable[Partial],
    taps: Iterable[Pattern],
    advertised: Advertised,
    types: Mapping[str, EventType],
) -> Deployment:
    """Return the deployment of a processor in a tree.

    `rules` are all rules that are needed, and `wanted` names those whose matches are wanted. `requested` are the
    partial rules that the parent requests. `taps` are the patterns of primary events to which sinks have subscribed.
    """
    defined = {rule.emits.name for rule in rules}
    here: dict[str, AbstractSet[str]] = {**advertised, HERE: set(advertised.get(HERE, ())) | defined}
    items: list[Item] = []
    whole: dict[str, tuple[dict[Rule, None], dict[str, None]]] = {}
    direct: dict[Use, None] = {}
    by_name = {rule.name: rule for rule in rules}
    for name in wanted:
        needed = closure(by_name[name], rules)
        used = {type for rule in needed for type in rule.uses} - defined
        child = _only_child(used, advertised) if strategy.splits else None
        if child is not None:
            mine = whole.setdefault(child, ({}, {}))
            mine[0].update(dict.fromkeys(needed))
            mine[1][name] = None
        else:
            items.append(_item(strategy, needed, here, types))
    if not strategy.splits and (items or taps):
        for child, offered in advertised.items():
            for type in sorted(offered) if child != HERE else ():
                direct[Use(child, partial(Pattern(type), ()), type)] = None
    simple: list[Partial] = []
    through: dict[Partial, str] = {}
    for part in requested:
        child = _only_child(part.types, advertised)
        if child is not None:
            through[part] = child
        elif part.bare:
            simple.append(part)
        else:
            items.append(_partial_item(strategy, part, advertised))
    tapped = [partial(pattern, ()) for pattern in taps]
    evaluated = {type for item in items for type in item.types}
    evaluated |= {type for part in (*simple, *tapped) for type in part.types}
    while met := [part for part in through if part.types & evaluated]:
        for part in met:
            child = through.pop(part)
            evaluated |= part.types
            if part.bare:
                simple.append(part)
            else:
                shape = PatternTree(part.rule)
                items.append(Item(part, (part.rule,), (Use(child, part, shape.anchor),), False, False))
    for part in (*simple, *(tapped if strategy.splits else ())):
        (type,) = part.types
        holders = [child for child in advertised if child != HERE and type in advertised[child]]
        direct.update((Use(child, part, type), None) for child in holders)
    asked_whole = {child: (tuple(mine[0]), tuple(mine[1])) for child, mine in whole.items()}
    return Deployment(tuple(items), asked_whole, through, tuple(simple), tuple(direct))


def _only_child(types: AbstractSet[str], advertised: Advertised) -> str | None:
    """Return the child that advertises all `types`, unless other children or own sources have some of them, too."""
    holders = {child for child, offered in advertised.items() if offered & types}
    if len(holders) != 1:
        return None
    (child,) = holders
    return child if child != HERE and types <= advertised[child] else None


def closure(rule: Rule, rules: Sequence[Rule]) -> tuple[Rule, ...]:
    """Return all rules that `rule` needs, ordered so that each rule comes after the rules whose events it uses.

    The last one is `rule` itself.
    """
    ordered: dict[Rule, None] = {}

    def visit(rule: Rule) -> None:
        uses = set(rule.uses)
        for other in rules:
            if other.emits.name in uses and other not in ordered:
                visit(other)
        ordered[rule] = None

    visit(rule)
    return tuple(ordered)


def _item(strategy: Strategy, rules: tuple[Rule, ...], advertised: Advertised, types: Mapping[str, EventType]) -> Item:
    """Return the item of the last of `rules`.

    A consuming rule has state, so it is not split: each child sends events of single patterns, in order.
    """
    if not strategy.splits:
        return Item(rules[-1].name, rules, (), True, False)
    if strategy.aggregates and len(rules) == 1 and (made := split_aggregates(rules[0], types)):
        without, tested, aggregates = made
        bare_uses = split(without, advertised, stays=True).uses
        shape = PatternTree(without)
        asks = bare(shape, shape.anchor).rule.anchor
        return Item(without.name, (tested,), bare_uses, ordered=False, pullable=False, aggregates=aggregates, asks=asks)
    uses: dict[Use, None] = {}
    consuming = any(one.consuming for one in rules)
    for rule in rules:
        mine = _bare_uses(rule, advertised) if consuming else split(rule, advertised, stays=True).uses
        uses.update(dict.fromkeys(mine))
    free = strategy.pulls and len(rules) == 1 and not consuming
    pullable = free and _choosable(rules[0], tuple(uses), advertised)
    ordered = all(use.partial.bare for use in uses) and not pullable
    return Item(rules[-1].name, rules, tuple(uses), ordered, pullable)


def _partial_item(strategy: Strategy, part: Partial, advertised: Advertised) -> Item:
    uses = split(part.rule, advertised, part.blocks_us, stays=True).uses
    pullable = strategy.pulls and part.blocks_us < FOREVER_US and _choosable(part.rule, uses, advertised)
    return Item(part, (part.rule,), uses, all(use.partial.bare for use in uses) and not pullable, pullable)


def _bare_uses(rule: Rule, advertised: Advertised) -> Iterable[Use]:
    shape = PatternTree(rule)
    for node, pattern in shape.patterns.items():
        for child, types in advertised.items():
            if child != HERE and pattern.type in types:
                yield Use(child, bare(shape, node), node, not node.startswith("#"))


def _choosable(rule: Rule, uses: tuple[Use, ...], advertised: Advertised) -> bool:
    """Return whether the events of the rule have two origins, so that one can be the master and one a slave."""
    return len(
        {use.node for use in uses if use.decides} | set(local_nodes(PatternTree(rule), advertised))
    ) > 1 and bool(uses)


def local_nodes(shape: PatternTree, advertised: Advertised) -> list[str]:
    """Return the roles that only events of this processor's own sources fill."""
    return [
        role
        for role in shape.roles
        if {child for child, types in advertised.items() if shape.patterns[role].type in types} == {HERE}
    ]


def modes(
    deployment: Deployment, requested: Iterable[RequestedPartial], masters: Mapping[Key, Mastery]
) -> dict[str, dict[Partial, RequestedPartial]]:
    """Return the partial rules that are requested of each child.

    If several items request the same partial rule, its events are pushed if one of them needs that; otherwise they are
    retained for the longest requested time.
    """
    requests: dict[str, dict[Partial, RequestedPartial]] = {}

    def ask(child: str, new: RequestedPartial) -> None:
        mine = requests.setdefault(child, {})
        old = mine.get(new.partial, new)
        mine[new.partial] = RequestedPartial(new.partial, old.pushed or new.pushed, max(old.keep_us, new.keep_us))

    for item in deployment.items:
        master = masters.get(item.key)
        for use in item.uses:
            slave = master is not None and use in master.pulled
            ask(use.child, RequestedPartial(use.partial, not slave, item.horizon_us if slave else 0))
    for use in deployment.direct:
        ask(use.child, RequestedPartial(use.partial))
    for request in requested:
        if request.partial in deployment.through:
            ask(deployment.through[request.partial], request)
    return requests
