"""MkDocs hooks: add the design pages to the navigation, and the examples to the site.

The examples stay in their own folders. A page of `docs` that mkdocs.yml does not list goes under *Contributing*, before
the design pages.
"""

from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

DOCS = Path(__file__).parent
EXAMPLES = DOCS.parent / "examples"
SECTION = "Contributing"


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Add the unlisted pages and the design pages to the section *Contributing*."""
    nav: list[Any] = config["nav"]
    listed = set(_pages(nav))
    section = next(entry[SECTION] for entry in nav if SECTION in entry)
    paths = [*sorted(DOCS.glob("*.md")), *sorted(DOCS.glob("design/*.md"))]
    names = [path.relative_to(DOCS).as_posix() for path in paths]
    section += [name for name in names if name not in listed]
    return config


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add each example that has a README, with the files of its folder."""
    for readme in sorted(EXAMPLES.glob("*/README.md")):
        for path in sorted(readme.parent.iterdir()):
            if path.is_file():
                name = f"examples/{path.parent.name}/{path.name}"
                files.append(File.generated(config, name, abs_src_path=str(path)))
    return files


def _pages(entry: Any) -> list[str]:
    """Return the pages of a part of the navigation."""
    if isinstance(entry, str):
        return [entry]
    return [page for one in (entry.values() if isinstance(entry, dict) else entry) for page in _pages(one)]
