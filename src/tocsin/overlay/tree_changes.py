"""Replace processing trees when processors, links, sources or sinks change while events flow.

A *change* takes effect at one event time T, the same at all processors. It must be announced before any source has
passed T. The trees that the change concerns are built again beside the old ones (`tree_building`), and their names have
the number of the change.

The old tree processes the events before T and delivers the matches before T. Then its root *retires* the tree, which is
removed everywhere. The new tree processes the events from T on, and the events before T that windows can reach. For
this, each processor retains the events of its own sources for as long as the rules look back (the horizon). The new
tree delivers no matches before T. So exactly one tree delivers the matches of each event time, and nothing is delivered
twice. The new tree has all events that it needs, because a match with ts >= T depends only on events after T minus the
horizon.

- A sink gets the matches of the old tree first. The matches of the new tree wait until the old tree is retired here.
- A consuming rule cannot start without its state. The processor that decided the rule in the old tree sends the state
  of the detector at T in a Memory over the new tree. The processor that decides the rule in the new tree waits for the
  Memory. A rule that no sink of the old tree wanted starts with the events from T on, without a state.
- A processor that leaves continues to work for the old trees until they are retired. The events of its sources that
  windows may still need go to its nearest neighbour, the *successor*, which publishes them in the new trees. If the
  leaving processor is the root of the single tree, the successor becomes the root.
- Messages for a change that has not taken effect here yet are stored until it does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tocsin.errors import EventError
from tocsin.language.syntax.ast import Pattern
from tocsin.overlay import decisions
from tocsin.overlay import messages as m
from tocsin.overlay.messages import Rows
from tocsin.overlay.tree_building import build_tree, number_of, root_of, tree_name
from tocsin.overlay.tree_node import TreeNode
from tocsin.overlay.tree_parts import BEGINNING
from tocsin.plans.splitting import FOREVER_US, HERE

if TYPE_CHECKING:
    from tocsin.overlay.processor import Processor

CHANGES_MAX = 16
"""The largest number of changes that can be under way at the same time."""


@dataclass(frozen=True)
class TopologyChange:
    """The links, sources and sinks of one processor from the event time `at` (µs) on.

    `links` has the declared delay (µs) to each neighbour, `offers` the types of each source, and `interests` the
    subscriptions of each sink. `left` names the processors that leave with the change. `trees` has the roots of the
    trees that end with the change, or None if all trees end. `built` has the roots of the trees that are built for the
    change; it is not used for a single tree.
    """

    number: int
    at: int
    links: Mapping[str, int] = field(default_factory=dict)
    offers: Mapping[str, frozenset[str]] = field(default_factory=dict)
    interests: Mapping[str, tuple[Pattern, ...]] = field(default_factory=dict)
    left: frozenset[str] = frozenset()
    trees: frozenset[str] | None = None
    built: frozenset[str] = frozenset()


def announce(processor: Processor, change: TopologyChange) -> None:
    """Announce a change to `processor`, before its sources publish events from `change.at` on.

    Changes must be announced in the order of their numbers.
    """
    if change.at < processor.published:
        raise EventError(f"{processor.name} is past {change.at} already: announce a change before its time")
    latest = (*processor.changes.values(), *processor.pending)[-1]
    if change.number != latest.number + 1 or change.at < latest.at:
        raise EventError(f"change {change.number} at {change.at} cannot follow change {latest.number} at {latest.at}")
    old = [tree for tree, one in processor.tree_nodes.items() if one.end < FOREVER_US]
    if old and change.number - min(map(number_of, old)) > CHANGES_MAX:
        raise EventError(f"there can be at most {CHANGES_MAX} changes under way at once")
    processor.pending.append(change)
    for node in list(processor.tree_nodes.values()):
        node.end = time_bounds(processor, node.tree)[1]
        node.check_end()
    enter_due(processor)


def is_early(processor: Processor, message: m.Message) -> bool:
    """Return whether a message belongs to a change that has not taken effect here yet."""
    tree = getattr(message, "tree", "")
    if number_of(tree) > processor.number:
        return True
    unknown = tree in processor.tree_nodes and processor.tree_nodes[tree].end == FOREVER_US
    return unknown and isinstance(message, m.Retire)


def time_bounds(processor: Processor, tree: str) -> tuple[int, int]:
    """Return the event times between which `tree` delivers matches: the time of its change, and that of its end."""
    later = [change.at for change in _known(processor) if _ends(change, tree)]
    return processor.change_of(tree).at, min(later, default=FOREVER_US)


def _known(processor: Processor) -> tuple[TopologyChange, ...]:
    return (*processor.changes.values(), *processor.pending)


def _ends(change: TopologyChange, tree: str) -> bool:
    return change.number > number_of(tree) and (change.trees is None or root_of(tree) in change.trees)


def enter_due(processor: Processor) -> None:
    """Apply pending changes whose conditions are met.

    All neighbours that leave must have sent a Handover, and the trees rooted at this processor must be ready.
    """
    while processor.pending:
        change = processor.pending[0]
        gone = change.left & processor.links.keys()
        own = [one for tree, one in processor.tree_nodes.items() if root_of(tree) == processor.name]
        if processor.name not in change.left and any(
            (change.number, name) not in processor.handed_over for name in gone
        ):
            return
        if not all(node.ready for node in own):
            return
        old_links = processor.links
        processor.pending.pop(0)
        processor.changes[change.number] = change
        processor.handed_over = {key for key in processor.handed_over if key[0] > change.number}
        processor.unbuilt[change.number] = {""} if processor.strategy.single else set(change.built)
        _forget(processor)
        if processor.name in change.left:
            _leave(processor, change, old_links)
        elif processor.leads if processor.strategy.single else processor.name in change.built:
            if not own and not processor.strategy.single:
                processor.served = change.number
            build_tree(processor, tree_name(processor.name, change.number))
        elif change.trees is None or processor.name in change.trees:
            processor.wanted = ()
        early_messages, processor.early_messages = processor.early_messages, []
        for sender, message in early_messages:
            processor.receive(sender, message)


def _forget(processor: Processor) -> None:
    """Drop the past changes that no tree of this processor was built for, except the most recent changes."""
    used = {number_of(tree) for tree in processor.tree_nodes} | processor.unbuilt.keys()
    retained = list(processor.changes)[-CHANGES_MAX:]
    processor.changes = {
        number: change for number, change in processor.changes.items() if number in used or number in retained
    }


def _leave(processor: Processor, change: TopologyChange, links: Mapping[str, int]) -> None:
    """Send a Handover to each neighbour that stays; the nearest neighbour is the successor."""
    stay = sorted(link for link in links if link not in change.left)
    processor.successor = min(stay, key=lambda link: (links[link], link), default=None)
    for link in stay:
        message = m.Handover(change.number, link == processor.successor)
        if message.successor:
            rows = [rows.table for _, rows in processor.retained]
            events = pa.concat_tables(rows, promote_options="default") if rows else None
            message = replace(message, leads=processor.leads, wanted=processor.wanted, events=events)
        processor.send(link, message)
    processor.leads = False
    forward_memories(processor)


def receive_handover(processor: Processor, sender: str, message: m.Handover) -> None:
    processor.handed_over.add((message.number, sender))
    if message.successor and message.events is not None:
        processor.retained.append((message.number, Rows(message.events)))
    if message.leads:
        processor.leads, processor.wanted = True, message.wanted
    enter_due(processor)


def tree_ready(processor: Processor, node: TreeNode) -> None:
    """Process the retained events that the windows of a newly deployed tree need, and report the own progress to it."""
    bit = np.uint64(1 << sorted(processor.tree_nodes).index(node.tree))
    for rows in retained_events(processor, node):
        at = np.maximum(rows.ts, min(processor.published, node.start))
        processor.own(rows, np.full(rows.num_rows, bit), at)
    if processor.published > BEGINNING:
        upto = min(processor.published, node.end)
        node.receive_progress(HERE, m.Progress(node.tree, upto))
    unbuilt = processor.unbuilt.get(number_of(node.tree), set())
    unbuilt.discard("" if processor.strategy.single else root_of(node.tree))
    forward_memories(processor)
    enter_due(processor)


def retained_events(processor: Processor, node: TreeNode) -> list[Rows]:
    """Return the retained events that windows of a new tree need.

    They are from own sources, and from processors that have left and whose successor this processor is.
    """
    needed = []
    for number, rows in processor.retained:
        if number <= number_of(node.tree):
            near = (rows.ts >= node.start - processor.horizon_us) & (rows.ts < node.end)
            needed.append(rows.take(near))
    return [rows for rows in needed if rows.num_rows]


def retain(processor: Processor, batch: Rows) -> None:
    """Retain published events for later trees, and drop those that are older than the horizon of each such tree."""
    processor.unbuilt = {number: roots for number, roots in processor.unbuilt.items() if roots}
    building = [change.at for change in _known(processor) if change.number in processor.unbuilt]
    floor = min([processor.published, *building, *(change.at for change in processor.pending)]) - processor.horizon_us
    retained = (*processor.retained, (0, batch))
    processor.retained = [one for one in retained if one[1].num_rows and int(one[1].ts.max()) >= floor]


def tree_ended(processor: Processor, node: TreeNode) -> None:
    """Send the state of consuming rules to the next tree, after a tree has ended here; retire the tree at its root."""
    number = min(change.number for change in _known(processor) if _ends(change, node.tree))
    for rule, data in _memories(node):
        processor.memories.append(m.Memory(number, root_of(node.tree), rule, data))
    forward_memories(processor)
    if node.parent is None:
        followed = processor.strategy.single or any(
            change.number == number and processor.name in change.built for change in _known(processor)
        )
        receive_retire(processor, "", m.Retire(node.tree, followed))


def receive_memory(processor: Processor, sender: str, message: m.Memory) -> None:
    processor.memories.append(message)
    forward_memories(processor)


def forward_memories(processor: Processor) -> None:
    """Forward the state of each consuming rule towards the processor that decides the rule in the new tree.

    If that is this processor, restore the rule. A processor that leaves sends the state to its successor. A state whose
    tree is not ready here yet waits.
    """
    waiting, processor.memories = processor.memories, []
    for memory in waiting:
        trees = [tree for tree in processor.tree_nodes if number_of(tree) == memory.number]
        fitting = [tree for tree in trees if processor.strategy.single or root_of(tree) == memory.root]
        node = processor.tree_nodes[fitting[0]] if fitting else None
        change = processor.changes.get(memory.number)
        if change is not None and processor.name in change.left:
            if processor.successor is not None:
                processor.send(processor.successor, memory)
        elif node is None or not node.ready:
            processor.memories.append(memory)
        elif (child := _decider(node, memory.rule)) is not None:
            if child == HERE:
                _recall(node, memory.rule, memory.data)
            else:
                processor.send(child, memory)
        elif node.parent is not None:
            processor.send(node.parent, memory)


def _memories(node: TreeNode) -> list[tuple[str, bytes]]:
    """Return the names of the consuming rules that are decided here, each with the state of its detector."""
    states = [(one.wanted, one.snapshot()) for one in node.evaluators if one.consuming]
    return [(rule, data) for (rule,), data in states if data is not None]


def _decider(node: TreeNode, rule: str) -> str | None:
    """Return the child that decides `rule`, HERE, or None if the rule is decided further up in the tree."""
    if any(item.key == rule for item in node.deployed.items):
        return HERE
    return next((child for child, (_, names) in node.deployed.whole.items() if rule in names), None)


def _recall(node: TreeNode, rule: str, data: bytes) -> None:
    """Restore the detector of a consuming rule from `data`, its state in the previous tree, and continue."""
    for evaluator in node.evaluators:
        if evaluator.consuming and rule in evaluator.wanted:
            evaluator.restore(data)
    node.recalled.add(rule)
    node.advance()


def receive_retire(processor: Processor, sender: str, message: m.Retire) -> None:
    """Remove a tree and forward Retire to its children; if the tree served the sinks, serve them from the next tree."""
    node = processor.tree_nodes.pop(message.tree)
    processor.rerouted()
    for child in sorted(node.children):
        processor.send(child, message)
    number, root = number_of(message.tree), root_of(message.tree)
    later = min(change.number for change in _known(processor) if _ends(change, message.tree))
    if not message.followed:
        processor.memories = [one for one in processor.memories if (one.number, one.root) != (later, root)]
    if number == processor.served and (processor.strategy.single or root == processor.name):
        own = [number_of(tree) for tree in processor.tree_nodes if root_of(tree) == processor.name]
        processor.served = later if processor.strategy.single else min(own, default=later)
        waiting, processor.early_matches = processor.early_matches, []
        for tree, batch, at in waiting:
            decisions.deliver_to_sinks(processor, tree, batch, at)
