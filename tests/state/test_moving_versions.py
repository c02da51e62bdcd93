"""Snapshots of moving queries of every released version still restore, and no match is missed or repeated.

`python tests/state/test_moving_versions.py` writes the snapshot of this version; none is ever written again.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import tocsin
from tocsin.events.formats import read_events

HERE = Path(__file__).parent
QUERIES = """
    event Brake(car: string, x: double, y: double)
    event Position(car: string, x: double, y: double)

    define    Jam(cars: long)
    from      Brake() and $n = Count(Brake() within 10 s from Brake)
    where     cars = $n

    define    Pair()
    from      Brake(car=$c) and first Brake(car!=$c) as other within 10 s from Brake
    consuming other

    interest  Ahead
    of        Jam
    around    Position(car="c1")
    range     rectangle 300 m by 300 m
    lifetime  30 s

    interest  Around
    of        Pair
    around    Position(car="c1")
    range     circle 200 m
    lifetime  10 s
    update    every 10 s
"""
BEFORE = """
    Brake@1s(car="c7", x=10.0, y=10.0)
    Position@2s(car="c1", x=0.0, y=0.0)
    Brake@5s(car="c8", x=20.0, y=10.0)
    Brake@8s(car="c9", x=300.0, y=10.0)
    Position@9s(car="c1", x=50.0, y=0.0)
    Brake@14s(car="c7", x=100.0, y=0.0)
    Position@15s(car="c1", x=250.0, y=0.0)
    Brake@16s(car="c8", x=260.0, y=0.0)
"""
AFTER = """
    Brake@18s(car="c9", x=310.0, y=0.0)
    Position@20s(car="c1", x=300.0, y=0.0)
    Brake@24s(car="c7", x=320.0, y=0.0)
    Brake@40s(car="c8", x=900.0, y=0.0)
"""


def start() -> Any:
    detector = tocsin.rules(QUERIES).detector(delay="5 s")
    return detector, detector.push(read_events(BEFORE)).to_pylist()


@pytest.mark.parametrize("stored", sorted(HERE.glob("*.moving")), ids=lambda path: path.stem)
def test_stored_snapshot_goes_on(stored: Path) -> None:
    unbroken, before = start()
    restored = tocsin.rules(QUERIES).restore(stored.read_bytes())
    found = [[*d.push(read_events(AFTER)).to_pylist(), *d.finish().to_pylist()] for d in (restored, unbroken)]
    assert found[0] == found[1]
    assert len(before) > 3
    ahead = [(row["range"], row["type"], row["cars"]) for row in found[0] if row["query"] == "Ahead"]
    assert ahead == [
        (2, "Jam", 1),
        (3, "Marker", None),
        (3, "Jam", 0),
        (3, "Jam", 1),
        (3, "Jam", 2),
        (3, "Jam", 2),
        (4, "Marker", None),
        (4, "Jam", 0),
        (4, "Jam", 1),
        (4, "Jam", 1),
        (4, "Jam", 2),
    ]


if __name__ == "__main__":
    (HERE / f"{tocsin.__version__}.moving").write_bytes(start()[0].snapshot())
