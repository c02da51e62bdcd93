"""Many cases in one query: each is a tenant, with event types and rules of its own, so that none can see another's.

A query on Spark takes seconds however small it is, and a case takes none. So cases are given prefixes (`t17_`) and
put together, run as one set of rules over one stream of events, and what comes out is told apart again by the names
of the rules. Each tenant must have the very matches that the reference finds for it alone.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import pyarrow as pa
from hypothesis import HealthCheck, given, settings

from tests.conformance.hosts import expected
from tests.conformance.packed_queries import drawn_queries, moved
from tests.conftest import GOLDEN
from tests.strategies import KINDS, MATCHES_MAX, Case, cases, matches_max, rule_sets
from tests.strategies_requests import request_cases
from tocsin.events.formats import read_events, write_event
from tocsin.events.types import HEADER, Event, EventType, Kind, Value
from tocsin.language import parse
from tocsin.language.eps.ast import After, All, Either, Mode, Moment, Occurs, Period, Request, Then, Times
from tocsin.language.siddhi import ast
from tocsin.language.syntax.ast import (
    Aggregate,
    And,
    Arithmetic,
    Attribute,
    Between,
    Comparison,
    Literal,
    Negation,
    Negative,
    Not,
    Or,
    Parameter,
    Pattern,
    Program,
    Rule,
    Selection,
    Test,
    Within,
)
from tocsin.language.syntax.expressions import print_program
from tocsin.reference import patterns

Row = dict[str, Any]

BYTES = 8192
"""More than a case is drawn from."""

ARROW = {
    Kind.STRING: pa.string(),
    Kind.INT: pa.int32(),
    Kind.LONG: pa.int64(),
    Kind.DOUBLE: pa.float64(),
    Kind.BOOL: pa.bool_(),
    Kind.TIMESTAMP: pa.timestamp("us", "UTC"),
}


@dataclass(frozen=True)
class Query:
    """What is packed together, and how it is run: all of it follows from these values."""

    name: str
    seed: int
    slots: int
    tenants: int = 40
    named: bool = False
    """Whether events have ids."""
    by_type: bool = False
    """Whether each type is a DataFrame of its own."""
    timestamps: bool = False
    """Whether `ts` is a column of timestamps, and not of integers."""
    tick_us: int = 1
    """How long a microsecond of a drawn case is here."""
    start_us: int = 0
    """When such cases start."""
    golden: bool = False
    """Whether the cases of the paper go along: they last an hour."""
    partitions: int = 2
    """Shuffle partitions."""
    batches: int = 3
    delay_ticks: int = 3
    restarts: int = 0
    """How often a stream starts again on its way."""
    cold: bool = False
    """Whether no Python worker is used twice, so that slots come from the state store alone."""

    def __str__(self) -> str:
        return self.name


class Pack:
    """Cases as the tenants of one query, by their names."""

    def __init__(self, tenants: Mapping[str, Case]) -> None:
        self.tenants = tenants

    @cached_property
    def rules(self) -> tuple[Rule, ...]:
        return tuple(rule for case in self.tenants.values() for rule in case.rules)

    @cached_property
    def types(self) -> dict[str, EventType]:
        """The types of events from outside."""
        return {type.name: type for case in self.tenants.values() for type in case.types}

    @cached_property
    def events(self) -> list[Event]:
        return [event for case in self.tenants.values() for event in case.events]

    def wrong(self, found: Iterable[Row]) -> dict[str, str]:
        """The tenants whose matches are not those that the reference finds, with the difference in a few lines."""
        by_tenant: dict[str, list[Row]] = {name: [] for name in self.tenants}
        for row in found:
            by_tenant[row["rule"].split("_")[0]].append(row)
        told = {name: difference(self.right[name], settled(mine)) for name, mine in by_tenant.items()}
        return {name: text for name, text in told.items() if text}

    @cached_property
    def right(self) -> dict[str, list[Row]]:
        """What the reference finds for each tenant."""
        last_ts = max(event.ts for event in self.events)  # up to there timers run, also those of other tenants
        return {
            name: settled(expected(patterns.detect(case.rules, case.events, last_ts=last_ts), case.rules))
            for name, case in self.tenants.items()
        }


def settled(rows: Iterable[Row]) -> list[Row]:
    """Matches in an order of their own, without the attributes of other rules, which are null."""
    whole = [{name: value for name, value in row.items() if value is not None} for row in rows]
    return sorted(whole, key=lambda row: (row["ts"], row["id"], row["rule"]))


def difference(right: list[Row], found: list[Row]) -> str:
    """What is missing and what is too much, one of each in full; nothing if they are the same."""
    if found == right:
        return ""
    expected, present = Counter(map(repr, right)), Counter(map(repr, found))
    lines = [f"{len(right)} matches expected, {len(found)} found"]
    for word, rows in (("missing", expected - present), ("too many", present - expected)):
        lines += [f"{rows.total()} {word}, as {next(iter(rows))}"] if rows else []
    return "\n".join(lines)


# ---- where cases come from


@lru_cache
def packed(query: Query) -> Pack:
    """The tenants of a query."""
    tenants = {}
    for number, case in enumerate(drawn(query.tenants, query.seed, named=query.named), 1):
        asked = any(isinstance(rule, ast.Query) for rule in case.rules)
        move = Move(f"t{number}_", query.tick_us, query.start_us, attributes=asked)
        tenants[f"t{number}"] = move.case(case)
    if query.golden:
        for path in sorted((GOLDEN / "paper").glob("*.txt")):
            name = path.stem.replace("_", "")
            case = read_case(path)
            case = replace(case, events=tuple(_with_ids(case.events, query.named, random.Random(query.seed))))
            tenants[name] = Move(f"{name}_", attributes=True).case(case)
    return Pack(tenants)


def drawn(count: int, seed: int, *, named: bool) -> list[Case]:
    """That many cases whose events all have ids, or have none: one in six without a match, many with keys."""
    chance = random.Random(seed)
    found: list[Case] = []
    idle: list[Case] = []

    @settings(database=None, suppress_health_check=list(HealthCheck))
    @given(cases(), rule_sets())
    def collect(case: Case, others: tuple[Rule, ...]) -> None:
        if chance.random() < 0.4:
            case = joined(case, chance.choice(list(KINDS)), chance.choice([-1, -1, 1, 2, 5]))
        if chance.random() < 0.3:
            case = beside(case, others)
        if case.events:
            (found if patterns.detect(case.rules, case.events) else idle).append(case)

    # Hypothesis itself would come back to what it drew before, with small changes.
    while len(found) < count - count // 6 or len(idle) < count // 6:
        collect.hypothesis.fuzz_one_input(chance.randbytes(BYTES))
    others = [*_requests(count // 4, chance), *drawn_queries(count // 3, chance)]
    mixed = [*others, *found[: count - count // 6 - len(others)], *idle[: count // 6]]
    return [replace(case, events=tuple(_with_ids(case.events, named, chance))) for case in mixed]


def _requests(count: int, chance: random.Random) -> list[Case]:
    """That many cases of requests for notification, in all modes and with timers."""
    found: list[Case] = []

    @settings(database=None, suppress_health_check=list(HealthCheck))
    @given(request_cases(tuple(Mode), events_max=8, timers=True))
    def collect(case: Case) -> None:
        if case.events and patterns.detect(case.rules, case.events):
            found.append(case)

    while len(found) < count:
        collect.hypothesis.fuzz_one_input(chance.randbytes(BYTES))
    return found[:count]


def joined(case: Case, name: str, which: int = -1) -> Case:
    """The case with equalities over all events of some rules (the bits of `which`), so that they can be keyed by the
    attribute of that name. All composite events have it then.
    """
    rules = []
    for number, rule in enumerate(case.rules):
        where = dict(rule.where)
        where.setdefault(name, Attribute(name, rule.anchor.role))
        if which >> number & 1:
            where[name] = Parameter("key")
            clauses = tuple(replace(clause, pattern=_joined(clause.pattern, name)) for clause in rule.clauses)
            rule = replace(rule, anchor=_joined(rule.anchor, name), clauses=clauses)
        emits = EventType(rule.emits.name, tuple({**dict(rule.emits.attributes), name: KINDS[name]}.items()))
        rules.append(replace(rule, emits=emits, where=tuple(where.items())))
    return replace(case, rules=tuple(rules))


def beside(case: Case, others: Sequence[Rule]) -> Case:
    """The case with more rules over the same events."""
    rules = (*case.rules, *Move("o_", kept="ABCDE").node(tuple(others)))
    events = case.events
    while events and matches_max(rules, events) > MATCHES_MAX:
        events = events[: len(events) * 3 // 4]
    return replace(case, rules=rules, events=events)


def _joined(pattern: Pattern, name: str) -> Pattern:
    test = Comparison("=", Attribute(name), Parameter("key"))
    return replace(pattern, constraints=(*pattern.constraints, test))


def _with_ids(events: Sequence[Event], named: bool, chance: random.Random) -> Iterator[Event]:
    for number, event in enumerate(events):
        id = event.id or f"{chance.choice('aZ')}{number}"
        yield replace(event, id=id if named else None)


def read_case(path: Path) -> Case:
    """A case from a file: rules (and the types of events, if any are not plain from the values), `---`, events."""
    text, written, *_ = path.read_text(encoding="utf-8").split("---\n")
    program, events = parse(text), tuple(read_events(written))
    return Case(program.rules, events, program.types or _types_of(program.rules, events))


def write_case(case: Case) -> str:
    """The same as text."""
    program = print_program(Program(case.types, case.rules))
    return program + "---\n" + "".join(write_event(event) + "\n" for event in case.events)


def _types_of(rules: Iterable[Rule], events: Iterable[Event]) -> tuple[EventType, ...]:
    """The types that events show, and those without events that rules name."""
    kinds: dict[str, dict[str, Kind]] = {name: {} for name in _inputs(rules)}
    plain = {str: Kind.STRING, int: Kind.LONG, float: Kind.DOUBLE, bool: Kind.BOOL}
    for event in events:
        mine = kinds.setdefault(event.type, {})
        mine |= {name: plain[type(value)] for name, value in event.attributes.items() if value is not None}
    return tuple(EventType(name, tuple(mine.items())) for name, mine in kinds.items())


def _inputs(rules: Iterable[Rule]) -> list[str]:
    rules = list(rules)
    named = {type for rule in rules for type in rule.uses}
    return sorted(named - {rule.emits.name for rule in rules})


@dataclass(frozen=True)
class Move:
    """A case among others: its names get a prefix, and a microsecond becomes a tick."""

    prefix: str
    tick_us: int = 1
    start_us: int = 0
    attributes: bool = False
    """Whether attributes get the prefix too: they must where others have some of the same name and another kind."""
    kept: str = ""
    """Names of one letter that get no prefix."""

    def case(self, case: Case) -> Case:
        used = {*_inputs(case.rules), *(event.type for event in case.events)}
        types = tuple(self.node(type) for type in case.types if type.name in used)
        at = {type.name: {name for name, kind in type.attributes if kind == Kind.TIMESTAMP} for type in case.types}
        return Case(self.node(case.rules), tuple(self.event(event, at[event.type]) for event in case.events), types)

    def event(self, event: Event, times: set[str]) -> Event:
        values: dict[str, Value] = {}
        for name, value in event.attributes.items():
            scaled = value * self.tick_us if name in times and isinstance(value, int) else value
            values[self.attribute(name)] = scaled
        return replace(event, type=self.name(event.type), ts=self.moment(event.ts), attributes=values)

    def moment(self, ts: int) -> int:
        return ts * self.tick_us + self.start_us

    def name(self, name: str) -> str:
        return name if name in [*self.kept] else self.prefix + name

    def attribute(self, name: str) -> str:
        return self.prefix + name if self.attributes and name not in HEADER else name

    def node(self, node: Any) -> Any:
        """A rule or anything in it."""
        match node:
            case tuple():
                return tuple(map(self.node, node))
            case Rule():
                return Rule(
                    self.name(node.name),
                    self.node(node.emits),
                    self.node(node.anchor),
                    self.node(node.clauses),
                    tuple((self.attribute(name), self.node(value)) for name, value in node.where),
                    tuple(map(self.name, node.consuming)),
                )
            case ast.Query():
                return moved(node, self)
            case Request(name, expression, condition, window_us, mode, text):
                tests, window_us = self.node(condition), window_us * self.tick_us
                return Request(self.name(name), self.node(expression), tests, window_us, mode, text)
            case Occurs(pattern):
                return Occurs(self.node(pattern))
            case Times(count, pattern, attribute, same):
                return Times(count, self.node(pattern), self.attribute(attribute), same)
            case All(operands) | Either(operands):
                return node.__class__(self.node(operands))
            case Then(left, right):
                return Then(self.node(left), self.node(right))
            case Moment(at_us, alias):
                return Moment(self.moment(at_us), alias and self.name(alias))
            case Period(every_us, start_us, alias):
                start_us = start_us if start_us is None else self.moment(start_us)
                return Period(every_us * self.tick_us, start_us, alias and self.name(alias))
            case After(event, delay_us, alias):
                return After(self.node(event), delay_us * self.tick_us, alias and self.name(alias))
            case EventType(name, attributes):
                return EventType(self.name(name), tuple((self.attribute(name), kind) for name, kind in attributes))
            case Pattern(name, constraints, alias):
                return Pattern(self.name(name), self.node(constraints), alias and self.name(alias))
            case Within(window_us, origin):
                return Within(window_us * self.tick_us, self.name(origin))
            case Between(start, end):
                return Between(self.name(start), self.name(end))
            case Selection(policy, pattern, scope, count):
                return Selection(policy, self.node(pattern), self.node(scope), count)
            case Negation(pattern, scope):
                return Negation(self.node(pattern), self.node(scope))
            case Aggregate(function, pattern, attribute, scope, parameter, test):
                read = attribute and self.attribute(attribute)
                return Aggregate(function, self.node(pattern), read, self.node(scope), parameter, self.node(test))
            case Test(bound, operator):
                return Test(self.node(bound), operator)
            case Literal(value, Kind.TIMESTAMP):
                return Literal(value * self.tick_us, Kind.TIMESTAMP)
            case Attribute(name, role):
                return Attribute(self.attribute(name), role and self.name(role))
            case Negative(operand) | Not(operand):
                return node.__class__(self.node(operand))
            case And(operands) | Or(operands):
                return node.__class__(self.node(operands))
            case Arithmetic(operator, left, right) | Comparison(operator, left, right):
                return node.__class__(operator, self.node(left), self.node(right))
        return node


# ---- events and matches as tables


def table(events: Sequence[Event], types: Iterable[EventType], query: Query, type: bool = True) -> pa.Table:
    """Events of these types in one table; `type`: with a column for the type."""
    ts = pa.timestamp("us", "UTC") if query.timestamps else pa.int64()
    columns: dict[str, pa.Array] = {"type": pa.array([event.type for event in events], pa.string())} if type else {}
    columns["ts"] = pa.array([event.ts for event in events], ts)
    columns["seq"] = pa.array([event.seq for event in events], pa.int64())
    if query.named:
        columns["id"] = pa.array([event.id for event in events], pa.string())
    kinds = dict(attribute for type in types for attribute in type.attributes)
    for name, kind in kinds.items():
        columns[name] = pa.array([event.attributes.get(name) for event in events], ARROW[kind])
    return pa.table(columns)


def arrival(events: Sequence[Event], query: Query, chance: random.Random) -> list[list[Event]]:
    """The micro-batches: out of order within the delay, cut at random."""
    delay_us = query.delay_ticks * query.tick_us
    late = sorted(events, key=lambda event: event.ts + chance.randint(0, delay_us))
    cuts = sorted(chance.sample(range(1, len(late)), query.batches - 1)) if late else []
    return [late[start:end] for start, end in zip([0, *cuts], [*cuts, len(late)], strict=True)]


def matches_of(report: pa.Table) -> list[Row]:
    """The matches of a report that has no dead letters."""
    rows = rows_of(report)
    dead = [row for row in rows if row["rule"] is None and row["_metrics"] is None]
    assert not dead, dead
    return [{name: row[name] for name in row if name[0] != "_"} for row in rows if row["rule"] is not None]


def rows_of(table: pa.Table) -> list[Row]:
    """Rows with times as integers, those of the parts too."""
    return table.cast(pa.schema([field.with_type(_plain(field.type)) for field in table.schema])).to_pylist()


def _plain(type: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(type):
        return pa.int64()
    if pa.types.is_list(type):
        return pa.list_(_plain(type.value_type))
    if pa.types.is_struct(type):
        return pa.struct([(field.name, _plain(field.type)) for field in type])
    return type


def census(pack: Pack) -> str:
    """What a pack holds, in a line."""
    matches = Counter(name for name, rows in pack.right.items() for _ in rows)
    return f"{len(pack.tenants)} tenants, {len(pack.rules)} rules, {len(pack.events)} events, {matches.total()} matches"
