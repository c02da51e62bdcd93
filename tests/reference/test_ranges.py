"""The semantics of moving queries, sentence by sentence."""

from __future__ import annotations

import pytest

from tocsin.errors import EventError
from tocsin.events.formats import read_events
from tocsin.language.mcep.text import parse
from tocsin.reference.patterns import detect
from tocsin.reference.ranges import Covering, coverings, quiescent_point, restriction_us, windows_us

SEQUENCE = "define P() from B() and first A() within 9 us from B consuming A"


def run(text: str, *lines: str, history_us: int | None = None) -> list[Covering]:
    (interest,) = parse(text).interests
    return coverings(interest, [event for line in lines for event in read_events(line)], history_us)


def shown(result: list[Covering]) -> list[list[str]]:
    return [[" ".join(part.id for part in one.match.parts) for one in covering.delivered] for covering in result]


def near(rules: str, more: str = "") -> str:
    return f"{rules} interest I of P around Me range rectangle 10 m by 10 m {more}"


def test_nothing_is_delivered_before_the_first_location() -> None:
    assert run(near("define P() from A()"), "A@1[a](x=0,y=0)") == []


def test_events_outside_the_range_or_without_coordinates_are_ignored() -> None:
    result = run(near("define P() from A()"), "Me@1[m](x=0,y=0)", "A@2[a](x=5,y=5)", "A@3[b](x=6,y=0)", "A@4[c]()")
    assert shown(result) == [["a"]]


def test_ranges_share_the_instant_at_which_one_ends_and_the_next_begins() -> None:
    events = ["Me@1[m](x=0,y=0)", "A@5[a](x=3,y=0)", "Me@5[n](x=4,y=0)", "A@6[b](x=-3,y=0)", "A@7[c](x=9,y=0)"]
    result = run(near("define P() from A()"), *events)
    assert [(covering.range.start, covering.range.end) for covering in result] == [(1, 5), (5, float("inf"))]
    assert shown(result) == [["a"], ["a", "c"]]


def test_ids_differ_between_ranges() -> None:
    events = ["Me@1[m](x=0,y=0)", "A@5[a](x=3,y=0)", "Me@5[n](x=4,y=0)"]
    one, two = (covering.delivered[0] for covering in run(near("define P() from A()"), *events))
    assert one.match == two.match
    assert one.id != two.id


def test_the_lifetime_includes_its_first_instant() -> None:
    events = ["A@2[a](x=0,y=0)", "A@3[b](x=0,y=0)", "Me@5[m](x=0,y=0)"]
    assert shown(run(near("define P() from A()", "lifetime 2 us"), *events)) == [["b"]]


def test_windows_reach_further_back_than_the_lifetime() -> None:
    rule = "define P() from A() and each B() within 4 us from A"
    events = ["B@-1[x](x=0,y=0)", "B@0[b](x=0,y=0)", "A@3[a](x=0,y=0)", "Me@5[m](x=0,y=0)"]
    assert shown(run(near(rule, "lifetime 2 us"), *events)) == [["a b"]]


def test_restriction_windows_add_up() -> None:
    (rule,) = parse("define P() from A() and each B() within 4 us from A and not C() within 7 us from B").rules
    assert restriction_us(rule) == 11
    (interest,) = parse(
        near("define Q() from A() and last B() within 3 us from A define P() from Q() and each C() within 5 us from Q")
    ).interests
    assert windows_us(interest, "P") == 8


def test_the_papers_example_of_two_starting_points() -> None:
    """Section 3: with σ1 the sequence operator finds σ1→σ3 and σ2→σ4, without it only σ2→σ3."""
    events = [
        f"{type}@{ts}[s{n}](x=0,y=0)" for n, (type, ts) in enumerate(zip("AABBB", (1, 2, 4, 6, 8), strict=True), 1)
    ]
    far = [*events, "Me@5[m](x=0,y=0)", "Me@9[n](x=100,y=0)"]
    wide = near(SEQUENCE, "lifetime 2 us")
    assert shown(run(wide, *far))[0] == ["s3 s1", "s4 s2"]
    assert shown(run(wide.replace("9 us", "2 us"), *far))[0] == []
    assert shown(run(wide.replace("9 us", "3 us").replace("first", "last"), *far))[0] == ["s3 s2"]


