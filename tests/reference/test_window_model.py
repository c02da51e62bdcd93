"""The partitioned window model against Section 4 of its paper, on the operators that the paper names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tocsin.errors import RuleError
from tocsin.events.types import Event, Value
from tocsin.language.eps.text import parse as parse_requests
from tocsin.language.mcep.ast import Consumption, Edge, Selection, SelectionWindow, Shift, WindowOperator, WindowUnit
from tocsin.reference.patterns import detect
from tocsin.reference.ranges import run

COUNTING, TEMPORAL = WindowUnit.COUNTING, WindowUnit.TEMPORAL


def ids(selection: Selection) -> Iterable[Mapping[str, Value]]:
    yield {"of": " ".join(event.id or "" for stream in sorted(selection) for event in selection[stream])}


def stream(text: str) -> list[Event]:
    """`A1 A2 B4`: types and times."""
    return [Event(word[0], int(word[1:]), {}, id=word) for word in text.split()]


def of(produced: list[Event]) -> list[Value]:
    return [event.attributes["of"] for event in produced]


def sequence(opens: Edge, consumption: Consumption, restriction_us: int = 100) -> WindowOperator:
    """ω→ of Fig. 1 (b): an event of A before one of B."""
    return WindowOperator(
        "Seq",
        (
            SelectionWindow("A", COUNTING, 1, opens=opens, before="B", consumption=consumption),
            SelectionWindow("B", COUNTING, 1, opens=opens, consumption=consumption),
        ),
        restriction_us,
        ids,
    )


def test_the_papers_two_maximum_covering_sequences() -> None:
    """Section 3: the operator started with σ1, and started with σ2."""
    events = stream("A1 A2 B4 B6 B8")
    operator = sequence(Edge.START, Consumption.WINDOW)
    assert of(run(operator, events)) == ["A1 B4", "A2 B6"]
    assert of(run(operator, events, after=1)) == ["A2 B4"]
    assert [event.ts for event in run(operator, events)] == [4, 6]


def test_selection_windows_shift_into_history_and_future() -> None:
    """Fig. 4: the window over A shifts one event back, that over B waits for the next."""
    with_consumption = WindowOperator(
        "Seq",
        (
            SelectionWindow("B", COUNTING, 1, consumption=Consumption.WINDOW),
            SelectionWindow("A", COUNTING, 1, shift=Shift.HISTORY, before="B"),
        ),
        100,
        ids,
    )
    assert of(run(with_consumption, stream("A1 A2 A3 B5"))) == ["A3 B5"]
    without_consumption = WindowOperator(
        "Seq",
        (
            SelectionWindow("B", COUNTING, 1),
            SelectionWindow("A", COUNTING, 1, shift=Shift.HISTORY, before="B"),
        ),
        100,
        ids,
    )
    assert of(run(without_consumption, stream("A1 A2 A3 B5"))) == ["A3 B5", "A2 B5", "A1 B5"]
    future = WindowOperator("Two", (SelectionWindow("A", COUNTING, 2, opens=Edge.START, shift=Shift.FUTURE),), 100, ids)
    assert of(run(future, stream("A1 A2 A3"))[-2:]) == ["A1 A2", "A2 A3"]


def test_nothing_outside_the_restriction_window_is_selected() -> None:
    operator = sequence(Edge.START, Consumption.WINDOW, restriction_us=3)
    assert of(run(operator, stream("A1 B4"))) == []
    assert of(run(operator, stream("A2 B4"))) == ["A2 B4"]


def test_a_dependency_keeps_windows_in_order() -> None:
    operator = sequence(Edge.END, Consumption.BEFORE)
    assert of(run(operator, stream("B1 A2"))) == []
    assert of(run(operator, stream("A2 B2"))) == []


def test_consumption_before_also_consumes_skipped_events() -> None:
    operator = sequence(Edge.END, Consumption.BEFORE)
    assert of(run(operator, stream("A1 A2 B3 B4"))) == ["A2 B3"]
    operator = sequence(Edge.END, Consumption.WINDOW)
    assert of(run(operator, stream("A1 A2 B3 B4"))) == ["A2 B3", "A1 B4"]


def test_a_temporal_window_slides_in_time() -> None:
    counts = WindowOperator(
        "Count",
        (SelectionWindow("A", TEMPORAL, 5),),
        5,
        lambda chosen: [{"of": len(chosen["A"])}],
        slide_us=5,
    )
    assert of(run(counts, stream("A1 A2 A6 A13"))) == [1, 2, 1]


def recent() -> WindowOperator:
    """Section 4.3: windows open at the end of the restriction window, which moves by one event."""
    return WindowOperator(
        "Recent",
        (
            SelectionWindow("A", COUNTING, 1, shift=Shift.HISTORY, before="B", consumption=Consumption.BEFORE),
            SelectionWindow("B", COUNTING, 1, shift=Shift.HISTORY, consumption=Consumption.BEFORE),
        ),
        1_000_000,
        ids,
    )


def test_snoops_recent_context() -> None:
    assert of(run(recent(), stream("A1 A2 B3 B4 A5 B6"))) == ["A2 B3", "A5 B6"]


@given(st.lists(st.sampled_from("AB"), max_size=14))
def test_the_recent_context_is_that_of_requests(types: list[str]) -> None:
    events = stream(" ".join(f"{type}{ts}" for ts, type in enumerate(types, 1)))
    (request,) = parse_requests("request R on A ; B within 1 s mode recent").rules
    expected = [" ".join(sorted(part.id for part in match.parts)) for match in detect([request], events)]
    assert of(run(recent(), events)) == expected


def test_the_operators_of_the_accident_tree() -> None:
    """Fig. 1 (b): movement and acceleration patterns of cars, then a sequence of them."""

    def pattern(name: str, source: str, limit: float) -> WindowOperator:
        def correlate(selection: Selection) -> Iterable[Mapping[str, Value]]:
            first, second = selection[source]
            values = first.attributes["v"], second.attributes["v"]
            if all(isinstance(value, float) and abs(value) >= limit for value in values):
                yield {"of": f"{first.id}+{second.id}"}

        return WindowOperator(name, (SelectionWindow(source, COUNTING, 2),), 2_000, correlate)

    def values(source: str, *pairs: tuple[int, float]) -> list[Event]:
        return [Event(source, ts, {"v": v}, id=f"{source}{ts}") for ts, v in pairs]

    movement = run(pattern("M", "steering", 0.5), values("steering", (1000, 0.7), (1500, -0.6), (2000, 0.1)))
    braking = run(pattern("A", "speeding", 4.0), values("speeding", (1200, -5.0), (1900, -6.0), (9000, -7.0)))
    assert of(movement) == ["steering1000+steering1500"]
    assert of(braking) == ["speeding1200+speeding1900"]
    accident = WindowOperator(
        "Accident",
        (
            SelectionWindow("M", COUNTING, 1, opens=Edge.START, before="A", consumption=Consumption.WINDOW),
            SelectionWindow("A", COUNTING, 1, opens=Edge.START, consumption=Consumption.WINDOW),
        ),
        5_000,
        ids,
    )
    (found,) = run(accident, [*movement, *braking])
    assert (found.ts, found.attributes["of"]) == (1900, "A1 M1")
    assert accident.consumes
    assert accident.starting_point(10_000) == 5_000


@pytest.mark.parametrize(
    "windows",
    [
        (SelectionWindow("A", COUNTING, 1, before="B"), SelectionWindow("B", COUNTING, 1, before="A")),
        (SelectionWindow("A", COUNTING, 1, before="X"),),
        (SelectionWindow("A", COUNTING, 0),),
        (SelectionWindow("A", TEMPORAL, 5, shift=Shift.FUTURE),),
        (SelectionWindow("A", COUNTING, 1), SelectionWindow("A", TEMPORAL, 1)),
    ],
)
def test_invalid_windows_are_refused(windows: tuple[SelectionWindow, ...]) -> None:
    with pytest.raises(RuleError):
        WindowOperator("O", windows, 10, ids)
