"""How far apart can the events of a rule be? The tree of its patterns, with a window on each edge.

A pattern hangs on the role that its scope ends with: `within W from X` on X with the window W, `between X and Y` on Y
with the longest time that X can lie behind Y. Windows on a path add up: what is less than V behind something that is
less than W behind X is less than V + W behind X. Roles go by their names; a negated or aggregated pattern, which has
none, by `#` and the number of its clause.

Which events of a request stand before which, said once: what follows from the rest is left out.

`((A ; B) ; C) ; D` wants A before B, A and B before C, all three before D; it is enough that A is before B, B before C
and C before D. The fewer events have to do with each other, the fewer combinations the search has to tell apart.

Which events of a request have to do with each other, once the one that arrives last is known?

Those that an equality joins otherwise than by way of that event, that a test or an order compares, or that could be the
same event. *Parts* are what these relations hold together. They are searched one by one:

- A combination is one choice for each part, and every choice goes with every other, so there is one if and only if
  each part has one.
- The first combination consists of the first of each part. Let X be before X' in a part, and Y whatever the other parts
  have. In order, X and X' have the same events up to some place, where x of X is before x' of X'. All of Y that is
  before x stands in both at the same places; then X with Y goes on with x, and X' with Y with something later.
- If combinations are told apart by the leaves alone, they have the same events, and so the same in each part, since no
  event can stand in two. The leaves are compared one after another, and each part can be as it wants.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations

from tocsin.language.syntax.ast import (
    Aggregate,
    Attribute,
    Clause,
    Comparison,
    Expression,
    Parameter,
    Pattern,
    Policy,
    Rule,
    Selection,
    Within,
)
from tocsin.language.syntax.expressions import walk
from tocsin.plans.expressions import Apply, Constant, Field
from tocsin.plans.rules import Filter

SequencePair = tuple[tuple[int, ...], tuple[int, ...]]


@dataclass(frozen=True, slots=True, order=True)
class Precedence:
    """The event at `before` is earlier than the last of those at `after`; or if not `strictly`, it stands before it
    in canonical order.
    """

    before: int
    after: tuple[int, ...]
    strictly: bool

    @property
    def places(self) -> frozenset[int]:
        """All places it speaks of."""
        return frozenset((self.before, *self.after))


def precedences(
    sequences: Iterable[SequencePair], ascending: Iterable[tuple[int, int]], anchor: int
) -> tuple[Precedence, ...]:
    """What must hold if the event at `anchor` arrives last.

    >>> [(one.before, one.after) for one in precedences([((0,), (1,)), ((0, 1), (2,)), ((0, 1, 2), (3,))], [], 3)]
    [(0, (1,)), (1, (2,)), (2, (3,))]
    """
    found = {Precedence(place, right, True) for left, right in sequences for place in left}
    found |= {Precedence(before, (after,), False) for before, after in ascending}
    while True:
        known = links(found)
        simpler = {Precedence(one.before, _last(one.after, known, anchor), one.strictly) for one in found}
        if simpler == found:
            break
        found = simpler
    return tuple(sorted(one for one in found if not _implied(one, known) and (one.strictly or one.after != (anchor,))))


Links = dict[tuple[int, int], bool]
"""Which place is before which, also by way of others; whether strictly."""


def links(found: Iterable[Precedence]) -> Links:
    """Which place is before which single other."""
    known: Links = {}
    for one in found:
        if len(one.after) == 1:
            pair = one.before, one.after[0]
            known[pair] = known.get(pair, False) or one.strictly
    while True:
        longer = dict(known)
        following: dict[int, list[tuple[int, bool]]] = {}
        for (y, z), second in known.items():
            following.setdefault(y, []).append((z, second))
        for (x, y), first in known.items():
            for z, second in following.get(y, ()):
                longer[x, z] = longer.get((x, z), False) or first or second
        if longer == known:
            return known
        known = longer


def _last(places: tuple[int, ...], known: Links, anchor: int) -> tuple[int, ...]:
    """Those of some places of which one must be the last."""
    if anchor in places:
        return (anchor,)
    return tuple(place for place in places if not any((place, other) in known for other in places))


def _implied(one: Precedence, known: Links) -> bool:
    """Whether others say it already: some way from the one to the other, with a place between them."""
    if len(one.after) > 1:
        return any(known.get((one.before, place), False) for place in one.after)
    (after,) = one.after
    for (x, between), first in known.items():
        if x == one.before and (between, after) in known:
            second = known[between, after]
            if first or second or not one.strictly:
                return True
    return False


def parts(groups: Iterable[Iterable[int]], filters: Sequence[Filter], anchor: int) -> list[list[int]]:
    """The places but the anchor's, in parts; each of the groups has to do with each other."""
    places = [place for place in range(len(filters)) if place != anchor]
    alike = [pair for pair in combinations(places, 2) if not exclusive(filters[pair[0]], filters[pair[1]])]
    part = {place: {place} for place in places}
    for group in [*groups, *alike]:
        joined = set[int]().union(*(part[place] for place in group if place != anchor))
        for place in joined:
            part[place] = joined
    return sorted({min(joined): sorted(joined) for joined in part.values()}.values())


def exclusive(one: Filter, other: Filter) -> bool:
    """Whether no event passes both, as far as one can easily see."""
    if one.type != other.type:
        return True
    wanted = _constants(one)
    return any(value != wanted.get(name, value) for name, value in _constants(other).items())


def _constants(filter: Filter) -> dict[str, object]:
    found: dict[str, object] = {}
    for condition in filter.conditions:
        if isinstance(condition, Apply) and condition.operator == "=":
            left, right = condition.operands
            if isinstance(left, Field) and isinstance(right, Constant):
                found[left.attribute] = right.value
    return found


