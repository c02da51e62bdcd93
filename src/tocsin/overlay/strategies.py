"""Which trees are there, what goes down them, and are events sent at once or when asked for? (T-Rex, 3.2, 3.5 and 4)

The protocol is one; a strategy is three words of data.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tocsin.errors import TocsinError, nearest


@dataclass(frozen=True, slots=True)
class Strategy:
    """`single`: one tree, of an elected leader, else one for each processor with sinks. `splits`: rules are split and
    decided on the way, else all events go to the root. `pulls`: events of slave rules stay until they are asked for.
    `eager`: there is always a master, the one with the lowest rate, even where pushing everything would cost less.
    `tallies`: aggregates are worked out where the events are (`plans.tallies`).
    """

    name: str
    single: bool
    splits: bool
    pulls: bool
    eager: bool = False
    tallies: bool = False


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
TALLY = "+tally"


def strategy(name: str) -> Strategy:
    """The strategy of a name, in any case; with `+tally` behind it aggregates are worked out on the way.

    >>> strategy("mt+tally").name
    'MT+tally'
    """
    base, tallies = name.lower().removesuffix(TALLY), name.lower().endswith(TALLY)
    found = {known.lower(): value for known, value in STRATEGIES.items()}.get(base)
    if found is not None and tallies and not found.splits:
        raise TocsinError(f"{found.name} sends all events to one place, so nothing is worked out on the way")
    if found is not None and tallies:
        return replace(found, name=found.name + TALLY, tallies=True)
    if found is None:
        raise TocsinError(f"there is no strategy '{name}'. {nearest(name, STRATEGIES)}")
    return found
