"""A wheel has all that a user needs: built from the sources, installed into an empty environment, and used there."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import tocsin

ROOT = Path(__file__).parent.parent
RULE = "define Hot(t: double)\nfrom Reading(value > 40)\nwhere t = Reading.value\n"
UNREACHABLE = ("NewConnectionError", "NameResolutionError", "ConnectTimeoutError", "Network is unreachable")
"""What pip says when there is no package index."""
EVENTS = "type,ts,value\nReading,2026-07-01T12:00:00Z,41.5\nReading,2026-07-01T12:01:00Z,20\n"


def test_there_is_one_version() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert re.search(r"^version\s*=\s*\"", text, re.MULTILINE) is None
    assert re.fullmatch(r"\d+\.\d+\.\d+", tocsin.__version__)
    assert f"\n## {tocsin.__version__}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_the_wheel_in_an_empty_environment(tmp_path: Path) -> None:
    sources, out, home = tmp_path / "sources", tmp_path / "dist", tmp_path / "home"
    sources.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, sources)
    left_out = shutil.ignore_patterns("__pycache__", "*.egg-info", "kernels-*", "*.nbi", "*.nbc")
    shutil.copytree(ROOT / "src", sources / "src", ignore=left_out)
    _run(sys.executable, "-m", "build", "--outdir", str(out), cwd=sources)
    (wheel,), (archive,) = out.glob("*.whl"), out.glob("*.tar.gz")
    assert wheel.name == f"tocsin-{tocsin.__version__}-py3-none-any.whl"

    names = set(zipfile.ZipFile(wheel).namelist())
    data = {
        str(path.relative_to(ROOT / "src")) for path in (ROOT / "src").rglob("*") if path.suffix in (".lark", ".tesla")
    }
    assert len(data) >= 6
    assert data | {"tocsin/py.typed", "tocsin/testing/cases.py"} <= names
    with tarfile.open(archive) as files:
        assert data <= {name.partition("/src/")[2] for name in files.getnames()}

    _run(sys.executable, "-m", "venv", str(home / "env"), cwd=tmp_path)
    command = home / "env" / "bin" / "tocsin"
    _run(str(home / "env" / "bin" / "pip"), "install", "--quiet", str(wheel), cwd=home)
    (home / "hot.tesla").write_text(RULE, encoding="utf-8")
    (home / "readings.csv").write_text(EVENTS, encoding="utf-8")
    assert "Complex event processing" in _run(str(command), "--help", cwd=home)
    assert _run(str(command), "--version", cwd=home) == f"tocsin {tocsin.__version__}\n"
    _run(
        str(command),
        "run",
        "hot.tesla",
        "--events",
        "readings.csv",
        "--engine",
        "embedded",
        "--matches",
        "hot.csv",
        cwd=home,
    )
    (_, found) = (home / "hot.csv").read_text(encoding="utf-8").splitlines()
    assert "2026-07-01T12:00:00" in found
    assert "41.5" in found


def _run(*command: str, cwd: Path) -> str:
    """Runs a command as a user without this source tree would."""
    cwd.mkdir(exist_ok=True)
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(command, cwd=cwd, env=clean, capture_output=True, text=True, timeout=900)
    if done.returncode and any(word in done.stdout + done.stderr for word in UNREACHABLE):
        pytest.skip("no package index can be reached")
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"
    return done.stdout
