"""Different events and different matches are distinguished, whatever the columns and ids."""

from __future__ import annotations

import pyarrow as pa
import pytest

import tocsin

RULE = "define Delay(minutes: long) from Dep(minutes > 10) where minutes = Dep.minutes"
PAIR = "define Twice() from Dep() and each Dep() as other within 1 h from Dep"


def departures(ids: list[int | str | None]) -> pa.Table:
    """One departure a minute, 20 minutes late, with these values in the column `id`."""
    rows = len(ids)
    columns = {"type": ["Dep"] * rows, "ts": [minute * 60_000_000 for minute in range(rows)]}
    return pa.table({**columns, "id": ids, "minutes": [20 + row for row in range(rows)]})


def test_a_column_called_id_is_an_attribute() -> None:
    matches = tocsin.rules(RULE).detect(departures([7, 8, 7, 7]))
    assert len(set(matches["id"].to_pylist())) == 4


@pytest.mark.parametrize("id", [None, "id"])
def test_matches_of_events_that_share_an_id_have_ids_of_their_own(id: str | None) -> None:
    events = departures(["x", "y", "x", "x", None, None])
    matches = tocsin.rules(PAIR).detect(events, id=id)
    assert matches.num_rows == 15
    assert len(set(matches["id"].to_pylist())) == 15


def test_equal_rows_are_different_events_with_and_without_ids() -> None:
    events = pa.concat_tables([departures(["x"])] * 3)
    for id in (None, "id"):
        matches = tocsin.rules("define D() from Dep()").detect(events, id=id)
        assert matches.num_rows == len(set(matches["id"].to_pylist())) == 3


def test_parts_show_the_id_of_the_source() -> None:
    matches = tocsin.rules("define D() from Dep()").detect(departures(["x", None]), id="id")
    first, second = (parts[0]["id"] for parts in matches["parts"].to_pylist())
    assert first == "x"
    assert len(second) == 32


def test_why_explains_the_match_that_was_asked_about() -> None:
    events = pa.concat_tables([departures(["x"]), departures(["x"]).set_column(3, "minutes", pa.array([99]))])
    rules = tocsin.rules("define D(m: long) from Dep() where m = Dep.minutes")
    matches = rules.detect(events, id="id")
    assert sorted(matches["m"].to_pylist()) == [20, 99]
    for match in matches.to_pylist():
        assert f"minutes={match['m']}" in str(rules.why(events, match["id"], id="id"))


def test_an_id_column_that_is_not_there_is_an_error() -> None:
    with pytest.raises(tocsin.TocsinError, match="no column 'key'"):
        tocsin.rules(RULE).detect(departures([1]), id="key")
