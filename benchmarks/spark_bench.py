"""Benchmark Tocsin on Spark on two cores (`make bench-spark`), each figure beside its reference.

All of it runs in one session, and what is compared runs in turn, so that ratios mean something on a machine that does
not: each time is the median of three warm runs. Ratios have bounds, times have none.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from time import perf_counter

from on_spark import batches, operators, scaling, state, streams
from on_spark.bench import SLOTS, Bench, Report
from on_spark.sources import Sources
from tocsin.spark import session

SECTIONS = {
    "batch": batches.measure,
    "shuffle": batches.measure_shuffle,
    "stream": streams.measure,
    "scaling": scaling.measure,
    "state": state.measure,
    "operators": operators.measure,
}
EVENTS = 20_000_000
EVENTS_MIN = 4_000
SETTINGS = {"spark.driver.memory": "4g"}
"""A state of 50 MB that is passed as a whole does not fit into Spark's default of one gigabyte."""
HERE = Path(__file__).resolve().parent


def _workers_find(folder: Path) -> None:
    """Let Python workers import the modules of the benchmarks."""
    known = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = f"{folder}{os.pathsep}{known}" if known else str(folder)


def main() -> None:
    """Run the benchmarks and print a report or JSON. Exit with 1 if a bound or a count does not hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=EVENTS, help=f"how many events of W1 (default: {EVENTS:,})")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, metavar="NAME", help=", ".join(SECTIONS))
    parser.add_argument("--json", action="store_true", help="print one JSON object; the report goes to stderr")
    parser.add_argument("--data", type=Path, default=Path(tempfile.gettempdir()) / "tocsin-bench", help="keeps files")
    parser.add_argument("--figures", type=Path, default=HERE.parent / "docs" / "figures", help="where plots go")
    options = parser.parse_args()
    if options.events < EVENTS_MIN or options.events % EVENTS_MIN:
        parser.error(f"--events is a multiple of {EVENTS_MIN:,}")

    _workers_find(HERE)
    load = os.getloadavg()[0]
    spark = session(f"local[{SLOTS}]", SETTINGS, slots=SLOTS)
    out = sys.stderr if options.json else sys.stdout
    bench = Bench(spark, Sources(options.data, options.events), options.figures, out)
    bench.say(f"Spark on {SLOTS} of {os.cpu_count()} cores; {load:.1f} processes were running when this began\n")
    reports: Report = {"load_average": load, "events": options.events}
    for name in options.only or SECTIONS:
        start = perf_counter()
        reports[name] = SECTIONS[name](bench)
        reports[name]["section_s"] = perf_counter() - start
    reports["failed"] = bench.failed
    if options.json:
        print(json.dumps(reports, indent=2))
    bench.say("not held: " + ", ".join(bench.failed) if bench.failed else "all bounds held")
    spark.stop()
    sys.exit(1 if bench.failed else 0)


if __name__ == "__main__":
    main()
