"""Do the slots of cells of a stream keep and hand on what queries that move need, whatever becomes of the workers?"""

from __future__ import annotations

from random import Random

import pytest
from tests.conformance.moving_slots import stream
from tests.simulation.moving import dense
from tests.simulation.ranges import all_expected, nameless, told

from tocsin.language.mcep import parse

OTHERS = parse(
    """
    define Z() from AA()
    define Y() from C() and each AA() within 3 us from C
    interest Early of Z around They range circle 5 m
    interest Other of Y around Them range circle 5 m lifetime 9 us
    """
).interests


def check(seed: int) -> None:
    case = dense(seed, queries=2)
    case = nameless(case) if seed % 3 == 0 else case
    assert told(stream(case, Random(seed), OTHERS)) == all_expected(case)


@pytest.mark.parametrize("first", range(8000, 8020, 10))
def test_streams_whose_workers_slots_and_neighbours_change(first: int) -> None:
    for seed in range(first, first + 10):
        check(seed)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(8100, 8400, 50))
def test_many_streams_whose_workers_slots_and_neighbours_change(first: int) -> None:
    for seed in range(first, first + 50):
        check(seed)
