"""MCEP's evaluation: what does it cost to let a query move (Section 6 of its paper)?

A city of 1.5 km × 2 km with 1,000 cars that publish about 250 events a second, brokers in a grid of 3 × 4, and one car
whose query for accidents moves with it. Figures 7 and 8 compare with ranges deployed all over the city, figure 9 shows
what incremental streaming saves, `answers` holds every range against the reference.

runs      what is measured in one run
claims    which runs there are, and what they say    claims M1 to M4
charts    the figures
"""

from __future__ import annotations

from tocsin.studies.mobility import charts, claims, runs
from tocsin.studies.study import Figure, Study

STUDY = Study(
    "mobility",
    "MCEP: moving range queries",
    (
        Figure(
            "7",
            "Predeployment and moving",
            ("M1", "M2", "8"),
            claims.base_runs,
            runs.measure_streams,
            charts.draw_streams,
            claims.judge_streams,
        ),
        Figure(
            "9",
            "Incremental streaming",
            ("M3",),
            claims.streaming_runs,
            runs.measure_moving,
            charts.draw_incremental,
            claims.judge_incremental,
        ),
        Figure(
            "answers",
            "Every range against the reference",
            ("M4",),
            claims.answer_runs,
            runs.measure_answers,
            charts.draw_answers,
            claims.judge_answers,
        ),
    ),
)
