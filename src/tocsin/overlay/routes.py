"""What goes up to the father, and what is kept for him? No event goes up twice in one tree.

An event goes up in one of four ways: its type goes through (`deployment`), it meets a pushed partial rule without
clauses and went up as it came, it was part of what a pushed partial rule found, or it was asked for. The last two are
remembered by id for as long as the windows reach. What is returned here is to be sent now.

At all times an event has gone up if it is remembered, or if it meets a partial rule that is relayed and is not older
than the time from which on that is so (`relaying`). A new order of the father keeps it that way in three steps, for
all partial rules that change at once. Those that are pulled from now on leave the second half: what they relayed is
remembered. Then what partial rules that are pushed from now on kept, and what of theirs has arrived but was not
decided, is sent and remembered, unless it had gone up by those that were relayed before *and* are after; a partial
rule that starts has relayed nothing yet, so it is no reason to leave anything out. Last, those that start are relayed
from the time on up to which all was decided: nothing older of theirs can arrive any more, and what is newer either
arrives later or was just sent.

Which events went up before? A set of the identities of their ids, with the times of the events.

Where do events go as they arrive? By their type: up to fathers at once, or aside until they are released.

A label says for which trees an event is meant, one bit for each; a table says for each type what happens in which tree.
It is the same until something is deployed.

What does a slave keep? The events that a push would have sent, until the father will not ask for them any more.
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
from tocsin.overlay.messages import Asked, Request, Rows
from tocsin.overlay.tree_parts import BEGINNING, Array
from tocsin.plans.splitting import Partial

if TYPE_CHECKING:
    from tocsin.overlay.tree_node import Membership

LEAST = 64


def _words(size: int) -> Array:
    return np.zeros(size, np.uint64)


def _free(size: int) -> Array:
    return np.full(size, kernels.identity.FREE, np.int64)


@dataclass
class Sent:
    """At most half of the places are taken."""

    first: Array = field(default_factory=lambda: _words(LEAST))
    second: Array = field(default_factory=lambda: _words(LEAST))
    ts: Array = field(default_factory=lambda: _free(LEAST))
    count: int = 0

    def __post_init__(self) -> None:
        """What was read from bytes cannot be written to."""
        self.first, self.second, self.ts = (
            np.require(one, requirements="W") for one in (self.first, self.second, self.ts)
        )

    def __len__(self) -> int:
        return self.count

    def add(self, identities: tuple[Array, Array], ts: Array) -> Array:
        """Adds events; returns for each whether it was not there before."""
        if 2 * (self.count + len(ts)) > len(self.ts):
            self._lay_out(self.ts != kernels.identity.FREE, len(ts))
        unseen = np.zeros(len(ts), bool)
        self.count += kernels.identity.add_unseen(self.first, self.second, self.ts, *identities, ts, unseen)
        return unseen

    def forget(self, floor: int) -> None:
        """Drops events before a time."""
        self._lay_out(self.ts >= max(floor, kernels.identity.FREE + 1), 0)

    def _lay_out(self, stay: Array, more: int) -> None:
        """Keeps what stays, with room for more."""
        first, second, ts = self.first[stay], self.second[stay], self.ts[stay]
        size = 1 << max(2 * (len(ts) + more), LEAST - 1).bit_length()
        self.first, self.second, self.ts = _words(size), _words(size), _free(size)
        unseen = np.zeros(len(ts), bool)
        self.count = kernels.identity.add_unseen(self.first, self.second, self.ts, first, second, ts, unseen)


TREES_MAX = 64
"""An event's label has one bit for each tree."""


@dataclass
class Routes:
    """What happens to events of each type: bits of trees, in which they go up, go up if they pass a test, or are looked
    at; and the bits of each father's trees."""

    always: dict[str, int] = field(default_factory=dict)
    tested: dict[str, list[tuple[Pattern, int]]] = field(default_factory=dict)
    looked: dict[str, int] = field(default_factory=dict)
    fathers: dict[str, int] = field(default_factory=dict)

    def sort(self, batch: Rows, labels: Array, types: Types) -> tuple[Array, Array]:
        """For each event the trees in which it goes up, and those in which it is looked at."""
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
        looked = np.array([self.looked.get(name, 0) for name in names], np.uint64)[codes]
        return always & labels, looked & labels


