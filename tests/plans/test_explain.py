"""The explanation and the picture of a plan are readable and deterministic."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Callable

import pytest

import tocsin
from tests.language.test_tesla import PAPER

HIERARCHY = """
event Smoke(area: string)
event Temp(area: string, value: double)
define Fire(area: string, temp: double)
from   Smoke(area = $a) and last Temp(area = $a, value > 45) within 5 min from Smoke
where  area = $a, temp = Temp.value
rule Spreads define Blaze(area: string)
from   Fire(area = $a, temp > 60) and 2 <= Count(Fire(area = $a) within 1 h from Fire)
where  area = $a
"""
SHARING = """
rule One define X() from A(x > 1, y = 2)
rule Two define X() from A(y = 2, 1 < x)
rule Three define Y() from B(k = $k) and last A(2 = y and x > 1, k = $k) within 5 s from B
rule Four define Y() from B(k = $p) and each A(x > 1, y = 2, k = $p) within 2 min from B
rule Five define Y() from B(k = $k) and last A(x > 1, y = 2) within 5 s from B
rule Six define Y() from B(k = $k) and last A(x > 1, y = 2, k = $k) within 5 s from B consuming A
"""
TEXTS = {
    **{rule.name: text for text, rule in PAPER.items()},
    "hierarchy": HIERARCHY,
    "sharing": SHARING,
    "requests": """
        request Cycle on st as s ; rt as r if s.proc = r.proc and s.msg = r.msg within 10 min notify "came back"
        request Again on TimesEq(3, st as s, proc) ; rt as r if s.proc = r.proc within 10 min
        request Slow on (st as s ; at(st, 5 min) as t) & rt as r if s.proc = r.proc
        request Recent on st as s ; rt as r if s.msg = r.msg mode recent
        request Hourly on every(1 h) as h & st as s
    """,
    "clauses": """
        rule Long define X(n: long, m: double)
        from B(k = $k, v = $v)
             and 2-first A(k = $k, v > $v + 1, not f) as a within 10 s from B
             and not C(n = 3) between a and B
             and 3 < $n = Count(D(k = $k) within 1 min from a)
             and each A() as other between a and B
        where n = $n, m = (a.v + other.v) / 2
        consuming a
    """,
}


@pytest.mark.parametrize("name", TEXTS)
def test_the_explanation(name: str, golden: Callable[[str, str], None]) -> None:
    rules = tocsin.rules(TEXTS[name])
    assert rules.explain() == tocsin.rules(TEXTS[name]).explain()
    golden(f"explain/{name}.txt", rules.explain())


@pytest.mark.parametrize("name", TEXTS)
def test_the_picture_is_well_formed_and_stable(name: str) -> None:
    rules = tocsin.rules(TEXTS[name])
    picture = rules.explain_svg()
    root = ET.fromstring(picture)
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    shown = " ".join(root.itertext())
    for rule in rules:
        assert rule.name in shown
        assert all(type in shown for type in rule.uses)
    assert picture == tocsin.rules(TEXTS[name]).explain_svg()


def test_a_picture_of_odd_characters_is_well_formed() -> None:
    text = r"""define Odd() from A(s = "<&>\"'", t < 3) and not B(u != "]]>") within 5 s from A"""
    shown = " ".join(ET.fromstring(tocsin.rules(text).explain_svg()).itertext())
    assert "Odd" in shown
    assert "<&>" in shown


def test_rules_beyond_a_number_are_counted() -> None:
    text = "\n".join(f"rule R{number} define X() from A(n = {number})" for number in range(250))
    explained = tocsin.rules(text).explain()
    assert "… and 50 more" in explained
    assert "R249\n" not in explained.partition("\nrules\n")[2]
    ET.fromstring(tocsin.rules(text).explain_svg())


def test_equal_meanings_are_one_node() -> None:
    plan = tocsin.rules(SHARING).plan
    assert [node.type for node in plan.filters] == ["A", "B"]
    shared = [buffer for buffer in plan.buffers if buffer.keys and buffer.owner is None]
    assert [plan.buffers[buffer] for buffer in shared] == [120_000_000]
    assert len(plan.buffers) == 3


def test_the_plan_has_the_kinds_that_events_show() -> None:
    detector = tocsin.rules("define X() from A(v > 1)").detector()
    assert detector.plan.columns == {"A": {"v": None}}
    detector.push([tocsin.Event("A", 1, {"v": 2.5})])
    assert detector.plan.columns == {"A": {"v": "double"}}
