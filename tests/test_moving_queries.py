"""Moving queries as a user calls them: text, builder, tables, and rejected locations."""

from __future__ import annotations

import pyarrow as pa
import pytest

import tocsin
from tocsin.engine.moving.detector import MovingDetector
from tocsin.errors import EventError, RuleError, StateError
from tocsin.language.builder import define, event, this
from tocsin.language.mcep.ast import Interest, SelectionWindow, WindowOperator, WindowUnit
from tocsin.language.mcep.builder import circle, interest, rectangle

TEXT = """
define P() from A()
interest Near of P around Me range rectangle 10 m by 10 m lifetime 2 us
"""


def table(*rows: tuple[str, int, float | None, float | None]) -> pa.Table:
    type, ts, x, y = (list(column) for column in zip(*rows, strict=True))
    return pa.table({"type": type, "ts": ts, "x": pa.array(x, pa.float64()), "y": pa.array(y, pa.float64())})


def shown(found: pa.Table) -> list[tuple[object, ...]]:
    return [(row["range"], row["rule"], row["ts"]) for row in found.to_pylist()]


def test_text_and_builder_say_the_same() -> None:
    hot = define("P").from_(event("A")).build()
    built = interest("Near", of=["P"], around=event("Me"), range=rectangle(10, 10), rules=[hot], lifetime="2 us")
    events = table(("A", 1, 0, 0), ("Me", 2, 0, 0), ("A", 3, 4, 4), ("A", 4, 6, 0), ("Me", 5, 9, 0))
    found = [tocsin.rules(source).detect(events) for source in (TEXT, [built])]
    assert found[0] == found[1]
    assert shown(found[0]) == [(1, None, 2), (1, "P", 1), (1, "P", 3), (2, None, 5), (2, "P", 3), (2, "P", 4)]
    assert tocsin.rules(TEXT).interests == (built,)


def test_locations_apart() -> None:
    rules = tocsin.rules(TEXT)
    events = table(("A", 1, 0, 0), ("A", 3, 4, 4))
    locations = pa.table({"ts": [2], "x": [0], "y": [0]})
    assert shown(rules.detect(events, locations=locations)) == [(1, None, 2), (1, "P", 1), (1, "P", 3)]


def test_a_stream_delivers_what_is_certain() -> None:
    detector = tocsin.rules(TEXT).detector()
    assert shown(detector.push(table(("A", 1, 0, 0), ("Me", 2, 0, 0), ("A", 3, 4, 4)))) == [(1, None, 2), (1, "P", 1)]
    assert shown(detector.push(table(("A", 7, 0, 0)))) == [(1, "P", 3)]
    assert shown(detector.finish()) == [(1, "P", 7)]


def test_a_location_without_a_place_is_set_aside() -> None:
    rules = tocsin.rules(TEXT)
    events = table(
        ("Me", 1, 0, 0), ("Me", 2, float("nan"), 0), ("Me", 3, None, 0), ("Me", 4, float("inf"), 0), ("A", 5, 0, 0)
    )
    detector = rules.detector(delay=100)
    found = [detector.push(events), detector.finish()]
    assert shown(pa.concat_tables(found)) == [(1, None, 1), (1, "P", 5)]
    assert detector.dead_letters()["reason"].to_pylist() == ["x and y are not a position"] * 3
    with pytest.warns(
        tocsin.DeadLetterWarning, match="3 events could not be used; the first: x and y are not a position"
    ):
        rules.detect(events)


def test_a_location_outside_of_the_world_is_set_aside() -> None:
    rules = tocsin.rules("define P() from A() interest Near of P around Me range circle 10 m space wgs84")
    events = pa.table(
        {
            "type": ["Me", "Me", "A", "A"],
            "ts": [1, 2, 3, 4],
            "lon": [9.0, 200.0, 9.0, 9.0],
            "lat": [48.0, 48.0, 48.0, 95.0],
        }
    )
    with pytest.warns(
        tocsin.DeadLetterWarning, match="1 events could not be used; the first: lon and lat are not a position"
    ):
        assert shown(rules.detect(events)) == [(1, None, 1), (1, "P", 3)]


def test_an_object_that_is_never_heard_of_again_keeps_its_range() -> None:
    events = table(("Me", 1, 0, 0), *(("A", ts, 0, 0) for ts in range(2, 2000, 500)))
    detector = tocsin.rules(TEXT).detector()
    found = [detector.push(events.slice(at, 1)) for at in range(len(events))]
    assert shown(pa.concat_tables([*found, detector.finish()])) == [
        (1, None, 1),
        *((1, "P", ts) for ts in (2, 502, 1002, 1502)),
    ]
    assert sum(part.num_rows for part in detector._events) <= 1, "and what is kept is bounded"


