from __future__ import annotations

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tocsin.errors import EventError
from tocsin.events.formats import read_event, read_events, write_event
from tocsin.events.types import UNITS_US, Event, Value

INTEGERS = st.integers(-(2**63), 2**63 - 1)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]*", fullmatch=True) | st.sampled_from(["größe", "null", "true", "inf"])
VALUES = st.none() | st.booleans() | INTEGERS | st.floats(allow_nan=False, allow_infinity=False) | TEXTS
EVENTS = st.builds(Event, NAMES, INTEGERS, st.dictionaries(NAMES, VALUES, max_size=5), INTEGERS, st.none() | TEXTS)


def kinds(event: Event) -> list[type]:
    return [type(value) for value in event.attributes.values()]


def test_the_notation_of_the_paper() -> None:
    event = read_event('Temp@10(area="A1", value=24.5)')
    assert event == Event("Temp", 10, {"area": "A1", "value": 24.5})
    assert write_event(event) == 'Temp@10(area="A1", value=24.5)'


@given(EVENTS)
@example(Event("A", 0, {"x": -0.0, "y": 1e300, "z": 5e-324, "s": '\u2028\x85\x0b\\"\n\t'}, 0, ""))
def test_what_is_written_is_read_back(event: Event) -> None:
    line = write_event(event)
    assert "\n" not in line
    again = read_event(line)
    assert again == event
    assert kinds(again) == kinds(event)


@given(st.lists(EVENTS, max_size=4))
def test_lines_are_read_in_their_order(events: list[Event]) -> None:
    assert read_events("\n".join(map(write_event, events))) == events


@pytest.mark.parametrize(
    ("time", "ts"),
    [
        ("0", 0),
        ("-5", -5),
        ("2024-01-01", 1_704_067_200_000_000),
        ("2024-01-01T00:00", 1_704_067_200_000_000),
        ("2024-01-01T00:00:00Z", 1_704_067_200_000_000),
        ("2024-01-01T01:00:00+01:00", 1_704_067_200_000_000),
        ("2024-01-01T00:00:00.25", 1_704_067_200_250_000),
        ("1969-12-31T23:59:59.999999Z", -1),
        *((f"3{unit}", 3 * worth_us) for unit, worth_us in UNITS_US.items()),
    ],
)
def test_times(time: str, ts: int) -> None:
    assert read_event(f"A@{time}()") == Event("A", ts)


@pytest.mark.parametrize(
    ("head", "seq", "id"),
    [
        ("A@1", 0, None),
        ("A@1#3", 3, None),
        ("A@1#-3", -3, None),
        ("A@1[id7]", 0, "id7"),
        ("A@1#3[a.b:c-d_é]", 3, "a.b:c-d_é"),
        ('A@1["id 7"]', 0, "id 7"),
        ('A@1[""]', 0, ""),
        ("A@2024-01-01T00:00:00Z#3[7]", 3, "7"),
    ],
)
def test_sequence_numbers_and_ids(head: str, seq: int, id: str | None) -> None:
    event = read_event(f"{head}()")
    assert (event.seq, event.id) == (seq, id)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('""', ""),
        ('"a, (b) = #c -- d"', "a, (b) = #c -- d"),
        (r'"\"\\\n\u00e9\ud834\udd1e"', '"\\\né𝄞'),
        ("7", 7),
        ("-9223372036854775808", -(2**63)),
        ("7.0", 7.0),
        ("1e3", 1000.0),
        ("-1.5E-3", -0.0015),
        ("true", True),
        ("false", False),
        ("null", None),
    ],
)
def test_values(text: str, value: Value) -> None:
    read = read_event(f"A@1(x={text})").attributes["x"]
    assert read == value
    assert type(read) is type(value)


def test_negative_zero_is_read_as_zero() -> None:
    assert math.copysign(1, read_event("A@1(x=-0.0)").attributes["x"]) == 1  # type: ignore[arg-type]


