"""Sinks get the expected matches while sites, links, sources and sinks change, wherever a process ends."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from tests.sites.running import FIVE, RULES, Machines, got, read_plan, written_plan
from tocsin.cli import app
from tocsin.overlay.strategies import STRATEGIES
from tocsin.simulation.checking import expected_matches
from tocsin.sites.site_plan import SitePlan

CHANGES = [
    {"at": 25, "sinks": {"town": [], "hill": ["Fire"]}},
    {"at": 43.5, "links": [["mill", "dam", 3], ["mill", "lake", 2]], "sources": {"mill": {"Temp": 2}}},
    {"at": 60, "links": [["town", "dam", 40]], "sinks": {"town": ["HeatWave"]}},
    {"at": 80, "leave": ["fort"], "sources": {"lake": {"Temp": 4, "Smoke": 0.2}}},
]
"""Sinks that move, one at a time within an epoch; a site that comes; a link that becomes slow; a site that leaves."""
MOVING: dict[str, Any] = {**FIVE, "rules": RULES.replace("5 min", "30 s"), "changes": CHANGES}


def expected(made: SitePlan) -> dict[str, list[str]]:
    changes = [(turn.at_us / 1e6, turn.sites) for turn in made.changes]
    return expected_matches(made.initial_sites, made.types, made.rules, made.events, round(made.seconds * 1e6), changes)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_sinks_get_what_one_place_would_find(tmp_path: Path, strategy: str) -> None:
    made = read_plan(tmp_path, MOVING, strategies=[strategy])
    machines = Machines(made)
    machines.run(steps=3000)
    found, right = got(made), expected(made)
    assert found == right
    assert set(right) == {"town", "hill", "fort"}
    assert all(right.values())
    assert len(right["town"]) != len(set(right["town"]) & set(right["hill"]))


@pytest.mark.slow
@settings(max_examples=1)
@given(st.integers(0, 2**32), st.sampled_from(["MT", "ST"]))
def test_a_crash_at_any_file_is_no_crash(tmp_path_factory: pytest.TempPathFactory, seed: int, strategy: str) -> None:
    folder = tmp_path_factory.mktemp("run")
    machines = Machines(read_plan(folder, MOVING, strategies=[strategy], replicas={"dam": 2}), seed)
    chance = random.Random(seed)
    machines.run(steps=6000, crash=lambda name: chance.randrange(12) if chance.random() < 0.03 else None)
    assert got(machines.plan) == expected(machines.plan)
    assert machines.crashes


@pytest.mark.slow
def test_as_processes(tmp_path: Path) -> None:
    path = written_plan(tmp_path, MOVING)
    result = CliRunner().invoke(app, ["site", "up", str(path), "--engine", "embedded"])
    assert result.exit_code == 0, result.output
    assert result.stdout.count(", as expected") == 3
