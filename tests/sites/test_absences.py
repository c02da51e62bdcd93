"""A site that was away for days continues or reports what it lacks, and the data on disk is bounded."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.sites.running import RULES, THREE, Machines, expected, got, read_plan
from tocsin.sites import host

DAY_US = 24 * 3600 * 1_000_000
LONG: dict[str, Any] = {"rules": RULES.replace("5 min", "20 s"), "seconds": 200, "epoch": 5}
"""Many times as long as windows are."""
QUEUE_MAX = 12


def bounded(folder: Path, **changed: Any) -> Machines:
    """Replicas whose queues are short."""
    made = read_plan(folder, THREE, **{**LONG, "seconds": 120, **changed})
    settings = replace(made.hosting.settings, queue_max=QUEUE_MAX)
    return Machines(replace(made, hosting=replace(made.hosting, settings=settings)))


def turns(machines: Machines, names: Iterable[str], count: int) -> None:
    names = list(names)
    for _ in range(count):
        machines.now_us += 100_000
        for name in names:
            machines.step(name)


def held_bytes(machines: Machines) -> int:
    """What lies on the disk, apart from what sinks got."""
    folder = machines.plan.hosting.folder
    files = [path for part in ("sites", "channels") for path in (folder / part).rglob("*") if path.is_file()]
    return sum(path.stat().st_size for path in files)


def test_what_lies_on_the_disk_does_not_grow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "SMALL_BYTES", 4_000)
    machines = Machines(read_plan(tmp_path, THREE, **LONG))
    used = []
    while not machines.finished():
        turns(machines, machines.plan.names, 1)
        used.append((machines.hosts["town#0"].replica.round, held_bytes(machines)))
    last = used[-1][0]
    peaks = [max(size for at, size in used if low <= at <= low + last // 4) for low in (last // 4, 3 * last // 4)]
    assert peaks[1] < 1.3 * peaks[0]
    assert got(machines.plan) == expected(machines.plan)


def test_one_that_was_away_for_days_goes_on(tmp_path: Path) -> None:
    """The others wait, with no more than their queues on the disk."""
    machines = bounded(tmp_path)
    turns(machines, machines.plan.names, 40)
    assert not machines.finished()
    before, others = held_bytes(machines), [name for name in machines.plan.names if name != "town#0"]
    machines.crash("town#0")
    for _ in range(3):
        machines.now_us += DAY_US
        turns(machines, others, 15)
    stuck = [machines.hosts[name].replica.round for name in others]
    turns(machines, others, 5)
    assert [machines.hosts[name].replica.round for name in others] == stuck
    assert all(machines.hosts[name].status(0)["waits_for"] == ["town"] for name in others)
    assert held_bytes(machines) < 3 * before + 2 * QUEUE_MAX * 10_000
    machines.run(steps=1000)
    assert got(machines.plan) == expected(machines.plan)


def test_a_replica_that_was_away_for_days_catches_up(tmp_path: Path) -> None:
    """Its neighbours go on until their queues are full, and say for whom they wait."""
    machines = bounded(tmp_path, replicas={"town": 2})
    turns(machines, machines.plan.names, 30)
    others = [name for name in machines.plan.names if name != "town#1"]
    machines.crash("town#1")
    turns(machines, others, 60)
    assert not machines.finished()
    assert machines.hosts["hill#0"].status(0)["full"] == ["town#1"]
    machines.now_us += 3 * DAY_US
    turns(machines, machines.plan.names, 5)
    machines.run(steps=1000)
    assert got(machines.plan) == expected(machines.plan)


def test_one_that_has_lost_its_folder_and_has_no_peer_says_what_it_needs(tmp_path: Path) -> None:
    """And goes on when that is brought back; nothing false is said in between."""
    machines = bounded(tmp_path)
    folder, aside = machines.plan.hosting.folder / "sites" / "town#0", tmp_path / "aside"
    turns(machines, machines.plan.names, 40)
    machines.crash("town#0")
    folder.rename(aside)
    before = got(machines.plan)
    turns(machines, machines.plan.names, 20)
    said = machines.hosts["town#0"].status(0)
    assert not said["ready"]
    assert "no peer answers; lost unless a peer returns: 0 to " in said["lost"]
    assert "from hill" in said["lost"]
    assert got(machines.plan)["town"] == before["town"]
    machines.crash("town#0")
    shutil.rmtree(folder)
    aside.rename(folder)
    machines.run(steps=1000)
    assert got(machines.plan) == expected(machines.plan)
