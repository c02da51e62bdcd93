"""Sites that are processes, each an application on Spark, give their sinks the reference's matches."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.sites.drills import Drill, finish, right, sailing, simulated, traffic
from tests.sites.running import FIVE, RULES, THREE, got, read_plan, written_plan
from tests.sites.writers import BRIEF, SOURCES, Writers
from tests.spark.kafka import STAND_IN, broker, connector
from tocsin.cli import app
from tocsin.cli.sites import fleet
from tocsin.errors import TocsinError
from tocsin.overlay.strategies import STRATEGIES
from tocsin.sites.channels import FolderChannels
from tocsin.spark import kafka

ENGINES = pytest.mark.parametrize("engine", ["embedded", "spark"])
"""The same processes, with Spark and without it."""
MANY = {
    **FIVE,
    "rules": RULES.replace("5 min", "20 s"),
    "sources": {"hill": {"Smoke": 0.02}, "lake": {"Temp": 180}, "dam": {"Rain": 0.05}, "fort": {"Temp": 20}},
    "values": {"area": [f"A{number}" for number in range(40)], "value": [20, 60]},
    "sinks": {"town": ["Fire"], "dam": ["HeatWave"], "fort": ["Fire"]},
    "seconds": 1000,
}
"""200,000 events."""


@pytest.mark.parametrize("engine", ["embedded", pytest.param("spark", marks=pytest.mark.slow)])
def test_five_sites(tmp_path: Path, engine: str) -> None:
    """As a newcomer starts them."""
    path = written_plan(tmp_path, FIVE, strategies=["MT"])
    result = CliRunner().invoke(app, ["site", "up", str(path), "--engine", engine])
    assert result.exit_code == 0, result.output
    assert result.stdout.count(", as expected") == 2
    ships = fleet(path)
    assert not ships.processes()
    right(ships.plan)
    sent, _, _ = traffic(ships)
    assert sent == pytest.approx(simulated(ships.plan).traffic, rel=0.1)


@pytest.mark.long
@ENGINES
def test_five_sites_with_every_strategy(tmp_path: Path, engine: str) -> None:
    """200,000 events; messages and bytes order the strategies as the simulator says."""
    rows = []
    for name in STRATEGIES:
        begun_s = time.monotonic()
        with sailing(tmp_path / name, MANY, engine, strategies=[name], epoch=20) as ships:
            finish(ships, 600)
            took_s = time.monotonic() - begun_s
            sent, event_bytes, bytes_all = traffic(ships)
        right(ships.plan)
        said = simulated(ships.plan)
        rows.append((name, sent, said.traffic, event_bytes, said.bytes, bytes_all))
        matches = sum(map(len, got(ships.plan).values()))
        print(
            f"{name:5} {ships.plan.events.num_rows:,} events in {took_s:.0f} s, {matches:,} matches at sinks; "
            f"messages {sent:,}, simulator {said.traffic:,}; bytes of bundles with events {event_bytes:,}, "
            f"simulator {said.bytes:,}; all bytes {bytes_all:,}"
        )
        if not STRATEGIES[name].pulls:
            assert sent == pytest.approx(said.traffic, rel=0.1)
    by_messages = sorted(rows, key=lambda row: row[1])
    by_bytes = sorted(rows, key=lambda row: row[3])
    assert [row[0] for row in by_messages] == [row[0] for row in sorted(rows, key=lambda row: row[2])]
    assert [row[0] for row in by_bytes] == [row[0] for row in sorted(rows, key=lambda row: row[4])]


def drill(folder: Path, engine: str, kills: int, seconds: int, seed: int) -> None:
    with sailing(folder, THREE, engine, replicas=2, seconds=seconds, epoch=1, speed=1, strategies=["MT"]) as ships:
        happened = Drill(ships, seed)
        happened.run(kills)
        finish(ships, 300 + seconds)
    print(happened)
    right(ships.plan)
    assert len(happened.rejoined_s) == kills


@pytest.mark.slow
@ENGINES
def test_replicas_that_are_killed(tmp_path: Path, engine: str) -> None:
    drill(tmp_path, engine, 3, 60, seed=1)


@pytest.mark.long
@ENGINES
def test_replicas_that_are_killed_thirty_times(tmp_path: Path, engine: str) -> None:
    """Events come for as long as that takes: sources are live."""
    kills = 30
    generated = read_plan(tmp_path / "generated", THREE, **{**BRIEF, "seconds": 600})
    writers = Writers(tmp_path / "arriving", generated, seed=5)
    total = len(writers.waiting)
    with sailing(tmp_path, THREE, engine, replicas=2, live=SOURCES, **{**BRIEF, "epoch": 1}) as ships:
        happened = Drill(ships, seed=5)
        written_s = time.monotonic()

        def meanwhile() -> None:
            """Some events each second, as many with each kill."""
            nonlocal written_s
            left = len(writers.waiting) - total * (kills - 1 - len(happened.rejoined_s)) // kills
            if left > 0 and time.monotonic() - written_s > 1:
                written_s = time.monotonic()
                writers.write(min(left, 8))

        happened.meanwhile = meanwhile
        happened.run(kills)
        writers.write(len(writers.waiting))
        writers.end()
        until_s = time.monotonic() + 120
        while got(ships.plan) != writers.due and time.monotonic() < until_s:
            time.sleep(0.5)
    found = got(ships.plan)
    counts = ", ".join(f"{sink} {len(ids)}" for sink, ids in found.items())
    print(f"{happened}; {total} events, matches at sinks: {counts}")
    assert found == writers.due
    assert all(found.values())
    assert not (ships.folder / "letters").exists()


def held(folder: Path, engine: str, seconds: float) -> None:
    with sailing(folder, FIVE, engine, seconds=60, epoch=1, speed=1) as ships:
        folders = FolderChannels(ships.folder / "channels")
        while not all(one.status and one.status["round"] > one.status["rounds"] // 2 for one in ships.statuses()):
            time.sleep(0.1)
        before = len(list((ships.folder / "sinks").rglob("*.jsonl")))
        folders.hold("lake#0", "town#0", held=True)
        time.sleep(seconds)
        assert not ships.finished()
        assert folders.waiting("town#0")["lake#0"] > 0
        folders.hold("lake#0", "town#0", held=False)
        finish(ships, 300)
        after = len(list((ships.folder / "sinks").rglob("*.jsonl")))
        print(f"held for {seconds:g} s; {before} files at sinks before, {after} at the end")
    right(ships.plan)


@pytest.mark.slow
@ENGINES
def test_a_link_that_is_held_back(tmp_path: Path, engine: str) -> None:
    held(tmp_path, engine, 6)


@pytest.mark.long
@ENGINES
def test_a_link_that_is_held_back_for_a_minute(tmp_path: Path, engine: str) -> None:
    held(tmp_path, engine, 60)


@pytest.mark.slow
def test_sites_over_kafka(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same plan over topics, with a broker that is killed and started again."""
    try:
        kafka.jars()
    except TocsinError:
        connector()
        monkeypatch.setenv(kafka.VARIABLE, STAND_IN)
    with broker(tmp_path / "broker") as running:
        address = f"kafka://{running.address}/tocsin"
        with sailing(tmp_path, FIVE, "spark", seconds=60, epoch=1, speed=2, channels=address) as ships:
            while not all(one.status and one.status["round"] > one.status["rounds"] // 2 for one in ships.statuses()):
                time.sleep(0.1)
            assert not ships.finished()
            running.kill()
            time.sleep(5)
            running.start()
            finish(ships, 500)
        right(ships.plan)
        assert not (ships.folder / "channels").exists()