def routes(memberships: Iterable[Membership]) -> Routes:
    """The table of a processor's memberships, in the order of the bits."""
    found = Routes()
    for bit, membership in enumerate(memberships):
        mine = 1 << bit
        if membership.father is not None:
            found.fathers[membership.father] = found.fathers.get(membership.father, 0) | mine
            for type in membership.deployed.through_types:
                found.always[type] = found.always.get(type, 0) | mine
            for part in membership.uplink.relayed:
                pattern = part.rule.anchor
                if pattern.constraints:
                    found.tested.setdefault(pattern.type, []).append((pattern, mine))
                else:
                    found.always[pattern.type] = found.always.get(pattern.type, 0) | mine
        for type in membership.looked_at:
            found.looked[type] = found.looked.get(type, 0) | mine
    return found


def relabelled(labels: Array, theirs: Sequence[str], ours: Sequence[str]) -> Array:
    """Labels of a neighbour by our bits; trees that we are not in are left out."""
    if list(theirs) == list(ours):
        return labels
    moved = np.zeros(len(labels), np.uint64)
    for bit, tree in enumerate(theirs):
        if tree in ours:
            there = (labels >> np.uint64(bit)) & np.uint64(1)
            moved |= there << np.uint64(ours.index(tree))
    return moved


Found = tuple[Rows | None, Array]
"""Events to be sent, and at which times."""
NOTHING: Found = (None, np.zeros(0, np.int64))


@dataclass
class Kept:
    """Events by the time of the head that they were found with, and requests whose time is not over."""

    events: pa.Table | None = None
    heads: Array = field(default_factory=lambda: np.zeros(0, np.int64))
    at: Array = field(default_factory=lambda: np.zeros(0, np.int64))
    open: list[tuple[Request, int]] = field(default_factory=list)
    """With the time at which each was received."""

    def add(self, events: Rows, heads: Array, at: Array) -> Found:
        """Keeps new events; returns those that were asked for already."""
        before = len(self.heads)
        self.events = events.table if self.events is None else pa.concat_tables([self.events, events.table])
        self.heads, self.at = np.concatenate([self.heads, heads]), np.concatenate([self.at, at])
        return self._wanted(self.open, before)

    def asked(self, requests: Iterable[Request], at: Array) -> Found:
        """The kept events that requests ask for; the requests stay open."""
        new = list(zip(requests, at.tolist(), strict=True))
        self.open += new
        return self._wanted(new, 0)

    def _wanted(self, requests: list[tuple[Request, int]], start: int) -> Found:
        if self.events is None or start >= len(self.heads) or not requests:
            return NOTHING
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
            return NOTHING
        return Rows(self.events.take(rows + start)), np.maximum(when[rows], self.at[rows + start])

    def forget(self, ts: int) -> None:
        """Drops what was found with heads before a time, and requests that end before it."""
        stay = self.heads >= ts
        if self.events is not None and not stay.all():
            self.events = self.events.filter(pa.array(stay))
            self.heads, self.at = self.heads[stay], self.at[stay]

    def close(self, ts: int) -> None:
        """Drops requests for what came before a time: there will be no more of it."""
        self.open = [(request, at) for request, at in self.open if request.until > ts]


REMEMBERED = 1024
"""With fewer events than this it is not worth while to look which can be forgotten."""


