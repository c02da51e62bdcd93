"""Rules R1 to R6 of the paper give the matches that its text describes.

A file of tests/golden/paper has rules, events and matches, separated by lines `---`. A match is printed as rule, type
and time, attributes, and the events of its roles as role@time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import tocsin
from tests.conformance.hosts import canonical_key, expected, rows_of
from tests.conftest import GOLDEN
from tests.language.test_tesla import PAPER
from tocsin.events.formats import read_events
from tocsin.events.types import UNITS_US, Event
from tocsin.reference import patterns

NAMES = sorted(path.stem for path in (GOLDEN / "paper").glob("*.txt"))
PRINTED = {rule.name: text for text, rule in PAPER.items()}


@pytest.mark.parametrize("name", NAMES)
def test_a_rule_of_the_paper(name: str, golden: Callable[[str, str], None]) -> None:
    text, written, *_ = (GOLDEN / "paper" / f"{name}.txt").read_text(encoding="utf-8").split("---\n")
    rules, events = tocsin.rules(text), read_events(written)
    matches = expected(patterns.detect(rules.rules, events), rules.rules)
    for way, found in ways(rules, events).items():
        assert found == matches, way
    golden(f"paper/{name}.txt", "---\n".join([text, written, "".join(line(match) + "\n" for match in matches)]))


@pytest.mark.parametrize("name", PRINTED)
def test_the_rule_is_as_printed(name: str) -> None:
    """Files of variants begin with the name of the rule and differ only in the policy."""
    assert name in NAMES
    for other in NAMES:
        text = (GOLDEN / "paper" / f"{other}.txt").read_text(encoding="utf-8").split("---\n")[0]
        if other == name:
            assert text == PRINTED[name]
        elif other.startswith(name):
            policy = other.removeprefix(f"{name}_").replace("_", "-")
            assert text == PRINTED[name].replace(" each ", f" {policy} ")


def ways(rules: tocsin.RuleSet, events: list[Event]) -> dict[str, list[dict[str, Any]]]:
    """Return the matches of one batch, of single pushes, and of single pushes from an ordered source."""
    alone, ordered = rules.detector(), rules.detector(ordered=True)
    by_time = sorted(events, key=canonical_key)
    return {
        "at once": rows_of(rules.detect(events)),
        "backwards": rows_of(rules.detect(events[::-1])),
        "one by one": [row for event in by_time for row in rows_of(alone.push([event]))] + rows_of(alone.finish()),
        "in order": [row for event in by_time for row in rows_of(ordered.push([event]))] + rows_of(ordered.finish()),
    }


def line(match: dict[str, Any]) -> str:
    """Return a match as readable text."""
    header = ("rule", "type", "ts", "id", "parts")
    attributes = ", ".join(f"{name}={value}" for name, value in match.items() if name not in header)
    parts = " ".join(f"{part['role']}@{clock(part['ts'])}" for part in match["parts"])
    return f"{match['rule']}: {match['type']}@{clock(match['ts'])}({attributes}) from {parts}"


def clock(ts: int) -> str:
    """Return a time in the notation, in the largest unit of which it is a multiple."""
    unit = next(unit for unit in ("min", "s", "ms", "us") if ts % UNITS_US[unit] == 0)
    return f"{ts // UNITS_US[unit]}{unit}"