def test_space_blank_lines_and_comments_are_skipped() -> None:
    text = '\n  -- two events\n\tA@1( x = 1 ,y=2 )  # one\r\n\n# other\nB@2#1(s="-- # no comment")-- two\n   '
    assert read_events(text) == [Event("A", 1, {"x": 1, "y": 2}), Event("B", 2, {"s": "-- # no comment"}, 1)]
    assert read_events("") == []


@pytest.mark.parametrize(
    ("text", "where", "message"),
    [
        ("Temp", (1, 5), "expected '@' and a time"),
        ("@3()", (1, 1), "expected the type of an event"),
        ("Temp@10m()", (1, 6), "expected a time"),
        ("Temp@10.5()", (1, 6), "expected a time"),
        ("Temp@10 ()", (1, 9), r"expected #seq, \[id\] or '\('"),
        ("Temp@10[a b]()", (1, 8), r"expected #seq, \[id\] or '\('"),
        ("Temp@10(a)", (1, 10), "expected '='"),
        ("Temp@10(a=)", (1, 11), "expected a value"),
        ('Temp@10(a="x)', (1, 11), "expected a value"),
        ("Temp@10(a=1 b=2)", (1, 13), r"expected ',' or '\)'"),
        ("Temp@10(a=1,)", (1, 13), "expected an attribute"),
        ("Temp@10(a=1, a=2)", (1, 14), "'a' is given twice"),
        ("A@1()\n\n  B@2(x=1) C@3()", (3, 12), "expected the end of the line"),
        ("A@1(x=NaN)", (1, 7), "NaN is not a value: doubles are finite"),
        ("A@1(x=-inf)", (1, 7), "-inf is not a value: doubles are finite"),
        ("A@1(x=Infinity)", (1, 7), "Infinity is not a value: doubles are finite"),
        ("A@1(x=1e999)", (1, 7), "1e999 is too large for a double"),
        ("A@1(x=hot)", (1, 7), "'hot' is not a value"),
        ("A@1(x=9223372036854775808)", (1, 7), "an integer outside 64 bits"),
        (f"A@1(x={'9' * 5000})", (1, 7), "an integer outside 64 bits"),
        ("A@9223372036854775807s()", (1, 3), "an integer outside 64 bits"),
        ("A@2024-13-01()", (1, 3), "not a time: month must be in 1..12"),
        (r'A@1(x="\q")', (1, 7), "an escape that JSON does not know"),
        (r'A@1(x="\ud834")', (1, 7), "half a character"),
    ],
)
def test_mistakes_are_pointed_at(text: str, where: tuple[int, int], message: str) -> None:
    with pytest.raises(EventError, match=message) as caught:
        read_events(text)
    assert (caught.value.line, caught.value.column) == where


def test_a_mistake_is_shown_with_its_line() -> None:
    with pytest.raises(EventError) as caught:
        read_events('A@1()\nTemp@10(area="A1", value=nan)')
    assert str(caught.value).splitlines() == [
        "line 2, column 26: nan is not a value: doubles are finite",
        '  Temp@10(area="A1", value=nan)',
        "                           ^^^",
        "Write null.",
    ]


@pytest.mark.parametrize("text", ["", "A@1()\nA@2()"])
def test_one_event_is_one_event(text: str) -> None:
    with pytest.raises(EventError, match=r"expected one event, found [02]"):
        read_event(text)


@pytest.mark.parametrize(
    "event",
    [
        Event("A", 1, {"x": math.nan}),
        Event("A", 1, {"x": math.inf}),
        Event("A b", 1),
        Event("", 1),
        Event("A", 1, {"1x": 1}),
    ],
)
def test_what_could_not_be_read_is_not_written(event: Event) -> None:
    with pytest.raises(EventError, match="cannot be written"):
        write_event(event)


@given(st.text(st.sampled_from('A@1#3[b](x=".5e,)nul -\\\n\t'), max_size=40))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        events = read_events(text)
    except EventError:
        return
    assert read_events("\n".join(map(write_event, events))) == events
