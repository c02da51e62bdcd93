"""Sites on Spark whose sources are live topics, over channels that are topics: what do sinks get while the broker is
killed, a link is held and a replica is forgotten?"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.sites.drills import sailing
from tests.sites.running import THREE, got, read_plan
from tests.sites.writers import BRIEF, LATE_S, Writers
from tests.spark.kafka import STAND_IN, broker, connector, session
from tests.spark.test_kafka_detection import produce
from tocsin.errors import TocsinError
from tocsin.sites.fleet import Fleet
from tocsin.spark import kafka


class Producers(Writers):
    """Events that go to topics instead of folders."""

    def __init__(self, *given: Any, to: Callable[[str, list[str]], None]) -> None:
        super().__init__(*given)
        self.to = to

    def put(self, site: str, rows: Any, ending: str = "jsonl") -> None:
        self.to(site, [row if isinstance(row, str) else json.dumps(row) for row in rows])


def until(ships: Fleet, look: Callable[[], bool], what: str, limit_s: float = 240) -> None:
    until_s = time.monotonic() + limit_s
    while not look():
        ships.restart_failed()
        assert time.monotonic() < until_s, f"waited for {what}\n" + "\n".join(
            f"{one.name} {one.state} {one.status}\n{ships.log(one.name)}" for one in ships.statuses()
        )
        time.sleep(0.2)


def said(ships: Fleet, *words: str) -> None:
    """What an operator says, in a process of its own."""
    site = ships.command.index("site")
    plan = ships.command[site + 2]
    done = subprocess.run(
        [*ships.command[: site + 1], words[0], plan, *words[1:]], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_live_sources_and_an_operator_over_kafka(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        kafka.jars()
    except TocsinError:
        connector()
        monkeypatch.setenv(kafka.VARIABLE, STAND_IN)
    with broker(tmp_path / "broker") as running, session() as spark:

        def send(site: str, lines: list[str]) -> None:
            spark.run(produce, running.topic(f"live.{site}"), lines)

        generated = read_plan(tmp_path / "generated", THREE, **BRIEF)
        producers = Producers(tmp_path, generated, to=send)
        sources = {
            site: {"from": str(running.topic(f"live.{site}")), "late": LATE_S, "id": "id"} for site in ("hill", "dam")
        }
        producers.write(len(producers.waiting) // 3)
        producers.put("hill", ["no event"])
        changed = {**BRIEF, "epoch": 0.5, "channels": f"kafka://{running.address}/tocsin", "live": sources}
        with sailing(tmp_path, THREE, "spark", replicas={"dam": 2}, **changed) as ships:
            statuses = {}

            def queued() -> int:
                statuses.update({one.name: one.status for one in ships.statuses()})
                return int(statuses["town#0"].get("queued", 0))

            until(ships, lambda: any(got(ships.plan).values()), "a match")
            running.kill()
            time.sleep(3)
            running.start()
            producers.write(len(producers.waiting) // 2)
            said(ships, "hold", "hill", "town")
            before = max(one.status["round"] for one in ships.statuses())
            time.sleep(10)
            assert max(one.status["round"] for one in ships.statuses()) < before + 15
            assert not ships.finished()
            ships.kill("dam#1")
            said(ships, "hold", "hill", "town", "--release")
            until(ships, lambda: queued() > 20, "a queue for one that is away")
            said(ships, "forget", "dam#1")
            until(ships, lambda: queued() < 10, "a queue that is pruned")
            producers.write(len(producers.waiting))
            producers.end()
            until(ships, lambda: got(ships.plan) == producers.due, "all matches")
            assert {one.name: one.status for one in ships.statuses()}["hill#0"]["refused"] == 1
        assert all(got(ships.plan).values())
        letters = (ships.folder / "letters" / "hill").glob("*.jsonl")
        assert "hill/0:" in "".join(path.read_text(encoding="utf-8") for path in letters)
