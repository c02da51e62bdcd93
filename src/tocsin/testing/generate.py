"""Generate streams of events from rules with Hypothesis, and compare implementations or rule sets on the streams.

The generated events have the types and attributes that the rules read. Their values are mostly the constants of the
rules and neighbouring values, so that conditions hold for some events and fail for others, and joins find equal values.
The gaps between events are windows, fractions of windows, and windows less one microsecond, to reach the edges of
windows. If the rules do not declare the types of events, the kinds of attributes are guessed from how the rules use the
attributes. A declaration such as `event Temp(area: string, value: double)` avoids this.

`verify` compares the engine with the reference (`tocsin.reference.patterns`), which defines the meaning of rules. The
engine runs three times: with all events at once, with the events in reverse order, and with the events in small
batches. In these batches, events may be late within the delay, and the engine is sometimes restored from a snapshot.
`equivalent` compares two rule sets. If the matches differ, Hypothesis shortens the stream as far as possible, so that
the failure shows the few events that matter.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tocsin.events.types import ID, SECOND_US, Event, Kind, Value
from tocsin.language.eps.ast import Moment, Period, Request
from tocsin.language.siddhi.ast import Query, Window
from tocsin.language.supported import check_supported
from tocsin.language.syntax.ast import Aggregate, Arithmetic, Attribute, Comparison, Function, Literal, Pattern, Rule
from tocsin.reference import patterns
from tocsin.ruleset import RuleSet
from tocsin.testing.cases import UNIT, Row, Rules, line, rows_of, ruleset_of, shown

TICKS_MAX = 20
"""The largest number of times that a periodic timer fires between two events, because the reference tries each time."""


def streams(rules: Rules, *, events_max: int = 16) -> st.SearchStrategy[list[Event]]:
    """Return a Hypothesis strategy for lists of events, in time order, that `rules` are likely to match.

    >>> from hypothesis import find
    >>> rules = "define Fire() from Smoke() and last Temp(value > 45) within 5 min from Smoke"
    >>> sorted({event.type for event in find(streams(rules), lambda events: len({e.type for e in events}) > 1)})
    ['Smoke', 'Temp']
    """
    ruleset = ruleset_of(rules)
    check_supported_rules(ruleset)
    found = [node for rule in ruleset.rules for node in _nodes(rule)]
    contents = _contents(ruleset, found)
    gaps = st.sampled_from(_gaps_us(found))
    starts = st.sampled_from(_starts_us(found))
    event = st.tuples(
        gaps, st.sampled_from(sorted(contents)).flatmap(lambda type: st.tuples(st.just(type), contents[type]))
    )

    def timed(start: int, items: list[tuple[int, tuple[str, dict[str, Value]]]]) -> list[Event]:
        events, now = [], start
        for number, (gap, (type, values)) in enumerate(items):
            now += gap if number else 0
            named = {name: value for name, value in values.items() if value is not None}
            events.append(Event(type, now, named))
        return events

    # Hypothesis generates longer streams from a list of lists than from a list, and shrinks them as well.
    groups = st.lists(st.lists(event, max_size=6), max_size=events_max)
    flat = groups.map(lambda lists: [one for some in lists for one in some][:events_max])
    return st.builds(timed, starts, flat)


def check_supported_rules(ruleset: RuleSet) -> None:
    """Raise `RuleError` if `ruleset` has an interest (a moving query), because generated events have no location."""
    remedy = "generated events have no location; verify its rules alone, and use `given` for the interest"
    kinds = Rule, Request, Query
    check_supported("`tocsin.testing`", ruleset.program, *kinds, remedy=remedy, verb="generate events for")


def _contents(ruleset: RuleSet, found: list[Any]) -> dict[str, st.SearchStrategy[dict[str, Value]]]:
    """Return a strategy for the attributes that the rules read, for each input type."""
    defined = {rule.emits.name for rule in ruleset.rules}
    types = dict.fromkeys(use for rule in ruleset.rules for use in rule.uses if use not in defined)
    read: dict[str, dict[str, Kind | None]] = {type: dict(ruleset.plan.columns.get(type, {})) for type in types}
    guessed = _guessed(ruleset, found)
    generated = {}
    for type, columns in read.items():
        kinds = {name: kind or guessed.get(name, Kind.STRING) for name, kind in columns.items() if name != ID}
        values = {name: _values(kind, found) for name, kind in kinds.items()}
        wanted = [_wanted(node, kinds) for node in found if isinstance(node, Pattern) and node.type == type]
        likely = [st.fixed_dictionaries({**values, **few}) for few in wanted if few]
        generated[type] = st.one_of(st.fixed_dictionaries(values), *likely)
    return generated


def _wanted(pattern: Pattern, kinds: dict[str, Kind]) -> dict[str, st.SearchStrategy[Value]]:
    """Return strategies for attribute values that meet the comparisons with constants in `pattern`."""
    steps = {"=": 0, "<=": 0, ">=": 0, ">": 1, "<": -1}
    found: dict[str, st.SearchStrategy[Value]] = {}
    for constraint in pattern.constraints:
        match constraint:
            case Comparison(operator, Attribute(name), Literal(value)) if operator in steps and name in kinds:
                if isinstance(value, int | float) and not isinstance(value, bool):
                    value = (float if kinds[name] == Kind.DOUBLE else int)(value + steps[operator])
                found[name] = st.just(value)
    return found


def _values(kind: Kind, found: list[Any]) -> st.SearchStrategy[Value]:
    literals = [node for node in found if isinstance(node, Literal)]
    values: list[Value]
    if kind == Kind.STRING:
        values = ["a", "a", "b", *(node.value for node in literals if node.kind == Kind.STRING)]
    elif kind == Kind.BOOL:
        values = [False, True]
    elif kind == Kind.TIMESTAMP:
        values = [0, *(node.value for node in literals if node.kind == Kind.TIMESTAMP)]
    else:
        numbers = [node.value for node in literals if isinstance(node.value, int | float) and node.kind.numeric]
        near = dict.fromkeys(number + step for number in numbers or (1,) for step in (1, 0, -1))
        cast = float if kind == Kind.DOUBLE else int
        limit = 2**31 - 1 if kind == Kind.INT else 2**63 - 1
        values = list(dict.fromkeys(cast(number) for number in near if abs(number) <= limit))
    return st.sampled_from([*values, *values, None])


def _guessed(ruleset: RuleSet, found: list[Any]) -> dict[str, Kind]:
    """Guess the kind of each attribute name from its use in the rules."""
    guessed: dict[str, Kind] = {}
    for node in found:
        match node:
            case Aggregate(function, _, str() as name) if function != Function.COUNT:
                guessed.setdefault(name, Kind.DOUBLE)
            case Comparison(operator, left, right):
                inner = [*_nodes(left), *_nodes(right)]
                kinds = [one.kind for one in inner if isinstance(one, Literal)]
                ordered = operator not in ("=", "!=") or any(isinstance(one, Arithmetic) for one in inner)
                kind = kinds[0] if kinds else Kind.DOUBLE if ordered else None
                for one in inner:
                    if isinstance(one, Attribute) and kind is not None:
                        wide = Kind.DOUBLE if kind.numeric else kind
                        guessed.setdefault(one.name, wide)
    for rule in ruleset.rules:
        if isinstance(rule, Rule):
            for name, value in rule.where:
                kind = rule.emits.kind(name)
                if isinstance(value, Attribute) and kind is not None:
                    guessed[value.name] = kind
    return guessed


def _gaps_us(found: list[Any]) -> list[int]:
    """Return gaps between events, which are 0 and fractions of the durations in the rules."""
    periods = [node.every_us for node in found if isinstance(node, Period)]
    spans = {*periods, *(node.size for node in found if isinstance(node, Window) and node.extent.timed)}
    for node in found:
        if is_dataclass(node) and not isinstance(node, Moment | Period):
            named = {field.name: getattr(node, field.name) for field in fields(node)}
            spans |= {value for name, value in named.items() if name.endswith("_us") and isinstance(value, int)}
    spans = {span for span in spans if span > 0} or {SECOND_US}
    longest = TICKS_MAX * min(periods) if periods else 2**62
    edges = {part for span in spans for part in (span // 2, span - 1, span)}
    short = {part for span in spans for part in (span // 16, span // 4)}
    # Most gaps are short, so that several events fall into one window.
    return [0, *sorted(gap for gap in [*short, *short, *short, *edges] if gap <= longest)]


def _starts_us(found: list[Any]) -> list[int]:
    """Return the times at which streams may start: near the absolute times in the rules, or 0 if there are none."""
    named = [node.at_us for node in found if isinstance(node, Moment)]
    named += [node.start_us for node in found if isinstance(node, Period) and node.start_us is not None]
    return [*dict.fromkeys([*(start - gap for start in named for gap in (SECOND_US, 0)), *([] if named else [0])])]


def _nodes(node: Any) -> Iterator[Any]:
    """Yield `node` and all syntax nodes in it."""
    yield node
    if isinstance(node, tuple):
        for one in node:
            yield from _nodes(one)
    elif is_dataclass(node):
        for field in fields(node):
            if field.name not in ("span", "source"):
                yield from _nodes(getattr(node, field.name))


@dataclass(frozen=True)
class Verified:
    """The numbers of streams and of matches that a check has compared. A check without matches proves nothing."""

    streams: int
    matches: int


def verify(rules: Rules, *, examples: int = 100, events_max: int = 16) -> Verified:
    """Compare the matches of the engine and of the reference on `examples` generated streams.

    Raise `AssertionError` with the shortest stream on which the matches differ, if there is one. Also raise it if no
    stream has a match, because then the check proves nothing, and the rules may never match. Streams have at most
    `events_max` events.
    """
    __tracebackhide__ = True
    ruleset = ruleset_of(rules)

    def compare(events: list[Event], rng: random.Random) -> int:
        expected = _reference_rows(ruleset, events)
        for way, run in WAYS.items():
            _compare("the reference", expected, f"the engine, {way},", run(ruleset, events, rng), events)
        return len(expected)

    return _run_examples(ruleset, compare, examples, events_max)


def equivalent(rules: Rules, others: Rules, *, examples: int = 100, events_max: int = 16) -> Verified:
    """Compare the matches of two rule sets on `examples` generated streams.

    Use it for rules that were rewritten or ported from another language. Raise `AssertionError` with the shortest
    stream on which the matches differ in type, time or attributes, if there is one. Also raise it if no stream has a
    match. Streams have at most `events_max` events.
    """
    __tracebackhide__ = True
    one, other = ruleset_of(rules), ruleset_of(others)
    check_supported_rules(other)

    def compare(events: list[Event], rng: random.Random) -> int:
        first, second = (_whole(ruleset, events, rng) for ruleset in (one, other))
        _compare("the first", [_plain(row) for row in first], "the second", [_plain(row) for row in second], events)
        return len(first)

    return _run_examples(one, compare, examples, events_max)


def _run_examples(
    ruleset: RuleSet, compare: Callable[[list[Event], random.Random], int], examples: int, events_max: int
) -> Verified:
    __tracebackhide__ = True
    counts: Counter[str] = Counter()

    # Derandomized, so that a failing test fails again. The explain phase is not needed, because the shortest stream
    # explains the failure.
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
            f"none of {counts['streams']} generated streams has a match: the rules may never match, or need more "
            f"than {events_max} events (events_max=…), or kinds of attributes were guessed wrong (declare the types)"
        )
    return Verified(counts["streams"], counts["matches"])


def _reference_rows(ruleset: RuleSet, events: list[Event]) -> list[Row]:
    """Return the matches of the reference as dicts, like the rows of the engine's table of matches."""
    return [
        {"rule": match.rule, "type": match.type, "ts": match.ts, "id": match.id, **match.attributes,
         **({"expired": True} if match.expired else {}),
         "parts": [{"role": part.role, "type": part.type, "ts": part.ts, "id": part.id} for part in match.parts]}
        for match in patterns.detect(ruleset.rules, events)
    ]  # fmt: skip


