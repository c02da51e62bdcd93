"""Independent pieces of work as Spark tasks, one each."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from tocsin.spark.errors import plainly
from tocsin.spark.sessions import session

T = TypeVar("T")
R = TypeVar("R")

POLL_S = 0.2


def fan_out(work: Callable[[T], R], items: Sequence[T], done: Callable[[int], None] = lambda _: None) -> list[R]:
    """What the function of a module makes of each item, in their order; `done` is told how many there are so far."""
    context = session().sparkContext
    group = f"tocsin-{id(items)}"

    def collect() -> list[R]:
        context.setJobGroup(group, "independent runs")
        found: list[R] = context.parallelize(items, len(items)).map(work).collect()
        return found

    with plainly(), ThreadPoolExecutor(1) as beside:
        result = beside.submit(collect)
        tracker = context.statusTracker()
        while not result.done():
            time.sleep(POLL_S)
            stages = [stage for job in tracker.getJobIdsForGroup(group) for stage in tracker.getJobInfo(job).stageIds]
            infos = [tracker.getStageInfo(stage) for stage in stages]
            done(sum(info.numCompletedTasks for info in infos if info is not None))
        done(len(items))
        return result.result()
