"""Points, the lemmas, and quiescent points of moving queries; and that a range that moves streams little."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tocsin.events.types import Event
from tocsin.language.mcep.ast import Rectangle
from tocsin.language.mcep.text import parse
from tocsin.overlay.mobility.ranges import (
    FocalObject,
    busy_intervals,
    initialisation_points,
    lemma_1,
    lemma_2,
    quiescent_point,
)
from tocsin.plans.moving import Region, lookback_us, tree
from tocsin.reference.ranges import quiescent_point as reference_point

RULES = """
define Q() from A() and each B() within 3 us from A and each C() within 4 us from B
define P() from Q() and each D() within 5 us from Q and not A() within 2 us from Q
"""


def root(rules: str = RULES, delivers: str = "P"):
    (interest,) = parse(f"{rules} interest I of {delivers} around Me range circle 5 m").interests
    return tree(interest)


def test_a_rule_on_each_path_is_an_operator() -> None:
    assert [operator.key for operator in root().walk()] == ["I", "I/P", "I/P/Q"]
    assert [operator.key for operator in root(delivers="P, Q").walk()] == ["I", "I/P", "I/P/Q", "I/Q"]
    delivery, p, q = root().walk()
    assert (p.sources, q.sources) == (("D", "A"), ("A", "B", "C"))
    assert (p.restriction_us, q.restriction_us, delivery.windows_us) == (5, 7, 12)


def test_lemma_1_sums_the_windows_of_a_path() -> None:
    assert lemma_1(100, 10, [5, 7]) == 78
    exact = initialisation_points(root(), 90, exact=True)
    assert exact["I/P/Q"] == dict.fromkeys("ABC", lemma_1(100, 10, [5, 7]))
    assert exact["I/P"] == dict.fromkeys(("Q", "D", "A"), lemma_1(100, 10, [5]))


def test_points_are_refined_by_what_each_type_needs() -> None:
    fine = initialisation_points(root(), 90, exact=False)
    assert fine["I"] == {"P": 89}
    assert fine["I/P"] == {"Q": 89, "D": 85, "A": 88}
    assert fine["I/P/Q"] == {"A": 89, "B": 86, "C": 82}
    assert initialisation_points(root(), 90, exact=True, quiet=3)["I/P/Q"] == {"A": 3, "B": 3, "C": 3}


def test_lemma_2_uses_only_the_symmetric_difference() -> None:
    old, new = Region(Rectangle(10, 10), (0, 0)), Region(Rectangle(10, 10), (4, 0))
    leaving, staying, coming = (Event("A", 9), (-4, 0)), (Event("A", 9), (2, 0)), (Event("A", 9), (8, 0))
    assert lemma_2([leaving], ["A"], old, new, 5)
    assert lemma_2([coming], ["A"], old, new, 5)
    assert not lemma_2([staying], ["A"], old, new, 5)
    assert not lemma_2([coming, leaving], ["B"], old, new, 5)
    assert not lemma_2([coming, leaving], ["A"], old, new, 9)
    assert lemma_2([staying], ["A"], None, new, 5)
    assert lemma_2([staying], ["A"], old, None, 5)


def test_operators_that_preserve_locality() -> None:
    assert root("define P() from A() and each B() within 3 us from A").preserves_locality
    for rule in (
        "define P() from A() and last B() within 3 us from A",
        "define P() from A() and not B() within 3 us from A",
        "define P() from A() and 2 < Count(B() within 3 us from A)",
        "define P() from A() and each B() within 3 us from A consuming B",
        "define Q() from A() and last B() within 3 us from A define P() from Q()",
    ):
        assert not root(rule).preserves_locality


def test_refined_points_are_the_same_with_all_events() -> None:
    (interest,) = parse(RULES + "interest I of P around Me range circle 1 m").interests
    root = tree(interest)
    found: dict[str, int] = {}
    for key, own in initialisation_points(root, 1000, exact=False).items():
        sources = next(operator.sources for operator in root.walk() if operator.key == key)
        for type in sources:
            found[type] = max(1000 - own[type], found.get(type, 0))
    assert lookback_us(root) == found == {"A": 2, "B": 4, "C": 8, "D": 5}


@given(st.lists(st.lists(st.integers(0, 60), max_size=8), max_size=4), st.integers(0, 60), st.integers(1, 9))
def test_quiescent_points_of_many_brokers_are_those_of_all_events(
    held: list[list[int]], latest: int, windows: int
) -> None:
    together = sorted(ts for times in held for ts in times)
    busy = [stretch for times in held for stretch in busy_intervals(sorted(times), windows)]
    found = quiescent_point(busy, latest, windows)
    assert found == reference_point(together, latest, windows)
    assert not any(found - windows < ts <= found for ts in together)


def test_a_focal_object_counts_its_ranges() -> None:
    (interest,) = parse("define P() from A() interest I of P around Me range circle 5 m update every 10 s").interests
    focal = FocalObject(interest)
    moves = [focal.moved(Event("Me", ts * 1_000_000, {"x": float(ts), "y": 0.0})) for ts in (0, 4, 10, 11, 25)]
    assert [move and (move[0], move[1] // 1_000_000) for move in moves] == [(1, 0), None, (2, 10), None, (3, 25)]
    assert focal.moved(Event("Me", 99_000_000)) is None
