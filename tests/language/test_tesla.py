"""A TESLA text is parsed to its rules, or a syntax error shows the mistake."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.budget import examples
from tests.language import strategies
from tocsin.errors import RuleError, Span
from tocsin.events.types import EventType, Kind
from tocsin.language.syntax.ast import (
    Aggregate,
    And,
    Arithmetic,
    Attribute,
    Between,
    Comparison,
    Expression,
    Function,
    Literal,
    Negation,
    Negative,
    Not,
    Or,
    Parameter,
    Pattern,
    Policy,
    Program,
    Rule,
    Selection,
    Within,
)
from tocsin.language.syntax.ast import Test as Bounded  # pytest takes what is called Test… for tests
from tocsin.language.syntax.expressions import print_rule
from tocsin.language.tesla.text import parse, parse_expression, parse_pattern

SYNTAX = Path(__file__).parents[1] / "golden" / "syntax"
MINUTE_US = 60_000_000

FIRE = EventType("Fire", (("area", Kind.STRING), ("measuredTemp", Kind.DOUBLE)))
COMP_EVENT = EventType("CompEvent")
SAME_AREA = Comparison("=", Attribute("area"), Parameter("a"))
SAME_X = Comparison("=", Attribute("v"), Parameter("x"))
HOT = Comparison(">", Attribute("value"), Literal(45, Kind.INT))


def last(name: str, origin: str, *constraints: Expression) -> Selection:
    return Selection(Policy.LAST, Pattern(name, constraints), Within(5 * MINUTE_US, origin), 1)


PAPER = {
    """\
Rule R1

define    Fire(area: string, measuredTemp: double)
from      Smoke(area=$a) and
           each Temp(area=$a and value>45)
           within 5 min. from Smoke
where     area=Smoke.area and measuredTemp=Temp.value
""": Rule(
        "R1",
        FIRE,
        Pattern("Smoke", (SAME_AREA,)),
        (Selection(Policy.EACH, Pattern("Temp", (SAME_AREA, HOT)), Within(5 * MINUTE_US, "Smoke"), 0),),
        (("area", Attribute("area", "Smoke")), ("measuredTemp", Attribute("value", "Temp"))),
    ),
    """\
Rule R2

define   Fire(area: string, measuredTemp: double)
from     Temp(area=$a and value>45) and
         not Rain(area=$a) within 5 min. from Temp
where    area=Temp.area and measuredTemp=Temp.value
""": Rule(
        "R2",
        FIRE,
        Pattern("Temp", (SAME_AREA, HOT)),
        (Negation(Pattern("Rain", (SAME_AREA,)), Within(5 * MINUTE_US, "Temp")),),
        (("area", Attribute("area", "Temp")), ("measuredTemp", Attribute("value", "Temp"))),
    ),
    """\
Rule R3

define   Fire(area: string, measuredTemp: double)
from     Smoke(area=$a) and
         45 < $t=Avg(Temp(area=$a).value
         within 5 min. from Smoke)
where    area=Smoke.area and measuredTemp=$t
""": Rule(
        "R3",
        FIRE,
        Pattern("Smoke", (SAME_AREA,)),
        (
            Aggregate(
                Function.AVG,
                Pattern("Temp", (SAME_AREA,)),
                "value",
                Within(5 * MINUTE_US, "Smoke"),
                "t",
                Bounded(Literal(45, Kind.INT), "<"),
            ),
        ),
        (("area", Attribute("area", "Smoke")), ("measuredTemp", Parameter("t"))),
    ),
    """\
Rule R4
 define CompEvent()
 from A() and last B() within 5 min. from A
 and last C() within 5 min. from B
 and last D() within 5 min. from C
 and last E() within 5 min. from D
""": Rule("R4", COMP_EVENT, Pattern("A"), (last("B", "A"), last("C", "B"), last("D", "C"), last("E", "D"))),
    """\
Rule R5

define   CompEvent()
from     A(v=$x) and last B(v=$x) within 5 min. from A
         and last C() within 5 min. from B
""": Rule("R5", COMP_EVENT, Pattern("A", (SAME_X,)), (last("B", "A", SAME_X), last("C", "B"))),
    """\
Rule R6

define   CompEvent()
from     A() and last B() within 5 min. from A
         and last C() within 5 min. from B
         and not D() between C and B
