"""Are generated queries and events what the paper describes, and do the claims judge what they say?"""

from __future__ import annotations

from collections import Counter
from itertools import count

import numpy as np
import pytest

from tocsin.datasets import stream_events, stream_shares, stream_types
from tocsin.language.siddhi import parser
from tocsin.language.siddhi.ast import Extent, Query
from tocsin.plans.cost import comparisons
from tocsin.studies import named, visiri_runs
from tocsin.studies import visiri_claims as visiri
from tocsin.studies.study import Row, Scale
from tocsin.studies.visiri_queries import as_text, generated, output_types
from tocsin.studies.visiri_runs import (
    AGAIN,
    TIGHT,
    MeasuredQueries,
    busy_in_slots,
    measure_knowing,
    measure_placements,
    measure_throughput,
    placed,
    placers,
    workload,
)


@pytest.mark.parametrize(
    ("shape", "few", "many", "length_max", "sliding"), [("simple", 2, 3, 304, 0.0), ("mixed", 8, 12, 1234, 0.12)]
)
def test_queries_are_of_five_kinds(shape: str, few: int, many: int, length_max: int, sliding: float) -> None:
    queries = generated(5_000, shape)
    kinds = Counter((comparisons(query), query.sources[0].window is not None) for query in queries)
    expected = {(few, False): 0.2, (many, False): 0.2, (0, True): 0.2, (few, True): 0.4}
    assert {kind: count / 5_000 for kind, count in kinds.items()} == pytest.approx(expected, abs=0.03)
    windows = [source.window for query in queries for source in query.sources if source.window is not None]
    extents = Counter(window.extent for window in windows)
    assert extents.keys() <= {Extent.LENGTH, Extent.LENGTH_BATCH}
    assert extents[Extent.LENGTH] / len(windows) == pytest.approx(sliding, abs=0.03 if sliding else 0)
    sizes = [window.size for window in windows]
    assert 5 <= min(sizes) < 15
    assert length_max - 10 < max(sizes) <= length_max
    assert {query.emits for query in queries} <= set(output_types())
    signs = Counter(test.operator for query in queries for test in query.patterns[0].constraints)  # type: ignore[union-attr]
    assert signs["<"] / signs.total() == pytest.approx(0.5, abs=0.03)
    assert signs["<"] + signs[">"] == signs.total()


def test_queries_are_the_same_for_a_seed_and_more_of_them_begin_alike() -> None:
    assert generated(50, seed=3) == generated(80, seed=3)[:50]
    assert generated(50, seed=3) != generated(50, seed=4)


def test_the_text_of_queries_is_read_as_them() -> None:
    queries = generated(30, inputs=20, outputs=6)
    program = parser.parse(as_text(queries, inputs=20, outputs=6))
    assert list(program.rules) == queries
    assert set(stream_types(20)) <= set(program.types)


def test_events_of_streams() -> None:
    table = stream_events(20_000, streams=10, spread=100, seed=2)
    assert set(table["type"].to_pylist()) == {stream.name for stream in stream_types(10)}
    values = table["attr3"].to_numpy()
    assert 0 <= values.min() < values.max() <= 100
    assert bool((np.diff(table["ts"].cast("int64").to_numpy()) > 0).all())
    shares = stream_shares(10, spread=100, seed=2)
    counts = Counter(table["type"].to_pylist())
    seen = [counts[stream.name] / 20_000 for stream in stream_types(10)]
    assert np.allclose(seen, shares, atol=0.02)
    assert 5 < shares.max() / shares.min() <= 100
    assert np.allclose(stream_shares(10), 0.1)


def test_what_events_say_is_counted_query_by_query() -> None:
    """Against looking at every event and query in turn."""
    queries = generated(40, inputs=5)
    seen = MeasuredQueries(queries, 1)
    names = [query.name for query in queries]
    nodes = dict(zip(names, [number % 3 for number in range(40)], strict=True))
    (placer, _) = placers(1)["random"]
    placement = placed(seen.units, 3, placer, singly=True)
    for name, node in nodes.items():
        placement.move(name, node)
    table = stream_events(200_000, spread=100.0, seed=1)
    rows = [row for row in table.to_pylist() if int(row["type"][6:]) <= 5]
    streams = {query.patterns[0].type for query in queries}
    events = sum(row["type"] in streams for row in rows)
    sent = whole = 0
    for row in rows:
        reading = [query for query in queries if query.patterns[0].type == row["type"]]
        whole += len({nodes[query.name] for query in reading})
        sent += len({nodes[query.name] for query in reading if passes(query, row)})
    assert seen.row("x", placement, filtered=False)["copies"] == pytest.approx(whole / events)
    assert seen.row("x", placement, filtered=True)["copies"] == pytest.approx(sent / events)


def passes(query: Query, row: dict[str, float]) -> bool:
    tested = ((row[test.left.name], test.operator, test.right.value) for test in query.patterns[0].constraints)  # type: ignore[union-attr]
    return all(value < bound if operator == "<" else value > bound for value, operator, bound in tested)


def test_every_placer_is_measured() -> None:
    settings = {"queries": 300, "nodes": 4, "seed": 1, "shape": "mixed"}
    rows = measure_placements(settings)
    assert {row["placer"] for row in rows} == {*placers(1), TIGHT}
    assert all(float(row["duplication"]) >= 1 for row in rows)
    assert all(float(row["throughput"]) > 0 for row in measure_throughput(settings))
    assert {row["placer"] for row in measure_knowing(settings)} == {
        "VISIRI",
        "VISIRI, filtering",
        "even",
        "even, rebalanced",
    }


