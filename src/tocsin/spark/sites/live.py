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
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tocsin.errors import TocsinError
from tocsin.events.clock import Clock
from tocsin.events.files import records
from tocsin.events.letters import letters
from tocsin.overlay.codec import decode, encode
from tocsin.overlay.replicas.messages import Part, Publication
from tocsin.overlay.replicas.replica import group_of
from tocsin.overlay.replicas.staging import deploying
from tocsin.overlay.timing import BEGINNING
from tocsin.spark.sites.arrivals import Arrivals
from tocsin.spark.sites.channels import written
from tocsin.spark.sites.plans import SECOND_US, Plan

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
