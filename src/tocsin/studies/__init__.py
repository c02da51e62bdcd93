"""The papers' evaluations as commands: `tocsin study NAME`.

    runs ─► measure, each run by itself ─► rows (CSV) ─► draw (PNG) and judge (claims)

`study` says what a study is made of, `running` runs one. Each paper has a module of its own with a `STUDY`.
"""

from __future__ import annotations

from importlib import import_module

from tocsin.errors import TocsinError, nearest
from tocsin.studies.study import Study

NAMES = ("trex", "reliability", "eps", "visiri", "mobility")
"""The studies there are, in the order in which `all` runs them."""


def named(name: str) -> Study:
    """The study of a name."""
    if name not in NAMES:
        raise TocsinError(f"there is no study '{name}'. {nearest(name, NAMES)}")
    found: Study = import_module(f"tocsin.studies.{name}").STUDY
    return found
