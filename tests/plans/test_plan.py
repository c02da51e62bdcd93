"""Rules are checked against each other and ordered, and the plan has the attributes that they read."""

from __future__ import annotations

import pytest

import tocsin
from tocsin.errors import RuleError
from tocsin.events.types import Kind, shown_name
from tocsin.language import parse
from tocsin.plans.plan import Plan, order, plan
from tocsin.plans.typing import Catalog

CHAIN = """
rule Top define R() from Q() and not P() within 1 s from Q
rule Mid define Q() from P() and last A() within 1 s from P
rule Low define P() from A()
rule Side define P() from B()
rule Over define P2() from C()
"""


def planned(text: str) -> Plan:
    return tocsin.rules(text).plan


def test_strata() -> None:
    made = planned(CHAIN)
    assert made.strata == {"Low": 0, "Side": 0, "Mid": 1, "Top": 2, "Over": 0}
    assert made.complete == {"P": 1, "Q": 2, "R": 3, "P2": 1}
    assert list(made.defined) == ["R", "Q", "P", "P2"]


def test_two_rules_of_one_type_in_different_strata() -> None:
    made = planned("rule A1 define P() from A()\nrule Q1 define Q() from P()\nrule P2 define R() from Q()\n"
                   "rule R2 define R() from A()\nrule Last define Z() from R()")  # fmt: skip
    assert made.strata == {"A1": 0, "Q1": 1, "P2": 2, "R2": 0, "Last": 3}
    assert made.complete["R"] == 3


def test_a_long_chain_of_rules() -> None:
    text = "define T0() from A()\n" + "\n".join(f"define T{n}() from T{n - 1}()" for n in range(1, 200))
    assert max(planned(text).strata.values()) == 199


@pytest.mark.parametrize("negated", ["last", "not"])
def test_a_cycle_names_its_types(negated: str) -> None:
    text = f"define P() from Q()\ndefine Q() from R()\ndefine R() from A() and {negated} P() within 1 s from A"
    with pytest.raises(RuleError, match="P ← Q ← R ← P"):
        planned(text)


def test_columns_are_those_that_rules_read() -> None:
    made = planned(
        "define P(o: long) from A(k = $k, w = $w, id = $i, n > 2, ts > at) "
        "and last B(k = $k, v < $w) within 1 s from A "
        "and 2 < $s = Sum(C(k = $k, id = $i).x within 1 s from A) and not D() within 1 s from A where o = B.y"
    )
    assert {type: sorted(map(shown_name, columns)) for type, columns in made.columns.items()} == {
        "A": ["at", "id", "k", "n", "w"],
        "B": ["k", "v", "y"],
        "C": ["id", "k", "x"],
        "D": [],
    }


def test_an_unused_parameter_is_not_read() -> None:
    assert planned("define P() from A(k = $k, n = $n) and last B(n = $n) within 1 s from A").columns == {
        "A": {"n": None},
        "B": {"n": None},
    }


def test_types_are_numbered_in_the_order_of_the_rules() -> None:
    assert planned(CHAIN).numbers == {"Q": 0, "P": 1, "A": 2, "B": 3, "C": 4}


def test_a_buffer_has_the_longest_retention_of_its_readers() -> None:
    made = planned(
        "rule R1 define X() from A() and last B() within 5 s from A\n"
        "rule R2 define X() from A() and last C() within 5 s from A and last B() within 7 s from C"
    )
    assert sorted(made.buffers.values()) == [5_000_000, 12_000_000]


def test_adding_rules_equals_planning_all_rules() -> None:
    rules = parse(CHAIN).rules
    for cut in range(len(rules) + 1):
        made = plan(rules[:cut], Catalog()).extended(rules[cut:])
        whole = plan(rules, Catalog())
        assert made == whole
        assert made.strata == whole.strata
        assert made.numbers == whole.numbers
        assert made.complete == whole.complete


def test_added_rules_are_checked_against_existing_rules() -> None:
    made = planned("define P(n: long) from A() where n = A.n")
    for text, message in {
        "define P(n: long) from A() where n = A.n": "two rules are called P",
        "rule R define P(m: long) from A() where m = A.n": "another rule defines",
        "define Q(n: string) from A() where n = A.k": "n is a string in Q and a long in P",
        "define A() from P()": "A ← P ← A|P ← A ← P",
    }.items():
        with pytest.raises(RuleError, match=message):
            made.extended(parse(text).rules)


def test_added_rules_cannot_define_a_declared_type() -> None:
    made = planned("event A(n: long)\nevent B()\ndefine P(n: long) from A() where n = A.n")
    with pytest.raises(RuleError, match="declared"):
        made.extended(parse("define B() from A()").rules)


def test_rules_are_bound_again_to_a_new_catalog() -> None:
    made = planned("define P() from A(n > 2)")
    again = made.bound_to(Catalog(shared={"n": Kind.DOUBLE}))
    assert made.columns == {"A": {"n": None}}
    assert again.columns == {"A": {"n": Kind.DOUBLE}}
    assert made.bound_to(Catalog(shared={"n": Kind.DOUBLE})) is again
    assert again.bound_to(again.catalog) is again


def test_order_of_rules_on_top_of_others() -> None:
    rules = parse("define Z() from Y()\ndefine Y() from P()").rules
    assert order(rules, {"P": 3}) == {"Y": 3, "Z": 4}
