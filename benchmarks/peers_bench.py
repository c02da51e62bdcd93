"""Compare this project with other engines (`make bench-peers`): all workloads in one run.

Peers are installed from package registries into build/peers. Each engine is a process of its own that reads the same
file of events into memory before anything is timed. Engines take turns: first turns that are not counted, then turns
of which the median counts. A slow engine gets the first events of the file, as many as fit into a turn of a few
seconds. Matches are compared with this project's on the same events; wrong ones are shown, never left out.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import platform
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from peers import files
from peers.engines import ALL, ENGINES, Engine, EngineEnded, Process
from peers.orders import UNCHECKED
from peers.report import PACED, Pace, Report, Row, bounds, markdown, plot, report_of
from workloads import WORKLOADS

EVENTS = {"W1": 2_000_000, "W2": 1_000_000, "W3": 1_000_000}
PROBE_EVENTS = 10_000
PACE_S = 10.0
GROWTHS = 8
"""How often a warm-up turn may be followed by a larger one. A small turn mostly costs the fixed price of a turn, so an
engine with a high fixed price grows step by step to the number of events that fit into a turn."""


@dataclass(frozen=True)
class Extent:
    """The size of a run."""

    events: dict[str, int]
    turns: int
    turn_s_max: float
    pace: float
    """The rate in events/s at which latency is measured."""


def machine() -> str:
    """Describe this machine and its load."""
    kb = next((int(line.split()[1]) for line in Path("/proc/meminfo").read_text().splitlines()), 0)
    load = os.getloadavg()[0]
    return (
        f"{os.cpu_count()} cores ({platform.machine()}), {kb / 2**20:.0f} GB of memory, "
        f"Python {platform.python_version()}; {load:.1f} processes were running when this began."
    )


def events_file(workload: str, count: int, folder: Path) -> Path:
    """Return the file of a workload's first events; the rules of W1 share a file."""
    family = workload.split()[0]
    path = folder / f"{family}-{count}.events"
    if not path.exists():
        files.write(path, WORKLOADS[workload].events().slice(0, count), files.layout(workload))
    return path


class Contest:
    """Run all engines on one workload."""

    def __init__(self, workload: str, engines: list[Engine], extent: Extent, folder: Path, report: Report) -> None:
        self._workload, self._extent, self._folder, self._report = workload, extent, folder, report
        self._count = extent.events[workload.split()[0]]
        self._path = events_file(workload, self._count, folder)
        self._right: dict[int, tuple[int, int]] = {}
        self._judge = Process(ENGINES[0], self._path, workload, folder)
        self._running: dict[Engine, Process] = {}
        for engine in engines:
            self._try(engine, lambda engine=engine: self._start(engine))

    def run(self) -> None:
        """Measure rates, then latencies."""
        counts: dict[Engine, int] = {}
        for engine in list(self._running):
            self._try(engine, lambda engine=engine: counts.update({engine: self._warm(engine)}))
            if engine in counts:
                print(f"  … {engine.name}: turns of {counts[engine]:,} events", file=sys.stderr, flush=True)
        taken: dict[Engine, list[dict[str, float]]] = {engine: [] for engine in self._running}
        for turn in range(self._extent.turns):
            print(f"  … turn {turn + 1} of {self._extent.turns}", file=sys.stderr, flush=True)
            for engine in list(self._running):
                self._try(engine, lambda engine=engine: taken[engine].append(self._running[engine].run(counts[engine])))
        for engine, process in self._running.items():
            self._add(engine, process, counts[engine], taken[engine])
        if self._workload == PACED:
            for engine in [engine for engine in self._running if engine.is_paced]:
                self._try(engine, lambda engine=engine: self._pace(engine))
        for process in (self._judge, *self._running.values()):
            process.stop()

    def _start(self, engine: Engine) -> None:
        self._running[engine] = Process(engine, self._path, self._workload, self._folder)

    def _try(self, engine: Engine, act) -> None:  # type: ignore[no-untyped-def]
        """Drop an engine that ends early, and print the reason."""
        try:
            act()
        except (EngineEnded, BrokenPipeError) as error:
            self._running.pop(engine, None)
            self._report.missing.append(f"{self._workload}: {error}")
            print(f"  {self._report.missing[-1]}", flush=True)

    def _warm(self, engine: Engine) -> int:
        """Run warm-up turns and return the number of events that fit into a counted turn."""
        process, count = self._running[engine], min(PROBE_EVENTS, self._count)
        process.run(count)
        for _ in range(GROWTHS):
            seconds = process.run(count)["seconds"]
            before, count = count, min(self._count, int(self._extent.turn_s_max * count / seconds))
            count = max(count - count % PROBE_EVENTS, min(PROBE_EVENTS, self._count))
            if count <= before:
                break
        return count

    def _add(self, engine: Engine, process: Process, count: int, turns: list[dict[str, float]]) -> None:
        right = self._expected(count)
        is_right = all(turn["matches"] == right[0] and turn["sum"] in (right[1], UNCHECKED) for turn in turns)
        matches = int(turns[-1]["matches"])
        row = Row(
            self._workload, engine.name, process.version, engine.is_cep, count,
            median(turn["seconds"] for turn in turns), median(turn["cpu_s"] for turn in turns),
            matches, right[0], is_right, process.peak_mb(),
        )  # fmt: skip
        self._report.rows.append(row)
        word = "" if row.is_right else f"  WRONG: {right[0]:,} are right"
        print(
            f"  {row.engine:34} {row.rate:14,.0f} events/s   {count:>9,} events   {matches:>9,} matches{word}",
            flush=True,
        )

    def _expected(self, count: int) -> tuple[int, int]:
        if count not in self._right:
            result = self._judge.run(count)
            self._right[count] = int(result["matches"]), int(result["sum"])
            counted = WORKLOADS[self._workload].matches
            if count == EVENTS[self._workload.split()[0]] and result["matches"] != counted:
                raise SystemExit(f"{self._workload}: {result['matches']} matches, counted without an engine: {counted}")
        return self._right[count]

    def _pace(self, engine: Engine) -> None:
        count = min(self._count, int(self._extent.pace * PACE_S))
        process = self._running[engine]
        process.pace(min(count, PROBE_EVENTS), self._extent.pace)
        result = process.pace(count, self._extent.pace)
        pace = Pace(engine.name, self._extent.pace, result["p50_us"], result["p99_us"], int(result["matches"]))
        self._report.paces.append(pace)
        print(f"  {engine.name:42} p50 {pace.p50_us / 1e3:.2f} ms, p99 {pace.p99_us / 1e3:.2f} ms", flush=True)


