"""Start, watch and stop the sites of a plan on one machine.

Each replica of a site is a process with a Spark session. The folder of the plan, for example `run`, has these files:

run/plan.json        a digest of the plan that the folder belongs to
run/processes/NAME   the process number and start time of a replica; the number alone may have been reused
run/logs/NAME.log    the output of the replica
run/sites/NAME       the state of the replica, and its status (status.json)
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
from tocsin.sites.channels import FolderChannels, write_file
from tocsin.sites.site_plan import SitePlan
from tocsin.sites.spark_driver import read_status

STOP_S = 30.0
SILENT_AFTER_S = 15.0
"""The time without a new status after which a replica counts as silent: it is stuck, or its machine is slow."""
RESTARTS_MAX = 3
RESTART_WINDOW_S = 300.0
"""The time in which a replica that exits is restarted at most RESTARTS_MAX times."""


@dataclass(frozen=True)
class ReplicaStatus:
    """The status of a replica.

    `alive` is whether the process of the replica runs. `status` is what the replica itself last wrote. `ended` says
    how its process ended.
    """

    name: str
    alive: bool
    status: dict[str, Any]
    ended: str = ""

    @property
    def state(self) -> str:
        if not self.alive:
            return "down"
        if not self.status:
            return "starting"
        if time.time() - self.status["now_us"] / 1e6 > SILENT_AFTER_S:
            return "silent"
        if self.status["lost"]:
            return "lost"
        if not self.status["ready"]:
            return "rejoining"
        rounds = self.status["rounds"]
        return "running" if rounds is None or self.status["round"] < rounds else "finished"


class Fleet:
    """The replicas of a plan on this machine. `command` followed by the name of a replica runs that replica."""

    def __init__(self, plan: SitePlan, command: Sequence[str]) -> None:
        self.plan, self.command = plan, tuple(command)
        self.folder = plan.hosting.folder
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        """The process of each replica that this object has started, and must therefore wait for."""
        self._restarts_s: dict[str, list[float]] = {}
        """The times of the recent restarts of each replica."""

    # ---- the folder

    def claim(self, *, fresh: bool = False) -> None:
        """Claim the folder for this plan, and raise `TocsinError` if the folder belongs to another plan.

        If `fresh` is true, delete the folder first. Its sites must have stopped.
        """
        if fresh and self.processes():
            raise TocsinError(f"sites run in {self.folder}: stop them first (tocsin site down)")
        if fresh:
            shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True, exist_ok=True)
        path, mine = self.folder / "plan.json", {"plan": fingerprint(self.plan), "strategy": self.plan.strategy.name}
        if not path.exists():
            path.write_text(json.dumps(mine), encoding="utf-8")
        stored = json.loads(path.read_text(encoding="utf-8"))
        if stored != mine:
            what = "strategy" if stored["plan"] == mine["plan"] else "plan"
            raise TocsinError(f"{self.folder} belongs to another {what}: use --fresh to start over, or another folder")

    # ---- processes

    def start(self, names: Iterable[str] | None = None) -> None:
        """Start those of the replicas `names` that do not run; `names` defaults to all replicas."""
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
            write_file(self.folder / "processes" / name, f"{process.pid} {_process_start(process.pid)}".encode())

    def processes(self) -> dict[str, int]:
        """Return the process number of each running replica."""
        self._poll()
        return {name: pid for name, (pid, start) in self._recorded().items() if _process_start(pid) == start}

    def _poll(self) -> None:
        for child in self._children.values():
            child.poll()

    def _recorded(self) -> dict[str, tuple[int, str]]:
        """Read the process number and the start time of each replica from the folder."""
        found = {}
        for path in sorted((self.folder / "processes").glob("[!.]*")):
            with contextlib.suppress(FileNotFoundError):  # another process has just stopped it
                pid, start = path.read_text(encoding="utf-8").split()
                found[path.name] = (int(pid), start)
        return found

    def restart_failed(self) -> None:
        """Restart the replicas that have exited. Raise `TocsinError` if a replica exits too often."""
        recorded = self._recorded()
        for one in self.statuses():
            if one.alive or one.name not in recorded:
                continue
            message = f"{one.name} has ended{f' ({one.ended})' if one.ended else ''}"
            now_s = time.monotonic()
            recent = [then_s for then_s in self._restarts_s.get(one.name, []) if now_s - then_s < RESTART_WINDOW_S]
            if len(recent) == RESTARTS_MAX:
                raise TocsinError(f"{message}, for the {RESTARTS_MAX + 1}th time in a while:\n{self.log(one.name, 30)}")
            self._restarts_s[one.name] = [*recent, now_s]
            with (self.folder / "logs" / f"{one.name}.log").open("a", encoding="utf-8") as log:
                log.write(f"{message}; restarting\n")
            self.start([one.name])

    def restarts(self) -> dict[str, int]:
        """Return the number of recent restarts of each replica."""
        return {name: len(times_s) for name, times_s in self._restarts_s.items()}

    def stop(self, names: Iterable[str] | None = None) -> list[str]:
        """Ask replicas to exit, kill the replicas that do not, and return the names of all that ran.

        `names` defaults to all replicas.
        """
        return self._end(names, signal.SIGTERM)

    def kill(self, name: str) -> bool:
        """Kill a replica and its JVM with SIGKILL, as if the machine had failed, and return whether the replica ran."""
        return bool(self._end([name], None))

    def _end(self, names: Iterable[str] | None, requested: signal.Signals | None) -> list[str]:
        running = {name: pid for name, pid in self.processes().items() if names is None or name in names}
        starts = {pid: _process_start(pid) for pid in running.values()}
        for name, pid in running.items():
            # The file is removed before the process exits, so that `restart_failed` knows that the exit is intended.
            (self.folder / "processes" / name).unlink(missing_ok=True)
            if requested is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, requested)
        if requested is not None:
            self._wait(starts)
        for pid in running.values():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
        self._wait(starts)
        for name in running.keys() & self._children.keys():
            self._children.pop(name).wait(STOP_S)
        return sorted(running)

    def _wait(self, starts: Mapping[int, str | None]) -> None:
        """Wait until all processes in `starts` have exited, but at most STOP_S seconds."""
        until_s = time.monotonic() + STOP_S
        while time.monotonic() < until_s and any(_process_start(pid) == start for pid, start in starts.items()):
            self._poll()
            time.sleep(0.02)

    # ---- status

    def statuses(self) -> list[ReplicaStatus]:
        """Return the status of each replica of the plan, running or not."""
        running = self.processes()
        return [
            ReplicaStatus(
                name,
                name in running,
                read_status(self.folder, name) or {},
                "" if name in running else self._ended(name),
            )
            for name in self.plan.names
        ]

    def _ended(self, name: str) -> str:
        """Return how the process of a replica ended, or '' if this object did not start the process."""
        child = self._children.get(name)
        if child is None or child.returncode is None:
            return ""
        if child.returncode < 0:
            return signal.Signals(-child.returncode).name
        return f"exit status {child.returncode}"

    def finished(self) -> bool:
        """Return whether every site has a running replica that has processed all rounds."""
        done = {group_of(one.name) for one in self.statuses() if one.state == "finished"}
        return done == set(self.plan.sites.processors)

    def waiting(self) -> dict[str, dict[str, int]]:
        """Return the number of waiting batches by receiver and sender. Only channels that are folders are counted."""
        folders = FolderChannels(self.folder / "channels")
        return {name: folders.waiting(name) for name in self.plan.names}

    def log(self, name: str, lines: int = 5) -> str:
        """Return the last `lines` lines of a replica's output."""
        path = self.folder / "logs" / f"{name}.log"
        if not path.exists():
            return ""
        return "\n".join(path.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])