def _whole(ruleset: RuleSet, events: list[Event], rng: random.Random) -> list[Row]:
    return rows_of(ruleset.detect(events, ts_unit=UNIT))


def _backwards(ruleset: RuleSet, events: list[Event], rng: random.Random) -> list[Row]:
    return rows_of(ruleset.detect(events[::-1], ts_unit=UNIT))


def _cut(ruleset: RuleSet, events: list[Event], rng: random.Random) -> list[Row]:
    delay_us = rng.choice([0, 1, max((event.ts for event in events), default=0) // 4])
    arrival = sorted(events, key=lambda event: event.ts + rng.randint(0, delay_us))
    detector = ruleset.detector(delay=delay_us, ts_unit=UNIT)
    found: list[Row] = []
    while arrival:
        size = rng.choice([1, 2, 5])
        found += rows_of(detector.push(arrival[:size]))
        arrival = arrival[size:]
        if rng.random() < 0.3:
            detector = ruleset.restore(detector.snapshot())
    return found + rows_of(detector.finish())


WAYS: dict[str, Callable[[RuleSet, list[Event], random.Random], list[Row]]] = {
    "all events at once": _whole,
    "backwards": _backwards,
    "in small batches": _cut,
}


def _plain(row: Row) -> Row:
    """Return `row` without the values that depend on the name and the text of a rule."""
    return {**row, "rule": "", "id": "", "parts": []}


def _compare(first: str, expected: list[Row], second: str, found: list[Row], events: list[Event]) -> None:
    __tracebackhide__ = True
    mine, others = Counter(map(_key, expected)), Counter(map(_key, found))
    if mine == others:
        return
    lines = [f"{first} finds {len(expected)}, {second} {len(found)}"]
    for name, rows, more in ((first, expected, mine - others), (second, found, others - mine)):
        lines += [f"  only {name}: {line(row)}" for row in rows if _key(row) in more]
    raise AssertionError("\n".join([*lines, *shown(events)]))


def _key(row: Row) -> str:
    present = {name: value for name, value in row.items() if value is not None}
    if not present.get("expired"):
        present.pop("expired", None)
    return repr(sorted(present.items()))
