"""Benchmark the engine on one core (`make bench`): each workload beside its scan floor in the same run.

Each measurement runs in a process of its own, so that its peak memory is its own. Events/s are the median of nine warm
runs of `RuleSet.detect` on a table in memory; runs of the floor alternate with them, so that both see the same machine.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable
from time import perf_counter
from typing import Any

RUNS = 9
MEMORY_EVENTS = 2_000_000
MEMORY_RATIO_MAX = 1.10
LOAD_RULES = 10_000
LOAD_S_MAX = 10.0
ADD_MS_MAX = 10.0
ONE_THREAD = dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS", "ARROW_NUM_THREADS"), "1"
)

Report = dict[str, Any]


def _one_core() -> None:
    """Pin this process to one core. Libraries read the numbers of threads from the environment when imported."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    import pyarrow as pa

    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)


def _seconds(run: Callable[[], object]) -> float:
    start = perf_counter()
    run()
    return perf_counter() - start


def _peak_mb() -> float:
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure_workload(name: str) -> Report:
    """Measure one workload: rate, floor, ratio, matches and peak memory."""
    from statistics import median

    import tocsin
    from floor import scan
    from workloads import WORKLOADS

    workload = WORKLOADS[name]
    table = workload.events()
    rules = tocsin.rules(workload.rules)
    matches = rules.detect(table).num_rows
    scan(table, workload.scan)
    floors, runs = [], []
    for _ in range(RUNS):
        floors.append(_seconds(lambda: scan(table, workload.scan)))
        runs.append(_seconds(lambda: rules.detect(table)))
    floor_s, run_s = median(floors), median(runs)
    return {
        "name": name,
        "facts": workload.facts,
        "events": table.num_rows,
        "rules": len(rules),
        "matches": matches,
        "matches_expected": workload.matches,
        "events_per_s": table.num_rows / run_s,
        "run_s": run_s,
        "floor_s": floor_s,
        "ratio": run_s / floor_s,
        "bound": workload.bound,
        "ok": run_s <= workload.bound * floor_s and matches == workload.matches,
        "peak_mb": _peak_mb(),
    }


def measure_stream(events: str) -> Report:
    """Measure the peak memory of the three fire rules over this many events, pushed in chunks."""
    import tocsin
    from workloads import FIRE_RULES, fire_chunks

    text = "".join(f"rule {name.capitalize()} {rule}" for name, rule in FIRE_RULES.items())
    detector = tocsin.rules(text).detector(ordered=True)
    matches = 0
    start = perf_counter()
    for chunk in fire_chunks(int(events)):
        matches += detector.push(chunk).num_rows
    matches += detector.finish().num_rows
    return {
        "events": int(events),
        "matches": matches,
        "state_bytes": detector.state_bytes,
        "peak_mb": _peak_mb(),
        "seconds": perf_counter() - start,
    }


def measure_load(count: str) -> Report:
    """Measure the time from many rules as text to a detector after its first events, and of adding one more rule."""
    from statistics import median

    import tocsin
    from workloads import filter_events, many_rules

    text = many_rules(int(count))
    events = filter_events(1_000)
    tocsin.rules(many_rules(10)).detect(events)
    start = perf_counter()
    rules = tocsin.rules(text)
    parsed_s = perf_counter() - start
    detector = rules.detector()
    detector.push(events)
    load_s = perf_counter() - start
    more = [
        f"define Y{number}(a: double) from T1(a > {number}) and last T2(b < 5) within 5 min from T1 where a = T1.a"
        for number in range(RUNS)
    ]
    add_s = median(_seconds(lambda rule=rule: detector.add(rule)) for rule in more)  # type: ignore[misc]
    return {
        "rules": int(count),
        "parse_s": parsed_s,
        "load_s": load_s,
        "load_s_max": LOAD_S_MAX,
        "add_ms": add_s * 1e3,
        "add_ms_max": ADD_MS_MAX,
        "ok": load_s <= LOAD_S_MAX and add_s * 1e3 <= ADD_MS_MAX,
        "peak_mb": _peak_mb(),
    }


