"""What of a rule can be decided further down? A rule over a processing tree, split into partial rules (T-Rex, 3.4).

A processor knows which types each child advertises. If one child is the only one to have all types of a rule it gets
the rule as it is. Otherwise each child gets *partial rules* over the types that only it has: events that fill all
roles of a partial rule are sent up, others cannot be in a match. Types that come from several children are asked of
each of them, as they are. Content filters always go down; a parameter, a negation or a scope only with all that it
mentions; windows add up over roles that are elsewhere.

What is sent must be enough to give the same matches, no fewer and no more. `last` looks at one candidate and gives it
no second try, so a candidate that cannot be in a match still *blocks* older ones that could. Hence three things that
the paper does not say:

- A role on which others hang is filtered only at the head of a partial rule, and the events of its type that come
  within the role's window after a head that was sent (`blocks_us`) are sent too. `each` needs no such care, for
  `first` all are sent.
- What hangs on a single selection below the head hangs on the head instead, with `each`.
- A negation that went down is decided again above, for events that were sent for other reasons. So where a negated
  event did forbid something, one such event is sent (a partial rule of its own, that sends only this role).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

from tocsin.events.types import EventType
from tocsin.language.syntax.ast import Aggregate, Clause, Expression, Negation, Pattern, Policy, Rule, Selection, Within
from tocsin.language.syntax.expressions import print_rule, print_window
from tocsin.plans.bind.structure import Shape, parameters

PARTIAL = EventType("Partial")
FOREVER_US = 2**60
HERE = ""
"""Stands for the processor itself among its children: its own sources, and composite events that it makes."""


@dataclass(frozen=True)
class Partial:
    """A part of a rule that somebody further down can decide.

    `sends`: the roles whose events go up. `blocks_us`: events of the head's pattern go up too if they come less than
    that after a head of a match.
    """

    rule: Rule
    sends: tuple[str, ...]
    blocks_us: int = 0

    @property
    def bare(self) -> bool:
        """Whether each event is decided by itself."""
        return not self.rule.clauses

    @property
    def types(self) -> frozenset[str]:
        return frozenset(self.rule.uses)

    def __str__(self) -> str:
        """The pattern as the paper prints it, with what is sent besides where that is not all."""
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
    """A partial rule asked of a child; `node` is the pattern of the whole rule that it begins with.

    `decides`: it brings the events of a role, not only those that conditions look at.
    """

    child: str
    partial: Partial
    node: str
    decides: bool = True


@dataclass(frozen=True)
class Split:
    """What becomes of a rule: the child that gets it whole, or what is asked of which child."""

    whole: str | None
    uses: tuple[Use, ...]


def split(rule: Rule, advertised: Mapping[str, AbstractSet[str]], blocks_us: int = 0, *, stays: bool = False) -> Split:
    """Splits a rule, or the pattern of a partial rule with its `blocks_us`, by the types that each child has.

    `stays`: the rule is decided here even if one child could do it.

    >>> from tocsin.language import parse
    >>> rule = parse("define CE() from A() and last B() within 5 min from A and last C() within 5 min from B").rules[0]
    >>> for use in split(rule, {"2": {"A", "C"}, "3": {"B"}}).uses:
    ...     print(use.child, str(use.partial).replace(chr(10), " "))
    2 A() and each C() within 10 min from A
    3 B()
    """
    shape = Shape(rule)
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
        mine = {node for node, pattern in shape.patterns.items() if only.get(pattern.type) == child}
        for use in _Groups(shape, child, mine, blocks_us).uses():
            uses[use] = None
        grouped |= mine
    for node, pattern in shape.patterns.items():
        if node in grouped:
            continue
        for child in holders.get(pattern.type, ()):
            if child != HERE:
                uses[Use(child, bare(shape, node), node, not node.startswith("#"))] = None
    return Split(None, tuple(uses))


def bare(shape: Shape, node: str) -> Partial:
    """The events of one pattern that meet what it asks of an event by itself."""
    kept = _Kept(shape, {node})
    pattern = kept.pattern(node, {node})
    return partial(pattern if node == shape.anchor else replace(pattern, alias=None), ())


def partial(anchor: Pattern, clauses: Iterable[Clause], sends: Iterable[str] | None = None, blocks: int = 0) -> Partial:
    """A partial rule; by default it sends all its roles."""
    rule = Rule("Partial", PARTIAL, replace(anchor, span=None), tuple(clauses))
    roles = tuple(pattern.role for pattern in rule.roles)
    if not rule.clauses:
        rule = replace(rule, anchor=replace(rule.anchor, alias=None))
        return Partial(rule, (rule.anchor.role,))
    return Partial(rule, roles if sends is None else tuple(sends), blocks)


class _Kept:
    """Which constraints stay when only some nodes are there: those that speak of no other."""

    def __init__(self, shape: Shape, nodes: AbstractSet[str]) -> None:
        self.shape = shape
        self.tests: dict[str, set[int]] = {}
        used: set[str] = set()
        for node in nodes:
            before: set[str] = set()
            kept = self.tests.setdefault(node, set())
            for number, constraint in enumerate(shape.patterns[node].constraints):
                named = parameters(constraint)
                if shape.binds(node, constraint, before):
                    before |= named
                elif all(shape.binders[name] in nodes and shape.binders[name][0] != "#" for name in named):
                    kept.add(number)
                    used |= named
        self.used = used

    def complete(self, node: str) -> bool:
        """Whether all tests of a pattern stay."""
        before: set[str] = set()
        for number, constraint in enumerate(self.shape.patterns[node].constraints):
            if self.shape.binds(node, constraint, before):
                before |= parameters(constraint)
            elif number not in self.tests[node]:
                return False
        return True

    def pattern(self, node: str, nodes: AbstractSet[str]) -> Pattern:
        """The pattern with the constraints that stay, and those that give parameters to them."""
        pattern = self.shape.patterns[node]
        constraints: list[Expression] = []
        before: set[str] = set()
        for number, constraint in enumerate(pattern.constraints):
            if self.shape.binds(node, constraint, before):
                named = parameters(constraint)
                before |= named
                if named & self.used:
                    constraints.append(constraint)
            elif number in self.tests[node]:
                constraints.append(constraint)
        return replace(pattern, constraints=tuple(constraints))


class _Groups:
    """The partial rules for one child: its nodes, each group of them under a head."""

    def __init__(self, shape: Shape, child: str, mine: AbstractSet[str], blocks_us: int) -> None:
        self.shape, self.child, self.blocks_us = shape, child, blocks_us
        self.mine = mine
        self.head: dict[str, str] = {}
        self.hung: dict[str, tuple[str, int]] = {}
        """What each role but a head hangs on, and how far behind it."""
        for role in shape.roles:
            if role in mine:
                self._hang(role)

    def _hang(self, role: str) -> None:
        for above in self.shape.above(role):
            if above in self.mine and self._holds(above):
                self.hung[role] = (above, self.shape.distance_us(role, above))
                self.head[role] = self.head[above]
                return
        self.head[role] = role

    def _holds(self, role: str) -> bool:
        """Whether others may hang on a role: on a head, or where all candidates are taken."""
        clause = self.shape.clauses.get(role)
        return self.head[role] == role or (isinstance(clause, Selection) and clause.policy is Policy.EACH)

    def uses(self) -> Iterable[Use]:
        shape = self.shape
        placed: set[str] = set()
        for head in dict.fromkeys(self.head[role] for role in shape.roles if role in self.mine):
            group = {role for role in self.head if self.head[role] == head}
            conditions = self._conditions(group)
            placed |= conditions
            yield Use(self.child, self._partial(head, group, conditions), head)
            for node in sorted(conditions, key=[*shape.patterns].index):
                yield Use(self.child, self._witness(head, node), head, decides=False)
        for node in shape.patterns:
            if node in self.mine and node.startswith("#") and node not in placed:
                yield Use(self.child, bare(shape, node), node, decides=False)

    def _conditions(self, group: AbstractSet[str]) -> set[str]:
        """The negations and aggregates that speak only of this group."""
        return {
            node
            for node in self.mine
            if node.startswith("#") and self.shape.mentioned(node) and self.shape.mentioned(node) <= group
        }

    def _partial(self, head: str, group: AbstractSet[str], conditions: AbstractSet[str]) -> Partial:
        shape = self.shape
        negations = {node for node in conditions if isinstance(shape.clauses[node], Negation)}
        nodes = group | negations
        kept = _Kept(shape, nodes)
        clauses: list[Clause] = []
        for node, clause in shape.clauses.items():
            if node in negations:
                clauses.append(replace(clause, pattern=kept.pattern(node, nodes)))
            elif node in group and node != head:
                assert isinstance(clause, Selection)
                exact = self._exact(node, kept, conditions)
                clauses.append(self._selection(node, clause, kept.pattern(node, nodes), exact=exact))
        blocks = self.blocks_us
        selection = shape.clauses.get(head)
        if isinstance(selection, Selection):
            if selection.policy is Policy.EACH:
                blocks = 0
            else:
                blocks = shape.window_us(head) if selection.policy is Policy.LAST else FOREVER_US
        return partial(kept.pattern(head, nodes), clauses, blocks=blocks)

    def _exact(self, role: str, kept: _Kept, conditions: AbstractSet[str]) -> bool:
        """Whether the choice for a role can be made here: nothing is asked of its candidates that is not known."""
        shape = self.shape
        owned = {node for node in shape.clauses if node.startswith("#") and shape.owner(node) == role}
        negations = {node for node in owned & conditions if isinstance(shape.clauses[node], Negation)}
        return owned == negations and kept.complete(role) and role not in shape.rule.consuming

    def _direct(self, role: str) -> bool:
        """Whether a role's scope can go down as it is."""
        scope = self.shape.clauses[role].scope
        ends = (scope.origin,) if isinstance(scope, Within) else (scope.start, scope.end)
        return all(end in self.head and self.head[end] == self.head[role] and self._holds(end) for end in ends)

    def _selection(self, role: str, clause: Selection, pattern: Pattern, *, exact: bool) -> Selection:
        if not self._direct(role):
            above, window_us = self.hung[role]
            return Selection(Policy.EACH, pattern, Within(window_us, above), 0)
        if not exact:
            return replace(clause, policy=Policy.EACH, count=0, pattern=pattern)
        return replace(clause, pattern=pattern)

    def _witness(self, head: str, node: str) -> Partial:
        """What a condition looks at: one event that forbids, or all that are aggregated."""
        shape = self.shape
        roles = set(shape.mentioned(node)) | {head}
        waiting = list(roles)
        while waiting:
            role = waiting.pop()
            needed = set()
            if role in self.hung:
                needed.add(self.hung[role][0])
                scope = shape.clauses[role].scope
                if self._direct(role) and not isinstance(scope, Within):
                    needed.add(scope.start)
            waiting += needed - roles
            roles |= needed
        nodes = roles | {node}
        kept = _Kept(shape, nodes)
        clauses: list[Clause] = []
        for role in shape.roles:
            clause = shape.clauses.get(role)
            if role in roles and role != head:
                assert isinstance(clause, Selection)
                clauses.append(self._selection(role, clause, kept.pattern(role, nodes), exact=False))
        condition = shape.clauses[node]
        pattern = kept.pattern(node, nodes)
        taken = {name for role in roles for name in (role, shape.patterns[role].type)}
        if pattern.type in taken:
            pattern = replace(
                pattern, alias=next(f"{pattern.type}_{n}" for n in range(99) if f"{pattern.type}_{n}" not in taken)
            )
        every = isinstance(condition, Aggregate)
        policy, count = (Policy.EACH, 0) if every else (Policy.LAST, 1)
        clauses.append(Selection(policy, pattern, condition.scope, count))
        return partial(kept.pattern(head, nodes), clauses, sends=(pattern.role,))