""": Rule(
        "R6",
        COMP_EVENT,
        Pattern("A"),
        (last("B", "A"), last("C", "B"), Negation(Pattern("D"), Between("C", "B"))),
    ),
}


@pytest.mark.parametrize(("text", "rule"), PAPER.items(), ids=[rule.name for rule in PAPER.values()])
def test_the_rules_of_the_paper(text: str, rule: Rule) -> None:
    assert parse(text) == Program((), (rule,))


def test_all_rules_of_the_paper_in_one_text() -> None:
    assert parse("\n".join(PAPER)).rules == tuple(PAPER.values())


def test_a_subscription() -> None:
    area = Comparison("=", Attribute("area"), Literal("A1", Kind.STRING))
    value = Comparison(">=", Attribute("value"), Literal(12, Kind.INT))
    assert parse_pattern('Temp(area="A1", value>=12)') == Pattern("Temp", (area, value))


@pytest.mark.parametrize("text", ["", " \n", "-- nothing\n# at all", "\ufeff"])
def test_an_empty_text_has_no_rules(text: str) -> None:
    assert parse(text) == Program()


def test_declarations_and_rules_in_any_order() -> None:
    text = """
        define X from A;            -- no header, no parentheses
        EVENT A(at: Timestamp, n: LONG);
        rule second: DEFINE X() FROM A() CONSUMING A   # a colon
        event B
        rule third define X() from B()
    """
    program = parse(text)
    assert program.types == (EventType("A", (("at", Kind.TIMESTAMP), ("n", Kind.LONG))), EventType("B"))
    assert [rule.name for rule in program.rules] == ["X", "second", "third"]
    assert program.rules[1].consuming == ("A",)
    assert program.source == text


def test_unnamed_rules_have_the_names_of_their_types_with_numbers() -> None:
    text = (
        "define X() from A() define X() from B() rule X_2 define Y() from A() define X() from C() define Y() from B()"
    )
    assert [rule.name for rule in parse(text).rules] == ["X", "X_3", "X_2", "X_4", "Y"]


def test_an_explicit_name_takes_precedence_over_an_earlier_unnamed_rule() -> None:
    assert [rule.name for rule in parse("define X() from A() rule X define Y() from A()").rules] == ["X_2", "X"]


NUMBERS = {
    "3": Literal(3, Kind.INT),
    "-3": Literal(-3, Kind.INT),
    "- -3": Literal(3, Kind.INT),
    "-(3)": Literal(-3, Kind.INT),
    "2147483647": Literal(2**31 - 1, Kind.INT),
    "2147483648": Literal(2**31, Kind.LONG),
    "-2147483648": Literal(-(2**31), Kind.INT),
    "9223372036854775807": Literal(2**63 - 1, Kind.LONG),
    "-9223372036854775808": Literal(-(2**63), Kind.LONG),
    "000000000000000000000001": Literal(1, Kind.INT),
    "1.0": Literal(1.0, Kind.DOUBLE),
    ".5": Literal(0.5, Kind.DOUBLE),
    "-1e3": Literal(-1000.0, Kind.DOUBLE),
    "1.5E-3": Literal(0.0015, Kind.DOUBLE),
}
OTHERS = {
    "TRUE": Literal(True, Kind.BOOL),
    "false": Literal(False, Kind.BOOL),
    "'it\\'s \"x\"'": Literal('it\'s "x"', Kind.STRING),
    '"a -- # b"': Literal("a -- # b", Kind.STRING),
    '"\\n\\t\\\\\\x41\\u00e9\\U0001F600"': Literal("\n\t\\Aé😀", Kind.STRING),
    'timestamp("1970-01-01T00:00:01Z")': Literal(1_000_000, Kind.TIMESTAMP),
    'Timestamp ( "1970-01-01 01:00:00+01:00" )': Literal(0, Kind.TIMESTAMP),
    'timestamp("1970-01-01T00:00:00.000001")': Literal(1, Kind.TIMESTAMP),
    'timestamp("1969-12-31")': Literal(-86_400_000_000, Kind.TIMESTAMP),
    "timestamp": Attribute("timestamp"),
    "true.x": Attribute("x", "true"),
    "a . b": Attribute("b", "a"),
    "$Not": Parameter("Not"),
}
A, B, C = Attribute("a"), Attribute("b"), Attribute("c")
SHAPES = {
    "a + b * c": Arithmetic("+", A, Arithmetic("*", B, C)),
    "a - b - c": Arithmetic("-", Arithmetic("-", A, B), C),
    "(a - b) / c": Arithmetic("/", Arithmetic("-", A, B), C),
    "-a * b": Arithmetic("*", Negative(A), B),
    "a == b": Comparison("=", A, B),
    "a <> b": Comparison("!=", A, B),
    "a + b < c": Comparison("<", Arithmetic("+", A, B), C),
    "not a = b": Not(Comparison("=", A, B)),
    "not a and not not b": And((Not(A), Not(Not(B)))),
    "a and b or c": Or((And((A, B)), C)),
    "a or b and c": Or((A, And((B, C)))),
    "(a or b) and c": And((Or((A, B)), C)),
    "a and (b and c)": And((A, B, C)),
    "(a or b) or (c or a)": Or((A, B, C, A)),
    "(a = b) = c": Comparison("=", Comparison("=", A, B), C),
    "a-3-last": Arithmetic("-", Arithmetic("-", A, Literal(3, Kind.INT)), Attribute("last")),
}


@pytest.mark.parametrize(("text", "expression"), [*NUMBERS.items(), *SHAPES.items()])
def test_an_expression(text: str, expression: Expression) -> None:
    assert parse_expression(text) == expression


@pytest.mark.parametrize(("text", "expression"), OTHERS.items())
def test_a_constant_or_a_name(text: str, expression: Expression) -> None:
    assert parse_expression(text) == expression


def test_a_top_level_and_is_split_and_an_or_is_not() -> None:
    for text in ("E(a, b and c)", "E(a and (b and c))", "E(a, b, c)"):
        assert parse_pattern(text).constraints == (A, B, C)
    assert parse_pattern("E(a, b or c)").constraints == (A, Or((B, C)))


@pytest.mark.parametrize("name", strategies.KEYWORDS)
def test_a_keyword_can_name_an_attribute(name: str) -> None:
    rule = parse(f"define X({name}: int) from A(A.{name} > 1) where {name} = A.{name}").rules[0]
    assert rule.emits.attributes == ((name, Kind.INT),)
    assert rule.where == ((name, Attribute(name, "A")),)
    if name not in strategies.RESERVED:
        assert parse_pattern(f"A({name}, {name} = 3-{name})").constraints[0] == Attribute(name)


@pytest.mark.parametrize("name", strategies.KEYWORDS)
def test_a_keyword_can_name_a_type(name: str) -> None:
    rule = parse(f"define {name} from {name} and each {name} within 1 s from {name}").rules[0]
    assert {rule.emits.name, rule.anchor.type, rule.clauses[0].pattern.type} == {name}


def clause_of(text: str) -> Any:
    return parse(f"define X() from A() and {text}").rules[0].clauses[0]


@pytest.mark.parametrize(
    ("text", "policy", "count"),
    [
        ("B()", Policy.EACH, 0),
        ("Each B", Policy.EACH, 0),
        ("FIRST B()", Policy.FIRST, 1),
        ("last B", Policy.LAST, 1),
        ("1-last B()", Policy.LAST, 1),
        ("3-last B()", Policy.LAST, 3),
        ("3 Last B", Policy.LAST, 3),
        ("12 - first B()", Policy.FIRST, 12),
    ],
)
def test_a_policy(text: str, policy: Policy, count: int) -> None:
    assert clause_of(f"{text} between A and C") == Selection(policy, Pattern("B"), Between("A", "C"), count)


@pytest.mark.parametrize(
    ("text", "window_us"),
    [
        *((f"5 {unit}", 5 * MINUTE_US) for unit in ("min.", "min", "mins", "minute", "minutes", "Min.")),
        *((f"7 {unit}", 7_000_000) for unit in ("s", "sec", "secs", "second", "seconds", "SEC .")),
        *((f"2 {unit}", 7_200_000_000) for unit in ("h", "hour", "Hours")),
        *((f"2 {unit}", 172_800_000_000) for unit in ("d", "day", "days")),
        ("5min", 5 * MINUTE_US),
        ("1.5 h", 5_400_000_000),
        ("0.5 ms", 500),
        ("1 us", 1),
        ("9223372036854775807 us", 2**63 - 1),
    ],
)
def test_a_window(text: str, window_us: int) -> None:
    assert clause_of(f"B() within {text} from A").scope == Within(window_us, "A")


def test_an_alias() -> None:
    assert clause_of("last B(x) as b within 1 s from A").pattern == Pattern("B", (Attribute("x"),), "b")
    assert clause_of("B as b within 1 s from A").pattern.role == "b"


SECOND = Within(1_000_000, "A")
THREE = Literal(3, Kind.INT)


@pytest.mark.parametrize(
    ("text", "parameter", "test"),
    [
        ("{}", None, None),
        ("$t = {}", "t", None),
        ("$t == {}", "t", None),
        ("3 < {}", None, Bounded(THREE, "<")),
        ("{} > 3", None, Bounded(THREE, "<")),
        ("{} <> 3", None, Bounded(THREE, "!=")),
        ("3 >= $t = {}", "t", Bounded(THREE, ">=")),
        ("$t = {} <= 3", "t", Bounded(THREE, ">=")),
        ("{} = $t", None, Bounded(Parameter("t"), "=")),
        ("$s = $t = {}", "t", Bounded(Parameter("s"), "=")),
        ("-$s * 3 < {}", None, Bounded(Arithmetic("*", Negative(Parameter("s")), THREE), "<")),
        ("A.x + 3 < {}", None, Bounded(Arithmetic("+", Attribute("x", "A"), THREE), "<")),
        ("3 - last.x < {}", None, Bounded(Arithmetic("-", THREE, Attribute("x", "last")), "<")),
    ],
)
def test_an_aggregate_with_its_parameter_and_test(text: str, parameter: str | None, test: Bounded | None) -> None:
    expected = Aggregate(Function.MAX, Pattern("B", (A,)), "v", SECOND, parameter, test)
    assert clause_of(text.format("MAX(B(a).v within 1 s from A)")) == expected


def test_patterns_of_aggregates() -> None:
    assert clause_of("Count(B(a) between A and C)") == Aggregate(
        Function.COUNT, Pattern("B", (A,)), None, Between("A", "C")
    )
    assert clause_of("count(B.v within 1 s from A)") == Aggregate(Function.COUNT, Pattern("B"), "v", SECOND)
    assert clause_of("Min(min().min within 1 s from A)") == Aggregate(Function.MIN, Pattern("min"), "min", SECOND)


def test_the_values_of_a_composite_event() -> None:
    text = "define X() from A() where a = A.x * 2 - $p, b = (A.x > 3 and not A.y) and c = -1"
    condition = And((Comparison(">", Attribute("x", "A"), THREE), Not(Attribute("y", "A"))))
    product = Arithmetic("*", Attribute("x", "A"), Literal(2, Kind.INT))
    assert parse(text).rules[0].where == (
        ("a", Arithmetic("-", product, Parameter("p"))),
        ("b", condition),
        ("c", Literal(-1, Kind.INT)),
    )


def nodes(value: Any) -> Iterator[Any]:
    if isinstance(value, tuple):
        for item in value:
            yield from nodes(item)
    elif is_dataclass(value) and not isinstance(value, Span):
        yield value
        for item in fields(value):
            yield from nodes(getattr(value, item.name))


def test_every_node_has_its_span() -> None:
    text = """
        rule R define Fire(area: string) from Smoke(area=$a)
        and 3-last Wind(speed > (1 + $a) * 2, not calm) as w within 1 h. from Smoke
        and not Rain() between w and Smoke
        and $t = Avg(Temp().value within 5 min. from Smoke) > -(w.x)
        where area = ($t + 1)
        consuming w ; """
    rule = parse(text).rules[0]
    found = {text[node.span.start : node.span.end] for node in nodes(rule) if not isinstance(node, EventType)}
    assert found >= {
        text.strip(" ;\n"),
        "Smoke(area=$a)",
        "3-last Wind(speed > (1 + $a) * 2, not calm) as w within 1 h. from Smoke",
        "Wind(speed > (1 + $a) * 2, not calm) as w",
        "within 1 h. from Smoke",
        "speed > (1 + $a) * 2",
        "(1 + $a) * 2",
        "(1 + $a)",
        "not calm",
        "not Rain() between w and Smoke",
        "between w and Smoke",
        "$t = Avg(Temp().value within 5 min. from Smoke) > -(w.x)",
        "> -(w.x)",
        "-(w.x)",
        "(w.x)",
        "($t + 1)",
    }


@given(strategies.expressions())
@settings(max_examples=examples(60))
def test_the_span_of_an_expression_parses_to_it(expression: Expression) -> None:
    text = print_rule(Rule("X", EventType("X"), Pattern("A"), where=(("x", expression),)))
    for node in nodes(parse(text).rules[0].where[0][1]):
        assert parse_expression(text[node.span.start : node.span.end]) == node


def mistake(text: str, read: Callable[[str], object] = parse) -> RuleError | None:
    """Return the error of a text, if any. Other exceptions fail the test."""
    try:
        read(text)
    except RuleError as error:
        return error
    return None


def check(text: str, read: Callable[[str], object] = parse) -> None:
    error = mistake(text, read)
    if error is not None:
        assert error.source == text
        assert error.span is not None
        assert 0 <= error.span.start <= error.span.end <= len(text)
        assert str(error)


@given(st.text(max_size=60))
@example("\x00")
@example("(" * 5000)
@example("A(" + "(" * 5000 + "x" + ")" * 5000 + ")")
@example("A(" + "- " * 5000 + "x)")
@example("A(" + "not " * 5000 + "x)")
@example("A(x" + " + 1" * 5000 + ")")
@example("A(x = " + "9" * 5000 + ")")
@example("A(x = 1." + "9" * 5000 + "e" + "9" * 5000 + ")")
@example('A(x = "\\ud800")')
@example("A(x = '\ud800')")
@example('A(x = timestamp("0001-01-01T00:00:00+23:59"))')
@example(" " * 5000 + "!")
@example('"' + "\\" * 5001)
def test_any_text_parses_or_raises_a_rule_error(text: str) -> None:
    check(text)
    check(text, parse_pattern)
    check(text, parse_expression)
    check(f"define X() from A() and B() within {text} from A")


VOCABULARY = [
    *("define", "from", "where", "consuming", "and", "or", "not", "as", "within", "between", "each", "first", "last"),
    *("event", "rule", "true", "timestamp", "avg", "count", "int", "string", "5", "min", "0", "1.5", "3-last", "$p"),
    *("a", "b", "t", '"s"', "(", "(", ")", ")", ",", ".", ":", ";", "=", "<", ">=", "+", "-", "*"),
]


@given(st.lists(st.sampled_from(VOCABULARY), max_size=15), st.sampled_from(["", "define X() from A() and "]))
@settings(max_examples=examples(300))
def test_an_error_never_mentions_the_grammar(words: list[str], start: str) -> None:
    error = mistake(start + " ".join(words))
    if error is not None:
        assert not re.search(r"\b[A-Z]{2,}\b|\$END", error.message), error.message
        alternatives = re.sub(r"\(.*?\)|'.*?'", "x", error.message.partition("expected ")[2])
        assert len(re.split(", | or ", alternatives)) <= 6, error.message


@given(strategies.rules(), st.randoms(use_true_random=False))
@settings(max_examples=examples(60))
def test_a_rule_with_typos_parses_or_raises_a_rule_error(rule: Rule, chance: random.Random) -> None:
    text = print_rule(rule)
    for _ in range(chance.randint(1, 3)):
        start = chance.randint(0, len(text))
        end = min(len(text), start + chance.randint(0, 5))
        text = text[:start] + chance.choice(["", " ", "\n", *VOCABULARY, text[start:end] * 2]) + text[end:]
    check(text)


@pytest.mark.parametrize("name", sorted(path.name for path in SYNTAX.glob("*.txt")))
def test_a_syntax_error_has_a_clear_message(name: str, golden: Callable[[str, str], None]) -> None:
    text = (SYNTAX / name).read_text(encoding="utf-8").partition("\n---\n")[0]
    with pytest.raises(RuleError) as caught:
        parse(text)
    golden(f"syntax/{name}", f"{text}\n---\n{caught.value}\n")


def test_there_are_syntax_cases() -> None:
    assert len(list(SYNTAX.glob("*.txt"))) >= 20
