"""Random sites, rules, events and faults, for groups of f+1 replicas, and the violations of each run.

    python -m tests.simulation.schedules --count 5000

runs many schedules, prints the script of each that violates a property, and the number of faults of each kind; with
`--seconds` and `--first` in parts.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter
from dataclasses import dataclass

import pyarrow as pa

from tocsin.events.types import EventType, Kind
from tocsin.language import parse
from tocsin.language.syntax.ast import Pattern
from tocsin.overlay.replicas.queues import Settings
from tocsin.overlay.replicas.replica import replica_names
from tocsin.overlay.replicas.state_machine import SINK, SOURCE
from tocsin.overlay.strategies import STRATEGIES, Sites
from tocsin.simulation.checking import Violation, expected_ids
from tocsin.simulation.faults import Fault, Script, random_script, to_yaml
from tocsin.simulation.replica_groups import ReplicatedSetup
from tocsin.simulation.replicated import ReplicatedNetwork, play, source_batches

TYPES = {name: EventType(name, (("v", Kind.INT),)) for name in "ABC"}
RULES = (
    "define P() from C() and last B() within 60 ms from C and each A() within 60 ms from B",
    "define Q() from B(v=1) and last C() within 40 ms from B and not A() between C and B",
    "define R() from A() and first B() within 50 ms from A",
    "define S() from B() and last A() within 60 ms from B consuming A",
)
EPOCH_US, EPOCHS = 10_000, 10
ROUNDS = 6
LIMIT_US = 4_000_000


@dataclass(frozen=True)
class Case:
    """A generated case."""

    sites: Sites
    rules: tuple  # type: ignore[type-arg]
    events: pa.Table
    where: list[str]
    strategy: str
    f: int
    queue_max: int
    inbox_max: int

    @property
    def setup(self) -> ReplicatedSetup:
        return ReplicatedSetup(self.sites, STRATEGIES[self.strategy], TYPES, self.rules)

    @property
    def expected(self) -> dict[str, list[str]]:
        return expected_ids(self.rules, TYPES, self.sites.sinks, self.events, 2**60)


def draw(seed: int, f: int | None = None) -> Case:
    """Generate a case from a seed."""
    rng = random.Random(f"schedule {seed}")
    f = f or 1 + seed % 3
    count = rng.choice([2, 3, 3, 4])
    names = [str(number) for number in range(count)]
    delays = {}
    for number in range(1, count):
        here, there = names[number], names[rng.randrange(number)]
        delays[here, there] = delays[there, here] = rng.choice([500, 1000, 2000, 4000])
    homes = {type: rng.choice(names) for type in TYPES}
    sources: dict[str, frozenset[str]] = {}
    for type, name in homes.items():
        sources[name] = sources.get(name, frozenset()) | {type}
    rules = parse(" ".join(rng.sample(RULES, rng.choice([1, 2])))).rules
    composite = [rule.emits.name for rule in rules]
    sinks = {}
    for number in range(rng.choice([1, 2])):
        wanted = rng.sample(composite, rng.randint(1, len(composite)))
        sinks[f"{rng.choice(names)}/{number}"] = tuple(Pattern(name) for name in wanted)
    amount = rng.choice([15, 30, 45])
    ts = sorted(rng.sample(range(EPOCH_US * EPOCHS), amount))
    types = [rng.choice("ABC") for _ in ts]
    events = pa.table(
        {
            "type": pa.array(types, pa.string()),
            "ts": pa.array(ts, pa.int64()),
            "seq": pa.array([0] * amount, pa.int64()),
            "id": pa.array([f"e{number}" for number in range(amount)], pa.string()),
            "v": pa.array([rng.randrange(2) for _ in ts], pa.int32()),
        }
    )
    strategy = rng.choice([*STRATEGIES])
    sites, where = Sites(delays, sources, sinks), [homes[type] for type in types]
    return Case(sites, rules, events, where, strategy, f, rng.choice([10, 40, 1000]), rng.choice([4, 10, 1000]))


def play_case(
    case: Case, script: Script | None, seed: int, *, flaw: str = "none", shared: bool = True, **options: object
) -> tuple[ReplicatedNetwork, list[Violation]]:
    """Run a case with a script, or one generated from the seed, and check it. Faults come from the first command
    of deployment on."""
    groups = {name: replica_names(name, case.f + 1) for name in case.sites.processors}
    settings = options.pop("settings", Settings(rounds=ROUNDS, queue_max=case.queue_max, inbox_max=case.inbox_max))
    assert isinstance(settings, Settings)
    setup = case.setup
    if script is None:
        duration_us = (len(setup.deploying(settings.rounds)) + EPOCHS) * EPOCH_US
        sinks = {SINK + sink: replica_names(SINK + sink, case.f + 1) for sink in case.sites.sinks}
        script = random_script(groups, duration_us, seed, sinks=sinks, sources=[SOURCE + name for name in groups])
    network = ReplicatedNetwork(
        setup, script, seed=seed, flaw=flaw, shared=shared, settings=settings, **options,  # type: ignore[arg-type]
    )  # fmt: skip
    cut = source_batches(network.groups, case.events, case.where, epoch_us=EPOCH_US, count=EPOCHS)
    wrong = play(network, cut, epoch_us=EPOCH_US, limit_us=LIMIT_US, expected=case.expected)
    return network, wrong


def scheduled(seed: int, *, flaw: str = "none", f: int | None = None) -> tuple[ReplicatedNetwork, list[Violation]]:
    """Run one schedule. Every tenth runs a processor for each replica, with states as bytes; the others share them."""
    return play_case(draw(seed, f), None, seed, flaw=flaw, shared=flaw != "none" or seed % 10 != 0)


def kind_of(fault: Fault) -> str:
    """Return the kind of a fault, and of the node that fails."""
    whom = {SOURCE: " of a source", SINK: " of a sink replica"}
    kept = ", with its state" if fault.kept and fault.kind == "restart" else ", late" if fault.kept else ""
    return fault.kind + next((words for mark, words in whom.items() if fault.who.startswith(mark)), "") + kept


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--flaw", default="none")
    parser.add_argument("--f", type=int)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after so long, and say where")
    options = parser.parse_args()
    began, bad, done = time.monotonic(), 0, 0
    faults: Counter[str] = Counter()
    totals: Counter[str] = Counter()
    for seed in range(options.first, options.first + options.count):
        if time.monotonic() - began > options.seconds:
            break
        network, wrong = scheduled(seed, flaw=options.flaw, f=options.f)
        done += 1
        faults.update(kind_of(fault) for fault in network.applied)
        totals.update(
            events=network.counts.events, duplicates=network.counts.duplicates, elections=network.counts.elections,
            situations=network.counts.situations, gaps=network.counts.messages["Gap"],
            states=network.counts.messages["State"],
            several=sum(seen for count, seen in network.counts.leaders.items() if count > 1),
        )  # fmt: skip
        if wrong:
            bad += 1
            print(f"seed {seed}:", *map(str, wrong), *map(str, network.lost), sep="\n  ", flush=True)
            if options.flaw == "none":
                print(to_yaml(network.script))
    last = options.first + done - 1
    print(f"{done} schedules to seed {last}, {bad} with violations, {time.monotonic() - began:.0f} s")
    print("faults", dict(sorted(faults.items())))
    print("counts", dict(totals))
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
