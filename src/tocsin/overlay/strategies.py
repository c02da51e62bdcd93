"""Which trees are there, what goes down them, and are events sent at once or when asked for? (T-Rex, 3.2, 3.5 and 4)

The protocol is one; a strategy is three words of data.
"""

from __future__ import annotations

from dataclasses import dataclass

from tocsin.errors import TocsinError, nearest


@dataclass(frozen=True, slots=True)
class Strategy:
    """`single`: one tree, of an elected leader, else one for each processor with sinks. `splits`: rules are split and
    decided on the way, else all events go to the root. `pulls`: events of slave rules stay until they are asked for.
    `eager`: there is always a master, the one with the lowest rate, even where pushing everything would cost less.
    """

    name: str
    single: bool
    splits: bool
    pulls: bool
    eager: bool = False


STRATEGIES = {
    strategy.name: strategy
    for strategy in (
        Strategy("Centr", single=True, splits=False, pulls=False),
        Strategy("ST", single=True, splits=True, pulls=False),
        Strategy("MT", single=False, splits=True, pulls=False),
        Strategy("STpp", single=True, splits=True, pulls=True),
        Strategy("MTpp", single=False, splits=True, pulls=True),
    )
}
"""The five that the paper compares."""


def strategy(name: str) -> Strategy:
    """The strategy of a name, in any case."""
    found = {known.lower(): value for known, value in STRATEGIES.items()}.get(name.lower())
    if found is None:
        raise TocsinError(f"there is no strategy '{name}'. {nearest(name, STRATEGIES)}")
    return found
