"""Split a rule into partial rules for the children of a processor in a processing tree (T-Rex, Section 3.4).

A processor knows which event types each child advertises. If one child is the only one with the types of a rule, it
receives the whole rule. Otherwise, each child receives *partial rules* over the types that no other child has. A child
evaluates a partial rule, and sends its parent the events of each match, because other events cannot be in a match of
the whole rule. The first role of a partial rule is its *head*. A type that several children have is requested from each
of these children, without clauses.

Conditions on one event are always pushed down to the child. A parameter, a negation or a scope is pushed down only
together with all patterns that it mentions. Windows add up over the roles of other children.

The sent events must give exactly the matches of the whole rule. `last` selects one candidate and does not try another
candidate. So a candidate that cannot be in a match still *blocks* older candidates. This requires three additions to
the paper:

- A role with descendants is filtered only if it is the head of a partial rule. After a head is sent, all events of its
  type within the window of the role (`blocks_us`) are sent, too. `each` does not need this. For `first`, all events of
  the type are sent.
- A descendant of a role that selects a single event below the head becomes a child of the head, with `each`.
- The parent evaluates negations again, on events that were sent for other reasons. So if a negated event prevents a
  match, one such event must be sent. For this, there is a separate partial rule that sends only the negated event.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

from tocsin.events.types import EventType
from tocsin.language.syntax.ast import Aggregate, Clause, Expression, Negation, Pattern, Policy, Rule, Selection, Within
from tocsin.language.syntax.expressions import print_rule, print_window
from tocsin.plans.bind.structure import PatternTree, parameters

PARTIAL = EventType("Partial")
FOREVER_US = 2**60
HERE = ""
"""The name of the processor itself among its children. It stands for the own sources and composite events."""


@dataclass(frozen=True)
class Partial:
    """A partial rule, which a descendant of the processor in the tree evaluates.

    `sends` are the roles whose events are sent to the parent. In addition, events of the head's pattern are sent if
    they come less than `blocks_us` after the head of a match.
    """

    rule: Rule
    sends: tuple[str, ...]
    blocks_us: int = 0

    @property
    def bare(self) -> bool:
        """Whether the partial rule evaluates each event independently, because it has no clauses."""
        return not self.rule.clauses

    @property
    def types(self) -> frozenset[str]:
        return frozenset(self.rule.uses)

    def __str__(self) -> str:
        """Return the partial rule as the paper prints it, with comments on `sends` and `blocks_us`."""
        lines = print_rule(self.rule).removeprefix("define    Partial()\n").splitlines()
        roles = tuple(pattern.role for pattern in self.rule.roles)
        text = [line.removeprefix("from      ").removeprefix("          ") for line in lines]
        if self.sends != roles:
            text.append(f"-- sends {', '.join(self.sends)}")
        if self.blocks_us >= FOREVER_US:
            text.append(f"-- and every {roles[0]}")
        elif self.blocks_us:
            text.append(f"-- and every {roles[0]} less than {print_window(self.blocks_us)} after")
        return "\n".join(text)


@dataclass(frozen=True)
class Use:
    """The request of a partial rule from the child `child`.

    `node` is the node of the whole rule that is the head of the partial rule. `decides` is whether the partial rule
    sends the events of roles, and not only the events of negations and aggregates.
    """

    child: str
    partial: Partial
    node: str
    decides: bool = True


@dataclass(frozen=True)
class Split:
    """The result of a split.

    `whole` is the child that receives the whole rule. If it is None, children receive the partial rules in `uses`.
    """

    whole: str | None
    uses: tuple[Use, ...]


def split(rule: Rule, advertised: Mapping[str, AbstractSet[str]], blocks_us: int = 0, *, stays: bool = False) -> Split:
    """Split `rule` into partial rules for children, by the types that each child has `advertised`.

    If `rule` belongs to a partial rule, `blocks_us` is taken from this partial rule. If `stays`, the whole rule is not
    given to a single child.

    >>> from tocsin.language import parse
    >>> rule = parse("define CE() from A() and last B() within 5 min from A and last C() within 5 min from B").rules[0]
    >>> for use in split(rule, {"2": {"A", "C"}, "3": {"B"}}).uses:
    ...     print(use.child, str(use.partial).replace(chr(10), " "))
    2 A() and each C() within 10 min from A
    3 B()
    """
    tree = PatternTree(rule)
    holders = {
        type: [child for child, types in advertised.items() if type in types] for type in dict.fromkeys(rule.uses)
    }
    only = {type: children[0] for type, children in holders.items() if len(children) == 1}
    sole = {only.get(type) for type in rule.uses}
    whole = sole.pop() if len(sole) == 1 else None
    if whole is not None and whole != HERE and not stays:
        return Split(whole, ())
    uses: dict[Use, None] = {}
    grouped: set[str] = set()
    for child in advertised:
        if child == HERE:
            continue
        mine = {node for node, pattern in tree.patterns.items() if only.get(pattern.type) == child}
        for use in _Groups(tree, child, mine, blocks_us).uses():
            uses[use] = None
        grouped |= mine
    for node, pattern in tree.patterns.items():
        if node in grouped:
            continue
        for child in holders.get(pattern.type, ()):
            if child != HERE:
                uses[Use(child, bare(tree, node), node, not node.startswith("#"))] = None
    return Split(None, tuple(uses))


def bare(tree: PatternTree, node: str) -> Partial:
    """Return a partial rule for the events of the pattern `node`, with its constraints on this event alone."""
    constraints = _RetainedConstraints(tree, {node})
    pattern = constraints.pattern(node, {node})
    return partial(pattern if node == tree.anchor else replace(pattern, alias=None), ())


def partial(anchor: Pattern, clauses: Iterable[Clause], sends: Iterable[str] | None = None, blocks: int = 0) -> Partial:
    """Return a partial rule with the head `anchor` and the given clauses. By default, it sends all of its roles."""
    rule = Rule("Partial", PARTIAL, replace(anchor, span=None), tuple(clauses))
    roles = tuple(pattern.role for pattern in rule.roles)
    if not rule.clauses:
        rule = replace(rule, anchor=replace(rule.anchor, alias=None))
        return Partial(rule, (rule.anchor.role,))
    return Partial(rule, roles if sends is None else tuple(sends), blocks)


class _RetainedConstraints:
    """The constraints that a partial rule keeps if it has only some nodes: constraints that mention no other node."""

    def __init__(self, tree: PatternTree, nodes: AbstractSet[str]) -> None:
        self.tree = tree
        self.tests: dict[str, set[int]] = {}
        used: set[str] = set()
        for node in nodes:
            before: set[str] = set()
            retained = self.tests.setdefault(node, set())
            for number, constraint in enumerate(tree.patterns[node].constraints):
                named = parameters(constraint)
                if tree.binds(node, constraint, before):
                    before |= named
                elif all(tree.binders[name] in nodes and tree.binders[name][0] != "#" for name in named):
                    retained.add(number)
                    used |= named
        self.used = used

    def complete(self, node: str) -> bool:
        """Return whether the partial rule keeps all tests of the pattern `node`."""
        before: set[str] = set()
        for number, constraint in enumerate(self.tree.patterns[node].constraints):
            if self.tree.binds(node, constraint, before):
                before |= parameters(constraint)
            elif number not in self.tests[node]:
                return False
        return True

    def pattern(self, node: str, nodes: AbstractSet[str]) -> Pattern:
        """Return the pattern `node` with the tests that are kept, and the constraints that bind their parameters."""
        pattern = self.tree.patterns[node]
        constraints: list[Expression] = []
        before: set[str] = set()
        for number, constraint in enumerate(pattern.constraints):
            if self.tree.binds(node, constraint, before):
                named = parameters(constraint)
                before |= named
                if named & self.used:
                    constraints.append(constraint)
            elif number in self.tests[node]:
                constraints.append(constraint)
        return replace(pattern, constraints=tuple(constraints))


class _Groups:
    """Builds the partial rules for one child, from the nodes `mine` whose types only this child has.

    The roles of the child are grouped: a group is a head with its descendants. Each group gives a partial rule.
    """

    def __init__(self, tree: PatternTree, child: str, mine: AbstractSet[str], blocks_us: int) -> None:
        self.tree, self.child, self.blocks_us = tree, child, blocks_us
        self.mine = mine
        self.head: dict[str, str] = {}
        self.parents: dict[str, tuple[str, int]] = {}
        """The parent of each role that is not a head, and the maximum distance (µs) from the parent."""
        for role in tree.roles:
            if role in mine:
                self._attach(role)

    def _attach(self, role: str) -> None:
        for above in self.tree.above(role):
            if above in self.mine and self._can_have_children(above):
                self.parents[role] = (above, self.tree.distance_us(role, above))
                self.head[role] = self.head[above]
                return
        self.head[role] = role

    def _can_have_children(self, role: str) -> bool:
        """Return whether a role may have descendants in its group: it is a head or selects `each` candidate."""
        clause = self.tree.clauses.get(role)
        return self.head[role] == role or (isinstance(clause, Selection) and clause.policy is Policy.EACH)

    def uses(self) -> Iterable[Use]:
        tree = self.tree
        pushed: set[str] = set()
        for head in dict.fromkeys(self.head[role] for role in tree.roles if role in self.mine):
            group = {role for role in self.head if self.head[role] == head}
            conditions = self._conditions(group)
            pushed |= conditions
            yield Use(self.child, self._partial(head, group, conditions), head)
            for node in sorted(conditions, key=[*tree.patterns].index):
                yield Use(self.child, self._witness(head, node), head, decides=False)
        for node in tree.patterns:
            if node in self.mine and node.startswith("#") and node not in pushed:
                yield Use(self.child, bare(tree, node), node, decides=False)

    def _conditions(self, group: AbstractSet[str]) -> set[str]:
        """Return the nodes of the negations and aggregates that mention only roles of `group`."""
        return {
            node
            for node in self.mine
            if node.startswith("#") and self.tree.mentioned(node) and self.tree.mentioned(node) <= group
        }

    def _partial(self, head: str, group: AbstractSet[str], conditions: AbstractSet[str]) -> Partial:
        tree = self.tree
        negations = {node for node in conditions if isinstance(tree.clauses[node], Negation)}
        nodes = group | negations
        constraints = _RetainedConstraints(tree, nodes)
        clauses: list[Clause] = []
        for node, clause in tree.clauses.items():
            if node in negations:
                clauses.append(replace(clause, pattern=constraints.pattern(node, nodes)))
            elif node in group and node != head:
                assert isinstance(clause, Selection)
                exact = self._exact(node, constraints, conditions)
                clauses.append(self._selection(node, clause, constraints.pattern(node, nodes), exact=exact))
        blocks = self.blocks_us
        selection = tree.clauses.get(head)
        if isinstance(selection, Selection):
            if selection.policy is Policy.EACH:
                blocks = 0
            else:
                blocks = tree.window_us(head) if selection.policy is Policy.LAST else FOREVER_US
        return partial(constraints.pattern(head, nodes), clauses, blocks=blocks)

    def _exact(self, role: str, constraints: _RetainedConstraints, conditions: AbstractSet[str]) -> bool:
        """Return whether the child can select the events of `role`, because all their conditions are pushed down."""
        tree = self.tree
        owned = {node for node in tree.clauses if node.startswith("#") and tree.owner(node) == role}
        negations = {node for node in owned & conditions if isinstance(tree.clauses[node], Negation)}
        return owned == negations and constraints.complete(role) and role not in tree.rule.consuming

    def _keeps_scope(self, role: str) -> bool:
        """Return whether the scope of `role` can be pushed down without a change."""
        scope = self.tree.clauses[role].scope
        ends = (scope.origin,) if isinstance(scope, Within) else (scope.start, scope.end)
        return all(
            end in self.head and self.head[end] == self.head[role] and self._can_have_children(end) for end in ends
        )

    def _selection(self, role: str, clause: Selection, pattern: Pattern, *, exact: bool) -> Selection:
        if not self._keeps_scope(role):
            above, window_us = self.parents[role]
            return Selection(Policy.EACH, pattern, Within(window_us, above), 0)
        if not exact:
            return replace(clause, policy=Policy.EACH, count=0, pattern=pattern)
        return replace(clause, pattern=pattern)

    def _witness(self, head: str, node: str) -> Partial:
        """Return a partial rule that sends the events of the negation or aggregate `node`.

        For a negation, it sends one event that prevents a match. For an aggregate, it sends all events.
        """
        tree = self.tree
        roles = set(tree.mentioned(node)) | {head}
        waiting = list(roles)
        while waiting:
            role = waiting.pop()
            needed = set()
            if role in self.parents:
                needed.add(self.parents[role][0])
                scope = tree.clauses[role].scope
                if self._keeps_scope(role) and not isinstance(scope, Within):
                    needed.add(scope.start)
            waiting += needed - roles
            roles |= needed
        nodes = roles | {node}
        constraints = _RetainedConstraints(tree, nodes)
        clauses: list[Clause] = []
        for role in tree.roles:
            clause = tree.clauses.get(role)
            if role in roles and role != head:
                assert isinstance(clause, Selection)
                clauses.append(self._selection(role, clause, constraints.pattern(role, nodes), exact=False))
        condition = tree.clauses[node]
        pattern = constraints.pattern(node, nodes)
        names = {name for role in roles for name in (role, tree.patterns[role].type)}
        if pattern.type in names:
            pattern = replace(
                pattern, alias=next(f"{pattern.type}_{n}" for n in range(99) if f"{pattern.type}_{n}" not in names)
            )
        every = isinstance(condition, Aggregate)
        policy, count = (Policy.EACH, 0) if every else (Policy.LAST, 1)
        clauses.append(Selection(policy, pattern, condition.scope, count))
        return partial(constraints.pattern(head, nodes), clauses, sends=(pattern.role,))
