"""What the site has besides what mkdocs.yml lists: the examples, which stay in their folders, and all other pages.

A page in this folder that is not listed goes under *Running it*; those of `design` are a section of their own.
"""

from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

DOCS = Path(__file__).parent
EXAMPLES = DOCS.parent / "examples"


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Completes the navigation."""
    nav: list[Any] = config["nav"]
    listed = set(_pages(nav))
    running = next(entry["Running it"] for entry in nav if "Running it" in entry)
    running += [path.name for path in sorted(DOCS.glob("*.md")) if path.name not in listed]
    nav.append({"Design": [f"design/{path.name}" for path in sorted((DOCS / "design").glob("*.md"))]})
    return config


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Adds every example that has a README, with what that links to."""
    for readme in sorted(EXAMPLES.glob("*/README.md")):
        for path in sorted(readme.parent.iterdir()):
            if path.is_file():
                name = f"examples/{path.parent.name}/{path.name}"
                files.append(File.generated(config, name, abs_src_path=str(path)))
    return files


def _pages(entry: Any) -> list[str]:
    """The files that a part of the navigation names."""
    if isinstance(entry, str):
        return [entry]
    return [page for one in (entry.values() if isinstance(entry, dict) else entry) for page in _pages(one)]
