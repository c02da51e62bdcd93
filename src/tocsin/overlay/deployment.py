"""What does a processor do in a tree? It follows from what it was asked, and from what its children advertise.

    asked by the father ──► passed through to the one child that can decide it
                        └─► decided here, from partial rules asked of the children

A rule that no single child can decide is decided here. A partial rule that one child can decide is passed through to
it, unless something here looks at the same types: a type either goes through, or all of its events that come are
looked at here, so that nothing has to be sent twice. Everything is recomputed when any of it changes, and the children
are told where what is asked of them differs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from tocsin.events.types import EventType
from tocsin.language.syntax.ast import Pattern, Rule
from tocsin.overlay.messages import Asked
from tocsin.overlay.strategies import Strategy
from tocsin.plans.bind.structure import Shape
from tocsin.plans.partial_aggregates import Tally, tallied
from tocsin.plans.splitting import FOREVER_US, HERE, Partial, Use, bare, partial, split

Key = str | Partial
Advertised = Mapping[str, AbstractSet[str]]


@dataclass(frozen=True)
class Item:
    """Something that is decided here: a rule, by name, with those whose composite events it uses; or a partial rule."""

    key: Key
    rules: tuple[Rule, ...]
    uses: tuple[Use, ...]
    ordered: bool
    """Whether all its events come in order; what partial rules send may be older than what was sent before."""
    pullable: bool
    tallies: tuple[Tally, ...] = ()
    """Aggregates that are asked of the sites; the rule tests them at its anchor."""
    asks: Pattern | None = None
    """Which events may be its anchors and ask, before the aggregates are known."""

    @property
    def shape(self) -> Shape:
        return Shape(self.rules[-1])

    @property
    def types(self) -> frozenset[str]:
        return frozenset(type for rule in self.rules for type in rule.uses)

    @property
    def consuming(self) -> bool:
        """Whether it remembers what it used up."""
        return any(rule.consuming for rule in self.rules)

    @property
    def horizon_us(self) -> int:
        """How far behind an anchor all rules together look."""
        return sum(Shape(rule).horizon_us for rule in self.rules)


@dataclass(frozen=True)
class Mastery:
    """The node whose events ask for others, and the uses whose events are asked for."""

    node: str
    pulled: tuple[Use, ...]


@dataclass(frozen=True)
class Deployment:
    """What a processor does in one tree."""

    items: tuple[Item, ...] = ()
    whole: Mapping[str, tuple[tuple[Rule, ...], tuple[str, ...]]] = field(default_factory=dict)
    """The rules that children decide, and those whose matches are wanted."""
    through: Mapping[Partial, str] = field(default_factory=dict)
    simple: tuple[Partial, ...] = ()
    """Partial rules without clauses that are decided here, event by event."""
    direct: tuple[Use, ...] = ()
    """What is asked of children to be pushed, apart from the items' uses and what goes through."""

    def tallied_by(self, child: str, advertised: Advertised, asked: Iterable[Tally]) -> tuple[Tally, ...]:
        """The aggregates that a child has a share of, of those that items here and the father ask for."""
        wanted = dict.fromkeys((*(tally for item in self.items for tally in item.tallies), *asked))
        return tuple(tally for tally in wanted if tally.events.types & advertised.get(child, set()))

    @property
    def through_types(self) -> frozenset[str]:
        return frozenset(type for asked in self.through for type in asked.types)


