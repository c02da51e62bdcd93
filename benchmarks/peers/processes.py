"""What does a process use, with all that it started? As Linux tells in /proc; elsewhere nothing is known, and none is
held.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path


def family(pid: int) -> Iterator[int]:
    """A process and those that it started, and so on."""
    yield pid
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found = children.read_text().split()
        except OSError:  # a thread may end while it is looked at
            continue
        for child in found:
            yield from family(int(child))


def hold(pid: int, *, held: bool) -> None:
    """Lets all of them stand still, or go on."""
    for member in list(family(pid)):
        with suppress(ProcessLookupError):
            os.kill(member, signal.SIGSTOP if held else signal.SIGCONT)


def peak_mb(pid: int) -> float:
    """The largest memory that each of them has had, added up."""
    return sum(_peak_kb(member) for member in family(pid)) / 1024


def cpu_s(pid: int) -> float:
    """Processor time of all of them, and of those that have ended."""
    return sum(_ticks(member) for member in family(pid)) / os.sysconf("SC_CLK_TCK")


def _peak_kb(pid: int) -> int:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")), 0)


def _ticks(pid: int) -> int:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0
    return sum(int(ticks) for ticks in stat.rpartition(")")[2].split()[11:15])
