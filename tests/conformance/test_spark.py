"""One rule, one answer, on Spark too: packs of cases, as tables and as streams, give the matches of the reference.

Cuts into micro-batches, numbers of slots and orders of arrival vary. A sweep runs generated queries instead of the ones
below, each of its own seed, which its name ends with.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.budget import queries
from tests.conformance.packs import Pack, Query, Row, census, packed, write_case
from tests.conformance.spark import batch, embedded, stream

MS = 1_000
HOUR = 100_000_000
"""A tick with which generated cases last about as long as those of the paper."""
SHOWN = 3
"""How many failing tenants are shown in full."""

slow = pytest.mark.slow

BATCHES = [
    Query("few", seed=1, slots=3, tenants=12, golden=True, tick_us=HOUR),
    pytest.param(Query("1-slot", seed=2, slots=1, tenants=60, named=True), marks=slow),
    pytest.param(Query("2-slots", seed=3, slots=2, tenants=50, golden=True, tick_us=HOUR, timestamps=True), marks=slow),
    pytest.param(Query("3-slots", seed=4, slots=3, tenants=6, named=True, by_type=True, partitions=3), marks=slow),
    pytest.param(Query("7-slots", seed=5, slots=7, tenants=60, tick_us=MS, partitions=7), marks=slow),
]
STREAMS = [
    Query("few", seed=11, slots=2, tenants=12, named=True, golden=True, tick_us=HOUR),
    pytest.param(Query("1-slot", seed=12, slots=1, tenants=50, named=True, delay_ticks=0, batches=4), marks=slow),
    pytest.param(
        Query(
            "2-slots", seed=13, slots=2, tenants=50, golden=True, tick_us=HOUR, timestamps=True, batches=5, restarts=2
        ),
        marks=slow,
    ),
    pytest.param(Query("3-slots", seed=14, slots=3, tenants=4, named=True, by_type=True, tick_us=MS), marks=slow),
    pytest.param(
        Query("7-slots", seed=15, slots=7, tick_us=MS, start_us=-15 * MS, delay_ticks=10, cold=True),
        marks=slow,
    ),
]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "query" in metafunc.fixturenames:
        tables = metafunc.function is test_tables_give_the_answer_of_the_reference
        metafunc.parametrize("query", queries(BATCHES if tables else STREAMS, generated_query), ids=str)


def test_tables_give_the_answer_of_the_reference(query: Query, spark: SparkSession, tmp_path: Path) -> None:
    pack = packed(query)
    check(pack, query, "embedded", embedded(pack), tmp_path)
    check(pack, query, "batch", batch(spark, pack, query, tmp_path / "query"), tmp_path)


def test_a_stream_gives_the_answer_of_the_reference(query: Query, spark: SparkSession, tmp_path: Path) -> None:
    pack = packed(query)
    check(pack, query, "embedded", embedded(pack), tmp_path)
    check(pack, query, "stream", stream(spark, pack, query, tmp_path / "query"), tmp_path)


def generated_query(seed: int) -> Query:
    """Any query."""
    rng = random.Random(seed)
    by_type, golden = rng.random() < 0.2, rng.random() < 0.3
    tick_us = HOUR if golden else rng.choice([1, 1, 100, MS, HOUR])
    return Query(
        f"seed-{seed}",
        seed=1000 + seed,
        slots=rng.randint(1, 7),
        tenants=4 if by_type else rng.randint(10, 60),
        named=rng.random() < 0.5,
        by_type=by_type,
        timestamps=rng.random() < 0.3,
        tick_us=tick_us,
        start_us=rng.choice([0, 0, -15, 10**6]) * tick_us if not golden else 0,
        golden=golden,
        partitions=rng.randint(1, 4),
        batches=rng.randint(1, 6),
        delay_ticks=rng.choice([0, 1, 3, 10]),
        restarts=rng.choice([0, 0, 1, 2]),
        cold=rng.random() < 0.1,
    )


def check(pack: Pack, query: Query, way: str, found: list[Row], folder: Path) -> None:
    """Fails with the cases whose matches are wrong, each in a file of its own, to be run alone."""
    wrong = pack.wrong(found)
    if not wrong:
        return
    lines = [f"{way}: {len(wrong)} tenants are wrong of {query!r} ({census(pack)}): {', '.join(wrong)}"]
    for name in wrong:
        path = folder / f"{name}.txt"
        path.write_text(write_case(pack.tenants[name]), encoding="utf-8")
    for name in list(wrong)[:SHOWN]:
        alone = f".venv/bin/python -m tests.conformance.spark {folder / name}.txt {way} {query.slots}"
        lines += ["", f"{name}: {wrong[name]}", f"of {pack.tenants[name]!r}", f"alone: {alone}"]
    pytest.fail("\n".join(lines), pytrace=False)
