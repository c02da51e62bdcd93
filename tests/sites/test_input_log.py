"""A snapshot and its input log restore the state, and little is written for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.sites.running import THREE, Machines, read_plan
from tocsin.errors import StateError
from tocsin.overlay.codec import encode
from tocsin.overlay.replicas.state_machine import Inputs, Outputs
from tocsin.sites import host


def test_little_more_is_written_than_twice_what_comes_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However large windows are: the whole state in each step would be many times as much."""
    monkeypatch.setattr(host, "SMALL_BYTES", 4_000)
    machines = Machines(read_plan(tmp_path, THREE, seconds=300, epoch=4))
    machines.start("town#0")
    town, came, whole, steps = machines.hosts["town#0"], list[int](), 0, 0
    taking = town.machine.step

    def counted(inputs: Inputs) -> Outputs:
        came.append(len(encode(tuple(inputs))) + 8)
        return taking(inputs)

    monkeypatch.setattr(town.machine, "step", counted)
    while not machines.finished():
        machines.run_for(1, 50_000)
        if town.steps > steps:
            steps = town.steps
            whole += len(town.machine.snapshot())
    written = town.status(0)["written_bytes"]
    assert sum(came) / 2 < written < 3 * sum(came)
    assert written < whole / 3


def test_a_piece_that_is_missing_is_said(tmp_path: Path) -> None:
    machines = Machines(read_plan(tmp_path, THREE, seconds=60, epoch=20))
    machines.run_for(20, 50_000)
    before = machines.hosts["town#0"].machine.snapshot()
    machines.crash("town#0")
    machines.start("town#0")
    assert machines.hosts["town#0"].machine.snapshot() == before
    machines.crash("town#0")
    (base,) = (machines.plan.hosting.folder / "sites" / "town#0" / "pieces").glob("*.base")
    base.unlink()
    with pytest.raises(StateError, match=r"\.base is missing"):
        machines.start("town#0")
