"""What if processors, links, sources and sinks come and go while events flow? A tree has its time.

A *change* takes effect at one event time T, the same everywhere, stated before any source has gone past it. The trees
that it concerns are built anew beside the old ones (`trees`), under the number of the change. The old tree gets the
events before T and delivers the matches before T, then its root retires it. The new one gets the events from T on, and
those before T that windows can reach: every processor keeps the events of its own sources for as long as the rules
look back. Matches before T it does not deliver. So at each moment of event time one tree is responsible, all that it
decides on is there, and nothing is delivered twice: a match with ts >= T has parts that are younger than T minus the
horizon, and whatever has a say in choosing them is too.

- A sink gets the old tree's matches first: those of the new one wait until the old one is retired here.
- A rule that consumes cannot be begun in the middle. Who decided it takes what its detector remembers at T, and sends
  that over the new tree to who decides it there (Memory), which waits for it. A rule that nobody in a tree wanted
  before begins with events from T on.
- A processor that leaves works for the old trees until they are retired. The events of its sources that windows may
  still reach go to its nearest neighbour, the *heir*, who publishes them in the new trees, and who is the root of the
  single tree if that was the leader.
- What arrives for a change that was not announced here yet waits.
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
from tocsin.overlay.tree_building import number_of, plant, root_of, versioned
from tocsin.overlay.tree_node import Membership
from tocsin.overlay.tree_parts import BEGINNING
from tocsin.plans.splitting import FOREVER_US, HERE

if TYPE_CHECKING:
    from tocsin.overlay.processor import Processor

CHANGES_KEPT = 16
"""So many changes can be under way at once."""


@dataclass(frozen=True)
class Change:
    """How things are at one processor from an event time on (µs): its links with their declared delays, its sources and
    its sinks. `left`: the processors that leave with it. `trees`: the roots of the trees that end with it, None for
    all. `built`: the roots of those that are built, unless there is but one tree.
    """

    number: int
    at: int
    links: Mapping[str, int] = field(default_factory=dict)
    offers: Mapping[str, frozenset[str]] = field(default_factory=dict)
    interests: Mapping[str, tuple[Pattern, ...]] = field(default_factory=dict)
    left: frozenset[str] = frozenset()
    trees: frozenset[str] | None = None
    built: frozenset[str] = frozenset()


def enter(processor: Processor, change: Change) -> None:
    """The host announces a change, in order, before sources publish what happens after it."""
    if change.at < processor.published:
        raise EventError(f"{processor.name} is past {change.at} already: a change must be stated ahead of time")
    latest = (*processor.changes.values(), *processor.pending)[-1]
    if change.number != latest.number + 1 or change.at < latest.at:
        raise EventError(f"after change {latest.number} at {latest.at} cannot come {change.number} at {change.at}")
    old = [tree for tree, one in processor.memberships.items() if one.end < FOREVER_US]
    if old and change.number - min(map(number_of, old)) > CHANGES_KEPT:
        raise EventError(f"there can be at most {CHANGES_KEPT} changes under way at once")
    processor.pending.append(change)
    for membership in list(processor.memberships.values()):
        membership.end = bounds(processor, membership.tree)[1]
        membership.check_end()
    go_on(processor)


def early(processor: Processor, message: m.Message) -> bool:
    """Whether a message belongs to a change that was not entered here yet."""
    tree = getattr(message, "tree", "")
    if number_of(tree) > processor.number:
        return True
    unknown = tree in processor.memberships and processor.memberships[tree].end == FOREVER_US
    return unknown and isinstance(message, m.Retire)


def bounds(processor: Processor, tree: str) -> tuple[int, int]:
    """From which time to which a tree is responsible."""
    later = [change.at for change in _known(processor) if _ends(change, tree)]
    return processor.change_of(tree).at, min(later, default=FOREVER_US)


def _known(processor: Processor) -> tuple[Change, ...]:
    return (*processor.changes.values(), *processor.pending)


def _ends(change: Change, tree: str) -> bool:
    return change.number > number_of(tree) and (change.trees is None or root_of(tree) in change.trees)


def go_on(processor: Processor) -> None:
    """Enters the changes whose time has come: those who leave have handed over, the own tree before stands."""
    while processor.pending:
        change = processor.pending[0]
        gone = change.left & processor.links.keys()
        own = [one for tree, one in processor.memberships.items() if root_of(tree) == processor.name]
        if processor.name not in change.left and any((change.number, name) not in processor.handed for name in gone):
            return
        if not all(membership.ready for membership in own):
            return
        old_links = processor.links
        processor.pending.pop(0)
        processor.changes[change.number] = change
        processor.handed = {key for key in processor.handed if key[0] > change.number}
        processor.unbuilt[change.number] = {""} if processor.strategy.single else set(change.built)
        _forget(processor)
        if processor.name in change.left:
            _leave(processor, change, old_links)
        elif processor.leads if processor.strategy.single else processor.name in change.built:
            if not own and not processor.strategy.single:
                processor.served = change.number
            plant(processor, versioned(processor.name, change.number))
        elif change.trees is None or processor.name in change.trees:
            processor.wanted = ()
        held, processor.held = processor.held, []
        for sender, message in held:
            processor.receive(sender, message)


def _forget(processor: Processor) -> None:
    """Drops changes that no tree here was built for, but the latest."""
    used = {number_of(tree) for tree in processor.memberships} | processor.unbuilt.keys()
    recent = list(processor.changes)[-CHANGES_KEPT:]
    processor.changes = {
        number: change for number, change in processor.changes.items() if number in used or number in recent
    }


def _leave(processor: Processor, change: Change, links: Mapping[str, int]) -> None:
    """Hands over to the neighbours that stay; the nearest is the heir."""
    stay = sorted(link for link in links if link not in change.left)
    processor.heir = min(stay, key=lambda link: (links[link], link), default=None)
    for link in stay:
        message = m.Handover(change.number, link == processor.heir)
        if message.heir:
            rows = [rows.table for _, rows in processor.recent]
            events = pa.concat_tables(rows, promote_options="default") if rows else None
            message = replace(message, leads=processor.leads, wanted=processor.wanted, events=events)
        processor.send(link, message)
    processor.leads = False
    place(processor)


def hand_over(processor: Processor, sender: str, message: m.Handover) -> None:
    processor.handed.add((message.number, sender))
    if message.heir and message.events is not None:
        processor.recent.append((message.number, Rows(message.events)))
    if message.leads:
        processor.leads, processor.wanted = True, message.wanted
    go_on(processor)


def begun(processor: Processor, membership: Membership) -> None:
    """A new tree is deployed here: what its windows can reach of the events of the own sources goes up."""
    bit = np.uint64(1 << sorted(processor.memberships).index(membership.tree))
    for rows in reached(processor, membership):
        at = np.maximum(rows.ts, min(processor.published, membership.start))
        processor.own(rows, np.full(rows.num_rows, bit), at)
    if processor.published > BEGINNING:
        upto = min(processor.published, membership.end)
        membership.receive_progress(HERE, m.Progress(membership.tree, upto))
    unbuilt = processor.unbuilt.get(number_of(membership.tree), set())
    unbuilt.discard("" if processor.strategy.single else root_of(membership.tree))
    place(processor)
    go_on(processor)


def reached(processor: Processor, membership: Membership) -> list[Rows]:
    """Events of own sources, and of those whose heir this is, that a new tree needs."""
    found = []
    for number, rows in processor.recent:
        if number <= number_of(membership.tree):
            near = (rows.ts >= membership.start - processor.horizon_us) & (rows.ts < membership.end)
            found.append(rows.take(near))
    return [rows for rows in found if rows.num_rows]


def remember(processor: Processor, batch: Rows) -> None:
    """Keeps own events for trees to come, as long as windows reach; those that were not built here yet count too."""
    processor.unbuilt = {number: roots for number, roots in processor.unbuilt.items() if roots}
    building = [change.at for change in _known(processor) if change.number in processor.unbuilt]
    floor = min([processor.published, *building, *(change.at for change in processor.pending)]) - processor.horizon_us
    kept = (*processor.recent, (0, batch))
    processor.recent = [one for one in kept if one[1].num_rows and int(one[1].ts.max()) >= floor]


def ended(processor: Processor, membership: Membership) -> None:
    """A tree has come to its end here: who consumed hands on what it remembers, and the root retires the tree."""
    number = min(change.number for change in _known(processor) if _ends(change, membership.tree))
    for rule, data in _memories(membership):
        processor.memories.append(m.Memory(number, root_of(membership.tree), rule, data))
    place(processor)
    if membership.father is None:
        followed = processor.strategy.single or any(
            change.number == number and processor.name in change.built for change in _known(processor)
        )
        retire(processor, "", m.Retire(membership.tree, followed))


def remembered(processor: Processor, sender: str, message: m.Memory) -> None:
    processor.memories.append(message)
    place(processor)


def place(processor: Processor) -> None:
    """Memories go to who decides the rule in the new tree: here, below, or further up; to the heir from who leaves."""
    waiting, processor.memories = processor.memories, []
    for memory in waiting:
        trees = [tree for tree in processor.memberships if number_of(tree) == memory.number]
        found = [tree for tree in trees if processor.strategy.single or root_of(tree) == memory.root]
        membership = processor.memberships[found[0]] if found else None
        change = processor.changes.get(memory.number)
        if change is not None and processor.name in change.left:
            if processor.heir is not None:
                processor.send(processor.heir, memory)
        elif membership is None or not membership.ready:
            processor.memories.append(memory)
        elif (child := _decider(membership, memory.rule)) is not None:
            if child == HERE:
                _recall(membership, memory.rule, memory.data)
            else:
                processor.send(child, memory)
        elif membership.father is not None:
            processor.send(membership.father, memory)


def _memories(membership: Membership) -> list[tuple[str, bytes]]:
    """What the rules that consume remember here."""
    found = [(one.wanted, one.snapshot()) for one in membership.evaluators if one.consuming]
    return [(rule, data) for (rule,), data in found if data is not None]


def _decider(membership: Membership, rule: str) -> str | None:
    """The child that decides a rule, or here; None if it is neither here nor below."""
    if any(item.key == rule for item in membership.deployed.items):
        return HERE
    return next((child for child, (_, names) in membership.deployed.whole.items() if rule in names), None)


def _recall(membership: Membership, rule: str, data: bytes) -> None:
    """A rule goes on with what it remembers from another tree."""
    for evaluator in membership.evaluators:
        if evaluator.consuming and rule in evaluator.wanted:
            evaluator.restore(data)
    membership.recalled.add(rule)
    membership.advance()


def retire(processor: Processor, sender: str, message: m.Retire) -> None:
    """A tree is not needed any more; sinks get from now on what came from the next one."""
    membership = processor.memberships.pop(message.tree)
    processor.rerouted()
    for child in sorted(membership.children):
        processor.send(child, message)
    number, root = number_of(message.tree), root_of(message.tree)
    later = min(change.number for change in _known(processor) if _ends(change, message.tree))
    if not message.followed:
        processor.memories = [one for one in processor.memories if (one.number, one.root) != (later, root)]
    if number == processor.served and (processor.strategy.single or root == processor.name):
        own = [number_of(tree) for tree in processor.memberships if root_of(tree) == processor.name]
        processor.served = later if processor.strategy.single else min(own, default=later)
        waiting, processor.later = processor.later, []
        for tree, batch, at in waiting:
            decisions.notify(processor, tree, batch, at)
