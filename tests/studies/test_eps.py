"""The pieces of the study of event expressions: what is measured is what it is said to be. Times are not tested."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

import tocsin
from tocsin.language.eps import text
from tocsin.language.eps.ast import leaves
from tocsin.studies import eps_growth, eps_modes, eps_rates, eps_sharing, named, study
from tocsin.studies.eps_expressions import LEAVES, SHAPES, facts, stored, table, tree
from tocsin.studies.eps_tree import Tree
from tocsin.studies.study import Row, Scale


@pytest.mark.parametrize("operator", ["&", ";"])
@pytest.mark.parametrize("shape", SHAPES)
def test_both_shapes_have_the_same_leaves(shape: str, operator: str) -> None:
    (request,) = text.parse(f"request Found on {tree(shape, operator)}").rules
    found = [leaf.role for leaf in leaves(request.expression)]
    assert tuple(found if operator == "&" else reversed(found)) == LEAVES


def test_figure_6_is_plotted_and_holds(tmp_path: Path) -> None:
    (claim,) = study.run(named("eps"), Scale(quick=True), tmp_path, lambda *what: None, "6")
    assert claim.holds, claim
    assert "generic 7" in claim.measured
    assert (tmp_path / "eps_6.png").stat().st_size > 10_000


@pytest.mark.parametrize("change", ["a composite too many", "a notification too many", "none from the engine"])
def test_figure_6_can_fail(change: str) -> None:
    rows = eps_modes.measure({})
    more: dict[str, list[Row]] = {
        "a composite too many": [{**rows[0], "composite": "st1+rt6"}],
        "a notification too many": [{**rows[0], "what": "notified"}],
    }
    rows = [row for row in rows if change != "none from the engine" or row["by"] != eps_modes.ENGINE]
    (claim,) = eps_modes.judge([*rows, *more.get(change, [])])
    assert not claim.holds


@pytest.mark.parametrize("spread", eps_growth.SPREADS)
@pytest.mark.parametrize("shape", SHAPES)
def test_trees_and_tocsin_notify_the_same_in_figure_7(shape: str, spread: str) -> None:
    counts = eps_growth.counts(spread, 14)
    assert sum(counts) == 14
    every = stored(counts)
    every.append(eps_growth.last(every))
    (request,) = text.parse(eps_growth.request(shape)).rules
    grown = Tree([request])
    of_trees = [[fact.ts for _, fact in parts] for one in facts(every) for _, parts in grown.arrive(one)]
    found = tocsin.rules(eps_growth.request(shape), "eps").detect(table(every)).to_pylist()
    assert of_trees == [[part["ts"] for part in match["parts"]] for match in found]
    assert len(found) == 1


def _rows(steep: float, linear: float, tocsin_ms: float) -> list[Row]:
    return [
        {"by": by, "shape": shape, "spread": spread, "instances": n, "ms": n**power}
        for by, powers in ((eps_growth.TREES, (steep, linear)), (eps_growth.TOCSIN, (tocsin_ms, tocsin_ms)))
        for shape in SHAPES
        for spread, power in zip(eps_growth.SPREADS, powers, strict=True)
        for n in (7, 14, 28, 56)
    ]


@pytest.mark.parametrize(
    ("powers", "holds"), [((6, 1, 0), True), ((6, 1, 1.05), True), ((6, 1, 1.2), False), ((1.5, 1, 0), False)]
)
def test_growth_is_judged_by_its_slope(powers: tuple[float, float, float], holds: bool) -> None:
    (claim,) = eps_growth.judge(_rows(*powers))
    assert claim.holds == holds


def test_the_curve_of_the_trees_ends_at_the_limit() -> None:
    settings = {"by": eps_growth.TREES, "shape": "balanced", "spread": "even", "limit_s": 0.001}
    rows = eps_growth.measure(settings)
    assert [row["stopped"] for row in rows] == [False] * (len(rows) - 1) + [True]


@pytest.mark.parametrize("by", [eps_sharing.TREES, eps_sharing.TOCSIN])
def test_shared_and_copies_notify_all_requests(by: str) -> None:
    # `measure` itself fails unless each request is notified once.
    (row,) = eps_sharing.measure({"by": by, "test": 5, "requests": 3, "repeats": 1, "limit_s": 60.0})
    assert row["shape"] == "backbone"
    assert float(row["shared_ms"]) > 0
    assert float(row["copies_ms"]) > 0


def _sharing(gains: Sequence[float]) -> list[Row]:
    return [
        {"by": by, "test": test, "requests": 2, "shared_ms": 1.0, "copies_ms": gain}
        for by in (eps_sharing.TREES, eps_sharing.TOCSIN)
        for test, gain in enumerate(gains, 1)
    ]


def test_sharing_is_judged_by_every_test() -> None:
    for gains, holds in (([2, 2, 2, 2, 3], True), ([2, 2, 2, 4, 3], False), ([2, 0.9, 2, 2, 3], False)):
        (claim,) = eps_sharing.judge(_sharing(gains))
        assert claim.holds == holds, gains


@pytest.mark.parametrize("workload", eps_rates.WORKLOADS.values(), ids=lambda workload: workload.name)
def test_every_workload_runs(workload: eps_rates.RateWorkload) -> None:
    settings = {"workload": workload.name, "seed": 1, "events": 2_500, "batch": 500, "limit_s": 60.0}
    (row,) = eps_rates.measure(settings)
    assert row["taken"] == 2_450
    batches = eps_rates.batches(workload, 1, 2_500, 500)
    assert [batch.num_rows for batch in batches] == [500] * 5
    assert set(batches[0]["type"].to_pylist()) == set(workload.types)


def test_one_slow_workload_fails_the_claim() -> None:
    rows = [{"workload": "a", "rate": 2e5}, {"workload": "b", "rate": 99_000.0}]
    assert not eps_rates.judge(rows)[0].holds
    assert eps_rates.judge(rows[:1])[0].holds
