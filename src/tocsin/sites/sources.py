"""What do live sources hand over, and when? Whoever of a site's replicas is first cuts batch k and writes it down.

    feeds/SITE/K            how far the source was read, the events of batch k, and those that are too young for it
    feeds/SITE/taken/NAME   the last batch that a replica has committed
    letters/SITE/K.jsonl    what was no event, or came too late

What has arrived depends on when one looks, so batch k is the file that was there first, and each replica reads it. It
follows from that of k - 1 and from one look at the source. Event time has got to the latest event, less what events
may be `late`; those before are published, the others wait. An event before what was published already is too late, and
a dead letter; so is one that is further `ahead` of the clock than it may be. A source that has been silent for longer
than `idle` is taken to go on with the clock.

Batches that all replicas have are removed, and so are those too far behind: a replica that lacks one takes a peer's
state.

What do a site's sources hand over, and when? Batch k is the same for every replica that asks.

First come the commands that deploy rules, with pauses (`overlay.replicas.staging`), then events by epochs of event
time, and then some empty epochs, so that what is known of the last events gets through to the sinks. An epoch ends
where something changes, and the next begins with what the processor is told of it: all sites take batch k in the same
round, so nobody's sources have gone past that time. A site that has not come yet, or has left, hands over nothing.
"""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tocsin.errors import TocsinError
from tocsin.events.dead_letters import letters
from tocsin.events.files import records
from tocsin.events.times import Clock
from tocsin.overlay.codec import decode, encode
from tocsin.overlay.replicas.messages import Command, Part, Publication
from tocsin.overlay.replicas.replica import group_of
from tocsin.overlay.replicas.state_machine import deploying
from tocsin.overlay.tree_parts import BEGINNING
from tocsin.sites.arrivals import Arrivals
from tocsin.sites.channels import written
from tocsin.sites.site_plan import SECOND_US, Plan


