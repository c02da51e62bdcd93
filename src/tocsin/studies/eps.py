"""Repeat the evaluation of "Evaluating composite events using shared trees" (EPS), Sections 8 to 10.

Each figure has a module:

    eps_modes     which composites each mode derives       Figure 6, claim E1
    eps_growth    time to the notification, by instances   Figure 7, claim E2
    eps_sharing   a shared tree against copies             Figure 8, claim E3
    eps_rates     instances per second                     Section 10, claim E4
"""

from __future__ import annotations

from tocsin.studies import eps_growth, eps_modes, eps_rates, eps_sharing
from tocsin.studies.study import Figure, Study

STUDY = Study(
    "eps",
    "Event expressions (EPS)",
    (
        Figure(
            "6",
            "Derived composites",
            ("E1",),
            eps_modes.runs,
            eps_modes.measure,
            eps_modes.draw,
            eps_modes.judge,
            alone=True,
        ),
        Figure(
            "7", "Growth", ("E2",), eps_growth.runs, eps_growth.measure, eps_growth.draw, eps_growth.judge, alone=True
        ),
        Figure(
            "8",
            "Sharing",
            ("E3",),
            eps_sharing.runs,
            eps_sharing.measure,
            eps_sharing.draw,
            eps_sharing.judge,
            alone=True,
        ),
        Figure(
            "rates",
            "Instances a second",
            ("E4",),
            eps_rates.runs,
            eps_rates.measure,
            eps_rates.draw,
            eps_rates.judge,
            alone=True,
        ),
    ),
)
