"""Event expressions evaluated as their paper does: one shared tree, instances at every node, four phases.

    1  an arriving instance is put at its leaf, and everything that it can be combined with is built, up to the roots
    2  of what is new at a request's root, the first that meets the condition is notified
    3  all instances that have an event in common with it are marked as used by that request
    4  what all requests above a node have used, or what is too old, is removed

A second opinion on `reference_requests` and the curve that the paper's Figure 7 shows: the number of instances grows
exponentially with the height of the tree, and so do time and memory. Not for use.
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
"""(position of the leaf below the node, event), in the order of positions."""


class _Nobody(Fact):
    """Stands at a leaf that a combination does not have: every value of it is null."""

    def value(self, name: str) -> None:
        return None


NOBODY = _Nobody("", 0, 0, "", (0, 0), {})


@dataclass(eq=False, slots=True)
class Instance:
    """An occurrence of a node's expression, and the requests that have used an event of it."""

    parts: Parts
    users: set[str]

    @property
    def latest(self) -> tuple[int, int]:
        return max((fact.ts, fact.seq) for _, fact in self.parts)


@dataclass(eq=False, slots=True)
class Node:
    """A node of the shared tree; `above` are the requests whose expressions it is part of."""

    leaf: Leaf | None
    operator: type[All] | type[Either] | type[Then] | type[Times] | None
    operands: tuple[Node, ...]
    width: int
    count: int = 0
    attribute: str = ""
    same: bool = False
    above: set[str] = field(default_factory=set)
    instances: list[Instance] = field(default_factory=list)


class Tree:
    """The shared tree of all requests."""

    def __init__(self, requests: Iterable[Request] = ()) -> None:
        self._nodes: dict[object, Node] = {}
        self._roots: dict[str, tuple[Request, Node, list[int]]] = {}
        self._leaves: dict[str, list[Leaf]] = {}
        self._begun: dict[str, int] = {}
        self._since: dict[str, int | None] = {}
        for request in requests:
            self.add(request)

    def add(self, request: Request, since: int | None = None) -> None:
        """Adds a request that sees events from `since` on (µs).

        Nodes that are there already are used again, and keep what they have.
        """
        self._since[request.name] = since
        _, node, places = self._node(request.expression, 0)
        self._roots[request.name] = request, node, places
        self._leaves[request.name] = list(leaves(request.expression))
        for below in _below(node):
            below.above.add(request.name)

    def cancel(self, name: str) -> None:
        """Removes a request, and the nodes that only it needed."""
        _, root, _ = self._roots.pop(name)
        del self._leaves[name]
        for node in _below(root):
            node.above.discard(name)
        self._nodes = {key: node for key, node in self._nodes.items() if node.above}

    @property
    def size(self) -> tuple[int, int]:
        """How many nodes there are, and how many instances."""
        return len(self._nodes), sum(len(node.instances) for node in self._nodes.values())

    def arrive(self, fact: Fact) -> list[tuple[Request, Combination]]:
        """Takes an instance through the four phases; returns the notifications."""
        self._age(fact)
        new = self._build(fact)
        return [
            (request, chosen)
            for request, root, places in self._roots.values()
            if (chosen := self._notify(request, root, places, new.get(id(root), []))) is not None
        ]

    # ---- the tree

    def _node(self, expression: EventExpression, first: int) -> tuple[object, Node, list[int]]:
        """The node of an expression, what it is known by, and which leaf stands at each of its positions.

        Operands of `&` and `||` are put in order, so that they are found however they were written.
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
                return key, self._shared(key, Node(None, type(expression), nodes, len(places))), places
            case Then(left, right):
                one = self._node(left, first)
                two = self._node(right, first + len(one[2]))
                key = ("Then", one[0], two[0])
                places = [*one[2], *two[2]]
                return key, self._shared(key, Node(None, Then, (one[1], two[1]), len(places))), places
            case Times(count, pattern, attribute, same):
                bare = Occurs(Pattern(pattern.type, pattern.constraints))
                below, leaf, _ = self._node(bare, first)
                key = ("Times", below, count, attribute, same)
                node = Node(None, Times, (leaf,), count, count, attribute, same)
                return key, self._shared(key, node), list(range(first, first + count))
            case Occurs(pattern):
                key = print_events(Occurs(Pattern(pattern.type, pattern.constraints)))
            case _:
                key = print_events(expression).partition(" as ")[0]
        return key, self._shared(key, Node(next(leaves(expression)), None, (), 1)), [first]

    def _shared(self, key: object, node: Node) -> Node:
        return self._nodes.setdefault(key, node)

    # ---- the phases

    def _build(self, fact: Fact) -> dict[int, list[Instance]]:
        """The first phase: all new instances, by node. Nodes stand in the order of their height."""
        new: dict[int, list[Instance]] = {}
        for node in self._nodes.values():
            made = list(self._made(node, fact, new))
            new[id(node)] = [one for one in made if not one.users >= node.above]
        for node in self._nodes.values():
            node.instances += new[id(node)]
        if self.size[1] > INSTANCES_MAX:
            raise StateError(f"more than {INSTANCES_MAX:,} instances: this is where enumeration ends")
        return new

    def _made(self, node: Node, fact: Fact, new: Mapping[int, list[Instance]]) -> Iterator[Instance]:
        fresh = [new[id(operand)] for operand in node.operands]
        if node.leaf is not None:
            if fits(node.leaf.node, fact):
                yield Instance(((0, fact),), set())
        elif node.operator is Times:
            for others in combinations(node.operands[0].instances, node.count - 1):
                for one in fresh[0]:
                    chosen = sorted([*others, one], key=lambda instance: instance.parts[0][1].key)
                    values = [instance.parts[0][1].value(node.attribute) for instance in chosen]
                    distinct = 1 if node.same else node.count
                    if None not in values and len(set(values)) == distinct:
                        parts = tuple((n, instance.parts[0][1]) for n, instance in enumerate(chosen))
                        yield Instance(parts, set().union(*(instance.users for instance in chosen)))
        elif node.operator is Either:
            for place, ones in enumerate(fresh):
                for one in ones:
                    yield _joined(node, {place: one})
        else:
            # The arriving event is in exactly one of the operands' instances; a node can be both operands at once.
            for place in range(len(fresh)):
                pools = [fresh[k] if k == place else node.operands[k].instances for k in range(len(fresh))]
                for chosen_ones in product(*pools):
                    facts = [part for instance in chosen_ones for _, part in instance.parts]
                    if len(facts) == len(set(facts)) and (
                        node.operator is All or chosen_ones[0].latest < chosen_ones[1].latest
                    ):
                        yield _joined(node, dict(enumerate(chosen_ones)))

    def _notify(
        self, request: Request, root: Node, places: Sequence[int], new: Sequence[Instance]
    ) -> Combination | None:
        """The second phase, and the third."""
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
        """What the fourth phase does to instances that are too old for all requests."""
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


def _joined(node: Node, chosen: Mapping[int, Instance]) -> Instance:
    """An instance of a node, of instances of some of its operands."""
    offsets = [sum(operand.width for operand in node.operands[:place]) for place in range(len(node.operands))]
    parts = tuple((offsets[place] + n, fact) for place, one in chosen.items() for n, fact in one.parts)
    return Instance(parts, set().union(*(one.users for one in chosen.values())))


def _below(node: Node) -> Iterator[Node]:
    yield node
    for operand in node.operands:
        yield from _below(operand)
