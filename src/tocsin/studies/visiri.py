"""Repeat VISIRI's evaluation of how queries are best spread over nodes (Section 4 of its paper).

The modules are:

    visiri_queries   generated queries                                   Section 4.1
    visiri_runs      placements by the cost model, busy times of slots   Figures 3 to 12
    visiri_claims    runs, plots and claims of each figure               claims V1 to V6
"""

from __future__ import annotations

from functools import partial

from tocsin.studies import visiri_claims as charts
from tocsin.studies import visiri_claims as claims
from tocsin.studies import visiri_runs as runs
from tocsin.studies import visiri_runs as slots
from tocsin.studies.study import Figure, Study

STUDY = Study(
    "visiri",
    "VISIRI: queries spread over nodes",
    (
        Figure(
            "3-8",
            "Figures 3 to 5: event duplication, and 6 to 8: variance of the nodes' total cost",
            ("V1", "V2", "V2a", "V2b", "V6a"),
            claims.placement_runs,
            runs.measure_placements,
            claims.draw_placements,
            claims.judge_placements,
        ),
        Figure(
            "9",
            "Figure 9: throughput with simple queries, by the cost model",
            ("V3",),
            partial(claims.throughput_runs, (5_000,), "simple"),
            runs.measure_throughput,
            claims.draw_throughput,
            claims.judge_simple,
        ),
        Figure(
            "10-12",
            "Figures 10 to 12: throughput with mixed queries, by the cost model",
            ("V4",),
            partial(claims.throughput_runs, (2_500, 5_000, 10_000), "mixed"),
            runs.measure_throughput,
            claims.draw_throughput,
            claims.judge_throughput,
        ),
        Figure(
            "10-12-slots",
            "Figures 10 to 12: throughput with mixed queries, by the processor time of slots",
            ("V4a", "V6b"),
            claims.slot_runs,
            slots.measure_slots,
            claims.draw_throughput,
            claims.judge_slots,
            alone=True,
        ),
        Figure(
            "table1",
            "Table 1: costs of sample queries",
            ("V5",),
            claims.table_runs,
            claims.measure_cost,
            charts.bars,
            claims.judge_costs,
            alone=True,
        ),
        Figure(
            "beyond",
            "Beyond: measured costs and rates, filters at the dispatcher",
            ("V6",),
            claims.beyond_runs,
            runs.measure_knowing,
            claims.draw_beyond,
            claims.judge_beyond,
        ),
    ),
)
