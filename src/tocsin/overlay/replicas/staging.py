"""What is asked of the groups until rules are deployed?

Replicas begin with nothing but rules, types and links. Trees, tables and partial rules come about as everywhere else,
by what processors say to each other, here in rounds and among failures. The host's part is commands, which feeds hand
over like events:

    start, if there is a single tree ─► lead ─► advertise ─► subscribe          or root ─► advertise ─► subscribe

Rounds are the same everywhere, so a host knows without asking when a flood has come to its end: after as many rounds as
the longest of the shortest ways has links.
"""

from __future__ import annotations

from collections.abc import Mapping

from tocsin.overlay.replicas.messages import Command
from tocsin.overlay.sites import Sites, place
from tocsin.overlay.strategies import Strategy

Commands = Mapping[str, tuple[Command, ...]]
"""By group."""


def stages(sites: Sites, strategy: Strategy) -> list[Commands]:
    """What hosts ask of their processors, one after another."""
    sinks: dict[str, list[Command]] = {}
    for sink, wanted in sorted(sites.sinks.items()):
        sinks.setdefault(place(sink), []).append(Command("subscribe", (sink, wanted)))
    everywhere = sites.processors
    if strategy.single:
        trees: list[Commands] = [{name: (Command(word),) for name in everywhere} for word in ("start", "lead")]
    else:
        trees = [{name: (Command("root"),) for name in sorted(sinks)}]
    offers = {
        name: (Command("advertise", ("", tuple(sorted(types)))),) for name, types in sorted(sites.sources.items())
    }
    return [*trees, offers, {name: tuple(wishes) for name, wishes in sinks.items()}]


def deploying(sites: Sites, strategy: Strategy, rounds: int) -> list[Commands]:
    """The stages with pauses, for so many rounds an epoch: down a tree, up and down again, and acknowledgements."""
    pause = -(-(3 * sites.reach + 2) // rounds) - 1
    return [commands for stage in stages(sites, strategy) for commands in (stage, *({},) * pause)]
