"""Queries that move, on Spark: packs of cases, as tables and as streams, are delivered what the reference says."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.budget import queries
from tests.conformance.moving_packs import MovingPack, MovingQuery, batch, stream

slow = pytest.mark.slow

HUNDRED = MovingQuery("100", seed=5000, tenants=100)
BATCHES = [
    MovingQuery("few", seed=5100, tenants=10),
    pytest.param(HUNDRED, marks=slow),
    pytest.param(MovingQuery("without ids", seed=6000, tenants=60, slots=3, named=False, history_us=None), marks=slow),
    pytest.param(MovingQuery("apart", seed=7000, tenants=60, slots=1, apart=True, history_us=60), marks=slow),
]
STREAMS = [
    MovingQuery("few", seed=5100, tenants=10, rekeyed=3),
    pytest.param(HUNDRED, marks=slow),
    pytest.param(
        MovingQuery("without ids", seed=6000, tenants=60, slots=3, named=False, batches=6, rekeyed=1), marks=slow
    ),
    pytest.param(MovingQuery("apart", seed=7000, tenants=60, slots=1, apart=True, restarts=2), marks=slow),
]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "query" in metafunc.fixturenames:
        tables = metafunc.function is test_tables
        metafunc.parametrize("query", queries(BATCHES if tables else STREAMS, generated_query), ids=str)


def generated_query(seed: int) -> MovingQuery:
    """Any query, with a long history: a short one ends ranges of a stream with an error, unlike in the reference."""
    rng = random.Random(seed)
    return MovingQuery(
        f"seed-{seed}",
        seed=1000 * seed,  # one for each tenant
        tenants=rng.randint(10, 60),
        slots=rng.randint(1, 5),
        named=rng.random() < 0.7,
        batches=rng.randint(2, 6),
        delay_us=rng.choice([0, 1, 5, 10]),
        restarts=rng.choice([1, 1, 2]),
        apart=rng.random() < 0.3,
        rekeyed=rng.choice([None, 1, 3]),
    )


def test_tables(query: MovingQuery, spark: SparkSession, tmp_path: Path) -> None:
    pack = MovingPack(query)
    assert pack.wrong(batch(spark, pack, tmp_path)) == []


def test_streams(query: MovingQuery, spark: SparkSession, tmp_path: Path) -> None:
    pack = MovingPack(query)
    assert pack.wrong(stream(spark, pack, tmp_path)) == []


def test_a_pack_is_of_all_kinds() -> None:
    pack = MovingPack(HUNDRED)
    kinds = {(type(one.shape), type(one.update), one.semantics, one.consumes) for one in pack.interests}
    assert len(kinds) > 30  # of 36: three shapes, three update conditions, two semantics, consuming or not
    assert len({one.space for one in pack.interests}) == 2