def write(report: Report, out: Path) -> None:
    """Write the table, the plot and the figures."""
    out.mkdir(parents=True, exist_ok=True)
    (out / "peers.md").write_text(markdown(report))
    (out / "peers.json").write_text(json.dumps(dataclasses.asdict(report), indent=2))
    if report.rows:
        plot(report, out / "peers.png")
    print(f"written to {out}")


def main() -> int:
    """Run the comparison. Exit with 1 if a bound does not hold or a result of this project is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer events and turns")
    parser.add_argument(
        "--only", nargs="+", metavar="NAME", default=[], help="workloads, engines, or parts of their names"
    )
    parser.add_argument("--no-spark", action="store_true")
    parser.add_argument("--no-flink", action="store_true")
    parser.add_argument("--events", type=int, help="at most so many events of each workload")
    parser.add_argument("--turns", type=int)
    parser.add_argument("--pace", type=float, default=20_000, help="events/s for latencies (default: 20,000)")
    parser.add_argument("--out", type=Path, default=Path("build") / "peers" / "results", help="where results go")
    parser.add_argument("--add", action="store_true", help="keep what an earlier run found of others")
    options = parser.parse_args()
    most = options.events or (100_000 if options.quick else max(EVENTS.values()))
    turns = options.turns or (3 if options.quick else 5)
    events = {name: min(count, most) for name, count in EVENTS.items()}
    extent = Extent(events, turns, 3.0 if options.quick else 5.0, options.pace)
    engines = [
        engine
        for engine in ENGINES
        if not (options.no_spark and engine.peer == "spark") and not (options.no_flink and engine.peer == "flink")
    ]
    workloads = [name for name in ALL if name in options.only] or list(ALL)
    if chosen := [word.lower() for word in options.only if word not in ALL]:
        names = {engine.name.lower() for engine in ENGINES}
        parts = [word for word in chosen if word not in names]
        engines = [
            engine
            for engine in engines
            if engine.name.lower() in chosen or any(part in engine.name.lower() for part in parts)
        ]
        if not engines:
            parser.error(f"no engine is called so; there are {'; '.join(engine.name for engine in ENGINES)}")

    report = Report(machine())
    known = options.out / "peers.json"
    if options.add and known.exists():
        report = report_of(json.loads(known.read_text())).without(
            (workload, engine.name) for engine in engines for workload in workloads
        )
    print(machine())
    with tempfile.TemporaryDirectory(prefix="tocsin-peers-") as folder:
        for workload in workloads:
            print(f"\n{workload}: {WORKLOADS[workload].facts}", flush=True)
            some = [engine for engine in engines if workload in engine.workloads]
            Contest(workload, some, extent, Path(folder), report).run()
    write(report, options.out)
    failed = [bound for bound in bounds(report.rows) if not bound.held]
    for bound in failed:
        print(f"not held: {bound.text}: {bound.ratio:.2f} times, bound at least {bound.least:g}")
    wrong = [row for row in report.rows if row.engine.startswith("Tocsin") and not row.is_right]
    return 1 if failed or wrong else 0


if __name__ == "__main__":
    sys.exit(main())
