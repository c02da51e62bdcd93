"""How are the sites of a plan started, watched and stopped on one machine? As processes, each in a session of its own.

run/plan.json        which plan this folder belongs to
run/processes/NAME   the process of a replica, and when it began: numbers are given again
run/logs/NAME.log    what it said
run/sites/NAME       what it remembers, and how it is doing (status.json)
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tocsin.errors import TocsinError
from tocsin.language import print_rule
from tocsin.overlay.replicas.replica import group_of
from tocsin.sites.channels import Folders, written
from tocsin.sites.site_plan import Plan
from tocsin.sites.spark_driver import status

STOP_S = 30.0
QUIET_S = 15.0
"""A replica that has said nothing for so long is thought to be stuck, or its machine to be slow."""
ANEW_MAX = 3
ANEW_S = 300.0
"""How often an application that ends by itself is started anew within a while."""


@dataclass(frozen=True)
class Seen:
    """A replica as one sees it from outside. `told`: what it last said of itself; `ended`: how its process ended."""

    name: str
    alive: bool
    told: dict[str, Any]
    ended: str = ""

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
        rounds = self.told["rounds"]
        return "running" if rounds is None or self.told["round"] < rounds else "finished"


class Fleet:
    """The replicas of a plan on this machine. `command`: what runs one, without its name."""

    def __init__(self, plan: Plan, command: Sequence[str]) -> None:
        self.plan, self.command = plan, tuple(command)
        self.folder = plan.hosting.folder
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        """By replica those that were started here, which have to be waited for when they end."""
        self._anew_s: dict[str, list[float]] = {}
        """By replica when it was started anew."""

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
            self._children[name] = process
            written(self.folder / "processes" / name, f"{process.pid} {_born(process.pid)}".encode())

    def processes(self) -> dict[str, int]:
        """By replica the process that runs it."""
        self._poll()
        return {name: pid for name, (pid, born) in self._written().items() if _born(pid) == born}

    def _poll(self) -> None:
        for child in self._children.values():
            child.poll()

    def _written(self) -> dict[str, tuple[int, str]]:
        """By replica its process, and when that began."""
        found = {}
        for path in sorted((self.folder / "processes").glob("[!.]*")):
            with contextlib.suppress(FileNotFoundError):  # stopped by another just now
                pid, born = path.read_text(encoding="utf-8").split()
                found[path.name] = (int(pid), born)
        return found

    def tend(self) -> None:
        """Starts those anew that have ended by themselves; one that ends again and again is an error."""
        meant = self._written()
        for one in self.seen():
            if one.alive or one.name not in meant:
                continue
            how = f"{one.name} has ended{f' ({one.ended})' if one.ended else ''}"
            now_s = time.monotonic()
            recent = [then_s for then_s in self._anew_s.get(one.name, []) if now_s - then_s < ANEW_S]
            if len(recent) == ANEW_MAX:
                raise TocsinError(f"{how}, for the {ANEW_MAX + 1}th time in a while:\n{self.log(one.name, 30)}")
            self._anew_s[one.name] = [*recent, now_s]
            with (self.folder / "logs" / f"{one.name}.log").open("a", encoding="utf-8") as log:
                log.write(f"{how}; it is started anew\n")
            self.start([one.name])

    def anew(self) -> dict[str, int]:
        """How often replicas were started anew of late, where they were."""
        return {name: len(times_s) for name, times_s in self._anew_s.items()}

    def stop(self, names: Iterable[str] | None = None) -> list[str]:
        """Asks replicas to end, and ends those that do not; answers who ran."""
        return self._end(names, signal.SIGTERM)

    def kill(self, name: str) -> bool:
        """Ends a replica with SIGKILL, its JVM too, as if its machine had failed; false if it did not run."""
        return bool(self._end([name], None))

    def _end(self, names: Iterable[str] | None, asked: signal.Signals | None) -> list[str]:
        running = {name: pid for name, pid in self.processes().items() if names is None or name in names}
        known = {pid: _born(pid) for pid in running.values()}
        for name, pid in running.items():
            # First of all, so that whoever tends them sees that it is meant.
            (self.folder / "processes" / name).unlink(missing_ok=True)
            if asked is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, asked)
        if asked is not None:
            self._wait(known)
        for pid in running.values():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
        self._wait(known)
        for name in running.keys() & self._children.keys():
            self._children.pop(name).wait(STOP_S)
        return sorted(running)

    def _wait(self, known: Mapping[int, str | None]) -> None:
        """Until processes have ended, though not for ever."""
        until_s = time.monotonic() + STOP_S
        while time.monotonic() < until_s and any(_born(pid) == born for pid, born in known.items()):
            self._poll()
            time.sleep(0.02)

    # ---- looking

    def seen(self) -> list[Seen]:
        """All replicas as they are now."""
        running = self.processes()
        return [
            Seen(name, name in running, status(self.folder, name) or {}, "" if name in running else self._ended(name))
            for name in self.plan.names
        ]

    def _ended(self, name: str) -> str:
        """How the process of a replica ended, if that is known here."""
        child = self._children.get(name)
        if child is None or child.returncode is None:
            return ""
        if child.returncode < 0:
            return signal.Signals(-child.returncode).name
        return f"exit status {child.returncode}"

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
    states = [(turn.at_us, turn.sites) for turn in plan.turns]
    described = [
        (at_us, sorted(sites.delays_us.items()), sorted((name, sorted(types)) for name, types in sites.sources.items()),
         sorted((sink, str(wanted)) for sink, wanted in sites.sinks.items()))
        for at_us, sites in [(0, plan.begins), *states]
    ]  # fmt: skip
    rules = [print_rule(rule) for rule in plan.rules]
    settings = plan.hosting.settings
    text = repr(
        (described, rules, plan.strategy.name,
         plan.events.num_rows, plan.seconds, plan.hosting.epoch_s, settings.rounds, plan.names,
         sorted((site, str(one.origin), one.late_us) for site, one in plan.hosting.live.items()))
    )  # fmt: skip
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _born(pid: int) -> str | None:
    """When a process began, in ticks since the machine did; None if it has ended.

    That is the same from fork to end. What it was called with is not: while a program is being loaded there is none.
    """
    try:
        said = Path("/proc", str(pid), "stat").read_text(encoding="utf-8")
    except OSError:
        return None
    state, *numbers = said.rpartition(")")[2].split()
    return None if state in ("Z", "X") else numbers[18]
