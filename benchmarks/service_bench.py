"""Measure throughput and latency of the service over loopback, with one publisher and one subscriber.

    python benchmarks/service_bench.py [--seconds 10] [--engine spark]

Three runs on one service with the fire rules R1 to R3, all events durable before the answer:
Arrow as fast as it goes, NDJSON as fast as it goes, then Arrow at half the target rate with the time from a batch's
answer (and from its sending) to the notification of each match in it. Besides what the clock says there is the
CPU time of the service and of what it started, which other work on the machine does not change: events per CPU second
are a rate on one core. The targets are those of the embedded engine.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path

import httpx
import numpy as np
import pyarrow as pa
import pyarrow.json

from tocsin.client import Client
from tocsin.datasets import fire_events, fire_rules
from tocsin.events.files import records
from tocsin.service.tokens import Role, Tokens

ARROW, NDJSON = "application/vnd.apache.arrow.stream", "application/x-ndjson"
TARGETS = {"arrow": 50_000, "ndjson": 10_000, "p99_ms": 50}
AREAS = 1_000


def arrow_body(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return sink.getvalue()


def ndjson_body(table: pa.Table) -> bytes:
    rows = [{name: value for name, value in row.items() if value is not None} for row in records(table)]
    return "\n".join(map(json.dumps, rows)).encode()


class Service:
    """The service as a separate process."""

    def __init__(self, folder: Path, engine: str) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self.token = Tokens(folder / "tokens").issue("bench", Role, events_per_s=1e9)
        options = ["serve", "--data", str(folder), "--port", str(port), "--delay", "0 s", "--engine", engine]
        command = [sys.executable, "-c", "from tocsin.cli import main; main()", *options]
        self.process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        self.client = Client(self.url, self.token, patience_s=300)
        self.client.rules()

    def cpu_s(self) -> float:
        """The CPU time of the process and its children, including ended ones."""
        parents: dict[int, int] = {}
        ticks: dict[int, int] = {}
        for path in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError):
                fields = path.read_text().rpartition(")")[2].split()
                parents[int(path.parent.name)] = int(fields[1])
                ticks[int(path.parent.name)] = sum(map(int, fields[11:15]))
        mine = {self.process.pid}
        while more := {pid for pid, parent in parents.items() if parent in mine} - mine:
            mine |= more
        return sum(ticks[pid] for pid in mine if pid in ticks) / os.sysconf("SC_CLK_TCK")

    def detected(self) -> None:
        while self.client._ask("GET", "/status").json()["backlog_bytes"]:
            time.sleep(0.02)

    def stop(self) -> None:
        self.client.close()
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)


def flood(service: Service, bodies: list[tuple[bytes, int]], format: str, seconds: float) -> tuple[float, float]:
    """Return events accepted and detected in per second, and per CPU second of the service."""
    headers = {"Authorization": f"Bearer {service.token}", "Content-Type": format}
    accepted = 0
    with httpx.Client(base_url=service.url, headers=headers, timeout=60) as http:
        cpu, begun = service.cpu_s(), time.perf_counter()
        for body, events in bodies:
            result = http.post("/events", content=body).json()
            assert result["accepted"] == events, result["reasons"][:2]
            accepted += events
            if time.perf_counter() - begun > seconds:
                break
        service.detected()
        wall_s, cpu_s = time.perf_counter() - begun, service.cpu_s() - cpu
    return accepted / wall_s, accepted / cpu_s


def paced(service: Service, table: pa.Table, rate: int, seconds: float) -> dict[str, float]:
    """Send batches of 20 ms at a rate and measure the time from their answer to their matches."""
    size = rate // 50
    answered: dict[int, float] = {}
    sent: dict[int, float] = {}
    heard: list[tuple[int, float]] = []
    starts = table["ts"].cast(pa.int64()).to_numpy()[::size]
    stopping = threading.Event()
    after = int(service.client._ask("GET", "/status").json()["matches"])

    def listen() -> None:
        with Client(service.url, service.token) as client:
            for match in client.subscribe(after=after):
                ts = int(np.datetime64(match["ts"].rstrip("Z"), "us").astype(np.int64))
                heard.append((int(np.searchsorted(starts, ts, "right")) - 1, time.perf_counter()))
                if stopping.is_set():
                    return

    threading.Thread(target=listen, daemon=True).start()
    time.sleep(1)
    bodies = [arrow_body(table.slice(start, size)) for start in range(0, int(rate * seconds), size)]
    headers = {"Authorization": f"Bearer {service.token}", "Content-Type": ARROW}
    late = 0
    with httpx.Client(base_url=service.url, headers=headers, timeout=60) as http:
        cpu, begun = service.cpu_s(), time.perf_counter()
        for number, body in enumerate(bodies):
            wait_s = begun + number * 0.02 - time.perf_counter()
            if wait_s > 0:
                time.sleep(wait_s)
            else:
                late += 1
            sent[number] = time.perf_counter()
            http.post("/events", content=body)
            answered[number] = time.perf_counter()
        reached = len(bodies) * size / (time.perf_counter() - begun)
        cpu_s = service.cpu_s() - cpu
    service.detected()
    time.sleep(2)
    stopping.set()
    since_answer = np.array([1000 * max(0.0, at - answered[number]) for number, at in heard if number in answered])
    since_sent = np.array([1000 * (at - sent[number]) for number, at in heard if number in sent])
    return {
        "rate": round(reached),
        "cpu_share": round(cpu_s / (len(bodies) * size / reached), 2),
        "matches": len(heard),
        "accepted_to_notified_p50_ms": round(float(np.percentile(since_answer, 50)), 1),
        "accepted_to_notified_p99_ms": round(float(np.percentile(since_answer, 99)), 1),
        "sent_to_notified_p50_ms": round(float(np.percentile(since_sent, 50)), 1),
        "sent_to_notified_p99_ms": round(float(np.percentile(since_sent, 99)), 1),
        "batches_sent_late": late,
    }


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    options.add_argument("--seconds", type=float, default=10.0)
    options.add_argument("--engine", choices=["embedded", "spark"], default="embedded")
    options.add_argument("--json", action="store_true")
    options.add_argument("--only", choices=["half"], help="the run at half the load alone")
    wanted = options.parse_args()
    seconds = wanted.seconds
    arrow_events, ndjson_events = int(200_000 * seconds), int(60_000 * seconds)
    paced_events = int(TARGETS["arrow"] / 2 * seconds)
    table = fire_events(arrow_events + ndjson_events + paced_events, areas=AREAS, rate=1_000, seed=3)
    with tempfile.TemporaryDirectory(prefix="tocsin-bench-") as folder:
        service = Service(Path(folder), wanted.engine)
        try:
            service.client.deploy(fire_rules())
            warm, table = table.slice(0, 20_000), table.slice(20_000)
            service.client.publish(warm)
            service.detected()
            # Half the rate first: a stream that was flooded ends far ahead in the table.
            first = table.slice(0, paced_events)
            result = paced(service, first, TARGETS["arrow"] // 2, seconds - 1)
            if wanted.only:
                print(json.dumps(result))
                return 0 if result["accepted_to_notified_p99_ms"] < TARGETS["p99_ms"] else 1
            rest = table.slice(paced_events)
            pieces = [rest.slice(start, 5_000) for start in range(0, arrow_events - 25_000, 5_000)]
            arrow = flood(service, [(arrow_body(piece), piece.num_rows) for piece in pieces], ARROW, seconds)
            rest = rest.slice(arrow_events - 20_000)
            pieces = [rest.slice(start, 1_000) for start in range(0, ndjson_events - 25_000, 1_000)]
            ndjson = flood(service, [(ndjson_body(piece), piece.num_rows) for piece in pieces], NDJSON, seconds)
            status = service.client._ask("GET", "/status").json()
        finally:
            service.stop()
    report = {
        "engine": wanted.engine,
        "arrow_per_s": round(arrow[0]), "arrow_per_cpu_s": round(arrow[1]),
        "ndjson_per_s": round(ndjson[0]), "ndjson_per_cpu_s": round(ndjson[1]),
        "half_load": result, "events": status["events"], "dead_letters": status["dead_letters"],
    }  # fmt: skip
    if wanted.json:
        print(json.dumps(report))
    else:
        for name, (per_s, per_cpu_s) in (("Arrow", arrow), ("NDJSON", ndjson)):
            print(
                f"{name:7}{per_s:>10,.0f} events/s accepted and detected in, {per_cpu_s:,.0f} a CPU second of its own"
            )
        print(f"at half the load: {result}")
    good = (
        arrow[0] >= TARGETS["arrow"]
        and ndjson[0] >= TARGETS["ndjson"]
        and result["accepted_to_notified_p99_ms"] < TARGETS["p99_ms"]
    )
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
