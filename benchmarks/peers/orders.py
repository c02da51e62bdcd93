"""What does an engine's process answer? The same few orders, line by line, whatever it is written in.

It is started with a file of events, a workload, a way of writing the rules and a file of rules, and says `peers ready`
with its version. `run N` runs the first N events from an empty state and answers how long that took and what was found.
`pace N RATE` hands over N events at so many a second and answers how long after its anchor was due each match was
there: a match that waits because the engine is behind counts in full. Other lines on its output are a library's.

Two sums say what was found: how many matches, and their checked value (the oldest event's, in hundredths), added up.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

Found = tuple[int, int]
"""Matches, and their checked values added up."""
UNCHECKED = -1
"""In place of values added up: an engine that only counts."""
WORD = "peers"


def checked(values: Any) -> int:
    """Hundredths, added up."""
    return int(np.rint(np.asarray(values, np.float64) * 100).sum())


def latency(late_us: Any) -> dict[str, float]:
    """What is told of latencies."""
    if not len(late_us):
        return {"p50_us": float("nan"), "p99_us": float("nan"), "matches": 0}
    p50, p99 = np.percentile(late_us, [50, 99])
    return {"p50_us": float(p50), "p99_us": float(p99), "matches": len(late_us)}


def answer(kind: str, told: dict[str, Any]) -> None:
    """Says something to whoever gives the orders."""
    print(WORD, kind, json.dumps(told), flush=True)


def serve(
    version: str,
    run: Callable[[int], Callable[[], Any]],
    found: Callable[[Any], Found],
    pace: Callable[[int, float], dict[str, float]] | None = None,
    *,
    seconds: Callable[[Any], float] | None = None,
    used_s: Callable[[], float] = time.process_time,
    copies: int = 1,
) -> None:
    """Obeys until the input ends. `run(N)` prepares a turn; what it returns is timed; `found` looks at what came out.

    `seconds` tells the time from what came out instead; `used_s` the processor time that was used so far. In a turn
    the events are run `copies` times; what is told is of one.
    """
    answer("ready", {"version": version})
    for order in sys.stdin:
        what, *arguments = order.split()
        if what == "run":
            turn = run(int(arguments[0]))
            used, start = used_s(), time.perf_counter()
            out = turn()
            taken, cpu_s = (time.perf_counter() - start) / copies, (used_s() - used) / copies
            matches, total = found(out)
            taken = seconds(out) if seconds else taken
            answer("ran", {"seconds": taken, "cpu_s": cpu_s, "matches": matches, "sum": total})
        elif what == "pace" and pace is not None:
            answer("paced", pace(int(arguments[0]), float(arguments[1])))
        else:
            raise SystemExit(f"no such order: {order}")