def command(plan: Path, strategy: str, engine: str) -> list[str]:
    """Return the command that runs a replica of a plan. The caller adds the name of the replica at the end."""
    begin = "from tocsin.cli import main; main()"
    return [
        sys.executable, "-c", begin, "site", "run", str(plan), "--strategy", strategy, "--engine", engine, "--site",
    ]  # fmt: skip


def fingerprint(plan: SitePlan) -> str:
    """Return a digest of a plan. Plans with equal digests can continue from each other's stored state."""
    states = [(turn.at_us, turn.sites) for turn in plan.changes]
    described = [
        (at_us, sorted(sites.delays_us.items()), sorted((name, sorted(types)) for name, types in sites.sources.items()),
         sorted((sink, str(wanted)) for sink, wanted in sites.sinks.items()))
        for at_us, sites in [(0, plan.initial_sites), *states]
    ]  # fmt: skip
    rules = [print_rule(rule) for rule in plan.rules]
    settings = plan.hosting.settings
    text = repr(
        (described, rules, plan.strategy.name,
         plan.events.num_rows, plan.seconds, plan.hosting.epoch_s, settings.rounds, plan.names,
         sorted((site, str(one.origin), one.late_us) for site, one in plan.hosting.live.items()))
    )  # fmt: skip
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _process_start(pid: int) -> str | None:
    """Return when a process started, in clock ticks since boot, or None if the process has ended.

    The start time identifies a process because it does not change from fork to exit. The command line does change: it
    is empty while a program is loaded.
    """
    try:
        stat = Path("/proc", str(pid), "stat").read_text(encoding="utf-8")
    except OSError:
        return None
    state, *numbers = stat.rpartition(")")[2].split()
    return None if state in ("Z", "X") else numbers[18]
