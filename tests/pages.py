"""What do the pages say that can be run? The blocks of a Markdown file, with language and, if it is a file, its name.

```python                      runs, after those before it on the page
```sh                          lines that begin with `tocsin ` or `sed ` run
```tesla title="fire.tesla"    is a file of that name in the folder where the page is tried
```console, ```text            are looked at only
"""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

from typer.testing import CliRunner

from tocsin.cli import app

ROOT = Path(__file__).parent.parent
_BLOCK = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    language: str
    title: str | None
    text: str


def blocks(page: Path) -> list[Block]:
    return [Block(*found) for found in _BLOCK.findall(page.read_text(encoding="utf-8"))]


def run(page: Path, folder: Path) -> dict[str, Any]:
    """Does what a page says from top to bottom, in a folder that is the current one. Returns what its Python named."""
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
