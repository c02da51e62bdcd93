"""Sites with live sources give the reference's matches, whichever replica creates a batch and wherever one ends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sites.running import THREE, Machines, got, read_plan
from tests.sites.writers import BRIEF, SOURCES, Writers
from tocsin.sites import sources


def begun(folder: Path, seed: int = 0, **changed: Any) -> tuple[Machines, Writers]:
    sources = changed.pop("live", SOURCES)
    writers = Writers(folder / "arriving", read_plan(folder / "generated", THREE, **BRIEF), seed)
    made = read_plan(folder, THREE, **{**BRIEF, **changed}, live=sources)
    return Machines(made, seed), writers


def run(machines: Machines, writers: Writers, crash: float = 0.0, turns: int = 600) -> None:
    chance = machines.chance
    ended = False
    for turn in range(turns):
        machines.now_us += 500_000
        if writers.waiting:
            writers.write(chance.randrange(40))
        elif not ended:
            writers.end()
            ended = True
        for name in machines.plan.names:
            machines.step(name, chance.randrange(12) if chance.random() < crash else None)
        if ended and turn % 5 == 0 and got(machines.plan) == writers.due:
            break
    found = got(machines.plan)
    assert found == writers.due
    assert all(found.values())


def test_files_that_arrive(tmp_path: Path) -> None:
    """Out of order, but not by more than they may be. What was handed over is not kept."""
    machines, writers = begun(tmp_path)
    run(machines, writers)
    feeds = machines.plan.hosting.folder / "feeds"
    assert all(len([path for path in (feeds / site).iterdir() if path.is_file()]) <= 2 for site in SOURCES)
    assert not (machines.plan.hosting.folder / "letters").exists()
    assert machines.hosts["town#0"].status(0)["rounds"] is None
    for path in writers.folder.rglob("*.jsonl"):  # those that were read may go
        path.unlink()
    before = got(machines.plan)
    for _ in range(10):
        machines.now_us += 3_000_000
        for name in machines.plan.names:
            machines.step(name)
    assert got(machines.plan) == before


@settings(max_examples=2)
@given(st.integers(0, 2**32))
def test_any_replica_creates_batches_and_may_end_anywhere(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    machines, writers = begun(tmp_path_factory.mktemp("run"), seed, replicas={"hill": 2})
    run(machines, writers, crash=0.1)
    assert machines.crashes


def test_a_replica_that_stays_behind_takes_a_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches are not kept for ever."""
    monkeypatch.setattr(sources, "BATCHES_RETAINED_MAX", 3)
    machines, writers = begun(tmp_path, replicas={"hill": 2})
    others = [name for name in machines.plan.names if name != "hill#1"]
    for _ in range(60):
        machines.now_us += 500_000
        writers.write(5)
        for name in machines.plan.names:
            machines.step(name)
    machines.crash("hill#1")
    for _ in range(60):
        machines.now_us += 500_000
        writers.write(5)
        for name in others:
            machines.step(name)
    kept = [path for path in (machines.plan.hosting.folder / "feeds" / "hill").iterdir() if path.is_file()]
    assert len(kept) <= 5
    run(machines, writers)
    assert machines.hosts["hill#1"].replica.round >= machines.hosts["hill#0"].replica.round - 2


def test_what_is_no_event_is_written_down(tmp_path: Path) -> None:
    machines, writers = begun(tmp_path, live={**SOURCES, "dam": {"from": "arriving/dam"}})
    good = {"type": "Rain", "ts": "2026-07-01T12:00:00Z", "area": "A1"}
    writers.put("dam", [good, "{broken", {**good, "ts": None}, {**good, "type": "Smoke"}])
    writers.put("dam", ["nothing"], "xml")
    machines.run_for(25, 3_000_000)
    writers.put("dam", [{**good, "ts": "2026-07-01T11:59:59Z"}, {**good, "ts": "2026-07-01T12:00:01Z"}])
    machines.run_for(20, 3_000_000)
    files = sorted((machines.plan.hosting.folder / "letters" / "dam").glob("*.jsonl"))
    said = [json.loads(line)["reason"] for path in files for line in path.read_text(encoding="utf-8").splitlines()]
    assert any("invalid JSON" in one for one in said)
    assert any("no known format" in one for one in said)
    assert "ts is null" in said
    assert "dam publishes no Smoke" in said
    assert "too late: dam had got beyond that time" in said
    assert len(said) == 5
    assert machines.hosts["dam#0"].status(0)["refused"] == 5
    recent = machines.hosts["dam#0"].replica.machine.processor.retained  # type: ignore[attr-defined]
    ids = [id for _, rows in recent for id in rows["id"].to_pylist()]
    assert len(ids) == 1
    assert ids[0].startswith("dam/")
    assert ids[0].endswith(":0")


def test_an_event_far_ahead_of_the_clock_does_not_make_others_late(tmp_path: Path) -> None:
    machines, writers = begun(tmp_path, live={**SOURCES, "dam": {"from": "arriving/dam", "ahead": 30}})
    hour = 3_600_000_000
    rain = {"type": "Rain", "ts": machines.now_us + 90 * hour, "area": "A1"}
    writers.put("dam", [rain])
    machines.run_for(25, 3_000_000)
    writers.put("dam", [{**rain, "ts": machines.now_us - hour}, {**rain, "ts": machines.now_us + 20_000_000}])
    machines.run_for(20, 3_000_000)
    files = sorted((machines.plan.hosting.folder / "letters" / "dam").glob("*.jsonl"))
    said = [json.loads(line) for path in files for line in path.read_text(encoding="utf-8").splitlines()]
    assert [one["reason"] for one in said] == ["ts is 3 d ahead of the clock; at most 30 s is accepted"]
    assert said[0]["ts"] == rain["ts"]


def test_a_silent_source_goes_on_with_the_clock(tmp_path: Path) -> None:
    """If it is said so: else all wait for it."""
    silent = {"from": "arriving/dam", "idle": 20}
    for number, source in enumerate(("arriving/dam", silent)):
        folder = tmp_path / str(number)
        machines, _ = begun(folder, live={"hill": {"from": "arriving/hill", "idle": 20}, "dam": source})
        now = machines.now_us
        smoke = {"type": "Smoke", "ts": now + 1_000_000, "area": "A1", "id": "s"}
        warm = {"type": "Temp", "ts": now, "area": "A1", "value": 58.0, "id": "t"}
        Writers(folder / "arriving", machines.plan).put("hill", [warm, smoke])
        machines.run_for(60, 1_000_000)
        assert len(got(machines.plan)["town"]) == number
