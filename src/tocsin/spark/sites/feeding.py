"""What do a site's sources hand over, and when? Batch k is the same for every replica that asks.

First come the commands that deploy rules, with pauses (`overlay.replicas.staging`), then events by epochs of event
time, and then some empty epochs, so that what is known of the last events gets through to the sinks.
"""

from __future__ import annotations

import math
from functools import cached_property

import numpy as np
import pyarrow as pa

from tocsin.overlay.replicas.messages import Part, Publication
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
        self._commands = deploying(plan.sites, plan.strategy, rounds)
        self.first = len(self._commands)
        """The first batch of events."""
        self.last = self.first + math.ceil(plan.seconds / plan.hosting.epoch_s) - 1
        # An answer may have to be asked for along the longest way, more than once.
        self.count = self.last + 1 + -(-(8 * plan.sites.reach + 12) // rounds)
        self._epoch_us = round(plan.hosting.epoch_s * SECOND_US)

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
        upto = (number - self.first + 1) * self._epoch_us
        ts = self._events["ts"].to_numpy()
        first, last = np.searchsorted(ts, [upto - self._epoch_us, upto])
        return (Publication(self._events.slice(first, last - first), upto),)

    def taken(self, number: int) -> None:
        """A replica has committed batches up to here; it may ask again all the same."""

    def due(self, number: int, began_us: int, now_us: int) -> bool:
        """Whether a batch can be handed over, if the first events were at `began_us`."""
        if number >= self.count:
            return False
        if number < self.first or number > self.last or not self.plan.hosting.speed:
            return True
        return now_us - began_us >= (number - self.first + 1) * self._epoch_us / self.plan.hosting.speed
