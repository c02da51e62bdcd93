"""What follows from released events, and where does it go?

Matches of whole rules go up, or wait at the root for their turn. Events that partial rules found go to the father or
are kept for him, and so do those that stand in front of a head that was found. Sinks that want events as they are get
them from the root too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tocsin.overlay.evaluation import Evaluator, meeting
from tocsin.overlay.finding import PART, blockers, first_heads, participants, quick
from tocsin.overlay.messages import Matches
from tocsin.overlay.participation import Instants
from tocsin.overlay.rows import Rows, joined
from tocsin.overlay.timing import BEGINNING, Array
from tocsin.plans.splitting import Partial

if TYPE_CHECKING:
    from tocsin.overlay.membership import Membership

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
