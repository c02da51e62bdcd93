"""The attributes by which rules can be partitioned."""

from __future__ import annotations

import re

import pyarrow as pa
import pytest

import tocsin
from tests.language.test_tesla import PAPER
from tocsin.plans.keys import Key, common_key, keys
from tocsin.plans.plan import Plan


def planned(text: str) -> Plan:
    return tocsin.rules(text).plan


def ways(text: str) -> tuple[Key, ...]:
    return keys(planned(text).rules[0])


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("R1", (Key(("area", "area"), ("area",)),)),
        ("R2", (Key(("area", "area"), ("area",)),)),
        ("R3", (Key(("area", "area"), ("area",)),)),
        ("R4", ()),
        ("R5", ()),
        ("R6", ()),
    ],
)
def test_the_rules_of_the_paper(name: str, found: tuple[Key, ...]) -> None:
    text = next(text for text, rule in PAPER.items() if rule.name == name)
    assert ways(text) == found


def test_a_key_through_parameters_of_other_roles() -> None:
    text = (
        "define X() from A(k = $k) and last B(a = $k, b = $b) within 1 s from A "
        "and last C(c = $b) within 1 s from B and not D(d = $k) between B and A"
    )
    assert ways(text) == ()
    assert ways(text.replace("c = $b", "c = $k")) == (Key(("k", "a", "c", "d"), ()),)


def test_an_unconstrained_event_has_no_key() -> None:
    assert ways("define X() from A(k = $k) and last B(k = $k) within 1 s from A and not C() within 1 s from A") == ()
    assert (
        ways("define X() from A(k = $k) and last B(k = $k) within 1 s from A and 1 < Count(C() within 1 s from A)")
        == ()
    )


def test_an_inequality_a_sum_or_an_alternative_is_no_key() -> None:
    for constraint in ("k > $k", "k = $k + 1", "not k = $k", "k = $k or n = 1"):
        assert ways(f"define X() from A(k = $k) and last B({constraint}) within 1 s from A") == ()


def test_two_keys() -> None:
    found = ways("define X(o: long) from A(k = $k, n = $n) and last B(n = $n, k = $k) within 1 s from A where o = B.n")
    assert found == (Key(("k", "k"), ()), Key(("n", "n"), ("o",)))


def test_kinds_must_be_the_same() -> None:
    text = "event A(k: int)\nevent B(k: double)\ndefine X() from A(k = $k) and last B(k = $k) within 1 s from A"
    assert ways(text) == ()


def test_times_and_ids_are_no_keys() -> None:
    assert ways("define X() from A(k = $k, id = $i) and last B(ref = $i) within 1 s from A") == ()
    assert ways("define X() from A(at = $t) and last B(ts = $t) within 1 s from A") == ()
    assert common_key(planned("define X(n: long) from A() where n = A.seq").rules) is None


HIERARCHY = """
event Smoke(area: string)
event Temp(place: string)
event Wind(where_: string)
define Fire(zone: string) from Smoke(area = $a) and last Temp(place = $a) within 1 s from Smoke where zone = $a
define Blaze() from Wind(where_ = $w) and each Fire(zone = $w) within 1 s from Wind
"""


def test_a_hierarchy_has_one_key_for_every_type() -> None:
    assert common_key(planned(HIERARCHY).rules) == {
        "Smoke": "area", "Temp": "place", "Wind": "where_", "Fire": "zone"
    }  # fmt: skip


def test_a_hierarchy_that_loses_its_key() -> None:
    assert common_key(planned(HIERARCHY.replace("where zone = $a", 'where zone = "x"')).rules) is None
    assert common_key(planned(HIERARCHY.replace("Fire(zone = $w)", "Fire()")).rules) is None


def test_rules_with_different_keys_of_one_type() -> None:
    by_k = "rule R1 define X() from A(k = $k) and last B(k = $k) within 1 s from A\n"
    by_n = "rule R2 define X() from A(n = $n) and last C(n = $n) within 1 s from A\n"
    assert common_key(planned(by_k + by_n).rules) is None
    assert common_key(planned(by_k + by_n.replace("n = $n", "k = $n")).rules) == {"A": "k", "B": "k", "C": "k"}


def test_the_key_that_fits_all_rules_is_selected() -> None:
    both = "rule R1 define X() from A(k = $k, n = $n) and last B(k = $k, n = $n) within 1 s from A\n"
    by_n = "rule R2 define X() from A(n = $n) and last C(n = $n) within 1 s from A\n"
    assert common_key(planned(both + by_n).rules) == {"A": "n", "B": "n", "C": "n"}


def test_a_rule_of_one_event_has_the_key_of_others() -> None:
    types = "event Temp(area: string, value: double)\nevent Smoke(area: string)\n"
    hot = "define Hot(place: string) from Temp(value > 45) where place = Temp.area\n"
    fire = "define Fire() from Smoke(area = $a) and last Hot(place = $a) within 1 s from Smoke"
    assert common_key(planned(types + hot + fire).rules) == {"Temp": "area", "Hot": "place", "Smoke": "area"}


def test_one_event_rules_alone() -> None:
    rule = planned("define Hot(place: string) from Temp(value > 45) where place = Temp.area").rules
    assert common_key(rule) == {"Temp": "area", "Hot": "place"}


def test_a_rule_of_one_event_without_outputs_fits_any_key() -> None:
    hot = "define Hot() from Temp(value > 45)\n"
    plan = planned(hot + "define Fire() from Smoke(a = $a) and last Temp(a = $a) within 1 s from Smoke")
    assert common_key(plan.rules) == {"Temp": "a", "Smoke": "a"}
    lone = planned("define Hot() from Temp(value > 45)\ndefine Cold() from Frost()")
    assert common_key(lone.rules) in ({}, None)


def test_an_unknown_kind_gives_no_key() -> None:
    """Before the first event, only attributes of composite events have a kind; the key exists once events are seen."""
    rules = tocsin.rules(re.sub("event.*\n", "", HIERARCHY))
    assert common_key(rules.plan.rules) is None
    detector = rules.detector()
    detector.push(pa.table({"type": ["Smoke"], "ts": [1], "area": ["x"], "place": ["x"], "where_": ["x"]}))
    assert common_key(detector.plan.rules) is not None
