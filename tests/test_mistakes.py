"""Error messages for mistakes of users, as golden files: no mistake raises anything but a `TocsinError`.

A file of tests/golden/mistakes has the input, a line `---`, and the message. Input that starts with `>>>` is Python,
which runs with the names that `outcome` defines; other input is the text of rules.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

import tocsin
from tests.conftest import GOLDEN
from tocsin.errors import TocsinError
from tocsin.events.formats import read_events
from tocsin.events.types import Event
from tocsin.language.builder import define, event, within

RULE = """\
define Fire(area: string, temp: double)
from   Smoke(area = $a)
       and last Temp(area = $a, value > 45) within 5 min from Smoke
where  area = $a, temp = Temp.value"""
TYPES = "event Smoke(area: string)\nevent Temp(area: string, value: double)\n"

NAMES = sorted(path.stem for path in (GOLDEN / "mistakes").glob("*.txt"))


@pytest.mark.parametrize("name", NAMES)
def test_a_mistake(
    name: str,
    golden: Callable[[str, str], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    written = (GOLDEN / "mistakes" / f"{name}.txt").read_text(encoding="utf-8").partition("\n---\n")[0]
    golden(f"mistakes/{name}.txt", f"{written}\n---\n{outcome(written)}\n")


def test_there_are_many_mistakes() -> None:
    assert len(NAMES) >= 100


def outcome(written: str) -> str:
    """Return the message of a `TocsinError`, else the warnings, else dead letters and counts."""
    if not written.startswith(">>> "):
        with pytest.raises(TocsinError) as caught:
            tocsin.rules(written)
        return str(caught.value)
    rules, typed = tocsin.rules(RULE), tocsin.rules(TYPES + RULE)
    names = {"tocsin": tocsin, "pa": pa, "Event": Event, "read_events": read_events}
    names |= {"define": define, "event": event, "within": within}
    names |= {"rules": rules, "typed": typed, "detector": rules.detector()}
    code = "\n".join(line[4:] for line in written.split("\n"))
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            exec(code, names)
        except TocsinError as error:
            return str(error)
    if warned:
        return "\n".join(f"{type(warning.message).__name__}: {warning.message}" for warning in warned)
    detector = names["detector"]
    assert isinstance(detector, tocsin.Detector)
    detector.finish()
    counts = detector.counts
    lines = [f"{letter['reason']}: {letter['event']}" for letter in detector.dead_letters().to_pylist()]
    assert counts["dead"] == len(lines)
    return "\n".join([*lines, f"{counts['dead']} dead, {counts['late']} late, {counts['matches']} matches"])
