"""Run many cases in one query: each is a tenant with its own event types and rules, invisible to the others.

A query on Spark takes seconds, however small it is. So cases are given prefixes (`t17_`) and
put together, run as one set of rules over one stream of events, and matches are separated again by the names
of the rules. Each tenant must have exactly the matches that the reference finds for it alone.
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
from tests.conformance.packed_queries import generated_queries, moved
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
"""More random bytes than any case consumes."""

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
    """The cases of a pack and how it runs; both follow from these values."""

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
    """The duration of a microsecond of a generated case."""
    start_us: int = 0
    """The start of generated cases."""
    golden: bool = False
    """Whether the paper's cases are included; they last an hour."""
    partitions: int = 2
    """Shuffle partitions."""
    batches: int = 3
    delay_ticks: int = 3
    restarts: int = 0
    """The number of restarts of a stream."""
    cold: bool = False
    """Whether each task has a new Python worker, so that slots are restored from the state store."""

    def __str__(self) -> str:
        return self.name


class Pack:
    """Cases as the tenants of one query, by name."""

    def __init__(self, tenants: Mapping[str, Case]) -> None:
        self.tenants = tenants

    @cached_property
    def rules(self) -> tuple[Rule, ...]:
        return tuple(rule for case in self.tenants.values() for rule in case.rules)

    @cached_property
    def types(self) -> dict[str, EventType]:
        """The types of input events."""
        return {type.name: type for case in self.tenants.values() for type in case.types}

    @cached_property
    def events(self) -> list[Event]:
        return [event for case in self.tenants.values() for event in case.events]

    def wrong(self, found: Iterable[Row]) -> dict[str, str]:
        """Return the tenants whose matches differ from the reference, with the difference in a few lines."""
        by_tenant: dict[str, list[Row]] = {name: [] for name in self.tenants}
        for row in found:
            by_tenant[row["rule"].split("_")[0]].append(row)
        differing = {name: difference(self.expected_rows[name], settled(mine)) for name, mine in by_tenant.items()}
        return {name: text for name, text in differing.items() if text}

    @cached_property
    def expected_rows(self) -> dict[str, list[Row]]:
        """The reference's matches of each tenant."""
        last_ts = max(event.ts for event in self.events)  # timers run up to there, also for other tenants
        return {
            name: settled(expected(patterns.detect(case.rules, case.events, last_ts=last_ts), case.rules))
            for name, case in self.tenants.items()
        }


def settled(rows: Iterable[Row]) -> list[Row]:
    """Sort matches, and drop null attributes, which belong to other rules."""
    whole = [{name: value for name, value in row.items() if value is not None} for row in rows]
    return sorted(whole, key=lambda row: (row["ts"], row["id"], row["rule"]))


def difference(expected_rows: list[Row], found: list[Row]) -> str:
    """Describe missing and surplus matches, one of each in full; empty if there are none."""
    if found == expected_rows:
        return ""
    expected, present = Counter(map(repr, expected_rows)), Counter(map(repr, found))
    lines = [f"{len(expected_rows)} matches expected, {len(found)} found"]
    for word, rows in (("missing", expected - present), ("too many", present - expected)):
        lines += [f"{rows.total()} {word}, as {next(iter(rows))}"] if rows else []
    return "\n".join(lines)


# ---- where cases come from


@lru_cache
def packed(query: Query) -> Pack:
    """Return the tenants of a query."""
    tenants = {}
    for number, case in enumerate(generated(query.tenants, query.seed, named=query.named), 1):
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


