"""Sites that are committed step by step give the reference's matches, wherever a process ends."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sites.running import FIVE, THREE, Machines, expected, got, read_plan, written_plan
from tocsin.cli.sites import forget, plan
from tocsin.overlay.codec import encode
from tocsin.overlay.messages import Elect
from tocsin.overlay.strategies import STRATEGIES
from tocsin.simulation.runs import run
from tocsin.sites.channels import (
    WAITING_MAX,
    FolderChannels,
    MessageBatch,
    pack_messages,
    step_position,
    unpack_messages,
)

SHORT = {"seconds": 60, "epoch": 20}


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_sinks_get_what_one_place_would_find(tmp_path: Path, strategy: str) -> None:
    """And what is sent is what the simulator says, where nothing depends on how time is cut."""
    made = read_plan(tmp_path, FIVE, strategies=[strategy])
    machines = Machines(made)
    machines.run(steps=1000)
    found = got(made)
    assert found == expected(made)
    assert all(found.values())
    if not made.strategy.pulls:
        outcome, _ = run(
            made.sites, made.strategy, made.types, made.rules, made.events, pa.array(made.where),
            epochs_s=[made.seconds], measured_from_s=0,
        )  # fmt: skip
        assert sum(host.meter.traffic for host in machines.hosts.values()) == outcome.traffic


def test_a_site_that_starts_again_repeats_nothing(tmp_path: Path) -> None:
    machines = Machines(read_plan(tmp_path, THREE, **SHORT))
    names = machines.plan.names
    for number in range(12):
        machines.now_us += 50_000
        for name in names:
            machines.step(name)
            if number % 3 == 0:
                before = machines.hosts[name]
                machines.crash(name)
                machines.start(name)
                host = machines.hosts[name]
                assert (host.steps, host.positions, host.replica.round) == (
                    before.steps, before.positions, before.replica.round,
                )  # fmt: skip
                assert host.replica.machine.snapshot() == before.replica.machine.snapshot()
                assert host.incarnation > before.incarnation
    machines.run(steps=1000)
    assert got(machines.plan) == expected(machines.plan)


@settings(max_examples=2)
@given(st.integers(0, 2**32), st.sampled_from([0.05, 0.3]), st.sampled_from(["MT", "STpp"]))
def test_a_crash_at_any_file_is_no_crash(
    tmp_path_factory: pytest.TempPathFactory, seed: int, share: float, strategy: str
) -> None:
    machines = Machines(read_plan(tmp_path_factory.mktemp("run"), THREE, strategies=[strategy], **SHORT), seed)
    chance = random.Random(seed)
    machines.run(steps=3000, crash=lambda name: chance.randrange(12) if chance.random() < share else None)
    assert got(machines.plan) == expected(machines.plan)
    assert machines.crashes


@settings(max_examples=1)
@given(st.integers(0, 2**32))
def test_replicas_that_fail_and_forget(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    """One of two replicas of a site ends at times and comes back, with what it had or with nothing; the next fails only
    after that."""
    made = read_plan(tmp_path_factory.mktemp("run"), THREE, replicas=2, speed=10, **SHORT)
    machines, chance = Machines(made, seed), random.Random(seed)
    away, crashed = ("", 0), 0
    for turn in range(3000):
        machines.now_us += 200_000
        for name in made.names:
            if name != away[0] or turn >= away[1]:
                machines.step(name)
        if turn >= away[1] and turn % 10 == 9 and machines.recovered():
            away = (chance.choice(made.names), turn + chance.randrange(25))
            machines.crash(away[0], wiped=chance.random() < 0.5)
            crashed += 1
        if machines.finished():
            break
    assert got(made) == expected(made)
    assert crashed > 2


def test_a_channel_that_cannot_be_read_loses_nothing(tmp_path: Path) -> None:
    machines = Machines(read_plan(tmp_path, THREE, **SHORT))
    for _ in range(25):
        machines.now_us += 50_000
        for name in machines.plan.names:
            machines.step(name)
    machines.channels.hold("hill#0", "town#0", held=True)
    before = None
    for turn in range(80):
        machines.now_us += 500_000
        for name in machines.plan.names:
            machines.step(name)
        if turn == 20:
            before = machines.hosts["town#0"].replica.round
    assert machines.hosts["town#0"].replica.round == before
    assert machines.hosts["town#0"].status(0)["waits_for"] == ["hill"]
    machines.channels.hold("hill#0", "town#0", held=False)
    machines.run(steps=1000)
    assert got(machines.plan) == expected(machines.plan)


def test_channels_are_pruned_and_bounded(tmp_path: Path) -> None:
    machines = Machines(read_plan(tmp_path, THREE, **SHORT))
    machines.run(steps=1000)
    for name in machines.plan.names:
        machines.step(name)
        assert len(list((machines.plan.hosting.folder / "sites" / name / "steps").iterdir())) == 1
        assert max(machines.channels.waiting(name).values()) < 5


def test_a_channel_has_an_order_and_an_end(tmp_path: Path) -> None:
    channels = FolderChannels(tmp_path)
    for step in (3, 1, 2):
        channels.post([MessageBatch("a", "b", step_position(7, step), pack_messages([encode(Elect((step, 0, "a")))]))])
    read = channels.read("b", {"a": step_position(7, 1)})
    assert [message.rank[0] for batch in read for message in unpack_messages(batch.data)] == [2, 3]
    assert not channels.read("b", {"a": step_position(7, 3)})
    channels.prune("b", {"a": step_position(7, 2)})
    assert channels.waiting("b") == {"a": 1}
    for step in range(WAITING_MAX + 10):
        (tmp_path / "b" / "a" / step_position(8, step)).touch()
    channels.post([MessageBatch("a", "b", step_position(9, 1), b"")])
    assert channels.read("b", {})[-1].position == step_position(8, WAITING_MAX + 9)


@pytest.mark.slow
def test_one_that_stays_away_is_waited_for_until_it_is_forgotten(tmp_path: Path) -> None:
    """Queues are bounded: the others stop, and report for whom. After it is decommissioned they continue, and it
    catches up."""
    path = written_plan(tmp_path, THREE, replicas=2, **SHORT)
    made = plan(path)
    bounded = replace(made.hosting, settings=replace(made.hosting.settings, queue_max=12))
    machines = Machines(replace(made, hosting=bounded))
    names = [name for name in made.names if name != "dam#1"]

    def turns(count: int) -> None:
        for _ in range(count):
            machines.now_us += 100_000
            for name in names:
                machines.step(name)

    turns(150)
    town = machines.hosts["town#0"]
    stuck = town.replica.round
    assert stuck < town.source.rounds
    assert town.status(0)["full"] == ["dam#1"]
    forget(path, "dam#1", back=False)
    machines.crash("town#0")  # what the operator said is heard again by one that starts
    turns(100)
    assert got(made) == expected(made)
    forget(path, "dam#1", back=True)
    names.append("dam#1")
    turns(60)
    assert machines.finished()
