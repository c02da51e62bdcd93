"""Orders that the process of each engine answers, line by line, in any language.

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
"""The number of matches, and the sum of their checked values."""
UNCHECKED = -1
"""The sum of an engine that only counts."""
WORD = "peers"


def checked(values: Any) -> int:
    """Return the sum in hundredths."""
    return int(np.rint(np.asarray(values, np.float64) * 100).sum())


def latency(late_us: Any) -> dict[str, float]:
    """Return the median and 99th percentile of latencies (µs), and their number."""
    if not len(late_us):
        return {"p50_us": float("nan"), "p99_us": float("nan"), "matches": 0}
    p50, p99 = np.percentile(late_us, [50, 99])
    return {"p50_us": float(p50), "p99_us": float(p99), "matches": len(late_us)}


def answer(kind: str, values: dict[str, Any]) -> None:
    """Print an answer as a line of JSON for the process that gives the orders."""
    print(WORD, kind, json.dumps(values), flush=True)


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
    """Execute orders until input ends. `run(N)` prepares a turn and returns the timed call; `found` reads its result.

    `seconds` reads the time from the result instead; `used_s` returns the processor time so far. In a turn
    the events are run `copies` times; the answer is for one.
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
