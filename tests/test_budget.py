"""The cases of `make test` are the same everywhere, and a sweep has new cases, as many as requested."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
GENERATED = """
from hypothesis import given, settings, strategies as st
from tests.budget import examples, seeds

@settings(max_examples=examples(5))
@given(st.integers(), st.sampled_from("abcdefgh"))
def test_own_number(number, letter):
    print("\\nown", number, letter)

@given(st.integers())
def test_default_number(number):
    print("\\ndefault", number)

def test_seeds():
    print("\\nseeds", *seeds(range(3)))
"""
FAILING = """
from hypothesis import given, strategies as st

@given(st.integers())
def test_small(number):
    assert number < 10
"""


def ran(folder: Path, text: str, *options: str, hash_seed: int = 0) -> str:
    file = folder / "test_it.py"
    file.write_text(text, encoding="utf-8")
    plugins = ["-p", "tests.conftest", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", "-s", "-c", "pyproject.toml", *plugins, *options, str(file)]
    environment = os.environ | {"PYTHONHASHSEED": str(hash_seed), "PYTEST_ADDOPTS": ""}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True).stdout


def lines(output: str, word: str) -> list[str]:
    return [line for line in output.splitlines() if line.startswith(word)]


def test_cases_are_the_same_in_each_run(tmp_path: Path) -> None:
    one, other = (ran(tmp_path, GENERATED, hash_seed=seed) for seed in (1, 2))
    for word, count in (("own", 5), ("default", 100)):
        assert len(lines(one, word)) == count
        assert lines(one, word) == lines(other, word)
    assert lines(one, "seeds") == ["seeds 0 1 2"]


def test_a_sweep_has_other_cases_and_the_requested_number(tmp_path: Path) -> None:
    one, again, other = (
        ran(tmp_path, GENERATED, "--sweep-seed", seed, "--examples", "30", hash_seed=n)
        for n, seed in enumerate(["7", "7", "8"])
    )
    for word in ("own", "default"):
        assert len(lines(one, word)) == 30
        assert lines(one, word) == lines(again, word) != lines(other, word)
    assert lines(one, "seeds") == [" ".join(["seeds", *map(str, range(8_000_000, 8_000_030))])]
    assert lines(one, "seeds") != lines(other, "seeds")
    assert "generated with --sweep-seed 7 --examples 30" in one


def test_a_failure_of_a_sweep_says_how_to_run_it_again(tmp_path: Path) -> None:
    found = ran(tmp_path, FAILING, "--sweep-seed", "7", "--examples", "30")
    assert "assert 10 < 10" in found
    assert "::test_small -m '' --sweep-seed 7 --examples 30" in found
