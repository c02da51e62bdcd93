"""How is a tree built? By flooding: shortest paths by declared delay (T-Rex, 3.1).

CreateTree is flooded with the sum of the delays so far, and a neighbour that offers a shorter way becomes the father.
In a single tree the root is the leader, the least in rank: the most links first.

The first trees are built before events flow, and their host waits until all is quiet. Trees of a later version
(`versions`) have nobody who waits for them, so they find out by themselves that they stand (Dijkstra and Scholten): a
CreateTree is answered by Settled when all that followed from it is over. When the root has all its answers it sends
Gather down, what is advertised and wanted is told once from the leaves up, and once the rules come down.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tocsin.errors import RuleError
from tocsin.overlay import messages as m
from tocsin.overlay.routes import TREES_MAX

if TYPE_CHECKING:
    from tocsin.overlay.processor import Processor
    from tocsin.overlay.tree_node import Membership


@dataclass
class Building:
    """How far a new tree is: who offered the way that is being followed up, how many offers are not settled,
    and whether the tree is known to stand."""

    engager: str | None = None
    open: int = 0
    stands: bool = False


def versioned(root: str, number: int) -> str:
    """The name of a tree: its root, and from the first change on the number of the change that it was built for.

    >>> versioned("hill", 0), versioned("hill", 2), root_of("hill@2"), number_of("hill@2"), number_of("hill")
    ('hill', 'hill@2', 'hill', 2, 0)
    """
    return f"{root}@{number}" if number else root


def root_of(tree: str) -> str:
    return tree.partition("@")[0]


def number_of(tree: str) -> int:
    return int(tree.partition("@")[2] or 0)


def join(processor: Processor, tree: str) -> Membership:
    """The processor's place in a tree, which it takes if it had none."""
    if tree not in processor.memberships:
        if len(processor.memberships) == TREES_MAX:
            raise RuleError(f"there can be at most {TREES_MAX} trees: have fewer processors with sinks, or one tree")
        processor.add(tree)
    return processor.memberships[tree]


def start(processor: Processor) -> None:
    """Begins the election of a leader, or the own tree if there are many."""
    if processor.strategy.single:
        for link in sorted(processor.links):
            processor.send(link, m.Elect(processor.leader))
    elif processor.interests:
        plant(processor, processor.name)


def plant(processor: Processor, tree: str) -> None:
    """Builds a tree whose root is here."""
    _offer(processor, join(processor, tree), 0, None)


def _offer(processor: Processor, membership: Membership, distance_us: int, but: str | None) -> None:
    """Tells the neighbours how far the root is; `but`: the one that it came from."""
    tree = membership.tree
    links = [link for link in sorted(processor.change_of(tree).links) if link != but]
    for link in links:
        processor.send(link, m.CreateTree(tree, distance_us))
    if number_of(tree):
        membership.building.open += len(links)
        _quiet(processor, membership)


def elect(processor: Processor, sender: str, message: m.Elect) -> None:
    if message.rank < processor.leader:
        processor.leader = message.rank
        for link in sorted(processor.links):
            if link != sender:
                processor.send(link, m.Elect(processor.leader))


def create(processor: Processor, sender: str, message: m.CreateTree) -> None:
    tree = message.tree
    distance_us = message.distance_us + processor.change_of(tree).links[sender]
    known = processor.memberships.get(tree)
    far = known is not None and known.father is not None and (known.distance_us, known.father) <= (distance_us, sender)
    if root_of(tree) == processor.name or far:
        processor.send(sender, m.Nack(tree))
        _settle(processor, sender, tree)
        return
    membership = join(processor, tree)
    if membership.father is not None and membership.father != sender:
        processor.send(membership.father, m.Nack(tree))
    shorter = membership.father is None or distance_us < membership.distance_us
    membership.father, membership.distance_us = sender, distance_us
    processor.rerouted()
    processor.send(sender, m.Ack(tree))
    building = membership.building
    if building.engager is None and number_of(tree):
        building.engager = sender
    else:
        _settle(processor, sender, tree)
    if shorter:
        _offer(processor, membership, distance_us, sender)
    elif number_of(tree):
        _quiet(processor, membership)
    if not number_of(tree):
        processor.advertised_below(membership)
        processor.wanted_below(membership)


def _settle(processor: Processor, sender: str, tree: str) -> None:
    if number_of(tree):
        processor.send(sender, m.Settled(tree))


def _quiet(processor: Processor, membership: Membership) -> None:
    """If all offers have been dealt with: answers the one that began it, or the tree stands."""
    building = membership.building
    if building.open:
        return
    if membership.father is None:
        if not building.stands:
            _gather(processor, membership)
    elif building.engager is not None:
        engager, building.engager = building.engager, None
        processor.send(engager, m.Settled(membership.tree))


def settled(processor: Processor, sender: str, message: m.Settled) -> None:
    membership = processor.memberships[message.tree]
    membership.building.open -= 1
    _quiet(processor, membership)


def ack(processor: Processor, sender: str, message: m.Ack) -> None:
    processor.memberships[message.tree].children.add(sender)


def nack(processor: Processor, sender: str, message: m.Nack) -> None:
    membership = processor.memberships[message.tree]
    if sender not in membership.children:
        return
    membership.children.discard(sender)
    for table in (membership.advertised, membership.subscribed, membership.sent, membership.progress):
        table.pop(sender, None)
    if number_of(membership.tree):
        gathered(processor, membership)
    else:
        processor.advertised_below(membership)
        processor.wanted_below(membership)


def gather(processor: Processor, sender: str, message: m.Gather) -> None:
    membership = processor.memberships[message.tree]
    if sender == membership.father:
        _gather(processor, membership)


def _gather(processor: Processor, membership: Membership) -> None:
    membership.building.stands = True
    for child in sorted(membership.children):
        processor.send(child, m.Gather(membership.tree))
    gathered(processor, membership)


def gathered(processor: Processor, membership: Membership) -> None:
    """If all children have said what they have and want: says it to the father, or begins as the root."""
    if membership.building.stands and not membership.ready and membership.children <= membership.advertised.keys():
        processor.wanted_below(membership)
        processor.advertised_below(membership)
        if membership.father is None:
            processor.begin(membership)