class Feeding:
    """The batches of one site."""

    lost = -1
    """Batches up to here cannot be had any more."""
    refused = 0
    """What of the sources was no event."""

    def __init__(self, plan: Plan, site: str) -> None:
        self.plan, self.site = plan, site
        rounds = plan.hosting.settings.rounds
        self._commands = deploying(plan.begins, plan.strategy, rounds)
        self.first = len(self._commands)
        """The first batch of events."""
        self._epoch_us = round(plan.hosting.epoch_s * SECOND_US)
        count = math.ceil(plan.seconds / plan.hosting.epoch_s)
        changes = [turn.at_us for turn in plan.turns]
        self._ends_us = sorted({*changes, *((number + 1) * self._epoch_us for number in range(count))})
        self.last = self.first + len(self._ends_us) - 1
        # An answer may have to be asked for along the longest way, more than once; trees that are new are built first.
        self.count = self.last + 1 + -(-((8 + 16 * bool(changes)) * plan.reach + 12) // rounds)
        """How many batches there are."""

    @cached_property
    def _events(self) -> pa.Table:
        return self.plan.events.filter(pa.array(np.asarray(self.plan.where) == self.site))

    @property
    def rounds(self) -> int:
        """How many rounds there are in all."""
        return self.count * self.plan.hosting.settings.rounds

    def parts(self, number: int) -> tuple[Part, ...]:
        """A batch."""
        if number < self.first:
            return self._commands[number].get(self.site, ())
        upto = self._end_us(number)
        since = self._end_us(number - 1)
        told = [turn.told.get(self.site) for turn in self.plan.turns if turn.at_us == since]
        changes = tuple(Command("change", (change,)) for change in told if change is not None)
        if not self._there(since):
            return changes
        ts = self._events["ts"].to_numpy()
        first, last = np.searchsorted(ts, [since, upto])
        return (*changes, Publication(self._events.slice(first, last - first), upto))

    def _end_us(self, number: int) -> int:
        """Where an epoch ends."""
        past = number - self.last
        if past > 0:
            return self._ends_us[-1] + past * self._epoch_us
        return self._ends_us[number - self.first] if number >= self.first else 0

    def _there(self, at_us: int) -> bool:
        """Whether the site is there from a time on."""
        states = [self.plan.begins, *(turn.sites for turn in self.plan.turns if turn.at_us <= at_us)]
        return self.site in states[-1].processors

    def taken(self, number: int) -> None:
        """A replica has committed batches up to here; it may ask again all the same."""

    def due(self, number: int, began_us: int, now_us: int) -> bool:
        """Whether a batch can be handed over, if the first events were at `began_us`."""
        if number >= self.count:
            return False
        if number < self.first or number > self.last or not self.plan.hosting.speed:
            return True
        return now_us - began_us >= self._end_us(number) / self.plan.hosting.speed


KEPT_MAX = 1_000
"""Batches that are kept for a replica that stays behind."""
NO_SOURCE_US = 2**60
"""How far a site is that publishes nothing: no other waits for it."""


@dataclass(frozen=True)
class Cut:
    """A batch of a live source: how far that was read, the events before `upto_us`, and the `rest`; what was no event;
    by the clock when this was, and when something last came."""

    position: Any
    upto_us: int
    cut_us: int
    heard_us: int
    events: pa.Table
    rest: pa.Table
    letters: pa.Table


class LiveFeeding:
    """The batches of a site, as replica `name` of it needs them. `arrivals`: what its source brings, if it has one."""

    rounds = None
    """There is no last one."""

    def __init__(self, plan: Plan, name: str, arrivals: Arrivals | None) -> None:
        self.plan, self.name, self.arrivals = plan, name, arrivals
        self.site = group_of(name)
        self._commands = deploying(plan.begins, plan.strategy, plan.hosting.settings.rounds)
        self.first = len(self._commands)
        """The first batch of events."""
        self.folder = plan.hosting.folder / "feeds" / self.site
        self._epoch_us = round(plan.hosting.epoch_s * SECOND_US)
        self._read: dict[int, Cut] = {}
        """The last that was read."""
        self._taken = -1
        self.refused = 0
        """Dead letters."""

    def parts(self, number: int) -> tuple[Part, ...]:
        """A batch that is due."""
        if number < self.first:
            return self._commands[number].get(self.site, ())
        if self.arrivals is None:
            return (Publication(self.plan.events.slice(0, 0), NO_SOURCE_US),) if number == self.first else ()
        cut, before = self._cut(number), self._read.get(number - 1)
        assert cut is not None
        self._read = {number: cut}
        self._bury(number, cut.letters)
        if before is not None and not cut.events.num_rows and cut.upto_us == before.upto_us:
            return ()
        return (Publication(cut.events, cut.upto_us),)

    def due(self, number: int, began_us: int, now_us: int) -> bool:
        """Whether a batch can be handed over; it is cut if it is time and nobody has."""
        if number < self.first or self.arrivals is None or self._path(number).exists():
            return True
        if number <= self.lost:
            return False
        before = self._cut(number - 1)
        if before is not None and now_us - before.cut_us < self._epoch_us:
            return False
        cut = self._look(self.arrivals, before, now_us)
        self.folder.mkdir(parents=True, exist_ok=True)
        written(self._path(number), encode({one.name: getattr(cut, one.name) for one in fields(Cut)}), once=True)
        return True

    @property
    def lost(self) -> int:
        """Batches up to here were removed."""
        numbers = self._numbers()
        return numbers[0] - 1 if numbers else self.first - 1

    def taken(self, number: int) -> None:
        """This replica has committed batches up to here. What no other needs is removed, but the last, on which the
        next depends."""
        if self.arrivals is None or number < self.first or number == self._taken:
            return
        self._taken = number
        marks = self.folder / "taken"
        marks.mkdir(parents=True, exist_ok=True)
        written(marks / self.name, str(number).encode())
        reached = [_number(marks / name) for name in self.plan.replicas(self.site)]
        floor = max(min(reached), max(reached) - KEPT_MAX)
        for old in [old for old in self._numbers() if old < floor]:
            self._path(old).unlink(missing_ok=True)

    def _look(self, arrivals: Arrivals, before: Cut | None, now_us: int) -> Cut:
        """The batch that follows from what has come until now."""
        hosted = self.plan.hosting.live[self.site]
        came = arrivals.look(None if before is None else before.position)
        heard_us = now_us if before is None or came.events.num_rows else before.heard_us
        upto_us = BEGINNING if before is None else before.upto_us
        clock = Clock(now_us, hosted.ahead_us)
        ts = came.events["ts"].to_numpy()
        late, ahead = ts < upto_us, ts > clock.latest_us
        said = f"{self.site} had got beyond that time"
        dead = [
            (f"too late: {said}", row["type"], row["ts"], json.dumps(row))
            for row in records(came.events.filter(pa.array(late)))
        ]
        dead += [
            (clock.reason(row["ts"]), row["type"], row["ts"], json.dumps(row))
            for row in records(came.events.filter(pa.array(ahead)))
        ]
        waiting, ts = came.events.filter(pa.array(~late & ~ahead)), ts[~ahead]
        if before is not None:
            waiting = pa.concat_tables([before.rest, waiting])
        if len(ts):
            upto_us = max(upto_us, int(ts.max()) - hosted.late_us)
        if hosted.idle_us is not None and now_us - heard_us >= hosted.idle_us:
            upto_us = max(upto_us, now_us - hosted.idle_us)
        ready = waiting["ts"].to_numpy() < upto_us
        events = waiting.filter(pa.array(ready))
        order = np.lexsort((events["seq"].to_numpy(), events["ts"].to_numpy()))
        refused = pa.concat_tables([came.letters, letters(dead)])
        return Cut(
            came.position, upto_us, now_us, heard_us, events.take(pa.array(order)),
            waiting.filter(pa.array(~ready)), refused,
        )  # fmt: skip

    def _cut(self, number: int) -> Cut | None:
        """A batch that was cut; none before the first."""
        if number < self.first:
            return None
        if number not in self._read:
            try:
                self._read[number] = Cut(**decode(self._path(number).read_bytes()))
            except FileNotFoundError:
                raise TocsinError(
                    f"{self._path(number)} is missing: without it nobody knows what {self.site} has read of its source"
                ) from None
        return self._read[number]

    def _bury(self, number: int, dead: pa.Table) -> None:
        """Writes down dead letters, the same whoever does."""
        if dead.num_rows:
            self.refused += dead.num_rows
            folder = self.plan.hosting.folder / "letters" / self.site
            folder.mkdir(parents=True, exist_ok=True)
            lines = [json.dumps(row) + "\n" for row in records(dead)]
            written(folder / f"{number:09}.jsonl", "".join(lines).encode(), once=True)

    def _path(self, number: int) -> Path:
        return self.folder / f"{number:012}"

    def _numbers(self) -> list[int]:
        names = os.listdir(self.folder) if self.folder.is_dir() else []
        return sorted(int(name) for name in names if name.isdigit())


def _number(path: Path) -> int:
    try:
        return int(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return -1
