"""Decide the rules of a tree node when events are released, and deliver matches at the root.

Matches of whole rules are sent up to the root. Events that partial rules selected are sent to the parent or retained
for it. The same happens to *blockers*: events that could be heads (anchors of a partial rule's matches) and come within
the window after an earlier head. They prevent an older event from being selected by mistake.

The root sorts all matches before the decided time and delivers them to its sinks. Sinks that want primary events get
these from the root, too. In a single tree, matches then go down to the subtrees with sinks that want them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tocsin.language.syntax.ast import Pattern
from tocsin.overlay.evaluation import (
    PARTIAL_PREFIX,
    Evaluator,
    Instants,
    Types,
    blockers,
    find_participants,
    first_heads,
    meeting,
    participants,
    passing,
)
from tocsin.overlay.messages import Matches, Rows, concatenate
from tocsin.overlay.tree_building import number_of, root_of
from tocsin.overlay.tree_parts import BEGINNING, Array
from tocsin.plans.splitting import Partial

if TYPE_CHECKING:
    from tocsin.overlay.processor import Processor
    from tocsin.overlay.tree_node import TreeNode


def receive_matches(processor: Processor, sender: str, message: Matches) -> None:
    """Send matches that came from the parent down, and matches that came from a child up."""
    node = processor.tree_nodes[message.tree]
    if sender == node.parent:
        send_down(processor, node, message.batch, message.at)
    else:
        node.receive_matches(message)


def send_down(processor: Processor, node: TreeNode, batch: Rows, at: Array) -> None:
    """Deliver matches to own sinks; in a single tree, also send them to the children whose subtrees want them."""
    tree, single = node.tree, processor.strategy.single
    if processor.change_of(tree).interests and (single or root_of(tree) == processor.name):
        deliver_to_sinks(processor, tree, batch, at)
    for child in sorted(node.children) if single else ():
        rows = subscribed_rows(node.subscribed.get(child, ()), batch, _known(processor))
        if len(rows):
            processor.send(child, Matches(tree, batch.take(rows), at[rows]))


def deliver_to_sinks(processor: Processor, tree: str, batch: Rows, at: Array) -> None:
    """Deliver matches of `tree` to the sinks here, or store them if the sinks are still served by an earlier tree."""
    if number_of(tree) > processor.served:
        processor.early_matches.append((tree, batch, at))
        return
    for sink, wanted in sorted(processor.change_of(tree).interests.items()):
        rows = subscribed_rows(wanted, batch, _known(processor))
        if len(rows):
            processor.notices.append((sink, batch.take(rows), at[rows]))


def _known(processor: Processor) -> Types:
    return {**processor.types, **{rule.emits.name: rule.emits for rule in processor.rules}}


def sort_matches(batch: Rows, at: Array) -> tuple[Rows, Array]:
    """Sort matches and primary events by `ts`, `seq` and rule, and primary events also by type and id.

    `at` is raised where needed, so that no row is ready before the rows in front of it.
    """
    rules, plain = _ranks(batch["rule"]), pc.equal(batch["rule"], "").combine_chunks().to_numpy(zero_copy_only=False)
    keys: list[Array] = [rules, batch["seq"].to_numpy(), batch.ts]
    if plain.any():
        keys = [*(np.where(plain, _ranks(batch[name]), 0) for name in ("id", "type")), *keys]
    if _ascending(keys):
        return batch, np.maximum.accumulate(at)
    order = np.lexsort(keys)
    return batch.take(order), np.maximum.accumulate(at[order])


def _ranks(column: pa.ChunkedArray) -> Array:
    """Return, for each row of `column`, the rank of its string among the distinct strings of the column."""
    coded = column.combine_chunks().dictionary_encode()
    ranks = np.empty(len(coded.dictionary), np.int64)
    ranks[pc.sort_indices(coded.dictionary).to_numpy()] = np.arange(len(ranks))
    return np.asarray(ranks[coded.indices.to_numpy()])


def _ascending(keys: list[Array]) -> bool:
    """Return whether rows are sorted by the last of `keys`, then by the last but one, and so on."""
    early_matches = np.zeros(max(len(keys[0]) - 1, 0), bool)
    for key in reversed(keys):
        if ((key[1:] < key[:-1]) & ~early_matches).any():
            return False
        early_matches |= key[1:] > key[:-1]
    return True


def subscribed_rows(wanted: Iterable[Pattern], batch: Rows, types: Types) -> Array:
    """Return the numbers of the rows that meet some pattern in `wanted`.

    `types` has the declared types and the types that rules define.
    """
    fits = np.zeros(batch.num_rows, bool)
    by_type: dict[str, list[Pattern]] = {}
    for pattern in wanted:
        by_type.setdefault(pattern.type, []).append(pattern)
    names, codes = batch.types
    for number, name in enumerate(names):
        if name not in by_type:
            continue
        rows = np.nonzero(codes == number)[0]
        if not all(pattern.constraints for pattern in by_type[name]):
            fits[rows] = True
            continue
        some = batch.take(rows)
        for pattern in by_type[name]:
            fits[rows[passing(pattern, some, types)]] = True
    return np.nonzero(fits)[0]


NO_HEADS = np.zeros(0, np.int64)


def decide(node: TreeNode, since: int, upto: int) -> None:
    """Decide the matches of a tree node whose anchors have `since` <= ts < `upto`; at the root, deliver them."""
    if node.history is not None and node.history.num_rows:
        _evaluate(node, node.history, since, upto)
    if node.parent is None:
        _deliver(node)


def _evaluate(node: TreeNode, history: Rows, since: int, upto: int) -> None:
    types, times = node.types, history.ts
    fresh = history.slice(int(np.searchsorted(times, since)))
    for evaluator in node.evaluators:
        new, visible = fresh, history
        if evaluator.consuming and since < node.start:
            new = fresh.slice(int(np.searchsorted(fresh.ts, node.start)))
        if evaluator.aggregates:
            (rule,) = evaluator.wanted
            visible = Rows(node.aggregate_state.columns(rule, evaluator.aggregates, visible.table))
        matches = evaluator.detect(visible, new, max(since, int(times[0])), upto)
        if matches.num_rows:
            _send_matches(node, history, matches, evaluator)
    instants = Instants(history, types) if node.plain else None
    for part in node.plain:
        assert instants is not None
        _send_generated(node, history, part, *find_participants(part, instants, since, upto))
    if node.strategy.pulls:
        node.rates.since = int(times[0]) if node.rates.since is None else node.rates.since
        for part in node.deployed.simple:
            events = fresh.take(meeting(part.rule.anchor, fresh, types))
            at = node.timing.at(events.ts)
            node.answer(part, node.uplink.select_simple(part, events, at, types))
    for item in node.deployed.items:
        if isinstance(item.key, Partial) and item.key.blocks_us:
            _send_blockers(node, history, item.key, fresh)
    if node.parent is None:
        _collect_taps(node, fresh)


def _send_matches(node: TreeNode, history: Rows, matches: pa.Table, evaluator: Evaluator) -> None:
    """Send up the matches of whole rules, and the events that partial rules selected."""
    whole = matches
    if evaluator.others:
        whole = matches.filter(pc.is_in(matches["rule"], pa.array([*evaluator.wanted], pa.string())))
    if node.start > BEGINNING:
        whole = whole.filter(pc.greater_equal(whole["ts"], node.start))
    if whole.num_rows:
        _send_up(node, Rows(whole))
    if any(name.startswith(PARTIAL_PREFIX) for name in evaluator.others):
        for name in pc.unique(matches["rule"]).to_pylist():
            if name.startswith(PARTIAL_PREFIX):
                part = node.deployed.items[int(name.removeprefix(PARTIAL_PREFIX))].key
                assert isinstance(part, Partial)
                rows, heads, every = participants(part, matches.filter(pc.equal(matches["rule"], name)), history)
                if part not in node.uplink.retained:
                    rows, heads = first_heads(rows, heads)
                _send_generated(node, history, part, rows, heads, every)


def _send_up(node: TreeNode, whole: Rows) -> None:
    at = node.timing.at(whole.ts)
    if node.parent is None:
        node.composites.append((whole, at))
    else:
        node.send(node.parent, Matches(node.tree, whole, at))


def _send_generated(
    node: TreeNode, history: Rows, part: Partial, rows: Array, heads: Array, new_heads: Array = NO_HEADS
) -> None:
    """Push or retain the rows of the history that `part` has selected with these heads; answer open requests.

    `new_heads` are the times of all heads of new matches, which later events may block.
    """
    if part.blocks_us and len(new_heads):
        node.heads[part] = np.concatenate([node.heads.get(part, NO_HEADS), new_heads])
    at = node.timing.at(heads)
    (pushed, when), asked_for = node.uplink.select(part, history.take(rows), heads, at, node.types)
    if pushed is not None:
        node.push(pushed, when)
    node.answer(part, asked_for)


def _send_blockers(node: TreeNode, history: Rows, part: Partial, fresh: Rows) -> None:
    """Push or retain the new events that block an earlier head of `part`."""
    rows = blockers(part, fresh, node.heads.get(part, NO_HEADS), node.types)
    node.heads[part] = node.heads.get(part, NO_HEADS)[-1:]
    if len(rows):
        _send_generated(node, history, part, rows + history.num_rows - fresh.num_rows, fresh.ts[rows])


def _collect_taps(node: TreeNode, fresh: Rows) -> None:
    """Add the new primary events that sinks have subscribed to (taps) to the rows that wait for delivery."""
    wanted = np.zeros(fresh.num_rows, bool)
    for pattern in node.taps:
        wanted |= meeting(pattern, fresh, node.types)
    wanted &= fresh.ts >= node.start
    if wanted.any():
        rows = fresh.take(wanted).table
        rows = Rows(rows.append_column("rule", pa.array([""] * rows.num_rows, pa.string())))
        node.composites.append((rows, node.timing.at(rows.ts)))


def _deliver(node: TreeNode) -> None:
    """Deliver the waiting matches before the decided time; call this at the root."""
    if not node.composites:
        return
    rows = concatenate([rows for rows, _ in node.composites])
    at = np.concatenate([at for _, at in node.composites])
    ready = rows.ts < node.upto
    node.composites = []
    if not ready.all():
        node.composites = [(rows.take(~ready), at[~ready])]
        rows, at = rows.take(ready), at[ready]
    if rows.num_rows:
        node.deliver(rows, np.maximum(at, node.timing.at(rows.ts)))
