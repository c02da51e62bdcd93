"""Kill the service at random times: each acknowledged event is stored once and each match is delivered once."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest

import tocsin
from tests.budget import seeds
from tocsin.client import Client
from tocsin.datasets import fire_events
from tocsin.service.records import EventsRecord, decode
from tocsin.service.tokens import Role, Tokens
from tocsin.storage import Log

RULE = """
define  Fire(area: string, temp: double)
from    Smoke(area=$a) and last Temp(area=$a, value>30) within 5 min from Smoke
where   area = Smoke.area, temp = Temp.value
"""
BATCH = 500


def started(folder: Path, port: int, engine: str) -> subprocess.Popen[bytes]:
    command = "from tocsin.cli import main; main()"
    options = ["serve", "--data", str(folder), "--port", str(port), "--delay", "0 s", "--engine", engine]
    return subprocess.Popen([sys.executable, "-c", command, *options], stderr=subprocess.DEVNULL, env=os.environ)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.parametrize(
    ("events", "engine"),
    [
        (10_000, "embedded"),
        pytest.param(100_000, "embedded", marks=pytest.mark.slow),
        pytest.param(10_000, "spark", marks=pytest.mark.slow),
    ],
)
def test_a_kill_loses_nothing_and_repeats_nothing(tmp_path: Path, events: int, engine: str) -> None:
    seed = seeds(range(1)).start
    print(f"seed {seed}, {events} events")
    table = fire_events(events, areas=20, rate=100, seed=seed)
    table = table.append_column("id", pa.array([f"e{number}" for number in range(events)]))
    port = free_port()
    token = Tokens(tmp_path / "tokens").issue("all", Role)
    service = started(tmp_path, port, engine)
    url = f"http://127.0.0.1:{port}"
    heard: list[tuple[int, str]] = []
    done = threading.Event()
    wanted = tocsin.rules(RULE).detect(table)["id"].to_pylist()

    def listen() -> None:
        with Client(url, token, patience_s=300) as client:
            for match in client.subscribe(after=0):
                heard.append((match["number"], match["id"]))
                if len(heard) >= len(wanted) or done.is_set():
                    return

    acknowledged = 0
    with Client(url, token, patience_s=300) as client:
        client.deploy(RULE)
        listening = threading.Thread(target=listen, daemon=True)
        listening.start()
        kills = sorted(random.Random(seed).sample(range(1, events // BATCH), 2))
        for number in range(events // BATCH):
            piece = table.slice(number * BATCH, BATCH)
            if number in kills:  # while this request is under way
                wait_s = random.Random(seed + number).uniform(0, 0.02)
                killing = threading.Timer(wait_s, service.send_signal, [signal.SIGKILL])
                killing.start()
            acknowledged += client.publish(piece, key=f"batch{number}")["accepted"] if number not in kills else 0
            if number in kills:
                killing.join()
                service.wait()
                service = started(tmp_path, port, engine)
                acknowledged += client.publish(piece, key=f"batch{number}")["accepted"]
        last = table["ts"][-1].cast(pa.int64()).as_py()
        client.publish([{"type": "Clock", "ts": last + 1_000_000, "id": "clock"}])
        until_s = time.monotonic() + 300
        while len(heard) < len(wanted) and time.monotonic() < until_s:
            time.sleep(0.05)
        paged = [match["id"] for match in client.matches()]
        done.set()
    service.send_signal(signal.SIGTERM)
    service.wait(60)
    log = Log(tmp_path / "events")
    ids = Counter(
        id
        for record in log.read(log.begin)
        if isinstance(batch := decode(record.payload), EventsRecord)
        for id in batch.batch["id:string"].to_pylist()
    )
    log.close()
    assert acknowledged == events
    assert ids == Counter([*table["id"].to_pylist(), "clock"])
    assert sorted(paged) == sorted(wanted)
    if engine == "embedded":  # on Spark, matches of one moment come in the order of their ids
        assert paged == wanted
    assert heard == [*enumerate(paged, 1)]
    listening.join(10)