def test_rules_that_consume_end_with_an_error_where_the_history_does() -> None:
    text = TEXT.replace("from A()", "from A() and first B() within 3 us from A consuming B")
    events = table(("Me", 1, 0, 0), *((type, ts, 0, 0) for ts in range(2, 60) for type in "AB"))
    detector = tocsin.rules(text).detector(history=20)
    found = pa.concat_tables(
        [*(detector.push(events.slice(at, 10)) for at in range(0, len(events), 10)), detector.finish()]
    )
    errors = [row for row in found.to_pylist() if row["error"]]
    assert [row["error"] for row in errors] == ["the range lasts longer than the history kept, and its rules consume"]
    assert sum(part.num_rows for part in detector._events) < 100


def test_updates_out_of_order_are_put_in_order_within_the_delay_and_late_beyond() -> None:
    detector = tocsin.rules(TEXT).detector(delay=5)
    found = [
        detector.push(table(row))
        for row in (("Me", 4, 0, 0), ("Me", 1, 100, 0), ("A", 2, 100, 0), ("A", 20, 0, 0), ("Me", 3, 0, 0))
    ]
    found.append(detector.finish())
    assert shown(pa.concat_tables(found)) == [(1, None, 1), (1, "P", 2), (2, None, 4), (2, "P", 20)]
    assert detector.dead_letters()["event"].to_pylist() == ["Me@3(x=0.0, y=0.0)"]


@pytest.mark.parametrize("shape", ["rectangle 0 m by 10 m", "circle 0 m", "polygon (0 m, 0 m), (1 m, 0 m), (2 m, 0 m)"])
def test_a_range_without_an_area_is_a_mistake(shape: str) -> None:
    with pytest.raises(RuleError, match=r"must be positive|meet only at its corners"):
        tocsin.rules(f"define P() from A() interest Near of P around Me range {shape}")


def test_events_without_columns_for_places_are_a_mistake() -> None:
    with pytest.raises(EventError, match="there is no column 'x'"):
        tocsin.rules(TEXT).detect(pa.table({"type": ["A"], "ts": [1], "lon": [1.0], "lat": [1.0]}))


def test_places_must_be_numbers() -> None:
    events = pa.table({"type": ["A"], "ts": [1], "x": ["here"], "y": [1.0]})
    with pytest.raises(RuleError, match="coordinates must be numbers"):
        tocsin.rules(TEXT).detect(events)


def test_what_is_for_queries_that_move() -> None:
    hot = define("P").from_(event("A")).build()
    with pytest.raises(EventError, match="locations is for moving queries"):
        tocsin.rules([hot]).detect(table(("A", 1, 0, 0)), locations=table(("Me", 1, 0, 0)))
    moving = interest("Near", of=["P"], around=event("Me"), range=circle(1), rules=[hot])
    with pytest.raises(RuleError, match="`rules` with interests cannot run rule P: interests have the rules"):
        tocsin.rules([moving, hot])
    with pytest.raises(EventError, match="leave ordered out"):
        tocsin.rules([moving]).detector(ordered=True)
    two = [moving, interest("Far", of=["P"], around=event("You", this.x > 1), range=circle(1), rules=[hot])]
    with pytest.raises(EventError, match="follow Me and You: the locations need a column 'type'"):
        tocsin.rules(two).detect(table(("A", 1, 0, 0)), locations=pa.table({"ts": [2], "x": [0], "y": [0]}))


def test_operators_of_the_window_model_are_refused_where_only_rules_run() -> None:
    def counted(slide_us: int | None = None) -> Interest:
        windows = (SelectionWindow("A", WindowUnit.COUNTING, 2),)
        pair = WindowOperator("Pair", windows, 5, lambda chosen: [{"n": len(chosen["A"])}], slide_us)
        return interest("Near", of=["Pair"], around=event("Me"), range=circle(1), operators=[pair])

    with pytest.raises(RuleError, match="operator Pair of Near uses the window model"):
        tocsin.rules([counted()])
    with pytest.raises(RuleError, match="operator Pair of Near uses the window model"):
        MovingDetector([counted()], {})
    with pytest.raises(RuleError, match="cannot slide by time"):
        counted(slide_us=3)


def test_a_detector_is_saved_and_goes_on() -> None:
    rules = tocsin.rules(TEXT)
    detector = rules.detector()
    found = [detector.push(table(("A", 1, 0, 0), ("Me", 2, 0, 0), ("A", 3, 4, 4)))]
    detector = rules.restore(detector.snapshot())
    found += [detector.push(table(("A", 7, 0, 0))), detector.finish()]
    assert shown(pa.concat_tables(found)) == [(1, None, 2), (1, "P", 1), (1, "P", 3), (1, "P", 7)]
    still = tocsin.rules("define P() from A()").detector()
    with pytest.raises(StateError, match="a snapshot of rules"):
        rules.restore(still.snapshot())


def test_explain_tells_of_interests() -> None:
    assert "interest  Near" in tocsin.rules(TEXT).explain()
