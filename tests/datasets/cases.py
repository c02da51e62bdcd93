"""All data sets, by what is particular about them."""

from __future__ import annotations

from tests.datasets.cases_formats import FORMATS
from tests.datasets.cases_names import IDS, NAMES, ORDER, TYPES
from tests.datasets.cases_rules import RULES
from tests.datasets.cases_times import TIMES
from tests.datasets.cases_values import VALUES
from tests.datasets.shapes import Case

CASES: list[Case] = [*ORDER, *IDS, *NAMES, *TYPES, *TIMES, *VALUES, *FORMATS, *RULES]

WRONG: dict[str, dict[str, str]] = {}
"""Hosts that answer wrongly today, by data set, and why. They must fail, so that what is mended leaves this table."""
