"""Generate scripts of faults from a seed, or read them from YAML, and define replicas with deliberate flaws.

When a random script of faults reveals an error, it is written as YAML and becomes a test:

    replicas: 2                         # of each group: f + 1, to tolerate f failures
    faults:
      - {at_ms: 30, crash: 2#0}
      - {at_ms: 90, restart: 2#0}       # without state, or with the state that it had if `kept: true`
      - {at_ms: 10, cut: [1#0, 2#1], until_ms: 60}
      - {at_ms: 10, slow: [1#0, 2#1], until_ms: 60, by_ms: 20}
      - {at_ms: 50, suspect: 2#0, by: 2#1}
      - {at_ms: 95, gone: 2#0}          # decommissioned: other nodes stop waiting for 2#0, unless it restarts
      - {at_ms: 40, crash: "sink:0/door#1"}   # a replica of a sink
      - {at_ms: 40, crash: "feed:2"}    # the source of a group; it restarts with the state that it had

`cut: [2#1, "*"]` cuts a replica off from all other nodes. Messages on a cut link are lost, as when a connection breaks.
With `kept: true`, they arrive after the link has healed. Messages to a replica that has crashed are lost.

`FLAWS` define replicas with deliberate flaws, to test that the checks find errors. Each flaw removes something that the
proof needs: the filter of duplicates, the acknowledgements of all receivers, or the leaders. Without leaders, all
replicas send and nothing is filtered (plain active standby).
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from tocsin.errors import TocsinError, nearest
from tocsin.overlay.replicas.messages import RoundBatch
from tocsin.overlay.replicas.queues import Incoming, Outgoing


class Unfiltered(Incoming):
    """An incoming queue with the flaw that it accepts duplicates."""

    def accept(self, batch: RoundBatch) -> bool:
        if super().accept(batch):
            return True
        if batch.number <= self.upto:
            self.late.append(batch)
        return False


class Hasty(Outgoing):
    """An outgoing queue with the flaw that it drops a batch as soon as one receiver has it."""

    enough = 1

    def frontier(self) -> int:
        heard = sorted((self.acked.get(name, (0, self.floor))[1] for name in self.receivers), reverse=True)
        return max(heard[min(self.enough, len(heard)) - 1], self.floor)


class Careless(Hasty):
    """An outgoing queue with the flaw that it drops a batch as soon as two receivers have it."""

    enough = 2


FLAWS: Mapping[str, Mapping[str, Any]] = {
    "none": {},
    "no filter": {"Incoming": Unfiltered},
    "pruned after one": {"Outgoing": Hasty},
    "pruned after two": {"Outgoing": Careless},
    "active standby": {"Incoming": Unfiltered, "leading": property(lambda replica: replica.ready)},
}


KINDS = ("crash", "restart", "cut", "slow", "suspect", "gone")
ALL = "*"
MS = 1000


@dataclass(frozen=True)
class Fault:
    """A fault of the kind `kind` at the node `who`.

    `other` is the other end of a link, or the replica that suspects `who`. `until_us` is the time at which a link
    heals, and `by_us` the additional delay of a slow link. If `kept` is true, a node keeps its state, or a cut link its
    messages.
    """

    at_us: int
    kind: str
    who: str
    other: str = ""
    until_us: int = 0
    by_us: int = 0
    kept: bool = False


@dataclass(frozen=True)
class Script:
    """Faults in order of time, for groups with `replicas` replicas each."""

    replicas: int
    faults: tuple[Fault, ...] = ()


def read(text: str) -> Script:
    """Read a script of faults from YAML.

    >>> read("{replicas: 2, faults: [{at_ms: 30, crash: 2#0}]}").faults
    (Fault(at_us=30000, kind='crash', who='2#0', other='', until_us=0, by_us=0, kept=False),)
    """
    try:
        data = yaml.safe_load(text)
        faults = [_fault(entry) for entry in data.get("faults", ())]
        return Script(int(data["replicas"]), tuple(sorted(faults, key=lambda fault: fault.at_us)))
    except (yaml.YAMLError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise TocsinError(f"this is not a script of faults: {error!r}") from None


def _fault(entry: Mapping[str, Any]) -> Fault:
    known = {*KINDS, "at_ms", "until_ms", "by_ms", "by", "kept"}
    for name in entry:
        if name not in known:
            raise TocsinError(f"there is no fault '{name}'. {nearest(name, KINDS)}")
    (kind,) = [name for name in entry if name in KINDS]
    who, other = entry[kind] if kind in ("cut", "slow") else (entry[kind], entry.get("by", ""))
    return Fault(
        round(entry["at_ms"] * MS), kind, str(who), str(other), round(entry.get("until_ms", 0) * MS),
        round(entry.get("by_ms", 0) * MS), bool(entry.get("kept", False)),
    )  # fmt: skip


def to_yaml(script: Script) -> str:
    """Write a script of faults as YAML, which `read` can read."""
    lines = [f"replicas: {script.replicas}", "faults:" if script.faults else "faults: []"]
    for fault in script.faults:
        named = [f"at_ms: {fault.at_us / MS:g}"]
        if fault.kind in ("cut", "slow"):
            named.append(f'{fault.kind}: ["{fault.who}", "{fault.other}"]')
        else:
            named.append(f'{fault.kind}: "{fault.who}"')
        named += [f'by: "{fault.other}"'] if fault.kind == "suspect" else []
        named += [f"until_ms: {fault.until_us / MS:g}"] if fault.until_us else []
        named += [f"by_ms: {fault.by_us / MS:g}"] if fault.by_us else []
        named += ["kept: true"] if fault.kept else []
        lines.append(f"  - {{{', '.join(named)}}}")
    return "\n".join(lines) + "\n"


def random_script(
    groups: Mapping[str, Sequence[str]],
    duration_us: int,
    seed: int,
    *,
    sinks: Mapping[str, Sequence[str]] | None = None,
    sources: Sequence[str] = (),
) -> Script:
    """Generate a random script from `seed`, with crashes, links that are cut or slow, and wrong suspicions.

    Some nodes restart after a crash. Often one replica is cut off while its peers crash, which is the hardest case for
    recovery. Sink replicas fail like replicas, and sources restart with their state. The simulator postpones a crash
    that would leave a group without a correct replica.
    """
    rng = random.Random(f"faults {seed}")
    count = max(len(replicas) for replicas in groups.values())
    sink_replicas = [name for names in (sinks or {}).values() for name in names]
    replicated = [name for replicas in groups.values() for name in replicas]
    everyone = [*replicated, *sink_replicas, *sources]
    faults: list[Fault] = []

    def crash(name: str, at_us: int) -> None:
        faults.append(Fault(at_us, "crash", name))
        back_us = at_us + rng.randrange(duration_us // 20, duration_us // 3)
        if rng.random() < 0.25:
            faults.append(Fault(back_us, "gone", name))
            if rng.random() < 0.4:
                later_us = back_us + rng.randrange(duration_us // 20, duration_us // 3)
                faults.append(Fault(later_us, "restart", name, kept=rng.random() < 0.5))
        else:
            faults.append(Fault(back_us, "restart", name, kept=rng.random() < 0.2))

    for _ in range(rng.randint(1, 3)):
        crash(rng.choice(replicated), rng.randrange(duration_us))
    for _ in range(rng.randint(0, 2) if sink_replicas else 0):
        crash(rng.choice(sink_replicas), rng.randrange(duration_us))
    for _ in range(rng.randint(0, 1) if sources else 0):
        name, at_us = rng.choice(sources), rng.randrange(duration_us)
        back_us = at_us + rng.randrange(duration_us // 20, duration_us // 3)
        faults += [Fault(at_us, "crash", name), Fault(back_us, "restart", name, kept=True)]
    for _ in range(rng.randint(0, 4)):
        here, there = rng.sample(everyone, 2)
        at_us = rng.randrange(duration_us)
        until_us = at_us + rng.randrange(duration_us // 20, duration_us // 2)
        kind = rng.choice(["cut", "cut", "slow"])
        by_us = rng.randrange(duration_us // 10) if kind == "slow" else 0
        kept = kind == "cut" and rng.random() < 0.5
        faults.append(Fault(at_us, kind, here, rng.choice([there, ALL]), until_us, by_us, kept))
    for _ in range(rng.randint(0, 2)):
        group = rng.choice([replicas for replicas in groups.values() if len(replicas) > 1] or [["", ""]])
        accused, accuser = rng.sample(list(group), 2)
        faults.append(Fault(rng.randrange(duration_us), "suspect", accused, accuser))
    if count > 1 and rng.random() < 0.7:
        replicas = list(rng.choice([*groups.values(), *(sinks or {}).values()]))
        rng.shuffle(replicas)
        at_us = rng.randrange(duration_us // 2)
        until_us = at_us + rng.randrange(duration_us // 5, duration_us // 2)
        faults.append(Fault(at_us, "cut", replicas[0], ALL, until_us, kept=rng.random() < 0.3))
        together_us = at_us + rng.randrange(duration_us // 20, duration_us // 5)
        for name in replicas[1:]:
            crash(name, together_us + rng.randrange(duration_us // 50))
    return Script(count, tuple(sorted(faults, key=lambda fault: fault.at_us)))


def random_failures(
    groups: Mapping[str, Sequence[str]],
    p_fail: float,
    *,
    step_us: int,
    steps: int,
    recovery_us: int,
    kept: bool,
    seed: int,
    since_us: int = 0,
) -> Script:
    """Generate random failures: in each step every running replica fails with the probability `p_fail`.

    A replica restarts after `recovery_us`. This is the experiment of *strong reliability*, Section VI. A failure that
    happens at some probability also happens at a higher probability, for any number of replicas. So runs with different
    probabilities or numbers of replicas are comparable.
    """
    faults: list[Fault] = []
    for name in [name for replicas in groups.values() for name in replicas]:
        rng = random.Random(f"failing {seed} {name}")
        back_us = 0
        for step in range(steps):
            at_us = since_us + step * step_us + rng.randrange(step_us)
            fails = rng.random() < p_fail
            if fails and at_us >= back_us:
                back_us = at_us + recovery_us
                faults += [Fault(at_us, "crash", name), Fault(back_us, "restart", name, kept=kept)]
    count = max(len(replicas) for replicas in groups.values())
    return Script(count, tuple(sorted(faults, key=lambda fault: fault.at_us)))
