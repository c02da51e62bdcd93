"""What does a user read who made a mistake? Every message is a golden file, and nothing ends in another traceback.

A file of tests/golden/mistakes holds what the user wrote, a line `---`, and what Tocsin answered. What starts with
`>>>` is Python, to be run with the names that `outcome` gives it; anything else is the text of rules.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

import tocsin
from tests.conftest import GOLDEN
from tocsin.errors import TocsinError
from tocsin.events.notation import read_events
from tocsin.events.types import Event
from tocsin.language.builder import define, event, within

RULE = """\
define Fire(area: string, temp: double)
from   Smoke(area = $a)
       and last Temp(area = $a, value > 45) within 5 min from Smoke
where  area = $a, temp = Temp.value"""
TYPES = "event Smoke(area: string)\nevent Temp(area: string, value: double)\n"

UNMENDED = {
    "advance_beyond_all_time": "an OverflowError at the next snapshot",
    "advance_to_a_word": "a ValueError",
    "column_with_a_blank_in_its_name": "a dead letter that cannot be written loses the whole batch",
    "delay_that_is_none": "a TypeError",
    "delay_that_is_not_finite": "a ValueError",
    "event_that_a_rule_defines_as_an_event": "a dead letter that cannot be written loses the whole batch",
    "event_that_a_rule_defines_in_a_mapping": "blames the rule for the event",
    "id_of_some_events_of_a_type": "a dead letter that cannot be written loses the whole batch",
    "not_a_snapshot_but_text": "a TypeError",
    "not_rules": "a TypeError",
    "not_rules_in_a_list": "an AttributeError",
    "rule_added_at_a_word": "a ValueError",
    "rules_removed_as_a_word": "the word is taken for its letters",
    "ts_null_among_times_in_seconds": "one null hides that all other times are seconds",
    "ts_of_an_event_is_a_word": "an ArrowInvalid",
    "ts_out_of_range_of_an_event": "an OverflowError",
    "type_null": "a dead letter that cannot be written loses the whole batch",
    "value_of_the_wrong_kind_in_an_event": "a dead letter that cannot be written loses the whole batch",
    "value_of_the_wrong_kind_later": "a dead letter that cannot be written loses the whole batch",
    "value_that_is_no_attribute": "says nothing of what is wrong",
    "warning_of_detect": "a dead letter that cannot be written loses the whole batch",
}
"""What is known to go wrong; the files of these say what should be answered."""

NAMES = sorted(path.stem for path in (GOLDEN / "mistakes").glob("*.txt"))


@pytest.mark.parametrize("name", NAMES)
def test_a_mistake(
    name: str,
    golden: Callable[[str, str], None],
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if name in UNMENDED:
        if request.config.getoption("--rewrite-goldens"):
            pytest.skip("its file says what it should be")
        request.applymarker(pytest.mark.xfail(reason=UNMENDED[name], strict=True))
    monkeypatch.chdir(tmp_path)
    written = (GOLDEN / "mistakes" / f"{name}.txt").read_text(encoding="utf-8").partition("\n---\n")[0]
    golden(f"mistakes/{name}.txt", f"{written}\n---\n{outcome(written)}\n")


def test_there_are_many_mistakes() -> None:
    assert len(NAMES) >= 100
    assert set(NAMES) >= UNMENDED.keys()


def outcome(written: str) -> str:
    """What the user reads: the message of a `TocsinError`; else warnings; else dead letters and counts."""
    if not written.startswith(">>> "):
        with pytest.raises(TocsinError) as caught:
            tocsin.rules(written)
        return str(caught.value)
    rules, typed = tocsin.rules(RULE), tocsin.rules(TYPES + RULE)
    names = {"tocsin": tocsin, "pa": pa, "Event": Event, "read_events": read_events}
    names |= {"define": define, "event": event, "within": within}
    names |= {"rules": rules, "typed": typed, "detector": rules.detector()}
    code = "\n".join(line[4:] for line in written.split("\n"))
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            exec(code, names)
        except TocsinError as error:
            return str(error)
    if warned:
        return "\n".join(f"{type(warning.message).__name__}: {warning.message}" for warning in warned)
    detector = names["detector"]
    assert isinstance(detector, tocsin.Detector)
    detector.finish()
    counts = detector.counts
    lines = [f"{letter['reason']}: {letter['event']}" for letter in detector.dead_letters().to_pylist()]
    assert counts["dead"] == len(lines)
    return "\n".join([*lines, f"{counts['dead']} dead, {counts['late']} late, {counts['matches']} matches"])
