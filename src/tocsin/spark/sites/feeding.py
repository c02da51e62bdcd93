"""What do a site's sources hand over, and when? Batch k is the same for every replica that asks.

First come the commands that deploy rules, with pauses (`overlay.replicas.staging`), then events by epochs of event
time, and then some empty epochs, so that what is known of the last events gets through to the sinks. An epoch ends
where something changes, and the next begins with what the processor is told of it: all sites take batch k in the same
round, so nobody's sources have gone past that time. A site that has not come yet, or has left, hands over nothing.
"""

from __future__ import annotations

import math
from functools import cached_property

import numpy as np
import pyarrow as pa

from tocsin.overlay.replicas.messages import Command, Part, Publication
from tocsin.overlay.replicas.staging import deploying
from tocsin.spark.sites.plans import SECOND_US, Plan


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
