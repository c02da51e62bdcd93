"""Time the placers: 10,000 generated queries on 40 nodes, one by one and all at once.

`python benchmarks/placing_bench.py` prints seconds, copies of an event and the variance of the nodes' cost, and ends
with an error code if a placer takes more than five seconds.
"""

from __future__ import annotations

import sys
from time import perf_counter

from tocsin.plans.placement import Placement, duplication, variance
from tocsin.plans.placers import add_node, rebalance, remove_node
from tocsin.studies.visiri_runs import placers, workload

QUERIES, NODES = 10_000, 40
SECONDS_MAX = 5.0
DRIFT = 10.0


def main() -> int:
    """Print the table."""
    _, units = workload(QUERIES, "mixed", 1)
    slowest = 0.0
    print(f"{QUERIES:,} queries on {NODES} nodes")
    print(f"{'placer':<20}{'coming':<14}{'s':>7}{'copies':>9}{'variance':>12}")
    for name, (placer, _) in placers(1).items():
        for coming, batches in (("one by one", [[unit] for unit in units]), ("all at once", [units])):
            placement = Placement(NODES)
            start = perf_counter()
            for batch in batches:
                placer.place(batch, placement)
            seconds = perf_counter() - start
            slowest = max(slowest, seconds)
            copies = duplication(placement)
            print(f"{name:<20}{coming:<14}{seconds:>7.2f}{copies:>9.3f}{variance(placement):>12.1f}")
    for what, moves, seconds in changes():
        print(f"{what:<34}{seconds:>7.2f} s, {len(moves)} moves")
    return 1 if slowest > SECONDS_MAX else 0


def changes() -> list[tuple[str, list[object], float]]:
    """Measure rebalancing after drifting costs, an added node and a removed node."""
    _, units = workload(QUERIES, "mixed", 1)
    placer, _ = placers(1)["even, all at once"]
    placement = Placement(NODES)
    placer.place(units, placement)
    dearer = {unit.name: DRIFT * unit.cost for unit in units[:: QUERIES // 200]}
    found = []
    for what, change in (
        (f"1 in 50 costs {DRIFT:g} times as much", lambda: rebalance(placement, dearer, tolerance=0.05)),
        ("a node comes", lambda: add_node(placement, "new")),
        ("a node goes", lambda: remove_node(placement, "node1")),
    ):
        start = perf_counter()
        found.append((what, list(change()), perf_counter() - start))
    return found


if __name__ == "__main__":
    sys.exit(main())
