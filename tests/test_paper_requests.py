"""The example of the paper on event expressions: which composites its six instances derive in each mode (Figure 6)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import tocsin
from tocsin.engine.reference import identified
from tocsin.engine.reference_requests import derived, notifications
from tocsin.engine.trees import Tree
from tocsin.events.notation import read_events
from tocsin.language import parse
from tocsin.language.requests import Mode

CYCLE = """\
request   Cycle
on        st as s ; rt as r
if        s.proc = r.proc and s.msg = r.msg
notify    "a message came back"
"""
INSTANCES = """\
st@1(proc=1, msg=2)
st@2(proc=2, msg=1)
rt@3(proc=3, msg=1)
rt@4(proc=2, msg=2)
st@5(proc=3, msg=1)
rt@6(proc=2, msg=1)
"""


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
        told = "; ".join(f"({', '.join(f'{part.type}{part.ts}' for part in match.parts)})" for match in notified)
        lines.append(f"{mode}: {built}\n    notified: {told or 'nothing'}")
    golden("requests/figure_6.txt", "\n".join(lines) + "\n")


def test_the_engine_and_the_four_phases_notify_the_same() -> None:
    found = tocsin.rules(CYCLE).detect(list(read_events(INSTANCES))).to_pylist()
    assert [[part["ts"] for part in match["parts"]] for match in found] == [[2, 6]]
    assert found[0]["notification"] == "a message came back"
    tree = Tree(parse(CYCLE).rules)
    notified = [parts for fact in identified(read_events(INSTANCES)) for _, parts in tree.arrive(fact)]
    assert [[fact.ts for _, fact in parts] for parts in notified] == [[2, 6]]