def test_a_node_with_queries_is_busy() -> None:
    queries, units = workload(60, "mixed", 1)
    (placer, _) = placers(1)["random"]
    placement = placed(units, 2, placer, singly=True)
    for query in queries:
        placement.move(query.name, 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(visiri_runs, "process_time", count(1.0).__next__)
        timed = busy_in_slots(queries, {"one": placement}, events=2_000)
    assert timed["one"].tolist() == [0, visiri_runs.BLOCKS]  # by a clock that goes on by a second with each look
    busy = busy_in_slots(queries, {"one": placement}, events=20_000)
    assert busy["one"].shape == (2,)
    assert busy["one"][1] > 0


def test_runs_of_a_quick_look_and_of_all() -> None:
    study = named("visiri")
    for figure in study.figures:
        quick, full = figure.runs(Scale(quick=True)), figure.runs(Scale(full=True, seeds=5))
        assert 0 < len(quick) <= len(full)
    seeds = {figure.name: {run.get("seed") for run in figure.runs(Scale(seeds=2))} for figure in study.figures}
    assert seeds["10-12"] == set(range(1, 9))
    assert seeds["beyond"] == {1, 2}
    assert {claim for figure in study.figures for claim in figure.claims} == {f"V{n}" for n in range(1, 7)} | {
        "V2a",
        "V2b",
        "V4a",
        "V6a",
        "V6b",
    }


def rows(value: str, **by_placer: float) -> list[Row]:
    return [
        {"queries": queries, "nodes": nodes, "seed": 1, "placer": placer, value: number}
        for queries in (1_000, 10_000)
        for nodes in (4, 40)
        for placer, number in by_placer.items()
    ]


def test_claims_can_fail() -> None:
    (holds,) = visiri.judge_simple(rows("throughput", VISIRI=1.01, SCTXPF=1.0, random=0.8))
    (apart,) = visiri.judge_simple(rows("throughput", VISIRI=1.2, SCTXPF=1.0, random=0.8))
    (below,) = visiri.judge_simple(rows("throughput", VISIRI=1.0, SCTXPF=1.0, random=1.1))
    assert (holds.holds, apart.holds, below.holds) == (True, False, False)
    (holds,) = visiri.judge_throughput(rows("throughput", VISIRI=1.0, SCTXPF=1.0, random=0.8))
    (fails,) = visiri.judge_throughput(rows("throughput", VISIRI=0.9, SCTXPF=1.0, random=0.8))
    assert (holds.holds, fails.holds) == (True, False)
    (fails,) = visiri.judge_variance(rows("variance", VISIRI=5.0, SCTXPF=4.0, random=9.0))
    assert not fails.holds
    (fails,) = visiri.judge_variance(rows("variance", VISIRI=1.0, SCTXPF=4.0, random=9.0))
    assert not fails.holds  # below both, but no more so with more queries
    fails, holds = visiri.judge_slots(timed(VISIRI=1.1, SCTXPF=1.0, random=1.0, even=1.2, again=1.2))
    assert "9.1% apart" in fails.measured
    assert "about 100 ns to ingest an event and 40 ns for each query" in fails.measured
    assert (fails.holds, holds.holds) == (False, True)
    holds, fails = visiri.judge_slots(timed(VISIRI=1.1, SCTXPF=1.0, random=0.9, even=1.0, again=1.1))
    assert (holds.holds, fails.holds) == (True, False)  # above SCTXPF alone


def timed(*, again: float, **by_placer: float) -> list[Row]:
    """Rows of slots that need 100 ns for an event and 40 ns for a query."""
    counts = [{"sent": 1e6 * (n + 1), "seen": 3e6, "busy_s": 0.1 * (n + 1) + 0.12} for n in range(len(by_placer) + 1)]
    given = rows("throughput", **by_placer, **{AGAIN: again})
    return [{**row, **counts[n % len(counts)]} for n, row in enumerate(given)]


@pytest.mark.parametrize(
    ("few", "many", "everywhere", "grows"),
    [
        ((0.9, 0.8), (0.5, 0.4), True, True),
        ((1.5, 1.2), (0.5, 0.4), False, True),
        ((1.5, 1.2), (0.5, 1.1), False, False),
        ((0.5, 0.4), (0.6, 0.5), False, False),
    ],
)
def test_less_variance_everywhere_or_with_more_queries(
    few: tuple[float, float], many: tuple[float, float], everywhere: bool, grows: bool
) -> None:
    """Variances of VISIRI at few and many queries on 4 and 40 nodes, where the smaller of the others' is 1."""
    given: list[Row] = [
        {"queries": queries, "nodes": nodes, "placer": placer, "variance": value}
        for queries, values in ((1_000, few), (10_000, many))
        for nodes, ours in zip((4, 40), values, strict=True)
        for placer, value in (("VISIRI", ours), ("SCTXPF", 3.0), ("random", 1.0))
    ]
    (always,), (growing,) = visiri.judge_variance(given), visiri.judge_growing(given)
    assert (always.holds, growing.holds) == (everywhere, grows)
    assert always.measured.endswith(
        f"on at most 16 nodes {few[0]:.2g} (at most {few[0]:.2g}), {many[0]:.2g} (at most {many[0]:.2g})"
    )


def test_the_costs_of_the_table() -> None:
    runs = visiri.table_runs(Scale())
    (claim,) = visiri.judge_costs([{**run, **visiri.measure_cost(run)[0]} for run in runs])
    assert claim.holds
    assert claim.measured.endswith("the last would be 31.664")
    (wrong,) = visiri.judge_costs([{**run, "cost": 4.0, "cost_32_bits": 4.0} for run in runs])
    assert not wrong.holds
