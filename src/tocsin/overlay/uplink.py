"""What goes up to the father, and what is kept for him? No event goes up twice in one tree.

An event goes up in one of four ways: its type goes through (`deployment`), it meets a pushed partial rule without
clauses and went up as it came, it was part of what a pushed partial rule found, or it was asked for. The last two are
remembered by id for as long as the windows reach. What is returned here is to be sent now.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from tocsin.overlay.evaluation import Types, meeting
from tocsin.overlay.messages import Asked, Request
from tocsin.overlay.pulling import NOTHING, Found, Kept
from tocsin.overlay.timing import BEGINNING, Array
from tocsin.plans.splitting import Partial

REMEMBERED = 1024
"""With fewer events than this it is not worth while to look which can be forgotten."""


@dataclass
class Uplink:
    """What the father asked for, and what of it was sent or is kept."""

    asked: tuple[Asked, ...] = ()
    simple: tuple[Partial, ...] = ()
    """Those without clauses that are decided here, event by event."""
    sent: dict[str, int] = field(default_factory=dict)
    """Events that were sent after a look at others, by id, with their time."""
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
        self, asked: tuple[Asked, ...], simple: Sequence[Partial], elsewhere: Iterable[Partial]
    ) -> list[Asked]:
        """The father asks for something else; returns what was pulled and is pushed now, or the other way round.

        `elsewhere`: partial rules that somebody else decides. What is pulled from now on comes first: what it sent must
        be known before anything else is sent.
        """
        before, others = {request.partial: request.pushed for request in self.asked}, set(elsewhere)
        self.asked, self.simple = asked, tuple(simple)
        changed = [request for request in asked if before.get(request.partial, request.pushed) != request.pushed]
        here = [request for request in changed if request.partial not in others]
        return sorted(here, key=lambda request: request.pushed)

    def keep_pulled(self, elsewhere: Iterable[Partial]) -> None:
        """Keeps events for what is pulled, and no other."""
        pulled = {request.partial for request in self.asked if not request.pushed} - set(elsewhere)
        self.kept = {part: self.kept.get(part) or Kept() for part in pulled}

    def switched(self, request: Asked, known: Iterable[tuple[pa.Table, Array]], upto: int, types: Types) -> list[Found]:
        """A partial rule is pushed from now on: what was kept goes up, and what has just arrived. Or it is pulled from
        now on: what went up as it came is remembered. `known`: events that were not released yet, or may come up again.
        """
        part = request.partial
        found: list[Found] = []
        if request.pushed and part in self.kept:
            events, at = self.kept[part].everything()
            if events is not None:
                found.append(self.unsent(events, at, types, but=part))
        if not part.bare:
            return found
        since = self.relaying.get(part, BEGINNING)
        self.relaying[part] = upto
        kept = [(kept.events, kept.at) for kept in self.kept.values() if kept.events is not None]
        for events, at in known if request.pushed else (*known, *kept):
            rows = np.nonzero(meeting(part.rule.anchor, events, types))[0]
            met = events.take(rows)
            ts = met["ts"].to_numpy()
            if request.pushed:
                fresh = ts >= upto
                found.append(self.unsent(met.filter(pa.array(fresh)), at[rows][fresh], types, but=part))
            else:
                self.sent.update(
                    zip(met["id"].filter(pa.array(ts >= since)).to_pylist(), ts[ts >= since].tolist(), strict=True)
                )
        return found

    def found_by(self, part: Partial, events: pa.Table, heads: Array, at: Array, types: Types) -> tuple[Found, Found]:
        """Events that a partial rule found, with the times of their heads: those to push, and those to answer with."""
        self.found[part] = self.found.get(part, 0) + len(set(events["id"].to_pylist()))
        if part in self.pushed:
            return self.unsent(events, at, types), NOTHING
        if part not in self.kept:
            return NOTHING, NOTHING
        wanted, when = self.kept[part].add(events, heads, at)
        return NOTHING, NOTHING if wanted is None else self.unsent(wanted, when, types)

    def passed(self, part: Partial, events: pa.Table, at: Array, types: Types) -> Found:
        """Released events of a partial rule without clauses: pushed ones have gone up as they came."""
        self.found[part] = self.found.get(part, 0) + events.num_rows
        if part not in self.kept or not events.num_rows:
            return NOTHING
        wanted, when = self.kept[part].add(events, events["ts"].to_numpy(), at)
        return NOTHING if wanted is None else self.unsent(wanted, when, types)

    def awakened(self, part: Partial, requests: Iterable[Request], at: Array, types: Types) -> Found:
        """What is kept of that which is asked for."""
        if part not in self.kept:
            return NOTHING
        wanted, when = self.kept[part].asked(requests, at)
        return NOTHING if wanted is None else self.unsent(wanted, when, types)

    def unsent(self, events: pa.Table, at: Array, types: Types, but: Partial | None = None) -> Found:
        """The events that did not go up before, which they do now; of partial rules that are relayed (`but` one) they
        went as they came."""
        gone = np.zeros(events.num_rows, bool)
        for part in self.relayed:
            if part != but:
                met = meeting(part.rule.anchor, events, types)
                gone |= met & (events["ts"].to_numpy() >= self.relaying.get(part, BEGINNING))
        new = []
        for row, (id, ts) in enumerate(zip(events["id"].to_pylist(), events["ts"].to_pylist(), strict=True)):
            if not gone[row] and id not in self.sent:
                self.sent[id] = ts
                new.append(row)
        return (events.take(new), at[new]) if new else NOTHING

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
            self.sent = {id: ts for id, ts in self.sent.items() if ts >= floor}
