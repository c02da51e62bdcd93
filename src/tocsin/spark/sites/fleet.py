"""How are the sites of a plan started, watched and stopped on one machine? As processes, each in a session of its own.

run/plan.json        which plan this folder belongs to
run/processes/NAME   the process of a replica
run/logs/NAME.log    what it said
run/sites/NAME       what it remembers, and how it is doing (status.json)
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tocsin.errors import TocsinError
from tocsin.language import print_rule
from tocsin.overlay.replicas.replica import group_of
from tocsin.spark.sites.application import status
from tocsin.spark.sites.channels import Folders
from tocsin.spark.sites.plans import Plan

STOP_S = 30.0
QUIET_S = 15.0
"""A replica that has said nothing for so long is thought to be stuck, or its machine to be slow."""


@dataclass(frozen=True)
class Seen:
    """A replica as one sees it from outside. `told`: what it last said of itself."""

    name: str
    alive: bool
    told: dict[str, Any]

    @property
    def state(self) -> str:
        if not self.alive:
            return "down"
        if not self.told:
            return "starting"
        if time.time() - self.told["now_us"] / 1e6 > QUIET_S:
            return "silent"
        if self.told["lost"]:
            return "lost"
        if not self.told["ready"]:
            return "rejoining"
        return "finished" if self.told["round"] >= self.told["rounds"] else "running"


class Fleet:
    """The replicas of a plan on this machine. `command`: what runs one, without its name."""

    def __init__(self, plan: Plan, command: Sequence[str]) -> None:
        self.plan, self.command = plan, tuple(command)
        self.folder = plan.hosting.folder
        self._children: list[subprocess.Popen[bytes]] = []
        """Those that were started here, which have to be waited for when they end."""

    # ---- the folder

    def claim(self, *, fresh: bool = False) -> None:
        """Sees to it that the folder belongs to this plan."""
        if fresh and self.processes():
            raise TocsinError(f"sites run in {self.folder}: stop them first (tocsin site down)")
        if fresh:
            shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True, exist_ok=True)
        path, mine = self.folder / "plan.json", {"plan": fingerprint(self.plan), "strategy": self.plan.strategy.name}
        if not path.exists():
            path.write_text(json.dumps(mine), encoding="utf-8")
        known = json.loads(path.read_text(encoding="utf-8"))
        if known != mine:
            what = "strategy" if known["plan"] == mine["plan"] else "plan"
            raise TocsinError(f"{self.folder} belongs to another {what}: use --fresh to begin anew, or another folder")

    # ---- processes

    def start(self, names: Iterable[str] | None = None) -> None:
        """Starts the replicas that do not run."""
        running = self.processes()
        for name in [name for name in names or self.plan.names if name not in running]:
            for part in ("logs", "processes"):
                (self.folder / part).mkdir(parents=True, exist_ok=True)
            (self.folder / "sites" / name / "status.json").unlink(missing_ok=True)
            with (self.folder / "logs" / f"{name}.log").open("ab") as log:
                process = subprocess.Popen(
                    [*self.command, name], stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
                )
            self._children.append(process)
            (self.folder / "processes" / name).write_text(str(process.pid), encoding="utf-8")

    def processes(self) -> dict[str, int]:
        """By replica the process that runs it."""
        self._children = [child for child in self._children if child.poll() is None]
        found = {}
        for path in sorted((self.folder / "processes").glob("*")):
            pid = int(path.read_text(encoding="utf-8") or 0)
            if pid and _runs(pid, path.name):
                found[path.name] = pid
        return found

    def stop(self, names: Iterable[str] | None = None) -> list[str]:
        """Asks replicas to end, and ends those that do not; answers who ran."""
        running = {name: pid for name, pid in self.processes().items() if names is None or name in names}
        for pid in running.values():
            os.kill(pid, signal.SIGTERM)
        until_s = time.monotonic() + STOP_S
        while time.monotonic() < until_s and any(_runs(pid, name) for name, pid in running.items()):
            time.sleep(0.05)
        for name, pid in running.items():
            if _runs(pid, name):
                self._end(name, pid)
            (self.folder / "processes" / name).unlink(missing_ok=True)
        self._reap(running.values())
        return sorted(running)

    def kill(self, name: str) -> bool:
        """Ends a replica with SIGKILL, its JVM too, as if its machine had failed; false if it did not run."""
        pid = self.processes().get(name)
        if pid is None:
            return False
        self._end(name, pid)
        self._reap([pid])
        (self.folder / "processes" / name).unlink(missing_ok=True)
        return True

    def _reap(self, ended: Iterable[int]) -> None:
        pids = set(ended)
        for child in [child for child in self._children if child.pid in pids]:
            child.wait(STOP_S)

    def _end(self, name: str, pid: int) -> None:
        try:
            os.killpg(pid, signal.SIGKILL)
        except ProcessLookupError:
            return
        until_s = time.monotonic() + STOP_S
        while time.monotonic() < until_s and _runs(pid, name):
            time.sleep(0.01)

    # ---- looking

    def seen(self) -> list[Seen]:
        """All replicas as they are now."""
        running = self.processes()
        return [Seen(name, name in running, status(self.folder, name) or {}) for name in self.plan.names]

    def finished(self) -> bool:
        """Whether every site has got through all that its sources have."""
        done = {group_of(one.name) for one in self.seen() if one.state == "finished"}
        return done == set(self.plan.sites.processors)

    def waiting(self) -> dict[str, dict[str, int]]:
        """By receiver and sender, parcels in channels that are folders."""
        folders = Folders(self.folder / "channels")
        return {name: folders.waiting(name) for name in self.plan.names}

    def log(self, name: str, lines: int = 5) -> str:
        """The end of what a replica said."""
        path = self.folder / "logs" / f"{name}.log"
        if not path.exists():
            return ""
        return "\n".join(path.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])


def command(plan: Path, strategy: str, engine: str) -> list[str]:
    """What runs a replica of a plan: its name comes behind."""
    begin = "from tocsin.cli import main; main()"
    return [
        sys.executable, "-c", begin, "site", "run", str(plan), "--strategy", strategy, "--engine", engine, "--site",
    ]  # fmt: skip


def fingerprint(plan: Plan) -> str:
    """The same for plans that can go on from each other's steps."""
    sites = plan.sites
    rules = [print_rule(rule) for rule in plan.rules]
    settings = plan.hosting.settings
    text = repr(
        (sorted(sites.delays_us.items()), sorted((name, sorted(types)) for name, types in sites.sources.items()),
         sorted((sink, str(wanted)) for sink, wanted in sites.sinks.items()), rules, plan.strategy.name,
         plan.events.num_rows, plan.seconds, plan.hosting.epoch_s, settings.rounds, plan.names)
    )  # fmt: skip
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _runs(pid: int, name: str) -> bool:
    """Whether a process is the one that was started for a replica: numbers are given again."""
    try:
        said = Path("/proc", str(pid), "cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return name.encode() in said  # one that has ended and was not waited for yet has said nothing
