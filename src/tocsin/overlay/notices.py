"""Who gets which matches, and in which order? What reached a root is put in order, and sinks take what they want.

In a single tree they go down again to those below which somebody wants them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tocsin.language.rules import Pattern
from tocsin.overlay.evaluation import Types, passing
from tocsin.overlay.messages import Matches
from tocsin.overlay.rows import Rows
from tocsin.overlay.timing import Array
from tocsin.overlay.trees import number_of, root_of

if TYPE_CHECKING:
    from tocsin.overlay.membership import Membership
    from tocsin.overlay.processor import Processor


def receive(processor: Processor, sender: str, message: Matches) -> None:
    """Matches from the father are on their way down, those from children on their way up."""
    membership = processor.memberships[message.tree]
    if sender == membership.father:
        hand_down(processor, membership, message.batch, message.at)
    else:
        membership.receive_matches(message)


def hand_down(processor: Processor, membership: Membership, batch: Rows, at: Array) -> None:
    """Hands matches to own sinks, and in a single tree to the children below which somebody wants them."""
    tree, single = membership.tree, processor.strategy.single
    if processor.change_of(tree).interests and (single or root_of(tree) == processor.name):
        notify(processor, tree, batch, at)
    for child in sorted(membership.children) if single else ():
        rows = fitting(membership.subscribed.get(child, ()), batch, _known(processor))
        if len(rows):
            processor.send(child, Matches(tree, batch.take(rows), at[rows]))


def notify(processor: Processor, tree: str, batch: Rows, at: Array) -> None:
    """Hands matches of a tree to the sinks that it serves, when their time has come."""
    if number_of(tree) > processor.served:
        processor.later.append((tree, batch, at))
        return
    for sink, wanted in sorted(processor.change_of(tree).interests.items()):
        rows = fitting(wanted, batch, _known(processor))
        if len(rows):
            processor.notices.append((sink, batch.take(rows), at[rows]))


def _known(processor: Processor) -> Types:
    return {**processor.types, **{rule.emits.name: rule.emits for rule in processor.rules}}


def in_order(batch: Rows, at: Array) -> tuple[Rows, Array]:
    """Matches and plain events by time, then rule, then type and id; none is ready before those in front of it."""
    rules, plain = _ranks(batch["rule"]), pc.equal(batch["rule"], "").combine_chunks().to_numpy(zero_copy_only=False)
    keys: list[Array] = [rules, batch["seq"].to_numpy(), batch.ts]
    if plain.any():
        keys = [*(np.where(plain, _ranks(batch[name]), 0) for name in ("id", "type")), *keys]
    if _ascending(keys):
        return batch, np.maximum.accumulate(at)
    order = np.lexsort(keys)
    return batch.take(order), np.maximum.accumulate(at[order])


def _ranks(column: pa.ChunkedArray) -> Array:
    """The place of each string in the order of those that occur."""
    coded = column.combine_chunks().dictionary_encode()
    ranks = np.empty(len(coded.dictionary), np.int64)
    ranks[pc.sort_indices(coded.dictionary).to_numpy()] = np.arange(len(ranks))
    return np.asarray(ranks[coded.indices.to_numpy()])


def _ascending(keys: list[Array]) -> bool:
    """Whether rows are in the order of the last key, then of the one before it, and so on."""
    later = np.zeros(max(len(keys[0]) - 1, 0), bool)
    for key in reversed(keys):
        if ((key[1:] < key[:-1]) & ~later).any():
            return False
        later |= key[1:] > key[:-1]
    return True


def fitting(wanted: Iterable[Pattern], batch: Rows, types: Types) -> Array:
    """The rows that some of the subscriptions ask for; `types`: declared ones and those that rules define."""
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
