"""Analyse the structure of rules and requests: the tree of patterns, the order of events, and connected components.

`PatternTree` bounds the time between the events of a rule. The parent of a pattern is the role at the end of its scope.
For `within W from X`, the parent is X, at a maximum distance of W. For `between X and Y`, the parent is Y, at the
maximum distance of X and Y. The distances on a path add up. The node of a selected pattern is named by its role, and
the node of a negated or aggregated pattern by `#` and the number of its clause.

`precedences` simplifies the order of a request's events. For example, `((A ; B) ; C) ; D` requires A before B, A and B
before C, and A, B and C before D. The simplified order is A before B, B before C, and C before D. Fewer relations mean
fewer combinations in the search.

`connected_components` groups the roles of a request, given the event that arrives last. Two roles are connected if an
equality joins them other than through the last event, if a test or an order compares them, or if the same event could
fill both roles. Components can be searched independently, for these reasons:

- A combination has one choice for each component, and choices are independent. So a combination exists if and only if
  each component has one.
- The first combination consists of the first choice of each component. Let X be before X' in one component, and let Y
  be the events of the other components. In order, X and X' have equal events up to some position, where x of X is
  before x' of X'. The events of Y before x have the same positions in both combinations, so X with Y continues with x,
  and X' with Y continues with a later event.
- Combinations that differ only in the leaves have the same events, and the same events in each component, as no event
  can be in two components. Leaves are compared one after another, so each component can be ordered on its own.
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
    """A relation: the event of the role `before` is earlier than the last event of the roles `after`.

    If not `strictly`, the two events may have the same time, but must be in canonical order.
    """

    before: int
    after: tuple[int, ...]
    strictly: bool

    @property
    def role_indexes(self) -> frozenset[int]:
        """The role indexes of `before` and `after` together."""
        return frozenset((self.before, *self.after))


def precedences(
    sequences: Iterable[SequencePair], ascending: Iterable[tuple[int, int]], anchor: int
) -> tuple[Precedence, ...]:
    """Return the simplified order of events, given that the event of the role `anchor` arrives last.

    >>> [(one.before, one.after) for one in precedences([((0,), (1,)), ((0, 1), (2,)), ((0, 1, 2), (3,))], [], 3)]
    [(0, (1,)), (1, (2,)), (2, (3,))]
    """
    relations = {Precedence(role_index, right, True) for left, right in sequences for role_index in left}
    relations |= {Precedence(before, (after,), False) for before, after in ascending}
    while True:
        closure = precedence_closure(relations)
        simpler = {Precedence(one.before, _last(one.after, closure, anchor), one.strictly) for one in relations}
        if simpler == relations:
            break
        relations = simpler
    return tuple(
        sorted(one for one in relations if not _implied(one, closure) and (one.strictly or one.after != (anchor,)))
    )


PrecedenceClosure = dict[tuple[int, int], bool]
"""For each pair of roles where the first precedes the second, whether it does so strictly."""


def precedence_closure(relations: Iterable[Precedence]) -> PrecedenceClosure:
    """Return the transitive closure of the relations in `relations` that have a single later role."""
    closure: PrecedenceClosure = {}
    for one in relations:
        if len(one.after) == 1:
            pair = one.before, one.after[0]
            closure[pair] = closure.get(pair, False) or one.strictly
    while True:
        longer = dict(closure)
        following: dict[int, list[tuple[int, bool]]] = {}
        for (y, z), second in closure.items():
            following.setdefault(y, []).append((z, second))
        for (x, y), first in closure.items():
            for z, second in following.get(y, ()):
                longer[x, z] = longer.get((x, z), False) or first or second
        if longer == closure:
            return closure
        closure = longer


def _last(role_indexes: tuple[int, ...], closure: PrecedenceClosure, anchor: int) -> tuple[int, ...]:
    """Return the roles in `role_indexes` whose event can be the last of their events."""
    if anchor in role_indexes:
        return (anchor,)
    return tuple(
        role_index for role_index in role_indexes if not any((role_index, other) in closure for other in role_indexes)
    )


def _implied(one: Precedence, closure: PrecedenceClosure) -> bool:
    """Return whether other relations imply the relation `one`, through a role between its two sides."""
    if len(one.after) > 1:
        return any(closure.get((one.before, role_index), False) for role_index in one.after)
    (after,) = one.after
    for (x, between), first in closure.items():
        if x == one.before and (between, after) in closure:
            second = closure[between, after]
            if first or second or not one.strictly:
                return True
    return False


def connected_components(groups: Iterable[Iterable[int]], filters: Sequence[Filter], anchor: int) -> list[list[int]]:
    """Return the connected components of all roles except the anchor.

    Roles in the same group of `groups` are connected, and so are roles whose `filters` the same event can pass.
    """
    role_indexes = [role_index for role_index in range(len(filters)) if role_index != anchor]
    alike = [pair for pair in combinations(role_indexes, 2) if not exclusive(filters[pair[0]], filters[pair[1]])]
    part = {role_index: {role_index} for role_index in role_indexes}
    for group in [*groups, *alike]:
        joined = set[int]().union(*(part[role_index] for role_index in group if role_index != anchor))
        for role_index in joined:
            part[role_index] = joined
    return sorted({min(joined): sorted(joined) for joined in part.values()}.values())


def exclusive(one: Filter, other: Filter) -> bool:
    """Return whether no event can pass both filters. Only types and equalities with constants are considered."""
    if one.type != other.type:
        return True
    wanted = _constants(one)
    return any(value != wanted.get(name, value) for name, value in _constants(other).items())


def _constants(filter: Filter) -> dict[str, object]:
    constants: dict[str, object] = {}
    for condition in filter.conditions:
        if isinstance(condition, Apply) and condition.operator == "=":
            left, right = condition.operands
            if isinstance(left, Field) and isinstance(right, Constant):
                constants[left.attribute] = right.value
    return constants


def parameters(*expressions: Expression) -> set[str]:
    """Return the names of the parameters in `expressions`."""
    return {node.name for expression in expressions for node in walk(expression) if isinstance(node, Parameter)}


def equation(constraint: Expression) -> tuple[str, str] | None:
    """Return the names of the attribute and the parameter in `attribute = $parameter`, in any order of the two.

    Return None for any other constraint.
    """
    if isinstance(constraint, Comparison) and constraint.operator == "=":
        for left, right in ((constraint.left, constraint.right), (constraint.right, constraint.left)):
            if isinstance(left, Attribute) and isinstance(right, Parameter):
                return left.name, right.name
    return None


@dataclass(frozen=True)
class PatternTree:
    """The tree of the patterns of a rule, as described above. Methods identify a pattern by the name of its node."""

    rule: Rule

    @cached_property
    def clauses(self) -> dict[str, Clause]:
        """The clause of each pattern except the anchor, by node."""
        return {
            clause.pattern.role if isinstance(clause, Selection) else f"#{number}": clause
            for number, clause in enumerate(self.rule.clauses)
        }

    @property
    def anchor(self) -> str:
        return self.rule.anchor.role

    @cached_property
    def patterns(self) -> dict[str, Pattern]:
        """The pattern of each node, in the order of the text."""
        return {self.anchor: self.rule.anchor, **{node: clause.pattern for node, clause in self.clauses.items()}}

    @cached_property
    def roles(self) -> tuple[str, ...]:
        return tuple(node for node in self.patterns if not node.startswith("#"))

    @cached_property
    def types(self) -> frozenset[str]:
        return frozenset(self.rule.uses)

    @cached_property
    def _edges(self) -> dict[str, tuple[str, int]]:
        """The parent of each node except the anchor, and the maximum distance (µs) from the parent."""
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
        """Return how much older than its parent a candidate for `node` can be, in microseconds (exclusive)."""
        return self._edges[node][1] if node in self._edges else 0

    def distance_us(self, node: str, above: str) -> int:
        """Return how much older than its ancestor `above` the event of `node` can be; 0 if they are the same node."""
        return _length(self._edges, node, above)

    @cached_property
    def retention_us(self) -> int:
        """How much older than the anchor the events of a match can be, in microseconds."""
        return max((self.distance_us(node, self.anchor) for node in self.patterns), default=0)

    def time_bounds_us(self, node: str, master: str) -> tuple[int, int]:
        """Return how much older and how much newer (µs) than the event of `master` an event that affects `node` can be.

        If `node` is the anchor or selects `each` candidate, only its own event matters. Otherwise all candidates
        matter, and their times are bounded only by the parent of the node.
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
        """The node that binds each parameter, which is a role or an aggregate."""
        binders: dict[str, str] = {}
        for node, pattern in self.patterns.items():
            clause = self.clauses.get(node)
            if clause is None or isinstance(clause, Selection):
                for constraint in pattern.constraints:
                    if bound := equation(constraint):
                        binders.setdefault(bound[1], node)
            elif isinstance(clause, Aggregate) and clause.parameter is not None:
                binders[clause.parameter] = node
        return binders

    def binds(self, node: str, constraint: Expression, before: set[str]) -> bool:
        """Return whether `constraint` of `node` binds a parameter that is not in `before`.

        `before` are the parameters that earlier constraints of the node bind.
        """
        bound = equation(constraint)
        if bound is None or node.startswith("#"):
            return False
        return self.binders.get(bound[1]) == node and bound[1] not in before

    def mentioned(self, node: str) -> set[str]:
        """Return the other nodes that the clause of `node` mentions, in its scope or by their parameters."""
        clause = self.clauses.get(node)
        expressions = list(self.patterns[node].constraints)
        nodes: set[str] = set()
        if clause is not None:
            scope = clause.scope
            nodes |= {scope.origin} if isinstance(scope, Within) else {scope.start, scope.end}
            if isinstance(clause, Aggregate) and clause.test is not None:
                expressions.append(clause.test.bound)
        nodes |= {self.binders[name] for name in parameters(*expressions)}
        return nodes - {node}

    def owner(self, node: str) -> str:
        """Return the role to which a negation or an aggregate belongs, which is the latest role that it mentions."""
        known = [*self.patterns]
        return max((self._role(other) for other in self.mentioned(node)), key=known.index)

    def _role(self, node: str) -> str:
        return self.owner(node) if node.startswith("#") else node

    def above(self, node: str) -> Iterator[str]:
        """Yield the ancestors of `node`, the nearest first."""
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
