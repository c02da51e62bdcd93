"""Evaluate event expressions as the EPS paper does, with one shared tree and instances at every node.

A node stands for a part of expressions, and its instances are the occurrences of this part. An arriving event goes
through four phases:

    1  store an instance of the event at its leaf, and build all combinations with it, up to the roots
    2  notify a request of the first new instance at its root that meets its condition
    3  mark all instances that share an event with the notified instance as used by the request
    4  remove instances that all requests above their node have used, or that are too old

This module cross-checks `tocsin.reference.requests` and gives the curve of the paper's Figure 7. The number of
instances grows exponentially with the height of the tree, and so do time and memory. It is not for production use.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, product
from typing import TypeAlias

from tocsin.errors import StateError
from tocsin.language.eps.ast import All, Either, EventExpression, Leaf, Occurs, Period, Request, Then, Times, leaves
from tocsin.language.eps.text import print_events
from tocsin.language.syntax.ast import Pattern
from tocsin.reference.patterns import Fact, holds
from tocsin.reference.requests import Combination, fits, rank

INSTANCES_MAX = 5_000_000

Parts: TypeAlias = Combination
"""Pairs of a leaf's position below a node and the leaf's event, in the order of positions."""


class _Nobody(Fact):
    """A fact that stands for a leaf without an event in a combination. Each of its attributes is null."""

    def value(self, name: str) -> None:
        return None


NOBODY = _Nobody("", 0, 0, "", (0, 0), {})


@dataclass(eq=False, slots=True)
class NodeInstance:
    """An occurrence of a node's expression. `users` names the requests that have used one of its events."""

    parts: Parts
    users: set[str]

    @property
    def latest(self) -> tuple[int, int]:
        return max((fact.ts, fact.seq) for _, fact in self.parts)


@dataclass(eq=False, slots=True)
class SharedNode:
    """A node of the shared tree. `above` names the requests whose expressions contain the node."""

    leaf: Leaf | None
    operator: type[All] | type[Either] | type[Then] | type[Times] | None
    operands: tuple[SharedNode, ...]
    width: int
    count: int = 0
    attribute: str = ""
    same: bool = False
    above: set[str] = field(default_factory=set)
    instances: list[NodeInstance] = field(default_factory=list)


