"""Printed rules are readable, and parsing them gives equal rules."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from tests.budget import examples
from tests.language import strategies
from tocsin.errors import RuleError
from tocsin.events.types import Kind
from tocsin.language.syntax.ast import Expression, Literal, Pattern, Program, Rule
from tocsin.language.syntax.expressions import print_expression, print_pattern, print_program, print_rule, print_window
from tocsin.language.tesla.text import parse, parse_expression, parse_pattern


@given(strategies.rules())
@settings(max_examples=examples(100))
def test_a_printed_rule_parses_to_an_equal_rule(rule: Rule) -> None:
    assert parse(print_rule(rule)).rules == (rule,)


@given(strategies.programs())
@settings(max_examples=examples(20))
def test_a_printed_program_parses_to_an_equal_program(program: Program) -> None:
    assert parse(print_program(program)) == program


@given(strategies.expressions())
@settings(max_examples=examples(150))
def test_a_printed_expression_parses_to_an_equal_expression(expression: Expression) -> None:
    assert parse_expression(print_expression(expression)) == expression


@given(strategies.patterns(named=True))
@settings(max_examples=examples(40))
def test_a_printed_pattern_parses_to_an_equal_pattern(pattern: Pattern) -> None:
    assert parse_pattern(print_pattern(pattern)) == pattern


@pytest.mark.parametrize(
    "text",
    [
        "a + b + c",
        "a - (b - c)",
        "a + (b + c)",
        "a * (b + c) / d",
        "-a * b",
        "-(a * b)",
        "-(-a)",
        "a - -3",
        "a - -b",
        "a=1 and b=2 or c=3",
        "a=1 and (b=2 or c=3)",
        "not a and b",
        "not (a and b)",
        "not not a",
        "not a<3",
        "(not a)=b",
        "(a<b)=c",
        "a + 1 < b",
        "value>-5",
        "$p=A.b",
        'a="\\"\\n\\u0001é"',
        "a=1e+16",
        "a=45.0",
        'at<timestamp("2024-01-31T12:30:00.250000Z")',
        "a=true",
    ],
)
def test_an_expression_has_only_necessary_parentheses(text: str) -> None:
    assert print_expression(parse_expression(text)) == text


def test_a_rule_is_formatted_as_in_the_papers() -> None:
    text = """\
event Smoke(area: string)

rule R1
define    Fire(area: string, temp: double)
from      Smoke(area=$a) as s
          and 3-last Temp(area=$a, value>45 or broken) as t within 5 min from s
          and each Wind() between t and s
          and not Rain(area=$a) within 90 s from t
          and 45 < $avg = Avg(Temp(area=$a).value within 1 h from s)
          and Count(Temp() within 1 d from s) = $n
where     area = s.area, temp = t.value * (1 + $avg)
consuming t, Wind

define    Calm()
from      Wind(speed<3)
"""
    assert print_program(parse(text)) == text


@pytest.mark.parametrize(
    ("window_us", "text"),
    [
        (1, "1 us"),
        (1_500, "1500 us"),
        (250_000, "250 ms"),
        (90_000_000, "90 s"),
        (5_400_000_000, "90 min"),
        (7_200_000_000, "2 h"),
        (172_800_000_000, "2 d"),
    ],
)
def test_a_window_has_the_largest_whole_unit(window_us: int, text: str) -> None:
    assert print_window(window_us) == text


def test_a_timestamp_beyond_the_calendar_cannot_be_printed() -> None:
    with pytest.raises(RuleError, match="outside the years"):
        print_expression(Literal(2**62, Kind.TIMESTAMP))