def generated(count: int, seed: int, *, named: bool) -> list[Case]:
    """Generate cases whose events all have ids, or none do: one in six without a match, many with keys."""
    rng = random.Random(seed)
    found: list[Case] = []
    idle: list[Case] = []

    @settings(database=None, suppress_health_check=list(HealthCheck))
    @given(cases(), rule_sets())
    def collect(case: Case, others: tuple[Rule, ...]) -> None:
        if rng.random() < 0.4:
            case = joined(case, rng.choice(list(KINDS)), rng.choice([-1, -1, 1, 2, 5]))
        if rng.random() < 0.3:
            case = beside(case, others)
        if case.events:
            (found if patterns.detect(case.rules, case.events) else idle).append(case)

    # Hypothesis itself would repeat earlier cases with small changes.
    while len(found) < count - count // 6 or len(idle) < count // 6:
        collect.hypothesis.fuzz_one_input(rng.randbytes(BYTES))
    others = [*_requests(count // 4, rng), *generated_queries(count // 3, rng)]
    mixed = [*others, *found[: count - count // 6 - len(others)], *idle[: count // 6]]
    return [replace(case, events=tuple(_with_ids(case.events, named, rng))) for case in mixed]


def _requests(count: int, rng: random.Random) -> list[Case]:
    """Generate cases of requests for notification, in all modes and with timers."""
    found: list[Case] = []

    @settings(database=None, suppress_health_check=list(HealthCheck))
    @given(request_cases(tuple(Mode), events_max=8, timers=True))
    def collect(case: Case) -> None:
        if case.events and patterns.detect(case.rules, case.events):
            found.append(case)

    while len(found) < count:
        collect.hypothesis.fuzz_one_input(rng.randbytes(BYTES))
    return found[:count]


def joined(case: Case, name: str, which: int = -1) -> Case:
    """Add equalities over all events of some rules (the bits of `which`), so that they can be keyed by the
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
    """Return the case with more rules over the same events."""
    rules = (*case.rules, *Move("o_", kept="ABCDE").node(tuple(others)))
    events = case.events
    while events and matches_max(rules, events) > MATCHES_MAX:
        events = events[: len(events) * 3 // 4]
    return replace(case, rules=rules, events=events)


def _joined(pattern: Pattern, name: str) -> Pattern:
    test = Comparison("=", Attribute(name), Parameter("key"))
    return replace(pattern, constraints=(*pattern.constraints, test))


def _with_ids(events: Sequence[Event], named: bool, rng: random.Random) -> Iterator[Event]:
    for number, event in enumerate(events):
        id = event.id or f"{rng.choice('aZ')}{number}"
        yield replace(event, id=id if named else None)


def read_case(path: Path) -> Case:
    """Read a case from a file: rules (and event types, unless they follow from the values), `---`, events."""
    text, written, *_ = path.read_text(encoding="utf-8").split("---\n")
    program, events = parse(text), tuple(read_events(written))
    return Case(program.rules, events, program.types or _types_of(program.rules, events))


def write_case(case: Case) -> str:
    """Write a case as text, in the format of `read_case`."""
    program = print_program(Program(case.types, case.rules))
    return program + "---\n" + "".join(write_event(event) + "\n" for event in case.events)


def _types_of(rules: Iterable[Rule], events: Iterable[Event]) -> tuple[EventType, ...]:
    """Infer the types from the events; rules may name further types."""
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
    """Rename a case, to run it beside others: names get a prefix, and a microsecond becomes a tick."""

    prefix: str
    tick_us: int = 1
    start_us: int = 0
    attributes: bool = False
    """Whether attributes get the prefix too, as others may have the same name with another kind."""
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
        """Rename a rule or any node in it."""
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
    """Convert events of these types to one table; `type`: with a column for the type."""
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


def arrival(events: Sequence[Event], query: Query, rng: random.Random) -> list[list[Event]]:
    """Return random micro-batches, out of order within the delay."""
    delay_us = query.delay_ticks * query.tick_us
    late = sorted(events, key=lambda event: event.ts + rng.randint(0, delay_us))
    cuts = sorted(rng.sample(range(1, len(late)), query.batches - 1)) if late else []
    return [late[start:end] for start, end in zip([0, *cuts], [*cuts, len(late)], strict=True)]


def matches_of(report: pa.Table) -> list[Row]:
    """Return the matches of a report without dead letters."""
    rows = rows_of(report)
    dead = [row for row in rows if row["rule"] is None and row["_metrics"] is None]
    assert not dead, dead
    return [{name: row[name] for name in row if name[0] != "_"} for row in rows if row["rule"] is not None]


def rows_of(table: pa.Table) -> list[Row]:
    """Convert times of rows and parts to integers."""
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
    """Summarize a pack in a line."""
    matches = Counter(name for name, rows in pack.expected_rows.items() for _ in rows)
    return f"{len(pack.tenants)} tenants, {len(pack.rules)} rules, {len(pack.events)} events, {matches.total()} matches"
