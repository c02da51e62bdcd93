"""The processes of sites are reported correctly, and restarted when they exit."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.sites.running import THREE, read_plan
from tocsin.errors import TocsinError
from tocsin.sites.fleet import RESTARTS_MAX, Fleet


@contextmanager
def ships(folder: Path, program: str) -> Iterator[Fleet]:
    """A fleet whose applications are a few lines of Python."""
    found = Fleet(read_plan(folder, THREE), [sys.executable, "-S", "-c", program])
    try:
        yield found
    finally:
        found.stop()


def until(look: Callable[[], bool]) -> None:
    limit_s = time.monotonic() + 30
    while not look():
        assert time.monotonic() < limit_s
        time.sleep(0.01)


def test_a_starting_process_is_alive(tmp_path: Path) -> None:
    """From the first moment on, also while its program is being loaded."""
    with ships(tmp_path, "import time; time.sleep(60)") as fleet:
        for _ in range(5):
            fleet.start()
            for _ in range(20):
                assert all(one.alive for one in fleet.statuses())
            for name in fleet.plan.names:
                assert fleet.kill(name)
            assert not fleet.processes()
            assert not fleet.kill("town#0")


def test_how_a_process_ended(tmp_path: Path) -> None:
    with ships(tmp_path, "import sys; sys.exit('no room')") as fleet:
        fleet.start(["town#0"])
        for _ in range(RESTARTS_MAX):
            until(lambda: not fleet.processes())
            seen = {one.name: one for one in fleet.statuses()}
            assert (seen["town#0"].state, seen["town#0"].ended) == ("down", "exit status 1")
            assert not seen["hill#0"].ended
            fleet.restart_failed()
        until(lambda: not fleet.processes())
        assert fleet.restarts() == {"town#0": RESTARTS_MAX}
        with pytest.raises(TocsinError, match=r"(?s)town#0 has ended \(exit status 1\).*no room"):
            fleet.restart_failed()
        assert "has ended (exit status 1); restarting" in fleet.log("town#0", 30)


def test_a_killed_process_is_restarted_but_not_a_stopped_one(tmp_path: Path) -> None:
    with ships(tmp_path, "import time; time.sleep(60)") as fleet:
        fleet.start()
        before = fleet.processes()
        os.kill(before["town#0"], signal.SIGKILL)
        until(lambda: "town#0" not in fleet.processes())
        assert next(one.ended for one in fleet.statuses() if one.name == "town#0") == "SIGKILL"
        fleet.restart_failed()
        now = fleet.processes()
        assert now.keys() == before.keys()
        assert now["town#0"] != before["town#0"]
        another = Fleet(fleet.plan, fleet.command)
        assert another.stop() == sorted(before)
        fleet.restart_failed()
        assert not fleet.processes()
