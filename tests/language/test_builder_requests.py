"""A request built in Python equals the request parsed from its text."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from tocsin.errors import RuleError
from tocsin.language import parse
from tocsin.language.builder import event, role, this
from tocsin.language.eps.builder import after, at, both, called, either, every, request, then, times_df, times_eq


def test_built_and_parsed_requests_are_equal() -> None:
    built = request(
        "R",
        either(
            both(called("e", times_eq(3, event("E1", this.x > 2), "a")), event("E2")),
            then(event("E3"), event("E4"), times_df(2, event("E5"), "b")),
            both(called("t", after(event("E6"), "2 d")), every("5 min"), at(datetime(2026, 11, 16, 12, tzinfo=UTC))),
        ),
        role.e.a == role.E2.a,
        within="1 h",
        mode="recent",
        notify="it happened",
    )
    (written,) = parse(
        """
        request R
        on      TimesEq(3, E1(x > 2) as e, a) & E2 || E3 ; E4 ; TimesDf(2, E5, b)
                || at(E6, 0/0/2 0:00:00) as t & every(5 min) & at(2026/11/16 12:00:00)
        if      e.a = E2.a
        within  1 h
        mode    recent
        notify  "it happened"
        """
    ).rules
    assert built == written


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: request("R", event("A"), mode="best"), "unknown mode 'best'"),
        (lambda: both(event("A")), "an operator needs at least two events"),
        (lambda: both(event("A"), event("B"), as_=["a"]), "there are 2 events and 1 names"),
        (lambda: times_eq(1, event("A"), "x"), "a repetition has 2 to 64 events"),
        (lambda: both("A", "B"), "'A' is not an event"),
        (lambda: called("x", both(event("A"), event("B"))), "only an event or a timer can have a name"),
        (lambda: request("R", both(event("A"), event("A"))), "two events of this request are called A"),
    ],
)
def test_mistakes_raise_errors(make: object, message: str) -> None:
    with pytest.raises(RuleError, match=message):
        make()  # type: ignore[operator]
