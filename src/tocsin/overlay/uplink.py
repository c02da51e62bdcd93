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
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from tocsin.overlay.evaluation import Types, meeting
from tocsin.overlay.messages import Asked, Request
from tocsin.overlay.pulling import NOTHING, Found, Kept
from tocsin.overlay.rows import Rows
from tocsin.overlay.sent import Sent
from tocsin.overlay.timing import BEGINNING, Array
from tocsin.plans.splitting import Partial

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