def test_updates_by_time_and_by_distance() -> None:
    events = [f"Me@{ts}(x={x},y=0)" for ts, x in ((0, 0), (4, 3), (5, 4), (9, 30), (10, 31), (11, 40))]
    rule = "define P() from A()"
    assert [c.range.start for c in run(near(rule, "update every 5 us"), *events)] == [0, 5, 10]
    assert [c.range.start for c in run(near(rule, "update every 10 m"), *events)] == [0, 9, 11]
    assert len(run(near(rule, "update each"), *events)) == 6


def test_only_the_focal_object_moves_the_range() -> None:
    text = 'define P() from A() interest I of P around Car(car="c1") range circle 5 m'
    events = ['Car@1(car="c1",x=0,y=0)', 'Car@2(car="c2",x=9,y=9)', 'Car@3(car="c1")', 'Car@4(car="c1",x=1,y=0)']
    assert [covering.range.start for covering in run(text, *events)] == [1, 4]


def test_strong_semantics_starts_at_a_quiescent_point_and_gives_the_answer_of_all_time() -> None:
    events = [f"A@{ts}[a{ts}](x=0,y=0)" for ts in (0, 42, 44, 48)] + [f"B@{ts}[b{ts}](x=0,y=0)" for ts in (49, 52, 54)]
    moving = [*events, "Me@53[m](x=0,y=0)"]
    weak, strong = near(SEQUENCE, "lifetime 1 us"), near(SEQUENCE, "lifetime 1 us semantics strong")
    assert shown(run(weak, *moving)) == [["b52 a48"]]
    everything = detect(parse(SEQUENCE).rules, read_events("\n".join(events)))
    latest = [" ".join(part.id for part in match.parts) for match in everything if match.ts >= 52]
    assert shown(run(strong, *moving)) == [latest] == [["b52 a44", "b54 a48"]]
    busy = [*moving, "B@43[b43](x=0,y=0)"]
    assert shown(run(weak, *busy)) == [["b52 a48"]]
    assert shown(run(strong, *busy)) == [["b52 a48"]]


def test_strong_semantics_without_a_quiescent_point_in_the_history_is_an_error() -> None:
    events = [f"A@{ts}[a{ts}](x=0,y=0)" for ts in range(0, 60, 3)] + ["Me@53[m](x=0,y=0)"]
    strong = near(SEQUENCE, "semantics strong")
    assert run(strong, *events, history_us=60)[0].error == "there is no quiescent point within the history kept"
    assert run(strong, *events, history_us=80)[0].error is None
    assert run(near(SEQUENCE), *events, history_us=60)[0].error is None
    assert "shorter" in (run(near(SEQUENCE), *events, history_us=5)[0].error or "")


def test_quiescent_points() -> None:
    assert quiescent_point([], 10, 3) == 10
    assert quiescent_point([7], 10, 3) == 10
    assert quiescent_point([8], 10, 3) == 7
    assert quiescent_point([2, 5, 8], 10, 3) == 1
    assert quiescent_point([1, 5, 8], 10, 3) == 4
    assert quiescent_point([20], 10, 3) == 10


def test_composite_events_go_up_the_tree_of_rules() -> None:
    rules = "define Q() from A() and last B() within 3 us from A define P() from C() and each Q() within 5 us from C"
    events = ["B@1[b](x=0,y=0)", "A@2[a](x=0,y=0)", "C@5[c](x=0,y=0)", "Me@5[m](x=0,y=0)"]
    (one,) = run(near(rules), *events)[0].delivered
    (match,) = [match for match in detect(parse(rules).rules, read_events("\n".join(events))) if match.rule == "P"]
    assert one.match == match


def test_composite_events_are_not_accepted_from_outside() -> None:
    with pytest.raises(EventError, match="come from a rule"):
        run(near("define P() from A()"), "P@1()")
