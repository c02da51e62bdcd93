"""Queries that move, on Spark: packs of cases, as tables and as streams, are delivered what the reference says."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.conformance.moving_packs import MovingPack, MovingQuery, batch, stream

slow = pytest.mark.slow

HUNDRED = MovingQuery("100", seed=5000, tenants=100)
BATCHES = [
    MovingQuery("few", seed=5100, tenants=20),
    pytest.param(HUNDRED, marks=slow),
    pytest.param(MovingQuery("nameless", seed=6000, tenants=60, slots=3, named=False, history_us=None), marks=slow),
    pytest.param(MovingQuery("apart", seed=7000, tenants=60, slots=1, apart=True, history_us=60), marks=slow),
]
STREAMS = [
    MovingQuery("few", seed=5100, tenants=20, rekeyed=3),
    pytest.param(HUNDRED, marks=slow),
    pytest.param(
        MovingQuery("nameless", seed=6000, tenants=60, slots=3, named=False, batches=6, rekeyed=1), marks=slow
    ),
    pytest.param(MovingQuery("apart", seed=7000, tenants=60, slots=1, apart=True, restarts=2), marks=slow),
]


@pytest.mark.parametrize("query", BATCHES, ids=str)
def test_tables(query: MovingQuery, spark: SparkSession, tmp_path: Path) -> None:
    pack = MovingPack(query)
    assert pack.wrong(batch(spark, pack, tmp_path)) == []


@pytest.mark.parametrize("query", STREAMS, ids=str)
def test_streams(query: MovingQuery, spark: SparkSession, tmp_path: Path) -> None:
    pack = MovingPack(query)
    assert pack.wrong(stream(spark, pack, tmp_path)) == []


def test_a_pack_is_of_all_kinds() -> None:
    pack = MovingPack(HUNDRED)
    kinds = {(type(one.shape), type(one.update), one.semantics, one.consumes) for one in pack.interests}
    assert len(kinds) > 30  # of 36: three shapes, three update conditions, two semantics, consuming or not
    assert len({one.space for one in pack.interests}) == 2
