"""Forward events to the parent, retain events for its requests, and remember which events were sent.

Events of a type are either forwarded as they arrive, or stored until they are released. The label of an event has one
bit for each tree that the event is for. `Routes` is the routing table, which says for each type and tree what happens
to events. It changes only when a deployment changes.

No event is sent twice in one tree. An event is sent for one of four reasons:

1. Its type goes through to the parent (`deployment`).
2. It meets a pushed partial rule without clauses, so it is forwarded on arrival. Such a partial rule is *relayed*.
3. A pushed partial rule with clauses selected it.
4. The parent requested it with an Awaken.

For reasons 3 and 4, `SentEvents` remembers the ids of sent events for as long as windows reach. The events of partial
rules that are pulled are retained (`RetainedEvents`) until the parent can no longer request them.

So an event has been sent if its id is remembered, or if it meets a relayed partial rule and is not older than the time
since which the partial rule is relayed (`Uplink.relaying`). When a new deployment of the parent changes some partial
rules from push to pull or back, `Uplink.take_over` preserves this in three steps:

1. For a partial rule that is pulled from now on, the ids of the events that it relayed are remembered.
2. For a partial rule that is pushed from now on, its retained events, and its events that have arrived but were not
   decided, are sent and their ids are remembered. Events that an unchanged relayed partial rule has sent are left out.
   A partial rule that starts to be relayed has sent nothing yet, so no event is left out because of it.
3. A partial rule that starts to be relayed is relayed from the decided time on. No older events for it can arrive, and
   newer events either arrive later or were sent in step 2.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tocsin import kernels
from tocsin.language.syntax.ast import Pattern
from tocsin.overlay.evaluation import Types, meeting, passing
from tocsin.overlay.messages import RequestedPartial, Rows, WindowRequest
from tocsin.overlay.tree_parts import BEGINNING, Array
from tocsin.plans.splitting import Partial

if TYPE_CHECKING:
    from tocsin.overlay.tree_node import TreeNode

SIZE_MIN = 64


def _zeros(size: int) -> Array:
    return np.zeros(size, np.uint64)


def _free(size: int) -> Array:
    return np.full(size, kernels.identity.FREE, np.int64)


@dataclass
class SentEvents:
    """The ids of sent events with their event times, in a hash table that is at most half full."""

    first: Array = field(default_factory=lambda: _zeros(SIZE_MIN))
    second: Array = field(default_factory=lambda: _zeros(SIZE_MIN))
    ts: Array = field(default_factory=lambda: _free(SIZE_MIN))
    count: int = 0

    def __post_init__(self) -> None:
        """Copy read-only arrays, which come from decoded bytes."""
        self.first, self.second, self.ts = (
            np.require(one, requirements="W") for one in (self.first, self.second, self.ts)
        )

    def __len__(self) -> int:
        return self.count

    def add(self, identities: tuple[Array, Array], ts: Array) -> Array:
        """Add the events with these ids and times; return a mask of the events that were not in the table."""
        if 2 * (self.count + len(ts)) > len(self.ts):
            self._lay_out(self.ts != kernels.identity.FREE, len(ts))
        unseen = np.zeros(len(ts), bool)
        self.count += kernels.identity.insert_ids(self.first, self.second, self.ts, *identities, ts, unseen)
        return unseen

    def forget(self, floor: int) -> None:
        """Drop the events before the time `floor`."""
        self._lay_out(self.ts >= max(floor, kernels.identity.FREE + 1), 0)

    def _lay_out(self, stay: Array, more: int) -> None:
        """Rebuild the table with the entries of the mask `stay`, and with room for `more` entries."""
        first, second, ts = self.first[stay], self.second[stay], self.ts[stay]
        size = 1 << max(2 * (len(ts) + more), SIZE_MIN - 1).bit_length()
        self.first, self.second, self.ts = _zeros(size), _zeros(size), _free(size)
        unseen = np.zeros(len(ts), bool)
        self.count = kernels.identity.insert_ids(self.first, self.second, self.ts, first, second, ts, unseen)


TREES_MAX = 64
"""The largest number of trees, because a label has 64 bits."""


@dataclass
class Routes:
    """The routing table of a processor, in which each tree is one bit.

    For each event type, `always` has the trees in which its events are forwarded, `tested` the patterns that an event
    must meet to be forwarded, and `evaluated` the trees in which its events are evaluated here. `parents` has, for each
    parent, the trees in which it is the parent.
    """

    always: dict[str, int] = field(default_factory=dict)
    tested: dict[str, list[tuple[Pattern, int]]] = field(default_factory=dict)
    evaluated: dict[str, int] = field(default_factory=dict)
    parents: dict[str, int] = field(default_factory=dict)

    def sort(self, batch: Rows, labels: Array, types: Types) -> tuple[Array, Array]:
        """Return two labels for each event: the trees in which it is forwarded, and those in which it is evaluated."""
        names, codes = batch.types
        always = np.array([self.always.get(name, 0) for name in names], np.uint64)[codes]
        tested = [number for number, name in enumerate(names) if name in self.tested]
        if tested:
            order = np.argsort(codes, kind="stable")
            ends = np.searchsorted(codes[order], np.arange(len(names) + 1))
            for number in tested:
                rows = order[ends[number] : ends[number + 1]]
                some = batch.take(rows)
                for pattern, bit in self.tested[names[number]]:
                    always[rows[passing(pattern, some, types)]] |= np.uint64(bit)
        evaluated = np.array([self.evaluated.get(name, 0) for name in names], np.uint64)[codes]
        return always & labels, evaluated & labels


def routes(tree_nodes: Iterable[TreeNode]) -> Routes:
    """Return the routing table of tree nodes; the first node has the lowest bit."""
    table = Routes()
    for bit, node in enumerate(tree_nodes):
        mine = 1 << bit
        if node.parent is not None:
            table.parents[node.parent] = table.parents.get(node.parent, 0) | mine
            for type in node.deployed.through_types:
                table.always[type] = table.always.get(type, 0) | mine
            for part in node.uplink.relayed:
                pattern = part.rule.anchor
                if pattern.constraints:
                    table.tested.setdefault(pattern.type, []).append((pattern, mine))
                else:
                    table.always[pattern.type] = table.always.get(pattern.type, 0) | mine
        for type in node.evaluated_types:
            table.evaluated[type] = table.evaluated.get(type, 0) | mine
    return table


def relabelled(labels: Array, theirs: Sequence[str], ours: Sequence[str]) -> Array:
    """Translate labels from the bits of a neighbour to the bits of this processor.

    `theirs` and `ours` are the names of the trees in the order of the bits. Bits of trees that are not in `ours` are
    dropped.
    """
    if list(theirs) == list(ours):
        return labels
    moved = np.zeros(len(labels), np.uint64)
    for bit, tree in enumerate(theirs):
        if tree in ours:
            there = (labels >> np.uint64(bit)) & np.uint64(1)
            moved |= there << np.uint64(ours.index(tree))
    return moved


TimedRows = tuple[Rows | None, Array]
"""Events to be sent (None for no events), and the send time of each event."""
NO_ROWS: TimedRows = (None, np.zeros(0, np.int64))


@dataclass
class RetainedEvents:
    """The events that a slave retains for its parent, and the parent's requests that are still open.

    `heads` has the time of the head (the anchor of the match) with which each event was selected. `at` has the send
    time that each event would have had if it had been pushed.
    """

    events: pa.Table | None = None
    heads: Array = field(default_factory=lambda: np.zeros(0, np.int64))
    at: Array = field(default_factory=lambda: np.zeros(0, np.int64))
    open: list[tuple[WindowRequest, int]] = field(default_factory=list)
    """The open requests, each with the time at which it was received."""

    def add(self, events: Rows, heads: Array, at: Array) -> TimedRows:
        """Retain new events; return the new events that match an open request."""
        before = len(self.heads)
        self.events = events.table if self.events is None else pa.concat_tables([self.events, events.table])
        self.heads, self.at = np.concatenate([self.heads, heads]), np.concatenate([self.at, at])
        return self._wanted(self.open, before)

    def requested(self, requests: Iterable[WindowRequest], at: Array) -> TimedRows:
        """Return the retained events that match new requests; later events can match them, too."""
        new = list(zip(requests, at.tolist(), strict=True))
        self.open += new
        return self._wanted(new, 0)

    def _wanted(self, requests: list[tuple[WindowRequest, int]], start: int) -> TimedRows:
        if self.events is None or start >= len(self.heads) or not requests:
            return NO_ROWS
        heads = self.heads[start:]
        when = np.full(len(heads), np.iinfo(np.int64).max)
        order = np.argsort(heads, kind="stable")
        ordered = heads[order]
        for request, received in requests:
            first = np.searchsorted(ordered, request.since, "right")
            rows = order[first : np.searchsorted(ordered, request.until, "left")]
            for name, value in request.values if len(rows) else ():
                column = self.events[name].take(rows + start)
                rows = rows[pc.equal(column, value).combine_chunks().fill_null(False).to_numpy(zero_copy_only=False)]
            when[rows] = np.minimum(when[rows], received)
        rows = np.nonzero(when < np.iinfo(np.int64).max)[0]
        if not len(rows):
            return NO_ROWS
        return Rows(self.events.take(rows + start)), np.maximum(when[rows], self.at[rows + start])

    def forget(self, ts: int) -> None:
        """Drop the events whose head is before `ts`."""
        stay = self.heads >= ts
        if self.events is not None and not stay.all():
            self.events = self.events.filter(pa.array(stay))
            self.heads, self.at = self.heads[stay], self.at[stay]

    def close(self, ts: int) -> None:
        """Drop the requests that end at or before `ts`."""
        self.open = [(request, at) for request, at in self.open if request.until > ts]


FORGET_ABOVE = 1024
"""The number of remembered ids above which old ids are dropped."""


@dataclass
class Uplink:
    """The link of a tree node to its parent: requested partial rules, sent events and retained events."""

    requested: tuple[RequestedPartial, ...] = ()
    simple: tuple[Partial, ...] = ()
    """The requested partial rules without clauses that are decided here, for each event alone."""
    sent: SentEvents = field(default_factory=SentEvents)
    """The events that were sent because they were selected or requested, and not relayed on arrival."""
    relaying: dict[Partial, int] = field(default_factory=dict)
    """The event time since which a partial rule is relayed; a partial rule that always was is missing."""
    retained: dict[Partial, RetainedEvents] = field(default_factory=dict)
    """The retained events of each partial rule that is pulled."""
    generated: dict[Partial, int] = field(default_factory=dict)
    """The number of events that each partial rule has selected."""
    parent_upto: int = BEGINNING
    """The event time up to which the parent has decided; it requests no events older than this minus `keep_us`."""

    @property
    def pushed(self) -> frozenset[Partial]:
        return frozenset(request.partial for request in self.requested if request.pushed)

    @property
    def relayed(self) -> list[Partial]:
        """The pushed partial rules without clauses, whose events are forwarded as they arrive."""
        pushed = self.pushed
        return [part for part in self.simple if part in pushed]

    def take_over(
        self,
        requested: tuple[RequestedPartial, ...],
        elsewhere: Iterable[Partial],
        candidates: Sequence[tuple[Rows, Array]],
        upto: int,
        types: Types,
    ) -> list[TimedRows]:
        """Apply new requests of the parent; return the events that must be sent because they are pushed from now on.

        `elsewhere` are the partial rules that a child decides. `candidates` are the stored events: those from `upto` on
        were not decided yet, and older ones may be selected again.
        """
        before = {request.partial: request.pushed for request in self.requested}
        others = set(elsewhere)
        changed = {
            request.partial: request.pushed
            for request in requested
            if before.get(request.partial, request.pushed) != request.pushed and request.partial not in others
        }
        for part in (part for part, pushed in changed.items() if part.bare and not pushed):
            self._remember(part, candidates, types)
        starting = [part for part, pushed in changed.items() if pushed]
        steady = [part for part in self.relayed if part not in changed]
        self.requested = requested
        due: list[TimedRows] = []
        for part in starting:
            if part in self.retained and (events := self.retained[part].events) is not None:
                due.append(self._unsent(Rows(events), self.retained[part].at, types, steady))
            for rows, at in candidates if part.bare else ():
                new = (rows.ts >= upto) & meeting(part.rule.anchor, rows, types)
                due.append(self._unsent(rows.take(new), at[new], types, steady))
        self.relaying.update((part, upto) for part in starting if part.bare)
        pulled = {request.partial for request in requested if not request.pushed} - others
        self.retained = {part: self.retained.get(part) or RetainedEvents() for part in pulled}
        return due

    def _remember(self, part: Partial, candidates: Iterable[tuple[Rows, Array]], types: Types) -> None:
        """Remember the ids of the events that `part` has relayed, because it is not relayed any more."""
        since = self.relaying.pop(part, BEGINNING)
        retained = [
            (Rows(retained.events), retained.at) for retained in self.retained.values() if retained.events is not None
        ]
        for events, _ in (*candidates, *retained):
            gone = (events.ts >= since) & meeting(part.rule.anchor, events, types)
            met = events.take(gone)
            self.sent.add(met.identities, met.ts)

    def select(self, part: Partial, events: Rows, heads: Array, at: Array, types: Types) -> tuple[TimedRows, TimedRows]:
        """Process events that `part` has selected; return the events to push, and the events that answer requests.

        `heads` has the time of the head of each event. The events are retained if the parent pulls them. Otherwise each
        event must appear once, with its earliest head.
        """
        if part not in self.retained:
            self.generated[part] = self.generated.get(part, 0) + events.num_rows
        else:
            self.generated[part] = self.generated.get(part, 0) + len(np.unique(events.identities[0]))
        if part in self.pushed:
            return self.unsent(events, at, types), NO_ROWS
        if part not in self.retained:
            return NO_ROWS, NO_ROWS
        wanted, when = self.retained[part].add(events, heads, at)
        return NO_ROWS, NO_ROWS if wanted is None else self.unsent(wanted, when, types)

    def select_simple(self, part: Partial, events: Rows, at: Array, types: Types) -> TimedRows:
        """Process released events of a partial rule without clauses; return the events that answer requests.

        If the partial rule is pushed, its events were forwarded on arrival already.
        """
        self.generated[part] = self.generated.get(part, 0) + events.num_rows
        if part not in self.retained or not events.num_rows:
            return NO_ROWS
        wanted, when = self.retained[part].add(events, events.ts, at)
        return NO_ROWS if wanted is None else self.unsent(wanted, when, types)

    def answer_requests(self, part: Partial, requests: Iterable[WindowRequest], at: Array, types: Types) -> TimedRows:
        """Return the retained events of `part` that match new requests and were not sent before."""
        if part not in self.retained:
            return NO_ROWS
        wanted, when = self.retained[part].requested(requests, at)
        return NO_ROWS if wanted is None else self.unsent(wanted, when, types)

    def unsent(self, events: Rows, at: Array, types: Types) -> TimedRows:
        """Return the events that were not sent before, and remember their ids as sent."""
        return self._unsent(events, at, types, self.relayed)

    def _unsent(self, events: Rows, at: Array, types: Types, relayed: Iterable[Partial]) -> TimedRows:
        gone = np.zeros(events.num_rows, bool)
        for part in relayed:
            met = meeting(part.rule.anchor, events, types)
            gone |= met & (events.ts >= self.relaying.get(part, BEGINNING))
        if gone.any():
            events, at = events.take(~gone), at[~gone]
        new = self.sent.add(events.identities, events.ts)
        return (events.take(new), at[new]) if new.any() else NO_ROWS

    def released(self, ts: int) -> None:
        """Record that the parent has decided up to `ts`; drop the retained events that it can no longer request."""
        self.parent_upto = ts
        for request in self.requested:
            if request.partial in self.retained:
                self.retained[request.partial].forget(ts - request.keep_us)

    def forget(self, upto: int, horizon_us: int) -> None:
        """Drop the open requests and the remembered ids that cannot be needed after `upto`."""
        for retained in self.retained.values():
            retained.close(upto)
        if len(self.sent) > FORGET_ABOVE:
            reach_us = horizon_us + max((request.keep_us for request in self.requested), default=0)
            floor = (min(upto, self.parent_upto) if self.retained else upto) - 2 * reach_us
            self.sent.forget(floor)
