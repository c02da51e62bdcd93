"""Measure and stop a process with all its children. As Linux tells in /proc; elsewhere nothing is known, and none is
held.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path


def family(pid: int) -> Iterator[int]:
    """Return a process and its descendants."""
    yield pid
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found = children.read_text().split()
        except OSError:  # a thread may end while it is looked at
            continue
        for child in found:
            yield from family(int(child))


def hold(pid: int, *, held: bool) -> None:
    """Stop or continue all processes."""
    for member in list(family(pid)):
        with suppress(ProcessLookupError):
            os.kill(member, signal.SIGSTOP if held else signal.SIGCONT)


def peak_mb(pid: int) -> float:
    """Return the sum of the peak memory of all processes."""
    return sum(_peak_kb(member) for member in family(pid)) / 1024


def cpu_s(pid: int) -> float:
    """Return the processor time of all processes, including ended ones."""
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
