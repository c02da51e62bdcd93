"""What follows from released events, and where does it go?

Matches of whole rules go up, or wait at the root for their turn. Events that partial rules found go to the father or
are kept for him, and so do those that stand in front of a head that was found. Sinks that want events as they are get
them from the root too.

Who gets which matches, and in which order? What reached a root is put in order, and sinks take what they want.

In a single tree they go down again to those below which somebody wants them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tocsin.language.syntax.ast import Pattern
from tocsin.overlay.evaluation import (
    PART,
    Evaluator,
    Instants,
    Types,
    blockers,
    first_heads,
    meeting,
    participants,
    passing,
    quick,
)
from tocsin.overlay.messages import Matches, Rows, joined
from tocsin.overlay.tree_building import number_of, root_of
from tocsin.overlay.tree_parts import BEGINNING, Array
from tocsin.plans.splitting import Partial

if TYPE_CHECKING:
    from tocsin.overlay.processor import Processor
    from tocsin.overlay.tree_node import Membership


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


NONE = np.zeros(0, np.int64)


def decide(membership: Membership, since: int, upto: int) -> None:
    """Decides what has its last event from `since` on and before `upto`; the history has all that is known."""
    if membership.history is not None and membership.history.num_rows:
        _look(membership, membership.history, since, upto)
    if membership.father is None:
        _deliver(membership)


def _look(membership: Membership, history: Rows, since: int, upto: int) -> None:
    types, times = membership.types, history.ts
    fresh = history.slice(int(np.searchsorted(times, since)))
    for evaluator in membership.evaluators:
        new, known = fresh, history
        if evaluator.consuming and since < membership.start:
            new = fresh.slice(int(np.searchsorted(fresh.ts, membership.start)))
        if evaluator.tallies:
            (rule,) = evaluator.wanted
            known = Rows(membership.tallying.columns(rule, evaluator.tallies, known.table))
        found = evaluator.detect(known, new, max(since, int(times[0])), upto)
        if found.num_rows:
            _found(membership, history, found, evaluator)
    instants = Instants(history, types) if membership.plain else None
    for part in membership.plain:
        assert instants is not None
        _generated(membership, history, part, *quick(part, instants, since, upto))
    if membership.strategy.pulls:
        membership.rates.since = int(times[0]) if membership.rates.since is None else membership.rates.since
        for part in membership.deployed.simple:
            events = fresh.take(meeting(part.rule.anchor, fresh, types))
            at = membership.timing.at(events.ts)
            membership.answer(part, membership.uplink.passed(part, events, at, types))
    for item in membership.deployed.items:
        if isinstance(item.key, Partial) and item.key.blocks_us:
            _block(membership, history, item.key, fresh)
    if membership.father is None:
        _tap(membership, fresh)


def _found(membership: Membership, history: Rows, found: pa.Table, evaluator: Evaluator) -> None:
    """Sends matches of whole rules up, and the events of partial rules."""
    whole = found
    if evaluator.others:
        whole = found.filter(pc.is_in(found["rule"], pa.array([*evaluator.wanted], pa.string())))
    if membership.start > BEGINNING:
        whole = whole.filter(pc.greater_equal(whole["ts"], membership.start))
    if whole.num_rows:
        _up(membership, Rows(whole))
    if any(name.startswith(PART) for name in evaluator.others):
        for name in pc.unique(found["rule"]).to_pylist():
            if name.startswith(PART):
                part = membership.deployed.items[int(name.removeprefix(PART))].key
                assert isinstance(part, Partial)
                rows, heads, every = participants(part, found.filter(pc.equal(found["rule"], name)), history)
                if part not in membership.uplink.kept:
                    rows, heads = first_heads(rows, heads)
                _generated(membership, history, part, rows, heads, every)


def _up(membership: Membership, whole: Rows) -> None:
    at = membership.timing.at(whole.ts)
    if membership.father is None:
        membership.composites.append((whole, at))
    else:
        membership.send(membership.father, Matches(membership.tree, whole, at))


def _generated(
    membership: Membership, history: Rows, part: Partial, rows: Array, heads: Array, new_heads: Array = NONE
) -> None:
    """Sends events of the history that a partial rule found, or keeps them."""
    if part.blocks_us and len(new_heads):
        membership.heads[part] = np.concatenate([membership.heads.get(part, NONE), new_heads])
    at = membership.timing.at(heads)
    (pushed, when), asked_for = membership.uplink.found_by(part, history.take(rows), heads, at, membership.types)
    if pushed is not None:
        membership.push(pushed, when)
    membership.answer(part, asked_for)


def _block(membership: Membership, history: Rows, part: Partial, fresh: Rows) -> None:
    """Heads that come within the window after one that was found are needed too: they stand in front of it."""
    rows = blockers(part, fresh, membership.heads.get(part, NONE), membership.types)
    membership.heads[part] = membership.heads.get(part, NONE)[-1:]
    if len(rows):
        _generated(membership, history, part, rows + history.num_rows - fresh.num_rows, fresh.ts[rows])


def _tap(membership: Membership, fresh: Rows) -> None:
    """Events that sinks want as they are."""
    wanted = np.zeros(fresh.num_rows, bool)
    for pattern in membership.taps:
        wanted |= meeting(pattern, fresh, membership.types)
    wanted &= fresh.ts >= membership.start
    if wanted.any():
        rows = fresh.take(wanted).table
        rows = Rows(rows.append_column("rule", pa.array([""] * rows.num_rows, pa.string())))
        membership.composites.append((rows, membership.timing.at(rows.ts)))


def _deliver(membership: Membership) -> None:
    """At the root: matches before the time that has been decided, from here and from below."""
    if not membership.composites:
        return
    rows = joined([rows for rows, _ in membership.composites])
    at = np.concatenate([at for _, at in membership.composites])
    ready = rows.ts < membership.upto
    membership.composites = []
    if not ready.all():
        membership.composites = [(rows.take(~ready), at[~ready])]
        rows, at = rows.take(ready), at[ready]
    if rows.num_rows:
        membership.deliver(rows, np.maximum(at, membership.timing.at(rows.ts)))