def parameters(*expressions: Expression) -> set[str]:
    """The parameters that expressions mention."""
    return {node.name for expression in expressions for node in walk(expression) if isinstance(node, Parameter)}


def equation(constraint: Expression) -> tuple[str, str] | None:
    """Attribute and parameter of `attribute = $parameter`, either way round."""
    if isinstance(constraint, Comparison) and constraint.operator == "=":
        for left, right in ((constraint.left, constraint.right), (constraint.right, constraint.left)):
            if isinstance(left, Attribute) and isinstance(right, Parameter):
                return left.name, right.name
    return None


@dataclass(frozen=True)
class Shape:
    """The tree of a rule's patterns."""

    rule: Rule

    @cached_property
    def clauses(self) -> dict[str, Clause]:
        """Every clause by the name of its pattern's node."""
        return {
            clause.pattern.role if isinstance(clause, Selection) else f"#{number}": clause
            for number, clause in enumerate(self.rule.clauses)
        }

    @property
    def anchor(self) -> str:
        return self.rule.anchor.role

    @cached_property
    def patterns(self) -> dict[str, Pattern]:
        """Every pattern by its node, in the order of the text."""
        return {self.anchor: self.rule.anchor, **{node: clause.pattern for node, clause in self.clauses.items()}}

    @cached_property
    def roles(self) -> tuple[str, ...]:
        return tuple(node for node in self.patterns if not node.startswith("#"))

    @cached_property
    def types(self) -> frozenset[str]:
        return frozenset(self.rule.uses)

    @cached_property
    def _edges(self) -> dict[str, tuple[str, int]]:
        """The parent of each node but the anchor, and the window between them."""
        edges: dict[str, tuple[str, int]] = {}
        for node, clause in self.clauses.items():
            scope = clause.scope
            if isinstance(scope, Within):
                edges[node] = (scope.origin, scope.window_us)
                continue
            above = set(_path(edges, scope.end))
            meeting = next(role for role in _path(edges, scope.start) if role in above)
            edges[node] = (scope.end, max(1, _length(edges, scope.start, meeting)))
        return edges

    def parent(self, node: str) -> str | None:
        return self._edges[node][0] if node in self._edges else None

    def window_us(self, node: str) -> int:
        """How far candidates for a node can lie behind its parent, and so less than that from each other."""
        return self._edges[node][1] if node in self._edges else 0

    def distance_us(self, node: str, above: str) -> int:
        """How far a node can lie behind one that is above it; 0 for the node itself."""
        return _length(self._edges, node, above)

    @cached_property
    def horizon_us(self) -> int:
        """How far behind its anchor the rule looks."""
        return max((self.distance_us(node, self.anchor) for node in self.patterns), default=0)

    def reach_us(self, node: str, master: str) -> tuple[int, int]:
        """How much older and how much newer than the event at `master` can an event be that has a say at `node` in a
        match with it?

        Where one of several candidates is chosen, or any of them counts, candidates only share the node's parent.
        """
        clause = self.clauses.get(node)
        free = clause is None or (isinstance(clause, Selection) and clause.policy is Policy.EACH)
        base = node if free else self.parent(node)
        assert base is not None
        above = set(_path(self._edges, master))
        meeting = next(role for role in _path(self._edges, base) if role in above)
        return self.distance_us(node, meeting), self.distance_us(master, meeting)

    @cached_property
    def binders(self) -> dict[str, str]:
        """The node that gives each parameter its value: a role, or an aggregate."""
        found: dict[str, str] = {}
        for node, pattern in self.patterns.items():
            clause = self.clauses.get(node)
            if clause is None or isinstance(clause, Selection):
                for constraint in pattern.constraints:
                    if bound := equation(constraint):
                        found.setdefault(bound[1], node)
            elif isinstance(clause, Aggregate) and clause.parameter is not None:
                found[clause.parameter] = node
        return found

    def binds(self, node: str, constraint: Expression, before: set[str]) -> bool:
        """Whether a constraint gives a parameter its value; `before`: those that earlier constraints of it bound."""
        bound = equation(constraint)
        if bound is None or node.startswith("#"):
            return False
        return self.binders.get(bound[1]) == node and bound[1] not in before

    def mentioned(self, node: str) -> set[str]:
        """The nodes that a clause speaks of: in its scope, and through parameters, its own left out."""
        clause = self.clauses.get(node)
        expressions = list(self.patterns[node].constraints)
        found: set[str] = set()
        if clause is not None:
            scope = clause.scope
            found |= {scope.origin} if isinstance(scope, Within) else {scope.start, scope.end}
            if isinstance(clause, Aggregate) and clause.test is not None:
                expressions.append(clause.test.bound)
        found |= {self.binders[name] for name in parameters(*expressions)}
        return found - {node}

    def owner(self, node: str) -> str:
        """The role that a negation or an aggregate belongs to: the latest-named one that it mentions."""
        known = [*self.patterns]
        return max((self._role(other) for other in self.mentioned(node)), key=known.index)

    def _role(self, node: str) -> str:
        return self.owner(node) if node.startswith("#") else node

    def above(self, node: str) -> Iterator[str]:
        """The roles that a node hangs on, the nearest first."""
        yield from list(_path(self._edges, node))[1:]


def _path(edges: dict[str, tuple[str, int]], node: str) -> Iterator[str]:
    yield node
    while node in edges:
        node = edges[node][0]
        yield node


def _length(edges: dict[str, tuple[str, int]], node: str, above: str) -> int:
    total = 0
    while node != above:
        node, window_us = edges[node]
        total += window_us
    return total
