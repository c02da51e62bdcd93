"""Compare simulated time with the processor time of the simulator: the T-Rex default scenario, each push strategy.

`python benchmarks/overlay_bench.py` prints, for an hour of events after a warm-up as long as two windows, the processor
time of a run, from empty processors over the deployment of the rules to the last notice, and simulated time divided by
it; it ends with an error code if that is below 1,000 for a strategy. Processor time, as other programs may run beside
it, and of several runs the least, as they then slow each other down all the same.
"""

from __future__ import annotations

import argparse
import sys
from time import process_time

from tocsin.overlay.strategies import strategy
from tocsin.simulation.runs import run
from tocsin.simulation.workloads import Workload, events, generate

FASTER = 1_000
PUSHING = ("Centr", "ST", "MT")
WARM_S = 120.0


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=3600.0, help="simulated, after the warm-up")
    parser.add_argument("--runs", type=int, default=3, help="of which the fastest counts")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    world = generate(Workload(seed=options.seed))
    end_s = WARM_S + options.seconds
    happening, where = events(world, end_s, options.seed)
    print(f"{happening.num_rows:,} events in {end_s:,.0f} s, seed {options.seed}")
    print(f"{'strategy':<10}{'processor s':>12}{'times faster':>14}{'messages/s':>12}{'delay ms':>10}{'notices':>10}")
    failed = False
    for name in PUSHING:
        took_s = float("inf")
        for _ in range(options.runs):
            start = process_time()
            outcome, _ = run(
                world.sites, strategy(name), world.types, world.rules, happening, where,
                epochs_s=[WARM_S, end_s], measured_from_s=WARM_S,
            )  # fmt: skip
            took_s = min(took_s, process_time() - start)
        failed |= end_s / took_s < FASTER
        print(f"{name:<10}{took_s:>12.2f}{end_s / took_s:>14,.0f}{outcome.traffic / outcome.seconds:>12.0f}", end="")
        print(f"{outcome.delay_ms_mean:>10.2f}{outcome.notices:>10,}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
