"""Would the checkers notice? Replicas with one thing wrong, for tests and for the study.

Each takes away something that the proof needs: the filter of duplicates, the acknowledgements of all, leaders (plain
active standby: everybody sends, nothing is filtered).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tocsin.overlay.replicas.messages import Bundle
from tocsin.overlay.replicas.queues import Incoming, Outgoing


class Unfiltered(Incoming):
    """Takes what it has taken already once more."""

    def accept(self, bundle: Bundle) -> bool:
        if super().accept(bundle):
            return True
        if bundle.number <= self.upto:
            self.late.append(bundle)
        return False


class Hasty(Outgoing):
    """Prunes what one receiver has."""

    enough = 1

    def frontier(self) -> int:
        heard = sorted((self.acked.get(name, (0, self.floor))[1] for name in self.receivers), reverse=True)
        return max(heard[min(self.enough, len(heard)) - 1], self.floor)


class Careless(Hasty):
    """Prunes what two receivers have, however many there are."""

    enough = 2


FLAWS: Mapping[str, Mapping[str, Any]] = {
    "none": {},
    "no filter": {"Incoming": Unfiltered},
    "pruned after one": {"Outgoing": Hasty},
    "pruned after two": {"Outgoing": Careless},
    "active standby": {"Incoming": Unfiltered, "leading": property(lambda replica: replica.ready)},
}
