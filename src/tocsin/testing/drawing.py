"""Which events is a set of rules likely to care about? A Hypothesis strategy that reads them off the rules.

Events are of the types that the rules read, with the attributes that they use. Values are the constants of the rules
and their neighbours, or else few, so that tests hold and fail and joins meet. Times apart are parts of the
windows, and one microsecond less, which is what windows are wrong about. Where a text does not declare its types,
kinds are guessed from what attributes are compared with; `event Temp(area: string, value: double)` settles it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

from hypothesis import strategies as st

from tocsin.api import RuleSet
from tocsin.events.types import ID, SECOND_US, Event, Kind, Value
from tocsin.language.queries import Query, Window
from tocsin.language.requests import Moment, Period, Request
from tocsin.language.rules import Aggregate, Arithmetic, Attribute, Comparison, Function, Literal, Pattern, Rule
from tocsin.language.supported import check_supported
from tocsin.testing.cases import Rules, ruleset_of

TICKS_MAX = 20
"""How often a periodic timer can ring between two events: the reference looks at each time."""


def streams(rules: Rules, *, events_max: int = 16) -> st.SearchStrategy[list[Event]]:
    """Events in order of time that these rules are likely to care about. They shrink towards none.

    >>> from hypothesis import find
    >>> rules = "define Fire() from Smoke() and last Temp(value > 45) within 5 min from Smoke"
    >>> sorted({event.type for event in find(streams(rules), lambda events: len({e.type for e in events}) > 1)})
    ['Smoke', 'Temp']
    """
    ruleset = ruleset_of(rules)
    check_drawn(ruleset)
    found = [node for rule in ruleset.rules for node in _nodes(rule)]
    contents = _contents(ruleset, found)
    gaps = st.sampled_from(_gaps_us(found))
    starts = st.sampled_from(_starts_us(found))
    event = st.tuples(
        gaps, st.sampled_from(sorted(contents)).flatmap(lambda type: st.tuples(st.just(type), contents[type]))
    )

    def timed(start: int, drawn: list[tuple[int, tuple[str, dict[str, Value]]]]) -> list[Event]:
        events, now = [], start
        for number, (gap, (type, values)) in enumerate(drawn):
            now += gap if number else 0
            named = {name: value for name, value in values.items() if value is not None}
            events.append(Event(type, now, named))
        return events

    # A list of lists is longer than a list, and shrinks as well.
    groups = st.lists(st.lists(event, max_size=6), max_size=events_max)
    flat = groups.map(lambda lists: [one for some in lists for one in some][:events_max])
    return st.builds(timed, starts, flat)


def check_drawn(ruleset: RuleSet) -> None:
    """Fails if there is an interest: drawn events have no places, and the reference is that of rules."""
    remedy = "drawn events have no places; verify its rules alone, and use `given` for the interest"
    check_supported("`tocsin.testing`", ruleset.program, Rule, Request, Query, remedy=remedy, verb="draw events for")


def _contents(ruleset: RuleSet, found: list[Any]) -> dict[str, st.SearchStrategy[dict[str, Value]]]:
    """For each type from outside, values for the attributes that rules read."""
    defined = {rule.emits.name for rule in ruleset.rules}
    types = dict.fromkeys(use for rule in ruleset.rules for use in rule.uses if use not in defined)
    read: dict[str, dict[str, Kind | None]] = {type: dict(ruleset.plan.columns.get(type, {})) for type in types}
    guessed = _guessed(ruleset, found)
    drawn = {}
    for type, columns in read.items():
        kinds = {name: kind or guessed.get(name, Kind.STRING) for name, kind in columns.items() if name != ID}
        values = {name: _values(kind, found) for name, kind in kinds.items()}
        wanted = [_wanted(node, kinds) for node in found if isinstance(node, Pattern) and node.type == type]
        likely = [st.fixed_dictionaries({**values, **few}) for few in wanted if few]
        drawn[type] = st.one_of(st.fixed_dictionaries(values), *likely)
    return drawn


def _wanted(pattern: Pattern, kinds: dict[str, Kind]) -> dict[str, st.SearchStrategy[Value]]:
    """Values with which an event passes the pattern's tests against constants."""
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
    """Kinds of attributes by name, from what is done with them."""
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
    """How far events are apart: nothing, and parts of what the rules speak of."""
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
    # Most are short, so that several events fall into one window.
    return [0, *sorted(gap for gap in [*short, *short, *short, *edges] if gap <= longest)]


def _starts_us(found: list[Any]) -> list[int]:
    """When streams begin: at 0, or about the moments that the rules name."""
    named = [node.at_us for node in found if isinstance(node, Moment)]
    named += [node.start_us for node in found if isinstance(node, Period) and node.start_us is not None]
    return [*dict.fromkeys([*(start - gap for start in named for gap in (SECOND_US, 0)), *([] if named else [0])])]


def _nodes(node: Any) -> Iterator[Any]:
    """A rule and everything in it."""
    yield node
    if isinstance(node, tuple):
        for one in node:
            yield from _nodes(one)
    elif is_dataclass(node):
        for field in fields(node):
            if field.name not in ("span", "source"):
                yield from _nodes(getattr(node, field.name))
