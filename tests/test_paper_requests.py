"""The example of the paper on event expressions: the composites of its six instances in each mode (Figure 6)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

import tocsin
from tocsin.events.formats import read_events
from tocsin.language import parse
from tocsin.language.eps.ast import Mode
from tocsin.reference.patterns import identified
from tocsin.reference.requests import derived, notifications
from tocsin.studies.eps_modes import CYCLE, INSTANCES, PRINTED
from tocsin.studies.eps_tree import Tree


def test_figure_6(golden: Callable[[str, str], None]) -> None:
    (cycle,) = parse(CYCLE).rules
    facts = identified(read_events(INSTANCES))
    lines = [CYCLE, INSTANCES]
    for mode in Mode:
        request = replace(cycle, mode=mode)
        built = "; ".join(
            f"({', '.join(f'{fact.type}{fact.ts}' for _, fact in one)})" for one in derived(request, facts, 6)
        )
        notified = [match for _, match in notifications(request, facts, 6)]
        shown = "; ".join(f"({', '.join(f'{part.type}{part.ts}' for part in match.parts)})" for match in notified)
        lines.append(f"{mode}: {built}\n    notified: {shown or 'nothing'}")
    golden("requests/figure_6.txt", "\n".join(lines) + "\n")


def test_the_engine_and_the_four_phases_notify_the_same() -> None:
    found = tocsin.rules(CYCLE).detect(list(read_events(INSTANCES))).to_pylist()
    assert [[part["ts"] for part in match["parts"]] for match in found] == [[2, 6]]
    assert found[0]["notification"] == "a message came back"
    tree = Tree(parse(CYCLE).rules)
    notified = [parts for fact in identified(read_events(INSTANCES)) for _, parts in tree.arrive(fact)]
    assert [[fact.ts for _, fact in parts] for parts in notified] == [[2, 6]]


@pytest.mark.parametrize("mode", [mode for mode in Mode if mode != Mode.GENERIC])
def test_the_engine_derives_what_the_figure_prints(mode: Mode) -> None:
    """In one of Snoop's contexts, a request without a condition has a notification for every composite."""
    (cycle,) = parse(CYCLE).rules
    found = tocsin.rules([replace(cycle, condition=(), mode=mode)]).detect(list(read_events(INSTANCES))).to_pylist()
    built = ["+".join(f"{part['type']}{part['ts']}" for part in match["parts"]) for match in found]
    assert sorted(built) == sorted(PRINTED[mode].split())
