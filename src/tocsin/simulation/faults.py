"""What goes wrong, and when? A script of faults, drawn from a seed or read from YAML.

A failure that a random schedule found is written down as a script and becomes a test:

    replicas: 2                         # of each group: f + 1
    faults:
      - {at_ms: 30, crash: 2#0}
      - {at_ms: 90, restart: 2#0}       # with nothing; `kept: true`: with the state it had
      - {at_ms: 10, cut: [1#0, 2#1], until_ms: 60}
      - {at_ms: 10, slow: [1#0, 2#1], until_ms: 60, by_ms: 20}
      - {at_ms: 50, suspect: 2#0, by: 2#1}
      - {at_ms: 95, gone: 2#0}          # it will never come back, and everybody is told; unless a restart follows
      - {at_ms: 40, crash: "sink:0/door#1"}   # one of those that stand for a sink
      - {at_ms: 40, crash: "feed:2"}    # sources of a group; they come back with what they had

`cut: [2#1, "*"]` cuts a replica off from all others. What is sent over a cut link is lost, as when a connection breaks,
or with `kept: true` arrives after it has healed. What is on its way to a replica that crashes is lost.

Would the checkers notice? Replicas with one thing wrong, for tests and for the study.

Each takes away something that the proof needs: the filter of duplicates, the acknowledgements of all, leaders (plain
active standby: everybody sends, nothing is filtered).
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from tocsin.errors import TocsinError, nearest
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


KINDS = ("crash", "restart", "cut", "slow", "suspect", "gone")
ALL = "*"
MS = 1000


@dataclass(frozen=True)
class Fault:
    """One fault. `other`: the other end of a link, or who suspects."""

    at_us: int
    kind: str
    who: str
    other: str = ""
    until_us: int = 0
    by_us: int = 0
    kept: bool = False


@dataclass(frozen=True)
class Script:
    """Faults, in order of time, for groups of so many replicas."""

    replicas: int
    faults: tuple[Fault, ...] = ()


def read(text: str) -> Script:
    """A script from YAML.

    >>> read("{replicas: 2, faults: [{at_ms: 30, crash: 2#0}]}").faults
    (Fault(at_us=30000, kind='crash', who='2#0', other='', until_us=0, by_us=0, kept=False),)
    """
    try:
        data = yaml.safe_load(text)
        faults = [_fault(entry) for entry in data.get("faults", ())]
        return Script(int(data["replicas"]), tuple(sorted(faults, key=lambda fault: fault.at_us)))
    except (yaml.YAMLError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise TocsinError(f"this is no script of faults: {error!r}") from None


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


def written(script: Script) -> str:
    """A script as YAML."""
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


def drawn(
    groups: Mapping[str, Sequence[str]],
    duration_us: int,
    seed: int,
    *,
    sinks: Mapping[str, Sequence[str]] | None = None,
    feeds: Sequence[str] = (),
) -> Script:
    """A schedule from a seed: several of crashes with and without return, links that are cut or slow for a while, wrong
    suspicions; and often one replica that is cut off while its peers crash, which is when most is asked of the others.
    Drains of sinks fail like replicas; feeds come back.

    How many replicas of a group may be down at a time is the simulator's matter: it puts off a crash that is too many.
    """
    chance = random.Random(f"faults {seed}")
    count = max(len(replicas) for replicas in groups.values())
    drains = [name for names in (sinks or {}).values() for name in names]
    replicated = [name for replicas in groups.values() for name in replicas]
    everyone = [*replicated, *drains, *feeds]
    faults: list[Fault] = []

    def crash(name: str, at_us: int) -> None:
        faults.append(Fault(at_us, "crash", name))
        back_us = at_us + chance.randrange(duration_us // 20, duration_us // 3)
        if chance.random() < 0.25:
            faults.append(Fault(back_us, "gone", name))
            if chance.random() < 0.4:
                later_us = back_us + chance.randrange(duration_us // 20, duration_us // 3)
                faults.append(Fault(later_us, "restart", name, kept=chance.random() < 0.5))
        else:
            faults.append(Fault(back_us, "restart", name, kept=chance.random() < 0.2))

    for _ in range(chance.randint(1, 3)):
        crash(chance.choice(replicated), chance.randrange(duration_us))
    for _ in range(chance.randint(0, 2) if drains else 0):
        crash(chance.choice(drains), chance.randrange(duration_us))
    for _ in range(chance.randint(0, 1) if feeds else 0):
        name, at_us = chance.choice(feeds), chance.randrange(duration_us)
        back_us = at_us + chance.randrange(duration_us // 20, duration_us // 3)
        faults += [Fault(at_us, "crash", name), Fault(back_us, "restart", name, kept=True)]
    for _ in range(chance.randint(0, 4)):
        here, there = chance.sample(everyone, 2)
        at_us = chance.randrange(duration_us)
        until_us = at_us + chance.randrange(duration_us // 20, duration_us // 2)
        kind = chance.choice(["cut", "cut", "slow"])
        by_us = chance.randrange(duration_us // 10) if kind == "slow" else 0
        kept = kind == "cut" and chance.random() < 0.5
        faults.append(Fault(at_us, kind, here, chance.choice([there, ALL]), until_us, by_us, kept))
    for _ in range(chance.randint(0, 2)):
        group = chance.choice([replicas for replicas in groups.values() if len(replicas) > 1] or [["", ""]])
        accused, accuser = chance.sample(list(group), 2)
        faults.append(Fault(chance.randrange(duration_us), "suspect", accused, accuser))
    if count > 1 and chance.random() < 0.7:
        replicas = list(chance.choice([*groups.values(), *(sinks or {}).values()]))
        chance.shuffle(replicas)
        at_us = chance.randrange(duration_us // 2)
        until_us = at_us + chance.randrange(duration_us // 5, duration_us // 2)
        faults.append(Fault(at_us, "cut", replicas[0], ALL, until_us, kept=chance.random() < 0.3))
        together_us = at_us + chance.randrange(duration_us // 20, duration_us // 5)
        for name in replicas[1:]:
            crash(name, together_us + chance.randrange(duration_us // 50))
    return Script(count, tuple(sorted(faults, key=lambda fault: fault.at_us)))


def failing(
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
    """In each step every replica that is up fails with a probability, and comes back after a time (Section VI).

    What fails at some probability fails at a higher one too, however many replicas there are, so that runs compare."""
    faults: list[Fault] = []
    for name in [name for replicas in groups.values() for name in replicas]:
        chance = random.Random(f"failing {seed} {name}")
        back_us = 0
        for step in range(steps):
            at_us = since_us + step * step_us + chance.randrange(step_us)
            fails = chance.random() < p_fail
            if fails and at_us >= back_us:
                back_us = at_us + recovery_us
                faults += [Fault(at_us, "crash", name), Fault(back_us, "restart", name, kept=kept)]
    count = max(len(replicas) for replicas in groups.values())
    return Script(count, tuple(sorted(faults, key=lambda fault: fault.at_us)))
