"""Queries of SiddhiQL: every host gives the answer of the reference, and the engine that of Siddhi itself."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.budget import examples
from tests.conformance.hosts import HOSTS, expected, rows_of
from tests.conformance.packs import settled
from tests.conformance.slots import SLOTS
from tests.conftest import GOLDEN
from tests.strategies_queries import STREAMS, chains, definitions, events, filters, joins, selections, single, windows
from tocsin.engine.detector import Detector
from tocsin.errors import RuleError
from tocsin.events.formats import read_events
from tocsin.events.types import Event
from tocsin.language import parse
from tocsin.language.eps.ast import Statement
from tocsin.reference import patterns

EXAMPLES = examples(25)
QUIET = list(HealthCheck)
ALL = {**HOSTS, **SLOTS}
TIMED = "has timers or uses composite events"
BEHIND = [
    "",
    "",
    "from O#window.length(2) select count() as n2 insert all events into P;",
    "@info(name='a') from every o1=O -> o2=O within 4 us select o1.ts as t1, o2.ts as t2 insert into P;",
    "from o1=O, o2=A select o2.x as x2 insert into P;",
]
"""Queries that read what a pattern or a sequence puts out."""
NAMES = sorted(path.stem for path in (GOLDEN / "siddhi").glob("*.txt"))


@st.composite
def texts(draw: st.DrawFn) -> str:
    """One to three queries over one stream each; the later ones may read what the first ones put out."""
    inserted = st.sampled_from(["insert into {}", "insert all events into {}", "insert expired events into {}"])
    text = definitions()
    first = draw(single())
    text += f"@info(name='{draw(st.sampled_from(['a', 'm', 'z']))}') {first} {draw(inserted).format('O')};\n"
    selected = first.partition(" select ")[2].partition(" group by ")[0].partition(" having ")[0]
    names = [item.rpartition(" ")[2] for item in selected.split(", ")]
    numbers = [name for name in names if name != "k"]
    if draw(st.booleans()) and numbers:
        test = draw(filters(numbers[0])) if "k" in names else ""
        source = f"O{test}{draw(st.one_of(st.just(''), windows()))}"
        chosen = draw(selections(numbers[0])) if "k" in names else f"select {numbers[0]} as v, count() as n"
        text += f"from {source} {_renamed(chosen, 'p')} {draw(inserted).format('P')};\n"
    if draw(st.booleans()):
        text += f"@info(name='c') {_renamed(draw(single()), 'q')} {draw(inserted).format('Q')};\n"
    return text


def _renamed(query: str, ending: str) -> str:
    """Names of values that say what they are, as all matches share one table."""
    before, _, after = query.partition("select ")
    chosen, *behind = after.replace(" having ", "\0having ").replace(" group by ", "\0group by ").split("\0")
    made = ", ".join(f"{item.rpartition(' ')[0]} {item.rpartition(' ')[2]}_{ending}" for item in chosen.split(", "))
    for part in behind:
        word, name, *rest = part.split()
        made += f" {part}" if word != "having" else f" having {name}_{ending} {' '.join(rest)}"
    return f"{before}select {made}"


def check(host: str, rules: Sequence[Statement], given: Sequence[Event], seed: int, types: dict) -> None:
    expected_rows = expected(patterns.detect(rules, given), rules)
    try:
        found = ALL[host](rules, types, list(given), random.Random(seed))
    except RuleError as error:
        if host == "ordered" and TIMED in str(error):
            return
        raise
    if host == "ordered" or host in SLOTS:
        found, expected_rows = settled(found), settled(expected_rows)
    assert found == expected_rows


@pytest.mark.parametrize("host", ALL)
@settings(max_examples=EXAMPLES, suppress_health_check=QUIET)
@given(text=texts(), given_events=events(), seed=st.integers(0, 999))
def test_host_gives_the_rows_of_the_reference(host: str, text: str, given_events: tuple[Event, ...], seed: int) -> None:
    program = parse(text, "siddhi")
    check(host, program.rules, given_events, seed, {type.name: type for type in program.types})


@st.composite
def counted(draw: st.DrawFn) -> tuple[str, list[Event]]:
    """Aggregates over a number of events, which have a kernel of their own, and events that go round in its ring."""
    stream = draw(st.sampled_from(sorted(STREAMS)))
    number, kind = STREAMS[stream]
    functions = draw(st.lists(st.sampled_from(["sum", "avg", "min", "max", "count"]), min_size=1, max_size=3))
    items = [f"{name}({'' if name == 'count' else number}) as v{n}" for n, name in enumerate(functions)]
    items += draw(st.sampled_from([[], ["k"], [number]]))
    window = draw(st.sampled_from(["length", "lengthBatch"]))
    text = f"from {stream}{draw(filters(number))}#window.{window}({draw(st.integers(1, 5))}) select {', '.join(items)}"
    numbers = st.integers(-3, 3) | st.sampled_from([2**31 - 1, -(2**31)] if kind == "int" else [2**63 - 1, -(2**63)])
    if kind == "double":
        numbers = st.sampled_from([0.1, -0.25, 0.0, 3.5, 1e300, -1e300, 5e-324])
    values = draw(st.lists(st.none() | numbers, max_size=30))
    given = [{"k": "ab"[n % 2], **({} if value is None else {number: value})} for n, value in enumerate(values)]
    return text, [Event(stream, ts, attributes) for ts, attributes in enumerate(given)]


@pytest.mark.parametrize("host", ALL)
@settings(max_examples=EXAMPLES, suppress_health_check=QUIET)
@given(case=counted(), seed=st.integers(0, 999))
def test_host_gives_the_rows_of_the_reference_for_numbers_of_events(
    host: str, case: tuple[str, list[Event]], seed: int
) -> None:
    program = parse(f"{definitions()}{case[0]} insert into O;", "siddhi")
    check(host, program.rules, case[1], seed, {type.name: type for type in program.types})


@pytest.mark.parametrize("host", [host for host in ALL if host != "ordered"])
@settings(max_examples=EXAMPLES, suppress_health_check=QUIET)
@given(query=single(), given_events=events(), seed=st.integers(0, 999))
def test_tesla_rules_see_the_rows_of_queries(host: str, query: str, given_events: tuple[Event, ...], seed: int) -> None:
    program = parse(f"{definitions()}{query} insert all events into O;", "siddhi")
    seen = parse("define Seen(v2: long) from O() as o and last A() as a within 4 us from o where v2 = a.x")
    rules = (*program.rules, *seen.rules)
    check(host, rules, given_events, seed, {type.name: type for type in program.types})


@pytest.mark.parametrize("host", ALL)
@settings(max_examples=EXAMPLES, suppress_health_check=QUIET)
@given(
    query=joins(),
    which=st.sampled_from(["", "all events ", "expired events "]),
    given_events=events(),
    seed=st.integers(0, 999),
)
def test_host_gives_the_rows_of_the_reference_for_joins(
    host: str, query: str, which: str, given_events: tuple[Event, ...], seed: int
) -> None:
    program = parse(f"{definitions()}{query} insert {which}into O;", "siddhi")
    check(host, program.rules, given_events, seed, {type.name: type for type in program.types})


@pytest.mark.parametrize("host", ALL)
@settings(max_examples=examples(50), suppress_health_check=QUIET)
@given(query=chains(), behind=st.sampled_from(BEHIND), given_events=events(), seed=st.integers(0, 999))
def test_host_gives_the_rows_of_the_reference_for_chains(
    host: str, query: str, behind: str, given_events: tuple[Event, ...], seed: int
) -> None:
    program = parse(f"{definitions()}{query} insert into O;{behind}", "siddhi")
    check(host, program.rules, given_events, seed, {type.name: type for type in program.types})


@pytest.mark.parametrize("name", NAMES)
def test_as_siddhi_answers(name: str) -> None:
    """What the engine finds is what Siddhi put out, query by query."""
    text, given_events, right = (GOLDEN / "siddhi" / f"{name}.txt").read_text("utf-8").split("---\n")
    program = parse(text, "siddhi")
    types = {type.name: type for type in program.types}
    detector = Detector(program.rules, types, delay_us=2**60)
    found = rows_of(detector.push(list(read_events(given_events)))) + rows_of(detector.finish())
    lines = []
    for query in program.rules:
        for row in found:
            if row["rule"] == query.name:
                listed = ", ".join(f"{value}={_literal(row[value])}" for value, _ in query.emits.attributes)
                lines.append(f"{query.name} {row['ts']} {'expired' if row.get('expired') else 'current'} {listed}")
    assert lines == right.splitlines()


def _literal(value: object) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return f'"{value}"' if isinstance(value, str) else repr(value)
