"""Snapshots of every released version still restore, and the detector goes on as if it had never stopped.

`python tests/state/test_versions.py` writes the snapshot of this version; a new version adds a file, and none is ever
written again.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import tocsin
from tocsin.events.formats import read_events

HERE = Path(__file__).parent
RULES = """
    event Temp(area: string, value: double)
    event Smoke(area: string)
    event Rain(area: string)

    rule R1
    define    Fire(area: string, measured: double)
    from      Smoke(area=$a) and last Temp(area=$a, value>45) within 5 min from Smoke
    where     area = Smoke.area, measured = Temp.value
    consuming Temp

    rule R2
    define Alarm(area: string, fires: long)
    from   Fire(area=$a) and not Rain(area=$a) within 10 s from Fire
           and $n = Count(Fire(area=$a) within 10 min from Fire)
    where  area = $a, fires = $n
"""
BEFORE = """
    Temp@10s(area="A1", value=50.5)
    Temp@20s(area="A1", value=60.5)
    Smoke@30s(area="A1")
    Temp@31s(area="A2", value=70.0)
    Rain@38s(area="A2")
    Smoke@40s(area="A2")
    Temp@41s(area="Ä3 \\"x\\"", value=80.0)
"""
AFTER = """
    Smoke@50s(area="A1")
    Smoke@55s(area="A1")
    Smoke@60s(area="Ä3 \\"x\\"")
"""


def start() -> tocsin.Detector:
    detector = tocsin.rules(RULES).detector(delay="5 s")
    detector.push(read_events(BEFORE))
    return detector


@pytest.mark.parametrize("stored", sorted(HERE.glob("*.tocsin")), ids=lambda path: path.stem)
def test_stored_snapshot_goes_on(stored: Path) -> None:
    restored, unbroken = tocsin.rules(RULES).restore(stored.read_bytes()), start()
    found = [[d.push(read_events(AFTER)).to_pylist(), d.finish().to_pylist()] for d in (restored, unbroken)]
    assert found[0] == found[1]
    rows = [(row["rule"], row["area"], row["measured"], row["fires"]) for part in found[0] for row in part]
    assert rows == [
        ("R1", "A2", 70.0, None),
        ("R1", "A1", 50.5, None),
        ("R2", "A1", None, 1),
        ("R1", 'Ä3 "x"', 80.0, None),
        ("R2", 'Ä3 "x"', None, 0),
    ]


if __name__ == "__main__":
    (HERE / f"{tocsin.__version__}.tocsin").write_bytes(start().snapshot())
