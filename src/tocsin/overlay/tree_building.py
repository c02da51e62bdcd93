"""Build processing trees of shortest paths, by declared delay, to a root (T-Rex, 3.1).

CreateTree messages flood the network with the sum of the delays from the root. Each processor takes the neighbour that
offers the shortest path as its parent. The root of a single tree is the elected leader, which is the processor with the
lowest rank: the one with the most links, then with the smallest sum of delays, then with the lowest name.

The first trees are built before events flow, and the host waits until no message is under way. Trees of a later change
(`tree_changes`) detect their own completion by the algorithm of Dijkstra and Scholten. A processor answers a CreateTree
with Completed when all offers that the CreateTree caused have been answered. When the root has all answers, it sends
Gather down the tree. Each node then reports the types and subscriptions of its subtree once, and receives its rules
once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tocsin.errors import RuleError
from tocsin.overlay import messages as m
from tocsin.overlay.routes import TREES_MAX

if TYPE_CHECKING:
    from tocsin.overlay.processor import Processor
    from tocsin.overlay.tree_node import TreeNode


@dataclass
class TreeConstruction:
    """The progress of building a tree at one node.

    `engager` is the neighbour whose CreateTree will be answered when all own offers have been answered. `open` is the
    number of own offers without an answer. `stands` says whether the tree is known to be complete.
    """

    engager: str | None = None
    open: int = 0
    stands: bool = False


def tree_name(root: str, number: int) -> str:
    """Return the name of the tree with this root that is built for change `number`.

    >>> tree_name("hill", 0), tree_name("hill", 2), root_of("hill@2"), number_of("hill@2"), number_of("hill")
    ('hill', 'hill@2', 'hill', 2, 0)
    """
    return f"{root}@{number}" if number else root


def root_of(tree: str) -> str:
    return tree.partition("@")[0]


def number_of(tree: str) -> int:
    return int(tree.partition("@")[2] or 0)


def join(processor: Processor, tree: str) -> TreeNode:
    """Return the node of `processor` in `tree`; create the node if there is none."""
    if tree not in processor.tree_nodes:
        if len(processor.tree_nodes) == TREES_MAX:
            raise RuleError(
                f"there can be at most {TREES_MAX} trees: use fewer processors with sinks, or a single tree"
            )
        processor.add(tree)
    return processor.tree_nodes[tree]


def start(processor: Processor) -> None:
    """Start the election of a leader; with many trees, build the tree of this processor if it has sinks."""
    if processor.strategy.single:
        for link in sorted(processor.links):
            processor.send(link, m.Elect(processor.leader))
    elif processor.interests:
        build_tree(processor, processor.name)


def build_tree(processor: Processor, tree: str) -> None:
    """Build `tree`, whose root is `processor`."""
    _offer(processor, join(processor, tree), 0, None)


def _offer(processor: Processor, node: TreeNode, distance_us: int, but: str | None) -> None:
    """Offer a path to the root to all neighbours except `but`, from which the path came."""
    tree = node.tree
    links = [link for link in sorted(processor.change_of(tree).links) if link != but]
    for link in links:
        processor.send(link, m.CreateTree(tree, distance_us))
    if number_of(tree):
        node.construction.open += len(links)
        _check_completed(processor, node)


def receive_elect(processor: Processor, sender: str, message: m.Elect) -> None:
    if message.rank < processor.leader:
        processor.leader = message.rank
        for link in sorted(processor.links):
            if link != sender:
                processor.send(link, m.Elect(processor.leader))


def receive_create(processor: Processor, sender: str, message: m.CreateTree) -> None:
    tree = message.tree
    distance_us = message.distance_us + processor.change_of(tree).links[sender]
    existing = processor.tree_nodes.get(tree)
    far = (
        existing is not None
        and existing.parent is not None
        and (existing.distance_us, existing.parent) <= (distance_us, sender)
    )
    if root_of(tree) == processor.name or far:
        processor.send(sender, m.Nack(tree))
        _send_completed(processor, sender, tree)
        return
    node = join(processor, tree)
    if node.parent is not None and node.parent != sender:
        processor.send(node.parent, m.Nack(tree))
    shorter = node.parent is None or distance_us < node.distance_us
    node.parent, node.distance_us = sender, distance_us
    processor.rerouted()
    processor.send(sender, m.Ack(tree))
    construction = node.construction
    if construction.engager is None and number_of(tree):
        construction.engager = sender
    else:
        _send_completed(processor, sender, tree)
    if shorter:
        _offer(processor, node, distance_us, sender)
    elif number_of(tree):
        _check_completed(processor, node)
    if not number_of(tree):
        processor.advertised_below(node)
        processor.wanted_below(node)


def _send_completed(processor: Processor, sender: str, tree: str) -> None:
    if number_of(tree):
        processor.send(sender, m.Completed(tree))


def _check_completed(processor: Processor, node: TreeNode) -> None:
    """If all own offers have been answered, answer the engager, or send Gather at the root."""
    construction = node.construction
    if construction.open:
        return
    if node.parent is None:
        if not construction.stands:
            _gather(processor, node)
    elif construction.engager is not None:
        engager, construction.engager = construction.engager, None
        processor.send(engager, m.Completed(node.tree))


def receive_completed(processor: Processor, sender: str, message: m.Completed) -> None:
    node = processor.tree_nodes[message.tree]
    node.construction.open -= 1
    _check_completed(processor, node)


def receive_ack(processor: Processor, sender: str, message: m.Ack) -> None:
    processor.tree_nodes[message.tree].children.add(sender)


def receive_nack(processor: Processor, sender: str, message: m.Nack) -> None:
    node = processor.tree_nodes[message.tree]
    if sender not in node.children:
        return
    node.children.discard(sender)
    for table in (node.advertised, node.subscribed, node.sent, node.progress):
        table.pop(sender, None)
    if number_of(node.tree):
        check_gathered(processor, node)
    else:
        processor.advertised_below(node)
        processor.wanted_below(node)


def receive_gather(processor: Processor, sender: str, message: m.Gather) -> None:
    node = processor.tree_nodes[message.tree]
    if sender == node.parent:
        _gather(processor, node)


def _gather(processor: Processor, node: TreeNode) -> None:
    node.construction.stands = True
    for child in sorted(node.children):
        processor.send(child, m.Gather(node.tree))
    check_gathered(processor, node)


def check_gathered(processor: Processor, node: TreeNode) -> None:
    """If all children have reported their types, report to the parent, or deploy the rules at the root."""
    if node.construction.stands and not node.ready and node.children <= node.advertised.keys():
        processor.wanted_below(node)
        processor.advertised_below(node)
        if node.parent is None:
            processor.begin(node)
