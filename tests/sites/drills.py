"""Sites as processes of this machine: started, killed, paused, and checked by the output of their sinks."""

from __future__ import annotations

import math
import random
import shutil
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from tests.sites.running import expected, got, written_plan
from tocsin.cli.sites import fleet
from tocsin.overlay.replicas.replica import group_of
from tocsin.simulation.runs import SimulationResult
from tocsin.simulation.runs import run as simulated_run
from tocsin.sites.fleet import Fleet
from tocsin.sites.site_plan import SitePlan

PERIOD_S = 60
"""How often processors choose masters."""


@contextmanager
def sailing(folder: Path, data: dict[str, Any], engine: str, **changed: Any) -> Iterator[Fleet]:
    """All sites of a plan, started; stopped at the end."""
    ships = fleet(written_plan(folder, data, **changed), engine=engine)
    ships.claim(fresh=True)
    ships.start()
    try:
        yield ships
    finally:
        ships.stop()


def finish(ships: Fleet, limit_s: float) -> None:
    """Wait until all events are processed. Restart replicas that exit, and print that."""
    until_s = time.monotonic() + limit_s
    while not ships.finished():
        ships.restart_failed()
        assert time.monotonic() < until_s, "\n".join(
            f"{one.name} {one.state} {one.status}\n{ships.log(one.name)}" for one in ships.statuses()
        )
        time.sleep(0.1)
    if ships.restarts():
        print("exited and were restarted:", ships.restarts())


def right(made: SitePlan) -> None:
    """Every sink got exactly what one place finds, in order."""
    found, due = got(made), expected(made)
    for sink, ids in due.items():
        assert len(found[sink]) == len(ids), sink
        assert found[sink] == ids, sink
        assert ids, f"{sink} should get something, or nothing is tested"


def simulated(made: SitePlan) -> SimulationResult:
    """The same plan in the simulator, with the sources' epochs: masters are chosen by what was measured before."""
    step_s = made.hosting.epoch_s
    ends_s = [step_s * (number + 1) for number in range(math.ceil(made.seconds / step_s))]
    outcome, _ = simulated_run(
        made.sites, made.strategy, made.types, made.rules, made.events, pa.array(made.where),
        epochs_s=ends_s, measured_from_s=0, period_s=PERIOD_S,
    )  # fmt: skip
    return outcome


def traffic(ships: Fleet) -> tuple[int, int, int]:
    """Messages that the channels carried, and bytes: of bundles with events, and all."""
    statuses = [one.status for one in ships.statuses()]
    return (
        sum(one["traffic"] for one in statuses),
        sum(sum(one["event_bytes"].values()) for one in statuses),
        sum(sum(one["sent_bytes"].values()) for one in statuses),
    )


@dataclass
class Drill:
    """Kills of replicas, one after another; the next only when the last has rejoined."""

    ships: Fleet
    seed: int
    wiped: float = 0.5
    """The share of kills with which the replica's folder is lost too."""
    leaderless_s: list[float] = field(default_factory=list)
    rejoined_s: list[float] = field(default_factory=list)
    leaders: int = 0
    """How many of the killed led."""
    forgot: int = 0
    meanwhile: Callable[[], None] = lambda: None
    """What else happens while one waits."""

    def run(self, kills: int) -> None:
        chance = random.Random(self.seed)
        self._until(lambda: all(one.state == "running" for one in self.ships.statuses()), "all sites", 240)
        self._until(lambda: all(self._leads(site) for site in self.ships.plan.sites.processors), "leaders")
        for number in range(kills):
            assert not self.ships.finished(), f"all events were through before kill {number}"
            time.sleep(chance.uniform(0, 2))
            self._kill(chance.choice(self.ships.plan.names), chance)

    def _kill(self, name: str, chance: random.Random) -> None:
        ships, site = self.ships, group_of(name)
        led = self._leads(site) == name
        before = {one.name: one.status for one in ships.statuses()}
        assert ships.kill(name)
        killed_s = time.monotonic()
        if chance.random() < self.wiped:
            shutil.rmtree(ships.folder / "sites" / name)
            self.forgot += 1
        ships.start([name])
        if led:
            self.leaders += 1
            # What it said before was removed with its start: it may be elected itself, once it is back.
            self._until(lambda: self._leads(site) is not None, f"a leader of {site}")
            self.leaderless_s.append(time.monotonic() - killed_s)
        self._until(lambda: self._rejoined(name, before), f"{name} to rejoin", 240)
        self.rejoined_s.append(time.monotonic() - killed_s)

    def _leads(self, site: str) -> str | None:
        """A replica that runs and says that it leads."""
        leaders = [one.name for one in self.ships.statuses() if one.alive and one.status.get("leading")]
        return next((name for name in leaders if group_of(name) == site), None)

    def _rejoined(self, name: str, before: dict[str, Any]) -> bool:
        """Whether it has a state that is as far as its peers were, and all that send to it know who it is now."""
        statuses = {one.name: one.status for one in self.ships.statuses()}
        mine = statuses[name]
        peers = [one for one in self.ships.plan.replicas(group_of(name)) if one != name]
        reached = max(before[peer]["round"] for peer in peers)
        if not mine or not mine["ready"] or mine["round"] < reached:
            return False
        return all(one.get("lives", {}).get(name, mine["life"]) >= mine["life"] for one in statuses.values())

    def _until(self, look: Any, what: str, limit_s: float = 120) -> None:
        until_s = time.monotonic() + limit_s
        while not look():
            assert time.monotonic() < until_s, f"waited for {what}\n" + "\n".join(
                f"{one.name} {one.state} {one.status}\n{self.ships.log(one.name)}" for one in self.ships.statuses()
            )
            self.meanwhile()
            time.sleep(0.02)

    def __str__(self) -> str:
        def spread(times: list[float]) -> str:
            if not times:
                return "none"
            return f"median {statistics.median(times):.1f} s, worst {max(times):.1f} s"

        kills = len(self.rejoined_s)
        return (
            f"{kills} kills, {self.leaders} of leaders, {self.forgot} with the folder lost; without a leader: "
            f"{spread(self.leaderless_s)}; until rejoined: {spread(self.rejoined_s)}"
        )
