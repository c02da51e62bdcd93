"""Any text gives statements or a clear error in a short time."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tocsin
from tests.budget import examples
from tests.language.hostile import EPS, HOSTILE, MCEP, SIDDHI, TESLA
from tocsin.errors import RuleError, TocsinError
from tocsin.service.deployments import TEXT_CHARACTERS_MAX, parse_rules

LIMIT_S = 30
"""Each takes one or two seconds on a machine that is busy; what expands without a bound takes hours."""


@contextmanager
def bounded(seconds: int = LIMIT_S) -> Iterator[None]:
    """Stop the test after a time limit."""

    def stop(*_: object) -> None:
        raise AssertionError(f"not done after {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def outcome(use: Callable[[], object]) -> None:
    """Parse and plan a text. Any exception other than a `TocsinError` fails the test."""
    with suppress(TocsinError):
        use()


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_text_gives_statements_or_an_error(name: str) -> None:
    language, text = HOSTILE[name]
    with bounded():
        outcome(lambda: tocsin.rules(text + "\n", language))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (EPS["|| in &"], "this request has 1,099,511,627,776 alternatives, more than 64"),
        (EPS["|| in ;"], "this request has 1,099,511,627,776 alternatives, more than 64"),
        (EPS["|| in & beside an order"], "the 64 alternatives of this request have 5,504 events, more than 640"),
        (EPS["&"], "a request has at most 100 events"),
        (EPS["nested ;"], "this request is nested deeper than 100 levels"),
        (EPS["many TimesDf"], "a request has at most 100 events"),
        (EPS["timers of timers"], "a request has at most 100 events"),
        (EPS["TimesEq"], "a repetition has 2 to 64 events"),
        (TESLA["not and parentheses"], "this expression is nested deeper than 100 levels"),
        (TESLA["a sum"], "this expression is nested deeper than 100 levels"),
        (TESLA["a circle of rules"], "a composite event cannot be made from itself"),
        (SIDDHI["a large count"], "this number does not fit 64 bits"),
        (SIDDHI["a sum"], "this expression is nested deeper than 100 levels"),
        (MCEP["corners"], "a polygon has 3 to 500 corners"),
    ],
)
def test_an_error_names_the_limit(text: str, message: str) -> None:
    with bounded(), pytest.raises(RuleError) as refused:
        tocsin.rules(text)
    assert message in refused.value.message


def test_statements_within_the_limits_are_bound() -> None:
    with bounded():
        tocsin.rules("request R on " + " & ".join(f"A{n}" for n in range(100)))
        tocsin.rules("request R on " + " & ".join(f"(A{n} || B{n})" for n in range(6)))
        tocsin.rules(f"define O() from A({' or '.join(f'x = {n}' for n in range(5_000))})")


@pytest.mark.parametrize("name", [name for name, (_, text) in HOSTILE.items() if len(text) <= TEXT_CHARACTERS_MAX])
def test_the_service_reads_a_hostile_text(name: str) -> None:
    language, text = HOSTILE[name]
    with bounded():
        outcome(lambda: parse_rules(text, language))


WORDS = {
    "tesla": "define from and or not last each first within between where consuming rule event Count Avg O A B a x "
    "( ) , = < >= + - * 1 2.5 'a' $p ms s true as . : ; 3-last timestamp(\"2026-01-01\")",
    "eps": "request on if within mode notify event at( every( TimesEq( TimesDf( R A B as a x & || ; ( ) , . = < 1 2 s "
    "'t' recent chronicle and or not + -",
    "siddhi": "define stream from every select insert into group by having join on as within window #window.time( "
    "#window.length( A B O e1 x y -> , = == < > : ; ( ) [ ] . @info(name='q') 1 5 sec and or not for null is sum( * "
    "last string long",
    "mcep": "interest of around range circle rectangle by polygon m km lifetime update every each semantics strong "
    "weak space plane wgs84 define from A O I Me ( ) , = 1 2.5 s - and x",
}
STARTS = {
    "tesla": "define O() from A(x = ",
    "eps": "request R on A ",
    "siddhi": "from A ",
    "mcep": "define O() from A() interest I of O around ",
}


@pytest.mark.parametrize("language", WORDS)
@settings(max_examples=examples(150), suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(data=st.data())
def test_words_in_any_order_give_statements_or_an_error(language: str, data: st.DataObject) -> None:
    word = st.sampled_from(WORDS[language].split()) | st.text(max_size=3)
    piece = st.tuples(word, st.integers(1, 3)).map(lambda one: " ".join([one[0]] * one[1]))
    words = data.draw(st.lists(piece, max_size=40))
    start = data.draw(st.sampled_from(["", STARTS[language]]))
    with bounded():
        outcome(lambda: tocsin.rules(start + " ".join(words) + "\n", language))


@settings(max_examples=examples(100))
@given(st.text(max_size=200), st.sampled_from([None, *WORDS]))
def test_any_text_gives_statements_or_an_error(text: str, language: str | None) -> None:
    with bounded():
        outcome(lambda: tocsin.rules(text + "\n", language))