@dataclass
class Uplink:
    """What the father asked for, and what of it was sent or is kept."""

    asked: tuple[Asked, ...] = ()
    simple: tuple[Partial, ...] = ()
    """Those without clauses that are decided here, event by event; set when something is deployed."""
    sent: Sent = field(default_factory=Sent)
    """Events that were sent after a look at others."""
    relaying: dict[Partial, int] = field(default_factory=dict)
    """From which event time on events of a partial rule go up as they come, if not always."""
    kept: dict[Partial, Kept] = field(default_factory=dict)
    found: dict[Partial, int] = field(default_factory=dict)
    """How many events each partial rule has found."""
    needless: int = BEGINNING
    """The father has gone on to here: he asks for nothing that is older by more than has to be kept."""

    @property
    def pushed(self) -> frozenset[Partial]:
        return frozenset(request.partial for request in self.asked if request.pushed)

    @property
    def relayed(self) -> list[Partial]:
        """The partial rules whose events go up as they come."""
        pushed = self.pushed
        return [part for part in self.simple if part in pushed]

    def take_over(
        self,
        asked: tuple[Asked, ...],
        elsewhere: Iterable[Partial],
        known: Sequence[tuple[Rows, Array]],
        upto: int,
        types: Types,
    ) -> list[Found]:
        """The father asks for something else: what goes up at once because it is pushed from now on.

        `elsewhere`: partial rules that somebody else decides. `known`: events that were not decided yet (from `upto`
        on), or may come up again.
        """
        before = {request.partial: request.pushed for request in self.asked}
        others = set(elsewhere)
        changed = {
            request.partial: request.pushed
            for request in asked
            if before.get(request.partial, request.pushed) != request.pushed and request.partial not in others
        }
        for part in (part for part, pushed in changed.items() if part.bare and not pushed):
            self._remember(part, known, types)
        starting = [part for part, pushed in changed.items() if pushed]
        steady = [part for part in self.relayed if part not in changed]
        self.asked = asked
        found: list[Found] = []
        for part in starting:
            if part in self.kept and (events := self.kept[part].events) is not None:
                found.append(self._unsent(Rows(events), self.kept[part].at, types, steady))
            for rows, at in known if part.bare else ():
                new = (rows.ts >= upto) & meeting(part.rule.anchor, rows, types)
                found.append(self._unsent(rows.take(new), at[new], types, steady))
        self.relaying.update((part, upto) for part in starting if part.bare)
        pulled = {request.partial for request in asked if not request.pushed} - others
        self.kept = {part: self.kept.get(part) or Kept() for part in pulled}
        return found

    def _remember(self, part: Partial, known: Iterable[tuple[Rows, Array]], types: Types) -> None:
        """Events of a partial rule go up no more as they come: those that did are remembered by id."""
        since = self.relaying.pop(part, BEGINNING)
        kept = [(Rows(kept.events), kept.at) for kept in self.kept.values() if kept.events is not None]
        for events, _ in (*known, *kept):
            gone = (events.ts >= since) & meeting(part.rule.anchor, events, types)
            met = events.take(gone)
            self.sent.add(met.identities, met.ts)

    def found_by(self, part: Partial, events: Rows, heads: Array, at: Array, types: Types) -> tuple[Found, Found]:
        """Events that a partial rule found, with the times of their heads: those to push, and those to answer with.
        What is not kept for pulling comes once, with its earliest head."""
        if part not in self.kept:
            self.found[part] = self.found.get(part, 0) + events.num_rows
        else:
            self.found[part] = self.found.get(part, 0) + len(np.unique(events.identities[0]))
        if part in self.pushed:
            return self.unsent(events, at, types), NOTHING
        if part not in self.kept:
            return NOTHING, NOTHING
        wanted, when = self.kept[part].add(events, heads, at)
        return NOTHING, NOTHING if wanted is None else self.unsent(wanted, when, types)

    def passed(self, part: Partial, events: Rows, at: Array, types: Types) -> Found:
        """Released events of a partial rule without clauses: pushed ones have gone up as they came."""
        self.found[part] = self.found.get(part, 0) + events.num_rows
        if part not in self.kept or not events.num_rows:
            return NOTHING
        wanted, when = self.kept[part].add(events, events.ts, at)
        return NOTHING if wanted is None else self.unsent(wanted, when, types)

    def awakened(self, part: Partial, requests: Iterable[Request], at: Array, types: Types) -> Found:
        """What is kept of that which is asked for."""
        if part not in self.kept:
            return NOTHING
        wanted, when = self.kept[part].asked(requests, at)
        return NOTHING if wanted is None else self.unsent(wanted, when, types)

    def unsent(self, events: Rows, at: Array, types: Types) -> Found:
        """The events that did not go up before, which they do now."""
        return self._unsent(events, at, types, self.relayed)

    def _unsent(self, events: Rows, at: Array, types: Types, relayed: Iterable[Partial]) -> Found:
        gone = np.zeros(events.num_rows, bool)
        for part in relayed:
            met = meeting(part.rule.anchor, events, types)
            gone |= met & (events.ts >= self.relaying.get(part, BEGINNING))
        if gone.any():
            events, at = events.take(~gone), at[~gone]
        new = self.sent.add(events.identities, events.ts)
        return (events.take(new), at[new]) if new.any() else NOTHING

    def released(self, ts: int) -> None:
        """The father has gone on to a time."""
        self.needless = ts
        for request in self.asked:
            if request.partial in self.kept:
                self.kept[request.partial].forget(ts - request.keep_us)

    def forget(self, upto: int, horizon_us: int) -> None:
        """Drops what can neither be found nor asked for again."""
        for kept in self.kept.values():
            kept.close(upto)
        if len(self.sent) > REMEMBERED:
            reach_us = horizon_us + max((request.keep_us for request in self.asked), default=0)
            floor = (min(upto, self.needless) if self.kept else upto) - 2 * reach_us
            self.sent.forget(floor)
