"""Split the sources of a site into numbered batches for its rounds. All replicas of the site get the same batches.

The first batches have the commands that deploy rules, with pauses (`overlay.replicas.state_machine`). The events of
planned sources follow in epochs, which are stretches of event time with one batch each. Some empty epochs come last, so
that the last events reach the sinks. An epoch ends where the plan changes, and the next epoch begins with the change
that the processor receives. All sites take batch k in the same round, so at a change no site has published later
events. A site that has not joined yet, or has left, publishes nothing.

Batches of live sources are files:

    feeds/SITE/K            the position of the source after batch k, the events of the batch, and later events
    feeds/SITE/taken/NAME   the last batch that a replica has committed
    letters/SITE/K.jsonl    dead letters: rows that are not events, or that are too late or too far ahead

Which events have arrived depends on the moment of reading. So the replica that is first creates the file of batch k
from batch k - 1 and one read of the source, and every replica reads this file. The event time of the source is the time
of its latest event minus `late`. Earlier events are published, and later events wait. An event becomes a dead letter if
its time has been published already, or if it is ahead of the clock by more than `ahead`. If a source has no events for
longer than `idle`, its event time follows the clock.

Batches that all replicas have committed are deleted, and so are very old batches. A replica that needs a deleted batch
takes the state of a peer.
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
from tocsin.events.dead_letters import dead_letter_table
from tocsin.events.files import records
from tocsin.events.times import HostClock
from tocsin.overlay.codec import decode, encode
from tocsin.overlay.replicas.messages import Command, Content, Publication
from tocsin.overlay.replicas.replica import group_of
from tocsin.overlay.replicas.state_machine import deployment_batches
from tocsin.overlay.tree_parts import BEGINNING
from tocsin.sites.arrivals import Arrivals
from tocsin.sites.channels import write_file
from tocsin.sites.site_plan import SECOND_US, SitePlan


class PlannedBatches:
    """The batches of a site whose events are in the plan."""

    lost = -1
    """The number of the last batch that is no longer available. Planned batches are always available."""
    rejected = 0
    """The number of dead letters of the source."""

    def __init__(self, plan: SitePlan, site: str) -> None:
        self.plan, self.site = plan, site
        rounds = plan.hosting.settings.rounds
        self._commands = deployment_batches(plan.initial_sites, plan.strategy, rounds)
        self.first = len(self._commands)
        """The number of the first batch with events."""
        self._epoch_us = round(plan.hosting.epoch_s * SECOND_US)
        count = math.ceil(plan.seconds / plan.hosting.epoch_s)
        changes = [change.at_us for change in plan.changes]
        self._ends_us = sorted({*changes, *((number + 1) * self._epoch_us for number in range(count))})
        self.last = self.first + len(self._ends_us) - 1
        # A request may cross the longest path more than once. After a change, new trees must be built before that.
        self.count = self.last + 1 + -(-((8 + 16 * bool(changes)) * plan.diameter + 12) // rounds)
        """The number of batches, with those of commands and empty epochs."""

    @cached_property
    def _events(self) -> pa.Table:
        return self.plan.events.filter(pa.array(np.asarray(self.plan.where) == self.site))

    @property
    def rounds(self) -> int:
        """The number of rounds after which all batches have been processed."""
        return self.count * self.plan.hosting.settings.rounds

    def contents(self, number: int) -> tuple[Content, ...]:
        """Return the contents of batch `number`."""
        if number < self.first:
            return self._commands[number].get(self.site, ())
        end_us = self._end_us(number)
        start_us = self._end_us(number - 1)
        topology_changes = [
            change.topology_changes.get(self.site) for change in self.plan.changes if change.at_us == start_us
        ]
        changes = tuple(Command("change", (change,)) for change in topology_changes if change is not None)
        if not self._exists(start_us):
            return changes
        ts = self._events["ts"].to_numpy()
        first, last = np.searchsorted(ts, [start_us, end_us])
        return (*changes, Publication(self._events.slice(first, last - first), end_us))

    def _end_us(self, number: int) -> int:
        """Return the end of the epoch of batch `number`, or 0 for batches of commands."""
        after_last = number - self.last
        if after_last > 0:
            return self._ends_us[-1] + after_last * self._epoch_us
        return self._ends_us[number - self.first] if number >= self.first else 0

    def _exists(self, at_us: int) -> bool:
        """Return whether the site exists after all changes up to `at_us`."""
        states = [self.plan.initial_sites, *(change.sites for change in self.plan.changes if change.at_us <= at_us)]
        return self.site in states[-1].processors

    def committed(self, number: int) -> None:
        """Ignore that a replica has committed the batches up to `number`. Planned batches are never deleted."""

    def due(self, number: int, started_us: int, now_us: int) -> bool:
        """Return whether batch `number` is available at `now_us`.

        The first events were published at `started_us`.
        """
        if number >= self.count:
            return False
        if number < self.first or number > self.last or not self.plan.hosting.speed:
            return True
        return now_us - started_us >= self._end_us(number) / self.plan.hosting.speed


BATCHES_RETAINED_MAX = 1_000
"""The number of batches that are kept for a slow replica."""
NO_SOURCE_US = 2**60
"""The event time of a site without sources. It is so late that no other site waits for the site."""


@dataclass(frozen=True)
class SourceBatch:
    """A batch of a live source.

    `position` is the position of the source after the batch. `events` are the events before the event time `upto_us`,
    and `rest` the later events that wait. `letters` are dead letters. By the clock, the batch was created at `cut_us`,
    and the last event arrived at `heard_us`.
    """

    position: Any
    upto_us: int
    cut_us: int
    heard_us: int
    events: pa.Table
    rest: pa.Table
    letters: pa.Table


class LiveBatches:
    """The batches of a site with a live source, for its replica `name`.

    `arrivals` reads the source, and is None if the site has no source.
    """

    rounds = None
    """The number of rounds is unknown, because live sources have no end."""

    def __init__(self, plan: SitePlan, name: str, arrivals: Arrivals | None) -> None:
        self.plan, self.name, self.arrivals = plan, name, arrivals
        self.site = group_of(name)
        self._commands = deployment_batches(plan.initial_sites, plan.strategy, plan.hosting.settings.rounds)
        self.first = len(self._commands)
        """The number of the first batch with events."""
        self.folder = plan.hosting.folder / "feeds" / self.site
        self._epoch_us = round(plan.hosting.epoch_s * SECOND_US)
        self._read: dict[int, SourceBatch] = {}
        """The batches that `contents` and `due` read last, by number."""
        self._committed = -1
        self.rejected = 0
        """The number of dead letters of the source."""

    def contents(self, number: int) -> tuple[Content, ...]:
        """Return the contents of batch `number`, which must be available."""
        if number < self.first:
            return self._commands[number].get(self.site, ())
        if self.arrivals is None:
            return (Publication(self.plan.events.slice(0, 0), NO_SOURCE_US),) if number == self.first else ()
        batch, before = self._read_batch(number), self._read.get(number - 1)
        assert batch is not None
        self._read = {number: batch}
        self._write_rejected(number, batch.letters)
        if before is not None and not batch.events.num_rows and batch.upto_us == before.upto_us:
            return ()
        return (Publication(batch.events, batch.upto_us),)

    def due(self, number: int, started_us: int, now_us: int) -> bool:
        """Return whether batch `number` is available at `now_us`.

        Create the batch if an epoch has passed since the last batch and no other replica has created it.
        """
        if number < self.first or self.arrivals is None or self._path(number).exists():
            return True
        if number <= self.lost:
            return False
        before = self._read_batch(number - 1)
        if before is not None and now_us - before.cut_us < self._epoch_us:
            return False
        batch = self._look(self.arrivals, before, now_us)
        self.folder.mkdir(parents=True, exist_ok=True)
        write_file(
            self._path(number), encode({one.name: getattr(batch, one.name) for one in fields(SourceBatch)}), once=True
        )
        return True

    @property
    def lost(self) -> int:
        """The number of the last batch that was deleted."""
        numbers = self._numbers()
        return numbers[0] - 1 if numbers else self.first - 1

    def committed(self, number: int) -> None:
        """Record that this replica has committed the batches up to `number`.

        Delete the batches that no replica needs any more. The last committed batch is kept, because the next batch
        depends on it.
        """
        if self.arrivals is None or number < self.first or number == self._committed:
            return
        self._committed = number
        positions = self.folder / "taken"
        positions.mkdir(parents=True, exist_ok=True)
        write_file(positions / self.name, str(number).encode())
        committed_by = [_number(positions / name) for name in self.plan.replicas(self.site)]
        floor = max(min(committed_by), max(committed_by) - BATCHES_RETAINED_MAX)
        for old in [old for old in self._numbers() if old < floor]:
            self._path(old).unlink(missing_ok=True)

    def _look(self, arrivals: Arrivals, before: SourceBatch | None, now_us: int) -> SourceBatch:
        """Read the source and return the batch that follows `before`, with the events that have arrived so far."""
        live_source = self.plan.hosting.live[self.site]
        arrived = arrivals.look(None if before is None else before.position)
        heard_us = now_us if before is None or arrived.events.num_rows else before.heard_us
        upto_us = BEGINNING if before is None else before.upto_us
        clock = HostClock(now_us, live_source.ahead_us)
        ts = arrived.events["ts"].to_numpy()
        late, ahead = ts < upto_us, ts > clock.latest_us
        reason = f"{self.site} had got beyond that time"
        rejected_rows = [
            (f"too late: {reason}", row["type"], row["ts"], json.dumps(row))
            for row in records(arrived.events.filter(pa.array(late)))
        ]
        rejected_rows += [
            (clock.reason(row["ts"]), row["type"], row["ts"], json.dumps(row))
            for row in records(arrived.events.filter(pa.array(ahead)))
        ]
        waiting, ts = arrived.events.filter(pa.array(~late & ~ahead)), ts[~ahead]
        if before is not None:
            waiting = pa.concat_tables([before.rest, waiting])
        if len(ts):
            upto_us = max(upto_us, int(ts.max()) - live_source.late_us)
        if live_source.idle_us is not None and now_us - heard_us >= live_source.idle_us:
            upto_us = max(upto_us, now_us - live_source.idle_us)
        ready = waiting["ts"].to_numpy() < upto_us
        events = waiting.filter(pa.array(ready))
        order = np.lexsort((events["seq"].to_numpy(), events["ts"].to_numpy()))
        rejected = pa.concat_tables([arrived.letters, dead_letter_table(rejected_rows)])
        return SourceBatch(
            arrived.position, upto_us, now_us, heard_us, events.take(pa.array(order)),
            waiting.filter(pa.array(~ready)), rejected,
        )  # fmt: skip

    def _read_batch(self, number: int) -> SourceBatch | None:
        """Return batch `number`, which must exist, or None if it precedes the first batch with events."""
        if number < self.first:
            return None
        if number not in self._read:
            try:
                self._read[number] = SourceBatch(**decode(self._path(number).read_bytes()))
            except FileNotFoundError:
                raise TocsinError(
                    f"{self._path(number)} is missing: it records how far {self.site} has read its source"
                ) from None
        return self._read[number]

    def _write_rejected(self, number: int, rejected_rows: pa.Table) -> None:
        """Write dead letters to the file of batch `number`, which is the same for every replica."""
        if rejected_rows.num_rows:
            self.rejected += rejected_rows.num_rows
            folder = self.plan.hosting.folder / "letters" / self.site
            folder.mkdir(parents=True, exist_ok=True)
            lines = [json.dumps(row) + "\n" for row in records(rejected_rows)]
            write_file(folder / f"{number:09}.jsonl", "".join(lines).encode(), once=True)

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
