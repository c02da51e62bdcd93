"""Repeat the papers' evaluations with the command `tocsin study NAME`.

    runs ─► measure, each run by itself ─► rows (CSV) ─► draw (PNG) and judge (claims)

The module `study` defines what a study is and runs it. Each paper has a module whose `STUDY` repeats its evaluation.
"""

from __future__ import annotations

from importlib import import_module

from tocsin.errors import TocsinError, nearest
from tocsin.studies.study import Study

NAMES = ("trex", "reliability", "eps", "visiri", "mobility")
"""The names of all studies, in the order in which `tocsin study all` runs them."""


def named(name: str) -> Study:
    """Return the study called `name`."""
    if name not in NAMES:
        raise TocsinError(f"there is no study '{name}'. {nearest(name, NAMES)}")
    study: Study = import_module(f"tocsin.studies.{name}").STUDY
    return study
