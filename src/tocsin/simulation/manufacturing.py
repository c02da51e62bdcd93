"""A distributed manufacturing process: facilities in a production hierarchy (Strong reliability, Section II, Fig. 1).

Each facility is a site, linked to the one that its parts are shipped to; site 0 is the global management. Types carry
the number of the facility, as each facility has its own sources. The paper's events, by its letters: A `Produced`,
B `Consumed`, C `Stored`, D `Delivered`, E `Price` (of storage), F `Ratio` (of B and C).

Situation A, the production rate: with each part that is finished, how many were within a time before it. The paper
tells it when it changes, and leaves open what a change is; here it is told if there was at least one other.
Situation B, how many parts should be accepted for storage: when the rate changes at the facility or at one that ships
to it, from the last of each of the other events. Both are decided at the facility and delivered to the management.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
import pyarrow as pa

from tocsin.events.types import EventType, Kind
from tocsin.language import parse
from tocsin.language.rules import Pattern, Rule
from tocsin.overlay.replicas.messages import Publication
from tocsin.overlay.sites import Sites
from tocsin.overlay.strategies import STRATEGIES
from tocsin.simulation.groups import Setup
from tocsin.simulation.properties import right
from tocsin.simulation.topologies import both_ways
from tocsin.simulation.trials import epochs

SECOND_US = 1_000_000
RATES = {"Produced": 1.6, "Consumed": 1.6, "Stored": 1.0, "Delivered": 1.0, "Price": 0.2, "Ratio": 0.6}
"""Events a second at each facility."""
BRANCHES = 3
DELAY_US = 5_000
EPOCH_US = 1_000_000


@dataclass(frozen=True)
class Factory:
    """So many facilities, for so many seconds."""

    facilities: int
    seconds: int
    seed: int

    @cached_property
    def parents(self) -> dict[int, int]:
        return {number: (number - 1) // BRANCHES for number in range(1, self.facilities)}

    @cached_property
    def types(self) -> dict[str, EventType]:
        names = [f"{kind}{number}" for number in range(self.facilities) for kind in RATES]
        return {name: EventType(name, (("amount", Kind.DOUBLE),)) for name in names}

    @cached_property
    def rules(self) -> tuple[Rule, ...]:
        text = []
        for number in range(self.facilities):
            text.append(
                f"define SituationA{number}(rate: long) from Produced{number}() and "
                f"1 <= $n=Count(Produced{number}() within 4 s from Produced{number}) where rate = $n"
            )
            ships = [child for child, parent in self.parents.items() if parent == number][:1]
            for which in (number, *ships):
                anchor = f"SituationA{which}"
                rest = "".join(
                    f" and last {kind}{number}() within {window} s from {anchor}"
                    for kind, window in (("Consumed", 4), ("Stored", 5), ("Delivered", 5), ("Price", 20), ("Ratio", 8))
                )
                text.append(
                    f"define SituationB{number}by{which}(rate: long, price: double) from {anchor}(){rest} "
                    f"where rate = {anchor}.rate, price = Price{number}.amount"
                )
        return tuple(rule for rule in parse(" ".join(text)).rules if isinstance(rule, Rule))

    @cached_property
    def sites(self) -> Sites:
        links = both_ways((str(child), str(parent), DELAY_US) for child, parent in self.parents.items())
        sources = {str(n): frozenset(f"{kind}{n}" for kind in RATES) for n in range(self.facilities)}
        return Sites(links, sources, {"0/management": tuple(Pattern(rule.emits.name) for rule in self.rules)})

    @cached_property
    def events(self) -> tuple[pa.Table, list[str]]:
        """All primary events, in order of time, and where they happen."""
        chance = np.random.default_rng([self.seed, 11])
        kinds = [(f"{kind}{n}", str(n), rate) for n in range(self.facilities) for kind, rate in RATES.items()]
        counts = chance.poisson([rate * self.seconds for _, _, rate in kinds])
        total = int(counts.sum())
        which = chance.permutation(np.repeat(np.arange(len(kinds)), counts))
        ts = np.sort(chance.choice(self.seconds * SECOND_US, total, replace=False))
        table = pa.table(
            {
                "type": pa.array([kinds[at][0] for at in which], pa.string()),
                "ts": pa.array(ts, pa.int64()),
                "seq": pa.array(np.zeros(total, np.int64)),
                "id": pa.array(np.arange(total)).cast(pa.string()),
                "amount": pa.array(chance.random(total).round(3)),
            }
        )
        return table, [kinds[at][1] for at in which]

    @cached_property
    def epochs(self) -> list[dict[str, Publication]]:
        events, where = self.events
        count = self.seconds * SECOND_US // EPOCH_US
        return epochs(self.sites.processors, events, where, epoch_us=EPOCH_US, count=count)

    @cached_property
    def expected(self) -> dict[str, list[str]]:
        """What the global management should get."""
        return right(self.rules, self.types, self.sites.sinks, self.events[0], 2**60)

    @cached_property
    def setup(self) -> Setup:
        return Setup(self.sites, STRATEGIES["MT"], self.types, self.rules)


@lru_cache(maxsize=4)
def factory(facilities: int, seconds: int, seed: int) -> Factory:
    """A factory that several runs in one process share."""
    return Factory(facilities, seconds, seed)
