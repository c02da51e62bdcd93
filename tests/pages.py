"""Read and run the code blocks of Markdown pages.

```python                      runs, after the earlier blocks of the page
```sh                          runs the lines that begin with `tocsin ` or `sed `
```tesla title="fire.tesla"    is written to a file of that name in the working directory
```console, ```text            does not run
"""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

from typer.main import get_command
from typer.testing import CliRunner

from tocsin.cli import app

ROOT = Path(__file__).parent.parent
_BLOCK = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    language: str
    title: str | None
    text: str


def blocks(page: Path) -> list[Block]:
    return [Block(*groups) for groups in _BLOCK.findall(page.read_text(encoding="utf-8"))]


def helped() -> str:
    """Return the `--help` texts of all commands."""
    texts = []
    waiting: list[tuple[list[str], Any]] = [([], get_command(app))]
    while waiting:
        words, command = waiting.pop()
        texts.append(CliRunner().invoke(app, [*words, "--help"], env={"COLUMNS": "200"}).stdout)
        waiting += [([*words, name], inner) for name, inner in getattr(command, "commands", {}).items()]
    return "".join(texts)


def run(page: Path, folder: Path) -> dict[str, Any]:
    """Run the blocks of a page in `folder`, the working directory, and return the namespace of its Python code."""
    names: dict[str, Any] = {}
    for block in blocks(page):
        if block.title:
            path = folder / block.title
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text, encoding="utf-8")
        elif block.language == "python":
            exec(compile(block.text, str(page), "exec"), names)
        elif block.language == "sh":
            for line in block.text.splitlines():
                if line.startswith("sed "):
                    subprocess.run(line, shell=True, cwd=folder, check=True)
                elif line.startswith("tocsin "):
                    done = CliRunner().invoke(app, shlex.split(line.partition(" #")[0])[1:])
                    assert done.exit_code == 0, f"{line}\n{done.output}"
    return names
