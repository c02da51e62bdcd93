"""The compared engines: a row for each engine and each way to write its rules, with its command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from peers import installed, processes, queries
from peers.orders import WORD

BENCHMARKS = Path(__file__).resolve().parent.parent
FIRE = ("W1 last", "W1 each", "W1 not")
ALL = (*FIRE, "W2", "W3")
ONE_THREAD = dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS", "ARROW_NUM_THREADS"), "1"
)


@dataclass(frozen=True)
class Engine:
    """One row of the tables."""

    name: str
    peer: str
    way: str
    workloads: tuple[str, ...]
    is_cep: bool = False
    """An engine for complex events of others: what embedded is held against."""
    is_paced: bool = False
    """Whether its latency is measured, on W1 last."""

    def command(self, path: Path, workload: str, folder: Path) -> list[str]:
        """Return the command of its process."""
        rules = folder / f"{self.peer}-{self.way}-{workload}.rules".replace(" ", "-")
        text = queries.written(self.peer, self.way, workload)
        rules.write_text("".join(f"{line}\n" for line in text))
        given = [str(path), workload, self.way, str(rules)]
        match self.peer:
            case "embedded" | "spark":
                return [sys.executable, "-m", f"peers.{self.peer}", *given]
            case "joins":
                return [str(installed.python()), "-m", "peers.joins", *given]
            case _:
                return [*installed.java(self.peer), f"{self.peer.capitalize()}Peer", *given]


ENGINES = (
    Engine("Tocsin", "embedded", "detect", ALL, is_paced=True),
    Engine("Tocsin, one core", "embedded", "single", ALL),
    Engine("Tocsin, three columns, one core", "embedded", "alike", FIRE),
    Engine("polars, joins by hand", "joins", "polars", FIRE),
    Engine("DuckDB, joins by hand", "joins", "duckdb", FIRE),
    Engine("Esper, pattern", "esper", "pattern", (*FIRE, "W2"), is_cep=True, is_paced=True),
    Engine("Esper, join", "esper", "join", (*FIRE, "W2"), is_cep=True, is_paced=True),
    Engine("Esper, filters", "esper", "filter", ("W3",), is_cep=True),
    Engine("Siddhi, table", "siddhi", "table", ("W1 last", "W1 not"), is_cep=True, is_paced=True),
    Engine("Siddhi, window join", "siddhi", "window", (*FIRE, "W2"), is_cep=True, is_paced=True),
    Engine("Siddhi, pattern", "siddhi", "pattern", (*FIRE, "W2"), is_cep=True, is_paced=True),
    Engine("Siddhi, filters", "siddhi", "filter", ("W3",), is_cep=True),
    Engine("Flink CEP", "flink", "cep-2", (*FIRE, "W2"), is_cep=True, is_paced=True),
    Engine("Flink CEP, parallelism 1", "flink", "cep-1", FIRE, is_cep=True),
    Engine("Flink CEP, pre-filter", "flink", "filtered-2", (*FIRE, "W2"), is_cep=True, is_paced=True),
    Engine("Flink CEP, pre-filter, parallelism 1", "flink", "filtered-1", FIRE, is_cep=True),
    Engine("Flink CEP, pre-filter, tuned for latency", "flink", "filtered-2-tuned", ("W1 last",), is_paced=True),
    Engine("Flink SQL, MATCH_RECOGNIZE", "flink", "sql-2", FIRE, is_cep=True, is_paced=True),
    Engine("Flink, one flatMap", "flink", "flatmap-2", ("W3",)),
    Engine("Flink, one flatMap, parallelism 1", "flink", "flatmap-1", ("W3",)),
    Engine("Tocsin, Spark batch", "spark", "batch", ALL),
    Engine("Tocsin, Spark batch, three columns", "spark", "alike", ("W1 last",)),
    Engine("Tocsin, Spark streaming", "spark", "stream", FIRE, is_paced=True),
    Engine("Tocsin, Spark streaming, three columns", "spark", "stream-alike", ("W1 last",)),
    Engine("Spark SQL, window function", "spark", "window", ("W1 last",)),
)


class Process:
    """A running engine, stopped between its turns, as idle clusters use a core and more."""

    def __init__(self, engine: Engine, path: Path, workload: str, folder: Path) -> None:
        self.name = engine.name
        log = folder / f"{engine.peer}-{engine.way}-{workload}.log".replace(" ", "-")
        known = os.environ.get("PYTHONPATH")
        paths = f"{BENCHMARKS}{os.pathsep}{known}" if known else str(BENCHMARKS)
        self._log = log
        with log.open("w") as errors:
            self._process = subprocess.Popen(
                engine.command(path, workload, folder),
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True,
                env=os.environ | ONE_THREAD | {"PYTHONPATH": paths},
            )  # fmt: skip
        self.version = str(self._answer("ready")["version"])
        self._hold(held=True)

    def run(self, count: int) -> dict[str, Any]:
        """Run one turn over the first `count` events."""
        return self._turn(f"run {count}", "ran")

    def pace(self, count: int, rate: float) -> dict[str, Any]:
        """Measure latencies at a rate in events/s."""
        return self._turn(f"pace {count} {rate}", "paced")

    def peak_mb(self) -> float:
        """Return the sum of the peak memory of its process and child processes."""
        return processes.peak_mb(self._process.pid)

    def stop(self) -> None:
        """Wait for its end, or kill it."""
        self._hold(held=False)
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _turn(self, order: str, answer: str) -> dict[str, Any]:
        self._hold(held=False)
        self._order(order)
        result = self._answer(answer)
        self._hold(held=True)
        return result

    def _hold(self, *, held: bool) -> None:
        processes.hold(self._process.pid, held=held)

    def _order(self, text: str) -> None:
        orders: IO[str] | None = self._process.stdin
        assert orders is not None
        print(text, file=orders, flush=True)

    def _answer(self, kind: str) -> dict[str, Any]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            word, _, rest = line.partition(" ")
            if word == WORD and rest.startswith(f"{kind} "):
                result: dict[str, Any] = json.loads(rest.removeprefix(f"{kind} "))
                return result
        self._process.wait()
        print(said := self._log.read_text()[-4_000:], file=sys.stderr)
        last = next((line for line in reversed(said.splitlines()) if line.strip()), "")
        raise EngineEnded(f"{self.name} ended with {self._process.returncode}: {last}")


class EngineEnded(Exception):
    """An engine's process ended; the message has its last output."""
