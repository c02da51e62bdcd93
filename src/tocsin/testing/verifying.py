"""Does the engine find what the rules mean, and do two sets of rules mean the same? On many drawn streams.

Both draw streams with `streams`, and where two answers differ Hypothesis shortens the stream as far as it can, so that
the failure shows the few events that matter. The reference says what rules mean (`tocsin.engine.reference`); the
engine is tried with all events at once and backwards, and in small batches, late within a delay, saved and restored.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tocsin.api import RuleSet
from tocsin.engine import reference
from tocsin.events.types import Event
from tocsin.testing.cases import UNIT, Rules, ruleset_of, shown
from tocsin.testing.drawing import check_drawn, streams
from tocsin.testing.matches import Row, line, rows_of


@dataclass(frozen=True)
class Verified:
    """How much was looked at: a check of streams in which nothing is found shows nothing."""

    streams: int
    matches: int


def verify(rules: Rules, *, examples: int = 100, events_max: int = 16) -> Verified:
    """Fails if the engine's answer to some drawn stream is not the reference's, with the shortest such stream.

    Fails too if no stream of all had a match: then nothing was shown, and the rules may have no match at all.
    """
    __tracebackhide__ = True
    ruleset = ruleset_of(rules)

    def compare(events: list[Event], chance: random.Random) -> int:
        right = _meant(ruleset, events)
        for way, run in WAYS.items():
            _compare("the reference", right, f"the engine, {way},", run(ruleset, events, chance), events)
        return len(right)

    return _drawn(ruleset, compare, examples, events_max)


def equivalent(rules: Rules, others: Rules, *, examples: int = 100, events_max: int = 16) -> Verified:
    """Fails if two sets of rules find different things (type, time, attributes), with the shortest stream for that.

    For a rule that was rewritten, or brought over from another language.
    """
    __tracebackhide__ = True
    one, other = ruleset_of(rules), ruleset_of(others)
    check_drawn(other)

    def compare(events: list[Event], chance: random.Random) -> int:
        first, second = (_whole(ruleset, events, chance) for ruleset in (one, other))
        _compare("the first", [_plain(row) for row in first], "the second", [_plain(row) for row in second], events)
        return len(first)

    return _drawn(one, compare, examples, events_max)


def _drawn(
    ruleset: RuleSet, compare: Callable[[list[Event], random.Random], int], examples: int, events_max: int
) -> Verified:
    __tracebackhide__ = True
    counts: Counter[str] = Counter()

    # The same streams each time: a test that fails fails again. Nothing is explained: that the stream does by itself.
    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    @given(events=streams(ruleset, events_max=events_max), seed=st.integers(0, 999))
    def check(events: list[Event], seed: int) -> None:
        counts["matches"] += compare(events, random.Random(seed))
        counts["streams"] += 1

    check()
    if not counts["matches"]:
        raise AssertionError(
            f"none of {counts['streams']} drawn streams has a match: perhaps the rules can have none, or need more "
            f"than {events_max} events (events_max=…), or kinds of attributes were guessed wrong (declare the types)"
        )
    return Verified(counts["streams"], counts["matches"])


def _meant(ruleset: RuleSet, events: list[Event]) -> list[Row]:
    """What the reference finds, as rows of the table of matches."""
    return [
        {"rule": match.rule, "type": match.type, "ts": match.ts, "id": match.id, **match.attributes,
         **({"expired": True} if match.expired else {}),
         "parts": [{"role": part.role, "type": part.type, "ts": part.ts, "id": part.id} for part in match.parts]}
        for match in reference.detect(ruleset.rules, events)
    ]  # fmt: skip


def _whole(ruleset: RuleSet, events: list[Event], chance: random.Random) -> list[Row]:
    return rows_of(ruleset.detect(events, ts_unit=UNIT))


def _backwards(ruleset: RuleSet, events: list[Event], chance: random.Random) -> list[Row]:
    return rows_of(ruleset.detect(events[::-1], ts_unit=UNIT))


def _cut(ruleset: RuleSet, events: list[Event], chance: random.Random) -> list[Row]:
    delay_us = chance.choice([0, 1, max((event.ts for event in events), default=0) // 4])
    arrival = sorted(events, key=lambda event: event.ts + chance.randint(0, delay_us))
    detector = ruleset.detector(delay=delay_us, ts_unit=UNIT)
    found: list[Row] = []
    while arrival:
        size = chance.choice([1, 2, 5])
        found += rows_of(detector.push(arrival[:size]))
        arrival = arrival[size:]
        if chance.random() < 0.3:
            detector = ruleset.restore(detector.snapshot())
    return found + rows_of(detector.finish())


WAYS: dict[str, Callable[[RuleSet, list[Event], random.Random], list[Row]]] = {
    "all events at once": _whole,
    "backwards": _backwards,
    "in small batches": _cut,
}


def _plain(row: Row) -> Row:
    """What does not depend on how a rule is named and written."""
    return {**row, "rule": "", "id": "", "parts": []}


def _compare(first: str, right: list[Row], second: str, found: list[Row], events: list[Event]) -> None:
    __tracebackhide__ = True
    mine, others = Counter(map(_key, right)), Counter(map(_key, found))
    if mine == others:
        return
    lines = [f"{first} finds {len(right)}, {second} {len(found)}"]
    for name, rows, more in ((first, right, mine - others), (second, found, others - mine)):
        lines += [f"  only {name}: {line(row)}" for row in rows if _key(row) in more]
    raise AssertionError("\n".join([*lines, *shown(events)]))


def _key(row: Row) -> str:
    told = {name: value for name, value in row.items() if value is not None}
    if not told.get("expired"):
        told.pop("expired", None)
    return repr(sorted(told.items()))
