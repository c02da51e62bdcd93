"""What is a placer? Something that adds units to a placement; here they are by name."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from tocsin.errors import TocsinError, nearest
from tocsin.plans.placing.even import Even
from tocsin.plans.placing.placement import Placement
from tocsin.plans.placing.units import Unit
from tocsin.plans.placing.visiri import Random, Sctxpf, Visiri


class Placer(Protocol):
    """Decides where units go. The same placement, units and settings give the same nodes."""

    def place(self, units: Iterable[Unit], placement: Placement) -> None:
        """Adds units to a placement, which may have some already. None of these moves."""


PLACERS = ("even", "visiri", "sctxpf", "random")


def placer(name: str = "even", seed: int = 0) -> Placer:
    """The placer of a name, as its paper sets it; `even` is this project's own and draws no lots.

    >>> placer("visiri").cost_slack
    400.0
    """
    found: dict[str, Placer] = {
        "even": Even(),
        "visiri": Visiri(seed=seed),
        "sctxpf": Sctxpf(seed=seed),
        "random": Random(seed=seed),
    }
    if name not in found:
        raise TocsinError(f"there is no placer '{name}'. {nearest(name, PLACERS)}")
    return found[name]
