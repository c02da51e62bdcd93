"""This project in a process: `RuleSet.detect` on a table, and a detector that gets small batches as they come.

Ways: `detect` makes whole matches, with id and the events they are made of, on all cores, `single` on one; `alike` the
columns that as-of joins have, on one. Rules are compiled in a turn that is not counted, as statements of others are
before the first.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import tocsin
from peers import files
from peers.orders import Found, checked, latency, serve
from workloads import WORKLOADS

CHECKED = {"W1": "temp", "W2": "first", "W3": "a"}
ALIKE = ("ts", "area", "temp")
BATCH_US = 5_000
"""A detector on a stream gets the events of this interval."""


def one_core() -> None:
    """Pin this process to one core."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)


def checked_value(workload: str) -> str:
    """Return the checked attribute of matches. Matches of many rules have theirs in `values`."""
    return CHECKED[workload.split()[0]]


def main() -> None:
    path, workload, way, _ = sys.argv[1:]
    if way != "detect":
        one_core()
    events = files.read(Path(path), files.layout(workload))
    rules = tocsin.rules(WORKLOADS[workload].rules)
    name = checked_value(workload)
    select = ALIKE if way == "alike" else None

    def run(count: int) -> Callable[[], pa.Table]:
        some = events.slice(0, count)
        return lambda: rules.detect(some, select=select)

    def found(out: pa.Table) -> Found:
        return out.num_rows, checked(out[name])

    def pace(count: int, rate: float) -> dict[str, float]:
        ts = events["ts"].cast(pa.int64()).to_numpy()[:count]
        due_us = np.arange(count) * 1e6 / rate
        detector = rules.detector(ordered=True)
        late: list[Any] = []
        start, done = time.perf_counter_ns(), 0
        while done < count:
            here_us = (time.perf_counter_ns() - start) / 1e3
            there = int(np.searchsorted(due_us, here_us, side="right"))
            if there < count and (there == done or here_us - due_us[done] < BATCH_US):
                time.sleep(0.0002)
                continue
            matches = detector.push(events.slice(done, there - done))
            at_us = (time.perf_counter_ns() - start) / 1e3
            anchors = np.searchsorted(ts, matches["ts"].cast(pa.int64()).to_numpy())
            late.append(at_us - due_us[anchors])
            done = there
        return latency(np.concatenate(late))

    serve(f"Tocsin {tocsin.__version__}", run, found, pace)


if __name__ == "__main__":
    main()