MEASURES = {"workload": measure_workload, "stream": measure_stream, "load": measure_load}


def _apart(measure: str, argument: object) -> Report:
    """Run a measurement in a new process; its output goes to stderr, its result is returned."""
    command = [sys.executable, __file__, "--measure", measure, str(argument)]
    done = subprocess.run(command, env=os.environ | ONE_THREAD, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        sys.exit(f"bench: {measure} {argument} ended with {done.returncode}")
    report: Report = json.loads(done.stdout)
    return report


def _word(ok: bool) -> str:
    return "ok" if ok else "OVER"


def _print_workload(report: Report) -> None:
    print(f"{report['name']}: {report['facts']}")
    print(
        f"  {report['events_per_s'] / 1e6:6.2f} M events/s   {report['matches']:,} matches of {report['rules']} rule(s)"
        f" in {report['events']:,} events   peak {report['peak_mb']:,.0f} MB"
    )
    print(
        f"  run {report['run_s'] * 1e3:,.1f} ms, floor {report['floor_s'] * 1e3:,.1f} ms: {report['ratio']:.2f} times,"
        f" bound {report['bound']:g}: {_word(report['ratio'] <= report['bound'])}"
    )
    if report["matches"] != report["matches_expected"]:
        print(f"  WRONG: {report['matches_expected']:,} matches expected")
    print(flush=True)


def main() -> None:
    """Run the benchmarks and print a report or JSON. Exit with 1 if a bound does not hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="workloads, such as 'W1 last'; stream; load; all by default")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--measure", nargs=2, metavar=("WHAT", "ARGUMENT"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        _one_core()
        what, argument = options.measure
        print(json.dumps(MEASURES[what](argument)))
        return

    workloads = ("W1 last", "W1 each", "W1 not", "W2", "W3")
    chosen = options.names or [*workloads, "stream", "load"]
    if unknown := set(chosen) - {*workloads, "stream", "load"}:
        parser.error(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(workloads)}, stream and load")
    reports: Report = {}
    load = os.getloadavg()[0]
    if not options.json:
        print(f"{os.cpu_count()} cores, of which one is used; {load:.1f} processes were running when this began\n")
    for name in (name for name in workloads if name in chosen):
        reports[name] = _apart("workload", name)
        if not options.json:
            _print_workload(reports[name])
    if "stream" in chosen:
        once, twice = _apart("stream", MEMORY_EVENTS), _apart("stream", 2 * MEMORY_EVENTS)
        ratio = twice["peak_mb"] / once["peak_mb"]
        reports["stream"] = {"once": once, "twice": twice, "ratio": ratio, "ok": ratio <= MEMORY_RATIO_MAX}
        if not options.json:
            print("stream: the three fire rules in chunks of 100,000 events")
            for report in (once, twice):
                print(
                    f"  {report['events']:,} events   {report['matches']:,} matches   peak {report['peak_mb']:,.0f} MB"
                    f"   state {report['state_bytes']:,} bytes   {report['seconds']:.1f} s with making the events"
                )
            print(f"  {ratio:.3f} times, bound {MEMORY_RATIO_MAX}: {_word(ratio <= MEMORY_RATIO_MAX)}\n", flush=True)
    if "load" in chosen:
        reports["load"] = report = _apart("load", LOAD_RULES)
        if not options.json:
            print(f"load: {report['rules']:,} rules")
            print(f"  parse, plan and load {report['load_s']:.2f} s, bound {LOAD_S_MAX:g} s: ", end="")
            print(_word(report["load_s"] <= LOAD_S_MAX), f"(text to rules {report['parse_s']:.2f} s)")
            print(f"  one more rule {report['add_ms']:.2f} ms, bound {ADD_MS_MAX:g} ms: ", end="")
            print(_word(report["add_ms"] <= ADD_MS_MAX))
    if options.json:
        print(json.dumps({"load_average": load, **reports}, indent=2))
    sys.exit(0 if all(report["ok"] for report in reports.values()) else 1)


if __name__ == "__main__":
    main()
