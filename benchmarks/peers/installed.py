"""Install the peers from package registries into an ignored folder: Python packages by pip, Java ones by Maven.

What is there is kept; a list of packages that changed is installed again.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
FOLDER = ROOT / "build" / "peers"
POMS = {
    "esper": HERE / "esper" / "pom.xml",
    "siddhi": HERE.parent / "siddhi" / "pom.xml",
    "flink": HERE / "flink" / "pom.xml",
}
SOURCES = {
    "esper": ("Events", "Orders", "EsperPeer"),
    "siddhi": ("Events", "Orders", "SiddhiPeer"),
    "flink": ("Events", "Orders", "FlinkPatterns", "FlinkPeer"),
}
# Flink's serialisers look into these
OPENED = ("java.base/java.lang", "java.base/java.util", "java.base/java.time")


@cache
def python() -> Path:
    """Return a Python with polars and DuckDB."""
    environment, wanted = FOLDER / "python", HERE / "requirements.txt"
    mark, digest = environment / "installed", _digest(wanted)
    if not mark.exists() or mark.read_text() != digest:
        _say("installing polars and DuckDB")
        _run(sys.executable, "-m", "venv", "--clear", environment)
        _run(environment / "bin" / "python", "-m", "pip", "install", "--quiet", "-r", wanted)
        mark.write_text(digest)
    return environment / "bin" / "python"


@cache
def java_home() -> Path:
    """Return a JDK."""
    home = Path(_run(ROOT / "scripts" / "java.sh"))
    if not (home / "bin" / "javac").exists():
        raise SystemExit(f"peers: {home} has no javac; a JDK is needed (Debian, Ubuntu: openjdk-17-jdk-headless)")
    if shutil.which("mvn") is None:
        raise SystemExit("peers: Maven is needed for engines in Java (Debian, Ubuntu: maven); or run with --only")
    return home


@cache
def java(peer: str, heap: str = "3g") -> tuple[str, ...]:
    """Return the command that runs Java with the classes of a peer and its driver."""
    home, folder = java_home(), FOLDER / peer
    folder.mkdir(parents=True, exist_ok=True)
    path, mark, digest = folder / "classpath", folder / "installed", _digest(POMS[peer])
    if not mark.exists() or mark.read_text() != digest:
        _say(f"installing {peer}")
        _run("mvn", "-B", "-ntp", "-q", "-f", POMS[peer], "dependency:build-classpath", f"-Dmdep.outputFile={path}")
        mark.write_text(digest)
    sources = [HERE / "java" / f"{name}.java" for name in SOURCES[peer]]
    classes = folder / "classes"
    compiled, digest = folder / "compiled", _digest(*sources, path)
    if not compiled.exists() or compiled.read_text() != digest:
        shutil.rmtree(classes, ignore_errors=True)
        _run(home / "bin" / "javac", "-nowarn", "-d", classes, "-cp", path.read_text(), *sources)
        compiled.write_text(digest)
    opened = [part for package in OPENED for part in ("--add-opens", f"{package}=ALL-UNNAMED")]
    return (str(home / "bin" / "java"), f"-Xmx{heap}", *opened, "-cp", f"{classes}{os.pathsep}{path.read_text()}")


def _digest(*paths: Path) -> str:
    return hashlib.sha256(b"\0".join(path.read_bytes() for path in paths)).hexdigest()


def _run(*command: object) -> str:
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"peers: {command[0]} ended with {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout.strip()


def _say(line: str) -> None:
    print(f"peers: {line}", file=sys.stderr, flush=True)