class Tree:
    """The shared tree of all requests."""

    def __init__(self, requests: Iterable[Request] = ()) -> None:
        self._nodes: dict[object, SharedNode] = {}
        self._roots: dict[str, tuple[Request, SharedNode, list[int]]] = {}
        self._leaves: dict[str, list[Leaf]] = {}
        self._begun: dict[str, int] = {}
        self._since: dict[str, int | None] = {}
        for request in requests:
            self.add(request)

    def add(self, request: Request, since: int | None = None) -> None:
        """Add a request that sees events from `since` on (µs).

        Existing nodes are reused and keep their instances.
        """
        self._since[request.name] = since
        _, node, places = self._node(request.expression, 0)
        self._roots[request.name] = request, node, places
        self._leaves[request.name] = list(leaves(request.expression))
        for below in _below(node):
            below.above.add(request.name)

    def cancel(self, name: str) -> None:
        """Remove the request `name`, and the nodes that no other request needs."""
        _, root, _ = self._roots.pop(name)
        del self._leaves[name]
        for node in _below(root):
            node.above.discard(name)
        self._nodes = {key: node for key, node in self._nodes.items() if node.above}

    @property
    def size(self) -> tuple[int, int]:
        """The number of nodes and of instances."""
        return len(self._nodes), sum(len(node.instances) for node in self._nodes.values())

    def arrive(self, fact: Fact) -> list[tuple[Request, Combination]]:
        """Run the four phases for an arriving event, and return the notified requests with their combinations."""
        self._age(fact)
        new = self._build(fact)
        return [
            (request, chosen)
            for request, root, places in self._roots.values()
            if (chosen := self._notify(request, root, places, new.get(id(root), []))) is not None
        ]

    # ---- the tree

    def _node(self, expression: EventExpression, first: int) -> tuple[object, SharedNode, list[int]]:
        """Return the key of `expression`, its node, and the number of the leaf at each position below the node.

        `first` is the number of the expression's first leaf. Operands of `&` and `||` are sorted, so that expressions
        which differ only in the order of operands share a node.
        """
        match expression:
            case All(operands) | Either(operands):
                found = []
                for operand in operands:
                    found.append(self._node(operand, first))
                    first += len(found[-1][2])
                found.sort(key=lambda one: repr(one[0]))
                key: object = (type(expression).__name__, *(one[0] for one in found))
                nodes = tuple(one[1] for one in found)
                places = [place for one in found for place in one[2]]
                return key, self._shared(key, SharedNode(None, type(expression), nodes, len(places))), places
            case Then(left, right):
                one = self._node(left, first)
                two = self._node(right, first + len(one[2]))
                key = ("Then", one[0], two[0])
                places = [*one[2], *two[2]]
                return key, self._shared(key, SharedNode(None, Then, (one[1], two[1]), len(places))), places
            case Times(count, pattern, attribute, same):
                bare = Occurs(Pattern(pattern.type, pattern.constraints))
                below, leaf, _ = self._node(bare, first)
                key = ("Times", below, count, attribute, same)
                node = SharedNode(None, Times, (leaf,), count, count, attribute, same)
                return key, self._shared(key, node), list(range(first, first + count))
            case Occurs(pattern):
                key = print_events(Occurs(Pattern(pattern.type, pattern.constraints)))
            case _:
                key = print_events(expression).partition(" as ")[0]
        return key, self._shared(key, SharedNode(next(leaves(expression)), None, (), 1)), [first]

    def _shared(self, key: object, node: SharedNode) -> SharedNode:
        return self._nodes.setdefault(key, node)

    # ---- the phases

    def _build(self, fact: Fact) -> dict[int, list[NodeInstance]]:
        """Build the new instances of all nodes (phase 1) and return them by the node's id.

        Nodes come after their operands.
        """
        new: dict[int, list[NodeInstance]] = {}
        for node in self._nodes.values():
            built = list(self._combined(node, fact, new))
            new[id(node)] = [one for one in built if not one.users >= node.above]
        for node in self._nodes.values():
            node.instances += new[id(node)]
        if self.size[1] > INSTANCES_MAX:
            raise StateError(f"more than {INSTANCES_MAX:,} instances")
        return new

    def _combined(self, node: SharedNode, fact: Fact, new: Mapping[int, list[NodeInstance]]) -> Iterator[NodeInstance]:
        added = [new[id(operand)] for operand in node.operands]
        if node.leaf is not None:
            if fits(node.leaf.node, fact):
                yield NodeInstance(((0, fact),), set())
        elif node.operator is Times:
            for others in combinations(node.operands[0].instances, node.count - 1):
                for one in added[0]:
                    chosen = sorted([*others, one], key=lambda instance: instance.parts[0][1].key)
                    values = [instance.parts[0][1].value(node.attribute) for instance in chosen]
                    distinct = 1 if node.same else node.count
                    if None not in values and len(set(values)) == distinct:
                        parts = tuple((n, instance.parts[0][1]) for n, instance in enumerate(chosen))
                        yield NodeInstance(parts, set().union(*(instance.users for instance in chosen)))
        elif node.operator is Either:
            for place, ones in enumerate(added):
                for one in ones:
                    yield _joined(node, {place: one})
        else:
            # The arriving event is in the instance of exactly one operand. One node can be several operands at once.
            for place in range(len(added)):
                pools = [added[k] if k == place else node.operands[k].instances for k in range(len(added))]
                for chosen_ones in product(*pools):
                    facts = [part for instance in chosen_ones for _, part in instance.parts]
                    if len(facts) == len(set(facts)) and (
                        node.operator is All or chosen_ones[0].latest < chosen_ones[1].latest
                    ):
                        yield _joined(node, dict(enumerate(chosen_ones)))

    def _notify(
        self, request: Request, root: SharedNode, places: Sequence[int], new: Sequence[NodeInstance]
    ) -> Combination | None:
        """Choose the combination to notify `request` of (phase 2), and mark its events as used (phase 3).

        Also remove instances that all requests above their node have used (phase 4). Return None without notification.
        """
        fitting = []
        for instance in new:
            combination = tuple(sorted(((places[n], fact) for n, fact in instance.parts), key=lambda part: part[0]))
            if request.name not in instance.users and self._allowed(request, combination):
                fitting.append(combination)
        if not fitting:
            return None
        chosen = min(fitting, key=rank)
        used = {fact for _, fact in chosen}
        for node in _below(root):
            for instance in node.instances:
                if any(fact in used for _, fact in instance.parts):
                    instance.users.add(request.name)
            node.instances = [one for one in node.instances if not one.users >= node.above]
        return chosen

    def _allowed(self, request: Request, combination: Combination) -> bool:
        oldest, newest = min(fact.ts for _, fact in combination), max(fact.ts for _, fact in combination)
        begun, every = self._begun.get(request.name), self._leaves[request.name]
        events: dict[str | None, Fact] = {}
        for place, fact in combination:
            node = every[place].node
            if isinstance(node, Period) and node.start_us is None and (begun is None or fact.ts < begun):
                return False
            events.setdefault(every[place].role, fact)
        since = self._since[request.name]
        if newest - oldest > request.window_us or (since is not None and oldest < since):
            return False
        for leaf in every:
            events.setdefault(leaf.role, NOBODY)
        return all(holds(test, events, {}) for test in request.condition)

    def _age(self, fact: Fact) -> None:
        """Remove instances that are too old for all requests (phase 4)."""
        for name, (request, _, _) in self._roots.items():
            if any(
                isinstance(leaf.node, Occurs | Times) and fits(leaf.node, fact) for leaf in leaves(request.expression)
            ):
                self._begun.setdefault(name, fact.ts)
        for node in self._nodes.values():
            window_us = max(self._roots[name][0].window_us for name in node.above)
            node.instances = [
                one for one in node.instances if all(fact.ts - part.ts <= window_us for _, part in one.parts)
            ]


def _joined(node: SharedNode, chosen: Mapping[int, NodeInstance]) -> NodeInstance:
    """Join instances of the operands of `node` into one instance of `node`. `chosen` has them by operand index."""
    offsets = [sum(operand.width for operand in node.operands[:place]) for place in range(len(node.operands))]
    parts = tuple((offsets[place] + n, fact) for place, one in chosen.items() for n, fact in one.parts)
    return NodeInstance(parts, set().union(*(one.users for one in chosen.values())))


def _below(node: SharedNode) -> Iterator[SharedNode]:
    yield node
    for operand in node.operands:
        yield from _below(operand)