def deployment(
    strategy: Strategy,
    rules: Sequence[Rule],
    wanted: Iterable[str],
    asked: Iterable[Partial],
    taps: Iterable[Pattern],
    advertised: Advertised,
    types: Mapping[str, EventType],
) -> Deployment:
    """The deployment for rules, the names of those whose matches are wanted, partial rules that were asked for, and
    patterns of events that sinks want."""
    defined = {rule.emits.name for rule in rules}
    here: dict[str, AbstractSet[str]] = {**advertised, HERE: set(advertised.get(HERE, ())) | defined}
    items: list[Item] = []
    whole: dict[str, tuple[dict[Rule, None], dict[str, None]]] = {}
    direct: dict[Use, None] = {}
    by_name = {rule.name: rule for rule in rules}
    for name in wanted:
        needed = closure(by_name[name], rules)
        used = {type for rule in needed for type in rule.uses} - defined
        child = _sole(used, advertised) if strategy.splits else None
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
    for part in asked:
        child = _sole(part.types, advertised)
        if child is not None:
            through[part] = child
        elif part.bare:
            simple.append(part)
        else:
            items.append(_partial_item(strategy, part, advertised))
    tapped = [partial(pattern, ()) for pattern in taps]
    looked = {type for item in items for type in item.types}
    looked |= {type for part in (*simple, *tapped) for type in part.types}
    while met := [part for part in through if part.types & looked]:
        for part in met:
            child = through.pop(part)
            looked |= part.types
            if part.bare:
                simple.append(part)
            else:
                shape = Shape(part.rule)
                items.append(Item(part, (part.rule,), (Use(child, part, shape.anchor),), False, False))
    for part in (*simple, *(tapped if strategy.splits else ())):
        (type,) = part.types
        holders = [child for child in advertised if child != HERE and type in advertised[child]]
        direct.update((Use(child, part, type), None) for child in holders)
    asked_whole = {child: (tuple(mine[0]), tuple(mine[1])) for child, mine in whole.items()}
    return Deployment(tuple(items), asked_whole, through, tuple(simple), tuple(direct))


def _sole(types: AbstractSet[str], advertised: Advertised) -> str | None:
    """The one child that alone has all these types."""
    holders = {child for child, known in advertised.items() if known & types}
    if len(holders) != 1:
        return None
    (child,) = holders
    return child if child != HERE and types <= advertised[child] else None


def closure(rule: Rule, rules: Sequence[Rule]) -> tuple[Rule, ...]:
    """A rule after all those whose composite events it uses."""
    found: dict[Rule, None] = {}

    def visit(rule: Rule) -> None:
        uses = set(rule.uses)
        for other in rules:
            if other.emits.name in uses and other not in found:
                visit(other)
        found[rule] = None

    visit(rule)
    return tuple(found)


def _item(strategy: Strategy, rules: tuple[Rule, ...], advertised: Advertised, types: Mapping[str, EventType]) -> Item:
    """A rule that is decided here. What is consumed is remembered, so its events must come in order: as they are."""
    if not strategy.splits:
        return Item(rules[-1].name, rules, (), True, False)
    if strategy.tallies and len(rules) == 1 and (made := tallied(rules[0], types)):
        without, tested, tallies = made
        found = split(without, advertised, stays=True).uses
        shape = Shape(without)
        asks = bare(shape, shape.anchor).rule.anchor
        return Item(without.name, (tested,), found, ordered=False, pullable=False, tallies=tallies, asks=asks)
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
    shape = Shape(rule)
    for node, pattern in shape.patterns.items():
        for child, types in advertised.items():
            if child != HERE and pattern.type in types:
                yield Use(child, bare(shape, node), node, not node.startswith("#"))


def _choosable(rule: Rule, uses: tuple[Use, ...], advertised: Advertised) -> bool:
    """Whether there are a master and a slave to choose: two places that events come from."""
    return len({use.node for use in uses if use.decides} | set(local_nodes(Shape(rule), advertised))) > 1 and bool(uses)


def local_nodes(shape: Shape, advertised: Advertised) -> list[str]:
    """The roles all of whose events are the processor's own."""
    return [
        role
        for role in shape.roles
        if {child for child, types in advertised.items() if shape.patterns[role].type in types} == {HERE}
    ]


def modes(
    deployment: Deployment, asked: Iterable[Asked], masters: Mapping[Key, Mastery]
) -> dict[str, dict[Partial, Asked]]:
    """What is asked of each child, and how: pushed where anybody needs that, else kept for the longest time."""
    found: dict[str, dict[Partial, Asked]] = {}

    def ask(child: str, new: Asked) -> None:
        mine = found.setdefault(child, {})
        old = mine.get(new.partial, new)
        mine[new.partial] = Asked(new.partial, old.pushed or new.pushed, max(old.keep_us, new.keep_us))

    for item in deployment.items:
        master = masters.get(item.key)
        for use in item.uses:
            slave = master is not None and use in master.pulled
            ask(use.child, Asked(use.partial, not slave, item.horizon_us if slave else 0))
    for use in deployment.direct:
        ask(use.child, Asked(use.partial))
    for request in asked:
        if request.partial in deployment.through:
            ask(deployment.through[request.partial], request)
    return found
