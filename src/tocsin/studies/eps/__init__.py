"""The evaluation of "Evaluating composite events using shared trees" (EPS), Sections 8 to 10.

modes     which composites each mode derives         Figure 6, claim E1
growth    time to the notification, by instances     Figure 7, claim E2
sharing   a shared tree against copies               Figure 8, claim E3
rates     instances a second                         Section 10, claim E4
"""

from __future__ import annotations

from tocsin.studies.eps import growth, modes, rates, sharing
from tocsin.studies.study import Figure, Study

STUDY = Study(
    "eps",
    "Event expressions (EPS)",
    (
        Figure("6", "Derived composites", ("E1",), modes.runs, modes.measure, modes.draw, modes.judge, alone=True),
        Figure("7", "Growth", ("E2",), growth.runs, growth.measure, growth.draw, growth.judge, alone=True),
        Figure("8", "Sharing", ("E3",), sharing.runs, sharing.measure, sharing.draw, sharing.judge, alone=True),
        Figure("rates", "Instances a second", ("E4",), rates.runs, rates.measure, rates.draw, rates.judge, alone=True),
    ),
)
