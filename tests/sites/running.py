"""Plans of a few sites, and hosts that run in this process, step by step, and can crash at any file."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import inf
from pathlib import Path
from typing import Any

import pytest
import yaml

from tocsin.cli.sites import plan
from tocsin.overlay.replicas.replica import group_of
from tocsin.simulation.checking import expected_ids
from tocsin.sites.arrivals import open_arrivals
from tocsin.sites.channels import FolderChannels
from tocsin.sites.host import Host, received
from tocsin.sites.site_plan import SitePlan

RULES = (Path(__file__).parents[2] / "examples" / "sites" / "fire.tesla").read_text(encoding="utf-8")
FIVE: dict[str, Any] = {
    "topology": {"links": [["hill", "town", 5], ["lake", "town", 8], ["town", "dam", 4], ["dam", "fort", 6]]},
    "rules": RULES,
    "sources": {"hill": {"Smoke": 0.2}, "lake": {"Temp": 4}, "dam": {"Rain": 0.05}, "fort": {"Temp": 1}},
    "values": {"area": ["A1", "A2", "A3"], "value": [20, 60]},
    "sinks": {"town": ["Fire"], "fort": ["Fire", "HeatWave"]},
    "strategies": ["MT"],
    "warm_up": 0,
    "seconds": 120,
    "seed": 3,
    "hosting": {"folder": "run", "epoch": 10, "beat": 0.5, "suspect": 3},
}
THREE: dict[str, Any] = {
    **FIVE,
    "topology": {"links": [["hill", "town", 5], ["town", "dam", 4]]},
    "sources": {"hill": {"Smoke": 0.2, "Temp": 3}, "dam": {"Rain": 0.05, "Temp": 1}},
    "sinks": {"town": ["Fire"], "dam": ["HeatWave"]},
}


def written_plan(folder: Path, data: dict[str, Any], **changed: Any) -> Path:
    """A plan in a file; `changed` are keys of it, or of its hosting."""
    hosting = {name: changed.pop(name) for name in list(changed) if name not in data}
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "plan.yaml"
    whole = {**data, **changed, "hosting": {**data["hosting"], **hosting}}
    path.write_text(yaml.safe_dump(whole), encoding="utf-8")
    return path


def read_plan(folder: Path, data: dict[str, Any], **changed: Any) -> SitePlan:
    return plan(written_plan(folder, data, **changed))


def expected(made: SitePlan) -> dict[str, list[str]]:
    """What each sink should get: the rules over all events at one place."""
    upto_us = round(made.seconds * 1_000_000)
    return expected_ids(made.rules, made.types, made.sites.sinks, made.events, upto_us)


def got(made: SitePlan) -> dict[str, list[str]]:
    """What each sink has got, in order."""
    return {sink: [row["id"] for row in received(made.hosting.folder, sink)] for sink in made.sites.sinks}


class Crash(Exception):
    """A process ends here."""


@contextmanager
def crashing(after: int | None) -> Iterator[None]:
    """Lets so many changes of files pass, and then ends the process."""
    left = [after]
    kept = {name: getattr(os, name) for name in ("rename", "replace", "link", "unlink", "fsync", "mkdir")}

    def counted(whole: Callable[..., Any]) -> Callable[..., Any]:
        def change(*given: Any, **named: Any) -> Any:
            if left[0] is not None:
                left[0] -= 1
                if left[0] < 0:
                    raise Crash
            return whole(*given, **named)

        return change

    with pytest.MonkeyPatch.context() as patch:
        for name, whole in kept.items():
            patch.setattr(os, name, counted(whole))
        yield


class Machines:
    """All replicas of a plan, each with its own clock-driven steps, in an order generated from a seed."""

    def __init__(self, made: SitePlan, seed: int = 0) -> None:
        self.plan, self.chance = made, random.Random(seed)
        self.channels = FolderChannels(made.hosting.folder / "channels")
        self.now_us = 1_790_000_000_000_000
        self.hosts: dict[str, Host] = {}
        self.crashes = 0

    def start(self, name: str) -> None:
        arrivals = open_arrivals(self.plan, group_of(name), None)
        self.hosts[name] = Host(self.plan, name, self.channels, self.now_us, arrivals)

    def crash(self, name: str, *, wiped: bool = False) -> None:
        self.hosts.pop(name, None)
        self.crashes += 1
        if wiped:
            shutil.rmtree(self.plan.hosting.folder / "sites" / name, ignore_errors=True)

    def step(self, name: str, crash_after: int | None = None) -> None:
        """One step, in which the process may end."""
        try:
            with crashing(crash_after):
                if name not in self.hosts:
                    self.start(name)
                host = self.hosts[name]
                host.step(self.now_us, self.channels.read(name, host.positions))
        except Crash:
            self.crash(name)

    def run_for(self, turns: int, every_us: int) -> None:
        """So many steps of everybody."""
        for _ in range(turns):
            self.now_us += every_us
            for name in self.plan.names:
                self.step(name)

    def recovered(self) -> bool:
        """Whether all replicas have a state, and all that send to one know its life."""
        for name in self.plan.names:
            host = self.hosts.get(name)
            if host is None or not host.replica.ready or host.replica.lacking:
                return False
            for other in self.hosts.values():
                queue = other.replica.outgoing.get(host.site)
                if queue is not None and queue.acked.get(name, (host.incarnation, 0))[0] < host.incarnation:
                    return False
        return True

    def finished(self) -> bool:
        hosts = [self.hosts.get(name) for name in self.plan.names]
        return all(host is not None and host.replica.round >= (host.source.rounds or inf) for host in hosts)

    def run(
        self, *, steps: int, crash: Callable[[str], int | None] = lambda name: None, every_us: int = 50_000
    ) -> None:
        """Until all rounds are run, everybody in turn."""
        names = list(self.plan.names)
        for _ in range(steps):
            self.chance.shuffle(names)
            self.now_us += every_us
            for name in names:
                self.step(name, crash(name))
            if self.finished():
                return
        raise AssertionError({name: (host.replica.round, host.source.rounds) for name, host in self.hosts.items()})
